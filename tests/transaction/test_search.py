"""The search for the message of a half among many of the same unique key (J1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ternmq import names
from ternmq.errors import NotMaster, SystemBusy, SystemFailure
from ternmq.message import Outcome
from ternmq.transaction.transactions import Ending
from tests.store.small import draft
from tests.transaction.world import Asked, World, in_virtual_time

KEY = "ONE-KEY"
#: More than a slice looks at.
OTHERS = 600


async def in_doubt(world: World, *, was_stored: bool, others: int = OTHERS, body: bytes = b"other") -> Ending:
    """A half of an earlier term, committed there or not, with newer messages of its key."""
    world.start()
    await world.folded()
    paid = world.send(b"paid", UNIQ_KEY=KEY)
    if was_stored:
        world.end_and_die(paid, Outcome.COMMIT, puts=1)
        world.puts_left = None
    for _ in range(others):
        world.store.put(draft("orders", 0, body, UNIQ_KEY=KEY))
    await world.kill()
    world.start()
    await world.folded()
    return paid


def later(world: World, paid: Ending, outcome: Outcome) -> Awaitable[int]:
    ended = world.begin_end(paid, outcome)
    assert not isinstance(ended, int)
    return ended


def count_reads(world: World) -> Callable[[], int]:
    """How many records were looked at so far."""
    record_at, count = world.store.record_at, 0

    def counted(log_offset: int, size: int | None = None) -> memoryview | None:
        nonlocal count
        count += 1
        return record_at(log_offset, size)

    world.store.record_at = counted
    return lambda: count


@pytest.mark.parametrize(("body", "most"), [(b"other", 64), (b"o" * 40_000, 10)], ids=["small", "large"])
@pytest.mark.parametrize("was_stored", [True, False])
def test_a_search_gives_the_loop_back_after_each_slice(was_stored: bool, body: bytes, most: int) -> None:
    """J1: other work gets its turn, after a number of bytes; and the message is stored once."""

    async def program() -> None:
        world = World(mapped_file_size_commit_log=1 << 20)
        others = 100 if len(body) > 1000 else OTHERS
        paid = await in_doubt(world, was_stored=was_stored, others=others, body=body)
        reads = count_reads(world)
        slices: list[int] = []
        ended = asyncio.ensure_future(later(world, paid, Outcome.COMMIT))
        before = 0
        while not ended.done():
            slices.append(reads() - before)
            before = reads()
            await asyncio.sleep(0)
        await ended
        assert others <= sum(slices)
        assert max(slices) <= most
        assert 1 == world.bodies().count(b"paid")
        assert 0 == world.open
        await world.stop()

    in_virtual_time(program())


def test_requests_that_end_one_transaction_while_it_is_searched_store_its_message_once() -> None:
    """J1: all get the answer that they would get one after the other."""

    async def program() -> None:
        world = World()
        paid = await in_doubt(world, was_stored=False)
        reads = count_reads(world)
        ends = [later(world, paid, outcome) for outcome in (Outcome.COMMIT, Outcome.COMMIT, Outcome.ROLLBACK)]
        first, second, third = await asyncio.gather(*ends, return_exceptions=True)
        # They share one search.
        assert reads() < 2 * OTHERS
        assert isinstance(first, int)
        assert first > 0
        assert 0 == second
        assert isinstance(third, SystemFailure)
        assert "was committed before" in str(third)
        assert 1 == world.bodies().count(b"paid")
        await world.stop()

    in_virtual_time(program())


def test_two_halves_of_one_transaction_are_committed_once_while_one_is_searched() -> None:
    """J1, J2: a discarded half that was resumed twice. The search began before the other was committed."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        world.send(b"paid", UNIQ_KEY=KEY)
        await asyncio.sleep(16 * 30 + 10)
        [discarded] = world.records(names.CHECK_MAX_TOPIC)
        for _ in range(2):
            await world.transactions.resume(discarded.log_offset, "")
        await asyncio.sleep(31)
        for _ in range(OTHERS):
            world.store.put(draft("orders", 0, b"other", UNIQ_KEY=KEY))
        ends = [
            later(world, Ending("shop", Outcome.COMMIT, check.log_offset, check.queue_offset), Outcome.COMMIT)
            for check in member.checks[-2:]
        ]
        await asyncio.gather(*ends)
        assert (1, 0) == (world.bodies().count(b"paid"), world.open)
        await world.stop()

    in_virtual_time(program())


def test_a_term_that_ends_while_a_message_is_searched_stores_nothing() -> None:
    """J1, J2: the request is told why."""

    async def program() -> None:
        world = World()
        paid = await in_doubt(world, was_stored=False)
        ended = asyncio.ensure_future(later(world, paid, Outcome.COMMIT))
        await asyncio.sleep(0)
        world.transactions.stop(NotMaster("another broker is the master"))
        with pytest.raises(NotMaster):
            await ended
        assert 0 == world.bodies().count(b"paid")
        await world.kill()

    in_virtual_time(program())


def test_requests_that_wait_for_a_search_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """J1, bounds: one too many is refused with a sentence; its transaction is open, and ends when it is repeated."""
    monkeypatch.setattr("ternmq.turns.OWN_WAITING_MAX", 1)

    async def program() -> None:
        world = World()
        paid = await in_doubt(world, was_stored=True)
        ends = [asyncio.ensure_future(later(world, paid, Outcome.COMMIT)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(SystemBusy, match="too many searches of messages by their unique keys are waiting"):
            await later(world, paid, Outcome.COMMIT)
        ends[0].cancel()
        await ends[1]
        await world.ended(paid, Outcome.COMMIT)
        assert (1, 0) == (world.bodies().count(b"paid"), world.open)
        await world.stop()

    in_virtual_time(program())


def test_the_checker_searches_in_slices_and_closes_what_was_committed() -> None:
    """J2: nothing is asked about it; one that was not committed is asked about once."""

    async def program() -> None:
        for was_stored in (True, False):
            world = World()
            paid = await in_doubt(world, was_stored=was_stored)
            world.producers = [member] = [Asked()]
            await asyncio.sleep(31)
            assert int(not was_stored) == len(member.checks)
            assert int(not was_stored) == world.open
            await world.ended(paid, Outcome.COMMIT)
            assert (1, 0) == (world.bodies().count(b"paid"), world.open)
            await world.stop()

    in_virtual_time(program())


def test_what_is_not_in_memory_is_searched_by_other_threads() -> None:
    """J1: a look at it would wait for the disk on the loop."""

    async def program() -> None:
        world = World(access_message_in_memory_max_ratio=0)
        paid = await in_doubt(world, was_stored=True, others=3)
        ended = later(world, paid, Outcome.COMMIT)
        reads = count_reads(world)
        await ended
        assert (0, 0) == (reads(), world.open)
        await world.stop()

    in_virtual_time(program())


def test_a_message_of_another_topic_with_an_equal_hash_is_not_taken_for_it() -> None:
    """J1, hostile input: `Aa` and `BB` have one hash in Java's way, and a sender chooses key and time of birth."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid = world.send(b"paid", topic="Aa", UNIQ_KEY=KEY)
        foreign = world.send(b"foreign", topic="BB", UNIQ_KEY=KEY)
        world.end(foreign, Outcome.COMMIT)
        await world.kill()
        world.start()
        await world.folded()
        world.end(paid, Outcome.COMMIT)
        assert ([b"paid"], [b"foreign"]) == (world.bodies("Aa"), world.bodies("BB"))
        await world.stop()

    in_virtual_time(program())
