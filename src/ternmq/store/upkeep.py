"""What keeps the files of an open store in order: flush, safety, retention, full disks (C6, C7, C9).

``MessageStore`` owns one. Its parts are in ``durable``; here they meet. All calls come from the store's thread, by
itself or through the mailbox.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

from ternmq.env import Clock
from ternmq.errors import DiskFull, NotRunning, StoreError, TernError
from ternmq.files import Chores, do_now
from ternmq.store.config import FlushDiskType
from ternmq.store.disk.base import Segment
from ternmq.store.durable.flush import Flusher
from ternmq.store.durable.mailbox import JobBox
from ternmq.store.durable.retention import Retention
from ternmq.store.durable.safety import Level, Safety
from ternmq.store.loading import LoadedStore
from ternmq.store.replica import Replica
from ternmq.wire.codes import ResponseCode


class Upkeep:
    """Begins to work when it is made, with threads or without."""

    def __init__(self, loaded: LoadedStore, replica: Replica, *, clock: Clock, mailbox: JobBox, threads: bool) -> None:
        config = loaded.config
        self._loaded = loaded
        self._replica = replica
        self._mailbox = mailbox
        self._is_open = True
        #: A flush without a thread is on its way.
        self._is_woken = False
        #: Where files are deleted.
        self._chores = Chores() if threads else None
        self.flusher = Flusher(
            config,
            clock=clock,
            disk=loaded.disk,
            commit_log=loaded.log,
            queues=loaded.queues,
            index=loaded.index,
            parts=loaded.parts,
            checkpoint=loaded.checkpoint,
            checkpoint_path=loaded.checkpoint_path,
            pending=loaded.pending,
            post=mailbox.post,
            on_tick=self._tick,
            on_failure=self._broken,
        )
        is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        own_disk = Level(
            self.flusher.flushed, config.sync_flush_timeout, ResponseCode.FLUSH_DISK_TIMEOUT, is_awaited=is_sync
        )
        self.safety = Safety([own_disk])
        self.retention = Retention(
            config,
            clock=clock,
            disk=loaded.disk,
            commit_log=loaded.log,
            queues=loaded.queues,
            index=loaded.index,
            needed=self._needed,
            hurry=self._hurry,
            chores=self._chores or do_now,
            post=mailbox.post,
        )
        #: To be called after each append under SYNC_FLUSH.
        self.wake: Callable[[], None] = _nothing
        if is_sync and (threads or mailbox.has_loop):
            self.wake = self.flusher.wake if threads else self._flush_next
        if self._chores is not None:
            loaded.queues.files.start_thread(self._chores)
            loaded.log.start_threads(self._let_go)
            self.flusher.start()

    def close(self) -> None:
        """Have everything on the disk, and close all files. Raises ``StoreError`` if that fails. Once."""
        loaded, self._is_open = self._loaded, False
        self.retention.close()
        try:
            loaded.log.refuse(NotRunning("the store is closed"))
            if loaded.index is not None and loaded.log.end:
                loaded.index.ensure_file()
            self.flusher.close()
            loaded.log.close()
            loaded.remove_abort()
        finally:
            loaded.close()
            if self._chores is not None:
                self._chores.close()

    def check_open(self) -> None:
        """Raise ``NotRunning`` once the store is closed."""
        if not self._is_open:
            raise NotRunning("the store is closed; open it again")

    # --- Flush ----------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """What the flush thread asks for every second."""
        self.check_open()
        self._tick()
        self._mailbox.pick_up()

    def _tick(self) -> None:
        if self._is_open:
            self.flusher.tick()
            self.retention.tick()
            self._replica.tell()

    def _flush_next(self) -> None:
        """Wake a flush in the next turn of the loop, for all records that are appended in this one."""
        if not self._is_woken:
            self._is_woken = True
            self._mailbox.post(self._flush_woken)

    def _flush_woken(self) -> None:
        self._is_woken = False
        if self._is_open:
            # A failure is told to all that wait (``_broken``), and by the flusher from then on.
            with contextlib.suppress(StoreError):
                self.flusher.flush_when_due()

    def _broken(self) -> None:
        """A sync has failed: the log takes nothing any more, and waiting for the disk is in vain."""
        self._loaded.distrust_pages()
        self.safety.give_up()

    def truncate(self, log_offset: int, reason: TernError) -> None:
        """Take back all records from the position ``log_offset`` on; see ``MessageStore.truncate``."""
        self.check_open()
        loaded = self._loaded
        try:
            self.flusher.truncate(log_offset, loaded.pending.time_before(log_offset))
            loaded.deleted.cut(log_offset, log_min=loaded.log.begin)
        except StoreError as error:
            # Only a start can tell what is left.
            self.flusher.fail(error)
            raise
        self._replica.cut(log_offset)
        # Last, because a caller that is told may append again.
        self.safety.retreat(log_offset, reason)

    # --- Retention, and full disks --------------------------------------------------------------------------------

    def _needed(self) -> int | None:
        """Log offset from which on a derived part needs the records; None if none does."""
        loaded = self._loaded
        needed = [needed] if (needed := loaded.parts.needed) is not None else []
        if loaded.pending.dispatched < loaded.log.end:
            needed.append(loaded.pending.dispatched)
        if self._is_open and not self.retention.refusal:
            # A queue whose entries are lost with a power cut, when their records are gone, would begin with 0 again.
            # On a full disk that is the smaller evil: entries may wait for the very space that is to be freed.
            needed.append(self.flusher.derived_synced)
        return min(needed, default=None)

    def _hurry(self) -> None:
        """Retention waits: have what derived parts got on the disk soon, not only with the next pass in its time."""
        if self._loaded.parts:
            self.flusher.begin_pass()

    def _let_go(self, segment: Segment) -> None:
        """Have the last reference to a segment end on the chores thread."""
        assert self._chores is not None
        self._chores(partial(_forget, segment))

    def catch_up(self) -> None:
        """Before the log takes more: hear the flush thread, and write what a full disk left undone.

        Raises ``StoreError`` or ``NotRunning`` if no record can be taken now.
        """
        loaded = self._loaded
        self._mailbox.pick_up()
        loaded.pending.check_accepts()
        if self.retention.refusal:
            raise DiskFull(self.retention.refusal)
        if loaded.trouble.is_there:
            loaded.queues.write_out(len(loaded.queues.dirty))
            if loaded.index is not None:
                loaded.index.write_out()
            loaded.parts.write_out()
            loaded.trouble.is_there = False


def _forget(_segment: Segment) -> None:
    """The last reference ends with this call."""


def _nothing() -> None:
    """Nothing has to be woken: the owner of the store flushes, or the flush thread does in its time."""
