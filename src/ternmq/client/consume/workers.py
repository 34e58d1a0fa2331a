"""What calls a listener: threads for a plain function, tasks for an ``async`` one (F1).

Threads only call the listener. All else, from the cutting into calls to the settling, belongs to the loop: a thread
leaves its call in ``_over`` and wakes the loop, once for all calls that end while the loop is busy.

Tasks wake one another: a worker that takes a call while others wait wakes one worker more, which is started if all are
busy. So a listener that never waits is called by one or two tasks, with no other woken for each message, and one that
waits by as many as are allowed. A consumer without work has no task: a process may have hundreds of consumers, and what
each of them has is looked at in every full collection of the garbage collector.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Final, Protocol

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import BoundListener, ConsumeContext
from ternmq.client.consume.outlet import TURN_S
from ternmq.rare_log import RareLog
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Until a thread is started again that did not start.
THREAD_PAUSE_S: Final = 1.0

#: Begins a call with messages; None if they are not ours any more. In any thread.
Begun = Callable[[Sequence[Claimed]], ConsumeContext | None]
#: Told of the end of each call, on the loop.
Ended = Callable[[ConsumeContext | None], None]


class Workers(Protocol):
    """All methods belong to the loop's thread."""

    def put(self, batches: Sequence[Sequence[Claimed]]) -> None:
        """Have the listener called with each of these."""
        ...

    async def call(self, context: ConsumeContext) -> None:
        """Call the listener now, beside all others."""
        ...

    def resize(self, count: int) -> None: ...

    def drop_waiting(self) -> int:
        """Forget what has not begun; returns how many calls these are."""
        ...

    def close(self) -> None:
        """End the workers. Those that hang in a listener stay, and what they say is not heard any more."""
        ...


class Threaded:
    """Calls a plain listener in up to ``count`` threads, which start when they are needed."""

    def __init__(self, listener: BoundListener, begun: Begun, ended: Ended, *, name: str, count: int) -> None:
        self._listener = listener
        self._begun = begun
        self._ended = ended
        self._name = name
        self._count_max = count
        self._loop = asyncio.get_running_loop()
        #: A None ends the thread that takes it.
        self._waiting: SimpleQueue[Sequence[Claimed] | None] = SimpleQueue()
        self._threads = 0
        self._started = 0
        self._busy = 0
        #: Whether a thread is started in a moment that did not start.
        self._is_short = False
        self._logs = RareLog(log, self._loop.time)
        #: Filled by threads, emptied by the loop.
        self._over: deque[ConsumeContext | None] = deque()
        self._is_woken = False

    def put(self, batches: Sequence[Sequence[Claimed]]) -> None:
        self._busy += len(batches)
        for batch in batches:
            self._waiting.put(batch)
        self._start_threads()

    async def call(self, context: ConsumeContext) -> None:
        await asyncio.to_thread(self._listener.call, context)

    def resize(self, count: int) -> None:
        self._count_max = count
        for _ in range(self._threads - count):
            self._waiting.put(None)
        self._threads = min(self._threads, count)
        self._start_threads()

    def drop_waiting(self) -> int:
        dropped = surplus = 0
        with contextlib.suppress(Empty):
            while True:
                if self._waiting.get_nowait() is None:
                    surplus += 1
                else:
                    dropped += 1
        # Threads that were too many still have to end.
        for _ in range(surplus):
            self._waiting.put(None)
        self._busy -= dropped
        return dropped

    def close(self) -> None:
        self.resize(0)

    def _start_threads(self) -> None:
        """As many as there is work for."""
        try:
            while not self._is_short and self._threads < min(self._count_max, self._busy):
                # A listener that hangs cannot be ended, and must not keep the program from ending.
                Thread(target=self._work, name=f"{self._name}_{self._started}", daemon=True).start()
                self._threads += 1
                self._started += 1
        except RuntimeError as error:
            # The machine gives no more threads now. Those that run take what waits; if there are none, it waits.
            self._logs.warning("threads", f"{self._name} has {self._threads} threads of {self._count_max}: {error}")
            self._is_short = True
            self._loop.call_later(THREAD_PAUSE_S, self._try_again)

    def _try_again(self) -> None:
        self._is_short = False
        self._start_threads()

    def _work(self) -> None:
        while (batch := self._waiting.get()) is not None:
            context = None
            try:
                context = self._begun(batch)
                if context is not None:
                    self._listener.call(context)
            except BaseException:
                # Listeners' errors are results; this is ``SystemExit`` or a defect here. The messages come again.
                log.exception("a worker of the listener failed")
            self._over.append(context)
            # The flag falls before the loop looks into ``_over``, so a call put there in between wakes it again.
            if not self._is_woken:
                self._is_woken = True
                with contextlib.suppress(RuntimeError):  # the loop is closed: this thread ran for longer
                    self._loop.call_soon_threadsafe(self._take_over)

    def _take_over(self) -> None:
        self._is_woken = False
        while self._over:
            self._busy -= 1
            self._ended(self._over.popleft())


class Tasked:
    """Calls an ``async`` listener in up to ``count`` tasks, which start when they are needed."""

    def __init__(
        self, listener: BoundListener, begun: Begun, ended: Ended, tasks: Tasks, *, name: str, count: int
    ) -> None:
        self._listener = listener
        self._begun = begun
        self._ended = ended
        self._tasks = tasks
        self._name = name
        self._waiting: deque[Sequence[Claimed]] = deque()
        #: Workers without work, each with what wakes it.
        self._idle: list[asyncio.Future[None]] = []
        #: Whether a worker was woken, or started, and has not run yet.
        self._is_waking = False
        #: How many workers there are, and how many there may be; those beyond end when they look.
        self._running = 0
        self._count_max = count

    def put(self, batches: Sequence[Sequence[Claimed]]) -> None:
        self._waiting.extend(batches)
        self._wake()

    async def call(self, context: ConsumeContext) -> None:
        await self._listener.call_async(context)

    def resize(self, count: int) -> None:
        self._count_max = count
        if self._running > count:
            # All idle workers look; those that are not too many wait again.
            idle, self._idle = self._idle, []
            for worker in idle:
                if not worker.done():
                    worker.set_result(None)
        self._wake()

    def drop_waiting(self) -> int:
        dropped = len(self._waiting)
        self._waiting.clear()
        return dropped

    def close(self) -> None:
        self.resize(0)

    def _wake(self) -> None:
        while self._waiting and not self._is_waking:
            if self._idle:
                worker = self._idle.pop()
                if not worker.done():
                    worker.set_result(None)
                    self._is_waking = True
            elif self._running < self._count_max:
                self._tasks.create_task(self._work(), name=f"{self._name}-{self._running}")
                self._running += 1
                self._is_waking = True
            else:
                return

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        time = loop.time
        turn_end = time() + TURN_S
        waiting, begun, ended, call_async = self._waiting, self._begun, self._ended, self._listener.call_async
        self._is_waking = False
        while True:
            while not waiting and self._running <= self._count_max:
                worker = loop.create_future()
                self._idle.append(worker)
                await worker
                self._is_waking = False
            if self._running > self._count_max:
                self._running -= 1
                self._wake()
                return
            batch = waiting.popleft()
            if waiting and not self._is_waking:
                self._wake()
            context = begun(batch)
            if context is not None:
                try:
                    await call_async(context)
                except asyncio.CancelledError:
                    # At the end of the consumer; or by the listener, and then another task takes the place of this one.
                    self._running -= 1
                    ended(context)
                    if self._count_max:
                        log.warning("%s was cancelled by its listener; its messages have failed", self._name)
                        with contextlib.suppress(RuntimeError):  # the consumer ends, as it could not start
                            self._wake()
                    raise
            ended(context)
            if time() > turn_end:
                await asyncio.sleep(0)
                turn_end = time() + TURN_S
