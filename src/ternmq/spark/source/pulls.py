"""Pulls of a slice: from its broker, in order, each message once (U1, V2).

``read_slice`` is for tasks: pulls over a ``BrokerLine``, some in advance, and records that are read in place. After a
line has failed, a pull through the client replaces it: the same offset is requested again, until the broker or its
successor answers or ``retryTimeoutMs`` is over. Then a new line is opened.

``read_slice_on_loop`` is for the sink's ledger, which reads little and runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Final

import numpy as np

from ternmq.admin.queues import tools_pull
from ternmq.client.connect.routes import MASTER_ID, Copy
from ternmq.client.consume.slaves import check_slave
from ternmq.errors import NetworkError, RouteMissing, TernError, refused
from ternmq.message import MessageQueue
from ternmq.spark.runtime.cluster import ClusterClient
from ternmq.spark.source.cursor import Cursor, Expected, PullParameters, ReplyKind, SliceReply
from ternmq.spark.source.line import BrokerLine
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.records import Int64s, Records, find_starts
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import PullMessage, PullReply

#: Bytes that a pull requests. Brokers have their own limits, of 32 messages and 256 KiB.
BYTES_MAX: Final = 1 << 20
#: Pulls of one slice in progress at once.
AHEAD_MAX: Final = 8
#: Bytes of one chunk: enough to make the fixed cost of a batch small, few enough to start early.
CHUNK_BYTES: Final = 4 << 20

#: Messages read to estimate the size of messages.
SAMPLE_MESSAGES: Final = 32

ANSWER_MS: Final = 10_000
_END_PAUSE_S: Final = 0.2

#: The remark of a reply that skips deleted records (RocketMQ's ``GetMessageStatus``).
_REMOVED: Final = "MESSAGE_WAS_REMOVING"
_ANSWERS: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def read_slice(cluster: ClusterClient, part: Slice, wanted: PullParameters) -> Iterator[Records]:
    """The records of a slice in order, some megabytes at a time. Their bytes are valid until the next are requested.
    Bodies are not checked.

    Raises ``MessagesLost``, ``NetworkError``, ``BrokerRefused``, ``CorruptRecord``.
    """
    reader = _SliceReader(cluster, part, wanted)
    expected = Expected(part, wanted)
    try:
        while not reader.is_done:
            records = _inside(reader.chunk(), part)
            expected.check(records.queue_offsets)
            if len(records):
                yield records
        expected.check_end()
    finally:
        # A query with a limit stops reading in the middle.
        reader.close()


async def read_slice_on_loop(cluster: ClusterClient, part: Slice, wanted: PullParameters) -> AsyncIterator[Records]:
    """The same through the client, one pull after the other. Belongs to the loop's thread."""
    cursor = Cursor(part, wanted)
    expected = Expected(part, wanted)
    while not cursor.is_done:
        ((at, count),) = cursor.to_ask()
        pulled, body = await _pull_patiently(cluster, part.queue, at, count, wanted, cursor.broker_id)
        step = cursor.take(pulled)
        if step is ReplyKind.AGAIN:
            await asyncio.sleep(_END_PAUSE_S)
        elif step is ReplyKind.RECORDS:
            records = _inside(Records(bytes(body)), part)
            records.check_bodies()
            expected.check(records.queue_offsets)
            yield records
    expected.check_end()


def record_bytes(
    cluster: ClusterClient, places: Mapping[MessageQueue, int], wanted: PullParameters
) -> dict[MessageQueue, float]:
    """The average bytes of a record in each queue from an offset on, estimated from the first ones there.

    A queue without records costs 0: it has no messages to read, or none that match the filter.
    """

    async def ask(queue: MessageQueue, at: int) -> float:
        pulled, body = await _pull_patiently(cluster, queue, at, SAMPLE_MESSAGES, wanted, MASTER_ID)
        return len(body) / max(1, pulled.next_offset - at)

    async def ask_all() -> list[float]:
        return await asyncio.gather(*(ask(queue, at) for queue, at in places.items()))

    return dict(zip(places, cluster.run(ask_all()), strict=True))


def _inside(records: Records, part: Slice) -> Records:
    """The records without those beyond the end, which a filter may return."""
    return records.select(records.queue_offsets < part.end)


class _SliceReader:
    """Pulls one slice over lines. Belongs to one thread, which is not the loop's."""

    def __init__(self, cluster: ClusterClient, part: Slice, wanted: PullParameters) -> None:
        self._cluster = cluster
        self._queue = part.queue
        self._wanted = wanted
        self._cursor = Cursor(part, wanted, ahead_max=AHEAD_MAX)
        self._line: BrokerLine | None = None
        #: The broker of the set that was asked for, and the one that the line is connected to.
        self._broker_id = MASTER_ID
        self._is_master = True
        self._is_broken = False

    @property
    def is_done(self) -> bool:
        return self._cursor.is_done

    def close(self) -> None:
        if self._line is not None:
            self._line.close()
        self._line = None
        self._cursor.forget()

    def chunk(self) -> Records:
        """The next records, if there are any; valid until the next call."""
        return self._patient_chunk() if self._is_broken else self._line_chunk()

    def _patient_chunk(self) -> Records:
        cursor, cluster = self._cursor, self._cluster
        self._is_broken = False
        ((at, count),) = cursor.to_ask()
        asked = _pull_patiently(cluster, self._queue, at, count, self._wanted, cursor.broker_id)
        pulled, body = cluster.run(asked)
        return Records(bytes(body) if self._take(pulled) else b"")

    def _line_chunk(self) -> Records:
        cursor = self._cursor
        line: BrokerLine | None = None
        starts: list[Int64s] = []
        chunk_bytes = 0
        while not cursor.is_done and chunk_bytes < CHUNK_BYTES:
            try:
                if line is None:
                    line = self._to_broker()
                    line.turn()
                headers = [_pull_header(self._queue, at, count, self._wanted) for at, count in cursor.to_ask()]
                last = line.ask(RequestCode.PULL_MESSAGE, headers)
                # The pulls in progress are the last ones sent; this is the first of them.
                answer = line.answer(last + 1 - len(cursor.asked))
                pulled = _pulled(answer.response, self._queue, cursor.at, is_master=self._is_master)
            except TernError:
                # Earlier replies are valid; the retry through the client decides whether the failure is permanent.
                self.close()
                self._is_broken = True
                break
            if self._take(pulled):
                starts.append(find_starts(line.data, answer.begin, answer.end))
                chunk_bytes += answer.end - answer.begin
            if self._broker_id != cursor.broker_id:
                self.close()
                break
        return Records(line.data, starts=np.concatenate(starts)) if line is not None and starts else Records(b"")

    def _take(self, pulled: SliceReply) -> bool:
        """Whether a reply has records."""
        step = self._cursor.take(pulled)
        if step is ReplyKind.AGAIN:
            self._cluster.run(asyncio.sleep(_END_PAUSE_S))
        return step is ReplyKind.RECORDS

    def _to_broker(self) -> BrokerLine:
        if self._line is None:
            self._broker_id = self._cursor.broker_id
            copy = self._cluster.run(_copy(self._cluster, self._queue, self._broker_id))
            self._is_master = copy.is_master
            form = self._cluster.instance.form_of(RequestCode.PULL_MESSAGE)
            self._line = BrokerLine(
                copy.address,
                form=form,
                room_bytes=CHUNK_BYTES + BYTES_MAX,
                timeout_ms=ANSWER_MS,
                credentials=self._cluster.client.credentials(),
                tls=self._cluster.client.tls_context(),
            )
        return self._line


# --- One pull -----------------------------------------------------------------------------------------------------


async def _pull_patiently(
    cluster: ClusterClient, queue: MessageQueue, at: int, count: int, wanted: PullParameters, broker_id: int
) -> tuple[SliceReply, memoryview]:
    """A pull through the client, and its body; repeated while the error may be temporary."""
    header = _pull_header(queue, at, count, wanted)

    async def ask() -> tuple[SliceReply, memoryview]:
        nonlocal broker_id
        copy = await _copy(cluster, queue, broker_id)
        try:
            response = await cluster.instance.call(copy.address, RequestCode.PULL_MESSAGE, header, timeout_ms=ANSWER_MS)
            return _pulled(response, queue, at, is_master=copy.is_master), response.body
        except NetworkError:
            broker_id = MASTER_ID
            raise

    return await cluster.patiently(queue, ask, timeout_ms=wanted.retry_timeout_ms)


async def _copy(cluster: ClusterClient, queue: MessageQueue, broker_id: int) -> Copy:
    """That broker of the set; if there is no such broker, the master, or a slave while the master is away."""
    instance = cluster.instance
    try:
        await instance.routes.of(queue.topic)
    except RouteMissing as error:
        # The queue existed when the read was planned, so its brokers are down.
        raise NetworkError(str(error), address=queue.broker_name) from error
    return instance.copy_of(queue.broker_name, broker_id=broker_id)


def _pull_header(queue: MessageQueue, at: int, count: int, wanted: PullParameters) -> PullMessage:
    return tools_pull(queue, at, count_max=count, tags=wanted.tags, sql=wanted.sql, bytes_max=BYTES_MAX)


def _pulled(response: Response, queue: MessageQueue, at: int, *, is_master: bool) -> SliceReply:
    """Raises ``NetworkError`` for messages that a slave does not have: only the master can say that they are lost."""
    if not is_master:
        check_slave(queue, at, response)
    if response.code not in _ANSWERS:
        raise refused(
            response.code,
            f"{queue.broker_name} refused a pull of {queue} at {at}: {response.remark}",
            broker=queue.broker_name,
        )
    reply = response.read(PullReply)
    if not is_master and response.code != ResponseCode.SUCCESS and reply.next_offset <= at:
        raise NetworkError(
            f"the slave of {queue.broker_name} does not have {queue} at {at} yet, and the master is away",
            address=queue.broker_name,
        )
    is_gone = response.code == ResponseCode.PULL_NOT_FOUND or response.remark == _REMOVED
    return SliceReply(
        at,
        response.code,
        reply.next_offset,
        reply.min_offset,
        len(response.body),
        is_gone,
        reply.suggested_broker_id,
    )
