"""From staged chunks to the target topic, each row once: the commit of a batch (U2). Driver.

A chunk is read from the stage and sent to its queue unchanged, as one batch, without work per row. Chunks of one
queue are sent one after the other, in the order of their task; different queues in parallel.

The commit checks whether a chunk is already there only if that is possible: in a batch that an earlier run decided, and
after a failed send. It reads the queues themselves, because that is what consumers see: ``Presence`` reads them from
their ends at the time of the decision, and collects the unique ids of rows. Existing rows are not sent; if a power cut
left only the first rows of a batch, the others are sent. A fence (``ledger``) precedes each such check, because a row
that was accepted but is not yet visible would be sent again. The marks of a fence are safe, or appended again until
they are; so rows that their broker stored without confirming them as safe are safe then, too.

A message with a delay is visible in the topic in which its broker keeps it until it is due, and stays there afterwards.
RocketMQ 5 does not allow reading that of messages with a delivery time: its index is queried, row by row.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Final

import msgspec

from ternmq.errors import ConfigError, MessagesLost, TernError
from ternmq.message import MessageQueue
from ternmq.names import WHEEL_TOPIC
from ternmq.spark.sink.ledger import Ledger
from ternmq.spark.sink.ledger_entries import BatchOutcome, LedgerDecision, SinkWork, Staged, WorkKind, landings
from ternmq.spark.sink.logs import AppendData, Logs, patiently, read_one
from ternmq.spark.sink.rows import CHUNK_ROWS_MAX, TIMED, Chunk, place_of_key, row_key
from ternmq.tasks import Tasks
from ternmq.wire.batch import pack_messages, unpack_messages
from ternmq.wire.ids import java_hash

log = logging.getLogger(__name__)

#: The setting of a broker that delivers messages at a given time.
TIMER_SETTING: Final = "timerWheelEnable"

#: A broker that loses power loses unsynced records, and assigns the same queue offsets again: chunks may then be
#: a little before the end that is in the decision.
LOOK_BACK: Final = 10_000

#: Called with each step of a commit; tests interrupt it there.
OnStep = Callable[[str], None]


def stage_key(chunk_id: str) -> str:
    """The unique id of the message of a chunk in the stage."""
    return row_key(chunk_id, CHUNK_ROWS_MAX)


class HalfWritten(TernError):
    """A batch write failed when a part of its rows may be in the topic. Running the same write again finishes it."""

    def __init__(self, work: SinkWork, error: TernError) -> None:
        self.work = work
        again = f"with the option writeId={work.query}" if work.kind is WorkKind.WRITE else "with the same options"
        super().__init__(
            f"{error}. Some rows may be written already: run the same write again {again}; it writes the missing "
            "rows and duplicates none"
        )


class Committer:
    """One run of a commit. All methods belong to the loop's thread."""

    def __init__(
        self, logs: Logs, ledger: Ledger, *, at_once: int, timeout_ms: int, on_step: OnStep = lambda _: None
    ) -> None:
        self._logs = logs
        self._ledger = ledger
        self._at_once = at_once
        self._timeout_ms = timeout_ms
        self._on_step = on_step

    async def commit(self, staged: Sequence[Staged], *, is_new: bool = False) -> None:
        """Publish these chunks, or those of the decision of an earlier run.

        ``is_new`` is True for a work that cannot have had an earlier run: then the ledger is not searched. Raises
        ``BatchConflict``, and for a batch write ``HalfWritten``.
        """
        ledger = self._ledger
        await ledger.open()
        self._on_step("opened")
        found = None if is_new else await ledger.look(staged)
        self._on_step("looked")
        if found is not None and found.is_done:
            log.info("batch %s was already published", ledger.work.key)
            return
        if found is not None and not self._lost(found.decision):
            log.info("batch %s was started by an earlier run; finishing it", ledger.work.key)
            await self._finish(found.decision, is_fresh=False)
        elif staged or (found is None and ledger.work.kind is WorkKind.TRANSACTION):
            # An empty version is a version, too: another run of it must not have rows.
            decision = await self._placed(staged, replaces="" if found is None else self._given_up(found))
            if is_new:
                await ledger.note(decision)
                decided = decision
            else:
                decided = await ledger.decide(decision)
            self._on_step("decided")
            if decided != decision:
                # Another driver was faster, and may have begun to publish.
                await asyncio.gather(*map(ledger.fence, ledger.brokers))
            await self._finish(decided, is_fresh=decided == decision)
        elif found is not None:
            raise ConfigError(
                f"rows of batch {ledger.work.key} are lost with retired brokers, and this run has no rows to "
                "replace them; start again with a new checkpointLocation (or writeId)"
            )
        elif ledger.work.kind is WorkKind.STREAM:
            await ledger.finish_empty()
        self._on_step("finished")

    def _lost(self, decision: LedgerDecision) -> int:
        """How many chunks cannot be published any more: they are on a retired broker, or it is their target."""
        retired = self._ledger.retired
        places = [(chunk.stage, chunk.queue) for chunk in decision.chunks]
        return sum(any(queue is not None and queue.broker_name in retired for queue in place) for place in places)

    def _given_up(self, found: BatchOutcome) -> str:
        """The id of a decision that cannot be carried out."""
        log.warning(
            "%d of %d chunks of an earlier run of batch %s are lost with retired brokers; all its rows are "
            "written again, so rows that were already published are duplicated",
            self._lost(found.decision),
            len(found.decision.chunks),
            self._ledger.work.key,
        )
        return found.decision_id

    async def _finish(self, decision: LedgerDecision, *, is_fresh: bool) -> None:
        try:
            await self._publish(decision, is_fresh=is_fresh)
        except TernError as error:
            # Spark repeats a stream by itself, and a wrong setting or lost rows cannot be corrected by a repetition.
            if self._ledger.work.kind is WorkKind.STREAM or isinstance(error, ConfigError):
                raise
            raise HalfWritten(self._ledger.work, error) from error
        self._on_step("published")
        await self._ledger.finish()

    async def _placed(self, staged: Sequence[Staged], *, replaces: str) -> LedgerDecision:
        """Choose a queue for each chunk without one, and record the ends of the queues."""
        topics = {chunk.topic for chunk in staged if chunk.queue is None}
        turns = {topic: _turns(await self._writable(topic), staged[0].chunk_id) for topic in topics}
        chunks = [
            chunk if chunk.queue is not None else msgspec.structs.replace(chunk, queue=next(turns[chunk.topic]))
            for chunk in staged
        ]
        queues = sorted({queue for chunk in chunks for queue in landings(chunk)})
        ends = await asyncio.gather(*map(self._logs.bounds, queues))
        noted = [(queue, bounds.end) for queue, bounds in zip(queues, ends, strict=True)]
        return self._ledger.decision(chunks, noted, replaces=replaces)

    async def _writable(self, topic: str) -> Sequence[MessageQueue]:
        what = f"looking for the queues of {topic!r}"
        return await patiently(self._logs, what, lambda: self._logs.writable(topic), timeout_ms=self._timeout_ms)

    async def _publish(self, decision: LedgerDecision, *, is_fresh: bool) -> None:
        by_queue: dict[MessageQueue, list[Staged]] = defaultdict(list)
        for chunk in decision.chunks:
            assert chunk.queue is not None
            by_queue[chunk.queue].append(chunk)
        brokers = {queue.broker_name for queue in by_queue}
        if not brokers.issubset(self._ledger.brokers):
            await self._ledger.extend()
            if not is_fresh:
                await asyncio.gather(*map(self._ledger.fence, brokers))
        presence = Presence(self._logs, decision)
        room = asyncio.Semaphore(self._at_once)

        async def run(chunks: Iterable[Staged]) -> None:
            for chunk in chunks:
                async with room:
                    await self._publish_chunk(chunk, presence, is_fresh=is_fresh)
                self._on_step("chunk")

        async with Tasks() as tasks:
            await asyncio.gather(*(tasks.create_task(run(chunks)) for chunks in by_queue.values()))

    async def _publish_chunk(self, chunk: Staged, presence: Presence, *, is_fresh: bool) -> None:
        queue = chunk.queue
        assert queue is not None
        is_certain, is_fenced, body = is_fresh, True, b""

        async def attempt() -> None:
            nonlocal is_certain, is_fenced, body
            missing: Sequence[int] | None = None
            if not is_certain:
                if not is_fenced:
                    await self._ledger.fence(queue.broker_name)
                    is_fenced = True
                missing = await presence.missing(chunk)
                if not missing:
                    return
            body = body or await self._staged(chunk)
            # From here on it may be there, whatever the result is.
            is_certain = is_fenced = False
            for parcel in parcels(chunk, body, missing):
                await self._logs.append(queue, parcel)

        await patiently(self._logs, f"sending to {queue}", attempt, timeout_ms=self._timeout_ms)

    async def _staged(self, chunk: Staged) -> bytes:
        """The body of a chunk, from the stage."""
        try:
            found = await read_one(self._logs, chunk.stage, chunk.stage_offset)
        except MessagesLost:
            found = None
        if found is None or found.unique_key != stage_key(chunk.chunk_id):
            raise ConfigError(
                f"{chunk.rows} staged rows for {chunk.topic!r} are missing ({chunk.stage}, queue offset "
                f"{chunk.stage_offset}): they were deleted by retention or lost with a disk, and cannot be "
                "written in another way without the risk of duplicates. Start again with a new "
                "checkpointLocation (or writeId), and let brokers keep messages (fileReservedTime) longer than "
                "a job can be stopped"
            )
        return found.body


def _turns(queues: Sequence[MessageQueue], chance: str) -> Iterator[MessageQueue]:
    """All queues in turn. Many batches have only one chunk, so each batch begins with another queue."""
    first = abs(java_hash(chance)) % len(queues)
    return cycle([*queues[first:], *queues[:first]])


def parcels(chunk: Chunk | Staged, body: bytes, rows: Sequence[int] | None = None) -> Iterable[AppendData]:
    """The messages to send for a staged chunk: all rows, or some."""
    if not chunk.delay and (rows is None or len(rows) == chunk.rows):
        yield AppendData(body, is_batch=True)
        return
    messages = unpack_messages(body)
    chosen = [messages[row] for row in (range(chunk.rows) if rows is None else rows)]
    if not chunk.delay:
        yield AppendData(pack_messages((flag, data, text.decode()) for flag, data, text in chosen), is_batch=True)
        return
    for flag, data, text in chosen:
        yield AppendData(data, text.decode(), flag=flag)


class Presence:
    """Which rows of a decision's chunks are visible in their queues. Reads each message of a queue once."""

    def __init__(self, logs: Logs, decision: LedgerDecision) -> None:
        self._logs = logs
        #: From where on no message may be missing, and the next offset to read.
        self._must = dict(decision.ends)
        self._next = {queue: max(0, end - LOOK_BACK) for queue, end in decision.ends}
        self._locks: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._found: dict[str, set[int]] = {chunk.chunk_id: set() for chunk in decision.chunks}

    async def missing(self, chunk: Staged) -> Sequence[int]:
        """The rows of a chunk that are not visible, in order."""
        for queue in landings(chunk):
            async with self._locks[queue]:
                await self._read(queue)
        found = self._found[chunk.chunk_id]
        if chunk.delay == TIMED:
            await self._ask_index(chunk, found)
        return [row for row in range(chunk.rows) if row not in found]

    async def _ask_index(self, chunk: Staged, found: set[int]) -> None:
        assert chunk.queue is not None
        for row in range(chunk.rows):
            key = row_key(chunk.chunk_id, row)
            if row not in found and await self._logs.indexed(chunk.queue.broker_name, WHEEL_TOPIC, key):
                found.add(row)

    async def _read(self, queue: MessageQueue) -> None:
        bounds = await self._logs.bounds(queue)
        if bounds.first > self._must[queue]:
            raise ConfigError(
                f"the messages of {queue} before {bounds.first} were deleted, so the sink cannot find out which "
                "rows were written; start again with a new checkpointLocation (or writeId), and let brokers "
                "keep messages (fileReservedTime) longer than a job can be stopped"
            )
        # The end is before what was read if its broker lost power meanwhile.
        start = self._next[queue] if self._next[queue] <= bounds.end else bounds.end - LOOK_BACK
        start = max(bounds.first, start)
        async for stored in self._logs.read(queue, start, bounds.end):
            for one in stored:
                place = place_of_key(one.unique_key)
                if place is not None and place[0] in self._found:
                    self._found[place[0]].add(place[1])
        self._next[queue] = bounds.end


async def check_timed(logs: Logs, topic: str) -> None:
    """Raise ``ConfigError`` unless all brokers of a topic support individual delivery times."""
    brokers = sorted({queue.broker_name for queue in await logs.writable(topic)})
    settings = await asyncio.gather(*map(logs.settings, brokers))
    if unable := [name for name, one in zip(brokers, settings, strict=True) if one.get(TIMER_SETTING) != "true"]:
        raise ConfigError(
            f"{', '.join(unable)} of topic {topic!r} cannot deliver at a given time (RocketMQ 5 can, with "
            f"{TIMER_SETTING}); use delay_level instead of deliver_time"
        )
