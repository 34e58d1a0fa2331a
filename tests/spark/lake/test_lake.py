"""The books of a lake: which offsets are there, and changes that a kill at any moment cannot tear (U4)."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import ConfigError, CorruptFile
from ternmq.message import MessageQueue
from ternmq.spark.lake.covered import Covered, OffsetSpan
from ternmq.spark.lake.lake import Lake
from tests.spark.lakes import HOURS, QUEUE, add, merge, numbers, write

OTHER = MessageQueue("orders", "broker-a", 1)

SPANS = st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=8)


@given(SPANS, st.tuples(st.integers(0, 30), st.integers(0, 30)))
def test_spans_are_sets_of_offsets(spans: list[OffsetSpan], asked: OffsetSpan) -> None:
    """U4: against a set of numbers."""
    covered = Covered({QUEUE: spans})
    expected = {offset for start, end in spans for offset in range(start, end)}
    assert expected == {offset for _, (start, end) in covered for offset in range(start, end)}
    kept = [span for _, span in covered]
    assert all(before[1] < after[0] for before, after in pairwise(kept))
    assert bool(expected & set(range(*asked))) == covered.overlaps({QUEUE: asked} if asked[0] < asked[1] else {})
    missing = covered.first_missing(QUEUE, since=asked[0])
    assert missing == min(offset for offset in range(asked[0], 70) if offset not in expected)
    assert not covered.overlaps({OTHER: (0, 99)})


def test_what_is_there_is_not_taken_twice(tmp_path: Path) -> None:
    """U4: unless it was made apart from it; a change in between makes that void."""
    lake = Lake.at(tmp_path / "lake", make=True)
    assert add(lake, (0, 10))
    assert not add(lake, (5, 15))
    version = lake.content().version
    assert add(lake, (20, 30))
    assert not add(lake, (8, 12), apart_from=version)
    assert add(lake, (10, 20), apart_from=lake.content().version)
    assert list(range(30)) == numbers(lake.path)
    assert Covered({QUEUE: [(0, 30)]}) == lake.content().covered
    assert [] == list((lake.path / "_ternmq" / "staging").iterdir())


def test_files_that_came_while_others_were_merged_stay(tmp_path: Path) -> None:
    """U4: and of two who merge the same files, the first wins."""
    lake = Lake.at(tmp_path / "lake", make=True)
    add(lake, (0, 10))
    add(lake, (10, 20))
    old = [path.name for path in lake.hours()[HOURS[0]]]
    assert merge(lake, meanwhile=(20, 30))
    assert 2 == len(lake.hours()[HOURS[0]])
    with lake.stage() as stage:
        write(stage.path / "0" / "0.parquet", [0])
        assert not lake.replace(HOURS[0], old, stage.files())
    assert list(range(30)) == numbers(lake.path)


def test_an_error_after_the_moment_that_counts_loses_nothing(tmp_path: Path) -> None:
    """U4: files that could not be moved wait for the next run, as those of a process that was killed."""
    lake = Lake.at(tmp_path / "lake", make=True)
    (lake.path / "topic=orders").write_text("in the way")
    with pytest.raises(OSError, match="topic=orders"):
        add(lake, (0, 10))
    assert Covered({QUEUE: [(0, 10)]}) == lake.content().covered
    (lake.path / "topic=orders").unlink()
    lake.tidy()
    assert list(range(10)) == numbers(lake.path)
    assert [] == list((lake.path / "_ternmq" / "staging").iterdir())


#: More than there are touches.
POINTS = 90


@pytest.mark.timeout(300)
@pytest.mark.parametrize("what", ["add", "merge"])
def test_a_kill_at_any_moment_tears_nothing(tmp_path: Path, what: str) -> None:
    """U4: a reader sees no row twice and misses none that was there, and what is done next makes the lake whole."""
    first = Lake.at(tmp_path / "first", make=True)
    add(first, (0, 10))
    add(first, (10, 20))
    copies = [tmp_path / "copies" / f"{point:03}" for point in range(POINTS)]
    lakes = [Lake.at(shutil.copytree(first.path, copy)) for copy in copies]
    command = [sys.executable, "-m", "tests.spark.lakes", str(tmp_path / "copies"), what]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=200)
    codes = list(map(int, ran.stdout.split()))
    assert {-signal.SIGKILL, 0} == set(codes)
    assert sorted(codes) == codes
    visible: set[tuple[int, ...]] = set()
    for lake in lakes:
        seen = numbers(lake.path)
        visible.add(tuple(seen))
        assert len(set(seen)) == len(seen)
        assert set(seen) >= set(range(20))
        lake.tidy()
        assert [] == list((lake.path / "_ternmq" / "staging").iterdir())
        # The same work once more: done if it was not, refused if it was.
        if what == "add":
            missing = numbers(lake.path) == list(range(20))
            assert add(lake, (20, 40)) == missing
            assert list(range(40)) == numbers(lake.path)
        else:
            merge(lake)
            assert 1 == len(lake.hours()[HOURS[0]])
            assert list(range(20)) == numbers(lake.path)
    # Killed before, between and after the moves: some kill was at each of these.
    assert visible == ({tuple(range(20)), tuple(range(30)), tuple(range(40))} if what == "add" else {tuple(range(20))})


def test_a_directory_that_is_no_lake_is_refused(tmp_path: Path) -> None:
    """U4: in one sentence each, and nothing is made."""
    with pytest.raises(ConfigError, match=r"there is no lake at .*; create one with `tern pipeline archive`"):
        Lake.at(tmp_path / "none")
    (tmp_path / "file").write_text("x")
    for path in (tmp_path, tmp_path / "file"):
        with pytest.raises(ConfigError, match="is not a lake and not empty; give a new directory"):
            Lake.at(path, make=True)
    with pytest.raises(ConfigError, match=r"s3a://bucket/lake is not a path of a file system; .* mount it"):
        Lake.at("s3a://bucket/lake", make=True)
    assert ["file"] == [path.name for path in tmp_path.iterdir()]
    state = Lake.at(tmp_path / "lake", make=True).home / "state.json"
    whole = state.read_text()
    state.write_text(whole.replace('"format":1', '"format":2'))
    with pytest.raises(ConfigError, match="has format 2, and this version of TernMQ writes 1"):
        Lake.at(tmp_path / "lake")
    for damaged in (whole[:-5].encode(), b'{"a\xe7":1}', b'{"format":1,"a":' + b"[" * 100_000):
        state.write_bytes(damaged)
        with pytest.raises(CorruptFile, match=r"state.json cannot be read .*; restore it from a backup"):
            Lake.at(tmp_path / "lake")


@pytest.mark.parametrize("scheme", ["file:", "file://"])
def test_a_lake_may_be_named_as_hadoop_writes_paths(
    scheme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 13, 12: and no directory named «file:» is made."""
    monkeypatch.chdir(tmp_path)

    assert tmp_path / "lake" == Lake.at(f"{scheme}{tmp_path}/lake", make=True).path
    # A path object has lost the second slash of «file:///dir» already.
    assert tmp_path / "lake" == Lake.at(Path(f"{scheme}{tmp_path}/lake")).path
    assert ["lake"] == [path.name for path in tmp_path.iterdir()]


@pytest.mark.parametrize("path", ["hdfs:/dir", "file://host/dir", "file:dir", "s3a://bucket/lake"])
def test_a_path_that_is_not_of_this_machine_is_refused(path: str) -> None:
    """Issue 13, 12"""
    with pytest.raises(ConfigError, match=r"is not a path of a file system; a lake needs renames"):
        Lake.at(path, make=True)
