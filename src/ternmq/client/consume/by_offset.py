"""What consumers that read by offset have in common: the queues of a topic, their bounds, and a group's progress (F3,
F4, L1).

Offsets are queue offsets; a queue is named as the application knows it, without the namespace.
"""

from __future__ import annotations

from collections.abc import Sequence

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import wrap
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.env import Env
from ternmq.errors import NotRunning
from ternmq.message import MessageQueue
from ternmq.names import check_group, check_topic


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

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group}>"

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` that can be read. Raises ``RouteMissing``, ``NameServersUnreachable``."""
        instance, _ = self._running()
        route = await instance.routes.of(wrap(self._namespace, check_topic(topic)))
        return [queue._replace(topic=topic) for queue in route.to_read]

    async def min_offset(self, queue: MessageQueue) -> int:
        """The offset of the first message of ``queue`` that is still stored."""
        return await self._running()[1].min(await self._wired(queue))

    async def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message of ``queue`` will get."""
        return await self._running()[1].max(await self._wired(queue))

    async def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The offset of the first message of ``queue`` stored at ``time_ms`` (since 1970) or later."""
        return await self._running()[1].at_time(await self._wired(queue), time_ms)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has stored for ``queue``; None if there is none."""
        return await self._running()[1].load(await self._wired(queue))

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
