"""Quotas (M1): how many messages and bytes a second may pass, as a bucket that fills at that rate. Pure.

A bucket holds what may pass in one second, at most. While it is not empty, the next request passes whole, however large
it is, and what it takes beyond the content is a debt: nothing passes until that is paid. So a message that is larger
than a second's worth passes, too, and over any span no more passes than the rate allows, plus one second's worth, plus
one request.

A quota stands in the attributes of a topic (what producers may send to it) or of a group (what its consumers may get),
and so is saved, copied to slaves, and kept by a Raft group as all else in their configuration is.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from ternmq.errors import InvalidParameter
from ternmq.names import QUOTA_BYTES, QUOTA_MESSAGES

KEYS: Final = (QUOTA_MESSAGES, QUOTA_BYTES)
RATE_MAX: Final = 10**12
#: A bucket is never smaller than what flows in this time.
BURST_S: Final = 1.0


class Bucket:
    """Fills with ``rate`` a second, up to ``BURST_S`` of it. Times are those of a monotonic clock."""

    __slots__ = ("_at", "_level", "rate")

    def __init__(self, rate: int, now: float) -> None:
        self.rate = rate
        self._level = rate * BURST_S
        self._at = now

    def wait_s(self, now: float) -> float:
        """How long nothing may pass; 0 if something may pass now."""
        level = self._filled(now)
        # At least the time of one piece: at a level of exactly 0 nothing may pass either.
        return 0.0 if level > 0 else (1 - level) / self.rate

    def take(self, amount: int, now: float) -> None:
        """So much has passed."""
        self._level = self._filled(now) - amount
        self._at = now

    def _filled(self, now: float) -> float:
        return min(self._level + (now - self._at) * self.rate, self.rate * BURST_S)


class Quota:
    """What may pass of one topic, or to one group."""

    __slots__ = ("buckets", "bytes", "messages", "refused")

    def __init__(self, messages: int | None, size_bytes: int | None, now: float) -> None:
        """Each a second; None: as many as there are."""
        self.messages = messages
        self.bytes = size_bytes
        #: Requests that were refused or had to wait.
        self.refused = 0
        self.buckets = tuple(Bucket(rate, now) if rate is not None else None for rate in (messages, size_bytes))

    def wait_s(self, now: float) -> float:
        return max((bucket.wait_s(now) for bucket in self.buckets if bucket is not None), default=0.0)

    def take(self, messages: int, size_bytes: int, now: float) -> None:
        of_messages, of_bytes = self.buckets
        if of_messages is not None:
            of_messages.take(messages, now)
        if of_bytes is not None:
            of_bytes.take(size_bytes, now)

    def describe(self) -> str:
        rates = ((self.messages, "messages/s"), (self.bytes, "bytes/s"))
        return " and ".join(f"{rate} {unit}" for rate, unit in rates if rate is not None)


def rates(attributes: Mapping[str, str] | None) -> tuple[int | None, int | None]:
    """Messages and bytes a second that attributes allow. Raises ``InvalidParameter`` for a value that is no rate."""
    found = [_rate(key, (attributes or {}).get(key)) for key in KEYS]
    return found[0], found[1]


def _rate(key: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= len(str(RATE_MAX)) and 1 <= int(text) <= RATE_MAX):
        raise InvalidParameter(f"invalid {key} {text[:32]!r}: expected a number a second from 1 to {RATE_MAX}")
    return int(text)
