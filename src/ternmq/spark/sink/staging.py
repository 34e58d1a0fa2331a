"""Executors write chunks to the stage, or directly to the target (U2).

The stage is a topic, TERNMQ_SPARK_STAGE: one message is one chunk, its body the body of a batch send. Only the
committer reads it. A chunk that is staged twice, or by a task that fails later, or by a repeated task, is
never read, and expires with retention.

A task packs rows while earlier chunks are being sent; with ``inFlightBytes`` in progress it waits. So a slow broker
slows the task down, and a task never holds more than that.
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
from ternmq.spark.runtime.cluster import ClusterClient
from ternmq.spark.sink.ledger_entries import STAGE_TOPIC, Staged
from ternmq.spark.sink.logs import AppendData, ClusterLogs, NotSafe, patiently, read_one
from ternmq.spark.sink.publish import check_timed, parcels, stage_key
from ternmq.spark.sink.rows import CHUNK_ID_LENGTH, TIMED, Chunk
from ternmq.tasks import Tasks
from ternmq.wire.properties import join

#: On each broker.
STAGE_QUEUES: Final = 4
#: How long a topic may be unknown before it counts as missing.
MISSING_MS: Final = 3_000
#: Staged after a chunk to find out whether the chunk is safe.
_AFTER: Final = b"after"

#: Sends one chunk; returns None if it needs no commit.
Ship = Callable[[Chunk], Coroutine[Any, Any, Staged | None]]


def new_id(instance: ClientInstance) -> str:
    """The digits of a new chunk: those of a unique id of this process, with random digits instead of the process's
    number, and without the counter, which the row's number replaces."""
    unique = instance.unique_ids.next()[-32:]
    return f"{unique[:12]}{instance.env.random.getrandbits(32):08X}{unique[20:CHUNK_ID_LENGTH]}"


class Shipping:
    """Executor: the chunks of one task in progress. Its methods block."""

    def __init__(self, cluster: ClusterClient, ship: Ship, *, bytes_max: int) -> None:
        self._cluster = cluster
        self._ship = ship
        self._bytes_max = bytes_max
        self._tasks = Tasks()
        self._under_way: deque[tuple[int, Future[Staged | None]]] = deque()
        self._bytes = 0
        self._shipped: list[Staged] = []

    def put(self, chunk: Chunk) -> None:
        """Send a chunk; waits while too much is in progress. Raises the error of an earlier one."""
        while self._under_way and self._bytes + len(chunk.body) > self._bytes_max:
            self._wait()
        self._under_way.append(
            (len(chunk.body), self._cluster.thread.start(lambda: self._tasks.create_task(self._ship(chunk))))
        )
        self._bytes += len(chunk.body)

    def finish(self) -> list[Staged]:
        """Wait for all of them; returns them in the order of ``put``."""
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
    """Executor: writes chunks to the stage. Called on the loop."""

    def __init__(self, logs: ClusterLogs, *, timeout_ms: int) -> None:
        self._logs = logs
        self._timeout_ms = timeout_ms

    async def ship(self, chunk: Chunk) -> Staged:
        key = stage_key(chunk.chunk_id)
        parcel = AppendData(chunk.body, join({Property.UNIQUE_KEY: key}))
        unsafe: NotSafe | None = None

        async def attempt() -> tuple[MessageQueue, int]:
            nonlocal unsafe
            if unsafe is not None:
                # Another megabyte with each attempt would fill the disk of a broker that lacks its slave. A small
                # record that is safe proves the same (``logs``), unless the broker lost power in between.
                queue, at = unsafe.queue, unsafe.queue_offset
                await self._logs.append(queue, AppendData(_AFTER))
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
    """Rows of a task are stored, but not as safely as the brokers' settings require; there is no retry."""

    def __init__(self, error: NotSafe) -> None:
        super().__init__(
            f"{error}. The task fails, because its rows cannot be sent again without duplicates. To accept such "
            "writes, set the option unsafeWrites to accept; delivery=exactly-once waits until the rows are safe"
        )


class Straight:
    """Executor: sends chunks to their topic at once, some of them perhaps twice. Called on the loop."""

    def __init__(self, logs: ClusterLogs, *, timeout_ms: int) -> None:
        self._logs = logs
        self._timeout_ms = timeout_ms
        #: Chunks of one queue are sent one after the other.
        self._turns: dict[MessageQueue, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def ship(self, chunk: Chunk) -> None:
        if chunk.queue is None:
            await self._send(chunk)
            return
        async with self._turns[chunk.queue]:
            await self._send(chunk)

    async def _send(self, chunk: Chunk) -> None:
        for parcel in parcels(chunk, chunk.body):

            async def attempt(parcel: AppendData = parcel) -> None:
                try:
                    if chunk.queue is None:
                        await self._logs.append_anywhere(chunk.topic, parcel)
                    else:
                        await self._logs.append(chunk.queue, parcel)
                except NotSafe as error:
                    # A broker without its slave answers like this at once: retries would write dozens of copies.
                    raise StoredUnsafely(error) from error

            where = chunk.queue or chunk.topic
            await patiently(self._logs, f"sending to {where}", attempt, timeout_ms=self._timeout_ms)


class Timers:
    """Executor: checks once per topic whether its brokers support ``deliver_time``."""

    def __init__(self, cluster: ClusterClient, logs: ClusterLogs) -> None:
        self._cluster = cluster
        self._logs = logs
        self._able: set[str] = set()

    def check(self, chunk: Chunk) -> None:
        """Raises ``ConfigError``."""
        if chunk.delay == TIMED and chunk.topic not in self._able:
            self._cluster.run(check_timed(self._logs, chunk.topic))
            self._able.add(chunk.topic)


def writable(cluster: ClusterClient, logs: ClusterLogs, topic: str, *, timeout_ms: int) -> Sequence[MessageQueue]:
    """The writable queues of a topic; raises ``RouteMissing`` if it is missing for some seconds.

    A topic whose brokers are being restarted is unknown for a moment.
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
