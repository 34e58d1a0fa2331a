"""Records that are sealed and not confirmed yet: no consumer can read them, and they may be taken back (C5).

::

    put      ── queue offset taken, record sealed ──▶ pending ── confirm ──▶ dispatched: queues, index, arrivals
                                                        └────── truncate ──▶ gone, its queue offset is given out again

A log that confirms with the seal (``Log.confirms_at_once``) has no use for this: ``put`` dispatches by itself, and all
numbers here are the log's. Any other log tells by ``MessageStore.confirm`` how far its records are confirmed, in log
order; its facts wait here meanwhile, at most ``PENDING_MAX`` of them besides those that were there before this node
could write: a start after a power cut, or the log of another leader, may leave any number, and only more records of
this node can confirm them.

A queue knows how many of its records wait (``ConsumeQueue.pending``). The offset of its next record is
``queue.assigned``, that of its next *entry*, behind which there is nothing to read, ``queue.next_offset``; the latter
never goes back.

Records of a run (``store.log.run``) wait together, with what a kernel made of them, and are dispatched together. Where
only a part of them is confirmed or taken back, or where the fold has to look at them, facts take their place: those
that the log tells when it is read.

Invariants: facts and runs are in log order, from ``dispatched`` on; ``queue.pending`` is the number of records here
that have an entry in that queue.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

from ternmq.errors import NotRunning, RecordRefused, StoreError
from ternmq.store.derived.dispatch import Dispatcher
from ternmq.store.derived.fact import Fact, Fresh
from ternmq.store.derived.follower import Follower
from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.log.protocol import Log
from ternmq.store.log.run import SealedRun, record_count
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.record import unpack_record

#: Records that may wait: some seconds of a busy broker. More means that the other nodes do not keep up.
PENDING_MAX: Final = 100_000


class Pending:
    """The records of one store that wait to be confirmed. Belongs to the store's thread."""

    __slots__ = ("_count", "_dispatched", "_dispatcher", "_facts", "_follower", "_found", "_log", "_queues", "_time_ms")

    def __init__(self, log: Log, queues: ConsumeQueues, dispatcher: Dispatcher) -> None:
        self._log = log
        self._queues = queues
        self._dispatcher = dispatcher
        #: With each fact its queue, None if it has no entry there; and runs.
        self._facts: deque[tuple[Fact, ConsumeQueue | None] | SealedRun] = deque()
        #: How many records wait.
        self._count = 0
        #: Folds what came from another node, behind all facts.
        self._follower: Follower | None = None
        self._dispatched = 0
        self._time_ms = 0
        #: How many records there were when this node could write again.
        self._found = 0

    def __len__(self) -> int:
        return self._count

    @property
    def dispatched(self) -> int:
        """Position up to which records are dispatched: what can be read ends here."""
        if self._follower is not None and not self._facts:
            return min(self._follower.position, self._log.end)
        return self._log.end if self._log.confirms_at_once else self._dispatched

    @property
    def dispatched_time_ms(self) -> int:
        """Store time of the last record that is dispatched."""
        if self._follower is not None and not self._facts:
            return self._follower.store_time_ms
        return self._log.store_time_ms if self._log.confirms_at_once else self._time_ms

    def follow(self, follower: Follower) -> None:
        """From now on ``follower`` folds what comes behind the facts that wait."""
        follower.store_time_ms = self.dispatched_time_ms
        self._follower = follower

    def stop_following(self, unconfirmed: Iterable[Fact]) -> None:
        """All that came is folded, but for ``unconfirmed``, which wait from now on."""
        dispatched, store_time_ms = self.dispatched, self.dispatched_time_ms
        self._follower = None
        self.restore(unconfirmed, dispatched=dispatched, store_time_ms=store_time_ms)

    def check_accepts(self) -> None:
        """Raise ``StoreError`` if too many records wait, or ``NotRunning`` while another node's bytes come."""
        if self._follower is not None:
            raise NotRunning("this store takes its log from another node; send to that one")
        if self._count >= PENDING_MAX + self._found:
            raise StoreError(
                f"{self._count} messages wait to be confirmed by other nodes; no more are taken until some are"
            )

    # --- Records that are appended --------------------------------------------------------------------------------

    def fresh(
        self,
        queue: ConsumeQueue,
        properties: str,
        sysflag: int,
        log_offset: int,
        size: int,
        queue_offset: int,
        store_time_ms: int,
        prepared_transaction_offset: int,
    ) -> None:
        """Keep a record that was just sealed; in place of ``Dispatcher.fresh``."""
        tags_code = self._dispatcher.entry_code(queue.topic, properties, store_time_ms)
        fact = Fact(
            queue.topic,
            queue.queue_id,
            queue_offset,
            log_offset,
            size,
            sysflag,
            store_time_ms,
            tags_code,
            prepared_transaction_offset,
            properties,
        )
        self._add(fact, queue if fact.is_queued else None)

    def fresh_all(self, records: Iterable[Fresh]) -> None:
        """Keep records that were just sealed; in place of ``Dispatcher.fresh_all``."""
        for record in records:
            self.fresh(*record)

    def fresh_batch(
        self,
        queue: ConsumeQueue,
        properties: list[str],
        more_properties: str,
        sizes: list[int],
        log_offsets: list[int],
        sysflag: int,
        store_time_ms: int,
    ) -> None:
        """Keep records of one queue that were just sealed; in place of ``Dispatcher.fresh_batch``."""
        for text, log_offset, size in zip(properties, log_offsets, sizes, strict=True):
            whole = text + more_properties
            self.fresh(queue, whole, sysflag, log_offset, size, queue.assigned, store_time_ms, 0)

    def fresh_run(self, run: SealedRun) -> None:
        """Keep records of a run that was just sealed; in place of ``Dispatcher.fresh_run``."""
        self._facts.append(run)
        for part in run.parts:
            count = record_count(part)
            part[0].pending += count
            self._count += count

    def restore(self, facts: Iterable[Fact], *, dispatched: int, store_time_ms: int) -> None:
        """Begin with what recovery found: all before ``dispatched`` is dispatched, ``facts`` follow it."""
        self._dispatched, self._time_ms = dispatched, store_time_ms
        for fact in facts:
            queue = None
            if fact.is_queued and not self._dispatcher.is_deleted(fact.topic, fact.log_offset):
                try:
                    queue = self._queues.make(fact.topic, fact.queue_id)
                except RecordRefused:
                    # Of a topic that has no queues of ours; the fold leaves it out, too.
                    queue = None
            self._add(fact, queue)
        self._found = self._count

    def _add(self, fact: Fact, queue: ConsumeQueue | None) -> None:
        self._facts.append((fact, queue))
        self._count += 1
        if queue is not None:
            queue.pending += 1

    # --- What becomes of them -------------------------------------------------------------------------------------

    def confirm(self, log_offset: int) -> None:
        """Dispatch the records that end at ``log_offset`` or before."""
        facts = self._facts
        while facts:
            first = facts[0]
            if isinstance(first, SealedRun):
                if first.end_offset <= log_offset and self._is_plain(first):
                    facts.popleft()
                    self._confirm_run(first)
                    continue
                if not self._begins_before(first, log_offset):
                    return
                facts.popleft()
                facts.extendleft(reversed(list(self._facts_of(first, first.end_offset))))
                continue
            fact, queue = first
            if fact.end_offset > log_offset:
                return
            facts.popleft()
            self._count -= 1
            if queue is not None:
                queue.pending -= 1
            self._dispatched, self._time_ms = fact.end_offset, fact.store_time_ms
            self._dispatcher.confirmed(fact)

    def _confirm_run(self, run: SealedRun) -> None:
        for part in run.parts:
            count = record_count(part)
            part[0].pending -= count
            self._count -= count
        self._dispatched, self._time_ms = run.end_offset, run.store_time_ms
        self._dispatcher.fresh_run(run)

    def time_before(self, log_offset: int) -> int:
        """The store time of the last record before ``log_offset``, where one that waits begins or the last one ends."""
        for each in reversed(self._facts):
            if isinstance(each, SealedRun):
                if self._begins_before(each, log_offset):
                    return each.store_time_ms
            elif each[0].end_offset <= log_offset:
                return each[0].store_time_ms
        return self.dispatched_time_ms if not self._facts else self._time_ms

    def truncate(self, log_offset: int) -> None:
        """Forget the records from ``log_offset`` on."""
        facts = self._facts
        while facts:
            last = facts[-1]
            if isinstance(last, SealedRun):
                if last.end_offset <= log_offset:
                    return
                facts.pop()
                for part in last.parts:
                    count = record_count(part)
                    part[0].pending -= count
                    self._count -= count
                for kept in self._facts_of(last, log_offset):
                    self._add(*kept)
                continue
            fact, queue = last
            if fact.end_offset <= log_offset:
                return
            facts.pop()
            self._count -= 1
            if queue is not None:
                queue.pending -= 1

    # --- Runs that are taken apart --------------------------------------------------------------------------------

    def _is_plain(self, run: SealedRun) -> bool:
        """Whether its entries can be added as they are: no topic was deleted since, and no fold has more to do."""
        if self._queues.has_light:
            return False
        for part in run.parts:
            queue, entries, _, _, tags = part
            first_offset = ENTRY.unpack_from(entries)[0]
            if (
                self._queues.table.get((queue.topic, queue.queue_id)) is not queue
                or queue.next_offset + record_count(part) != max(end for _, end in tags)
                or queue.log_end > first_offset
                or self._dispatcher.is_deleted(queue.topic, first_offset)
            ):
                return False
        return True

    def _begins_before(self, run: SealedRun, log_offset: int) -> bool:
        """Whether a record of the run ends at ``log_offset`` or before."""
        if run.end_offset <= log_offset:
            return True
        firsts = [ENTRY.unpack_from(entries) for _, entries, *_ in run.parts]
        return any(at + size <= log_offset for at, size, _ in firsts)

    def _facts_of(self, run: SealedRun, until: int) -> Iterator[tuple[Fact, ConsumeQueue]]:
        """The facts of its records that end at ``until`` or before, in log order, as the log tells them."""
        found = [(at, size, queue) for queue, entries, *_ in run.parts for at, size, _ in ENTRY.iter_unpack(entries)]
        for log_offset, size, queue in sorted(found, key=lambda each: each[0]):
            if log_offset + size > until:
                return
            data = self._log.record(log_offset)
            assert data is not None, "what is not confirmed is in the log"
            yield self._dispatcher.fact(unpack_record(data, check_crc=False)), queue
