"""Single queues of a topic, read without leaving a trace: what messages and offsets are looked up with (L1, L2).

Time, to the millisecond
    SEARCH_OFFSET_BY_TIMESTAMP 29 of TernMQ and RocketMQ 5 names the first message stored at a time or later. RocketMQ
    4.9 names *any* message of that millisecond, or the nearer neighbour of a time between two messages, in a file that
    it chose by its modification time. So the broker's answer is only where ``first_since`` begins: it reads the store
    times around it, which confirms an exact answer with two reads and mends another by bisection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.errors import NetworkError, refused
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import check_topic
from ternmq.types import Buffer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import PullMessage, PullSysflag
from ternmq.wire.stored import StoredMessage, read_answer

T = TypeVar("T")

#: Every RocketMQ broker has this group, for tools that only look.
LOOKING_GROUP: Final = "TOOLS_CONSUMER"
#: Calls under way at once, over all queues of a topic: enough to hide the network, few enough for one broker.
CALLS_AT_ONCE: Final = 32

#: Answers to a pull that mean «no message there».
_NOTHING: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


class Search:
    """Finds the first of ``low`` … ``high`` that is not older than something, from a good guess on; a core.

    Look at ``at`` and ``tell``, until it ``is_over``; then ``low`` is the answer. Steps away from the guess double, but
    never lead beyond the middle of what is left: two looks when the guess is right, a bisection when it is far off.
    """

    __slots__ = ("_step", "at", "high", "low")

    def __init__(self, low: int, high: int, *, guess: int) -> None:
        #: All before ``low`` is older, all from ``high`` on is not.
        self.low = low
        self.high = high
        self._step = 1
        self._look_at(guess)

    @property
    def is_over(self) -> bool:
        return self.low >= self.high

    def tell(self, *, older: bool) -> None:
        """What was seen at ``at``."""
        at = self.at
        if older:
            self.low = at + 1
            self._look_at(min(at + self._step, (self.low + self.high) // 2))
        else:
            self.high = at
            self._look_at(max(at - self._step, (self.low + self.high) // 2))
        self._step *= 2

    def _look_at(self, place: int) -> None:
        self.at = max(min(place, self.high - 1), self.low)


class Queues:
    """Reads the queues of any topic, as nobody's member."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        #: Bounds and times of queues.
        self.bounds = BrokerOffsets(instance, LOOKING_GROUP)

    async def of(self, topic: str) -> list[MessageQueue]:
        """The queues that can be read, as the name server knows them now; raises ``RouteMissing``."""
        route = await self._instance.routes.refresh(check_topic(topic))
        return list(route.to_read)

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """The brokers of a topic with an address each: the master's, or of what is left of its name."""
        route = await self._instance.routes.refresh(check_topic(topic))
        return {name: by_id[min(by_id)] for name, by_id in sorted(route.brokers.items()) if by_id}

    async def read(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage | None:
        """The message at a queue offset; None if there is none (any more)."""
        response = await self._pull(queue, queue_offset, count_max=1)
        if response is None:
            return None
        found = next(iter(await self.messages_of(response.body, queue.broker_name)), None)
        # A broker passes over what is deleted already; that is not what was asked for.
        return None if found is None or found.queue_offset != queue_offset else found

    async def page(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int
    ) -> tuple[list[ReceivedMessage], int]:
        """Messages from a queue offset on, perhaps none, and where to read on, which is always further."""
        response = await self._pull(queue, queue_offset, count_max=count_max)
        messages = await self.messages_of(response.body, queue.broker_name) if response is not None else []
        if not messages:
            # The end; or what lay here is deleted, and the queue begins behind it.
            return [], max(queue_offset + 1, await self.bounds.min(queue))
        # What is left of a damaged record has no topic, and its offset may be anything.
        return messages, max((one.queue_offset for one in messages if one.topic), default=queue_offset) + 1

    async def messages_of(self, body: Buffer, broker_name: str) -> list[ReceivedMessage]:
        """The messages of an answer; those that cannot be read have a ``body_error``."""
        messages, _ = read_answer(body, StoredMessage, broker_name)
        await self._instance.inflater.messages(messages)
        return list(messages)

    async def first_since(self, queue: MessageQueue, time_ms: int) -> int:
        """The queue offset of the first message stored at ``time_ms`` or later; the queue's end if there is none."""
        low, high, guess = await asyncio.gather(
            self.bounds.min(queue), self.bounds.max(queue), self.bounds.at_time(queue, time_ms)
        )
        search = Search(low, high, guess=guess)
        while not search.is_over:
            message = await self.read(queue, search.at)
            # What is not there any more was older than all that is.
            search.tell(older=message is None or message.store_time_ms < time_ms)
        return search.low

    async def each(self, queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]) -> list[T]:
        """Ask for each queue, several at once; answers in the order of the queues."""
        room = asyncio.Semaphore(CALLS_AT_ONCE)

        async def one(queue: MessageQueue) -> T:
            async with room:
                return await ask(queue)

        return list(await asyncio.gather(*map(one, queues)))

    async def _pull(self, queue: MessageQueue, queue_offset: int, *, count_max: int) -> Response | None:
        """The broker's answer, None if there is nothing."""
        header = PullMessage(
            consumer_group=LOOKING_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            count_max=count_max,
            sysflag=PullSysflag.SUBSCRIPTION,
            subscription="*",
        )
        response = await self._instance.call(self._address(queue), RequestCode.PULL_MESSAGE, header)
        if response.code in _NOTHING:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refused(
                response.code,
                f"{queue.broker_name} refused to read {queue} at {queue_offset}: {response.remark}",
                broker=queue.broker_name,
            )
        return response

    def _address(self, queue: MessageQueue) -> str:
        route = self._instance.routes.known(queue.topic)
        by_id = route.brokers.get(queue.broker_name) if route is not None else None
        if not by_id:
            raise NetworkError(
                f"broker {queue.broker_name!r} of topic {queue.topic!r} is not registered; see `tern topic route "
                f"{queue.topic}`",
                address=queue.broker_name,
            )
        return by_id[min(by_id)]
