"""The handle by which a delayed message is taken back before its time (I2): RocketMQ 5.3's ``RecallMessageHandle``.

URL-safe base64 of these words, blanks between::

    v1  topic  broker name  TIMER_OUT_MS + 1  unique key  [log offset]

The time names the second in which the message waits (the next ms, so that rounding it down gives that second again).
The last word is ours: where the waiting record lies, so that it is found without a search. RocketMQ's clients and
brokers read five words and leave the rest.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from ternmq.errors import InvalidHandle

_VERSION: Final = "v1"
#: Of a handle: two names, numbers, and a key. That is the sender's, and may have as much as properties can: 32 KiB,
#: which are 44 in base64.
_TEXT_LENGTH_MAX: Final = 1 << 16
_MS_MAX: Final = 1 << 62


@dataclass(slots=True, frozen=True)
class RecallHandle:
    """Which message is taken back."""

    topic: str
    broker_name: str
    #: The message's TIMER_OUT_MS.
    slot_ms: int
    unique_key: str
    #: Where its waiting record lies; None in a handle that RocketMQ made.
    log_offset: int | None = None

    def text(self) -> str:
        """The handle as it travels."""
        return handle_text(self.topic, self.broker_name, self.slot_ms, self.unique_key, self.log_offset)


def handle_text(topic: str, broker_name: str, slot_ms: int, unique_key: str, log_offset: int | None) -> str:
    """A handle as it travels. (A function: an object for each send with a delivery time costs 1 µs.)"""
    words = f"{_VERSION} {topic} {broker_name} {slot_ms + 1} {unique_key}"
    if log_offset is not None:
        words = f"{words} {log_offset}"
    return base64.urlsafe_b64encode(words.encode()).decode()


def parse_handle(text: str) -> RecallHandle:
    """Read a handle; raises ``InvalidHandle`` for a text that is none."""
    try:
        if len(text) > _TEXT_LENGTH_MAX:
            raise ValueError
        # Java's decoder takes a text without its padding, too.
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        version, topic, broker_name, time, *key = data.decode().split(" ", 4)
        # A key is the sender's, and may have blanks.
        unique_key, _, last = key[0].rpartition(" ") if key else ("", "", "")
        if version != _VERSION or not (topic and broker_name and last):
            raise ValueError
        if not unique_key:
            return RecallHandle(topic, broker_name, _number(time) - 1, last)
        return RecallHandle(topic, broker_name, _number(time) - 1, unique_key, _number(last))
    except (ValueError, binascii.Error, UnicodeError):
        raise InvalidHandle(
            f"invalid recall handle {text[:60]!r}: expected the recall_handle of the receipt of a delayed message"
        ) from None


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 19) or int(word) >= _MS_MAX:
        raise ValueError(word)
    return int(word)
