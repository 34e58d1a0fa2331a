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
#: Of a handle: two names, a key and numbers.
_TEXT_LENGTH_MAX: Final = 4096
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
        words = [_VERSION, self.topic, self.broker_name, str(self.slot_ms + 1), self.unique_key]
        if self.log_offset is not None:
            words.append(str(self.log_offset))
        return base64.urlsafe_b64encode(" ".join(words).encode()).decode()


def parse_handle(text: str) -> RecallHandle:
    """Read a handle; raises ``InvalidHandle`` for a text that is none."""
    try:
        if len(text) > _TEXT_LENGTH_MAX:
            raise ValueError
        # Java's decoder takes a text without its padding, too.
        data = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        version, topic, broker_name, time, unique_key, *rest = data.decode().split(" ")
        if version != _VERSION or not (topic and broker_name and unique_key):
            raise ValueError
        return RecallHandle(topic, broker_name, _number(time) - 1, unique_key, _number(rest[0]) if rest else None)
    except (ValueError, binascii.Error, UnicodeError):
        raise InvalidHandle(
            f"invalid recall handle {text[:60]!r}: expected the recall_handle of the receipt of a delayed message"
        ) from None


def _number(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) <= 19) or int(word) >= _MS_MAX:
        raise ValueError(word)
    return int(word)
