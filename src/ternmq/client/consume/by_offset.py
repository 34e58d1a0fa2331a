"""What consumers that read by offset have in common: the queues of a topic, their bounds, and a group's progress (F3,
F4, L1).

Offsets are queue offsets; a queue is named as the application knows it, without the namespace.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final, TypeVar

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import wrap
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.source import NO_MASTER_PAUSE_S
from ternmq.client.consume.watches import QueueListener, Watches
from ternmq.env import Env
from ternmq.errors import NotRunning, SendFailed, ServiceNotAvailable, TernError
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import check_group, check_topic

_Answer = TypeVar("_Answer")

#: How long a broker that says that it does not lead is asked again. A Raft group of TernMQ elects its leader within
#: 2 s, one of RocketMQ within 10 s.
NO_MASTER_S: Final = 12.0
_PAUSE_MAX_S: Final = 1.0


class ByOffset:
    """Questions about queues. ``_open`` is set while the consumer runs, by its subclass."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        env: Env | None = None,
    ) -> None:
        self.group = check_group(group)
        self._client_config = client or ClientConfig(name_servers)
        self._namespace = self._client_config.namespace
        self._wire_group = wrap(self._namespace, group)
        self._env = env
        self._open: tuple[ClientInstance, BrokerOffsets] | None = None
        self._watches: Watches | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group}>"

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read. Raises ``RouteMissing``, ``NameServersUnreachable``."""
        instance, _ = self._running()
        route = await instance.routes.of(wrap(self._namespace, check_topic(topic)))
        return [queue._replace(topic=topic) for queue in route.to_read]

    async def watch_queues(self, topic: str, listener: QueueListener) -> None:
        """Call ``listener(topic, queues)`` when the queues of ``topic`` have changed, within 30 s of the change.

        For programs that choose their queues, to learn of new ones. The listener is a plain or an ``async`` function;
        what it raises is logged. Raises ``RouteMissing`` for a topic that does not exist.
        """
        await self.queues(topic)
        assert self._watches is not None
        self._watches.add(wrap(self._namespace, topic), topic, listener)

    async def send_back(self, message: ReceivedMessage, *, delay_level: int = 0) -> None:
        """Have ``message`` delivered again later, through the retry topic of the group.

        ``delay_level`` is one of the 18 delay levels of the brokers; 0: longer with each attempt, from 10 s on; below
        0: it becomes a dead letter at once. After 16 attempts, or as the group is configured, it becomes a dead letter.
        Push consumers of the group get it, lite pull consumers with ``retries``, and programs that pull from the topic
        ``%RETRY%`` with the name of the group. Returns when a broker has stored it; raises ``SendFailed``.
        """
        instance, _ = self._running()
        if not await Returns(instance, self._wire_group).send_back(message, delay_level=delay_level):
            raise SendFailed(
                f"no broker took message {message.message_id} back for group {self.group!r}; the log says why"
            )

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the first message of ``queue`` that is still stored."""
        return await self._ask_leader(queue, lambda wired: self._running()[1].min(wired))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of ``queue`` will get."""
        return await self._ask_leader(queue, lambda wired: self._running()[1].max(wired))

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message of ``queue`` stored at ``time_ms`` (since 1970) or later."""
        return await self._ask_leader(queue, lambda wired: self._running()[1].at_time(wired, time_ms))

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has stored for ``queue``; None if there is none."""
        return await self._ask_leader(queue, lambda wired: self._running()[1].load(wired))

    async def _ask_leader(self, queue: MessageQueue, ask: Callable[[MessageQueue], Awaitable[_Answer]]) -> _Answer:
        """Ask about a queue. Where the broker does not lead its Raft group any more, find the new leader and ask it."""
        wired = await self._wired(queue)
        return await self._ask_leaders(lambda: [wired.topic], lambda: ask(wired))

    async def _ask_leaders(self, topics: Callable[[], Iterable[str]], ask: Callable[[], Awaitable[_Answer]]) -> _Answer:
        """The same for queues of several topics, by their names on the wire."""
        loop = asyncio.get_running_loop()
        end, pause_s = loop.time() + NO_MASTER_S, NO_MASTER_PAUSE_S
        while True:
            try:
                return await ask()
            except ServiceNotAvailable:
                if loop.time() >= end:
                    raise
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            for topic in topics():
                with contextlib.suppress(TernError):
                    await self._running()[0].routes.refresh(topic)

    async def _wired(self, queue: MessageQueue) -> MessageQueue:
        """The queue by its name on the wire; its route is known afterwards, and with it the broker's address."""
        instance, _ = self._running()
        topic = wrap(self._namespace, queue.topic)
        await instance.routes.of(topic)
        return queue._replace(topic=topic)

    def _running(self) -> tuple[ClientInstance, BrokerOffsets]:
        if self._open is None:
            raise NotRunning(
                f"the consumer of group {self.group!r} is not running; use it inside its `async with` block"
            )
        return self._open
