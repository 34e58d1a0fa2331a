"""The message store: one directory of files, opened by one process (C1–C8).

Start reading here: ``put`` appends a record to the log and dispatches it, ``get`` finds it again by queue offset.
The parts are in ``writer`` and ``batch`` (appending), ``log`` and ``plain_log`` (the log), ``queue`` and ``index``
(derived from it), ``dispatch`` (how), ``flush`` (when things reach the disk), ``recovery`` (what happens at start) and
``query`` (all kinds of reading).

One thread owns a store and makes all calls: the broker's event loop, or whoever opened it. Two more threads make
system calls for it. What they have to say comes back through ``notify``; without one it is picked up with the next
call that touches ``flushed`` or needs log space.

``put`` returns when the record is in the page cache: it survives the death of the process, not that of the machine.
Who needs more waits for ``flushed`` to reach ``Placed.end_offset``.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from ternmq.env import Clock
from ternmq.errors import CorruptFile, DiskFull, NotRunning, StoreError, TernError
from ternmq.files import Chores, do_now
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.derived.dispatch import Derived, Dispatcher, Fact, OnArrival
from ternmq.store.derived.follower import Follower, Progress
from ternmq.store.derived.index import Index
from ternmq.store.derived.queue_ext import QueueExts, Unit
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.base import Disk, Held, Segment
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.durable.deleted import DeletedTopics
from ternmq.store.durable.flush import Flusher, Job
from ternmq.store.durable.recovery import recover
from ternmq.store.durable.retention import Retention
from ternmq.store.durable.watermark import Watermark
from ternmq.store.log.batch import BatchWriter, Parcel, PlacedBatch
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.log.pending import Pending
from ternmq.store.log.plain_log import PlainLog
from ternmq.store.log.protocol import Log
from ternmq.store.log.writer import RecordWriter
from ternmq.store.read.cold import ColdReads
from ternmq.store.read.query import Entry, GetResult, GetStatus, Query, QueryResult
from ternmq.types import Buffer

__all__ = [
    "Derived",
    "Draft",
    "Entry",
    "Fact",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "Parcel",
    "Placed",
    "PlacedBatch",
    "QueryResult",
    "StoreConfig",
]

log = logging.getLogger(__name__)

#: Seconds between two lines of the log about a recovery.
_TELL_S: Final = 5.0
#: Seconds of folding at a time where nothing else has to be done in between.
_FOLLOW_S: Final = 1.0


class MessageStore:
    """A store directory in use."""

    def __init__(
        self,
        config: StoreConfig,
        *,
        store_host: bytes,
        clock: Clock,
        disk: Disk | None = None,
        log: Log | None = None,
        threads: bool = True,
    ) -> None:
        """``store_host`` goes into every record, and with it into message ids: an address that clients can reach.

        ``log`` is a plain one on ``disk`` if none is given. Without ``threads`` nothing runs beside the caller:
        ``flush_now``, ``flush_when_due`` and ``tick`` are the caller's to call. With ``notify`` (see ``open``) what
        must be flushed at once still is, in the next turn of the caller's loop.
        """
        self.config = config
        self._clock = clock
        self._disk = disk if disk is not None else FileDisk()
        self._threads = threads
        self._held: Held | None = None
        self._notify: Callable[[Job], object] | None = None
        #: What the flush thread has to say, while there is no ``notify``.
        self._inbox: deque[Job] = deque()
        root = config.store_path_root_dir
        self._checkpoint_path = root / "checkpoint"
        self._abort_path = root / "abort"
        #: Whether the process that had the store before has closed it; known when the store is open.
        self.was_closed = True
        self._log: Log = (
            log
            if log is not None
            else PlainLog(self._disk, config.log_paths, segment_bytes=config.mapped_file_size_commit_log)
        )
        self._queues = ConsumeQueues(self._disk, root / "consumequeue", file_bytes=config.queue_file_bytes)
        self._exts = self._queues.exts = QueueExts(
            self._disk,
            root / "consumequeue_ext",
            files=self._queues.files,
            file_bytes=config.mapped_file_size_consume_queue_ext,
            writes=config.enable_consume_queue_ext,
        )
        self._index = None
        if config.message_index_enable:
            self._index = Index(
                self._disk,
                root / "index",
                slots=config.max_hash_slot_num,
                entries=config.max_index_num,
                file_bytes=config.index_file_bytes,
                now_ms=clock.now_ms,
            )
        self._deleted = DeletedTopics(self._disk, root / "deletedTopics.json")
        self._dispatcher = Dispatcher(self._queues, self._index, self._deleted, delays_ms=config.delay_levels_ms)
        self._pending = Pending(self._log, self._queues, self._dispatcher)
        # A log that confirms at once has its records dispatched at once, and costs nothing more.
        intake: Dispatcher | Pending = self._dispatcher if self._log.confirms_at_once else self._pending
        self._writer = RecordWriter(
            config,
            self._log,
            self._queues,
            intake.fresh,
            store_host=store_host,
            now_ms=clock.now_ms,
            before_reserve=self._catch_up,
        )
        #: Append one record and dispatch it; see ``RecordWriter.put``. (A method of ours would be one more call.)
        self.put = self._writer.put
        self._batches = BatchWriter(
            self._log,
            intake.fresh_batch,
            store_host=store_host,
            now_ms=clock.now_ms,
            queue_of=self._writer.queue_of,
            reserve=self._writer.reserve,
            limits=self._writer.limits,
        )
        self._query = Query(
            config, self._disk, self._log, self._queues, self._index, self._pending, memory_bytes=_memory_bytes()
        )
        #: Reads what is probably not in memory, without holding up anybody.
        self.cold = ColdReads(self._disk, self._query, threads=threads)
        #: Folds bytes of another node, while such come.
        self._follower: Follower | None = None
        #: What ``confirm`` was last told.
        self._confirmed = 0
        self._flusher: Flusher | None = None
        self._retention: Retention | None = None
        #: Where files are deleted.
        self._chores: Chores | None = None
        self._table = self._queues.table
        #: A flush without a thread is on its way.
        self._is_woken = False
        self._queues.on_trouble = self._hindered
        if self._index is not None:
            self._index.on_trouble = self._hindered
        #: Called when a sync has failed: the log takes nothing any more, and who waits for ``flushed`` waits in vain.
        self.on_broken: Callable[[], object] = _nothing
        #: Why derived parts could not write what they took in.
        self._trouble: StoreError | None = None

    # --- Life ---------------------------------------------------------------------------------------------------

    def open(self, notify: Callable[[Job], object] | None = None, on_progress: Progress | None = None) -> None:
        """Lock the directory, recover, and be ready. ``notify`` brings a call to this thread's event loop.

        ``on_progress`` is told, on this thread, how many bytes of the log are checked and how many there are.
        Raises ``StoreLocked``, ``CorruptFile`` or another ``StoreError``; then no file was changed but ``lock``.
        """
        assert self._held is None, "a store opens once"
        root = self.config.store_path_root_dir
        self._notify = notify
        self._held = self._disk.lock(root / "lock")
        try:
            # Also of names that a process made which died before it had synced them.
            self._disk.sync_names(root)
            abort = self._disk.read(self._abort_path)
            self._log.load()
            self._queues.load(lenient=abort is not None, log_min_offset=self._log.begin)
            if self._index is not None:
                self._index.load()
            self._deleted.load()
            for path in self._written_paths():
                self._disk.check_writable(path)
            self._recover(abort, on_progress)
        except BaseException:
            self._log.close()
            self._queues.files.close()
            self._held.release()
            raise

    def _written_paths(self) -> Iterator[Path]:
        """What must be writable, or a broker would start and refuse every message."""
        root = self.config.store_path_root_dir
        yield from (root, root / "config", self._checkpoint_path, self._queues.directory)
        yield from self.config.log_paths.writable
        yield from dict.fromkeys(path for queue in self._queues for path in (queue.directory.parent, queue.directory))
        if self._index is not None:
            yield self._index.directory
            yield from (self._index.directory / entry.name for entry in self._disk.list(self._index.directory))

    def _recover(self, abort: bytes | None, on_progress: Progress | None) -> None:
        boot_id = self._disk.boot_id()
        was_closed = self.was_closed = abort is None
        checkpoint = Checkpoint.load(self._disk, self._checkpoint_path)
        # From here on files change. Who finds them half changed must trust no page, as after a power cut.
        self._write_abort("")
        recovered = recover(
            self._log,
            self._queues,
            self._index,
            self._deleted,
            self._dispatcher,
            checkpoint,
            lambda: self._disk.write(self._checkpoint_path, checkpoint.pack()),
            was_closed=was_closed,
            # Without a restart of the machine the page cache has lost nothing.
            lost_pages=not was_closed and (not boot_id or boot_id.encode() not in (abort or b"")),
            check_crc=self.config.check_crc_on_recover,
            on_progress=self._telling(on_progress),
        )
        self._deleted.cut(recovered.end, log_min=self._log.begin)
        self._finish_deleting()
        self._pending.restore(
            recovered.unconfirmed, dispatched=recovered.confirmed, store_time_ms=recovered.confirmed_time_ms
        )
        log.info(
            "store opened",
            extra={
                "path": str(self.config.store_path_root_dir),
                "was_closed": was_closed,
                "log_end": recovered.end,
                "records_checked": recovered.records,
                "trouble": recovered.trouble,
                "queues": len(self._queues),
            },
        )
        # Now, while there may be space: a full disk later takes what overwrites it.
        self._disk.write(self._checkpoint_path, checkpoint.pack())
        self._write_abort(boot_id)
        self._flusher = Flusher(
            self.config,
            clock=self._clock,
            disk=self._disk,
            commit_log=self._log,
            queues=self._queues,
            index=self._index,
            checkpoint=checkpoint,
            checkpoint_path=self._checkpoint_path,
            pending=self._pending,
            post=self._post,
        )
        if self._threads:
            self._chores = Chores()
            self._queues.files.chores = self._chores
            self._log.start_threads(self._let_go)
            self._flusher.start()
            self._writer.wake = self._flusher.wake
        elif self._notify is not None:
            self._writer.wake = self._flush_next
        self._retention = Retention(
            self.config,
            clock=self._clock,
            disk=self._disk,
            commit_log=self._log,
            queues=self._queues,
            index=self._index,
            needed=self._needed,
            chores=self._chores or do_now,
            post=self._post,
        )
        self._flusher.on_tick = self._retention.tick
        self._flusher.on_failure = self._broken

    def _telling(self, on_progress: Progress | None) -> Progress:
        """Adds a line to the log now and then: whoever waits for a broker should see why."""
        told_at = self._clock.monotonic()

        def tell(done_bytes: int, total_bytes: int) -> None:
            nonlocal told_at
            if self._clock.monotonic() - told_at >= _TELL_S:
                told_at = self._clock.monotonic()
                log.info("recovering", extra={"done_bytes": done_bytes, "total_bytes": total_bytes})
            if on_progress is not None:
                on_progress(done_bytes, total_bytes)

        return tell

    def _write_abort(self, boot_id: str) -> None:
        try:
            self._disk.replace(self._abort_path, f"{os.getpid()}\n{boot_id}\n".encode())
        except DiskFull:
            # What a process left that died says the same, or asks for more care. A full disk that keeps a broker from
            # starting would also keep it from deleting what is old.
            if self._disk.read(self._abort_path) is None:
                raise

    def _broken(self) -> None:
        """Let the next start trust no page that was not synced, as after a power cut."""
        with contextlib.suppress(StoreError):
            self._write_abort("")
        self.on_broken()

    def _finish_deleting(self) -> None:
        """Remove queues that a process was deleting when it died: their first record is older than the deletion."""
        for queue in list(self._queues):
            if queue.topic in self._deleted:
                # One of whose files only the last was left has no entry now, and would keep its numbering.
                first = queue.entry(queue.min_offset)
                if self._deleted.is_deleted(queue.topic, first[0] if first else self._log.begin):
                    self._queues.remove_queue(queue)

    def close(self) -> None:
        """Have everything on the disk and give the directory free. Raises ``StoreError`` if that fails.

        Then ``abort`` stays, and the next start checks the log. Views that were handed out stay valid.
        """
        if self._held is None or self._flusher is None:
            return
        flusher, self._flusher = self._flusher, None
        if self._retention is not None:
            self._retention.close()
        try:
            self._log.refuse(NotRunning("the store is closed"))
            if self._index is not None and self._log.end:
                self._index.ensure_file()
            flusher.close()
            for derived in self._dispatcher.deriveds:
                derived.save()
            self._log.close()
            self._disk.remove(self._abort_path)
        finally:
            self._log.close()
            self._queues.files.close()
            self.cold.close()
            if self._chores is not None:
                self._chores.close()
            self._held.release()

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- Writing ------------------------------------------------------------------------------------------------

    def put_batch(
        self,
        topic: str,
        queue_id: int,
        parcels: Sequence[Parcel],
        *,
        born_time_ms: int,
        born_host: bytes,
        sysflag: int = 0,
        more_properties: bytes = b"",
    ) -> PlacedBatch:
        """Append messages of one queue that stay together in one segment: all, or none. See ``BatchWriter.put``."""
        placed = self._batches.put(
            topic,
            queue_id,
            parcels,
            born_time_ms=born_time_ms,
            born_host=born_host,
            sysflag=sysflag,
            more_properties=more_properties,
        )
        if self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self._writer.wake()
        return placed

    def refuse_writes(self, reason: TernError | None) -> None:
        """Refuse ``put`` and ``put_batch`` with ``reason``, until called with None: this broker is not the master."""
        self._writer.refuse(reason)

    def confirm(self, log_offset: int) -> None:
        """The records that end at ``log_offset`` or before are confirmed, and can be read from now on.

        Only for a log that does not confirm records by itself, when it appends them. Records that came from another
        node are dispatched by ``follow``.
        """
        self._confirmed = max(self._confirmed, log_offset)
        self._pending.confirm(log_offset)

    def begin_at(self, log_offset: int) -> None:
        """Let an empty store begin with the segment that starts at ``log_offset``: another node has none before it."""
        self._log.begin_at(log_offset)

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes of another node's log, cut anywhere, where ours ends; ``follow`` dispatches their records.

        From now on ``put`` is refused, until ``stop_following``. Raises ``StoreError`` or ``NotRunning``.
        """
        self._pick_up()
        if self._follower is None:
            self._follower = Follower(
                self._log,
                self._queues,
                self._index,
                self._deleted,
                self._dispatcher,
                position=self._log.end,
                check_crc=self.config.check_crc_on_recover,
                tells_arrivals=True,
            )
            self._pending.follow(self._follower)
        self._log.append_raw(log_offset, data)
        if self.config.flush_disk_type is FlushDiskType.SYNC_FLUSH:
            self._writer.wake()

    def follow(self, budget_s: float) -> bool:
        """Dispatch records that ``append_raw`` brought, as far as they are whole and confirmed, for about ``budget_s``.

        False if there are more. Raises ``CorruptFile`` if what came is no log.
        """
        follower = self._follower
        if follower is None:
            return True
        until = self._log.end if self._log.confirms_at_once else min(self._confirmed, self._log.end)
        deadline = self._clock.monotonic() + budget_s
        is_done = follower.step(until, lambda: self._clock.monotonic() >= deadline)
        if follower.trouble:
            path = str(self._log.directories.writable[0])
            raise CorruptFile(f"{path} has bytes of another node that are no log: {follower.trouble}", path=path)
        if follower.position >= self._log.end:
            self._log.seal(self._log.end, follower.store_time_ms)
        return is_done

    def stop_following(self) -> None:
        """Take messages again: all that came from the other node is dispatched, or waits to be confirmed.

        Raises ``StoreError`` if it ends with half a record: ``truncate`` takes that away.
        """
        follower = self._follower
        if follower is None:
            return
        while not self.follow(_FOLLOW_S):
            pass
        unconfirmed, end = follower.look_ahead()
        if end < self._log.end:
            raise StoreError(f"the log ends with half a record at {end}; take it back before messages are taken")
        if unconfirmed:
            self._log.seal(self._log.end, unconfirmed[-1].store_time_ms)
        self._pending.stop_following(unconfirmed)
        self._follower = None

    def truncate(self, log_offset: int, reason: TernError) -> None:
        """Take back all records from the position ``log_offset`` on, none of which is confirmed.

        Their queue offsets are given out again, and callers that wait for them in ``flushed`` are told ``reason``.
        Raises ``StoreError``; then the log accepts nothing any more.
        """
        assert log_offset >= self._pending.dispatched, "what was confirmed stays"
        running = self._running()
        try:
            running.truncate(log_offset, self._pending.time_before(log_offset))
            self._deleted.cut(log_offset, log_min=self._log.begin)
        except StoreError as error:
            # Only a start can tell what is left.
            running.fail(error)
            raise
        self._pending.truncate(log_offset)
        if self._follower is not None:
            self._follower.cut(log_offset)
        # Last, because a caller that is told may append again.
        running.flushed.retreat(log_offset, reason)

    # --- Reading ------------------------------------------------------------------------------------------------

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        *,
        count_max: int,
        bytes_max: int | None = None,
        matches: Callable[[int], bool] | None = None,
        may_pass: Callable[[Unit], bool] | None = None,
        accepts: Callable[[str], bool] | None = None,
        is_over: Callable[[], bool] | None = None,
        leave_cold: bool = False,
    ) -> GetResult:
        """Messages of a queue from ``queue_offset`` on, chosen by tags code and by properties. See ``Query.get``."""
        return self._query.get(
            topic,
            queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=bytes_max,
            matches=matches,
            may_pass=may_pass,
            accepts=accepts,
            is_over=is_over,
            leave_cold=leave_cold,
        )

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[Entry]:
        """Where the records of a queue lie, from ``queue_offset`` on. See ``Query.entries``."""
        return self._query.entries(topic, queue_id, queue_offset, count_max)

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message; 0 without such a queue."""
        queue = self._table.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset that the next message will have; 0 without such a queue."""
        queue = self._table.get((topic, queue_id))
        return queue.next_offset if queue is not None else 0

    def offset_by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool = False) -> int:
        """The first queue offset stored at ``time_ms`` or later; with ``upper`` the last stored then or before."""
        return self._query.offset_by_time(topic, queue_id, time_ms, upper=upper)

    def store_time(self, topic: str, queue_id: int, queue_offset: int) -> int:
        """When a message was stored; -1 if it is not there."""
        return self._query.store_time(topic, queue_id, queue_offset)

    def record_at(self, log_offset: int, size: int | None = None) -> memoryview | None:
        """One whole record; None if none starts there, or not one of ``size`` bytes."""
        return self._query.record_at(log_offset, size)

    def first_record(self) -> memoryview | None:
        """The oldest record of the log; None without one."""
        return self._query.record_at(self._log.begin + self._log.lead)

    def query(self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int) -> QueryResult:
        """Records of a topic by key or unique key, stored in this time."""
        return self._query.by_key(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)

    # --- Queues and positions -------------------------------------------------------------------------------------

    def queues(self) -> Iterator[tuple[str, int]]:
        """Topic and queue id of each queue."""
        return iter(list(self._table))

    def topics_with_messages(self) -> dict[str, int]:
        """The topics of all queues that have messages, with the number of queues up to the last of these."""
        counts: dict[str, int] = {}
        for (topic, queue_id), queue in self._table.items():
            if queue.next_offset > queue.min_offset:
                counts[topic] = max(counts.get(topic, 0), queue_id + 1)
        return counts

    def delete_topics(self, names: Iterable[str]) -> None:
        """Remove the queues of these topics; a topic made anew begins with queue offset 0."""
        # A topic without queues has no record that a fold could queue again; a note for each would fill the file.
        gone = {topic for topic, _ in self._table} & set(names)
        if not gone:
            return
        # First the note: a crash in between leaves queues that are whole, or none, but never half of one.
        self._deleted.add(gone, log_end=self._log.end, log_min=self._log.begin)
        self._queues.remove_topics(gone)
        if self._follower is not None:
            self._follower.forget_queues()

    @property
    def retention(self) -> Retention:
        """What deletes old segments, by itself or when it is asked to (C9)."""
        if self._retention is None:
            raise NotRunning("the store is not open; call open() first")
        return self._retention

    @property
    def written(self) -> int:
        """Where the log ends."""
        return self._log.end

    @property
    def dispatched(self) -> int:
        """Where what can be read ends: all of the log, unless records wait to be confirmed."""
        return self._pending.dispatched

    @property
    def min_log_offset(self) -> int:
        """Where the log begins."""
        return self._log.begin

    @property
    def flushed(self) -> Watermark:
        """Log offset up to which records are on the disk."""
        if self._inbox:
            self._pick_up()
        return self._running().flushed

    def flush_now(self) -> None:
        """Return when all that was put is on the disk. It blocks this thread."""
        self._running().flush_now()

    def flush_when_due(self) -> None:
        """What the flush thread does by itself, twice a second; to be called by who opened a store without threads."""
        self._running().flush_when_due()

    def tick(self) -> None:
        """What the flush thread asks for every second; to be called by who opened a store without threads."""
        self._running().tick()
        self._pick_up()

    def _flush_next(self) -> None:
        """Wake a flush in the next turn of the loop, for all who append in this one."""
        assert self._notify is not None
        if not self._is_woken:
            self._is_woken = True
            self._notify(self._flush_woken)

    def _flush_woken(self) -> None:
        self._is_woken = False
        if self._flusher is not None:
            self._flusher.flush_when_due()

    # --- Derived parts --------------------------------------------------------------------------------------------

    @property
    def on_arrival(self) -> OnArrival | None:
        """Told of new queue entries; see ``dispatch.OnArrival``."""
        return self._dispatcher.on_arrival

    @on_arrival.setter
    def on_arrival(self, callback: OnArrival | None) -> None:
        self._dispatcher.on_arrival = callback

    @property
    def is_batch(self) -> Callable[[str], bool]:
        """Tells topics that are to have batch queues (RocketMQ 5's ``queue.type=BatchCQ``); they are refused."""
        return self._queues.is_batch

    @is_batch.setter
    def is_batch(self, is_batch: Callable[[str], bool]) -> None:
        self._queues.is_batch = is_batch

    @property
    def bits(self) -> Callable[[Fact], bytes] | None:
        """Makes the bit map of a record's unit (C3): which groups' filters it passes. It must not raise.

        What ``open`` folds before it is set, and all without it, has units without a map, which pass every filter.
        """
        return self._exts.bits

    @bits.setter
    def bits(self, make: Callable[[Fact], bytes] | None) -> None:
        self._exts.bits = make

    def add_derived(self, derived: Derived) -> None:
        """Feed a further part from the log; before ``open``, which feeds it what it missed."""
        assert self._held is None, "derived parts are added before the store opens"
        self._dispatcher.add_derived(derived)

    # --- What other threads and full disks have to say ----------------------------------------------------------------

    def _running(self) -> Flusher:
        if self._flusher is None:
            raise NotRunning("the store is not open; call open() first")
        return self._flusher

    def _needed(self) -> int | None:
        """Log offset from which on a derived part needs the records; None if none does."""
        needed = [needed for part in self._dispatcher.deriveds if (needed := part.needed) is not None]
        if self._pending.dispatched < self._log.end:
            needed.append(self._pending.dispatched)
        if self._flusher is not None and not self.retention.refusal:
            # A queue whose entries are lost with a power cut, when their records are gone, would begin with 0 again.
            # On a full disk that is the smaller evil: entries may wait for the very space that is to be freed.
            needed.append(self._flusher.derived_synced)
        return min(needed, default=None)

    def _let_go(self, segment: Segment) -> None:
        """Have the last reference to a segment end on the chores thread."""
        assert self._chores is not None
        self._chores(partial(_forget, segment))

    def _post(self, job: Job) -> None:
        if self._notify is not None:
            self._notify(job)
        else:
            self._inbox.append(job)

    def _pick_up(self) -> None:
        while self._inbox:
            self._inbox.popleft()()

    def _hindered(self, error: StoreError) -> None:
        """A derived part could not write. The log must not run away from it."""
        if self._trouble is None:
            log.error("no more messages are taken until the disk has space", extra={"error": str(error)})
        self._trouble = error
        self._log.window.shut()

    def _catch_up(self) -> None:
        """Before the log takes more: hear the flush thread, and mend what a full disk left undone."""
        self._pick_up()
        self._pending.check_accepts()
        if self._retention is not None and self._retention.refusal:
            raise DiskFull(self._retention.refusal)
        if self._trouble is None:
            return
        self._queues.write_out(len(self._queues.dirty))
        if self._index is not None:
            self._index.write_out()
        self._trouble = None


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _forget(_segment: Segment) -> None:
    """The last reference ends with this call."""


def _nothing() -> None:
    """Nobody is told."""
