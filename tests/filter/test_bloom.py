"""The Bloom filter, bit for bit as RocketMQ has it (K3)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import ConfigError
from ternmq.filter.bloom import BloomFilter, filter_name, murmur3_x64_128

DEFAULT = BloomFilter.sized(error_percent=20, names=32)
NAMES = st.tuples(st.from_regex(r"[a-zA-Z0-9_%|-]{1,40}", fullmatch=True), st.text(max_size=20)).map(
    lambda parts: filter_name(*parts)
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "00000000000000000000000000000000"),
        (b"hello", "cbd8a7b341bd9b025b1e906a48ae1d19"),
        (b"The quick brown fox jumps over the lazy dog", "e34bbc7bbc071b6c7a433ca9c49a9347"),
    ],
)
def test_murmur3_agrees_with_its_published_values(text: bytes, expected: str) -> None:
    """K3: the x64 form of 128 bits, seed 0."""
    first, second = murmur3_x64_128(text)
    assert expected == f"{first:016x}{second:016x}"


def test_rocketmqs_defaults_make_three_hashes_and_fourteen_bytes() -> None:
    """K3: 32 groups, 20 %."""
    assert (3, 112, 14) == (DEFAULT.hash_count, DEFAULT.bit_count, DEFAULT.map_bytes)


@pytest.mark.parametrize(
    ("error_percent", "names", "hash_count", "bit_count"),
    [(50, 1, 1, 8), (25, 32, 2, 96), (1, 1000, 7, 9592), (99, 5, 1, 8)],
)
def test_sizes_follow_from_the_allowed_error(error_percent: int, names: int, hash_count: int, bit_count: int) -> None:
    """K3: also where the logarithm is a whole number."""
    assert BloomFilter(hash_count, bit_count) == BloomFilter.sized(error_percent=error_percent, names=names)


@pytest.mark.parametrize(
    ("group", "topic", "expected"), [("g", "t", (22, 87, 58)), ("GID_test", "TopicTest", (32, 78, 12))]
)
def test_positions_are_rocketmqs(group: str, topic: str, expected: tuple[int, ...]) -> None:
    """K3: with negative ints, which Java inverts."""
    assert expected == DEFAULT.positions(filter_name(group, topic))


def test_bits_count_from_the_lowest_of_each_byte() -> None:
    """K3: the map as a unit of the ext file holds it."""
    bits = DEFAULT.bits([DEFAULT.positions("g#t")])
    expected = bytearray(14)
    expected[2] = 1 << 6
    expected[10] = 1 << 7
    expected[7] = 1 << 2
    assert expected == bits
    assert bytes(14) == DEFAULT.bits([])


@given(st.lists(NAMES, max_size=40), NAMES)
def test_a_name_in_the_map_is_never_missed(names: list[str], other: str) -> None:
    """K3: «no» is certain."""
    held = [DEFAULT.positions(name) for name in names]
    bits = DEFAULT.bits(held)
    assert all(DEFAULT.tester(positions)(bits) for positions in held)
    if not DEFAULT.tester(DEFAULT.positions(other))(bits):
        assert other not in names


def test_few_names_seem_to_be_in_a_full_map_that_are_not() -> None:
    """K3: about as many as were allowed."""
    bits = DEFAULT.bits([DEFAULT.positions(f"group-{number}#orders") for number in range(32)])
    wrong = sum(DEFAULT.tester(DEFAULT.positions(f"other-{number}#orders"))(bits) for number in range(1000))
    assert wrong < 250


def test_a_map_of_another_length_says_nothing() -> None:
    """K3: it was made with other settings; the expression itself decides."""
    assert DEFAULT.tester((0, 1, 2))(b"")
    assert DEFAULT.tester((0, 1, 2))(bytes(8))
    assert not DEFAULT.tester((0, 1, 2))(bytes(14))


@pytest.mark.parametrize(
    ("error_percent", "names", "sentence"),
    [
        (0, 32, "invalid maxErrorRateOfBloomFilter 0: expected 1 to 99"),
        (100, 32, "invalid maxErrorRateOfBloomFilter 100"),
        (20, 0, "invalid expectConsumerNumUseFilter 0: expected 1 or more"),
    ],
)
def test_settings_that_cannot_be_are_refused(error_percent: int, names: int, sentence: str) -> None:
    """K3, T2."""
    with pytest.raises(ConfigError, match=sentence):
        BloomFilter.sized(error_percent=error_percent, names=names)
