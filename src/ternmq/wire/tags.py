"""The tags of a property text, and the tags code that a queue entry holds (C2).

The code is Java's hash of the value of TAGS, 0 without tags. If there are several values, or an empty one, the rule of
``wire.properties.find`` applies. The store needs the code of each record, so it is found here without parsing the text,
and the hashes of tags are cached: few topics use more than a handful.
"""

from __future__ import annotations

from typing import Final

from ternmq.message import Property
from ternmq.wire.ids import java_hash
from ternmq.wire.properties import find

#: Tags whose hash is cached; when there are more, the cache is cleared.
TAGS_MAX: Final = 4096

#: The name as it occurs in the text, with the end of the pair before it, so that only whole names match.
_KEY: Final = f"\x02{Property.TAGS}\x01"
_FIRST: Final = _KEY[1:]
_KEY_LENGTH: Final = len(_KEY)
_KEY_BYTES: Final = _KEY.encode()
_FIRST_BYTES: Final = _FIRST.encode()


def tags_code(properties: str) -> int:
    """The code of the tags in a property text. For many texts see ``TagsCodes``."""
    tags = find(properties, Property.TAGS)
    return java_hash(tags) if tags else 0


class TagsCodes:
    """The same for many texts: each hash is computed once."""

    __slots__ = ("_of_bytes", "_of_text")

    def __init__(self) -> None:
        self._of_text: dict[str, int] = {}
        self._of_bytes: dict[bytes, int] = {}

    def of_text(self, properties: str) -> int:
        """The code of the tags in a property text."""
        at = properties.rfind(_KEY)
        if at < 0 and not properties.startswith(_FIRST):
            return 0
        at += _KEY_LENGTH  # also right for -1: the name begins the text and lacks the character before it
        end = properties.find("\x02", at)
        tags = properties[at:end] if end >= 0 else properties[at:]
        code = self._of_text.get(tags)
        if code is not None:
            return code
        code = tags_code(properties)
        # An empty value does not count: there may be an earlier pair with a value.
        if tags:
            if len(self._of_text) >= TAGS_MAX:
                self._of_text.clear()
            self._of_text[tags] = code
        return code

    def of_bytes(self, data: bytes, begin: int, end: int) -> int:
        """The code of the tags in the property text from ``begin`` up to ``end``, in UTF-8."""
        at = data.rfind(_KEY_BYTES, begin, end)
        if at < 0:
            if not data.startswith(_FIRST_BYTES, begin, end):
                return 0
            at = begin - 1
        at += _KEY_LENGTH
        tags_end = data.find(2, at, end)
        tags = data[at : tags_end if tags_end >= 0 else end]
        code = self._of_bytes.get(tags)
        if code is not None:
            return code
        code = tags_code(str(data[begin:end], "utf-8", "replace"))
        if tags:
            if len(self._of_bytes) >= TAGS_MAX:
                self._of_bytes.clear()
            self._of_bytes[tags] = code
        return code
