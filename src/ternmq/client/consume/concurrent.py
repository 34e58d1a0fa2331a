"""Listeners that run side by side: messages of one queue may be consumed at the same time, in any order (F1).

What sources deliver waits in one line. Workers take from its front, each as many messages of one lot as one call of the
listener gets, and call it: of a plain function in threads, of an ``async`` one in a fixed number of tasks
(``workers``). No task is made for a message. What waits is bounded by the limits of the lots (M2).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence

from ternmq.client.consume.claimed import After, Claimed
from ternmq.client.consume.listener import BoundListener, ConsumeContext
from ternmq.client.consume.outlet import send_back_late
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.workers import Tasked, Threaded, Workers
from ternmq.env import Clock
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
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._settling = settling
        self._group = group
        self._batch_max = batch_max
        self._clock = clock
        self._stopped = False
        self._workers: Workers = (
            Tasked(listener, self._begun, self._ended, tasks, name=f"consume-{group}", count=threads)
            if listener.is_async
            else Threaded(listener, self._begun, self._ended, name=f"consume-{group}", count=threads)
        )
        #: Calls that wait or run.
        self._open = 0
        self._idle = asyncio.Event()

    def put(self, messages: Sequence[Claimed]) -> None:
        if self._stopped:
            return
        step = self._batch_max
        if step == 1:
            batches: list[Sequence[Claimed]] = [(message,) for message in messages]
        else:
            batches = [messages[at : at + step] for at in range(0, len(messages), step)]
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
        if not messages[0].lot.is_ours:
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
            return
        try:
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
