"""Pulls that wait: what wakes them, how often, and what ends them (F8)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.broker.services import polls as polls_module
from ternmq.broker.services.polls import Poll, PollKind, Polls
from ternmq.broker.tables.filters import ARRIVAL_TERMS_MAX, PROPERTIES_LENGTH_MAX, Wanted
from ternmq.errors import NotMaster, SystemBusy, TernError

FAR_MS = 60_000


class Puller:
    """A waiter that writes down its number when it is told to look again."""

    def __init__(self, waiting: Waiting, number: int) -> None:
        self._waiting = waiting
        self._number = number

    def resume(self, *, is_alone: bool = False) -> None:
        self._waiting.resumed.append(self._number)
        self._waiting.changed.set()

    def flush(self) -> None: ...

    def give_up(self, error: TernError) -> None:
        self._waiting.given_up.append((self._number, error))


class Waiting:
    """Pulls of one queue, ``orders`` 0, that has five messages; ``resumed`` lists the pulls that were told to look."""

    def __init__(self, *, capacity: int = 1000, bytes_max: int = 1 << 20) -> None:
        self.resumed: list[int] = []
        self.given_up: list[tuple[int, TernError]] = []
        self.ends = {("orders", 0): 5}
        self.changed = asyncio.Event()
        self.lanes_ran = 0
        self.owner = object()
        config = BrokerConfig(max_suspended_pulls=capacity, max_queued_request_bytes=bytes_max)
        self.polls = Polls(config, max_offset=self.max_offset, run_lanes=self.run_lanes)

    def run_lanes(self) -> None:
        self.lanes_ran += 1

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self.ends[topic, queue_id]

    def __len__(self) -> int:
        return self.polls.waiting(PollKind.PULL)

    def add(
        self,
        number: int,
        *,
        tags: set[int] | None = None,
        properties: set[str] | None = None,
        terms: int = 0,
        owner: object = None,
        **others: Any,
    ) -> Poll:
        given: dict[str, Any] = {
            "group": "g",
            "topic": "orders",
            "queue_id": 0,
            "queue_offset": 5,
            "timeout_ms": FAR_MS,
            "size": 100,
        } | others
        wanted = Wanted(
            matches=None if tags is None else tags.__contains__,
            accepts=None if properties is None else properties.__contains__,
            terms=terms,
        )
        return self.polls.park_pull(Puller(self, number), owner or self.owner, wanted=wanted, **given)

    def arrive(self, tags_code: int = 0, properties: str | None = "") -> None:
        self.ends["orders", 0] += 1
        self.polls.arrived("orders", 0, self.ends["orders", 0], tags_code, properties)


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    waiting = Waiting()
    yield waiting
    waiting.polls.close()
    assert 0 == len(waiting)


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
    assert len(waiting) == 1


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


async def test_an_arrival_before_the_wanted_offset_wakes_no_pull(waiting: Waiting) -> None:
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

    waiting.polls.scan()
    await turn()

    assert waiting.resumed == [1]


async def test_a_pull_whose_time_is_over_is_answered(waiting: Waiting) -> None:
    """F8"""
    waiting.add(1, timeout_ms=1)

    await waiting.changed.wait()

    assert waiting.resumed == [1]
    assert len(waiting) == 0


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
    gone = object()
    waiting.add(1, owner=gone)
    waiting.add(2, owner=gone, queue_id=1)
    waiting.add(3)

    waiting.polls.drop(gone)
    waiting.arrive()
    await turn()

    assert waiting.resumed == [3]
    assert len(waiting) == 0


async def test_one_pull_too_many_is_told_to_come_back_later() -> None:
    """F8, M1"""
    full = Waiting(capacity=1)
    full.add(1)

    with pytest.raises(SystemBusy, match="maxSuspendedPulls"):
        full.add(2)
    full.polls.close()


async def test_many_pulls_go_back_to_their_lanes_in_order_a_part_at_a_time(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B3, F8: a message that a thousand consumers wait for does not stop the loop; the lanes do the rest."""
    monkeypatch.setattr(polls_module, "RESUME_MAX", 10)
    numbers = list(range(21))
    for number in numbers:
        waiting.add(number)

    waiting.arrive()
    await turn()
    assert waiting.resumed == numbers[:10]

    await turn()
    await turn()
    assert waiting.resumed == numbers
    assert 3 == waiting.lanes_ran


async def test_polls_of_a_kind_are_given_up_at_once_and_others_stay(waiting: Waiting) -> None:
    """House, F8: a slave may keep pulls parked; what is given up leaves the table in the same turn."""
    waiting.add(1)
    waiting.add(2, queue_id=3)
    reason = NotMaster("another broker is the master")

    waiting.polls.answer_all(reason)
    assert 2 == len(waiting)
    waiting.polls.answer_all(reason, [PollKind.PULL])
    assert 0 == len(waiting)
    waiting.arrive()
    await turn()

    assert ([(1, reason), (2, reason)], []) == (waiting.given_up, waiting.resumed)


async def test_a_group_that_is_moved_looks_at_once_and_others_wait(waiting: Waiting) -> None:
    """D4, F8"""
    waiting.add(1)
    waiting.add(2, group="others")
    waiting.add(3, queue_id=7)

    waiting.polls.moved("g", "orders", 0)
    await turn()

    assert [1] == waiting.resumed


async def test_bounds_in_bytes_and_new_settings(waiting: Waiting) -> None:
    """F8, M1, T2: settings that change are handed over anew; polls that wait stay."""
    waiting.polls.apply(BrokerConfig(max_suspended_pulls=10, max_queued_request_bytes=1 << 20))
    waiting.add(1, size=500_000)
    waiting.add(2, size=500_000)
    with pytest.raises(SystemBusy, match="maxQueuedRequestBytes"):
        waiting.add(3, size=500_000)
    waiting.polls.apply(BrokerConfig(max_suspended_pulls=1))
    with pytest.raises(SystemBusy, match="maxSuspendedPulls"):
        waiting.add(4)

    waiting.arrive()
    await turn()

    assert [1, 2] == waiting.resumed
    waiting.add(5, queue_offset=9)


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
