"""When a record is *safe*: on all the disks that were asked for (C6).

Each disk is a *level*: this broker's own, a slave's, later a majority. A level has a watermark, a time limit and the
code that a sender gets when the level is late. A record is safe when the smallest of all watermarks has passed it
(``Safety.safe``). Delays and pop wait for that before they note how far they are.

A sender waits for the levels that are *awaited*: under ASYNC_FLUSH it does not wait for the disk, although the record
is not safe without it. It waits once, for the smallest of these. Limits differ (disk 5 s, slave 3 s), so the order of
arrival is not that of the deadlines: there is one queue of waiting senders for each limit, and each queue is in order.
When the limit of a level is over and the level does not have the record, the sender gets the code of that level; of
several late levels the first one counts. The record is stored in each case.

A level can refuse before the write (too few replicas are in sync) or answer before the wait (there is no slave that
could get the record in time). Levels come and go at run time, with slaves and roles.

Senders of one *run* (``net.runs``) wait together, for the end of its last record, and are answered together. When a
level is late, fails or goes back, all runs that wait are taken apart: from then on each sender is on its own and gets
the code that it would have got alone.

Nothing here has a timer: the owner asks for ``deadline`` and calls ``expire``. All calls belong to the store's thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Protocol, TypeAlias

from ternmq.errors import BrokerRefused, TernError
from ternmq.store.durable.watermark import Watermark, wait_until
from ternmq.wire.codes import ResponseCode

#: Gets SUCCESS, the code of a level that is late, or the code of an error if the record was taken back.
Answer: TypeAlias = Callable[[int], object]


class WaitingRun(Protocol):
    """The senders of a run. They are answered once: all together, or one by one."""

    @property
    def ends(self) -> Sequence[int]:
        """Where the record of each ends, in order; at least one."""
        ...

    def all_safe(self) -> None:
        """All records are safe."""
        ...

    def answer(self, number: int, code: int, /) -> None:
        """One of the senders gets this code, as ``Answer``."""
        ...


#: Where no level has to be waited for.
_EVERYWHERE = 1 << 63


class Lowest:
    """The smallest of several watermarks; callers wait for it as for one watermark.

    It looks at the others only while a caller waits, and then at one of them at a time.
    """

    __slots__ = ("_callers", "_marks", "_ticket", "_watched")

    def __init__(self, marks: Iterable[Watermark] = ()) -> None:
        self._marks = list(marks)
        #: The callers that wait. Its value follows ours when it is needed.
        self._callers = Watermark(self.value)
        #: The watermark that holds the others up, while it is watched.
        self._watched: Watermark | None = None
        self._ticket = 0

    @property
    def value(self) -> int:
        return min([mark.value for mark in self._marks], default=_EVERYWHERE)

    @property
    def waiting(self) -> int:
        """How many callers wait."""
        return self._callers.waiting

    def call_when(
        self, offset: int, callback: Callable[[], object], failed: Callable[[TernError], object] | None = None
    ) -> int:
        """As ``Watermark.call_when``."""
        self._callers.advance(self.value)
        ticket = self._callers.call_when(offset, callback, failed)
        self._watch()
        return ticket

    def forget(self, ticket: int) -> None:
        """As ``Watermark.forget``."""
        self._callers.forget(ticket)

    async def reached(self, offset: int, timeout_ms: float) -> bool:
        """As ``Watermark.reached``."""
        return await wait_until(self, offset, timeout_ms)

    def retreat(self, to: int, error: TernError) -> None:
        """The watermarks went back to ``to``: callers that wait for more are told ``error``, and are forgotten."""
        self._callers.retreat(to, error)
        self._watch()

    def change(self, marks: Iterable[Watermark]) -> None:
        """Be the smallest of these from now on; callers that wait stay."""
        if self._watched is not None:
            self._watched.forget(self._ticket)
            self._watched = None
        self._marks = list(marks)
        # A new watermark may lag behind.
        self._callers.value = min(self._callers.value, self.value)
        self._moved()

    def _watch(self) -> None:
        if self._watched is None and self._callers.waiting and self._marks:
            self._watched = min(self._marks, key=lambda mark: mark.value)
            self._ticket = self._watched.call_when(self._watched.value + 1, self._moved, self._lost)

    def _moved(self) -> None:
        self._watched = None
        self._callers.advance(self.value)
        self._watch()

    def _lost(self, _error: TernError) -> None:
        """The watermark that we watched went back, and has forgotten us."""
        self._watched = None
        self._watch()


@dataclass(slots=True, frozen=True, eq=False)
class Level:
    """One of the disks that a record has to reach."""

    watermark: Watermark
    #: How long a sender waits for it, and what it is answered then.
    timeout_ms: int
    late_code: int
    #: Whether senders wait for it at all; and whether also those do that asked not to wait (``WAIT=false``).
    is_awaited: bool = True
    is_required: bool = False
    #: Raises ``TernError`` if nothing must be written now.
    check_write: Callable[[], None] | None = None
    #: How many messages can be written one after the other before ``check_write`` raises, if their number is a reason.
    room: Callable[[], int] | None = None
    #: Told the end of a record; returns a code to answer at once, or 0 to wait.
    check_wait: Callable[[int], int] | None = None


class Safety:
    """The levels of one store, and the senders that wait for them."""

    __slots__ = (
        "_awaited",
        "_checks",
        "_levels",
        "_lowest",
        "_queues",
        "is_awaited",
        "is_guarded",
        "is_required",
        "limit_s",
        "safe",
        "waiting",
    )

    def __init__(self, levels: Iterable[Level]) -> None:
        self._levels: tuple[Level, ...] = ()
        self._awaited: tuple[Level, ...] = ()
        self._checks: tuple[Callable[[], None], ...] = ()
        #: Log offset up to which records are safe; see ``Lowest``.
        self.safe = Lowest()
        #: The smallest of the levels that senders wait for.
        self._lowest = Lowest()
        #: By time limit: senders that wait, and until when, in the order of the deadlines.
        self._queues: dict[int, deque[tuple[float, _Sender]]] = {}
        #: Whether senders wait for anything, and whether ``check_write`` or their number can refuse a write.
        #: (Attributes: each send looks.)
        self.is_awaited = self.is_guarded = False
        #: Whether a sender waits that asked not to.
        self.is_required = False
        #: The shortest time that a sender waits.
        self.limit_s = 0.0
        #: How many senders wait.
        self.waiting = 0
        self._change(tuple(levels))

    # --- Levels -----------------------------------------------------------------------------------------------

    def add(self, level: Level) -> None:
        """Have records wait for one more level; those that wait already wait for it, too."""
        self._change((*self._levels, level))

    def remove(self, level: Level) -> None:
        """Wait for this level no more: senders that only it kept waiting are answered."""
        self._change(tuple(each for each in self._levels if each is not level))

    def _change(self, levels: tuple[Level, ...]) -> None:
        # Some of a run may be safe now, and would have to wait for a level that is added.
        self._take_apart()
        self._levels = levels
        self._awaited = tuple(level for level in levels if level.is_awaited)
        self._checks = tuple(level.check_write for level in levels if level.check_write is not None)
        self.is_awaited = bool(self._awaited)
        self.is_required = any(level.is_required for level in self._awaited)
        self.is_guarded = bool(self._awaited or self._checks)
        self.limit_s = min([level.timeout_ms for level in self._awaited], default=0) / 1000
        self.safe.change(level.watermark for level in levels)
        self._lowest.change(level.watermark for level in self._awaited)

    def check_write(self) -> None:
        """Raise ``TernError`` if a level does not allow a write now."""
        for check in self._checks:
            check()

    def room(self) -> int:
        """How many messages can be written now, one after the other, as far as levels count them."""
        return min([level.room() for level in self._levels if level.room is not None], default=_EVERYWHERE)

    # --- Senders ----------------------------------------------------------------------------------------------

    def wait(self, end_offset: int, answer: Answer, now: float) -> None:
        """Call ``answer`` once: when all awaited levels have the record that ends there, or when one is late."""
        for level in self._awaited:
            if level.check_wait is not None and (code := level.check_wait(end_offset)):
                answer(code)
                return
        self._begin(_Sender(self, end_offset, answer), now)

    def wait_all(self, run: WaitingRun, now: float) -> None:
        """``wait`` for all senders of a run, whose records were stored at once.

        It is told when all are safe; if they are not in time, each sender is answered as if it had waited alone.
        """
        ends = run.ends
        # What passes for the end of the log passes for what is before it.
        if any(level.check_wait is not None and level.check_wait(ends[-1]) for level in self._awaited):
            for number, end_offset in enumerate(ends):
                self.wait(end_offset, partial(run.answer, number), now)
            return
        self._begin(_Sender(self, ends[-1], lambda _code: run.all_safe(), run), now)

    def _begin(self, sender: _Sender, now: float) -> None:
        if not self._call_when_reached(sender):
            return
        self.waiting += sender.count
        for limit_ms in {level.timeout_ms: None for level in self._awaited}:
            queue = self._queues.setdefault(limit_ms, deque())
            _drop_answered(queue)
            queue.append((now + limit_ms / 1000, sender))
            sender.queues += 1

    def _call_when_reached(self, sender: _Sender) -> bool:
        """Answer a sender when all levels have its record; False if they have."""
        ticket = self._lowest.call_when(sender.end_offset, sender.reached, sender.taken_back)
        if sender.answer is None:
            return False
        sender.ticket = ticket
        sender.is_counted = True
        return True

    def _take_apart(self) -> None:
        """Let each sender of a run that waits be on its own, with the deadlines of the run."""
        parts: dict[_Sender, list[_Sender]] = {}
        for limit_ms, queue in self._queues.items():
            if any(sender.run is not None for _, sender in queue):
                self._queues[limit_ms] = deque(
                    (deadline, each) for deadline, sender in queue for each in self._parts_of(sender, parts)
                )
        for sender, alone in parts.items():
            sender.answer = None
            self._lowest.forget(sender.ticket)
            for each in alone:
                # Some may be safe: they are answered now.
                if not self._call_when_reached(each):
                    self.waiting -= 1

    def _parts_of(self, sender: _Sender, parts: dict[_Sender, list[_Sender]]) -> list[_Sender]:
        if sender.run is None or sender.answer is None:
            return [sender]
        if sender not in parts:
            parts[sender] = [
                _Sender(self, end_offset, partial(sender.run.answer, number), queues=sender.queues)
                for number, end_offset in enumerate(sender.run.ends)
            ]
        return parts[sender]

    @property
    def deadline(self) -> float | None:
        """When ``expire`` has to be called next; None if no sender waits."""
        heads = []
        for queue in self._queues.values():
            _drop_answered(queue)
            if queue:
                heads.append(queue[0][0])
        return min(heads, default=None)

    def expire(self, now: float) -> None:
        """Answer the senders for which a level is late."""
        if any(_is_run_late(queue, now) for queue in self._queues.values()):
            self._take_apart()
        for limit_ms, queue in sorted(self._queues.items()):
            while queue and (queue[0][1].answer is None or queue[0][0] <= now):
                sender = queue.popleft()[1]
                sender.queues -= 1
                if sender.answer is not None:
                    # A level that came later may have a longer limit than any of the sender's; it gets no more time.
                    late = self._late(sender.end_offset, limit_ms if sender.queues else None)
                    if late is not None:
                        self._finish(sender, late.late_code)
        for limit_ms in [limit_ms for limit_ms, queue in self._queues.items() if not queue]:
            del self._queues[limit_ms]

    def give_up(self) -> None:
        """Answer all senders now: the disk has failed, or the store closes."""
        self._take_apart()
        queues, self._queues = self._queues, {}
        for queue in queues.values():
            for _, sender in queue:
                if sender.answer is not None:
                    late = self._late(sender.end_offset, None)
                    self._finish(sender, late.late_code if late is not None else ResponseCode.SUCCESS)

    def retreat(self, to: int, error: TernError) -> None:
        """Records behind ``to`` are taken back: all levels go back, and callers that wait for more get ``error``."""
        self._take_apart()
        for level in self._levels:
            level.watermark.retreat(to, error)
        self._lowest.retreat(to, error)
        self.safe.retreat(to, error)

    def _late(self, end_offset: int, limit_ms: int | None) -> Level | None:
        """The first level that does not have a record, of those with this limit or a shorter one."""
        for level in self._awaited:
            if level.watermark.value < end_offset and (limit_ms is None or level.timeout_ms <= limit_ms):
                return level
        return None

    def _finish(self, sender: _Sender, code: int) -> None:
        self._lowest.forget(sender.ticket)
        sender.finish(code)


class _Sender:
    """A sender that waits, or all of a run; ``answer`` is None once it was called."""

    __slots__ = ("_safety", "answer", "end_offset", "is_counted", "queues", "run", "ticket")

    def __init__(
        self, safety: Safety, end_offset: int, answer: Answer, run: WaitingRun | None = None, *, queues: int = 0
    ) -> None:
        self._safety = safety
        self.end_offset = end_offset
        self.answer: Answer | None = answer
        self.run = run
        self.ticket = 0
        self.is_counted = False
        #: In how many queues it still stands.
        self.queues = queues

    @property
    def count(self) -> int:
        """How many senders wait."""
        return 1 if self.run is None else len(self.run.ends)

    def reached(self) -> None:
        self.finish(ResponseCode.SUCCESS)

    def taken_back(self, error: TernError) -> None:
        self.finish(error.code if isinstance(error, BrokerRefused) else ResponseCode.SERVICE_NOT_AVAILABLE)

    def finish(self, code: int) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            if self.is_counted:
                self._safety.waiting -= self.count
            answer(code)


def _drop_answered(queue: deque[tuple[float, _Sender]]) -> None:
    while queue and queue[0][1].answer is None:
        queue.popleft()


def _is_run_late(queue: deque[tuple[float, _Sender]], now: float) -> bool:
    """Whether the deadline of a run has passed."""
    due = takewhile(lambda waiting: waiting[0] <= now, queue)
    return any(sender.run is not None and sender.answer is not None for _, sender in due)
