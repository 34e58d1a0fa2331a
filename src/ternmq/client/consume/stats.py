"""How fast a consumer is, topic by topic, for tools (F10).

Counts are kept in slots of 10 s for an hour, so nothing is computed before a tool asks. Rates are those of
the last minute, as in RocketMQ; only failures are counted for the whole hour.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from ternmq.env import Clock
from ternmq.wire.bodies.clients import ConsumeStatus

SLOT_S: Final = 10
SLOTS_A_MINUTE: Final = 6
SLOTS_AN_HOUR: Final = 360


class _Slot:
    __slots__ = ("call_s", "calls", "done", "failed", "number", "pull_s", "pulled", "pulls")

    def __init__(self, number: int) -> None:
        self.number = number
        self.pulls = 0
        self.pulled = 0
        self.pull_s = 0.0
        self.calls = 0
        self.call_s = 0.0
        self.done = 0
        self.failed = 0


class ConsumerCounts:
    """Counts of one consumer. All methods belong to the loop's thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = clock.monotonic()
        #: By topic, on the wire; the newest slot last.
        self._slots: dict[str, deque[_Slot]] = {}

    def pulled(self, topic: str, count: int, *, took_s: float) -> None:
        """A pull has brought messages."""
        slot = self._slot(topic)
        slot.pulls += 1
        slot.pulled += count
        slot.pull_s += took_s

    def consumed(self, topic: str, *, done: int, failed: int, took_s: float, calls: int = 1) -> None:
        """Calls of the application have ended, which took this long together."""
        slot = self._slot(topic)
        slot.calls += calls
        slot.call_s += took_s
        slot.done += done
        slot.failed += failed

    def by_topic(self) -> dict[str, ConsumeStatus]:
        return {topic: self._status(slots) for topic, slots in sorted(self._slots.items())}

    def _slot(self, topic: str) -> _Slot:
        number = int(self._clock.monotonic()) // SLOT_S
        slots = self._slots.get(topic)
        if slots is None:
            slots = self._slots[topic] = deque(maxlen=SLOTS_AN_HOUR)
        if not slots or slots[-1].number != number:
            slots.append(_Slot(number))
        return slots[-1]

    def _status(self, slots: deque[_Slot]) -> ConsumeStatus:
        now = self._clock.monotonic()
        number = int(now) // SLOT_S
        minute = [slot for slot in slots if slot.number > number - SLOTS_A_MINUTE]
        # The present slot is not over yet, and a young consumer has not seen a minute.
        seconds = max(1.0, min((SLOTS_A_MINUTE - 1) * SLOT_S + now % SLOT_S, now - self._began))
        pulls = sum(slot.pulls for slot in minute)
        calls = sum(slot.calls for slot in minute)
        return ConsumeStatus(
            pull_rt=1000 * sum(slot.pull_s for slot in minute) / max(1, pulls),
            pull_tps=sum(slot.pulled for slot in minute) / seconds,
            consume_rt=1000 * sum(slot.call_s for slot in minute) / max(1, calls),
            consume_ok_tps=sum(slot.done for slot in minute) / seconds,
            consume_failed_tps=sum(slot.failed for slot in minute) / seconds,
            consume_failed_msgs=sum(slot.failed for slot in slots if slot.number > number - SLOTS_AN_HOUR),
        )
