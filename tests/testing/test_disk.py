"""The simulated disk: it does what a real one does, and loses what a real one may lose (C8)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ternmq.errors import DiskFull, StoreError, StoreLocked
from ternmq.store.disk.base import Disk, FileEntry
from ternmq.store.disk.file_disk import FileDisk
from ternmq.testing.disk import PowerCut, SimulatedDisk, UnreservedStore

PAGE = 512
#: Where files lie on the simulated disk.
ROOT = Path("/store")


@pytest.fixture(params=["real", "simulated"])
def disk(request: pytest.FixtureRequest) -> Disk:
    return FileDisk() if request.param == "real" else SimulatedDisk()


@pytest.fixture
def simulated() -> SimulatedDisk:
    return SimulatedDisk(page_bytes=PAGE)


class Kept(Random):
    """Keeps everything that could be lost."""

    def random(self) -> float:
        return 0.0

    def randint(self, a: int, b: int) -> int:
        return b


class Lost(Random):
    """Loses everything that can be lost."""

    def random(self) -> float:
        return 0.99

    def randint(self, a: int, b: int) -> int:
        return a


# --- Like a real one --------------------------------------------------------------------------------------------------


def test_files_and_directories_are_listed_by_name(disk: Disk, tmp_path: Path) -> None:
    assert [] == disk.list(tmp_path / "none")
    disk.write(tmp_path / "b", b"1234")
    disk.open_segment(tmp_path / "a" / "00000000000000000000", size=4096, create=True)

    assert [FileEntry("a", 0, True), FileEntry("b", 4, False)] == disk.list(tmp_path)
    assert [FileEntry("00000000000000000000", 4096, False)] == disk.list(tmp_path / "a")


def test_a_segment_is_what_everybody_sees(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "log" / "00000000000000008192"
    segment = disk.open_segment(path, size=8192, create=True)
    segment.zero(0, 4096)
    segment.page[10:15] = b"hello"
    again = disk.open_segment(path, size=8192, writable=False)

    assert (8192, 8192, b"hello") == (again.start, again.size, bytes(again.page[10:15]))
    assert again.page.readonly
    assert b"hello\0\0" == disk.read_at(path, 10, 7)
    assert bytes(8192) == bytes(again.page[:10]) + bytes(5) + bytes(again.page[15:])
    with pytest.raises(StoreError):
        disk.open_segment(path, size=8192, create=True)


def test_what_remains_is_found_and_wiped(disk: Disk, tmp_path: Path) -> None:
    segment = disk.open_segment(tmp_path / "00000000000000000000", size=1 << 20, create=True)
    segment.reserve(0, 1 << 20)
    segment.page[:4] = segment.page[5000:5004] = segment.page[900_000:900_004] = b"data"

    found = b"".join(data for _, data in segment.remains(4000))
    assert 2 == found.count(b"data")
    segment.wipe(4000)
    assert [] == list(segment.remains(4000))
    assert b"data" == bytes(segment.page[:4])


def test_a_file_is_read_and_written_at_positions(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "topic" / "0" / "00000000000000000000"
    file = disk.open_file(path, create_size=10_000)
    file.write(9_000, b"x" * 1_000)
    file.write(100, b"yy")
    file.zero_from(9_500)

    assert (b"\0yy\0", b"x" * 500 + bytes(500)) == (file.read(99, 4), file.read(9_000, 5_000))
    file.close()
    assert 10_000 == disk.list(path.parent)[0].length_bytes
    with pytest.raises(StoreError):
        disk.open_file(tmp_path / "none")


def test_small_files_are_written_replaced_moved_and_removed(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "config" / "checkpoint"
    assert disk.read(path) is None
    disk.write(path, b"12345")
    disk.write(path, b"abc")
    assert b"abc45" == disk.read(path)
    disk.replace(path, b"new")
    assert b"new" == disk.read(path)
    disk.move(path, tmp_path / "cut" / "old")
    assert (None, b"new") == (disk.read(path), disk.read(tmp_path / "cut" / "old"))
    disk.remove(tmp_path / "cut")
    disk.remove(tmp_path / "cut")
    assert ["config"] == [entry.name for entry in disk.list(tmp_path)]
    disk.sync_file(path)
    disk.sync_names(path.parent)


def test_a_directory_has_one_holder(disk: Disk, tmp_path: Path) -> None:
    held = disk.lock(tmp_path / "lock")
    with pytest.raises(StoreLocked):
        disk.lock(tmp_path / "lock")
    held.release()
    disk.lock(tmp_path / "lock").release()


# --- A power cut ------------------------------------------------------------------------------------------------------


def test_pages_are_kept_when_they_are_synced(simulated: SimulatedDisk) -> None:
    path = ROOT / "00000000000000000000"
    segment = simulated.open_segment(path, size=4 * PAGE, create=True)
    segment.zero(0, 4 * PAGE)
    segment.page[0] = 1
    segment.sync()
    segment.page[1] = segment.page[PAGE] = 2
    simulated.power_cut(Lost())

    assert b"\x01\0" == simulated.read_at(path, 0, 2)
    assert b"\0" == simulated.read_at(path, PAGE, 1)
    segment.page[3] = 3  # a process from before the cut
    assert b"\0" == simulated.read_at(path, 3, 1)


def test_each_other_page_is_kept_or_lost(simulated: SimulatedDisk) -> None:
    """Not only a prefix of them: a later page may be there without one before it."""
    outcomes = set()
    for seed in range(40):
        disk = SimulatedDisk(page_bytes=PAGE)
        segment = disk.open_segment(ROOT / "00000000000000000000", size=3 * PAGE, create=True)
        segment.zero(0, 3 * PAGE)
        segment.page[0] = segment.page[PAGE] = segment.page[2 * PAGE] = 1
        disk.power_cut(Random(seed))
        data = disk.files()[segment.path]
        outcomes.add((data[0], data[PAGE], data[2 * PAGE]))

    assert 8 == len(outcomes)


def test_the_kernel_may_write_earlier(simulated: SimulatedDisk) -> None:
    segment = simulated.open_segment(ROOT / "00000000000000000000", size=PAGE, create=True)
    segment.zero(0, PAGE)
    segment.page[0] = 1
    simulated.write_back(Kept())
    segment.page[0] = 2
    simulated.power_cut(Lost())

    assert 1 == simulated.files()[segment.path][0]


@pytest.mark.parametrize("chance", [Lost(), Kept()])
def test_names_are_kept_when_their_directory_is_synced(simulated: SimulatedDisk, chance: Random) -> None:
    simulated.write(ROOT / "old", b"1")
    for name in ("synced", "not"):
        simulated.open_file(ROOT / name / "file", create_size=10).write(0, b"x")
        simulated.sync_file(ROOT / name / "file")
    simulated.sync_names(ROOT / "synced")
    simulated.sync_names(ROOT)
    simulated.remove(ROOT / "old")
    simulated.power_cut(chance)

    found = {str(path.relative_to(ROOT)) for path in simulated.files()}
    assert {"synced/file"} == found - {"old", "not/file"}
    assert ("not/file" in found) is isinstance(chance, Kept)
    assert ("old" in found) is isinstance(chance, Lost)


def test_names_may_come_to_the_disk_in_any_order_or_in_their_own() -> None:
    for in_order, expected in ((False, 4), (True, 3)):
        outcomes = set()
        for seed in range(40):
            disk = SimulatedDisk(names_in_order=in_order)
            disk.write(ROOT / "x", b"")
            disk.open_file(ROOT / "a", create_size=1)
            disk.open_file(ROOT / "b", create_size=1)
            disk.power_cut(Random(seed))
            outcomes.add(frozenset(path.name for path in disk.files()))
        assert expected == len(outcomes)


def test_a_length_that_is_not_synced_may_be_lost(simulated: SimulatedDisk) -> None:
    simulated.open_file(ROOT / "file", create_size=100)
    for directory in (ROOT, ROOT.parent):
        simulated.sync_names(directory)
    simulated.power_cut(Lost())

    assert b"" == simulated.read(ROOT / "file")


def test_another_boot_is_another_boot(simulated: SimulatedDisk) -> None:
    simulated.lock(ROOT / "lock")
    first = simulated.boot_id()
    simulated.die()
    assert first == simulated.boot_id()
    simulated.lock(ROOT / "lock")
    simulated.power_cut(Kept())
    assert first != simulated.boot_id()


# --- Faults -----------------------------------------------------------------------------------------------------------


def test_every_step_can_be_the_last(simulated: SimulatedDisk) -> None:
    steps: list[str] = []
    simulated.before = lambda kind, path: steps.append(f"{kind} {path.name}")
    simulated.replace(ROOT / "file", b"x" * (PAGE + 1))
    assert [
        "create store",
        "sync names ",
        "create file.tmp",
        "write file.tmp",
        "write file.tmp",
        "sync file.tmp",
        "rename file.tmp",
        "sync names store",
    ] == steps

    for last in range(len(steps)):
        disk = SimulatedDisk(page_bytes=PAGE)
        disk.write(ROOT / "file", b"old")
        left = last

        def stop(_kind: str, _path: Path) -> None:
            nonlocal left
            if not left:
                raise PowerCut
            left -= 1

        disk.before = stop
        try:
            disk.replace(ROOT / "file", b"new")
        except PowerCut:
            disk.power_cut(Random(last))
        assert disk.read(ROOT / "file") in (b"old", b"new")


def test_a_write_may_fail_half_way(simulated: SimulatedDisk) -> None:
    file = simulated.open_file(ROOT / "file", create_size=2 * PAGE)
    left = [1]

    def fail(kind: str, _path: Path) -> None:
        if kind == "write" and not left[0]:
            raise StoreError("Input/output error")
        left[0] -= 1

    simulated.before = fail
    with pytest.raises(StoreError):
        file.write(0, b"x" * 2 * PAGE)

    assert b"x" * PAGE + bytes(PAGE) == file.read(0, 2 * PAGE)


def test_after_a_sync_that_failed_no_other_proves_anything(simulated: SimulatedDisk) -> None:
    """As on Linux: the pages count as clean, and are gone with the cache."""
    segment = simulated.open_segment(ROOT / "00000000000000000000", size=PAGE, create=True)
    segment.zero(0, PAGE)
    segment.page[0] = 1

    def fail(_kind: str, _path: Path) -> None:
        raise StoreError("Input/output error")

    simulated.before = fail
    with pytest.raises(StoreError):
        segment.sync()
    simulated.before = None
    segment.sync()
    assert 1 == segment.page[0]
    simulated.die()

    assert 0 == simulated.files()[segment.path][0]


def test_a_full_disk_refuses_what_needs_a_block(simulated: SimulatedDisk) -> None:
    simulated.capacity_bytes = 2 * PAGE
    segment = simulated.open_segment(ROOT / "00000000000000000000", size=8 * PAGE, create=True)
    segment.reserve(0, PAGE)
    segment.zero(0, 2 * PAGE)
    assert (2 * PAGE, 0, 100) == (*simulated.usage(ROOT), simulated.usage(ROOT).percent)
    with pytest.raises(DiskFull):
        segment.reserve(0, 3 * PAGE)
    with pytest.raises(DiskFull):
        segment.zero(2 * PAGE, 3 * PAGE)
    segment.zero(0, 2 * PAGE)


def test_a_store_to_a_page_that_nobody_reserved_is_found(simulated: SimulatedDisk) -> None:
    """Where it would have ended a real process: SIGBUS, on a full disk."""
    segment = simulated.open_segment(ROOT / "00000000000000000000", size=8 * PAGE, create=True)
    segment.reserve(0, PAGE)
    segment.page[0] = 1
    segment.sync()
    segment.page[PAGE] = 1
    with pytest.raises(UnreservedStore):
        segment.sync()


def test_a_bit_rots(simulated: SimulatedDisk) -> None:
    simulated.write(ROOT / "file", b"abc")
    simulated.flip_bit(ROOT / "file", 8 + 5)
    assert b"aBc" == simulated.read(ROOT / "file")
    simulated.power_cut(Lost())
    assert b"aBc" == simulated.read(ROOT / "file")


def test_a_page_is_lost(simulated: SimulatedDisk) -> None:
    """C8: the disk says nothing, and returns zeros."""
    simulated.write(ROOT / "file", b"a" * 3 * PAGE)
    simulated.lose_page(ROOT / "file", PAGE + 1)
    for _ in range(2):
        assert b"a" * PAGE + bytes(PAGE) + b"a" * PAGE == simulated.read(ROOT / "file")
        simulated.power_cut(Lost())


def test_a_hole_does_not_rot(simulated: SimulatedDisk) -> None:
    """C8: it has no block. (Found by seed 786537506801: the store was blamed for writing there.)"""
    segment = simulated.open_segment(ROOT / "0", size=8192, create=True)
    simulated.flip_bit(ROOT / "0", 5000 * 8)

    assert bytes(8192) == bytes(segment.page)
    segment.sync()


def test_a_copy_is_another_disk(simulated: SimulatedDisk) -> None:
    simulated.write(ROOT / "file", b"abc")
    other = simulated.copy()
    other.write(ROOT / "file", b"xyz")

    assert (b"abc", b"xyz") == (simulated.read(ROOT / "file"), other.read(ROOT / "file"))


def test_files_know_when_they_were_written() -> None:
    now = [5]
    disk = SimulatedDisk(now_ms=lambda: now[0])
    disk.write(ROOT / "file", b"abc")
    segment = disk.open_segment(ROOT / "00000000000000000000", size=4096, create=True)
    segment.reserve(0, 4096)
    now[0] = 7
    segment.page[0] = 1
    segment.sync()

    assert (5, 7) == (disk.modified_ms(ROOT / "file"), disk.modified_ms(segment.path))
