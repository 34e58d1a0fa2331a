"""Messages that came in one answer to a shared pull: confirmed by their numbers, in order (R1, R2, H1).

Done: noted in ``given``, and confirmed with its neighbours when all before it is done. Failed: sent back, as a pulled
message is; the broker has a copy for later, and this one is done. Not settled within the time limit: the broker gives
it to another consumer, and it is not ours any more. ``extend`` moves the limit of one message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ternmq.client.consume.claimed import NOT_STARTED, After, Claimed
from ternmq.client.consume.settle import Settling
from ternmq.message import MessageQueue

log = logging.getLogger(__name__)

#: Asks for more time for a number: ms from now on. Whether the broker agrees.
Extend = Callable[[int, int], Awaitable[bool]]


#: More time for a message that waits for the end of an outage.
KEEP_MS: Final = 60_000


class ShareLot:
    """A ``Lot``: ours until ``deadline`` (of the clock's ``monotonic``)."""

    __slots__ = (
        "_ask_for_time",
        "_done",
        "_extended",
        "_limit_reached",
        "_numbers",
        "_settling",
        "_unsettled",
        "body_bytes",
        "calls",
        "deadline",
        "last_consumed_ms",
        "life",
        "queue",
        "took_s",
    )

    def __init__(
        self,
        queue: MessageQueue,
        numbered: Sequence[tuple[int, Claimed]],
        settling: Settling,
        *,
        life: int,
        deadline: float,
        done: Callable[[int, Sequence[int]], None],
        ask_for_time: Extend,
        limit_reached: Callable[[], str | None],
    ) -> None:
        """``done`` is told life and numbers that need no more work. ``ask_for_time`` asks the broker."""
        self.queue = queue
        self.life = life
        self.deadline = deadline
        self.calls = 0
        self.took_s = 0.0
        self.last_consumed_ms = 0
        self._settling = settling
        self._done = done
        self._ask_for_time = ask_for_time
        self._limit_reached = limit_reached
        # By identity: two messages may be equal.
        self._unsettled = {id(message): message for _, message in numbered}
        self._numbers = {id(message): number for number, message in numbered}
        #: Until when those are ours that have more time.
        self._extended: dict[int, float] = {}
        self.body_bytes = sum([len(message.body) for _, message in numbered])
        for _, message in numbered:
            message.lot, message.is_settled, message.started = self, False, NOT_STARTED

    def __len__(self) -> int:
        """How many messages are not settled."""
        return len(self._unsettled)

    def __repr__(self) -> str:
        return f"<ShareLot {self.queue} {len(self)} not settled>"

    @property
    def is_ours(self) -> bool:
        return self._settling.clock.monotonic() < self.deadline

    @property
    def is_in_hand(self) -> bool:
        """Whether a message of it is not settled and ours."""
        if not self._unsettled:
            return False
        return self.is_ours or any(self._is_ours(message) for message in self._unsettled.values())

    @property
    def last_deadline(self) -> float:
        return max([self.deadline, *self._extended.values()])

    @property
    def unsettled(self) -> list[Claimed]:
        return list(self._unsettled.values())

    def numbers(self) -> list[int]:
        """Of what is not settled."""
        return [self._numbers[number] for number in self._unsettled]

    def done(self, messages: Sequence[Claimed]) -> None:
        self._tell([message for message in messages if self._settled(message)])

    def failed(self, messages: Sequence[Claimed], after: After) -> None:
        ours = [message for message in messages if id(message) in self._unsettled and self._is_ours(message)]
        if ours and not self._settling.is_closed:
            self._settling.start(self._send_back(ours, after))

    def holds(self, message: Claimed) -> bool:
        return self._is_ours(message)

    def keep(self, message: Claimed) -> None:
        left_s = self._extended.get(id(message), self.deadline) - self._settling.clock.monotonic()
        if left_s < KEEP_MS / 2000:
            self._extend(message, KEEP_MS)

    async def bury(self, message: Claimed) -> bool:
        return await self._settling.bury(message)

    def limit_reached(self) -> str | None:
        return self._limit_reached()

    def told(self, message: Claimed, after: After | None) -> None:
        self._settling.told(self, message, after)

    def extend(self, message: Claimed, by_ms: int) -> None:
        message.started = self._settling.started_for(by_ms)
        self._settling.on_loop(lambda: self._extend(message, by_ms))

    # ------------------------------------------------------------------------------------------------------------

    def _settled(self, message: Claimed) -> bool:
        """Whether a message was not settled before, and is ours; it is settled now."""
        if id(message) not in self._unsettled or self._settling.is_closed:
            return False
        is_ours = self._is_ours(message)
        del self._unsettled[id(message)]
        self.body_bytes -= len(message.body)
        return is_ours

    def _tell(self, messages: Sequence[Claimed]) -> None:
        # Also without messages: those that are not ours any more make room.
        self._done(self.life, [self._numbers[id(message)] for message in messages])

    def _is_ours(self, message: Claimed) -> bool:
        return self._settling.clock.monotonic() < self._extended.get(id(message), self.deadline)

    async def _send_back(self, messages: Sequence[Claimed], after: After) -> None:
        returns = self._settling.returns
        assert returns is not None
        kept = []
        for message in messages:
            try:
                is_back = await returns.send_back(message, delay_level=after.delay_level)
            except Exception:
                # Whatever it is: it is not confirmed, so it must be delivered again.
                log.exception("message %s of %s cannot be sent back", message.message_id, self.queue)
                is_back = False
            if is_back:
                self.done([message])
            elif id(message) in self._unsettled:
                # Another object: what the application still says about this one must not count for the next delivery.
                again = message.renewed()
                again.reconsume_times += 1
                self._replace(message, again)
                kept.append(again)
        if kept:
            self._settling.again_soon(self, kept)

    def _replace(self, message: Claimed, again: Claimed) -> None:
        del self._unsettled[id(message)]
        self._unsettled[id(again)] = again
        self._numbers[id(again)] = self._numbers[id(message)]
        if id(message) in self._extended:
            self._extended[id(again)] = self._extended.pop(id(message))

    def _extend(self, message: Claimed, by_ms: int) -> None:
        if id(message) in self._unsettled and self._is_ours(message) and not self._settling.is_closed:
            self._settling.start(self._ask(message, by_ms))

    async def _ask(self, message: Claimed, by_ms: int) -> None:
        asked = self._settling.clock.monotonic()
        is_granted = await self._ask_for_time(self._numbers[id(message)], by_ms)
        if is_granted and id(message) in self._unsettled:
            # From the question on, which is before the broker counts.
            self._extended[id(message)] = asked + by_ms / 1000
