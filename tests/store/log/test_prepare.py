"""Log space made ready ahead of the pen (C1)."""

from __future__ import annotations

from pathlib import Path

from ternmq.env import SystemClock
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import segment_name
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.prepare import AHEAD_BYTES, STEP_BYTES, Preparer
from ternmq.store.store import MessageStore
from tests.store.small import HOST, draft, read_all, small_config


def test_space_is_zeroed_step_by_step_and_not_beyond_the_segment(tmp_path: Path) -> None:
    """C1: what stood there before, too."""
    disk = FileDisk()
    size = STEP_BYTES + 1000
    segment = disk.open_segment(tmp_path / segment_name(0), size=size, create=True)
    segment.page[:] = b"x" * size
    segment.ready = 10
    preparer = Preparer(disk, LogPaths([tmp_path]), size=size)

    preparer.ensure(segment, 11)
    assert (STEP_BYTES, b"x" * 10 + bytes(STEP_BYTES - 10) + b"x" * 1000) == (segment.ready, bytes(segment.page))
    preparer.ensure(segment, size)
    assert (size, bytes(1000)) == (segment.ready, bytes(segment.page[-1000:]))


def test_the_next_segment_is_taken_or_removed(tmp_path: Path) -> None:
    """C1: RocketMQ deletes unused ones at a clean stop, too."""
    disk = FileDisk()
    preparer = Preparer(disk, LogPaths([tmp_path]), size=4096)
    preparer.start(last=0)
    preparer.soon(4096)
    taken = preparer.take(4096)
    preparer.soon(4096)  # comes too late, and must not make it again
    preparer.soon(8192)
    preparer.close()  # after all that was asked for

    assert 4096 == taken.start
    assert [segment_name(4096)] == [entry.name for entry in disk.list(tmp_path)]


def test_the_thread_stays_a_little_ahead(tmp_path: Path) -> None:
    """C1: a new GiB is not touched at once."""
    disk = FileDisk()
    segment = disk.open_segment(tmp_path / segment_name(0), size=1 << 30, create=True)
    preparer = Preparer(disk, LogPaths([tmp_path]), size=1 << 30)
    preparer.start(last=0)
    preparer.ahead(segment, 100)
    preparer.close()  # after all that was asked for

    assert 100 + AHEAD_BYTES <= segment.ready < 100 + AHEAD_BYTES + STEP_BYTES
    assert segment.path.stat().st_blocks * 512 <= AHEAD_BYTES + 2 * STEP_BYTES


def test_the_thread_is_not_woken_for_each_append(tmp_path: Path) -> None:
    """C1: a follower asks after each of its appends; half of the space is time enough."""
    disk = FileDisk()
    segment = disk.open_segment(tmp_path / segment_name(0), size=1 << 30, create=True)
    preparer = Preparer(disk, LogPaths([tmp_path]), size=1 << 30)
    preparer.start(last=0)
    segment.ready = AHEAD_BYTES
    preparer.ahead(segment, AHEAD_BYTES // 2 - 1)
    preparer.close()  # after all that was asked for
    assert AHEAD_BYTES == segment.ready

    preparer.start(last=0)
    preparer.ahead(segment, AHEAD_BYTES // 2)
    preparer.close()
    assert AHEAD_BYTES + AHEAD_BYTES // 2 <= segment.ready


def test_zeros_never_meet_records(tmp_path: Path) -> None:
    """C1: many segments in a hurry, while both threads work beside us."""
    config = small_config(
        tmp_path,
        mapped_file_size_commit_log=STEP_BYTES * 2 + 4096,
        mapped_file_size_consume_queue=6_000_000,
        flush_interval_commit_log=1,
        flush_interval_consume_queue=1,
        message_index_enable=False,
    )
    with MessageStore.open(config, store_host=HOST, clock=SystemClock()) as store:
        for number in range(3000):
            store.put(draft(body=b"%d" % number * 500))
        records = read_all(store, "orders", 0)
        assert [b"%d" % number * 500 for number in range(3000)] == [bytes(record.body) for record in records]
