"""The decisions for all micro-batches, kept in a topic: the memory of the exactly-once sink (U2).

Spark may run a micro-batch again, after any failure and with other tasks. The ledger makes all runs of one batch write
the same rows: the first run whose *decision* is in the ledger determines the chunks to publish, and later runs finish
it. A batch is identified by the query's id, which is in Spark's checkpoint, and its number.

``ledger_entries`` defines the records, and when a run contradicts an earlier one: that is an error, because continuing
would drop its rows or finish a batch of another query.

Finding all earlier decisions
    Requests of a dead driver may still be in transit. So a driver first writes a mark into the ledger of every broker
    and waits until it is visible: then all records that its broker accepted before are visible as well, in every queue.
    Two marks, one after the other: a request that a broker had received, but not yet processed, when the first mark
    arrived is processed before the second. A query's records are in one queue of each broker, and are read from the
    position where the key index has the end of the batch before; if it does not, from the beginning. (The index only
    saves time. RocketMQ loses parts of it when it is killed, and its reply has 64 records at most. Marks of the batch
    before are not a valid start: a checkpoint that was rewound leaves some after the wanted decision.) A broker that an
    earlier mark names and that is missing now may hold the decision: that is an error, not "no decision", until the
    option ``retiredBrokers`` says that it never returns.

    Decisions go to one broker, chosen by the query's id among those that have the ledger. A driver that has written one
    reads that queue again up to it: if two drivers have decided, the first decision is valid, for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ternmq.client.send.validate import BODY_BYTES_MAX
from ternmq.errors import ConfigError, NetworkError, RouteMissing, TernError
from ternmq.message import MessageQueue, Property
from ternmq.spark.sink.ledger_entries import (
    LEDGER_TOPIC,
    NO_ROWS,
    BatchOutcome,
    Done,
    Found,
    LedgerDecision,
    LedgerEntry,
    LedgerMark,
    RunIdentity,
    SinkWork,
    Staged,
    WorkKind,
    check_same,
    decode,
    encode,
    latest_decided,
    orphans,
    outcome,
)
from ternmq.spark.sink.logs import AppendData, Logs, patiently, shown
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import join

log = logging.getLogger(__name__)

#: Queries are distributed over these by their ids. The number is fixed: another driver would look in another queue.
LEDGER_QUEUES: Final = 16
#: Marks of a fence, one after the other.
FENCE_MARKS: Final = 2


class Ledger:
    """The ledger of one work, for one run of it. All methods belong to the loop's thread."""

    def __init__(
        self,
        logs: Logs,
        work: SinkWork,
        claim: RunIdentity,
        *,
        retired: Collection[str] = (),
        new_id: Callable[[], str],
        timeout_ms: int,
    ) -> None:
        self.work = work
        self._logs = logs
        self._claim = claim
        #: Brokers that never return.
        self.retired = frozenset(retired)
        self._new_id = new_id
        self._timeout_ms = timeout_ms
        self._queue_id = abs(java_hash(work.query)) % LEDGER_QUEUES
        #: The brokers that have the ledger, and the marks that this run has written.
        self.brokers: list[str] = []
        self._fences: dict[str, int] = {}
        #: The id of the valid decision.
        self._decided: str | None = None
        #: Whether a later batch has a decision.
        self._is_past = False

    async def open(self) -> None:
        """Find the brokers that have the ledger; create it if none has."""
        what = f"looking for the ledger of {self.work.key}"
        await patiently(self._logs, what, self._open, timeout_ms=self._timeout_ms)
        if running := sorted(self.retired.intersection(self.brokers)):
            raise ConfigError(
                f"the option retiredBrokers contains {', '.join(running)}, which is registered; remove it from "
                "the option, so that its records are used"
            )

    async def _open(self) -> None:
        try:
            self.brokers = await self._logs.brokers_of(LEDGER_TOPIC)
        except RouteMissing:
            if self.work.kind is WorkKind.STREAM and self.work.batch > 0:
                # A new ledger would not contain the decisions of the missing brokers.
                raise NetworkError(
                    f"no registered broker has the topic {LEDGER_TOPIC}, which earlier batches used; start its "
                    "brokers. If earlier batches were written with at-least-once, create it: `tern topic create "
                    f"{LEDGER_TOPIC} --queues {LEDGER_QUEUES}`"
                ) from None
            await self.extend()

    async def extend(self) -> None:
        """Create the ledger on every broker: only brokers that have it can be fenced."""
        await self._logs.make(LEDGER_TOPIC, queues=LEDGER_QUEUES)
        self.brokers = await self._logs.brokers_of(LEDGER_TOPIC)

    async def look(self, staged: Sequence[Staged]) -> BatchOutcome | None:
        """The result of earlier runs: the valid decision, or None. Fences every broker.

        Raises ``BatchConflict`` unless this run, which has staged these chunks, repeats that one.
        """
        await asyncio.gather(*map(self.fence, self.brokers))
        found = await asyncio.gather(*map(self._entries_on, self.brokers))
        entries = [one for entries in found for one in entries]
        self._check_all_there(entries)
        for orphan in orphans(entries, self.work.batch):
            log.warning(
                "ignoring record %d of %s: it marks batch %s as done, but the ledger has no decision of this batch",
                orphan.queue_offset,
                orphan.queue,
                self.work.key,
            )
        known = outcome(entries, self.work.batch)
        decision = None if known is None else known.decision
        latest = latest_decided(entries)
        check_same(self.work, self._claim, staged, decision, latest)
        if known is not None:
            self._decided = known.decision_id
        self._is_past = latest is not None and latest > self.work.batch
        return known

    async def fence(self, broker: str) -> None:
        """Return when all records that a broker accepted before are visible in its queues."""
        queue = self._queue_on(broker)
        for _ in range(FENCE_MARKS):
            self._fences[broker] = await self._append(queue, LedgerMark(self.brokers), self._new_id())
        await shown(self._logs, queue, self._fences[broker], timeout_ms=self._timeout_ms)

    def decision(
        self, chunks: Sequence[Staged], ends: Sequence[tuple[MessageQueue, int]], *, replaces: str
    ) -> LedgerDecision:
        """A decision of this run, not yet written."""
        return LedgerDecision(list(chunks), list(ends), self._claim.target, self._claim.checkpoint, replaces)

    async def note(self, decision: LedgerDecision) -> None:
        """Write the decision of a work whose id is new, so that no other decision can exist."""
        queue, decision_id = self._home(), self._new_id()
        await self._append(queue, decision, decision_id)
        self._decided = decision_id

    async def decide(self, decision: LedgerDecision) -> LedgerDecision:
        """Write a decision, after ``look`` found no valid one; returns the valid decision.

        Raises ``BatchConflict`` if it belongs to another query.
        """
        queue = self._home()
        at = await self._append(queue, decision, self._new_id())
        await shown(self._logs, queue, at, timeout_ms=self._timeout_ms)
        for one in await self._entries(queue, self._fences[queue.broker_name] + 1, at + 1):
            if isinstance(one.entry, LedgerDecision) and one.batch == self.work.batch:
                check_same(self.work, self._claim, decision.chunks, one.entry, None)
                self._decided = one.entry_id
                return one.entry
        raise AssertionError(f"{queue} has the end {at + 1}, but not the decision there")

    async def finish(self) -> None:
        """Record that all chunks are published. Without it a later run must check each chunk."""
        assert self._decided is not None
        await self._finish(self._decided)

    async def finish_empty(self) -> None:
        """Record that the batch has no rows, and so no decision: the next batch need not read earlier records."""
        await self._finish(NO_ROWS)

    async def _finish(self, decision_id: str) -> None:
        if self._is_past:
            # The next batch reads from here on, and would miss earlier records.
            return
        queues = map(self._queue_on, self.brokers)
        parcel = self._parcel(Done(decision_id), self._new_id())
        try:
            await asyncio.gather(*(self._logs.append(queue, parcel) for queue in queues))
        except TernError as error:
            log.warning(
                "cannot record the end of batch %s: %s; another run of it would check each of its chunks",
                self.work.key,
                error,
            )

    # --- Records ----------------------------------------------------------------------------------------------

    def _queue_on(self, broker: str) -> MessageQueue:
        return MessageQueue(LEDGER_TOPIC, broker, self._queue_id)

    def _home(self) -> MessageQueue:
        """The queue for decisions."""
        return self._queue_on(self.brokers[abs(java_hash(self.work.query)) % len(self.brokers)])

    async def _append(self, queue: MessageQueue, entry: LedgerEntry, entry_id: str) -> int:
        # Appending an entry twice does no harm, so a failed attempt is repeated.
        parcel = self._parcel(entry, entry_id)
        what = f"writing to the ledger of {self.work.key} on {queue.broker_name}"
        return await patiently(self._logs, what, lambda: self._logs.append(queue, parcel), timeout_ms=self._timeout_ms)

    def _parcel(self, entry: LedgerEntry, entry_id: str) -> AppendData:
        tag = type(entry).__struct_config__.tag
        pairs = {Property.UNIQUE_KEY: entry_id, Property.KEYS: self.work.key, Property.TAGS: str(tag)}
        body = encode(entry)
        if len(body) > 8 * BODY_BYTES_MAX:  # it shrinks to a tenth
            raise ConfigError(
                "the batch has too many chunks; make the batch smaller (maxMessagesPerTrigger), or the chunks "
                "larger (chunkBytes)"
            )
        return AppendData(body, join(pairs), is_text=True)

    async def _entries_on(self, broker: str) -> list[Found]:
        queue = self._queue_on(broker)
        start = (await self._logs.bounds(queue)).first
        if self.work.batch > 0:
            before = self.work._replace(batch=self.work.batch - 1)
            # Batches may be tried in any order, and leave marks. They are finished in order.
            start = max(start, await self._logs.hint(queue, before.key, "done") or 0)
        return await self._entries(queue, start, self._fences[broker] + 1)

    async def _entries(self, queue: MessageQueue, start: int, end: int) -> list[Found]:
        """The entries of this work, and of later works of its query; without invalid ones."""
        found: list[Found] = []
        async for stored in self._logs.read(queue, start, end):
            for one in stored:
                batch = self.work.batch_of_key(one.keys)
                if batch is None or batch < self.work.batch:
                    continue
                try:
                    entry = decode(one.body)
                except (ValueError, RecursionError) as error:  # also msgspec's and Unicode's
                    log.warning(
                        "ignoring record %d of %s with the key %s: it is not a valid entry of the ledger: %s. "
                        "Only the sink should write to this topic",
                        one.queue_offset,
                        queue,
                        one.keys,
                        error,
                    )
                    continue
                found.append(Found(one.store_time_ms, one.queue_offset, queue, one.unique_key, batch, entry))
        return found

    def _check_all_there(self, entries: Sequence[Found]) -> None:
        marks = [one.entry for one in entries if isinstance(one.entry, LedgerMark) and one.batch == self.work.batch]
        missing = sorted({broker for mark in marks for broker in mark.brokers}.difference(self.brokers))
        if retired := [broker for broker in missing if broker in self.retired]:
            log.warning(
                "%s may have had the decision of batch %s and is retired (option retiredBrokers); rows that an "
                "earlier run published may be written twice",
                ", ".join(retired),
                self.work.key,
            )
        if missing := [broker for broker in missing if broker not in self.retired]:
            raise NetworkError(
                f"{', '.join(missing)} may have the decision of batch {self.work.key}, but is not registered; "
                "start the broker, then the job again. If the broker is lost, add it to the option "
                "retiredBrokers: rows that an earlier run published may then be written twice",
                address=missing[0],
            )
