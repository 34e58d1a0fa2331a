"""The index: chains, full files, cuts (C4)."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import DiskFull
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.index import Index
from ternmq.store.disk.file_disk import FileDisk
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.ids import java_hash
from tests.store.small import files

SLOTS, ENTRIES = 3, 5


def index_in(root: Path, now_ms: int = 1_700_000_000_123) -> Index:
    index = Index(
        FileDisk(),
        root,
        slots=SLOTS,
        entries=ENTRIES,
        file_bytes=40 + 4 * SLOTS + 20 * ENTRIES,
        now_ms=lambda: now_ms,
    )
    index.load()
    return index


def put(index: Index, key: str, log_offset: int, store_time_ms: int) -> None:
    index.fold(Fact("t", 0, 0, log_offset, 0, 0, store_time_ms, 0, 0, f"UNIQ_KEY\x01{key}\x02"))


def find(index: Index, key: str, begin_ms: int = 0, end_ms: int = 1 << 62, count_max: int = 64) -> list[int]:
    return index.find("t", key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)


def test_a_file_has_rocketmqs_layout(tmp_path: Path) -> None:
    """C4: field by field; recorded files say the same (test_recorded.py)."""
    index = index_in(tmp_path)
    put(index, "a", 100, 50_000)
    put(index, "b", 200, 53_999)
    put(index, "a", 300, 49_000)
    index.close()

    (data,) = files(tmp_path).values()
    hash_a, hash_b = java_hash("t#a"), java_hash("t#b")
    slot_a, slot_b = hash_a % SLOTS, hash_b % SLOTS
    used = len({slot_a, slot_b})
    assert (50_000, 49_000, 100, 300, used, 4) == struct.unpack_from(">qqqqii", data)
    slots = struct.unpack_from(">3i", data, 40)
    assert (3, 2 if slot_a != slot_b else 3) == (slots[slot_a], slots[slot_b])
    at = 40 + 4 * SLOTS
    assert bytes(20) == data[at : at + 20]
    assert (hash_a, 100, 0, 0) == struct.unpack_from(">iqii", data, at + 20)
    assert (hash_b, 200, 3, 0 if slot_a != slot_b else 1) == struct.unpack_from(">iqii", data, at + 40)
    assert (hash_a, 300, 0, 1 if slot_a != slot_b else 2) == struct.unpack_from(">iqii", data, at + 60)


def test_a_full_file_is_followed_by_one_that_begins_where_it_ended(tmp_path: Path) -> None:
    """C4: the first entry's seconds count from the end of the file before; begin is then its own time."""
    index = index_in(tmp_path)
    for number in range(6):
        put(index, f"k{number}", number * 10, 1_000_000 + number * 5_000)
    index.close()

    first, second = files(tmp_path).values()
    assert (1_000_000, 1_015_000, 0, 30) == struct.unpack_from(">qqqq", first)
    assert (1_020_000, 1_025_000, 40, 50) == struct.unpack_from(">qqqq", second)
    at = 40 + 4 * SLOTS
    assert [5, 5] == [struct.unpack_from(">iqii", second, at + 20 * number)[2] for number in (1, 2)]


def test_names_rise_also_within_one_millisecond(tmp_path: Path) -> None:
    """C4: files are read in the order of their names; the clock may step back."""
    index = index_in(tmp_path)
    for number in range(20):
        put(index, f"k{number}", number, 1)
    index.write_out()
    names = list(files(tmp_path))
    assert 5 == len(names)
    assert sorted(names) == names
    index.close()
    earlier = index_in(tmp_path, now_ms=1_600_000_000_000)
    for number in range(20, 40):
        put(earlier, f"k{number}", number, 1)
    assert [0] == find(earlier, "k0")
    assert [39] == find(earlier, "k39")
    earlier.close()
    assert names == list(files(tmp_path))[:5]


KEYS = st.sampled_from(["a", "b", "c", "d"])


@given(
    rows=st.lists(st.tuples(KEYS, st.integers(0, 3)), max_size=40),
    key=KEYS,
    begin=st.integers(0, 60),
    span=st.integers(0, 60),
    count_max=st.integers(1, 10),
)
def test_it_finds_what_a_list_finds(
    rows: list[tuple[str, int]],
    key: str,
    begin: int,
    span: int,
    count_max: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """C4: newest first, over files and chains, in memory and after a reload."""
    root = tmp_path_factory.mktemp("index")
    index = index_in(root)
    now_s = 1
    model: list[tuple[str, int, int]] = []
    for number, (one, passed_s) in enumerate(rows):
        now_s += passed_s
        put(index, one, number, now_s * 1000)
        model.append((one, number, now_s))
    expected = [number for one, number, time_s in reversed(model) if one == key and begin <= time_s <= begin + span][
        :count_max
    ]

    for _ in range(2):
        assert expected == find(index, key, begin * 1000, (begin + span) * 1000, count_max)
        index.close()
        index = index_in(root)
    index.close()


@given(
    rows=st.lists(KEYS, max_size=30),
    cut=st.integers(0, 30),
    distrust=st.booleans(),
    uncounted=st.booleans(),
)
def test_a_cut_index_equals_one_that_never_knew_more(
    rows: list[str], cut: int, distrust: bool, uncounted: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C8: also when the process died before it had counted its last entries."""
    root = tmp_path_factory.mktemp("index")
    times = {number * 10: 1_000_000 + number * 700 for number in range(len(rows))}
    index = index_in(root / "long")
    for key, (log_offset, store_time_ms) in zip(rows, times.items(), strict=True):
        put(index, key, log_offset, store_time_ms)
    index.write_out()
    known = len(rows)
    if uncounted and index._files and index._files[-1].count > 2:
        known -= 1
        file = index._files[-1]
        file.count -= 1
        file.used_slots -= file._entry(file.count)[3] == 0
        file.write_header()
        index.close()
        index = index_in(root / "long")

    index.cut(cut * 10, times.__getitem__, distrust=distrust)
    expected = index_in(root / "short")
    for target, first in ((index, min(cut, known)), (expected, 0)):
        for number in range(first, len(rows)):
            put(target, rows[number], number * 10, times[number * 10])
        target.close()

    assert [*files(root / "short").values()] == [*files(root / "long").values()]


def test_a_damaged_chain_does_not_lead_in_circles(tmp_path: Path) -> None:
    """C4."""
    index = index_in(tmp_path)
    for number in range(4):
        put(index, "a", number, 1000)
    index.close()
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    struct.pack_into(">i", data, 40 + 4 * SLOTS + 20 * 2 + 16, 3)  # the second entry names the third
    path.write_bytes(data)
    index = index_in(tmp_path)
    assert [3, 2, 1] == find(index, "a")
    index.close()


def test_many_files_take_few_descriptors(tmp_path: Path) -> None:
    """C4: all are searched, one at a time."""
    index = index_in(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for number in range(1000):
        put(index, f"k{number}", number * 10, 1_000_000 + number)
    index.write_out()
    for segment in index.take_unsynced():
        segment.sync()
    assert len(index) > 100
    assert [10 * number for number in range(1000)] == [
        index.find("t", f"k{number}", count_max=1, begin_ms=0, end_ms=1 << 62)[0] for number in range(1000)
    ]
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
    index.close()
    index = index_in(tmp_path)
    assert [0] == index.find("t", "k0", count_max=1, begin_ms=0, end_ms=1 << 62)
    assert len(list(Path("/proc/self/fd").iterdir())) <= before + 4
    index.close()


def walk(index: Index, key: str) -> Iterator[int | None]:
    return index.walk("t", key, begin_ms=0, end_ms=1 << 62)


def test_a_walk_pauses_after_some_entries_of_other_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C4, bounds: keys of one slot are as many as a sender wants."""
    monkeypatch.setattr("ternmq.store.derived.index.WALK_ENTRIES", 2)
    index = index_in(tmp_path)
    key, *others = [text for text in map(str, range(100)) if java_hash(f"t#{text}") % SLOTS == 0][:10]
    for number, each in enumerate((key, *others)):
        put(index, each, 100 * number, 50_000 + number)
    # Four entries fit a file (they are numbered from 1 on): 4, 4 and 2, walked from the last one.
    assert [None, None, None, None, 0, None] == list(walk(index, key))
    assert [0] == find(index, key)


def test_a_walk_ends_where_files_were_deleted_meanwhile(tmp_path: Path) -> None:
    """C4, C9: in a pause, retention may have its turn."""
    index = index_in(tmp_path)
    for number in range(12):
        put(index, "k", 100 * number, 50_000 + number)
    found = walk(index, "k")
    assert [1100, 1000, 900, 800, 700] == list(islice(found, 5))
    for path in index.drop_before(800):
        path.unlink()
    assert [] == list(found)
    found = walk(index, "k")
    assert 1100 == next(found)
    index.close()
    assert [] == list(found)


def test_a_cut_where_the_log_lost_a_page_keeps_what_is_before(tmp_path: Path) -> None:
    """C4, C8: the time of a lost record reads as 0. All entries of a file would be made again, behind the old ones."""
    index = index_in(tmp_path)
    for number in range(3):
        put(index, f"k{number}", 100 * number, 50_000 + number)
    index.cut(200, lambda _log_offset: 0)
    assert (100, 100) == (index.end_offset, index.taken)
    put(index, "k1", 100, 50_001)
    assert [100] == find(index, "k1")


def test_a_file_that_was_begun_on_a_full_disk_needs_no_room_to_be_cut() -> None:
    """C8: it has a length, and no blocks (``raft``, seed 800076)."""
    disk = SimulatedDisk()
    slots, entries = 5_000, 100

    def opened() -> Index:
        index = Index(
            disk,
            Path("/index"),
            slots=slots,
            entries=entries,
            file_bytes=40 + 4 * slots + 20 * entries,
            now_ms=lambda: 1_700_000_000_123,
        )
        index.load()
        return index

    index = opened()
    disk.capacity_bytes = 0
    put(index, "a", 100, 50_000)
    with pytest.raises(DiskFull):
        index.write_out()
    assert 1 == len(disk.files())
    again = opened()
    again.resume(0, lambda _log_offset: 0)
    assert 0 == len(again)
    assert {} == disk.files()
