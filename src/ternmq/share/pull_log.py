"""What one consumer holds of a topic: messages by number, in the order in which it was given them (R1, R2).

Each message that a consumer is given gets the next number of that consumer: 0, 1, 2 … A message is confirmed by its
number, and a range of them by two. What is held is kept as *runs*: neighbours in a queue with neighbouring numbers. A
consumer that confirms what it gets in order has few of them, whatever it holds::

    numbers   0 … 31   32 … 40   41 … 63
    runs               └ q2@7 ┘  └ q0@96 ┘     acked = 31: all up to there is confirmed; pulled = 63

**Lives.** A number is not enough to confirm a message. After a power cut the last records of the log may be gone, and
with them that a consumer was given 32 … 63: the next 32 messages that it is given get the same numbers. An ack that was
under way would confirm what the consumer never saw. So each term of a master has a random number, its *life*. A run
remembers in which life it was given, an answer tells the life, and an ack names it. What does not fit is refused.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Final

from ternmq.share.actions import HeldRun

_first_of: Final = attrgetter("first")
_last_of: Final = attrgetter("last")


class Run:
    """Neighbours in a queue, with neighbouring numbers. Belongs to one pull log."""

    __slots__ = ("count", "due_ms", "first", "life", "offset", "queue_id")

    def __init__(self, first: int, queue_id: int, offset: int, count: int, life: int, due_ms: int) -> None:
        self.first = first
        self.queue_id = queue_id
        self.offset = offset
        self.count = count
        self.life = life
        #: When the messages are taken back (ms since the epoch); 0: not while the consumer lives.
        self.due_ms = due_ms

    def __repr__(self) -> str:
        return f"<Run {self.first}…{self.last} = {self.queue_id}@{self.offset}>"

    @property
    def last(self) -> int:
        return self.first + self.count - 1

    def part(self, first: int, last: int) -> Run:
        """The part with these numbers, which must be some of its own."""
        return Run(first, self.queue_id, self.offset + first - self.first, last - first + 1, self.life, self.due_ms)

    def as_held(self) -> HeldRun:
        return self.first, self.queue_id, self.offset, self.count, self.life, self.due_ms

    def is_followed_by(self, other: Run) -> bool:
        return (
            other.first == self.first + self.count
            and other.queue_id == self.queue_id
            and other.offset == self.offset + self.count
            and other.life == self.life
            and other.due_ms == self.due_ms
        )


class PullLog:
    """Of one consumer, for one group and topic. Pure."""

    __slots__ = ("_due_ms", "held", "pulled", "runs")

    def __init__(self, pulled: int = -1) -> None:
        #: The last number that was given out.
        self.pulled = pulled
        #: How many messages are held.
        self.held = 0
        #: In the order of their numbers.
        self.runs: list[Run] = []
        #: No time limit ends before this one; 0: there is none.
        self._due_ms = 0

    def restore(self, runs: Sequence[HeldRun]) -> None:
        """From a checkpoint: runs behind those that are known. What cannot be (out of order, beyond ``pulled``) is left
        out."""
        end = self.runs[-1].last + 1 if self.runs else 0
        for held in runs:
            run = Run(*held)
            if end <= run.first and run.last <= self.pulled:
                self.runs.append(run)
                self.held += run.count
                self._note_due(run.due_ms)
                end = run.last + 1

    @property
    def acked(self) -> int:
        """All numbers up to this one are confirmed, or not this consumer's any more."""
        return self.runs[0].first - 1 if self.runs else self.pulled

    def add(self, run: Run) -> None:
        """Note what the consumer was given: numbers behind all others."""
        assert run.first > self.pulled, "numbers are given out once"
        self.pulled = run.last
        self.held += run.count
        self._note_due(run.due_ms)
        self._append(self.runs, run)

    def remove(self, first: int, last: int) -> list[Run]:
        """Forget these numbers, of which some may not be held; returns what was."""
        span = self._span(first, last)
        before, removed, after = _cut(self.runs[span], first, last)
        self.runs[span] = [*before, *after]
        self.held -= sum([run.count for run in removed])
        return removed

    def hold(self, first: int, last: int, due_ms: int) -> None:
        """Give these numbers another time limit."""
        span = self._span(first, last)
        before, meant, after = _cut(self.runs[span], first, last)
        for run in meant:
            run.due_ms = due_ms
        # With the neighbours, which they may join now.
        wide = slice(max(span.start - 1, 0), span.stop + 1)
        runs: list[Run] = []
        for run in [*self.runs[wide.start : span.start], *before, *meant, *after, *self.runs[span.stop : wide.stop]]:
            self._append(runs, run)
        self.runs[wide] = runs
        self._note_due(due_ms)

    def within(self, first: int, last: int) -> list[Run]:
        """What is held of these numbers."""
        return _cut(self.runs[self._span(first, last)], first, last)[1]

    def in_rows(self, runs: Sequence[Run], count_max: int) -> list[list[Run]]:
        """Runs, or parts of them, in the order of their numbers: cut into rows between whose first and last number
        nothing else is held, so that one range names them all."""
        rows: list[list[Run]] = []
        for run in runs:
            row = rows[-1] if rows else []
            if not row or len(row) >= count_max or self._is_between(row[-1].last, run.first):
                rows.append(row := [])
            row.append(run)
        return rows

    def _is_between(self, last: int, first: int) -> bool:
        """Whether a number between these two is held."""
        return first > last + 1 and len(self.runs[self._span(last + 1, first - 1)]) > 0

    def behind(self, number: int) -> Sequence[Run]:
        """Runs with numbers above this one; the first may have others, too."""
        return self.runs[bisect_right(self.runs, number, key=_last_of) :]

    def first_behind(self, number: int) -> Run | None:
        """The first run with numbers above this one, or the part of it that has them; None without one."""
        at = bisect_right(self.runs, number, key=_last_of)
        if at == len(self.runs):
            return None
        run = self.runs[at]
        return run.part(max(run.first, number + 1), run.last)

    def _span(self, first: int, last: int) -> slice:
        """Which runs have some of these numbers. A consumer may hold thousands, and each ack asks."""
        start = bisect_left(self.runs, first, key=_last_of)
        return slice(start, max(start, bisect_right(self.runs, last, lo=start, key=_first_of)))

    def deleted(self, begin_of: Callable[[int], int]) -> list[tuple[int, int, int]]:
        """What lies before the beginning of its queue, which ``begin_of`` tells: first and last number, and how many
        messages. Nothing else is held between the two numbers, so one range confirms them all."""
        begins: dict[int, int] = {}
        found: list[tuple[int, int, int]] = []
        is_open = False
        for run in self.runs:
            begin = begins.get(run.queue_id)
            if begin is None:
                begin = begins[run.queue_id] = begin_of(run.queue_id)
            gone = min(begin - run.offset, run.count)
            if gone > 0:
                first, _, count = found.pop() if is_open else (run.first, 0, 0)
                found.append((first, run.first + gone - 1, count + gone))
            is_open = gone == run.count
        return found

    def late(self, now_ms: int) -> list[Run]:
        """Runs whose time limit is over."""
        if not self._due_ms or now_ms < self._due_ms:
            return []
        late = [run for run in self.runs if run.due_ms and run.due_ms <= now_ms]
        self._due_ms = min([run.due_ms for run in self.runs if run.due_ms], default=0)
        return late

    def known_to(self, held: int, life: int) -> int:
        """The last number that a consumer has, which says that it was given all up to ``held`` in ``life``.

        It may be less: if records were lost, numbers up to ``held`` may have been given out again in another life, or
        not at all. What is behind the result must be given to the consumer again.
        """
        for run in reversed(self.runs) if held >= 0 else ():
            if run.life == life and run.first <= held:
                return min(run.last, held)
        return self.acked

    def _note_due(self, due_ms: int) -> None:
        if due_ms and (not self._due_ms or due_ms < self._due_ms):
            self._due_ms = due_ms

    @staticmethod
    def _append(runs: list[Run], run: Run) -> None:
        if runs and runs[-1].is_followed_by(run):
            runs[-1].count += run.count
        else:
            runs.append(run)


def _cut(runs: Sequence[Run], first: int, last: int) -> tuple[list[Run], list[Run], list[Run]]:
    """Of runs that all have some of these numbers: what lies before, within and after them. Runs that lie within are
    not copied: there may be thousands."""
    if not runs or first > last:
        return [], [], list(runs)
    head, tail, within = runs[0], runs[-1], list(runs)
    before = [head.part(head.first, first - 1)] if head.first < first else []
    after = [tail.part(last + 1, tail.last)] if last < tail.last else []
    if before:
        within[0] = head.part(first, head.last)
    if after:
        within[-1] = within[-1].part(within[-1].first, last)
    return before, within, after
