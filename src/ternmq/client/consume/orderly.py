"""A listener that sees the messages of each queue one after the other (F2).

Each queue is a *line*. Its first messages are given to the listener; they leave the line when they are done, and only
then are the next ones begun. A failure keeps them first in line: after a moment (1 s, ``context.retry_ms``) they are
tried again, with ``reconsume_times`` one higher, and after ``max_reconsume_times`` they become dead letters. A message
whose body cannot be read becomes one at once: trying again would change nothing, and hold up what comes behind. Not for
want of a package, though: the message is sound, and all of its topic would become dead letters. It fails in place. So:

    No message of a queue is begun before the one before it is done, here or in any other member.

A listener that sets ``context.auto_commit = False`` decides later: what it is done with is *taken* out of the line, but
stays in the process queue, so that no progress passes it, until a call returns COMMIT. ROLLBACK puts it back, first in
line, and so does the loss of the queue: its next owner begins behind the last commit.

*Here*, a line is worked on by one task at a time, and lines belong to queues, not to what is held of them: when a queue
is reset, or lost and taken up anew, its new messages wait until the call that still runs has ended. *In other members*
the broker's lock says so (``locks``): no call begins without a lock that is trusted, and a member that lets go of a
queue waits for the running call, stores the progress and gives the lock back last (``release``). In broadcasting each
member reads for itself and there are no locks.

In an outage (``outage``) all lines wait, with their first messages as they were: they stay first, and lose no retry.
The locks are renewed meanwhile. After each back-off one line makes a call, the trial.

What no lock can prevent: a call that began under it and still runs half a minute after the broker was last heard.

``threads`` tasks take lines in turn, each for 60 s at most, then the next line has its turn. They call an ``async``
listener themselves and a plain one in a thread; there is no task per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Final

from ternmq.client.consume.claimed import NOT_STARTED, Claimed, Lot
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import BoundListener, ConsumeContext, ConsumeResult
from ternmq.client.consume.locks import HeldLocks
from ternmq.client.consume.outage import CARE_S, Outages
from ternmq.client.consume.outlet import TURN_S
from ternmq.client.consume.settle import Settling
from ternmq.env import Clock
from ternmq.errors import Outage
from ternmq.message import MessageQueue, Property
from ternmq.tasks import Tasks
from ternmq.wire.compress import CompressionMissing

log = logging.getLogger(__name__)

#: RocketMQ's ``rocketmq.client.maxTimeConsumeContinuously``.
SLICE_S: Final = 60.0
#: Until a line whose lock is not trusted now looks again.
RELOCK_S: Final = 0.1
#: Bounds of ``context.retry_ms``, as RocketMQ has them.
RETRY_MS_MIN, RETRY_MS_MAX = 10, 30_000
#: Attempts of a message between two log lines that a package is missing for it: about a minute.
_REPORTED_EVERY: Final = 60


class _Line:
    """The messages of one queue that wait, those of a running call first."""

    __slots__ = ("is_busy", "is_closing", "is_reported", "is_stalled", "queue", "quiet", "taken", "waiting")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.waiting: deque[Claimed] = deque()
        #: Done, but not committed; and whether it was reported that nothing more comes before that.
        self.taken: list[Claimed] = []
        self.is_stalled = False
        #: A task works on it, or will: it is among those that are ready, or a timer will put it there.
        self.is_busy = False
        #: No more calls; see ``Orderly.release``.
        self.is_closing = False
        #: Whether the running call was reported as too long.
        self.is_reported = False
        #: Set while no call runs.
        self.quiet = asyncio.Event()
        self.quiet.set()

    def first(self, count_max: int) -> list[Claimed]:
        """The messages of the next call: of one lot, and none that is not ours any more. One that cannot be read is
        alone."""
        waiting = self.waiting
        while waiting and not waiting[0].lot.is_ours:
            waiting.popleft()
        if self.taken and not self.taken[0].lot.is_ours:
            self.taken.clear()
        messages = [message for message in islice(waiting, count_max) if message.lot is waiting[0].lot]
        for number, message in enumerate(messages):
            if message.body_error:
                return messages[: max(1, number)]
        return messages

    def take(self, count: int) -> None:
        """The first messages are done, but not for good."""
        self.taken.extend(self.waiting.popleft() for _ in range(count))

    def commit(self) -> list[Claimed]:
        """All that was taken is done for good; returns it."""
        committed, self.taken = self.taken, []
        self.is_stalled = False
        return committed

    def roll_back(self) -> None:
        """All that was taken is to be done again."""
        self.waiting.extendleft(reversed(self.taken))
        self.taken = []


class Orderly:
    """The ``Outlet`` of an orderly consumer. All methods belong to the loop's thread; ``tasks`` owns its workers."""

    def __init__(
        self,
        listener: BoundListener,
        settling: Settling,
        config: PushConfig,
        *,
        group: str,
        locks: HeldLocks | None,
        outages: Outages,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._listener = listener
        self._settling = settling
        self._config = config
        self._group = group
        self._locks = locks
        self._outages = outages
        self._care: asyncio.TimerHandle | None = None
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        self._lines: dict[MessageQueue, _Line] = {}
        #: None ends the worker that takes it.
        self._ready: asyncio.Queue[_Line | None] = asyncio.Queue()
        self._stopped = False
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self.resize(config.threads)

    # --- What the member asks (``Outlet``, ``Order``) --------------------------------------------------------

    def put(self, messages: Sequence[Claimed]) -> None:
        if self._stopped:
            return
        queue = messages[0].lot.queue
        line = self._lines.get(queue)
        if line is None:
            line = self._lines[queue] = _Line(queue)
        line.waiting.extend(messages)
        if not line.is_busy:
            line.is_busy = True
            self._ready.put_nowait(line)

    def is_calling(self, queue: MessageQueue) -> bool:
        """Whether a call with messages of the queue runs."""
        line = self._lines.get(queue)
        return line is not None and not line.quiet.is_set()

    async def release(self, queue: MessageQueue) -> None:
        """Begin no more calls with messages of the queue; returns when the running one has ended and counts."""
        line = self._lines.get(queue)
        if line is not None:
            line.is_closing = True
            await line.quiet.wait()
            self._lines.pop(queue, None)

    def expire(self, late: Sequence[Claimed]) -> None:
        # Nothing can be sent back: what comes behind would be begun before it is done.
        for queue in {message.lot.queue for message in late}:
            line = self._lines.get(queue)
            if line is not None and not line.quiet.is_set() and not line.is_reported:
                line.is_reported = True
                log.warning("the listener of %s is slow; the queue waits for it", self._about(line))

    async def call(self, context: ConsumeContext) -> None:
        if self._pool is None:
            await self._listener.call_async(context)
            return
        is_wanted = True

        def listen() -> None:
            if is_wanted:
                self._listener.call(context)

        try:
            await self._loop.run_in_executor(self._pool, listen)
        except RuntimeError:
            # The machine gives no more threads now. The pool has kept the call for the next one, and it is made again.
            is_wanted = False
            raise

    def resize(self, threads: int) -> None:
        for number in range(self._threads, threads):
            self._tasks.create_task(self._work(), name=f"consume-{self._group}-{number}")
        for _ in range(threads, self._threads):
            self._ready.put_nowait(None)
        self._threads = threads
        if not self._listener.is_async:
            # Workers wait for their calls, so nothing waits in the old pool, and a thread is free for each worker.
            if self._pool is not None:
                self._pool.shutdown(wait=False)
            self._pool = ThreadPoolExecutor(threads, f"consume-{self._group}")

    async def stop(self, timeout_ms: int) -> None:
        self._stopped = True
        if self._care is not None:
            self._care.cancel()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                for line in list(self._lines.values()):
                    await line.quiet.wait()
        for line in self._lines.values():
            if not line.quiet.is_set():
                log.warning(
                    "the listener of %s is still running; its messages will be delivered again", self._about(line)
                )
        if self._pool is not None:
            # Threads that hang cannot be ended. What they return later has no effect.
            self._pool.shutdown(wait=False, cancel_futures=True)

    # --- Workers ---------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        while (line := await self._ready.get()) is not None:
            try:
                pause_s = await self._serve(line)
            except asyncio.CancelledError:
                # At the end of the consumer; or by the listener, and then another task takes the place of this one.
                if not self._stopped:
                    log.warning("a call with %s was cancelled by its listener; it is made again", line.queue)
                    self._loop.call_later(self._retry_s(None), self._ready.put_nowait, line)
                    with contextlib.suppress(RuntimeError):  # the consumer ends, as it could not start
                        self._tasks.create_task(self._work(), name=f"consume-{self._group}")
                raise
            except Exception:
                # Whatever it is, a queue that is not consumed any more would be worse.
                log.exception("consuming %s failed unexpectedly; retrying", line.queue)
                pause_s = self._retry_s(None)
            if pause_s is None:
                line.is_busy = False
            elif pause_s:
                self._loop.call_later(pause_s, self._ready.put_nowait, line)
            else:
                self._ready.put_nowait(line)

    async def _serve(self, line: _Line) -> float | None:
        """Work on a line; returns after how many seconds to go on with it, None when nothing is left to do."""
        slice_end = self._clock.monotonic() + SLICE_S
        turn_end = self._loop.time() + TURN_S
        while not (self._stopped or line.is_closing) and (messages := line.first(self._config.batch_max)):
            if self._locks is not None and not self._locks.is_held(line.queue):
                return RELOCK_S
            now = self._clock.monotonic()
            if now > slice_end:
                return 0.0
            is_trial = self._outages.is_on
            if is_trial:
                if self._outages.is_trying or self._loop.time() < self._outages.until:
                    return max(self._outages.until - self._loop.time(), RELOCK_S)
                self._outages.is_trying = True
            line.quiet.clear()
            line.is_reported = False
            try:
                pause_s = await self._call_with(line, messages, is_trial=is_trial)
            finally:
                line.quiet.set()
                if is_trial:
                    self._outages.is_trying = False
            if pause_s:
                return pause_s
            if self._loop.time() > turn_end:
                await asyncio.sleep(0)
                turn_end = self._loop.time() + TURN_S
        return None

    async def _call_with(self, line: _Line, messages: Sequence[Claimed], *, is_trial: bool) -> float:
        """Call the listener and settle what it says; returns after how many seconds to try again, 0 for going on."""
        lot = messages[0].lot
        if messages[0].body_error:
            return await self._pass_over(line, messages[0])
        context = ConsumeContext(self._group, line.queue, messages)
        began, start_ms = self._clock.monotonic(), self._clock.now_ms()
        for message in messages:
            message.started, message.consume_start_time_ms = began, start_ms
        try:
            await self.call(context)
        except asyncio.CancelledError:
            for message in messages:
                message.reconsume_times += 1
            raise
        failed = context.failed
        done_count = len(messages) - len(failed)
        lot.calls += 1
        lot.took_s += self._clock.monotonic() - began
        for message in messages:
            message.started = NOT_STARTED
        if isinstance(context.error, Outage):
            return self._pause(context.error, is_trial=is_trial)
        if is_trial:
            self._outages.over(worked=True)
        is_rollback = context.result is ConsumeResult.ROLLBACK
        if failed:
            self._settling.failed_here(lot, len(failed))
        buried_count = 0 if is_rollback else await self._give_up(lot, failed, context)
        if not lot.is_ours:
            return 0.0
        if is_rollback:
            line.roll_back()
            return self._retry_s(context.retry_ms)
        line.take(done_count)
        # Not after an exception, which may come before the listener could say that it decides itself.
        is_success = context.result is ConsumeResult.SUCCESS
        if context.result is ConsumeResult.COMMIT or (is_success and context.auto_commit):
            self._settling.done(line.commit())
        elif is_success:
            self._warn_if_stalled(line, lot)
        if buried_count:
            lot.done([line.waiting.popleft() for _ in range(buried_count)])
        if done_count + buried_count == len(messages):
            return 0.0
        for message in failed[buried_count:]:
            message.reconsume_times += 1
        return self._retry_s(context.retry_ms)

    def _pause(self, reason: Outage, *, is_trial: bool) -> float:
        """A call has ended with an outage; returns as ``_call_with``."""
        now = self._loop.time()
        if self._outages.down(reason, now=now, is_trial=is_trial) is not None and self._care is None:
            self._care = self._loop.call_later(CARE_S, self._look_after)
        return max(self._outages.until - now, RELOCK_S)

    def _look_after(self) -> None:
        """End an outage when the queues of all messages to try with were lost."""
        self._care = None
        if not self._outages.is_on or self._stopped:
            return
        if self._outages.is_trying or any(line.first(1) for line in self._lines.values()):
            self._care = self._loop.call_later(CARE_S, self._look_after)
        else:
            self._outages.over(worked=False)

    async def _pass_over(self, line: _Line, message: Claimed) -> float:
        """Have a message that cannot be read become a dead letter, unless it can be read elsewhere; returns as
        ``_call_with``."""
        lot = message.lot
        times_max = self._config.max_reconsume_times
        if _lacks_package(message) and (times_max is None or message.reconsume_times < times_max):
            if message.reconsume_times % _REPORTED_EVERY == 0:
                log.error(
                    "message %s of %s at queue offset %d cannot be decoded: %s; the queue waits until the consumer "
                    "is restarted with the missing package",
                    message.message_id,
                    line.queue,
                    message.queue_offset,
                    message.body_error,
                )
            self._settling.failed_here(lot, 1)
            message.reconsume_times += 1
            return self._retry_s(None)
        log.warning(
            "message %s of %s at queue offset %d cannot be decoded and becomes a dead letter: %s",
            message.message_id,
            line.queue,
            message.queue_offset,
            message.body_error,
        )
        self._settling.failed_here(lot, 1)
        if not await lot.bury(message):
            return self._retry_s(None)
        if lot.is_ours:
            line.waiting.popleft()
            lot.done([message])
        return 0.0

    def _retry_s(self, retry_ms: int | None) -> float:
        retry_ms = self._config.orderly_retry_ms if retry_ms is None else retry_ms
        return min(max(retry_ms, RETRY_MS_MIN), RETRY_MS_MAX) / 1000

    def _warn_if_stalled(self, line: _Line, lot: Lot) -> None:
        limit = lot.limit_reached()
        if limit is not None and not line.waiting and not line.is_stalled:
            line.is_stalled = True
            log.warning(
                "the listener of group %s has %d uncommitted messages of %s and reached its limit %s; it gets no "
                "more until it commits",
                self._group,
                len(line.taken),
                line.queue,
                limit,
            )

    async def _give_up(self, lot: Lot, failed: Sequence[Claimed], context: ConsumeContext) -> int:
        """Have the first of these become dead letters if it is time; returns how many are."""
        times_max = self._config.max_reconsume_times
        for number, message in enumerate(failed):
            is_hopeless = context.delay_level < 0 or (times_max is not None and message.reconsume_times >= times_max)
            if not lot.is_ours or not is_hopeless or not await lot.bury(message):
                return number
        return len(failed)

    def _about(self, line: _Line) -> str:
        message = line.waiting[0]
        return f"group {self._group} (message {message.message_id} of {line.queue})"


def _lacks_package(message: Claimed) -> bool:
    """Whether a message is sound, and only this installation cannot decompress it."""
    # The property tells of damage, and a sender may have written anything into it.
    return message.body_error.endswith(CompressionMissing.CURE) and Property.BODY_ERROR not in message.properties
