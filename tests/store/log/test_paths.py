"""A log in several directories (C1)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.config import load, to_properties
from ternmq.errors import CorruptFile, DiskFull, StoreError
from ternmq.store.disk.base import DiskUsage
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import segment_name
from ternmq.store.log.paths import LogPaths
from ternmq.store.read.reader import LogReader
from ternmq.store.store import MessageStore, StoreConfig
from tests.manual_clock import ManualClock
from tests.store.small import HOST, bodies, draft, files, quiet_store, small_config

A, B, C = Path("/a"), Path("/b"), Path("/c")


def config_of(root: Path, *names: str, read_only: Sequence[str] = (), **changes: Any) -> StoreConfig:
    return small_config(
        root / "store",
        store_path_commit_log=tuple(root / name for name in names),
        read_only_commit_log_store_paths=tuple(root / name for name in read_only),
        **changes,
    )


def segments(root: Path) -> dict[str, list[int]]:
    """Numbers of the segments in each directory."""
    found: dict[str, list[int]] = {}
    for name in sorted(files(root)):
        directory, _, file = name.rpartition("/")
        if directory in ("a", "b", "c"):
            found.setdefault(directory, []).append(int(file) // 4096)
    return found


def put(store: MessageStore, count: int) -> None:
    """Messages of which three fill a segment."""
    for _ in range(count):
        number = store.max_offset("orders", 0)
        store.put(draft(body=f"{number:03d}".encode().ljust(1200, b"."), KEYS=f"k{number}"))


def numbers(store: MessageStore) -> list[int]:
    return [int(body[:3]) for body in bodies(store)]


# --- The rule ---------------------------------------------------------------------------------------------------


def test_the_number_of_a_segment_picks_its_directory() -> None:
    """C1: modulo how many there are, in the order of their names, as RocketMQ does."""
    paths = LogPaths([B, C, A, B])
    made = [paths.of_new(number * 100, segment_bytes=100).parent for number in range(5)]
    assert [A, B, C, A, B] == made
    assert A / segment_name(300) == paths.of_new(300, segment_bytes=100)


def test_read_only_directories_get_no_new_segment() -> None:
    """C1: also those that are named as both."""
    paths = LogPaths([A, B], [B, C])
    assert {A} == {paths.of_new(number * 100, segment_bytes=100).parent for number in range(5)}
    assert (A, B, C) == paths.all
    assert [False, True, True] == [paths.is_read_only(directory / "0") for directory in paths.all]


def test_directories_on_full_disks_are_left_out_while_there_is_another() -> None:
    """C1, C9."""
    paths = LogPaths([A, B, C], [C])
    paths.full = frozenset([A])
    assert {B} == {paths.of_new(number * 100, segment_bytes=100).parent for number in range(4)}
    paths.full = frozenset([A, B])
    assert [A, B] == [paths.of_new(number * 100, segment_bytes=100).parent for number in range(2)]


# --- Settings ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["/b,/a", " /b , /a ,", "/b;/a"])
def test_paths_stand_in_files_with_commas_between(text: str) -> None:
    """C1, T2: as RocketMQ writes them; a list of TOML comes with semicolons."""
    config = load(StoreConfig, flags=[f"storePathCommitLog={text}", "readOnlyCommitLogStorePaths=/c"])
    assert ((B, A), (C,)) == (config.store_path_commit_log, config.read_only_commit_log_store_paths)
    assert (A, B) == config.log_paths.writable
    assert "storePathCommitLog=/b,/a\n" in to_properties(config)


def test_a_home_directory_may_be_written_as_a_tilde(monkeypatch: pytest.MonkeyPatch) -> None:
    """T2: in each of them."""
    monkeypatch.setenv("HOME", "/home/tern")
    config = load(StoreConfig, flags=["storePathCommitLog=~/one,~/two"])
    assert (Path("/home/tern/one"), Path("/home/tern/two")) == config.store_path_commit_log


def test_one_directory_needs_no_comma(tmp_path: Path) -> None:
    """C1: and none at all means that below the root."""
    assert (tmp_path / "store" / "commitlog",) == config_of(tmp_path).log_paths.writable
    assert (tmp_path / "a",) == config_of(tmp_path, "a").log_paths.writable


# --- The log ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [True, False])
def test_segments_alternate_between_directories(threads: bool, tmp_path: Path) -> None:
    """C1: written, read and found again; made in advance or not."""
    config = config_of(tmp_path, "b", "a")
    with MessageStore.open(config, store_host=HOST, clock=ManualClock(), threads=threads) as store:
        put(store, 15)
        assert list(range(15)) == numbers(store)
    assert {"a": [0, 2, 4], "b": [1, 3]} == segments(tmp_path)
    assert not (tmp_path / "store" / "commitlog").exists()

    reader = LogReader(tmp_path / "store", directories=config.store_path_commit_log)
    assert list(range(15)) == [int(bytes(record.body[:3])) for record in reader]
    with quiet_store(config) as store:
        put(store, 3)
        assert list(range(18)) == numbers(store)
        assert 1 == len(store.query("orders", "k4", count_max=9, begin_ms=0, end_ms=1 << 62).buffers)


def test_directories_may_be_added_and_emptied(tmp_path: Path) -> None:
    """C1: a new disk takes its turns; one that is read-only takes none."""
    with quiet_store(config_of(tmp_path, "a")) as store:
        put(store, 6)
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 6)
    assert {"a": [0, 1, 2], "b": [3]} == segments(tmp_path)
    with quiet_store(config_of(tmp_path, "b", "c", read_only=["a"])) as store:
        put(store, 9)
        assert list(range(21)) == numbers(store)
    assert {"a": [0, 1, 2], "b": [3, 4, 6], "c": [5]} == segments(tmp_path)


def test_a_segment_of_a_read_only_directory_is_filled_if_it_is_the_last(tmp_path: Path) -> None:
    """C1: as in RocketMQ; the log has no other place to go on."""
    with quiet_store(config_of(tmp_path, "a")) as store:
        put(store, 4)
    with quiet_store(config_of(tmp_path, "b", read_only=["a"])) as store:
        put(store, 3)
        assert list(range(7)) == numbers(store)
    assert {"a": [0, 1], "b": [2]} == segments(tmp_path)


class _Watched(FileDisk):
    """Remembers what was opened to be written to."""

    __slots__ = ("written",)

    def __init__(self) -> None:
        super().__init__()
        self.written: list[str] = []

    def open_segment(self, path: Path, *, size: int, create: bool = False, writable: bool = True) -> Any:
        if writable:
            self.written.append("/".join(path.parts[-2:]))
        return super().open_segment(path, size=size, create=create, writable=writable)


def test_old_segments_of_read_only_directories_are_not_opened_to_write(tmp_path: Path) -> None:
    """C1: their disk may be mounted read-only."""
    with quiet_store(config_of(tmp_path, "a")) as store:
        put(store, 6)
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 6)
    disk = _Watched()
    config = config_of(tmp_path, "b", read_only=["a"])
    with MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=disk, threads=False) as store:
        assert list(range(12)) == numbers(store)
    assert [f"b/{segment_name(3 * 4096)}"] == [name for name in disk.written if name[0] in "abc"]


def test_a_cut_may_end_in_a_read_only_directory(tmp_path: Path) -> None:
    """C1, C8: what is then the log's last segment goes on there."""
    with quiet_store(config_of(tmp_path, "a")) as store:
        put(store, 3)
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 3)
    assert {"a": [0], "b": [1]} == segments(tmp_path)
    (tmp_path / "b" / segment_name(4096)).write_bytes(bytes(4096))
    (tmp_path / "store" / "abort").touch()
    with quiet_store(config_of(tmp_path, "b", read_only=["a"])) as store:
        assert list(range(3)) == numbers(store)
        store.put(draft(body=b"003"))
        put(store, 1)
        assert list(range(5)) == numbers(store)
    assert {"a": [0], "b": [1]} == segments(tmp_path)


def test_segments_behind_damage_are_set_aside_on_their_own_disk(tmp_path: Path) -> None:
    """C8: a gibibyte is not copied to another one."""
    with quiet_store(config_of(tmp_path, "one/a", "two/a")) as store:
        put(store, 9)
    path = tmp_path / "two" / "a" / segment_name(4096)
    damaged = bytearray(path.read_bytes())
    damaged[100] ^= 1
    path.write_bytes(damaged)
    (tmp_path / "store" / "abort").touch()
    with quiet_store(config_of(tmp_path, "one/a", "two/a")) as store:
        assert list(range(3)) == numbers(store)
    assert (tmp_path / "one" / "cut" / segment_name(8192)).exists()


def test_a_file_that_was_being_made_is_made_anew_wherever_it_is(tmp_path: Path) -> None:
    """C1, C8: also where its directory's turn was with other settings."""
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 4)
    (tmp_path / "a" / segment_name(8192)).touch()
    with quiet_store(config_of(tmp_path, "a", "b", "c")) as store:
        put(store, 8)
    assert {"a": [0, 3], "b": [1], "c": [2]} == segments(tmp_path)


@settings(deadline=None)
@given(
    steps=st.lists(st.tuples(st.integers(0, 7), st.sets(st.sampled_from("abc"), min_size=1), st.booleans()), max_size=8)
)
def test_the_log_is_one_wherever_its_segments_are(
    steps: list[tuple[int, set[str], bool]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C1: whichever directories are written to in turn, and however the process ends."""
    root = tmp_path_factory.mktemp("paths")
    count = 0
    for more, names, dies in steps:
        others = sorted({"a", "b", "c"} - names)
        before = {name: set(segments(root).get(name, [])) for name in others}
        store = quiet_store(config_of(root, *sorted(names), read_only=others))
        put(store, more)
        count += more
        assert list(range(count)) == numbers(store)
        store.close()
        assert before == {name: set(segments(root).get(name, [])) for name in others}
        if dies:
            (root / "store" / "abort").touch()
    found = sorted(number for each in segments(root).values() for number in each)
    assert list(range(len(found))) == found


class _Uneven(FileDisk):
    """A disk of which each directory is as full as it is told."""

    __slots__ = ("percents",)

    def __init__(self) -> None:
        super().__init__()
        self.percents: dict[str, int] = {}

    def usage(self, path: Path) -> DiskUsage:
        percent = self.percents.get(path.name, 10)
        return DiskUsage(percent, 100 - percent)


def test_a_full_disk_is_left_out_while_another_has_room(tmp_path: Path) -> None:
    """C1, C9: messages are taken as long as one directory has room, and their segments go there."""
    disk, clock = _Uneven(), ManualClock()
    config = config_of(tmp_path, "a", "b", delete_when="")
    with MessageStore.open(config, store_host=HOST, clock=clock, disk=disk, threads=False) as store:

        def look() -> None:
            clock.advance(100)
            store.tick()

        put(store, 6)
        disk.percents = {"a": 99}
        look()
        put(store, 6)
        disk.percents = {"a": 99, "b": 99}
        look()
        with pytest.raises(DiskFull, match="is 99 % full"):
            put(store, 3)
        disk.percents = {}
        look()
        put(store, 3)
        found = store.min_offset("orders", 0), store.max_offset("orders", 0)
        assert list(range(*found)) == numbers(store)
    assert [2, 3] == [number for number in segments(tmp_path)["b"] if number in (2, 3)]


# --- Trouble ----------------------------------------------------------------------------------------------------


def test_a_missing_directory_leaves_a_gap_that_is_named(tmp_path: Path) -> None:
    """C1: a disk that is not mounted must not pass for an empty one; nothing is touched."""
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 9)
    (tmp_path / "b").rename(tmp_path / "elsewhere")
    before = files(tmp_path)
    with pytest.raises(CorruptFile, match=f"a/{segment_name(8192)} does not follow the file before it; restore"):
        quiet_store(config_of(tmp_path, "a", "b"))
    assert before == files(tmp_path)


def test_two_segments_of_one_name_are_refused(tmp_path: Path) -> None:
    """C1: it is not known which is right."""
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 6)
    (tmp_path / "b" / segment_name(0)).write_bytes(bytes(4096))
    with pytest.raises(CorruptFile, match=f"b/{segment_name(0)} and .*/a/{segment_name(0)} have the same name; only"):
        quiet_store(config_of(tmp_path, "a", "b"))


def test_a_file_of_another_length_is_named_with_its_directory(tmp_path: Path) -> None:
    """C1."""
    with quiet_store(config_of(tmp_path, "a", "b")) as store:
        put(store, 6)
    path = tmp_path / "b" / segment_name(4096)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        CorruptFile, match=f"b/{segment_name(4096)} has 4095 bytes, but mappedFileSizeCommitLog is 4096"
    ):
        quiet_store(config_of(tmp_path, "a", "b"))


def test_a_directory_that_is_a_file_is_named(tmp_path: Path) -> None:
    """C1."""
    (tmp_path / "b").write_text("no directory")
    with pytest.raises(StoreError, match=r"cannot read .*/b: Not a directory; .* each of storePathCommitLog"):
        quiet_store(config_of(tmp_path, "a", "b"))
