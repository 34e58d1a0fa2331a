"""The runner that delivers messages at their time (I2, I3): one object per term.

Each turn it catches up with the schedule log, takes what is due from the wheel, and writes each message again under its
own topic, in a record that *closes* the waiting one. That record is the done mark: no other state has to be kept, and a
crash at any point neither loses a message nor repeats one. Hence the two rules of a turn:

- A message is delivered only if all that closes messages of its hour is known: entries first, then closing marks, and
  only then is anything taken. An hour that is loaded for the first time, in slices, joins the wheel when it is
  complete.
- Between catching up and the last delivery of a turn nothing is awaited.

*Never early* by this machine's clock; a jump of the clock is noticed within a second. *None is left out* because of a
full or a closed disk: the runner waits and tries again. Only what cannot be read or stored at all is given up, with an
error in the log.

Entries that are more than waiting messages are settled before an hour joins the wheel (``delay.settling``).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from itertools import accumulate
from typing import Final

from ternmq import names
from ternmq.delay.alarm import Alarm
from ternmq.delay.due import HOUR_MS, slot_of
from ternmq.delay.entry_records import EntryRecords
from ternmq.delay.hour_files import EntryKind, HourFiles, IndexLine
from ternmq.delay.quick import DueRewriter, Spans, delivered_at, quick_delivery
from ternmq.delay.recalls import SETTLED
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.delay.settling import SpecialEntries
from ternmq.delay.wheel import Due, HourWheel, Wheel
from ternmq.env import Clock
from ternmq.errors import NotRunning, RecordRefused, StoreError, TernError
from ternmq.kernels import HAS_NATIVE
from ternmq.message import Property
from ternmq.store.log.draft import Draft
from ternmq.store.log.run import PackedRun, PackingRoom, RunPart, record_count
from ternmq.store.store import MessageStore
from ternmq.wire import properties as props
from ternmq.wire.record import PROPERTIES_BYTES_MAX, Record, Sysflag

log = logging.getLogger(__name__)

#: Messages delivered in one turn of the loop, and bytes of their records: some 3 ms.
BATCH: Final = 256
BATCH_BYTES: Final = 1 << 20
#: What a message of the long way counts besides its bytes: 64 of them take as long as 256 others.
_LONG_WAY_BYTES: Final = BATCH_BYTES // 64
#: Entries and marks read in one turn: some 5 ms.
SLICE: Final = 20_000
#: No timer is longer, so that a clock that is set forward, or a machine that slept, is noticed within this time.
_LOOK_MS: Final = 1_000
#: Between two looks at whether the folds of the term's begin have arrived.
_FOLD_MS: Final = 10
#: After a put that failed.
_RETRY_MS: Final = 1_000

_real_topic = props.getter(Property.REAL_TOPIC)
_real_queue = props.getter(Property.REAL_QUEUE_ID)
_NOT_TRANSACTION: Final = ~Sysflag.TRANSACTION_MASK


class Delivery:
    """Implements ``broker.roles.Runner``. All methods belong to the broker's loop."""

    def __init__(
        self,
        store: MessageStore,
        schedule: ScheduleLog,
        alarm: Alarm,
        *,
        clock: Clock,
        count: Callable[[str, int, int], None],
    ) -> None:
        """``count`` gets the topic, the number and the bytes of messages that are delivered."""
        self._store = store
        self._count = count
        self._schedule = schedule
        self._alarm = alarm
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._records = EntryRecords(store, schedule, clock=clock)
        self._special = SpecialEntries(self._records)
        self._wheel = Wheel()
        self._rewriter = DueRewriter()
        #: Messages that are prepared together. What is prepared behind the first unusual one is prepared in vain: where
        #: these are frequent, small portions keep that in proportion to what is delivered.
        self._portion = BATCH
        #: Hours that are not complete yet.
        self._loading: dict[int, HourWheel] = {}
        #: By hour, how many closing marks of the schedule log are in its wheel.
        self._marks: dict[int, int] = {}
        self._is_hindered = False
        self._is_stopped = False
        #: Messages delivered in this term.
        self.delivered = 0

    async def run(self) -> None:
        """Deliver what is due, as long as it is not cancelled."""
        begin = self._store.written
        # After a failure, what was taken from the wheel may not be delivered: all is read again.
        self._wheel, self._special = Wheel(), SpecialEntries(self._records)
        self._loading.clear()
        self._marks.clear()
        if self._schedule.handover.is_foreign:
            log.warning(
                "RocketMQ has used this directory: %d of its delayed messages wait and are delivered here. If RocketMQ "
                "gets it back, it does not deliver the messages that wait then",
                self._schedule.waiting,
            )
        try:
            while self._store.dispatched < begin:
                # What is not dispatched may close what seems to wait.
                await self._sleep(_FOLD_MS)
            while not self._is_stopped:
                try:
                    wait_ms = self._turn()
                except (StoreError, NotRunning) as error:
                    wait_ms = _RETRY_MS
                    if not self._is_hindered:
                        self._is_hindered = True
                        log.warning("cannot deliver delayed messages now: %s; retrying", error)
                else:
                    self._is_hindered = False
                await self._sleep(wait_ms)
        except Exception:
            # What was taken may not be delivered: a wheel without hours says so.
            self._wheel = Wheel()
            raise
        finally:
            self._alarm.clear()
            if not self._is_stopped:
                self._hand_over()

    def delivered_before(self) -> int:
        """A time, in whole slots, before which all messages are delivered."""
        now_ms = self._clock.now_ms()
        next_ms = self._wheel.next_ms()
        times_ms = [now_ms] if next_ms is None else [now_ms, next_ms]
        for files in self._schedule.hours(now_ms // HOUR_MS):
            wheel = self._wheel.hours.get(files.hour)
            if not self._schedule.is_retired(files) and (wheel is None or wheel.entry_count < files.entry_count):
                # Some of its messages may be due, and only the next turn would have seen them.
                times_ms.append(files.hour * HOUR_MS)
        return slot_of(min(times_ms))

    def _hand_over(self) -> None:
        """The broker stops: note for a RocketMQ that may get the directory what is delivered."""
        try:
            # What it says was delivered must not be lost with a power cut.
            self._store.flush_now()
            self._schedule.hand_over(self.delivered_before(), self._store.max_offset(names.WHEEL_TOPIC, 0))
            if waiting := self._schedule.waiting:
                log.info(
                    "%d messages wait for their delivery time in %s; TernMQ delivers them when it runs again, and a "
                    "RocketMQ that gets this directory does not",
                    waiting,
                    self._schedule.directory,
                )
        except (StoreError, NotRunning) as error:
            log.warning(
                "cannot write config/timercheck: %s; a RocketMQ that gets this directory would deliver messages again",
                error,
            )

    @property
    def loaded(self) -> int:
        """Messages in the wheel, delivered or not."""
        return sum(wheel.entry_count for wheel in self._wheel.hours.values())

    @property
    def memory_bytes(self) -> int:
        """What the wheel takes for them."""
        return sum(wheel.memory_bytes for wheel in self._wheel.hours.values())

    def stop(self, reason: TernError) -> None:
        """The term ends: nothing is delivered any more."""
        self._is_stopped = True
        self._schedule.in_flight.clear()
        self._alarm.clear()
        log.debug("delayed messages are not delivered any more: %s", reason)

    async def _sleep(self, wait_ms: int) -> None:
        if wait_ms <= 0:
            # Behind all other work that has come in meanwhile.
            await asyncio.sleep(0)
            return
        wait_ms = min(wait_ms, _LOOK_MS)
        woken: asyncio.Future[None] = self._loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        timer = self._loop.call_later(wait_ms / 1000, wake)
        self._alarm.set(self._clock.now_ms() + wait_ms, wake)
        try:
            await woken
        finally:
            timer.cancel()

    def _turn(self) -> int:
        """Load, deliver, clean up; ms until the next turn."""
        now_ms = self._clock.now_ms()
        is_complete = self._catch_up(now_ms // HOUR_MS + 1)
        if is_complete is None:
            return 0
        dues = self._wheel.take(now_ms, BATCH)
        self._deliver_all(dues, now_ms)
        if dues or not is_complete:
            return 0
        self._retire(now_ms)
        next_ms = self._wheel.next_ms()
        self._schedule.delivered_ms = now_ms if next_ms is None else min(now_ms, next_ms)
        return _LOOK_MS if next_ms is None else max(next_ms - now_ms, 1)

    # --- Catching up ------------------------------------------------------------------------------------------------

    def _catch_up(self, until: int) -> bool | None:
        """Read what the schedule log has folded of hours up to ``until``: True if all; None if nothing may be delivered
        before the rest is read, too."""
        budget, is_complete, may_deliver = SLICE, True, True
        for files in self._schedule.hours(until):
            hour = files.hour
            wheel = self._wheel.hours.get(hour)
            if wheel is None and hour not in self._loading and self._schedule.is_retired(files):
                continue
            is_new = wheel is None
            if wheel is None:
                wheel = self._loading.setdefault(hour, HourWheel(hour))
            if not is_new and not wheel.special and self._is_read(files, wheel):
                continue
            if budget > 0:
                budget -= self._read(files, wheel, budget)
            if not self._is_read(files, wheel):
                is_complete = False
                may_deliver = may_deliver and is_new
                continue
            if wheel.special:
                is_complete = False
            if is_new and (not wheel.special or self._special.is_settled(hour)):
                self._wheel.hours[hour] = self._loading.pop(hour)
        return is_complete if may_deliver else None

    def _is_read(self, files: HourFiles, wheel: HourWheel) -> bool:
        return files.entry_count == wheel.entry_count and files.closed_count == self._marks.get(files.hour, 0)

    def _read(self, files: HourFiles, wheel: HourWheel, budget: int) -> int:
        """Read entries of an hour, then its marks; how many."""
        read = min(budget, files.entry_count - wheel.entry_count)
        if read:
            wheel.add(files.numbers(wheel.entry_count, read))
        if wheel.entry_count < files.entry_count:
            return read
        marked = self._marks.get(files.hour, 0)
        some = min(max(budget - read, 0), files.closed_count - marked)
        if some:
            wheel.close(files.closed(marked, some))
            self._marks[files.hour] = marked + some
        if wheel.special and marked + some == files.closed_count:
            self._special.go_on(files, wheel)
            # The rest is for the next turn.
            return budget
        return read + some

    # --- Delivering -------------------------------------------------------------------------------------------------

    def _deliver_all(self, dues: list[Due], now_ms: int) -> None:
        """Deliver what one turn has time for: large messages come back, and are taken again in the next."""
        bytes_left = BATCH_BYTES
        for count, (hour, numbers) in enumerate(dues):
            files, wheel = self._schedule.hour(hour), self._wheel.hours[hour]
            if files is None:
                continue
            done = 0
            try:
                while done < len(numbers) and bytes_left > 0:
                    asked = numbers[done : done + self._portion]
                    together = self._deliver_together(files, wheel, asked, now_ms, bytes_left)
                    self._portion = (
                        min(self._portion * 2, BATCH) if together == len(asked) else max(self._portion // 2, 1)
                    )
                    if not together:
                        self._deliver(files, wheel, numbers[done])
                        together = 1
                        bytes_left -= _LONG_WAY_BYTES
                    # The size of a damaged entry may be negative.
                    bytes_left -= max(sum(map(wheel.sizes.__getitem__, numbers[done : done + together])), 1)
                    done += together
                wheel.put_back(numbers[done:])
            except (StoreError, NotRunning):
                wheel.put_back(numbers[done:])
                for later, rest in dues[count + 1 :]:
                    self._wheel.hours[later].put_back(rest)
                raise

    def _deliver_together(
        self, files: HourFiles, wheel: HourWheel, numbers: list[int], now_ms: int, bytes_max: int
    ) -> int:
        """Deliver messages with which nothing is unusual, up to the first that needs care; how many are done.

        One at least, and then as many as have no more than ``bytes_max``.
        """
        if self._schedule.is_doubtful:
            return 0
        if done := self._rewrite_together(files, wheel, numbers, now_ms, bytes_max):
            return done
        in_flight, log_offsets, places, sizes = self._schedule.in_flight, wheel.log_offsets, wheel.places, wheel.sizes
        drafts: list[Draft] = []
        text, read_bytes = delivered_at(now_ms), 0
        pieces = files.pieces([(places[number], places[number] + sizes[number]) for number in numbers])
        marked, done = files.closed_count, 0
        try:
            # Of what cannot be read, the log may have the original: the long way looks for it.
            with suppress(StoreError):
                for number, (data, at) in zip(numbers, pieces, strict=True):
                    log_offset, size = log_offsets[number], sizes[number]
                    read_bytes += size
                    found = quick_delivery(data, at, size, log_offset, text) if log_offset not in in_flight else None
                    if found is None or (read_bytes > bytes_max and drafts):
                        break
                    draft, slot_ms, topic = found
                    in_flight[log_offset] = slot_ms, topic
                    drafts.append(draft)
            done = self._store.put_all(drafts)
        except RecordRefused:
            return 0
        finally:
            # Whatever happens: what stays in flight is not delivered again.
            for number in numbers[done : len(drafts)]:
                in_flight.pop(log_offsets[number], None)
        for draft in drafts[:done]:
            self._count(draft.topic, 1, len(draft.body))
        self._note_done(files, wheel, numbers[:done], marked)
        return done

    def _rewrite_together(
        self, files: HourFiles, wheel: HourWheel, numbers: list[int], now_ms: int, bytes_max: int
    ) -> int:
        """``_deliver_together`` by a compiled kernel; 0 if it leaves the first one to Python."""
        in_flight, log_offsets = self._schedule.in_flight, wheel.log_offsets
        if not HAS_NATIVE or (in_flight and any(log_offsets[number] in in_flight for number in numbers)):
            return 0
        marked, delivered = files.closed_count, delivered_at(now_ms).encode()
        parts: list[RunPart] = []

        def pack(room: PackingRoom) -> PackedRun | None:
            spans = self._spans(files, wheel, numbers, bytes_max)
            packed = self._rewriter.pack(spans, files.hour, delivered, room) if spans is not None else None
            if packed is not None:
                parts.extend(packed.parts)
            return packed

        if not self._store.put_packed(pack, answers_at_once=False):
            return 0
        for part in parts:
            queue, _, _, body_bytes, _ = part
            self._count(queue.topic, record_count(part), body_bytes)
        done = sum(map(record_count, parts))
        if self._store.dispatched < self._store.written:
            # A log that confirms later folds their closing marks then.
            in_flight.update((log_offsets[number], None) for number in numbers[:done])
        self._note_done(files, wheel, numbers[:done], marked)
        return done

    def _spans(self, files: HourFiles, wheel: HourWheel, numbers: list[int], bytes_max: int) -> Spans | None:
        """Where records stand that are delivered together; None if they cannot be read now."""
        sizes = list(map(wheel.sizes.__getitem__, numbers))
        if sum(sizes) > bytes_max:
            within = [end <= bytes_max for end in accumulate(sizes)]
            del sizes[max(within.index(False), 1) :]
            numbers = numbers[: len(sizes)]
        log_offsets = list(map(wheel.log_offsets.__getitem__, numbers))
        low, high = min(log_offsets), max(log_offsets)
        if wheel.is_sound and low >= self._store.written - self._store.memory_bytes:
            # What came not long ago is in memory: no need to read it from the file of its hour. If an entry is damaged
            # it may name the place of another message: then only the file tells.
            page, begin, end = self._store.log.page_at(low)
            if high < end:
                return Spans(page, [log_offset - begin for log_offset in log_offsets], sizes, log_offsets)
        begins = [wheel.places[number] for number in numbers]
        try:
            source, places = files.joined([(at, at + size) for at, size in zip(begins, sizes, strict=True)])
        except StoreError:
            return None
        return Spans(source, places, sizes, log_offsets)

    def _note_done(self, files: HourFiles, wheel: HourWheel, numbers: list[int], marked: int) -> None:
        """Messages are delivered; before, the files of their hour had ``marked`` marks."""
        hour, done = files.hour, len(numbers)
        wheel.give_up_all(numbers)
        if self._marks.get(hour, 0) == marked and files.closed_count == marked + done:
            # Their marks are known.
            self._marks[hour] = marked + done
        self.delivered += done

    def _deliver(self, files: HourFiles, wheel: HourWheel, number: int) -> None:
        """Deliver one message, or find out why that is not possible."""
        entry = files.entry(number)
        if entry is None:
            log.error(
                "a message that was due at %d cannot be delivered and is dropped: its entry in %s is damaged",
                wheel.due_ms(number),
                files.paths[0],
            )
            wheel.give_up(number)
            return
        if self._schedule.is_doubtful and not self._records.is_in_log(files, entry):
            wheel.give_up(number)
            return
        if entry.kind == EntryKind.TAKES_BACK:
            # Its second began before it could be settled: too late for what it names.
            self._records.close(entry, self._records.read(files, entry), SETTLED)
            return
        why = "its record is damaged"
        record = self._records.read(files, entry)
        try:
            if record is not None:
                topic, queue_id = _real_topic(record.properties), _real_queue(record.properties) or ""
                if topic and not names.is_internal_topic(topic) and queue_id.isdecimal() and len(queue_id) < 10:
                    self._records.put(entry, self._delivery(record, entry, topic, int(queue_id)))
                    self._count(topic, 1, len(record.body))
                    self.delivered += 1
                    return
                why = f"its properties do not name a valid queue: {topic!r}, {queue_id!r}"
        except RecordRefused as error:
            why = str(error)
        log.error("the delayed message at log offset %d cannot be delivered and is dropped: %s", entry.log_offset, why)
        self._records.close(entry, record, SETTLED)

    def _delivery(self, record: Record, entry: IndexLine, topic: str, queue_id: int) -> Draft:
        """The record under its own topic. Its properties stay, and say that their wish has been fulfilled."""
        properties = (
            f"{props.closed(record.properties)}{Property.TIMER_ENQUEUE_MS}\x01{record.store_time_ms}\x02"
            f"{Property.TIMER_DEQUEUE_MS}\x01{self._clock.now_ms()}\x02"
        )
        if len(properties) > PROPERTIES_BYTES_MAX // 3 and len(properties.encode()) > PROPERTIES_BYTES_MAX:
            # No room for times that only tools read: the message was accepted, so it must be delivered.
            properties = record.properties
        draft = Draft(
            topic,
            queue_id,
            record.body,
            properties,
            record.born_time_ms,
            record.born_host,
            record.flag,
            record.sysflag & _NOT_TRANSACTION,
            record.reconsume_times,
        )
        draft.closes = entry.log_offset
        return draft

    # --- Cleaning up ------------------------------------------------------------------------------------------------

    def _retire(self, now_ms: int) -> None:
        """Let go of hours that are over and done."""
        safe = self._store.safe.value
        for hour in [hour for hour, wheel in self._wheel.hours.items() if wheel.is_done]:
            files = self._schedule.hour(hour)
            # A second and more behind the hour's end, so that its last slot is over, too. And what has closed its
            # messages is on the disk: with a power cut they would have to be delivered again.
            if (hour + 1) * HOUR_MS + 2 * _LOOK_MS < now_ms and (files is None or files.last_closing < safe):
                self._wheel.remove(hour)
                self._marks.pop(hour, None)
                self._special.forget(hour)
                self._schedule.retire(hour)
