"""Queue locks of orderly consumers (F2)."""

from __future__ import annotations

from ternmq.broker.tables.locks import LOCK_S, Locks
from ternmq.message import MessageQueue
from tests.manual_clock import ManualClock

QUEUES = [MessageQueue("t", "broker-a", queue_id) for queue_id in range(3)]


def test_a_queue_has_one_holder_in_a_group() -> None:
    """F2: another group has locks of its own."""
    locks = Locks(ManualClock())

    assert locks.lock("g", "one", QUEUES[:2]) == QUEUES[:2]
    assert locks.lock("g", "two", QUEUES) == QUEUES[2:]
    assert locks.lock("h", "two", QUEUES) == QUEUES


def test_a_lock_that_is_renewed_stays_and_one_that_is_not_ends_after_a_minute() -> None:
    """F2: 60 s from the last renewal."""
    clock = ManualClock()
    locks = Locks(clock)
    locks.lock("g", "one", QUEUES)
    clock.advance(LOCK_S - 1)
    locks.lock("g", "one", QUEUES[:1])
    clock.advance(1)

    assert locks.lock("g", "two", QUEUES) == QUEUES[1:]
    assert locks.holder("g", QUEUES[0]) == "one"
    assert locks.holder("g", QUEUES[1]) == "two"


def test_only_the_holder_gives_a_lock_back() -> None:
    locks = Locks(ManualClock())
    locks.lock("g", "one", QUEUES)

    locks.unlock("g", "two", QUEUES)
    assert locks.lock("g", "two", QUEUES) == []
    locks.unlock("g", "one", QUEUES)
    assert locks.lock("g", "two", QUEUES) == QUEUES


def test_locks_that_ended_are_forgotten() -> None:
    clock = ManualClock()
    locks = Locks(clock)
    locks.lock("g", "one", QUEUES[:1])
    clock.advance(LOCK_S)
    locks.lock("h", "one", QUEUES[:1])

    locks.forget_expired()

    assert locks.holder("g", QUEUES[0]) is None
    assert locks.holder("h", QUEUES[0]) == "one"
