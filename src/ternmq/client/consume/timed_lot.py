"""A lot whose messages are ours for a while: popped ones, and shared ones (F9, R2).

All messages of an answer have one deadline, and some have got more time since. What is not settled then is given to
another consumer, and what happens to it here does not count any more. How messages are confirmed, sent back and
extended is up to ``PopLot`` and ``ShareLot``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from ternmq.client.consume.claimed import NOT_STARTED, After, Claimed
from ternmq.client.consume.settle import Settling
from ternmq.message import MessageQueue


class TimedLot(ABC):
    """A ``Lot``: the messages of one answer, which are ours until ``deadline`` (of the clock's ``monotonic``)."""

    __slots__ = (
        "_limit_reached",
        "_settling",
        "_unsettled",
        "_until",
        "body_bytes",
        "calls",
        "deadline",
        "last_consumed_ms",
        "queue",
        "took_s",
    )

    def __init__(
        self,
        queue: MessageQueue,
        messages: Sequence[Claimed],
        settling: Settling,
        *,
        deadline: float,
        limit_reached: Callable[[], str | None],
    ) -> None:
        """``queue`` names the topic as on the wire."""
        self.queue = queue
        self.deadline = deadline
        self.calls = 0
        self.took_s = 0.0
        self.last_consumed_ms = 0
        self._settling = settling
        self._limit_reached = limit_reached
        #: By identity: messages of several queues may have one offset.
        self._unsettled = {id(message): message for message in messages}
        #: Until when those are ours that have more time.
        self._until: dict[int, float] = {}
        self.body_bytes = sum([len(message.body) for message in messages])
        for message in messages:
            message.lot, message.is_settled, message.started = self, False, NOT_STARTED

    def __len__(self) -> int:
        """How many messages are not settled."""
        return len(self._unsettled)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.queue} {len(self)} not settled>"

    @property
    def is_ours(self) -> bool:
        return self._settling.clock.monotonic() < self.deadline

    @property
    def is_in_hand(self) -> bool:
        """Whether a message of it is not settled and ours."""
        if not self._unsettled:
            return False
        return self.is_ours or any(map(self.holds, self._unsettled.values()))

    @property
    def last_deadline(self) -> float:
        """When the last message of it stops being ours, by the clock's ``monotonic``."""
        return max([self.deadline, *self._until.values()])

    @property
    def unsettled(self) -> list[Claimed]:
        return list(self._unsettled.values())

    @property
    def waiting(self) -> list[Claimed]:
        """What the application has not got yet. The outlet keeps it, also when it is not ours any more."""
        return [one for one in self._unsettled.values() if one.started == NOT_STARTED and not one.is_settled]

    @abstractmethod
    def done(self, messages: Sequence[Claimed]) -> None: ...

    @abstractmethod
    def failed(self, messages: Sequence[Claimed], after: After) -> None: ...

    @abstractmethod
    def keep(self, message: Claimed) -> None: ...

    @abstractmethod
    def _ask_for_time(self, message: Claimed, by_ms: int) -> None:
        """Have a message, which is not settled and ours, stay ours for this long."""

    def holds(self, message: Claimed) -> bool:
        return self._left_s(message) > 0

    async def bury(self, message: Claimed) -> bool:
        return await self._settling.bury(message)

    def limit_reached(self) -> str | None:
        return self._limit_reached()

    def told(self, message: Claimed, after: After | None) -> None:
        self._settling.told(self, message, after)

    def extend(self, message: Claimed, by_ms: int) -> None:
        message.started = self._settling.started_for(by_ms)
        self._settling.on_loop(lambda: self._extend(message, by_ms))

    def _extend(self, message: Claimed, by_ms: int) -> None:
        if id(message) in self._unsettled and self.holds(message) and not self._settling.is_closed:
            self._ask_for_time(message, by_ms)

    def _left_s(self, message: Claimed) -> float:
        """How long a message is still ours."""
        return self._until.get(id(message), self.deadline) - self._settling.clock.monotonic()

    def _settled(self, messages: Sequence[Claimed]) -> list[Claimed]:
        """Those of the messages that were not settled before and are still ours; all of them are settled now."""
        settled = [message for message in messages if self._unsettled.pop(id(message), None) is not None]
        self.body_bytes -= sum([len(message.body) for message in settled])
        if self._settling.is_closed:
            return []
        return settled if self.is_ours else [message for message in settled if self.holds(message)]
