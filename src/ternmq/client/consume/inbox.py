"""Messages for ``async for``: the application takes them one by one instead of being called (F1).

A ``Delivery`` is a received message that knows how to be settled. Whoever iterates need not care: asking for the next
message says that the last one is done. What is taken and never settled, because the loop was left or the program died,
is delivered again.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from operator import attrgetter
from types import TracebackType
from typing import Final, NamedTuple, Self

from ternmq.client.consume.fetch import QueueReader
from ternmq.client.consume.listener import ConsumeContext
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.send_back import FIRST_LEVEL
from ternmq.client.consume.settle import Settling
from ternmq.env import Clock
from ternmq.errors import ConfigError, NotRunning, SystemFailure
from ternmq.message import ReceivedMessage

log = logging.getLogger(__name__)

#: All fields of a message at once.
_values: Final = attrgetter(*(field.name for field in fields(ReceivedMessage)))

#: Told once whether a message is done, and at which delay level it comes back if not.
Settle = Callable[["Delivery", bool, int], None]


@dataclass(slots=True)
class Delivery(ReceivedMessage):
    """A message that waits for the application's word. Used as a ``with`` block, it is done when the block ends, and
    comes back later when the block raises::

        async for message in consumer.messages():
            with message:
                await handle(message)
    """

    #: Told the first word on this message; None once it was.
    on_settled: Settle | None = field(default=None, repr=False, compare=False)

    @property
    def is_settled(self) -> bool:
        return self.on_settled is None

    def ack(self) -> None:
        """It is done. A second word on one message is ignored."""
        self._say(True, 0)

    def retry(self, delay_level: int = 0) -> None:
        """It comes again later: at ``delay_level``, 0 for the broker's choice; below 0 it becomes a dead letter."""
        self._say(False, delay_level)

    def _say(self, is_done: bool, delay_level: int) -> None:
        settle, self.on_settled = self.on_settled, None
        if settle is not None:
            settle(self, is_done, delay_level)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.ack()
        elif issubclass(kind, Exception):
            self.retry()
        # Else the program ends or is cancelled: the message stays undone and is delivered again.


class _Taken(NamedTuple):
    delivery: Delivery
    reader: QueueReader
    held: ProcessQueue
    message: ReceivedMessage
    at: float


class Inbox:
    """The ``Outlet`` of a consumer that is iterated over. All methods belong to the loop's thread."""

    def __init__(self, settling: Settling, *, clock: Clock) -> None:
        self._settling = settling
        self._clock = clock
        self._waiting: deque[tuple[QueueReader, ProcessQueue, ReceivedMessage]] = deque()
        #: Not settled yet, by the identity of the delivery: with where it came from, and when it was taken.
        self._taken: dict[int, _Taken] = {}
        self._arrived = asyncio.Event()
        self._stopped = False

    def put(self, reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        if not self._stopped:
            self._waiting.extend((reader, held, message) for message in messages)
            self._arrived.set()

    async def take(self) -> Delivery:
        """The next message; waits for one. Raises ``NotRunning`` when the consumer has stopped."""
        while True:
            while self._waiting:
                reader, held, message = self._waiting.popleft()
                if held.dropped:
                    continue
                delivery = Delivery(*_values(message))
                delivery.on_settled = self._settle
                delivery.consume_start_time_ms = self._clock.now_ms()
                self._taken[id(delivery)] = _Taken(delivery, reader, held, message, self._clock.monotonic())
                return delivery
            if self._stopped:
                raise NotRunning("the consumer has stopped; iterate inside its `async with` block")
            self._arrived.clear()
            await self._arrived.wait()

    def _settle(self, delivery: Delivery, is_done: bool, delay_level: int) -> None:
        _, reader, held, message, taken_at = self._taken.pop(id(delivery))
        held.last_consumed_ms = self._clock.now_ms()
        took_s = self._clock.monotonic() - taken_at
        self._settling.stats.consumed(reader.queue.topic, done=is_done, failed=not is_done, took_s=took_s)
        if is_done:
            self._settling.settle(reader, held, done=[message], again=self.put)
        else:
            self._settling.settle(reader, held, failed=[message], delay_level=delay_level, again=self.put)

    def expire(self, started_before: float) -> None:
        for delivery in [taken.delivery for taken in self._taken.values() if taken.at < started_before]:
            log.warning("message %s was not acknowledged in time; it is sent back", delivery.message_id)
            delivery.retry(FIRST_LEVEL)

    async def call(self, context: ConsumeContext) -> None:
        raise SystemFailure(f"this consumer of group {context.group} iterates over its messages and has no listener")

    def resize(self, threads: int) -> None:  # noqa: ARG002 - as many at a time as there are loops
        raise ConfigError("this consumer iterates over its messages and has no threads; run more loops, or fewer")

    async def stop(self, timeout_ms: int) -> None:  # noqa: ARG002 - what is taken and not settled was left that way
        self._stopped = True
        self._waiting.clear()
        self._arrived.set()


class Messages:
    """``async for message in consumer.messages()``; several may take from one consumer at the same time."""

    def __init__(self, inbox: Inbox) -> None:
        self.inbox = inbox
        self._last: Delivery | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        if self._last is not None:
            self._last.ack()
            self._last = None
        try:
            self._last = await self.inbox.take()
        except NotRunning:
            raise StopAsyncIteration from None
        return self._last
