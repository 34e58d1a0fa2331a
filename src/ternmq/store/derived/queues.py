"""All ConsumeQueues of a store, as one thing that is derived from the log (C2, C5).

Folds of records find their queue here, new queues begin here, and what concerns all of them goes through here: load,
cut, write out, sync. One queue is ``store.derived.queue``, their files are ``store.derived.queue_files``.

Not every topic has queues of ours. RocketMQ 5 keeps some in ``batchconsumequeue`` (*foreign* topics), and a queue of
ours for one of them would keep it from starting on this directory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ternmq.errors import CorruptFile, RecordRefused, StoreError
from ternmq.store.derived.light import LIGHT_PREFIX, LIGHT_TABLE
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queue_ext import QueueExts
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.derived.trouble import OnTrouble, raise_it
from ternmq.store.disk.base import Disk
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES

if TYPE_CHECKING:
    from ternmq.store.derived.fact import Fact

log = logging.getLogger(__name__)

#: Topics are directory names, and no longer than those can be.
TOPIC_BYTES_MAX: Final = 255


class ConsumeQueues:
    """All queues of a store, as one thing derived from the log."""

    __slots__ = (
        "_on_trouble",
        "directory",
        "dirty",
        "disk",
        "exts",
        "file_bytes",
        "files",
        "folded_topics",
        "foreign",
        "has_light",
        "table",
        "unsynced",
    )

    def __init__(
        self,
        disk: Disk,
        directory: Path,
        *,
        file_bytes: int,
        files: FilePool | None = None,
        exts: QueueExts | None = None,
        folded_topics: Container[str] = frozenset(),
        on_trouble: OnTrouble = raise_it,
    ) -> None:
        """``exts`` are the rows of units beside the queues (C3), which use the same ``files``.

        ``folded_topics`` are those that derived parts need (``store.derived.parts``). ``on_trouble`` is told when
        entries could not be written out; the log should take no more for now.
        """
        self.disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self.files = files if files is not None else FilePool(disk)
        self.folded_topics = folded_topics
        self.exts = exts
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        #: Topics that RocketMQ 5 keeps in ``batchconsumequeue``: a queue of ours for one of them would keep it from
        #: starting on this directory. Their records are left alone.
        self.foreign: Container[str] = frozenset()
        #: Whether RocketMQ has made light queues here (``store.derived.light``).
        self.has_light = False
        #: Queues with entries in memory only, and queues with files that were written to and not synced; in order.
        self.dirty: dict[ConsumeQueue, None] = {}
        self.unsynced: dict[ConsumeQueue, None] = {}
        self._on_trouble = on_trouble

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.table.values())

    def __len__(self) -> int:
        return len(self.table)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new if there was none. Its files come with its first entries."""
        key = (topic, queue_id)
        queue = self.table.get(key)
        if queue is None:
            if not _is_storable(topic, queue_id):
                raise RecordRefused(
                    f"queue {queue_id} of topic {topic!r} cannot be stored; use a topic that is a file name "
                    f"of 1 to {TOPIC_BYTES_MAX} bytes, and a queue id from 0 on"
                )
            if topic in self.foreign:
                raise batch_refused(topic)
            queue = self.table[key] = ConsumeQueue(self, topic, queue_id)
        return queue

    def overflow(self, queue: ConsumeQueue) -> None:
        """Write out a queue whose memory is full. The record is in the log already, so this cannot refuse it."""
        try:
            queue.write_out()
        except StoreError as error:
            self._on_trouble(error)

    # --- Derived ------------------------------------------------------------------------------------------------

    def fold(self, fact: Fact) -> None:
        """Add the entry of a record read from the log, unless it is there already."""
        if not fact.is_queued or fact.topic in self.foreign:
            return
        try:
            queue = self.make(fact.topic, fact.queue_id)
        except RecordRefused as error:
            log.error("record left out", extra={"log_offset": fact.log_offset, "reason": str(error)})
            return
        if fact.log_offset < queue.log_end:
            return
        gap = fact.queue_offset - queue.next_offset
        if gap and not self._close_gap(queue, fact, gap):
            return
        queue.add(fact)

    def _close_gap(self, queue: ConsumeQueue, fact: Fact, gap: int) -> bool:
        """Make ``queue`` continue with the record's queue offset; False if the record cannot belong to it."""
        if queue.min_offset == queue.next_offset or fact.queue_offset == 0:
            # The first that is left of the queue, or the first since its topic was deleted and made again.
            queue.begin_at(fact.queue_offset)
            return True
        extra = {"topic": queue.topic, "queue_id": queue.queue_id, "log_offset": fact.log_offset, "gap": gap}
        if 0 < gap <= self.file_bytes // ENTRY_BYTES:
            log.warning("queue offsets left out", extra=extra)
            queue.fill_to(fact.queue_offset)
            return True
        log.error("record left out: its queue offset does not follow", extra=extra)
        return False

    def cut(self, log_offset: int, *, distrust: bool = False) -> None:
        """Forget what came from ``log_offset`` on; with ``distrust`` also what may lie behind a queue's visible end.

        After a power cut, a page that was never written may hide entries behind it from ``load``, and so may a file.
        """
        if distrust and self.exts is not None:
            self.exts.remove_strays()
        for queue in self:
            if distrust:
                queue.remove_strays()
            if distrust or queue.log_end > log_offset:
                queue.cut(log_offset)

    def resume(self, log_offset: int) -> None:
        """Go on where a killed process stopped; what it made of records before ``log_offset`` is synced."""
        if self.exts is not None:
            self.exts.remove_strays()
        for queue in self:
            queue.remove_strays()
            queue.resume(log_offset)

    def write_out(self, count_max: int) -> bool:
        """Write out the entries of at most ``count_max`` queues; True if that was all. Raises ``DiskFull``."""
        for queue in list(islice(self.dirty, count_max)):
            queue.write_out()
        return not self.dirty

    def take_unsynced(self, bytes_min: int) -> list[Path]:
        """Files to sync, of queues to which at least so many bytes were written."""
        queues = [queue for queue in self.unsynced if queue.unsynced_bytes >= bytes_min]
        for queue in queues:
            del self.unsynced[queue]
        return [path for queue in queues for path in queue.take_unsynced()]

    # --- Life -----------------------------------------------------------------------------------------------------

    def load(
        self,
        *,
        lenient: bool = False,
        log_min_offset: int = 0,
        on_corrupt: Callable[[CorruptFile], None] | None = None,
    ) -> None:
        """Find all queues; changes nothing. Raises ``CorruptFile``, or tells ``on_corrupt`` and leaves that queue out.

        ``lenient``: what a power cut left of files that were not synced is no reason to refuse; a cut follows. Files of
        records before ``log_min_offset`` were deleted, whatever is found of them.
        """
        if self.exts is not None:
            self.exts.load(lenient=lenient)
        batches = self.disk.list(self.directory.with_name("batchconsumequeue"))
        self.foreign = frozenset(topic for topic, _, is_directory in batches if is_directory)
        self.has_light = any(name == LIGHT_TABLE for name, _, _ in self.disk.list(self.directory.with_name("config")))
        for topic, _, is_directory in self.disk.list(self.directory):
            if not is_directory or topic in self.foreign:
                continue
            self.has_light = self.has_light or topic.startswith(LIGHT_PREFIX)
            for name, _, is_queue in self.disk.list(self.directory / topic):
                # RocketMQ skips what is no number, and so do we.
                if is_queue and name.isascii() and name.isdigit():
                    try:
                        self.make(topic, int(name)).load(lenient=lenient, log_min_offset=log_min_offset)
                    except CorruptFile as error:
                        if on_corrupt is None:
                            raise
                        del self.table[topic, int(name)]
                        on_corrupt(error)

    def raise_min(self, log_min_offset: int) -> None:
        for queue in self:
            queue.raise_min(log_min_offset)

    def hollow(self) -> list[ConsumeQueue]:
        """Queues that begin with fillers: in a log that has all records from 0 on, they lack entries."""
        hollow = [queue for queue in self if queue.is_hollow()]
        for queue in hollow:
            log.warning(
                "a queue lacks its first entries, and is made again from the log",
                extra={"topic": queue.topic, "queue_id": queue.queue_id},
            )
        return hollow

    def forget_numbers(self) -> None:
        """Let queues without entries begin with 0: for a log that has forgotten nothing which they could have had."""
        for queue in self:
            queue.forget_numbers()

    def remove_queue(self, queue: ConsumeQueue) -> None:
        """Remove one queue; the others of its topic stay."""
        queue.remove()
        del self.table[queue.topic, queue.queue_id]
        self.files.remove(queue.directory)
        if not any(topic == queue.topic for topic, _ in self.table):
            self.remove_topics([queue.topic])

    def remove_topics(self, topics: Iterable[str]) -> None:
        """Remove the queues of these topics. Their records stay in the log until it forgets them."""
        gone = {topic for topic in topics if _is_storable(topic, 0)}
        for key, queue in list(self.table.items()):
            if key[0] in gone:
                queue.remove()
                del self.table[key]
        for topic in sorted(gone):
            self.files.remove(self.directory / topic)
        if self.exts is not None:
            self.exts.remove_topics(gone)

    def close(self) -> None:
        """Write everything out, sync it and close the files."""
        self.write_out(len(self.dirty))
        for path in self.take_unsynced(0):
            self.disk.sync_file(path)
        for directory in self.files.take_unsynced_names():
            self.disk.sync_names(directory)
        self.files.close()


def batch_refused(topic: str) -> RecordRefused:
    """Why a record of a topic with batch queues is not stored."""
    return RecordRefused(
        f"topic {topic!r} has batch queues of RocketMQ 5 (queue.type=BatchCQ), which TernMQ cannot write; "
        "use another topic"
    )


def _is_storable(topic: str, queue_id: int) -> bool:
    """Whether a topic can be a directory's name: also what a stranger sends must stay inside the store."""
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
        return False
    return len(topic.encode("utf-8", "replace")) <= TOPIC_BYTES_MAX
