"""When a message with a delivery time is due (I2, I3): plain arithmetic on the text of its properties.

A message asks for its time in one of four properties (``message.TIMER_PROPERTIES``): relative, in seconds or ms, or
absolute. The broker adds TIMER_OUT_MS, the *slot* of RocketMQ's timer: the last whole second before the time, so that a
slot T holds what is due in (T, T + 1000]. RocketMQ delivers a slot when it is over, up to a second late. Here a message
is due at its own ms, which the record still tells: the absolute time itself, or the store time and the delay. Where
that does not lie within the slot (RocketMQ wrote the record again, its clock was another), the end of the slot counts:
never early, at most a second late.

Slots are kept by the hour: *hour* h begins at h · 3,600,000 ms since 1970.
"""

from __future__ import annotations

import re
from typing import Final

from ternmq.errors import MessageIllegal
from ternmq.message import TIMER_PROPERTIES, Property
from ternmq.wire import properties as props

SLOT_MS: Final = 1_000
HOUR_MS: Final = 3_600_000
#: The end of the year 9999: times behind it have no name.
TIME_MAX_MS: Final = 253_402_300_800_000

_NUMBER: Final = re.compile(r"-?[0-9]{1,18}\Z")
#: Unit in ms of the relative ones; the others are absolute.
_UNITS_MS: Final = {Property.TIMER_DELAY_SEC: 1_000, Property.TIMER_DELAY_MS: 1}
_out_text = props.getter(Property.TIMER_OUT_MS)
_getters: Final = tuple((name, props.getter(name), _UNITS_MS.get(name, 0)) for name in TIMER_PROPERTIES)


def asked_time(properties: str, now_ms: int) -> tuple[str, int] | None:
    """The property by which a message asks for its time, and that time in ms since 1970; None if it does not ask.

    Raises ``MessageIllegal`` for an invalid value: not a number, or negative.
    """
    for name, get, unit_ms in _getters:
        text = get(properties)
        if text is None:
            continue
        if not _NUMBER.match(text) or text[0] == "-":
            raise MessageIllegal(
                f"invalid {name} {text[:40]!r}: expected "
                + ("a delay of 0 or more" if unit_ms else "a time in ms since 1970")
            )
        return name, now_ms + int(text) * unit_ms if unit_ms else int(text)
    return None


def slot_of(due_ms: int) -> int:
    """The slot of a time, as RocketMQ 5.2.0 computes it with its precision of a second."""
    return (due_ms - 1) // SLOT_MS * SLOT_MS


def stored_slot(properties: str) -> int | None:
    """The slot in which a record waits, or waited; None without one, or if it is invalid."""
    text = _out_text(properties)
    if text is None or not (text.isascii() and text.isdigit() and len(text) <= 15):
        return None
    slot_ms = int(text)
    return slot_ms if slot_ms < TIME_MAX_MS else None


def stored_due(properties: str, slot_ms: int, store_time_ms: int) -> int:
    """When a record is due that waits in a slot: within the slot, its end if nothing better is known."""
    end_ms = slot_ms + SLOT_MS
    for _, get, unit_ms in _getters:
        text = get(properties)
        if text is not None:
            if _NUMBER.match(text):
                due_ms = store_time_ms + int(text) * unit_ms if unit_ms else int(text)
                return due_ms if slot_ms < due_ms < end_ms else end_ms
            break
    return end_ms
