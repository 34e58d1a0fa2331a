"""Check points with a clock, a log and offsets (F9)."""

from __future__ import annotations

from random import Random

import pytest

from ternmq import names
from ternmq.errors import DiskFull
from ternmq.pop.revive_log import ACK_TAG, BATCH_ACK_TAG, CHECK_POINT_TAG
from ternmq.store.log.draft import Draft
from ternmq.wire import properties as props
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.pop import CheckPointRecord
from ternmq.wire.handles import RETRY_V1, RETRY_V2
from ternmq.wire.properties import join
from tests.pop.world import GROUP, HOST, REVIVE_QUEUES, REVIVE_TOPIC, TOPIC, Options, World
from tests.store.small import read_all


def sent(count: int = 5, options: Options | None = None) -> World:
    """A world with some messages in queue 0."""
    world = World(options)
    for number in range(count):
        world.send(b"%d" % number, TAGS="A" if number % 2 else "B")
    world.store.flush_now()
    return world


def revive_tags(world: World) -> list[str | None]:
    """Tags of all records in the revive log."""
    records = [record for queue in range(REVIVE_QUEUES) for record in read_all(world.store, REVIVE_TOPIC, queue)]
    return [props.find(record.properties, "TAGS") for record in sorted(records, key=lambda each: each.log_offset)]


def test_what_is_acked_in_time_costs_no_byte_of_the_log() -> None:
    """F9: the offset follows, in the order of the pops."""
    world = sent()
    first, second = world.pop(count_max=2), world.pop(count_max=2)
    end = world.store.written

    assert 2 == world.ack(*second)
    assert -1 == world.committed()
    assert 2 == world.ack(*first)

    assert (4, 0, end) == (world.committed(), len(world.buffer), world.store.written)
    world.pass_time(700)
    assert (end, [b"4"]) == (world.store.written, [message.body for message in world.pop()])


def test_one_that_is_not_acked_goes_to_the_log_after_10_s_and_lets_the_offset_pass() -> None:
    """F9: with the acks it has; later ones are records, too."""
    world = sent()
    first, second, third = world.pop(count_max=3)
    later = world.pop(count_max=2)
    world.ack(first)
    world.ack(*later)

    world.pass_time(9.9)
    assert ([], -1) == (revive_tags(world), world.committed())
    world.pass_time(0.2)
    assert ([CHECK_POINT_TAG], -1) == (revive_tags(world), world.committed())
    world.store.flush_now()
    assert 5 == world.committed()

    assert 2 == world.ack(second, third)
    assert [CHECK_POINT_TAG, BATCH_ACK_TAG] == revive_tags(world)
    assert 0 == len(world.buffer)


def test_without_the_buffer_check_points_and_acks_are_records_at_once() -> None:
    """F9"""
    world = sent(options=Options(enabled=False))
    message, *_ = world.pop()

    world.ack(message)

    assert [CHECK_POINT_TAG, ACK_TAG] == revive_tags(world)


def test_a_full_buffer_writes_the_next_one_at_once() -> None:
    """F9"""
    world = sent(options=Options(count_max=1))
    world.pop(count_max=1)
    assert [] == revive_tags(world)

    world.pop(count_max=1)

    assert [CHECK_POINT_TAG] == revive_tags(world)


def test_a_short_invisible_time_leaves_no_time_to_write_it_first() -> None:
    """F9: the copies in the retry topic are enough."""
    world = sent(2)
    world.pop(invisible_ms=3_000)

    world.pass_time(3.1)
    # They are not on the disk yet: a power cut could take them, and must not leave the offset behind them.
    assert -1 == world.committed()
    world.store.flush_now()

    assert ([], 2) == (revive_tags(world), world.committed())
    assert [b"0", b"1"] == [message.body for message in world.pop(retry=RETRY_V1)]


@pytest.mark.parametrize("retry_v2", [False, True])
def test_unacked_messages_come_again_from_the_retry_topic_not_a_millisecond_early(retry_v2: bool) -> None:
    """F9: with all they had, one consumption more, and the time of the first pop."""
    world = sent(3, Options(retry_v2=retry_v2))
    kind = RETRY_V2 if retry_v2 else RETRY_V1
    popped_ms = world.clock.now_ms()
    messages = world.pop(invisible_ms=60_000)
    world.ack(messages[1])

    world.pass_time(59.999)
    assert world.topics.get(world.retry_topic(GROUP, kind)) is None
    world.pass_time(0.001)
    # A broker that reads this store from now on finds where the group is in its retry topic.
    assert 0 == world.offsets.get(GROUP, world.retry_topic(GROUP, kind), 0)
    again = world.pop(retry=kind)

    assert [(b"0", 1), (b"2", 1)] == [(message.body, message.reconsume_times) for message in again]
    assert [TOPIC, TOPIC] == [message.record.topic for message in again]
    found = [props.parse(message.record.properties) for message in again]
    assert [("B", str(popped_ms))] * 2 == [(each["TAGS"], each["1ST_POP_TIME"]) for each in found]
    # Once more: the same retry topic, the same first time.
    world.pass_time(60)
    third = world.pop(retry=kind)
    assert [2, 2] == [message.reconsume_times for message in third]
    assert {str(popped_ms)} == {props.find(message.record.properties, "1ST_POP_TIME") for message in third}


def test_a_late_ack_changes_nothing() -> None:
    """F9"""
    world = sent(1)
    (message,) = world.pop(invisible_ms=1_000)
    world.pass_time(2)

    assert 0 == world.ack(message)
    assert world.change(message, 1_000) is None
    assert [b"0"] == [each.body for each in world.pop(retry=RETRY_V1)]


def test_a_changed_time_is_in_the_log_before_the_old_check_point_ends() -> None:
    """F9: twice within a millisecond, too."""
    world = sent(1)
    (message,) = world.pop()

    changed = world.change(message, 5_000)
    assert changed is not None
    again = world.change(changed, 20_000)
    assert again is not None
    # Its record is not on the disk yet, so the offset has not passed the message.
    assert -1 == world.committed()
    world.store.flush_now()
    assert 1 == world.committed()

    assert world.change(message, 1) is None
    world.pass_time(19.9)
    assert (1, None) == (len(world.buffer), world.topics.get(world.retry_topic(GROUP, RETRY_V1)))
    assert 1 == world.ack(again)
    world.pass_time(60)
    assert world.topics.get(world.retry_topic(GROUP, RETRY_V1)) is None


@pytest.mark.parametrize("restarts", [False, True])
def test_a_changed_time_counts_from_the_change_and_the_message_comes_once(restarts: bool) -> None:
    """F9: the old check point lies in the log by then, and its ack behind it."""
    world = sent(1)
    (message,) = world.pop(invisible_ms=30_000)
    world.pass_time(20)
    world.change(message, 30_000)
    if restarts:
        world.stop()
        world.start()

    world.pass_time(29.5)
    assert world.topics.get(world.retry_topic(GROUP, RETRY_V1)) is None
    world.pass_time(0.5)

    assert [(b"0", 1)] == [(each.body, each.reconsume_times) for each in world.pop(retry=RETRY_V1)]


def test_a_group_that_pulled_meanwhile_does_not_go_back() -> None:
    """D4, F9: acks of what was popped before."""
    world = sent(5)
    messages = world.pop(count_max=2)
    world.offsets.commit(GROUP, TOPIC, 0, 4)

    world.ack(*messages)

    assert (4, [b"4"]) == (world.committed(), [message.body for message in world.pop()])


def test_a_moved_group_is_moved_on_by_what_it_pops_from_then_on_only() -> None:
    """D4, F9: acks of what was in flight then say nothing any more."""
    world = sent(4)
    old = world.pop()
    world.offsets.reset(GROUP, TOPIC, 0, 1, has_readers=True)
    world.taker.reset((GROUP, TOPIC, 0))

    world.ack(*old)
    assert 1 == world.committed()
    again = world.pop()
    world.ack(*again)

    assert ([b"1", b"2", b"3"], 4) == ([message.body for message in again], world.committed())


def test_an_offset_behind_the_end_is_put_right() -> None:
    """D1, F9: of a queue that was longer once; what comes from now on is popped, and not left out."""
    world = sent(3)
    world.offsets.commit(GROUP, TOPIC, 0, 100)

    assert ([], 3) == (world.pop(), world.committed())
    world.send(b"new")

    assert [b"new"] == [message.body for message in world.pop()]


def test_a_pop_of_the_same_name_takes_the_place_of_the_old_one() -> None:
    """F9: the group was moved back and pops within the same millisecond; only one of them is in the buffer."""
    world = sent(1, Options(count_max=1))
    world.pop()
    world.taker.reset((GROUP, TOPIC, 0))
    (message,) = world.pop()

    assert (1, []) == (len(world.buffer), revive_tags(world))
    assert 1 == world.ack(message)


def test_a_stop_keeps_what_is_in_flight_and_handles_stay_good() -> None:
    """F9: nothing is popped twice."""
    world = sent(4)
    messages = world.pop(count_max=3)
    world.ack(messages[0])

    world.stop()
    world.start()

    assert (3, 1) == (world.committed(), len(world.buffer))
    assert [b"3"] == [message.body for message in world.pop()]
    assert 2 == world.ack(*messages[1:])
    world.pass_time(100)
    assert [b"3"] == [message.body for message in world.pop(retry=RETRY_V1)]


def test_acks_of_what_lies_in_the_log_outlive_a_kill() -> None:
    """F9: one by one, and many at once."""
    world = sent(4)
    messages = world.pop()
    world.pass_time(11)
    world.store.flush_now()
    world.ack(messages[0])
    world.ack(*messages[1:3])
    world.save()

    world.kill()
    world.start()
    world.pass_time(60)

    assert [b"3"] == [message.body for message in world.pop(retry=RETRY_V1)]
    assert [] == world.pop()


def test_messages_with_gaps_between_them_outlive_a_kill() -> None:
    """F9, K1: a filter has left out some; those that it let through come again, and an ack of one is of that one."""
    world = sent(7)
    messages = world.pop(matches=lambda code: code == ord("A"))
    assert [b"1", b"3", b"5"] == [message.body for message in messages]
    world.pass_time(11)
    world.store.flush_now()
    world.ack(messages[1])
    world.save()

    world.kill()
    world.start()
    world.pass_time(60)

    assert [b"1", b"5"] == [message.body for message in world.pop(retry=RETRY_V1)]


def test_a_kill_forgets_what_was_in_memory_only_and_pops_it_again() -> None:
    """F9: also what was acked since the offset was saved."""
    world = sent(4)
    messages = world.pop(count_max=2)
    world.ack(*messages)
    world.save()
    again = world.pop(count_max=1)
    world.ack(*again)

    world.kill()
    world.start()

    assert [b"2", b"3"] == [message.body for message in world.pop()]
    assert 0 == world.ack(*messages)


def test_a_power_cut_that_keeps_the_offset_keeps_the_check_point_it_passed() -> None:
    """F9: whatever pages it loses; hence the offset waits for the disk."""
    for seed in range(10):
        world = sent(2)
        world.pop()
        world.pass_time(11)
        world.save()

        world.cut_power(Random(seed))
        world.start()
        world.pass_time(60)

        found = world.pop() + (world.pop(retry=RETRY_V1) if world.topics.get(f"%RETRY%{GROUP}_{TOPIC}") else [])
        assert {b"0", b"1"} == {message.body for message in found}


def test_messages_of_a_deleted_topic_or_group_are_given_up() -> None:
    """F9"""
    world = sent(2)
    world.topics.ensure("gone", queues=1)
    world.send(b"x", topic="gone")
    world.pop(invisible_ms=1_000)
    world.pop(topic="gone", invisible_ms=1_000)

    world.topics.delete("gone")
    world.groups.delete(GROUP)
    world.pass_time(2)

    assert 0 == len(world.buffer)
    assert [] == [topic for topic in world.topics.names() if topic.startswith(names.RETRY_PREFIX)]


def test_a_topic_made_anew_does_not_get_the_old_ones_messages() -> None:
    """F9: their places are taken by others, and the revive log still has their check point."""
    world = sent(1, Options(enabled=False))
    world.pop(invisible_ms=60_000)
    world.store.delete_topics([TOPIC])
    world.kill()
    world.start()
    world.send(b"new")

    world.pass_time(60)

    assert world.topics.get(world.retry_topic(GROUP, RETRY_V1)) is None


def test_a_clock_that_is_set_back_loses_no_message() -> None:
    """F9: stored in what is the future when it is popped, and not acked."""
    world = sent(1)
    (popped,) = world.pop(pop_time_ms=world.clock.now_ms() - 10_000)

    world.pass_time(61)

    assert [popped.body] == [message.body for message in world.pop(retry=RETRY_V1)]


def test_forgetting_a_topic_ends_what_is_in_flight_and_commits_nothing() -> None:
    """F9, D1"""
    world = sent(3, Options(enabled=False))
    world.pop()
    world.offsets.delete_topic(TOPIC)

    world.buffer.forget(topic=TOPIC)

    assert (0, -1, 0) == (len(world.buffer), world.committed(), world.buffer.next_offset((GROUP, TOPIC, 0), 0))


def test_a_full_disk_delays_the_retry_and_loses_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F9: it is tried again after 10 s, 20 s …"""
    world = sent(2)
    world.pop(invisible_ms=1_000)

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "put", full)
        world.pass_time(1)
        world.pass_time(5)
        assert (1, 1) == (len(world.buffer), caplog.text.count("cannot write unacknowledged messages"))
    world.pass_time(6)

    assert [b"0", b"1"] == [message.body for message in world.pop(retry=RETRY_V1)]


def test_an_error_that_was_not_expected_delays_its_own_messages_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: others that are due are written again now, and those that failed later."""
    world = sent(2)
    world.pop(invisible_ms=1_000, count_max=1)
    world.pop(invisible_ms=2_000, count_max=1)
    put = world.store.put
    puts = iter([defective, put])

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "put", lambda draft: next(puts, put)(draft))
        world.pass_time(3)
        assert [b"1"] == [message.body for message in world.pop(retry=RETRY_V1)]
    world.pass_time(11)

    assert [b"0"] == [message.body for message in world.pop(retry=RETRY_V1)]


def defective(_draft: object) -> None:
    raise KeyError("a defect")


def full(_draft: object) -> None:
    raise DiskFull("no space left; free some")


def test_a_disk_that_fills_up_in_the_middle_repeats_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """F9: of three messages one is in the retry topic already when the others are tried again."""
    world = sent(3)
    world.pop(invisible_ms=1_000)
    put = world.store.put
    puts = iter([put, full])

    with monkeypatch.context() as patch:
        patch.setattr(world.store, "put", lambda draft: next(puts)(draft))
        world.pass_time(1)
    world.pass_time(11)

    assert [b"0", b"1", b"2"] == [message.body for message in world.pop(retry=RETRY_V1)]


def test_what_no_filter_lets_through_is_not_looked_at_again() -> None:
    """F9, K1: the offset moves on with it, behind what is in flight."""
    world = sent(6)
    first = world.pop(count_max=1)
    assert [] == world.pop(matches=lambda _code: False)

    assert 6 == world.buffer.next_offset((GROUP, TOPIC, 0), world.committed())
    world.ack(*first)
    assert 6 == world.committed()


def test_one_that_takes_long_is_written_again_so_that_a_start_has_little_to_read() -> None:
    """F9: with the acks that it has."""
    world = sent(20, Options(enabled=False, carry_records=6))
    slow = world.pop(count_max=2, invisible_ms=600_000, revive_queue_id=0)
    world.ack(slow[1])
    for _ in range(8):
        world.ack(*world.pop(count_max=2, revive_queue_id=0))
    world.store.flush_now()
    assert -1 == world.offsets.get(names.REVIVE_GROUP, REVIVE_TOPIC, 0)

    world.buffer.tend()
    # Not before the disk has the new record: a power cut would take both.
    assert -1 == world.offsets.get(names.REVIVE_GROUP, REVIVE_TOPIC, 0)
    world.store.flush_now()
    # Once is enough.
    world.buffer.tend()

    # Behind the last check point that has ended there are its ack, and the one that was carried on.
    assert world.store.max_offset(REVIVE_TOPIC, 0) - 3 == world.offsets.get(names.REVIVE_GROUP, REVIVE_TOPIC, 0)
    world.save()
    world.kill()
    world.start()
    assert (1, 18) == (len(world.buffer), world.committed())
    assert 1 == world.ack(slow[0])


def test_many_that_take_long_are_not_written_again_and_again() -> None:
    """F9: there is as much to read after it as before."""
    world = sent(20, Options(enabled=False, carry_records=2))
    for _ in range(10):
        world.pop(count_max=1, revive_queue_id=0)
    records = world.store.max_offset(REVIVE_TOPIC, 0)

    world.buffer.tend()

    assert records == world.store.max_offset(REVIVE_TOPIC, 0)


def test_what_others_put_into_the_revive_log_is_found() -> None:
    """F9: a RocketMQ that had this store, or a timer; progress is that of RocketMQ: the last record done with."""
    world = sent(2)
    world.pop(invisible_ms=20_000)
    world.pass_time(11)
    world.store.flush_now()
    world.save()
    queue = next(queue for queue in range(REVIVE_QUEUES) if world.store.max_offset(REVIVE_TOPIC, queue))
    assert -1 == world.offsets.get(names.REVIVE_GROUP, REVIVE_TOPIC, queue)

    world.kill()
    world.start()
    assert 1 == len(world.buffer)
    world.pass_time(10)
    world.store.flush_now()

    # The check point, and the ack that says that its messages were written again.
    assert (0, 1) == (len(world.buffer), world.offsets.get(names.REVIVE_GROUP, REVIVE_TOPIC, queue))


def test_what_others_put_there_before_our_own_record_is_found() -> None:
    """F9: also an old check point that names no differences: its messages lie side by side."""
    world = sent(5, Options(enabled=False))
    theirs = CheckPointRecord(
        start_offset=1,
        pop_time_ms=world.clock.now_ms(),
        invisible_ms=60_000,
        count=3,
        queue_id=0,
        topic=TOPIC,
        group=GROUP,
    )
    draft = Draft(REVIVE_TOPIC, 0, encode(theirs), join({"TAGS": CHECK_POINT_TAG}), world.clock.now_ms(), HOST)
    world.store.put(draft)
    ours = world.pop(count_max=1, revive_queue_id=0)

    world.buffer.tend()
    assert 2 == len(world.buffer)
    world.ack(*ours)
    world.pass_time(60)

    assert [b"1", b"2", b"3"] == [message.body for message in world.pop(retry=RETRY_V1)]


def test_bits_are_written_as_java_reads_them() -> None:
    """F9: 32 of them are an int, and the last one is its sign."""
    world = sent(32)
    messages = world.pop()
    world.ack(messages[-1], messages[0])

    world.pass_time(11)

    (record,) = [record for queue in range(REVIVE_QUEUES) for record in read_all(world.store, REVIVE_TOPIC, queue)]
    assert -(2**31) + 1 == decode(record.body, CheckPointRecord).bits
