"""Term, vote and commit index on the disk (P1, P2)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from ternmq.errors import CorruptFile
from ternmq.raft.term_file import CommitFile, TermFile
from ternmq.store.disk.file_disk import FileDisk
from ternmq.testing.disk import PowerCut, SimulatedDisk
from ternmq.wire.layouts.raft_state import Saved, Vote

ROOT = Path("/store/dledger-n0")


def test_a_vote_is_on_the_disk_when_save_returns() -> None:
    """P1: a power cut at any step leaves the old vote or the new one, and the new one once ``save`` has returned."""
    for seed in range(10):
        for steps in range(12):
            disk, random = SimulatedDisk(page_bytes=16), Random(seed)
            file = TermFile(disk, ROOT / "currterm")
            file.save(Vote(3, "n1"))
            left = [steps]

            def burn(_kind: str, _path: Path, left: list[int] = left) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise PowerCut

            disk.before = burn
            allowed = [Vote(3, "n1"), Vote(4, None)]
            try:
                file.save(Vote(4, None))
                allowed = [Vote(4, None)]
            except PowerCut:
                pass
            disk.power_cut(random)
            assert TermFile(disk, ROOT / "currterm").load() in allowed


def test_the_files_are_read_as_java_writes_them(tmp_path: Path) -> None:
    """P2: DLedger writes them with ``Properties``, whose lines have any order, comments and spaces."""
    path = tmp_path / "currterm"
    assert Vote(0, None) == TermFile(FileDisk(), path).load()
    path.write_text("#a comment\n\nvoteLeader=n2\ncurrTerm = 12\n")
    assert Vote(12, "n2") == TermFile(FileDisk(), path).load()
    path.write_text("voteLeader=\ncurrTerm=1\n")
    assert Vote(1, None) == TermFile(FileDisk(), path).load()
    file = CommitFile(FileDisk(), tmp_path / "checkpoint")
    assert Saved() == file.load()
    (tmp_path / "checkpoint").write_text("committedIndex=7\nendIndex=9\n")
    assert Saved(9, 7) == file.load()
    file.save(Saved(100, 90, 40, 1 << 30, 3))
    assert Saved(100, 90, 40, 1 << 30, 3) == file.load()
    (tmp_path / "checkpoint").write_bytes(b"\xff\x00committed")
    assert Saved() == file.load()


@pytest.mark.parametrize("text", ["", "currTerm=x\nvoteLeader=\n", "currTerm=4\n", "currTerm=-1\nvoteLeader=n0\n"])
def test_a_vote_that_cannot_be_read_is_never_guessed(tmp_path: Path, text: str) -> None:
    """P1: the node would vote a second time."""
    (tmp_path / "currterm").write_text(text)
    with pytest.raises(CorruptFile, match="it gets the log from the group"):
        TermFile(FileDisk(), tmp_path / "currterm").load()


def test_a_vote_that_is_missing_beside_entries_is_never_guessed(tmp_path: Path) -> None:
    """P1: a member that has entries has had a term; without it, it would vote a second time."""
    file = TermFile(FileDisk(), tmp_path / "currterm")
    assert Vote(0, None) == file.load(has_entries=False)
    with pytest.raises(CorruptFile, match="does not show a term"):
        file.load(has_entries=True)
