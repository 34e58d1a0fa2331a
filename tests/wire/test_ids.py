"""Ids of messages, and Java's hash."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import InvalidName
from ternmq.wire.ids import UniqueIds, java_hash, java_hash_append, offset_id, parse_offset_id
from ternmq.wire.record import pack_host
from tests.manual_clock import ManualClock

#: Surrogates too, alone and in pairs: Java's texts may have them.
anything = st.text(st.characters(min_codepoint=0, max_codepoint=0x10FFFF, categories=None), max_size=40)


def by_the_book(text: str) -> int:
    value = 0
    data = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(data), 2):
        value = (31 * value + int.from_bytes(data[at : at + 2], "big")) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("hello", 99162322),
        ("Aa", 2112),
        ("BB", 2112),
        ("TagA", 2598919),
        ("polygenelubricants", -(2**31)),
        ("\U0001f600", 1772899),
    ],
)
def test_hashes_are_those_of_java(text: str, expected: int) -> None:
    """C2, C4"""
    assert expected == java_hash(text) == by_the_book(text)


@given(anything)
def test_any_text_is_hashed_by_its_utf_16_units(text: str) -> None:
    """C2"""
    assert by_the_book(text) == java_hash(text)


@given(anything, anything)
def test_a_hash_can_be_continued(start: str, end: str) -> None:
    """C4: the index hashes each topic once."""
    assert java_hash(start + end) == java_hash_append(java_hash(start), end)


@pytest.mark.parametrize("length", [1022, 1023, 1024, 5000])
@pytest.mark.parametrize("character", ["z", "é", "\U0001f600"])
def test_long_texts_are_hashed_too(length: int, character: str) -> None:
    """C4"""
    assert by_the_book(character * length) == java_hash(character * length)


# --- Offset ids -----------------------------------------------------------------------------------------------


def test_an_offset_id_names_host_and_log_offset() -> None:
    """C10"""
    assert "7F00000100009FAC00000000000012ED" == offset_id(pack_host("127.0.0.1", 40876), 4845)
    assert ("127.0.0.1", 40876, 4845) == parse_offset_id("7F00000100009FAC00000000000012ED")


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_ids_round_trip(ip: object, port: int, log_offset: int) -> None:
    """C10"""
    host = pack_host(str(ip), port)
    found_ip, found_port, found_offset = parse_offset_id(offset_id(host, log_offset))
    assert (host, log_offset) == (pack_host(found_ip, found_port), found_offset)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7F00000100009FAC00000000000012E",
        "7F00000100009FAC00000000000012EG",
        "7F 0000100009FAC00000000000012E ",
        "7F00000100009FAC80000000000012ED",
        "7F0000010000789C0000000000000F9B,7F0000010000789C0000000000001000",
        "é" * 32,
    ],
)
def test_what_is_no_offset_id_is_refused_with_the_cure(text: str) -> None:
    """C10"""
    with pytest.raises(InvalidName, match="is not a valid offset id; it has 32 hexadecimal digits"):
        parse_offset_id(text)


# --- Unique ids -----------------------------------------------------------------------------------------------

#: 2026-03-15 12:00 of wherever this runs.
MID_MARCH_MS = int(time.mktime((2026, 3, 15, 12, 0, 0, 0, 0, -1))) * 1000
MARCH_MS = int(time.mktime((2026, 3, 1, 0, 0, 0, 0, 0, -1))) * 1000


def test_a_unique_id_says_where_and_when_it_was_made() -> None:
    """C10"""
    ids = UniqueIds("10.0.0.1", 0x12345, salt=0xDEADBEEF, clock=ManualClock(MID_MARCH_MS))
    data = bytes.fromhex(ids.next())
    assert ("0a000001", "2345", "deadbeef") == (data[:4].hex(), data[4:6].hex(), data[6:10].hex())
    assert MID_MARCH_MS - MARCH_MS == int.from_bytes(data[10:14], "big")


def test_ids_have_32_or_56_upper_case_digits() -> None:
    """C10"""
    clock = ManualClock(MID_MARCH_MS)
    for ip, length in (("10.0.0.1", 32), ("fd00::2", 56)):
        made = UniqueIds(ip, 1, salt=10, clock=clock).next()
        assert (length, made) == (len(made), made.upper())


@pytest.mark.parametrize("step_s", [0.0, 0.001, -0.001, -3600.0])
def test_ids_never_repeat_whatever_the_clock_does(step_s: float) -> None:
    """C10: more than 65,536 in one ms, and clocks that step back."""
    clock = ManualClock(MID_MARCH_MS)
    ids = UniqueIds("10.0.0.1", 1, salt=1, clock=clock)
    made = [ids.next() for _ in range(70_000)]
    clock.advance(step_s)
    made += [ids.next() for _ in range(70_000)]
    assert len(made) == len(set(made))
    assert made == sorted(made)


def test_time_starts_again_with_each_month() -> None:
    """C10"""
    clock = ManualClock(int(time.mktime((2026, 12, 31, 23, 59, 59, 0, 0, -1))) * 1000)
    ids = UniqueIds("10.0.0.1", 1, salt=1, clock=clock)
    december = bytes.fromhex(ids.next())[10:14]
    clock.advance(1.5)
    january = bytes.fromhex(ids.next())[10:14]
    assert int.from_bytes(december, "big") > 30 * 86_400_000
    assert 500 == int.from_bytes(january, "big")
