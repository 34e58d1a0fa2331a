"""Messages with a delivery time, through a broker's port (I2, I3)."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from ternmq import names
from ternmq.broker.broker import Broker
from ternmq.message import Property
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import DelayedCounts, TimerMetrics
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.properties import parse
from ternmq.wire.recall import RecallHandle, parse_handle
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import MessageIdReply, RecallMessage
from ternmq.wire.requests_admin import DelayedStats, PeekDelayed
from tests.broker.calls import Caller, dialled, settings, small_store, v1, v2

HOUR_MS = 3_600_000
#: Farther than a test runs, nearer than the limit.
LATER = {
    "TIMER_DELAY_MS": "7200000",
    "TIMER_DELAY_SEC": "7200",
}
NAMES = ("TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "__STARTDELIVERTIME")


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Caller]:
    async with Broker(settings(), small_store(tmp_path)) as running, dialled(running.address) as caller:
        yield caller


async def recall(broker: Caller, handle: str | None, topic: str = "orders") -> tuple[int, str]:
    response = await broker.call(RequestCode.RECALL_MESSAGE, RecallMessage(topic=topic, recall_handle=handle or ""))
    return response.code, response.remark or ""


async def stats(broker: Caller, topic: str | None = None) -> DelayedCounts:
    response = await broker.call(RequestCode.GET_DELAYED_STATS, DelayedStats(topic=topic))
    return decode(response.body, DelayedCounts)


@pytest.mark.parametrize("name", NAMES)
async def test_a_message_waits_in_the_timer_topic_and_comes_at_its_time(broker: Caller, name: str) -> None:
    """I2: with the properties that RocketMQ 5.2.0 writes, by each of the four that ask for a time."""
    first = await broker.sent("orders", b"now", queue_id=1)
    [now] = await broker.records("orders", queue_id=1)
    asked = "1" if name == "TIMER_DELAY_SEC" else "300"
    if name in ("TIMER_DELIVER_MS", "__STARTDELIVERTIME"):
        asked = str(now.store_time_ms + 2_000)

    reply = await broker.sent("orders", b"later", queue_id=1, properties={name: asked, "TAGS": "A", "UNIQ_KEY": "U"})
    [waiting] = unpack_records((await broker.pull(names.WHEEL_TOPIC, consumer_group="TOOLS_CONSUMER")).body)
    came = (await broker.arrived("orders", 2, queue_id=1))[1]

    assert first.recall_handle is None
    place = parse(waiting.properties)
    due_ms = int(asked) if len(asked) > 4 else waiting.store_time_ms + int(asked) * (1000 if asked == "1" else 1)
    assert ("orders", "1") == (place[Property.REAL_TOPIC], place[Property.REAL_QUEUE_ID])
    slot_ms = int(place[Property.TIMER_OUT_MS])
    assert slot_ms % 1000 == 0
    assert slot_ms < due_ms <= slot_ms + 1000
    assert parse_handle(reply.recall_handle or "") == RecallHandle(
        "orders", "broker-a", slot_ms, "U", waiting.log_offset
    )
    assert (b"later", "A") == (bytes(came.body), parse(came.properties)["TAGS"])
    assert came.store_time_ms >= due_ms
    assert parse(came.properties).items() > place.items()


@pytest.mark.parametrize("name", NAMES)
async def test_a_time_in_the_past_is_now(broker: Caller, name: str) -> None:
    """I2: the message is stored like any other, and has no recall handle."""
    reply = await broker.sent("orders", b"x", properties={name: "0" if "DELAY" in name else "1000"})
    assert reply.recall_handle is None
    assert [b"x"] == await broker.bodies("orders")


@pytest.mark.parametrize(
    ("properties", "sentence"),
    [
        ({"TIMER_DELAY_SEC": str(40 * 86_400 + 1)}, "asks for a delay of 3456001 s: the limit is 3456000 s"),
        ({"TIMER_DELAY_MS": str(40 * 86_400_000 + 1)}, "asks for a delay of 3456001 s: the limit is 3456000 s"),
        ({"TIMER_DELIVER_MS": "99999999999999"}, "(timerMaxDelaySec)"),
        ({"TIMER_DELAY_MS": "-1"}, "invalid TIMER_DELAY_MS '-1': expected a delay of 0 or more"),
        ({"TIMER_DELIVER_MS": "-5"}, "invalid TIMER_DELIVER_MS '-5': expected a time in ms since 1970"),
        ({"__STARTDELIVERTIME": "tomorrow"}, "invalid __STARTDELIVERTIME 'tomorrow'"),
        ({"TIMER_DELAY_SEC": "9" * 30}, f"TIMER_DELAY_SEC {'9' * 30} lies beyond any limit: see timerMaxDelaySec"),
        ({"TIMER_DELIVER_MS": str(2**63 - 1)}, "TIMER_DELIVER_MS 9223372036854775807 lies beyond any limit"),
        ({"TIMER_DELAY_MS": "9" * 9_000}, f"TIMER_DELAY_MS {'9' * 40}… lies beyond any limit"),
        ({"TIMER_DELAY_MS": "1e3"}, "invalid TIMER_DELAY_MS '1e3': expected a delay of 0 or more"),
        ({"TIMER_DELAY_SEC": "60", "DELAY": "3"}, "both a delay level (DELAY) and a delivery time (TIMER_DELAY_SEC)"),
        ({"TIMER_DELIVER_MS": "1", "TIMER_DEL_UNIQKEY": "U"}, "must lie in the future"),
    ],
)
async def test_a_time_that_cannot_be_kept_is_refused(broker: Caller, properties: dict[str, str], sentence: str) -> None:
    """I2: with MESSAGE_ILLEGAL, as RocketMQ, and one sentence."""
    await broker.sent("orders", b"opens the short way", properties={"UNIQ_KEY": "U"})
    response = await broker.send("orders", b"x", properties={**properties, "UNIQ_KEY": "U"})
    assert ResponseCode.MESSAGE_ILLEGAL == response.code
    assert sentence in (response.remark or "")
    assert 0 == (await stats(broker)).waiting


@pytest.mark.parametrize("name", sorted(LATER))
async def test_batches_replies_and_transactions_have_no_delivery_time(broker: Caller, name: str) -> None:
    """I2: nothing of the batch is stored."""
    timed = {name: LATER[name], "UNIQ_KEY": "U"}
    responses = [
        await broker.send_batch("orders", [(b"plain", {}), (b"timed", timed)]),
        await broker.call(
            RequestCode.SEND_REPLY_MESSAGE_V2, v2("DefaultCluster_REPLY_TOPIC", queue_id=0, properties=timed), b"x"
        ),
        await broker.send("orders", b"half", properties={**timed, "TRAN_MSG": "true", "PGROUP": "shop"}, sysflag=4),
    ]
    for response in responses:
        assert ResponseCode.MESSAGE_ILLEGAL == response.code
        assert f"cannot have a delivery time ({name})" in (response.remark or "")
    assert [] == await broker.bodies("orders")


async def test_a_message_that_has_had_its_time_is_not_delayed_again(broker: Caller) -> None:
    """I2: one on its way to a retry topic, one that was delivered, and properties that only look like it."""
    for name, value in LATER.items():
        await broker.sent("%RETRY%readers", b"retry", properties={name: value, "UNIQ_KEY": "U"})
        await broker.sent("orders", b"done", properties={name: value, "TIMER_OUT_MS": "1"})
        await broker.sent("orders", b"similar", properties={f"MY{name}": value, "NOTE": f"{name}=1", "UNIQ_KEY": "U"})
    assert 2 == len(await broker.records("%RETRY%readers"))
    assert 4 == len(await broker.records("orders"))


async def test_a_delayed_message_that_fails_waits_for_the_delay_of_its_retry(broker: Caller) -> None:
    """I2, H1: not for its own delay again."""
    await broker.heartbeat("readers", {"orders": "*"})
    await broker.sent("orders", b"x", properties={"TIMER_DELAY_MS": "50"})
    [record] = await broker.arrived("orders", 1)

    assert (await broker.send_back("readers", record.log_offset, delay_level=1)).code == ResponseCode.SUCCESS
    [waiting] = await broker.records("SCHEDULE_TOPIC_XXXX", consumer_group="TOOLS_CONSUMER")
    [retried] = await broker.arrived("%RETRY%readers", 1)

    assert 1 == retried.reconsume_times
    assert retried.store_time_ms >= waiting.store_time_ms + 1000
    assert b"x" == bytes(retried.body)


async def test_a_recalled_message_never_comes(broker: Caller) -> None:
    """I2: RocketMQ 5.3's request 370. The one behind it in time comes, so the other had its chance."""
    taken_back = await broker.sent("orders", b"recalled", properties={"TIMER_DELAY_MS": "2000", "UNIQ_KEY": "A1"})
    await broker.sent("orders", b"kept", properties={"TIMER_DELAY_MS": "2100"})
    response = await broker.call(
        RequestCode.RECALL_MESSAGE, RecallMessage(topic="orders", recall_handle=taken_back.recall_handle or "")
    )
    assert ("A1", 0) == (response.read(MessageIdReply).message_id, response.code)
    assert [b"kept"] == [bytes(record.body) for record in await broker.arrived("orders", 1)]
    assert DelayedCounts() == await stats(broker)


@pytest.mark.parametrize("key", ["K" * 255, "K" * 5_000, "K" * 32_000, "é" * 8_000, "a b 7", " "])
async def test_a_message_with_any_unique_key_can_be_recalled(broker: Caller, key: str) -> None:
    """I2: a key is the sender's, and the handle of each is one that the broker reads."""
    reply = await broker.sent("orders", b"x", properties={"TIMER_DELIVER_MS": _far(), "UNIQ_KEY": key})
    assert (0, "") == await recall(broker, reply.recall_handle)
    assert DelayedCounts() == await stats(broker)


async def test_a_handle_without_a_log_offset_is_looked_for(broker: Caller) -> None:
    """I2: as RocketMQ makes them."""
    for key in ("A1", "A2"):
        reply = await broker.sent("orders", b"x", properties={"TIMER_DELIVER_MS": _far(), "UNIQ_KEY": key})
    made = parse_handle(reply.recall_handle or "")
    foreign = RecallHandle(made.topic, made.broker_name, made.slot_ms, "A1").text()
    assert (0, "") == await recall(broker, foreign)
    assert {"orders": 1} == (await stats(broker)).topics
    assert ResponseCode.ILLEGAL_OPERATION == (await recall(broker, foreign))[0]


async def test_what_cannot_be_recalled_is_refused_with_a_sentence(broker: Caller) -> None:
    """I2: delivered, recalled before, unknown, of another topic or broker, no handle at all."""
    waiting = await broker.sent("orders", b"x", properties={"TIMER_DELIVER_MS": _far(), "UNIQ_KEY": "A1"})
    delivered = await broker.sent("orders", b"x", properties={"TIMER_DELAY_MS": "1", "UNIQ_KEY": "A2"})
    await broker.arrived("orders", 1)
    handle = parse_handle(waiting.recall_handle or "")
    unknown = RecallHandle("orders", "broker-a", handle.slot_ms, "A9", 0).text()
    other_hour = RecallHandle("orders", "broker-a", 0, "A1", handle.log_offset).text()
    elsewhere = RecallHandle("orders", "broker-b", handle.slot_ms, "A1").text()
    gone = "does not wait on this broker: it was delivered, was recalled before, or was never stored"

    assert (ResponseCode.ILLEGAL_OPERATION, gone) == _ending(await recall(broker, delivered.recall_handle), gone)
    assert (ResponseCode.ILLEGAL_OPERATION, gone) == _ending(await recall(broker, unknown), gone)
    assert (ResponseCode.ILLEGAL_OPERATION, gone) == _ending(await recall(broker, other_hour), gone)
    assert "is on broker broker-b" in (await recall(broker, elsewhere))[1]
    assert "not to bills" in (await recall(broker, waiting.recall_handle, topic="bills"))[1]
    assert "invalid recall handle 'nonsense'" in (await recall(broker, "nonsense"))[1]
    assert (0, "") == await recall(broker, waiting.recall_handle)
    assert (ResponseCode.ILLEGAL_OPERATION, gone) == _ending(await recall(broker, waiting.recall_handle), gone)


async def test_tools_see_what_waits_by_topic_and_hour(broker: Caller) -> None:
    """I2: as RocketMQ's timer metrics, too."""
    for topic, count in (("orders", 2), ("bills", 1)):
        for number in range(count):
            await broker.sent(topic, b"%d" % number, properties={"TIMER_DELIVER_MS": _far(), "UNIQ_KEY": f"K{number}"})
    hour_ms = int(_far()) // HOUR_MS * HOUR_MS

    assert DelayedCounts(waiting=3, topics={"bills": 1, "orders": 2}, hours={hour_ms: 3}) == await stats(broker)
    assert DelayedCounts(waiting=2, topics={"orders": 2}, hours={hour_ms: 2}) == await stats(broker, "orders")
    assert DelayedCounts() == await stats(broker, "nothing")
    metrics = decode((await broker.call(RequestCode.GET_TIMER_METRICS)).body, TimerMetrics)
    assert {"bills": 1, "orders": 2} == {topic: each.count for topic, each in metrics.timing_count.items()}
    assert metrics.data_version is not None, "a slave of RocketMQ 5.2.0 needs one"
    peeked = await broker.call(RequestCode.PEEK_DELAYED_MESSAGES, PeekDelayed(topic="orders"))
    assert [b"0", b"1"] == [bytes(record.body) for record in unpack_records(peeked.body)]
    some = await broker.call(RequestCode.PEEK_DELAYED_MESSAGES, PeekDelayed(topic="orders", count_max=1))
    assert 1 == len(unpack_records(some.body))
    late = await broker.call(RequestCode.PEEK_DELAYED_MESSAGES, PeekDelayed(topic="orders", begin_ms=int(_far()) + 1))
    assert [] == unpack_records(late.body)


async def test_what_waits_survives_a_restart(tmp_path: Path) -> None:
    """I2: a message that became due meanwhile comes at once, and once."""
    async with Broker(settings(), small_store(tmp_path)) as running, dialled(running.address) as broker:
        await broker.sent("orders", b"soon", properties={"TIMER_DELAY_MS": "600"})
        await broker.sent("orders", b"far", properties={"TIMER_DELIVER_MS": _far()})
    for _ in range(2):
        async with Broker(settings(), small_store(tmp_path)) as running, dialled(running.address) as broker:
            assert [b"soon"] == [bytes(record.body) for record in await broker.arrived("orders", 1)]
            assert {"orders": 1} == (await stats(broker)).topics


@pytest.mark.parametrize(
    ("changes", "code", "sentence"),
    [
        ({"timer_wheel_enable": False}, ResponseCode.SYSTEM_ERROR, "set timerWheelEnable=true"),
        ({"timer_max_delay_sec": 60}, ResponseCode.MESSAGE_ILLEGAL, "the limit is 60 s"),
    ],
)
async def test_settings_say_what_is_accepted(tmp_path: Path, changes: dict[str, Any], code: int, sentence: str) -> None:
    """I2."""
    async with Broker(settings(), small_store(tmp_path, **changes)) as running, dialled(running.address) as broker:
        text = "TIMER_DELAY_SEC\x0161\x02"
        response = await broker.call(RequestCode.SEND_MESSAGE, v1("orders", queue_id=0, properties=text), b"x")
        assert (code, True) == (response.code, sentence in (response.remark or ""))


async def test_recall_can_be_switched_off(tmp_path: Path) -> None:
    """I2: as in RocketMQ, where it is off by default."""
    async with (
        Broker(settings(recall_message_enable=False), small_store(tmp_path)) as running,
        dialled(running.address) as broker,
    ):
        reply = await broker.sent("orders", b"x", properties={"TIMER_DELIVER_MS": _far()})
        assert ResponseCode.NO_PERMISSION == (await recall(broker, reply.recall_handle))[0]


def _far() -> str:
    """A moment two or three hours ahead that is the same for a whole test, but for one that runs over a border."""
    import time

    return str((int(time.time() * 1000) // HOUR_MS + 3) * HOUR_MS - 1)


def _ending(answer: tuple[int, str], end: str) -> tuple[int, str]:
    code, remark = answer
    return code, remark[-len(end) :]


async def test_a_slave_of_rocketmq_is_told_how_far_messages_are_delivered(broker: Caller) -> None:
    """O4: GET_TIMER_CHECK_POINT, 7 numbers as in ``timercheck``: no message that waits counts as delivered."""
    await broker.sent("orders", b"soon", properties={"TIMER_DELAY_MS": "100", "UNIQ_KEY": "K1"})
    await broker.sent("orders", b"later", properties={"TIMER_DELIVER_MS": _far(), "UNIQ_KEY": "K2"})
    [came] = await broker.arrived("orders", 1)
    due_ms = came.store_time_ms // 1000 * 1000
    async with asyncio.timeout(30):
        while True:
            response = await broker.call(RequestCode.GET_TIMER_CHECK_POINT)
            read_time_ms, _, taken, of_master, *_ = struct.unpack(">7q", response.body)
            assert (2, 2) == (taken, of_master)
            assert read_time_ms < int(_far())
            if read_time_ms >= due_ms:
                break
