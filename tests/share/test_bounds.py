"""What shared consumption may take in memory and in the log, whatever its clients ask for (R1, R3)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from ternmq import names
from ternmq.broker.services.sharing import SharePullOutcome
from ternmq.errors import InvalidParameter, SystemBusy
from ternmq.message import Property
from ternmq.share.keys import key_of
from ternmq.share.take import UNSEEN_MAX
from ternmq.wire.properties import join
from ternmq.wire.requests_share import is_consumer
from tests.share.world import Options, World

Make = Callable[[Options], World]


@pytest.fixture
def make() -> Iterator[Make]:
    """Worlds that end with the test."""
    worlds: list[World] = []

    def make(options: Options) -> World:
        worlds.append(World(options))
        return worlds[-1]

    yield make
    for world in worlds:
        world.end()


def test_the_name_of_a_consumer_is_limited_in_bytes(make: Make) -> None:
    """R3: it is kept with all that its consumer holds."""
    assert is_consumer("ä" * 127)
    for name in ("", "ä" * 128, "𝄞" * 64, "a b", "a/b", "a\ud800"):
        assert not is_consumer(name)
    world = make(Options())
    with pytest.raises(InvalidParameter, match="255 bytes"):
        world.pull("𝄞" * 255)


def test_consumers_that_have_left_do_not_keep_new_ones_out(make: Make) -> None:
    """R3: without a name of its own each start is a new consumer; thousands in two days are no reason to refuse."""
    world = make(Options(consumers_max=10))
    for number in range(10):
        world.send(b"one")
        [message] = world.pull(f"job-{number}")
        world.ack(f"job-{number}", message)
        world.leave(f"job-{number}")
    with pytest.raises(SystemBusy):
        world.pull("late")
    world.pass_time(200)
    assert 5 == len(world.states()), "half of the table is for those that may come back"
    world.send(b"two")
    [message] = world.pull("late")
    assert b"two" == message.body
    [again] = (world.send(b"three"), world.pull("job-0"))[1]
    assert again.number > 0, "numbers are not given out twice"


def test_keys_of_held_messages_are_part_of_the_memory_that_is_limited(make: Make) -> None:
    """R1: neighbours in a queue are one run, however many keys they have."""
    assert 65 == len(key_of(join({Property.SHARDING_KEY: "k" * 20_000})))
    assert key_of(join({Property.SHARDING_KEY: "k" * 20_000})) != key_of(join({Property.SHARDING_KEY: "k" * 20_001}))
    world = make(Options(queues=1, bytes_max=1 << 20))
    for number in range(5_000):
        world.send(b"x", KEYS=f"{number}")
    held, life, outcome = -1, 0, SharePullOutcome.FOUND
    while outcome is SharePullOutcome.FOUND:
        outcome, taken = world.take("ann", count_max=1_024, bytes_max=1 << 20, held=held, life=life, order=True)
        held, life = held + taken.count, taken.life
    assert (SharePullOutcome.FULL, True) == (outcome, 1_000 < held < 4_999)
    assert (1 << 20) <= int(world.sharing.measures()["shareBytes"])


def test_a_pull_that_waits_for_a_slow_holder_writes_nothing(make: Make) -> None:
    """R1: such pulls come again and again."""
    world = make(Options(queues=1))
    for number in range(UNSEEN_MAX + 10):
        world.send(b"%d" % number, KEYS="one")
    world.pull("ann", count_max=1, order=True)
    while world.states()["ann"][1] < UNSEEN_MAX:
        assert [] == world.pull("bob", order=True)
    before = world.store.max_offset(names.SHARE_TOPIC, 0)
    for _ in range(5):
        assert [] == world.pull("bob", order=True)
    assert before == world.store.max_offset(names.SHARE_TOPIC, 0)
