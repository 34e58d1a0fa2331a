"""The ledger: which transactions are open (J1, J2)."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.transaction.ledger import HalfLedger


def test_a_half_is_open_until_its_op() -> None:
    """J1"""
    ledger = HalfLedger(0, 0)
    for at in range(3):
        ledger.half(at, at * 100)
    assert [1] == ledger.op([1])
    assert [] == ledger.op([1])

    assert {0: 0, 2: 200} == ledger.open
    assert (0, 0) == ledger.progress()
    ledger.op([0, 2])
    assert (3, 3) == ledger.progress()


def test_an_old_name_of_a_transaction_means_its_newest_copy() -> None:
    """J2: a producer that answers the first check late ends the transaction, not a half that was left behind."""
    ledger = HalfLedger(0, 0)
    ledger.half(0, 0)
    assert 0 == ledger.copied(0, 1, 100)
    ledger.half(1, 100)
    assert 1 == ledger.copied(0, 2, 200)
    ledger.half(2, 200)

    assert [2, 2, 2] == [ledger.current(at, 0) for at in range(3)]
    assert (2, 0) == ledger.progress()
    ledger.op([2])
    assert [None] * 3 == [ledger.current(at, 0) for at in range(3)]
    assert (3, 1) == ledger.progress()


def test_a_copy_that_is_closed_before_its_queue_was_read_stays_closed() -> None:
    """J2: as on a log that confirms late."""
    ledger = HalfLedger(0, 0)
    ledger.half(0, 0)
    ledger.copied(0, 1, 100)
    ledger.close(1)
    ledger.half(1, 100)
    assert {} == ledger.open


def test_a_walk_over_the_open_halves_takes_a_page_at_a_time() -> None:
    """J2: in order, and only pages that have some; a copy far behind is on a page of its own."""
    ledger = HalfLedger(1_000, 0)
    for at in range(1_000, 5_000):
        ledger.half(at, at)
    for at in range(1_500, 4_500):
        ledger.close(at)
    ledger.copied(1_000, 1_000_000, 0)

    assert [0, 1, 4, 976] == ledger.pages()
    assert [1, 4, 976] == ledger.pages(1_024)
    walked = [at for page in ledger.pages() for at in ledger.on_page(page)]
    assert [*range(1_001, 1_500), *range(4_500, 5_000), 1_000_000] == walked
    assert [1_001, 1_002] == ledger.oldest(2)
    for at in walked:
        ledger.close(at)
    assert ([], 0) == (ledger.pages(), ledger.lag)


def test_an_op_is_not_done_with_before_all_of_its_halves_are() -> None:
    """J1: a reader who starts anew at the progress needs it (form of RocketMQ 5)."""
    ledger = HalfLedger(0, 0)
    for at in range(4):
        ledger.half(at, at)
    ledger.op([1, 3])
    ledger.op([0])
    assert (2, 0) == ledger.progress()
    ledger.op([2])
    assert (4, 3) == ledger.progress()


class _World:
    """A ledger, and both queues as lists; what is open is found by going through them."""

    def __init__(self) -> None:
        self.halves: list[int] = []  # by queue offset: the first half of the same transaction
        self.ops: list[list[int]] = []
        self.ledger = HalfLedger(0, 0)
        self.low = (0, 0)

    def open(self) -> list[int]:
        """The newest half of each transaction, unless an op names it."""
        newest = {first: at for at, first in enumerate(self.halves)}
        closed = {at for op in self.ops for at in op}
        return sorted(at for at in newest.values() if at not in closed)

    def begin(self) -> None:
        self.halves.append(len(self.halves))
        self.ledger.half(self.halves[-1], self.halves[-1] * 10)

    def end(self, some: list[int]) -> list[int]:
        self.ops.append(some)
        return self.ledger.op(some)

    def copy(self, at: int, *, dies: bool) -> None:
        new = len(self.halves)
        self.halves.append(self.halves[at])
        self.ledger.copied(self.halves[at], new, new * 10)
        self.ledger.half(new, new * 10)
        if dies:
            # Before the op that closes its original.
            self.read_anew(newest_first=bool(new % 2))
        else:
            self.end([at])

    def read_anew(self, *, newest_first: bool) -> None:
        """As a broker does that starts: from the progress on, and then it looks at each open half."""
        self.ledger = ledger = HalfLedger(*self.low)
        for at in range(self.low[0], len(self.halves)):
            ledger.half(at, at * 10)
        for op in self.ops[self.low[1] :]:
            ledger.op(op)
        for at in sorted(ledger.open, reverse=newest_first):
            if at in ledger.open and self.halves[at] != at:
                older = ledger.copied(self.halves[at], at, at * 10)
                if older is not None:
                    self.end([older])

    def check(self) -> None:
        still_open = self.open()
        assert still_open == sorted(self.ledger.open)
        assert still_open == [at for page in self.ledger.pages() for at in self.ledger.on_page(page)]
        assert still_open[:3] == self.ledger.oldest(3)
        assert len(self.halves) - min(still_open, default=len(self.halves)) == self.ledger.lag
        for at in still_open:
            assert at * 10 == self.ledger.open[at]
            copies = [each for each, first in enumerate(self.halves) if first == self.halves[at]]
            assert {at} == {self.ledger.current(each, self.halves[at]) for each in copies}
        reached = self.ledger.progress()
        assert self.low[0] <= reached[0] <= min(still_open, default=len(self.halves))
        assert self.low[1] <= reached[1] <= len(self.ops)
        assert all(at < reached[0] for op in self.ops[: reached[1]] for at in op)


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["begin", "begin", "copy", "dying copy", "end", "many", "again", "note", "restart"]),
        st.integers(0, 1 << 16),
    ),
    min_size=5,
    max_size=40,
)


@settings(max_examples=600, deadline=None)
@given(steps=_STEPS)
def test_the_ledger_agrees_with_its_queues_wherever_a_reader_starts(steps: list[tuple[str, int]]) -> None:
    """J1, J2: whatever order halves, copies and ops come in; a process may die between a copy and its op."""
    world = _World()
    for kind, number in steps:
        open_now = world.open()
        at = open_now[number % len(open_now)] if open_now else -1
        match kind:
            case "begin":
                world.begin()
            case "copy" | "dying copy" if open_now:
                world.copy(at, dies=kind == "dying copy")
            case "end" if open_now:
                assert [at] == world.end([at])
            case "many":
                world.end(open_now[: number % 4])
            case "again" if world.halves and number % len(world.halves) not in open_now:
                assert [] == world.end([number % len(world.halves)])
            case "note":
                world.low = world.ledger.progress()
            case "restart":
                world.read_anew(newest_first=bool(number % 2))
        world.check()
