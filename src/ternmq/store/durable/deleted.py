"""Deleted topics: how recovery knows which records of the log belong to no topic any more (C5, D1).

Deleting a topic removes its queues; its records stay in the log until their segment goes. A fold of the log would
bring the queues back, as it does in RocketMQ. So ``deletedTopics.json`` keeps, for each topic deleted, the log offset
at which that happened: records before it are not queued again. A topic of the same name may exist since. A topic
without queues needs no line, and lines are dropped when the log no longer reaches back to them. RocketMQ does not look
at this file.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from ternmq.errors import UNREADABLE
from ternmq.store.disk.base import Disk

log = logging.getLogger(__name__)


class DeletedTopics:
    """Topic → log offset of its deletion."""

    __slots__ = ("_disk", "_ends", "_path")

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._ends: dict[str, int] = {}

    def load(self) -> None:
        """Read the file. One that cannot be read is no reason to refuse messages: deleted topics come back."""
        data = self._disk.read(self._path)
        if data is None:
            return
        try:
            self._ends = msgspec.json.decode(data, type=dict[str, int])
        except UNREADABLE as error:
            log.warning("deleted topics are not known", extra={"path": str(self._path), "error": str(error)})

    def add(self, topics: Iterable[str], *, log_end: int, log_min: int) -> None:
        """Remember, durably, that these topics have no record before ``log_end``. Raises ``StoreError``."""
        ends = {topic: end for topic, end in self._ends.items() if end > log_min}
        self._save(ends | dict.fromkeys(topics, log_end))

    def cut(self, log_end: int, *, log_min: int) -> None:
        """Let no deletion lie behind the log's end: what a power cut took is gone, and its place is used again. Drop
        those before its beginning."""
        if any(end > log_end or end <= log_min for end in self._ends.values()):
            self._save({topic: min(end, log_end) for topic, end in self._ends.items() if end > log_min})

    def _save(self, ends: dict[str, int]) -> None:
        # First the file: a deletion that was refused must not come with the next one.
        self._disk.replace(self._path, msgspec.json.encode(ends))
        self._ends = ends

    @property
    def ends(self) -> Mapping[str, int]:
        """Topic → log offset of its deletion."""
        return self._ends

    def __contains__(self, topic: str) -> bool:
        return topic in self._ends

    def is_deleted(self, topic: str, log_offset: int) -> bool:
        """Whether the record at ``log_offset`` belonged to a topic of this name that was deleted since."""
        return log_offset < self._ends.get(topic, 0)
