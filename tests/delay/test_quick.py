"""The quick way to read a record that waits (I2)."""

from __future__ import annotations

import itertools

import pytest

from ternmq.delay.quick import delivered_at, quick_delivery
from ternmq.names import WHEEL_TOPIC
from ternmq.wire.record import Sysflag, field_at, pack_host, pack_record, record_bytes

V4, V6 = pack_host("127.0.0.1", 7), pack_host("::1", 7)
PROPERTIES = b"TAGS\x01a\x02TIMER_OUT_MS\x017200000\x02REAL_TOPIC\x01orders\x02REAL_QID\x013\x02"


def waiting(born_host: bytes, store_host: bytes) -> bytes:
    topic, body = WHEEL_TOPIC.encode(), b"hello"
    size = record_bytes(
        body=len(body),
        topic=len(topic),
        properties=len(PROPERTIES),
        born_host=len(born_host),
        store_host=len(store_host),
    )
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=0,
        flag=5,
        queue_offset=9,
        log_offset=1_000,
        sysflag=Sysflag.COMPRESSED | Sysflag.PREPARED,
        born_time_ms=1_700_000_000_000,
        born_host=born_host,
        store_time_ms=1_700_000_000_001,
        store_host=store_host,
        reconsume_times=2,
        prepared_transaction_offset=0,
        body=body,
        topic=topic,
        properties=PROPERTIES,
    )
    return bytes(page)


@pytest.mark.parametrize(("born_host", "store_host"), list(itertools.product((V4, V6), repeat=2)))
def test_a_record_is_read_with_hosts_of_any_kind(born_host: bytes, store_host: bytes) -> None:
    """I2: and it is found wherever it stands in what was read."""
    data = waiting(born_host, store_host)
    for before in (b"", b"xyz"):
        found = quick_delivery(before + data, len(before), len(data), 1_000, delivered_at(7_200_003))
        assert found is not None
        draft, slot_ms, topic = found
        assert (7_200_000, "orders", "orders", 3) == (slot_ms, topic, draft.topic, draft.queue_id)
        assert (b"hello", 5, 1_700_000_000_000, born_host, 2, 1_000) == (
            draft.body,
            draft.flag,
            draft.born_time_ms,
            draft.born_host,
            draft.reconsume_times,
            draft.closes,
        )
        assert draft.properties.startswith(PROPERTIES.decode())
        assert draft.properties.endswith("TIMER_ENQUEUE_MS\x011700000000001\x02TIMER_DEQUEUE_MS\x017200003\x02")
        assert Sysflag.COMPRESSED == draft.sysflag & ~(Sysflag.BORN_V6 | Sysflag.STORE_V6)


@pytest.mark.parametrize(("born_host", "store_host"), list(itertools.product((V4, V6), repeat=2)))
def test_a_record_that_is_cut_damaged_or_of_another_place_is_left_to_the_long_way(
    born_host: bytes, store_host: bytes
) -> None:
    """I2: nothing is raised, and nothing is delivered that is not whole."""
    data, text = waiting(born_host, store_host), delivered_at(7_200_003)
    for cut in range(len(data)):
        assert quick_delivery(data[:cut], 0, cut, 1_000, text) is None
        assert quick_delivery(data[:cut], 0, len(data), 1_000, text) is None
    assert quick_delivery(data, 0, len(data), 1_001, text) is None
    body_at = data.index(b"hello")
    assert quick_delivery(data[:body_at] + b"j" + data[body_at + 1 :], 0, len(data), 1_000, text) is None
    # Its hosts have another length than it says.
    flags_at = field_at("sysflag") + 3
    for flags in (Sysflag.BORN_V6, Sysflag.STORE_V6):
        changed = data[:flags_at] + bytes([data[flags_at] ^ flags]) + data[flags_at + 1 :]
        assert quick_delivery(changed, 0, len(data), 1_000, text) is None
