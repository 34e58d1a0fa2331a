"""Reading single queues of a topic without changing any state: the basis of searches and resets (L1, L2).

Search by time, to the millisecond
    SEARCH_OFFSET_BY_TIMESTAMP 29 of TernMQ and RocketMQ 5 returns the first message stored at a time or later. RocketMQ
    4.9 returns *any* message of that millisecond, or the nearer neighbour of a time between two messages, in a file
    that it chose by its modification time. So the broker's reply is only the start of ``first_since``: it reads the
    store times around it, which confirms an exact result with two reads and corrects another one by bisection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, TypeVar

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.errors import NetworkError, refused
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import TOOLS_GROUP, check_topic
from ternmq.types import Buffer
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests import PullMessage, PullSysflag
from ternmq.wire.stored import StoredMessage, read_answer

T = TypeVar("T")

#: Concurrent calls over all queues of a topic: enough to hide the network's latency, few enough for one broker.
CALLS_AT_ONCE: Final = 32

#: Response codes of a pull that mean "no message there".
_NOTHING: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


def tools_pull(
    queue: MessageQueue,
    queue_offset: int,
    *,
    count_max: int,
    tags: str = "*",
    sql: str = "",
    bytes_max: int | None = None,
) -> PullMessage:
    """The header of a pull that leaves no trace: of the tools' group, without a hold, without a commit."""
    return PullMessage(
        consumer_group=TOOLS_GROUP,
        topic=queue.topic,
        queue_id=queue.queue_id,
        queue_offset=queue_offset,
        count_max=count_max,
        sysflag=PullSysflag.SUBSCRIPTION,
        subscription=sql or tags,
        expression_type="SQL92" if sql else "TAG",
        bytes_max=bytes_max,
    )


class Search:
    """Finds the first of ``low`` … ``high`` that is not older than a given time, starting from a guess; a core.

    Read at ``at`` and call ``tell``, until it ``is_over``; then ``low`` is the result. Steps away from the guess
    double, but never pass the middle of the rest: two reads if the guess is right, a bisection if it is far off.
    """

    __slots__ = ("_step", "at", "high", "low")

    def __init__(self, low: int, high: int, *, guess: int) -> None:
        #: All before ``low`` are older, all from ``high`` on are not.
        self.low = low
        self.high = high
        self._step = 1
        self._look_at(guess)

    @property
    def is_over(self) -> bool:
        return self.low >= self.high

    def tell(self, *, older: bool) -> None:
        """Report what was read at ``at``."""
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
    """Reads the queues of any topic, without being a member of a group."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        #: Bounds and times of queues.
        self.bounds = BrokerOffsets(instance, TOOLS_GROUP, masters_only=True)

    async def of(self, topic: str) -> list[MessageQueue]:
        """The readable queues, as the name server knows them now; raises ``RouteMissing``."""
        route = await self._instance.routes.refresh(check_topic(topic))
        return list(route.to_read)

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """The brokers of a topic with an address each: the master's, or a slave's if there is no master."""
        route = await self._instance.routes.refresh(check_topic(topic))
        return {name: by_id[min(by_id)] for name, by_id in sorted(route.brokers.items()) if by_id}

    async def read(self, queue: MessageQueue, queue_offset: int) -> ReceivedMessage | None:
        """The message at a queue offset; None if there is none (or it was deleted)."""
        response = await self._pull(queue, queue_offset, count_max=1)
        if response is None:
            return None
        found = next(iter(await self.messages_of(response.body, queue.broker_name)), None)
        # A broker skips deleted messages; the next one is not the requested one.
        return None if found is None or found.queue_offset != queue_offset else found

    async def page(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int
    ) -> tuple[list[ReceivedMessage], int]:
        """Messages from a queue offset on, perhaps none, and the next offset to read, which is always larger."""
        response = await self._pull(queue, queue_offset, count_max=count_max)
        messages = await self.messages_of(response.body, queue.broker_name) if response is not None else []
        if not messages:
            # The end of the queue; or the messages were deleted, and the queue begins later.
            return [], max(queue_offset + 1, await self.bounds.min(queue))
        # A damaged record has no topic, and its offset may be anything.
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
            # A deleted message was older than all remaining ones.
            search.tell(older=message is None or message.store_time_ms < time_ms)
        return search.low

    async def each(self, queues: Iterable[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]) -> list[T]:
        """Call ``ask`` for each queue, several at once; returns the results in the order of the queues."""
        room = asyncio.Semaphore(CALLS_AT_ONCE)

        async def one(queue: MessageQueue) -> T:
            async with room:
                return await ask(queue)

        return list(await asyncio.gather(*map(one, queues)))

    async def _pull(self, queue: MessageQueue, queue_offset: int, *, count_max: int) -> Response | None:
        """The broker's response, None if there is no message."""
        header = tools_pull(queue, queue_offset, count_max=count_max)
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
