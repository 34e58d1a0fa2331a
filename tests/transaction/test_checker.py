"""Check-back (J2)."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from ternmq import names
from ternmq.errors import NetworkError, StoreError, SystemFailure
from ternmq.message import Outcome, Property
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.header import Header
from ternmq.wire.ids import offset_id
from tests.store.small import HOST
from tests.transaction.world import RULES, Asked, World, in_virtual_time

HOUR_S = 3600


def test_a_producer_is_asked_after_the_immunity_and_then_each_interval() -> None:
    """J2: with the message as it was sent, and the offsets of a copy that was written for the check."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        await asyncio.sleep(26)
        paid = world.send(b"paid")
        await asyncio.sleep(5)
        assert [] == member.checks  # it is 5 s old when the first round comes
        await asyncio.sleep(30)
        assert 1 == len(member.checks)
        await asyncio.sleep(60)
        assert 3 == len(member.checks)

        check, record = member.checks[-1], member.records[-1]
        assert ("orders", b"paid", paid.transaction_id) == (record.topic, bytes(record.body), check.transaction_id)
        assert ("3", "0") == (
            props.find(record.properties, "TRANSACTION_CHECK_TIMES"),
            props.find(world.records(names.HALF_TOPIC)[-1].properties, "TRAN_PREPARED_QUEUE_OFFSET"),
        )
        world.answer(check, Outcome.COMMIT)
        await asyncio.sleep(60)
        assert (3, [b"paid"], 0) == (len(member.checks), world.bodies(), world.open)
        await world.stop()

    in_virtual_time(program())


def test_an_answer_to_an_older_check_counts() -> None:
    """J2: also that of the first send. RocketMQ would commit a half that it has left behind, and the copy again."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        first, second = world.send(b"first"), world.send(b"second")
        await asyncio.sleep(91)
        assert 6 == len(member.checks)
        world.end(first, Outcome.COMMIT)
        world.answer(member.checks[1], Outcome.COMMIT)
        world.answer(member.checks[5], Outcome.COMMIT)
        assert second.transaction_id == member.checks[5].transaction_id
        assert [b"first", b"second"] == world.bodies()
        await asyncio.sleep(60)
        assert (6, 0) == (len(member.checks), world.open)
        await world.stop()

    in_virtual_time(program())


def test_a_producer_can_ask_for_a_longer_immunity() -> None:
    """J2: no check before; and its half is not written again and again meanwhile."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        world.send(b"paid", CHECK_IMMUNITY_TIME_IN_SECONDS="100")
        await asyncio.sleep(100)
        assert ([], 1) == (member.checks, len(world.records(names.HALF_TOPIC)))
        await asyncio.sleep(30)
        assert 1 == len(member.checks)
        await world.stop()

    in_virtual_time(program())


def test_after_fifteen_checks_the_half_is_discarded_and_can_be_resumed() -> None:
    """J2: it lies in TRANS_CHECK_MAX_TIME_TOPIC; 323 has it checked again, from the first time on."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        await asyncio.sleep(16 * 30 + 10)
        assert (15, 0) == (len(member.checks), world.open)
        [discarded] = world.records(names.CHECK_MAX_TOPIC)
        assert (b"paid", "orders") == (bytes(discarded.body), props.find(discarded.properties, Property.REAL_TOPIC))
        with pytest.raises(SystemFailure, match="rolled back or discarded"):
            world.end(paid, Outcome.COMMIT)

        await world.transactions.resume(discarded.log_offset, "")
        await world.transactions.resume(discarded.log_offset, "")
        await asyncio.sleep(31)
        assert 17 == len(member.checks)
        for check in member.checks[-2:]:
            world.answer(check, Outcome.COMMIT)
        assert ([b"paid"], 0) == (world.bodies(), world.open)
        with pytest.raises(SystemFailure, match="was committed before"):
            await world.transactions.resume(discarded.log_offset, "")
        await world.stop()

    in_virtual_time(program())


def test_what_was_not_discarded_cannot_be_resumed() -> None:
    """J2, bad input: a message, an open half, nothing."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        world.end(world.send(b"done"), Outcome.COMMIT)
        [message] = world.records()
        for log_offset in (paid.log_offset, message.log_offset, 1 << 50):
            with pytest.raises(SystemFailure, match="there is no discarded half message"):
                await world.transactions.resume(log_offset, offset_id(HOST, log_offset))
        await world.stop()

    in_virtual_time(program())


def test_only_checks_that_reached_a_producer_count() -> None:
    """J2: where RocketMQ discards after 15 rounds without a producer, the half waits, and is not written again."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        world.send(b"paid")
        await asyncio.sleep(HOUR_S)
        assert (1, 1) == (world.open, len(world.records(names.HALF_TOPIC)))
        member = Asked()
        world.producers = [member]
        await asyncio.sleep(31)
        world.answer(member.checks[0], Outcome.COMMIT)
        assert [b"paid"] == world.bodies()
        await world.stop()

    in_virtual_time(program())


def test_a_half_without_a_producer_is_discarded_after_twelve_hours() -> None:
    """J2: counted from the last check that reached one, over restarts."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        world.send(b"paid")
        await asyncio.sleep(31)
        world.producers = []
        await asyncio.sleep(11 * HOUR_S)
        await world.stop()
        world.start()
        await asyncio.sleep(HOUR_S - 300)
        assert (1, 1) == (world.open, len(member.checks))
        await asyncio.sleep(600)
        assert (0, [b"paid"]) == (world.open, world.bodies(names.CHECK_MAX_TOPIC))
        await world.stop()

    in_virtual_time(program())


def test_members_are_asked_in_turn_and_one_that_does_not_read_is_left_out() -> None:
    """J2: any live producer of the group."""

    async def program() -> None:
        world = World()
        full, one, other = Asked(), Asked(), Asked()
        full.is_full = True
        world.producers = [full, one, other]
        world.start()
        await world.folded()
        world.send(b"paid")
        await asyncio.sleep(4 * 30 + 1)
        assert (0, 2, 2) == (len(full.checks), len(one.checks), len(other.checks))
        await world.stop()

    in_virtual_time(program())


def test_a_connection_that_breaks_under_a_check_does_not_stop_the_others() -> None:
    """J2"""

    class Broken(Asked):
        def call_oneway(self, code: int, header: Header | None = None, body: Buffer = b"") -> None:
            raise NetworkError("the connection is closed")

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [Broken(), member]
        world.start()
        await world.folded()
        for number in range(10):
            world.send(b"%d" % number)
        await asyncio.sleep(31)
        assert 5 == len(member.checks)
        await asyncio.sleep(30)
        assert 10 == len(member.checks)
        await world.stop()

    in_virtual_time(program())


def test_a_clock_that_is_set_back_does_not_stop_the_checks() -> None:
    """J2"""

    async def program() -> None:
        world = World()
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        world.send(b"paid")
        world.clock.jump(-24 * HOUR_S * 1000)
        await asyncio.sleep(31)
        assert 1 == len(member.checks)
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("is_young", [True, False])
def test_nor_does_it_stop_those_of_halves_that_were_looked_at_before(is_young: bool) -> None:
    """J2: one that was too young for a check, or had no producer. Both would wait until the clock is there again."""

    async def program() -> None:
        world = World()
        member = Asked()
        world.start()
        await world.folded()
        await asyncio.sleep(26 if is_young else 1)
        world.send(b"paid")
        await asyncio.sleep(31)
        world.producers = [member]
        world.clock.jump(-24 * HOUR_S * 1000)
        await asyncio.sleep(31)
        assert 1 == len(member.checks)
        await world.stop()

    in_virtual_time(program())


def test_a_half_whose_copy_does_not_fit_is_asked_about_and_counted_in_memory() -> None:
    """J2: its properties have the size that a record can hold."""

    async def program() -> None:
        world = World(rules=replace(RULES, checks_max=3), mapped_file_size_commit_log=1 << 20)
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        room = 32_767 - len(world.records(names.HALF_TOPIC)[0].properties.encode())
        world.end(paid, Outcome.ROLLBACK)
        world.send(b"large", X="x" * (room - 20))
        await asyncio.sleep(3 * 30 + 1)
        assert (3, 2) == (len(member.checks), len(world.records(names.HALF_TOPIC)))
        await asyncio.sleep(31)
        assert (3, [b"large"]) == (len(member.checks), world.bodies(names.CHECK_MAX_TOPIC))
        await world.stop()

    in_virtual_time(program())


def test_a_half_that_cannot_be_read_is_dropped_with_an_error(caplog: pytest.LogCaptureFixture) -> None:
    """J2: of a damaged log."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        world.send(b"paid")
        world.transactions.catch_up()
        world.transactions.ledger.open[0] = 5  # no record begins there
        await asyncio.sleep(31)
        assert 0 == world.open
        await world.stop()

    in_virtual_time(program())
    assert "cannot be read and is dropped" in caplog.text


def test_a_half_is_moved_before_its_log_is_deleted() -> None:
    """J2, C9: with an immunity longer than the log is kept."""

    async def program() -> None:
        world = World(retention_h=2)
        world.start()
        await world.folded()
        world.send(b"paid")
        await asyncio.sleep(2.5 * HOUR_S)
        assert (1, 3) == (world.open, len(world.records(names.HALF_TOPIC)))
        await world.stop()

    in_virtual_time(program())


def test_a_half_with_an_immunity_longer_than_the_log_is_kept_is_moved() -> None:
    """J2, C9: its producer is connected and is not asked before; the half would be deleted with its segment."""

    async def program() -> None:
        world = World(retention_h=2)
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        world.send(b"paid", CHECK_IMMUNITY_TIME_IN_SECONDS=str(5 * 3600))
        await asyncio.sleep(4.5 * HOUR_S)
        halves = world.records(names.HALF_TOPIC)
        assert (1, 0) == (world.open, len(member.checks))
        assert world.clock.now_ms() - halves[-1].store_time_ms < 1.1 * HOUR_S * 1000
        await asyncio.sleep(0.6 * HOUR_S)
        assert member.checks
        world.answer(member.checks[-1], Outcome.COMMIT)
        assert [b"paid"] == world.bodies()
        await world.stop()

    in_virtual_time(program())


def test_a_half_that_cannot_be_moved_does_not_stop_the_checks_of_others() -> None:
    """J2: its properties have the size that a record can hold, and no producer of its group is connected."""

    async def program() -> None:
        world = World(retention_h=2, mapped_file_size_commit_log=1 << 20)
        member = Asked()
        world.producers = [member]
        world.start()
        await world.folded()
        ended = world.send(b"ended", group="gone")
        room = 32_767 - len(world.records(names.HALF_TOPIC)[0].properties.encode())
        world.end(ended, Outcome.ROLLBACK)
        world.send(b"large", group="gone", X="x" * (room - 20))
        await asyncio.sleep(1.5 * HOUR_S)
        world.send(b"paid")
        await asyncio.sleep(61)
        assert 1 <= len(member.checks)
        assert 2 == world.open
        await world.stop()

    in_virtual_time(program())


@pytest.mark.parametrize("fails_from_the_start", [True, False])
def test_a_disk_that_fails_for_a_while_does_not_end_the_checks(fails_from_the_start: bool) -> None:
    """J2: neither the fold of the begin, nor the rounds, nor the progress."""

    async def program() -> None:
        world = World()
        world.start()
        await world.folded()
        paid = world.send(b"paid")
        await world.stop()
        member = Asked()
        world.producers = [member]
        world.start()
        entries = world.store.entries

        def failing(*_arguments: Any, **_options: Any) -> Any:
            raise StoreError("the disk cannot be read")

        if not fails_from_the_start:
            await world.folded()
        world.store.entries = failing
        await asyncio.sleep(40)
        world.store.entries = entries
        await asyncio.sleep(40)
        assert member.checks
        world.end(paid, Outcome.COMMIT)
        await asyncio.sleep(10)
        assert ([b"paid"], 0) == (world.bodies(), world.open)
        assert world.progress[0] == world.transactions.ledger.next_half
        await world.stop()

    in_virtual_time(program())
