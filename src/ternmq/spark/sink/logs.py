"""Queues as the sink sees them: logs to append to and to read again (U2).

All that the sink promises rests on these few operations, which every broker of RocketMQ and TernMQ has. ``Logs`` names
them, with what may go wrong; ``ClusterLogs`` does them over the network, and tests have a version in memory that breaks
at will.

- What is appended gets the next offset of its queue. An append that raises may have happened all the same, wholly or,
  if the broker's machine lost power, only its first messages.
- What is appended is *safe*: on the disk and on the slaves that the broker's settings promise. A broker that has stored
  a record and cannot say so much (FLUSH_DISK_TIMEOUT, FLUSH_SLAVE_TIMEOUT, SLAVE_NOT_AVAILABLE) makes ``append`` raise
  ``NotSafe``. Disks and slaves take a broker's one log in its order, so a later append that is safe tells that all
  before it is: the fence is the proof of that, too.
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
from ternmq.client.connect.routes import MASTER_ID
from ternmq.client.send.outgoing import Outgoing, shrink
from ternmq.client.send.sender import Sender
from ternmq.errors import CorruptRecord, MessagesLost, NetworkError, NotFound, RouteMissing, SendFailed, TernError
from ternmq.filter.tags import ALL
from ternmq.message import Message, MessageQueue, Property, SendReceipt, SendStatus
from ternmq.names import SPARK_GROUP
from ternmq.spark.runtime.cluster import Bounds, Cluster
from ternmq.spark.source.columns import Rows
from ternmq.spark.source.cursor import Wanted
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

#: What a body has at most when it is decompressed: decisions are the largest of the sink's own.
TEXT_BYTES_MAX: Final = 32 << 20

_PAUSE_S: Final = 0.02
_PAUSE_MAX_S: Final = 1.0
_EVER_MS: Final = 2**63 - 1


class NotSafe(TernError):
    """A broker has stored a record, but not as safely as its settings promise."""

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
        """The queue offset of what is appended, of a batch that of its first. One attempt; see above for errors.

        Raises ``NotSafe`` for what is stored and may be lost.
        """
        ...

    async def bounds(self, queue: MessageQueue) -> Bounds:
        """What the queue shows."""
        ...

    def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Stored]]:
        """The messages from ``start`` to before ``end``, which the queue shows; raises ``MessagesLost`` for a gap."""
        ...

    async def hint(self, queue: MessageQueue, key: str, tag: str) -> int | None:
        """The first queue offset at which an index knows a message with this key and tag.

        An index may forget, and tells some of many: there may be earlier ones, and None means nothing.
        """
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
                    f"{what} failed for {timeout_ms} ms: {error}; check that the brokers are running and not "
                    "overloaded, or raise the option retryTimeoutMs"
                ) from error
            log.info("%s failed: %s; retrying", what, error)
        await logs.pause(pause_s)
        pause_s = min(pause_s * 2, _PAUSE_MAX_S)


class ClusterLogs:
    """``Logs`` of a cluster. ``accepts_unsafe``: what is stored is enough, safe or not."""

    def __init__(self, cluster: Cluster, *, retry_timeout_ms: int, accepts_unsafe: bool = False) -> None:
        self._cluster = cluster
        self._instance = cluster.instance
        self._queues = Queues(cluster.instance)
        self._sender = Sender(cluster.instance, SPARK_GROUP, ProducerConfig(send_timeout_ms=SEND_TIMEOUT_MS), ())
        self._accepts_unsafe = accepts_unsafe
        self._warned: set[tuple[str, SendStatus]] = set()
        self._wanted = Wanted(ALL, "", fail_on_data_loss=True, retry_timeout_ms=retry_timeout_ms)

    async def brokers_of(self, topic: str) -> list[str]:
        return list(await self._queues.brokers_of(topic))

    async def make(self, topic: str, *, queues: int) -> None:
        brokers = Brokers(self._instance)
        masters = [broker for broker in await brokers.all() if broker.broker_id == MASTER_ID]
        if not masters:
            raise NetworkError(f"no broker is registered, so the topic {topic!r} is not available")
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
            map(_body, records.bodies.to_pylist(), records.sysflags.tolist()),
        )
    )


def _body(body: bytes, sysflag: int) -> bytes:
    """A body, decompressed. Empty if that cannot be: it is not one of the sink's, and no reason to end a commit."""
    if not sysflag & Sysflag.COMPRESSED:
        return body
    try:
        return decompress(body, sysflag, bytes_max=TEXT_BYTES_MAX)
    except (CorruptRecord, CompressionMissing):
        return b""


async def read_one(logs: Logs, queue: MessageQueue, queue_offset: int) -> Stored:
    """The message at a place that a receipt named; waits until the queue shows it. Raises ``MessagesLost``."""
    await shown(logs, queue, queue_offset)
    async for found in logs.read(queue, queue_offset, queue_offset + 1):
        for one in found:
            return one
    raise MessagesLost(f"message {queue_offset} of {queue} was deleted", first=queue_offset, end=queue_offset + 1)


async def shown(logs: Logs, queue: MessageQueue, queue_offset: int, *, timeout_ms: int = 60_000) -> None:
    """Wait until a queue shows what was appended at an offset."""
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
