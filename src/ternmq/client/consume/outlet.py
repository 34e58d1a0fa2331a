"""Where fetched messages go: to a listener (``concurrent``, ``orderly``), a loop (``looped``) or polls (``polled``).

An outlet sees claimed messages only. It hands them to the application, and tells ``Settling`` or their lot what became
of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, Self

from ternmq.client.consume.claimed import FIRST, Claimed, Lot
from ternmq.client.consume.listener import ConsumeContext
from ternmq.errors import NotRunning


class Outlet(Protocol):
    """All methods belong to the loop's thread."""

    def put(self, messages: Sequence[Claimed]) -> None:
        """Take messages of one lot."""
        ...

    def expire(self, late: Sequence[Claimed]) -> None:
        """These the application has had for too long."""
        ...

    async def call(self, context: ConsumeContext) -> None:
        """Call the listener with messages that were not fetched; the result is in ``context``. Nothing is settled.

        Raises ``SystemFailure`` where there is no listener.
        """
        ...

    def resize(self, threads: int) -> None:
        """Make this many calls at a time from now on; running calls are not affected."""
        ...

    async def stop(self, timeout_ms: int) -> None:
        """Begin nothing more; wait for running calls, at most this long."""
        ...


class Takeable(Protocol):
    """An outlet that gives its messages to a loop."""

    async def take(self) -> Claimed:
        """The next message; waits for one. Raises ``NotRunning`` when the consumer has stopped."""
        ...

    def take_now(self) -> Claimed | None:
        """The next message, if one is there that any thread may take."""
        ...


class Messages:
    """The iterator of ``async for message in consumer``; each message is done when the next one is asked for."""

    def __init__(self, outlet: Takeable) -> None:
        self._outlet = outlet
        self.last: Claimed | None = None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Claimed:
        message = self.next_now()
        if message is None:
            self.last = message = await self.wait()
        return message

    async def wait(self) -> Claimed:
        """The next message, when it comes. It is the ``last`` one when the application has it: a thread that is
        interrupted meanwhile has not, and must not say that it is done by asking for the next one."""
        try:
            return await self._outlet.take()
        except NotRunning:
            raise StopAsyncIteration from None

    def next_now(self) -> Claimed | None:
        """As ``__anext__``, if a message is there. May be called in any thread, instead of on the loop."""
        if self.last is not None:
            self.last.ack()
        self.last = message = self._outlet.take_now()
        return message


#: A listener that never waits would keep the event loop for itself; after this long, other tasks get their turn.
TURN_S: Final = 0.005


def send_back_late(late: Sequence[Claimed]) -> None:
    """Have messages that the application has had for too long delivered again, those of a lot together."""
    lots: dict[Lot, list[Claimed]] = {}
    for message in late:
        message.is_settled = True
        lots.setdefault(message.lot, []).append(message)
    for lot, messages in lots.items():
        lot.failed(messages, FIRST)
