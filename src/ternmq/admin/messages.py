"""Search of stored messages: by id, unique key, key, queue offset or time (L1).

=====================  =====================================================  ==========================================
by                     what it is                                             queries
=====================  =====================================================  ==========================================
``by_id``              ``offset_id``: one record of one broker                the broker whose address is in the id (33)
``by_unique_key``      ``message_id``: set by the producer, kept in copies    the index of each broker (12)
``by_key``             one of the words in the message's ``keys``             the index of each broker (12)
``by_queue_offset``    its position in a queue                                the queue's broker (11)
``by_time``            when it was stored                                     each queue's broker (29, 11)
=====================  =====================================================  ==========================================

The index holds hashes of keys, and hashes collide; its times are whole seconds. So all messages that a broker finds are
checked again here: topic, key, and time to the millisecond. Brokers return all results or an error, never a part: a
message that is not in the result does not exist.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import datetime
from typing import Final

from ternmq.admin.brokers import BrokerAdmin
from ternmq.admin.queues import Queues
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import StartPosition
from ternmq.errors import ConfigError, InvalidName, NotFound, SystemFailure
from ternmq.message import MessageQueue, Property, ReceivedMessage
from ternmq.net.peer import format_address
from ternmq.wire.codes import RequestCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.requests import QueryMessage, ViewMessage

#: How many messages a broker returns for one key at most (RocketMQ's ``maxMsgsNumBatch``).
COUNT_MAX: Final = 64
_PORT_MAX: Final = 65_535
_EVER_MS: Final = 2**63 - 1
#: The index has whole seconds, rounded down.
_INDEX_STEP_MS: Final = 1_000


class MessageAdmin:
    """Stored messages, found by id, key, offset or time: ``admin.messages``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin, queues: Queues) -> None:
        self._instance = instance
        self._brokers = brokers
        self._queues = queues

    async def by_id(self, offset_id: str) -> ReceivedMessage:
        """The message with this ``offset_id``, from the broker whose address is part of it.

        ::

            message = await admin.messages.by_id(receipt.offset_id)

        Raises ``InvalidName`` for an invalid offset id, ``NotFound`` when the broker does not have the message (any
        more), ``NetworkError`` when no broker answers at that address.
        """
        address, log_offset = place_of(offset_id)
        try:
            response = await self._instance.ask(
                address, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(log_offset=log_offset)
            )
        except SystemFailure as error:  # RocketMQ has no code for a message that does not exist
            raise NotFound(
                f"{address} has no message at log offset {log_offset}; it was deleted, or the id belongs to "
                f"another broker ({error})",
                broker=address,
            ) from None
        names = {broker.address: broker.name for broker in await self._brokers.all()}
        # An unreadable body is returned as it is, with the reason.
        (message,) = await self._queues.messages_of(response.body, names.get(address, ""))
        return message

    async def by_unique_key(self, topic: str, key: str) -> list[ReceivedMessage]:
        """The messages of ``topic`` with this unique ``key``, the ``message_id`` that their producer gave, oldest
        first.

        Usually one. There are several if a send was repeated, for example after a time-out when the first attempt had
        arrived. Raises ``RouteMissing``.

        ::

            (message,) = await admin.messages.by_unique_key("orders", receipt.message_id)
        """
        return await self._by_index(
            QueryMessage(
                topic=topic, key=_one_word(key), count_max=COUNT_MAX, begin_ms=0, end_ms=_EVER_MS, by_unique_id=True
            ),
            lambda message: message.properties.get(Property.UNIQUE_KEY) == key,
        )

    async def by_key(
        self,
        topic: str,
        key: str,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        count_max: int = COUNT_MAX,
    ) -> list[ReceivedMessage]:
        """The messages of ``topic`` that have this ``key`` and were stored from ``begin`` to ``end``, oldest first.

        Both ends are included; times are ``datetime`` or milliseconds since 1970. If there are more than ``count_max``
        (64 at most, as brokers return no more), these are the newest. Raises ``RouteMissing``.

        ::

            for message in await admin.messages.by_key("orders", "order-4711", begin=datetime(2026, 1, 31)):
                print(message.store_time_ms, message.body)
        """
        if not 1 <= count_max <= COUNT_MAX:
            raise ConfigError(
                f"invalid count_max {count_max}: expected 1 to {COUNT_MAX}; to find more messages, search "
                "shorter time ranges"
            )
        begin_ms = 0 if begin is None else in_ms(begin)
        end_ms = _EVER_MS if end is None else in_ms(end)
        found = await self._by_index(
            QueryMessage(
                topic=topic,
                key=_one_word(key),
                # All that a broker returns: some may be outside the time range by less than a second.
                count_max=COUNT_MAX,
                begin_ms=max(begin_ms - _INDEX_STEP_MS, 0),
                end_ms=end_ms,
            ),
            lambda message: key in message.keys and begin_ms <= message.store_time_ms <= end_ms,
        )
        return found[-count_max:]

    async def by_queue_offset(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage:
        """The message at ``queue_offset`` in ``queue``. Raises ``NotFound`` with the offsets that there are,
        ``RouteMissing``.

        ::

            message = await admin.messages.by_queue_offset(receipt.queue, receipt.queue_offset)
        """
        if queue not in await self._queues.of(queue.topic):
            raise NotFound(f"{queue} does not exist or is not readable; see `tern topic route {queue.topic}`")
        message = await self._queues.read(queue, queue_offset)
        if message is None:
            first, end = await asyncio.gather(self._queues.bounds.min(queue), self._queues.bounds.max(queue))
            holds = f"it holds {first} to {end - 1}" if first < end else "it is empty"
            raise NotFound(f"{queue} has no message {queue_offset}; {holds}", broker=queue.broker_name)
        return message

    async def by_time(self, topic: str, time: datetime | int) -> list[ReceivedMessage]:
        """The first message of each queue of ``topic`` that was stored at ``time`` or later, by broker and queue id.

        ``time`` is a ``datetime`` or milliseconds since 1970. Queues without such a message are left out. Raises
        ``RouteMissing``.

        ::

            for message in await admin.messages.by_time("orders", datetime(2026, 1, 31, 12, 0)):
                print(message.queue, message.queue_offset)
        """
        time_ms = in_ms(time)

        async def first(queue: MessageQueue) -> ReceivedMessage | None:
            return await self._queues.read(queue, await self._queues.first_since(queue, time_ms))

        found = await self._queues.each(await self._queues.of(topic), first)
        return [message for message in found if message is not None]

    async def _by_index(
        self, query: QueryMessage, is_wanted: Callable[[ReceivedMessage], bool]
    ) -> list[ReceivedMessage]:
        brokers = await self._queues.brokers_of(query.topic)
        answers = await asyncio.gather(*(self._query(name, address, query) for name, address in brokers.items()))
        return sorted(
            (
                message
                for answer in answers
                for message in answer
                if message.topic == query.topic and is_wanted(message)
            ),
            key=lambda message: (message.store_time_ms, message.broker_name, message.log_offset),
        )

    async def _query(self, name: str, address: str, query: QueryMessage) -> list[ReceivedMessage]:
        try:
            response = await self._instance.ask(address, RequestCode.QUERY_MESSAGE, query)
        except NotFound:
            return []
        return await self._queues.messages_of(response.body, name)


def place_of(offset_id: str) -> tuple[str, int]:
    """The address and log offset in an offset id. A unique key has the same form, but rarely a valid port."""
    try:
        ip, port, log_offset = parse_offset_id(offset_id)
    except InvalidName:
        ip, port, log_offset = "", 0, 0
    if not 0 < port <= _PORT_MAX:
        raise InvalidName(
            f"{offset_id!r} is not a valid offset id; a send returns it as offset_id. If it is a message id, "
            f"search with the topic (`tern message show {offset_id} --topic TOPIC`)",
            name=offset_id,
        )
    return format_address(ip, port), log_offset


def _one_word(key: str) -> str:
    if not key or key.split() != [key]:
        raise InvalidName(
            f"invalid key {key!r}: expected one word without spaces (spaces separate the keys of a message)",
            name=key,
        )
    return key


def in_ms(time: datetime | int) -> int:
    """A time in milliseconds since 1970."""
    return StartPosition.at(time).time_ms
