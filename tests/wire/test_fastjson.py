"""What fastjson writes."""

from __future__ import annotations

import json
import re
import tracemalloc
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.wire.fastjson import DEPTH_MAX, KEY_LENGTH_MAX, VALUES_MAX, to_json
from tests.wire.values import texts

#: Objects without null members: those do not come through.
json_values = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts.filter("$ref".__ne__), inner, max_size=4),
    max_leaves=12,
)


def read(text: str) -> Any:
    return json.loads(to_json(text.encode()))


@given(json_values, st.sampled_from([None, 2]), st.booleans())
def test_json_stays_what_it_is(value: object, indent: int | None, ascii_only: bool) -> None:
    """V2"""
    assert value == read(json.dumps(value, indent=indent, ensure_ascii=ascii_only))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
        ('{{"queueId":0,"topic":"t"}:{"maxOffset":3}}', {'{"queueId":0,"topic":"t"}': {"maxOffset": 3}}),
        ('{{ "a" : {1:2} }:[]}', {'{"a":{"1":2}}': []}),
        ("{name:1,$x:2,a.b:3}", {"name": 1, "$x": 2, "a.b": 3}),
        ("{'a':'it\\'s \"so\" \\\\ \\n'}", {"a": 'it\'s "so" \\ \n'}),
        ('{"a":null,"b":[null]}', {"b": [None]}),
        ('"tab\there"', "tab\there"),
        (" \r\n[ ]\t", []),
        ("{}", {}),
        ("[1.5e3,-0.25,true,false]", [1500.0, -0.25, True, False]),
    ],
)
def test_its_liberties_become_json(text: str, value: object) -> None:
    """V2"""
    assert value == read(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":[{"x":1}],"b":{"$ref":"$.a[0]"}}', {"a": [{"x": 1}], "b": {"x": 1}}),
        ('{"a":{"x":[7]},"b":{"$ref":"$.a.x[0]"}}', {"a": {"x": [7]}, "b": 7}),
        ('{"t":{"a.b":{"x":1}},"r":{"$ref":"$.t.a\\\\.b"}}', {"t": {"a.b": {"x": 1}}, "r": {"x": 1}}),
        ('{"t":{"a.b":{"x":1}},"r":{"$ref":"$.t[\'a.b\']"}}', {"t": {"a.b": {"x": 1}}, "r": {"x": 1}}),
        ('{"t":{0:{"x":1}},"r":{"$ref":"$.t[0]"}}', {"t": {"0": {"x": 1}}, "r": {"x": 1}}),
        ('{"a":{"$ref":"$.b"},"b":{"$ref":"$.c"},"c":{"x":1}}', {"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}}),
        ('[{"$ref":"$[1]"},{"x":1}]', [{"x": 1}, {"x": 1}]),
        ('{"$ref":1}', {"$ref": 1}),
        ('{"$ref":"$","x":1}', {"$ref": "$", "x": 1}),
    ],
)
def test_a_pointer_becomes_what_it_points_to(text: str, value: object) -> None:
    """V2"""
    assert value == read(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"$ref":".."}}',
        '{"a":{"$ref":"@"}}',
        '{"a":{"$ref":"$.a"}}',
        '{"a":{"$ref":"$.none.such"}}',
        '{"a":{"$ref":"$.a[9]"}}',
        '{"a":{"$ref":"$x"}}',
        '{"a":{"$ref":"$."}}',
        '{"a":{"$ref":"$[\'\']"}}',
    ],
)
def test_a_pointer_to_nothing_or_to_itself_is_null(text: str) -> None:
    """V2, B5"""
    assert {} == read(text)


def test_pointers_that_unfold_without_end_are_refused() -> None:
    """B5: ten lists of ten pointers to the list before are ten thousand million values."""
    members = ['"0":[1]']
    for n in range(10):
        pointer = f'{{"$ref":"$.{n}"}}'
        members.append(f'"{n + 1}":[{",".join([pointer] * 10)}]')
    with pytest.raises(RemoteProtocolError, match="unfold to more than"):
        read(f"{{{','.join(members)}}}")


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "[", "[1", "[1,", "[,]", '{"a"', '{"a":', '{"a":1', '{"a":1,}', "{,}", "{a}", "[1}", "{1]", "{{}:1"),
        *("nul", "tru", "NaN", "+1", "--1", "9" * 21, "1 2", "{}x", "'a", '"a', '"\\x"', '"\\ud800"', "\x00"),
    ],
)
def test_what_is_neither_is_refused(text: str) -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match="the body is not JSON"):
        read(text)


def test_bytes_that_are_no_utf_8_are_refused() -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match="utf-8"):
        to_json(b'"\xff"')


@pytest.mark.parametrize("opening", ["[", '{"a":', "{{"])
def test_nesting_is_bounded(opening: str) -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match=f"nested more than {DEPTH_MAX} deep"):
        read(opening * 100_000)


@given(st.text("{}[]:,\"'\\$ref01.a ", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    """B5"""
    with suppress(RemoteProtocolError):
        read(text)


@given(json_values, st.data())
def test_a_cut_or_changed_text_is_read_or_refused(value: object, data: st.DataObject) -> None:
    """B5"""
    encoded = bytearray(json.dumps(value, ensure_ascii=False).encode())
    with suppress(RemoteProtocolError):
        to_json(encoded[: data.draw(st.integers(0, len(encoded)))])
    encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        to_json(encoded)


# --- What is long ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("quote", ['"', "'"])
@pytest.mark.parametrize("part", ["x", "\\n", "\\\\", "\\'", '\\"', "é"])
def test_a_long_text_takes_memory_for_itself_only(quote: str, part: str) -> None:
    """Issue 13, 7: not for each of its characters."""
    if part == "\\'" and quote == '"':
        part = "'"
    text = f"{{name:{quote}{part * 500_000}{quote}}}".encode()
    tracemalloc.start()
    try:
        to_json(text)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * len(text)


@given(st.text("a'\"\\nu é", max_size=30))
def test_texts_in_single_quotes_mean_what_their_escapes_say(text: str) -> None:
    """V2: against a reader that takes one escape after the other."""
    found = re.fullmatch(r"'((?:[^'\\]|\\.)*)'", f"'{text}'", re.DOTALL)
    try:
        if found is None:
            raise ValueError
        requoted = re.sub(r'\\.|"', lambda match: {"\\'": "'", '"': '\\"'}.get(match[0], match[0]), found[1])
        expected = json.loads(f'"{requoted}"')
    except ValueError:
        with pytest.raises(RemoteProtocolError):
            read(f"'{text}'")
    else:
        assert expected == read(f"'{text}'")


@pytest.mark.parametrize("opening", ['{a:"', "{a:'", '{"'])
@pytest.mark.parametrize("part", ["x", "\\n", "\\\\"])
def test_a_long_text_without_an_end_is_refused(opening: str, part: str) -> None:
    """Issue 13, 7"""
    with pytest.raises(RemoteProtocolError, match="the body is not JSON"):
        read(opening + part * 200_000)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{a:[" + "0," * VALUES_MAX + "0]}", f"more than {VALUES_MAX} values"),
        ("{a:1." + "0" * 5_000 + "}", "a number is too long"),
        ("{a:" + "9" * 5_000 + "}", "a number is too long"),
        ("{" * 60 + '"a":1}:1' + "}:1" * 58 + "}", f"more than {KEY_LENGTH_MAX} characters"),
        ('{"s":"' + "x" * 100_000 + '","a":[' + ",".join(['{"$ref":"$.s"}'] * 1_000) + "]}", "characters"),
        (
            '{"l":[{"$ref":"$' + ".x" * 5_000 + '"}],"a":[' + ",".join(['{"$ref":"$.l"}'] * 5_000) + "]}",
            "unfold to more",
        ),
    ],
    ids=["values", "decimals", "digits", "keys in keys", "pointers to a text", "steps of pointers"],
)
def test_what_would_take_too_much_is_refused(text: str, problem: str) -> None:
    """Issue 13, 7; B5: the text is small, what it means is not."""
    with pytest.raises(RemoteProtocolError, match=problem):
        read(text)


def test_a_pointer_with_an_absurd_place_points_to_nothing() -> None:
    """B5"""
    assert {"l": [1]} == read(f'{{"l":[1],"a":{{"$ref":"$.l[{"9" * 5_000}]"}}}}')
    assert {"l": [1]} == read('{"l":[1],"a":{"$ref":"$.l[\'x\']"}}')
