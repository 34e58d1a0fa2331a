"""Messages that came in one answer to a shared pull: confirmed by their numbers, in order (R1, R2, H1).

Done: noted in ``given``, and confirmed with its neighbours when all before it is done. Failed: sent back, as a pulled
message is; the broker has a copy for later, and this one is done. Not settled within the time limit: the broker gives
it to another consumer, and it is not ours any more. ``extend`` moves the limit of one message.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from ternmq.client.consume.claimed import After, Claimed
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.timed_lot import TimedLot
from ternmq.message import MessageQueue

log = logging.getLogger(__name__)

#: Asks for more time for a number: ms from now on. Whether the broker agrees.
Extend = Callable[[int, int], Awaitable[bool]]


#: More time for a message that waits for the end of an outage.
KEEP_MS: Final = 60_000


class ShareLot(TimedLot):
    """Of one answer to a shared pull, or of one line of it in an ordered group."""

    __slots__ = ("_done", "_extension", "_numbers", "life")

    def __init__(
        self,
        queue: MessageQueue,
        numbered: Sequence[tuple[int, Claimed]],
        settling: Settling,
        *,
        life: int,
        deadline: float,
        done: Callable[[int, Sequence[int]], None],
        extension: Extend,
        limit_reached: Callable[[], str | None],
    ) -> None:
        """``done`` is told life and numbers that need no more work. ``extension`` asks the broker for more time."""
        messages = [message for _, message in numbered]
        super().__init__(queue, messages, settling, deadline=deadline, limit_reached=limit_reached)
        self.life = life
        self._done = done
        self._extension = extension
        self._numbers = {id(message): number for number, message in numbered}

    def numbers(self) -> list[int]:
        """Of what is not settled."""
        return [self._numbers[number] for number in self._unsettled]

    def done(self, messages: Sequence[Claimed]) -> None:
        # Also without messages: those that are not ours any more make room.
        self._done(self.life, [self._numbers[id(message)] for message in self._settled(messages)])

    def failed(self, messages: Sequence[Claimed], after: After) -> None:
        ours = [message for message in messages if id(message) in self._unsettled and self.holds(message)]
        if ours and not self._settling.is_closed:
            self._settling.start(self._send_back(ours, after))

    def keep(self, message: Claimed) -> None:
        if self._left_s(message) < KEEP_MS / 2000:
            self._extend(message, KEEP_MS)

    # ------------------------------------------------------------------------------------------------------------

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
        if id(message) in self._until:
            self._until[id(again)] = self._until.pop(id(message))

    def _ask_for_time(self, message: Claimed, by_ms: int) -> None:
        self._settling.start(self._ask(message, by_ms))

    async def _ask(self, message: Claimed, by_ms: int) -> None:
        asked = self._settling.clock.monotonic()
        is_granted = await self._extension(self._numbers[id(message)], by_ms)
        if is_granted and id(message) in self._unsettled:
            # From the question on, which is before the broker counts.
            self._until[id(message)] = asked + by_ms / 1000
