"""A consumer that pops, as small as can be: what a client makes of a reply, and what it sends back."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

from ternmq.message import Property
from ternmq.wire import properties as props
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import ALL_QUEUES, Handle, parse_messages, parse_starts
from ternmq.wire.header import Response
from ternmq.wire.record import Record, unpack_records
from ternmq.wire.requests import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeReply,
    PopMessage,
    PopReply,
)
from tests.broker.calls import FAR_MS, Caller


@dataclass(slots=True, frozen=True)
class Popped:
    """A message with its handle."""

    group: str
    topic: str
    record: Record
    body: bytes
    properties: dict[str, str]
    handle: Handle

    @property
    def real_topic(self) -> str:
        return self.handle.real_topic(self.group, self.topic)

    def changed(self, reply: ChangeInvisibleTimeReply) -> Popped:
        """The message with the handle that a change gave it."""
        handle = self.handle._replace(
            start_offset=self.handle.queue_offset,
            pop_time_ms=reply.pop_time_ms,
            invisible_ms=reply.invisible_ms,
            revive_queue_id=reply.revive_queue_id,
        )
        return replace(self, handle=handle)


def wish(topic: str, **fields: Any) -> PopMessage:
    given: dict[str, Any] = {
        "consumer_group": "poppers",
        "queue_id": ALL_QUEUES,
        "count_max": 32,
        "invisible_ms": FAR_MS,
        "poll_ms": 0,
        "init_mode": 0,
    }
    return PopMessage(topic=topic, **(given | fields))


async def pop(caller: Caller, topic: str, **fields: Any) -> Response:
    return await caller.call(RequestCode.POP_MESSAGE, wish(topic, **fields), timeout_ms=2 * FAR_MS)


def held_pop(caller: Caller, topic: str, **fields: Any) -> asyncio.Future[Response]:
    """A pop that waits; sent, not answered."""
    return caller.peer.start_call(RequestCode.POP_MESSAGE, wish(topic, **fields))


async def popped(caller: Caller, topic: str, **fields: Any) -> list[Popped]:
    """What a pop finds, with handles made as Java's client makes them."""
    return messages(await pop(caller, topic, **fields), wish(topic, **fields).consumer_group, topic)


def messages(response: Response, group: str, topic: str, broker_name: str = "broker-a") -> list[Popped]:
    if response.code != 0:
        return []
    reply = response.read(PopReply)
    starts, offsets = parse_starts(reply.start_offset_info), parse_messages(reply.msg_offset_info)
    found: list[Popped] = []
    for record in unpack_records(response.body):
        properties = props.parse(record.properties)
        text = properties.get(Property.POP_CHECKPOINT)
        if text is None:
            place = 0, record.queue_id
            assert record.queue_offset in offsets[place]
            handle = Handle(
                starts[place],
                reply.pop_time_ms,
                reply.invisible_ms,
                reply.revive_queue_id,
                0,
                broker_name,
                record.queue_id,
                record.queue_offset,
            )
        else:
            handle = Handle.parse(text)
            assert record.queue_offset in offsets[handle.retry, record.queue_id]
            assert (record.topic, record.queue_offset) == (topic, handle.queue_offset)
        properties.setdefault(Property.FIRST_POP_TIME, str(reply.pop_time_ms))
        found.append(Popped(group, topic, record, bytes(record.body), properties, handle))
    return found


async def ack(caller: Caller, message: Popped) -> Response:
    header = AckMessage(
        consumer_group=message.group,
        topic=message.real_topic,
        queue_id=message.handle.queue_id,
        extra_info=message.handle.text,
        queue_offset=message.handle.queue_offset,
    )
    response = await caller.call(RequestCode.ACK_MESSAGE, header)
    assert response.code == 0, response.remark
    return response


async def change(caller: Caller, message: Popped, *, invisible_ms: int) -> tuple[Response, Popped]:
    """The broker's answer, and the message with its new handle."""
    header = ChangeInvisibleTime(
        consumer_group=message.group,
        topic=message.real_topic,
        queue_id=message.handle.queue_id,
        extra_info=message.handle.text,
        queue_offset=message.handle.queue_offset,
        invisible_ms=invisible_ms,
    )
    response = await caller.call(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
    if response.code != 0:
        return response, message
    return response, message.changed(response.read(ChangeInvisibleTimeReply))
