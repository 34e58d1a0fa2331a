"""What travels from a source to an outlet: a message that knows how to be settled (F1, F9, H1).

A ``Claimed`` message belongs to this consumer until it is settled: ``ack`` (done), ``retry`` (deliver it again later),
or ``extend`` (more time). It only passes these on to its ``Lot``, the messages that are settled in one way because they
were fetched in one way:

=================  =================================  ==================================  ==========================
Lot                done                               failed                              extend
=================  =================================  ==================================  ==========================
``PullLot``        progress of the queue moves on     sent back to the retry topic        its time starts again
``PopLot``         acknowledged by its handle         hidden for longer                   hidden for longer
``ShareLot``       confirmed by its number            sent back to the retry topic        held for longer
=================  =================================  ==================================  ==========================

Outlets see claimed messages and lots, and nothing of sources, queues or handles.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, Self

from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.wire.stored import StoredMessage

#: RocketMQ's default delay levels, from level 1 on. Brokers can have others; then these are an approximation.
LEVELS_MS: Final = tuple(
    1000 * seconds
    for seconds in (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)


#: ``Claimed.started`` of a message that waits.
NOT_STARTED: Final = math.inf


class After(NamedTuple):
    """When a failed message is delivered again: at a delay level, or after some ms if these are given.

    Level 0 leaves it to the broker or to the kind of lot; below 0 the message becomes a dead letter.
    """

    level: int = 0
    ms: int | None = None

    @property
    def is_never(self) -> bool:
        return self.level < 0

    @property
    def delay_level(self) -> int:
        """The level; for ms the first level that is as long, or the longest."""
        if self.ms is None or self.is_never:
            return self.level
        return next((number for number, ms in enumerate(LEVELS_MS, 1) if ms >= self.ms), len(LEVELS_MS))


#: The usual: the more often a message failed, the later it comes again.
LATER: Final = After()
#: After the first retry's delay (10 s), whatever happened before.
FIRST: Final = After(3)
#: It becomes a dead letter.
NEVER: Final = After(-1)


class Claimed(StoredMessage):
    """A received message that the application settles.

    In a loop, a message is done when the next one is asked for. With a ``with`` block, it is done at the end of the
    block, and delivered again later if the block raises::

        async for message in consumer:
            with message:
                await handle(message)

    A listener settles its messages by its result; it can settle one earlier by these methods. They may be called in any
    thread.
    """

    __slots__ = ("is_settled", "lot", "started")

    #: Whether it was acknowledged, returned, or given up because it took too long.
    is_settled: bool
    #: What it was fetched with, and how it is settled.
    lot: Lot
    #: When the application got it, by the clock's ``monotonic``; infinity before.
    started: float

    def ack(self) -> None:
        """It is done. Only the first ``ack`` or ``retry`` of a message counts."""
        if not self.is_settled:
            self.is_settled = True
            self.lot.told(self, None)

    def retry(self, delay_level: int = 0, *, after_ms: int | None = None) -> None:
        """Deliver it again later: after ``after_ms``, or at ``delay_level``. Without both, the delay grows with each
        retry. A level below 0 makes it a dead letter.

        Except in a pop consumer, brokers know only delay levels: ``after_ms`` is rounded up to the next one. Raises
        ``TypeError`` or ``ValueError`` for a value that is not a number.
        """
        # Here, where the application hears of it: what is settled is used later, by a task.
        after = After(index(delay_level), None if after_ms is None else max(0, int(after_ms)))
        if not self.is_settled:
            self.is_settled = True
            self.lot.told(self, after)

    def extend(self, by_ms: int) -> None:
        """Take ``by_ms`` more from now on before the message is delivered again. Failures are logged."""
        by_ms = int(by_ms)
        if not self.is_settled:
            self.lot.extend(self, by_ms)

    def renewed(self) -> Claimed:
        """The same message as another object, to be delivered here again: what the application still says about this
        one must not count for that delivery."""
        copy = Claimed.__new__(Claimed)
        for name in _SLOTS:
            with contextlib.suppress(AttributeError):  # not worked out yet
                setattr(copy, name, object.__getattribute__(self, name))
        return copy

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

    # Hidden from type checkers, for which a class with __getattr__ has every attribute.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # Of a message that was not fetched: a tool sent it, or ``dataclasses.replace`` made it.
            if name in _UNCLAIMED:
                return _UNCLAIMED[name]
            return super().__getattr__(name)


_SLOTS: Final = tuple(name for kind in Claimed.__mro__ for name in getattr(kind, "__slots__", ()))

# help() shows the fields of a message here, too.
Claimed.__doc__ = f"{Claimed.__doc__}\n    {(ReceivedMessage.__doc__ or '').partition('stored.')[2].strip()}\n    "


class Lot(Protocol):
    """Messages that are settled in the same way. All methods belong to the loop's thread, but for ``told`` and
    ``extend``."""

    #: Where they came from, by its name on the wire: a queue, or with queue id -1 a broker.
    queue: MessageQueue
    #: Calls of the application that ended since ``Settling.flush``, and their time.
    calls: int
    took_s: float
    #: When the application last settled one; 0: never.
    last_consumed_ms: int

    @property
    def is_ours(self) -> bool:
        """Whether what happens to the messages here still counts; if not, another consumer has them."""
        ...

    def done(self, messages: Sequence[Claimed]) -> None:
        """They need no more work."""
        ...

    def failed(self, messages: Sequence[Claimed], after: After) -> None:
        """They must be delivered again."""
        ...

    def holds(self, message: Claimed) -> bool:
        """The same for one message, which may have been extended. Any thread."""
        ...

    def keep(self, message: Claimed) -> None:
        """See to it that a message which waits stays ours."""
        ...

    async def bury(self, message: Claimed) -> bool:
        """Make a message a dead letter; returns whether it is one. The caller says that it is done."""
        ...

    def limit_reached(self) -> str | None:
        """The name of the limit at which its source fetches no more now."""
        ...

    def told(self, message: Claimed, after: After | None) -> None:
        """The application has settled a message: it is done, or must be delivered again ``after``. Any thread."""
        ...

    def extend(self, message: Claimed, by_ms: int) -> None:
        """The application needs this much time more. Any thread."""
        ...


class _NoLot:
    """The lot of messages that were not fetched: nothing becomes of them."""

    queue = MessageQueue("", "", -1)
    calls = last_consumed_ms = 0
    took_s = 0.0
    is_ours = True

    def done(self, messages: Sequence[Claimed]) -> None: ...

    def failed(self, messages: Sequence[Claimed], after: After) -> None: ...

    def holds(self, message: Claimed) -> bool:  # noqa: ARG002
        return True

    def keep(self, message: Claimed) -> None: ...

    async def bury(self, message: Claimed) -> bool:  # noqa: ARG002
        return False

    def limit_reached(self) -> str | None:
        return None

    def told(self, message: Claimed, after: After | None) -> None: ...

    def extend(self, message: Claimed, by_ms: int) -> None: ...


_UNCLAIMED: Final[dict[str, object]] = {"is_settled": False, "lot": _NoLot(), "started": NOT_STARTED}
