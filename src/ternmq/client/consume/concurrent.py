"""Listeners that run side by side: messages of one queue may be consumed at the same time, in any order (F1).

What readers deliver is cut into batches, and each batch is one call of the listener: of a plain function in a pool of
threads (``InThreads``), of an ``async`` one by a fixed number of tasks (``InTasks``). Neither makes a task per message.
What waits for its turn is bounded by the limits of the process queues (M2).

Threads only call the listener. All else, from the cutting to the settling, belongs to the loop: a thread leaves its
batch in ``_ended`` and wakes the loop, once for all batches that end while it is busy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

from ternmq.client.consume.fetch import QueueReader
from ternmq.client.consume.listener import BoundListener, ConsumeContext
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.send_back import FIRST_LEVEL
from ternmq.client.consume.settle import Settling
from ternmq.env import Clock
from ternmq.message import ReceivedMessage
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: An ``async`` listener that never waits would keep the loop for itself; after this long, others get their turn.
TURN_S: Final = 0.005


class Batch:
    """Messages of one queue, for one call of the listener."""

    __slots__ = ("context", "held", "is_settled", "reader", "started")

    def __init__(self, reader: QueueReader, held: ProcessQueue, context: ConsumeContext) -> None:
        self.reader = reader
        self.held = held
        self.context = context
        #: By the clock's ``monotonic``; None while it waits for its turn.
        self.started: float | None = None
        #: Sent back because it took too long: its result does not matter any more.
        self.is_settled = False

    def start(self, clock: Clock) -> None:
        """Its turn has come. May be called in any thread."""
        self.started = clock.monotonic()
        start_ms = clock.now_ms()
        for message in self.context.messages:
            message.consume_start_time_ms = start_ms


class _Concurrent(ABC):
    """What both kinds have in common. All methods belong to the loop's thread."""

    def __init__(
        self, listener: BoundListener, settling: Settling, *, group: str, batch_max: int, clock: Clock
    ) -> None:
        self._listener = listener
        self._settling = settling
        self._group = group
        self._batch_max = batch_max
        self._clock = clock
        self._stopped = False
        #: Batches that wait or run.
        self._batches: set[Batch] = set()
        self._idle = asyncio.Event()

    def put(self, reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if self._stopped:
            return
        for at in range(0, len(messages), self._batch_max):
            context = ConsumeContext(self._group, reader.queue, messages[at : at + self._batch_max])
            batch = Batch(reader, held, context)
            self._batches.add(batch)
            self._begin(batch)

    def expire(self, started_before: float) -> None:
        for batch in self._batches:
            if batch.started is not None and batch.started < started_before and not batch.is_settled:
                first = batch.context.messages[0]
                log.warning(
                    "the listener of group %s is too slow with message %s of topic %s; its messages are sent back",
                    self._group,
                    first.message_id,
                    first.topic,
                )
                batch.is_settled = True
                self._settling.settle(
                    batch.reader, batch.held, failed=batch.context.messages, delay_level=FIRST_LEVEL, again=self.put
                )

    @abstractmethod
    async def call(self, context: ConsumeContext) -> None: ...

    @abstractmethod
    def resize(self, threads: int) -> None: ...

    async def stop(self, timeout_ms: int) -> None:
        self._stopped = True
        self._give_up_waiting()
        if self._batches:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._idle.wait()
        if self._batches:
            log.warning(
                "%d listener calls of group %s are still running; their messages will be delivered again",
                len(self._batches),
                self._group,
            )

    @abstractmethod
    def _begin(self, batch: Batch) -> None: ...

    @abstractmethod
    def _give_up_waiting(self) -> None:
        """Forget batches that have not begun; nobody has seen their messages."""

    def _end(self, batch: Batch) -> None:
        self._batches.discard(batch)
        if not self._batches:
            self._idle.set()
        if batch.is_settled:
            return
        context = batch.context
        failed = context.failed
        if batch.started is not None:
            batch.held.last_consumed_ms = self._clock.now_ms()
            self._settling.stats.consumed(
                batch.reader.queue.topic,
                done=len(context.messages) - len(failed),
                failed=len(failed),
                took_s=self._clock.monotonic() - batch.started,
            )
        self._settling.settle(
            batch.reader,
            batch.held,
            done=context.messages[: len(context.messages) - len(failed)] if failed else context.messages,
            failed=failed,
            delay_level=context.delay_level,
            again=self.put,
        )


class InThreads(_Concurrent):
    """Plain functions, in up to ``threads`` threads."""

    def __init__(
        self,
        listener: BoundListener,
        settling: Settling,
        *,
        group: str,
        batch_max: int,
        threads: int,
        clock: Clock,
    ) -> None:
        super().__init__(listener, settling, group=group, batch_max=batch_max, clock=clock)
        self._loop = asyncio.get_running_loop()
        self._pool = self._pool_of(threads)
        self._calls: dict[Batch, Future[None]] = {}
        #: Filled by threads, emptied by the loop.
        self._ended: deque[Batch] = deque()
        self._is_woken = False

    async def call(self, context: ConsumeContext) -> None:
        await self._loop.run_in_executor(self._pool, self._listener.call, context)

    def resize(self, threads: int) -> None:
        # A pool has the size it was made with. What has not begun moves to the new one; what runs ends in the old.
        old, self._pool = self._pool, self._pool_of(threads)
        for batch, call in list(self._calls.items()):
            if call.cancel():
                self._begin(batch)
        old.shutdown(wait=False)

    async def stop(self, timeout_ms: int) -> None:
        await super().stop(timeout_ms)
        # Threads that hang cannot be ended by anybody. What they say later is not heard any more.
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _pool_of(self, threads: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(threads, thread_name_prefix=f"consume-{self._group}")

    def _begin(self, batch: Batch) -> None:
        self._calls[batch] = self._pool.submit(self._call, batch)

    def _give_up_waiting(self) -> None:
        for batch, call in list(self._calls.items()):
            if call.cancel():
                del self._calls[batch]
                self._batches.discard(batch)

    def _call(self, batch: Batch) -> None:
        """In a thread of the pool."""
        try:
            if not batch.held.dropped:
                batch.start(self._clock)
                self._listener.call(batch.context)
        finally:
            self._ended.append(batch)
            # The flag falls before the loop looks into ``_ended``, so a batch put there in between wakes it again.
            if not self._is_woken:
                self._is_woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: this thread hung for longer than it ran
                    self._loop.call_soon_threadsafe(self._take_ended)

    def _take_ended(self) -> None:
        self._is_woken = False
        while self._ended:
            batch = self._ended.popleft()
            del self._calls[batch]
            self._end(batch)


class InTasks(_Concurrent):
    """``async`` functions, at most ``threads`` calls at a time."""

    def __init__(
        self,
        listener: BoundListener,
        settling: Settling,
        *,
        group: str,
        batch_max: int,
        threads: int,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        super().__init__(listener, settling, group=group, batch_max=batch_max, clock=clock)
        #: None ends the worker that takes it.
        self._waiting: asyncio.Queue[Batch | None] = asyncio.Queue()
        self._tasks = tasks
        self._threads = 0
        self.resize(threads)

    async def call(self, context: ConsumeContext) -> None:
        await self._listener.call_async(context)

    def resize(self, threads: int) -> None:
        for number in range(self._threads, threads):
            self._tasks.create_task(self._work(), name=f"consume-{self._group}-{number}")
        for _ in range(threads, self._threads):
            self._waiting.put_nowait(None)
        self._threads = threads

    def _begin(self, batch: Batch) -> None:
        self._waiting.put_nowait(batch)

    def _give_up_waiting(self) -> None:
        while not self._waiting.empty():
            batch = self._waiting.get_nowait()
            if batch is not None:
                self._batches.discard(batch)

    async def _work(self) -> None:
        time = asyncio.get_running_loop().time
        turn_end = time() + TURN_S
        while (batch := await self._waiting.get()) is not None:
            if not batch.held.dropped:
                batch.start(self._clock)
                await self._listener.call_async(batch.context)
            self._end(batch)
            if time() > turn_end:
                await asyncio.sleep(0)
                turn_end = time() + TURN_S
