"""The message store: one directory of files, opened by one process (C1–C8).

Start reading here: ``put`` appends a record to the log and dispatches it, ``get`` finds it again by queue offset.
The parts are in ``log`` (appending), ``derived`` (queues, index, and what else is folded from the log), ``durable``
(when things reach the disk, recovery, retention) and ``read`` (all kinds of reading). ``loading`` has them before the
store is open, ``replica`` takes the log of another node.

``MessageStore.open`` recovers a directory and returns an open store; it may run on another thread. After that one
thread owns the store and makes all calls: the broker's event loop, or the program that opened it. Two more threads make
system calls for it. Their results return through ``notify``; without one they are picked up with the next call that
touches ``flushed`` or needs log space.

``put`` returns when the record is in the page cache: it survives the death of the process, not that of the machine. A
caller that needs more waits for ``safe``, or for ``flushed``, to reach ``Placed.end_offset``.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from ternmq.env import Clock
from ternmq.errors import StoreError, TernError
from ternmq.store.config import StoreConfig
from ternmq.store.derived.dispatch import Dispatcher, OnArrival
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.follower import OnProgress
from ternmq.store.derived.parts import Derived
from ternmq.store.disk.base import Disk, HeldLock
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.mailbox import JobBox, StoreJob
from ternmq.store.durable.safety import Lowest
from ternmq.store.durable.watermark import Watermark
from ternmq.store.loading import LoadedStore, lock_directory
from ternmq.store.log.batch import BatchPart, BatchWriter, PlacedBatch
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.log.pending import Pending
from ternmq.store.log.protocol import Log
from ternmq.store.log.run import RunWriter
from ternmq.store.log.writer import RecordWriter
from ternmq.store.read.cold import ColdReads
from ternmq.store.read.query import GetResult, GetStatus, Query, QueryResult, QueueEntry
from ternmq.store.replica import Replica
from ternmq.store.upkeep import Upkeep
from ternmq.types import Buffer

__all__ = [
    "BatchPart",
    "Derived",
    "Draft",
    "Fact",
    "GetResult",
    "GetStatus",
    "MessageStore",
    "Placed",
    "PlacedBatch",
    "QueryResult",
    "QueueEntry",
    "StoreConfig",
]

log = logging.getLogger(__name__)


class MessageStore:
    """An open store. ``open`` makes one."""

    def __init__(
        self,
        loaded: LoadedStore,
        held: HeldLock,
        *,
        store_host: bytes,
        clock: Clock,
        mailbox: JobBox,
        threads: bool,
        is_batch: Callable[[str], bool],
    ) -> None:
        config = self.config = loaded.config
        #: Whether the process that had the store before has closed it.
        self.was_closed = loaded.was_closed
        self._loaded = loaded
        self._held = held
        self._mailbox = mailbox
        self._log = loaded.log
        self._queues = loaded.queues
        self._index = loaded.index
        self._pending = loaded.pending
        self._table = loaded.queues.table
        self._is_open = True
        self._replica = Replica(loaded, clock)
        upkeep = self._upkeep = Upkeep(loaded, self._replica, clock=clock, mailbox=mailbox, threads=threads)
        #: When records are safe, and the senders that wait for it.
        self.safety = upkeep.safety
        #: What deletes old segments, by itself or when it is asked to (C9).
        self.retention = upkeep.retention
        # A log that confirms at once has its records dispatched at once, and costs nothing more.
        intake: Dispatcher | Pending = loaded.dispatcher if self._log.confirms_at_once else self._pending
        self._writer = RecordWriter(
            config,
            self._log,
            self._queues,
            intake.fresh,
            intake.fresh_all,
            store_host=store_host,
            now_ms=clock.now_ms,
            before_reserve=upkeep.catch_up,
            wake=upkeep.wake,
            is_batch=is_batch,
        )
        #: Append one record and dispatch it; see ``RecordWriter.put``. (A method of ours would be one more call.)
        self.put = self._writer.put
        #: Append and dispatch records of any queues; see ``RecordWriter.put_all``.
        self.put_all = self._writer.put_all
        self._batches = BatchWriter(
            self._log,
            intake.fresh_batch,
            intake.fresh_run,
            store_host=store_host,
            now_ms=clock.now_ms,
            queue_of=self._writer.queue_of,
            reserve=self._writer.reserve,
            limits=self._writer.limits,
            wake=upkeep.wake,
        )
        #: Append messages of one queue that stay together in one segment: all, or none. See ``BatchWriter.put``.
        self.put_batch = self._batches.put
        #: The same for a batch as it was sent, if that is possible. See ``BatchWriter.put_sent``.
        self.put_sent_batch = self._batches.put_sent
        self._runs = RunWriter(
            config,
            self._log,
            self._table,
            intake.fresh_run,
            store_host=store_host,
            now_ms=clock.now_ms,
            limits=self._writer.limits,
            wake=upkeep.wake,
        )
        #: Append sends of one read, as far as they are plain. See ``RunWriter.put``.
        self.put_run = self._runs.put
        #: Append records that a kernel packs by itself. See ``RunWriter.put_packed``.
        self.put_packed = self._runs.put_packed
        #: What both need to know of all sends. See ``RunWriter.terms``.
        self.run_terms = self._runs.terms
        self._query = Query(
            config, loaded.disk, self._log, self._queues, self._index, self._pending, memory_bytes=_memory_bytes()
        )
        #: How full the disk is on which a path lies.
        self.disk_usage = loaded.disk.usage
        #: Records further back than this are taken to be on disk only.
        self.memory_bytes = self._query.memory_bytes
        #: Messages of a queue, chosen by tags code and by properties. (Attributes, because methods of ours would be one
        #: more call; what they take and return is told there.)
        self.get = self._query.get
        #: Where the records of a queue lie.
        self.entries = self._query.entries
        self.raw_entries = self._query.raw_entries
        #: The first queue offset stored at a time or later, or the last stored then or before.
        self.offset_by_time = self._query.offset_by_time
        #: When a message was stored; -1 if it is not there.
        self.store_time = self._query.store_time
        self.log_place = self._query.log_place
        self.log_time = self._query.log_time
        #: One whole record by its log offset; None if none starts there.
        self.record_at = self._query.record_at
        #: Records of a topic by key or unique key.
        self.query = self._query.by_key
        self.key_search = self._query.key_search
        self.places_of_key = self._query.places_of_key
        #: Reads what is probably not in memory, on another thread.
        self.cold = ColdReads(loaded.disk, self._query, threads=threads)

    # --- Life ---------------------------------------------------------------------------------------------------

    @classmethod
    def open(
        cls,
        config: StoreConfig,
        *,
        store_host: bytes,
        clock: Clock,
        disk: Disk | None = None,
        held: HeldLock | None = None,
        log: Log | None = None,
        derived: Sequence[Derived] = (),
        on_arrival: OnArrival | None = None,
        listened: Container[str] | None = None,
        is_batch: Callable[[str], bool] | None = None,
        bits: Callable[[Fact], bytes] | None = None,
        notify: Callable[[StoreJob], object] | None = None,
        on_progress: OnProgress | None = None,
        threads: bool = True,
    ) -> Self:
        """Lock the directory, recover it, and return a store that is ready. Any thread may call this.

        Args:
            config: The settings, with the directory.
            store_host: An address that clients can reach. It goes into every record, and with it into message ids.
            clock: The time.
            disk: The operating system, if it is not this machine's.
            held: The lock of the directory, if the caller has it already (``loading.lock_directory``). It belongs to
                the store from now on, also if this call fails.
            log: The log, if it is not a plain one on ``disk``.
            derived: Further parts that are folded from the log, with their files in the store's directory.
            on_arrival: Told of new queue entries; see ``dispatch.OnArrival``.
            listened: The topics of which it has to be told, if not of all; it may change at any time.
            is_batch: Tells topics that are to have batch queues (RocketMQ 5's ``queue.type=BatchCQ``). Their messages
                are refused.
            bits: Makes the bit map of a record's unit (C3): which groups' filters it passes. It must not raise. Without
                it units have no map, and pass every filter.
            notify: Brings a call to the event loop of the store's thread.
            on_progress: Told, on this thread, how many bytes of the log are checked and how many there are.
            threads: Without them nothing runs beside the caller: it has to call ``flush_now``, ``flush_when_due`` and
                ``tick``. With ``notify`` what must be flushed at once still is, in the next turn of the loop.

        Raises:
            StoreLocked: Another process has the directory.
            CorruptFile: A file cannot be used.
            StoreError: Another fault. If it comes before recovery, no file was changed but ``lock``.
        """
        disk = disk if disk is not None else FileDisk()
        held = held if held is not None else lock_directory(config, disk)
        try:
            loaded = LoadedStore(
                config,
                clock=clock,
                disk=disk,
                log=log,
                derived=derived,
                on_arrival=on_arrival,
                listened=listened,
                bits=bits,
            )
            try:
                loaded.recover(on_progress)
                return cls(
                    loaded,
                    held,
                    store_host=store_host,
                    clock=clock,
                    mailbox=JobBox(notify),
                    threads=threads,
                    is_batch=is_batch or _no_topic,
                )
            except BaseException:
                loaded.close()
                raise
        except BaseException:
            held.release()
            raise

    def close(self) -> None:
        """Have everything on the disk and give the directory free. Raises ``StoreError`` if that fails.

        Then ``abort`` stays, and the next start checks the log. Views that were handed out stay valid. A second call
        does nothing.
        """
        if not self._is_open:
            return
        self._is_open = False
        try:
            self._upkeep.close()
        finally:
            self.cold.close()
            self._held.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- Writing ------------------------------------------------------------------------------------------------

    def refuse_writes(self, reason: TernError | None) -> None:
        """Refuse ``put`` and ``put_batch`` with ``reason``, until called with None: this broker is not the master."""
        self._writer.refuse(reason)

    def confirm(self, log_offset: int) -> None:
        """The records that end at ``log_offset`` or before are confirmed, and can be read from now on.

        Only for a log that does not confirm records by itself, when it appends them. Records that came from another
        node are dispatched by ``follow``.
        """
        self._replica.confirm(log_offset)

    def begin_at(self, log_offset: int) -> None:
        """Let an empty store begin with the segment that starts at ``log_offset``: another node has none before it."""
        self._log.begin_at(log_offset)

    @property
    def part_directories(self) -> list[Path]:
        """Where derived parts have their files."""
        return self._loaded.parts.directories

    def part_files(self) -> list[Sequence[Path]]:
        """The files of each derived part that an empty replica copies first (``Derived.files``)."""
        return self._loaded.parts.files()

    def load_parts(self) -> None:
        """Let derived parts read their files anew, which were copied from another node. Only while the log is empty."""
        assert not self._log.end, "what was folded would be folded twice"
        self._loaded.parts.load()

    @property
    def deletions(self) -> Mapping[str, int]:
        """Topic → log offset of its deletion, as far as the log reaches back."""
        return self._loaded.deleted.ends

    def append_raw(self, log_offset: int, data: Buffer) -> None:
        """Append bytes of another node's log, cut anywhere, where ours ends; ``follow`` dispatches their records.

        From now on ``put`` is refused, until ``stop_following``. Raises ``StoreError`` or ``NotRunning``.
        """
        self._mailbox.pick_up()
        self._replica.append_raw(log_offset, data)
        self._upkeep.wake()

    def follow(self, budget_s: float) -> bool:
        """Dispatch records that ``append_raw`` brought, as far as they are whole and confirmed, for about ``budget_s``.

        False if there are more. Raises ``CorruptFile`` if the bytes are not those of a log.
        """
        return self._replica.follow(budget_s)

    def stop_following(self) -> None:
        """Take messages again: all that came from the other node is dispatched, or waits to be confirmed.

        Raises ``StoreError`` if it ends with half a record: ``truncate`` takes that away.
        """
        self._replica.stop_following()

    def take_over(self, reason: TernError) -> None:
        """Take messages again, behind the last whole record that came: half of one is taken back, with ``reason``.

        For a log that confirms records by itself. Call ``follow`` until it is done first: this blocks. Raises
        ``StoreError``.
        """
        while not self.follow(1.0):
            pass
        if self.dispatched < self.written:
            self.truncate(self.dispatched, reason)
        self.stop_following()

    def truncate(self, log_offset: int, reason: TernError) -> None:
        """Take back all records from the position ``log_offset`` on, none of which is confirmed.

        Their queue offsets are given out again, and callers that wait for them are told ``reason``. Raises
        ``StoreError``; then the log accepts nothing any more.
        """
        assert log_offset >= self._pending.dispatched, "what was confirmed stays"
        self._upkeep.truncate(log_offset, reason)

    # --- Reading ------------------------------------------------------------------------------------------------

    def min_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset of the oldest message; 0 without such a queue."""
        queue = self._table.get((topic, queue_id))
        return queue.min_offset if queue is not None else 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        """Queue offset that the next message will have; 0 without such a queue."""
        queue = self._table.get((topic, queue_id))
        return queue.next_offset if queue is not None else 0

    def span(self, topic: str, queue_id: int) -> tuple[int, int]:
        """``min_offset`` and ``max_offset``. Hot: looked up for each ack."""
        queue = self._table.get((topic, queue_id))
        return (queue.min_offset, queue.next_offset) if queue is not None else (0, 0)

    def first_record(self) -> memoryview | None:
        """The oldest record of the log; None without one."""
        return self._query.record_at(self._log.begin + self._log.form_at(self._log.begin).lead)

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

    def delete_topics(self, names: Iterable[str], *, as_of: int | None = None) -> None:
        """Remove the queues of these topics; a topic made anew begins with queue offset 0.

        It concerns the records before the log offset ``as_of``: without one all that are stored. A node that follows
        another gives the offset of that one; then it happens when dispatch has reached it. Raises ``StoreError``, from
        the call that dispatches if it happens later.
        """
        if as_of is None:
            self._delete_topics(names, self._log.end)
        else:
            self.when_dispatched(as_of, partial(self._delete_topics, list(names), as_of))

    def _delete_topics(self, names: Iterable[str], as_of: int) -> None:
        names = set(names)
        queues = [queue for queue in self._queues if queue.topic in names]
        # Queues with later records belong to a new topic of that name.
        gone = [queue for queue in queues if queue.log_end <= as_of]
        if not gone:
            # A topic without queues has no record that a fold could queue again; a note for each would fill the file.
            return
        # First the note: a crash in between leaves queues that are whole, or none, but never half of one.
        self._loaded.deleted.add({queue.topic for queue in gone}, log_end=as_of, log_min=self._log.begin)
        kept = {queue.topic for queue in queues if queue.log_end > as_of}
        self._queues.remove_topics({queue.topic for queue in gone} - kept)
        for queue in gone:
            if queue.topic in kept:
                self._queues.remove_queue(queue)
        self._replica.forget_queues()

    def numbers(self) -> dict[tuple[str, int], int]:
        """The next queue offset of each queue that has no message left: the log does not tell it."""
        return {
            key: queue.next_offset for key, queue in self._table.items() if queue.min_offset == queue.next_offset > 0
        }

    def keep_number(self, topic: str, queue_id: int, next_offset: int) -> None:
        """Let a queue that is not there go on with a queue offset, as on another node. Raises ``StoreError``."""
        if next_offset > 0 and self._log.begin > 0 and (topic, queue_id) not in self._table:
            queue = self._queues.make(topic, queue_id)
            # The filler makes a file, which keeps the number.
            queue.begin_at(next_offset - 1)
            queue.fill_to(next_offset)
            queue.raise_min(self._log.begin)
            self._replica.forget_queues()

    def when_dispatched(self, log_offset: int, callback: Callable[[], object]) -> int:
        """Call ``callback`` when dispatch has reached ``log_offset``: at once if it has, else between two records.

        For what belongs to a log offset of another node: a deletion, a copied table. While this node puts messages by
        itself, the call may come up to a second late. Returns a ticket for ``forget_dispatched``.
        """
        return self._replica.when_dispatched(log_offset, callback)

    def forget_dispatched(self, ticket: int) -> None:
        """Do not make a call of ``when_dispatched``: that node has another log now."""
        self._replica.forget(ticket)

    @property
    def log(self) -> Log:
        """The log, for replication: slaves fetch views of it, and it tells where it begins."""
        return self._log

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

    # --- Disk -----------------------------------------------------------------------------------------------------

    @property
    def flushed(self) -> Watermark:
        """Log offset up to which records are on this machine's disk."""
        if self._mailbox:
            self._mailbox.pick_up()
        return self._upkeep.flusher.flushed

    @property
    def safe(self) -> Lowest:
        """Log offset up to which records are on all the disks that they must reach. Callers wait as for ``flushed``."""
        if self._mailbox:
            self._mailbox.pick_up()
        return self.safety.safe

    @property
    def failure(self) -> StoreError | None:
        """Why nothing is taken any more until the next start: a sync has failed. None while all is well."""
        return self._upkeep.flusher.failure

    def flush_now(self) -> None:
        """Return when all that was put is on the disk. It blocks this thread."""
        self._upkeep.check_open()
        self._upkeep.flusher.flush_now()

    def flush_when_due(self) -> None:
        """What the flush thread does by itself, twice a second; the owner of a store without threads has to call it."""
        self._upkeep.check_open()
        self._upkeep.flusher.flush_when_due()

    def tick(self) -> None:
        """What the flush thread asks for every second; the owner of a store without threads has to call it."""
        self._upkeep.tick()


def _memory_bytes() -> int:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _no_topic(_topic: str) -> bool:
    """No topic is to have batch queues."""
    return False
