"""Well-formed requests of a client that means harm, or knows no better: bounded in bytes, and in the work of one turn
of the loop (R1, R3, R4)."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest

from ternmq import names
from ternmq.broker.services.sharing import SharePullOutcome
from ternmq.errors import BrokerRefused, InvalidParameter, SystemBusy
from ternmq.share.members import Lives
from ternmq.share.take import AGAIN_RUNS_MAX, SCANS_MAX
from ternmq.wire.requests_share import COUNT_MAX, ShareAck
from tests.share.world import GROUP, TOPIC, InHand, Make, Options, World

LARGEST = 2**63 - 1


def test_numbers_at_the_edges_are_refused_or_mean_nothing(make: Make) -> None:
    """R1: nothing is confirmed, nothing lost, and what is held stays held."""
    world = make(Options(queues=1))
    for number in range(3):
        world.send(b"%d" % number)
    with pytest.raises(InvalidParameter, match="expected 1 to 1024"):
        world.pull("ann", count_max=COUNT_MAX + 1)
    with pytest.raises(InvalidParameter, match="expected 1 to 1024"):
        world.pull("ann", count_max=2**31 - 1)
    [first, *_] = world.pull("ann", count_max=2)
    # A consumer that claims to have all, in a life that is not ours, has nothing; in ours, what it was given.
    assert [b"0", b"1"] == [message.body for message in world.pull("ann", held=LARGEST, life=LARGEST)]
    assert [b"2"] == [message.body for message in world.pull("ann", held=LARGEST, life=first.life)]
    for numbers in ((0, LARGEST), (LARGEST, LARGEST), (LARGEST - 1, LARGEST)):
        with pytest.raises(InvalidParameter, match="up to 2 only"):
            world.ack("ann", first._replace(number=numbers[0]), first._replace(number=numbers[1]))
    with pytest.raises(BrokerRefused, match="belong to other messages"):
        world.ack("ann", first._replace(life=LARGEST))
    # Ten years are the longest limit; the record of such a hold can be read again.
    world.hold("ann", first, 10 * 365 * 24 * 3_600_000)
    world.stop()
    world.start()
    assert {"ann": ("online", 3)} == world.states()


def test_what_is_known_of_consumers_is_counted_with_their_names_and_groups() -> None:
    """R3: a hundred thousand tiny groups, each with one consumer, are more than a hundred thousand names."""
    lives = Lives(offline_s=1, gone_s=1)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number in range(2_000):
            lives.seen((f"{number:0>120}", f"{number:0>100}"), f"{number:0>255}", 0.0)
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert taken * 0.8 < lives.memory_bytes < taken * 2
    for place in lives.places():
        for consumer in lives.names(place):
            lives.forget(place, consumer)
    assert 0 == lives.memory_bytes


def test_consumers_are_refused_when_the_memory_for_them_is_taken(make: Make) -> None:
    """R3: whatever their number; and those that are known go on."""
    world = make(Options(queues=1, bytes_max=1 << 20, consumers_max=1_000_000))
    world.send(b"x")
    known = 0
    with pytest.raises(SystemBusy, match="raise maxShareBytes"):
        for known in range(10_000):
            world.take(f"{known:0>250}")
    assert 500 < known < 3_000
    world.take(f"{0:0>250}")


def test_a_filter_that_lets_nothing_through_looks_at_a_bounded_part_of_all_queues(make: Make) -> None:
    """R4: one pull looked at thousands of messages in each queue, in one turn of the loop."""
    world = make(Options(queues=8, log_file_bytes=1 << 20, queue_file_bytes=20_000))
    for number in range(8 * 1_000):
        world.send(b"x", queue_id=number % 8, TAGS="a")
    wanted = {"expression_type": "TAG", "subscription": "b"}
    scan = world.store.config.max_filter_message_size // 20
    looked, pulls = 0, 0
    while looked < 8_000:
        outcome, taken = world.take("ann", **wanted)
        at = sum(world.master.state.places[GROUP, TOPIC].cursors.values())
        assert (SharePullOutcome.NOTHING, True) == (outcome, at - looked <= SCANS_MAX * scan)
        assert taken.is_more_to_look_at or at == 8_000
        looked, pulls = at, pulls + 1
    assert pulls >= 8_000 // (SCANS_MAX * scan)
    world.send(b"found", queue_id=5, TAGS="b")
    assert [b"found"] == [message.body for message in world.pull("ann", **wanted)]


def test_a_thousand_consumers_that_die_at_once_are_looked_after_one_by_one(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3: in an ordered group each looked for its heir among all others: a million looks, in one turn of the loop."""
    world = make(Options(queues=1))
    for number in range(1_000):
        world.send(b"x", KEYS=f"{number}")
        assert 1 == len(world.pull(f"worker-{number}", count_max=1, order=True))
    world.clock.advance(200)
    world.pull("heir", order=True)
    looks = [0]
    of = Lives.of

    def counted(self: Lives, *args: object) -> object:
        looks[0] += 1
        return of(self, *args)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(Lives, "of", counted)
    world.tend()
    assert ("online", 1_000) == world.states()["heir"]
    assert looks[0] < 10_000


def test_the_number_of_held_messages_is_known_without_counting(make: Make) -> None:
    """R4: tools and Prometheus ask; a broker may have a hundred thousand consumers."""
    world = make(Options(queues=2))
    for number in range(20):
        world.send(b"x", queue_id=number % 2)
    ann = world.pull("ann", count_max=8)
    world.pull("bob", count_max=5)
    world.ack("ann", ann[2], ann[3])
    world.leave("bob")
    for _ in range(2):
        places = world.master.state.places.values()
        assert sum(place.held for place in places) == world.master.state.held_count > 0
        assert str(world.master.state.held_count) == world.sharing.measures()["shareHeld"]
        world.stop()
        world.start()


def scattered(world: World, count: int) -> list[InHand]:
    """What ``ann`` holds: so many messages, each of them a run, as a filter leaves out every second one."""
    for number in range(2 * count):
        world.send(b"%d" % number, TAGS="a" if number % 2 else "b")
    held: list[InHand] = []
    while len(held) < count:
        held += world.pull("ann", count_max=COUNT_MAX, expression_type="TAG", subscription="a", **known(held))
    return held


def known(held: list[InHand]) -> dict[str, Any]:
    """What a consumer says of what it has."""
    return {"held": held[-1].number, "life": held[-1].life} if held else {}


def test_what_comes_again_is_bounded_by_the_places_where_it_lies(make: Make) -> None:
    """R2, R4: each run is looked up in its queue; a thousand of them took 7 ms, in one turn of the loop."""
    world = make(Options(queues=1, log_file_bytes=1 << 20, queue_file_bytes=20_000))
    held = scattered(world, 500)
    again: list[InHand] = []
    while len(again) < len(held):
        messages = world.pull("ann", count_max=COUNT_MAX, **known(again))
        assert 0 < len(messages) <= AGAIN_RUNS_MAX
        again += messages
    assert held == again


def test_another_time_limit_is_for_as_many_messages_as_a_pull_has(make: Make) -> None:
    """R4: ten thousand runs took 30 ms, in one turn of the loop."""
    world = make(Options(queues=1, log_file_bytes=1 << 20, queue_file_bytes=100_000))
    held = scattered(world, COUNT_MAX + 1)
    query = ShareAck(consumer_group=GROUP, topic=TOPIC, consumer="ann")
    with pytest.raises(InvalidParameter, match="expected 1024 numbers at most"):
        world.sharing.hold(query, life=held[0].life, first=0, last=COUNT_MAX, hold_ms=1_000)
    world.sharing.hold(query, life=held[0].life, first=0, last=COUNT_MAX - 1, hold_ms=1_000)
    world.pass_time(2)
    assert ("online", 1) == world.states()["ann"], "the last one has no limit"


def test_time_limits_of_single_messages_are_part_of_the_memory_that_is_limited(make: Make) -> None:
    """R1: neighbours are one run, until each of them has a limit of its own."""
    world = make(Options(queues=1, bytes_max=1 << 20, log_file_bytes=1 << 20, queue_file_bytes=400_000))
    messages: list[InHand] = []
    for number in range(10_000):
        world.send(b"%d" % number)
    while len(messages) < 10_000:
        messages += world.pull("ann", count_max=COUNT_MAX, **known(messages))
    assert world.master.memory_bytes < 10_000
    with pytest.raises(SystemBusy, match="raise maxShareBytes"):
        for number, message in enumerate(messages):
            world.hold("ann", message, 60_000 + number)
    assert (1 << 20) <= world.master.memory_bytes < (1 << 20) + 1_000
    world.ack("ann", messages[0], messages[5_000])
    world.hold("ann", messages[-1], 60_000)


@pytest.mark.parametrize("by_pull", [False, True])
def test_thousands_of_deleted_messages_are_confirmed_by_one_action(make: Make, by_pull: bool) -> None:
    """R1, R4: each run was confirmed alone: a record for each, and a pull that found them looked at all others each
    time."""
    world = make(Options(queues=1, log_file_bytes=1 << 16, queue_file_bytes=2_000))
    held = scattered(world, 2_000)
    world.clean()
    first = world.store.min_offset(TOPIC, 0)
    left = [message for message in held if message.queue_offset >= first]
    assert 0 < len(left) < 500
    before = world.store.max_offset(names.SHARE_TOPIC, 0)
    if by_pull:
        given = world.pull("ann", count_max=COUNT_MAX)
        assert left[: len(given)] == given
    else:
        world.beat("ann")
        world.tend()
    # With the records of a checkpoint, after an hour.
    assert world.store.max_offset(names.SHARE_TOPIC, 0) - before <= 10
    assert len(held) - len(left) == world.sharing.counts.expired
    assert ("online", len(left)) == world.states()["ann"]
