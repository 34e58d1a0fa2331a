"""Filter by tag (K1)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import ConfigError
from ternmq.filter.tags import TagFilter
from ternmq.wire.ids import java_hash


@pytest.mark.parametrize("expression", ["*", " * ", "", "  ", None])
def test_a_star_or_nothing_takes_every_message(expression: str | None) -> None:
    """K1."""
    wanted = TagFilter.parse(expression)
    assert wanted.all
    assert ("*", ()) == (wanted.expression, wanted.tags)
    assert wanted.matches("A")
    assert wanted.matches("")
    assert wanted.matches(None)


def test_parts_lose_their_blanks_and_repeat_only_once() -> None:
    """K1: as RocketMQ's ``FilterAPI`` reads them."""
    assert ("A", "B", "C d") == TagFilter.parse(" A||B ||  || A || C d").tags


def test_a_message_without_a_tag_passes_only_the_star() -> None:
    """K1."""
    wanted = TagFilter.parse("A || B")
    assert not wanted.matches("")
    assert not wanted.matches(None)


def test_tags_match_whole_and_by_case() -> None:
    """K1."""
    wanted = TagFilter.parse("Tag || B")
    assert [True, True, False, False] == [wanted.matches(tag) for tag in ("Tag", "B", "tag", "Ta")]


def test_codes_are_the_hashes_of_java() -> None:
    """K1: the recorded heartbeat of a Java client has code 65 for tag A."""
    assert {65, 66} == TagFilter.parse("A || B").codes(java_hash)
    assert frozenset() == TagFilter.parse("*").codes(java_hash)


def test_two_tags_of_one_code_are_told_apart_by_their_text() -> None:
    """K1: why the client looks again."""
    assert java_hash("Aa") == java_hash("BB")
    assert not TagFilter.parse("Aa").matches("BB")


def test_an_expression_without_any_tag_is_refused() -> None:
    """K1: RocketMQ would take it for a subscription that never matches."""
    with pytest.raises(ConfigError, match=r"expected \*, TagA"):
        TagFilter.parse(" || ")


tags = st.text(st.characters(exclude_characters="|*", codec="utf-8"), min_size=1).filter(lambda tag: bool(tag.strip()))


@given(st.lists(tags, min_size=1))
def test_every_listed_tag_passes_both_tests(listed: list[str]) -> None:
    """K1."""
    wanted = TagFilter.parse(" || ".join(listed))
    codes = wanted.codes(java_hash)
    for tag in map(str.strip, listed):
        assert wanted.matches(tag)
        assert java_hash(tag) in codes
