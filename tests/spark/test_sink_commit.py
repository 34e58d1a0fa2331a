"""Commits on brokers that break, by drivers that die at every call: each row is written once (U2)."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from itertools import count

import pyarrow as pa
import pytest

from ternmq.errors import ConfigError, NetworkError, TernError
from ternmq.message import MessageQueue
from ternmq.names import SCHEDULE_TOPIC
from ternmq.spark import ledger as ledgers
from ternmq.spark.ledger import LEDGER_TOPIC, Ledger, Staged, Work
from ternmq.spark.logs import Parcel
from ternmq.spark.publish import WHEEL_TOPIC, Committer, stage_key
from ternmq.spark.sink_rows import Packer
from tests.spark.memory_logs import Crash, Driver, World

STAGE = MessageQueue("stage", "a", 0)
TARGETS = ("orders", SCHEDULE_TOPIC, WHEEL_TOPIC)


def numbered(first: int, rows: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + rows)]


def stage(world: World, bodies: Sequence[bytes], *, chunk_bytes: int = 200) -> list[Staged]:
    """What executors do: chunks of these rows, another time with other ids. Every fifth row has a delay."""
    queues = [MessageQueue("orders", name, at) for name in world.brokers for at in range(world.topics["orders"])]
    packer = Packer(
        topic="orders",
        partition=0,
        chunk_bytes=chunk_bytes,
        drops_reserved=False,
        queues_of=lambda _: queues,
        new_id=world.new_chunk_id,
    )
    numbers = [int(body) for body in bodies]
    batch = pa.record_batch(
        {
            "body": pa.array(bodies, pa.binary()),
            "sharding_key": [f"k{number % 3}" if number % 2 else None for number in numbers],
            "delay_level": [3 if number % 5 == 0 else 0 for number in numbers],
            "deliver_time": pa.array(
                [10**15 if number % 7 == 0 and number % 5 else None for number in numbers], pa.timestamp("us", tz="UTC")
            ),
        }
    )
    staged = []
    for chunk in [*packer.add(batch), *packer.rest()]:
        broker = world.brokers["a"]
        text = f"UNIQ_KEY\x01{stage_key(chunk.chunk_id)}\x02"
        at = broker.take(STAGE, Parcel(chunk.body, text), int(world.now_s * 1000))
        staged.append(Staged(STAGE, at, chunk.chunk_id, chunk.topic, chunk.queue, chunk.delay, chunk.rows))
    return staged


def run(driver: Driver, work: Work, staged: Sequence[Staged], *, is_known: bool = True) -> bool:
    """One run of a commit; whether it lived to the end."""
    ledger = Ledger(driver, work, new_id=driver.world.new_id, timeout_ms=60_000)
    try:
        committer = Committer(driver, ledger, at_once=2, timeout_ms=60_000)
        asyncio.run(committer.commit(staged, is_known=is_known))
    except (Crash, TernError):
        return False
    return True


def bodies(world: World) -> list[bytes]:
    world.settle()
    return sorted(one.body for one in world.stored(*TARGETS))


def calls_of_a_run(rows: int) -> int:
    world = World(0, topics={"orders": 2, "stage": 1})
    driver = Driver(world)
    assert run(driver, Work("q", 0), stage(world, numbered(0, rows)))
    return driver.calls


@pytest.mark.parametrize("seed", range(4))
def test_a_driver_that_dies_at_any_call_leaves_a_batch_that_the_next_one_finishes(seed: int) -> None:
    """U2: every call of a commit is the last one once, before, in and after it; the rows are there once."""
    last = calls_of_a_run(20)
    for crash_at in range(last):
        world = World(seed * 1_000 + crash_at, topics={"orders": 2, "stage": 1})
        run(Driver(world, crash_at=crash_at), Work("q", 0), stage(world, numbered(0, 20)))
        # The second run has other tasks, and so other chunks.
        assert run(Driver(world), Work("q", 0), stage(world, numbered(0, 20), chunk_bytes=150))
        assert numbered(0, 20) == bodies(world), f"seed {seed}, call {crash_at}"


@pytest.mark.parametrize("seed", range(120))
def test_a_stream_whose_drivers_die_and_whose_brokers_break_writes_each_row_once(seed: int) -> None:
    """U2: some micro-batches, each run until it succeeds, with crashes, lost answers and torn batches at random."""
    chance = random.Random(seed)
    world = World(seed, brokers=chance.choice((1, 2, 3)), topics={"orders": 2, "stage": 1})
    expected: list[bytes] = []
    for batch in range(3):
        rows = numbered(len(expected), chance.randrange(12))
        expected += rows
        for _ in count():
            crash_at = chance.choice((None, chance.randrange(60)))
            driver = Driver(world, crash_at=crash_at, faults=chance.choice((0.0, 0.2)))
            if run(driver, Work("q", batch), stage(world, rows, chunk_bytes=chance.choice((80, 150, 1_000)))):
                break
    assert expected == bodies(world), f"seed {seed}"


def test_rows_of_one_key_stay_in_order_whatever_breaks() -> None:
    """U2: within a task, for rows without a delay."""
    for seed in range(40):
        world = World(seed, topics={"orders": 2, "stage": 1})
        rows = [body for body in numbered(0, 60) if int(body) % 5 and int(body) % 7]
        staged = stage(world, rows, chunk_bytes=120)
        crash_at = world.chance.randrange(100)
        if not run(Driver(world, crash_at=crash_at, faults=0.1), Work("q", 0), staged):
            assert run(Driver(world, faults=0.1), Work("q", 0), stage(world, rows))
        world.settle()
        by_queue: dict[MessageQueue, list[int]] = {}
        for broker in world.brokers.values():
            for queue, stored in broker.log:
                # Only those with a key: the others may go to any queue.
                if queue.topic == "orders" and int(stored.body) % 2:
                    by_queue.setdefault(queue, []).append(int(stored.body))
        assert all(sorted(numbers) == numbers for numbers in by_queue.values()), f"seed {seed}"


def test_a_batch_that_was_finished_is_not_looked_at_again() -> None:
    """U2: «done» spares the reading of what was published."""
    world = World(1, topics={"orders": 2, "stage": 1})
    assert run(Driver(world), Work("q", 0), stage(world, numbered(0, 20)))
    again = Driver(world)
    assert run(again, Work("q", 0), stage(world, numbered(0, 20)))
    assert numbered(0, 20) == bodies(world)
    assert {LEDGER_TOPIC} == again.has_read


def test_a_broker_that_may_hold_the_decision_is_missed() -> None:
    """U2: while it is away nobody decides anew; when it is back, its decision counts."""
    for seed in range(20):
        world = World(seed, topics={"orders": 2, "stage": 1, LEDGER_TOPIC: 16})
        staged = stage(world, numbered(0, 20))
        run(Driver(world, crash_at=world.chance.randrange(25, 60)), Work("q", 0), staged)
        world.settle()
        decided = {name for name, broker in world.brokers.items() if any(s.tags == "decision" for _, s in broker.log)}
        if decided != {"b"}:
            continue
        world.away = {"b"}
        ledger = Ledger(Driver(world), Work("q", 0), new_id=world.new_id, timeout_ms=1_000)
        with pytest.raises(NetworkError, match="b may hold what was decided for the batch q/0"):
            asyncio.run(Committer(Driver(world), ledger, at_once=2, timeout_ms=1_000).commit(staged))
        world.away = set()
        assert run(Driver(world), Work("q", 0), stage(world, numbered(0, 20)))
        assert numbered(0, 20) == bodies(world)
        return
    pytest.fail("no seed decided on the second broker")


def test_a_chunk_that_left_the_stage_is_told_and_nothing_is_sent_in_its_place() -> None:
    """U2: retention was shorter than the time that the job stood still."""
    world = World(3, topics={"orders": 2, "stage": 1})
    staged = stage(world, numbered(1, 1))
    broken = [Staged(STAGE, staged[0].stage_offset, "F" * 28, "orders", None, 0, 1)]
    ledger = Ledger(Driver(world), Work("q", 0), new_id=world.new_id, timeout_ms=1_000)
    with pytest.raises(ConfigError, match="1 rows for 'orders' are not in the stage any more"):
        asyncio.run(Committer(Driver(world), ledger, at_once=2, timeout_ms=1_000).commit(broken))
    assert [] == bodies(world)


def test_a_write_that_nobody_can_repeat_needs_no_ledger() -> None:
    """U2: a batch write without an id; a send whose answer is lost is looked for all the same."""
    for seed in range(20):
        world = World(seed, topics={"orders": 2, "stage": 1})
        assert run(Driver(world, faults=0.2), Work("w", 0), stage(world, numbered(0, 20)), is_known=False)
        assert numbered(0, 20) == bodies(world), f"seed {seed}"
        assert "decision" not in {one.tags for one in world.stored(LEDGER_TOPIC)}


@pytest.mark.parametrize(("marks", "is_enough"), [(ledgers.FENCE_MARKS, True), (1, False)])
def test_what_lay_in_an_inbox_is_behind_the_fence(marks: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """U2: a broker takes up what a dead driver had sent after the first mark of the next one; one would be too few."""
    monkeypatch.setattr(ledgers, "FENCE_MARKS", marks)
    results = []
    for seed in range(150):
        world = World(seed, topics={"orders": 2, "stage": 1})
        run(Driver(world, crash_at=world.chance.randrange(40, 80)), Work("q", 0), stage(world, numbered(0, 20)))
        if any(broker.stragglers for broker in world.brokers.values()):
            world.shows = (0,) * 6 + (1,)
            assert run(Driver(world), Work("q", 0), stage(world, numbered(0, 20)))
            results.append(numbered(0, 20) == bodies(world))
    assert results
    assert is_enough == all(results)


def test_small_batches_take_turns_over_the_queues() -> None:
    """U2: a stream of one chunk a batch does not fill one queue."""
    world = World(5, topics={"orders": 3, "stage": 1})
    for batch in range(40):
        assert run(Driver(world), Work("q", batch), stage(world, [b"%04d" % (22 + batch * 70)]))
    used = {queue for broker in world.brokers.values() for queue, _ in broker.log if queue.topic == "orders"}
    assert 6 == len(used)
