"""The way in of messages with a delivery time (I2): from a send to the timer topic.

A message asks for its time in one of four properties (``delay.due``). If that lies ahead, it is stored in the timer
topic of RocketMQ 5 instead of its own, with TIMER_OUT_MS, REAL_TOPIC and REAL_QID as RocketMQ 5.2.0 writes them; the
schedule log folds it from there (``schedule_log``), and ``delivery`` brings it back. A time in the past is now: the
message passes as it is.

What is left alone: a message that was delivered once (it has TIMER_OUT_MS), so that a consumer that sends it back gets
it after the delay of its retry, and not after the first one again; and everything on its way to a retry topic,
to the dead letters or to a topic of the system.

Refused, as no answer could be right: a time beyond the limit, before 1970 or unreadable; a delay in a half message (its
commit would come after its time) or together with a delay level. The codes are those of RocketMQ.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from ternmq import names
from ternmq.delay.due import AskedTime, Waiting, asked_time, is_relative, slot_of
from ternmq.delay.runs import TimedRuns
from ternmq.env import Clock
from ternmq.errors import MessageIllegal, SystemFailure
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import TIMER_PROPERTIES, Property
from ternmq.store.derived.dispatch import delay_level
from ternmq.store.log.draft import Draft
from ternmq.wire import properties as props
from ternmq.wire.recall import handle_text
from ternmq.wire.record import Sysflag

if TYPE_CHECKING:
    from ternmq.store.log.run import RunPacker

#: What reveals a message with a delivery time in the text of its properties (``Intake``).
MARKS: Final = ("TIMER_", Property.START_DELIVER_TIME)

_OUT: Final = f"{Property.TIMER_OUT_MS}\x01"
_PLACE: Final = (f"{Property.REAL_TOPIC}\x01", f"{Property.REAL_QUEUE_ID}\x01")
_LEVEL: Final = f"{Property.DELAY}\x01"
#: By number: name, and whether the time is relative.
_WISHES: Final = tuple((name, is_relative(name)) for name in TIMER_PROPERTIES)
#: What RocketMQ notes when it writes a record again: that the earlier ones of its key are done with.
_ROLLED: Final = f"{Property.TIMER_ROLL_TIMES}\x01"


class Timer:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        clock: Clock,
        broker_name: str,
        is_enabled: bool,
        max_delay_sec: int,
        announce: Callable[[str, Waiting], None],
    ) -> None:
        """``announce`` is told what the properties of a draft say that is about to be stored
        (``ScheduleLog.announce``)."""
        self._clock = clock
        self._broker_name = broker_name
        self._is_enabled = is_enabled
        self._max_delay_ms = max_delay_sec * 1000
        self._announce = announce
        #: The draft that was last redirected, its own topic, and its slot.
        self._last: tuple[Draft | None, str, int] = (None, "", 0)

    def runs(self, put: Callable[[RunPacker], bool]) -> TimedRuns | None:
        """What does the same for sends of one read, with ``RunWriter.put_packed``; None if no times are accepted."""
        if not self._is_enabled:
            return None
        return TimedRuns(put, broker_name=self._broker_name, max_delay_ms=self._max_delay_ms)

    def redirect(self, draft: Draft) -> None:
        """Let a draft with a delivery time wait in the timer topic.

        Raises ``MessageIllegal`` for a time that cannot be kept.
        """
        properties, topic = draft.properties, draft.topic
        if topic == names.HALF_TOPIC or draft.sysflag & Sysflag.PREPARED:
            check_no_time(properties, "a transactional message")
            return
        if names.is_internal_topic(topic) or names.is_derived_topic(topic):
            return
        now_ms = self._clock.now_ms()
        if HAS_NATIVE and self._is_enabled:
            made = native.timed(properties, topic, draft.queue_id, now_ms, self._max_delay_ms)
            if made is not None:
                text, slot_ms, number, ms = made
                name, is_relative = _WISHES[number]
                self._let_wait(draft, text, slot_ms, AskedTime(name, ms, is_relative))
                return
        if _OUT in properties and props.find(properties, Property.TIMER_OUT_MS) is not None:
            return
        wish = asked_time(properties)
        if wish is None:
            return
        due_ms = wish.due_ms(now_ms)
        if not 0 < due_ms - now_ms <= self._max_delay_ms or not self._is_enabled or _LEVEL in properties:
            self._check(draft, wish.name, due_ms - now_ms)
            if due_ms <= now_ms:
                return
        if _PLACE[0] in properties or _PLACE[1] in properties or _ROLLED in properties:
            # Of another delivery: a message that is sent on brings along what it had.
            properties = props.remove(
                properties, Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.TIMER_ROLL_TIMES
            )
        if properties[-1] != props.PAIR_END:
            properties += props.PAIR_END
        slot_ms = slot_of(due_ms)
        text = f"{properties}{_OUT}{slot_ms}\x02{_PLACE[0]}{topic}\x02{_PLACE[1]}{draft.queue_id}\x02"
        self._let_wait(draft, text, slot_ms, wish)

    def _let_wait(self, draft: Draft, properties: str, slot_ms: int, wish: AskedTime) -> None:
        topic = draft.topic
        self._last = draft, topic, slot_ms
        draft.properties, draft.topic, draft.queue_id = properties, names.WHEEL_TOPIC, 0
        self._announce(properties, Waiting(slot_ms, topic, wish))

    def handle(self, draft: Draft, log_offset: int, unique_key: str) -> str | None:
        """The recall handle of a draft that was redirected and stored; None without a handle of its own."""
        redirected, topic, slot_ms = self._last
        if redirected is not draft:
            return None
        return handle_text(topic, self._broker_name, slot_ms, unique_key, log_offset)

    def _check(self, draft: Draft, name: str, delay_ms: int) -> None:
        if not self._is_enabled:
            raise SystemFailure(
                f"the message has {name}, but this broker accepts no delivery times: set timerWheelEnable=true, or "
                "use a delay level"
            )
        if delay_level(draft.properties, 1):
            raise MessageIllegal(
                f"the message has both a delay level (DELAY) and a delivery time ({name}): set one of them"
            )
        if delay_ms > self._max_delay_ms:
            raise MessageIllegal(
                f"timer message illegal, {name} asks for a delay of {-(-delay_ms // 1000)} s: the limit is "
                f"{self._max_delay_ms // 1000} s (timerMaxDelaySec)"
            )
        if delay_ms <= 0 and props.find(draft.properties, Property.TIMER_DELETE_KEY) is not None:
            raise MessageIllegal(
                "timer message illegal, a message that takes back another must have the delivery time of that one, "
                "and it must lie in the future"
            )


def check_no_time(properties: str, what: str) -> None:
    """Raise ``MessageIllegal`` if a message asks for a delivery time that can have none: ``what`` says why."""
    if props.find(properties, Property.TIMER_OUT_MS) is not None:
        return
    wish = asked_time(properties)
    if wish is not None:
        raise MessageIllegal(
            f"{what} cannot have a delivery time ({wish.name}): send it without one, or as a plain message"
        )
