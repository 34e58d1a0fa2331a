"""Senders of a run wait together, and each is answered as if it had waited alone (C6, O1; issue 21)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.errors import NotRunning
from ternmq.store.durable.safety import Level, Safety
from ternmq.store.durable.watermark import Watermark
from ternmq.wire.codes import ResponseCode

TAKEN_BACK: Final = NotRunning("another leader has other records here")
#: A slave that lacks so much is not waited for.
GAP: Final = 60


class Run:
    """A run of senders, and what they were told."""

    def __init__(self, ends: Sequence[int], told: list[tuple[int, int]]) -> None:
        self.ends = ends
        self._told = told

    def all_safe(self) -> None:
        self._told += [(end, ResponseCode.SUCCESS) for end in self.ends]

    def answer(self, number: int, code: int) -> None:
        self._told.append((self.ends[number], code))


class Master:
    """A disk with a limit of 5 s and a slave with 3 s; senders wait in runs, or one by one."""

    def __init__(self, *, in_runs: bool) -> None:
        self.in_runs = in_runs
        self.disk, self.slave = Watermark(), Watermark()
        disk = Level(self.disk, 5000, ResponseCode.FLUSH_DISK_TIMEOUT)
        self.slaves = Level(self.slave, 3000, ResponseCode.FLUSH_SLAVE_TIMEOUT, check_wait=self._check_wait)
        self.safety = Safety([disk, self.slaves])
        self.told: list[tuple[int, int]] = []
        self.has_slave = True

    def _check_wait(self, end_offset: int) -> int:
        return ResponseCode.SLAVE_NOT_AVAILABLE if self.slave.value <= end_offset - GAP else 0

    def wait(self, ends: Sequence[int], now: float) -> None:
        if self.in_runs:
            self.safety.wait_all(Run(ends, self.told), now)
            return
        for end in ends:
            self.safety.wait(end, partial(lambda end, code: self.told.append((end, code)), end), now)

    def do(self, what: str, ends: Sequence[int], to: int, now: float) -> None:
        match what:
            case "wait":
                self.wait(ends, now)
            case "disk":
                self.disk.advance(to)
            case "slave":
                self.slave.advance(to)
            case "expire":
                self.safety.expire(now)
            case "retreat":
                self.safety.retreat(to, TAKEN_BACK)
            case "give up":
                self.safety.give_up()
            case "role":
                (self.safety.remove if self.has_slave else self.safety.add)(self.slaves)
                self.has_slave = not self.has_slave


STEPS: Final = (
    "wait",
    "wait",
    "wait",
    "disk",
    "disk",
    "slave",
    "slave",
    "expire",
    "expire",
    "retreat",
    "give up",
    "role",
)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 5), st.integers(0, 40), st.floats(0, 3)), max_size=40))
def test_each_sender_of_a_run_gets_the_code_that_it_would_have_got_alone(
    steps: list[tuple[str, int, int, float]],
) -> None:
    """C6: when levels are late, fail, go back, come and go. At the end of a run, at the latest, it is told."""
    together, alone = Master(in_runs=True), Master(in_runs=False)
    end, now = 0, 0.0
    for what, count, number, seconds in steps:
        now += seconds
        ends = [end + 10 * (each + 1) for each in range(count)]
        if what == "wait":
            end = ends[-1]
        if what == "retreat":
            end = max(end - number, 0)
        for each in (together, alone):
            each.do(what, ends, end if what == "retreat" else end - number, now)
        # One that is safe may be told with the last of its run.
        assert set(together.told) <= set(alone.told)
        assert together.safety.waiting >= alone.safety.waiting
        late = {told for told in alone.told if told[1] != ResponseCode.SUCCESS}
        assert late <= set(together.told)
    for each in (together, alone):
        each.do("give up", (), 0, now)
    assert sorted(together.told) == sorted(alone.told)
    assert (0, None) == (together.safety.waiting, together.safety.deadline)


def test_a_run_waits_for_its_last_record_and_counts_all() -> None:
    """C6: nothing is told before; a limit of waiting senders counts messages."""
    master = Master(in_runs=True)
    master.wait((10, 20, 30), 0.0)
    master.wait((40,), 0.0)
    assert 4 == master.safety.waiting
    master.disk.advance(100)
    master.slave.advance(29)
    assert ([], 4) == (master.told, master.safety.waiting)
    master.slave.advance(30)
    assert [(10, 0), (20, 0), (30, 0)] == master.told
    assert 1 == master.safety.waiting


def test_a_run_that_is_late_is_told_what_each_of_its_senders_lacks() -> None:
    """C6: the slave has the first, the disk the first two; the limit of the slave is the shorter one."""
    master = Master(in_runs=True)
    master.wait((10, 20, 30, 40), 0.0)
    master.slave.advance(30)
    master.disk.advance(20)
    master.safety.expire(3.0)
    assert [(10, 0), (20, 0), (40, ResponseCode.FLUSH_SLAVE_TIMEOUT)] == master.told
    assert (1, 5.0) == (master.safety.waiting, master.safety.deadline)
    master.safety.expire(5.0)
    assert [(30, ResponseCode.FLUSH_DISK_TIMEOUT)] == master.told[3:]


def test_a_run_of_which_a_part_is_taken_back_goes_on_waiting_for_the_rest() -> None:
    """C6: the record of another leader at the same place must not answer them."""
    master = Master(in_runs=True)
    master.wait((10, 20, 30), 0.0)
    master.safety.retreat(20, TAKEN_BACK)
    assert [(30, ResponseCode.SERVICE_NOT_AVAILABLE)] == master.told
    master.disk.advance(50)
    master.slave.advance(50)
    assert [(10, 0), (20, 0)] == master.told[1:]
