"""TernMQ's SQL filter and RocketMQ's own, on the same expressions and messages (K2, V1).

Not through a broker: a Java program feeds the filter classes of the released jars, so that thousands of cases, refused
expressions and errors in evaluation among them, cost seconds.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ternmq.errors import EvaluationFailed, InvalidExpression
from ternmq.filter.evaluate import SqlFilter
from ternmq.filter.sql import has_recent_words
from tests.filter import expressions
from tests.interop.java import Java

pytestmark = pytest.mark.interop

COUNT = 2_000

Case = tuple[str, list[dict[str, str]]]

#: Texts at the borders of Java's number formats.
ODD_TEXTS = [
    *[
        "0",
        "-0",
        "+5",
        "-5",
        "5 ",
        " 5",
        "5\t",
        "5_0",
        "٥",
        "𝟓",
        "５",
        "0x5",
        "5L",
        "5l",
        "",
        "+",
        "-",
        "--5",
        "000005",
    ],
    *["2147483647", "2147483648", "-2147483648", "-2147483649", "9223372036854775807", "9223372036854775808"],
    *[
        "5.",
        ".5",
        ".",
        "5.0",
        "5.5f",
        "5D",
        "5e",
        "5e1",
        "5E+1",
        "1e400",
        "-1e400",
        "1e-400",
        "0x1.8p1",
        "0x.8p1",
        "0x1p",
    ],
    *["0x1.p1", "0x1p99999", "-0x1p99999", "NaN", "+NaN", "-NaN", "nan", "Infinity", "+Infinity", "-Infinity", "inf"],
    *[
        "٩.٥",
        "\x005\x1f",
        "5\xa0",
        "5f ",
        "1.2.3",
        "true",
        "TRUE",
        "trUe",
        "true ",
        "yes",
        "-0.0",
        "0.0",
        "it's",
        "杭州",
    ],
]
ODD_EXPRESSIONS = [
    *["a = 5", "a > 5", "a = -5", "5 = a", "5 >= a", "a = 2147483648", "a = -2147483648", "a >= 9223372036854775807"],
    *[
        "a = 5.0",
        "a > 5.0",
        "5.0 > a",
        "a < -0.5",
        "a BETWEEN 1 AND 5.5",
        "a = TRUE",
        "a = FALSE",
        "TRUE = a",
        "a",
        "NOT a",
    ],
    *["a < b", "a <= b", "a = b", "a > a", "-a = b", "a IN ('5', 'true', '杭州')", "a IS NULL OR a = 'it''s'"],
    *[
        "(a = 5) = TRUE",
        "(a = 5) = a",
        "a = (b = b)",
        "a = 5 OR TRUE",
        "TRUE OR a = 5",
        "FALSE AND a = 5",
        "a = 5 AND FALSE",
    ],
]
#: Where reading is odd: precedence, ends, numbers, comments.
ODD_TEXT = [
    *[
        "NOT a = 1",
        "NOT a > 1",
        "NOT a IN ('x')",
        "a = 007",
        "a = 0L",
        "a = 1 b",
        "a = 1 #",
        "a = 1 b #",
        "a = 1 NOT b",
    ],
    *[
        "a = 1 NOT",
        "a = 1 IS",
        "a LIKE 'x'",
        "a == 1",
        "a != 1",
        "a = NULL",
        "NULL",
        "NULL = NULL",
        "NULL IS NULL",
        "5",
        "'x'",
    ],
    *[
        "a > NULL",
        "a > 'x'",
        "a > TRUE",
        "TRUE = 1",
        "1 = TRUE",
        "'x' = TRUE",
        "TRUE = 'x'",
        "TRUE = FALSE",
        "a > b > c",
    ],
    *[
        "a BETWEEN 5 AND 3",
        "a BETWEEN 5 AND -3",
        "a NOT BETWEEN 5 AND 3",
        "a BETWEEN NULL AND 5",
        "a BETWEEN '1' AND '2'",
    ],
    *[
        "5 BETWEEN a AND b",
        "a BETWEEN 9007199254740993 AND 9007199254740992",
        "a BETWEEN 5 AND 4.5",
        "a BETWEEN b AND NULL",
    ],
    *[
        "0.0 = a",
        "a = 1e-400",
        "a = 1e400",
        "a = 9223372036854775808",
        "a = -9223372036854775808",
        "a = 5.E1",
        "a = .5e1",
    ],
    *["1 = 1.0", "9007199254740993 = 9007199254740992.0", "9007199254740993 = 9007199254740992", "-1 = - 1", "+a = 5"],
    *[
        "a = --5",
        "a = -- 5",
        "a -- x\n= 5",
        "a -- x\r= 5",
        "a /* x */ = 5",
        "a /* x",
        "a = 5 /*",
        "a = 5 --",
        "a/***/=/**/5",
    ],
    *[
        "a = 'x''y'",
        "a = 'x'''",
        "a = '''",
        "a = ''''",
        "a = 'x",
        'a = "x"',
        "",
        " ",
        "()",
        "(a",
        "a)",
        "((a))",
        "(a = 1",
    ],
    *[
        "a IN ()",
        "a IN ('x'",
        "a IN ('x',)",
        "a IN (5)",
        "(a) IN ('5')",
        "+a IN ('5')",
        "5 IN ('5')",
        "a IN ('5') IN ('5')",
    ],
    *[
        "a IS NULL IS NULL",
        "a IS NOT NULL",
        "NOT a IS NULL",
        "a IS TRUE",
        "- - a = b",
        "-(a > 5) = b",
        "-'x' < 5",
        "-5 < a",
    ],
    *[
        "a\xa0= 5",
        "a\x0b= 5",
        "_a = 5",
        "$a = 5",
        "a$1 = 5",
        "1a = 5",
        "a.b = 5",
        "ſ = 5",
        "a AND b",
        "a OR NOT b",
        "AND",
    ],
    *["a contains '5'", "a CONTAINS ''", "a NOT CONTAINS '5'", "a NOT STARTSWITH ''", "a ENDSWITH 5", "contains = 5"],
    *["(a > 5) CONTAINS ''", "(a > 5) CONTAINS 'x'", "5 STARTSWITH '5'", "a STARTSWITH '5' = TRUE", "a NOT LIKE 'x'"],
]


def generated(count: int) -> list[Case]:
    """The same cases each time."""
    cases: list[Case] = []

    @settings(
        max_examples=count,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
        deadline=None,
    )
    @given(
        st.one_of(expressions.filters, expressions.filters, expressions.rubble),
        st.lists(expressions.properties, min_size=3, max_size=3),
    )
    def collect(expression: str, messages: list[dict[str, str]]) -> None:
        cases.append((expression, messages))

    collect()
    return cases


def said(case: Case) -> list[str] | None:
    """What TernMQ says, in Java's words."""
    expression, messages = case
    try:
        compiled = SqlFilter.compile(expression)
    except InvalidExpression:
        return None
    answers = []
    for properties in messages:
        try:
            answer = compiled.evaluate(properties)
        except EvaluationFailed:
            answers.append("error")
        else:
            answers.append({True: "true", False: "false", None: "null"}[answer])
    return answers


async def test_our_filter_says_what_rocketmqs_says(java: Java) -> None:
    """K2: refused, true, false, null or an error; on odd cases and on random ones."""
    odd = [{"a": text, "b": "5"} for text in ODD_TEXTS]
    few = [{}, {"a": "5", "b": "7"}, {"a": "5", "b": "5", "c": "x"}, {"a": "x", "b": "true"}, {"b": "5"}]
    cases: list[Case] = [(expression, odd) for expression in ODD_EXPRESSIONS]
    cases += [(expression, few) for expression in ODD_TEXT]
    cases += generated(COUNT)
    if java.version.startswith("4."):
        # CONTAINS and its kin came with 5.1.3.
        cases = [case for case in cases if not has_recent_words(case[0])]

    differ: list[tuple[Any, ...]] = []
    async with java.peer("filter") as peer:
        for at in range(0, len(cases), 200):
            part = cases[at : at + 200]
            for expression, messages in part:
                await peer.write({"expression": expression, "messages": messages})
            for case in part:
                theirs = (await peer.event("filtered"))["said"]
                if theirs != said(case):
                    differ.append((case, theirs, said(case)))

    assert len(cases) > 1_500
    assert [] == differ[:10], json.dumps(differ[:10], ensure_ascii=False)
