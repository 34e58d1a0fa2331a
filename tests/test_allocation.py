"""Queue allocation: who reads what (G1, G2)."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.allocation import (
    Allocation,
    Averagely,
    AveragelyByCircle,
    ConsistentHash,
    FixedQueues,
    MachineRoom,
    MachineRoomNearby,
    java_text,
    ring_hash,
)
from ternmq.errors import ConfigError
from ternmq.message import MessageQueue


def queues(count: int, *, broker: str = "broker-a", topic: str = "orders") -> list[MessageQueue]:
    return [MessageQueue(topic, broker, number) for number in range(count)]


def members(count: int) -> list[str]:
    return [f"10.0.0.{number}@{number}" for number in range(count)]


def ids(share: list[MessageQueue]) -> list[int]:
    return [queue.queue_id for queue in share]


def shares(strategy: Allocation, queue_count: int, member_count: int) -> list[list[int]]:
    names = members(member_count)
    return [ids(strategy.allocate(name, queues(queue_count), names)) for name in names]


def test_averagely_gives_neighbours_and_the_rest_to_the_first() -> None:
    """G2."""
    assert [[0, 1, 2], [3, 4, 5], [6, 7]] == shares(Averagely(), 8, 3)


def test_averagely_leaves_members_idle_when_queues_are_few() -> None:
    """G2."""
    assert [[0], [1], [], []] == shares(Averagely(), 2, 4)


def test_by_circle_deals_queues_like_cards() -> None:
    """G2."""
    assert [[0, 3, 6], [1, 4, 7], [2, 5]] == shares(AveragelyByCircle(), 8, 3)


def test_ring_hashes_are_those_of_java() -> None:
    """G2: both vectors were taken from the Java client."""
    assert 493948402 == ring_hash("192.168.0.1@DEFAULT-0")
    queue = MessageQueue("T", "b", 0)
    assert "MessageQueue [topic=T, brokerName=b, queueId=0]" == java_text(queue)
    assert 562732085 == ring_hash(java_text(queue))


def test_a_new_member_of_a_ring_takes_queues_but_moves_none_between_the_others() -> None:
    """G2: the reason to choose consistent hashing."""
    strategy, before, after = ConsistentHash(), members(4), members(5)
    for name in before:
        kept = set(strategy.allocate(name, queues(64), after))
        assert kept <= set(strategy.allocate(name, queues(64), before))


def test_a_ring_needs_places() -> None:
    with pytest.raises(ConfigError, match="expected 1 or more"):
        ConsistentHash(virtual_nodes=0)


def test_fixed_queues_are_kept_where_they_exist() -> None:
    """G2: by config."""
    strategy = FixedQueues((MessageQueue("orders", "broker-a", 2), MessageQueue("orders", "broker-z", 0)))
    assert [2] == ids(strategy.allocate("anybody", queues(4), []))


def test_a_machine_room_reads_only_its_own_queues_and_shares_the_rest_from_the_end() -> None:
    """G2."""
    near, far = queues(5, broker="room-1@a"), queues(4, broker="room-2@b")
    strategy, names = MachineRoom(frozenset({"room-1"})), members(2)
    assert [[0, 1, 4], [2, 3]] == [ids(strategy.allocate(name, near + far, names)) for name in names]


def test_a_broker_without_a_room_belongs_to_no_machine_room() -> None:
    """G2."""
    strategy = MachineRoom(frozenset({"room-1"}))
    for broker in ("room-1", "room-1@", "room-1@a@b", "@a"):
        assert [] == strategy.allocate("m", queues(1, broker=broker), ["m"])


def room_of_broker(broker: str) -> str:
    return broker.partition("@")[0]


def room_of_member(member: str) -> str:
    return member.partition("@")[0]


def test_nearby_keeps_queues_in_their_room_and_shares_those_of_empty_rooms() -> None:
    """G2."""
    strategy = MachineRoomNearby(room_of_broker, room_of_member)
    all_queues = queues(4, broker="room-1@a") + queues(2, broker="room-2@b") + queues(2, broker="room-3@c")
    names = ["room-1@m1", "room-1@m2", "room-2@m3"]

    def share(name: str) -> list[str]:
        return [f"{queue.broker_name}:{queue.queue_id}" for queue in strategy.allocate(name, all_queues, names)]

    assert ["room-1@a:0", "room-1@a:1", "room-3@c:0"] == share("room-1@m1")
    assert ["room-1@a:2", "room-1@a:3", "room-3@c:1"] == share("room-1@m2")
    assert ["room-2@b:0", "room-2@b:1"] == share("room-2@m3")
    assert "MACHINE_ROOM_NEARBY-AVG" == strategy.name


def test_a_resolver_that_knows_no_room_is_named() -> None:
    strategy = MachineRoomNearby(lambda _: "", room_of_member)
    with pytest.raises(ConfigError, match="broker-a"):
        strategy.allocate("room-1@m", queues(1), ["room-1@m"])


STRATEGIES: list[Allocation] = [
    Averagely(),
    AveragelyByCircle(),
    ConsistentHash(),
    MachineRoom(frozenset({"r1", "r2", "r3"})),
    MachineRoomNearby(room_of_broker, room_of_member),
    MachineRoomNearby(room_of_broker, room_of_member, ConsistentHash()),
]

some_queues = st.sets(
    st.builds(MessageQueue, st.just("t"), st.sampled_from(["r1@a", "r1@b", "r2@c", "r3@d"]), st.integers(0, 40))
)
some_members = st.sets(st.sampled_from([f"{room}@m{number}" for room in ("r1", "r2", "r9") for number in range(6)]))


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.name))
@given(all_queues=some_queues, names=some_members.filter(bool))
def test_every_queue_is_read_by_exactly_one_member(
    strategy: Allocation, all_queues: set[MessageQueue], names: set[str]
) -> None:
    """G1, G2."""
    owned = Counter(queue for name in names for queue in strategy.allocate(name, all_queues, names))
    assert Counter(all_queues) == owned


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.name))
@given(all_queues=st.lists(some_queues.map(sorted)), names=st.lists(some_members.map(sorted)), data=st.data())
def test_the_order_of_the_lists_does_not_matter(
    strategy: Allocation, all_queues: list[list[MessageQueue]], names: list[list[str]], data: st.DataObject
) -> None:
    """G1: members learn of queues and of each other in different order."""
    flat_queues = [queue for some in all_queues for queue in some]
    flat_names = [name for some in names for name in some] or ["r1@m0"]
    own_id = data.draw(st.sampled_from(flat_names))
    expected = strategy.allocate(own_id, flat_queues, flat_names)
    shuffled = data.draw(st.permutations(flat_queues)), data.draw(st.permutations(flat_names))
    assert expected == strategy.allocate(own_id, *shuffled)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: str(strategy.name))
def test_a_member_that_the_broker_does_not_know_yet_gets_nothing(strategy: Allocation) -> None:
    """G1: its heartbeat is on the way."""
    assert [] == strategy.allocate("r1@new", queues(4, broker="r1@a"), ["r1@m0"])
