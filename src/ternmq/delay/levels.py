"""Delay levels: messages that are delivered after one of 18 fixed delays (I1). Retries use them, too (H1).

A message with the property DELAY = *n* is not stored under its topic but in queue *n* - 1 of SCHEDULE_TOPIC_XXXX
(``redirect``), with its topic and queue in REAL_TOPIC and REAL_QID. The entry of that queue holds, instead of a tags
code, the time when the message is due: store time + delay of the level (``store.derived.dispatch``). All messages of a
queue wait equally long, so they are due in the order of arrival, and only the first of each level must be watched:

    redirect ──▶ SCHEDULE_TOPIC_XXXX / n - 1 ──▶ [ due? ] ──▶ rewrite: the record under its own topic
                                                    ▲   │
                                         one timer a level   progress: delayOffset.json

Guarantees:

- *Never early* by this machine's clock. If the clock is set back (or a level is made shorter), messages seem to be due
  later than their level allows. Messages stored until then are delivered one full delay after this was noticed, which
  is at least as long as requested. (RocketMQ delivers such messages at once.)
- *In order* within a level, and *at least once*: progress moves after the copy is stored, and is saved every 10 s. A
  broker that was killed delivers the messages again that it delivered since the last save (``delay.progress``).
- *No message is skipped* because the disk is full or the store is closed: the level waits and tries again. Only a
  record that cannot be read or stored at all is dropped, with an error in the log.

The copy keeps all properties, also DELAY, REAL_TOPIC and REAL_QID, as in RocketMQ. Therefore it is stored directly, not
through the broker's intake, which would delay it again.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from ternmq import names
from ternmq.delay.progress import DelayProgress
from ternmq.env import Clock
from ternmq.errors import CorruptRecord, NotRunning, RecordRefused, StoreError, TernError
from ternmq.message import Property
from ternmq.rare_log import RareLog
from ternmq.store.derived.dispatch import delay_level
from ternmq.store.log.draft import Draft
from ternmq.store.log.rewrite import rewrite
from ternmq.store.read.query import QueueEntry
from ternmq.store.store import MessageStore
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.record import Sysflag, unpack_record

log = logging.getLogger(__name__)

#: Occurs in the property text of each delayed message (``Intake``).
MARK: Final = f"{Property.DELAY}\x01"

#: Messages of one level that are delivered in one turn: about 3 ms of the loop.
BATCH: Final = 100
#: And bytes of their records; a larger one comes alone.
BATCH_BYTES: Final = 1 << 20
#: Longest timer, so that a clock that was set forward, or a machine that slept, is noticed within this time.
_LOOK_MS: Final = 1_000
#: Pause after a failed put.
_RETRY_MS: Final = 1_000
_QUEUE_ID: Final = re.compile(r"[0-9]{1,9}\Z")
#: Topics to which no delayed message may be delivered: it would return here, or never become visible.
_FORBIDDEN: Final = frozenset({names.SCHEDULE_TOPIC, names.HALF_TOPIC})


class DelayLevels:
    """The levels of one term. All methods belong to the broker's loop; the store is open."""

    def __init__(
        self, store: MessageStore, progress: DelayProgress, *, clock: Clock, count: Callable[[str, int, int], None]
    ) -> None:
        """``count`` gets the topic, the number and the bytes of messages that are delivered."""
        self._store = store
        self._count = count
        self._progress = progress
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._levels = [_Level(number, delay_ms) for number, delay_ms in enumerate(store.config.delay_levels_ms, 1)]
        #: Levels that may have due messages.
        self._ready: asyncio.Queue[_Level] = asyncio.Queue()
        self._logs = RareLog(log, clock.monotonic, lines_max=20)

    def redirect(self, draft: Draft) -> None:
        """Store a draft with a delay level in the schedule topic. Halves are not delayed before their commit."""
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
            # The store assigns its time later, so it cannot be due earlier.
            self._look_in(level, level.delay_ms)

    async def run(self) -> None:
        """Deliver due messages until it is cancelled."""
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
                # A level with more to deliver is queued again after the other levels and other work of the loop.
                await asyncio.sleep(0)
        finally:
            for level in self._levels:
                level.cancel()

    def stop(self, _reason: TernError) -> None:
        """The term is over (``broker.roles.Runner``): no timer wakes a level any more."""
        for level in self._levels:
            level.cancel()

    # --- Delivering -----------------------------------------------------------------------------------------------

    async def _deliver(self, level: _Level) -> int | None:
        """Deliver up to ``BATCH`` messages of a level; returns the ms until the next check, None if it is empty."""
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

    async def _read(self, entry: QueueEntry, read: Future[bytes | None]) -> Buffer | None:
        try:
            page = await asyncio.wrap_future(read)
        except StoreError:
            # Deleted meanwhile; or it cannot be read, which raises an error here.
            return self._page(entry)
        # The entry of a filler refers to no record or to a wrong one, but its size is never that of a record.
        return page if page is not None and len(page) == entry.size else None

    def _page(self, entry: QueueEntry) -> Buffer | None:
        return self._store.record_at(entry.log_offset, entry.size)

    def _deliver_one(self, level: _Level, queue_offset: int, page: Buffer | None) -> int:
        """Store the copy of one record; returns the log offset after it, 0 if the message is dropped."""
        why = "it was deleted from the log"
        try:
            if page is not None:
                record = unpack_record(page)
                topic = props.find(record.properties, Property.REAL_TOPIC)
                queue_id = props.find(record.properties, Property.REAL_QUEUE_ID) or ""
                if topic and topic not in _FORBIDDEN and _QUEUE_ID.match(queue_id):
                    placed = self._store.put(rewrite(record, topic, int(queue_id), {}))
                    self._count(topic, 1, len(record.body))
                    return placed.end_offset
                why = f"its properties do not name a valid queue: {topic!r}, {queue_id!r}"
        except (CorruptRecord, RecordRefused) as error:
            why = str(error)
        what = f"the delayed message of level {level.number} at queue offset {queue_offset}"
        self._logs.error("dropped", f"{what} cannot be delivered and is dropped: {why}")
        return 0

    # --- What is due ----------------------------------------------------------------------------------------------

    def _position(self, level: _Level) -> int:
        """The queue offset of the level's next message. An offset outside the queue is moved to its nearer end."""
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

    def _due(self, level: _Level, queue_offset: int) -> list[QueueEntry]:
        """The entries from ``queue_offset`` on that are due, as many as one turn has time for."""
        entries = self._store.entries(names.SCHEDULE_TOPIC, level.queue_id, queue_offset, BATCH)
        record_bytes = 0
        for number, entry in enumerate(entries):
            record_bytes += max(entry.size, 0)
            is_too_much = number > 0 and record_bytes > BATCH_BYTES
            if is_too_much or self._wait_ms(level, queue_offset + number, entry) > 0:
                return entries[:number]
        return entries

    def _next_wait_ms(self, level: _Level) -> int | None:
        queue_offset = self._position(level)
        for entry in self._store.entries(names.SCHEDULE_TOPIC, level.queue_id, queue_offset, 1):
            return self._wait_ms(level, queue_offset, entry)
        return None

    def _wait_ms(self, level: _Level, queue_offset: int, entry: QueueEntry) -> int:
        """Time until a message is due."""
        due_ms = entry.tags_code
        if due_ms is None:
            # The entry's side file has lost it; the record still has it.
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
    """One level: its delay, and when it is checked next."""

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
        #: None while the level is empty.
        self.timer: asyncio.TimerHandle | None = None
        #: It is in the queue of levels that may have due messages.
        self.is_ready = False
        #: Messages before this queue offset are delivered at this time (``monotonic``) at the latest.
        self.patient_before = 0
        self.patient_until = 0.0
        self.is_hindered = False

    def cancel(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
