"""Pops that wait: whom a message wakes (F8, F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ternmq.broker.services.pop_holds import PopHolds
from ternmq.broker.tables.filters import ALL, Wanted
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.tasks import Tasks
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.header import Request

RETRY = "%RETRY%g_orders"
FAR_MS = 60_000


class Waiting:
    """Held pops of the topic ``orders``; ``resumed`` lists those that were carried out again."""

    def __init__(self, tasks: Tasks) -> None:
        self.resumed: list[int] = []
        self.changed = asyncio.Event()
        self.tasks = tasks
        self.peer = self.new_peer()
        self.holds = PopHolds(resume=self.resume, capacity=6, place_capacity=4, bytes_max=1 << 20)

    def new_peer(self) -> Peer:
        return Peer({}, Lanes([LaneConfig("pull")]), self.tasks)

    def resume(self, _peer: Peer, request: Request[Any], _deadline: float) -> None:
        self.resumed.append(request.opaque)
        self.changed.set()

    def add(
        self,
        number: int,
        *,
        group: str = "g",
        queue_id: int = ALL_QUEUES,
        wanted: Wanted = ALL,
        peer: Peer | None = None,
        timeout_ms: int = FAR_MS,
    ) -> bool:
        return self.holds.add(
            peer or self.peer,
            Request(code=200050, opaque=number),
            (group, "orders", queue_id),
            topics=["orders", RETRY],
            wanted=wanted,
            deadline=self.holds.deadline(timeout_ms),
        )

    def arrive(self, topic: str = "orders", queue_id: int = 0, tags_code: int = 0) -> None:
        self.holds.arrived(topic, queue_id, tags_code, "")


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    async with Tasks() as tasks:
        waiting = Waiting(tasks)
        yield waiting
        waiting.holds.close()
        assert 0 == len(waiting.holds)


async def turn() -> None:
    """Let the loop run what was due before this call."""
    await asyncio.sleep(0)


async def test_a_burst_wakes_one_of_each_group_the_longest_first(waiting: Waiting) -> None:
    """F8: what it leaves over wakes the next."""
    for number in (1, 2, 3):
        waiting.add(number)
    waiting.add(4, group="others")

    for _ in range(5):
        waiting.arrive()
    await turn()
    assert [1, 4] == waiting.resumed

    waiting.holds.wake("g", "orders", ALL_QUEUES)
    await turn()
    assert [1, 4, 2] == waiting.resumed
    assert (1, 1) == (len(waiting.holds), waiting.holds.count("g", "orders", ALL_QUEUES))


async def test_one_message_is_for_every_group_and_for_every_way_to_ask_for_it(waiting: Waiting) -> None:
    """F8: the group that asks for that queue alone, and the one that asks for all."""
    waiting.add(1)
    waiting.add(2, queue_id=3)
    waiting.add(3, group="others")

    waiting.arrive(queue_id=3)
    await turn()

    assert [1, 2, 3] == waiting.resumed


async def test_a_queue_that_is_free_wakes_who_asks_for_it_and_who_asks_for_all(waiting: Waiting) -> None:
    """F8, F9: of its group."""
    waiting.add(1)
    waiting.add(2, queue_id=3)
    waiting.add(3, queue_id=4)
    waiting.add(4, group="others")

    waiting.holds.wake("g", "orders", 3)
    await turn()

    assert {1, 2} == {*waiting.resumed}


async def test_more_than_one_turn_of_the_loop_can_wake_is_woken_in_the_next(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8"""
    monkeypatch.setattr("ternmq.broker.services.wakes.WAKE_MAX", 2)
    for number in range(5):
        waiting.add(number, group=f"group-{number}")

    waiting.arrive()
    for _ in range(3):
        await turn()

    assert [0, 1, 2, 3, 4] == waiting.resumed


async def test_who_was_answered_is_not_told_that_time_ran_out(waiting: Waiting) -> None:
    """F8"""
    waiting.add(1, timeout_ms=1)
    waiting.add(2, group="others", timeout_ms=20)
    waiting.holds.wake("g", "orders", ALL_QUEUES)
    await turn()
    assert [1] == waiting.resumed

    waiting.changed.clear()
    await asyncio.wait_for(waiting.changed.wait(), 10)

    assert ([1, 2], 0) == (waiting.resumed, len(waiting.holds))


async def test_a_queue_and_a_filter_choose(waiting: Waiting) -> None:
    """F8, K1: but what comes back in the retry topic is for all."""
    waiting.add(1, queue_id=1)
    waiting.add(2, wanted=Wanted(matches={7}.__contains__))

    waiting.arrive(queue_id=0)
    await turn()
    assert [] == waiting.resumed
    waiting.arrive(queue_id=0, tags_code=7)
    await turn()
    assert [2] == waiting.resumed
    waiting.arrive(topic=RETRY)
    await turn()
    assert [2, 1] == waiting.resumed


async def test_one_whose_connection_closed_on_the_way_leaves_its_turn_to_the_next(waiting: Waiting) -> None:
    """F8: or the message would be hidden from all for a minute."""
    leaves = waiting.new_peer()
    waiting.add(1, peer=leaves)
    waiting.add(2)

    waiting.arrive()
    leaves.closed.set()
    await turn()
    await turn()

    assert [2] == waiting.resumed


async def test_bounds_hold_by_place_and_in_all(waiting: Waiting) -> None:
    """F8: POLLING_FULL, says the handler."""
    assert [True] * 4 + [False] == [waiting.add(number) for number in range(5)]
    assert [True, True, False] == [waiting.add(number, group="others") for number in range(3)]


async def test_time_runs_out_and_connections_close(waiting: Waiting) -> None:
    """F8"""
    leaves = waiting.new_peer()
    waiting.add(1, peer=leaves)
    waiting.add(2, timeout_ms=1)

    waiting.holds.drop(leaves)
    await asyncio.wait_for(waiting.changed.wait(), 10)

    assert ([2], 0) == (waiting.resumed, len(waiting.holds))
