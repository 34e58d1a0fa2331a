"""Slices of segments read without Spark: every whole record once, wherever the cuts are (U3)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.spark.files.borders import border
from ternmq.spark.files.layout import LogSlice, cut, find_segments
from ternmq.spark.files.reading import SliceReader, _checked
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.scan import Damaged, LogScan
from ternmq.store.inspect.view import StoreView
from ternmq.store.read.reader import LogReader
from ternmq.wire.record import FIXED_V4_BYTES, RECORD_BYTES_MIN, pack_record
from tests.manual_clock import ManualClock
from tests.store.conftest import recorded, unpacked
from tests.store.small import HOST, RecordedStore, draft, quiet_store, small_config
from tests.store.spoiled import edit

__all__ = ["recorded", "unpacked"]

Place = tuple[str, int, int]


def read(slices: list[LogSlice], **sizes: int) -> tuple[list[int], list[Place]]:
    """Log offsets of the records that some slices give, and the damaged places with records behind them."""
    records: list[int] = []
    places: list[Place] = []
    for part in slices:
        for found in SliceReader(part, **sizes):
            if not isinstance(found, Damaged):
                records += found.log_offsets.tolist()
            elif found.records_behind:
                places.append((found.kind.name, found.begin, found.end))
    return records, places


def scanned(root: Path) -> tuple[list[int], list[Place]]:
    """The same, by the tool that walks from the log's first byte to its last."""
    view = StoreView(root)
    scan = LogScan(view.log, next_data=view.next_data)
    records = [record.log_offset for record in scan]
    return records, [(damaged.kind.name, damaged.begin, damaged.end) for damaged in scan.damages]


@pytest.mark.parametrize("slice_bytes", [1 << 30, 100_000, 7_000])
def test_slices_of_recorded_stores_give_every_record_once(recorded: RecordedStore, slice_bytes: int) -> None:
    """U3: 4.9.4 and 5.2.0, closed and killed; borders found in a window, and in pieces that records do not fit in."""
    slices = cut(find_segments([recorded.root]), slice_bytes=slice_bytes)

    records, places = read(slices, piece_bytes=3_000, window_bytes=5_000)

    assert ([line["log_offset"] for line in recorded.lines], []) == (records, places)


@pytest.mark.parametrize("seed", range(40))
def test_damage_anywhere_is_told_as_by_a_scan(tmp_path: Path, seed: int) -> None:
    """U3, C8: flipped bytes, holes and torn ends; no slice loses a record or gives one twice."""
    chance = random.Random(seed)
    root = tmp_path / "store"
    with quiet_store(small_config(root, mapped_file_size_commit_log=8192), clock=ManualClock()) as store:
        for number in range(60):
            text = {"KEYS": f"k{number}", "more": "x" * chance.choice((0, 10, 1_500))}
            store.put(draft("orders", number % 3, b"b" * chance.choice((0, 1, 100, 2_000)), **text))
    files = sorted((root / "commitlog").iterdir())
    for _ in range(chance.randrange(1, 6)):
        length = chance.choice((1, 1, 4, 600, 3_000))
        at = chance.randrange(8192 - length)
        junk = bytes(length) if chance.random() < 0.5 else chance.randbytes(length)
        edit(chance.choice(files), at, junk)

    slices = cut(find_segments([root]), slice_bytes=chance.choice((500, 1_000, 4_096)))
    found = read(slices, piece_bytes=chance.choice((600, 2_000, 1 << 20)), window_bytes=2_600)

    assert scanned(root) == found


@pytest.mark.parametrize("seed", range(10))
def test_bytes_in_front_of_records_are_stepped_over(tmp_path: Path, seed: int) -> None:
    """U3, C8: as in the log of a Raft group; whole or damaged, scan and slices find the same."""
    chance = random.Random(seed)
    config = small_config(tmp_path, mapped_file_size_commit_log=8192)
    if seed % 2:
        # A single broker that became a member.
        with quiet_store(config, clock=ManualClock()) as store:
            for number in range(20):
                store.put(draft("orders", number % 3, b"b" * 400, more="x" * 10))
    log = RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=8192)
    with quiet_store(config, clock=ManualClock(), log=log) as store:
        log.term = 3
        for number in range(60):
            body = b"b" * chance.choice((0, 1, 100, 2_000))
            store.put(draft("orders", number % 3, body, more="x" * 10))
        store.confirm(log.end)
        log.note_committed(log.last_index)
    offsets = [record.log_offset for record in LogReader(tmp_path)]
    if seed >= 5:
        home = tmp_path / "dledger-n0" / "data"
        edit(chance.choice(sorted(home.iterdir())), chance.randrange(7_000), chance.randbytes(chance.choice((1, 600))))
    view = StoreView(tmp_path)
    scan = LogScan(view.log)
    records = [record.log_offset for record in scan]
    slices = cut(find_segments([tmp_path]), slice_bytes=chance.choice((500, 1_000, 4_096)))

    found = read(slices, piece_bytes=chance.choice((600, 2_000, 1 << 20)), window_bytes=2_600)

    assert (records, [(place.kind.name, place.begin, place.end) for place in scan.damages]) == found
    assert records == offsets or seed >= 5
    assert len(offsets) == (80 if seed % 2 else 60)


def test_a_zero_where_a_sector_begins_is_no_reason_for_a_closer_look() -> None:
    """U3: the length of properties has one, and a look at each record of a piece costs more than all else."""
    data = b"".join(forged(at, 300) for at in range(0, 3_000, 300))
    starts = list(range(0, 3_000, 300))

    assert all(_checked(data, starts, 0, in_segment) is not None for in_segment in range(512))

    torn = bytearray(forged(0, 700))
    torn[512:] = bytes(188)
    assert [False, True] == [_checked(bytes(torn), [0], 0, in_segment) is not None for in_segment in (0, 1)]


def forged(at: int, size: int, *, begin_only: bool = False) -> bytes:
    """A record of ``size`` bytes that says that it stands at log offset ``at``; or that much of it as must be forged:
    whatever bytes follow can be its properties."""
    page = bytearray(size)
    properties_bytes = size - RECORD_BYTES_MIN - 7
    pack_record(
        page,
        0,
        size=size,
        queue_id=0,
        flag=0,
        queue_offset=7,
        log_offset=at,
        sysflag=0,
        born_time_ms=1,
        born_host=HOST,
        store_time_ms=1,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=b"f",
        topic=b"forged",
        properties=b"p" * properties_bytes,
    )
    return bytes(page[:-properties_bytes] if begin_only else page)


def test_records_inside_a_body_are_no_rows(tmp_path: Path) -> None:
    """U3: who sends knows where his message will stand, and may send what looks like records there."""
    config = small_config(tmp_path, mapped_file_size_commit_log=1 << 16)
    with quiet_store(config, clock=ManualClock()) as store:
        for _ in range(30):
            body_at = store.written + FIXED_V4_BYTES
            store.put(draft(body=forged(body_at, 300) + forged(body_at + 300, 400)))
        # A whole chain of them beside the real one: each reaches into the next message's body.
        placed = store.put(draft(body=b"." * 700))
        step = placed.end_offset - placed.log_offset
        for _ in range(30):
            store.put(draft(body=forged(store.written + FIXED_V4_BYTES, step, begin_only=True).ljust(700, b".")))
        written = store.written
    (only,) = find_segments([tmp_path])
    expected = scanned(tmp_path)
    page = memoryview(only.path.read_bytes())
    # The window is longer than a record: wherever the cut is, forgeries leave the search in doubt, and no more.
    borders = {begin: border(page, begin, start=0, window_bytes=2_000) for begin in range(3_000, written, 97)}

    for begin, found in borders.items():
        assert found is None or found == min(offset for offset in [*expected[0], written] if offset >= begin)
    for begin in list(borders)[::7]:
        assert expected == read([LogSlice(only, 0, begin), LogSlice(only, begin, only.size_bytes)], window_bytes=2_000)
    assert 61 == len(expected[0])
    assert {None} < set(borders.values())

    # Where the real record is damaged, the forged one is the only one that reaches over the cut.
    damaged = expected[0][-10]
    edit(only.path, damaged + FIXED_V4_BYTES + 690, b"!")
    expected = scanned(tmp_path)
    assert 60 == len(expected[0])
    for begin in range(damaged + 1, damaged + step, 37):
        assert expected == read([LogSlice(only, 0, begin), LogSlice(only, begin, only.size_bytes)], window_bytes=1_200)
