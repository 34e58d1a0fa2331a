"""Messages found again through the admin: by id, unique key, key, queue offset and time (L1)."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from ternmq.admin import Admin
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, InvalidName, NetworkError, NotFound, RouteMissing
from ternmq.message import Message, ReceivedMessage
from ternmq.wire.ids import java_hash, offset_id
from ternmq.wire.record import pack_host
from tests.admin.conftest import QUEUES, Timed


def bodies(messages: list[ReceivedMessage]) -> list[bytes]:
    return [message.body for message in messages]


# --- By id --------------------------------------------------------------------------------------------------------


async def test_a_message_is_found_by_its_offset_id(cluster: EmbeddedCluster, admin: Admin) -> None:
    """L1, C10: with everything that a consumer would see of it."""
    await admin.topics.create("orders", queues=1)
    sent = Message("orders", b"1" * 5_000, tags="new", keys="k", properties={"城市": "杭州"})
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        await producer.send(Message("orders", b"0"), queue=QUEUES[1])
        receipt = await producer.send(sent, queue=QUEUES[1])

    message = await admin.messages.by_id(receipt.offset_id)

    assert (sent.body, "new", ("k",), "杭州") == (
        message.body,
        message.tags,
        message.keys,
        message.properties["城市"],
    )
    assert (QUEUES[1], 1) == (message.queue, message.queue_offset)
    assert (receipt.message_id, receipt.offset_id) == (message.message_id, message.offset_id)


async def test_an_id_without_a_record_is_not_found(timed: Timed, admin: Admin) -> None:
    """L1: never written, or deleted by now."""
    receipt = await timed.send(b"0")

    with pytest.raises(NotFound, match=r"127\.0\.0\.1:\d+ has no message at log offset 305419896; it was deleted"):
        await admin.messages.by_id(f"{receipt.offset_id[:16]}{0x12345678:016X}")


async def test_an_id_that_is_none_says_what_it_may_be(timed: Timed, admin: Admin) -> None:
    """L1: a unique key has the same form, but no port that could be."""
    receipt = await timed.send(b"0")

    with pytest.raises(InvalidName, match="If it is a message id, search with the topic"):
        await admin.messages.by_id(receipt.message_id)
    with pytest.raises(InvalidName, match="is not a valid offset id"):
        await admin.messages.by_id("order-7")
    with pytest.raises(NetworkError, match=r"127\.0\.0\.1:1"):
        await admin.messages.by_id(offset_id(pack_host("127.0.0.1", 1), 0))


async def test_a_message_is_found_by_its_unique_key(timed: Timed, admin: Admin) -> None:
    """L1: on whatever broker."""
    receipts = [await timed.send(queue.broker_name.encode(), queue=queue) for queue in QUEUES]

    for receipt, queue in zip(receipts, QUEUES, strict=True):
        (message,) = await admin.messages.by_unique_key("orders", receipt.message_id)
        assert (queue.broker_name.encode(), receipt.offset_id) == (message.body, message.offset_id)
    assert [] == await admin.messages.by_unique_key("orders", "0" * 32)


# --- By key -------------------------------------------------------------------------------------------------------


async def test_messages_are_found_by_key_on_all_brokers(timed: Timed, admin: Admin) -> None:
    """L1, C4: oldest first; the newest when there are too many."""
    for number in range(6):
        await timed.send(b"%d" % number, keys=("all", f"k{number}"), queue=QUEUES[number % 2], after_ms=1000)

    assert [b"%d" % number for number in range(6)] == bodies(await admin.messages.by_key("orders", "all"))
    assert [b"4", b"5"] == bodies(await admin.messages.by_key("orders", "all", count_max=2))
    assert [b"3"] == bodies(await admin.messages.by_key("orders", "k3"))
    assert [] == await admin.messages.by_key("orders", "k")


async def test_a_span_of_time_is_kept_to_the_millisecond(timed: Timed, admin: Admin) -> None:
    """L1: though the index knows seconds only."""
    times = []
    for number in range(8):
        await timed.send(b"%d" % number, keys=("k",), after_ms=300)
        times.append(timed.clock.now_ms())

    def moment(at: int) -> datetime:
        return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=times[at])

    async def found(**span: datetime | int) -> list[bytes]:
        return bodies(await admin.messages.by_key("orders", "k", begin=span.get("begin"), end=span.get("end")))

    assert [b"3", b"4", b"5"] == await found(begin=times[3], end=times[5])
    assert [b"3", b"4", b"5"] == await found(begin=moment(3), end=moment(5))
    assert [b"4"] == await found(begin=times[3] + 1, end=times[5] - 1)
    assert [b"6", b"7"] == await found(begin=times[6])
    assert [b"0", b"1"] == await found(end=times[1])
    assert [] == await found(begin=times[5], end=times[3])
    # Later messages of the second in which the span ends do not take the places of those within.
    assert [b"4"] == bodies(await admin.messages.by_key("orders", "k", end=times[5] - 1, count_max=1))


async def test_keys_with_equal_hashes_are_told_apart(timed: Timed, admin: Admin) -> None:
    """L1, C4: the index has hashes only."""
    assert java_hash("orders#Aa") == java_hash("orders#BB")
    await timed.send(b"1", keys=("Aa",))
    await timed.send(b"2", keys=("BB",))

    assert [b"1"] == bodies(await admin.messages.by_key("orders", "Aa"))
    assert [b"2"] == bodies(await admin.messages.by_key("orders", "BB"))


async def test_a_unique_key_is_no_key(timed: Timed, admin: Admin) -> None:
    """L1: both are in one index."""
    receipt = await timed.send(b"1", keys=("k",))

    assert [] == await admin.messages.by_key("orders", receipt.message_id)
    assert [] == await admin.messages.by_unique_key("orders", "k")


@pytest.mark.parametrize("key", ["", "two words", " k", "k\t"])
async def test_a_key_that_no_message_can_have_is_refused(admin: Admin, key: str) -> None:
    """L1: blanks separate keys."""
    with pytest.raises(InvalidName, match="expected one word without spaces"):
        await admin.messages.by_key("orders", key)
    with pytest.raises(InvalidName, match="invalid key"):
        await admin.messages.by_unique_key("orders", key)


@pytest.mark.parametrize("count_max", [0, -1, 65])
async def test_more_than_brokers_return_cannot_be_asked_for(admin: Admin, count_max: int) -> None:
    """L1."""
    with pytest.raises(ConfigError, match=r"expected 1 to 64; to find more messages, search shorter time ranges"):
        await admin.messages.by_key("orders", "k", count_max=count_max)


# --- By place and time --------------------------------------------------------------------------------------------


async def test_a_message_is_found_by_its_place_in_a_queue(timed: Timed, admin: Admin) -> None:
    """L1."""
    receipts = [await timed.send(b"%d" % number) for number in range(3)]

    message = await admin.messages.by_queue_offset(QUEUES[0], 1)

    assert (b"1", receipts[1].offset_id) == (message.body, message.offset_id)


async def test_a_place_without_a_message_says_what_there_is(timed: Timed, admin: Admin) -> None:
    """L1."""
    await timed.send(b"0")
    await timed.send(b"1")

    for queue_offset in (-1, 2, 99):
        with pytest.raises(NotFound, match=f"orders@broker-a:0 has no message {queue_offset}; it holds 0 to 1"):
            await admin.messages.by_queue_offset(QUEUES[0], queue_offset)
    with pytest.raises(NotFound, match="orders@broker-b:0 has no message 0; it is empty"):
        await admin.messages.by_queue_offset(QUEUES[1], 0)
    for queue in (QUEUES[0]._replace(queue_id=1), QUEUES[0]._replace(broker_name="broker-z")):
        with pytest.raises(NotFound, match=f"{queue} does not exist or is not readable; see `tern topic route orders`"):
            await admin.messages.by_queue_offset(queue, 0)


async def test_the_first_message_of_each_queue_since_a_time(timed: Timed, admin: Admin) -> None:
    """L1: to the millisecond, also where several messages share one."""
    times = []
    for number, after_ms in enumerate((0, 1, 0, 1, 500)):
        await timed.send(b"a%d" % number, after_ms=after_ms)
        times.append(timed.clock.now_ms())
    await timed.send(b"b0", queue=QUEUES[1], after_ms=1)

    async def since(time: datetime | int) -> list[bytes]:
        return bodies(await admin.messages.by_time("orders", time))

    assert times[1] == times[2] == times[0] + 1 == times[3] - 1
    assert [b"a0", b"b0"] == await since(0) == await since(times[0])
    assert [b"a1", b"b0"] == await since(times[1])
    assert [b"a3", b"b0"] == await since(times[3])
    assert [b"a4", b"b0"] == await since(times[3] + 1) == await since(times[4])
    assert [b"b0"] == await since(times[4] + 1)
    assert [] == await since(timed.clock.now_ms() + 1)
    assert [b"a3", b"b0"] == await since(datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=times[3]))


async def test_an_unknown_topic_is_an_error_with_a_cure(admin: Admin) -> None:
    """L1: whichever way one searches."""
    for search in (
        admin.messages.by_key("nothing", "k"),
        admin.messages.by_unique_key("nothing", "k"),
        admin.messages.by_time("nothing", 0),
        admin.messages.by_queue_offset(QUEUES[0]._replace(topic="nothing"), 0),
    ):
        with pytest.raises(RouteMissing, match="create it with `tern topic create nothing`"):
            await search
