"""The records of a transaction (J1)."""

from __future__ import annotations

import pytest

from ternmq import names
from ternmq.errors import CorruptRecord, SystemBusy
from ternmq.message import Property
from ternmq.store.log.draft import Draft
from ternmq.transaction import half as halves
from ternmq.wire import properties as props
from ternmq.wire.record import Record, Sysflag, pack_record, record_bytes, unpack_record
from tests.store.small import BORN, HOST, draft


def stored(message: Draft, *, queue_offset: int = 7, log_offset: int = 1000, store_time_ms: int = 5_000) -> Record:
    """The record that a store would make of a draft."""
    topic, properties = message.topic.encode(), message.properties.encode()
    size = record_bytes(body=len(message.body), topic=len(topic), properties=len(properties), born_host=8, store_host=8)
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=message.queue_id,
        flag=message.flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        sysflag=message.sysflag,
        born_time_ms=message.born_time_ms,
        born_host=message.born_host,
        store_time_ms=store_time_ms,
        store_host=HOST,
        reconsume_times=message.reconsume_times,
        prepared_transaction_offset=message.prepared_transaction_offset,
        body=message.body,
        topic=topic,
        properties=properties,
    )
    return unpack_record(page)


def prepared(**properties: str) -> Draft:
    message = draft("orders", 3, b"paid", UNIQ_KEY="K", TRAN_MSG="true", PGROUP="shop", **properties)
    message.sysflag = Sysflag.PREPARED | Sysflag.COMPRESSED
    return message


def test_a_half_waits_in_the_half_topic_and_knows_where_it_belongs() -> None:
    """J1: without the bits of a transaction, or it would have no queue entry."""
    message = prepared()
    halves.redirect(message)
    half = halves.read_half(stored(message))

    assert (names.HALF_TOPIC, 0, Sysflag.COMPRESSED) == (message.topic, message.queue_id, message.sysflag)
    assert ("orders", 3, "shop", "K", 0, 7) == (
        half.topic,
        half.queue_id,
        half.group,
        half.unique_key,
        half.checks,
        half.first,
    )
    assert "K" == props.find(message.properties, "__transactionId__")


def test_a_sender_cannot_forge_what_only_brokers_set() -> None:
    """J1: neither another place, nor the number of checks."""
    message = prepared(
        REAL_TOPIC="other",
        REAL_QID="9",
        TRANSACTION_CHECK_TIMES="14",
        TRAN_PREPARED_QUEUE_OFFSET="2",
        TERN_WAITS_SINCE="1",
    )
    halves.redirect(message)
    half = halves.read_half(stored(message))

    assert ("orders", 3, 0, 7, 5_000) == (half.topic, half.queue_id, half.checks, half.first, half.since_ms)


@pytest.mark.parametrize("sysflag", [0, Sysflag.COMMIT, Sysflag.ROLLBACK])
def test_what_is_no_half_is_left_alone(sysflag: int) -> None:
    """J1: a commit passes the redirects again, and a message sent back still has TRAN_MSG."""
    message = prepared()
    message.sysflag = sysflag
    halves.redirect(message)
    assert ("orders", sysflag) == (message.topic, message.sysflag)


def test_a_commit_is_the_message_with_the_log_offset_of_its_half() -> None:
    """J1: as RocketMQ writes it."""
    message = prepared(TAGS="A")
    halves.redirect(message)
    record = stored(message)
    commit = halves.committed(record, halves.read_half(record))

    assert ("orders", 3, b"paid") == (commit.topic, commit.queue_id, bytes(commit.body))
    assert (Sysflag.COMMIT | Sysflag.COMPRESSED, 1000) == (commit.sysflag, commit.prepared_transaction_offset)
    assert ("A", "true") == (props.find(commit.properties, "TAGS"), props.find(commit.properties, "TRAN_MSG"))
    assert halves.is_commit_of(stored(commit), halves.read_half(record))


def test_a_copy_counts_checks_and_names_the_first_half() -> None:
    """J2"""
    message = prepared()
    halves.redirect(message)
    first = stored(message)
    second = stored(halves.copy(first, halves.read_half(first), checks=1), queue_offset=20, store_time_ms=40_000)
    moved = stored(halves.copy(second, halves.read_half(second), checks=1, since_ms=40_000), queue_offset=30)
    third = stored(halves.copy(moved, halves.read_half(moved), checks=2), queue_offset=31, store_time_ms=70_000)

    assert (7, 1, 40_000) == _told(second)
    assert (7, 1, 5_000) == _told(moved)  # stored at 5,000: a wait cannot begin later
    assert (7, 2, 70_000) == _told(third)
    assert props.find(third.properties, Property.TRANSACTION_WAITS_SINCE) is None


def _told(record: Record) -> tuple[int, int, int]:
    half = halves.read_half(record)
    return half.first, half.checks, half.since_ms


def test_ops_of_both_forms_are_read_and_that_of_4_9_is_written() -> None:
    """J1: 4.9 cannot read many offsets; whatever else stands there names no half."""
    op = halves.op_record(42, now_ms=1, host=BORN)

    assert (names.OP_HALF_TOPIC, 0, b"42") == (op.topic, op.queue_id, bytes(op.body))
    assert [42] == halves.closed_by(op.body, props.find(op.properties, "TAGS"))
    assert [1, 2, 30] == halves.closed_by(b"1,2,30,", "d")
    assert [5] == halves.closed_by(b"5,-1,x,,99999999999999999999,", "d")
    assert [] == halves.closed_by(b"5", "other")
    assert [] == halves.closed_by(b"", "d")


@pytest.mark.parametrize(
    "changes",
    [
        {"REAL_TOPIC": ""},
        {"REAL_QID": ""},
        {"REAL_QID": "-1"},
        {"REAL_QID": "9999999999"},
        {"REAL_TOPIC": names.HALF_TOPIC},
    ],
)
def test_a_half_without_a_place_for_its_message_is_corrupt(changes: dict[str, str]) -> None:
    """J1: of a damaged log; it must not become a message of the system."""
    message = prepared()
    halves.redirect(message)
    for name, value in changes.items():
        message.properties = props.with_(message.properties, name, value)
    with pytest.raises(CorruptRecord):
        halves.read_half(stored(message))


def test_numbers_that_a_sender_invents_do_no_harm() -> None:
    """J2: an immunity that is no number is none, and one of a million years is one of a year."""
    for text, expected in (("20", 20_000), ("x", -1), ("-5", -1), ("٣", -1), ("9999999999", 365 * 86_400_000)):
        message = prepared(CHECK_IMMUNITY_TIME_IN_SECONDS=text)
        halves.redirect(message)
        assert expected == halves.read_half(stored(message)).immunity_ms


def test_a_check_has_the_message_as_its_producer_sent_it() -> None:
    """J2: a whole record, under its own topic and queue, with the offsets of the copy."""
    message = prepared()
    halves.redirect(message)
    record = stored(message)
    half = halves.read_half(record)
    half.queue_offset, half.log_offset = 20, 2000
    asked = unpack_record(halves.check_body(record, half))

    assert ("orders", 3, 20, 2000, b"paid") == (
        asked.topic,
        asked.queue_id,
        asked.queue_offset,
        asked.log_offset,
        bytes(asked.body),
    )


def test_too_many_open_transactions_are_refused() -> None:
    """J1: other messages are not."""
    with pytest.raises(SystemBusy, match="10 transactions are open"):
        halves.refuse_half(prepared(), 10)
    halves.refuse_half(draft("orders", 0, b"x"), 10)
