"""Random SQL filters and properties, for Hypothesis and for the comparison with RocketMQ's own classes (K2)."""

from __future__ import annotations

from hypothesis import strategies as st

#: Few names and values, so that expressions and properties meet.
NAMES = ("a", "b", "c", "TAGS")
TEXTS = (
    "",
    "5",
    "5.5",
    "-3",
    "abc",
    "true",
    "TRUE",
    "it's",
    "10",
    "1e3",
    "NaN",
    "-0.0",
    "0.0",
    "2147483648",
    " 7 ",
    "7f",
)
NUMBERS = (
    "0",
    "5",
    "007",
    "3",
    "10",
    "5L",
    "2147483647",
    "2147483648",
    "9223372036854775807",
    "5.5",
    "5.",
    ".5",
    "1e3",
)
ODD_NUMBERS = ("0.0", "9223372036854775808", "1e400", "1E-400", "0L")

names = st.sampled_from(NAMES)
properties = st.dictionaries(names, st.sampled_from([text for text in TEXTS if text]), max_size=len(NAMES))
quoted = st.sampled_from(TEXTS).map(lambda text: "'" + text.replace("'", "''") + "'")
numbers = st.sampled_from(NUMBERS)
literals = st.one_of(numbers, quoted, st.sampled_from(["TRUE", "FALSE", "null", "True"]))
leaves = st.one_of(names, names, literals)


def _joined(*parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.tuples(*parts).map(" ".join)


def _comparisons(operand: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    maybe_not = st.sampled_from(["", "NOT", "not"])
    texts = st.lists(quoted, min_size=1, max_size=6).map(lambda items: "(" + ", ".join(items) + ")")
    return st.one_of(
        _joined(operand, st.sampled_from(["=", "<>"]), operand),
        _joined(names, st.sampled_from([">", ">=", "<", "<="]), st.one_of(names, numbers, numbers.map("-{}".format))),
        _joined(numbers, st.sampled_from([">", ">=", "<", "<="]), names),
        _joined(operand, st.sampled_from([">", ">=", "<", "<="]), operand),
        _joined(operand, st.sampled_from(["IS NULL", "is not null"])),
        _joined(names, maybe_not, st.just("BETWEEN"), numbers, st.just("AND"), st.one_of(numbers, names)),
        _joined(names, maybe_not, st.just("IN"), texts),
        _joined(operand, maybe_not, st.sampled_from(["CONTAINS", "startswith", "EndsWith"]), quoted),
    )


def _larger(smaller: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        _comparisons(st.one_of(leaves, smaller.map("({})".format))),
        _joined(smaller, st.sampled_from(["AND", "OR", "and"]), smaller),
        _joined(st.sampled_from(["NOT", "-", "+"]), smaller),
        smaller.map("({})".format),
        smaller.map("NOT ({})".format),
    )


#: Most are filters; some are refused.
filters = st.recursive(st.one_of(leaves, _comparisons(leaves)), _larger, max_leaves=6)

_pieces = st.one_of(
    leaves,
    st.sampled_from(ODD_NUMBERS),
    st.sampled_from(["AND", "OR", "NOT", "BETWEEN", "IN", "IS", "CONTAINS", "=", "<>", ">", "<=", "(", ")", ",", "+"]),
    st.sampled_from(["-", "--", "/*", "*/", "\n", "'", "''", '"', "!", "=="]),
)
#: Tokens in any order, and things that are none.
rubble = st.lists(_pieces, max_size=12).map(" ".join)
