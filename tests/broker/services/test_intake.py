"""When a sender is told that its message is stored (C6, E1)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.services.intake import Intake
from ternmq.env import SystemClock
from ternmq.errors import MessageIllegal, ServiceNotAvailable, SystemBusy
from ternmq.store.config import FlushDiskType
from ternmq.store.durable.safety import Level
from ternmq.store.durable.watermark import Watermark
from ternmq.store.log.batch import PlacedBatch
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.properties import parse
from ternmq.wire.record import pack_host, unpack_record
from ternmq.wire.requests import SendReply
from tests.broker.calls import dialled, serving, settings, small_store, v2

HOST = pack_host("127.0.0.1", 10911)
FAR_MS = 60_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    """A store that flushes only when it is told to, and whose senders wait long for that."""
    with opened(tmp_path) as store:
        yield store


def opened(root: Path, *, timeout_ms: int = FAR_MS) -> MessageStore:
    config = small_store(root, flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=timeout_ms)
    return MessageStore.open(config, store_host=HOST, clock=SystemClock(), threads=False)


def draft(body: bytes = b"x", topic: str = "orders", properties: str = "") -> Draft:
    return Draft(topic, 0, body, properties, 0, HOST)


def store_batch(under_test: Intake, body: bytes) -> PlacedBatch:
    return under_test.store_batch(
        "orders",
        0,
        lambda: [(0, body, b"")],
        sent=None,
        count_max=1,
        born_time_ms=0,
        born_host=HOST,
        sysflag=0,
        more_properties=b"",
    )


def intake(store: MessageStore, *, waiting_max: int = 100) -> Intake:
    return Intake(store, waiting_max=waiting_max)


async def test_a_sender_is_told_when_the_disk_has_its_record(store: MessageStore) -> None:
    """C6: one flush serves all who wait before it, in their order."""
    under_test = intake(store)
    told: list[tuple[int, int]] = []
    for number in range(3):
        placed = under_test.store(draft())
        under_test.when_safe(placed.end_offset, lambda code, number=number: told.append((number, code)))  # type: ignore[misc]
    assert told == []

    store.flush_now()

    assert told == [(0, 0), (1, 0), (2, 0)]
    under_test.close()


async def test_a_record_that_is_on_disk_already_is_answered_at_once(store: MessageStore) -> None:
    """C6"""
    under_test = intake(store)
    placed = under_test.store(draft())
    store.flush_now()
    told: list[int] = []

    under_test.when_safe(placed.end_offset, told.append)

    assert told == [0]


async def test_a_disk_that_takes_too_long_is_told_as_a_time_out_once(tmp_path: Path) -> None:
    """C6: FLUSH_DISK_TIMEOUT; the record is stored nevertheless."""
    with opened(tmp_path, timeout_ms=1) as store:
        under_test = intake(store)
        answers: asyncio.Queue[int] = asyncio.Queue()
        for _ in range(2):
            under_test.when_safe(under_test.store(draft()).end_offset, answers.put_nowait)

        assert [await answers.get(), await answers.get()] == [ResponseCode.FLUSH_DISK_TIMEOUT] * 2
        store.flush_now()
        assert answers.empty()


async def test_a_level_with_a_shorter_limit_is_late_in_its_own_time(store: MessageStore) -> None:
    """C6, O1: a slave that comes while senders wait for a slow disk; the disk's limit is far away."""
    under_test = intake(store)
    first: list[int] = []
    under_test.when_safe(under_test.store(draft()).end_offset, first.append)
    slave = Level(Watermark(), 1, ResponseCode.FLUSH_SLAVE_TIMEOUT)
    store.safety.add(slave)
    late: asyncio.Queue[int] = asyncio.Queue()
    under_test.when_safe(under_test.store(draft()).end_offset, late.put_nowait)

    assert ResponseCode.FLUSH_SLAVE_TIMEOUT == await late.get()
    assert [] == first
    store.flush_now()
    assert [] == first
    store.safety.remove(slave)
    assert [ResponseCode.SUCCESS] == first


async def test_a_level_refuses_before_the_write(store: MessageStore) -> None:
    """O3: too few replicas are in sync, so nothing is stored."""

    def check_write() -> None:
        raise ServiceNotAvailable("1 replica is in sync, minInSyncReplicas is 2")

    under_test = intake(store)
    end = store.written
    store.safety.add(Level(Watermark(), 1, ResponseCode.FLUSH_SLAVE_TIMEOUT, check_write=check_write))
    with pytest.raises(ServiceNotAvailable, match="minInSyncReplicas"):
        under_test.store(draft())
    with pytest.raises(ServiceNotAvailable, match="minInSyncReplicas"):
        store_batch(under_test, b"x")
    assert end == store.written


async def test_only_so_many_may_wait_for_the_disk(store: MessageStore) -> None:
    """M1: more are told that the broker is busy, until the disk has caught up."""
    under_test = intake(store, waiting_max=2)
    told: list[int] = []
    for _ in range(2):
        under_test.when_safe(under_test.store(draft()).end_offset, told.append)

    with pytest.raises(SystemBusy, match=r"^\[PC_SYNCHRONIZED\]"):
        under_test.store(draft())
    with pytest.raises(SystemBusy):
        store_batch(under_test, b"x")
    under_test.apply(BrokerConfig(send_thread_pool_queue_capacity=3))
    under_test.store(draft())

    store.flush_now()
    under_test.when_safe(under_test.store(draft()).end_offset, told.append)
    assert told == [0, 0]
    under_test.close()


async def test_who_still_waits_at_the_end_is_told_that_it_was_not_safe(store: MessageStore) -> None:
    """C6"""
    under_test = intake(store)
    told: list[int] = []
    under_test.when_safe(under_test.store(draft()).end_offset, told.append)

    under_test.close()

    assert told == [ResponseCode.FLUSH_DISK_TIMEOUT]


async def test_a_redirect_changes_where_a_message_goes(store: MessageStore) -> None:
    """Architecture: delay and transactions are redirects. They see what their mark betrays."""
    seen = []

    def elsewhere(draft: Draft) -> None:
        seen.append(draft.topic)
        draft.topic, draft.properties = "SCHEDULE", f"REAL_TOPIC\x01{draft.topic}\x02"

    redirects = {"DELAY\x01": elsewhere}
    under_test = Intake(store, waiting_max=1, redirects=redirects)
    placed = [under_test.store(draft(topic="later", properties="DELAY\x013\x02")), under_test.store(draft())]

    records = []
    for place in placed:
        page = store.record_at(place.log_offset)
        assert page is not None
        records.append(unpack_record(page))
    assert ["SCHEDULE", "orders"] == [record.topic for record in records]
    assert ["later"] == seen
    assert parse(records[0].properties) == {"REAL_TOPIC": "later"}


async def test_the_store_s_refusals_become_response_codes(store: MessageStore) -> None:
    """E1"""
    under_test = intake(store)
    with pytest.raises(MessageIllegal, match="raise maxMessageSize"):
        under_test.store(draft(b"x" * (5 << 20)))
    with pytest.raises(MessageIllegal, match="raise maxMessageSize"):
        store_batch(under_test, b"x" * (5 << 20))
    store.close()
    with pytest.raises(ServiceNotAvailable, match="closed"):
        under_test.store(draft())


async def test_under_sync_flush_a_reply_means_that_the_message_is_on_disk(tmp_path: Path) -> None:
    """C6, E1, E6: single, one-way and batched; WAIT=false is not made to wait."""
    async with serving(tmp_path, store={"flush_disk_type": FlushDiskType.SYNC_FLUSH}) as broker:
        single = await broker.sent("orders", b"0", properties={"UNIQ_KEY": "U0", "WAIT": "true"})
        batch = (await broker.send_batch("orders", [(b"1", {}), (b"2", {})])).read(SendReply)
        unsafe = await broker.sent("orders", b"3", properties={"UNIQ_KEY": "U3", "WAIT": "false"})

        assert [0, 1, 3] == [single.queue_offset, batch.queue_offset, unsafe.queue_offset]
        assert single.transaction_id == "U0"
        assert await broker.bodies("orders") == [b"0", b"1", b"2", b"3"]


async def test_a_stop_answers_who_waits_for_the_disk(tmp_path: Path) -> None:
    """C6: whatever was read before the stop, is on disk and acknowledged after it."""
    broker = Broker(settings(), small_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH))
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(broker)
        async with dialled(broker.address) as caller:
            await caller.sent("orders", b"0")
            calls = [
                caller.peer.start_call(RequestCode.SEND_MESSAGE_V2, v2("orders", queue_id=0), b"%d" % number)
                for number in range(1, 50)
            ]
            # Behind them on the same connection, and not waiting for the disk: when it is answered, they are stored.
            await caller.pull("orders", 0)

            await stack.aclose()

            assert {0} == {(await call).code for call in calls}
