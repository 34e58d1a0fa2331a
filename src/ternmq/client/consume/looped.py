"""Messages for ``async for``: the application takes them one by one instead of being called (F1).

Asking for the next message says that the last one is done; ``ack`` and ``retry`` say it earlier. What is taken and
never settled, because the loop was left or the program died, is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.outlet import send_back_late
from ternmq.client.consume.taken import Taken
from ternmq.env import Clock
from ternmq.errors import ConfigError, NotRunning, SystemFailure

log = logging.getLogger(__name__)


class Looped:
    """The ``Outlet`` of a consumer that is iterated over. All methods but ``take_now`` belong to the loop's thread."""

    def __init__(self, clock: Clock, taken: Taken | None) -> None:
        self._clock = clock
        self._taken = taken
        self._waiting: deque[Claimed] = deque()
        self._arrived = asyncio.Event()
        self._stopped = False

    def put(self, messages: Sequence[Claimed]) -> None:
        if not self._stopped:
            self._waiting.extend(messages)
            self._arrived.set()

    async def take(self) -> Claimed:
        """The next message; waits for one. Raises ``NotRunning`` when the consumer has stopped."""
        while True:
            message = self._next()
            if message is not None:
                if self._taken is not None:
                    self._taken.begin((message,))
                return message
            if self._stopped:
                raise NotRunning("the consumer has stopped; iterate inside its `async with` block")
            self._arrived.clear()
            await self._arrived.wait()

    def take_now(self) -> Claimed | None:
        """The next message, if there is one. May be called in any thread: each message goes to one of them.

        Hooks are told on the loop's thread: with them, a message must be waited for (``take``).
        """
        return self._next() if self._taken is None else None

    def _next(self) -> Claimed | None:
        waiting, clock = self._waiting, self._clock
        while waiting:
            try:
                message = waiting.popleft()
            except IndexError:  # another thread was faster
                return None
            # Also where it is passed over: it does not wait here any more (``Room``).
            message.started = clock.monotonic()
            if message.lot.is_ours:
                message.consume_start_time_ms = clock.now_ms()
                return message
        return None

    def expire(self, late: Sequence[Claimed]) -> None:
        for message in late:
            log.warning("message %s was not acknowledged in time; it is sent back", message.message_id)
        if self._taken is not None:
            self._taken.end(late, is_done=False)
        send_back_late(late)

    async def call(self, context: ConsumeContext) -> None:
        raise SystemFailure(f"this consumer of group {context.group} iterates over its messages and has no listener")

    def resize(self, threads: int) -> None:  # noqa: ARG002 - as many at a time as there are loops
        raise ConfigError("this consumer iterates over its messages and has no threads; run more loops, or fewer")

    async def stop(self, timeout_ms: int) -> None:  # noqa: ARG002 - what is taken and not settled was left that way
        self._stopped = True
        self._waiting.clear()
        self._arrived.set()
