"""Safety: levels with their limits and codes, and senders that wait once for all of them (C6, O1)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path

import pytest

from ternmq.errors import NotRunning, ServiceNotAvailable, SystemBusy, TernError
from ternmq.store.config import FlushDiskType
from ternmq.store.durable.safety import Level, Lowest, Safety
from ternmq.store.durable.watermark import Watermark
from ternmq.wire.codes import ResponseCode
from tests.store.small import draft, small_config
from tests.store.test_late_log import late_store

TAKEN_BACK = NotRunning("another leader has other records here")


class Levels:
    """A disk with a limit of 5 s and a slave with 3 s, as a synchronous master has them."""

    def __init__(self, *, slave: Level | None = None) -> None:
        self.disk, self.slave = Watermark(), Watermark()
        self.slave_level = slave or Level(self.slave, 3000, ResponseCode.FLUSH_SLAVE_TIMEOUT)
        self.safety = Safety([Level(self.disk, 5000, ResponseCode.FLUSH_DISK_TIMEOUT), self.slave_level])
        self.told: list[tuple[int, int]] = []

    def wait(self, end_offset: int, now: float = 0.0) -> None:
        self.safety.wait(end_offset, lambda code: self.told.append((end_offset, code)), now)


# --- The smallest of several ------------------------------------------------------------------------------------


def test_the_lowest_watermark_counts() -> None:
    """C6: a caller is called when all have passed its offset, in the order of offsets."""
    one, two = Watermark(), Watermark()
    lowest = Lowest([one, two])
    called: list[int] = []
    for offset in (30, 10, 20):
        lowest.call_when(offset, partial(called.append, offset))
    one.advance(25)
    assert ([], 0) == (called, lowest.value)
    two.advance(12)
    assert ([10], 12) == (called, lowest.value)
    two.advance(100)
    assert ([10, 20], 25) == (called, lowest.value)
    one.advance(100)
    assert ([10, 20, 30], 0) == (called, lowest.waiting)
    lowest.call_when(100, partial(called.append, 100))
    assert [10, 20, 30, 100] == called


def test_a_watermark_that_comes_later_is_waited_for() -> None:
    """O1: also by callers that wait already; and one that goes is not."""
    one, late = Watermark(50), Watermark(10)
    lowest = Lowest([one])
    called: list[int] = []
    lowest.call_when(60, partial(called.append, 60))
    lowest.change([one, late])
    assert 10 == lowest.value
    lowest.call_when(40, partial(called.append, 40))
    one.advance(70)
    assert [] == called
    late.advance(45)
    assert [40] == called
    lowest.change([one])
    assert [40, 60] == called


def test_no_level_holds_up_nothing() -> None:
    """C6: ASYNC_FLUSH on a single broker."""
    called: list[int] = []
    Lowest().call_when(1 << 40, partial(called.append, 1))
    assert [1] == called


async def test_reached_waits_for_all() -> None:
    """C6: with a limit; and a record that is taken back is an error."""
    one, two = Watermark(), Watermark(100)
    lowest = Lowest([one, two])
    assert not await lowest.reached(10, 1)
    waiting = asyncio.create_task(lowest.reached(10, 60_000))
    gone = asyncio.create_task(lowest.reached(20, 60_000))
    await asyncio.sleep(0)
    one.advance(10)
    assert await waiting
    for mark in (one, two):
        mark.retreat(10, TAKEN_BACK)
    lowest.retreat(10, TAKEN_BACK)
    with pytest.raises(NotRunning):
        await gone


def test_a_caller_waits_on_after_the_watermark_that_held_it_up_went_back() -> None:
    """C6: a truncation above its record does not concern it."""
    one, two = Watermark(5), Watermark(100)
    lowest = Lowest([one, two])
    heard: list[object] = []
    lowest.call_when(8, partial(heard.append, 8), heard.append)
    lowest.call_when(90, partial(heard.append, 90), heard.append)
    for mark in (one, two):
        mark.retreat(5 if mark is one else 10, TAKEN_BACK)
    lowest.retreat(10, TAKEN_BACK)
    assert [TAKEN_BACK] == heard
    one.advance(9)
    assert [TAKEN_BACK, 8] == heard


# --- Senders ----------------------------------------------------------------------------------------------------


def test_a_sender_is_answered_once_when_all_levels_have_its_record() -> None:
    """C6, O1."""
    levels = Levels()
    levels.wait(10)
    levels.wait(20)
    levels.disk.advance(20)
    assert ([], 2) == (levels.told, levels.safety.waiting)
    levels.slave.advance(15)
    assert [(10, ResponseCode.SUCCESS)] == levels.told
    levels.slave.advance(20)
    levels.safety.expire(100.0)
    assert [(10, ResponseCode.SUCCESS), (20, ResponseCode.SUCCESS)] == levels.told
    assert (0, None) == (levels.safety.waiting, levels.safety.deadline)


def test_a_late_disk_is_told_at_its_limit() -> None:
    """C6: FLUSH_DISK_TIMEOUT after 5 s; the slave, which has it, is not late after 3."""
    levels = Levels()
    levels.wait(10)
    levels.slave.advance(10)
    assert 3.0 == levels.safety.deadline
    levels.safety.expire(3.0)
    assert ([], 5.0) == (levels.told, levels.safety.deadline)
    levels.safety.expire(5.0)
    assert [(10, ResponseCode.FLUSH_DISK_TIMEOUT)] == levels.told
    levels.disk.advance(10)
    assert 1 == len(levels.told)


def test_a_late_slave_is_told_at_its_limit() -> None:
    """O1: FLUSH_SLAVE_TIMEOUT after 3 s; senders that came later wait on."""
    levels = Levels()
    levels.wait(10, 0.0)
    levels.wait(20, 1.0)
    levels.disk.advance(20)
    levels.safety.expire(3.5)
    assert ([(10, ResponseCode.FLUSH_SLAVE_TIMEOUT)], 4.0) == (levels.told, levels.safety.deadline)
    levels.slave.advance(20)
    assert (20, ResponseCode.SUCCESS) == levels.told[-1]
    assert levels.safety.deadline is None


def test_of_two_late_levels_the_first_counts() -> None:
    """C6: when both limits are over, the disk's code is told."""
    levels = Levels()
    levels.wait(10)
    levels.safety.give_up()
    assert [(10, ResponseCode.FLUSH_DISK_TIMEOUT)] == levels.told


def test_no_slave_is_told_before_the_wait() -> None:
    """O1: SLAVE_NOT_AVAILABLE at once, if no slave could get the record in time."""
    slave = Level(
        Watermark(),
        3000,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        check_wait=lambda end_offset: ResponseCode.SLAVE_NOT_AVAILABLE if end_offset > 100 else 0,
    )
    levels = Levels(slave=slave)
    levels.wait(200)
    levels.wait(50)
    assert ([(200, ResponseCode.SLAVE_NOT_AVAILABLE)], 1) == (levels.told, levels.safety.waiting)


def test_too_few_replicas_refuse_before_the_write() -> None:
    """O3: also if senders do not wait for them."""

    def check_write() -> None:
        raise SystemBusy("1 replica is in sync, 2 are needed")

    safety = Safety([Level(Watermark(), 1, 1, is_awaited=False, check_write=check_write)])
    assert (False, True) == (safety.is_awaited, safety.is_guarded)
    with pytest.raises(SystemBusy):
        safety.check_write()


def test_a_level_that_goes_answers_the_senders_that_only_it_kept() -> None:
    """O1: the last slave leaves, and the broker becomes an asynchronous master."""
    levels = Levels()
    levels.wait(10)
    levels.wait(20)
    levels.disk.advance(10)
    levels.safety.remove(levels.slave_level)
    assert [(10, ResponseCode.SUCCESS)] == levels.told
    levels.safety.expire(3.0)
    assert 1 == len(levels.told)
    levels.safety.expire(5.0)
    assert (20, ResponseCode.FLUSH_DISK_TIMEOUT) == levels.told[-1]


def test_a_level_that_comes_is_waited_for_no_longer_than_the_others() -> None:
    """O1: it may have a longer limit than a sender knew of."""
    disk, slow = Watermark(), Watermark()
    safety = Safety([Level(disk, 1000, ResponseCode.FLUSH_DISK_TIMEOUT)])
    told: list[int] = []
    safety.wait(10, told.append, 0.0)
    safety.add(Level(slow, 60_000, ResponseCode.FLUSH_SLAVE_TIMEOUT))
    disk.advance(10)
    assert [] == told
    safety.expire(1.0)
    assert [ResponseCode.FLUSH_SLAVE_TIMEOUT] == told


def test_what_is_not_awaited_is_still_needed_to_be_safe() -> None:
    """C6: ASYNC_FLUSH. Senders are answered at once, features wait for the disk."""
    disk = Watermark()
    safety = Safety([Level(disk, 5000, ResponseCode.FLUSH_DISK_TIMEOUT, is_awaited=False)])
    told: list[int] = []
    safety.wait(10, told.append, 0.0)
    assert ([ResponseCode.SUCCESS], 0) == (told, safety.safe.value)
    disk.advance(10)
    assert 10 == safety.safe.value


@pytest.mark.parametrize(
    ("reason", "code"),
    [(TAKEN_BACK, ResponseCode.SERVICE_NOT_AVAILABLE), (SystemBusy("stepped down"), ResponseCode.SYSTEM_BUSY)],
)
def test_a_sender_whose_record_is_taken_back_is_told_that_it_is_not_stored(reason: TernError, code: int) -> None:
    """C6: else the record of another leader at the same offset would answer it."""
    levels = Levels()
    levels.wait(10)
    levels.wait(20)
    levels.disk.advance(20)
    levels.safety.retreat(10, reason)
    assert ([(20, code)], 1) == (levels.told, levels.safety.waiting)
    levels.disk.advance(20)
    levels.slave.advance(20)
    assert [(20, code), (10, ResponseCode.SUCCESS)] == levels.told


def test_answered_senders_do_not_pile_up() -> None:
    """C6: the queues hold the senders that wait, and few others."""
    levels = Levels()
    for number in range(1, 1000):
        levels.wait(number, number / 1000)
        for mark in (levels.disk, levels.slave):
            mark.advance(number)
    assert all(len(queue) <= 1 for queue in levels.safety._queues.values())
    assert 999 == len(levels.told)


# --- In a store -------------------------------------------------------------------------------------------------


def test_a_truncation_of_the_store_fails_the_senders_above_it(tmp_path: Path) -> None:
    """C6: with two levels, and the store's own disk is one of them."""
    with late_store(small_config(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)) as store:
        slave = Watermark()
        store.safety.add(Level(slave, 3000, ResponseCode.FLUSH_SLAVE_TIMEOUT))
        kept, gone = store.put(draft()), store.put(draft())
        told: list[tuple[str, int]] = []
        for name, placed in (("kept", kept), ("gone", gone)):
            store.safety.wait(placed.end_offset, lambda code, name=name: told.append((name, code)), 0.0)  # type: ignore[misc]
        features: list[object] = []
        store.safe.call_when(gone.end_offset, partial(features.append, "safe"), features.append)
        store.flush_now()
        reason = ServiceNotAvailable("another broker is master")
        store.truncate(kept.end_offset, reason)
        assert [("gone", ResponseCode.SERVICE_NOT_AVAILABLE)] == told
        assert [reason] == features

        # Another record at the same place.
        store.put(draft())
        store.flush_now()
        slave.advance(store.written)
        assert [("gone", ResponseCode.SERVICE_NOT_AVAILABLE), ("kept", ResponseCode.SUCCESS)] == told
        assert [reason] == features
