"""Flush: what was written reaches the disk, in time and for many at once (C6, C7).

ASYNC_FLUSH: every 500 ms if at least 4 pages are dirty, every 10 s in any case, and at once when a segment is full.
SYNC_FLUSH: after each append. While one ``fdatasync`` runs, more records are appended; the next one serves them all
(*group commit*). A caller that needs the disk waits for ``flushed`` to pass its record's end.

Two threads meet here, and the line between them is the rule «threads make system calls, never decisions»:

- the *flush thread* sleeps until it is woken or the time is over, reads the log's end (an int), calls ``fdatasync``
  on the segments behind it, and hands the new position over;
- the *store's thread* takes it (``post``), moves the watermark, and decides what else is to be synced: queue files
  that have grown by two pages every second, everything once a minute. The checkpoint moves after that, never before.

A sync that fails cannot be repeated: the kernel may have dropped the pages and marked them clean. The log then takes
nothing any more, and says so.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Final

from ternmq.env import Clock
from ternmq.errors import DiskFull, StoreError
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.derived.index import Index
from ternmq.store.derived.parts import Parts
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.base import PAGE_BYTES, Disk, Segment
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.durable.mailbox import StoreJob
from ternmq.store.durable.watermark import Watermark
from ternmq.store.log.pending import Pending
from ternmq.store.log.protocol import Log

log = logging.getLogger(__name__)

#: Queues written out in one go on the store's thread: some 1 ms, or 20 where files must be made first.
QUEUES_AT_ONCE: Final = 64


def is_due(
    *, flushed: int, written: int, segment_bytes: int, least_pages: int, idle_ms: float, thorough_ms: int
) -> bool:
    """Whether ASYNC_FLUSH flushes now; ``idle_ms`` have passed since it last did."""
    if flushed == written:
        return False
    if idle_ms >= thorough_ms or flushed // segment_bytes != written // segment_bytes:
        return True
    return written // PAGE_BYTES - flushed // PAGE_BYTES >= least_pages


class Flusher:
    """Keeps a store's files flushed. ``post`` brings a call to the store's thread."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        clock: Clock,
        disk: Disk,
        commit_log: Log,
        queues: ConsumeQueues,
        index: Index | None,
        parts: Parts,
        checkpoint: Checkpoint,
        checkpoint_path: Path,
        pending: Pending,
        post: Callable[[StoreJob], object],
        on_tick: StoreJob,
        on_failure: StoreJob,
    ) -> None:
        """``on_tick`` is called every second and has to call ``tick``. ``on_failure`` is called when a sync has failed:
        pages may be lost although the machine never stopped.
        """
        self._config = config
        self._clock = clock
        self._disk = disk
        self._log = commit_log
        self._queues = queues
        self._index = index
        self._parts = parts
        self._checkpoint = checkpoint
        self._checkpoint_path = checkpoint_path
        self._pending = pending
        self._post = post
        self.flushed = Watermark(commit_log.end)
        self._on_tick = on_tick
        self._on_failure = on_failure
        # The store's thread:
        self._pass_time_ms = -1  # store time that the running pass over all queues vouches for; -1: none runs
        self._pass_offset = 0  # the same as a log offset
        self._pass_at = clock.monotonic()
        self._saved = checkpoint.pack()
        self._closed = False
        # The flush thread:
        self._thread: threading.Thread | None = None
        self._orders: SimpleQueue[StoreJob | None] = SimpleQueue()
        self._synced = commit_log.end
        self._synced_at = clock.monotonic()
        # Both, without a lock: one side sets, the other clears, and a call too many does no harm.
        self._woken = False
        self._tick_waits = False
        self._news: tuple[int, int] | None = None
        #: Held while the log is synced or the checkpoint is written, and while records are taken back.
        self._sync_lock = threading.Lock()
        #: How often records were taken back; a checkpoint from before is not written any more.
        self._truncations = 0
        #: Why nothing is flushed any more.
        self.failure: StoreError | None = None

    # --- The store's thread -------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="ternmq-flush", daemon=True)
        self._thread.start()

    def wake(self) -> None:
        """Flush as soon as possible. Cheap while a wake-up is on its way."""
        if not self._woken:
            self._woken = True
            self._orders.put(_nothing)

    def flush_now(self) -> None:
        """Return when all that was written is on the disk. Raises ``StoreError``, from then on always."""
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        store_time_ms, end = self._log.store_time_ms, self._log.end
        try:
            for segment in self._log.dirty(self.flushed.value, end):
                segment.sync()
        except StoreError as error:
            self.fail(error)
            raise
        self._log.note_synced(end)
        self._advance(end, store_time_ms)

    def flush_when_due(self) -> None:
        """What the thread does with each look, for a store without one. Raises ``StoreError``, from then on always."""
        try:
            self._flush_log(self._config.flush_disk_type is FlushDiskType.SYNC_FLUSH)
        except StoreError as error:
            self.fail(error)
            raise

    def truncate(self, log_offset: int, store_time_ms: int) -> None:
        """Take the records from ``log_offset`` on back from checkpoint and log, while nothing is synced.

        ``store_time_ms`` is that of the last record before. Raises ``StoreError``; then part of it may be done.
        """
        if self.failure is not None:
            raise self.failure.with_traceback(None)
        with self._sync_lock:
            # Before anything else is appended there, nothing may vouch for it.
            self._truncations += 1
            self._news = None
            self._synced = min(self._synced, log_offset)
            checkpoint = self._checkpoint
            checkpoint.cut(log_offset)
            checkpoint.log_time_ms = min(checkpoint.log_time_ms, store_time_ms)
            self._saved = checkpoint.pack()
            self._disk.write(self._checkpoint_path, self._saved)
            self._log.truncate(log_offset, store_time_ms)

    @property
    def derived_synced(self) -> int:
        """Log offset up to which all that is derived is on the disk."""
        return self._checkpoint.derived_offset or 0

    def tick(self) -> None:
        """Every second: sync queue files that have grown, and all that is derived when a minute is over."""
        self._tick_waits = False
        if self._closed:
            return
        pages = self._config.flush_consume_queue_least_pages
        idle_ms = (self._clock.monotonic() - self._pass_at) * 1000
        if self._pass_time_ms >= 0:
            pass
        elif idle_ms >= self._config.flush_consume_queue_thorough_interval:
            self._begin_pass()
        elif paths := self._queues.take_unsynced(max(1, pages * PAGE_BYTES)):
            self._submit(lambda: self._sync(paths))
        self._save_checkpoint()

    def close(self) -> None:
        """Stop the thread and have everything on the disk, checkpoint included. Raises ``StoreError``."""
        self._closed = True
        if self._thread is not None:
            self._orders.put(None)
            self._thread.join()
            self._thread = None
        if self.failure is not None:
            raise self.failure
        self.flush_now()
        self._queues.close()
        if self._index is not None:
            # Records wait in memory for their entries, and only then does the index know its end.
            self._index.write_out()
            self._checkpoint.index_time_ms = self._index.end_time_ms
            self._index.close()
        self._parts.save(self._pending.dispatched)
        log_paths, log_names = self._log.write_out()
        self._sync(log_paths, names=log_names)
        self._checkpoint.queue_time_ms = self._pending.dispatched_time_ms
        self._checkpoint.log_offset = self._log.end
        self._checkpoint.derived_offset = self._pending.dispatched
        self._disk.write(self._checkpoint_path, self._checkpoint.pack())

    def _take_news(self) -> None:
        news, self._news = self._news, None
        if news is not None:
            self._advance(*news)

    def _advance(self, end: int, store_time_ms: int) -> None:
        # After a failure, another sync of the same pages succeeds and proves nothing.
        if self.failure is None:
            self._checkpoint.log_time_ms = store_time_ms
            self._checkpoint.log_offset = end
            self.flushed.advance(end)

    def fail(self, error: StoreError) -> None:
        """Accept nothing any more until the next start."""
        if self.failure is None:
            self.failure = error
            self._failed()

    def _failed(self) -> None:
        log.error(
            "flush failed; no more messages are taken until the broker is started again",
            extra={"error": str(self.failure)},
        )
        self._log.refuse(
            StoreError(f"{self.failure}; no more messages are taken until the broker is started again on a sound disk")
        )
        self._on_failure()

    def begin_pass(self) -> None:
        """Write out and sync all that is derived now, unless that is being done already."""
        if self._pass_time_ms < 0 and not self._closed:
            self._begin_pass()

    def _begin_pass(self) -> None:
        # What is dispatched, not what is written: the log may have records that wait to be confirmed.
        self._pass_time_ms = self._pending.dispatched_time_ms
        self._pass_offset = self._pending.dispatched
        self._pass_at = self._clock.monotonic()
        self._continue_pass()

    def _continue_pass(self) -> None:
        """Write out the next queues, then some of the parts; when all are, have them synced. Others get their turn in
        between."""
        if self._closed:
            return
        try:
            done = self._queues.write_out(QUEUES_AT_ONCE) and self._parts.write_some()
            if done and self._index is not None and self._log.end:
                # Without any file recovery would take the index for lost, and fold the whole log.
                self._index.ensure_file()
                self._index.write_out()
            if done:
                self._parts.write_out()
                log_paths, log_names = self._log.write_out()
        except StoreError as error:
            log.warning("derived files could not be written out", extra={"error": str(error)})
            self._pass_time_ms = -1
            return
        if not done:
            self._submit(lambda: self._post(self._continue_pass))
            return
        paths, names = self._queues.take_unsynced(0), self._queues.files.take_unsynced_names()
        segments: list[Segment] = []
        index_time_ms = 0
        if self._index is not None:
            segments, index_time_ms = self._index.take_unsynced(), self._index.end_time_ms
            names.append(self._index.directory)
        part_paths, part_names = self._parts.take_unsynced()
        paths += part_paths + log_paths
        names += part_names + log_names

        def end_pass() -> None:
            if self._closed:
                return
            self._parts.synced(self._pass_offset)
            self._checkpoint.derived_offset = self._pass_offset
            self._checkpoint.queue_time_ms = self._pass_time_ms
            self._checkpoint.index_time_ms = index_time_ms
            self._pass_time_ms = -1
            self._save_checkpoint()

        self._submit(lambda: self._sync(paths, segments, names, then=end_pass))

    def _save_checkpoint(self) -> None:
        data = self._checkpoint.pack()
        if data != self._saved:
            self._saved = data
            truncations = self._truncations
            self._submit(lambda: self._write_checkpoint(data, truncations))

    def _submit(self, job: StoreJob) -> None:
        if self._thread is not None:
            self._orders.put(job)
            return
        try:
            job()
        except StoreError as error:
            self.fail(error)
            raise

    # --- The flush thread ---------------------------------------------------------------------------------------

    def _run(self) -> None:
        config = self._config
        is_sync = config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        tick_s = config.flush_interval_consume_queue / 1000
        look_s = tick_s if is_sync else min(tick_s, config.flush_interval_commit_log / 1000)
        tick_at = self._clock.monotonic() + tick_s
        while True:
            try:
                order = self._orders.get(timeout=look_s)
            except Empty:
                order = _nothing
            if order is None:
                return
            # Before the log's end is read: a caller that appends after that wakes us again.
            self._woken = False
            try:
                order()
                self._flush_log(is_sync)
            except StoreError as error:
                self.failure = error
                self._post(self._failed)
                return
            if self._clock.monotonic() >= tick_at:
                tick_at = self._clock.monotonic() + tick_s
                if not self._tick_waits:
                    self._tick_waits = True
                    self._post(self._on_tick)

    def _flush_log_between(self) -> None:
        """Senders must not wait until thousands of queue files are synced."""
        if self._thread is not None and self._woken:
            self._woken = False
            self._flush_log(is_sync=True)

    def _flush_log(self, is_sync: bool) -> None:
        with self._sync_lock:
            self._sync_log(is_sync)

    def _sync_log(self, is_sync: bool) -> None:
        commit_log, config = self._log, self._config
        # The time first: a record that comes in between is flushed, but not vouched for.
        store_time_ms = commit_log.store_time_ms
        end = commit_log.end
        now = self._clock.monotonic()
        if end == self._synced or not (
            is_sync
            or is_due(
                flushed=self._synced,
                written=end,
                segment_bytes=commit_log.segment_bytes,
                least_pages=config.flush_commit_log_least_pages,
                idle_ms=(now - self._synced_at) * 1000,
                thorough_ms=config.flush_commit_log_thorough_interval,
            )
        ):
            return
        for segment in commit_log.dirty(self._synced, end):
            segment.sync()
        self._synced, self._synced_at = end, now
        commit_log.note_synced(end)
        # A newer value replaces an older one that was not taken yet.
        is_first = self._news is None
        self._news = (end, store_time_ms)
        if is_first:
            self._post(self._take_news)

    def _write_checkpoint(self, data: bytes, truncations: int) -> None:
        try:
            with self._sync_lock:
                if truncations == self._truncations:
                    self._disk.write(self._checkpoint_path, data)
        except DiskFull as error:
            # An older one is as true, only less useful. With the next change it is tried again.
            log.warning("the checkpoint could not be written", extra={"error": str(error)})

    def _sync(
        self,
        paths: Sequence[Path],
        segments: Sequence[Segment] = (),
        names: Sequence[Path] = (),
        then: StoreJob | None = None,
    ) -> None:
        for path in paths:
            self._disk.sync_file(path)
            self._flush_log_between()
        for segment in segments:
            segment.sync()
            self._flush_log_between()
        for directory in names:
            self._disk.sync_names(directory)
            self._flush_log_between()
        if then is not None:
            self._post(then)


def _nothing() -> None:
    """An order that only wakes."""
