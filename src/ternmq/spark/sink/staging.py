"""What executors do with chunks: put them into the stage, or straight into the target (U2).

The stage is a topic, TERNMQ_SPARK_STAGE: one message is one chunk, its body the body of a batch send. Nobody but the
committer reads it. A chunk that is staged twice, or by a task that fails later, or by one that ran twice, is simply
never asked for, and goes away with retention.

A task packs rows while earlier chunks are on their way; with ``inFlightBytes`` under way it waits. So a broker that is
slow slows the task, and a task never holds more than that.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import RouteMissing, TernError
from ternmq.message import MessageQueue, Property
from ternmq.spark.runtime.cluster import Cluster
from ternmq.spark.sink.ledger_entries import STAGE_TOPIC, Staged
from ternmq.spark.sink.logs import ClusterLogs, NotSafe, Parcel, patiently, read_one
from ternmq.spark.sink.publish import check_timed, parcels, stage_key
from ternmq.spark.sink.rows import CHUNK_ID_LENGTH, TIMED, Chunk
from ternmq.tasks import Tasks
from ternmq.wire.properties import join

#: Of each broker.
STAGE_QUEUES: Final = 4
#: How long a topic may be unknown before it is one that does not exist.
MISSING_MS: Final = 3_000
#: What is staged after a chunk to find out whether that is safe.
_AFTER: Final = b"after"

#: What becomes of one chunk; None if there is nothing left to do with it.
Ship = Callable[[Chunk], Coroutine[Any, Any, Staged | None]]


def new_id(instance: ClientInstance) -> str:
    """The digits of a new chunk: those of a unique id of this process, with chance where it has the process's number
    and without the counter, whose place the row's number takes."""
    unique = instance.unique_ids.next()[-32:]
    return f"{unique[:12]}{instance.env.random.getrandbits(32):08X}{unique[20:CHUNK_ID_LENGTH]}"


class Shipping:
    """Executor: the chunks of one task on their way. Its methods block."""

    def __init__(self, cluster: Cluster, ship: Ship, *, bytes_max: int) -> None:
        self._cluster = cluster
        self._ship = ship
        self._bytes_max = bytes_max
        self._tasks = Tasks()
        self._under_way: deque[tuple[int, Future[Staged | None]]] = deque()
        self._bytes = 0
        self._shipped: list[Staged] = []

    def put(self, chunk: Chunk) -> None:
        """Ship a chunk; waits while too much is under way. Raises what went wrong with an earlier one."""
        while self._under_way and self._bytes + len(chunk.body) > self._bytes_max:
            self._wait()
        self._under_way.append(
            (len(chunk.body), self._cluster.thread.start(lambda: self._tasks.create_task(self._ship(chunk))))
        )
        self._bytes += len(chunk.body)

    def finish(self) -> list[Staged]:
        """Wait for all of them; in the order in which they were put."""
        while self._under_way:
            self._wait()
        return self._shipped

    def close(self) -> None:
        self._cluster.run(self._tasks.close())

    def _wait(self) -> None:
        size, coming = self._under_way[0]
        staged = coming.result()
        self._under_way.popleft()
        self._bytes -= size
        if staged is not None:
            self._shipped.append(staged)


class Stage:
    """Executor: chunks into the stage. Called on the loop."""

    def __init__(self, logs: ClusterLogs, *, timeout_ms: int) -> None:
        self._logs = logs
        self._timeout_ms = timeout_ms

    async def ship(self, chunk: Chunk) -> Staged:
        key = stage_key(chunk.chunk_id)
        parcel = Parcel(chunk.body, join({Property.UNIQUE_KEY: key}))
        unsafe: NotSafe | None = None

        async def attempt() -> tuple[MessageQueue, int]:
            nonlocal unsafe
            if unsafe is not None:
                # Another megabyte at each attempt would fill the disk of a broker that is short of its slave. A small
                # record that is safe shows the same (``logs``), unless the broker lost power in between.
                queue, at = unsafe.queue, unsafe.queue_offset
                await self._logs.append(queue, Parcel(_AFTER))
                if (await read_one(self._logs, queue, at)).unique_key == key:
                    return queue, at
                unsafe = None
            try:
                await self._logs.writable(STAGE_TOPIC)
            except RouteMissing:
                await self._logs.make(STAGE_TOPIC, queues=STAGE_QUEUES)
            try:
                return await self._logs.append_anywhere(STAGE_TOPIC, parcel)
            except NotSafe as error:
                unsafe = error
                raise

        queue, at = await patiently(self._logs, "staging rows", attempt, timeout_ms=self._timeout_ms)
        return Staged(queue, at, chunk.chunk_id, chunk.topic, chunk.queue, chunk.delay, chunk.rows, chunk.checksum)


class StoredUnsafely(TernError):
    """Rows of a task are stored, but not as safely as the brokers' settings promise; it is not tried again."""

    def __init__(self, error: NotSafe) -> None:
        super().__init__(
            f"{error}. The task fails, because its rows cannot be sent again without duplicates. To accept such "
            "writes, set the option unsafeWrites to accept; delivery=exactly-once waits until the rows are safe"
        )


class Straight:
    """Executor: chunks to their topic at once, some of them perhaps twice. Called on the loop."""

    def __init__(self, logs: ClusterLogs, *, timeout_ms: int) -> None:
        self._logs = logs
        self._timeout_ms = timeout_ms
        #: Chunks of one queue go one after the other.
        self._turns: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ship(self, chunk: Chunk) -> None:
        if chunk.queue is None:
            await self._send(chunk)
            return
        async with self._turns[chunk.queue]:
            await self._send(chunk)

    async def _send(self, chunk: Chunk) -> None:
        for parcel in parcels(chunk, chunk.body):

            async def attempt(parcel: Parcel = parcel) -> None:
                try:
                    if chunk.queue is None:
                        await self._logs.append_anywhere(chunk.topic, parcel)
                    else:
                        await self._logs.append(chunk.queue, parcel)
                except NotSafe as error:
                    # A broker without its slave answers so at once: to go on trying would write dozens of copies.
                    raise StoredUnsafely(error) from error

            where = chunk.queue or chunk.topic
            await patiently(self._logs, f"sending to {where}", attempt, timeout_ms=self._timeout_ms)


class Timers:
    """Executor: looks once a topic whether its brokers can do what rows with a ``deliver_time`` ask for."""

    def __init__(self, cluster: Cluster, logs: ClusterLogs) -> None:
        self._cluster = cluster
        self._logs = logs
        self._able: set[str] = set()

    def check(self, chunk: Chunk) -> None:
        """Raises ``ConfigError``."""
        if chunk.delay == TIMED and chunk.topic not in self._able:
            self._cluster.run(check_timed(self._logs, chunk.topic))
            self._able.add(chunk.topic)


def writable(cluster: Cluster, logs: ClusterLogs, topic: str, *, timeout_ms: int) -> Sequence[MessageQueue]:
    """The queues of a topic that can be written to; raises ``RouteMissing`` if it is not there for some seconds.

    A topic whose brokers just start again is not known for a moment.
    """
    end_s = logs.monotonic() + min(timeout_ms, MISSING_MS) / 1000

    async def ask() -> Sequence[MessageQueue] | None:
        try:
            return await logs.writable(topic)
        except RouteMissing:
            if logs.monotonic() < end_s:
                raise
            return None

    queues = cluster.run(patiently(logs, f"looking for the queues of {topic!r}", ask, timeout_ms=2 * timeout_ms))
    if queues is None:
        raise RouteMissing(f"there is no topic {topic!r}", topic=topic)
    return queues
