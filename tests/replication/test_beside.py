"""What a slave gets beside the log: files that come from outside are checked (O4)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ternmq.errors import RemoteProtocolError, StoreError
from ternmq.replication import beside
from ternmq.replication.beside import LAST_BYTES_MAX, Adoption, Beside, FileBegins
from ternmq.testing.disk import SimulatedDisk

ROOT = Path("/store")
PARTS = [ROOT / "schedule"]


async def copied(source: SimulatedDisk, target: SimulatedDisk, *, until: int | None = None) -> None:
    """Let a slave have the files of a master; or a part of what is sent."""
    files = [ROOT / "schedule" / name for name in ("one", "two", "empty", "state")]
    adoption = Adoption(target, ROOT, PARTS)
    number = 0
    async for parcel in Beside(ROOT, lambda: [files]).parcels(source):
        if number == until:
            return
        number += 1
        adoption.begin(parcel) if isinstance(parcel, FileBegins) else adoption.add(parcel)
    adoption.finish()


def full_disk() -> SimulatedDisk:
    disk = SimulatedDisk()
    for name, data in (("one", b"1" * 3_000_000), ("two", b"2" * 10), ("empty", b""), ("state", b"counts")):
        disk.replace(ROOT / "schedule" / name, data)
    return disk


async def test_an_empty_slave_has_the_files_of_its_master() -> None:
    """O4: byte for byte, and on the disk; what it had there is gone."""
    source, target = full_disk(), SimulatedDisk()
    target.replace(ROOT / "schedule" / "old", b"old")
    await copied(source, target)
    target.power_cut(Random(1))
    assert source.files() == target.files()


@pytest.mark.parametrize("until", range(8))
async def test_a_copy_that_stops_half_way_counts_nothing(until: int) -> None:
    """O4: the file that makes the others count comes last, when they are on the disk."""
    source, target = full_disk(), SimulatedDisk()
    await copied(source, target, until=until)
    target.power_cut(Random(until))
    assert target.read(ROOT / "schedule" / "state") is None


async def test_a_file_that_is_removed_meanwhile_ends_the_copy() -> None:
    """O4: the slave asks again."""
    source = full_disk()
    parcels = Beside(ROOT, lambda: [[ROOT / "schedule" / name for name in ("one", "state")]]).parcels(source)
    assert isinstance(await anext(parcels), FileBegins)
    source.remove(ROOT / "schedule" / "one")
    with pytest.raises(StoreError):
        await anext(parcels)


@pytest.mark.parametrize(
    "notice",
    [
        FileBegins("commitlog/00000000000000000000", 5),
        FileBegins("schedule/../config/topics.json", 5),
        FileBegins("/etc/passwd", 5),
        FileBegins("state", 5),
        FileBegins("schedule/deep/file", 5),
        FileBegins("schedule/file", -1),
        FileBegins("schedule/state", LAST_BYTES_MAX + 1, is_last=True),
    ],
)
def test_a_slave_writes_no_file_that_belongs_to_no_part(notice: FileBegins) -> None:
    """N1, O4: a false master cannot choose what is written; nor how much is kept in memory."""
    disk = SimulatedDisk()
    with pytest.raises(RemoteProtocolError):
        Adoption(disk, ROOT, PARTS).begin(notice)
    assert {} == disk.files()


def test_more_or_fewer_bytes_than_a_file_has_are_refused() -> None:
    """O4: in each place."""
    adoption = Adoption(SimulatedDisk(), ROOT, PARTS)
    adoption.begin(FileBegins("schedule/one", 3))
    with pytest.raises(RemoteProtocolError):
        adoption.add(b"four")
    adoption.add(b"12")
    with pytest.raises(RemoteProtocolError):
        adoption.begin(FileBegins("schedule/two", 3))
    with pytest.raises(RemoteProtocolError):
        adoption.finish()
    adoption.add(b"3")
    adoption.finish()


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"type":"else"}', b'{"type":"topicDeleted"}', b"\xff"])
def test_a_notice_that_is_none_is_an_error_of_the_master(data: bytes) -> None:
    """O4: and of nothing else."""
    with pytest.raises(RemoteProtocolError):
        beside.decode(data)
