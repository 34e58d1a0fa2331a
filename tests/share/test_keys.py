"""Which keys are held, after a restart: read from the records in slices, and the order holds all the while (R2, R4)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from ternmq.broker.services.sharing import SharePullOutcome
from ternmq.share.actions import LOST
from ternmq.share.keys import KEYS_BYTES_MAX, KEYS_MAX, key_of
from ternmq.store.read.query import GetResult
from ternmq.wire.record import peek_properties, unpack_place
from tests.share.world import GROUP, TOPIC, InHand, Make, Options, World

PLACE = (GROUP, TOPIC)


class CountingStore:
    """The store of a world, and what was read of it since ``begin``."""

    def __init__(self, world: World) -> None:
        self._store = world.store
        world.master.taker._store = self
        world.master.keys._store = self
        self.begin()

    def begin(self) -> None:
        self.gets = self.records = self.bytes = 0

    def get(self, *args: Any, **options: Any) -> GetResult:
        found = self._store.get(*args, **options)
        self.gets += 1
        self.records += found.count
        self.bytes += found.body_bytes
        return found

    def min_offset(self, topic: str, queue_id: int) -> int:
        return self._store.min_offset(topic, queue_id)

    def max_offset(self, topic: str, queue_id: int) -> int:
        return self._store.max_offset(topic, queue_id)


def hold_all(world: World, consumer: str, **fields: Any) -> list[InHand]:
    """Pull until there is nothing left."""
    held: list[InHand] = []
    while True:
        last, life = (held[-1].number, held[-1].life) if held else (-1, 0)
        found = world.pull(consumer, held=last, life=life, order=True, **fields)
        if not found:
            return held
        held += found


def restart(world: World) -> None:
    world.stop()
    world.start()


def slices(world: World, store: CountingStore) -> Iterator[CountingStore]:
    """Read all keys; one value for each slice."""
    while world.master.keys.unread():
        store.begin()
        world.master.keys.read(PLACE)
        yield store


def test_the_keys_of_50_000_held_messages_are_read_in_slices(make: Make) -> None:
    """R4: they were read by the first pull, which held the loop for seconds."""
    world = make(Options(queues=1, held_max=60_000, log_file_bytes=1 << 24, queue_file_bytes=20 * 100_000))
    count = 50_000
    for number in range(count):
        world.send(b"%d" % number, KEYS=f"key-{number % 25_000}")
    assert count == len(hold_all(world, "ann", count_max=1_024, bytes_max=1 << 20))
    restart(world)
    world.send(b"free", KEYS="other")
    for number in range(4):
        world.send(b"late %d" % number, KEYS=f"key-{number}")

    store = CountingStore(world)
    outcome, _ = world.take("bob", order=True)
    assert SharePullOutcome.NOTHING is outcome, "the pull waits"
    assert 0 < store.records <= KEYS_MAX
    each = [store.records for _ in slices(world, store)]
    assert max(each) <= KEYS_MAX
    assert count - KEYS_MAX == sum(each)
    assert [b"free"] == [message.body for message in world.pull("bob", order=True)]
    last = world.master.state.find(*PLACE, "ann")
    assert last is not None
    late = world.pull("ann", held=count - 1, life=last.runs[0].life, order=True)
    assert [b"late %d" % number for number in range(4)] == [message.body for message in late]


def test_a_slice_is_limited_in_bytes_and_in_runs(make: Make) -> None:
    """R4: large messages, and neighbours in no queue."""
    world = make(Options(queues=1))
    for number in range(300):
        world.send(bytes(12_000), KEYS=f"{number}")
    hold_all(world, "ann", count_max=100)
    restart(world)
    store = CountingStore(world)
    world.take("bob", order=True)
    assert (300 * 12_000) // KEYS_BYTES_MAX <= len([*slices(world, store)])
    world.change_term()
    store = CountingStore(world)
    world.take("bob", order=True)
    assert all(read.bytes <= KEYS_BYTES_MAX + 13_000 for read in slices(world, store))

    world = make(Options(queues=2))
    for number in range(1_000):
        world.send(b"x", queue_id=number % 2, KEYS=f"{number}")
    hold_all(world, "ann", count_max=1)
    restart(world)
    store = CountingStore(world)
    world.take("bob", order=True)
    assert 1_000 == sum([log.held for log in world.master.state.places[PLACE].consumers.values()])
    gets = [read.gets for read in slices(world, store)]
    assert gets
    assert max(gets) <= KEYS_MAX


def test_a_small_group_waits_for_nothing(make: Make) -> None:
    """R2: one slice is read at once."""
    world = make(Options(queues=1, queue_file_bytes=2_000))
    for number in range(10):
        world.send(b"%d" % number, KEYS=f"{number % 2}")
    assert 2 == len(world.pull("ann", count_max=2, order=True))
    world.send(b"free", KEYS="other")
    restart(world)
    assert [b"free"] == [message.body for message in world.pull("bob", order=True)]


def test_keys_are_read_as_far_as_there_is_room_for_them(make: Make) -> None:
    """R1: plain members held messages that take no room; their keys would."""
    world = make(Options(queues=1, bytes_max=1 << 20))
    for number in range(6_000):
        world.send(b"x", KEYS=f"{number}")
    held: list[InHand] = []
    while found := world.pull(
        "ann",
        count_max=1_000,
        bytes_max=1 << 20,
        held=held[-1].number if held else -1,
        life=held[-1].life if held else 0,
    ):
        held += found
    assert 6_000 == len(held)
    assert SharePullOutcome.NOTHING is world.take("bob", order=True)[0]
    world.tend()
    assert world.master.memory_bytes < (1 << 20) + 2 * KEYS_MAX * 300
    assert SharePullOutcome.FULL is world.take("bob", order=True)[0]
    world.ack("ann", held[0], held[4_999])
    world.tend()
    world.send(b"free", KEYS="1")
    world.send(b"new", KEYS="5999")
    assert [b"free"] == [message.body for message in world.pull("bob", order=True)]


def held_keys(world: World) -> dict[tuple[str, int], str]:
    """By consumer and number, the keys of all held messages: read at once."""
    found: dict[tuple[str, int], str] = {}
    for consumer, log in world.master.state.places[PLACE].consumers.items():
        for run in log.runs if consumer != LOST else ():
            for number in range(run.count):
                [view] = world.store.get(TOPIC, run.queue_id, run.offset + number, count_max=1).buffers
                size, _ = unpack_place(view, 0)
                found[consumer, run.first + number] = key_of(peek_properties(view[:size], 0, size) or "")
    return {place: key for place, key in found.items() if key}


@pytest.mark.parametrize("seed", range(12))
def test_a_key_has_one_holder_while_keys_are_read(make: Make, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """R2: consumers confirm, leave, and start again between any two slices; the broker begins new terms."""
    monkeypatch.setattr("ternmq.share.keys.KEYS_MAX", 2)
    random = Random(seed)
    world = make(Options(queues=2))
    done: dict[str, list[int]] = {}
    given: dict[str, list[InHand]] = {name: [] for name in ("ann", "bob", "cid")}
    sent = 0

    def step() -> None:
        nonlocal sent
        name = random.choice([*given])
        match random.choice(("send", "pull", "pull", "pull", "ack", "leave", "term", "read", "read")):
            case "send":
                key = f"{random.randrange(6)}"
                world.send(b"%s %d" % (key.encode(), sent), queue_id=int(key) % 2, KEYS=key)
                sent += 1
            case "pull":
                last = given[name][-1] if given[name] else None
                given[name] += world.pull(
                    name,
                    count_max=random.choice((1, 5)),
                    held=last.number if last else -1,
                    life=last.life if last else 0,
                    order=True,
                )
            case "ack" if given[name]:
                ack(name, given[name].pop(0))
            case "leave":
                given[name].clear()
                world.leave(name)
            case "term":
                world.change_term()
            case "read":
                world.master.keys.read(PLACE)

    def ack(name: str, message: InHand) -> None:
        key, number = message.body.split()
        log = world.master.state.find(*PLACE, name)
        if log is not None and log.within(message.number, message.number):
            done.setdefault(key.decode(), []).append(int(number))
        world.ack(name, message)

    for _ in range(400):
        step()
        place, keys = world.master.state.places.get(PLACE), world.master.keys.by_place.get(PLACE)
        if place is None or keys is None or keys.unread:
            continue
        held = held_keys(world)
        assert held == {(name, number): key for name, of in keys._of.items() for number, key in of.items()}
        assert Counter(held.values()) == {key: count for key, (_, count) in keys._by_key.items()}
        holders = {(key, name) for (name, _), key in held.items()}
        assert len({key for key, _ in holders}) == len(holders), "two consumers hold messages of one key"
    for name in ("bob", "cid"):
        world.leave(name)
    is_left = True
    while is_left:
        world.tend()
        found = hold_all(world, "ann", count_max=5)
        for message in found:
            ack("ann", message)
        is_left = bool(found) or any(log.held for log in world.master.state.places[PLACE].consumers.values())
    assert sent == sum(len(numbers) for numbers in done.values())
    assert all(numbers == sorted(numbers) for numbers in done.values()), "messages of a key are done in their order"
