"""A store directory, opened to be looked at: no lock, nothing changed, beside a running broker or without one (C11).

``StoreView`` finds out how large the files are (``sizes``), opens log, queues and index through a disk that only reads,
and knows what else lies there: checkpoint, ``abort``, tables. Everything else in this package begins with one.

A broker that runs goes on writing while we look. So the log's end is read once, and a caller that finds the queues
behind it must ask ``may_lag``: newest entries may be in the broker's memory only, and are lost after a crash.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ternmq.errors import CorruptFile, CorruptRecord, StoreError
from ternmq.files import TableFile
from ternmq.store.config import parse_delay_levels
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queue_ext import QueueExts
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.file_lock import lock_holder
from ternmq.store.disk.segment import segment_files
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.store.inspect.sizes import InspectConfig, Sizes, find_sizes
from ternmq.store.log.protocol import Log
from ternmq.wire.bodies.codec import BodyT, decode
from ternmq.wire.bodies.topics import TopicTable
from ternmq.wire.record import Record, unpack_record

#: One of these is in every store, also in one that has taken no message yet.
_MARKS: Final = ("commitlog", "consumequeue", "checkpoint", "config")


class StoreView:
    """One directory. Raises ``StoreError`` if it is no store, or cannot be read; ``CorruptFile`` for what does not fit.

    ``on_corrupt`` is told of queue files that do not fit, instead, and the queue is left out.
    """

    def __init__(
        self,
        root: Path,
        config: InspectConfig | None = None,
        *,
        on_corrupt: Callable[[CorruptFile], None] | None = None,
    ) -> None:
        self.root = root
        self.config = config or InspectConfig()
        self.disk = FileDisk(writable=False)
        self._check_is_store()
        self.holder = lock_holder(root / "lock")
        self.was_closed = self.disk.read(root / "abort") is None
        self.checkpoint = Checkpoint.load(self.disk, root / "checkpoint")
        self.sizes: Sizes = find_sizes(self.disk, root, self.config)
        self.delays_ms = parse_delay_levels(self.config.message_delay_level)
        self.deleted = DeletedTopics(self.disk, root / "deletedTopics.json")
        self.deleted.load()
        self.place = self.config.log_place(self.disk, root)
        plain = self.place.open(self.disk, segment_bytes=self.sizes.segment)
        self.log: Log = plain
        self._segments = segment_files(
            self.disk, self.log.directories.all, size=self.sizes.segment, key="mappedFileSizeCommitLog"
        )
        files = FilePool(self.disk)
        exts = QueueExts(
            self.disk, root / "consumequeue_ext", files=files, file_bytes=self.sizes.ext_file, writes=False
        )
        self.queues = ConsumeQueues(
            self.disk, root / "consumequeue", file_bytes=self.sizes.queue_file, files=files, exts=exts
        )
        self.queues.load(on_corrupt=on_corrupt)
        committed = self.place.committed(self.disk, plain)
        #: Position up to which records are known to be confirmed: no others are in queues or index. None: all are.
        self.confirmed = None if committed is None else self._confirmed(committed)

    def _confirmed(self, committed: int) -> int:
        # The commit index is saved now and then. What is dispatched was committed, too.
        dispatched = max((queue.log_end for queue in self.queues), default=0)
        return max(committed, self.checkpoint.derived_offset or 0, dispatched)

    def _check_is_store(self) -> None:
        # Raises if it is a file, or may not be read.
        names = {entry.name for entry in self.disk.list(self.root)}
        is_member = any(name.startswith("dledger-") for name in names)
        if not names.intersection(_MARKS) and not is_member and not self.config.store_path_commit_log:
            what = "is no store, it has no commitlog" if self.root.exists() else "does not exist"
            raise StoreError(f"{self.root} {what}; give the directory that storePathRootDir names")

    @property
    def may_lag(self) -> bool:
        """Whether the newest entries of queues and index may be missing although nothing is wrong."""
        return not self.was_closed or self.holder is not None

    @property
    def index_files(self) -> list[tuple[Path, int]]:
        """Files of the index and their lengths, the oldest first."""
        directory = self.root / "index"
        return [
            (directory / name, length_bytes)
            for name, length_bytes, is_directory in self.disk.list(directory)
            if not is_directory and name.isascii() and name.isdigit()
        ]

    @property
    def foreign_topics(self) -> frozenset[str]:
        """Topics that RocketMQ 5 keeps in queues of another kind."""
        listed = self.disk.list(self.root / "batchconsumequeue")
        return frozenset(topic for topic, _, is_directory in listed if is_directory)

    @property
    def segments(self) -> Mapping[int, Path]:
        """Where each segment of the log starts, and its file, in order."""
        return self._segments

    def table(self, name: str, kind: type[BodyT]) -> BodyT | None:
        """A table of ``config/``, or its backup; None without one. Raises ``CorruptFile``."""
        return TableFile(self.root / "config" / name).load(lambda data: decode(data, kind))

    def known_topics(self) -> set[str] | None:
        """The topics of ``topics.json``; None if that is not known."""
        try:
            table = self.table("topics.json", TopicTable)
        except CorruptFile:
            return None
        return set(table.topic_config_table) if table is not None else None

    def segment_path(self, log_offset: int) -> str:
        """The file in which this byte of the log is, or would be."""
        start = log_offset - log_offset % self.sizes.segment
        return str(self._segments.get(start) or self.log.directories.of_new(start, segment_bytes=self.sizes.segment))

    def next_data(self, log_offset: int) -> int:
        """The first log offset from this one on that is not in a hole of its segment's file; else the segment's end."""
        start = log_offset - log_offset % self.sizes.segment
        found = self.disk.next_data(self._segments[start], log_offset - start)
        return start + (found if found is not None else self.sizes.segment)

    def first_offset(self, queue: ConsumeQueue) -> int:
        """The first queue offset whose record the log still has; the queue's end if it has none."""
        return queue.first_from(self.log.begin)

    def record(self, log_offset: int) -> Record | None:
        """The record at a log offset, if a whole one stands there."""
        data = self.log.record(log_offset)
        if data is None:
            return None
        try:
            return unpack_record(data)
        except CorruptRecord:
            return None
