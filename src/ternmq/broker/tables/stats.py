"""Counters of the broker (D5): messages and bytes in and out, by topic and group, and their rates.

Handlers add to plain ints; a task calls ``sample`` once a second, which notes the totals of the moment. A rate over the
last 10 s, 1 min or 10 min is the difference of two notes over the time between them, so counting costs nothing but the
addition, and a reader gets the same answer however often it asks.

Series by topic, and by topic and group, have a minute, an hour and a day (``tables.series``): VIEW_BROKER_STATS_DATA
315, and the rates that tools show beside offsets.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from typing import Final, NamedTuple

from ternmq.broker.hooks import ConsumptionHooks
from ternmq.broker.tables.series import Count, Growth, Period, SeriesRoom, SeriesTable, Timeline
from ternmq.env import Clock

#: Spans of the rates in RocketMQ's runtime table, in seconds.
SPANS_S: Final = (10, 60, 600)
#: Memory for series, as estimated: some 45,000 of them.
SERIES_BYTES_MAX: Final = 64 << 20


_DONE: Final = object()


class Note(NamedTuple):
    """Totals at a moment."""

    at: float
    put: int
    found: int
    missed: int
    got: int


class Stats:
    """All methods belong to the broker's loop."""

    def __init__(
        self, clock: Clock, *, hooks: ConsumptionHooks | None = None, series_bytes_max: int = SERIES_BYTES_MAX
    ) -> None:
        self._clock = clock
        #: They hear of what is counted here, by group; None costs nothing.
        self._hooks = hooks or None
        self.started_ms = clock.now_ms()
        #: Messages stored, their bytes, and the calls that brought them (a batch is one call).
        self.put_messages = 0
        self.put_bytes = 0
        self.put_calls = 0
        #: Pulls that found something and pulls that did not; messages and bytes that went out.
        self.found_calls = 0
        self.missed_calls = 0
        self.got_messages = 0
        self.got_bytes = 0
        self.room = SeriesRoom(series_bytes_max)
        self._puts: SeriesTable[str] = SeriesTable(self.room)
        self._gots: SeriesTable[tuple[str, str]] = SeriesTable(self.room)
        self._backs: SeriesTable[tuple[str, str]] = SeriesTable(self.room)
        self._dead: SeriesTable[tuple[str, str]] = SeriesTable(self.room)
        self.put_by_topic = self._puts.all
        self.got_by_group = self._gots.all
        #: Messages that consumers gave back, by the topic that they were sent to.
        self.back_by_group = self._backs.all
        #: Those of them that were tried too often, and are dead letters now.
        self.dead_by_group = self._dead.all
        #: What is left to note of the last moment.
        self._marking: Iterator[None] = iter(())
        self._all_put = Count()
        self._all_got = Count()
        self._timeline = Timeline(clock.monotonic())
        self._notes: deque[Note] = deque([self._note()], maxlen=SPANS_S[-1] + 1)
        self._today = _day(self.started_ms)
        #: Totals at midnight, today's and yesterday's; 0 while the broker was not up then.
        self.put_at_midnight = [0, 0]
        self.got_at_midnight = [0, 0]

    # --- Hot: called by handlers -------------------------------------------------------------------------------

    def put(self, topic: str, messages: int, size_bytes: int, calls: int = 1) -> None:
        """Messages were stored by one call, or by so many."""
        self.put_calls += calls
        self.put_messages += messages
        self.put_bytes += size_bytes
        count = self.put_by_topic.get(topic)
        if count is None:
            count = self._puts.of(topic)
        count.messages += messages
        count.size_bytes += size_bytes
        count.calls += calls

    def got(self, topic: str, group: str | None, messages: int, size_bytes: int) -> None:
        """Messages were handed to a consumer by one call; None is a group that the broker does not know."""
        self.found_calls += 1
        self.got_messages += messages
        self.got_bytes += size_bytes
        if group is None:
            return
        count = self.got_by_group.get((topic, group))
        if count is None:
            count = self._gots.of((topic, group))
        count.messages += messages
        count.size_bytes += size_bytes
        count.calls += 1
        if self._hooks is not None:
            self._hooks.delivered(group, topic, messages, size_bytes)

    def sent_back(self, topic: str, group: str, size_bytes: int, *, is_dead: bool = False) -> None:
        """A consumer gave a message of a topic back. The topic must exist: names that clients make up would stay.

        ``is_dead``: it was tried too often.
        """
        for table in (self._backs, self._dead) if is_dead else (self._backs,):
            count = table.all.get((topic, group))
            if count is None:
                count = table.of((topic, group))
            count.messages += 1
            count.size_bytes += size_bytes
            count.calls += 1
        if self._hooks is not None:
            self._hooks.sent_back(group, topic, size_bytes, is_dead=is_dead)

    def missed(self) -> None:
        """A pull found nothing."""
        self.missed_calls += 1

    # --- Once a second -----------------------------------------------------------------------------------------

    def sample(self) -> None:
        """Note the totals of this moment. Call ``mark_more`` until it is done."""
        note = self._note()
        self._notes.append(note)
        places = self._timeline.due(note.at)
        if places:
            while self.mark_more():
                pass  # the last moment was not finished
            self._marking = self._timeline.mark(places, self._counts())
            self.mark_more()
        today = _day(self._clock.now_ms())
        if today != self._today:
            self._today = today
            self.put_at_midnight = [self.put_messages, self.put_at_midnight[0]]
            self.got_at_midnight = [self.got_messages, self.got_at_midnight[0]]

    def mark_more(self) -> bool:
        """Note the totals of some more series; False if there were none."""
        return next(self._marking, _DONE) is not _DONE

    def _counts(self) -> list[Count]:
        return [
            self.all_put,
            self.all_got,
            *self.put_by_topic.values(),
            *self.got_by_group.values(),
            *self.back_by_group.values(),
            *self.dead_by_group.values(),
        ]

    def forget_topic(self, topic: str) -> None:
        self._puts.forget(topic)
        self._forget(0, topic)

    def forget_group(self, group: str) -> None:
        self._forget(1, group)

    def _forget(self, place: int, name: str) -> None:
        for table in (self._gots, self._backs, self._dead):
            for key in [key for key in table.all if key[place] == name]:
                table.forget(key)

    # --- Reading -----------------------------------------------------------------------------------------------

    @property
    def all_put(self) -> Count:
        """All messages that were stored, as a series."""
        count = self._all_put
        count.messages, count.size_bytes, count.calls = self.put_messages, self.put_bytes, self.put_calls
        return count

    @property
    def all_got(self) -> Count:
        """All messages that went out, as a series."""
        count = self._all_got
        count.messages, count.size_bytes, count.calls = self.got_messages, self.got_bytes, self.found_calls
        return count

    def growth(self, count: Count, span: Period) -> Growth:
        """What was added to a series in the last minute, hour or day, or since the start if that is later."""
        return self._timeline.growth(count, span, self._clock.monotonic())

    def put_rate(self, topic: str) -> float:
        """Messages a second into a topic, over the last minute."""
        return self._rate(self.put_by_topic.get(topic))

    def got_rate(self, topic: str, group: str) -> float:
        """Messages a second out of a topic to a group, over the last minute."""
        return self._rate(self.got_by_group.get((topic, group)))

    def runtime(self) -> dict[str, str]:
        """The part of GET_BROKER_RUNTIME_INFO that counts messages, under RocketMQ's names.

        ``getTransferedTps`` is how 4.9 spells it, and what its tools look for.
        """
        rates = [self._rates(span_s) for span_s in SPANS_S]

        def text(index: int) -> str:
            return " ".join(str(span[index]) for span in rates)

        transferred = text(3)
        total = " ".join(str(span[1] + span[2]) for span in rates)
        put_today, put_yesterday = self.put_at_midnight
        got_today, got_yesterday = self.got_at_midnight
        return {
            "bootTimestamp": str(self.started_ms),
            "runtime": _duration(self._clock.now_ms() - self.started_ms),
            "putTps": text(0),
            "getFoundTps": text(1),
            "getMissTps": text(2),
            "getTotalTps": total,
            "getTransferedTps": transferred,
            "getTransferredTps": transferred,
            "putMessageTimesTotal": str(self.put_calls),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageAverageSize": str(self.put_bytes / self.put_messages if self.put_messages else 0.0),
            "msgPutTotalTodayNow": str(self.put_messages),
            "msgPutTotalTodayMorning": str(put_today),
            "msgPutTotalYesterdayMorning": str(put_yesterday),
            "msgGetTotalTodayNow": str(self.got_messages),
            "msgGetTotalTodayMorning": str(got_today),
            "msgGetTotalYesterdayMorning": str(got_yesterday),
        }

    def _note(self) -> Note:
        return Note(self._clock.monotonic(), self.put_messages, self.found_calls, self.missed_calls, self.got_messages)

    def _rates(self, span_s: int) -> tuple[float, float, float, float]:
        """Puts, found and missed pulls, and messages out, a second, over the last ``span_s`` seconds."""
        last = self._notes[-1]
        # Notes are a second apart, so the one wanted stands about that many places back.
        first = self._notes[max(len(self._notes) - 1 - span_s, 0)]
        elapsed = last.at - first.at
        if elapsed <= 0:
            return 0.0, 0.0, 0.0, 0.0
        return (
            (last.put - first.put) / elapsed,
            (last.found - first.found) / elapsed,
            (last.missed - first.missed) / elapsed,
            (last.got - first.got) / elapsed,
        )

    def _rate(self, count: Count | None) -> float:
        if count is None:
            return 0.0
        growth = self.growth(count, Period.MINUTE)
        return growth.messages / growth.seconds if growth.seconds > 0 else 0.0


def _day(time_ms: int) -> tuple[int, int]:
    """Year and day of the year where this broker runs."""
    local = time.localtime(time_ms / 1000)
    return local.tm_year, local.tm_yday


def _duration(span_ms: int) -> str:
    seconds = max(span_ms, 0) // 1000
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    return f"[ {days} days, {hours} hours, {minutes} minutes, {seconds} seconds ]"
