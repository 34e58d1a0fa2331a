"""The quick hash of keys against the plain one (C4)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ternmq.store.derived import key_hash
from ternmq.store.derived.key_hash import Keyed, KeyHashes
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import parse

TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\x01\x02"), max_size=20)
KEYS = st.text(st.sampled_from("ab 0F\U0001f600é"), max_size=14)


def slow(records: list[Keyed]) -> list[tuple[int, int, int]]:
    """Word by word what the format says."""
    entries = []
    for topic, properties, log_offset, store_time_ms in records:
        pairs = parse(properties)
        for key in [pairs.get("UNIQ_KEY", ""), *pairs.get("KEYS", "").split(" ")]:
            if key:
                value = java_hash(f"{topic}#{key}")
                entries.append((0 if value == -(2**31) else abs(value), log_offset, store_time_ms))
    return entries


@given(
    st.lists(st.tuples(st.sampled_from(["a", "topic", "%RETRY%g"]), KEYS, KEYS, TEXTS, st.integers(0, 5)), max_size=30)
)
def test_all_keys_of_all_records_are_hashed(rows: list[tuple[str, str, str, str, int]]) -> None:
    """C4: in any order of properties, first, last, twice, empty, and with names that end alike."""
    hashes = KeyHashes()
    records: list[Keyed] = []
    for number, (topic, unique_key, keys, other, order) in enumerate(rows):
        pairs = [
            f"UNIQ_KEY\x01{unique_key}",
            f"KEYS\x01{keys}",
            f"MYKEYS\x01{other}",
            f"XUNIQ_KEY\x01{other}",
            f"KEYS2\x01{other}",
        ]
        pairs = pairs[order:] + pairs[:order]
        if order == 3:
            pairs.append("KEYS\x01")
        records.append((topic, "\x02".join(pairs) + ("\x02" if order % 2 else ""), number, number))

    assert slow(records) == hashes.entries(records)
    assert slow(records) == hashes.entries(records)


@given(TEXTS, TEXTS)
def test_one_key_is_hashed_alike(topic: str, key: str) -> None:
    """C4."""
    value = java_hash(f"{topic}#{key}")

    assert (0 if value == -(2**31) else abs(value)) == KeyHashes().of(topic, key)


@given(st.lists(st.text(st.sampled_from("0123456789ABCDEFabcG_ -"), min_size=30, max_size=58)))
def test_unique_keys_are_hashed_alike(keys: list[str]) -> None:
    """C4: of the usual length and digits, and of any other."""
    usual = [f"{number * 7_919_777_777_777_777_777_777_777:032X}"[:32] for number in range(20)]
    longer = [f"{number * 7_919_777:056X}" for number in range(20)]
    records: list[Keyed] = [
        ("topic", f"UNIQ_KEY\x01{key}\x02", number, 0) for number, key in enumerate(usual + longer + keys)
    ]

    assert slow(records) == KeyHashes().entries(records)


def test_the_table_of_topics_stays_small() -> None:
    """Every table has a bound."""
    hashes = KeyHashes()
    for number in range(key_hash.TOPICS_MAX + 10):
        hashes.entries([(f"t{number}", "KEYS\x01k", 0, 0)])

    assert len(hashes._topics) <= key_hash.TOPICS_MAX


def test_the_one_hash_without_a_positive_twin_is_zero() -> None:
    """C4: Math.abs(Integer.MIN_VALUE) is negative in Java, and counts as 0."""
    found = _text_with_lowest_hash()

    assert -(2**31) == java_hash(found)
    assert 0 == KeyHashes().of(*found.split("#"))
    assert [(0, 1, 2)] == KeyHashes().entries([(found.split("#")[0], f"UNIQ_KEY\x01{found.split('#')[1]}", 1, 2)])


def _text_with_lowest_hash() -> str:
    """A text «topic#key» of hash -2³¹: fix the start and write the rest as digits to base 31."""
    digits = [ord("A")] * 8
    base = "t#"
    rest = (-(2**31) - java_hash(base + "A" * 8)) % 2**32
    for place in range(8):
        power = 31 ** (7 - place)
        digits[place] += min(rest // power, 60_000 - ord("A"))
        rest -= (digits[place] - ord("A")) * power
    return base + "".join(map(chr, digits))
