"""Messages that wait for their delivery time: how many, which, and not any more (I2).

The counts and the messages are answers of TernMQ's brokers. A recall is RocketMQ's request, which its brokers know from
5.3 on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from datetime import UTC, datetime

from ternmq.admin.brokers import BrokerAdmin
from ternmq.admin.messages import in_ms
from ternmq.admin.queues import Queues
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import ConfigError
from ternmq.message import Property, ReceivedMessage
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.stats import DelayedCounts
from ternmq.wire.codes import RequestCode
from ternmq.wire.recall import RecallHandle, parse_handle
from ternmq.wire.requests import MessageIdReply, RecallMessage
from ternmq.wire.requests_admin import DelayedStats, PeekDelayed

#: What a broker returns at most.
COUNT_MAX = 256
_SLOT_MS = 1_000


@dataclass(slots=True, frozen=True)
class DelayStats:
    """How many messages wait.

    Attributes:
        waiting: All of them.
        topics: By topic.
        hours: By the hour in which they are due, in order.
    """

    waiting: int
    topics: dict[str, int]
    hours: dict[datetime, int]


@dataclass(slots=True, frozen=True)
class DelayedMessage:
    """A message that waits.

    Attributes:
        topic: The topic that it will be delivered to.
        due_ms: The end of the second in which it is due, in ms since 1970.
        recall_handle: Takes it back: ``admin.delays.cancel``.
        message: The waiting record, in the broker's own topic.
    """

    topic: str
    due_ms: int
    recall_handle: str
    message: ReceivedMessage


class DelayAdmin:
    """Messages that wait for their delivery time: ``admin.delays``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin, queues: Queues) -> None:
        self._instance = instance
        self._brokers = brokers
        self._queues = queues

    async def stats(self, topic: str | None = None) -> DelayStats:
        """How many messages wait on all brokers, by topic and hour; those of one ``topic`` only, if it is given.

        ::

            for hour, count in (await admin.delays.stats()).hours.items():
                print(hour, count)

        Raises ``RequestNotSupported`` if one of the brokers is not TernMQ's.
        """
        masters = await self._brokers.masters()
        header = DelayedStats(topic=topic)
        responses = await asyncio.gather(
            *(self._instance.ask(broker.address, RequestCode.GET_DELAYED_STATS, header) for broker in masters)
        )
        topics: Counter[str] = Counter()
        hours: Counter[int] = Counter()
        for response in responses:
            counts = decode(response.body, DelayedCounts)
            topics.update(counts.topics)
            hours.update(counts.hours)
        return DelayStats(
            hours.total(),
            dict(sorted(topics.items())),
            {datetime.fromtimestamp(hour_ms / 1000, UTC): count for hour_ms, count in sorted(hours.items())},
        )

    async def peek(
        self, topic: str, *, begin: datetime | int | None = None, count_max: int = 32
    ) -> list[DelayedMessage]:
        """Messages of ``topic`` that wait and are due from ``begin`` on, by their due time; at most ``count_max``.

        Each broker is asked for ``count_max`` (256 at most), those of the next hours first; an answer ends at 1 MiB.

        ::

            for waiting in await admin.delays.peek("reminders"):
                print(waiting.due_ms, waiting.message.body)
        """
        if not 1 <= count_max <= COUNT_MAX:
            raise ConfigError(f"invalid count_max {count_max}: expected 1 to {COUNT_MAX}")
        masters = await self._brokers.masters()
        header = PeekDelayed(topic=topic, begin_ms=0 if begin is None else in_ms(begin), count_max=count_max)
        responses = await asyncio.gather(
            *(self._instance.ask(broker.address, RequestCode.PEEK_DELAYED_MESSAGES, header) for broker in masters)
        )
        found = [
            _delayed(message)
            for broker, response in zip(masters, responses, strict=True)
            for message in await self._queues.messages_of(response.body, broker.name)
        ]
        return sorted(found, key=lambda each: each.due_ms)[:count_max]

    async def cancel(self, handle: str) -> str:
        """Take a message back by its recall ``handle``; returns its message id.

        ::

            await admin.delays.cancel(receipt.recall_handle)

        Raises ``InvalidHandle``, ``IllegalOperation`` if the message does not wait any more, ``ConfigError`` if its
        broker is not registered.
        """
        named = parse_handle(handle)
        address = next((each.address for each in await self._brokers.masters() if each.name == named.broker_name), None)
        if address is None:
            raise ConfigError(f"the message is on broker {named.broker_name}, which has no registered master")
        header = RecallMessage(topic=named.topic, recall_handle=handle)
        response = await self._instance.ask(address, RequestCode.RECALL_MESSAGE, header)
        return response.read(MessageIdReply).message_id


def _delayed(message: ReceivedMessage) -> DelayedMessage:
    topic = message.properties.get(Property.REAL_TOPIC, "")
    slot = message.properties.get(Property.TIMER_OUT_MS, "")
    slot_ms = int(slot) if slot.isdecimal() else 0
    handle = RecallHandle(topic, message.broker_name, slot_ms, message.message_id, message.log_offset).text()
    return DelayedMessage(topic, slot_ms + _SLOT_MS, handle, message)
