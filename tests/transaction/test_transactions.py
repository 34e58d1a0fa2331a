"""How transactions end, and what survives a crash (J1, J2)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from ternmq import names
from ternmq.errors import DiskFull, NotMaster, NotRunning, SystemFailure
from ternmq.message import Outcome
from ternmq.store.config import FlushDiskType
from ternmq.store.log.draft import Draft, Placed
from ternmq.wire import properties as props
from ternmq.wire.record import Record, Sysflag
from ternmq.wire.requests import CheckTransaction
from tests.transaction.world import Asked, World, in_virtual_time


def test_a_commit_makes_the_message_visible_and_a_rollback_does_not() -> None:
    """J1: both leave an op record in the form of 4.9."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid, failed, later = world.send(b"paid"), world.send(b"failed"), world.send(b"later")
        assert [] == world.bodies()
        world.end(paid, Outcome.COMMIT)
        world.end(failed, Outcome.ROLLBACK)
        await asyncio.sleep(0)

        [record] = world.records()
        assert (b"paid", Sysflag.COMMIT, paid.log_offset) == (
            bytes(record.body),
            record.sysflag & Sysflag.TRANSACTION_MASK,
            record.prepared_transaction_offset,
        )
        assert [b"0", b"1"] == sorted(world.bodies(names.OP_HALF_TOPIC))
        assert {later.queue_offset} == set(world.transactions.ledger.open)
        await world.stop()

    in_virtual_time(program())


def test_the_ops_of_one_turn_are_written_together_behind_its_messages() -> None:
    """J1: one record each, as 4.9 reads them. Until then the halves are closed, and the progress waits."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        sent = [world.send(b"%d" % number) for number in range(300)]
        ends = [world.end(one, Outcome.COMMIT) for one in sent]
        assert (300, 0, []) == (len(world.bodies()), world.open, world.bodies(names.OP_HALF_TOPIC))
        world.store.flush_now()
        for _ in range(2):
            world.transactions._note_progress()
        assert (0, 0) == world.progress

        await asyncio.sleep(0)
        assert [b"%d" % number for number in range(300)] == world.bodies(names.OP_HALF_TOPIC)
        assert max(ends) <= world.records(names.OP_HALF_TOPIC)[0].log_offset
        world.store.flush_now()
        await asyncio.sleep(3)
        assert (300, 300) == world.progress
        await world.stop()

    in_virtual_time(program())


def test_a_term_that_ends_before_its_ops_are_written_leaves_messages_that_the_next_one_finds() -> None:
    """J1: nothing is written after the term, nothing fails, and nothing is stored twice."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        failures: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
        paid = world.send(b"paid")
        world.end(paid, Outcome.COMMIT)
        reason = NotMaster("another broker is the master")
        world.store.refuse_writes(reason)
        world.transactions.stop(reason)
        await asyncio.sleep(0)
        assert ([], []) == (failures, world.bodies(names.OP_HALF_TOPIC))
        await world.kill()

        world.start()
        await world.folded()
        assert 1 == world.open
        world.end(paid, Outcome.COMMIT)
        assert ([b"paid"], 0) == (world.bodies(), world.open)
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("count", [40, 200])
def test_messages_of_one_unique_key_are_told_apart_after_a_crash(count: int) -> None:
    """J1: all are committed in one turn, and no op is written; their messages are found, and not stored again."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        sent = []
        for number in range(count):
            sent.append(world.send(b"%02d" % number, UNIQ_KEY="ONE-KEY"))
            await asyncio.sleep(0.001)
        for paid in sent:
            world.end(paid, Outcome.COMMIT)
        reason = NotMaster("the process ends in this turn")
        world.store.refuse_writes(reason)
        world.transactions.stop(reason)
        await world.kill()

        world.start()
        await world.folded()
        assert count == world.open
        for paid in sent:
            await world.ended(paid, Outcome.COMMIT)
        assert 0 == world.open
        assert [b"%02d" % number for number in range(count)] == world.bodies()
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize(
    "settings", [{"message_index_enable": False}, {"flush_disk_type": FlushDiskType.SYNC_FLUSH}], ids=str
)
def test_an_op_is_written_at_once_where_an_answer_or_a_restart_needs_it(settings: dict[str, Any]) -> None:
    """J1: the answer waits for the op, too; and without an index only the last record of the log is looked at."""

    async def program() -> None:
        world = World(**settings)
        world.start()
        await world.folded()
        end_offset = world.end(world.send(b"paid"), Outcome.COMMIT)
        [op] = world.records(names.OP_HALF_TOPIC)
        assert op.log_offset + op.size == end_offset
        await world.stop()

    in_virtual_time(program())


def test_what_ends_twice_ends_once() -> None:
    """J1: a producer that repeats itself is right, one that says the opposite is refused; nothing is stored twice."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid, failed = world.send(b"paid"), world.send(b"failed")
        for _ in range(3):
            world.end(paid, Outcome.COMMIT)
            world.end(failed, Outcome.ROLLBACK)
        with pytest.raises(SystemFailure, match="was committed before"):
            world.end(paid, Outcome.ROLLBACK)
        with pytest.raises(SystemFailure, match="was rolled back or discarded before"):
            world.end(failed, Outcome.COMMIT)

        await asyncio.sleep(0)
        assert [b"paid"] == world.bodies()
        assert 2 == len(world.bodies(names.OP_HALF_TOPIC))
        await world.stop()

    in_virtual_time(program())


def test_a_transaction_that_is_not_the_callers_is_refused_with_a_sentence() -> None:
    """J1, bad input: unknown, of another group, wrong offsets, wrong id, no half at all. It stays open."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        plain = world.store.put(Draft("orders", 0, b"plain", "", 0, b"\0" * 8))
        for wrong, words in (
            (replace(paid, log_offset=paid.log_offset + 1), "Find prepared transaction message failed"),
            (replace(paid, log_offset=1 << 60), "Find prepared transaction message failed"),
            (replace(paid, log_offset=-1), "Find prepared transaction message failed"),
            (replace(paid, log_offset=plain.log_offset), "there is no half message"),
            (replace(paid, group="thieves"), "The producer group wrong"),
            (replace(paid, queue_offset=1), "The transaction state table offset wrong"),
            (replace(paid, transaction_id="other"), "The transaction id wrong"),
        ):
            with pytest.raises(SystemFailure, match=words):
                world.end(wrong, Outcome.COMMIT)
        assert 1 == world.open
        world.end(replace(paid, transaction_id=""), Outcome.COMMIT)
        assert [b"plain", b"paid"] == world.bodies()
        await world.stop()

    in_virtual_time(program())


def test_a_delay_level_counts_from_the_commit() -> None:
    """J1, I1: the half waits for its commit, then the message for its delay."""

    async def program() -> None:
        world = World(message_delay_level="10s")
        world.start()
        await world.folded()
        paid = world.send(b"paid", DELAY="1")
        assert [] == world.records(names.SCHEDULE_TOPIC)
        world.end(paid, Outcome.COMMIT)
        [waiting] = world.records(names.SCHEDULE_TOPIC)
        assert "orders" == props.find(waiting.properties, "REAL_TOPIC")
        assert [] == world.bodies()
        world.end(paid, Outcome.COMMIT)
        assert 1 == len(world.records(names.SCHEDULE_TOPIC))
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("puts", [0, 1])
def test_a_broker_that_dies_between_message_and_op_stores_the_message_once(puts: int, index: bool) -> None:
    """J1: dies before the message, or between it and the op; then the producer, asked again, says commit."""

    async def program() -> None:
        world = World(message_index_enable=index)
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        world.end_and_die(paid, Outcome.COMMIT, puts=puts)
        await world.kill()
        world.start()
        await world.folded()
        assert puts == len(world.bodies())
        if index:
            assert (1, []) == (world.open, world.bodies(names.OP_HALF_TOPIC))

        def answer(check: CheckTransaction, _: Record) -> None:
            asyncio.get_running_loop().call_soon(world.answer, check, Outcome.COMMIT)

        world.producers = [Asked(answer)]
        await asyncio.sleep(31)
        assert ([b"paid"], 0) == (world.bodies(), world.open)
        await world.stop()

    in_virtual_time(program())


def test_a_message_is_stored_once_though_the_clock_was_set_back_since() -> None:
    """J1: it is looked for at any time, also at one that has not come yet."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        world.end_and_die(paid, Outcome.COMMIT, puts=1)
        await world.kill()
        world.clock.jump(-3_600_000)
        world.start()
        await world.folded()
        world.end(paid, Outcome.COMMIT)
        assert ([b"paid"], 0) == (world.bodies(), world.open)
        await world.stop()

    in_virtual_time(program())


def test_messages_that_rocketmq_5_committed_without_their_ops_are_not_stored_again() -> None:
    """J1: it collects ops for 3 s, and may die before. Our checker finds the messages by their keys."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        sent = [world.send(b"%d" % number) for number in range(5)]
        for one in sent[:4]:
            world.end_and_die(one, Outcome.COMMIT, puts=1)
        await world.kill()
        world.start()
        await world.folded()
        assert 5 == world.open
        world.end(sent[0], Outcome.COMMIT)
        with pytest.raises(SystemFailure, match="was committed before"):
            world.end(sent[1], Outcome.ROLLBACK)
        await asyncio.sleep(31)
        assert 1 == world.open
        assert [b"0", b"1", b"2", b"3"] == world.bodies()
        await world.stop()

    in_virtual_time(program())


def test_an_op_that_finds_no_space_is_written_later() -> None:
    """J1: the message is stored, the transaction has ended; progress waits for the op."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        put, puts = world.store.put, 0

        def full(draft: Draft) -> Placed:
            nonlocal puts
            puts += 1
            if puts > 1:
                raise DiskFull("the disk is full")
            return put(draft)

        world.store.put = full
        world.end(paid, Outcome.COMMIT)
        await asyncio.sleep(20)
        assert ([b"paid"], [], 0) == (world.bodies(), world.bodies(names.OP_HALF_TOPIC), world.open)
        assert world.progress[0] <= 0
        world.store.put = put
        await asyncio.sleep(20)
        assert ([b"paid"], [b"0"]) == (world.bodies(), world.bodies(names.OP_HALF_TOPIC))
        assert (1, 1) == world.progress
        await world.stop()

    in_virtual_time(program())


def test_many_ops_that_found_no_space_are_written_in_several_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """J1: a full disk may have left those of all open transactions."""
    monkeypatch.setattr("ternmq.transaction.transactions._BATCHES_MAX", 2)
    count = 1_200

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        sent = [world.send(b"%d" % number) for number in range(count)]
        store, batches = world.store, 0
        put, put_batch, put_packed = store.put, store.put_batch, store.put_packed

        def full(*_arguments: Any, **_options: Any) -> Any:
            raise DiskFull("the disk is full")

        def counted(pack: Any, *, answers_at_once: bool = True) -> bool:
            nonlocal batches
            is_put = put_packed(pack, answers_at_once=answers_at_once)
            batches += is_put
            return is_put

        def counted_batch(*arguments: Any, **options: Any) -> Any:
            nonlocal batches
            batches += 1
            return put_batch(*arguments, **options)

        store.put = store.put_batch = store.put_packed = full
        for one in sent:
            world.end(one, Outcome.ROLLBACK)
        await asyncio.sleep(3)
        store.put, store.put_batch, store.put_packed = put, counted_batch, counted
        most = before = 0
        while len(world.bodies(names.OP_HALF_TOPIC)) < count:
            await asyncio.sleep(0.1)
            most, before = max(most, batches - before), batches
        assert 2 == most
        assert sorted(range(count)) == sorted(map(int, world.bodies(names.OP_HALF_TOPIC)))
        await world.stop()
        world.start()
        await world.folded()
        assert ([], 0) == (world.bodies(), world.open)
        await world.stop()

    in_virtual_time(program())


def test_progress_never_passes_what_a_power_cut_can_take() -> None:
    """J1, C6: a half whose op is lost must be found again, or its message would be lost with the commit."""

    async def program() -> None:
        for seed in range(30):
            world = World(seed)
            world.start()
            await world.folded()
            sent = [world.send(b"%d" % number) for number in range(20)]
            world.store.flush_now()
            for one in sent:
                world.end(one, Outcome.COMMIT)
                if world.random.random() < 0.3:
                    await asyncio.sleep(world.random.random() * 3)
            world.transactions.tend()
            world.transactions.tend()
            world.offsets.save()
            await world.cut_power()
            world.start()
            await world.folded()
            for one in sent:
                world.end(one, Outcome.COMMIT)
            assert sorted(b"%d" % number for number in range(20)) == sorted(world.bodies()), seed
            await world.stop()

    in_virtual_time(program())


def test_a_start_reads_only_what_is_not_done_with() -> None:
    """J1: progress of halves and ops is kept as RocketMQ keeps it."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        sent = [world.send(b"%d" % number) for number in range(300)]
        for one in sent:
            if one is not sent[250]:
                world.end(one, Outcome.COMMIT)
        await asyncio.sleep(20)
        # The last op that names a half behind the open one came when all before were done with.
        assert (250, 250) == world.progress
        await world.stop()
        world.start()
        await world.folded()
        assert [250] == list(world.transactions.ledger.open)
        world.end(sent[250], Outcome.COMMIT)
        await asyncio.sleep(20)
        assert (300, 300) == world.progress
        await world.stop()

    in_virtual_time(program())


def test_the_end_of_a_term_answers_those_that_wait() -> None:
    """J2: no transaction is ended by a master that is none."""

    async def program() -> None:
        world = World()
        world.start()
        waiting = asyncio.ensure_future(world.folded())
        world.checker.stop(NotRunning("another broker is the master"))
        with pytest.raises(NotRunning):
            await waiting
        await world.kill()

    in_virtual_time(program())


def test_one_open_half_does_not_hold_the_queue_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """J2: it is moved to the end when much was read past it, without counting a check, and its wait goes on."""
    monkeypatch.setattr("ternmq.transaction.transactions.LAG_MAX", 50)

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        orphan = world.send(b"orphan", group="gone")
        began_ms = world.clock.now_ms()
        for number in range(200):
            world.end(world.send(b"%d" % number), Outcome.ROLLBACK)
        await asyncio.sleep(20)
        assert world.progress[0] >= 200
        [at] = world.transactions.ledger.open
        _, half = world.transactions.find(at)  # type: ignore[misc]
        assert (0, orphan.queue_offset, began_ms) == (half.checks, half.first, half.since_ms)
        await world.stop()
        world.start()
        await world.folded()
        # Under its first name, too.
        world.end(orphan, Outcome.COMMIT)
        assert [b"orphan"] == world.bodies()
        [record] = world.records()
        assert props.find(record.properties, "TERN_WAITS_SINCE") is None
        await world.stop()

    in_virtual_time(program())


def test_a_log_that_is_deleted_while_it_is_folded_leaves_no_ended_transaction_open() -> None:
    """J1, C9: a broker that was down for days begins with old ops, which retention may delete before they are read."""

    async def program() -> None:
        world = World(file_reserved_time=1)
        world.start()
        await world.folded()
        world.send(b"never ended")
        for _ in range(600):
            world.end(world.send(), Outcome.ROLLBACK)
        # Until all is on the disk.
        await asyncio.sleep(130)
        assert (0, 0) == world.progress
        await world.stop()

        world.clock.jump(3 * 3_600_000)
        world.start()
        while not world.transactions.ledger.next_op:
            await asyncio.sleep(0)
        world.store.retention.ask()
        world.store.tick()
        assert world.transactions.ledger.next_op < world.store.min_offset(names.OP_HALF_TOPIC, 0) < 600
        await world.folded()
        assert (600, 0) == (world.transactions.ledger.next_op, world.open)
        await world.stop()

    in_virtual_time(program())
