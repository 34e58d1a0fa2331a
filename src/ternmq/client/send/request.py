"""Request–reply: send a message and wait for the answer of its consumer (E7).

::

    reply = await producer.request(Message("sums", b"2 + 2"), timeout_ms=3000)

    async for message in consumer:                                  # elsewhere
        await producer.reply(message, b"4")

A *request* is a message with three properties more: a correlation id, the client id of the requester, and how long it
waits (TTL). The *reply* goes to the system topic ``<cluster>_REPLY_TOPIC`` and carries the same three; its broker does
not wait for readers but pushes it (PUSH_REPLY_MESSAGE_TO_CLIENT 326) to the requester's own connection, which it knows
by heartbeats. So a requester introduces itself to all brokers that a reply may go to, before its first request on a
topic: those of the topic, and those of the reply topic of its clusters.

``Requester`` is what a producer has of this; waiting requests stand in ``replies.Requests``, one table for each client.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from ternmq.client.connect.routes import TopicRoute
from ternmq.client.connect.single_flight import SingleFlight
from ternmq.client.send.ongoing import Pick
from ternmq.client.send.outgoing import Outgoing
from ternmq.client.send.sender import Sender
from ternmq.errors import InvalidMessage, NetworkError, RequestTimeout, RouteMissing, TernError
from ternmq.message import REPLY_TYPE, Message, MessageQueue, Property, ReceivedMessage, SendReceipt
from ternmq.names import reply_topic
from ternmq.net.peer import TaskOwner


class Requester:
    """The requests and replies of one producer. All methods belong to the loop's thread."""

    def __init__(self, sender: Sender, tasks: TaskOwner) -> None:
        self._sender = sender
        self._instance = sender.instance
        self._introduced: set[str] = set()
        self._introducing: SingleFlight[str, None] = SingleFlight(tasks)

    def properties(self, timeout_ms: int) -> dict[str, str]:
        """What makes a message a request: the three properties that its reply must carry."""
        instance = self._instance
        return {
            Property.CORRELATION_ID: f"{instance.env.random.getrandbits(128):032x}",
            Property.REPLY_TO_CLIENT: instance.client_id,
            Property.TTL: str(timeout_ms),
        }

    async def request(
        self, outgoing: Outgoing, correlation_id: str, *, pick: Pick | None, timeout_ms: int
    ) -> ReceivedMessage:
        """Send and wait for the reply; one time-out for both."""
        with self._instance.requests.expecting(correlation_id) as reply:
            try:
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._introduce(outgoing.topic, timeout_ms)
                    await self._sender.deliver(outgoing, pick=pick, timeout_ms=timeout_ms)
                    return await reply
            except TimeoutError as error:
                if isinstance(error, NetworkError):
                    raise
                topic = outgoing.messages[0].topic
                raise RequestTimeout(
                    f"no reply to the request to topic {topic!r} within {timeout_ms} ms; check that a consumer of it "
                    "runs and replies, or give a longer timeout_ms",
                    topic=topic,
                    correlation_id=correlation_id,
                ) from None

    async def reply(self, outgoing: Outgoing, broker_name: str, *, timeout_ms: int) -> SendReceipt:
        """Send a reply, at best by the broker that the request came from: the requester is surely known there."""
        sender = self._sender
        route = self._instance.routes.known(outgoing.topic) or await sender.route(outgoing.topic, timeout_ms=timeout_ms)
        queue = next((queue for queue in route.to_write if queue.broker_name == broker_name), None)
        if queue is not None:
            try:
                return await sender.deliver(outgoing, pick=_always(queue), timeout_ms=timeout_ms)
            except TernError as error:
                if not error.retriable or len(route.brokers) == 1:
                    raise
        return await sender.deliver(outgoing, timeout_ms=timeout_ms)

    async def _introduce(self, topic: str, timeout_ms: int) -> None:
        if topic not in self._introduced:
            await self._introducing.run(topic, lambda: self._introduce_to_brokers(topic, timeout_ms))

    async def _introduce_to_brokers(self, topic: str, timeout_ms: int) -> None:
        routes = self._instance.routes
        route = routes.known(topic) or await self._sender.route(topic, timeout_ms=timeout_ms)
        for cluster in route.clusters:
            # A broker too old for replies has no such topic. Then the request times out, with a word about it.
            with suppress(RouteMissing):
                await routes.of(reply_topic(cluster))
        await self._instance.heartbeat()
        self._introduced.add(topic)


def to_reply(request: ReceivedMessage, body: bytes, properties: dict[str, str]) -> Message:
    """The reply to a request, yet without what only the system may set (``reply_properties``).

    Raises ``InvalidMessage`` for a message that is no request.
    """
    cluster = request.properties.get(Property.CLUSTER)
    if not request.is_request or not cluster:
        raise InvalidMessage(
            f"message {request.message_id} from topic {request.topic!r} is not a request, so no sender waits for a "
            "reply; look at message.is_request first, and send requests by producer.request()"
        )
    return Message(reply_topic(cluster), body, properties=properties)


def reply_properties(request: ReceivedMessage) -> dict[str, str]:
    """What the reply to a request carries, so that the request is found that waits for it."""
    names = (Property.CORRELATION_ID, Property.REPLY_TO_CLIENT, Property.TTL)
    return {Property.MESSAGE_TYPE: REPLY_TYPE, **{name: request.properties.get(name, "") for name in names}}


def _always(queue: MessageQueue) -> Pick:
    def pick(_: TopicRoute) -> MessageQueue:
        return queue

    return pick
