"""What shared consumption may take in memory and in the log, whatever its clients ask for (R1, R3)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from ternmq import names
from ternmq.broker.services.sharing import SharePullOutcome
from ternmq.errors import InvalidParameter, SystemBusy
from ternmq.message import Property
from ternmq.share.keys import key_of
from ternmq.share.take import UNSEEN_MAX
from ternmq.wire.properties import join
from ternmq.wire.requests_share import is_consumer
from tests.share.world import Make, Options


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


def test_a_pull_looks_at_no_more_queues_than_it_takes_from(make: Make) -> None:
    """R4: each pull looked at all queues of the topic, to count what it left there."""
    world = make(Options(queues=40))
    for number in range(80):
        world.send(b"%d" % number, queue_id=number % 40)
    world.pull("ann", count_max=1)
    looks: list[int] = []
    max_offset = world.store.max_offset

    class Looking:
        def max_offset(self, topic: str, queue_id: int) -> int:
            looks.append(queue_id)
            return max_offset(topic, queue_id)

        def __getattr__(self, name: str) -> Any:
            return getattr(world.store, name)

    world.master.taker._store = Looking()
    taken = [message.queue_id for message in world.pull("bob", count_max=6)]
    assert [1, 2, 3] == sorted(set(taken)), "from where the last pull ended"
    assert len(looks) <= 4

    # Whichever queue is the fullest, no queue waits for it.
    for _ in range(1_000):
        world.send(b"more", queue_id=4)
    later = [message.queue_id for number in range(36) for message in world.pull(f"worker-{number}", count_max=2)]
    assert set(later) == {*range(4, 40)}


def test_pulls_take_the_same_from_all_queues(make: Make) -> None:
    """R1: a pull that got most of what it has from one queue left little room for the next; always the same ones."""
    world = make(Options(queues=4, log_file_bytes=1 << 22, queue_file_bytes=20 * 10_000))
    for number in range(12_000):
        world.send(b"x", queue_id=number % 4)
    taken = Counter(
        message.queue_id for number in range(8) for message in world.pull(f"worker-{number}", count_max=1_000)
    )
    assert dict.fromkeys(range(4), 2000) == taken
