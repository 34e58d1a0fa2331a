"""Queues as the sink sees them: logs to append to and to read again (U2).

All that the sink promises rests on these few operations, which every broker of RocketMQ and TernMQ has. ``Logs`` names
them, with what may go wrong; ``ClusterLogs`` does them over the network, and tests have a version in memory that breaks
at will.

- What is appended gets the next offset of its queue. An append that raises may have happened all the same, wholly or,
  if the broker's machine lost power, only its first messages.
- A queue shows a record some time after it was appended, and the queues of one broker show theirs in the order of
  appending. So who sees a record sees all that its broker took before it: that is the sink's *fence* (``ledger``).
- Reads are patient: a broker that is away is asked again for as long as the option ``retryTimeoutMs`` says.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from ternmq.admin.brokers import Brokers
from ternmq.admin.messages import COUNT_MAX
from ternmq.admin.queues import Queues
from ternmq.admin.topics import Topics
from ternmq.client.config import ProducerConfig
from ternmq.client.outgoing import Outgoing, shrink
from ternmq.client.routes import MASTER_ID
from ternmq.client.sender import Sender
from ternmq.errors import MessagesLost, NetworkError, NotFound, RouteMissing, SendFailed, TernError
from ternmq.filter.tags import ALL
from ternmq.message import Message, MessageQueue, Property, ReceivedMessage, SendReceipt
from ternmq.spark.cluster import Bounds, Cluster
from ternmq.spark.columns import Rows
from ternmq.spark.cursor import Wanted
from ternmq.spark.plan import Slice
from ternmq.spark.pulls import read_slice_on_loop
from ternmq.spark.records import Records
from ternmq.types import Buffer
from ternmq.wire.codes import RequestCode
from ternmq.wire.received import to_message
from ternmq.wire.record import Sysflag, unpack_records
from ternmq.wire.requests import QueryMessage

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Brokers list producers by their group, and this is the sink's.
PRODUCER_GROUP: Final = "TERNMQ_SPARK"
SEND_TIMEOUT_MS: Final = 10_000

_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_EVER_MS: Final = 2**63 - 1


@dataclass(slots=True, frozen=True)
class Parcel:
    """What is appended: one message, or a batch in its wire form."""

    body: Buffer
    properties: str = ""
    is_batch: bool = False
    flag: int = 0
    #: Worth compressing: a text that is kept for days.
    is_text: bool = False


class Stored(NamedTuple):
    """A message found in a queue; texts are empty where it has none."""

    queue_offset: int
    store_time_ms: int
    unique_key: str
    keys: str
    tags: str
    body: bytes


class Logs(Protocol):
    """Queues that can be appended to and read. All methods belong to the loop's thread."""

    async def brokers_of(self, topic: str) -> list[str]:
        """The brokers that have the topic, by name; raises ``RouteMissing``."""
        ...

    async def writable(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic that exists and can be written to; raises ``RouteMissing``."""
        ...

    async def make(self, topic: str, *, queues: int) -> None:
        """Make sure that every broker has the topic."""
        ...

    async def append(self, queue: MessageQueue, parcel: Parcel) -> int:
        """The queue offset of what is appended, of a batch that of its first. One attempt; see above for errors."""
        ...

    async def bounds(self, queue: MessageQueue) -> Bounds:
        """What the queue shows."""
        ...

    def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Stored]]:
        """The messages from ``start`` to before ``end``, which the queue shows; raises ``MessagesLost`` for a gap."""
        ...

    async def hint(self, queue: MessageQueue, key: str) -> int | None:
        """The first queue offset at which an index knows the key. An index may forget: None means nothing."""
        ...

    async def indexed(self, broker: str, topic: str, unique_key: str) -> bool:
        """Whether the index of a broker knows a message: for topics whose queues cannot be read."""
        ...

    async def settings(self, broker: str) -> Mapping[str, str]:
        """What a broker is set to, by RocketMQ's names; it is one of a topic whose route is known."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait before something is tried again."""
        ...


async def patiently(logs: Logs, what: str, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int) -> T:
    """Try again, with growing pauses, while the error is one that may pass; ``what`` begins the sentence if not."""
    end_s = logs.monotonic() + timeout_ms / 1000
    pause_s = _PAUSE_S
    while True:
        try:
            return await attempt()
        except TernError as error:
            if not (error.retriable or isinstance(error, SendFailed)):
                raise
            if logs.monotonic() + pause_s > end_s:
                raise NetworkError(
                    f"{what} failed for {timeout_ms} ms: {error}; check that the brokers run and are not too busy, or "
                    "give them more time with the option retryTimeoutMs"
                ) from error
            log.info("a broker is tried again", extra={"what": what, "why": str(error)})
        await logs.pause(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)


class ClusterLogs:
    """``Logs`` of a cluster."""

    def __init__(self, cluster: Cluster, *, retry_timeout_ms: int) -> None:
        self._cluster = cluster
        self._instance = cluster.instance
        self._queues = Queues(cluster.instance)
        self._sender = Sender(cluster.instance, PRODUCER_GROUP, ProducerConfig(send_timeout_ms=SEND_TIMEOUT_MS), ())
        self._wanted = Wanted(ALL, "", fail_on_data_loss=True, retry_timeout_ms=retry_timeout_ms)

    async def brokers_of(self, topic: str) -> list[str]:
        return list(await self._queues.brokers_of(topic))

    async def make(self, topic: str, *, queues: int) -> None:
        brokers = Brokers(self._instance)
        masters = [broker for broker in await brokers.all() if broker.broker_id == MASTER_ID]
        if not masters:
            raise NetworkError(f"no broker is registered, so none can have the topic {topic!r}")
        for cluster in {master.cluster for master in masters}:
            await Topics(self._instance, brokers).create(topic, queues=queues, cluster=cluster)
        await self._instance.routes.refresh(topic)

    async def append(self, queue: MessageQueue, parcel: Parcel) -> int:
        return (await self._deliver(queue.topic, parcel, queue)).queue_offset

    async def append_anywhere(self, topic: str, parcel: Parcel) -> tuple[MessageQueue, int]:
        """Append to the queue whose turn it is, on a broker that answers: where, and at which queue offset."""
        receipt = await self._deliver(topic, parcel, None)
        return receipt.queue, receipt.queue_offset

    async def _deliver(self, topic: str, parcel: Parcel, queue: MessageQueue | None) -> SendReceipt:
        outgoing = Outgoing(
            (Message(topic, b""),), topic, "", parcel.body, parcel.properties, parcel.flag, is_batch=parcel.is_batch
        )
        if parcel.is_text:
            shrink(outgoing, kind=Sysflag.ZLIB, level=5)
        pick = None if queue is None else (lambda _: queue)
        return await self._sender.deliver(outgoing, pick=pick, timeout_ms=SEND_TIMEOUT_MS)

    async def writable(self, topic: str) -> Sequence[MessageQueue]:
        route = await self._instance.routes.of(topic)
        if not route.to_write:
            route = await self._sender.route(topic, timeout_ms=SEND_TIMEOUT_MS)
        return route.to_write

    async def bounds(self, queue: MessageQueue) -> Bounds:
        async def ask() -> Bounds:
            await self._find(queue)
            offsets = self._queues.bounds
            first, end = await asyncio.gather(offsets.min(queue), offsets.max(queue))
            return Bounds(first, end)

        return await self._patiently(queue, ask)

    async def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Stored]]:
        async for records in read_slice_on_loop(self._cluster, Slice(queue, start, end), self._wanted):
            yield _stored(records, queue)

    async def hint(self, queue: MessageQueue, key: str) -> int | None:
        query = QueryMessage(topic=queue.topic, key=key, count_max=COUNT_MAX, begin_ms=0, end_ms=_EVER_MS)
        found = await self._query(queue, query)
        return min((one.queue_offset for one in found if one.queue == queue and key in one.keys), default=None)

    async def indexed(self, broker: str, topic: str, unique_key: str) -> bool:
        query = QueryMessage(
            topic=topic, key=unique_key, count_max=COUNT_MAX, begin_ms=0, end_ms=_EVER_MS, by_unique_id=True
        )
        found = await self._query(MessageQueue(topic, broker, 0), query)
        return any(one.properties.get(Property.UNIQUE_KEY) == unique_key for one in found)

    async def _query(self, queue: MessageQueue, query: QueryMessage) -> list[ReceivedMessage]:
        async def ask() -> list[ReceivedMessage]:
            address = self._instance.broker_address(queue.broker_name)
            try:
                response = await self._instance.ask(address, RequestCode.QUERY_MESSAGE, query)
            except NotFound:
                return []
            return [to_message(record, queue.broker_name) for record in unpack_records(response.body)]

        return await self._patiently(queue, ask)

    async def settings(self, broker: str) -> Mapping[str, str]:
        response = await self._instance.ask(self._instance.broker_address(broker), RequestCode.GET_BROKER_CONFIG)
        lines = bytes(response.body).decode().splitlines()
        return {name.strip(): value.strip() for name, _, value in (line.partition("=") for line in lines)}

    def monotonic(self) -> float:
        return self._instance.env.clock.monotonic()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def _find(self, queue: MessageQueue) -> None:
        """Let the route of a queue be known. It exists, so a topic that is not known has brokers that are away."""
        try:
            await self._instance.routes.of(queue.topic)
        except RouteMissing as error:
            raise NetworkError(str(error), address=queue.broker_name) from error

    async def _patiently(self, queue: MessageQueue, ask: Callable[[], Awaitable[T]]) -> T:
        return await self._cluster.patiently(queue, ask, timeout_ms=self._wanted.retry_timeout_ms)


def _stored(records: Records, queue: MessageQueue) -> list[Stored]:
    rows = Rows(records, queue)
    texts = [
        [text or "" for text in rows.property(name).to_pylist()]
        for name in (Property.UNIQUE_KEY, Property.KEYS, Property.TAGS)
    ]
    return list(
        map(
            Stored,
            records.queue_offsets.tolist(),
            records.store_times_ms.tolist(),
            *texts,
            rows.bodies().to_pylist(),
        )
    )


async def read_one(logs: Logs, queue: MessageQueue, queue_offset: int) -> Stored:
    """The message at a place that a receipt named; waits until the queue shows it. Raises ``MessagesLost``."""
    await shown(logs, queue, queue_offset)
    async for found in logs.read(queue, queue_offset, queue_offset + 1):
        for one in found:
            return one
    raise MessagesLost(f"{queue} has no message {queue_offset} any more", first=queue_offset, end=queue_offset + 1)


async def shown(logs: Logs, queue: MessageQueue, queue_offset: int, *, timeout_ms: int = 60_000) -> None:
    """Wait until a queue shows what was appended at an offset."""
    end_s = logs.monotonic() + timeout_ms / 1000
    pause_s = 0.001
    while (await logs.bounds(queue)).end <= queue_offset:
        if logs.monotonic() > end_s:
            raise NetworkError(
                f"{queue} did not show its message {queue_offset} within {timeout_ms} ms; its broker lags behind, or "
                "lost it in a power cut",
                address=queue.broker_name,
            )
        await logs.pause(pause_s)
        pause_s = min(pause_s * 2, 0.05)
