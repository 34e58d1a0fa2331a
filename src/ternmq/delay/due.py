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
from functools import lru_cache
from typing import Final

import msgspec

from ternmq.errors import MessageIllegal
from ternmq.message import TIMER_PROPERTIES, Property
from ternmq.wire import properties as props

SLOT_MS: Final = 1_000
HOUR_MS: Final = 3_600_000
#: The end of the year 9999: times behind it have no name.
TIME_MAX_MS: Final = 253_402_300_800_000

_DIGITS_MAX: Final = 18
#: Unit in ms of the relative ones; the others are absolute.
_UNITS_MS: Final = {Property.TIMER_DELAY_SEC: 1_000, Property.TIMER_DELAY_MS: 1}
#: What reveals a property in the text of all, its name, how to get it, and its unit.
_WISHES: Final = tuple((f"{name}\x01", name, props.getter(name), _UNITS_MS.get(name, 0)) for name in TIMER_PROPERTIES)
_OUT: Final = f"\x02{Property.TIMER_OUT_MS}\x01"
#: Slot and topic as ``Timer`` and ``Delivery`` write them: at the end of the text, so that no other pair counts.
_PLACE: Final = re.compile(
    f"{_OUT}([0-9]{{1,14}})\x02{Property.REAL_TOPIC}\x01([^\x01\x02]+)\x02{Property.REAL_QUEUE_ID}\x01[0-9]+\x02"
    f"(?:{Property.TIMER_ENQUEUE_MS}\x01[0-9]+\x02{Property.TIMER_DEQUEUE_MS}\x01[0-9]+\x02)?\\Z"
)
_QUEUE: Final = re.compile(f"{Property.REAL_TOPIC}\x01([^\x01\x02]+)\x02{Property.REAL_QUEUE_ID}\x01([0-9]{{1,9}})\x02")
_out_text = props.getter(Property.TIMER_OUT_MS)
_real_topic = props.getter(Property.REAL_TOPIC)


def is_relative(name: str) -> bool:
    """Whether a property asks for a delay; the others ask for a time."""
    return name in _UNITS_MS


class AskedTime(msgspec.Struct, frozen=True, gc=False):
    """How a message asks for its time."""

    #: The property.
    name: str
    #: Its value in ms: a delay, or a time since 1970.
    ms: int
    is_relative: bool

    def due_ms(self, now_ms: int) -> int:
        """The time asked for, of a message that comes at ``now_ms``."""
        return now_ms + self.ms if self.is_relative else self.ms


class Waiting(msgspec.Struct, frozen=True, gc=False):
    """What the properties of a record in the timer topic say."""

    slot_ms: int
    #: The message's own topic.
    topic: str
    wish: AskedTime | None

    def due_ms(self, store_time_ms: int) -> int:
        """When the record is due: within its slot, at the end of that if nothing better is known."""
        wish, slot_ms = self.wish, self.slot_ms
        if wish is not None:
            due_ms = store_time_ms + wish.ms if wish.is_relative else wish.ms
            if slot_ms < due_ms < slot_ms + SLOT_MS:
                return due_ms
        return slot_ms + SLOT_MS


def asked_time(properties: str) -> AskedTime | None:
    """How a message asks for its time; None if it does not.

    Raises ``MessageIllegal`` for an invalid value: not a number, negative, or larger than any time.
    """
    for mark, name, get, unit_ms in _WISHES:
        # A search costs a third of what the call does.
        if mark not in properties or (text := get(properties)) is None:
            continue
        if not (text.isdigit() and text.isascii()):
            raise MessageIllegal(
                f"invalid {name} {text[:40]!r}: expected "
                + ("a delay of 0 or more" if unit_ms else "a time in ms since 1970")
            )
        # Java has longs up to nineteen digits, and a text may have thousands.
        if len(text) > _DIGITS_MAX and len(text := text.lstrip("0") or "0") > _DIGITS_MAX:
            raise MessageIllegal(
                f"timer message illegal, {name} {_shortened(text)} lies beyond any limit: see timerMaxDelaySec"
            )
        return AskedTime(name, int(text) * (unit_ms or 1), unit_ms > 0)
    return None


def _shortened(digits: str) -> str:
    return digits if len(digits) <= 40 else f"{digits[:40]}…"


def slot_of(due_ms: int) -> int:
    """The slot of a time, as RocketMQ 5.2.0 computes it with its precision of a second."""
    return (due_ms - 1) // SLOT_MS * SLOT_MS


def stored_place(properties: str) -> tuple[int, str] | None:
    """The slot in which a record waits, or waited, and its own topic; None if one is missing or invalid."""
    found = _PLACE.match(properties, properties.rfind(_OUT))
    if found is not None:
        return int(found[1]), found[2]
    text, topic = _out_text(properties), _real_topic(properties)
    if text is None or topic is None or not (text.isascii() and text.isdigit() and len(text) <= 15):
        return None
    slot_ms = int(text)
    return (slot_ms, topic) if slot_ms < TIME_MAX_MS else None


def own_queue(properties: str) -> tuple[int, str, int] | None:
    """Slot, topic and queue id of a waiting record, if ``Timer`` wrote them."""
    at = properties.rfind(_OUT) + len(_OUT)
    end = properties.find("\x02", at)
    queue, slot = queue_of(properties[end + 1 :]), properties[at:end]
    if queue is None or at < len(_OUT) or not (slot.isdigit() and slot.isascii() and len(slot) <= 14):
        return None
    return int(slot), *queue


@lru_cache(1024)
def queue_of(text: str) -> tuple[str, int] | None:
    """Topic and queue id, if the text has just these: the same for all messages of a queue."""
    found = _QUEUE.fullmatch(text)
    return (found[1], int(found[2])) if found is not None else None


def stored_waiting(properties: str) -> Waiting | None:
    """What a record in the timer topic says; None without a valid slot or without a topic."""
    place = stored_place(properties)
    if place is None:
        return None
    try:
        return Waiting(*place, asked_time(properties))
    except MessageIllegal:
        # Of another origin: ``Timer`` lets no such record pass.
        return Waiting(*place, None)
