"""The client of one Python process of Spark: planner or executor (U1, V2).

Spark runs Python in processes of its own, forks and reuses them as it likes, and pickles what it sends there. So a
client never travels: ``cluster_at`` makes it where it is first needed, on the loop thread of that process, and keeps it
for the next task. Its end is that of the process, or of ``close_all`` in a program that outlives the clusters it reads.

All questions are asked as nobody's member, under the group that every broker has for tools; only ``report`` names a
group, whose progress it stores. An administrator who resets that group therefore never moves a Spark job: its offsets
are in Spark's checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ternmq.admin.brokers import Brokers
from ternmq.admin.queues import Queues
from ternmq.admin.topics import Topics
from ternmq.client.config import ClientConfig
from ternmq.client.instance import ClientInstance
from ternmq.client.loop_thread import LoopThread, loop_thread
from ternmq.client.offsets import BrokerOffsets
from ternmq.errors import NetworkError, RouteMissing, TernError
from ternmq.message import MessageQueue
from ternmq.names import SPARK_PREFIX

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0


@dataclass(slots=True, frozen=True)
class Bounds:
    """What a queue holds: the queue offsets from ``first`` to before ``end``."""

    first: int
    end: int


class Cluster:
    """The brokers behind some name servers. Its methods block, and may be called from any thread."""

    def __init__(self, name_servers: str, thread: LoopThread) -> None:
        self.name_servers = name_servers
        self.thread = thread
        self.instance = thread.run(self._open())
        self._queues = Queues(self.instance)
        self._topics = Topics(self.instance, Brokers(self.instance))

    async def _open(self) -> ClientInstance:
        return await ClientInstance(ClientConfig(self.name_servers)).__aenter__()

    def close(self) -> None:
        self.run(self.instance.__aexit__(None, None, None))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do some work on the loop and wait for it."""
        return self.thread.run(work)

    # --- Topics and queues ------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The topics of applications: none of the system's or the sink's, no retries or dead letters."""
        found = (topic for topic in self.run(self._topics.all()) if not topic.is_system)
        return [topic.name for topic in found if not topic.name.startswith(SPARK_PREFIX)]

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """The queues of topics as the name server knows them now; raises ``RouteMissing``."""

        async def ask() -> list[MessageQueue]:
            found = await asyncio.gather(*map(self._queues.of, topics))
            return [queue for queues in found for queue in queues]

        return self.run(ask())

    # --- Offsets ----------------------------------------------------------------------------------------------

    def bounds(self, queues: Collection[MessageQueue], *, timeout_ms: int) -> dict[MessageQueue, Bounds]:
        """What each queue holds; a broker that does not answer is asked again until the time is over."""

        async def ask(queue: MessageQueue) -> Bounds:
            first, end = await asyncio.gather(self._queues.bounds.min(queue), self._queues.bounds.max(queue))
            return Bounds(first, end)

        return self._each(queues, lambda queue: self.patiently(queue, lambda: ask(queue), timeout_ms=timeout_ms))

    def ends(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The end of each queue whose broker answers at once; the others are left out, with a warning."""

        async def ask(queue: MessageQueue) -> int | None:
            try:
                return await self._queues.bounds.max(queue)
            except NetworkError as error:
                log.warning("a broker does not answer; its queues wait", extra={"queue": str(queue), "why": str(error)})
                self.instance.refresh_routes_soon()
                return None

        return {queue: end for queue, end in self._each(queues, ask).items() if end is not None}

    def first_since(
        self, queues: Collection[MessageQueue], time_ms: int, *, timeout_ms: int
    ) -> dict[MessageQueue, int]:
        """In each queue, the first offset stored at a time or later; its end if there is none."""
        return self._each(
            queues,
            lambda queue: self.patiently(
                queue, lambda: self._queues.first_since(queue, time_ms), timeout_ms=timeout_ms
            ),
        )

    def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store a group's progress; what a broker does not take is logged, as Spark's checkpoint is what counts."""
        self.run(BrokerOffsets(self.instance, group).save(offsets, wait=True))

    # --- Patience ---------------------------------------------------------------------------------------------

    async def patiently(self, queue: MessageQueue, ask: Callable[[], Awaitable[T]], *, timeout_ms: int) -> T:
        """Ask again, with growing pauses, while the error is one that may pass. On the loop."""
        clock = self.instance.env.clock
        end_s = clock.monotonic() + timeout_ms / 1000
        pause_s = _PAUSE_S
        while True:
            try:
                return await ask()
            except TernError as error:
                if not error.retriable or isinstance(error, RouteMissing):
                    raise
                if clock.monotonic() + pause_s > end_s:
                    raise NetworkError(
                        f"{queue} could not be read within {timeout_ms} ms: {error}; check that the broker "
                        f"{queue.broker_name} runs, or give it more time with the option retryTimeoutMs",
                        address=queue.broker_name,
                    ) from error
                log.info("a broker is asked again", extra={"queue": str(queue), "why": str(error)})
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                # Its place may have been taken by another.
                self.instance.refresh_routes_soon()

    def _each(
        self, queues: Collection[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
    ) -> dict[MessageQueue, T]:
        async def run() -> dict[MessageQueue, T]:
            return dict(zip(queues, await self._queues.each(queues, ask), strict=True))

        return self.run(run())


_clusters: dict[str, Cluster] = {}


def cluster_at(name_servers: str) -> Cluster:
    """The client of this process for these name servers."""
    thread = loop_thread()
    known = _clusters.get(name_servers)
    # After a fork the parent's client is still in the table, and of no use.
    if known is None or known.thread is not thread:
        known = _clusters[name_servers] = Cluster(name_servers, thread)
    return known


def close_all() -> None:
    """Close all clients of this process; who needs one again gets a new one."""
    while _clusters:
        _, known = _clusters.popitem()
        if known.thread is loop_thread():
            known.close()
