"""Many segments: few are mapped, all are read (C1, «files in number»)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.errors import StoreError
from ternmq.store.disk.file_disk import FileDisk, MappedSegment
from ternmq.store.log.plain_log import MAPPED_MAX, OLDER_MAX
from ternmq.store.read.reader import LogReader
from ternmq.store.store import MessageStore
from ternmq.wire.record import unpack_record
from tests.manual_clock import ManualClock
from tests.store.disks import TroubledDisk
from tests.store.small import HOST, bodies, draft, quiet_store, small_config

SEGMENTS = 300
#: Two of them fill a segment of 4096 bytes.
BODY = b"x" * 1800


class CountingDisk(FileDisk):
    """Counts the mappings that it made."""

    def __init__(self) -> None:
        super().__init__()
        self.mapped = 0

    def open_segment(self, path: Path, *, size: int, create: bool = False, writable: bool = True) -> MappedSegment:
        self.mapped += 1
        return super().open_segment(path, size=size, create=create, writable=writable)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def fill(root: Path, segments: int = SEGMENTS) -> None:
    with quiet_store(small_config(root, message_index_enable=False)) as store:
        for number in range(segments * 2):
            store.put(draft(body=b"%06d" % number + BODY))
            if number % 10 == 0:
                store.flush_now()


def test_a_log_of_many_segments_holds_few_descriptors_while_it_grows(tmp_path: Path) -> None:
    """C1: only what is unsynced must stay mapped, and the newest."""
    before = open_files()
    with quiet_store(small_config(tmp_path, message_index_enable=False)) as store:
        for number in range(SEGMENTS * 2):
            store.put(draft(body=b"%06d" % number + BODY))
            store.flush_now()
        queue_files = 2 * SEGMENTS * 20 // 100
        assert open_files() - before <= 2 * MAPPED_MAX + queue_files + 2
        assert SEGMENTS * 2 == len(bodies(store))
        assert open_files() - before <= 2 * (MAPPED_MAX + OLDER_MAX) + queue_files + 2


def test_opening_many_segments_maps_the_newest_only(tmp_path: Path) -> None:
    """C1: the rest when it is asked for; by queue offset, log offset and time."""
    fill(tmp_path)
    disk = CountingDisk()
    config = small_config(tmp_path, message_index_enable=False)
    with MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=disk, threads=False) as store:
        assert MAPPED_MAX == disk.mapped
        first = store.record_at(0)
        assert first is not None
        assert MAPPED_MAX + 1 == disk.mapped
        assert [b"%06d" % number + BODY for number in range(SEGMENTS * 2)] == bodies(store)
        assert store.store_time("orders", 0, 0) > 0
        # Only the view keeps this mapping: others have been mapped since.
        assert b"000000" + BODY == bytes(unpack_record(first).body)


def test_what_is_not_synced_stays_mapped(tmp_path: Path) -> None:
    """C6: the flush thread finds all it has to sync, however many segments behind it is."""
    disk = TroubledDisk()
    config = small_config(tmp_path, message_index_enable=False)
    with MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=disk, threads=False) as store:
        for _ in range(2 * MAPPED_MAX + 20):
            store.put(draft(body=BODY))
        disk.sync_count = 0
        store.flush_now()
        assert MAPPED_MAX + 10 == disk.sync_count


def test_a_crashed_log_of_many_segments_is_walked_and_cut_far_back(tmp_path: Path) -> None:
    """C8: damage below the segments that are mapped first; what lies behind is set aside."""
    fill(tmp_path, 2 * MAPPED_MAX)
    (tmp_path / "abort").touch()
    (tmp_path / "checkpoint").unlink()
    damaged = tmp_path / "commitlog" / f"{5 * 4096:020d}"
    with damaged.open("r+b") as file:
        file.seek(90)
        file.write(b"damage")
    with quiet_store(small_config(tmp_path, message_index_enable=False)) as store:
        assert 10 == len(bodies(store))
        assert 10 == store.put(draft(body=b"next")).queue_offset
        assert b"next" == bodies(store)[-1]
    assert 2 * MAPPED_MAX - 5 == len(list((tmp_path / "cut").iterdir()))


def test_a_reader_of_many_segments_maps_one_at_a_time(tmp_path: Path) -> None:
    """U3: beside a broker that needs its descriptors."""
    fill(tmp_path)
    disk = CountingDisk()
    before = open_files()
    reader = LogReader(tmp_path, disk=disk)
    most = max(open_files() - before for _ in reader)
    assert (SEGMENTS, "") == (disk.mapped, reader.trouble)
    assert most <= 4


def test_a_segment_that_vanished_is_named(tmp_path: Path) -> None:
    """C9: another process removed a file."""
    fill(tmp_path, 2 * MAPPED_MAX)
    with quiet_store(small_config(tmp_path, message_index_enable=False)) as store:
        gone = tmp_path / "commitlog" / f"{0:020d}"
        gone.unlink()
        with pytest.raises(StoreError, match=f"cannot open {gone}: No such file"):
            store.get("orders", 0, 0, count_max=1)
        assert 2 * MAPPED_MAX * 2 == store.put(draft()).queue_offset
