"""What becomes of messages after the application has seen them (F1, F5, H1).

Done: the process queue forgets them, and progress moves on. Failed: they are sent back, to come again through the
group's retry topic, and are done here once a broker has them. If none takes them, the application gets them again
after 5 s, with ``reconsume_times`` one higher. In broadcasting there is nobody to send a message back for, so a failure
is logged and that is all. A queue that has gone to another member meanwhile is the other's business.

A message that cannot be read takes the same way, without being seen by the application.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Protocol

from ternmq.client.consume.fetch import QueueReader
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.send_back import DEAD_LETTER, Returns
from ternmq.client.consume.stats import ConsumeStats
from ternmq.message import ReceivedMessage
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Until messages that no broker took back are tried again here.
LOCAL_RETRY_S: Final = 5.0

Put = Callable[[QueueReader, ProcessQueue, Sequence[ReceivedMessage]], None]


class Outlet(Protocol):
    """Where fetched messages go: to a listener, or to whoever iterates."""

    def put(self, reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Take messages that ``held`` holds."""
        ...

    def expire(self, started_before: float) -> None:
        """Send back what the application began on before this time (of the clock's ``monotonic``) and still has."""
        ...

    async def call(self, context: ConsumeContext) -> None:
        """Call the listener with messages that nobody fetched; how it went is in ``context``. Nothing is settled.

        Raises ``SystemFailure`` where there is no listener.
        """
        ...

    def resize(self, threads: int) -> None:
        """Make this many calls at a time from now on; those that run are not cut short."""
        ...

    async def stop(self, timeout_ms: int) -> None:
        """Begin nothing more; wait for what runs, at most this long."""
        ...


class Settling:
    """Settles messages of one consumer. All methods belong to the loop's thread."""

    def __init__(self, returns: Returns | None, stats: ConsumeStats, tasks: Tasks) -> None:
        #: Outlets count there what they have seen.
        self.stats = stats
        #: None in broadcasting.
        self._returns = returns
        self._tasks = tasks
        self._returning: set[asyncio.Task[None]] = set()
        self._closed = False

    def settle(
        self,
        reader: QueueReader,
        held: ProcessQueue,
        *,
        done: Sequence[ReceivedMessage] = (),
        failed: Sequence[ReceivedMessage] = (),
        delay_level: int = 0,
        again: Put,
    ) -> None:
        """``done`` and ``failed`` say how it went; ``again`` takes what must be tried here once more."""
        if held.dropped or self._closed:
            return
        if failed and self._returns is None:
            for message in failed:
                log.warning("message %s failed and is skipped: broadcasting has no retries", message.message_id)
            done, failed = [*done, *failed], ()
        if done:
            reader.done(held, done)
        if failed:
            self._return(self._send_back(reader, held, failed, delay_level, again))

    def settle_unreadable(
        self, reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage], *, again: Put
    ) -> None:
        """Messages whose bodies cannot be read (``body_error``): they failed, though no listener has seen them."""
        first = messages[0]
        log.warning(
            "%d messages of %s cannot be decoded and count as failed; the first is %s at queue offset %d: %s",
            len(messages),
            reader.queue,
            first.message_id,
            first.queue_offset,
            first.body_error,
        )
        self.stats.consumed(reader.queue.topic, done=0, failed=len(messages), took_s=0.0)
        self.settle(reader, held, failed=messages, again=again)

    def _return(self, returning: Coroutine[Any, Any, None]) -> None:
        """Have something brought back, which ``idle`` waits for."""
        task = self._tasks.create_task(returning)
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def bury(self, message: ReceivedMessage) -> bool:
        """Have a message become a dead letter; whether it is one now. The caller says that it is done."""
        if self._returns is not None:
            return await self._returns.send_back(message, delay_level=DEAD_LETTER)
        log.warning("message %s failed and is dropped: broadcasting has no dead letters", message.message_id)
        return True

    async def idle(self, timeout_ms: int) -> None:
        """Wait, at most this long, until nothing is on its way back."""
        if self._returning:
            await asyncio.wait(self._returning, timeout=timeout_ms / 1000)

    def close(self) -> None:
        """The progress was stored for the last time: what listeners say from now on, nobody can hear."""
        self._closed = True

    async def _send_back(
        self,
        reader: QueueReader,
        held: ProcessQueue,
        messages: Sequence[ReceivedMessage],
        delay_level: int,
        again: Put,
    ) -> None:
        assert self._returns is not None
        kept = []
        for message in messages:
            if await self._returns.send_back(message, delay_level=delay_level):
                reader.done(held, [message])
            else:
                message.reconsume_times += 1
                kept.append(message)
        if kept:
            self._tasks.create_task(self._try_again(reader, held, kept, again))

    @staticmethod
    async def _try_again(
        reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage], again: Put
    ) -> None:
        await asyncio.sleep(LOCAL_RETRY_S)
        if not held.dropped:
            again(reader, held, messages)
