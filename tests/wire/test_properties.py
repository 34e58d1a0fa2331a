"""Properties as one text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import InvalidMessage
from ternmq.wire.properties import closed, find, getter, join, parse, remove, with_

#: Short texts of few characters, so that names meet and pairs are broken.
broken = st.text("ab\x01\x02", max_size=14)
names = st.text("abc", min_size=1, max_size=2)
pairs = st.dictionaries(names, st.text("xyz\x01", min_size=1, max_size=3), max_size=4)


@given(pairs)
def test_properties_round_trip(table: dict[str, str]) -> None:
    """C1"""
    assert table == parse(join(table))


def test_every_pair_ends_with_its_sign() -> None:
    """C1"""
    assert "TAGS\x01a\x02KEYS\x01k\x02" == join({"TAGS": "a", "KEYS": "k"})
    assert "" == join({})


def test_the_last_pair_need_not_end() -> None:
    """C11: before 5.2 it did not."""
    assert {"TAGS": "a", "KEYS": "k"} == parse("TAGS\x01a\x02KEYS\x01k")


@pytest.mark.parametrize("text", ["", "\x02", "a", "a\x01", "\x01b", "\x01", "a\x02b", "\x02\x02", "a\x01\x02"])
def test_a_pair_without_name_or_value_does_not_exist(text: str) -> None:
    """C1"""
    assert {} == parse(text)


def test_of_two_pairs_with_one_name_the_last_counts() -> None:
    """C11: 5.2 writes UNIQ_KEY twice in batches."""
    assert "2" == find("a\x011\x02b\x010\x02a\x012\x02", "a") == parse("a\x011\x02b\x010\x02a\x012\x02")["a"]


@given(broken, names)
def test_one_is_found_as_in_the_whole(text: str, name: str) -> None:
    """C5: whatever the text is."""
    assert parse(text).get(name) == find(text, name) == getter(name)(text)


def test_a_name_is_found_as_a_whole() -> None:
    """C5"""
    text = "XTAGS\x01no\x02TAGSX\x01no\x02TAGS\x01yes\x02"
    assert "yes" == find(text, "TAGS")
    assert find("XTAGS\x01no\x02a\x01TAGS\x01no", "TAGS") is None


@given(broken, names, st.text("xy", max_size=2))
def test_one_is_set_in_place_of_what_it_was(text: str, name: str, value: str) -> None:
    """J1, H1"""
    expected = parse(text)
    expected.pop(name, None)
    if value:
        expected[name] = value
    assert expected == parse(with_(text, name, value))


@given(broken, st.lists(names, max_size=3))
def test_some_are_removed_and_the_rest_stays(text: str, dropped: list[str]) -> None:
    """I1"""
    expected = {name: value for name, value in parse(text).items() if name not in dropped}
    assert expected == parse(remove(text, *dropped))


def test_what_is_not_there_is_not_removed() -> None:
    text = "a\x011\x02\x02b"
    assert text is remove(text, "c")


def test_more_can_be_put_behind_a_closed_text() -> None:
    assert ("", "a\x011\x02", "a\x011\x02") == (closed(""), closed("a\x011"), closed("a\x011\x02"))


@pytest.mark.parametrize(
    "table", [{"a\x01b": "c"}, {"a\x02b": "c"}, {"a": "b\x02c"}, {"": "x"}, {"a": "", "b\x02": "x"}]
)
def test_a_property_that_would_read_as_another_is_refused(table: dict[str, str]) -> None:
    """E2"""
    with pytest.raises(InvalidMessage, match="cannot be stored; give it a name"):
        join(table)
    *_, (name, value) = table.items()
    with pytest.raises(InvalidMessage, match="cannot be stored; give it a name"):
        with_("", name, value)


def test_an_empty_value_is_left_out() -> None:
    """C1: it could not be read."""
    assert "b\x011\x02" == join({"a": "", "b": "1"})
