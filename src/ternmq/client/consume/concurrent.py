"""Listeners that run side by side: messages of one queue may be consumed at the same time, in any order (F1).

What sources deliver waits in one line. Workers take from its front, each as many messages of one lot as one call of the
listener gets, and call it: of a plain function in threads, of an ``async`` one in a fixed number of tasks
(``workers``). No task is made for a message. What waits is bounded by the limits of the lots (M2).

In an outage (``outage``) no call begins but one at a time, the *trial*. All other calls are held, with their messages
neither done nor failed: no progress passes them, and popped ones are hidden for longer.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Sequence

from ternmq.client.consume.claimed import NOT_STARTED, After, Claimed
from ternmq.client.consume.listener import BoundListener, ConsumeContext
from ternmq.client.consume.outage import CARE_S, Outages
from ternmq.client.consume.outlet import send_back_late
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.workers import Tasked, Threaded, Workers
from ternmq.env import Clock
from ternmq.errors import Outage
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)


class Concurrent:
    """An ``Outlet``. All methods belong to the loop's thread."""

    def __init__(
        self,
        listener: BoundListener,
        settling: Settling,
        *,
        group: str,
        batch_max: int,
        threads: int,
        outages: Outages,
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._settling = settling
        self._group = group
        self._batch_max = batch_max
        self._outages = outages
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._stopped = False
        self._workers: Workers = (
            Tasked(listener, self._begun, self._ended, tasks, name=f"consume-{group}", count=threads)
            if listener.is_async
            else Threaded(listener, self._begun, self._ended, name=f"consume-{group}", count=threads)
        )
        #: Calls that wait or run.
        self._open = 0
        self._idle = asyncio.Event()
        #: Calls that wait for the end of an outage; workers add to it, too.
        self._held: deque[Sequence[Claimed]] = deque()
        #: The messages of the trial; None before it begins, and if they are not ours any more.
        self._trial: Sequence[Claimed] | None = None
        self._timers: list[asyncio.TimerHandle] = []

    def put(self, messages: Sequence[Claimed]) -> None:
        if self._stopped:
            return
        step = self._batch_max
        if step == 1:
            batches: list[Sequence[Claimed]] = [(message,) for message in messages]
        else:
            batches = [messages[at : at + step] for at in range(0, len(messages), step)]
        self._start(batches)

    def _start(self, batches: Sequence[Sequence[Claimed]]) -> None:
        if self._outages.is_on:
            self._held.extend(batches)
        else:
            self._open += len(batches)
            self._workers.put(batches)

    def expire(self, late: Sequence[Claimed]) -> None:
        for message in late:
            log.warning(
                "the listener of group %s is too slow with message %s of topic %s; it is sent back",
                self._group,
                message.message_id,
                message.topic,
            )
        send_back_late(late)

    async def call(self, context: ConsumeContext) -> None:
        await self._workers.call(context)

    def resize(self, threads: int) -> None:
        self._workers.resize(threads)

    async def stop(self, timeout_ms: int) -> None:
        self._stopped = True
        self._cancel_timers()
        self._held.clear()
        self._open -= self._workers.drop_waiting()
        if self._open:
            self._idle.clear()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._idle.wait()
        if self._open:
            log.warning(
                "%d listener calls of group %s are still running; their messages will be delivered again",
                self._open,
                self._group,
            )
        self._workers.close()

    # --- What workers tell -----------------------------------------------------------------------------------

    def _begun(self, messages: Sequence[Claimed]) -> ConsumeContext | None:
        """A worker takes these; returns its context, or None if the messages are not ours any more. In any thread."""
        is_trial = messages is self._trial
        if self._outages.is_on and not is_trial:
            self._held.append(messages)
            return None
        lot = messages[0].lot
        if not lot.is_ours:
            self._pass_over(messages)
            messages = [message for message in messages if lot.holds(message)]
            if is_trial:
                self._trial = messages or None
            if not messages:
                return None
        clock = self._clock
        started, start_ms = clock.monotonic(), clock.now_ms()
        for message in messages:
            message.started = started
            message.consume_start_time_ms = start_ms
        return ConsumeContext(self._group, messages[0].lot.queue, messages)

    def _ended(self, context: ConsumeContext | None) -> None:
        self._open -= 1
        if not self._open:
            self._idle.set()
        if context is None:
            if self._outages.is_trying and self._trial is None:
                self._try()
            elif self._held and not self._outages.is_on:
                # A worker held it when the outage was just over.
                self._release()
            return
        try:
            is_trial = context.messages is self._trial
            if isinstance(context.error, Outage):
                self._pause(context, context.error, is_trial=is_trial)
                return
            if is_trial:
                self._resume(worked=True)
            self._settle(context)
        except Exception:
            # Whatever it is, a worker that ends would be worse. What is not settled is sent back as too slow.
            log.exception("what a call of the listener of group %s has done cannot be settled", self._group)

    def _settle(self, context: ConsumeContext) -> None:
        messages, failed = context.messages, context.failed
        self._settling.ended(
            messages[0].lot,
            messages[: len(messages) - len(failed)] if failed else messages,
            failed,
            After(context.delay_level),
            # An extended message says that it began later.
            took_s=max(0.0, self._clock.monotonic() - messages[0].started),
        )

    def _pass_over(self, messages: Sequence[Claimed]) -> None:
        """They may not be ours any more: they do not wait here (``Room``). In any thread."""
        now = self._clock.monotonic()
        for message in messages:
            message.started = now

    # --- Outages ---------------------------------------------------------------------------------------------

    def _pause(self, context: ConsumeContext, reason: Outage, *, is_trial: bool) -> None:
        """A call has ended with an outage: hold its messages, but for those that the listener settled itself."""
        messages = [message for message in context.messages if not message.is_settled]
        for message in messages:
            message.started = NOT_STARTED
        if self._stopped:
            return
        if messages and is_trial:
            # Another one is tried next: the outage may be that of one message alone.
            self._held.append(messages)
        elif messages:
            self._held.appendleft(messages)
        pause_s = self._outages.down(reason, now=self._loop.time(), is_trial=is_trial)
        if pause_s is not None:
            self._trial = None
            self._cancel_timers()
            self._timers = [self._loop.call_later(pause_s, self._try), self._loop.call_later(0, self._care)]

    def _try(self) -> None:
        """The back-off is over: make one call."""
        while self._held:
            messages = self._held.popleft()
            if any(message.lot.holds(message) for message in messages):
                self._outages.is_trying = True
                self._trial = messages
                self._open += 1
                self._workers.put([messages])
                return
            self._pass_over(messages)
        self._resume(worked=False)

    def _resume(self, *, worked: bool) -> None:
        self._trial = None
        self._cancel_timers()
        self._outages.over(worked=worked)
        self._release()

    def _release(self) -> None:
        held = []
        while self._held:
            held.append(self._held.popleft())
        self._start(held)

    def _care(self) -> None:
        """Keep what is held ours, again and again."""
        for messages in list(self._held):
            for message in messages:
                message.lot.keep(message)
        self._timers[1:] = [self._loop.call_later(CARE_S, self._care)]

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
