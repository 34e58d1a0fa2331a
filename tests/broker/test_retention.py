"""Retention and full disks, as clients and tools see them (C9, D6, E1)."""

from __future__ import annotations

import os
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ternmq.broker.broker import Broker
from ternmq.env import Env
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import OffsetReply, PullReply, QueueBounds, ViewMessage
from tests.broker.calls import FAR_MS, Caller, dialled, settings, small_store
from tests.manual_clock import ManualClock
from tests.tmpfs import SIZE_BYTES, Tmpfs, small_disk

__all__ = ["small_disk"]

HOUR_S = 3600
BODY = b"x" * 60_000


@asynccontextmanager
async def serving(path: Path, clock: ManualClock, **store: Any) -> AsyncIterator[Caller]:
    """A connection to a broker whose threads look around all the time, on a clock that is moved by hand."""
    config = small_store(path, flush_interval_commit_log=1, flush_interval_consume_queue=1, **store)
    patient = settings(wait_time_mills_in_send_queue=FAR_MS)
    async with Broker(patient, config, Env(clock=clock)) as broker, dialled(broker.address) as caller:
        yield caller


async def min_offset(broker: Caller, topic: str) -> int:
    response = await broker.call(RequestCode.GET_MIN_OFFSET, QueueBounds(topic=topic, queue_id=0))
    return response.read(OffsetReply).queue_offset


async def all_bodies(broker: Caller, topic: str) -> list[bytes]:
    """What a consumer gets that starts at 0 and goes where it is sent."""
    bodies: list[bytes] = []
    queue_offset = 0
    while True:
        response = await broker.pull(topic, queue_offset)
        if response.code == ResponseCode.PULL_NOT_FOUND:
            return bodies
        bodies += [bytes(record.body) for record in unpack_records(response.body)]
        queue_offset = response.read(PullReply).next_offset


async def send_until_refused(broker: Caller, acknowledged: list[bytes], **fields: Any) -> Response:
    while True:
        body = b"%06d" % len(acknowledged) + BODY
        response = await broker.send("orders", body, **fields)
        if response.code != ResponseCode.SUCCESS:
            return response
        acknowledged.append(body)


async def test_a_full_disk_is_a_refusal_that_says_why(small_disk: Tmpfs) -> None:
    """C9, E1: nothing acknowledged is lost, consumers go on, and sends, too, when there is space."""
    small_disk.fill(leave_bytes=5 << 20)
    acknowledged: list[bytes] = []
    async with serving(small_disk.path / "store", ManualClock()) as broker:
        for _ in range(2):
            response = await send_until_refused(broker, acknowledged)
            assert ResponseCode.SERVICE_NOT_AVAILABLE == response.code
            assert "No space left on device; free some space" in (response.remark or "")
            assert acknowledged == await all_bodies(broker, "orders")
            before = len(acknowledged)
            small_disk.free(1 << 20)
        await send_until_refused(broker, acknowledged)
        assert len(acknowledged) > before + 8
        assert acknowledged == await all_bodies(broker, "orders")
        small_disk.free(1 << 20)


async def test_above_the_last_mark_sends_are_refused_before_the_disk_is_full(small_disk: Tmpfs) -> None:
    """C9: 90 %; the path, how full it is, and the cure."""
    clock = ManualClock()
    async with serving(small_disk.path / "store", clock, clean_file_forcibly_enable=False) as broker:
        await broker.sent("orders", b"first")
        # Less than a tenth, and more than the thread that readies log space may still take.
        small_disk.fill(leave_bytes=SIZE_BYTES * 3 // 32)
        clock.advance(60)
        acknowledged: list[bytes] = []
        while (response := await broker.send("orders", b"%d" % len(acknowledged))).code == 0:
            acknowledged.append(b"%d" % len(acknowledged))
            clock.advance(1)
        assert ResponseCode.SERVICE_NOT_AVAILABLE == response.code
        assert re.match(
            rf"the disk of {small_disk.path}/store/commitlog is (9[1-9]|100) % full: no message is taken above 90 %, "
            ".*; free some space there",
            response.remark or "",
        )
        assert [b"first", *acknowledged] == await all_bodies(broker, "orders")

        small_disk.free(SIZE_BYTES // 2)
        while (await broker.send("orders", b"last")).code != 0:
            clock.advance(1)
        assert [b"first", *acknowledged, b"last"] == await all_bodies(broker, "orders")


async def test_old_segments_go_when_a_tool_says_so(tmp_path: Path) -> None:
    """C9, D6: 329; readers of what is gone are sent on."""
    clock = ManualClock()
    async with serving(tmp_path, clock, file_reserved_time=1, delete_when="") as broker:
        sent = [await broker.sent("orders", b"%06d" % number + BODY) for number in range(100)]
        segments = sorted((tmp_path / "commitlog").iterdir())
        for path in segments[:3]:
            at = clock.now_ms() / 1000 - HOUR_S
            os.utime(path, (at, at))
        for path in segments[3:]:
            at = clock.now_ms() / 1000
            os.utime(path, (at, at))
        assert (await broker.call(RequestCode.DELETE_EXPIRED_COMMITLOG)).code == 0
        while await min_offset(broker, "orders") == 0:
            clock.advance(1)

        first = await min_offset(broker, "orders")
        response = await broker.pull("orders", 0)
        assert (ResponseCode.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL", first) == (
            response.code,
            response.remark,
            response.read(PullReply).next_offset,
        )
        assert [b"%06d" % number for number in range(first, 100)] == [
            body[:6] for body in await all_bodies(broker, "orders")
        ]
        for number, code in ((0, ResponseCode.SYSTEM_ERROR), (first, ResponseCode.SUCCESS)):
            log_offset = int(sent[number].message_id[16:], 16)
            assert code == (await broker.call(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset))).code


async def test_expired_queues_go_when_a_tool_says_so(tmp_path: Path) -> None:
    """C9, D6: 306."""
    clock = ManualClock()
    async with serving(tmp_path, clock, file_reserved_time=0, delete_when="") as broker:
        for number in range(1000):
            await broker.sent("idle", b"%d" % number)
        for _ in range(60):
            await broker.sent("orders", BODY)
        clock.advance(1e9)  # past all times that files have here
        await broker.call(RequestCode.DELETE_EXPIRED_COMMITLOG)
        while await min_offset(broker, "idle") < 1000:
            clock.advance(1)
        queue = tmp_path / "consumequeue" / "idle" / "0"
        assert queue.exists()
        assert (await broker.call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE)).code == 0
        while queue.exists():
            await broker.sent("orders", b"x")
        assert 1000 == (await broker.sent("idle", b"again")).queue_offset
        assert [b"again"] == await all_bodies(broker, "idle")


async def test_the_emptiest_of_several_disks_counts(tmp_path: Path, small_disk: Tmpfs) -> None:
    """C9, D6: as retention and RocketMQ see it; tools are shown each."""
    small_disk.fill(leave_bytes=100_000)
    logs = (tmp_path / "log", small_disk.path / "log")
    async with serving(tmp_path / "store", ManualClock(), store_path_commit_log=logs) as broker:
        table = decode((await broker.call(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KvTable).table

    ratios = [float(table[f"commitLogDiskRatio_{path}"]) for path in logs]
    assert ratios[1] > 0.99
    assert min(ratios) == float(table["commitLogDiskRatio"]) < ratios[1]
