"""Batches."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import InvalidMessage, RemoteProtocolError
from ternmq.wire import properties
from ternmq.wire.batch import pack_messages, unpack_messages
from tests.wire.recorded import requests
from tests.wire.values import texts

flags = st.integers(-(2**31), 2**31 - 1)
batches = st.lists(st.tuples(flags, st.binary(max_size=50), texts), max_size=5)
SAMPLE = [(0, b"one", "TAGS\x01a\x02"), (7, b"", ""), (0, b"three", "")]


def unpacked(body: bytes) -> list[tuple[int, bytes, str]]:
    return [(flag, content, text.decode()) for flag, content, text in unpack_messages(body)]


@given(batches)
def test_batches_round_trip(batch: list[tuple[int, bytes, str]]) -> None:
    """E6"""
    assert batch == unpacked(pack_messages(batch))


def test_recorded_batches_are_read_and_packed_again() -> None:
    """E6, V1"""
    bodies = [frame.body for frame in requests() if frame.code == 320]
    assert 3 == len(bodies)
    for body in bodies:
        messages = unpacked(body)
        assert [b"batch 0", b"batch 1", b"batch 2", b"batch 3", b"batch 4"] == [content for _, content, _ in messages]
        assert ["TagBatch"] * 5 == [properties.find(text, "TAGS") for _, _, text in messages]
        assert body == pack_messages(messages)


def test_a_cut_batch_is_refused_unless_between_two_messages() -> None:
    """B5"""
    body = pack_messages(SAMPLE)
    borders = {len(pack_messages(SAMPLE[:count])) for count in range(4)}
    for length in range(len(body) + 1):
        if length in borders:
            assert SAMPLE[: len(unpacked(body[:length]))] == unpacked(body[:length])
        else:
            with pytest.raises(RemoteProtocolError):
                unpack_messages(body[:length])


def test_bytes_after_the_last_message_are_refused() -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match="the batch has 1 bytes after its last message"):
        unpack_messages(pack_messages(SAMPLE) + b"x")


def test_a_changed_byte_gives_a_batch_or_a_protocol_error() -> None:
    """B5: every byte, every bit."""
    body = pack_messages(SAMPLE)
    for at in range(len(body)):
        for bit in range(8):
            changed = bytearray(body)
            changed[at] ^= 1 << bit
            with suppress(RemoteProtocolError):
                unpack_messages(bytes(changed))


@given(st.binary(max_size=100))
def test_garbage_is_refused_or_read(data: bytes) -> None:
    """B5"""
    with suppress(RemoteProtocolError):
        unpack_messages(data)


def test_a_message_of_no_size_is_refused() -> None:
    """B5: it would be read for ever."""
    with pytest.raises(RemoteProtocolError, match="cut short"):
        unpack_messages(bytes(22))


def test_too_many_properties_are_not_packed() -> None:
    """E2"""
    with pytest.raises(InvalidMessage, match="properties of 32768 bytes are too long; use at most 32767"):
        pack_messages([(0, b"", "x" * 32_768)])
