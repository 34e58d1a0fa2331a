"""Term, vote and commit index on the disk (P1, P2)."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from threading import Event, Thread

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.embedded import free_ports
from ternmq.errors import CorruptFile, StoreError
from ternmq.raft.config import RaftConfig
from ternmq.raft.term_file import CommitFile, TermFile
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.file_lock import StoreLock
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


class SlowVotes(FileDisk):
    """A save of a vote takes until the directory is given back, but half a second at most."""

    def __init__(self) -> None:
        self.begins, self.is_given_back = Event(), Event()
        self.events: list[str] = []

    def replace(self, path: Path, data: bytes) -> None:
        if path.name == "currterm":
            self.begins.set()
            self.is_given_back.wait(0.5)
        super().replace(path, data)
        self.events.append(path.name)

    def lock(self, path: Path) -> StoreLock:
        return _Told(path, self)


class _Told(StoreLock):
    def __init__(self, path: Path, disk: SlowVotes) -> None:
        super().__init__(path)
        self._disk = disk

    def release(self) -> None:
        self._disk.events.append("given back")
        self._disk.is_given_back.set()
        super().release()


async def test_no_vote_comes_to_the_disk_after_the_directory_is_given_back(tmp_path: Path) -> None:
    """P1: a task that ends leaves its thread behind. The next life of the member may have saved a newer vote before,
    and would forget it."""
    disk = SlowVotes()
    broker = Broker(
        BrokerConfig(listen_port=0, bind_address="127.0.0.1", broker_ip1="127.0.0.1"),
        StoreConfig(store_path_root_dir=tmp_path, mapped_file_size_commit_log=1 << 20),
        raft=RaftConfig(
            enable_d_leger_commit_log=True, d_leger_self_id="n0", d_leger_peers=(f"n0-127.0.0.1:{free_ports(1)[0]}",)
        ),
        disk=disk,
    )
    async with broker:
        assert await asyncio.to_thread(disk.begins.wait, 60)
    assert "currterm" in disk.events
    assert "given back" == disk.events[-1]


def test_after_close_a_vote_is_not_saved(tmp_path: Path) -> None:
    """P1: not by a thread that was about to; and one that is under way has come to its end."""
    disk, path = SlowVotes(), tmp_path / "currterm"
    file = TermFile(disk, path)
    saving = Thread(target=file.save, args=(Vote(3, "n1"),))
    saving.start()
    assert disk.begins.wait(60)
    file.close()
    assert Vote(3, "n1") == TermFile(FileDisk(), path).load()
    with pytest.raises(StoreError, match="has ended"):
        file.save(Vote(2, "n2"))
    saving.join()
    assert Vote(3, "n1") == TermFile(FileDisk(), path).load()
