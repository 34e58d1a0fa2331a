"""Whether a history is linearizable: the search of Wing and Gong, with Lowe's memory (P3, P4). Pure.

A *history* has operations that overlap in time. It is linearizable if each of them can be given one moment between its
call and its answer, so that the operations, one after the other in the order of these moments, are what a single copy
would have done. An operation without an answer (``done`` is None) may have happened at any moment since its call, or
never.

The search chooses the next operation among those that were called before the first answer of the others; goes back
where the copy would have answered something else; and remembers which sets of operations, with which state of the
copy, lead nowhere. Histories of different queues do not depend on each other: check each for itself.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

Act = TypeVar("Act")
State = TypeVar("State", bound=Hashable)

#: Sets of operations that one search may look at. A history that needs more has too many that overlap.
STEPS_MAX: Final = 1_000_000


@dataclass(frozen=True)
class Operation(Generic[Act]):
    """``act``: what was done and answered. Times are of one clock."""

    act: Act
    called: float
    done: float | None


class TooWide(AssertionError):
    """More overlaps than can be searched; this says nothing about the history."""


def violation(
    history: Iterable[Operation[Act]], begin: State, step: Callable[[State, Act], State | None]
) -> Sequence[Operation[Act]] | None:
    """None if the history is linearizable; else the operations that fit last of all, the first of which cannot be next.

    ``step`` is the single copy: its state after an operation, None if it would have answered something else.
    """
    operations = sorted(history, key=lambda each: each.called)
    answered = sum(1 << at for at, each in enumerate(operations) if each.done is not None)
    ends = [float("inf") if each.done is None else each.done for each in operations]
    failed: set[tuple[int, State]] = set()
    #: Done operations as bits, the state then, and the operations that may be next.
    stack = [(0, begin, _next(operations, ends, 0))]
    best = 0
    while stack:
        done, state, choices = stack[-1]
        if done & answered == answered:
            return None
        if len(failed) > STEPS_MAX:
            raise TooWide(f"no result after {STEPS_MAX} steps; {len(operations)} operations")
        if done.bit_count() > best.bit_count():
            best = done
        for at in choices:
            after = step(state, operations[at].act)
            if after is not None:
                then = (done | 1 << at, after)
                if then not in failed:
                    failed.add(then)
                    stack.append((*then, _next(operations, ends, then[0])))
                    break
        else:
            stack.pop()
    return [each for at, each in enumerate(operations) if not best >> at & 1]


def _next(operations: Sequence[Operation[Act]], ends: Sequence[float], done: int) -> Iterable[int]:
    """The operations that may come next: called before any other that is left was answered. One iterator for each
    place of the stack, so that a search that comes back goes on with the next one."""
    first_end = float("inf")
    found = []
    for at in range((~done & (done + 1)).bit_length() - 1, len(operations)):
        if done >> at & 1:
            continue
        each = operations[at]
        if each.called > first_end:
            break
        found.append(at)
        first_end = min(first_end, ends[at])
    return iter([at for at in found if operations[at].called <= first_end])


# --- A queue of messages ----------------------------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class Appended:
    """A message got this queue offset."""

    offset: int


@dataclass(slots=True, frozen=True)
class Read:
    """A reader was told that the queue ends at ``end``, and, of a pull, what is at ``offset``: None for nothing."""

    end: int
    offset: int | None = None
    body: bytes | None = None


QueueAct = Appended | Read


def queue_copy(contents: Sequence[bytes]) -> Callable[[int, QueueAct], int | None]:
    """A queue whose messages came to be these; its state is how many of them there are."""

    def step(length: int, act: QueueAct) -> int | None:
        match act:
            case Appended(offset):
                return length + 1 if offset == length else None
            case Read(end, offset, body):
                there = contents[offset] if offset is not None and offset < length else None
                return length if end == length and body == there else None

    return step
