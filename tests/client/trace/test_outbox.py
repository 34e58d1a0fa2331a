"""The outbox of traces: bounds and cuts (Q1)."""

from __future__ import annotations

import asyncio

from ternmq.client.trace.outbox import BODY_BYTES_MAX, KEYS_BYTES_MAX, TraceOutbox, _fitting
from ternmq.env import SystemClock
from ternmq.wire.ids import UniqueIds
from ternmq.wire.trace import AFTER, TraceRecord, encode


def box(waiting_bytes_max: int = 1 << 20) -> TraceOutbox:
    clock = SystemClock()
    ids = UniqueIds("127.0.0.1", 1, salt=1, clock=clock)
    return TraceOutbox("traces", clock, ids, waiting_bytes_max=waiting_bytes_max)


def record(number: int, keys: str = "") -> TraceRecord:
    return TraceRecord(AFTER, 1, "g", None, f"M{number}", "R", keys=keys, cost_ms=1, success=True, code=0)


async def test_what_does_not_fit_is_dropped_and_counted() -> None:
    """Q1: bounded in bytes, from any thread."""
    outbox = box(waiting_bytes_max=20_000)
    await asyncio.gather(*(asyncio.to_thread(outbox.add, [record(n, "k" * 100) for n in range(100)]) for _ in range(4)))
    kept = 0
    while part := outbox._take():
        kept += len(part)
    assert 0 < kept < 50
    assert 400 == kept + outbox.dropped
    outbox.close()
    outbox.add([record(1)])
    assert 401 == kept + outbox.dropped


async def test_messages_are_cut_by_body_and_by_keys() -> None:
    """Q1: properties have 32,767 bytes at most; text of any language counts by its bytes."""
    outbox = box(64 << 20)
    outbox.add(record(n) for n in range(5000))
    outbox.add(record(n, "城" * 1000) for n in range(20))
    outbox.add([record(9, " ".join(f"key-{n}" for n in range(9000)))])
    count = 0
    while part := outbox._take():
        count += len(part)
        assert len("".join(one.text for one in part).encode()) <= BODY_BYTES_MAX
        keys = " ".join(_fitting(dict.fromkeys(key for one in part for key in one.keys)))
        assert len(keys.encode()) <= KEYS_BYTES_MAX
        if len(part) > 1:
            assert all(one.keys[0] in keys.split() for one in part)
    assert 5021 == count


def test_a_missing_value_is_the_word_null() -> None:
    """Q1: Java drops empty fields at the end of a record."""
    assert "SubAfter\x01R\x01M1\x011\x01true\x01null\x010\x011\x01g\x02" == encode(record(1))
