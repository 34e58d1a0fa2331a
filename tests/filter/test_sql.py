"""How SQL filters are read (K2): precedence, tokens, refusals with their place; RocketMQ's quirks marked «quirk»."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import ExpressionTooLarge, InvalidExpression
from ternmq.filter.sql import DEFAULT_LIMITS, ExpressionLimits, check, has_recent_words, parse
from ternmq.filter.tree import (
    AsCondition,
    Compare,
    Constant,
    FilterNode,
    In,
    IsNull,
    Logic,
    Negate,
    Not,
    Operator,
    PropertyValue,
    TextMatch,
)
from tests.filter import expressions

#: Limits that only nesting reaches.
WIDE = ExpressionLimits(length=10_000_000, terms=1_000_000)
A, B, C = PropertyValue("a"), PropertyValue("b"), PropertyValue("c")


def equal(left: FilterNode, right: FilterNode) -> Compare:
    return Compare(Operator.EQUAL, left, right)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a = 1", equal(A, Constant(1))),
        ("a <> 'x'", Not(equal(A, Constant("x")))),
        ("a > 1", Compare(Operator.GREATER, A, Constant(1))),
        ("1.5 <= a", Compare(Operator.LESS_EQUAL, Constant(1.5), A)),
        ("a = 'it''s'", equal(A, Constant("it's"))),
        ("a = ''", equal(A, Constant(""))),
        ("a IS NULL", IsNull(A)),
        ("a is not null", Not(IsNull(A))),
        ("a IN ('x', 'y')", In(A, ("x", "y"), negated=False)),
        ("(a) NOT IN ('x')", In(A, ("x",), negated=True)),
        ("a CONTAINS 'x'", TextMatch("CONTAINS", A, "x", negated=False)),
        ("a NOT StartsWith 'x'", TextMatch("STARTSWITH", A, "x", negated=True)),
        ("5 ENDSWITH ''", TextMatch("ENDSWITH", Constant(5), "", negated=False)),
        ("-a = +5", equal(Negate(A), Constant(5))),
        ("a", AsCondition(A)),
        ("NOT a", Not(AsCondition(A))),
        ("TRUE", Constant(True)),
        ("NULL", Constant(None)),
        ("a = TRUE", equal(A, Constant(True))),
        ("a = (b = c)", equal(A, equal(B, C))),
        ("a = b = TRUE", equal(equal(A, B), Constant(True))),
        ("a IS NULL IS NULL", IsNull(IsNull(A))),
        ("_x$1 = 1", equal(PropertyValue("_x$1"), Constant(1))),
        ("$ = 1", equal(PropertyValue("$"), Constant(1))),
        (
            "a BETWEEN 1 AND 5",
            Logic(
                True,
                (Compare(Operator.GREATER_EQUAL, A, Constant(1)), Compare(Operator.LESS_EQUAL, A, Constant(5))),
            ),
        ),
        (
            "a NOT BETWEEN 5 AND -1",
            Logic(False, (Compare(Operator.LESS, A, Constant(5)), Compare(Operator.GREATER, A, Negate(Constant(1))))),
        ),
    ],
)
def test_each_form_is_read(text: str, expected: FilterNode) -> None:
    """K2"""
    assert expected == parse(text)


def test_and_binds_tighter_than_or_and_comparison_tighter_than_both() -> None:
    """K2"""
    expected = Logic(
        False, (equal(A, Constant(1)), Logic(True, (equal(B, Constant(2)), equal(C, Constant(3)))), AsCondition(A))
    )
    assert expected == parse("a = 1 OR b = 2 AND c = 3 OR a")


def test_comparison_binds_tighter_than_equality() -> None:
    """K2: ``a > 1 = TRUE`` is ``(a > 1) = TRUE``."""
    assert equal(Compare(Operator.GREATER, A, Constant(1)), Constant(True)) == parse("a > 1 = TRUE")


def test_not_binds_tighter_than_comparison() -> None:
    """K2, quirk."""
    assert equal(Not(AsCondition(A)), Constant(1)) == parse("NOT a = 1")
    assert Not(equal(A, Constant(1))) == parse("NOT (a = 1)")


@pytest.mark.parametrize("text", ["a = 0 b", "a = 007", "a = 0L", "a = 0)", "a = 0 , #", "a = 0 a #", "a = 0 'x' ''' "])
def test_what_follows_the_expression_does_not_count(text: str) -> None:
    """K2, quirk: it is not even looked at, but for the next token."""
    assert equal(A, Constant(0)) == parse(text)


def test_there_is_no_like() -> None:
    """K2, quirk: it is a name, before which the expression ends; and a bare property is a filter."""
    assert AsCondition(A) == parse("a LIKE 'x%'")


@pytest.mark.parametrize("text", ["a = 0 #", "a = 0 'x", "a = 0 /* x", "a = 0 ! b"])
def test_the_token_that_follows_must_be_one(text: str) -> None:
    """K2, quirk."""
    with pytest.raises(InvalidExpression) as raised:
        parse(text)
    assert 6 == raised.value.position


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0", 0),
        ("5L", 5),
        ("2147483648l", 2147483648),
        ("9223372036854775807", 2**63 - 1),
        ("5.", 5.0),
        (".5", 0.5),
        ("5E2", 500.0),
        ("007.5e-1", 0.75),
        ("5.E+1", 50.0),
    ],
)
def test_numbers_are_read_as_java_reads_them(text: str, value: float) -> None:
    """K2"""
    node = parse(f"a = {text}")
    assert isinstance(node, Compare)
    assert isinstance(node.right, Constant)
    assert (type(value), value) == (type(node.right.value), node.right.value)


@pytest.mark.parametrize(
    "text", ["a--x\n= /* y */ 1", "a /***/=/* / ** */1", "a\t=\f1\r", "a -- x\r\n = 1", "/* a = 2 */ a = 1 -- b\n"]
)
def test_comments_and_white_space_do_not_count(text: str) -> None:
    """K2"""
    assert equal(A, Constant(1)) == parse(text)


def test_a_comment_without_a_line_end_is_two_signs() -> None:
    """K2, quirk: ``--5`` is 5 negated twice."""
    assert equal(A, Negate(Negate(Constant(5)))) == parse("a = --5")


@pytest.mark.parametrize(
    ("text", "position", "cure"),
    [
        ("", 0, "the end"),
        ("a =", 3, "the end"),
        ("NOT a > 1", 0, "NOT (a > 1)"),
        ("a > 'x'", 4, "for texts use"),
        ("a > TRUE", 4, "compare numbers"),
        ("a > NULL", 4, "compare numbers"),
        ("(a = 1) < 5", 0, "compare numbers"),
        ("a > 1 > 2", 0, "compare numbers"),
        ("a BETWEEN 'x' AND 5", 10, "compare numbers"),
        ("a BETWEEN 5 AND 3", 16, "swap them"),
        ("a BETWEEN 9007199254740993 AND 9007199254740992", 31, "swap them"),
        ("a BETWEEN 1 OR 2", 12, "two bounds"),
        ("a = NULL", 4, "IS NULL"),
        ("NULL <> a", 0, "IS NULL"),
        ("TRUE = 1", 7, "TRUE or FALSE"),
        ("a IS 5", 5, "NOT NULL"),
        ("a = 1 NOT b", 10, "after NOT"),
        ("5 IN ('a')", 0, "property"),
        ("NOT a IN ('x')", 0, "a NOT IN"),
        ("a IN ()", 6, "texts in quotes"),
        ("a IN ('x', 5)", 11, "texts in quotes"),
        ("a IN ('x'", 9, "must end with )"),
        ("a IN 'x'", 5, "a list"),
        ("a CONTAINS 5", 11, "a text in quotes"),
        ("5", 0, "condition"),
        ("a = 1 AND 5", 10, "condition"),
        ("NOT 'x'", 4, "condition"),
        ("-a", 0, "condition"),
        ("(a = 1", 6, "not closed"),
        ("a = 0.0", 4, "write 0"),
        ("a = 1e-400", 4, "write 0"),
        ("a = 1e400", 4, "too large"),
        ("a = 9223372036854775808", 4, "as a decimal"),
        ("a != 1", 2, "use <>"),
        ("a == 1", 3, "expected"),
        ('a = "x"', 4, "single quotes"),
        ("a = 'x", 4, "is not closed"),
        ("a # b", 2, "unexpected"),
        ("a\xa0= 1", 1, "unexpected"),
        ("AND = 1", 0, "expected"),
    ],
)
def test_a_refusal_tells_the_place_and_the_cure(text: str, position: int, cure: str) -> None:
    """K2"""
    with pytest.raises(InvalidExpression) as raised:
        parse(text)
    assert (position, text) == (raised.value.position, raised.value.expression)
    assert cure in raised.value.reason
    assert f"at character {position + 1}" in str(raised.value)


def test_long_chains_are_read_and_deep_nesting_is_refused() -> None:
    """K2: the stack of a broker is bounded."""
    chain = parse(" OR ".join(f"a = {number}" for number in range(5_000)), WIDE)
    assert isinstance(chain, Logic)
    assert 5_000 == len(chain.operands)
    depth = DEFAULT_LIMITS.depth - 1
    parse("(" * depth + "a" + ")" * depth)
    for text in ("(" * 5_000, "- " * 5_000, "a" + " IS NULL" * 5_000, "NOT " * 5_000 + "a"):
        with pytest.raises(ExpressionTooLarge, match="nested more than 64 deep, which maxFilterExpressionDepth allows"):
            parse(text, WIDE)


def test_a_long_expression_is_shown_in_part() -> None:
    """K2: an error is a line, not a page."""
    with pytest.raises(InvalidExpression) as raised:
        parse("a = 1 AND " * 500 + "a > 'x'")
    assert 5_004 == raised.value.position
    assert len(str(raised.value)) < 400


@given(st.one_of(st.text(), expressions.rubble, expressions.filters))
def test_any_text_is_read_or_refused(text: str) -> None:
    """K2: with one error."""
    position = 0
    try:
        parse(text)
    except InvalidExpression as error:
        position = error.position
    assert 0 <= position <= len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("a contains 'x'", True), ("a = 1 AND StartsWith = 2", True), ("a = 'CONTAINS'", False), ("contain = 1 #", False)],
)
def test_words_that_old_brokers_do_not_know_are_noticed(text: str, expected: bool) -> None:
    """K2: they are names before RocketMQ 5.1.3."""
    assert expected is has_recent_words(text)


# --- Limits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a = 1" + " " * 16_380, "it has 16385 characters, more than the 16384 that maxFilterExpressionLength allows"),
        (
            " OR ".join(["a=1"] * 513),
            "1024 terms (properties, numbers and texts; CONTAINS counts as 16), which maxFilterExpressionTerms",
        ),
        ("a IN (" + ",".join(["'x'"] * 1_024) + ")", "more than 1024 terms"),
        ("TRUE" + " AND TRUE" * 1_024, "more than 1024 terms"),
        (" OR ".join(["a CONTAINS 'x'"] * 61), "more than 1024 terms"),
        ("a BETWEEN 1 AND 2 OR " * 342 + "a", "more than 1024 terms"),
        ("NOT " * 65 + "a", "nested more than 64 deep, which maxFilterExpressionDepth allows"),
        ("a" + " = a" * 65, "nested more than 64 deep"),
        ("a" + " STARTSWITH 'x'" * 65, "nested more than 64 deep"),
    ],
)
def test_what_is_too_large_is_refused_with_the_setting(text: str, reason: str) -> None:
    """Issue 13, 4"""
    with pytest.raises(ExpressionTooLarge) as raised:
        parse(text)
    assert reason in raised.value.reason
    assert len(str(raised.value)) < 400


@pytest.mark.parametrize(
    "text",
    [
        "a = 1" + " " * 16_379,
        " OR ".join(["a=1"] * 512),
        "a IN (" + ",".join(["'x'"] * 1_023) + ")",
        "NOT " * 62 + "a",
        "a = 1" + "".join(f" /* {number} */" for number in range(1_000)),
    ],
)
def test_what_is_just_not_too_large_is_read(text: str) -> None:
    """Issue 13, 4"""
    parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "a = '" + "x" * 1_000_000 + "'",
        "a = '" + "''" * 500_000 + "'",
        "a = '" + "x" * 1_000_000,
        "a = " + " " * 1_000_000,
        "a = /*" + "*" * 1_000_000,
        "a = --" + "-" * 1_000_000,
        "a = 1 --" + "-" * 1_000_000 + "\n",
        "a = " + "9" * 1_000_000,
        "a = 0" + "0" * 1_000_000,
        "a = 1." + "9" * 1_000_000,
        "a = 1E" + "9" * 1_000_000,
        "a" * 1_000_000 + " = 1",
    ],
    ids=lambda text: text[:7],
)
def test_a_long_token_takes_memory_for_itself_only(text: str) -> None:
    """Issue 13, 4: the pattern of a text took 1.8 GB for 8 MB."""
    tracemalloc.start()
    try:
        with suppress(InvalidExpression):
            parse(text, WIDE)
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 8 * len(text)


def test_a_client_leaves_limits_to_the_brokers() -> None:
    """Issue 13, 4: theirs may be wider, and RocketMQ has none."""
    check("a = 1 OR " * 5_000 + "a = 1")
    check("a" + " = a" * 100)
    check("contains = 5")
    with pytest.raises(InvalidExpression, match="the end"):
        check("a = ")
