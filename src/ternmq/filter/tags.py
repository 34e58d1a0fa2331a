"""Filter by tag: ``*`` matches all messages, ``A || B`` those with tag A or tag B (K1).

It is applied twice. A broker compares the 8-byte *tags code* of the queue's index entry with the codes of the
subscription, so it does not read messages that do not match; but two tags may have the same code. So the client
compares the tag itself again.

A tags code is Java's hash of the tag's text (``wire.ids.java_hash``), and 0 for a message without a tag. Filters do not
depend on the wire, so the caller that needs codes provides the hash function.

Expressions are read as in RocketMQ: parts are separated by ``||``, blanks around a part and empty parts are ignored. An
empty expression is ``*``. A message without a tag passes ``*`` only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from ternmq.errors import ConfigError

ALL: Final = "*"
SEPARATOR: Final = "||"


@dataclass(slots=True, frozen=True)
class TagFilter:
    """A parsed expression. ``tags`` are the wanted tags in the order written, each once; if there are none, every
    message matches."""

    expression: str
    tags: tuple[str, ...]

    @classmethod
    def parse(cls, expression: str | None) -> TagFilter:
        """Read ``*``, ``A`` or ``A || B``; raises ``ConfigError`` for an expression that names no tag."""
        text = (expression or "").strip() or ALL
        if text == ALL:
            return cls(ALL, ())
        tags = tuple(dict.fromkeys(part for part in map(str.strip, text.split(SEPARATOR)) if part))
        if not tags:
            raise ConfigError(f"invalid tag expression {expression!r}: expected *, TagA or TagA || TagB")
        return cls(text, tags)

    @property
    def all(self) -> bool:
        """Whether every message passes."""
        return not self.tags

    def matches(self, tag: str | None) -> bool:
        """Whether a message with this tag matches; None or "" means no tag. The test of the client."""
        return not self.tags or tag in self.tags

    def codes(self, hash_text: Callable[[str], int]) -> frozenset[int]:
        """The tags codes for the test of a broker; empty if every message matches."""
        return frozenset(map(hash_text, self.tags))
