"""Lost messages that cannot simply be written again (R2)."""

from __future__ import annotations

import pytest

from ternmq import names
from ternmq.broker.config import READ
from ternmq.broker.services.sharing import SharePullOutcome
from ternmq.errors import NoPermission, RecordRefused
from ternmq.wire.requests_share import SharePull
from tests.share.world import GROUP, RETRY_TOPIC, TOPIC, InHand, Make, Options, World


def retried(world: World) -> list[bytes]:
    return [message.body for message in world.pull("eve", topic=RETRY_TOPIC)] if world.has_retries() else []


def test_what_retention_leaves_of_lost_messages_is_written_again(make: Make) -> None:
    """R2: a disk that was full, or a broker that was down: the first of them are deleted, the others are not."""
    world = make(Options(queues=1))
    for number in range(20):
        world.send(b"%02d" % number + b" " * 1_000)
    assert 20 == len(world.pull("ann", bytes_max=1 << 20))
    world.leave("ann")
    world.clean()
    first = world.store.min_offset(TOPIC, 0)
    assert 0 < first < 20, "some are deleted"
    world.tend()
    assert [b"%02d" % number for number in range(first, 20)] == [body[:2] for body in retried(world)]
    assert first == world.sharing.counts.expired


def test_a_message_whose_copy_does_not_fit_goes_to_another_consumer_as_it_is(make: Make) -> None:
    """R2: a copy has more properties. Such a message must not stand in the way, nor be lost."""
    world = make(Options(queues=1))
    for size in range(1 << 14, 0, -1):
        try:
            world.send(b"x" * size)
        except RecordRefused:
            continue
        break
    world.send(b"small")
    assert 2 == len(world.pull("ann", bytes_max=1 << 20))
    world.leave("ann")
    world.tend()
    assert {"": ("lost", 2), "ann": ("offline", 0)} == world.states(), "it waits for a consumer"
    assert [] == world.pull("bob")
    world.tend()
    assert [b"x" * size] == [message.body for message in world.pull("bob", bytes_max=1 << 20)]
    assert [b"small"] == retried(world)


def test_a_group_whose_retry_topic_takes_nothing_does_not_hold_up_others(make: Make) -> None:
    """R3: others' lost messages are written, and what cannot be waits."""
    world = make(Options(queues=1))
    world.tables.topics.ensure(RETRY_TOPIC, queues=1, perm=READ)
    world.tables.groups.find("audit")
    world.send(b"one")

    async def lose() -> None:
        for group in (GROUP, "audit"):
            query = SharePull(consumer_group=group, topic=TOPIC, consumer="ann", count_max=1)
            assert SharePullOutcome.FOUND is world.sharing.take(query, is_first=True).outcome
            world.sharing.leave(query)

    world.run(lose())
    with pytest.raises(NoPermission):
        world.tend()
    assert 1 == world.store.max_offset(names.retry_topic("audit"), 0)
    assert ("lost", 1) == world.states()[""]


@pytest.mark.parametrize("checkpoint_actions", [20_000, 1])
def test_an_ordered_group_is_one_after_a_restart_too(make: Make, checkpoint_actions: int) -> None:
    """R2, R3: what a dead consumer held goes to another one as it is, also if no one has pulled since the restart."""
    world = make(Options(queues=1, checkpoint_actions=checkpoint_actions))
    for number in range(4):
        world.send(b"%d" % number, KEYS="one")
    assert 2 == len(world.pull("ann", count_max=2, order=True))
    world.tend()
    world.stop()
    world.start()
    world.pass_time(200)
    assert {"ann": ("offline", 2)} == world.states(), "there is no one who could take them in order"
    assert not world.has_retries()
    assert [] == world.pull("bob", order=True), "the key is ann's"
    world.tend()
    assert [b"0", b"1", b"2", b"3"] == [message.body for message in world.pull("bob", order=True)]


def test_an_ordered_group_becomes_a_plain_one_with_its_members(make: Make) -> None:
    """R2: after a restart in which all of them were changed."""
    world = make(Options(queues=1))
    world.send(b"0", KEYS="one")
    world.send(b"1", KEYS="one")
    assert 1 == len(world.pull("ann", count_max=1, order=True))
    world.stop()
    world.start()
    assert [b"1"] == [message.body for message in world.pull("bob")]
    world.leave("ann")
    world.tend()
    assert [b"0"] == retried(world)


def scattered(world: World, count: int) -> list[InHand]:
    """Messages that ann holds, of two queues in turn, so that each is a run of its own."""
    for number in range(count):
        world.send(b"%d" % number, queue_id=number % 2)
    held: list[InHand] = []
    for number in range(count):
        last, life = (number - 1, held[-1].life) if held else (-1, 0)
        held += world.pull("ann", count_max=1, held=last, life=life, hold_ms=60_000)
    return held


@pytest.mark.parametrize("is_killed", [False, True])
def test_one_action_takes_all_from_a_consumer_that_leaves(make: Make, is_killed: bool) -> None:
    """R2, R4: an action for each of 4,000 runs held the broker's loop for 177 ms."""
    world = make(Options(queues=2))
    held = scattered(world, 30)
    before = world.store.max_offset(names.SHARE_TOPIC, 0)
    world.leave("ann")
    assert before + 1 == world.store.max_offset(names.SHARE_TOPIC, 0)
    if is_killed:
        world.kill()
        world.start()
    assert "30" == world.sharing.measures()["shareRetryWaiting"]
    world.tend()
    assert sorted(message.body for message in held) == sorted(retried(world))


def test_what_has_more_time_stays_where_messages_before_and_behind_it_are_taken_back(make: Make) -> None:
    """R2: one range must not name what lies between."""
    world = make(Options(queues=2))
    held = scattered(world, 9)
    world.hold("ann", held[4], 600_000)
    world.pass_time(59)
    world.beat("ann")
    world.pass_time(2)
    assert 8 == world.sharing.counts.ack_timeouts
    assert ("online", 1) == world.states()["ann"]
    assert sorted(message.body for message in held if message is not held[4]) == sorted(retried(world))
    world.ack("ann", held[4])
    assert ("online", 0) == world.states()["ann"]


@pytest.mark.parametrize("order", [False, True])
@pytest.mark.parametrize(
    "filtered", [{"subscription": "b"}, {"expression_type": "SQL92", "subscription": "price > 10"}]
)
def test_what_retention_deletes_of_filtered_messages_is_confirmed_and_numbers_stay(
    make: Make, filtered: dict[str, str], order: bool
) -> None:
    """R1, K1, K2: the runs of a consumer with a filter have gaps; some runs are deleted, one in part."""
    world = make(Options(queues=1))
    for number in range(24):
        # Two that pass, two that do not.
        passes = number % 4 < 2
        tag, price = ("b", "20") if passes else ("a", "1")
        world.send(b"%02d" % number + b" " * 1_000, TAGS=tag, price=price, KEYS="one")
    held = world.pull("ann", bytes_max=1 << 20, order=order, **filtered)
    assert [number for number in range(24) if number % 4 < 2] == [int(message.body[:2]) for message in held]
    world.clean()
    first = world.store.min_offset(TOPIC, 0)
    assert 0 < first < 20, "some are deleted"
    deleted = [message for message in held if message.queue_offset < first]
    left = held[len(deleted) :]
    world.beat("ann")
    world.tend()
    assert len(deleted) == world.sharing.counts.expired
    assert ("online", len(left)) == world.states()["ann"]
    again = world.pull("ann", bytes_max=1 << 20, order=order, **filtered)
    assert left[: len(again)] == again, "with the numbers that they had"
    world.ack("ann", left[0], left[-1])
    assert ("online", 0) == world.states()["ann"]
    world.send(b"new", TAGS="b", price="20", KEYS="one")
    [message] = world.pull("bob", order=order, **filtered)
    assert b"new" == message.body, "the key of what was deleted is free"


def test_a_new_group_begins_with_the_first_message_or_behind_the_last(make: Make) -> None:
    """R1, F6: of a queue that is not young any more; a young one is read from its beginning in any case."""
    world = make(Options(queues=1))
    for _ in range(200):
        world.send(b"deleted" * 20)
    world.clean()
    first = world.store.min_offset(TOPIC, 0)
    assert first > 0
    world.send(b"kept")

    assert [] == world.pull("ann", init_mode=1)
    world.send(b"new")
    assert [b"new"] == [message.body for message in world.pull("ann", init_mode=1)]

    world.sharing.forget(group=GROUP)
    assert first == world.pull("bob", init_mode=0)[0].queue_offset
