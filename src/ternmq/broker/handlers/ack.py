"""What consumers do with popped messages: ack 200051, many at once 200151, change the invisible time 200053 (F9).

What these mean is in ``services.popping``. A handle (POP_CK) names the check point, the header the message.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator, Sequence
from typing import Final

from ternmq.broker.flow import CLIENT
from ternmq.broker.services.popping import Popping
from ternmq.errors import InvalidParameter, MessageIllegal, NoMessage, RemoteProtocolError
from ternmq.net.gate import Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import BatchAck, BatchAcks
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import JSON, RequestCode
from ternmq.wire.handles import COUNT_MAX, Handle, real_topic
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeReply
from ternmq.wire.template import ReplyTemplate

#: A check point has 32 messages; a filter may have let far fewer through than lie between them.
_BITS_BYTES_MAX: Final = 4096
#: Check points in one batch; each takes some microseconds, or up to 45 if its bits lie far apart.
_ACKS_MAX: Final = 1024
#: The first ack of a batch is here, behind the name of the broker. No more is looked at before the request's turn.
_HEAD_BYTES: Final = 1024
_GROUP: Final = re.compile(rb'"c"\s*:\s*"([^"\\]+)"')
_TOPIC: Final = re.compile(rb'"t"\s*:\s*"([^"\\]+)"')

#: The reply to an ack; each message has one.
_ACKED: Final = ReplyTemplate({}, {})


class AckHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, popping: Popping) -> None:
        self._popping = popping

    def routes(self) -> dict[int, Route]:
        rule = Rule(Action.SUB, topic="topic", group="consumerGroup", is_of_popped=True)
        batch_rule = Rule(Action.SUB, in_body=_acked, is_of_popped=True)
        return {
            RequestCode.ACK_MESSAGE: Route(self.ack, CLIENT, rule, key="consumer_group", topic="topic"),
            RequestCode.BATCH_ACK_MESSAGE: Route(self.batch_ack, CLIENT, batch_rule, key_in_body=key_of_batch),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: Route(
                self.change, CLIENT, rule, key="consumer_group", topic="topic"
            ),
        }

    def ack(self, _peer: Peer, request: Request[AckMessage]) -> Reply | bytes:
        """One message is done."""
        header: AckMessage = request.header  # type: ignore[assignment]  # typed, or the request would not be here
        start_offset, pop_time_ms, revive_queue_id = _check_point(header.extra_info)
        self._popping.ack(
            (header.consumer_group, header.topic, header.queue_id),
            header.queue_offset,
            start_offset=start_offset,
            pop_time_ms=pop_time_ms,
            revive_queue_id=revive_queue_id,
        )
        return _ACKED.fill((request.opaque,)) if request.serial == JSON else Reply()

    def batch_ack(self, _peer: Peer, request: Request[object]) -> Reply:
        """Messages of several check points are done. One that cannot be done does not stop the others."""
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
            try:
                self._popping.ack_all(
                    (ack.consumer_group, topic, ack.queue_id),
                    _acked_offsets(ack),
                    start_offset=ack.start_offset,
                    pop_time_ms=ack.pop_time_ms,
                    revive_queue_id=ack.revive_queue_id,
                )
            except MessageIllegal as error:
                illegal = error
        if illegal is not None:
            raise illegal
        return Reply()

    def change(self, _peer: Peer, request: Request[ChangeInvisibleTime]) -> Reply:
        """Hide a message for another while, from now on."""
        header = request.fields
        start_offset, pop_time_ms, revive_queue_id = _check_point(header.extra_info)
        pop_time_ms, invisible_ms = self._popping.change(
            (header.consumer_group, header.topic, header.queue_id),
            header.queue_offset,
            start_offset=start_offset,
            pop_time_ms=pop_time_ms,
            revive_queue_id=revive_queue_id,
            invisible_ms=header.invisible_ms,
        )
        return Reply(
            header=ChangeInvisibleTimeReply(
                pop_time_ms=pop_time_ms, invisible_ms=invisible_ms, revive_queue_id=revive_queue_id
            )
        )


def key_of_batch(body: memoryview) -> tuple[str | None, str | None]:
    """Group and topic of the first ack of a batch, for its place in the lane (R4). A batch that does not tell them in
    its first bytes takes its turn with the requests that have no group."""
    head = body[:_HEAD_BYTES]
    group, topic = _GROUP.search(head), _TOPIC.search(head)
    return (
        group[1].decode(errors="replace") if group is not None else None,
        topic[1].decode(errors="replace") if topic is not None else None,
    )


def _check_point(text: str) -> tuple[int, int, int]:
    try:
        return Handle.check_point(text)
    except RemoteProtocolError as error:
        raise InvalidParameter(str(error)) from None


def _acked_offsets(ack: BatchAck) -> Sequence[int]:
    """The queue offsets whose bits are set; a range if they are neighbours, as nearly always."""
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
    start_offset, lowest = ack.start_offset, bits & -bits
    if not bits & (bits + lowest):
        return range(start_offset + lowest.bit_length() - 1, start_offset + bits.bit_length()) if bits else ()
    offsets = []
    while bits:
        lowest = bits & -bits
        offsets.append(start_offset + lowest.bit_length() - 1)
        bits ^= lowest
    return offsets


def _acked(body: memoryview) -> Iterator[Resource]:
    for ack in decode(body, BatchAcks).acks:
        yield Resource(ResourceKind.GROUP, ack.consumer_group)
        yield Resource(ResourceKind.TOPIC, ack.topic)
