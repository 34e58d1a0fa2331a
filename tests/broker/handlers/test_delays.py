"""Recalls under SYNC_FLUSH, and answers of tools that are bounded in memory (I2, C6)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.broker.handlers.delays import DelayHandlers
from ternmq.broker.services.intake import Intake
from ternmq.delay import recalls
from ternmq.delay.alarm import Alarm
from ternmq.delay.hour_files import HourFiles, IndexLine
from ternmq.delay.overview import Overview
from ternmq.delay.recalls import Recalls
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.timer import Timer
from ternmq.env import SystemClock
from ternmq.errors import IllegalOperation
from ternmq.net.peer import Peer
from ternmq.store.config import FlushDiskType
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.recall import RecallHandle, parse_handle
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import RecallMessage
from ternmq.wire.requests_admin import PeekDelayed
from tests.broker.calls import small_store
from tests.store.small import HOST, draft


class Answered:
    """The end of a connection: keeps what is replied later."""

    host = HOST

    def __init__(self) -> None:
        self.replies: list[Reply] = []

    def reply(self, _request: Request[Any], reply: Reply) -> None:
        self.replies.append(reply)


class World:
    """A store that flushes only when it is told to, and the handlers."""

    def __init__(self, root: Path) -> None:
        clock, disk = SystemClock(), FileDisk()
        config = small_store(root, flush_disk_type=FlushDiskType.SYNC_FLUSH, sync_flush_timeout=600_000)
        self.schedule = ScheduleLog(disk, root, ring=Alarm().ring)
        self.store = MessageStore.open(
            config, store_host=HOST, clock=clock, disk=disk, derived=(self.schedule,), threads=False
        )
        self.timer = Timer(
            clock=clock, broker_name="a", is_enabled=True, max_delay_sec=86_400, announce=self.schedule.announce
        )
        self.due = str(clock.now_ms() + 7_200_000)
        self.recalls = Recalls(self.schedule, clock=clock, broker_name="a")

    def handlers(self) -> tuple[DelayHandlers, Intake]:
        intake = Intake(self.store, waiting_max=10)
        handlers = DelayHandlers(
            recalls=self.recalls,
            overview=Overview(self.schedule),
            intake=intake,
            config=BrokerConfig(),
            clock=SystemClock(),
            timer_end=lambda: 0,
        )
        return handlers, intake

    def send(self, key: str) -> str:
        message: Draft = draft("orders", 0, b"x", UNIQ_KEY=key, TIMER_DELIVER_MS=self.due)
        self.timer.redirect(message)
        return self.timer.handle(message, self.store.put(message).log_offset, key) or ""


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    world = World(tmp_path)
    yield world
    world.store.close()
    world.schedule.close()


async def test_a_recall_is_answered_when_the_disk_has_it(world: World) -> None:
    """I2, C6: a power cut after the answer must not bring the message back."""
    handlers, intake = world.handlers()
    handle = world.send("K")
    peer = Answered()
    request = Request(code=RequestCode.RECALL_MESSAGE, header=RecallMessage(topic="orders", recall_handle=handle))

    assert await handlers.recall(cast("Peer", peer), request) is None
    await asyncio.sleep(0)
    assert [] == peer.replies

    world.store.flush_now()
    assert [ResponseCode.SUCCESS] == [reply.code for reply in peer.replies]
    assert not world.schedule.in_flight
    intake.close()


async def test_a_peek_reads_no_more_records_than_it_shows(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """I2: each may have megabytes."""
    for number in range(50):
        world.send(f"K{number}")
    read: list[IndexLine] = []
    original = HourFiles.record

    def counting(files: HourFiles, entry: IndexLine) -> bytes:
        read.append(entry)
        return original(files, entry)

    monkeypatch.setattr(HourFiles, "record", counting)
    handlers, intake = world.handlers()
    request = Request(code=RequestCode.PEEK_DELAYED_MESSAGES, header=PeekDelayed(topic="orders", count_max=3))
    reply = await handlers.peek(cast("Peer", Answered()), request)

    assert isinstance(reply.body, bytes)
    assert 3 == len(unpack_records(reply.body))
    assert len(read) <= 4
    intake.close()


async def test_a_search_by_key_gives_way_to_other_work(world: World) -> None:
    """I2: a handle without a log offset, as RocketMQ makes them, and many messages in the same second."""
    handle = ""
    for number in range(1_000):
        handle = world.send(f"K{number}")
    made = parse_handle(handle)
    turns = 0

    async def work() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(work())
    with pytest.raises(IllegalOperation):
        unknown = RecallHandle(made.topic, made.broker_name, made.slot_ms, "unknown").text()
        await world.recalls.draft("orders", unknown, born_host=HOST)
    other.cancel()
    assert turns >= 4


async def test_an_hour_with_many_closed_messages_is_not_kept_in_memory(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I2: what was recalled is still known, and what waits, too."""
    monkeypatch.setattr(recalls, "_CLOSED_MAX", 2)
    handles = [world.send(f"K{number}") for number in range(6)]
    order = [3, 0, 5, 1]
    for number in order:
        taken_back, _ = await world.recalls.draft("orders", handles[number], born_host=HOST)
        world.store.put(taken_back)
    for number, handle in enumerate(handles):
        if number in order:
            with pytest.raises(IllegalOperation, match="was recalled before"):
                await world.recalls.draft("orders", handle, born_host=HOST)
        else:
            assert (await world.recalls.draft("orders", handle, born_host=HOST))[1] == f"K{number}"
    assert not world.recalls._closed[2]
