"""YAML in and out, for ACL files: a small and safe part of it (N1).

RocketMQ's ACL files are lists and maps of plain texts. So the parser's events are read, and nothing is constructed:
each scalar is the text that stands there (``accessKey: 12345678`` is a text, as in Java), null is None. Tags,
anchors and aliases, a key twice in one map, deep nesting and large files are refused: a file of rules must have one
meaning, and reading it must not take long.

PyYAML comes with ``pip install ternmq[security]``. It is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from ternmq.errors import ConfigError

FILE_BYTES_MAX: Final = 4 * 1024 * 1024
_DEPTH_MAX: Final = 8
_NULLS: Final = frozenset({"", "~", "null", "Null", "NULL"})

#: What a document is made of.
Value = str | None | list["Value"] | dict[str, "Value"]


def parse(data: bytes) -> Value:
    """The document in a file; None for an empty one. Raises ``ConfigError`` with the line."""
    yaml = _yaml()
    if len(data) > FILE_BYTES_MAX:
        raise ConfigError(f"the file has {len(data)} bytes: expected at most {FILE_BYTES_MAX}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"the file is not UTF-8 text (byte {error.start})") from None
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _document(yaml, yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark is not None else ""
        raise ConfigError(f"{where}not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {str(error).splitlines()[0]}") from None


def dump(document: object) -> bytes:
    """A document as RocketMQ writes it: block style, in the order of the maps."""
    yaml = _yaml()
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text: str = yaml.dump(document, Dumper=dumper, sort_keys=False, default_flow_style=False, allow_unicode=True)
    return text.encode()


def _yaml() -> Any:
    try:
        import yaml
    except ImportError:
        raise ConfigError("access control needs PyYAML; install it with `pip install ternmq[security]`") from None
    return yaml


def _document(yaml: Any, events: Iterator[Any]) -> Value:
    documents: list[Value] = []
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent):
            if documents:
                raise _refused(event, "a second document begins: expected one")
            documents.append(_value(yaml, next(events), events, 0))
    return documents[0] if documents else None


def _value(yaml: Any, event: Any, events: Iterator[Any], depth: int) -> Value:
    if isinstance(event, yaml.AliasEvent):
        raise _refused(event, "aliases (*name) are not allowed: write the value again")
    if event.anchor is not None:
        raise _refused(event, "anchors (&name) are not allowed")
    if event.tag is not None:
        raise _refused(event, "tags (!name) are not allowed")
    if isinstance(event, yaml.ScalarEvent):
        text: str = event.value
        return None if event.implicit[0] and text in _NULLS else text
    if depth >= _DEPTH_MAX:
        raise _refused(event, f"lists and maps are nested more than {_DEPTH_MAX} deep")
    if isinstance(event, yaml.SequenceStartEvent):
        values: list[Value] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            values.append(_value(yaml, item, events, depth + 1))
        return values
    return _mapping(yaml, events, depth)


def _mapping(yaml: Any, events: Iterator[Any], depth: int) -> Value:
    table: dict[str, Value] = {}
    while not isinstance(event := next(events), yaml.MappingEndEvent):
        key = _value(yaml, event, events, depth + 1)
        if not isinstance(key, str):
            raise _refused(event, "a key is not a text")
        if key in table:
            raise _refused(event, f"the key {key[:40]!r} occurs twice")
        table[key] = _value(yaml, next(events), events, depth + 1)
    return table


def _refused(event: Any, reason: str) -> ConfigError:
    return ConfigError(f"line {event.start_mark.line + 1}: {reason}")
