"""Which queue: turns, avoidance by latency, selectors (E3, E5)."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.queue_choice import (
    LatencyFaults,
    RoundRobin,
    at_random,
    avoidance_ms,
    by_hash,
    by_sharding_key,
    in_machine_rooms,
)
from ternmq.message import Message, MessageQueue


def route_of(*brokers: str, queues: int = 2, topic: str = "orders") -> TopicRoute:
    to_write = tuple(MessageQueue(topic, broker, number) for broker in brokers for number in range(queues))
    return TopicRoute(topic, to_write, to_write, {broker: {0: f"{broker}:10911"} for broker in brokers}, {})


def turns() -> RoundRobin:
    return RoundRobin(random.Random(5))


# --- Turns -----------------------------------------------------------------------------------------------------


def test_every_queue_of_every_broker_gets_its_turn() -> None:
    """E3."""
    route, choice = route_of("a", "b", queues=3), turns()
    chosen = [choice.choose(route) for _ in range(12)]
    assert dict.fromkeys(route.to_write, 2) == Counter(chosen)
    assert chosen[:6] == chosen[6:]


def test_topics_take_turns_apart() -> None:
    """Sent in turn with another topic, a topic still uses all of its queues."""
    orders, bills, choice = route_of("a", queues=2), route_of("a", queues=2, topic="bills"), turns()
    chosen = [choice.choose(route) for _ in range(4) for route in (orders, bills)]
    assert dict.fromkeys((*orders.to_write, *bills.to_write), 2) == Counter(chosen)


def test_clients_start_at_different_queues() -> None:
    route = route_of("a", queues=8)
    assert len({RoundRobin(random.Random(seed)).choose(route) for seed in range(20)}) > 3


def test_a_retry_avoids_the_broker_that_just_failed() -> None:
    """E3."""
    route, choice = route_of("a", "b", queues=4), turns()
    assert {"b"} == {choice.choose(route, avoid=("a",)).broker_name for _ in range(20)}


def test_the_only_broker_is_not_avoided() -> None:
    route, choice = route_of("a"), turns()
    assert "a" == choice.choose(route, avoid=("a",)).broker_name


def test_fewer_queues_after_a_change_of_routes_do_no_harm() -> None:
    choice = turns()
    for _ in range(7):
        choice.choose(route_of("a", queues=8))
    assert choice.choose(route_of("a", queues=1)).queue_id == 0


# --- Latency ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("took_ms", "avoided_s"),
    [
        (0, 0), (49, 0), (50, 0), (99, 0), (100, 0), (549, 0), (550, 30), (999, 30), (1_000, 60), (1_999, 60),
        (2_000, 120), (2_999, 120), (3_000, 180), (14_999, 180), (15_000, 600), (60_000, 600),
    ],
)  # fmt: skip
def test_slowness_is_answered_by_the_table(took_ms: int, avoided_s: int) -> None:
    """E3: ≥50/100/550/1000/2000/3000/15000 ms → 0/0/30/60/120/180/600 s."""
    assert avoided_s * 1000 == avoidance_ms(took_ms)


def test_a_slow_broker_is_left_alone_until_its_time_is_over() -> None:
    """E3."""
    route, faults = route_of("a", "b"), LatencyFaults()
    faults.report("a", took_ms=700, now_ms=1_000)
    faults.report("b", took_ms=20, now_ms=1_000)
    assert ["a"] == faults.avoided(route, now_ms=30_999)
    assert [] == faults.avoided(route, now_ms=31_000)


def test_a_failed_send_counts_as_thirty_seconds() -> None:
    """E3: RocketMQ 4.9 isolates a broker that failed for ten minutes."""
    route, faults = route_of("a", "b"), LatencyFaults()
    faults.report("a", took_ms=1, failed=True, now_ms=0)
    assert ["a"] == faults.avoided(route, now_ms=599_999)
    assert [] == faults.avoided(route, now_ms=600_000)


def test_a_fast_send_clears_the_name_of_its_broker() -> None:
    route, faults = route_of("a", "b"), LatencyFaults()
    faults.report("a", took_ms=5_000, now_ms=0)
    faults.report("a", took_ms=5, now_ms=10)
    assert [] == faults.avoided(route, now_ms=10)


def test_when_all_are_bad_the_better_half_goes_on() -> None:
    """E3: avoiding everybody would be to send nothing."""
    route, faults = route_of("a", "b", "c", "d"), LatencyFaults()
    for broker, took_ms in {"a": 20_000, "b": 600, "c": 3_500, "d": 1_100}.items():
        faults.report(broker, took_ms=took_ms, now_ms=0)
    assert ["c", "a"] == faults.avoided(route, now_ms=1)
    assert [] == LatencyFaults().avoided(route, now_ms=1)


def test_the_only_broker_is_used_however_slow() -> None:
    route, faults = route_of("a"), LatencyFaults()
    faults.report("a", took_ms=20_000, now_ms=0)
    assert [] == faults.avoided(route, now_ms=1)


# --- Selectors -------------------------------------------------------------------------------------------------

QUEUES = route_of("a", "b", queues=4).to_write


@pytest.mark.parametrize(
    ("key", "index"),
    # As printed by Java: Math.abs("order-17".hashCode() % 8) and so on; numbers of more than 32 bits are Longs.
    [("order-17", 5), ("订单", 3), ("", 0), (-17, 1), (-(1 << 31), 0), ((1 << 40) + 3, 3), (-(1 << 40) - 5, 4)],
)
def test_a_key_finds_the_queue_that_java_would_choose(key: str | int, index: int) -> None:
    """E5: SelectMessageQueueByHash."""
    assert QUEUES[index] == by_hash(key)(QUEUES, Message("orders", b"x"))


@given(st.text(), st.integers(1, 50))
def test_every_key_has_one_queue(key: str, count: int) -> None:
    """E5."""
    queues = [MessageQueue("orders", "a", number) for number in range(count)]
    message = Message("orders", b"x", sharding_key=key)
    assert by_hash(key)(queues, message) == by_sharding_key(queues, message)


def test_chance_chooses_any_queue() -> None:
    select = at_random(random.Random(3))
    assert set(QUEUES) == {select(QUEUES, Message("orders", b"x")) for _ in range(200)}


def test_a_machine_room_keeps_to_itself() -> None:
    """E5."""
    queues = route_of("east@a", "west@a", queues=4).to_write
    select = in_machine_rooms("west")
    chosen = {select(queues, Message("orders", b"x", sharding_key=str(key))) for key in range(50)}
    assert set(queues[4:]) == chosen


def test_without_brokers_in_the_room_all_will_do() -> None:
    select = in_machine_rooms("north", otherwise=by_hash("k"))
    assert by_hash("k")(QUEUES, Message("orders", b"x")) == select(QUEUES, Message("orders", b"x"))
