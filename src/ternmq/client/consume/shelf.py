"""Messages that were fetched and wait to be asked for (F4).

Readers of a lite pull consumer put here what a pull brought, in chunks of one queue each; ``poll`` takes from the
front. What was handed out is *done* when the application asks for more, or says so (``finish``): until then the queue's
progress does not pass it. Chunks of a queue that is paused stay where they are; those of a queue that went to another
member, or was moved to another offset, are skipped.

What lies here is bounded by the limits of the process queues (M2).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from ternmq.client.consume.fetch import QueueReader
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.env import Clock
from ternmq.errors import ConfigError, NotRunning
from ternmq.message import MessageQueue, ReceivedMessage


class _Chunk(NamedTuple):
    reader: QueueReader
    held: ProcessQueue
    messages: Sequence[ReceivedMessage]


class Shelf:
    """All methods belong to the loop's thread."""

    def __init__(self, is_paused: Callable[[MessageQueue], bool], *, clock: Clock) -> None:
        self._is_paused = is_paused
        self._clock = clock
        self._chunks: deque[_Chunk] = deque()
        self._handed_out: list[_Chunk] = []
        self._changed = asyncio.Event()
        self._is_polled = False
        self._is_closed = False

    def put(self, reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Take messages that ``held`` holds."""
        self._chunks.append(_Chunk(reader, held, messages))
        self._changed.set()

    async def poll(self, count_max: int, timeout_ms: int | None) -> list[ReceivedMessage]:
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
        messages = self.take(count_max)
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
                    messages = self.take(count_max)
        except TimeoutError:
            pass
        finally:
            self._is_polled = False
        return messages

    def take(self, count_max: int) -> list[ReceivedMessage]:
        """What is there now, up to ``count_max`` messages, each queue's in order."""
        taken: list[ReceivedMessage] = []
        kept: list[_Chunk] = []
        while self._chunks and len(taken) < count_max:
            chunk = self._chunks.popleft()
            if chunk.held.dropped:
                continue
            if self._is_paused(chunk.reader.queue):
                kept.append(chunk)
                continue
            room = count_max - len(taken)
            if len(chunk.messages) > room:
                self._chunks.appendleft(chunk._replace(messages=chunk.messages[room:]))
                chunk = chunk._replace(messages=chunk.messages[:room])
            self._handed_out.append(chunk)
            taken += chunk.messages
        self._chunks.extendleft(reversed(kept))
        start_ms = self._clock.now_ms()
        for message in taken:
            message.consume_start_time_ms = start_ms
        return taken

    def finish(self) -> None:
        """All that was handed out is done."""
        handed_out, self._handed_out = self._handed_out, []
        for reader, held, messages in handed_out:
            if not held.dropped:
                held.last_consumed_ms = self._clock.now_ms()
                reader.done(held, messages)

    def look_again(self) -> None:
        """A queue is not paused any more."""
        self._changed.set()

    def close(self) -> None:
        """Give nothing out any more, and let go who waits."""
        self._is_closed = True
        self._chunks.clear()
        self._changed.set()
