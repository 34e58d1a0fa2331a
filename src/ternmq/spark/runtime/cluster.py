"""The client of one Python process of Spark: planner or executor (U1, V2).

Spark runs Python in its own processes, forks and reuses them, and pickles the objects that it sends there. A client is
never sent: ``cluster_at`` creates it in the process that needs it, on its loop thread, and keeps it for the next task.
It ends with the process, or with ``close_all`` in a program that runs longer than its clusters.

All requests use the group that every broker has for tools, without membership; only ``report`` uses a group of the
user, whose progress it stores. So a reset of that group never moves a Spark job: its offsets
are in Spark's checkpoint.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from ternmq.admin.brokers import MASTER_ID, BrokerAdmin, BrokerInfo
from ternmq.admin.queues import Queues
from ternmq.admin.topics import TopicAdmin
from ternmq.client.blocking.loop_thread import LoopThread, loop_thread
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.errors import NetworkError, NoPermission, RouteMissing, TernError
from ternmq.message import MessageQueue
from ternmq.names import SPARK_PREFIX, TOOLS_GROUP

log = logging.getLogger(__name__)

T = TypeVar("T")

_PAUSE_S: Final = 0.1
_PAUSE_MAX_S: Final = 2.0
#: Between two log lines about the same wait.
_TELL_S: Final = 30.0


@dataclass(slots=True, frozen=True)
class Bounds:
    """The range of a queue: the queue offsets from ``first`` to before ``end``."""

    first: int
    end: int


class ClusterClient:
    """The brokers behind some name servers. Its methods block, and may be called from any thread."""

    def __init__(self, client: ClientConfig, thread: LoopThread) -> None:
        self.client = client
        self.name_servers = ";".join(client.addresses)
        self.thread = thread
        self.instance = thread.run(self._open())
        self._queues = Queues(self.instance)
        #: Bounds of queues, from a slave while the master is away.
        self._copies = BrokerOffsets(self.instance, TOOLS_GROUP)
        self._brokers = BrokerAdmin(self.instance)
        self._topics = TopicAdmin(self.instance, self._brokers)

    async def _open(self) -> ClientInstance:
        return await ClientInstance(self.client).__aenter__()

    def close(self) -> None:
        self.run(self.instance.__aexit__(None, None, None))

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop and wait for its result."""
        return self.thread.run(work)

    # --- Topics and queues ------------------------------------------------------------------------------------

    def topics(self) -> list[str]:
        """The topics of applications: without those of the system and the sink, retries and dead letters."""
        return self.run(self.topics_on_loop())

    async def topics_on_loop(self) -> list[str]:
        found = (topic for topic in await self._topics.all() if not topic.is_system)
        return [topic.name for topic in found if not topic.name.startswith(SPARK_PREFIX)]

    def queues(self, topics: Iterable[str]) -> list[MessageQueue]:
        """The queues of topics as the name server knows them now; raises ``RouteMissing``."""
        return self.run(self.queues_on_loop(topics))

    async def queues_on_loop(self, topics: Iterable[str], *, leave_out_missing: bool = False) -> list[MessageQueue]:
        """The same on the loop; topics that no name server knows may be left out."""

        async def of(topic: str) -> list[MessageQueue]:
            try:
                return await self._queues.of(topic)
            except RouteMissing:
                if leave_out_missing:
                    return []
                raise

        return [queue for queues in await asyncio.gather(*map(of, topics)) for queue in queues]

    async def check_brokers(self) -> None:
        """Raise ``NetworkError`` if no broker is registered: then the topics are unknown."""
        if not await self._brokers.all():
            raise NetworkError(
                f"no broker is registered at {self.name_servers}; start the brokers, or check their namesrvAddr",
                address=self.name_servers,
            )

    def removed(self, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        """Which of these queues do not exist any more, according to their brokers: deleted topics, or fewer queues.

        Only the broker knows. For a name server, a deleted topic and one whose brokers are down are the same. Queues of
        a broker that does not answer are not included.
        """

        async def ask(broker: BrokerInfo) -> set[MessageQueue]:
            try:
                table = await self._topics.table(broker)
            except TernError as error:
                if not error.retriable:
                    raise
                return set()
            mine = [queue for queue in queues if queue.broker_name == broker.name]
            counts = {topic: config.read_queue_nums for topic, config in table.items()}
            return {queue for queue in mine if queue.queue_id >= counts.get(queue.topic, 0)}

        async def ask_all() -> set[MessageQueue]:
            names = {queue.broker_name for queue in queues}
            masters = [broker for broker in await self._brokers.all() if broker.broker_id == MASTER_ID]
            found = await asyncio.gather(*(ask(broker) for broker in masters if broker.name in names))
            return set().union(*found)

        return self.run(ask_all())

    # --- Offsets ----------------------------------------------------------------------------------------------

    def bounds(self, queues: Collection[MessageQueue], *, timeout_ms: int) -> dict[MessageQueue, Bounds]:
        """The range of each queue; a broker that does not answer is asked again until the time is over."""

        async def ask(queue: MessageQueue) -> Bounds:
            first, end = await asyncio.gather(self._queues.bounds.min(queue), self._queues.bounds.max(queue))
            return Bounds(first, end)

        return self._each(queues, lambda queue: self.patiently(queue, lambda: ask(queue), timeout_ms=timeout_ms))

    def ends(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The end of each queue whose broker answers at once; the others are left out, with a warning.

        While a master is away its slave answers, which may have less: see ``ends_on_masters``.
        """
        return self._answered(queues, self._copies.max)

    def ends_on_masters(self, queues: Collection[MessageQueue]) -> dict[MessageQueue, int]:
        """The same without slaves."""
        return self._answered(queues, self._queues.bounds.max)

    def starts_since(self, queues: Collection[MessageQueue], time_ms: int) -> dict[MessageQueue, int]:
        """The first offset stored at a time or later, of each queue whose broker answers at once."""
        if not time_ms:
            return self._answered(queues, self._queues.bounds.min)
        return self._answered(queues, lambda queue: self._queues.first_since(queue, time_ms))

    def first_since(self, times_ms: Mapping[MessageQueue, int], *, timeout_ms: int) -> dict[MessageQueue, int]:
        """In each queue, the first offset stored at its time or later; its end if there is none."""
        return self._each(
            times_ms,
            lambda queue: self.patiently(
                queue, lambda: self._queues.first_since(queue, times_ms[queue]), timeout_ms=timeout_ms
            ),
        )

    def report(self, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Store a group's progress; errors are only logged, because Spark's checkpoint is authoritative."""
        self.run(BrokerOffsets(self.instance, group).save(offsets, wait=True))

    # --- Retries ----------------------------------------------------------------------------------------------

    async def patiently(self, queue: MessageQueue | None, ask: Callable[[], Awaitable[T]], *, timeout_ms: int) -> T:
        """Retry, with growing pauses, while the error may be temporary; with a ``timeout_ms`` of 0 without limit. On
        the loop. ``queue`` is the queue of the request; None: the request is for the list of queues."""
        clock = self.instance.env.clock
        began_s = told_s = clock.monotonic()
        what = str(queue) if queue is not None else f"the topics at {self.name_servers}"
        pause_s = _PAUSE_S
        while True:
            try:
                return await ask()
            except TernError as error:
                # An account that lacks a permission does not get it by waiting, and a wrong secret is a wrong guess.
                if not error.retriable or isinstance(error, RouteMissing | NoPermission):
                    raise
                now_s = clock.monotonic()
                if timeout_ms and now_s + pause_s > began_s + timeout_ms / 1000:
                    cure = f"check that broker {queue.broker_name} is running, or " if queue is not None else ""
                    raise NetworkError(
                        f"cannot read {what} within {timeout_ms} ms: {error}; {cure}raise the option "
                        "retryTimeoutMs (0: no limit)",
                        address=queue.broker_name if queue is not None else self.name_servers,
                    ) from error
                if now_s - told_s >= _TELL_S or pause_s == _PAUSE_S:
                    told_s = now_s
                    limit = f"for at most {timeout_ms} ms" if timeout_ms else "without a limit"
                    log.warning("cannot read %s: %s; retrying since %.0f s, %s", what, error, now_s - began_s, limit)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, _PAUSE_MAX_S)
                # Another broker may have taken its place.
                self.instance.refresh_routes_soon()

    def _answered(
        self, queues: Collection[MessageQueue], ask: Callable[[MessageQueue], Awaitable[int]]
    ) -> dict[MessageQueue, int]:
        """The results of those brokers that answer at once."""

        async def ask_once(queue: MessageQueue) -> int | None:
            try:
                return await ask(queue)
            except TernError as error:
                # A busy broker must not end a stream, either.
                if not error.retriable:
                    raise
                log.warning("cannot read %s: %s; its messages are read when the broker answers", queue, error)
                self.instance.refresh_routes_soon()
                return None

        return {queue: answer for queue, answer in self._each(queues, ask_once).items() if answer is not None}

    def _each(
        self, queues: Collection[MessageQueue], ask: Callable[[MessageQueue], Awaitable[T]]
    ) -> dict[MessageQueue, T]:
        async def run() -> dict[MessageQueue, T]:
            return dict(zip(queues, await self._queues.each(queues, ask), strict=True))

        return self.run(run())


_clusters: dict[ClientConfig, ClusterClient] = {}


def cluster_at(servers: str | ClientConfig) -> ClusterClient:
    """The client of this process for these name servers, or for these settings of a client."""
    thread = loop_thread()
    client = ClientConfig(servers) if isinstance(servers, str) else servers
    known = _clusters.get(client)
    # After a fork the parent's client is still in the table, but cannot be used.
    if known is None or known.thread is not thread:
        known = _clusters[client] = ClusterClient(client, thread)
    return known


def close_all() -> None:
    """Close all clients of this process; a later ``cluster_at`` creates a new one."""
    while _clusters:
        _, known = _clusters.popitem()
        if known.thread is loop_thread():
            known.close()
