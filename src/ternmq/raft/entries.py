"""The entries of one member on their way into its log, out of it again, and to the others (P2, P3)."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from ternmq.errors import NotMaster, RemoteProtocolError
from ternmq.raft.log import RaftLog
from ternmq.raft.messages import Append, RaftMessage
from ternmq.raft.wire import check_entries
from ternmq.store.store import MessageStore
from ternmq.types import Buffer

log = logging.getLogger(__name__)

_NONE: Final = (-1, -1, b"")


class Entries:
    """``commit_log`` is the one that ``store`` was opened with."""

    def __init__(self, store: MessageStore, commit_log: RaftLog) -> None:
        self._store = store
        self._log = commit_log
        #: The last entries that were sent, as bytes: both followers get the same.
        self._packed: tuple[int, int, bytes] = _NONE

    def take(self, message: Append, from_index: int) -> None:
        """Append what the leader has sent, from ``from_index`` on.

        Raises ``DiskFull``; ``BeginsElsewhere`` if the log cannot be continued by them; ``RemoteProtocolError`` for
        what are not these entries.
        """
        at = check_entries(message, from_index) if from_index > message.first_index else 0
        data = memoryview(message.data)[at:]
        arrived = self._log.check_append(data)
        if (arrived.first_index, arrived.last_index) != (from_index, message.last_index):
            raise RemoteProtocolError(
                f"they are {arrived.first_index} to {arrived.last_index}; expected {from_index} to {message.last_index}"
            )
        self._store.append_raw(arrived.position, data)

    def take_back(self, index: int) -> bool:
        """Drop the entries from ``index`` on; False if there are none."""
        position = self._log.cut_before(index)
        if position >= self._log.end:
            return False
        log.warning(
            "taking back %d entries from index %d on: another leader has others there",
            self._log.last_index - index + 1,
            index,
        )
        self._store.truncate(position, NotMaster("another leader was elected before a majority had the message"))
        self._packed = _NONE
        return True

    def of(self, message: RaftMessage) -> Sequence[Buffer]:
        """The bytes of the entries that this message carries."""
        if not isinstance(message, Append) or message.last_index == message.prev_index:
            return ()
        first, last = message.first_index, message.last_index
        if self._packed[:2] != (first, last):
            # Copied: bytes that are not committed may change by a truncation while they wait to be sent.
            self._packed = (first, last, b"".join(self._views(first, last)))
        return (self._packed[2],)

    def _views(self, first: int, last: int) -> Iterator[memoryview]:
        """The bytes of these entries, file by file."""
        end = self._log.end_of(last)
        while first <= last:
            begin = self._log.position_of(first)
            assert begin is not None, "what the core sends is in the log"
            assert end is not None, "up to its end"
            sent, views = self._log.entries(first, end - begin)
            assert first <= sent <= last, "entries are there"
            yield from views
            first = sent + 1
