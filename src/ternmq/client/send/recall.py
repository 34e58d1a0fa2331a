"""Taking a delayed message back before its time (I2): RECALL_MESSAGE 370 of RocketMQ 5.3."""

from __future__ import annotations

from ternmq.client.send.sender import Sender
from ternmq.errors import refused
from ternmq.message import MessageQueue
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.recall import parse_handle
from ternmq.wire.requests import MessageIdReply, RecallMessage


async def recall(sender: Sender, handle: str, *, group: str, timeout_ms: int) -> str:
    """Ask the broker of a handle to take its message back; the message's id. Raises as ``Producer.recall``."""
    if not isinstance(handle, str):
        raise TypeError(
            f"invalid recall handle of type {type(handle).__name__}: expected a str, the recall_handle of a receipt"
        )
    named = parse_handle(handle)
    routes = sender.instance.routes
    route = routes.known(named.topic) or await sender.route(named.topic, timeout_ms=timeout_ms)
    address = sender.address(route, MessageQueue(named.topic, named.broker_name, 0))
    header = RecallMessage(producer_group=group, topic=named.topic, recall_handle=handle)
    response = await sender.instance.call(address, RequestCode.RECALL_MESSAGE, header, timeout_ms=timeout_ms)
    if response.code != ResponseCode.SUCCESS:
        raise refused(
            response.code,
            f"{named.broker_name} refused to recall the message {named.unique_key}: {response.remark}",
            broker=named.broker_name,
        )
    return response.read(MessageIdReply).message_id
