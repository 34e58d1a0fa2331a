"""A log whose end is cut off, and what becomes of it (O1, C11)."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from random import Random

import pytest

from ternmq.errors import CorruptRecord, StoreError
from ternmq.store.cut import Cut, cut_log, tables_corrected, tables_to_correct
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.dump import RecordChoice, records
from ternmq.store.inspect.view import StoreView
from ternmq.store.log.paths import LogPaths
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.record import MAGIC_V1, unpack_record
from tests.manual_clock import ManualClock
from tests.store.small import HOST, bodies, draft, log_queues_index, quiet_store, small_config

SEGMENT = 4096
ROOT = Path("/store")
MAGIC = (MAGIC_V1 & 0xFFFFFFFF).to_bytes(4, "big")


def filled(root: Path, count: int, *, disk: SimulatedDisk | None = None) -> list[int]:
    """A closed store with so many messages; returns where each of them ends."""
    with MessageStore.open(
        small_config(root), store_host=HOST, clock=ManualClock(), disk=disk or FileDisk(), threads=False
    ) as store:
        return [
            store.put(draft("orders", number % 2, b"%d " % number * 100, KEYS=f"k{number}")).end_offset
            for number in range(count)
        ]


def cut(root: Path, log_offset: int, *, keep: Path | None = None) -> Cut:
    paths = LogPaths([root / "commitlog"])
    return cut_log(FileDisk(), root, paths, segment_bytes=SEGMENT, log_offset=log_offset, keep=keep)


@pytest.mark.parametrize("left", [1, 7, 8, 9, 30, 39])
def test_a_store_that_was_cut_is_as_one_that_never_had_more(
    tmp_path: Path, left: int, caplog: pytest.LogCaptureFixture
) -> None:
    """C5: log, queues and index byte for byte; the rest is kept, each record at its place, and named in the log."""
    ends = filled(tmp_path / "one", 40)
    filled(tmp_path / "two", left)
    with caplog.at_level(logging.WARNING):
        made = cut(tmp_path / "one", ends[left - 1])
    assert 40 - left == made.messages
    assert ends[-1] - ends[left - 1] == made.cut_bytes
    assert made.kept is not None
    found = [
        (record.log_offset + record.size, bytes(record.body))
        for record in records(StoreView(made.kept), RecordChoice())
    ]
    assert [(ends[number], b"%d " % number * 100) for number in range(left, 40)] == found
    assert f"with {40 - left} messages" in caplog.text
    with quiet_store(small_config(tmp_path / "one")) as store, quiet_store(small_config(tmp_path / "two")) as other:
        assert ends[left - 1] == store.written
        for queue_id in (0, 1):
            assert bodies(other, queue_id=queue_id) == bodies(store, queue_id=queue_id)
        for each in (store, other):
            each.put(draft("orders", 0, b"more"))
    ours, theirs = log_queues_index(tmp_path / "one"), log_queues_index(tmp_path / "two")
    assert theirs[0] == ours[0]
    assert theirs[1] == ours[1]


def test_a_cut_where_no_record_ends_changes_nothing(tmp_path: Path) -> None:
    ends = filled(tmp_path, 40)
    before = log_queues_index(tmp_path)
    for log_offset, reason in (
        (ends[3] - 1, f"no record ends at log offset {ends[3] - 1}; the last one before it ends at {ends[2]}"),
        (1 << 30, "cannot be cut at"),
    ):
        with pytest.raises(StoreError, match=reason):
            cut(tmp_path, log_offset)
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    with pytest.raises(StoreError, match="is not empty"):
        cut(tmp_path, ends[3], keep=tmp_path / "kept")
    assert Cut(ends[-1], 0, 0, None) == cut(tmp_path, ends[-1])
    assert before == log_queues_index(tmp_path)
    assert not tables_to_correct(FileDisk(), tmp_path)


def test_a_log_that_begins_there_is_not_cut_to_nothing(tmp_path: Path) -> None:
    """A store without a log would begin with offset 0 again."""
    filled(tmp_path, 40)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(StoreError, match="empty the directory instead"):
        cut(tmp_path, SEGMENT)


def test_tables_are_to_be_corrected_until_the_broker_has(tmp_path: Path) -> None:
    disk, ends = FileDisk(), filled(tmp_path, 4)
    cut(tmp_path, ends[0])
    assert tables_to_correct(disk, tmp_path)
    tables_corrected(disk, tmp_path)
    assert not tables_to_correct(disk, tmp_path)


class Died(Exception):
    """The machine has lost its power."""


def cut_until(disk: SimulatedDisk, steps: int, log_offset: int) -> bool:
    """Cut a log on a machine that loses its power after so many steps of its disk; whether it was done before."""

    def step(_kind: str, _path: Path) -> None:
        nonlocal steps
        steps -= 1
        if steps < 0:
            raise Died

    disk.before = step
    try:
        cut_log(disk, ROOT, LogPaths([ROOT / "commitlog"]), segment_bytes=SEGMENT, log_offset=log_offset)
    except Died:
        return False
    finally:
        disk.before = None
    return True


@pytest.mark.parametrize("left", [3, 8, 30])
def test_a_power_cut_at_any_step_of_a_cut_loses_nothing(left: int) -> None:
    """C8: what is missing in the log is kept, and a repeated cut finishes it."""
    steps, is_done = 0, False
    while not is_done:
        disk = SimulatedDisk()
        ends = filled(ROOT, 40, disk=disk)
        end = ends[left - 1]
        is_done = cut_until(disk, steps, end)
        disk.power_cut(Random(steps))
        assert set(ends) <= kept_ends(disk) | log_ends(disk, ROOT)
        assert cut_until(disk, 10_000, end)
        with MessageStore.open(
            small_config(ROOT), store_host=HOST, clock=ManualClock(), disk=disk, threads=False
        ) as store:
            assert end == store.written
            assert left == store.max_offset("orders", 0) + store.max_offset("orders", 1)
        assert set(ends[left:]) <= kept_ends(disk)
        steps += 1
    assert steps > 10


def kept_ends(disk: SimulatedDisk) -> set[int]:
    """Where the records end that were cut off."""
    kept = [ROOT / "cut" / entry.name for entry in disk.list(ROOT / "cut") if entry.is_directory]
    return set().union(*(log_ends(disk, directory) for directory in kept))


def log_ends(disk: SimulatedDisk, directory: Path) -> set[int]:
    """Where the whole records of a log end, also behind gaps."""
    found: set[int] = set()
    for name, _, _ in disk.list(directory / "commitlog"):
        data, start = disk.read(directory / "commitlog" / name) or b"", int(name)
        for at in range(len(data) - 8):
            if data[at + 4 : at + 8] == MAGIC:
                with contextlib.suppress(CorruptRecord):
                    record = unpack_record(data, at)
                    found |= {record.log_offset + record.size} if record.log_offset == start + at else set()
    return found
