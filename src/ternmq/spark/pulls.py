"""One slice of a queue, pulled from its broker in order, each message once (U1, V2).

A pull names a queue offset and gets the records from there on, and the offset to go on at. Brokers give 32 at a time
(TernMQ as many as fit into the bytes asked for), so the way there and back would be most of the time. The reader
therefore guesses: if the last answer covered 32 offsets, the next ones will, so the pulls behind it are asked before it
has come. A right guess doubles the number of pulls under way, up to ``AHEAD_MAX``; a wrong one throws away what was
asked too early and starts again with one. What is handed on is always the answer to the offset where the last one
ended, so guesses cost time at most, never order or a message.

A broker that dies is asked again, at the same offset, until it or its successor answers or ``retryTimeoutMs`` is over.

What is not there any more
    Retention deletes from the front, and a broker that lost its last page in a power cut ends earlier than before.
    Without a filter every queue offset of the slice must come, so a gap shows by itself; with one, the broker's words
    have to do. With ``failOnDataLoss`` it is an error, else a warning, and the read goes on with what is there.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ternmq.admin.queues import LOOKING_GROUP
from ternmq.client.routes import MASTER_ID
from ternmq.errors import MessagesLost, NetworkError, refused
from ternmq.filter.tags import ALL
from ternmq.message import MessageQueue
from ternmq.spark.cluster import Cluster
from ternmq.spark.plan import Slice
from ternmq.spark.records import Int64s, Records
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag

log = logging.getLogger(__name__)

#: What a pull asks for. Brokers have limits of their own, of 32 messages and 256 KiB.
COUNT_MAX: Final = 1_024
BYTES_MAX: Final = 1 << 20
#: Pulls of one slice under way at once.
AHEAD_MAX: Final = 8
#: What is handed on together: enough to make the fixed cost of a batch small, little enough to start early.
CHUNK_BYTES: Final = 4 << 20
CHUNK_MESSAGES: Final = 10_000

#: What is looked at to tell how large messages are.
SAMPLE_MESSAGES: Final = 32

ANSWER_MS: Final = 10_000
#: A queue that ends before the slice does may be one that a slave shows, or that is being recovered: ask that often.
END_ASKED_MAX: Final = 5
_END_PAUSE_S: Final = 0.2


@dataclass(slots=True, frozen=True)
class Pulled:
    """The answer to a pull at ``at``."""

    at: int
    code: int
    body: Buffer
    next_offset: int
    min_offset: int
    #: Records are passed over because they were deleted, not because of the filter.
    is_gone: bool


@dataclass(slots=True, frozen=True)
class Wanted:
    """What a read asks of brokers, beyond the place."""

    tags: str
    sql: str
    fail_on_data_loss: bool
    retry_timeout_ms: int

    @property
    def is_filtered(self) -> bool:
        return bool(self.sql) or self.tags != ALL

    def lost(self, queue: MessageQueue, first: int, end: int) -> None:
        """Messages of a slice are gone: raise ``MessagesLost``, or say so and let the read go on."""
        lost = MessagesLost(
            f"{queue} has no messages {first} to {end - 1} any more; keep them longer (fileReservedTime) or read them "
            "sooner, or set the option failOnDataLoss to false to go on without them",
            first=first,
            end=end,
        )
        if self.fail_on_data_loss:
            raise lost
        log.warning("messages are gone; the read goes on without them", extra={"why": str(lost)})


def read_slice(cluster: Cluster, part: Slice, wanted: Wanted) -> Iterator[Records]:
    """The records of a slice in order, some megabytes at a time; the next are fetched while these are worked on.

    Raises ``MessagesLost``, ``NetworkError``, ``BrokerRefused``, ``CorruptRecord``.
    """
    reader = SliceReader(cluster, part, wanted)
    expected = part.start
    try:
        coming = cluster.thread.start(reader.next_chunk)
        while chunk := coming.result():
            coming = cluster.thread.start(reader.next_chunk)
            records = Records(b"".join(chunk))
            # What a filter let through may lie beyond the end.
            records = records.select(records.queue_offsets < part.end)
            records.check_bodies()
            if not wanted.is_filtered:
                for first, end in gaps(records.queue_offsets, expected):
                    wanted.lost(part.queue, first, end)
                if len(records):
                    expected = int(records.queue_offsets[-1]) + 1
            if len(records):
                yield records
        if not wanted.is_filtered and expected < part.end:
            wanted.lost(part.queue, expected, part.end)
    finally:
        # A query with a limit stops reading in the middle.
        cluster.run(reader.close())


def gaps(queue_offsets: Int64s, expected: int) -> list[tuple[int, int]]:
    """Where growing offsets, the first of which should be ``expected``, leave some out: first and end of each hole."""
    before = np.concatenate(([expected - 1], queue_offsets[:-1])) if len(queue_offsets) else queue_offsets
    holes = np.flatnonzero(queue_offsets != before + 1)
    return [(int(before[hole]) + 1, int(queue_offsets[hole])) for hole in holes]


class SliceReader:
    """Pulls one slice. All methods belong to the loop's thread."""

    def __init__(self, cluster: Cluster, part: Slice, wanted: Wanted) -> None:
        self._cluster = cluster
        self._queue = part.queue
        self._next = part.start
        self._end = part.end
        self._wanted = wanted
        self._broker_id = MASTER_ID
        self._tasks = Tasks()
        self._ahead: deque[tuple[int, asyncio.Task[Pulled]]] = deque()
        #: How many pulls may be under way, and how far the last one led.
        self._depth = 1
        self._stride = COUNT_MAX
        self._end_asked = 0

    def next_chunk(self) -> asyncio.Task[list[Buffer]]:
        """The next bodies of pulls; none at the end of the slice."""
        return self._tasks.create_task(self._chunk())

    async def first(self) -> Pulled:
        """The answer to the first pull, whatever it says."""
        return await self._pull_patiently(self._next)

    async def close(self) -> None:
        await self._tasks.close()

    async def _chunk(self) -> list[Buffer]:
        bodies: list[Buffer] = []
        chunk_bytes, begin = 0, self._next
        while self._next < self._end and chunk_bytes < CHUNK_BYTES and self._next - begin < CHUNK_MESSAGES:
            pulled = await self._pulled()
            if pulled.code == ResponseCode.SUCCESS:
                bodies.append(pulled.body)
                chunk_bytes += len(pulled.body)
            elif pulled.code == ResponseCode.PULL_OFFSET_MOVED or pulled.next_offset <= pulled.at:
                await self._not_there(pulled)
                continue
            elif pulled.is_gone:
                self._gone(pulled.next_offset)
            self._next = pulled.next_offset
        # A stretch in which nothing passed the filter is no end.
        return bodies if bodies or self._next >= self._end else [b""]

    async def _pulled(self) -> Pulled:
        """The answer to a pull at ``_next``; asks for what probably follows it."""
        self._ask_ahead()
        _, task = self._ahead.popleft()
        pulled = await task
        led_to = pulled.next_offset
        if not self._ahead or self._ahead[0][0] == led_to:
            self._depth = min(self._depth * 2, AHEAD_MAX)
        else:
            self._forget()
        if led_to > pulled.at and led_to < self._end:
            self._stride = led_to - pulled.at
        return pulled

    def _ask_ahead(self) -> None:
        at = self._ahead[-1][0] + self._stride if self._ahead else self._next
        # How far a filtered pull leads is anybody's guess.
        depth = 1 if self._wanted.is_filtered else self._depth
        while len(self._ahead) < depth and at < self._end:
            self._ahead.append((at, self._tasks.create_task(self._pull_patiently(at))))
            at += self._stride

    def _forget(self) -> None:
        for _, task in self._ahead:
            task.cancel()
        self._ahead.clear()
        self._depth = 1

    async def _pull_patiently(self, at: int) -> Pulled:
        return await self._cluster.patiently(
            self._queue, lambda: self._pull(at), timeout_ms=self._wanted.retry_timeout_ms
        )

    async def _pull(self, at: int) -> Pulled:
        instance, queue, wanted = self._cluster.instance, self._queue, self._wanted
        await instance.routes.of(queue.topic)
        address = instance.routes.address(queue.broker_name, self._broker_id)
        if address is None:
            self._broker_id = MASTER_ID
            address = instance.broker_address(queue.broker_name)
        header = PullMessage(
            consumer_group=LOOKING_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=at,
            # Without a filter, offsets are messages; with one, those beyond the end are dropped later.
            count_max=COUNT_MAX if wanted.is_filtered else min(COUNT_MAX, self._end - at),
            sysflag=PullSysflag.SUBSCRIPTION,
            subscription=wanted.sql or wanted.tags,
            expression_type="SQL92" if wanted.sql else "TAG",
            bytes_max=BYTES_MAX,
        )
        try:
            response = await instance.call(address, RequestCode.PULL_MESSAGE, header, timeout_ms=ANSWER_MS)
        except NetworkError:
            self._broker_id = MASTER_ID
            raise
        if response.code not in _ANSWERS:
            raise refused(
                response.code,
                f"{queue.broker_name} refused a pull of {queue} at {at}: {response.remark}",
                broker=queue.broker_name,
            )
        reply = response.read(PullReply)
        self._broker_id = reply.suggested_broker_id
        is_gone = response.code == ResponseCode.PULL_NOT_FOUND or response.remark == _REMOVED
        return Pulled(at, response.code, response.body, reply.next_offset, reply.min_offset, is_gone)

    async def _not_there(self, pulled: Pulled) -> None:
        """There is nothing at ``_next``, though the slice has it: deleted, lost, or not there *yet*."""
        self._forget()
        if pulled.min_offset <= self._next and self._end_asked < END_ASKED_MAX:
            # The front is not what is missing. A slave may lag behind, so ask the master.
            self._broker_id = MASTER_ID
            self._end_asked += 1
            await asyncio.sleep(_END_PAUSE_S)
            return
        resume = min(pulled.min_offset, self._end) if pulled.min_offset > self._next else self._end
        self._gone(resume)
        self._next = resume

    def _gone(self, end: int) -> None:
        # Without a filter, who looks at the records finds the hole.
        if self._wanted.is_filtered:
            self._wanted.lost(self._queue, self._next, min(end, self._end))


#: The remark of an answer that passes over deleted records (RocketMQ's ``GetMessageStatus``).
_REMOVED: Final = "MESSAGE_WAS_REMOVING"
_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def record_bytes(cluster: Cluster, places: Mapping[MessageQueue, int], wanted: Wanted) -> dict[MessageQueue, float]:
    """How many bytes a record has in each queue from an offset on, by a look at the first ones there.

    A queue that shows none costs nothing: there is nothing to read in it, or what there is does not pass the filter.
    """

    async def ask() -> dict[MessageQueue, float]:
        readers = [SliceReader(cluster, Slice(queue, at, at + SAMPLE_MESSAGES), wanted) for queue, at in places.items()]
        try:
            answers = await asyncio.gather(*(reader.first() for reader in readers))
        finally:
            for reader in readers:
                await reader.close()
        return {
            queue: len(answer.body) / max(1, answer.next_offset - answer.at)
            for queue, answer in zip(places, answers, strict=True)
        }

    return cluster.run(ask())
