"""Records and handles that no broker of ours wrote: bounded before they are used, and passed over (F9)."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.message import Property
from ternmq.pop.checkpoints import CheckPoints
from ternmq.pop.revive_log import ACK_TAG, BATCH_ACK_TAG, CHECK_POINT_TAG
from ternmq.store.log.draft import Draft
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.pop import AckRecord, CheckPointRecord, OrderRecord
from ternmq.wire.properties import join
from tests.pop.world import GROUP, HOST, REVIVE_TOPIC, ROOT, TOPIC, World

CHECK_POINT = {"so": 0, "pt": 1, "it": 60_000, "bm": 0, "n": 1, "q": 0, "t": TOPIC, "c": GROUP, "d": [0]}
ACK = {"ao": 0, "so": 0, "c": GROUP, "t": TOPIC, "q": 0, "pt": 1}

BAD_CHECK_POINTS: list[dict[str, Any]] = [
    {"n": 100_000_000_000, "d": []},
    {"n": 33, "d": []},
    {"n": -1},
    {"d": list(range(33))},
    {"d": [-1]},
    {"d": [2**63]},
    {"so": -1},
    {"so": 2**63},
    {"so": 10**400},
    {"pt": 2**63},
    {"it": -(2**63) - 1},
    {"bm": 2**31},
    {"q": -1},
    {"q": 2**31},
    {"t": "t" * 256},
    {"c": "c" * 256},
    {"t": None},
    {"c": "\x02"},
]


def put(world: World, tag: str, body: bytes) -> None:
    """What a client of an older version could send."""
    properties = join({Property.TAGS: tag, Property.UNIQUE_KEY: "U"})
    world.store.put(Draft(REVIVE_TOPIC, 0, body, properties, world.clock.now_ms(), HOST))


def in_flight(world: World) -> CheckPoints:
    return world.buffer._in_flight


@pytest.mark.parametrize("change", BAD_CHECK_POINTS, ids=str)
def test_a_check_point_beyond_its_bounds_is_refused_when_it_is_read(change: dict[str, Any]) -> None:
    """Point 3: one with "n": 1e11 took all memory, and again at each restart."""
    with pytest.raises(RemoteProtocolError):
        decode(json.dumps(CHECK_POINT | change).encode(), CheckPointRecord)


@pytest.mark.parametrize("change", [{"q": -1}, {"so": -1}, {"ao": 2**63}, {"aol": list(range(33))}, {"aol": [-1]}])
def test_an_ack_beyond_its_bounds_is_refused_when_it_is_read(change: dict[str, Any]) -> None:
    """Point 3"""
    with pytest.raises(RemoteProtocolError):
        decode(json.dumps(ACK | change).encode(), AckRecord)


def test_bad_records_from_before_are_left_out_and_counted_once(caplog: pytest.LogCaptureFixture) -> None:
    """Point 3: at a start, and later; what is good before, between and behind them is taken."""
    world = World()
    world.send(b"mine")
    (mine,) = world.pop()
    world.pass_time(15)  # now its check point lies in the revive log
    for change in BAD_CHECK_POINTS:
        put(world, CHECK_POINT_TAG, json.dumps(CHECK_POINT | change).encode())
    for body in (b"", b"{", b"[" * 10_000, b"x" * 60_000, b'{"so":1e11}', "é".encode("utf-16")):
        for tag in (CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG, "other", ""):
            put(world, tag, body)
    world.save()
    world.kill()

    with caplog.at_level(logging.WARNING):
        world.start()
    warned = [record.getMessage() for record in caplog.records if "invalid records" in record.getMessage()]
    caplog.clear()
    world.buffer.tend()

    assert 1 == len(warned)
    assert warned[0].startswith(f"skipped {len(BAD_CHECK_POINTS) + 30} invalid records of {REVIVE_TOPIC} queue 0")
    assert [] == caplog.records
    assert [mine.pop_time_ms] == [check_point.pop_time_ms for check_point in in_flight(world)]
    assert 1 == world.ack(mine)


NUMBERS = st.one_of(
    st.integers(-2, 40),
    st.sampled_from((2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**31), -(2**63), 10**11, 10**30)),
    st.floats(allow_nan=False),
)
VALUES = st.one_of(NUMBERS, st.none(), st.text(max_size=5), st.lists(NUMBERS, max_size=40))


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(
        st.tuples(
            st.sampled_from((CHECK_POINT_TAG, ACK_TAG, BATCH_ACK_TAG)),
            st.one_of(
                st.binary(max_size=40),
                st.dictionaries(st.sampled_from(sorted({*CHECK_POINT, *ACK, "aol"})), VALUES, max_size=4),
            ),
        ),
        max_size=8,
    )
)
def test_no_record_of_the_revive_log_stops_a_broker(records: list[tuple[str, bytes | dict[str, Any]]]) -> None:
    """Point 3: whatever lies there, a broker starts, pops and revives, and holds no more than a pop each."""
    world = World()
    world.send(b"0")
    for tag, body in records:
        if not isinstance(body, bytes):
            body = json.dumps((CHECK_POINT if tag == CHECK_POINT_TAG else ACK) | body).encode()
        put(world, tag, body)
    world.kill()
    world.start()

    assert all(len(check_point.offsets) <= 32 for check_point in in_flight(world))
    (popped,) = world.pop()
    assert 1 == world.ack(popped)
    world.pass_time(3600)
    world.stop()


def test_a_bad_entry_of_the_order_table_does_not_keep_the_others_from_being_read() -> None:
    """Point 3: consumerOrderInfo.json, as RocketMQ or a hand may have left it."""
    good: dict[str, Any] = {"popTime": 1, "i": 60_000, "o": [5, 1], "cm": 0}
    changes: list[dict[str, Any]] = [
        {"o": list(range(100))},
        {"o": [-1]},
        {"o": [2**63]},
        {"o": "x"},
        {"popTime": 2**64},
        {"cm": 2**63},
        {"oc": {"x": 1}},
    ]
    bad = {f"bad{number}@{GROUP}": {"0": good | change} for number, change in enumerate(changes)}
    table = {"table": bad | {f"{TOPIC}@{GROUP}": {"0": good}, f"far@{GROUP}": {"0": good | {"i": 2**63 - 1}}}}
    world = World()
    world.kill()
    world.files.saved[ROOT / "orders.json"] = json.dumps(table).encode()

    world.start()

    assert {(GROUP, TOPIC, 0), (GROUP, "far", 0)} == set(world.orders._batches)
    world.orders.change((GROUP, TOPIC, 0), 5, 1, 2**64)
    world.orders.save()
    saved = world.file("orders").load(json.loads)
    assert saved is not None
    assert 2**63 - 1 == decode(json.dumps(saved["table"][f"{TOPIC}@{GROUP}"]["0"]).encode(), OrderRecord).visible_ms[5]  # type: ignore[index]


def test_a_count_of_consumptions_at_its_limit_does_not_stop_the_revival() -> None:
    """Point 3: a sender says what it likes; beyond Java's int there is nothing."""
    world = World()
    world.store.put(Draft(TOPIC, 0, b"often", "", world.clock.now_ms(), HOST, reconsume_times=2**31 - 1))
    world.send(b"next")
    assert 2 == len(world.pop())

    world.pass_time(61)

    assert [(b"often", 2**31 - 1), (b"next", 1)] == [
        (message.body, message.reconsume_times) for message in world.pop(retry=1)
    ]
