"""Ordered pops (F9)."""

from __future__ import annotations

from typing import Any

import pytest

from ternmq.errors import MessageIllegal
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.pop import OrderRecord, OrderTable
from ternmq.wire.handles import ORDERED
from tests.pop.world import GROUP, TOPIC, InHand, World

KEY = (GROUP, TOPIC, 0)


def sent(count: int = 5) -> World:
    world = World()
    for number in range(count):
        world.send(b"%d" % number)
    return world


def pop(world: World, count_max: int = 2, **fields: Any) -> list[InHand]:
    return world.pop(count_max=count_max, ordered=True, revive_queue_id=ORDERED, invisible_ms=10_000, **fields)


def ack(world: World, message: InHand) -> None:
    """As the broker does it."""
    next_offset = world.orders.ack(message.key, message.queue_offset, message.pop_time_ms)
    if next_offset is not None:
        world.offsets.commit(*message.key, next_offset)


def bodies(messages: list[InHand]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_queue_is_blocked_until_its_messages_are_acked() -> None:
    """F9: all of them; other queues are not."""
    world = sent()
    world.send(b"other", 1)
    first, second = pop(world)

    assert [] == pop(world)
    assert [b"other"] == bodies(world.pop(1, ordered=True))
    ack(world, second)
    assert [] == pop(world)
    ack(world, first)

    assert [KEY] == world.freed
    assert (2, [b"2", b"3"]) == (world.committed(), bodies(pop(world)))


def test_what_is_not_acked_in_time_comes_again_before_all_that_follow() -> None:
    """F9: with the number of times; a waiting pop is told when the queue is free."""
    world = sent()
    first, second, third = pop(world, 3)
    ack(world, first)
    ack(world, third)

    world.pass_time(9.9)
    assert ([], []) == (pop(world), world.freed)
    world.pass_time(0.1)

    assert [KEY] == world.freed
    assert [b"1", b"2", b"3"] == bodies(pop(world, 3))
    # The old handle is not good any more.
    ack(world, second)
    assert 1 == world.committed()


def test_counts_tell_how_often_a_message_was_handed_out_before() -> None:
    """F9"""
    world = sent()
    wish: dict[str, Any] = {"pop_time_ms": 1, "invisible_ms": 0, "attempt_id": None}

    assert ({}, 0) == world.orders.popped(KEY, queue_offsets=[0, 1], **wish)
    assert ({0: 1, 1: 1}, 1) == world.orders.popped(KEY, queue_offsets=[0, 1], **wish)
    assert ({1: 2}, 0) == world.orders.popped(KEY, queue_offsets=[1, 2], **wish)


def test_the_same_attempt_gets_the_same_messages_uncounted() -> None:
    """F9: its answer was lost on the way."""
    world = sent()
    pop(world, attempt_id="a")

    assert [b"0", b"1"] == bodies(pop(world, attempt_id="a"))
    assert [] == pop(world, attempt_id="b")
    assert [] == pop(world)


def test_a_changed_time_blocks_the_queue_for_longer() -> None:
    """F9"""
    world = sent()
    first, second = pop(world)
    ack(world, first)

    world.orders.change(KEY, second.queue_offset, second.pop_time_ms, world.clock.now_ms() + 60_000)

    world.pass_time(59)
    assert [] == pop(world)
    world.pass_time(1)
    assert [b"1", b"2"] == bodies(pop(world))


def test_a_queue_is_blocked_until_the_last_of_its_messages_is_visible() -> None:
    """F9: whichever of them was changed, to a shorter time or a longer one."""
    world = sent()
    first, second = pop(world)
    world.orders.change(KEY, first.queue_offset, first.pop_time_ms, world.clock.now_ms() + 1_000)
    world.pass_time(9)
    assert ([], []) == (pop(world), world.freed)

    world.orders.change(KEY, second.queue_offset, second.pop_time_ms, world.clock.now_ms() + 20_000)
    world.pass_time(19)
    assert ([], []) == (pop(world), world.freed)
    world.pass_time(1)

    assert ([b"0", b"1"], {KEY}) == (bodies(pop(world)), {*world.freed})


def test_who_waits_is_told_when_a_shortened_time_is_over() -> None:
    """F8, F9: not only when the first one would have been."""
    world = sent()
    (message,) = pop(world, 1)

    world.orders.change(KEY, message.queue_offset, message.pop_time_ms, world.clock.now_ms() + 1_000)
    world.pass_time(1)

    assert [KEY] == world.freed


def test_a_queue_is_free_at_the_shorter_time_once_the_message_hidden_longest_is_acked() -> None:
    """F8, F9, issue 13.15: then the shorter time of another counts, as RocketMQ 5.2.0's PopOrderlyIT has it."""
    world = sent()
    first, second, third = pop(world, 3)
    ack(world, first)
    world.orders.change(KEY, second.queue_offset, second.pop_time_ms, world.clock.now_ms() + 3_000)
    ack(world, third)

    world.pass_time(2.9)
    assert [] == world.freed
    world.pass_time(0.1)

    assert [KEY] == world.freed
    assert [b"1", b"2"] == bodies(pop(world))
    world.pass_time(9.9)
    assert [KEY] == world.freed  # the old times of the first batch are void


def test_the_deadlines_of_a_batch_that_is_changed_again_and_again_do_not_grow() -> None:
    """F9, issue 13.15: a consumer may renew a time as often as it likes."""
    world = sent()
    (message,) = pop(world, 1)

    for number in range(10_000):
        visible_ms = world.clock.now_ms() + 3_600_000 + number
        world.orders.change(KEY, message.queue_offset, message.pop_time_ms, visible_ms)

    assert len(world.orders.deadlines) <= 1_001


def test_an_ack_of_a_message_that_was_not_handed_out_is_illegal() -> None:
    """F9"""
    world = sent()
    message, _ = pop(world)

    with pytest.raises(MessageIllegal, match="offset is illegal"):
        world.orders.ack(KEY, 4, message.pop_time_ms)


def test_a_stop_keeps_blocked_queues_and_a_kill_hands_out_again() -> None:
    """F9: in order in either case."""
    world = sent()
    first, _ = pop(world)
    ack(world, first)

    world.stop()
    world.start()
    assert [] == pop(world)
    world.pass_time(10)
    assert [b"1", b"2"] == bodies(pop(world))

    world.kill()
    world.start()
    world.pass_time(10)
    assert [b"1", b"2"] == bodies(pop(world))


def test_a_stop_keeps_all_that_is_known_of_a_batch() -> None:
    """F9: acks, changed times and the attempt; a waiting pop is told when the queue is free."""
    world = sent()
    first, second, third = pop(world, 3, attempt_id="a")
    ack(world, first)
    ack(world, third)
    world.orders.change(KEY, second.queue_offset, second.pop_time_ms, world.clock.now_ms() + 60_000)

    world.stop()
    world.start()

    assert (False, True) == (world.orders.is_blocked(KEY, "a"), world.orders.is_blocked(KEY, "b"))
    world.pass_time(59)
    assert [] == world.freed
    world.pass_time(1)
    assert [KEY] == world.freed
    ack(world, second)
    assert 3 == world.committed()


def test_a_stop_keeps_the_counts() -> None:
    """F9"""
    world = sent()
    pop(world, 1)
    world.pass_time(10)
    pop(world, 1)

    world.stop()
    world.start()
    world.pass_time(10)

    counts = world.orders.popped(
        KEY, pop_time_ms=world.clock.now_ms(), invisible_ms=1, queue_offsets=[0], attempt_id=None
    )
    assert ({0: 2}, 2) == counts


def test_a_change_of_an_earlier_pop_is_left_alone() -> None:
    """F9: the message was handed out again since."""
    world = sent()
    (late, *_) = pop(world)
    world.pass_time(10)
    pop(world)

    world.orders.change(KEY, late.queue_offset, late.pop_time_ms, world.clock.now_ms() + 60_000)
    world.pass_time(10)

    assert [b"0", b"1"] == bodies(pop(world))


def test_a_moved_or_deleted_group_is_not_blocked() -> None:
    """F9, D4"""
    world = sent()
    pop(world)
    world.offsets.commit(*KEY, 3)
    world.taker.reset(KEY)
    assert [b"3", b"4"] == bodies(pop(world))

    world.orders.forget(group=GROUP)

    assert [b"3", b"4"] == bodies(pop(world))


def test_a_queue_is_popped_in_one_way_at_a_time() -> None:
    """F9: in order or not; or one would move the offset past what the other has in flight."""
    world = sent()
    first, second = pop(world)
    assert [] == world.pop()
    ack(world, first)
    ack(world, second)

    third = world.pop(count_max=1)
    assert [b"2"] == bodies(third)
    assert [] == pop(world)
    world.ack(*third)

    assert [b"3", b"4"] == bodies(pop(world))


def test_what_is_not_popped_any_more_is_forgotten_after_a_day() -> None:
    """F9: the table of groups that are gone does not grow; their offsets stay."""
    world = sent()
    world.send(b"other", 1)
    pop(world)
    world.pass_time(24 * 3600 - 1)
    (other,) = world.pop(1, ordered=True)
    world.orders.save()
    assert {2, 1} == {len(record.offsets) for record in saved(world).values()}

    world.pass_time(1)
    ack(world, other)
    world.orders.save()

    assert [1] == [len(record.offsets) for record in saved(world).values()]
    assert (0, [b"0", b"1"]) == (world.committed(), bodies(pop(world)))


def saved(world: World) -> dict[int, OrderRecord]:
    """The table in the file, by queue."""
    table = world.file("orders").load(lambda data: decode(data, OrderTable))
    assert table is not None
    records = table.table.get(f"{TOPIC}@{GROUP}", {})
    return {queue_id: decode(data, OrderRecord) for queue_id, data in records.items()}


def test_a_filter_moves_the_offset_over_what_is_not_wanted() -> None:
    """F9, K1"""
    world = World()
    for tag in "BBBA":
        world.send(tag.encode(), TAGS=tag)

    assert [b"A"] == bodies(pop(world, matches=lambda code: code == ord("A")))
    assert 0 <= world.committed() <= 3


def test_an_ordered_pop_does_not_look_again_at_what_is_not_wanted() -> None:
    """F9, K1"""
    world = sent()

    assert [] == pop(world, matches=lambda _code: False)

    assert 5 == world.committed()
