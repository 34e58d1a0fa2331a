"""What consumers do with popped messages: ack 200051, many at once 200151, change the invisible time 200053 (F9).

A handle (POP_CK) names the check point, the header the message. An ack that comes too late, or of a broker that has
been killed since, is no error: the message comes again, as «at least once» has it. A change that comes too late is
refused with NO_MESSAGE (208), since the consumer would otherwise count on having the message for itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator
from typing import Final

from ternmq.broker.flow import CLIENT
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import InvalidParameter, MessageIllegal, NoMessage, RemoteProtocolError, SystemBusy
from ternmq.net.gate import Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.pop.buffer import IN_FLIGHT_MAX, Buffer
from ternmq.pop.orderly import Orders
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import BatchAck, BatchAcks
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import JSON, RequestCode
from ternmq.wire.handles import COUNT_MAX, ORDERED, Handle, real_topic
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeReply
from ternmq.wire.template import ReplyTemplate

#: A check point has 32 messages; a filter may have let far fewer through than lie between them.
_BITS_BYTES_MAX: Final = 4096
#: Check points in one batch; each takes some microseconds.
_ACKS_MAX: Final = 4096

#: The reply to an ack; each message has one.
_ACKED: Final = ReplyTemplate({}, {})


class AckHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        buffer: Buffer,
        orders: Orders,
        topics: Topics,
        offsets: Offsets,
        store: MessageStore,
        clock: Clock,
    ) -> None:
        self._buffer = buffer
        self._orders = orders
        self._topics = topics
        self._offsets = offsets
        self._store = store
        self._now_ms = clock.now_ms

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.ACK_MESSAGE: Route(self.ack, CLIENT, Rule(Action.SUB, topic="topic", group="consumerGroup")),
            RequestCode.BATCH_ACK_MESSAGE: Route(self.batch_ack, CLIENT, Rule(Action.SUB, in_body=_acked)),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Route(
                self.change, CLIENT, Rule(Action.SUB, topic="topic", group="consumerGroup")
            ),
        }

    def ack(self, _peer: Peer, request: Request[AckMessage]) -> Reply | bytes:
        """One message is done."""
        header = request.fields
        self._check(header)
        start_offset, pop_time_ms, revive_queue_id = _check_point(header.extra_info)
        key = header.consumer_group, header.topic, header.queue_id
        if revive_queue_id == ORDERED:
            self._ack_ordered(key, header.queue_offset, pop_time_ms)
        else:
            self._buffer.ack(key, start_offset, pop_time_ms, (header.queue_offset,))
        return _ACKED.fill((request.opaque,)) if request.serial == JSON else Reply()

    def batch_ack(self, _peer: Peer, request: Request[object]) -> Reply:
        """Messages of several check points are done. One that cannot be does not keep the others from it."""
        acks = decode(request.body, BatchAcks).acks
        if not acks:
            raise NoMessage("the batch of acks is empty")
        if len(acks) > _ACKS_MAX:
            raise InvalidParameter(
                f"the batch has {len(acks)} acks, more than the {_ACKS_MAX} allowed; send several requests"
            )
        illegal: MessageIllegal | None = None
        for ack in acks:
            topic = real_topic(ack.consumer_group, ack.topic, int(ack.retry) if ack.retry in ("1", "2") else 0)
            key = ack.consumer_group, topic, ack.queue_id
            queue_offsets = [ack.start_offset + bit for bit in _bits(ack)]
            if ack.revive_queue_id == ORDERED:
                for queue_offset in queue_offsets:
                    try:
                        self._ack_ordered(key, queue_offset, ack.pop_time_ms)
                    except MessageIllegal as error:
                        illegal = error
            else:
                self._buffer.ack(key, ack.start_offset, ack.pop_time_ms, queue_offsets)
        if illegal is not None:
            raise illegal
        return Reply()

    def change(self, _peer: Peer, request: Request[ChangeInvisibleTime]) -> Reply:
        """Hide a message for another while, from now on."""
        header = request.fields
        self._check(header)
        start_offset, pop_time_ms, revive_queue_id = _check_point(header.extra_info)
        key = header.consumer_group, header.topic, header.queue_id
        invisible_ms = header.invisible_ms
        if revive_queue_id == ORDERED:
            if header.queue_offset >= self._offsets.get(*key):
                visible_ms = self._now_ms() + invisible_ms
                self._orders.change(key, header.queue_offset, pop_time_ms, visible_ms)
                invisible_ms = visible_ms - pop_time_ms
        else:
            if self._buffer.is_full:
                raise SystemBusy(
                    f"[OVERLOAD]system busy: {IN_FLIGHT_MAX} pops are not acknowledged; acknowledge popped messages "
                    "first"
                )
            changed = self._buffer.change(
                key, start_offset, pop_time_ms, header.queue_offset, invisible_ms=invisible_ms
            )
            if changed is None:
                raise NoMessage(
                    f"{header.topic}@{header.queue_id}:{header.queue_offset} is no longer covered by this "
                    "handle; it was acknowledged, or is delivered again"
                )
            pop_time_ms = changed
        return Reply(
            header=ChangeInvisibleTimeReply(
                pop_time_ms=pop_time_ms, invisible_ms=invisible_ms, revive_queue_id=revive_queue_id
            )
        )

    def _ack_ordered(self, key: tuple[str, str, int], queue_offset: int, pop_time_ms: int) -> None:
        if queue_offset < self._offsets.get(*key):
            return
        next_offset = self._orders.ack(key, queue_offset, pop_time_ms)
        if next_offset is not None:
            self._offsets.commit(*key, next_offset)

    def _check(self, header: AckMessage | ChangeInvisibleTime) -> None:
        config = self._topics.find(header.topic)
        if not 0 <= header.queue_id < config.read_queue_nums:
            raise MessageIllegal(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {config.read_queue_nums} queues "
                f"to read; consumer:[{header.consumer_group}]"
            )
        first = self._store.min_offset(header.topic, header.queue_id)
        end = self._store.max_offset(header.topic, header.queue_id)
        if not first <= header.queue_offset <= end:
            raise NoMessage(
                f"offset is illegal, key:{header.topic}@{header.queue_id}, commit:{header.queue_offset}, "
                f"store:{first}~{end}"
            )


def _check_point(text: str) -> tuple[int, int, int]:
    try:
        return Handle.check_point(text)
    except RemoteProtocolError as error:
        raise InvalidParameter(str(error)) from None


def _bits(ack: BatchAck) -> Iterator[int]:
    """The numbers of the bits that are set."""
    try:
        data = base64.b64decode(ack.bits, validate=True)
    except (binascii.Error, ValueError):
        raise InvalidParameter(f"invalid bits {ack.bits[:40]!r} in a batch of acks: expected base64") from None
    if len(data) > _BITS_BYTES_MAX:
        raise InvalidParameter(f"invalid batch of acks: {len(data)} bytes of bits are more than a checkpoint can have")
    bits = int.from_bytes(data, "little")
    if bits.bit_count() > COUNT_MAX:
        raise InvalidParameter(
            f"invalid batch of acks: {bits.bit_count()} messages in one ack, but a pop returns at most {COUNT_MAX}"
        )
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def _acked(body: memoryview) -> Iterator[Resource]:
    for ack in decode(body, BatchAcks).acks:
        yield Resource(ResourceKind.GROUP, ack.consumer_group)
        yield Resource(ResourceKind.TOPIC, ack.topic)
