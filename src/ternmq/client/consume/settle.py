"""What all lots of a consumer share when messages are settled (F1, F5, F9, H1).

Messages that are done gather until the loop has a moment, and are then settled by their lots, all of a lot at once: for
a fast consumer that is one step for some dozen messages. ``flush`` does it now; it comes before progress is stored.

Messages that go back need calls of brokers. They run in tasks of their own, and ``idle`` waits for them at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from threading import get_ident
from typing import Any, Final

from ternmq.client.consume.acks import Acks
from ternmq.client.consume.claimed import LATER, NEVER, NOT_STARTED, After, Claimed, Lot
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.stats import ConsumerCounts
from ternmq.client.consume.taken import Taken
from ternmq.env import Clock
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Until messages that no broker took back are delivered here again.
LOCAL_RETRY_S: Final = 5.0


class Settling:
    """Of one consumer. All methods belong to the loop's thread, unless they say otherwise.

    ``returns`` sends messages back; without it, failed messages are skipped, with ``no_returns`` as the reason in the
    log, or with ``leaves_failed`` stay as undone as they were. ``timeout_s`` is how long the application may take for a
    message.
    """

    def __init__(
        self,
        stats: ConsumerCounts,
        tasks: Tasks,
        clock: Clock,
        *,
        returns: Returns | None,
        acks: Acks | None = None,
        timeout_s: float,
        deliver: Callable[[Sequence[Claimed]], None],
        no_returns: str = "",
        leaves_failed: bool = False,
    ) -> None:
        self.stats = stats
        self.returns = returns
        self.acks = acks
        self._timeout_s = timeout_s
        self.clock = clock
        #: Whether the progress was stored for the last time: what the application settles later has no effect.
        self.is_closed = False
        self._no_returns = no_returns
        self._leaves_failed = leaves_failed
        #: Of an outlet without a listener, if there are hooks; the outlet sets it.
        self.taken: Taken | None = None
        self._deliver = deliver
        self._tasks = tasks
        self._returning: set[asyncio.Task[None]] = set()
        self._loop = asyncio.get_running_loop()
        self._thread = get_ident()
        self._done: list[Claimed] = []
        #: What other threads have settled, and when. Filled by them, emptied by the loop, which they wake once.
        self._told: deque[tuple[Lot, Claimed, After | None, float]] = deque()
        self._is_woken = False

    # --- What outlets say ------------------------------------------------------------------------------------

    def ended(
        self, lot: Lot, done: Sequence[Claimed], failed: Sequence[Claimed], after: After = LATER, *, took_s: float
    ) -> None:
        """A call of the application with messages of ``lot`` has ended. Those settled before are left out."""
        lot.calls += 1
        lot.took_s += took_s
        if done:
            self.done(done)
        if failed:
            self.flush()
            failed = [message for message in failed if not message.is_settled]
            for message in failed:
                message.is_settled = True
            self._failed(lot, failed, after)

    def done(self, messages: Sequence[Claimed]) -> None:
        """They are done, unless they were settled before."""
        gathered = self._done
        if not gathered:
            self._loop.call_soon(self.flush)
        for message in messages:
            if not message.is_settled:
                message.is_settled = True
                gathered.append(message)

    def failed_here(self, lot: Lot, count: int) -> None:
        """Count messages that failed and are tried again in their place."""
        self._count(lot, self.clock.now_ms(), done=0, failed=count)

    def told(self, lot: Lot, message: Claimed, after: After | None) -> None:
        """The application has settled a message itself. May be called in any thread."""
        now = self.clock.monotonic()
        if get_ident() != self._thread:
            self._told.append((lot, message, after, now))
            # The flag falls before the loop looks, so what is told in between wakes it again.
            if not self._is_woken:
                self._is_woken = True
                self.on_loop(self._hear)
            return
        self._settled(lot, message, after, now)

    def _hear(self) -> None:
        """Take what other threads have told."""
        self._is_woken = False
        while self._told:
            self._settled(*self._told.popleft())

    def _settled(self, lot: Lot, message: Claimed, after: After | None, now: float) -> None:
        if self.taken is not None:
            self.taken.end((message,), is_done=after is None)
        lot.calls += 1
        lot.took_s += max(0.0, now - message.started)
        if after is None:
            if not self._done:
                self._loop.call_soon(self.flush)
            self._done.append(message)
        else:
            self.flush()
            self._failed(lot, [message], after)

    def started_for(self, by_ms: int) -> float:
        """When a message would have begun that has this much time left. May be called in any thread."""
        return self.clock.monotonic() + by_ms / 1000 - self._timeout_s

    def on_loop(self, call: Callable[[], None]) -> None:
        """Call something on the loop's thread; calls from one thread arrive in order."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: this thread took longer than the consumer ran
            self._loop.call_soon_threadsafe(call)

    def flush(self) -> None:
        """Let lots settle what is done."""
        if not self._done:
            return
        gathered, self._done = self._done, []
        lots: dict[Lot, list[Claimed]] = {}
        lot, messages = gathered[0].lot, lots.setdefault(gathered[0].lot, [])
        for message in gathered:
            if message.lot is not lot:
                lot = message.lot
                messages = lots.setdefault(lot, [])
            messages.append(message)
        now_ms = self.clock.now_ms()
        for lot, messages in lots.items():
            self._count(lot, now_ms, done=len(messages), failed=0)
            lot.done(messages)

    def unreadable(self, messages: Sequence[Claimed]) -> None:
        """Messages of one lot whose bodies cannot be read (``body_error``): they failed, though no listener has seen
        them."""
        first = messages[0]
        log.warning(
            "%d messages of %s cannot be decoded and count as failed; the first is %s at queue offset %d: %s",
            len(messages),
            first.lot.queue,
            first.message_id,
            first.queue_offset,
            first.body_error,
        )
        self.flush()
        for message in messages:
            message.is_settled = True
        self._failed(first.lot, messages, LATER)

    def _failed(self, lot: Lot, messages: Sequence[Claimed], after: After) -> None:
        if messages:
            self._count(lot, self.clock.now_ms(), done=0, failed=len(messages))
            lot.failed(messages, after)

    def _count(self, lot: Lot, now_ms: int, *, done: int, failed: int) -> None:
        lot.last_consumed_ms = now_ms
        self.stats.consumed(lot.queue.topic, done=done, failed=failed, took_s=lot.took_s, calls=lot.calls)
        lot.calls, lot.took_s = 0, 0.0

    # --- What lots need --------------------------------------------------------------------------------------

    def skipped(self, messages: Sequence[Claimed]) -> None:
        """They failed, and there is no way to have them delivered again."""
        for message in messages:
            log.warning("message %s failed and is skipped: %s", message.message_id, self._no_returns)

    def left(self, messages: Sequence[Claimed]) -> bool:
        """They failed, and cannot be delivered again; whether they are left for the application to go back to."""
        if self._leaves_failed:
            for message in messages:
                message.is_settled = False
                log.warning("message %s failed: %s", message.message_id, self._no_returns)
        return self._leaves_failed

    async def bury(self, message: Claimed) -> bool:
        """Make a message a dead letter; returns whether it is one."""
        if self.returns is not None:
            return await self.returns.send_back(message, delay_level=NEVER.level)
        self.skipped([message])
        return True

    def start(self, returning: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run what brings messages back; ``idle`` waits for it."""
        task = self._tasks.create_task(returning)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)
        return task

    def again_soon(self, lot: Lot, messages: Sequence[Claimed]) -> None:
        """Deliver messages here once more, after a pause, as no broker took them back."""
        self._tasks.create_task(self._again(lot, messages))

    async def _again(self, lot: Lot, messages: Sequence[Claimed]) -> None:
        await asyncio.sleep(LOCAL_RETRY_S)
        if lot.is_ours:
            for message in messages:
                message.is_settled, message.started = False, NOT_STARTED
            self._deliver(messages)

    # --- The end ---------------------------------------------------------------------------------------------

    async def idle(self, timeout_ms: int) -> None:
        """Wait, at most this long, until no message is on its way back."""
        self.flush()
        if self._returning:
            await asyncio.wait(self._returning, timeout=timeout_ms / 1000)
        if self.acks is not None:
            await self.acks.idle(timeout_ms)

    def close(self) -> None:
        """Settle what is done; nothing after that has an effect."""
        self.flush()
        self.is_closed = True
