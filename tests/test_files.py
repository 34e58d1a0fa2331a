"""Files that hold a table: what survives a crash, what is refused, and what a save costs (D1, D4)."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ternmq.errors import CorruptFile, TableUnsaved
from ternmq.files import Chores, Encode, HeldBack, SystemFiles, TableFile, TableFiles, Work, do_now


def decode(data: bytes) -> Any:
    return json.loads(data)


def as_it_is(data: bytes) -> Callable[[], Encode]:
    """How to copy a table that never changes."""
    return lambda: lambda: data


class Counter:
    """A table with one number in it, which counts how often it is copied."""

    def __init__(self) -> None:
        self.value = 0
        self.copies = 0

    def copy(self) -> Encode:
        self.copies += 1
        value = self.value
        return lambda: b"%d" % value


class Later:
    """Chores that are done when the test says so."""

    def __init__(self) -> None:
        self._work: list[Work] = []

    def __call__(self, work: Work) -> None:
        self._work.append(work)

    def do_next(self) -> None:
        self._work.pop(0)()

    def __len__(self) -> int:
        return len(self._work)


class FullDisk(SystemFiles):
    """A disk that takes nothing for a while."""

    is_full = True

    def write(self, path: Path, data: bytes) -> None:
        if self.is_full:
            raise OSError(28, "No space left on device")
        super().write(path, data)


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    return TableFile(tmp_path / "config" / "topics.json")


@pytest.fixture
def chores() -> Iterator[Chores]:
    with Chores() as chores:
        yield chores


def test_what_was_saved_is_loaded(file: TableFile) -> None:
    file.save(as_it_is(b'{"a":1}'))

    assert file.load(decode) == {"a": 1}


def test_a_table_never_saved_is_none(file: TableFile) -> None:
    assert file.load(decode) is None


def test_the_version_before_stays_as_backup(file: TableFile) -> None:
    file.save(as_it_is(b'{"a":1}'))
    file.save(as_it_is(b'{"a":2}'))

    assert decode(file.backup.read_bytes()) == {"a": 1}
    assert file.load(decode) == {"a": 2}


@pytest.mark.parametrize("damage", [b"", b"  \n", b'{"a":', b"\x00" * 20])
def test_a_damaged_file_gives_way_to_its_backup(file: TableFile, damage: bytes) -> None:
    """D4: a power cut may leave an empty or torn file."""
    file.save(as_it_is(b'{"a":1}'))
    file.save(as_it_is(b'{"a":2}'))
    file.path.write_bytes(damage)

    assert file.load(decode) == {"a": 1}


def test_a_crash_between_the_two_renames_loses_nothing(file: TableFile) -> None:
    file.save(as_it_is(b'{"a":1}'))
    file.path.rename(file.backup)

    assert file.load(decode) == {"a": 1}


def test_a_table_of_which_nothing_is_readable_is_not_taken_for_empty(file: TableFile) -> None:
    file.save(as_it_is(b"nonsense"))

    with pytest.raises(CorruptFile, match=r"topics\.json.*restore"):
        file.load(decode)


# --- Saves off the owner's thread (issue 13, point 5) -----------------------------------------------------------------


def test_changes_that_come_while_a_save_runs_share_the_next_one(tmp_path: Path) -> None:
    """Issue 13, 5: two thousand new groups are not two thousand saves, nor copies of the table."""
    chores, table = Later(), Counter()
    file = TableFile(tmp_path / "groups.json", chores)
    for value in range(2_000):
        table.value = value
        file.save(table.copy)
    assert (1, 1) == (len(chores), table.copies)
    chores.do_next()
    chores.do_next()

    assert (0, 2) == (len(chores), table.copies)
    assert 1_999 == file.load(decode)


async def test_a_save_encodes_and_writes_on_the_thread_of_chores(tmp_path: Path, chores: Chores) -> None:
    """Issue 13, 5: the loop copies the table and does nothing else."""
    threads: list[str] = []
    file = TableFile(tmp_path / "a.json", chores, back=asyncio.get_running_loop().call_soon_threadsafe)

    def encode() -> bytes:
        threads.append(threading.current_thread().name)
        return b"1"

    file.save(lambda: encode)
    await file.saved()

    assert ["chores_0"] == threads
    assert 1 == file.load(decode)


async def test_a_caller_is_told_when_its_own_change_is_on_the_disk(tmp_path: Path) -> None:
    """Issue 13, 5: not when a save ends that began before the change."""
    chores, table = Later(), Counter()
    file = TableFile(tmp_path / "groups.json", chores)
    file.save(table.copy)
    table.value = 1
    file.save(table.copy)
    waiting = asyncio.create_task(file.saved())
    await asyncio.sleep(0)
    chores.do_next()
    await asyncio.sleep(0)
    assert 0 == file.load(decode)
    assert not waiting.done()
    chores.do_next()
    await waiting

    assert 1 == file.load(decode)
    await file.saved()


async def test_a_disk_that_refuses_is_logged_and_told_and_tried_again(
    tmp_path: Path, chores: Chores, caplog: pytest.LogCaptureFixture
) -> None:
    """Issue 13, 5."""
    disk, table = FullDisk(), Counter()
    files = TableFiles(tmp_path, chores, disk, back=asyncio.get_running_loop().call_soon_threadsafe)
    file = files("topics.json")
    table.value = 7
    file.save(table.copy)
    with pytest.raises(TableUnsaved, match=r"cannot write .*topics\.json: No space left on device"):
        await file.saved()
    for _ in range(3):
        with pytest.raises(TableUnsaved):
            await file.saved()
    assert 1 == caplog.text.count("No space left on device"), "once for all retries"

    disk.is_full = False
    files.retry()
    with caplog.at_level(logging.INFO):
        await files.settle()
    assert 7 == file.load(decode)
    assert caplog.messages[-1].endswith("topics.json is saved again")


async def test_a_caller_without_threads_is_told_of_a_disk_that_refuses(tmp_path: Path) -> None:
    """Issue 13, 5: as in a simulation, where saves are done at once."""
    disk = FullDisk()
    file = TableFile(tmp_path / "topics.json", files=disk)
    file.save(as_it_is(b"1"))
    with pytest.raises(TableUnsaved):
        await file.saved()
    disk.is_full = False
    await file.saved()

    assert 1 == file.load(decode)


async def test_a_table_that_cannot_be_encoded_does_not_stop_later_saves(tmp_path: Path, chores: Chores) -> None:
    """Issue 13, 1 and 5: no error may stop others."""
    file = TableFile(tmp_path / "a.json", chores, back=asyncio.get_running_loop().call_soon_threadsafe)

    def fail() -> bytes:
        raise ValueError("bad table")

    file.save(lambda: fail)
    with pytest.raises(TableUnsaved, match="bad table"):
        await file.saved()
    file.save(as_it_is(b"1"))
    await file.saved()

    assert 1 == file.load(decode)


async def test_the_end_waits_for_all_that_has_changed(tmp_path: Path) -> None:
    """Issue 13, 5."""
    table = Counter()
    with Chores() as chores:
        files = TableFiles(tmp_path, chores, back=asyncio.get_running_loop().call_soon_threadsafe)
        many = [files(f"{number}.json") for number in range(5)]
        for value in range(20):
            table.value = value
            for file in many:
                file.save(table.copy)
        await files.settle()

    assert [19] * 5 == [file.load(decode) for file in many]


def test_a_chore_that_fails_does_not_stop_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("bad chore")

    with Chores() as chores:
        chores(fail)
        TableFile(tmp_path / "a.json", chores).save(as_it_is(b"1"))

    assert "a background task failed" in caplog.text
    assert (tmp_path / "a.json").read_bytes() == b"1"


def test_work_that_is_held_back_is_done_in_order_once_it_may_begin() -> None:
    """C7: a broker writes its tables when its store is open, not before."""
    done: list[str] = []
    chores = HeldBack()
    for name in ("first", "second"):
        chores(lambda name=name: done.append(name))  # type: ignore[misc]
    assert [] == done
    chores.begin(do_now)
    assert ["first", "second"] == done
    chores(lambda: done.append("third"))
    assert ["first", "second", "third"] == done
