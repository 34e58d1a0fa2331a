"""Flush: when, for whom, and what happens when the disk is full or fails (C6, C7)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmq.env import SystemClock
from ternmq.errors import DiskFull, StoreError
from ternmq.store.config import FlushDiskType
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.durable.flush import is_due
from ternmq.store.durable.mailbox import StoreJob
from ternmq.store.store import MessageStore
from tests.manual_clock import ManualClock
from tests.store.disks import TroubledDisk
from tests.store.small import HOST, bodies, draft, quiet_store, small_config

SYNC = {"flush_disk_type": FlushDiskType.SYNC_FLUSH, "mapped_file_size_commit_log": 1 << 20}


@pytest.mark.parametrize(
    ("flushed", "written", "idle_ms", "due"),
    [
        (0, 0, 99_999, False),  # nothing to do
        (0, 4 * 4096 - 1, 500, False),  # fewer than four pages
        (0, 4 * 4096, 500, True),
        (4000, 4 * 4096, 500, True),  # pages, not bytes
        (100, 200, 9_999, False),
        (100, 200, 10_000, True),  # every 10 s in any case
        ((1 << 20) - 10, (1 << 20) + 10, 0, True),  # a full segment at once
    ],
)
def test_when_async_flush_flushes(flushed: int, written: int, idle_ms: float, due: bool) -> None:
    """C6."""
    assert due is is_due(
        flushed=flushed, written=written, segment_bytes=1 << 20, least_pages=4, idle_ms=idle_ms, thorough_ms=10_000
    )


def store_on(disk: TroubledDisk, root: Path, notify: Callable[[StoreJob], object]) -> MessageStore:
    config = small_config(root, **SYNC)
    return MessageStore.open(config, store_host=HOST, clock=SystemClock(), disk=disk, notify=notify)


async def test_one_sync_serves_all_who_wait(tmp_path: Path) -> None:
    """C6: group commit. While one sync runs, a hundred messages come; the next one is for all of them."""
    disk = TroubledDisk()
    store = store_on(disk, tmp_path, asyncio.get_running_loop().call_soon_threadsafe)
    try:
        disk.gate.acquire()
        before = disk.sync_count
        first = store.put(draft()).end_offset
        await asyncio.to_thread(disk.is_syncing.wait)
        last = [store.put(draft()).end_offset for _ in range(100)][-1]
        assert not await store.flushed.reached(first, 1)
        disk.gate.release()

        assert await store.flushed.reached(last, 60_000)
        assert before + 2 == disk.sync_count
        assert last == store.flushed.value
    finally:
        store.close()


async def test_a_disk_that_hangs_is_a_time_out_and_the_message_stays(tmp_path: Path) -> None:
    """C6: FLUSH_DISK_TIMEOUT."""
    disk = TroubledDisk()
    store = store_on(disk, tmp_path, asyncio.get_running_loop().call_soon_threadsafe)
    try:
        with disk.gate:
            end = store.put(draft()).end_offset
            assert not await store.flushed.reached(end, 5)
            assert [b"hello"] == bodies(store)
        assert await store.flushed.reached(end, 60_000)
    finally:
        store.close()


async def test_a_sync_that_fails_ends_writing(tmp_path: Path) -> None:
    """C6: the kernel may have dropped the pages, so the next sync would prove nothing. Reading goes on."""
    disk = TroubledDisk()
    refused = asyncio.get_running_loop().create_future()

    def notify(job: object) -> None:
        loop = refused.get_loop()
        loop.call_soon_threadsafe(job)  # type: ignore[arg-type]
        if disk.fails_to_sync:
            loop.call_soon_threadsafe(refused.set_result, None)

    store = store_on(disk, tmp_path, notify)
    disk.fails_to_sync = True
    end = store.put(draft()).end_offset
    await refused

    with pytest.raises(StoreError, match=r"Input/output error; no more messages are taken until the broker"):
        store.put(draft())
    assert store.flushed.value < end
    assert [b"hello"] == bodies(store)
    with pytest.raises(StoreError, match="Input/output error"):
        store.close()
    assert (tmp_path / "abort").exists()
    with quiet_store(small_config(tmp_path, **SYNC)) as store:
        assert [b"hello"] == bodies(store)


def test_without_a_loop_news_are_picked_up_when_asked_for(tmp_path: Path) -> None:
    """C6: plain use, as in scripts."""
    disk = TroubledDisk()
    config = small_config(tmp_path, **SYNC)
    with MessageStore.open(config, store_host=HOST, clock=SystemClock(), disk=disk) as store:
        end = store.put(draft()).end_offset
        while store.flushed.value < end:
            disk.is_syncing.wait()
        assert end == store.flushed.value


def test_flush_now_is_there_for_those_without_threads(tmp_path: Path) -> None:
    """C6."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(100):
            store.put(draft(body=b"x" * 300))
        assert 0 == store.flushed.value
        store.flush_now()
        assert store.written == store.flushed.value


def test_the_checkpoint_never_runs_ahead_of_the_files(tmp_path: Path) -> None:
    """C7: the log's time moves with its flush, the queues' time once a minute, after their sync."""
    clock = ManualClock(1_000_000)

    def saved() -> tuple[int, int]:
        checkpoint = Checkpoint.load(FileDisk(), tmp_path / "checkpoint")
        return checkpoint.log_time_ms, checkpoint.queue_time_ms

    with quiet_store(small_config(tmp_path), clock=clock) as store:
        store.put(draft())
        store.tick()
        assert (0, 0) == saved()
        store.flush_now()
        store.tick()
        assert (1_000_000, 0) == saved()
        clock.advance(30)
        store.put(draft())
        clock.advance(30)
        store.tick()
        assert (1_000_000, 1_030_000) == saved()
        assert 1 == len(list((tmp_path / "consumequeue" / "orders" / "0").iterdir()))
    assert (1_030_000, 1_030_000) == saved()


def test_a_closed_store_vouches_for_its_whole_index(tmp_path: Path) -> None:
    """C7, C11: else RocketMQ, should it die later, throws away what it need not."""
    clock = ManualClock(1_000_000)
    with quiet_store(small_config(tmp_path), clock=clock) as store:
        store.put(draft(KEYS="k"))

    assert 1_000_000 == Checkpoint.load(FileDisk(), tmp_path / "checkpoint").index_time_ms


def test_queues_are_written_out_in_portions(tmp_path: Path) -> None:
    """C6: a thousand queues do not stop the loop; all are done when the pass is."""
    clock = ManualClock()
    with quiet_store(small_config(tmp_path), clock=clock) as store:
        for number in range(600):
            store.put(draft(f"t{number}"))
        clock.advance(61)
        store.tick()
        assert not store._queues.dirty
        assert not store._queues.unsynced
        assert 600 == len(list((tmp_path / "consumequeue").iterdir()))


# --- A full disk --------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_messages_and_recovers(tmp_path: Path) -> None:
    """C9, M1: an error for the sender, not the end of the process; and what was stored is served."""
    disk = TroubledDisk()
    store = MessageStore.open(small_config(tmp_path), store_host=HOST, clock=ManualClock(), disk=disk, threads=False)
    with store:
        store.put(draft(body=b"1" * 3000))
        disk.is_full = True
        for _ in range(3):
            with pytest.raises(DiskFull):
                store.put(draft(body=b"2" * 3000))
        store.put(draft(body=b"3"))  # fits into what is ready
        disk.is_full = False
        store.put(draft(body=b"4" * 3000))

        assert [b"1" * 3000, b"3", b"4" * 3000] == bodies(store)
    with quiet_store(small_config(tmp_path)) as again:
        assert 3 == len(bodies(again))


def test_when_queues_cannot_be_written_the_log_waits_for_them(tmp_path: Path) -> None:
    """C5: on a disk of their own. Nothing is lost, and memory does not fill with what they are owed."""
    disk = TroubledDisk()
    config = small_config(tmp_path, mapped_file_size_commit_log=1 << 20)
    store = MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=disk, threads=False)
    with store:
        store.put(draft(body=b"x"))
        disk.is_full = True
        taken = 1
        with pytest.raises(DiskFull):
            for _ in range(1000):
                store.put(draft(body=b"x", KEYS="k"))
                taken += 1
        assert 1 < taken <= 64  # as many as the index holds back
        with pytest.raises(DiskFull):
            store.put(draft(body=b"x"))
        disk.is_full = False
        store.put(draft(body=b"y"))

        assert [b"x"] * taken + [b"y"] == bodies(store)
        found = store.query("orders", "k", count_max=64, begin_ms=0, end_ms=1 << 62).buffers
        assert taken - 1 == len(found)
    with quiet_store(config) as again:
        assert taken + 1 == len(bodies(again))
