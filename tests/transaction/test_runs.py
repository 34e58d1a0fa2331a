"""The kernels of transactions make of a request what Python makes of it, or leave it (J1, C1, C2, C4)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Outcome
from ternmq.names import HALF_TOPIC, OP_HALF_TOPIC, is_internal_topic
from ternmq.store.derived.key_hash import MADE_ENTRY, KeyHashes
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.transaction import half as halves
from ternmq.transaction import ops
from ternmq.transaction.ops import OpWriter
from ternmq.wire.codes import RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request, request_in
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.properties import closed, find
from ternmq.wire.record import TOPIC_V1_BYTES_MAX, Sysflag, pack_record, record_bytes, unpack_record
from ternmq.wire.requests import EndTransaction
from ternmq.wire.tags import tags_code
from ternmq.wire.template import ReplyTemplate
from tests.manual_clock import ManualClock
from tests.store.small import BORN, HOST, log_queues_index, small_config
from tests.test_send_kernel import HOLES, MASK, framed, header_text

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

MORE: Final = "CLUSTER\x01c\x02"
REPLY: Final = ReplyTemplate({"MSG_REGION": '100 %d "quoted"'}, HOLES)
ENDED: Final = ReplyTemplate({}, {})
FORM: Any = native.ReplyForm(REPLY.parts()) if HAS_NATIVE else None
BASE, QUEUE_OFFSET, TIME_MS = 1_000_000, 77, 1_700_000_000_123
TOPIC_FIELD: Final = bytes((len(HALF_TOPIC),)) + HALF_TOPIC.encode()
GROUP: Final = "producers"
MARK: Final = f"TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
KEY: Final = "UNIQ_KEY\x01A1\x02"
GROUP_BYTES_MAX: Final = 20
#: As in ``native/src/transactions.rs``.
HALF_BYTES_MAX: Final = 16 * 1024


def terms(marks: tuple[str, ...], more: str) -> Any:
    return native.SendTerms(
        store_host=HOST,
        more_properties=more.encode(),
        marks=[mark.encode() for mark in marks],
        sysflag_mask=MASK,
        body_bytes_max=1 << 20,
        record_bytes_max=1 << 20,
    )


def target(topic: str, _queue_id: int) -> tuple[int, bytes] | None:
    """What ``TransactionRuns`` tells of the queue of a message."""
    data = topic.encode()
    return None if is_internal_topic(topic) or len(data) > TOPIC_V1_BYTES_MAX else (7, bytes((len(data),)) + data)


def carried_out(sends: Any, page: bytearray, at: int, first: int = 0, **changes: Any) -> Any:
    """What the kernel makes of a run."""
    given: dict[str, Any] = {
        "end": len(page),
        "log_offset": BASE + at,
        "from_offset": 0,
        "store_time_ms": TIME_MS,
        "born_host": BORN,
        "group_bytes_max": GROUP_BYTES_MAX,
        "may_begin": [True for _ in sends.places],
        "open_halves": {QUEUE_OFFSET: BASE},
        "in_doubt": set(),
        "queue_offset": QUEUE_OFFSET,
        "topic_field": TOPIC_FIELD,
        "target": target,
    } | changes
    of_halves = terms(("TIMER_", "DELAY\x01", *halves.OWN_MARKS), MORE)
    # What the broker has added to a half stays as it is.
    of_commits = terms(("DELAY\x01", *halves.COPY_MARKS), "")
    before, behind = ENDED.parts()
    end = given.pop("end")
    return native.store_transactions(
        sends, of_halves, of_commits, FORM, (before, behind), first, page, at, end, **given
    )


def packed(draft: Draft, *, log_offset: int, queue_offset: int) -> bytes:
    """The record of a draft, as the store packs it."""
    topic, properties = draft.topic.encode(), draft.properties.encode()
    size = record_bytes(
        body=len(draft.body), topic=len(topic), properties=len(properties), born_host=len(BORN), store_host=len(HOST)
    )
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=draft.queue_id,
        flag=draft.flag,
        queue_offset=queue_offset,
        log_offset=log_offset,
        sysflag=draft.sysflag,
        born_time_ms=draft.born_time_ms,
        born_host=draft.born_host,
        store_time_ms=TIME_MS,
        store_host=HOST,
        reconsume_times=draft.reconsume_times,
        prepared_transaction_offset=draft.prepared_transaction_offset,
        body=draft.body,
        topic=topic,
        properties=properties,
    )
    return bytes(page)


def check_index(keys: bytes, draft: Draft, log_offset: int) -> None:
    expected = KeyHashes().entries([(draft.topic, draft.properties, log_offset, TIME_MS)])
    assert expected == [*MADE_ENTRY.iter_unpack(keys)]


def check_half(properties: str, *, topic: str = "orders", number: str = "0") -> bool:
    """If the kernel takes a half, it makes of it what Python would; whether it does."""
    header = header_text(b=topic, e=number, f=number, g=number, h=number, j=number, i=properties)
    sends = native.parse_sends(framed(header.encode(), b"body"), 0, 1 << 24)
    if sends is None:
        return False
    page = bytearray(1 << 17)
    made = carried_out(sends, page, 0)
    if made is None:
        assert not any(page)
        return False
    request: Any = request_in(sends, 0)
    fields = request.header
    text = closed(fields.properties)
    assert halves.is_asked_for(text)
    assert len(find(text, "PGROUP") or "x" * 99) <= GROUP_BYTES_MAX
    draft = Draft(
        fields.topic,
        fields.queue_id,
        request.body,
        text + MORE,
        fields.born_time_ms,
        BORN,
        fields.flag,
        fields.sysflag & ~Sysflag.TRANSACTION_MASK | Sysflag.PREPARED,
        fields.reconsume_times or 0,
    )
    halves.redirect(draft)
    draft.sysflag &= MASK
    expected = packed(draft, log_offset=BASE, queue_offset=QUEUE_OFFSET)
    size = len(expected)
    assert expected == page[:size]
    assert not any(page[size:])
    code = tags_code(draft.properties)
    entries = ENTRY.pack(BASE, size, code), BASE + size, 4, [(code, QUEUE_OFFSET + 1)]
    assert (1, BASE + size, BASE, entries, [(0, 1, 4)], [], []) == made[:7]
    check_index(made[7], draft, BASE)
    unique_key = find(text, "UNIQ_KEY") or ""
    values = (BASE, fields.queue_id, QUEUE_OFFSET, unique_key.encode(), request.opaque)
    assert REPLY.fill(values) == made[8]
    return True


def ending(**changes: Any) -> bytes:
    given: dict[str, Any] = {
        "producer_group": GROUP,
        "queue_offset": QUEUE_OFFSET,
        "log_offset": BASE,
        "decision": int(Outcome.COMMIT),
        "transaction_id": "A1",
    } | changes
    return b"".join(encode_request(RequestCode.END_TRANSACTION, EndTransaction(**given), opaque=5))


def half_record(properties: str, body: bytes = b"body") -> bytes:
    """A half as it lies in the log."""
    return packed(Draft(HALF_TOPIC, 0, body, properties, 5, BORN, 7, 1, 2), log_offset=BASE, queue_offset=QUEUE_OFFSET)


def check_commit(properties: str, **changes: Any) -> bool:
    """If the kernel commits a half, it makes of it what Python would; whether it does."""
    half = half_record(properties)
    page = bytearray(half) + bytes(1 << 17)
    before = bytes(page)
    sends = native.parse_sends(ending(**changes), 0, 1 << 24)
    assert sends is not None
    made = carried_out(sends, page, len(half))
    if made is None:
        assert before == page
        return False
    assert half == page[: len(half)]
    record = unpack_record(half)
    known = halves.read_half(record)
    assert (known.group, known.first) == (changes.get("producer_group", GROUP), QUEUE_OFFSET)
    assert changes.get("transaction_id", "A1") in ("", None, known.unique_key)
    draft = halves.committed(record, known)
    log_offset = BASE + len(half)
    expected = packed(draft, log_offset=log_offset, queue_offset=7)
    size = len(expected)
    assert expected == page[len(half) : len(half) + size]
    assert not any(page[len(half) + size :])
    code = tags_code(draft.properties)
    messages = [(0, ENTRY.pack(log_offset, size, code), log_offset + size, 4, [(code, 8)])]
    assert (1, log_offset + size, log_offset, None, [], messages, [QUEUE_OFFSET]) == made[:7]
    check_index(made[7], draft, log_offset)
    assert ENDED.fill((5,)) == made[8]
    return True


def test_halves_are_taken() -> None:
    """J1."""
    for properties in (KEY + MARK, MARK + KEY[:-1], f"TAGS\x01é\x02{MARK}KEYS\x01a b\x02{KEY}"):
        assert check_half(properties)
    assert check_half(f"{KEY}TRAN_MSG\x01tRuE\x02PGROUP\x01{'g' * GROUP_BYTES_MAX}\x02")
    assert check_half(KEY + MARK, topic="é" * 60, number="3")
    assert not check_half(f"{KEY}TRAN_MSG\x01true\x02PGROUP\x01{'g' * (GROUP_BYTES_MAX + 1)}\x02")
    assert not check_half(KEY)


NAMES: Final = [
    *("TRAN_MSG", "PGROUP", "UNIQ_KEY", "TAGS", "KEYS", "REAL_TOPIC", "REAL_QID", "__transactionId__", "DELAY", "WAIT"),
    *("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET", "TERN_WAITS_SINCE", "CHECK_IMMUNITY_TIME_IN_SECONDS"),
    *("XTRAN_MSG", "TIMER_OUT_MS"),
]
VALUES: Final = [
    *("", "true", "TRUE", "false", "0", "3", "007", "999999999", "9999999999", "-1", GROUP, "A1", "a\x01b", "é", '"'),
    *("orders", HALF_TOPIC, "t" * 127, "t" * 128, "٣", "\0", "x" * 21),
]
pairs = st.lists(st.tuples(st.sampled_from([*NAMES, ""]), st.sampled_from(VALUES)), max_size=5)


def text_of(some: list[tuple[str, str]]) -> str:
    return "".join(f"{name}\x01{value}\x02" for name, value in some)


@settings(max_examples=400, deadline=None)
@given(
    pairs, pairs, st.booleans(), st.sampled_from(("orders", "é", "t" * 127)), st.sampled_from(("-1", "0", "3", "01"))
)
def test_any_half_is_stored_as_on_the_long_way_or_left(
    before: list[tuple[str, str]], behind: list[tuple[str, str]], ends: bool, topic: str, number: str
) -> None:
    """J1, C1, C4: what the long way refuses, or does not take for a half, is never taken."""
    text = text_of(before) + KEY + MARK + text_of(behind)
    check_half(text[: None if ends else -1], topic=topic, number=number)


def test_commits_are_taken() -> None:
    """J1: with and without a transaction id."""
    place = "REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"
    assert check_commit(KEY + MARK + place)
    assert check_commit(f"{KEY}{MARK}{place}TAGS\x01é\x02KEYS\x01a b\x02", transaction_id="")
    assert check_commit(f"{KEY}{MARK}{place}CHECK_IMMUNITY_TIME_IN_SECONDS\x0160\x02", transaction_id=None)
    for changes in (
        {"producer_group": "another"},
        {"transaction_id": "A2"},
        {"queue_offset": QUEUE_OFFSET + 1},
        {"log_offset": BASE + 1},
        {"decision": int(Outcome.ROLLBACK)},
        {"decision": int(Outcome.UNKNOWN)},
    ):
        assert not check_commit(KEY + MARK + place, **changes)


@settings(max_examples=400, deadline=None)
@given(pairs, pairs)
def test_any_half_is_committed_as_on_the_long_way_or_left(
    before: list[tuple[str, str]], behind: list[tuple[str, str]]
) -> None:
    """J1, C1, C4: what the long way refuses is never stored."""
    text = text_of(before) + KEY + MARK + "REAL_TOPIC\x01orders\x02REAL_QID\x013\x02" + text_of(behind)
    try:
        halves.read_half(unpack_record(half_record(text)))
    except CorruptRecord:
        assert not check_commit(text)
    else:
        check_commit(text)


def test_a_damaged_or_foreign_half_is_left() -> None:
    """J1, C8: each byte of the record counts, but for times, hosts and the like, which the message gets as they are."""
    good = half_record(f"{KEY}{MARK}REAL_TOPIC\x01orders\x02REAL_QID\x013\x02")
    sends: Any = native.parse_sends(ending(), 0, 1 << 24)
    for at in (*range(12), *range(20, 36), 39, *range(84, len(good))):
        page = bytearray(good) + bytes(1000)
        page[at] ^= 0x10
        made = carried_out(sends, page, len(good))
        if made is not None:
            # It names another queue, or has another property.
            assert at > 88 + 4 + len(TOPIC_FIELD)
            record = unpack_record(page[: len(good)])
            assert halves.read_half(record).group == GROUP
    page = bytearray(good) + bytes(1000)
    others: tuple[dict[str, Any], ...] = (
        {"open_halves": None},
        {"open_halves": {}},
        {"open_halves": {QUEUE_OFFSET: BASE + 1}},
        {"in_doubt": {QUEUE_OFFSET}},
        {"from_offset": BASE + 1},
        {"target": lambda *_: None},
        {"topic_field": b"\x05other"},
        {"topic_field": b""},
        {"born_host": bytes(20)},
        {"end": 2 * len(good) - 20},
        {"end": len(good) - 1},
        {"end": len(page) + 1},
        {"log_offset": BASE},
        {"log_offset": BASE + len(good) + 1},
    )
    for changes in others:
        assert carried_out(sends, page, len(good), **changes) is None
        assert page == good + bytes(1000)
    assert carried_out(sends, page, len(good)) is not None


def test_a_large_half_is_left() -> None:
    """J1, R4: 64 short requests must not copy hundreds of megabytes in one call."""
    properties = f"{KEY}{MARK}REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"
    sends: Any = native.parse_sends(ending(), 0, 1 << 24)
    room = HALF_BYTES_MAX - len(half_record(properties, b""))
    for body_bytes, is_taken in ((room, True), (room + 1, False)):
        half = half_record(properties, bytes(body_bytes))
        page = bytearray(half) + bytes(1 << 17)
        assert (carried_out(sends, page, len(half)) is not None) == is_taken


def test_a_half_is_committed_once_in_a_run() -> None:
    """J1: and the run stops there."""
    good = half_record(f"{KEY}{MARK}REAL_TOPIC\x01orders\x02REAL_QID\x013\x02")
    sent = framed(header_text(i=KEY + MARK).encode(), b"body")
    sends: Any = native.parse_sends(sent + ending() + sent + ending() + sent, 0, 1 << 24)
    assert 5 == sends.count
    page = bytearray(good) + bytes(10_000)
    made = carried_out(sends, page, len(good))
    assert (3, [QUEUE_OFFSET]) == (made[0], made[6])
    assert 2 == len(made[3][0]) // ENTRY.size
    # The records stand in the order of the requests.
    at = len(good)
    topics = []
    while page[at] or page[at + 3]:
        record = unpack_record(page[at : at + int.from_bytes(page[at : at + 4], "big")])
        assert record.log_offset == BASE + at
        topics.append(record.topic)
        at += record.size
    assert [HALF_TOPIC, "orders", HALF_TOPIC] == topics
    assert carried_out(sends, page, len(good), 1, open_halves={}) is None
    assert carried_out(sends, page, len(good), 9) is None


def test_kinds_of_requests_are_told_apart() -> None:
    """J1: other kernels stop before the end of a transaction; a connection with access control has none in its runs."""
    plain = framed(header_text(i=KEY).encode(), b"body")
    data = plain + ending() + framed(header_text(i=KEY + MARK).encode(), b"body")
    sends: Any = native.parse_sends(data, 0, 1 << 24)
    assert [False, True, True] == [sends.is_transactional(number) for number in range(3)]
    with pytest.raises(IndexError):
        sends.is_transactional(3)
    assert request_in(sends, 1).code == RequestCode.END_TRANSACTION
    [run] = FrameDecoder().feed(data, lambda: True)
    assert isinstance(run, native.Sends)
    assert 3 == len(FrameDecoder(typed=False).feed(data, lambda: True))


@pytest.mark.parametrize("count", [2, 3, 200])
def test_ops_are_the_same_with_and_without_a_kernel(tmp_path: Path, count: int) -> None:
    """J1, C2, C4: also across segments."""
    for name, is_native in (("kernel", True), ("python", False)):
        config = small_config(tmp_path / name, mapped_file_size_commit_log=1 << 16)
        clock = ManualClock()
        with MessageStore.open(config, store_host=HOST, clock=clock, threads=False) as store:
            writer = OpWriter(store, clock=clock, host=HOST)
            batch = mock.Mock(wraps=store.put_batch)
            store.put_batch = batch
            with mock.patch.object(ops, "HAS_NATIVE", is_native):
                writer.write(5)
                for number in range(10):
                    clock.advance(0.5)
                    writer.write_all(range(number * count, (number + 1) * count))
            assert 1 + 10 * count == store.max_offset(OP_HALF_TOPIC, 0)
            assert is_native == (batch.call_count < 10)
    assert log_queues_index(tmp_path / "python") == log_queues_index(tmp_path / "kernel")
