"""What else looks at old messages than pulls and queries: other threads read them, and the loop serves others (C1)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.services import popping as pop_module
from ternmq.broker.services import retry as retry_module
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import BrokerConsumeStats, ConsumeStats, TimeSpans, TopicStats
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import PopReply, QueueBounds, SendBack, SendReply, TimeReply, UpdateOffset
from ternmq.wire.requests_admin import BrokerConsumeStatsQuery, ConsumeStatsQuery, Topic, TopicOfGroup
from tests.broker.calls import FAR_MS, Caller, serving
from tests.broker.handlers.cold import Gate
from tests.broker.popping import ack, held_pop, messages, pop, popped, wish
from tests.no_delays import NO_DELAYS


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    """One that takes every message for an old one."""
    store = {"access_message_in_memory_max_ratio": 0, "message_delay_level": NO_DELAYS}
    async with serving(tmp_path, store=store, enable_property_filter=True) as caller:
        yield caller


def place(sent: SendReply) -> int:
    return int(sent.message_id[16:], 16)


async def served_meanwhile(broker: Caller, gate: Gate, slow: asyncio.Future[Response]) -> Response:
    """The answer to a call that waits for the disk, while others are served."""
    await gate.reached()
    await broker.sent("others", b"x")
    assert not slow.done()
    gate.opened.set()
    return await slow


async def test_an_old_message_is_sent_back_while_others_are_served(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 13, H1"""
    sent = await broker.sent("orders", b"0", properties={"UNIQ_KEY": "U"})
    gate = Gate(monkeypatch)
    header = SendBack(group="readers", log_offset=place(sent))

    slow = broker.peer.start_call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    response = await served_meanwhile(broker, gate, slow)

    assert response.code == 0
    [record] = await broker.arrived("%RETRY%readers", 1)
    assert (b"0", 1) == (bytes(record.body), record.reconsume_times)


@pytest.mark.parametrize("remove", [False, True])
async def test_an_old_record_that_is_none_cannot_be_sent_back(
    broker: Caller, monkeypatch: pytest.MonkeyPatch, remove: bool
) -> None:
    """Point 13, H1: nor one whose file is gone; if that was an error of reading, the second look finds it."""
    sent = await broker.sent("orders", b"0")
    gate = Gate(monkeypatch)
    gate.remove = remove
    gate.opened.set()
    assert (await broker.send_back("readers", place(sent) + 1)).code == ResponseCode.SYSTEM_ERROR
    assert (await broker.send_back("readers", place(sent))).code == 0


async def test_only_so_many_messages_sent_back_wait_for_the_disk(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 13: each queue has a bound."""
    monkeypatch.setattr(retry_module, "COLD_MAX", 1)
    sent = await broker.sent("orders", b"0")
    gate = Gate(monkeypatch)
    header = SendBack(group="readers", log_offset=place(sent))
    slow = broker.peer.start_call(RequestCode.CONSUMER_SEND_MSG_BACK, header)
    await gate.reached()

    assert (await broker.send_back("readers", place(sent))).code == ResponseCode.SYSTEM_BUSY

    gate.opened.set()
    assert (await slow).code == 0


async def test_store_times_of_old_messages_are_read_beside_the_loop(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 13, D6: 32, 202, 208, 303 and 317 tell the same as the records do."""
    for number in range(3):
        await broker.sent("orders", b"%d" % number)
    first, second, last = [record.store_time_ms for record in [*await broker.records("orders")]]
    commit = UpdateOffset(consumer_group="readers", topic="orders", queue_id=0, commit_offset=2)
    assert (await broker.call(RequestCode.UPDATE_CONSUMER_OFFSET, commit)).code == 0

    async def asked(code: int, header: Any) -> Response:
        with monkeypatch.context() as patch:
            gate = Gate(patch)
            return await served_meanwhile(broker, gate, broker.peer.start_call(code, header))

    earliest = await asked(RequestCode.GET_EARLIEST_MSG_STORETIME, QueueBounds(topic="orders", queue_id=0))
    topic = await asked(RequestCode.GET_TOPIC_STATS_INFO, Topic(topic="orders"))
    group = await asked(RequestCode.GET_CONSUME_STATS, ConsumeStatsQuery(consumer_group="readers"))
    spans = await asked(RequestCode.QUERY_CONSUME_TIME_SPAN, TopicOfGroup(topic="orders", group="readers"))
    groups = await asked(RequestCode.GET_BROKER_CONSUME_STATS, BrokerConsumeStatsQuery())

    assert first == earliest.read(TimeReply).time_ms
    assert last in [each.last_update_timestamp for each in decode(topic.body, TopicStats).offset_table.values()]
    assert second in [each.last_timestamp for each in decode(group.body, ConsumeStats).offset_table.values()]
    span = next(
        each for each in decode(spans.body, TimeSpans).consume_time_span_set if each.message_queue.queue_id == 0
    )
    assert (first, last, second) == (span.min_time_stamp, span.max_time_stamp, span.consume_time_stamp)
    assert 1 == decode(groups.body, BrokerConsumeStats).total_diff


FILTERS = {
    "tags": {"subscription": "B"},
    "SQL": {"expression_type": "SQL92", "subscription": "n > 6"},
    "order": {"subscription": "B", "order": True},
}


@pytest.mark.parametrize("fields", FILTERS.values(), ids=FILTERS)
async def test_old_messages_are_popped_by_a_filter_while_others_are_served(
    broker: Caller, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]
) -> None:
    """Point 13, F9, K1, K2: each once, in the end all that match; and acked they do not come again."""
    for number in range(20):
        await broker.sent("orders", b"%d" % number, properties={"TAGS": "AB"[number > 6], "n": f"{number}"})
    gate = Gate(monkeypatch)
    given = {"queue_id": 0, **fields}

    response = await served_meanwhile(broker, gate, held_pop(broker, "orders", **given))

    found: list[bytes] = []
    group = wish("orders").consumer_group
    for _ in range(20):
        for message in messages(response, group, "orders"):
            found.append(message.body)
            await ack(broker, message)
        response = await pop(broker, "orders", **given)
    assert [b"%d" % number for number in range(7, 20)] == found


async def test_a_filter_that_lets_no_old_message_through_reads_so_many_and_answers(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 13: the pop goes on with the next request, where this one ended."""
    monkeypatch.setattr(pop_module, "OLD_READS_MAX", 1)
    for number in range(20):
        await broker.sent("orders", b"%d" % number, properties={"n": f"{number}"})

    given = {"queue_id": 0, "poll_ms": FAR_MS, "expression_type": "SQL92", "subscription": "n > 18"}
    responses = [await pop(broker, "orders", **given) for _ in range(3)]

    assert [ResponseCode.POLLING_TIMEOUT, ResponseCode.POLLING_TIMEOUT, 0] == [each.code for each in responses]
    assert [b"19"] == [message.body for message in messages(responses[-1], "poppers", "orders")]


async def test_messages_that_were_not_acked_are_revived_and_popped_again_while_others_are_served(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 13, F9: the revival reads what was popped, the next pop reads its copy."""
    await broker.sent("orders", b"0", properties={"TAGS": "A"})
    gate = Gate(monkeypatch)
    first = await served_meanwhile(broker, gate, held_pop(broker, "orders", invisible_ms=1))
    assert [b"0"] == [message.body for message in messages(first, "poppers", "orders")]

    again: list[Any] = []
    while not again:
        again = await popped(broker, "orders", poll_ms=FAR_MS)

    assert [(b"0", 1, 1)] == [(each.body, each.handle.retry, each.record.reconsume_times) for each in again]
    assert gate.reads >= 3


async def test_a_pop_that_was_held_does_not_wait_for_the_disk_but_comes_again(broker: Caller) -> None:
    """Point 13, F8: with every message an old one, what wakes it is to be had by the next pop."""
    assert (await pop(broker, "orders")).code != 0  # no such topic yet
    await broker.sent("orders", b"0", queue_id=1)
    held = held_pop(broker, "orders", queue_id=0, poll_ms=FAR_MS)
    # Sends have a lane of their own: without this answer, the send may come before the pop is held.
    assert 0 != (await pop(broker, "orders", queue_id=0)).code
    await broker.sent("orders", b"1", queue_id=0)

    response = await held

    assert ResponseCode.POLLING_TIMEOUT == response.code
    assert 1 == response.read(PopReply).rest_count
    assert [b"1"] == [message.body for message in await popped(broker, "orders", queue_id=0)]


async def test_too_many_pops_of_old_messages_are_told_to_come_later(
    broker: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 13: each queue has a bound."""
    monkeypatch.setattr(pop_module, "COLD_MAX", 1)
    await broker.sent("orders", b"0", properties={"TAGS": "A"})
    gate = Gate(monkeypatch)
    slow = held_pop(broker, "orders", subscription="A")
    await gate.reached()

    full = await pop(broker, "orders", subscription="A", poll_ms=FAR_MS)

    assert ResponseCode.POLLING_FULL == full.code
    gate.opened.set()
    assert [b"0"] == [message.body for message in messages(await slow, "poppers", "orders")]
