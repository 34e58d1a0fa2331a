"""One message that cannot be read stops no queue (issue 13, point 9)."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.consume import config as consumer_config
from ternmq.client.consume import pop_lot
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import FlowLimits, PopConfig, PushConfig
from ternmq.client.consume.decode import INLINE_BYTES, Inflater
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pop import PopConsumer
from ternmq.client.consume.pop_source import handle_of
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.outgoing import prepare
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import CorruptRecord, RouteMissing, refused
from ternmq.message import Message, MessageQueue, ReceivedMessage
from ternmq.wire import properties
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.compress import compress
from ternmq.wire.record import FIXED_V4_BYTES, Sysflag, read_records
from ternmq.wire.requests import PopReply
from ternmq.wire.stored import read_answer
from tests.client.consumer_script import ConsumerScript, pulled, record
from tests.client.listening import Collector, eventually, pull_sources
from tests.client.samples import received

FIRST = StartPosition.FIRST
PULL, BACK, SEND = RequestCode.PULL_MESSAGE, RequestCode.CONSUMER_SEND_MSG_BACK, RequestCode.SEND_MESSAGE_V2
GARBAGE = b"this is no zlib stream"
WHY = "the zlib body cannot be decompressed"
COMPRESSED = Sysflag.COMPRESSED | Sysflag.ZLIB
DEAD = MessageQueue("%DLQ%billing", "broker-a", 0)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def queue(cluster: EmbeddedCluster) -> MessageQueue:
    """A queue with two messages, and between them one that does not decompress."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        queue = (await producer.queues("orders"))[0]
        await producer.send(Message("orders", b"before"), queue=queue)
        await send_compressed(producer, queue, GARBAGE)
        await producer.send(Message("orders", b"behind"), queue=queue)
    return queue


async def send_compressed(producer: Producer, queue: MessageQueue, body: bytes) -> None:
    """Send a body as it is, and say that it is compressed."""
    outgoing = prepare(Message("orders", body), message_id="BAD", sysflag=COMPRESSED)
    sender = producer._now_running().sender
    await sender.deliver(outgoing, pick=lambda _: queue, timeout_ms=10_000)


async def dead_letter(cluster: EmbeddedCluster) -> ReceivedMessage:
    """The only dead letter of the group, once it is one."""
    async with PullConsumer("audit", name_servers=cluster.name_servers) as audit, asyncio.timeout(20):
        while True:
            try:
                (dead,) = (await audit.pull(DEAD, 0)).messages
                return dead
            except RouteMissing:
                await asyncio.sleep(0.01)


# --- Each kind of consumer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["listener", "loop", "orderly"])
async def test_a_body_that_does_not_decompress_becomes_a_dead_letter_and_the_others_flow(
    cluster: EmbeddedCluster, queue: MessageQueue, caplog: pytest.LogCaptureFixture, way: str
) -> None:
    """Point 9: logged, counted, sent back; to the dead letters at once where a group allows no retries."""
    seen = Collector()
    config = PushConfig(start=FIRST, max_reconsume_times=0, orderly=way == "orderly")
    listener = None if way == "loop" else seen
    consumer = PushConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        if listener is None:
            async for message in consumer:
                await seen(message)
                if len(seen.messages) == 2:
                    break
        assert ["before", "behind"] == await seen.bodies(2)
        dead = await dead_letter(cluster)
        assert consumer._consumer is not None
        assert 1 == consumer._consumer.stats.by_topic()["orders"].consume_failed_msgs
    assert (GARBAGE, COMPRESSED, True) == (dead.body, dead.sysflag, dead.body_error.startswith(WHY))
    assert f"cannot be decoded and {'becomes a dead letter' if way == 'orderly' else 'count as failed'}" in caplog.text
    assert (WHY in caplog.text, str(queue) in caplog.text) == (True, True)
    async with PullConsumer("billing", name_servers=cluster.name_servers) as progress:
        assert (2 if way == "loop" else 3) == await progress.committed(queue)


async def test_for_want_of_a_package_an_orderly_queue_waits(
    cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Point 9: they are sound, and all of the topic would become dead letters; a start with the package reads it."""
    client = ProducerConfig(compression="LZ4", compress_from_bytes=1)
    bodies = ["first" * 100, "second" * 100]
    async with Producer("shop", name_servers=cluster.name_servers, config=client) as producer:
        queue = (await producer.queues("orders"))[0]
        for body in bodies:
            await producer.send(Message("orders", body.encode()), queue=queue)
    config = PushConfig(start=FIRST, orderly=True, orderly_retry_ms=10)

    def consumer(seen: Collector) -> PushConsumer:
        made = PushConsumer("billing", seen, name_servers=cluster.name_servers, config=config)
        made.subscribe("orders")
        return made

    with monkeypatch.context() as without:
        for module in [name for name in sys.modules if name.startswith("lz4")]:
            without.setitem(sys.modules, module, None)
        async with consumer(Collector()) as waiting:
            assert waiting._consumer is not None
            stats = waiting._consumer.stats
            await eventually(lambda: sum(one.consume_failed_msgs for one in stats.by_topic().values()) > 2)
    assert 1 == caplog.text.count("cannot be decoded: the package lz4")
    seen = Collector()
    async with consumer(seen):
        assert bodies == await seen.bodies(2)


async def test_in_broadcasting_it_is_logged_and_passed_over(
    cluster: EmbeddedCluster, queue: MessageQueue, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Point 9, F5."""
    seen = Collector()
    config = PushConfig(start=FIRST, model=MessageModel.BROADCASTING, offsets_directory=tmp_path)
    consumer = PushConsumer("caches", seen, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await seen.wait(2)
        source = next(source for source in pull_sources(consumer) if source.queue == queue)
        await eventually(lambda: source.progress == 3)
    assert ["before", "behind"] == seen.seen
    assert "broadcasting has no retries" in caplog.text


async def test_a_popped_message_that_does_not_decompress_comes_again_and_becomes_a_dead_letter(
    cluster: EmbeddedCluster, queue: MessageQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Point 9, F9."""
    monkeypatch.setattr(consumer_config, "POP_INVISIBLE_LEAST_MS", 1)
    monkeypatch.setattr(pop_lot, "DELAYS_MS", (50,) * 16)
    seen = Collector()
    config = PopConfig(start=FIRST, max_reconsume_times=1, invisible_ms=10_000)
    consumer = PopConsumer("billing", seen, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        assert {"before", "behind"} == set(await seen.bodies(2))
        dead = await dead_letter(cluster)
    assert (GARBAGE, True) == (dead.body, dead.body_error.startswith(WHY))
    assert 2 == len(seen.seen)


async def test_consumers_that_ask_get_the_message_as_it_is_stored_with_the_reason(
    cluster: EmbeddedCluster, queue: MessageQueue
) -> None:
    """Point 9, F3, F4: they have no retries, so the application decides."""
    async with PullConsumer("audit", name_servers=cluster.name_servers) as audit:
        pulled_ones = (await audit.pull(queue, 0)).messages
    polled: list[ReceivedMessage] = []
    lite = LitePullConsumer("lake", name_servers=cluster.name_servers, start=FIRST)
    lite.subscribe("orders")
    async with lite, asyncio.timeout(20):
        while len(polled) < 3:
            polled += await lite.poll(1_000)
    for messages in (pulled_ones, polled):
        assert [b"before", GARBAGE, b"behind"] == [message.body for message in messages]
        assert [False, True, False] == [message.body_error.startswith(WHY) for message in messages]


async def test_tools_show_it_with_the_reason_and_resend_it_as_it_is(
    cluster: EmbeddedCluster, queue: MessageQueue
) -> None:
    """Point 9: a dead letter that is sent again is still compressed."""
    consumer = PushConsumer(
        "billing",
        Collector(),
        name_servers=cluster.name_servers,
        config=PushConfig(start=FIRST, max_reconsume_times=0),
    )
    consumer.subscribe("orders")
    async with consumer:
        await dead_letter(cluster)
    async with Admin(cluster.name_servers) as admin:
        shown = await admin.messages.by_queue_offset(queue, 1)
        assert shown.body_error.startswith(WHY)
        (resent,) = await admin.dead_letters.resend("billing", to_topic=True)
        assert resent.receipt is not None
        copy = await admin.messages.by_id(resent.receipt.offset_id)
    assert (GARBAGE, COMPRESSED, shown.body_error) == (copy.body, copy.sysflag, copy.body_error)


async def test_a_reply_that_does_not_decompress_is_an_error_of_its_request(cluster: EmbeddedCluster) -> None:
    """Point 9, E7: at once, not a time-out."""
    client = ClientConfig(cluster.name_servers, decompressed_bytes_max=1_000)

    async def listener(message: ReceivedMessage) -> None:
        await producer.reply(message, bytes(10_000))

    consumer = PushConsumer("calculators", listener, client=client, start=FIRST)
    consumer.subscribe("sums")
    async with Producer("shop", client=client) as producer, consumer:
        with pytest.raises(CorruptRecord, match="larger than the 1000 bytes allowed"):
            await producer.request(Message("sums", b"2 + 2"), timeout_ms=20_000)


# --- Each kind of damage ----------------------------------------------------------------------------------------


def spoilt(part: str, at: int) -> bytes:
    """A record with one thing wrong, and its size right."""
    data = bytearray(record(at, b"it"))
    if part == "CRC":
        data[FIXED_V4_BYTES] ^= 0xFF
    elif part == "magic":
        struct.pack_into(">i", data, 4, 0x12345678)
    elif part == "topic":
        data[FIXED_V4_BYTES + 3] = 0xFF
    elif part == "lengths":
        data[FIXED_V4_BYTES + 2] += 1
    elif part == "body length":
        struct.pack_into(">i", data, FIXED_V4_BYTES - 4, -5)
    elif part == "properties":
        return record(at, b"it", properties="TAGS\x01A\x02no end, no value\x02\x01\x02=\x01")
    else:
        return record(at, b"it", sysflag=0x401)
    return bytes(data)


@pytest.mark.parametrize("part", ["CRC", "magic", "topic", "lengths", "body length", "compression"])
async def test_one_damaged_record_is_sent_back_and_those_around_it_are_delivered(
    caplog: pytest.LogCaptureFixture, part: str
) -> None:
    """Point 9: whatever is wrong inside a record."""
    async with ConsumerScript().running() as script:
        records = [record(5, b"before"), spoilt(part, 6), record(7, b"behind")]
        script.say(PULL, pulled(ResponseCode.SUCCESS, 8, *records))
        seen = Collector()
        consumer = PushConsumer("billing", seen, name_servers=script.address, start=FIRST)
        consumer.subscribe("orders")
        async with consumer:
            assert ["before", "behind"] == await seen.bodies(2)
            (back,) = await script.wait_for(BACK)
        assert (6_000, "orders") == (back.log_offset, back.origin_topic)
        assert 8 == script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[-1].commit_offset
    assert "orders@broker-a:0 cannot be decoded" in caplog.text


async def test_strange_properties_are_no_damage() -> None:
    """Point 9: what is no pair does not exist, as in RocketMQ."""
    async with ConsumerScript().running() as script:
        script.say(PULL, pulled(ResponseCode.SUCCESS, 6, spoilt("properties", 5)))
        seen = Collector()
        consumer = PushConsumer("billing", seen, name_servers=script.address, start=FIRST)
        consumer.subscribe("orders", "A || B")
        async with consumer:
            (message,) = await seen.wait(1)
    assert {"TAGS": "A"} == message.properties


async def test_a_damaged_record_with_a_tag_that_cannot_be_told_is_not_lost() -> None:
    """Point 9: the broker chose it by the hash of its tag."""
    async with ConsumerScript().running() as script:
        script.say(PULL, pulled(ResponseCode.SUCCESS, 6, spoilt("lengths", 5)))
        consumer = PushConsumer("billing", Collector(), name_servers=script.address, start=FIRST)
        consumer.subscribe("orders", "A || B")
        async with consumer:
            (back,) = await script.wait_for(BACK)
    assert 5_000 == back.log_offset


async def test_a_damaged_offset_does_not_lead_the_reader_astray(caplog: pytest.LogCaptureFixture) -> None:
    """Point 9: a record that lies elsewhere by its own account is passed over."""
    async with ConsumerScript().running() as script:
        astray = bytearray(spoilt("magic", 6))
        struct.pack_into(">q", astray, 20, 1 << 60)
        script.say(PULL, pulled(ResponseCode.SUCCESS, 8, bytes(astray), record(7, b"behind")))
        seen = Collector()
        consumer = PushConsumer("billing", seen, name_servers=script.address, start=FIRST)
        consumer.subscribe("orders")
        async with consumer:
            await seen.wait(1)
            (_, again) = await script.wait_for(PULL, 2)
    assert (["behind"], 8) == (seen.seen, again.queue_offset)
    assert "skipped a damaged record of orders@broker-a:0 before queue offset 8" in caplog.text


async def test_what_a_broker_cannot_copy_is_sent_whole_and_says_what_is_wrong() -> None:
    """Point 9, H1: compressed as it was; and what is damaged is not taken for sound by the next one."""
    async with ConsumerScript().running() as script:
        script.topics = {"orders", "%RETRY%billing"}
        no = refused(ResponseCode.SYSTEM_ERROR, "look message by offset failed")
        script.say(BACK, no, no)
        records = [spoilt("CRC", 5), record(6, GARBAGE, sysflag=COMPRESSED)]
        script.say(PULL, None, pulled(ResponseCode.SUCCESS, 7, *records))
        consumer = PushConsumer("billing", Collector(), name_servers=script.address, start=FIRST)
        consumer.subscribe("orders")
        async with consumer:
            damaged, garbage = await script.wait_for(SEND, 2)
    assert "does not match its CRC" in properties.parse(damaged.properties)["TERN_BODY_ERROR"]
    assert (0, COMPRESSED) == (damaged.sysflag, garbage.sysflag)
    assert "TERN_BODY_ERROR" not in garbage.properties


async def test_what_no_broker_ever_takes_back_is_passed_over(caplog: pytest.LogCaptureFixture) -> None:
    """Point 9: or else the progress of its queue would wait for it for ever."""
    async with ConsumerScript().running() as script:
        script.topics = {"orders", "%RETRY%billing"}
        script.say(BACK, refused(ResponseCode.SYSTEM_ERROR, "look message by offset failed"))
        script.say(SEND, refused(ResponseCode.MESSAGE_ILLEGAL, "too large"))
        script.say(PULL, None, pulled(ResponseCode.SUCCESS, 6, spoilt("magic", 5)))
        consumer = PushConsumer("billing", Collector(), name_servers=script.address, start=FIRST)
        consumer.subscribe("orders")
        async with consumer:
            await script.wait_for(SEND)
            await eventually(lambda: "it is skipped" in caplog.text)
        assert 6 == script.headers(RequestCode.UPDATE_CONSUMER_OFFSET)[-1].commit_offset


def test_records_whose_sizes_are_wrong_cannot_be_told_apart() -> None:
    """Point 9: that is another matter than one bad record."""
    data = bytearray(record(5) + record(6))
    struct.pack_into(">i", data, 0, len(data) + 1)
    with pytest.raises(CorruptRecord, match="claims"):
        read_records(data)
    with pytest.raises(CorruptRecord, match="too few for a record"):
        read_records(record(5) + b"rest")


# --- Large bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body_bytes", "count", "yields"),
    [(1_000, 1, False), (INLINE_BYTES, 1, False), (INLINE_BYTES + 1, 1, True), (INLINE_BYTES // 2, 3, True)],
)
async def test_the_loop_goes_on_while_a_large_body_is_decompressed(body_bytes: int, count: int, yields: bool) -> None:
    """Point 9: and one answer with many small ones is as large."""
    body, bits = compress(bytes(body_bytes))
    records = b"".join(record(offset, body, sysflag=bits) for offset in range(count))
    messages, _ = read_answer(records, Claimed, "broker-a")
    went_on = asyncio.Event()
    asyncio.get_running_loop().call_soon(went_on.set)
    assert count == await Inflater(1 << 30).messages(messages)
    assert yields == went_on.is_set()
    assert [(offset, body_bytes, "") for offset in range(count)] == [
        (one.queue_offset, len(one.body), one.body_error) for one in messages
    ]


async def held_back(script: ConsumerScript, limits: FlowLimits) -> tuple[list[int], list[int]]:
    """What is delivered of ten compressed messages of 1,000 bytes before any is done, and in the end."""
    body, bits = compress(bytes(1_000))
    records = [record(offset, body, sysflag=bits) for offset in range(10)]
    script.say(PULL, pulled(ResponseCode.SUCCESS, 10, *records))
    go_on = asyncio.Event()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await go_on.wait()

    config = PushConfig(start=FIRST, limits=limits)
    consumer = PushConsumer("billing", listener, name_servers=script.address, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await eventually(lambda: any(source.held.body_bytes >= limits.body_bytes for source in pull_sources(consumer)))
        await seen.wait(limits.body_bytes // 1_000)
        before = [message.queue_offset for message in seen.messages]
        (source,) = (source for source in pull_sources(consumer) if source.queue.topic == "orders")
        assert (limits.body_bytes, before[-1] + 1) == (source.held.body_bytes, source.held.next_offset)
        go_on.set()
        await seen.wait(10)
        await script.wait_for(PULL, 2)
    return before, [message.queue_offset for message in seen.messages]


async def test_bodies_count_against_the_limits_as_they_are_after_decompression(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Points 9 and 15: a limit may be reached within one answer; and the log names it."""
    async with ConsumerScript().running() as script:
        before, after = await held_back(script, FlowLimits(body_bytes=3_000))
    assert ([0, 1, 2], list(range(10))) == (before, after)
    assert (
        "group billing has reached its limit body_bytes and stops pulling from orders@broker-a:0 until messages "
        "are consumed: 3 messages with 3000 bytes, queue offsets 0 to 2, are in progress"
    ) in caplog.text
    # A slow listener reaches the limit again and again; the log says so once a minute.
    assert 1 == caplog.text.count("has reached its limit")


async def test_popped_bodies_count_as_they_are_after_decompression(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """Points 9 and 15, F9."""
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        queue = (await producer.queues("orders"))[0]
        body, _ = compress(bytes(1_000))
        for _ in range(5):
            await send_compressed(producer, queue, body)
    go_on = asyncio.Event()
    seen = Collector()

    async def listener(message: ReceivedMessage) -> None:
        await seen(message)
        await go_on.wait()

    config = PopConfig(start=FIRST, unsettled_bytes_max=2_000)
    consumer = PopConsumer("billing", listener, name_servers=cluster.name_servers, config=config)
    consumer.subscribe("orders")
    async with consumer:
        await eventually(lambda: "has reached its limit" in caplog.text)
        assert 2 == len(await seen.wait(2))
        go_on.set()
        await seen.wait(5)
    assert "has reached its limit unsettled_bytes_max and stops popping from orders@broker-a" in caplog.text
    assert "2 messages with 2000 bytes are in progress" in caplog.text


# --- Handles ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("handle", "is_used"),
    [("no handle at all", False), ("0 1 60000 0 0 broker-a 0 5", False), ("0 77 60000 0 1 broker-a 0 5", True)],
    ids=["made up", "of another pop", "of this pop"],
)
def test_only_a_handle_of_this_answer_is_used(handle: str, is_used: bool) -> None:
    """Point 9: what a sender made up, or what was stored with a message, would ack another message, or none."""
    reply = PopReply(pop_time_ms=77, invisible_ms=60_000, revive_queue_id=0)
    message = received(5)
    message.properties["POP_CK"] = handle
    assert is_used == (handle_of(message, reply) is not None)
