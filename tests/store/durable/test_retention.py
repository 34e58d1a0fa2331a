"""Retention: what is deleted, when, and what readers see of it; disks that are full (C9)."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from ternmq.env import SystemClock
from ternmq.errors import DiskFull, StoreError
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.derived.parts import Derived
from ternmq.store.disk.base import DiskUsage
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.retention import FIRST_LOOK_S, QUEUES_AT_ONCE, Look, Marks, count_to_delete, is_full
from ternmq.store.inspect.verify import verify
from ternmq.store.log.plain_log import PlainLog
from ternmq.store.store import GetStatus, MessageStore
from tests.manual_clock import ManualClock
from tests.store.small import HOST, bodies, crash, draft, files, quiet_store, small_config
from tests.store.waiting_part import WaitingPart
from tests.tmpfs import Tmpfs, small_disk

__all__ = ["small_disk"]

HOUR_MS = 3_600_000
HOUR = time.localtime(ManualClock().now_ms() // 1000).tm_hour
OTHER_HOUR = f"{(HOUR + 12) % 24:02d}"
#: Two of them fill a segment of 4096 bytes.
BODY = b"x" * 1800

MARKS = Marks(clean=75, force=85, refuse=90, may_force=True)


# --- The decision ---------------------------------------------------------------------------------------------


def look(percent: int, *ages_h: float, now_ms: int = 1000 * HOUR_MS) -> Look:
    """A disk of 100 segments, so full, and segments so many hours old."""
    return Look(
        Path("/store"), DiskUsage(percent * 10, (100 - percent) * 10), [now_ms - int(h * HOUR_MS) for h in ages_h]
    )


@pytest.mark.parametrize(
    ("percent", "is_time", "expected"),
    [
        (10, False, 0),
        (10, True, 2),
        (75, False, 0),
        (76, False, 2),
        (85, False, 2),
        (86, False, 2),  # one would be enough, two are old
        (89, False, 4),  # so many bring the disk down to 85
        (99, True, 4),
    ],
)
def test_how_many_segments_go(percent: int, is_time: bool, expected: int) -> None:
    """C9: by age in their hour, by age above 75 %, whatever their age above 85 %; ten segments are a percent here."""
    seen = look(percent, 80, 72, 71.9, 1)
    assert expected == count_to_delete(
        seen, MARKS, is_time=is_time, now_ms=1000 * HOUR_MS, reserved_ms=72 * HOUR_MS, segment_bytes=10
    )


def test_young_segments_go_only_if_that_is_allowed() -> None:
    """C9: ``cleanFileForciblyEnable``."""
    marks = MARKS._replace(may_force=False)
    assert 1 == count_to_delete(
        look(99, 73, 1), marks, is_time=False, now_ms=1000 * HOUR_MS, reserved_ms=72 * HOUR_MS, segment_bytes=10
    )


def test_the_first_young_one_keeps_those_behind_it() -> None:
    """C9: the log has no gaps, whatever the files' times say."""
    assert 1 == count_to_delete(
        look(10, 80, 1, 80), MARKS, is_time=True, now_ms=1000 * HOUR_MS, reserved_ms=72 * HOUR_MS, segment_bytes=10
    )


def test_refusal_ends_lower_than_it_begins() -> None:
    """C9: a disk around one mark does not refuse every other send."""
    percents = [89, 90, 91, 90, 88, 86, 85, 90, 91]
    states, full = [], False
    for percent in percents:
        full = is_full(percent, MARKS, was_full=full)
        states.append(full)
    assert [False, False, True, True, True, True, False, False, True] == states
    low = MARKS._replace(refuse=50)
    assert (True, True, False) == tuple(is_full(percent, low, was_full=True) for percent in (60, 51, 50))


# --- A store whose disk is told how full it is -----------------------------------------------------------------


class ToldDisk(FileDisk):
    """A real disk that is as full as it is told, and removes files only when it may."""

    def __init__(self) -> None:
        super().__init__()
        self.percent = 10
        self.may_remove = True
        self.removed_by: list[str] = []

    def usage(self, path: Path) -> DiskUsage:
        return DiskUsage(self.percent, 100 - self.percent)

    def remove(self, path: Path) -> None:
        if path.parent.name == "commitlog" and path.exists():
            if not self.may_remove:
                raise StoreError(f"cannot remove {path}: Input/output error; look at the disk")
            self.removed_by.append(threading.current_thread().name)
        super().remove(path)


class Kept:
    """A store without threads, of segments for two messages each, on a told disk and a clock that is moved by hand."""

    def __init__(self, root: Path, derived: Sequence[Derived] = (), **changes: Any) -> None:
        self.root = root
        self.disk = ToldDisk()
        self.clock = ManualClock()
        self.config = small_config(root, **({"delete_when": OTHER_HOUR} | changes))
        self.store = MessageStore.open(
            self.config, store_host=HOST, clock=self.clock, disk=self.disk, derived=derived, threads=False
        )

    def fill(self, messages: int, **fields: Any) -> None:
        for _ in range(messages):
            number = self.store.max_offset("orders", 0)
            self.store.put(draft(body=b"%06d" % number + BODY, KEYS=f"k{number}", **fields))
        # Segments stay until queues and index of their records are synced.
        self.store._upkeep.flusher.begin_pass()
        self.store._mailbox.pick_up()

    def age(self, hours: float, segments: int) -> None:
        """Let the oldest segments have been written to so many hours ago, the others now."""
        for number, path in enumerate(sorted((self.root / "commitlog").iterdir())):
            at_ms = self.clock.now_ms() - (int(hours * HOUR_MS) if number < segments else 0)
            os.utime(path, ns=(at_ms * 1_000_000, at_ms * 1_000_000))

    def look(self) -> None:
        """Let the time of the next look come."""
        self.clock.advance(FIRST_LOOK_S)
        self.store.tick()

    @property
    def segments(self) -> list[int]:
        return [int(path.name) // 4096 for path in sorted((self.root / "commitlog").iterdir())]

    def found(self, queue_offset: int) -> tuple[GetStatus, int, int]:
        result = self.store.get("orders", 0, queue_offset, count_max=1)
        return result.status, result.next_offset, result.min_offset


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Kept]:
    kept = Kept(tmp_path)
    with kept.store:
        yield kept


def test_old_segments_go_in_their_hour(tmp_path: Path) -> None:
    """C9: ``deleteWhen``, local time; queues, index and readers follow."""
    kept = Kept(tmp_path, delete_when=f"{OTHER_HOUR};{HOUR:02d}")
    with kept.store as store:
        kept.fill(20)
        kept.age(72.1, segments=4)
        kept.look()

        assert [4, 5, 6, 7, 8, 9] == kept.segments
        assert (4 * 4096, 8, 20) == (store.min_log_offset, store.min_offset("orders", 0), store.max_offset("orders", 0))
        assert [b"%06d" % number for number in range(8, 20)] == [body[:6] for body in bodies(store)]
        # Five entries to a file: that of 0 to 4 has gone, that of 5 to 9 has two left.
        assert [100, 200, 300] == [int(name[-20:]) for name in sorted(files(tmp_path / "consumequeue"))]
        assert (GetStatus.OFFSET_TOO_SMALL, 8, 8) == kept.found(7)
        assert (GetStatus.FOUND, 9, 8) == kept.found(8)
        assert store.record_at(0) is None
        everywhen = {"count_max": 9, "begin_ms": 0, "end_ms": 1 << 62}
        assert [] == store.query("orders", "k7", **everywhen).buffers
        assert 1 == len(store.query("orders", "k8", **everywhen).buffers)


def test_nothing_goes_at_another_hour_or_too_early(kept: Kept) -> None:
    """C9."""
    kept.fill(20)
    kept.age(100, segments=9)
    kept.look()
    assert list(range(10)) == kept.segments


def test_the_first_look_comes_after_a_minute_and_the_others_every_ten_seconds(kept: Kept) -> None:
    """C9."""
    kept.fill(20)
    kept.age(100, segments=3)
    kept.disk.percent = 80
    kept.clock.advance(59.9)
    kept.store.tick()
    assert 10 == len(kept.segments)
    kept.clock.advance(0.1)
    kept.store.tick()
    assert [3, 4, 5, 6, 7, 8, 9] == kept.segments
    kept.age(100, segments=2)
    kept.clock.advance(9.9)
    kept.store.tick()
    assert 7 == len(kept.segments)
    kept.clock.advance(0.1)
    kept.store.tick()
    assert [5, 6, 7, 8, 9] == kept.segments


def test_ten_go_after_one_look_and_never_the_last(kept: Kept) -> None:
    """C9: ``deleteFileBatchMax``."""
    kept.fill(50)
    kept.age(100, segments=25)
    kept.disk.percent = 80
    kept.look()
    assert list(range(10, 25)) == kept.segments
    kept.look()
    kept.look()
    assert [24] == kept.segments
    assert [b"000048", b"000049"] == [body[:6] for body in bodies(kept.store)]
    assert 50 == kept.store.put(draft(body=BODY)).queue_offset


def test_above_the_second_mark_age_does_not_count(kept: Kept) -> None:
    """C9: as many as it takes, at any hour."""
    kept.fill(20)
    kept.disk.percent = 86
    kept.look()
    # The told disk has 100 bytes; one segment more than brings it down.
    assert list(range(1, 10)) == kept.segments


def test_an_administrator_may_want_it_now(kept: Kept) -> None:
    """C9, D6: whatever the hour, but not what is young; for twenty looks."""
    kept.fill(50)
    kept.age(100, segments=12)
    kept.store.retention.ask()
    kept.store.tick()
    assert list(range(10, 25)) == kept.segments
    kept.look()
    assert list(range(12, 25)) == kept.segments
    for _ in range(18):
        kept.look()
    kept.age(100, segments=1)
    kept.look()
    assert list(range(12, 25)) == kept.segments


# --- Full -----------------------------------------------------------------------------------------------------


def test_a_full_disk_refuses_messages_until_there_is_space(kept: Kept) -> None:
    """C9: with path, percent and cure; what is there is served."""
    kept.fill(3)
    kept.disk.percent = 91
    kept.look()
    before = bodies(kept.store)
    for _ in range(2):
        with pytest.raises(DiskFull, match=r"the disk of .* is 91 % full: no message is taken above 90 %.*; free some"):
            kept.store.put(draft())
        with pytest.raises(DiskFull, match="91 %"):
            kept.store.put_batch("orders", 0, [(0, b"x", b"")], born_time_ms=1, born_host=HOST)
    assert before == bodies(kept.store)

    kept.disk.percent = 86
    kept.look()
    with pytest.raises(DiskFull, match="is 86 % full"):
        kept.store.put(draft())
    kept.disk.percent = 85
    kept.look()
    assert kept.store.max_offset("orders", 0) == kept.store.put(draft()).queue_offset


def test_a_refusal_does_not_hide_a_worse_one(kept: Kept) -> None:
    """C6: space that returns does not open a store that was closed to writes for another reason."""
    kept.disk.percent = 91
    kept.look()
    kept.store._log.refuse(StoreError("cannot flush: Input/output error"))
    kept.disk.percent = 10
    kept.look()
    with pytest.raises(StoreError, match="cannot flush"):
        kept.store.put(draft())


def test_a_thousand_refusals_keep_nothing_alive(kept: Kept) -> None:
    """C9: a disk may be full for hours, and every send is refused."""
    kept.store._log.refuse(StoreError("no"))
    for _ in range(1000):
        with pytest.raises(StoreError):
            kept.store.put(draft())
    assert isinstance(kept.store._log, PlainLog)
    error = kept.store._log._refusal
    depth, trace = 0, error.__traceback__ if error is not None else None
    while trace is not None:
        depth, trace = depth + 1, trace.tb_next
    assert depth < 10


# --- Readers, and parts that need the log -------------------------------------------------------------------------


def test_a_reader_in_the_midst_of_it_is_sent_on(kept: Kept) -> None:
    """C9: between the log and its turn a queue has entries whose records are gone."""
    kept.fill(20)
    for _ in range(3):
        kept.store._log.drop_first().unlink()
    assert (GetStatus.MESSAGE_WAS_REMOVING, 1, 0) == kept.found(0)
    assert (GetStatus.FOUND, 7, 0) == kept.found(6)
    kept.look()
    assert (GetStatus.OFFSET_TOO_SMALL, 6, 6) == kept.found(0)


def test_a_view_outlives_its_segment(kept: Kept) -> None:
    """C9: a reply on its way keeps the mapping."""
    kept.fill(20)
    view = kept.store.get("orders", 0, 0, count_max=1).buffers[0]
    before = bytes(view)
    kept.age(100, segments=5)
    kept.disk.percent = 80
    kept.look()
    assert 5 == len(kept.segments)
    assert before == bytes(view)


def test_a_queue_without_messages_keeps_its_numbers(tmp_path: Path) -> None:
    """C9: also after a restart; consumers go on where they are."""
    kept = Kept(tmp_path)
    with kept.store as store:
        for _ in range(7):
            store.put(draft("idle", 0, BODY))
        kept.fill(20)
        kept.age(100, segments=9)
        kept.disk.percent = 80
        kept.look()
        assert (7, 7) == (store.min_offset("idle", 0), store.max_offset("idle", 0))
    with quiet_store(kept.config) as store:
        assert (7, 7) == (store.min_offset("idle", 0), store.max_offset("idle", 0))
        assert 7 == store.put(draft("idle", 0, b"again")).queue_offset
        assert [b"again"] == bodies(store, "idle")


def test_what_a_crash_left_undone_is_done_after_the_start(tmp_path: Path) -> None:
    """C8, C9: the log was shortened, its queues and index were not."""
    kept = Kept(tmp_path)
    with kept.store:
        kept.fill(20)
    for path in sorted((tmp_path / "commitlog").iterdir())[:6]:
        path.unlink()
    again = Kept(tmp_path)
    with again.store as store:
        assert (12, 20) == (store.min_offset("orders", 0), store.max_offset("orders", 0))
        assert 4 == len(files(again.root / "consumequeue"))
        again.look()
        assert 2 == len(files(again.root / "consumequeue"))
        assert 8 == len(bodies(store))


class Stuck(WaitingPart):
    """A derived part that cannot write for a while."""

    is_stuck = True

    def write_out(self) -> Sequence[Path]:
        if self.is_stuck:
            raise DiskFull("cannot write: no space left")
        return super().write_out()


def test_retention_waits_for_derived_parts_and_asks_them_to_hurry(tmp_path: Path) -> None:
    """C9: a schedule for years is copied first, then the log may forget it."""
    part = Stuck(FileDisk(), tmp_path / "waiting", ["orders"])
    kept = Kept(tmp_path, [part], flush_consume_queue_thorough_interval=1_000_000_000)
    with kept.store:
        kept.fill(20)
        kept.disk.percent = 95
        kept.age(100, segments=9)
        kept.look()
        assert [0, 1, 2, 3, 4, 5, 6, 7, 8, 9] == kept.segments
        part.is_stuck = False
        # The first look asks for a pass over all that is derived, long before its time; the second finds it done.
        kept.look()
        kept.look()
        assert [9] == kept.segments
        assert 20 == len(part.content)


def test_what_could_not_be_removed_is_found_after_a_restart(kept: Kept, tmp_path: Path) -> None:
    """C5, C9: queues and index do not forget what a start finds in the log. (Found by seed 786537508263.)"""
    kept.fill(20)
    kept.age(72.1, segments=4)
    kept.disk.may_remove = False
    kept.store.retention.ask()
    kept.look()
    assert 4 * 4096 == kept.store.min_log_offset
    kept.store.close()

    with quiet_store(kept.config) as store:
        assert [b"%06d" % number for number in range(20)] == [body[:6] for body in bodies(store)]
        for number in range(20):
            assert 1 == len(store.query("orders", f"k{number}", count_max=9, begin_ms=0, end_ms=1 << 62).buffers)
    assert [] == verify(tmp_path).findings


def test_a_file_that_cannot_be_removed_keeps_those_behind_it(kept: Kept) -> None:
    """C9: a gap in the log would keep the store from opening."""
    kept.fill(20)
    kept.age(100, segments=3)
    kept.disk.percent = 80
    kept.disk.may_remove = False
    kept.look()
    assert 3 * 4096 == kept.store.min_log_offset
    assert 10 == len(kept.segments)
    kept.disk.may_remove = True
    kept.look()
    assert [3, 4, 5, 6, 7, 8, 9] == kept.segments


def test_many_queues_follow_in_small_steps(tmp_path: Path) -> None:
    """C9: between two steps others have their turn."""
    kept = Kept(tmp_path, message_index_enable=False)
    queues = 3 * QUEUES_AT_ONCE + 1
    with kept.store as store:
        for queue_id in range(queues):
            store.put(draft("many", queue_id))
        kept.fill(4)
        kept.age(100, segments=100)
        kept.disk.percent = 80
        # As ``tick`` does, but turn by turn.
        kept.clock.advance(FIRST_LOOK_S)
        store._upkeep._tick()
        followed = []
        while store._mailbox:
            store._mailbox._jobs.popleft()()
            followed.append(sum(store.min_offset("many", queue_id) for queue_id in range(queues)))
        assert [0, 64, 128, 192, 193] == sorted(set(followed))


def test_index_files_follow(tmp_path: Path) -> None:
    """C9: those whose last record is gone; never the last file."""
    kept = Kept(tmp_path)
    with kept.store as store:
        kept.fill(40)
        store.query("orders", "k", count_max=1, begin_ms=0, end_ms=0)  # makes the entries of those that wait
        before = sorted(files(tmp_path / "index"))
        kept.age(100, segments=10)
        kept.disk.percent = 80
        kept.look()
        # Nine keys to a file; the records of the first 20 are gone.
        assert before[2:] == sorted(files(tmp_path / "index"))
        kept.age(100, segments=20)
        kept.look()
        assert before[-1:] == sorted(files(tmp_path / "index"))
        assert 1 == len(store.query("orders", "k39", count_max=1, begin_ms=0, end_ms=1 << 62).buffers)


def test_expired_queues_can_be_deleted(tmp_path: Path) -> None:
    """C9, D6: 306; not those of the system, and the numbers go on while the broker lives."""
    kept = Kept(tmp_path)
    with kept.store as store:
        for topic in ("gone", "SCHEDULE_TOPIC_XXXX"):
            for _ in range(7):
                store.put(draft(topic, 0, BODY))
        kept.fill(20)
        kept.age(100, segments=16)
        kept.disk.percent = 80
        kept.look()
        kept.look()
        store.retention.drop_expired_queues()
        store.tick()
        assert {"orders", "SCHEDULE_TOPIC_XXXX"} == {
            path.parent.parent.name for path in (tmp_path / "consumequeue").rglob("*") if path.is_file()
        }
        assert (7, 7) == (store.min_offset("gone", 0), store.max_offset("gone", 0))
        assert 7 == store.put(draft("gone", 0, b"again")).queue_offset
        assert [b"again"] == bodies(store, "gone")
    with quiet_store(kept.config) as store:
        assert [b"again"] == bodies(store, "gone")


async def test_files_are_removed_on_another_thread(tmp_path: Path) -> None:
    """C9: a GiB takes 80 ms."""
    disk, clock = ToldDisk(), ManualClock()
    config = small_config(tmp_path, flush_interval_commit_log=1, flush_interval_consume_queue=1, file_reserved_time=0)
    with MessageStore.open(config, store_host=HOST, clock=clock, disk=disk) as store:
        for _ in range(20):
            store.put(draft(body=BODY))
        clock.advance(1e9)  # past all times that files have here
        store.retention.ask()
        deadline = time.monotonic() + 60
        while store.min_log_offset < 9 * 4096 and time.monotonic() < deadline:
            store.put(draft("other", 0, b"x"))  # hears what the threads have to say
            clock.advance(1)
        assert store.min_log_offset >= 9 * 4096
    assert len(disk.removed_by) >= 9
    assert {"chores_0"} == {name for name in disk.removed_by if name != "MainThread"}


# --- A real disk that is really full -------------------------------------------------------------------------------


def test_a_crashed_store_opens_on_a_full_disk(small_disk: Tmpfs) -> None:
    """C8, C9: otherwise the broker could not delete what is old."""
    config = small_config(
        small_disk.path / "store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=6_000_000,
        max_hash_slot_num=1000,
        max_index_num=200_000,
    )
    dead = quiet_store(config, clock=SystemClock())
    acknowledged = []
    for number in range(5000):
        acknowledged.append(b"%d" % number)
        dead.put(draft(body=b"%d" % number, KEYS=f"k{number}"))
    dead._held.release()
    small_disk.fill(leave_bytes=0)

    store = quiet_store(config, clock=SystemClock())
    assert acknowledged == bodies(store)
    with pytest.raises(DiskFull, match="free some space"):
        for _ in range(10_000):
            store.put(draft(body=BODY))
    small_disk.free(4 << 20)
    number = store.put(draft(body=BODY)).queue_offset
    assert number >= 5000
    store.close()
    with quiet_store(config, clock=SystemClock()) as store:
        assert acknowledged == bodies(store)[:5000]
        assert number + 1 == store.max_offset("orders", 0)


@contextlib.contextmanager
def opened(config: StoreConfig) -> Iterator[MessageStore]:
    """A store with its threads. Closing it may find the disk full: then the next start does what is missing."""
    store = MessageStore.open(config, store_host=HOST, clock=SystemClock())
    try:
        yield store
    finally:
        with contextlib.suppress(DiskFull):
            store.close()


@pytest.mark.parametrize("flush", [FlushDiskType.ASYNC_FLUSH, FlushDiskType.SYNC_FLUSH])
def test_a_full_disk_loses_nothing_that_was_acknowledged(small_disk: Tmpfs, flush: FlushDiskType) -> None:
    """C9: refused with the cure, served as before, taken again with the space; after a crash and after a close, too."""
    config = small_config(
        small_disk.path / "store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=6_000_000,
        max_hash_slot_num=1000,
        max_index_num=200_000,
        flush_disk_type=flush,
    )
    small_disk.fill(leave_bytes=6 << 20)
    acknowledged: list[bytes] = []

    def send_until_refused(store: MessageStore) -> str:
        while True:
            body = b"%06d" % len(acknowledged) + b"x" * (len(acknowledged) % 700)
            try:
                placed = store.put(draft(queue_id=0, body=body, KEYS=f"k{len(acknowledged)}"))
            except DiskFull as error:
                return str(error)
            assert len(acknowledged) == placed.queue_offset
            acknowledged.append(body)

    with opened(config) as store:
        for _ in range(3):
            sentence = send_until_refused(store)
            assert "No space left on device; free some space" in sentence
            assert str(small_disk.path) in sentence
            assert acknowledged == bodies(store)
        assert len(acknowledged) > 5000
        copy = crash(store, small_disk.path.parent / "copy")
        # More than two segments: the thread that prepares log space may take so much before an index page gets any.
        small_disk.free(4 << 20)
        before = len(acknowledged)
        send_until_refused(store)
        assert len(acknowledged) > before + 1000
        assert acknowledged == bodies(store)
    with opened(copy) as store:
        assert acknowledged[:before] == bodies(store)
    with opened(config) as store:
        assert acknowledged == bodies(store)
        small_disk.free(4 << 20)
        before = len(acknowledged)
        send_until_refused(store)
        assert len(acknowledged) > before + 1000
        key = f"k{len(acknowledged) - 1}"
        assert 1 == len(store.query("orders", key, count_max=1, begin_ms=0, end_ms=1 << 62).buffers)
    with opened(config) as store:
        assert acknowledged == bodies(store)
