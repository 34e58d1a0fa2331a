"""Commits on brokers that break, by drivers that die at every call: each row is written once (U2)."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from itertools import count

import pyarrow as pa
import pytest

from ternmq.errors import ConfigError, NetworkError, TernError
from ternmq.message import MessageQueue
from ternmq.names import SCHEDULE_TOPIC, WHEEL_TOPIC
from ternmq.spark.sink import ledger as ledgers
from ternmq.spark.sink.ledger import Ledger
from ternmq.spark.sink.ledger_entries import (
    LEDGER_TOPIC,
    STAGE_TOPIC,
    BatchConflict,
    RunIdentity,
    SinkWork,
    Staged,
    WorkKind,
)
from ternmq.spark.sink.logs import AppendData, Stored
from ternmq.spark.sink.publish import Committer, HalfWritten, stage_key
from ternmq.spark.sink.rows import Packer
from tests.spark.memory_logs import Crash, Driver, MemoryBroker, World

STAGE = MessageQueue(STAGE_TOPIC, "a", 0)
TOPICS = {"orders": 2, STAGE_TOPIC: 1}
CLAIM = RunIdentity("orders", "/checkpoints/orders")
TARGETS = ("orders", SCHEDULE_TOPIC, WHEEL_TOPIC)


def numbered(first: int, rows: int) -> list[bytes]:
    return [b"%04d" % number for number in range(first, first + rows)]


def stage(world: World, bodies: Sequence[bytes], *, chunk_bytes: int = 200) -> list[Staged]:
    """What executors do: chunks of these rows, another time with other ids. Every fifth row has a delay."""
    brokers = [name for name in world.brokers if name not in world.away]
    queues = [MessageQueue("orders", name, at) for name in brokers for at in range(world.topics["orders"])]
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
        at = broker.take(STAGE, AppendData(chunk.body, text), int(world.now_s * 1000))
        staged.append(
            Staged(STAGE, at, chunk.chunk_id, chunk.topic, chunk.queue, chunk.delay, chunk.rows, chunk.checksum)
        )
    return staged


def commit(
    driver: Driver,
    work: SinkWork,
    staged: Sequence[Staged],
    *,
    claim: RunIdentity = CLAIM,
    retired: Sequence[str] = (),
    is_new: bool = False,
    timeout_ms: int = 60_000,
) -> None:
    """One run of a commit."""
    ledger = Ledger(driver, work, claim, retired=retired, new_id=driver.world.new_id, timeout_ms=timeout_ms)
    committer = Committer(driver, ledger, at_once=2, timeout_ms=timeout_ms)
    asyncio.run(committer.commit(staged, is_new=is_new))


def run(driver: Driver, work: SinkWork, staged: Sequence[Staged]) -> bool:
    """One run of a commit; whether it lived to the end. Then its rows are safe."""
    try:
        commit(driver, work, staged)
    except (Crash, TernError):
        return False
    assert [] == driver.world.unsafe(*TARGETS)
    return True


def bodies(world: World) -> list[bytes]:
    world.settle()
    return sorted(one.body for one in world.stored(*TARGETS))


def calls_of_a_run(rows: int) -> int:
    world = World(0, topics=TOPICS)
    driver = Driver(world)
    assert run(driver, SinkWork("q", 0), stage(world, numbered(0, rows)))
    return driver.calls


@pytest.mark.parametrize("seed", range(4))
def test_a_driver_that_dies_at_any_call_leaves_a_batch_that_the_next_one_finishes(seed: int) -> None:
    """U2: every call of a commit is the last one once, before, in and after it; the rows are there once."""
    last = calls_of_a_run(20)
    for crash_at in range(last):
        world = World(seed * 1_000 + crash_at, topics=TOPICS)
        run(Driver(world, crash_at=crash_at), SinkWork("q", 0), stage(world, numbered(0, 20)))
        # The second run has other tasks, and so other chunks.
        assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 20), chunk_bytes=150))
        assert numbered(0, 20) == bodies(world), f"seed {seed}, call {crash_at}"


@pytest.mark.parametrize("seed", range(120))
def test_a_stream_whose_drivers_die_and_whose_brokers_break_writes_each_row_once(seed: int) -> None:
    """U2: some micro-batches, each run until it succeeds, with crashes, lost answers and torn batches at random."""
    chance = random.Random(seed)
    world = World(seed, brokers=chance.choice((1, 2, 3)), topics=TOPICS)
    expected: list[bytes] = []
    for batch in range(3):
        rows = numbered(len(expected), chance.randrange(12))
        expected += rows
        for _ in count():
            crash_at = chance.choice((None, chance.randrange(60)))
            driver = Driver(world, crash_at=crash_at, faults=chance.choice((0.0, 0.2)))
            if run(driver, SinkWork("q", batch), stage(world, rows, chunk_bytes=chance.choice((80, 150, 1_000)))):
                break
    assert expected == bodies(world), f"seed {seed}"


def test_rows_of_one_key_stay_in_order_whatever_breaks() -> None:
    """U2: within a task, for rows without a delay."""
    for seed in range(40):
        world = World(seed, topics=TOPICS)
        rows = [body for body in numbered(0, 60) if int(body) % 5 and int(body) % 7]
        staged = stage(world, rows, chunk_bytes=120)
        crash_at = world.chance.randrange(100)
        if not run(Driver(world, crash_at=crash_at, faults=0.1), SinkWork("q", 0), staged):
            assert run(Driver(world, faults=0.1), SinkWork("q", 0), stage(world, rows))
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
    world = World(1, topics=TOPICS)
    assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 20)))
    again = Driver(world)
    assert run(again, SinkWork("q", 0), stage(world, numbered(0, 20)))
    assert numbered(0, 20) == bodies(world)
    assert {LEDGER_TOPIC} == again.has_read


def test_a_broker_that_may_hold_the_decision_is_missed() -> None:
    """U2: while it is away no run decides anew; when it is back, its decision counts."""
    for seed in range(20):
        world = World(seed, topics={**TOPICS, LEDGER_TOPIC: 16})
        staged = stage(world, numbered(0, 20))
        run(Driver(world, crash_at=world.chance.randrange(25, 60)), SinkWork("q", 0), staged)
        world.settle()
        decided = {name for name, broker in world.brokers.items() if any(s.tags == "decision" for _, s in broker.log)}
        if decided != {"b"}:
            continue
        world.away = {"b"}
        with pytest.raises(NetworkError, match="b may have the decision of batch q/0"):
            commit(Driver(world), SinkWork("q", 0), staged)
        world.away = set()
        assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 20)))
        assert numbered(0, 20) == bodies(world)
        return
    pytest.fail("no seed decided on the second broker")


def test_a_chunk_that_left_the_stage_is_told_and_nothing_is_sent_in_its_place() -> None:
    """U2: retention was shorter than the time that the job stood still."""
    world = World(3, topics=TOPICS)
    staged = stage(world, numbered(1, 1))
    broken = [Staged(STAGE, staged[0].stage_offset, "F" * 28, "orders", None, 0, 1)]
    with pytest.raises(ConfigError, match="1 staged rows for 'orders' are missing"):
        commit(Driver(world), SinkWork("q", 0), broken)
    assert [] == bodies(world)


def test_a_write_without_an_id_looks_for_nothing() -> None:
    """U2: a send whose answer is lost is looked for all the same."""
    for seed in range(20):
        world = World(seed, topics=TOPICS)
        driver = Driver(world, faults=0.2)
        commit(driver, SinkWork("w", 0, WorkKind.WRITE), stage(world, numbered(0, 20)), is_new=True)
        assert numbered(0, 20) == bodies(world), f"seed {seed}"
        assert LEDGER_TOPIC not in driver.has_read


@pytest.mark.parametrize(("marks", "is_enough"), [(ledgers.FENCE_MARKS, True), (1, False)])
def test_what_lay_in_an_inbox_is_behind_the_fence(marks: int, is_enough: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """U2: a broker takes up what a dead driver had sent after the first mark of the next one; one would be too few."""
    monkeypatch.setattr(ledgers, "FENCE_MARKS", marks)
    results = []
    for seed in range(150):
        world = World(seed, topics=TOPICS)
        run(Driver(world, crash_at=world.chance.randrange(40, 80)), SinkWork("q", 0), stage(world, numbered(0, 20)))
        if any(broker.stragglers for broker in world.brokers.values()):
            world.shows = (0,) * 6 + (1,)
            assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 20)))
            results.append(numbered(0, 20) == bodies(world))
    assert results
    assert is_enough == all(results)


def test_small_batches_take_turns_over_the_queues() -> None:
    """U2: a stream of one chunk a batch does not fill one queue."""
    world = World(5, topics={**TOPICS, "orders": 3})
    for batch in range(40):
        assert run(Driver(world), SinkWork("q", batch), stage(world, [b"%04d" % (22 + batch * 70)]))
    used = {queue for broker in world.brokers.values() for queue, _ in broker.log if queue.topic == "orders"}
    assert 6 == len(used)


# --- Copies, forgeries, lost brokers: issue 13, point 11 ------------------------------------------------------------


def ledger_place(world: World, work: SinkWork) -> MessageQueue:
    """Where the records of a work are that was decided."""
    return next(
        queue
        for broker in world.brokers.values()
        for queue, stored in broker.log
        if queue.topic == LEDGER_TOPIC and stored.keys == work.key and stored.tags == "decision"
    )


def forge(world: World, queue: MessageQueue, key: str, body: bytes, tag: str) -> None:
    text = f"UNIQ_KEY\x01{world.new_id()}\x02KEYS\x01{key}\x02TAGS\x01{tag}\x02"
    world.brokers[queue.broker_name].take(queue, AppendData(body, text), int(world.now_s * 1000))


@pytest.mark.parametrize("crash_at", [None, 40, 50, 60])
@pytest.mark.parametrize(
    ("claim", "sentence"),
    [
        (RunIdentity("bills", CLAIM.checkpoint), "decided for the topic 'orders' before"),
        (RunIdentity("orders", "/copy"), "by a query with the checkpoint /checkpoints/orders, and this one has /copy"),
    ],
)
def test_a_copy_of_a_checkpoint_neither_drops_its_rows_nor_finishes_the_batch_of_the_other(
    claim: RunIdentity, sentence: str, crash_at: int | None
) -> None:
    """The other has finished the batch, or is in the middle of it: that is told, and nothing is written."""
    world = World(3, topics={**TOPICS, "bills": 1})
    run(Driver(world, crash_at=crash_at), SinkWork("q", 0), stage(world, numbered(0, 20)))
    before = bodies(world)
    with pytest.raises(BatchConflict, match=sentence):
        commit(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 20)), claim=claim)
    assert before == bodies(world)
    # With a name of its own it is another query; and the first is not disturbed.
    commit(Driver(world), SinkWork("q@copy", 0), stage(world, numbered(50, 20)), claim=claim)
    assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 20)))
    assert [*numbered(0, 20), *numbered(50, 20)] == bodies(world)


def test_two_copies_that_decide_at_the_same_time_do_not_publish_each_others_rows() -> None:
    """Both have looked before one of them decided; the second is told."""
    world = World(2, topics=TOPICS)
    target = MessageQueue("orders", "a", 0)
    chunk = Staged(STAGE, 0, "0" * 28, "orders", target, 0, 1, 1)
    first, second = (
        Ledger(Driver(world), SinkWork("q", 0), claim, new_id=world.new_id, timeout_ms=60_000)
        for claim in (CLAIM, RunIdentity("orders", "/copy"))
    )

    async def race() -> None:
        for ledger in (first, second):
            await ledger.open()
            assert None is await ledger.look([chunk])
        decision, other = (ledger.decision([chunk], [(target, 0)], replaces="") for ledger in (first, second))
        assert decision == await first.decide(decision)
        with pytest.raises(BatchConflict, match="and this one has /copy"):
            await second.decide(other)

    asyncio.run(race())


@pytest.mark.parametrize("back", [1, 2])
def test_a_rewound_checkpoint_drops_no_rows_silently(back: int) -> None:
    """Spark makes another batch of the same number, of rows that came since."""
    world = World(4, topics=TOPICS)
    for batch in range(3):
        assert run(Driver(world), SinkWork("q", batch), stage(world, numbered(batch * 10, 10)))
    again = SinkWork("q", 3 - back)
    with pytest.raises(BatchConflict, match=f"the batch q/{again.batch} was decided with 10 rows before, and this run"):
        commit(Driver(world), again, stage(world, numbered(again.batch * 10 + 5, 10)))
    # The same rows are there already, so nothing is lost.
    assert run(Driver(world), again, stage(world, numbered(again.batch * 10, 10), chunk_bytes=150))
    assert numbered(0, 30) == bodies(world)


@pytest.mark.parametrize("rows_before", [0, 10])
def test_runs_of_a_rewound_checkpoint_hide_no_decision(rows_before: int) -> None:
    """Each of them leaves marks of the batch before, behind the decision; an index knows the newest 64 records."""
    crashes = 0
    for seed in range(30):
        world = World(seed, topics=TOPICS)
        assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, rows_before)))
        crashes += not run(Driver(world, crash_at=25 + seed), SinkWork("q", 1), stage(world, numbered(20, 10)))
        for _ in range(33):
            with contextlib.suppress(BatchConflict):
                commit(Driver(world), SinkWork("q", 0), stage(world, numbered(0, rows_before + 1)))
        assert run(Driver(world), SinkWork("q", 1), stage(world, numbered(20, 10)))
        assert numbered(20, 10) == [body for body in bodies(world) if int(body) >= 20], f"seed {seed}"
    assert crashes > 10


def test_the_look_for_a_batch_begins_where_the_one_before_was_done() -> None:
    """Also if that was empty: a stream whose batches are mostly empty would read all of its ledger for each of them."""
    world = World(4, topics=TOPICS)
    reads = []

    class Counting(Driver):
        async def read(self, queue: MessageQueue, start: int, end: int) -> AsyncIterator[list[Stored]]:
            reads.append(end - start)
            async for stored in super().read(queue, start, end):
                yield stored

        async def hint(self, queue: MessageQueue, key: str, tag: str) -> int | None:
            shown = self.world.brokers[queue.broker_name].queues[queue]
            return min((one.queue_offset for one in shown if (one.keys, one.tags) == (key, tag)), default=None)

    for batch in range(30):
        reads.clear()
        assert run(Counting(world), SinkWork("q", batch), stage(world, numbered(0, batch % 2)))
        assert max(reads) <= 5


def test_a_batch_that_was_empty_is_not_filled_after_later_ones() -> None:
    """Its rows may be those that the later ones wrote."""
    world = World(4, topics=TOPICS)
    for batch, rows in enumerate((10, 0, 10)):
        assert run(Driver(world), SinkWork("q", batch), stage(world, numbered(batch * 10, rows)))
    with pytest.raises(BatchConflict, match="q/1 was never written, but the later q/2 was"):
        commit(Driver(world), SinkWork("q", 1), stage(world, numbered(20, 10)))


@pytest.mark.parametrize("seed", range(20))
def test_versions_of_a_transaction_are_written_once_in_whatever_order_they_are_tried(seed: int) -> None:
    """As with Delta they ascend; one that comes too late is told instead of dropped, and leaves the others alone."""
    world = World(seed, topics=TOPICS)
    for version in (4, 7, 5, 7, 4, 8, 6, 7, 8):
        work = SinkWork("txn@app", version, WorkKind.TRANSACTION)
        if version in (5, 6):
            with pytest.raises(BatchConflict, match=r"never written, but the later txn@app/. was.* use a higher txnV"):
                commit(Driver(world), work, stage(world, numbered(version * 10, 10)))
        else:
            assert run(Driver(world), work, stage(world, numbered(version * 10, 10)))
    assert [*numbered(40, 10), *numbered(70, 20)] == bodies(world)


@pytest.mark.parametrize("seed", range(20))
def test_a_version_that_is_finished_late_does_not_hide_the_next_one(seed: int) -> None:
    """Where the one before is done, the look for a version begins."""

    class Deciding(Driver):
        """Dies before the first row is sent."""

        async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
            if queue.topic == "orders":
                raise Crash
            return await super().append(queue, parcel)

    world = World(seed, topics=TOPICS)
    fourth, fifth = (SinkWork("txn@app", version, WorkKind.TRANSACTION) for version in (4, 5))
    assert not run(Deciding(world), fourth, stage(world, numbered(40, 10)))
    for work in (fifth, fourth, fifth):
        assert run(Driver(world), work, stage(world, numbered(work.batch * 10, 10)))
    assert numbered(40, 20) == bodies(world)


def test_an_empty_version_stays_empty() -> None:
    """It is written once, like any other."""
    world = World(1, topics=TOPICS)
    work = SinkWork("txn@app", 4, WorkKind.TRANSACTION)
    for _ in range(2):
        assert run(Driver(world), work, [])
    with pytest.raises(BatchConflict, match="decided with 0 rows before, and this run has 10"):
        commit(Driver(world), work, stage(world, numbered(40, 10)))
    assert [] == bodies(world)


def test_a_forged_done_loses_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """It names no decision, so it is passed over with a warning."""
    world = World(6, topics=TOPICS)
    assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 10)))
    queue = ledger_place(world, SinkWork("q", 0))
    for body in (b'{"kind":"done"}', b'{"kind":"done","decision":"X"}'):
        forge(world, queue, "q/1", body, "done")
    assert run(Driver(world), SinkWork("q", 1), stage(world, numbered(10, 10)))
    assert numbered(0, 20) == bodies(world)
    assert "it marks batch q/1 as done, but the ledger has no decision of this batch" in caplog.text


def test_garbage_under_the_right_key_ends_no_commit(caplog: pytest.LogCaptureFixture) -> None:
    """It is passed over with a warning that names its place."""
    world = World(6, topics=TOPICS)
    assert run(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 10)))
    queue = ledger_place(world, SinkWork("q", 0))
    nested = b'{"kind":"done","x":' + b"[" * 100_000
    for body in (b"", b"garbage", nested, b'{"kind":"decision","chunks":[],"ends":[[1]]}'):
        forge(world, queue, "q/1", body, "decision")
    assert run(Driver(world), SinkWork("q", 1), stage(world, numbered(10, 10)))
    assert numbered(0, 20) == bodies(world)
    assert f"of {queue} with the key q/1: it is not a valid entry of the ledger" in caplog.text


def retire(world: World, name: str) -> None:
    """A broker is gone for good, with all that it had."""
    world.away = {name}
    world.brokers[name] = MemoryBroker()


@pytest.mark.parametrize(
    ("query", "warning"),
    [
        ("q", "b may have had the decision of batch q/0 and is retired"),
        ("p", "are lost with retired brokers; all its rows are written again"),
    ],
)
def test_a_retired_broker_may_be_given_up(query: str, warning: str, caplog: pytest.LogCaptureFixture) -> None:
    """It held the decision of ``q``, or only rows of ``p``: none is missing, and some may be there twice."""
    doubles = set()
    for seed in range(60):
        world = World(seed, topics={**TOPICS, LEDGER_TOPIC: 16})
        staged = stage(world, numbered(0, 20))
        if run(Driver(world, crash_at=world.chance.randrange(20, 70)), SinkWork(query, 0), staged):
            continue
        world.settle()
        retire(world, "b")
        before = Counter(bodies(world))
        with pytest.raises(NetworkError, match="add it to the option retiredBrokers"):
            commit(Driver(world), SinkWork(query, 0), stage(world, numbered(0, 20)))
        for _ in range(2):
            # The second run finds what the first one decided.
            commit(Driver(world), SinkWork(query, 0), stage(world, numbered(0, 20)), retired=["b"])
        after = Counter(bodies(world))
        assert set(numbered(0, 20)) == set(after), f"seed {seed}"
        assert all(number <= 1 + before[body] for body, number in after.items()), f"seed {seed}"
        # Batches that begin later need the option no more.
        assert run(Driver(world), SinkWork(query, 1), stage(world, numbered(30, 5)))
        doubles.add(after.total() > 20)
    assert {True, False} == doubles
    assert warning in caplog.text


def test_a_broker_that_runs_is_not_retired() -> None:
    """What it holds counts."""
    world = World(1, topics=TOPICS)
    with pytest.raises(ConfigError, match="retiredBrokers contains a, which is registered"):
        commit(Driver(world), SinkWork("q", 0), stage(world, numbered(0, 5)), retired=["a", "z"])


def test_a_write_without_an_id_that_fails_half_way_is_finished_by_the_id_that_it_tells() -> None:
    """A part of its rows is written; the sentence says so."""
    world = World(1, topics=TOPICS)

    class Fading(Driver):
        """Loses a broker when some rows are sent."""

        async def append(self, queue: MessageQueue, parcel: AppendData) -> int:
            if len(self.world.stored("orders")) > 5:
                self.world.away = {queue.broker_name}
            return await super().append(queue, parcel)

    work = SinkWork("3f2a", 0, WorkKind.WRITE)
    with pytest.raises(HalfWritten, match=r"Some rows may be written already: run .* with the option writeId=3f2a"):
        commit(Fading(world), work, stage(world, numbered(0, 40)), is_new=True)
    world.away = set()
    assert 0 < len(bodies(world)) < 40
    assert run(Driver(world), work, stage(world, numbered(0, 40), chunk_bytes=150))
    assert numbered(0, 40) == bodies(world)
