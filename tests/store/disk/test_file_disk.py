"""The disk: segments, small files, locks, and errors with a cure (C1, C7, C11)."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

import pytest

from ternmq.errors import CorruptFile, DiskFull, StoreError, StoreLocked
from ternmq.store.disk.base import DiskUsage
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import segment_name, segment_starts
from ternmq.store.disk.system import as_store_error

DISK = FileDisk()


def test_a_segment_is_sparse_and_of_full_length(tmp_path: Path) -> None:
    """C1."""
    segment = DISK.open_segment(tmp_path / "log" / segment_name(1 << 40), size=1 << 30, create=True)

    stat = segment.path.stat()
    assert (1 << 40, 1 << 30, 0) == (segment.start, stat.st_size, stat.st_blocks)
    assert "00000001099511627776" == segment.path.name


def test_what_is_written_to_the_page_is_in_the_file(tmp_path: Path) -> None:
    """C1: and zeroes come where they were asked for."""
    segment = DISK.open_segment(tmp_path / segment_name(0), size=8192, create=True)
    segment.page[:] = b"x" * 8192
    segment.zero(100, 8000)
    segment.reserve(0, 8192)
    segment.sync()

    assert b"x" * 100 + bytes(7900) + b"x" * 192 == segment.path.read_bytes() == bytes(segment.page)


def test_a_segment_that_exists_is_not_made_again(tmp_path: Path) -> None:
    """A mistake of ours must not zero records."""
    DISK.open_segment(tmp_path / segment_name(0), size=100, create=True)
    with pytest.raises(StoreError, match="File exists"):
        DISK.open_segment(tmp_path / segment_name(0), size=100, create=True)


def test_a_reader_cannot_write(tmp_path: Path) -> None:
    """U3."""
    DISK.open_segment(tmp_path / segment_name(0), size=100, create=True)
    segment = DISK.open_segment(tmp_path / segment_name(0), size=100, writable=False)
    with pytest.raises(TypeError):
        segment.page[0] = 1


def test_a_view_outlives_its_segment_and_its_file(tmp_path: Path) -> None:
    """C9: deleting is unlink and forget; the descriptor goes with the segment."""
    gc.collect()  # what other tests left
    before = len(list(Path("/proc/self/fd").iterdir()))
    segment = DISK.open_segment(tmp_path / segment_name(0), size=4096, create=True)
    segment.page[:5] = b"hello"
    view = segment.page[:5]
    DISK.remove(segment.path)
    del segment
    gc.collect()

    assert b"hello" == bytes(view)
    del view
    assert before == len(list(Path("/proc/self/fd").iterdir()))


def test_a_file_is_zeroed_from_a_position_on(tmp_path: Path) -> None:
    """C8: data behind holes included."""
    file = DISK.open_file(tmp_path / "queue" / "0", create_size=1 << 20)
    file.write(10, b"kept and gone")
    file.write(700_000, b"gone")
    file.zero_from(18)
    assert b"kept and" == file.read(10, 8)
    file.close()

    assert bytes(10) + b"kept and".ljust((1 << 20) - 10, b"\0") == (tmp_path / "queue" / "0").read_bytes()


def test_small_files(tmp_path: Path) -> None:
    """C7: replaced as a whole, or written in place."""
    path = tmp_path / "a" / "file"
    assert DISK.read(path) is None
    DISK.replace(path, b"one")
    DISK.replace(path, b"three")
    assert b"three" == DISK.read(path)
    DISK.write(path, b"four")
    assert b"foure" == DISK.read(path)
    assert ["file"] == [entry.name for entry in DISK.list(path.parent)]
    DISK.sync_file(path)
    DISK.move(path, tmp_path / "b" / "moved")
    DISK.sync_file(path)
    assert DISK.read(path) is None
    DISK.remove(tmp_path / "b")
    DISK.remove(tmp_path / "b")
    assert [] == DISK.list(tmp_path / "b")


def test_a_lock_is_held_until_it_is_released(tmp_path: Path) -> None:
    """C7."""
    lock = DISK.lock(tmp_path / "lock")
    with pytest.raises(StoreLocked):
        DISK.lock(tmp_path / "lock")
    lock.release()
    DISK.lock(tmp_path / "lock").release()


@pytest.mark.parametrize(
    ("number", "kind", "cure"),
    [
        (errno.ENOSPC, DiskFull, "free some space"),
        (errno.EDQUOT, DiskFull, "free some space"),
        (errno.EACCES, StoreError, "let the broker's user read and write it"),
        (errno.EMFILE, StoreError, "raise the limit of open files"),
        (errno.EIO, StoreError, "look at the disk"),
    ],
)
def test_an_error_of_the_system_names_file_and_cure(number: int, kind: type[StoreError], cure: str) -> None:
    """T2: ``OSError`` ends here."""
    error = as_store_error(OSError(number, os.strerror(number)), Path("/store/x"), "write")

    assert kind is type(error)
    assert "cannot write /store/x" in str(error)
    assert cure in str(error)


def test_the_files_of_a_directory_must_fit_together(tmp_path: Path) -> None:
    """C11: a last one of no length was being made."""
    for start, length in ((200, 100), (300, 100), (400, 0)):
        (tmp_path / segment_name(start)).write_bytes(bytes(length))
    (tmp_path / "directory").mkdir()
    assert [200, 300] == segment_starts(DISK, tmp_path, size=100, key="size")

    (tmp_path / segment_name(500)).write_bytes(bytes(100))
    with pytest.raises(CorruptFile, match="has 0 bytes, but size is 100; set size to what"):
        segment_starts(DISK, tmp_path, size=100, key="size")
    (tmp_path / segment_name(400)).unlink()
    with pytest.raises(CorruptFile, match=r"500 does not follow the file before it"):
        segment_starts(DISK, tmp_path, size=100, key="size")


@pytest.mark.parametrize(
    ("used", "free", "percent"), [(0, 100, 0), (1, 999, 1), (75, 25, 75), (7501, 2499, 76), (0, 0, 0)]
)
def test_usage_is_rounded_up_to_whole_percents(used: int, free: int, percent: int) -> None:
    """C9: what root alone may use does not count."""
    assert percent == DiskUsage(used, free).percent


def test_usage_and_age_are_those_of_the_file_system(tmp_path: Path) -> None:
    """C9: a directory that is not made yet lies where its parents do."""
    file = tmp_path / "file"
    file.touch()
    os.utime(file, ns=(0, 1_700_000_000_123_456_789))
    disk = os.statvfs(tmp_path)

    assert 1_700_000_000_123 == DISK.modified_ms(file)
    usage = DISK.usage(tmp_path / "not" / "yet")
    assert disk.f_blocks * disk.f_frsize >= usage.used_bytes + usage.free_bytes > 0
    with pytest.raises(StoreError, match=f"cannot look at {tmp_path / 'gone'}"):
        DISK.modified_ms(tmp_path / "gone")
