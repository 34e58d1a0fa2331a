"""Times on the command line: parsing and formatting."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ternmq.env import SystemClock
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from ternmq.client.consume.offsets import StartPosition

_AGO: Final = re.compile(r"(\d+)(s|m|h|d)\Z")
_DURATION: Final = re.compile(r"(\d{1,9})(ms|s|m|h|d)\Z")
_DURATION_UNITS: Final = {"ms": "milliseconds", "s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_UNITS: Final = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
#: Smaller numbers are durations or typing errors, larger ones are milliseconds since 1970 (from September 2001 on).
_MS_LEAST: Final = 10**12
#: The wire has 63 bits for a time; ``datetime`` ends with the year 9999.
_MS_MOST: Final = 253_402_300_799_999


def parse_time(text: str, *, now_ms: int) -> int:
    """Milliseconds since 1970 from ``2026-01-31T12:00``, ``15m`` (ago) or the number itself; in local time unless it
    contains a zone. Raises ``ConfigError``."""
    try:
        if ago := _AGO.match(text):
            # No message is older than 1970, so an earlier time means the first message.
            return max(0, now_ms - timedelta(**{_UNITS[ago[2]]: int(ago[1])}) // timedelta(milliseconds=1))
        if text.isdecimal() and _MS_LEAST <= int(text) <= _MS_MOST:
            return int(text)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a valid time; expected 2026-01-31T12:00, 15m for 15 minutes ago, or milliseconds "
            "since 1970"
        ) from None


def later(text: str) -> dict[str, Any]:
    """How a message is delayed, as arguments of ``Message``: ``90s`` is a delay, ``3`` a delay level. Raises
    ``ConfigError``."""
    if text.isdecimal() and len(text) <= 3:
        return {"delay_level": int(text)}
    found = _DURATION.match(text)
    if found is None:
        raise ConfigError(
            f"{text!r} is not a valid delay; expected 500ms, 90s, 15m, 2h or 3d, or a delay level such as 3"
        )
    try:
        return {"delay": timedelta(**{_DURATION_UNITS[found[2]]: int(found[1])})}
    except OverflowError:
        raise ConfigError(f"{text!r} is not a valid delay; it is too long") from None


def parse_moment(text: str) -> datetime:
    """A moment from ``2026-12-24T18:00``; local time unless it names a zone. Raises ``ConfigError``."""
    try:
        return datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{text!r} is not a valid time; expected 2026-12-24T18:00, or 2026-12-24T18:00+01:00 with a time zone"
        ) from None


def parse_position(text: str) -> StartPosition:
    """``first``, ``last`` or a time. Raises ``ConfigError``."""
    from ternmq.client.consume.offsets import StartPosition

    named = {"first": StartPosition.FIRST, "last": StartPosition.LAST}
    return named.get(text) or StartPosition.at(parse_time(text, now_ms=SystemClock().now_ms()))


def format_ms(time_ms: int) -> str:
    """Local time to the millisecond; ``-`` for "never"."""
    if time_ms <= 0:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000, UTC).astimezone().isoformat(" ", timespec="milliseconds")[:23]


def age_text(seconds: int) -> str:
    """``5s``, ``3m 20s``, ``2h 5m``."""
    minutes, rest = divmod(seconds, 60)
    hours, minutes_left = divmod(minutes, 60)
    return f"{hours}h {minutes_left}m" if hours else f"{minutes}m {rest}s" if minutes else f"{rest}s"
