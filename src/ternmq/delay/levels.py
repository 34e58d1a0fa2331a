"""Delay levels: messages that are delivered later, by one of 18 fixed delays (I1), on which retries rest (H1).

A message with the property DELAY = *n* is not stored under its topic but in queue *n* - 1 of SCHEDULE_TOPIC_XXXX
(``redirect``), with its own place in REAL_TOPIC and REAL_QID. The entry of that queue holds, in place of a tags code,
the time at which the message is due: store time + delay of the level (``store.derived.dispatch``). As all messages of a
queue wait equally long, they are due in the order in which they came, so only the first of each level needs watching:

    redirect ──▶ SCHEDULE_TOPIC_XXXX / n - 1 ──▶ [ due? ] ──▶ rewrite: the record under its own topic
                                                    ▲   │
                                         one timer a level   progress: delayOffset.json

Promises:

- *Never early* by this machine's clock. If that is set back (or a level made shorter), messages seem to be due further
  ahead than their level allows; what was stored until then is delivered one full delay after that was noticed, which is
  at least as long as was asked for. (RocketMQ delivers such messages at once.)
- *In order* within a level, and *at least once*: progress moves after the copy is stored, and is saved every 10 s, so a
  broker that is killed delivers again what it delivered since (``delay.progress``).
- *None is left out* because of a full disk or a closed one: the level waits and tries again. Only a record that cannot
  be read or stored at all is given up, with an error in the log.

The copy keeps all properties, also DELAY, REAL_TOPIC and REAL_QID, as RocketMQ's does: so it goes to the store itself
and not through the broker's intake, which would delay it again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from concurrent.futures import Future
from typing import Final

from ternmq import names
from ternmq.delay.progress import Progress
from ternmq.env import Clock
from ternmq.errors import CorruptRecord, NotRunning, RecordRefused, StoreError
from ternmq.message import Property
from ternmq.store.derived.dispatch import delay_level
from ternmq.store.log.draft import Draft
from ternmq.store.log.rewrite import rewrite
from ternmq.store.read.query import Entry
from ternmq.store.store import MessageStore
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.record import Sysflag, unpack_record

log = logging.getLogger(__name__)

#: What betrays a delayed message in the text of its properties (``Intake``).
MARK: Final = f"{Property.DELAY}\x01"

#: Messages of one level that are delivered in a row: some 3 ms of the loop.
BATCH: Final = 100
#: No timer is longer, so that a clock that is set forward, or a machine that slept, is noticed within this time.
_LOOK_MS: Final = 1_000
#: After a put that failed.
_RETRY_MS: Final = 1_000
_QUEUE_ID: Final = re.compile(r"[0-9]{1,9}\Z")
#: Topics to which nothing may be delivered: it would come here again, or never come out.
_FORBIDDEN: Final = frozenset({names.SCHEDULE_TOPIC, names.HALF_TOPIC})


class DelayLevels:
    """All methods belong to the broker's loop; the store is open."""

    def __init__(self, store: MessageStore, progress: Progress, *, clock: Clock) -> None:
        self._store = store
        self._progress = progress
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(store.config.delay_levels_ms, 1)]
        #: Levels that may have something due.
        self._ready: asyncio.Queue[_Level] = asyncio.Queue()

    def redirect(self, draft: Draft) -> None:
        """Let a draft with a delay level wait in the schedule topic. Halves wait for their commit first."""
        number = delay_level(draft.properties, len(self._levels))
        if not number or draft.sysflag & Sysflag.PREPARED or draft.topic == names.HALF_TOPIC:
            return
        place = {
            Property.DELAY: str(number),
            Property.REAL_TOPIC: draft.topic,
            Property.REAL_QUEUE_ID: str(draft.queue_id),
        }
        draft.properties = props.remove(props.closed(draft.properties), *place) + props.join(place)
        draft.topic, draft.queue_id = names.SCHEDULE_TOPIC, number - 1
        level = self._levels[number - 1]
        if level.timer is None and not level.is_ready:
            # The store takes it next, so it cannot be due before.
            self._look_in(level, level.delay_ms)

    async def run(self) -> None:
        """Deliver what is due, as long as it is not cancelled."""
        self._warn_of_long_levels()
        for level in self._levels:
            self._look(level)
        try:
            while True:
                level = await self._ready.get()
                level.is_ready = False
                try:
                    wait_ms = await self._deliver(level)
                except (StoreError, NotRunning) as error:
                    wait_ms = _RETRY_MS
                    if not level.is_hindered:
                        level.is_hindered = True
                        log.warning(
                            "cannot deliver the messages of delay level %d now: %s; retrying", level.number, error
                        )
                else:
                    level.is_hindered = False
                if wait_ms is not None:
                    self._look_in(level, wait_ms)
                # A level with more to deliver comes again behind the others, and behind everybody else's work.
                await asyncio.sleep(0)
        finally:
            for level in self._levels:
                level.cancel()

    def state(self) -> dict[int, tuple[int, int]]:
        """By level: the queue offset of its next message, and the end of its queue. Levels never used are left out."""
        return {
            level.number: (self._progress.get(level.number), high)
            for level in self._levels
            if (high := self._store.max_offset(names.SCHEDULE_TOPIC, level.queue_id))
        }

    # --- Delivering -----------------------------------------------------------------------------------------------

    async def _deliver(self, level: _Level) -> int | None:
        """Deliver up to ``BATCH`` messages of a level; ms until it is to be looked at again, None if it is empty."""
        queue_offset = self._position(level)
        entries = self._due(level, queue_offset)
        # Cold records are read on other threads, all at once.
        reads = [self._store.cold.record(entry.log_offset) for entry in entries]
        for entry, read in zip(entries, reads, strict=True):
            page = await self._read(entry, read) if read is not None else self._page(entry)
            log_end = self._deliver_one(level, queue_offset, page)
            queue_offset += 1
            self._progress.move(level.number, queue_offset, log_end=log_end)
        return self._next_wait_ms(level)

    async def _read(self, entry: Entry, read: Future[bytes | None]) -> Buffer | None:
        try:
            page = await asyncio.wrap_future(read)
        except StoreError:
            # Deleted meanwhile; or it cannot be read, which is then said here.
            return self._page(entry)
        # An entry that fills a gap names no record, or a wrong one, but never the size of one.
        return page if page is not None and len(page) == entry.size else None

    def _page(self, entry: Entry) -> Buffer | None:
        return self._store.record_at(entry.log_offset, entry.size)

    def _deliver_one(self, level: _Level, queue_offset: int, page: Buffer | None) -> int:
        """Store the copy of one record; the log offset behind it, 0 if it is given up."""
        why = "it was deleted from the log"
        try:
            if page is not None:
                record = unpack_record(page)
                topic = props.find(record.properties, Property.REAL_TOPIC)
                queue_id = props.find(record.properties, Property.REAL_QUEUE_ID) or ""
                if topic and topic not in _FORBIDDEN and _QUEUE_ID.match(queue_id):
                    return self._store.put(rewrite(record, topic, int(queue_id), {})).end_offset
                why = f"its properties do not name a valid queue: {topic!r}, {queue_id!r}"
        except (CorruptRecord, RecordRefused) as error:
            why = str(error)
        log.error(
            "the delayed message of level %d at queue offset %d cannot be delivered and is dropped: %s",
            level.number,
            queue_offset,
            why,
        )
        return 0

    # --- What is due ----------------------------------------------------------------------------------------------

    def _position(self, level: _Level) -> int:
        """The queue offset of the level's next message. One outside of the queue is moved to its nearer end."""
        queue_offset = self._progress.get(level.number)
        low = self._store.min_offset(names.SCHEDULE_TOPIC, level.queue_id)
        high = self._store.max_offset(names.SCHEDULE_TOPIC, level.queue_id)
        if low <= queue_offset <= high:
            return queue_offset
        if queue_offset < low:
            log.error(
                "%d messages of delay level %d were deleted with the log before they were delivered",
                low - queue_offset,
                level.number,
            )
        queue_offset = max(low, min(queue_offset, high))
        self._progress.move(level.number, queue_offset)
        return queue_offset

    def _due(self, level: _Level, queue_offset: int) -> list[Entry]:
        """The entries from ``queue_offset`` on that are due."""
        entries = self._store.entries(names.SCHEDULE_TOPIC, level.queue_id, queue_offset, BATCH)
        for number, entry in enumerate(entries):
            if self._wait_ms(level, queue_offset + number, entry) > 0:
                return entries[:number]
        return entries

    def _next_wait_ms(self, level: _Level) -> int | None:
        queue_offset = self._position(level)
        for entry in self._store.entries(names.SCHEDULE_TOPIC, level.queue_id, queue_offset, 1):
            return self._wait_ms(level, queue_offset, entry)
        return None

    def _wait_ms(self, level: _Level, queue_offset: int, entry: Entry) -> int:
        """How long until a message is due."""
        due_ms = entry.tags_code
        if due_ms is None:
            # The entry's side file has lost it; the record has not.
            due_ms = self._store.store_time(names.SCHEDULE_TOPIC, level.queue_id, queue_offset) + level.delay_ms
        wait_ms = due_ms - self._clock.now_ms()
        if wait_ms > level.delay_ms and queue_offset >= level.patient_before:
            level.patient_before = self._store.max_offset(names.SCHEDULE_TOPIC, level.queue_id)
            level.patient_until = self._clock.monotonic() + level.delay_ms / 1000
            log.warning(
                "messages of delay level %d are due %d ms later than their delay allows: the clock was set back, or "
                "the delay was shortened. They are delivered after one full delay",
                level.number,
                wait_ms - level.delay_ms,
            )
        if queue_offset < level.patient_before:
            return min(wait_ms, round((level.patient_until - self._clock.monotonic()) * 1000))
        return wait_ms

    # --- Timers ---------------------------------------------------------------------------------------------------

    def _look_in(self, level: _Level, wait_ms: int) -> None:
        level.cancel()
        if wait_ms <= 0:
            self._look(level)
        else:
            level.timer = self._loop.call_later(min(wait_ms, _LOOK_MS) / 1000, self._look, level)

    def _look(self, level: _Level) -> None:
        level.timer = None
        if not level.is_ready:
            level.is_ready = True
            self._ready.put_nowait(level)

    def _warn_of_long_levels(self) -> None:
        hours = self._store.config.file_reserved_time
        for level in self._levels:
            if level.delay_ms >= hours * 3_600_000:
                log.warning(
                    "the log can be deleted before messages of delay level %d are due; raise fileReservedTime (%d h)",
                    level.number,
                    hours,
                )


class _Level:
    """One level: its delay, and when it is looked at next."""

    __slots__ = (
        "delay_ms",
        "is_hindered",
        "is_ready",
        "number",
        "patient_before",
        "patient_until",
        "queue_id",
        "timer",
    )

    def __init__(self, number: int, delay_ms: int) -> None:
        self.number = number
        self.queue_id = number - 1
        self.delay_ms = delay_ms
        #: None while there is nothing to wait for.
        self.timer: asyncio.TimerHandle | None = None
        #: Stands in the queue of those that may have something due.
        self.is_ready = False
        #: Messages before this queue offset are delivered at this moment (``monotonic``) at the latest.
        self.patient_before = 0
        self.patient_until = 0.0
        self.is_hindered = False

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
