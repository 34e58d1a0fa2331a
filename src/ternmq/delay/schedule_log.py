"""The schedule log: all messages that wait for their time, by the hour, folded from the log (I2, C5).

A message with a delivery time is first a record of the timer topic, like any other (log first). This part folds it into
the files of the hour in which it is due (``hour_files``), and folds into them, too, what has become of it: a record
that *closes* another (``Draft.closes``) is either its delivery, under its own topic, or its recall. Delivery and done
mark are thus one record and one append. A fold of the log, at any time, on any node, tells what waits and what is
done::

    timer topic   ── waits ──▶  2026122418.index, .records
    any topic     ── closes ─▶  2026122418.closed

What a crash leaves: ``state`` tells how much of each file counts, and up to which log offset that is complete. It is
replaced after the files were synced, so all that it counts is on the disk; while nothing changes, ``position`` beside
it follows the log. Recovery takes the files as ``state`` tells and folds the log from that offset on; bytes behind are
overwritten. Retention waits for that offset (``synced``), so what is not in the files is in the log. If the disk has
damaged ``state`` the entries' checksums decide, and the whole log is folded again; what the files have already is left
out, and each message is compared with the log before it is delivered (``is_doubtful``).

An hour is removed when the runner has *retired* it: all its messages are done, its time is over, and the records that
say so are on the disk. Otherwise a power cut could take these records, but not bring back the messages.

Memory: a few numbers per hour, and what was folded since the last write (``BUFFER_BYTES``).
"""

from __future__ import annotations

import logging
import struct
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from ternmq.delay.due import HOUR_MS, Waiting, stored_place, stored_waiting
from ternmq.delay.hour_files import (
    ENTRY_BYTES,
    MARK_BYTES,
    NOTHING,
    SUFFIXES,
    Counts,
    EntryKind,
    HourFiles,
    IndexLine,
    closed_by,
    hour_name,
    parse_hour_name,
)
from ternmq.delay.rocketmq_timer import WHEEL_FILES, Handover, read_handover, write_handover
from ternmq.errors import CorruptRecord
from ternmq.kernels import HAS_NATIVE, native
from ternmq.message import Property
from ternmq.names import WHEEL_TOPIC
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.parts import Closings
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.disk.base import Disk
from ternmq.wire import properties as props
from ternmq.wire.ids import java_hash
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.record import unpack_record

log = logging.getLogger(__name__)

DIRECTORY: Final = "schedule"
STATE: Final = "state"
POSITION: Final = "position"
#: Log offset, checksum of the ``state`` that it belongs to, checksum of both.
_POSITION: Final = struct.Struct(">qII")
#: Bytes of folded records in memory, of all hours together, before they are written without being asked.
BUFFER_BYTES: Final = 8 << 20
#: Hours that are written out in one turn of the loop: some 0.5 ms, or 5 where files must be made first.
_HOURS_AT_ONCE: Final = 8
#: Open files; two hours are read, and any hour may be written to.
_OPEN_FILES_MAX: Final = 64

_topic_hash: Final = lru_cache(1024)(java_hash)
_real_topic = props.getter(Property.REAL_TOPIC)
_roll_times = props.getter(Property.TIMER_ROLL_TIMES)
_delete_key = props.getter(Property.TIMER_DELETE_KEY)

#: As globals; an attribute of an enum is slow.
_WAITS: Final = EntryKind.WAITS
_TAKES_BACK: Final = Property.TIMER_DELETE_KEY
_ROLLED: Final = Property.TIMER_ROLL_TIMES
#: The timer topic as records have it.
_TOPIC_FIELD: Final = bytes((len(WHEEL_TOPIC),)) + WHEEL_TOPIC.encode()
#: Told the due time of each message that is folded, or the first of several.
Ring = Callable[[int], object]


def kind_of(properties: str) -> EntryKind:
    """What a record of the timer topic is."""
    if _delete_key(properties) is not None:
        return EntryKind.TAKES_BACK
    return EntryKind.ROLLED if _roll_times(properties) is not None else EntryKind.WAITS


class _ScheduleState(msgspec.Struct):
    log_offset: int
    hours: dict[int, Counts]
    #: Topic → messages that wait.
    topics: dict[str, int]
    #: What we have written into RocketMQ's ``timercheck``: read time and queue offset.
    handover: tuple[int, int] | None = None


@dataclass(slots=True)
class _Snapshot:
    """How much of the files counts at one moment."""

    state: _ScheduleState
    #: Log offset of the first record that was folded after it.
    next_fold: int | None = None


class ScheduleLog:
    """Implements ``store.derived.parts.Derived``. Its methods belong to the store's thread; ``load``, and the folds of
    a recovery, to that which opens the store."""

    def __init__(self, disk: Disk, root: Path, *, ring: Ring) -> None:
        """``root`` is the directory of the store."""
        self._disk = disk
        self._root = root
        self._ring = ring
        self.directory = root / DIRECTORY
        self._pool = FilePool(disk, _OPEN_FILES_MAX)
        self._hours: dict[int, HourFiles] = {}
        #: The hours, sorted.
        self._order: list[int] = []
        #: Messages that wait, by their own topic.
        self.topics_waiting: dict[str, int] = {}
        #: What a RocketMQ that had this directory has delivered.
        self.handover = Handover()
        #: What we have left for a RocketMQ: slot and queue offset up to which messages are delivered.
        self.handed_over: tuple[int, int] | None = None
        #: All messages that were due before this time are delivered, as far as the runner of a term has seen.
        self.delivered_ms = 0
        #: Hours with something in memory that is to be written out.
        self._dirty: dict[int, HourFiles] = {}
        #: Hours whose files have grown since they were last synced.
        self._unsynced: dict[int, HourFiles] = {}
        self._buffered_bytes = 0
        #: What was written out and is not known to be synced, the oldest first.
        self._snapshots: list[_Snapshot] = []
        #: What ``state`` has now, and its checksum.
        self._saved: _ScheduleState | None = None
        self._saved_crc = 0
        #: Log offset of the record that was folded last.
        self._last_folded = 0
        #: Log offset up to which ``state`` is complete now, and the one that ``position`` tells.
        self._position = 0
        self._position_written = 0
        #: Whether the disk has damaged the files, so that they may know more than the log.
        self.is_doubtful = False
        #: Whether messages by topic are to be counted anew, when the log is folded.
        self._is_to_count = False
        #: Records that this node closes as master, while the record that says so is not folded yet; with slot and
        #: topic, if they are known.
        self.in_flight: dict[int, tuple[int, str] | None] = {}
        #: The properties of the record that is stored next, and what they say.
        self._announced: tuple[str, Waiting | None] = ("", None)
        #: Hours to remove, and their counts.
        self._retired: dict[int, Counts] = {}
        #: Hours whose files are to go, as ``state`` does not name them any more.
        self._removed: list[int] = []

    def announce(self, properties: str, waiting: Waiting) -> None:
        """Tell what the properties of a record say that is about to be stored, so that they are not read again."""
        self._announced = properties, waiting

    # --- Derived ------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Collection[str]:
        return (WHEEL_TOPIC,)

    def load(self) -> int:
        """Read ``state``; the log offset up to which the files are complete. Changes nothing."""
        # For the second time: the files came from another node, and the log is empty.
        self._pool.close()
        self._hours, self._order, self.topics_waiting = {}, [], {}
        self._dirty, self._unsynced, self._snapshots = {}, {}, []
        self._saved, self._position_written = None, 0
        found = self._hours_on_disk()
        state = self._read_state()
        self.handed_over = state.handover if state is not None else None
        self.handover = read_handover(self._disk, self._root, self.handed_over)
        if state is None:
            if self.is_doubtful:
                self._hours = {hour: self._sound(hour, most) for hour, most in found.items()}
                self._order = sorted(self._hours)
            else:
                # Nothing was ever synced, so the log has everything.
                self._removed = list(found)
            return 0
        for hour, counts in state.hours.items():
            most = found.pop(hour, NOTHING)
            if any(there < counted for there, counted in zip(most, counts, strict=True)):
                log.error(
                    "the files of delayed messages for %s are shorter than %s tells; the rest is taken from the log",
                    hour_name(hour),
                    self.directory / STATE,
                )
                self._hours[hour] = self._sound(hour, most)
                self.is_doubtful = self._is_to_count = True
            else:
                self._hours[hour] = HourFiles(self._pool, self.directory, hour, counts)
        self._order = sorted(self._hours)
        # Left by a process that died before it had removed them, or made after ``state`` was written.
        self._removed = list(found)
        self.topics_waiting = state.topics
        if self.is_doubtful:
            state.log_offset = 0
        self._position = state.log_offset
        if self.handover.is_foreign:
            self._close_delivered(state.log_offset)
        return state.log_offset

    def fold(self, fact: Fact, record: memoryview) -> None:
        """Take in a record of the timer topic."""
        log_offset, properties, queue_offset = fact.log_offset, fact.properties, fact.queue_offset
        if fact.prepared_transaction_offset and fact.closes:
            return
        self._note_fold(log_offset)
        text, waiting = self._announced
        if properties is not text:
            waiting = stored_waiting(properties)
        if waiting is None:
            log.error(
                "the record at log offset %d of %s has no delivery time or no topic; it is never delivered",
                log_offset,
                WHEEL_TOPIC,
            )
            return
        slot_ms, topic = waiting.slot_ms, waiting.topic
        handover, hour = self.handover, slot_ms // HOUR_MS
        if handover.read_time_ms and handover.has_delivered(slot_ms, queue_offset):
            return
        files = self._hours.get(hour) or self._files(hour)
        if log_offset <= files.last_offset:
            return
        kind = _WAITS
        if _TAKES_BACK in properties or _ROLLED in properties:
            kind = kind_of(properties)
        due_ms = waiting.due_ms(fact.store_time_ms)
        files.add(due_ms, slot_ms, log_offset, queue_offset, _topic_hash(topic), kind, record)
        waits = self.topics_waiting
        waits[topic] = waits.get(topic, 0) + 1
        self._dirty[hour] = files
        self._buffered_bytes += ENTRY_BYTES + fact.size
        if self._buffered_bytes >= BUFFER_BYTES:
            self._relieve()
        self._ring(due_ms)

    def fold_run(self, entries: bytes, data: memoryview, begin: int) -> int:
        """Take in records of the timer topic, by their queue entries: as many as a kernel understands."""
        if not HAS_NATIVE or self.handover.read_time_ms:
            return 0
        # Before they are taken in: then what is left in memory is no more than one run beyond the limit.
        self._relieve()
        taken, grown, topics, first_due_ms = native.fold_waiting(data, begin, entries, _TOPIC_FIELD, self._hours)
        if not taken:
            return 0
        self._note_fold(ENTRY.unpack_from(entries)[0])
        self._last_folded = ENTRY.unpack_from(entries, (taken - 1) * ENTRY.size)[0]
        for hour, lines, records, last_offset in grown:
            files = self._hours.get(hour) or self._files(hour)
            files.add_all(lines, records, last_offset)
            self._dirty[hour] = files
            self._buffered_bytes += len(lines) + len(records)
        for topic, count in topics:
            self._count(topic, count)
        if first_due_ms is not None:
            self._ring(first_due_ms)
        return taken

    def fold_closing(self, fact: Fact, closed: int) -> None:
        """Take in a record that delivers or takes back another one."""
        log_offset = fact.log_offset
        self._note_fold(log_offset)
        place = self.in_flight.pop(closed, None) or stored_place(fact.properties)
        files = self._hours.get(place[0] // HOUR_MS) if place is not None else None
        if files is None or place is None or log_offset <= files.last_closing:
            # Of an hour that was removed, or folded already.
            return
        files.close(closing=log_offset, closed=closed)
        self._uncount(place[1])
        self._buffer(files, MARK_BYTES)

    def fold_closings(self, closings: Closings) -> None:
        """Take in records that deliver messages of one hour."""
        marks, files = closings.marks, self._hours.get(closings.hour)
        self._note_fold(int.from_bytes(marks[:8], "big"))
        if self.in_flight:
            for closed in closed_by(marks):
                self.in_flight.pop(closed, None)
        if files is None:
            # It was removed.
            return
        files.close_all(marks)
        self._last_folded = files.last_closing
        for topic, count in closings.topics.items():
            self._uncount(topic, count)
        self._buffer(files, len(marks))

    def cut(self, log_offset: int) -> None:
        """The log ends at ``log_offset``: forget what came from records behind it."""
        for files in self._hours.values():
            for entry in files.entries_from(log_offset):
                self._uncount(self._topic_of(files, entry))
            for closed in files.closed_from(log_offset):
                reopened = files.find(closed) if closed < log_offset else None
                if reopened is not None:
                    self._count(self._topic_of(files, reopened))
            files.cut(log_offset)
        self._snapshots.clear()
        self._saved = None

    def write_some(self) -> bool:
        """Write a part of what was folded: messages may wait for any of a thousand hours."""
        self._write_hours(_HOURS_AT_ONCE)
        return not self._dirty

    def write_out(self) -> Sequence[Path]:
        """Write what was folded; the files to sync. Raises ``StoreError``; then nothing is lost."""
        self._write_hours(len(self._dirty))
        if self._is_to_count:
            self._is_to_count = False
            self._count_topics()
        snapshots = self._snapshots
        if not snapshots or snapshots[-1].next_fold is not None or snapshots[-1].state.handover != self.handed_over:
            hours = {hour: self._hours[hour].counts for hour in self._order}
            snapshots.append(_Snapshot(_ScheduleState(0, hours, dict(self.topics_waiting), self.handed_over)))
        unsynced, self._unsynced = self._unsynced, {}
        paths = [path for files in unsynced.values() for path in files.take_unsynced()]
        if self._saved is not None and self._position > self._position_written:
            path = self.directory / POSITION
            head = _POSITION.pack(self._position, self._saved_crc, 0)[:-4]
            self._pool.get(path, create_size=0).write(0, head + crc32(head).to_bytes(4, "big"))
            self._position_written = self._position
            paths.append(path)
        return paths

    def synced(self, log_offset: int) -> None:
        """What was written out by the time when all before ``log_offset`` was folded is on the disk."""
        # The first snapshot that has all of it. Later ones may have more, which is not synced yet.
        for number, snapshot in enumerate(self._snapshots):
            if snapshot.next_fold is None or snapshot.next_fold >= log_offset:
                del self._snapshots[: number + 1]
                break
        else:
            return
        state = snapshot.state
        state.log_offset = log_offset
        self._remove_retired(state)
        saved = self._saved
        if saved is not None and (state.hours, state.topics, state.handover) == (
            saved.hours,
            saved.topics,
            saved.handover,
        ):
            self._position = log_offset
            return
        data = msgspec.json.encode(state)
        crc = crc32(data)
        self._disk.replace(self.directory / STATE, b"%08x\n%b" % (crc, data))
        self._saved, self._saved_crc = state, crc
        if self.handover.is_foreign:
            # Its messages are in our files now; see ``rocketmq_timer``.
            for name in WHEEL_FILES:
                self._disk.remove(self._root / name)
        self._position = self._position_written = log_offset
        # Only now: before, a power cut could leave a ``state`` that counts files which are gone.
        removed, self._removed = self._removed, []
        for hour in removed:
            if hour not in self._hours:
                for path in _paths(self.directory, hour):
                    self._pool.remove(path)

    def _remove_retired(self, state: _ScheduleState) -> None:
        for hour, counts in list(self._retired.items()):
            files = self._hours.get(hour)
            if files is None or files.counts != counts:
                # Another message came for it, or it was closed again: the runner looks at it once more.
                del self._retired[hour]
            elif state.hours.get(hour) == counts:
                del self._retired[hour], self._hours[hour], state.hours[hour]
                self._order.remove(hour)
                self._removed.append(hour)
                for snapshot in self._snapshots:
                    snapshot.state.hours.pop(hour, None)

    def close(self) -> None:
        """Close the files; the store is closed."""
        self._pool.close()

    def files(self) -> Sequence[Path]:
        """What an empty replica copies first."""
        state = [self.directory / STATE] if self._disk.read(self.directory / STATE) is not None else []
        there = {entry.name for entry in self._disk.list(self.directory)}
        return [*(path for files in self._hours.values() for path in files.paths if path.name in there), *state]

    # --- For the runner and the tools -----------------------------------------------------------------------------

    def hours(self, until: int | None = None) -> list[HourFiles]:
        """The hours for which messages were stored, in order, up to ``until``."""
        order = self._order
        some = order if until is None else order[: bisect_right(order, until)]
        return [self._hours[hour] for hour in some]

    def hour(self, hour: int) -> HourFiles | None:
        return self._hours.get(hour)

    # --- For tools ----------------------------------------------------------------------------------------------

    def take_over(self, hour: int, entry: IndexLine, topic: str, record: bytes) -> None:
        """Take in a message from another schedule log; later ones, and the records of the log, follow."""
        files = self._files(hour)
        files.add(
            entry.due_ms,
            entry.slot_ms,
            entry.log_offset,
            entry.queue_offset,
            entry.topic_hash,
            EntryKind(entry.kind),
            memoryview(record),
        )
        self._count(topic)
        self._buffer(files, ENTRY_BYTES + entry.size)

    def take_over_mark(self, hour: int, closing: int, closed: int) -> None:
        """Take in that a message is done, from another schedule log."""
        files = self._files(hour)
        files.close(closing=closing, closed=closed)
        # When all is there: the message may be one that follows.
        self._is_to_count = True
        self._buffer(files, MARK_BYTES)

    # --- Hours --------------------------------------------------------------------------------------------------

    def retire(self, hour: int) -> None:
        """All messages of an hour are done, by records that are on the disk, and its time is over: its files may go."""
        files = self._hours.get(hour)
        if files is not None:
            self._retired[hour] = files.counts

    def delivered_elsewhere(self, read_time_ms: int, queue_offset: int) -> None:
        """The RocketMQ master of this slave has delivered the slots before a time, of messages before a queue offset.

        It writes nothing into the log that says so. They are closed here, or a promotion would deliver them again.
        """
        begin = self.handed_over[1] if self.handed_over is not None else 0
        handover = Handover(read_time_ms, begin, queue_offset)
        if handover != self.handover:
            self.handover = handover
            self._close_delivered(self._last_folded + 1)

    def hand_over(self, read_time_ms: int, queue_offset: int) -> None:
        """Leave for a RocketMQ that may get the directory how far messages are delivered: all slots before a time.

        ``queue_offset`` is the end of the timer topic. Raises ``StoreError``.
        """
        if queue_offset:
            write_handover(self._disk, self._root, read_time_ms, queue_offset)
            self.handed_over = read_time_ms, queue_offset

    def is_retired(self, files: HourFiles) -> bool:
        """Whether an hour was retired, and nothing has come for it since."""
        return self._retired.get(files.hour) == files.counts

    @property
    def waiting(self) -> int:
        """Messages that wait."""
        return sum(files.waiting for files in self._hours.values())

    # --- Inside -------------------------------------------------------------------------------------------------

    def _sound(self, hour: int, most: Counts) -> HourFiles:
        """An hour's files as far as they are sound; they hold ``most`` at most."""
        counts = HourFiles(self._pool, self.directory, hour, most).sound()
        return HourFiles(self._pool, self.directory, hour, counts)

    def _files(self, hour: int) -> HourFiles:
        files = self._hours.get(hour)
        if files is None:
            files = self._hours[hour] = HourFiles(self._pool, self.directory, hour)
            insort(self._order, hour)
        return files

    def _note_fold(self, log_offset: int) -> None:
        self._last_folded = log_offset
        if self._snapshots and self._snapshots[-1].next_fold is None:
            self._snapshots[-1].next_fold = log_offset

    def _buffer(self, files: HourFiles, more_bytes: int) -> None:
        self._dirty[files.hour] = files
        self._buffered_bytes += more_bytes
        self._relieve()

    def _relieve(self) -> None:
        """Write out what is too much for the memory."""
        while self._buffered_bytes >= BUFFER_BYTES and self._dirty:
            # What cannot be written stays in memory, and the store takes no more until it is written. Not all of it:
            # that may be thousands of files.
            self._write_hours(1)

    def _write_hours(self, count: int) -> None:
        """Write what is in memory of so many hours, the one that has waited longest first."""
        for hour in list(islice(self._dirty, count)):
            files = self._dirty[hour]
            written_bytes = files.write_out()
            self._unsynced[hour] = self._dirty.pop(hour)
            self._buffered_bytes -= written_bytes
        if not self._dirty:
            # Also what a write that failed half-way, or a cut, has taken away.
            self._buffered_bytes = 0

    def _close_delivered(self, log_offset: int) -> None:
        """Mark what a RocketMQ has delivered that had the directory since: it writes no closing records."""
        handover = self.handover
        for hour, files in self._hours.items():
            if hour * HOUR_MS >= handover.read_time_ms or not files.waiting:
                continue
            closed = {of for _, of in files.all_marks()}
            for entry in files.all_entries():
                if (
                    entry is not None
                    and entry.log_offset not in closed
                    and handover.has_delivered(entry.slot_ms, entry.queue_offset)
                ):
                    files.close(closing=log_offset - 1, closed=entry.log_offset)
                    self._uncount(self._topic_of(files, entry))
                    self._buffer(files, MARK_BYTES)

    def _count(self, topic: str, count: int = 1) -> None:
        self.topics_waiting[topic] = self.topics_waiting.get(topic, 0) + count

    def _uncount(self, topic: str, count: int = 1) -> None:
        left = self.topics_waiting.get(topic, 0) - count
        if left > 0:
            self.topics_waiting[topic] = left
        else:
            self.topics_waiting.pop(topic, None)

    def _topic_of(self, files: HourFiles, entry: IndexLine) -> str:
        try:
            return _real_topic(unpack_record(files.record(entry)).properties) or ""
        except CorruptRecord:
            return ""

    def _count_topics(self) -> None:
        """Count anew what waits by topic, from the records themselves."""
        self.topics_waiting = {}
        for files in self._hours.values():
            closed = {of for _, of in files.all_marks()}
            for entry in files.all_entries():
                if entry is not None and entry.log_offset not in closed:
                    self._count(self._topic_of(files, entry))

    def _read_state(self) -> _ScheduleState | None:
        """What ``state`` tells; None if there is none, or it is damaged."""
        path = self.directory / STATE
        data = self._disk.read(path)
        if data is None:
            return None
        crc, _, text = data.partition(b"\n")
        try:
            if int(crc, 16) == crc32(text):
                state = msgspec.json.decode(text, type=_ScheduleState)
                state.log_offset = max(state.log_offset, self._read_position(crc32(text)))
                return state
        except (ValueError, msgspec.MsgspecError):
            pass
        self.is_doubtful = self._is_to_count = True
        log.error("%s is damaged; the delayed messages are counted anew, and the whole log is read", path)
        return None

    def _read_position(self, state_crc: int) -> int:
        """What ``position`` tells about a ``state``; 0 if it belongs to another one, or is damaged."""
        data = self._disk.read(self.directory / POSITION)
        if data is None or len(data) != _POSITION.size:
            return 0
        log_offset, of_state, crc = _POSITION.unpack(data)
        return log_offset if of_state == state_crc and crc32(data[:-4]) == crc else 0

    def _hours_on_disk(self) -> dict[int, Counts]:
        """What the files of each hour could hold."""
        lengths: dict[int, dict[str, int]] = {}
        for name, length_bytes, is_directory in self._disk.list(self.directory):
            stem, _, suffix = name.partition(".")
            hour = parse_hour_name(stem)
            if not is_directory and hour is not None and suffix in SUFFIXES:
                lengths.setdefault(hour, {})[suffix] = length_bytes
        return {
            hour: Counts(
                each.get("index", 0) // ENTRY_BYTES, each.get("records", 0), each.get("closed", 0) // MARK_BYTES
            )
            for hour, each in lengths.items()
        }


def _paths(directory: Path, hour: int) -> list[Path]:
    name = hour_name(hour)
    return [directory / f"{name}.{suffix}" for suffix in SUFFIXES]
