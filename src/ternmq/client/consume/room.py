"""How much a source that is given messages, not queues, may have in hand (F9, M2, R1).

What was fetched and is not settled counts as long as it is ours: a lot whose time is over makes room, too. But for what
still waits for the application then: it is in memory, and more of it would be fetched each time. All of it would also
come back again and again, and become a dead letter that the application has never seen.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.source import Fetching
from ternmq.client.consume.timed_lot import TimedLot
from ternmq.message import MessageQueue

log = logging.getLogger(__name__)

#: A source that waits for room says so often that its consumer lives.
BEAT_S: Final = 10.0
#: How often is looked whether messages that are not ours any more still wait: who passes over them does not say so.
LATE_S: Final = 1.0

LotT = TypeVar("LotT", bound=TimedLot)


class Room(Generic[LotT]):
    """Of one source. All methods belong to the loop's thread.

    ``verb`` is for the log. ``beat`` is called now and then while the source waits, ``gone`` with a lot that is not in
    hand any more.
    """

    def __init__(
        self,
        fetching: Fetching,
        queue: MessageQueue,
        *,
        verb: str,
        count_max: int,
        bytes_max: int,
        beat: Callable[[], None] | None = None,
        gone: Callable[[LotT], None] | None = None,
    ) -> None:
        self._fetching = fetching
        self._queue = queue
        self._verb = verb
        self._count_max = count_max
        self._bytes_max = bytes_max
        self._beat = beat
        self._gone = gone
        self._clock = fetching.instance.env.clock
        self._free = asyncio.Event()
        self._lots: list[LotT] = []
        #: Not in hand any more, with messages that the application has not got yet.
        self._late: list[LotT] = []

    def add(self, lot: LotT) -> None:
        self._lots.append(lot)

    def lots(self) -> list[LotT]:
        """What is not settled yet, as long as it is ours."""
        kept = [lot for lot in self._lots if lot.is_in_hand]
        if len(kept) < len(self._lots):
            for lot in self._lots:
                if not lot.is_in_hand:
                    if self._gone is not None:
                        self._gone(lot)
                    self._late.append(lot)
        self._lots = kept
        return kept

    def in_hand(self) -> list[Claimed]:
        return [message for lot in self.lots() for message in lot.unsettled]

    def count(self) -> int:
        return sum(map(len, self.lots()))

    def left_bytes(self) -> int:
        """Bytes of bodies that may come."""
        late = [len(message.body) for lot in self._late for message in lot.waiting]
        return self._bytes_max - sum([lot.body_bytes for lot in self._lots]) - sum(late)

    def freed(self) -> None:
        """Something was settled."""
        self._free.set()

    def limit_reached(self) -> str | None:
        """The name of the limit at which nothing more is fetched."""
        count = self.count()
        self._late = [lot for lot in self._late if lot.waiting]
        if count + sum([len(lot.waiting) for lot in self._late]) >= self._count_max:
            return "unsettled_max"
        return "unsettled_bytes_max" if self.left_bytes() <= 0 else None

    async def wait(self) -> None:
        """Wait until there is room."""
        self._fetching.settling.flush()
        while limit := self.limit_reached():
            if self._fetching.may_log(limit):
                log.warning(
                    "group %s has reached its limit %s and stops %s %s until messages are acknowledged: %d messages "
                    "with %d bytes are in progress",
                    self._fetching.group,
                    limit,
                    self._verb,
                    self._queue,
                    sum(map(len, [*self._lots, *self._late])),
                    sum([lot.body_bytes for lot in [*self._lots, *self._late]]),
                )
            self._free.clear()
            # What takes too long makes room, too.
            wait_s = min([lot.last_deadline for lot in self._lots], default=math.inf) - self._clock.monotonic()
            if self._late:
                wait_s = min(wait_s, LATE_S)
            if self._beat is not None:
                wait_s = min(wait_s, BEAT_S)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, wait_s)):
                    await self._free.wait()
            if self._beat is not None and not self._free.is_set():
                self._beat()
