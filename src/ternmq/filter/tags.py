"""Filter by tag: ``*`` takes all messages, ``A || B`` those with tag A or tag B (K1).

It works twice. A broker compares the 8-byte *tags code* of the queue's index entry with the codes of the subscription:
it never reads a message that nobody wants, but two tags may share a code. So the client compares the tag itself again.

A tags code is Java's hash of the tag's text (``wire.ids.java_hash``), and 0 for a message without a tag. Filters know
nothing of the wire, so whoever needs codes brings the hash along.

As RocketMQ reads an expression: parts are separated by ``||``, blanks around a part and empty parts do not count. An
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
    """A parsed expression. ``tags`` are the wanted ones in the order written, each once; none at all means every
    message is wanted."""

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
        """Whether a message with this tag is wanted; None or "" is a message without one. The client's test."""
        return not self.tags or tag in self.tags

    def codes(self, hash_text: Callable[[str], int]) -> frozenset[int]:
        """The tags codes for a broker's test; empty means every message passes."""
        return frozenset(map(hash_text, self.tags))
