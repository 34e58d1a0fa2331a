"""Listeners that want to know when the queues of a topic have changed (F4)."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import TopicRoute
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Told a topic and all queues of it that can be read.
QueueListener = Callable[[str, list[MessageQueue]], Awaitable[None] | None]


class _Watch(NamedTuple):
    topic: str
    listener: QueueListener


class Watches:
    """The watched topics of one consumer, until ``close``. All methods belong to the loop's thread; ``tasks`` owns the
    calls of listeners."""

    def __init__(self, instance: ClientInstance, tasks: Tasks) -> None:
        self._instance = instance
        self._tasks = tasks
        self._watches: dict[str, list[_Watch]] = {}
        #: The queues of each watched topic, as its listeners know them.
        self._known: dict[str, tuple[MessageQueue, ...]] = {}
        instance.routes.on_change.append(self._route_changed)

    def add(self, wire_topic: str, topic: str, listener: QueueListener) -> None:
        """Call ``listener`` when the queues of a topic, whose route is known, have changed."""
        route = self._instance.routes.known(wire_topic)
        assert route is not None
        self._known.setdefault(wire_topic, route.to_read)
        self._watches.setdefault(wire_topic, []).append(_Watch(topic, listener))

    def close(self) -> None:
        self._instance.routes.on_change.remove(self._route_changed)

    def _route_changed(self, route: TopicRoute) -> None:
        before = self._known.get(route.topic)
        if before is None or before == route.to_read:
            return
        self._known[route.topic] = route.to_read
        for topic, listener in self._watches[route.topic]:
            queues = [queue._replace(topic=topic) for queue in route.to_read]
            self._tasks.create_task(_tell(listener, topic, queues), name="queues changed")


async def _tell(listener: QueueListener, topic: str, queues: list[MessageQueue]) -> None:
    try:
        result = listener(topic, queues)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("the queue listener of topic %s failed", topic)
