"""Pulls that wait: who wakes them, how often, and what ends them (F8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ternmq.broker.services.holds import Holds
from ternmq.broker.services.wakes import WAKE_MAX
from ternmq.broker.tables.filters import ARRIVAL_TERMS_MAX, PROPERTIES_LENGTH_MAX, Wanted
from ternmq.errors import SystemBusy
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.tasks import Tasks
from ternmq.wire.header import Request

FAR_MS = 60_000


class Waiting:
    """Holds of one queue, ``orders`` 0, that has five messages; ``resumed`` lists the pulls carried out again."""

    def __init__(self, tasks: Tasks, *, capacity: int = 1000, bytes_max: int = 1 << 20) -> None:
        self.resumed: list[int] = []
        self.ends = {("orders", 0): 5}
        self.changed = asyncio.Event()
        self.tasks = tasks
        self.peer = self.new_peer()
        self.holds = Holds(resume=self.resume, max_offset=self.max_offset, capacity=capacity, bytes_max=bytes_max)

    def new_peer(self) -> Peer:
        return Peer({}, Lanes([LaneConfig("pull")]), self.tasks)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.ends[topic, queue_id]

    def resume(self, peer: Peer, request: Request[Any]) -> None:
        self.resumed.append(request.opaque)
        self.changed.set()

    def add(
        self,
        number: int,
        *,
        tags: set[int] | None = None,
        properties: set[str] | None = None,
        terms: int = 0,
        peer: Peer | None = None,
        **others: Any,
    ) -> None:
        given: dict[str, Any] = {"topic": "orders", "queue_id": 0, "queue_offset": 5, "timeout_ms": FAR_MS} | others
        wanted = Wanted(
            matches=None if tags is None else tags.__contains__,
            accepts=None if properties is None else properties.__contains__,
            terms=terms,
        )
        self.holds.add(peer or self.peer, Request(code=11, opaque=number), wanted=wanted, **given)

    def arrive(self, tags_code: int = 0, properties: str | None = "") -> None:
        self.ends["orders", 0] += 1
        self.holds.arrived("orders", 0, self.ends["orders", 0], tags_code, properties)


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    async with Tasks() as tasks:
        waiting = Waiting(tasks)
        yield waiting
        waiting.holds.close()


async def turn() -> None:
    """Let the loop run what was due before this call."""
    await asyncio.sleep(0)


async def test_an_arrival_wakes_the_pull_that_waits_for_it(waiting: Waiting) -> None:
    """F8"""
    waiting.add(1)
    waiting.add(2, queue_id=1)

    waiting.arrive()
    await turn()

    assert waiting.resumed == [1]
    assert len(waiting.holds) == 1


async def test_a_burst_of_arrivals_wakes_a_pull_once_and_after_the_last(waiting: Waiting) -> None:
    """F8: thirty messages of one read are one reply, not a reply for the first of them."""
    waiting.add(1)

    for _ in range(30):
        waiting.arrive()
    assert waiting.resumed == []
    await turn()

    assert waiting.resumed == [1]


async def test_a_pull_sleeps_through_messages_with_other_tags(waiting: Waiting) -> None:
    """F8, K1"""
    waiting.add(1, tags={65})
    waiting.add(2, tags={66})

    waiting.arrive(tags_code=66)
    await turn()

    assert waiting.resumed == [2]


async def test_a_pull_sleeps_through_messages_that_its_filter_refuses(waiting: Waiting) -> None:
    """F8, K2: unless it is told of several at once; then it has to look."""
    waiting.add(1, properties={"red"})
    waiting.add(2, properties={"blue"})
    waiting.add(3, properties={"green"}, tags={65})

    waiting.arrive(properties="blue")
    await turn()
    assert waiting.resumed == [2]

    waiting.arrive(properties=None)
    await turn()
    assert waiting.resumed == [2, 1]


async def test_an_arrival_before_the_wanted_offset_wakes_nobody(waiting: Waiting) -> None:
    """F8: two arrivals for a pull that waits for the second."""
    waiting.add(1, queue_offset=6)

    waiting.arrive()
    await turn()
    assert waiting.resumed == []

    waiting.arrive()
    await turn()
    assert waiting.resumed == [1]


async def test_the_scan_moves_a_pull_past_messages_that_it_does_not_want(waiting: Waiting) -> None:
    """F8: else its offset would stay behind for ever."""
    waiting.add(1, tags={65})
    waiting.arrive(tags_code=66)
    waiting.add(2, queue_offset=6)

    waiting.holds.scan()
    await turn()

    assert waiting.resumed == [1]


async def test_a_pull_whose_time_is_over_is_answered(waiting: Waiting) -> None:
    """F8"""
    waiting.add(1, timeout_ms=1)

    await waiting.changed.wait()

    assert waiting.resumed == [1]
    assert len(waiting.holds) == 0


async def test_a_pull_that_was_woken_does_not_run_out_of_time_as_well(waiting: Waiting) -> None:
    """F8: one request, one answer."""
    waiting.add(1, timeout_ms=1)
    waiting.arrive()
    waiting.add(2, queue_offset=9, timeout_ms=2)

    while 2 not in waiting.resumed:
        waiting.changed.clear()
        await waiting.changed.wait()

    assert waiting.resumed == [1, 2]


async def test_pulls_of_a_closed_connection_are_dropped(waiting: Waiting) -> None:
    """F8"""
    gone = waiting.new_peer()
    waiting.add(1, peer=gone)
    waiting.add(2, peer=gone, queue_id=1)
    waiting.add(3)

    waiting.holds.drop(gone)
    waiting.arrive()
    await turn()

    assert waiting.resumed == [3]
    assert len(waiting.holds) == 0


async def test_one_pull_too_many_is_told_to_come_back_later(waiting: Waiting) -> None:
    """F8, M1"""
    full = Waiting(waiting.tasks, capacity=1)
    full.add(1)

    with pytest.raises(SystemBusy, match="maxSuspendedPulls"):
        full.add(2)
    full.holds.close()


async def test_many_pulls_are_woken_in_order_a_part_at_a_time(waiting: Waiting) -> None:
    """B3, F8: a message that a thousand consumers wait for does not stop the loop."""
    numbers = list(range(2 * WAKE_MAX + 1))
    for number in numbers:
        waiting.add(number)

    waiting.arrive()
    await turn()
    assert waiting.resumed == numbers[:WAKE_MAX]

    await turn()
    await turn()
    assert waiting.resumed == numbers


async def test_an_arrival_is_tried_on_so_many_filters_and_the_other_pulls_look_themselves(waiting: Waiting) -> None:
    """Issue 13, 4: a thousand pulls with long filters do not hold up a send. None of them loses its message."""
    half = ARRIVAL_TERMS_MAX // 2
    for number in range(5):
        waiting.add(number, properties=set(), terms=half)
    waiting.add(5, tags={65})

    waiting.arrive(properties="blue")
    await turn()
    assert waiting.resumed == [2, 3, 4]

    waiting.arrive(properties="x" * (PROPERTIES_LENGTH_MAX + 1))
    await turn()
    assert waiting.resumed == [2, 3, 4, 0, 1]


async def test_slow_pulls_that_wake_together_leave_turns_to_others(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Issue 13, 4: each looks at its messages for some time; all are answered, in order, one a turn."""
    monkeypatch.setattr("ternmq.broker.services.wakes.WAKE_S", -1.0)
    for number in range(5):
        waiting.add(number)

    waiting.arrive()
    after = []
    for _ in range(5):
        await turn()
        after.append(len(waiting.resumed))

    assert [1, 2, 3, 4, 5] == after
    assert waiting.resumed == [0, 1, 2, 3, 4]
