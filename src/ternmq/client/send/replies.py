"""Requests of this client that wait for their reply (E7).

Each client instance has one such table, as brokers push replies (PUSH_REPLY_MESSAGE_TO_CLIENT 326) to a client and not
to one of its producers. A request that is over, whatever way, leaves it at once, so nothing is left to sweep; a reply
that comes later is logged and dropped. ``request`` has the rest.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager

from ternmq.client.consume.decode import Inflater
from ternmq.env import Clock
from ternmq.errors import CorruptRecord
from ternmq.message import Property, ReceivedMessage
from ternmq.net.peer import Peer
from ternmq.wire import properties as props
from ternmq.wire.header import Reply, Request
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import PushReply

log = logging.getLogger(__name__)


class Requests:
    """The waiting requests of one client. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock, inflater: Inflater) -> None:
        self._clock = clock
        self._inflater = inflater
        self._waiting: dict[str, asyncio.Future[ReceivedMessage]] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def expecting(self, correlation_id: str) -> Iterator[asyncio.Future[ReceivedMessage]]:
        """A future for the reply; it is waited for as long as the block runs."""
        reply: asyncio.Future[ReceivedMessage] = asyncio.get_running_loop().create_future()
        self._waiting[correlation_id] = reply
        try:
            yield reply
        finally:
            del self._waiting[correlation_id]

    def replied(self, peer: Peer, request: Request[PushReply]) -> Reply | Awaitable[Reply]:
        """PUSH_REPLY_MESSAGE_TO_CLIENT 326: give a reply to its request. A late one is accepted and dropped."""
        message = _received(request.fields, bytes(request.body))
        message.properties[Property.ARRIVE_TIME] = str(self._clock.now_ms())
        correlation_id = message.properties.get(Property.CORRELATION_ID, "")
        reply = self._waiting.get(correlation_id)
        if reply is None or reply.done():
            log.info(
                "received reply %s from %s after its request had ended; it is dropped", correlation_id, peer.address
            )
        elif message.sysflag & Sysflag.COMPRESSED:
            return self._inflate(message, reply)
        else:
            reply.set_result(message)
        return Reply()

    async def _inflate(self, message: ReceivedMessage, reply: asyncio.Future[ReceivedMessage]) -> Reply:
        message.body, message.sysflag, error = await self._inflater.body(message.body, message.sysflag)
        if reply.done():
            pass  # the request is over by now
        elif error:
            reply.set_exception(CorruptRecord(f"the reply {message.message_id} cannot be read: {error}"))
        else:
            reply.set_result(message)
        return Reply()


def _received(header: PushReply, body: bytes) -> ReceivedMessage:
    pairs = props.parse(header.properties or "")
    return ReceivedMessage(
        topic=header.topic,
        body=body,
        properties=pairs,
        # A reply is not read from a queue; it has a place in one only if its broker keeps replies, and does not say.
        broker_name="",
        queue_id=header.queue_id,
        queue_offset=-1,
        log_offset=-1,
        message_id=pairs.get(Property.UNIQUE_KEY, ""),
        offset_id="",
        born_time_ms=header.born_time_ms,
        # Java's text of an address begins with a slash.
        born_host=header.born_host.removeprefix("/"),
        store_time_ms=header.store_time_ms,
        store_host=header.store_host.removeprefix("/"),
        reconsume_times=header.reconsume_times or 0,
        flag=header.flag,
        sysflag=header.sysflag,
        store_bytes=len(body),
    )
