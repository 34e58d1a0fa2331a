"""Messages that were fetched and wait to be asked for (F4).

Sources of a lite pull consumer put here what a pull brought, in chunks of one lot each; ``poll`` takes from the front,
and so does a loop, message by message. What was handed out is *done* when the application asks for more, or says so
(``finish``): until then the queue's progress does not pass it. Chunks of a queue that is paused stay where they are;
those of a queue that went to another member, or was moved to another offset, are skipped.

What lies here is bounded by the limits of the lots (M2).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.settle import Settling
from ternmq.env import Clock
from ternmq.errors import ConfigError, NotRunning, SystemFailure
from ternmq.message import MessageQueue


class Polled:
    """The ``Outlet`` of a lite pull consumer. All methods belong to the loop's thread."""

    def __init__(self, settling: Settling, is_paused: Callable[[MessageQueue], bool], *, clock: Clock) -> None:
        self._settling = settling
        self._taken = settling.taken
        self._is_paused = is_paused
        self._clock = clock
        self._chunks: deque[Sequence[Claimed]] = deque()
        self._handed_out: list[Sequence[Claimed]] = []
        self._changed = asyncio.Event()
        self._is_polled = False
        self._is_closed = False

    def put(self, messages: Sequence[Claimed]) -> None:
        if not self._is_closed:
            self._chunks.append(messages)
            self._changed.set()

    def take_now(self) -> Claimed | None:
        return None  # chunks and offsets belong to the loop's thread

    async def take(self) -> Claimed:
        """The next message; waits for one. Raises ``NotRunning`` when the consumer has stopped."""
        if self._is_closed:
            raise NotRunning("the consumer has stopped; iterate inside its `async with` block")
        (message,) = await self.poll(1, None)
        return message

    async def poll(self, count_max: int, timeout_ms: int | None) -> list[Claimed]:
        """Up to ``count_max`` messages; waits for the first ones, at most ``timeout_ms`` (None: for ever).

        What the last call gave is done. Raises ``ConfigError`` when another call waits, and ``NotRunning`` when the
        consumer ends meanwhile.
        """
        if self._is_polled:
            raise ConfigError(
                "another poll of this consumer is in progress; poll from one task or thread, or create a consumer "
                "for each"
            )
        self.finish()
        messages = self._take(count_max)
        if messages or timeout_ms == 0:
            return messages
        self._is_polled = True
        try:
            async with asyncio.timeout(None if timeout_ms is None else timeout_ms / 1000):
                while not messages:
                    self._changed.clear()
                    await self._changed.wait()
                    if self._is_closed:
                        raise NotRunning("the consumer has stopped; poll inside its `async with` block")
                    messages = self._take(count_max)
        except TimeoutError:
            pass
        finally:
            self._is_polled = False
        return messages

    def _take(self, count_max: int) -> list[Claimed]:
        """What is there now, up to ``count_max`` messages, each queue's in order."""
        taken: list[Claimed] = []
        kept: list[Sequence[Claimed]] = []
        while self._chunks and len(taken) < count_max:
            chunk = self._chunks.popleft()
            lot = chunk[0].lot
            if not lot.is_ours:
                continue
            if self._is_paused(lot.queue):
                kept.append(chunk)
                continue
            room = count_max - len(taken)
            if len(chunk) > room:
                self._chunks.appendleft(chunk[room:])
                chunk = chunk[:room]
            self._handed_out.append(chunk)
            taken += chunk
        self._chunks.extendleft(reversed(kept))
        start_ms = self._clock.now_ms()
        for message in taken:
            message.consume_start_time_ms = start_ms
        if self._taken is not None:
            self._taken.begin(taken)
        return taken

    def finish(self) -> None:
        """All that was handed out is done."""
        handed_out, self._handed_out = self._handed_out, []
        for messages in handed_out:
            if self._taken is not None:
                self._taken.end(messages, is_done=True)
            self._settling.done(messages)

    def look_again(self) -> None:
        """A queue is not paused any more."""
        self._changed.set()

    # --- What the consumer asks (``Outlet``) -----------------------------------------------------------------

    def expire(self, late: Sequence[Claimed]) -> None:
        """Nothing: the application may take any time between two polls."""

    async def call(self, context: ConsumeContext) -> None:
        raise SystemFailure(f"this consumer of group {context.group} polls for messages and has no listener")

    def resize(self, threads: int) -> None:  # noqa: ARG002
        raise ConfigError("this consumer polls for messages and has no threads")

    async def stop(self, timeout_ms: int) -> None:  # noqa: ARG002 - no call runs
        """Give nothing out any more, and end a poll that waits."""
        self._is_closed = True
        self._chunks.clear()
        self._changed.set()
