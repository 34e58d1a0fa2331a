"""Replies of request–reply: 324 and 325, pushed on as 326 (E7).

A request is a message like any other; its properties name the client that waits. Its consumer answers with a
*reply*: a message to ``<cluster>_REPLY_TOPIC`` with the request's correlation id. No consumer reads that topic. The
broker looks for the requester among the producers whose heartbeats it gets, calls it on its own connection, and tells
the replier the result:

    0   the requester has the reply
    1   no such client here, or it did not take it within 10 s

Either way the reply is stored, too, for later queries, unless ``storeReplyMessageEnable`` is off. That is not promised:
the answer does not wait for the disk, and a reply that reached its requester but could not be stored is not a failure.
"""

from __future__ import annotations

import logging
from typing import Any, Final

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import SEND
from ternmq.broker.handlers.send import SendReplies
from ternmq.broker.services.sending import Sending
from ternmq.broker.tables.clients import Clients
from ternmq.env import Clock
from ternmq.errors import NetworkError, SystemFailure, TernError
from ternmq.message import Property
from ternmq.net.gate import Action, Rule, check_send
from ternmq.net.peer import Peer, Route
from ternmq.wire import properties as props
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import PushReply, SendFields, SendReply

log = logging.getLogger(__name__)

#: How long the requester may take to take its reply (``Broker2Client.callClient``).
TAKEN_MS: Final = 10_000
#: When the broker passed the reply on, in ms since 1970 (``MessageConst``).
_PUSH_TIME: Final = "PUSH_REPLY_TIME"


class ReplyHandlers:
    """All methods belong to the broker's loop. ``address`` is the broker's own, as clients know it."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        sending: Sending,
        replies: SendReplies,
        clients: Clients,
        clock: Clock,
        address: str,
    ) -> None:
        self._sending = sending
        self._replies = replies
        self._clients = clients
        self._clock = clock
        self._address = address
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._stores = config.store_reply_message_enable
        self._reply_topic = names.reply_topic(config.broker_cluster_name)

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.SEND_REPLY_MESSAGE: Route(self.reply, SEND, Rule(Action.ANY, topic="topic")),
            RequestCode.SEND_REPLY_MESSAGE_V2: Route(self.reply, SEND, Rule(Action.ANY, topic="b")),
        }

    async def reply(self, peer: Peer, request: Request[Any]) -> Reply:
        """Pass a reply on to the client that waits for it."""
        header: SendFields = request.header  # type: ignore[assignment]  # typed, or the request would not be here
        if header.topic != self._reply_topic:
            # The rule lets every account reply, also one that may only read this topic. The reply is stored there.
            check_send(peer.access, header.topic)
        queue_id = self._sending.choose_queue(peer, header)
        # The frame's bytes are the connection's; what is kept across an await is copied.
        body = bytes(request.body)
        try:
            await self._push(peer, header, queue_id, body)
        finally:
            stored = self._stored(peer, header, queue_id, body) if self._stores else None
        # Zeros, as RocketMQ has them: its clients cannot read an answer without.
        return Reply(header=stored or SendReply(message_id="0", queue_id=queue_id, queue_offset=0))

    async def _push(self, peer: Peer, header: SendFields, queue_id: int, body: bytes) -> None:
        properties = header.properties or ""
        client_id = props.find(properties, Property.REPLY_TO_CLIENT)
        if client_id is None:
            raise SystemFailure(
                "REPLY_TO_CLIENT is null, can not reply message: the property is missing; create the reply from "
                "its request"
            )
        requester = self._clients.find_producer(client_id)
        if requester is None:
            raise SystemFailure(
                f"push reply message to {client_id} fail, channel of {client_id} not found: it is disconnected, "
                "or sends its heartbeats to other brokers"
            )
        now_ms = self._clock.now_ms()
        pushed = PushReply(
            producer_group=header.producer_group,
            topic=header.topic,
            default_topic=header.default_topic,
            default_topic_queue_nums=header.default_topic_queue_nums,
            queue_id=queue_id,
            sysflag=header.sysflag,
            born_time_ms=header.born_time_ms,
            flag=header.flag,
            properties=props.with_(properties, _PUSH_TIME, str(now_ms)),
            reconsume_times=header.reconsume_times,
            unit_mode=header.unit_mode,
            born_host=peer.address,
            store_host=self._address,
            store_time_ms=now_ms,
        )
        try:
            answer = await requester.call(RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, pushed, body, timeout_ms=TAKEN_MS)
        except NetworkError as error:
            raise SystemFailure(f"push reply message to {client_id} fail: {error}") from None
        if answer.code != ResponseCode.SUCCESS:
            raise SystemFailure(f"push reply message to {client_id} fail: it answered {answer.code} {answer.remark}")

    def _stored(self, peer: Peer, header: SendFields, queue_id: int, body: bytes) -> SendReply | None:
        try:
            return self._replies.of(self._sending.store_in(queue_id, peer, header, body))
        except TernError as error:
            log.warning("cannot store a reply in topic %s: %s", header.topic, error)
            return None
