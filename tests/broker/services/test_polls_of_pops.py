"""Pops that wait: which of them a message wakes (F8, F9)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.broker.config import BrokerConfig
from ternmq.broker.services import polls as polls_module
from ternmq.broker.services.polls import Poll, PollKind, Polls
from ternmq.broker.tables.filters import ALL, Wanted
from ternmq.errors import NotMaster, TernError
from ternmq.wire.handles import ALL_QUEUES

RETRY = "%RETRY%g_orders"
FAR_MS = 60_000


class Popper:
    """A waiter that writes down its number, and looks at once when it is told to."""

    def __init__(self, waiting: Waiting, number: int) -> None:
        self.poll: Poll | None = None
        self._waiting = waiting
        self._number = number

    def resume(self, *, is_alone: bool = False) -> None:
        assert self.poll is not None
        if self.poll.owner in self._waiting.gone:
            self._waiting.polls.pass_on(self.poll)
            return
        self._waiting.polls.looked(self.poll)
        self._waiting.resumed.append(self._number)
        self._waiting.changed.set()

    def flush(self) -> None: ...

    def give_up(self, error: TernError) -> None:
        self._waiting.given_up.append((self._number, error))


class Waiting:
    """Pops of the topic ``orders`` that wait; ``resumed`` lists those that were told to look."""

    def __init__(self) -> None:
        self.resumed: list[int] = []
        self.given_up: list[tuple[int, TernError]] = []
        self.changed = asyncio.Event()
        self.owner = object()
        #: Connections that are closed.
        self.gone: list[object] = []
        config = BrokerConfig(max_pop_polling_size=6, pop_polling_size=4, max_queued_request_bytes=1 << 20)
        self.polls = Polls(config, max_offset=lambda topic, queue_id: 0, run_lanes=lambda: None)

    def __len__(self) -> int:
        return self.polls.waiting(PollKind.POP)

    def add(
        self,
        number: int,
        *,
        group: str = "g",
        queue_id: int = ALL_QUEUES,
        wanted: Wanted = ALL,
        owner: object = None,
        timeout_ms: int = FAR_MS,
        kind: PollKind = PollKind.POP,
        member: str = "",
    ) -> bool:
        popper = Popper(self, number)
        popper.poll = self.polls.park(
            kind,
            popper,
            owner or self.owner,
            group=group,
            topics=["orders", RETRY],
            queue_id=queue_id,
            wanted=wanted,
            deadline=self.polls.deadline(timeout_ms),
            size=100,
            member=member,
        )
        return popper.poll is not None

    def wake(self, queue_id: int) -> None:
        self.polls.wake(PollKind.POP, "g", "orders", queue_id)

    def arrive(self, topic: str = "orders", queue_id: int = 0, tags_code: int = 0) -> None:
        self.polls.arrived(topic, queue_id, 1, tags_code, "")


@pytest.fixture
async def waiting() -> AsyncIterator[Waiting]:
    waiting = Waiting()
    yield waiting
    waiting.polls.close()
    assert 0 == len(waiting)


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

    waiting.wake(ALL_QUEUES)
    await turn()
    assert [1, 4, 2] == waiting.resumed
    assert (1, 1) == (len(waiting), waiting.polls.waiting_at(PollKind.POP, "g", "orders", ALL_QUEUES))


async def test_an_arrival_wakes_one_consumer_of_a_group_and_its_name_another(waiting: Waiting) -> None:
    """R1: what is for one consumer alone does not wait until the one that was woken has looked."""
    for number, member in enumerate(("ann", "bob", "cid")):
        waiting.add(number, kind=PollKind.SHARE, member=member)

    waiting.arrive()
    waiting.polls.wake_member("g", "orders", "cid")
    waiting.polls.wake_member("g", "orders", "cid")
    waiting.polls.wake_member("g", "orders", "dan")
    waiting.polls.wake_member("others", "orders", "ann")
    await turn()
    assert [0, 2] == waiting.resumed
    assert 1 == waiting.polls.waiting(PollKind.SHARE)


async def test_one_message_is_for_every_group_and_for_every_way_to_ask_for_it(waiting: Waiting) -> None:
    """F8: the group that asks for that queue alone, and the one that asks for all."""
    waiting.add(1)
    waiting.add(2, queue_id=3)
    waiting.add(3, group="others")

    waiting.arrive(queue_id=3)
    await turn()

    assert [1, 2, 3] == waiting.resumed


async def test_a_queue_that_is_free_wakes_the_pop_of_it_and_the_pop_of_all(waiting: Waiting) -> None:
    """F8, F9: of its group."""
    waiting.add(1)
    waiting.add(2, queue_id=3)
    waiting.add(3, queue_id=4)
    waiting.add(4, group="others")

    waiting.wake(3)
    await turn()

    assert {1, 2} == {*waiting.resumed}


async def test_more_than_one_turn_of_the_loop_can_wake_is_woken_in_the_next(
    waiting: Waiting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F8"""
    monkeypatch.setattr(polls_module, "RESUME_MAX", 2)
    for number in range(5):
        waiting.add(number, group=f"group-{number}")

    waiting.arrive()
    for _ in range(3):
        await turn()

    assert [0, 1, 2, 3, 4] == waiting.resumed


async def test_a_pop_that_was_answered_is_not_told_that_its_time_is_over(waiting: Waiting) -> None:
    """F8"""
    waiting.add(1, timeout_ms=1)
    waiting.add(2, group="others", timeout_ms=20)
    waiting.wake(ALL_QUEUES)
    await turn()
    assert [1] == waiting.resumed

    waiting.changed.clear()
    await asyncio.wait_for(waiting.changed.wait(), 10)

    assert ([1, 2], 0) == (waiting.resumed, len(waiting))


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
    leaves = object()
    waiting.add(1, owner=leaves)
    waiting.add(2)

    waiting.arrive()
    waiting.gone.append(leaves)
    await turn()
    await turn()

    assert [2] == waiting.resumed


async def test_bounds_hold_by_place_and_in_all(waiting: Waiting) -> None:
    """F8: POLLING_FULL, says the handler."""
    assert [True] * 4 + [False] == [waiting.add(number) for number in range(5)]
    assert [True, True, False] == [waiting.add(number, group="others") for number in range(3)]


async def test_time_runs_out_and_connections_close(waiting: Waiting) -> None:
    """F8"""
    leaves = object()
    waiting.add(1, owner=leaves)
    waiting.add(2, timeout_ms=1)

    waiting.polls.drop(leaves)
    await asyncio.wait_for(waiting.changed.wait(), 10)

    assert ([2], 0) == (waiting.resumed, len(waiting))


async def test_while_one_is_on_its_way_no_other_is_woken_for_the_same(waiting: Waiting) -> None:
    """F8: its lane may keep it for a while; thirty messages must not wake thirty pops."""
    waiting.add(1)
    waiting.add(2)

    waiting.arrive()
    waiting.arrive()
    assert 1 == len(waiting)
    await turn()
    waiting.arrive()
    await turn()

    assert [1, 2] == waiting.resumed


async def test_notices_have_bounds_of_their_own_and_are_woken_beside_pops(waiting: Waiting) -> None:
    """F8: a notification takes nothing away."""
    for number in range(4):
        assert waiting.add(number)
    assert waiting.add(7, kind=PollKind.NOTICE)

    waiting.arrive()
    await turn()

    assert [0, 7] == waiting.resumed
    assert 0 == waiting.polls.waiting(PollKind.NOTICE)


async def test_all_are_given_up_in_one_turn(waiting: Waiting) -> None:
    """House: the end of a term answers what is parked; no message wakes it any more."""
    waiting.add(1)
    waiting.add(2)
    waiting.add(3, kind=PollKind.NOTICE)
    reason = NotMaster("another broker is the master")

    waiting.polls.answer_all(reason)
    assert (0, 0) == (len(waiting), waiting.polls.waiting(PollKind.NOTICE))
    waiting.arrive()
    await turn()

    assert [(1, reason), (2, reason), (3, reason)] == waiting.given_up
    assert [] == waiting.resumed
