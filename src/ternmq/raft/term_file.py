"""What a Raft node must never forget, and what it likes to remember: two small files (P1, P2;
``wire.layouts.raft_state``).

``currterm``, with term and vote, is on the disk, name and all, before ``TermFile.save`` returns: a node that forgets
its vote votes twice. So does one whose older vote comes to the disk behind a newer one: a thread that still saves when
its node ends must be over before another node reads the file (``TermFile.close``). ``checkpoint``, with the commit
index, lags behind: a node that loses it only starts slower.
"""

from __future__ import annotations

from pathlib import Path
from threading import Lock

from ternmq.errors import CorruptFile, StoreError
from ternmq.store.disk.base import Disk
from ternmq.wire.layouts.raft_state import Saved, Vote, pack_saved, pack_vote, unpack_saved, unpack_vote


class TermFile:
    """``currterm``, for one life of a node. Any thread may save and close."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._saving = Lock()
        self._is_closed = False

    def load(self, *, has_entries: bool = False) -> Vote:
        """Term and vote; term 0 without a file, if the log never had an entry. Raises ``CorruptFile``: a node that
        guesses could vote twice."""
        data = self._disk.read(self._path)
        if data is None and not has_entries:
            return Vote(0, None)
        # A log with entries and no file: it was removed, or left out when the directory was copied.
        vote = unpack_vote(data or b"")
        if vote is None:
            raise CorruptFile(
                f"{self._path} does not show a term and a vote; move the directory of this member away and start it "
                "again: it gets the log from the group",
                path=str(self._path),
            )
        return vote

    def save(self, vote: Vote) -> None:
        """Durable when it returns. Raises ``StoreError``; then no message of this term may be sent."""
        with self._saving:
            if self._is_closed:
                raise StoreError(f"{self._path} was not written: the node has ended")
            self._disk.replace(self._path, pack_vote(vote))

    def close(self) -> None:
        """Wait for a save that is under way; from now on none changes the file. Call it before the lock of the
        directory is given back: the next life may vote at once. Blocks, so that no cancellation can leave it out."""
        with self._saving:
            self._is_closed = True


class CommitFile:
    """``checkpoint``."""

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path

    def load(self) -> Saved:
        """What was saved last; nothing if the file cannot be understood."""
        return unpack_saved(self._disk.read(self._path) or b"")

    def save(self, saved: Saved) -> None:
        """Durable when it returns. Raises ``StoreError``."""
        self._disk.replace(self._path, pack_saved(saved))
