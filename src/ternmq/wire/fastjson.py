"""Converts the JSON dialect of Java's fastjson to JSON (V2, V3).

RocketMQ writes its bodies with a library that does not always write valid JSON. Four deviations occur:

- keys that are numbers have no quotes: ``{0:"10.0.0.1:10911"}``;
- keys that are objects have no quotes: ``{{"brokerName":"b","queueId":0,"topic":"t"}:{"maxOffset":3}}``;
- an object that occurs twice is written once, and then referred to by a pointer: ``{"$ref":"$.queueDatas[0]"}``;
- texts and keys may have single quotes, and keys that are names may have none.

``to_json`` converts that to JSON: keys become texts (an object becomes its JSON without blanks), pointers are replaced
by the value that they point to, and null members are removed, since Java leaves them out and Go does not. Valid JSON
does not come here: ``bodies.codec`` tries a prepared decoder first.

Input is not trusted. Texts are found and read by functions in C, in one pass. There are limits for nesting, the number
of values (this reader takes about 1 µs for each, on the loop), the length of numbers and of keys that are objects, and
the size after pointers are replaced, in values and in characters.
"""

from __future__ import annotations

import json
import re
from typing import Final, NoReturn, TypeAlias

import msgspec

from ternmq.errors import RemoteProtocolError
from ternmq.types import Buffer

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"

DEPTH_MAX: Final = 64
#: Values that are read; also values after pointers are replaced, plus the steps to find their targets. Pointers to many
#: pointers to many pointers … would grow without limit. RocketMQ's own tables of this form have some thousands.
VALUES_MAX: Final = 250_000
#: Characters after pointers are replaced, as many as a frame has; each pointer to a long text adds it once more.
TEXT_MAX: Final = 16 << 20
#: A key that is an object is a queue. Inside another such key its quotes are escaped, which doubles it each time.
KEY_LENGTH_MAX: Final = 4_096
#: Java writes a double in 25 characters at most.
NUMBER_LENGTH_MAX: Final = 400

_encoder: Final = msgspec.json.Encoder()
#: Not strict: unescaped control characters, which some writers send, are accepted.
_strings: Final = json.JSONDecoder(strict=False)

_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?")
_WORD: Final = re.compile(r"[A-Za-z_$][A-Za-z0-9_$.-]*")
_SINGLE_QUOTED: Final = re.compile(r"'((?:[^'\\]++|\\.)*+)'", re.DOTALL)
#: Temporary replacement of an escaped backslash; UTF-8 has no such character.
_BACKSLASH: Final = "\udc5c"
#: A step of a pointer: .name (with a backslash before what is special), [3] or ['name'].
_STEP: Final = re.compile(r"\.((?:[^.\[\\]++|\\.)++)|\[([0-9]+)\]|\[(['\"])(.*?)\3\]", re.DOTALL)
_INDEX_LENGTH_MAX: Final = 9
_WORDS: Final[dict[str, Json]] = {"true": True, "false": False, "null": None}


def to_json(data: Buffer) -> bytes:
    """The same value as JSON. Raises ``RemoteProtocolError`` if fastjson could not have written the input."""
    try:
        text = str(data, "utf-8")
        value = _Reader(text).read()
        if '"$ref"' in text or "'$ref'" in text:
            value = _Pointers(value).follow()
        return _encoder.encode(value)
    except (json.JSONDecodeError, UnicodeError, OverflowError) as error:
        raise RemoteProtocolError(f"the body is not JSON: {error}") from None


class _Reader:
    """Reads one text, from left to right."""

    __slots__ = ("_at", "_count", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._count = 0

    def read(self) -> Json:
        value = self._value(0)
        if self._next_character():
            self._fail("something follows the value")
        return value

    def _next_character(self) -> str:
        """The next character that is not blank, without consuming it; "" at the end."""
        match = _BLANK.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._text[self._at : self._at + 1]

    def _fail(self, problem: str) -> NoReturn:
        raise RemoteProtocolError(f"the body is not JSON, nor what fastjson writes: {problem} at character {self._at}")

    def _value(self, depth: int) -> Json:
        if depth > DEPTH_MAX:
            self._fail(f"it is nested more than {DEPTH_MAX} deep")
        self._count += 1
        if self._count > VALUES_MAX:
            self._fail(f"it has more than {VALUES_MAX} values")
        character = self._next_character()
        if character == "{":
            return self._object(depth)
        if character == "[":
            return self._array(depth)
        if character in ('"', "'"):
            return self._string()
        number = _NUMBER.match(self._text, self._at)
        if number is not None:
            self._at = number.end()
            is_decimal = number[1] is not None or number[2] is not None
            # A number with more digits than a Java long is not valid, and thousands of them would take Python long.
            if len(number[0]) > (NUMBER_LENGTH_MAX if is_decimal else 20):
                self._fail("a number is too long")
            return float(number[0]) if is_decimal else int(number[0])
        word = _WORD.match(self._text, self._at)
        if word is None or word[0] not in _WORDS:
            self._fail("a value is missing")
        self._at = word.end()
        return _WORDS[word[0]]

    def _object(self, depth: int) -> dict[str, Json]:
        members: dict[str, Json] = {}
        self._at += 1
        if self._next_character() == "}":
            self._at += 1
            return members
        while True:
            key = self._key(depth)
            if self._next_character() != ":":
                self._fail("a colon is missing")
            self._at += 1
            value = self._value(depth + 1)
            if value is not None:
                members[key] = value
            if self._ends("}"):
                return members

    def _array(self, depth: int) -> list[Json]:
        values: list[Json] = []
        self._at += 1
        if self._next_character() == "]":
            self._at += 1
            return values
        while True:
            values.append(self._value(depth + 1))
            if self._ends("]"):
                return values

    def _ends(self, bracket: str) -> bool:
        character = self._next_character()
        if character != bracket and character != ",":
            self._fail(f"a comma or {bracket} is missing")
        self._at += 1
        return character == bracket

    def _key(self, depth: int) -> str:
        character = self._next_character()
        if character in ('"', "'"):
            return self._string()
        if character == "{":
            key = _encoder.encode(self._value(depth + 1)).decode()
            if len(key) > KEY_LENGTH_MAX:
                self._fail(f"a key that is an object has more than {KEY_LENGTH_MAX} characters")
            return key
        match = _NUMBER.match(self._text, self._at) or _WORD.match(self._text, self._at)
        if match is None:
            self._fail("a key is missing")
        self._at = match.end()
        return match[0]

    def _string(self) -> str:
        value: str
        if self._text[self._at] == '"':
            value, self._at = _strings.raw_decode(self._text, self._at)
            return value
        match = _SINGLE_QUOTED.match(self._text, self._at)
        if match is None:
            self._fail("a text does not end")
        self._at = match.end()
        value, _ = _strings.raw_decode(f'"{_requoted(match[1])}"')
        return value


def _requoted(text: str) -> str:
    """A text that was between single quotes, as it is written between double quotes."""
    text = text.replace("\\\\", _BACKSLASH).replace("\\'", "'")
    return text.replace('\\"', '"').replace('"', '\\"').replace(_BACKSLASH, "\\\\")


class _Pointers:
    """Replaces pointers by their targets; by null if there is no target, or if it contains the pointer."""

    __slots__ = ("_around", "_count", "_length", "_root")

    def __init__(self, root: Json) -> None:
        self._root = root
        self._around: list[int] = []
        self._count = 0
        self._length = 0

    def follow(self) -> Json:
        return self._value(self._root)

    def _value(self, value: Json) -> Json:
        self._step()
        if not isinstance(value, dict | list):
            if isinstance(value, str):
                self._spend(value)
            return value
        # A pointer to a value that contains it (fastjson's "..", "@" and "$") would be infinite.
        if id(value) in self._around or len(self._around) > DEPTH_MAX:
            return None
        self._around.append(id(value))
        followed: Json
        if isinstance(value, list):
            followed = [self._value(item) for item in value]
        elif len(value) == 1 and isinstance(path := value.get("$ref"), str):
            followed = self._value(self._target(path))
        else:
            for key in value:
                self._spend(key)
            items = ((key, self._value(item)) for key, item in value.items())
            followed = {key: item for key, item in items if item is not None}
        self._around.pop()
        return followed

    def _step(self) -> None:
        self._count += 1
        if self._count > VALUES_MAX:
            raise RemoteProtocolError(f"the pointers in the body unfold to more than {VALUES_MAX} values")

    def _spend(self, text: str) -> None:
        self._length += len(text)
        if self._length > TEXT_MAX:
            raise RemoteProtocolError(f"the pointers in the body unfold to more than {TEXT_MAX} characters")

    def _target(self, path: str) -> Json:
        self._spend(path)
        if not path.startswith("$"):
            return None
        at, value = 1, self._root
        while at < len(path):
            self._step()
            step = _STEP.match(path, at)
            if step is None:
                return None
            at = step.end()
            if isinstance(value, list):
                index = step[2] or step[1] or ""
                if not index.isdecimal() or len(index) > _INDEX_LENGTH_MAX or int(index) >= len(value):
                    return None
                value = value[int(index)]
            elif isinstance(value, dict):
                name = step[4] or step[2] or re.sub(r"\\(.)", r"\1", step[1] or "")
                value = value.get(name)
            else:
                return None
        return value
