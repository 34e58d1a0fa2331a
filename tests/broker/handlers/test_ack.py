"""Batches of acks: which messages their bits stand for (F9)."""

from __future__ import annotations

import base64
from collections.abc import Set as AbstractSet

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.broker.handlers.ack import _acked_offsets
from ternmq.errors import InvalidParameter
from ternmq.wire.bodies.clients import BatchAck
from ternmq.wire.handles import COUNT_MAX


def ack(bits: int, *, start_offset: int = 1_000) -> BatchAck:
    data = bits.to_bytes(bits.bit_length() // 8 + 1, "little")
    return BatchAck(
        consumer_group="group",
        topic="orders",
        start_offset=start_offset,
        queue_id=0,
        revive_queue_id=0,
        pop_time_ms=1,
        invisible_ms=60_000,
        bits=base64.b64encode(data).decode(),
    )


@given(st.sets(st.integers(0, 8_000), max_size=COUNT_MAX))
def test_bits_stand_for_queue_offsets_behind_the_first(numbers: AbstractSet[int]) -> None:
    """F9"""
    bits = sum(1 << number for number in numbers)

    assert [1_000 + number for number in sorted(numbers)] == [*_acked_offsets(ack(bits))]


@given(st.integers(0, 8_000), st.integers(1, COUNT_MAX))
def test_neighbours_are_a_range(first: int, count: int) -> None:
    """F9: a check point of a plain pop is one as well, and the two are compared without a look at each message."""
    bits = (1 << count) - 1 << first

    assert range(1_000 + first, 1_000 + first + count) == _acked_offsets(ack(bits))


def test_more_messages_than_a_pop_has_are_refused() -> None:
    """F9, B5"""
    with pytest.raises(InvalidParameter, match="33 messages"):
        _acked_offsets(ack((1 << COUNT_MAX + 1) - 1))
