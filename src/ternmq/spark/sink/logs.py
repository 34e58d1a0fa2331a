"""Queues as the sink uses them: logs that can be appended to and read (U2).

All guarantees of the sink are based on these few operations, which every broker of RocketMQ and TernMQ has. ``Logs``
defines them, with their possible failures; ``ClusterLogs`` implements them over the network, and tests have a version
in memory with injected failures.

- An appended record gets the next offset of its queue. A failed append may have happened nevertheless, completely or,
  if the broker's machine lost power, only with its first messages.
- An appended record is *safe*: on the disk and on the slaves that the broker's settings require. If a broker has stored
  a record but cannot confirm that (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE), ``append`` raises
  ``NotSafe``. Disks and slaves get a broker's log in its order, so a later append that is safe proves that all
  before it are: the fence proves that, too.
- A record becomes visible in its queue some time after it was appended, and the records of one broker become visible in
  the order of appending. So a visible record proves that all earlier records of its broker are visible: that is the
  sink's *fence* (``ledger``).
- Reads are retried while a broker is down, for the time of the option ``retryTimeoutMs``.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, TypeVar

from ternmq.admin.brokers import BrokerAdmin
from ternmq.admin.messages import COUNT_MAX
from ternmq.admin.queues import Queues
from ternmq.admin.topics import TopicAdmin
from ternmq.client.config import ProducerConfig
from ternmq.client.connect.routes import MASTER_ID
from ternmq.client.send.outgoing import Outgoing, shrink
from ternmq.client.send.sender import Sender
from ternmq.errors import CorruptRecord, MessagesLost, NetworkError, NotFound, RouteMissing, SendFailed, TernError
from ternmq.filter.tags import ALL
from ternmq.message import Message, MessageQueue, Property, SendReceipt, SendStatus
from ternmq.names import SPARK_GROUP
from ternmq.spark.runtime.cluster import Bounds, ClusterClient
from ternmq.spark.source.columns import Rows
from ternmq.spark.source.cursor import PullParameters
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.pulls import read_slice_on_loop
from ternmq.spark.source.records import Records
from ternmq.types import Buffer
from ternmq.wire import properties as property_texts
from ternmq.wire.codes import RequestCode
from ternmq.wire.compress import CompressionMissing, decompress
from ternmq.wire.record import Record, Sysflag, unpack_records
from ternmq.wire.requests import QueryMessage

log = logging.getLogger(__name__)

T = TypeVar("T")

SEND_TIMEOUT_MS: Final = 10_000

#: Maximum size of a decompressed body: decisions are the largest of the sink's own messages.
TEXT_BYTES_MAX: Final = 32 << 20

_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_EVER_MS: Final = 2**63 - 1


class NotSafe(TernError):
    """A broker has stored a record, but not as safely as its settings require."""

    retriable = True

    def __init__(self, receipt: SendReceipt) -> None:
        self.queue, self.queue_offset, self.status = receipt.queue, receipt.queue_offset, receipt.status
        super().__init__(
            f"{receipt.queue} stored a message with the status {receipt.status.value}, so it can be lost with "
            f"its broker; {_CURES[receipt.status]}"
        )


_CURES: Final = {
    SendStatus.FLUSH_DISK_TIMEOUT: "check why the disk of the broker is slow",
    SendStatus.FLUSH_SLAVE_TIMEOUT: "check why the slave of the broker lags behind",
    SendStatus.SLAVE_NOT_AVAILABLE: "start the slave of the broker",
}


@dataclass(slots=True, frozen=True)
class AppendData:
    """Data to append: one message, or a batch in its wire form."""

    body: Buffer
    properties: str = ""
    is_batch: bool = False
    flag: int = 0
    #: Worth compressing: a text that is kept for days.
    is_text: bool = False


class Stored(NamedTuple):
    """A message found in a queue; missing texts are empty."""

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
        """The queues of an existing topic that can be written to; raises ``RouteMissing``."""
        ...

    async def make(self, topic: str, *, queues: int) -> None:
        """Create the topic on every broker that does not have it."""
        ...

    async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
        """Append; returns the queue offset, of a batch that of its first message. One attempt; see above for errors.

        Raises ``NotSafe`` if it is stored but may be lost.
        """
        ...

    async def bounds(self, queue: MessageQueue) -> Bounds:
        """The visible range of the queue."""
        ...

    def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Stored]]:
        """The visible messages from ``start`` to before ``end``; raises ``MessagesLost`` for a gap."""
        ...

    async def hint(self, queue: MessageQueue, key: str, tag: str) -> int | None:
        """The first queue offset at which an index has a message with this key and tag.

        An index may lose entries and returns only some of many: there may be earlier ones, and None proves nothing.
        """
        ...

    async def indexed(self, broker: str, topic: str, unique_key: str) -> bool:
        """Whether the index of a broker has a message: for topics whose queues cannot be read."""
        ...

    async def settings(self, broker: str) -> Mapping[str, str]:
        """The settings of a broker, by RocketMQ's names; the broker must have a topic whose route is known."""
        ...

    def monotonic(self) -> float:
        """Seconds since some fixed moment."""
        ...

    async def pause(self, seconds: float) -> None:
        """Wait before a retry."""
        ...


async def patiently(logs: Logs, what: str, attempt: Callable[[], Awaitable[T]], *, timeout_ms: int) -> T:
    """Retry, with growing pauses, while the error may be temporary; ``what`` begins the sentence of the error."""
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
                    f"{what} failed for {timeout_ms} ms: {error}; check that the brokers are running and not "
                    "overloaded, or raise the option retryTimeoutMs"
                ) from error
            log.info("%s failed: %s; retrying", what, error)
        await logs.pause(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)


class ClusterLogs:
    """``Logs`` of a cluster. ``accepts_unsafe``: a stored record is enough, safe or not."""

    def __init__(self, cluster: ClusterClient, *, retry_timeout_ms: int, accepts_unsafe: bool = False) -> None:
        self._cluster = cluster
        self._instance = cluster.instance
        self._queues = Queues(cluster.instance)
        self._sender = Sender(cluster.instance, SPARK_GROUP, ProducerConfig(send_timeout_ms=SEND_TIMEOUT_MS), ())
        self._accepts_unsafe = accepts_unsafe
        self._warned: set[tuple[str, SendStatus]] = set()
        self._wanted = PullParameters(ALL, "", fail_on_data_loss=True, retry_timeout_ms=retry_timeout_ms)

    async def brokers_of(self, topic: str) -> list[str]:
        return list(await self._queues.brokers_of(topic))

    async def make(self, topic: str, *, queues: int) -> None:
        brokers = BrokerAdmin(self._instance)
        masters = [broker for broker in await brokers.all() if broker.broker_id == MASTER_ID]
        if not masters:
            raise NetworkError(f"no broker is registered, so the topic {topic!r} is not available")
        for cluster in {master.cluster for master in masters}:
            await TopicAdmin(self._instance, brokers).create(topic, queues=queues, cluster=cluster)
        await self._instance.routes.refresh(topic)

    async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
        return (await self._deliver(queue.topic, parcel, queue)).queue_offset

    async def append_anywhere(self, topic: str, parcel: AppendData) -> tuple[MessageQueue, int]:
        """Append to the next queue in turn, on a broker that answers; returns the queue and the queue offset."""
        receipt = await self._deliver(topic, parcel, None)
        return receipt.queue, receipt.queue_offset

    async def _deliver(self, topic: str, parcel: AppendData, queue: MessageQueue | None) -> SendReceipt:
        outgoing = Outgoing(
            (Message(topic, b""),), topic, "", parcel.body, parcel.properties, parcel.flag, is_batch=parcel.is_batch
        )
        if parcel.is_text:
            shrink(outgoing, kind=Sysflag.ZLIB, level=5)
        pick = None if queue is None else (lambda _: queue)
        receipt = await self._sender.deliver(outgoing, pick=pick, timeout_ms=SEND_TIMEOUT_MS)
        if receipt.status is not SendStatus.OK:
            self._unsafe(receipt)
        return receipt

    def _unsafe(self, receipt: SendReceipt) -> None:
        error = NotSafe(receipt)
        if not self._accepts_unsafe:
            raise error
        if (receipt.queue.broker_name, receipt.status) not in self._warned:
            self._warned.add((receipt.queue.broker_name, receipt.status))
            log.warning("%s. It is accepted because of the option unsafeWrites", error)

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

    async def hint(self, queue: MessageQueue, key: str, tag: str) -> int | None:
        query = QueryMessage(topic=queue.topic, key=key, count_max=COUNT_MAX, begin_ms=0, end_ms=_EVER_MS)
        found = await self._query(queue, query)
        here = [one for one in found if one.queue_id == queue.queue_id]
        known = [(one.queue_offset, property_texts.parse(one.properties)) for one in here]
        return min(
            (
                at
                for at, pairs in known
                if key in pairs.get(Property.KEYS, "").split() and tag == pairs.get(Property.TAGS)
            ),
            default=None,
        )

    async def indexed(self, broker: str, topic: str, unique_key: str) -> bool:
        query = QueryMessage(
            topic=topic, key=unique_key, count_max=COUNT_MAX, begin_ms=0, end_ms=_EVER_MS, by_unique_id=True
        )
        found = await self._query(MessageQueue(topic, broker, 0), query)
        return any(property_texts.parse(one.properties).get(Property.UNIQUE_KEY) == unique_key for one in found)

    async def _query(self, queue: MessageQueue, query: QueryMessage) -> list[Record]:
        async def ask() -> list[Record]:
            address = self._instance.broker_address(queue.broker_name)
            try:
                response = await self._instance.ask(address, RequestCode.QUERY_MESSAGE, query)
            except NotFound:
                return []
            return unpack_records(response.body)

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
        """Load the route of a queue. The queue exists, so if the topic is unknown, its brokers are down."""
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
            map(_body, records.bodies.to_pylist(), records.sysflags.tolist()),
        )
    )


def _body(body: bytes, sysflag: int) -> bytes:
    """A decompressed body. Empty if it cannot be decompressed: it is not from the sink, and must not end a commit."""
    if not sysflag & Sysflag.COMPRESSED:
        return body
    try:
        return decompress(body, sysflag, bytes_max=TEXT_BYTES_MAX)
    except (CorruptRecord, CompressionMissing):
        return b""


async def read_one(logs: Logs, queue: MessageQueue, queue_offset: int) -> Stored:
    """The message at the position of a receipt; waits until it is visible. Raises ``MessagesLost``."""
    await shown(logs, queue, queue_offset)
    async for found in logs.read(queue, queue_offset, queue_offset + 1):
        for one in found:
            return one
    raise MessagesLost(f"message {queue_offset} of {queue} was deleted", first=queue_offset, end=queue_offset + 1)


async def shown(logs: Logs, queue: MessageQueue, queue_offset: int, *, timeout_ms: int = 60_000) -> None:
    """Wait until the record at an offset is visible in a queue."""
    end_s = logs.monotonic() + timeout_ms / 1000
    pause_s = 0.001
    while (await logs.bounds(queue)).end <= queue_offset:
        if logs.monotonic() > end_s:
            raise NetworkError(
                f"cannot read message {queue_offset} of {queue} within {timeout_ms} ms; its broker lags behind, "
                "or lost it in a power failure",
                address=queue.broker_name,
            )
        await logs.pause(pause_s)
        pause_s = min(pause_s * 2, 0.05)
