"""Properties of a message as one text: ``name \\x01 value \\x02``, repeated (RocketMQ's ``MessageDecoder``; C1).

Each pair that TernMQ writes ends with ``\\x02``; before RocketMQ 5.2 the last one did not, so both are read. A pair
without a name or a value is ignored, and of two pairs with the same name the last one counts. The text passes unchanged
from the sender to the log, and the store needs two or three of its values at most: ``find`` returns one without parsing
the whole text, and ``getter`` does so for a filter that needs the same one of each message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ternmq.errors import InvalidMessage

NAME_END: Final = "\x01"
PAIR_END: Final = "\x02"


def find(properties: str, name: str) -> str | None:
    """The value of one property, or None."""
    key = f"\x02{name}\x01"
    at = properties.rfind(key)
    if at >= 0:
        value_at = at + len(key)
    elif properties.startswith(key[1:]):
        value_at = len(key) - 1
    else:
        return None
    end = properties.find(PAIR_END, value_at)
    value = properties[value_at:end] if end >= 0 else properties[value_at:]
    # The last pair of that name is empty, so it does not count; there may be another one before it.
    return value or parse(properties).get(name)


def getter(name: str) -> Callable[[str], str | None]:
    """``find`` for one name and many texts."""
    key, first = f"\x02{name}\x01", f"{name}\x01"
    key_length = len(key)

    def get(properties: str) -> str | None:
        at = properties.rfind(key)
        if at < 0 and not properties.startswith(first):
            return None
        at += key_length  # also right for -1: the name begins the text and lacks the character before it
        end = properties.find("\x02", at)
        # An empty pair does not count; there may be another one before it. And the last pair may lack its end.
        return properties[at:end] if end > at else find(properties, name)

    return get


def parse(properties: str) -> dict[str, str]:
    """All properties."""
    pairs: dict[str, str] = {}
    for pair in properties.split(PAIR_END):
        name, _, value = pair.partition(NAME_END)
        if name and value:
            pairs[name] = value
    return pairs


def join(pairs: Mapping[str, str]) -> str:
    """The text of all properties; empty values are left out, since readers ignore them.

    Raises ``InvalidMessage`` for a name or value that contains a separator.
    """
    text = "".join([f"{name}\x01{value}\x02" for name, value in pairs.items() if value])
    # One check of the whole text instead of one for each name and value. Empty values make a second check necessary.
    if text.count(PAIR_END) != len(pairs) or text.count(NAME_END) != len(pairs) or "" in pairs:
        for name, value in pairs.items():
            _check(name, value)
    return text


def with_(properties: str, name: str, value: str) -> str:
    """The text with ``name`` set to ``value``, replacing its old value; an empty value removes it."""
    if f"{name}\x01" in properties:
        properties = remove(properties, name)
    if not value:
        return properties
    _check(name, value)
    return f"{closed(properties)}{name}\x01{value}\x02"


def remove(properties: str, *names: str) -> str:
    """The text without the properties of these names; the rest is unchanged."""
    if not any(f"{name}\x01" in properties for name in names):
        return properties
    dropped = tuple(f"{name}\x01" for name in names)
    return PAIR_END.join([pair for pair in properties.split(PAIR_END) if not pair.startswith(dropped)])


def closed(properties: str) -> str:
    """The text with its last pair terminated, so that more pairs can be appended."""
    return properties if not properties or properties[-1] == PAIR_END else properties + PAIR_END


def _check(name: str, value: str) -> None:
    if not name or NAME_END in name or PAIR_END in name or PAIR_END in value:
        raise InvalidMessage(
            f"the property {name!r} cannot be stored; give it a name, and no character \\x01 in its name or \\x02 in "
            "its name or value"
        )
