"""Files that hold a table: what survives a crash, and what is refused (D1, D4)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ternmq.errors import CorruptFile
from ternmq.files import Chores, TableFile


def decode(data: bytes) -> Any:
    return json.loads(data)


@pytest.fixture
def file(tmp_path: Path) -> TableFile:
    return TableFile(tmp_path / "config" / "topics.json")


def test_what_was_saved_is_loaded(file: TableFile) -> None:
    file.save(b'{"a":1}')

    assert file.load(decode) == {"a": 1}


def test_a_table_never_saved_is_none(file: TableFile) -> None:
    assert file.load(decode) is None


def test_the_version_before_stays_as_backup(file: TableFile) -> None:
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')

    assert decode(file.backup.read_bytes()) == {"a": 1}
    assert file.load(decode) == {"a": 2}


@pytest.mark.parametrize("damage", [b"", b"  \n", b'{"a":', b"\x00" * 20])
def test_a_damaged_file_gives_way_to_its_backup(file: TableFile, damage: bytes) -> None:
    """D4: a power cut may leave an empty or torn file."""
    file.save(b'{"a":1}')
    file.save(b'{"a":2}')
    file.path.write_bytes(damage)

    assert file.load(decode) == {"a": 1}


def test_a_crash_between_the_two_renames_loses_nothing(file: TableFile) -> None:
    file.save(b'{"a":1}')
    file.path.rename(file.backup)

    assert file.load(decode) == {"a": 1}


def test_a_table_of_which_nothing_is_readable_is_not_taken_for_empty(file: TableFile) -> None:
    file.save(b"nonsense")

    with pytest.raises(CorruptFile, match=r"topics\.json.*restore"):
        file.load(decode)


def test_of_many_saves_that_wait_only_the_last_is_written(tmp_path: Path) -> None:
    chores: list[Any] = []
    file = TableFile(tmp_path / "offsets.json", chores.append)
    for version in range(5):
        file.save_soon(b"%d" % version)
    for work in chores:
        work()

    assert file.load(decode) == 4
    assert not file.backup.exists()


def test_leaving_the_chores_waits_for_what_was_handed_in(tmp_path: Path) -> None:
    with Chores() as chores:
        file = TableFile(tmp_path / "offsets.json", chores)
        file.save_soon(b"7")

    assert file.load(decode) == 7


def test_a_disk_that_refuses_is_logged_and_the_owner_goes_on(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "config").write_text("a file where the directory should be")
    file = TableFile(tmp_path / "config" / "topics.json")

    file.save(b"1")

    assert "could not be written" in caplog.text


def test_a_chore_that_fails_does_not_stop_the_next(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> None:
        raise ValueError("bad chore")

    with Chores() as chores:
        chores(fail)
        TableFile(tmp_path / "a.json", chores).save_soon(b"1")

    assert "a chore failed" in caplog.text
    assert (tmp_path / "a.json").read_bytes() == b"1"
