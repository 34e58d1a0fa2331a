"""Many deadlines, one timer (F9).

What is due at a time of the wall clock stands in a heap; a single timer of the loop looks at its head, at the latest
every second, as that clock may jump. Things that do not matter any more stay in the heap until they are due or until
they are the larger part of it, and are then left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

T = TypeVar("T")

#: The clock may have jumped: look at least so often.
LOOK_S: Final = 1.0
#: Things done in one turn of the loop; others wait for the next, and the sends between do not wait for all.
TURN_MAX: Final = 64
#: Below this size the heap is not searched for what does not matter.
_SWEEP_MIN: Final = 1_000


class CancelHandle(Protocol):
    def cancel(self) -> None: ...


#: The loop's: seconds, and what to call then.
CallLater = Callable[[float, Callable[[], None]], CancelHandle]


class Deadlines(Generic[T]):
    """``on_due`` is called with each thing in the order of their times, never before its own. Belongs to the loop."""

    def __init__(
        self,
        *,
        now_ms: Callable[[], int],
        call_later: CallLater,
        on_due: Callable[[T], None],
        is_over: Callable[[T], bool],
    ) -> None:
        self._now_ms = now_ms
        self._call_later = call_later
        self._on_due = on_due
        self._is_over = is_over
        self._heap: list[tuple[int, int, T]] = []
        self._number = 0
        self._timer: CancelHandle | None = None
        self._timer_ms = 0
        self._sweep_at = _SWEEP_MIN

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when_ms: int, thing: T) -> None:
        self._number += 1
        heap = self._heap
        if len(heap) >= self._sweep_at:
            self._sweep()
            heap = self._heap
        heapq.heappush(heap, (when_ms, self._number, thing))
        if self._timer is None or when_ms < self._timer_ms:
            self._set_timer()

    def run(self) -> bool:
        """Do what is due, up to a turn's work; False if nothing was. The timer calls it."""
        now_ms = self._now_ms()
        done = 0
        while done < TURN_MAX and self._heap and self._heap[0][0] <= now_ms:
            thing = heapq.heappop(self._heap)[2]
            if not self._is_over(thing):
                self._on_due(thing)
            done += 1
        if self._heap and self._timer is None:
            self._set_timer()
        return done > 0

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._heap.clear()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        when_ms = self._timer_ms = self._heap[0][0]
        # One millisecond more: the loop's clock and the wall's do not tick together, and early is worse than late.
        delay_s = min(max((when_ms - self._now_ms() + 1) / 1000, 0.0), LOOK_S)
        self._timer = self._call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.run()

    def _sweep(self) -> None:
        self._heap = [entry for entry in self._heap if not self._is_over(entry[2])]
        heapq.heapify(self._heap)
        # Half of what is kept must be over before it is worth the work again.
        self._sweep_at = max(2 * len(self._heap), _SWEEP_MIN)
