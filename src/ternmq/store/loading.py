"""A store directory that is locked and loaded, and is being brought to a state in which it can be used (C7, C8).

``LoadedStore`` has the log and all that is derived from it. It accepts nothing and reads nothing; ``recover`` finds the
log's end and folds what is missing. ``MessageStore.open`` makes an open store of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import Final

from ternmq.env import Clock
from ternmq.errors import DiskFull, StoreError
from ternmq.store.config import StoreConfig
from ternmq.store.derived.dispatch import Dispatcher, OnArrival
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.follower import OnProgress
from ternmq.store.derived.index import Index
from ternmq.store.derived.parts import Derived, Parts
from ternmq.store.derived.queue_ext import QueueExts
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.derived.trouble import Trouble
from ternmq.store.disk.base import Disk, HeldLock
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.store.durable.recovery import recover
from ternmq.store.log.pending import Pending
from ternmq.store.log.plain_log import PlainLog
from ternmq.store.log.protocol import Log

log = logging.getLogger(__name__)

#: Seconds between two lines of the log about a recovery.
_TELL_S: Final = 5.0


def lock_directory(config: StoreConfig, disk: Disk) -> HeldLock:
    """Lock a store's directory, and make it if it does not exist. Raises ``StoreLocked``."""
    return disk.lock(config.store_path_root_dir / "lock")


class LoadedStore:
    """The parts of a store, from its files. The caller has locked the directory."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock,
        disk: Disk,
        log: Log | None,
        derived: Sequence[Derived],
        on_arrival: OnArrival | None,
        listened: Container[str] | None,
        bits: Callable[[Fact], bytes] | None,
    ) -> None:
        """Load all files, and change none. Raises ``CorruptFile`` or another ``StoreError``."""
        self.config = config
        self.disk = disk
        self._clock = clock
        root = self._root = config.store_path_root_dir
        self.checkpoint_path: Final = root / "checkpoint"
        self._abort_path = root / "abort"
        self.log: Final[Log] = (
            log
            if log is not None
            else PlainLog(disk, config.log_paths, segment_bytes=config.mapped_file_size_commit_log)
        )
        self.trouble: Final = Trouble(self.log.window)
        self.parts: Final = Parts(derived, disk=disk, root=root, view=self.log.view, on_trouble=self.trouble.note)
        files = FilePool(disk)
        exts = QueueExts(
            disk,
            root / "consumequeue_ext",
            files=files,
            file_bytes=config.mapped_file_size_consume_queue_ext,
            writes=config.enable_consume_queue_ext,
            bits=bits,
        )
        self.queues: Final = ConsumeQueues(
            disk,
            root / "consumequeue",
            file_bytes=config.queue_file_bytes,
            files=files,
            exts=exts,
            folded_topics=self.parts.topics,
            on_trouble=self.trouble.note,
        )
        self.index: Final = self._new_index() if config.message_index_enable else None
        self.deleted: Final = DeletedTopics(disk, root / "deletedTopics.json")
        self.dispatcher: Final = Dispatcher(
            self.queues,
            self.index,
            self.deleted,
            delays_ms=config.delay_levels_ms,
            parts=self.parts,
            on_arrival=on_arrival,
            listened=listened,
        )
        self.pending: Final = Pending(self.log, self.queues, self.dispatcher)
        try:
            # Also of names that a process made which died before it had synced them.
            disk.sync_names(root)
            self._abort = disk.read(self._abort_path)
            #: Whether the process that had the store before has closed it.
            self.was_closed: Final = self._abort is None
            self._load()
            self.checkpoint: Final = Checkpoint.load(disk, self.checkpoint_path)
        except BaseException:
            self.close()
            raise

    def _new_index(self) -> Index:
        config = self.config
        return Index(
            self.disk,
            self._root / "index",
            slots=config.max_hash_slot_num,
            entries=config.max_index_num,
            file_bytes=config.index_file_bytes,
            now_ms=self._clock.now_ms,
            on_trouble=self.trouble.note,
        )

    def _load(self) -> None:
        self.log.load()
        self.queues.load(lenient=not self.was_closed, log_min_offset=self.log.begin)
        if self.index is not None:
            self.index.load()
        self.deleted.load()
        self.parts.load()
        for path in self._written_paths():
            self.disk.check_writable(path)

    def _written_paths(self) -> Iterator[Path]:
        """What must be writable, or a broker would start and refuse every message."""
        root = self._root
        yield from (root, root / "config", self.checkpoint_path, self.queues.directory)
        yield from self.log.directories.writable
        yield from dict.fromkeys(path for queue in self.queues for path in (queue.directory.parent, queue.directory))
        if self.index is not None:
            yield self.index.directory
            yield from (self.index.directory / entry.name for entry in self.disk.list(self.index.directory))
        for paths in self.parts.files():
            yield from paths

    def recover(self, on_progress: OnProgress | None) -> None:
        """Find the log's end, and fold what queues, index and derived parts do not have. Raises ``StoreError``.

        ``on_progress`` is told, on this thread, how many bytes of the log are checked and how many there are.
        """
        boot_id, checkpoint = self.disk.boot_id(), self.checkpoint
        # From here on files change. A start that finds them half changed must trust no page, as after a power cut.
        self.write_abort("")
        recovered = recover(
            self.log,
            self.queues,
            self.index,
            self.deleted,
            self.dispatcher,
            checkpoint,
            self._save_checkpoint,
            was_closed=self.was_closed,
            # Without a restart of the machine the page cache has lost nothing.
            lost_pages=not self.was_closed and (not boot_id or boot_id.encode() not in (self._abort or b"")),
            check_crc=self.config.check_crc_on_recover,
            on_progress=self._telling(on_progress),
        )
        self.deleted.cut(recovered.end, log_min=self.log.begin)
        self._finish_deleting()
        self.pending.restore(
            recovered.unconfirmed, dispatched=recovered.confirmed, store_time_ms=recovered.confirmed_time_ms
        )
        log.info(
            "store opened",
            extra={
                "path": str(self._root),
                "was_closed": self.was_closed,
                "log_end": recovered.end,
                "records_checked": recovered.records,
                "trouble": recovered.trouble,
                "queues": len(self.queues),
            },
        )
        # Now, while there may be space: a full disk later takes what overwrites it.
        self._save_checkpoint()
        self.write_abort(boot_id)

    def _save_checkpoint(self) -> None:
        self.disk.write(self.checkpoint_path, self.checkpoint.pack())

    def _telling(self, on_progress: OnProgress | None) -> OnProgress:
        """Adds a line to the log now and then, so that an operator sees why a start takes long."""
        told_at = self._clock.monotonic()

        def tell(done_bytes: int, total_bytes: int) -> None:
            nonlocal told_at
            if self._clock.monotonic() - told_at >= _TELL_S:
                told_at = self._clock.monotonic()
                log.info("recovering", extra={"done_bytes": done_bytes, "total_bytes": total_bytes})
            if on_progress is not None:
                on_progress(done_bytes, total_bytes)

        return tell

    def _finish_deleting(self) -> None:
        """Remove queues that a process was deleting when it died: their first record is older than the deletion."""
        for queue in list(self.queues):
            if queue.topic in self.deleted:
                # One of whose files only the last was left has no entry now, and would keep its numbering.
                first = queue.entry(queue.min_offset)
                if self.deleted.is_deleted(queue.topic, first[0] if first else self.log.begin):
                    self.queues.remove_queue(queue)

    def write_abort(self, boot_id: str) -> None:
        """Note that the store is open: by which process, and in which boot of the machine; "": trust no page."""
        try:
            self.disk.replace(self._abort_path, f"{os.getpid()}\n{boot_id}\n".encode())
        except DiskFull:
            # What a process left that died says the same, or asks for more care. A full disk that keeps a broker from
            # starting would also keep it from deleting what is old.
            if self.disk.read(self._abort_path) is None:
                raise

    def distrust_pages(self) -> None:
        """Let the next start trust no page that was not synced, as after a power cut."""
        with contextlib.suppress(StoreError):
            self.write_abort("")

    def remove_abort(self) -> None:
        """Note that the store was closed."""
        self.disk.remove(self._abort_path)

    def close(self) -> None:
        """Close the files. Views of the log that were handed out stay valid."""
        self.log.close()
        self.queues.files.close()
