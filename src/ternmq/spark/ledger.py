"""What was decided for each micro-batch, kept in a topic: the memory of the exactly-once sink (U2).

Spark may run a micro-batch again, after any failure and with other tasks. The ledger makes all runs of one batch write
the same rows: the first run whose *decision* is in the ledger names the chunks to publish, and later runs finish that
one. The batch is known by the query's id, which lives in Spark's checkpoint, and its number.

Records are messages of TERNMQ_SPARK_LEDGER with the key ``query/batch``, in JSON; the tag says which of three:

- *mark*: a run looks for earlier decisions. It is the fence (below), and names all brokers that had the ledger then.
- *decision*: the chunks, the queue of each, and where those queues ended at that time.
- *done*: all chunks of the batch are published.

Looking without overlooking
    What a dead driver sent may be under way still. So whoever looks first puts a mark into the ledger of every broker
    and waits until it shows: then all that its broker took before shows as well, in every queue. Two marks, one after
    the other: what a broker had received, but not yet taken up, when the first one came is taken up before the second.
    A query's records are in one queue of each broker, and are read from the oldest that the key index knows of the
    batch before; where it knows none, from the beginning. (The index only saves time. RocketMQ loses parts of it when
    it is killed.) A broker that an earlier mark names and that is not there now may hold the decision: that is an
    error, not a «no».

    Decisions go to one broker, chosen by the query's id among those that have the ledger. Who has written one reads
    that queue again up to it: should two drivers have decided, the first decision counts, for both.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple, TypeAlias

import msgspec

from ternmq.client.validate import BODY_BYTES_MAX
from ternmq.errors import ConfigError, NetworkError, RouteMissing, TernError
from ternmq.message import MessageQueue, Property
from ternmq.names import SPARK_PREFIX
from ternmq.spark.logs import Logs, Parcel, Stored, patiently, shown
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import join

log = logging.getLogger(__name__)

LEDGER_TOPIC: Final = f"{SPARK_PREFIX}LEDGER"
#: Queries are spread over these by their ids. Never another number: the next driver would look in another queue.
LEDGER_QUEUES: Final = 16
#: Marks of a fence, one after the other.
FENCE_MARKS: Final = 2


class Work(NamedTuple):
    """One micro-batch of a query, or one batch write."""

    query: str
    batch: int

    @property
    def key(self) -> str:
        return f"{self.query}/{self.batch}"


class Staged(msgspec.Struct, frozen=True, array_like=True):
    """A chunk in the stage; travels from the executor to the committer, and in decisions."""

    #: Where it lies.
    stage: MessageQueue
    stage_offset: int
    chunk_id: str
    topic: str
    #: Where it is to go; in a decision always.
    queue: MessageQueue | None
    delay: int
    rows: int


class Mark(msgspec.Struct, frozen=True, tag="mark", tag_field="kind"):
    brokers: list[str]


class Decision(msgspec.Struct, frozen=True, tag="decision", tag_field="kind"):
    chunks: list[Staged]
    #: The end of each queue that the chunks will be found in, before any of them was sent.
    ends: list[tuple[MessageQueue, int]]


class Done(msgspec.Struct, frozen=True, tag="done", tag_field="kind"):
    pass


Entry: TypeAlias = Mark | Decision | Done

_decode: Final = msgspec.json.Decoder(Entry).decode
_encode: Final = msgspec.json.Encoder().encode


class Ledger:
    """The ledger of one work, for one run of it. All methods belong to the loop's thread."""

    def __init__(self, logs: Logs, work: Work, *, new_id: Callable[[], str], timeout_ms: int) -> None:
        self._logs = logs
        self._work = work
        self._new_id = new_id
        self._timeout_ms = timeout_ms
        self._queue_id = abs(java_hash(work.query)) % LEDGER_QUEUES
        #: The brokers that have the ledger, and behind which marks this run stands.
        self.brokers: list[str] = []
        self._fences: dict[str, int] = {}

    async def open(self) -> None:
        """Find the brokers that have the ledger; make it if none has."""
        what = f"looking for the ledger of {self._work.key}"
        await patiently(self._logs, what, self._open, timeout_ms=self._timeout_ms)

    async def _open(self) -> None:
        try:
            self.brokers = await self._logs.brokers_of(LEDGER_TOPIC)
        except RouteMissing:
            if self._work.batch > 0:
                # A new one would know nothing of what the brokers that are away have decided.
                raise NetworkError(
                    f"no broker that is registered has the topic {LEDGER_TOPIC}, which the batches before wrote to; "
                    f"start its brokers. If those batches were written with at-least-once, create it: `tern topic "
                    f"create {LEDGER_TOPIC} --queues {LEDGER_QUEUES}`"
                ) from None
            await self.extend()

    async def extend(self) -> None:
        """Let every broker have the ledger: only who has it can be fenced."""
        await self._logs.make(LEDGER_TOPIC, queues=LEDGER_QUEUES)
        self.brokers = await self._logs.brokers_of(LEDGER_TOPIC)

    async def look(self) -> Decision | Done | None:
        """What earlier runs left: that all is done, the decision that counts, or nothing. Fences every broker."""
        await asyncio.gather(*map(self.fence, self.brokers))
        found = await asyncio.gather(*map(self._entries_on, self.brokers))
        entries = sorted((one for entries in found for one in entries), key=lambda one: one[:2])
        self._check_all_there(entries)
        kinds = [entry for _, _, entry in entries]
        done = next((entry for entry in kinds if isinstance(entry, Done)), None)
        return done or next((entry for entry in kinds if isinstance(entry, Decision)), None)

    async def fence(self, broker: str) -> None:
        """Return when all that a broker took before shows in its queues."""
        queue = self._queue_on(broker)
        for _ in range(FENCE_MARKS):
            self._fences[broker] = await self._append(queue, Mark(self.brokers))
        await shown(self._logs, queue, self._fences[broker], timeout_ms=self._timeout_ms)

    async def decide(self, decision: Decision) -> Decision:
        """Write a decision, after ``look`` found none; returns the one that counts."""
        home = self.brokers[abs(java_hash(self._work.query)) % len(self.brokers)]
        queue = self._queue_on(home)
        at = await self._append(queue, decision)
        await shown(self._logs, queue, at, timeout_ms=self._timeout_ms)
        for _, _, entry in await self._entries(queue, self._fences[home] + 1, at + 1):
            if isinstance(entry, Decision):
                return entry
        raise AssertionError(f"{queue} shows its end {at + 1}, but not the decision there")

    async def finish(self) -> None:
        """Say that all is published. Without it a later run finds the same out by looking at each chunk."""
        home = self.brokers[abs(java_hash(self._work.query)) % len(self.brokers)]
        try:
            await self._logs.append(self._queue_on(home), self._parcel(Done()))
        except TernError as error:
            log.warning("the end of a batch was not noted", extra={"work": self._work.key, "why": str(error)})

    # --- Records ----------------------------------------------------------------------------------------------

    def _queue_on(self, broker: str) -> MessageQueue:
        return MessageQueue(LEDGER_TOPIC, broker, self._queue_id)

    async def _append(self, queue: MessageQueue, entry: Entry) -> int:
        # To append an entry twice does no harm, so a failed attempt is simply repeated.
        parcel = self._parcel(entry)
        what = f"writing to the ledger of {self._work.key} on {queue.broker_name}"
        return await patiently(self._logs, what, lambda: self._logs.append(queue, parcel), timeout_ms=self._timeout_ms)

    def _parcel(self, entry: Entry) -> Parcel:
        tag = type(entry).__struct_config__.tag
        pairs = {Property.UNIQUE_KEY: self._new_id(), Property.KEYS: self._work.key, Property.TAGS: str(tag)}
        body = _encode(entry)
        if len(body) > 8 * BODY_BYTES_MAX:  # it shrinks to a tenth
            raise ConfigError(
                "the batch has too many chunks for one decision; let it be smaller (maxMessagesPerTrigger), or "
                "chunks larger (chunkBytes)"
            )
        return Parcel(body, join(pairs), is_text=True)

    async def _entries_on(self, broker: str) -> list[tuple[int, int, Entry]]:
        queue = self._queue_on(broker)
        start = (await self._logs.bounds(queue)).first
        if self._work.batch > 0:
            before = Work(self._work.query, self._work.batch - 1)
            start = max(start, await self._logs.hint(queue, before.key) or 0)
        return await self._entries(queue, start, self._fences[broker] + 1)

    async def _entries(self, queue: MessageQueue, start: int, end: int) -> list[tuple[int, int, Entry]]:
        """The entries of this work, each with its time and place."""
        found: list[Stored] = []
        async for stored in self._logs.read(queue, start, end):
            found += [one for one in stored if one.keys == self._work.key]
        return [(one.store_time_ms, one.queue_offset, _decode(one.body)) for one in found]

    def _check_all_there(self, entries: Sequence[tuple[int, int, Entry]]) -> None:
        named = {broker for _, _, entry in entries if isinstance(entry, Mark) for broker in entry.brokers}
        missing = sorted(named.difference(self.brokers))
        if missing:
            raise NetworkError(
                f"{', '.join(missing)} may hold what was decided for the batch {self._work.key}, and no name server "
                "knows it now; start it again, and the job after it",
                address=missing[0],
            )
