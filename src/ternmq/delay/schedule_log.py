"""The schedule log: all messages that wait for their time, by the hour, folded from the log (I2, C5).

A message with a delivery time is first a record of the timer topic, like any other (log first). This part folds it into
the files of the hour in which it is due (``hour_files``), and folds into them, too, what has become of it: a record that
*closes* another (``Draft.closes``) is either its delivery, under its own topic, or its recall. Delivery and done mark are
thus one record and one append. Whoever folds the log, at any time, on any node, knows what waits and what is done::

    timer topic   ── waits ──▶  2026122418.index, .records
    any topic     ── closes ─▶  2026122418.closed

What a crash leaves: ``state`` tells how much of each file counts, and up to which log offset that is complete. It is
replaced after the files were synced, so all that it counts is on the disk. Recovery takes the files as ``state`` tells
and folds the log from that offset on; bytes behind are overwritten. Retention waits for that offset (``synced``), so
what is not in the files is in the log. Without a readable ``state`` the entries' checksums decide, and the whole log is
folded again; what the files have already is left out.

An hour is removed when the runner has *retired* it (all its messages are done, and its time is over), once the records
that say so are on the disk: otherwise a power cut could take these records, but not bring back the messages.

Memory: a few numbers per hour, and what was folded since the last write (``BUFFER_BYTES``).
"""

from __future__ import annotations

import logging
from bisect import bisect_right, insort
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

import msgspec

from ternmq.delay.due import HOUR_MS, stored_due, stored_slot
from ternmq.delay.hour_files import (
    ENTRY_BYTES,
    MARK_BYTES,
    SUFFIXES,
    Counts,
    HourFiles,
    Kind,
    hour_name,
    parse_hour_name,
    sound_counts,
)
from ternmq.delay.rocketmq_timer import Handover, read_handover
from ternmq.errors import StoreError
from ternmq.message import Property
from ternmq.names import WHEEL_TOPIC
from ternmq.store.derived.dispatch import Fact
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.disk.base import Disk
from ternmq.wire import properties as props
from ternmq.wire.ids import java_hash
from ternmq.wire.record import unpack_record

log = logging.getLogger(__name__)

DIRECTORY: Final = "schedule"
STATE: Final = "state"
#: Bytes of folded records in memory, of all hours together, before they are written without being asked.
BUFFER_BYTES: Final = 4 << 20
#: So much in memory, which happens on a full disk only, and no further message with a delivery time is accepted.
BUFFER_BYTES_MAX: Final = 64 << 20
#: ``state`` that would change in its log offset alone is written after so much of the log: what a recovery reads more.
_REFOLD_BYTES: Final = 64 << 20
#: Open files; two hours are read, and any hour may be written to.
_OPEN_FILES_MAX: Final = 64

_real_topic = props.getter(Property.REAL_TOPIC)
_roll_times = props.getter(Property.TIMER_ROLL_TIMES)
_delete_key = props.getter(Property.TIMER_DELETE_KEY)

#: Told the due time of each message that is folded.
Ring = Callable[[int], object]


class _State(msgspec.Struct):
    log_offset: int
    #: Hour → entries, bytes of records, closed.
    hours: dict[int, tuple[int, int, int]]
    #: Topic → messages that wait.
    topics: dict[str, int]
    #: What we have written into RocketMQ's ``timercheck``: read time and queue offset.
    handover: tuple[int, int] | None = None


class ScheduleLog:
    """Implements ``store.derived.parts.Derived``. Its methods belong to the store's thread; ``load``, and the folds of a
    recovery, to that which opens the store."""

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
        #: Hours with something in memory that is to be written out.
        self._dirty: dict[int, HourFiles] = {}
        #: Hours whose files have grown since they were last synced.
        self._unsynced: dict[int, HourFiles] = {}
        self._buffered_bytes = 0
        self._write_at_bytes = BUFFER_BYTES
        #: What the last ``write_out`` has written: becomes ``state`` when it is synced.
        self._written: _State | None = None
        #: What ``state`` has now.
        self._saved: _State | None = None
        #: Records that this node has closed as master, while the record that says so is not confirmed yet.
        self.in_flight: set[int] = set()
        #: Hours to remove → their counts and the log offset that has to be synced first.
        self._retired: dict[int, tuple[Counts, int]] = {}
        #: Hours whose files are to go, as ``state`` does not name them any more.
        self._removed: list[int] = []

    # --- Derived ------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Collection[str]:
        return (WHEEL_TOPIC,)

    def load(self) -> int:
        """Read ``state``; the log offset up to which the files are complete. Changes nothing."""
        state = self._read_state()
        self.handover = read_handover(self._disk, self._root, state.handover if state is not None else None)
        found = self._hours_on_disk()
        if state is None:
            self._hours = {
                hour: HourFiles(self._pool, self.directory, hour, sound_counts(self._pool, self.directory, hour, most))
                for hour, most in found.items()
            }
            self._order = sorted(self._hours)
            self._count_topics()
            return 0
        for hour, counts in state.hours.items():
            most = found.pop(hour, Counts(0, 0, 0))
            if any(there < counted for there, counted in zip(most, counts, strict=True)):
                log.error(
                    "the files of delayed messages for %s are shorter than %s tells; what is lost is looked for in the log",
                    hour_name(hour),
                    self.directory / STATE,
                )
                sound = sound_counts(self._pool, self.directory, hour, most)
                self._hours[hour] = HourFiles(self._pool, self.directory, hour, sound)
                state.log_offset = 0
            else:
                self._hours[hour] = HourFiles(self._pool, self.directory, hour, Counts(*counts))
        self._order = sorted(self._hours)
        # Left by a process that died before it had removed them, or made after ``state`` was written.
        self._removed = list(found)
        self.topics_waiting = state.topics
        self._saved = None if self._removed else state
        if self.handover.is_foreign:
            self._close_delivered(state.log_offset)
        return state.log_offset

    def fold(self, fact: Fact, record: memoryview) -> None:
        """Take in a record of the timer topic."""
        log_offset, properties = fact.log_offset, fact.properties
        if fact.closes:
            return
        slot_ms = stored_slot(properties)
        topic = _real_topic(properties)
        if slot_ms is None or topic is None:
            log.error(
                "the record at log offset %d of %s has no delivery time or no topic; it is never delivered",
                log_offset,
                WHEEL_TOPIC,
            )
            return
        if self.handover.has_delivered(slot_ms, fact.queue_offset):
            return
        files = self._files(slot_ms // HOUR_MS)
        if log_offset <= files.last_offset:
            return
        kind = Kind.WAITS
        if _delete_key(properties) is not None:
            kind = Kind.TAKES_BACK
        elif _roll_times(properties) is not None:
            kind = Kind.ROLLED
        due_ms = stored_due(properties, slot_ms, fact.store_time_ms)
        files.add(
            due_ms=due_ms,
            slot_ms=slot_ms,
            log_offset=log_offset,
            queue_offset=fact.queue_offset,
            topic_hash=java_hash(topic),
            kind=kind,
            record=record,
        )
        self.topics_waiting[topic] = self.topics_waiting.get(topic, 0) + 1
        self._buffer(files, ENTRY_BYTES + len(record))
        self._ring(due_ms)

    def fold_closing(self, fact: Fact, closed: int) -> None:
        """Take in a record that delivers or takes back another one."""
        slot_ms = stored_slot(fact.properties)
        files = self._hours.get(slot_ms // HOUR_MS) if slot_ms is not None else None
        if files is None or fact.log_offset <= files.last_closing:
            # Of an hour that was removed, or folded already.
            return
        files.close(closing=fact.log_offset, closed=closed)
        self.in_flight.discard(closed)
        topic = _real_topic(fact.properties)
        if topic is not None:
            self._uncount(topic)
        self._buffer(files, MARK_BYTES)

    def cut(self, log_offset: int) -> None:
        """The log ends at ``log_offset``: forget what came from records behind it."""
        is_cut = False
        for files in self._hours.values():
            if max(files.last_offset, files.last_closing) >= log_offset:
                files.cut(log_offset)
                is_cut = True
        self._written = self._saved = None
        if is_cut:
            self._count_topics()

    def write_out(self) -> Sequence[Path]:
        """Write what was folded; the files to sync. Raises ``StoreError``; then nothing is lost."""
        self._write_buffers()
        self._written = _State(
            0,
            {hour: tuple(files.counts) for hour, files in sorted(self._hours.items())},
            dict(self.topics_waiting),
        )
        unsynced, self._unsynced = self._unsynced, {}
        return [path for files in unsynced.values() for path in files.take_unsynced()]

    def synced(self, log_offset: int) -> None:
        """What ``write_out`` wrote is on the disk, and so is the log up to ``log_offset``."""
        state, self._written = self._written, None
        if state is None:
            return
        state.log_offset = log_offset
        for hour, (counts, needed) in list(self._retired.items()):
            files = self._hours.get(hour)
            if files is None or files.counts != counts:
                # Another message came for it, or it was closed again: the runner looks at it once more.
                del self._retired[hour]
            elif needed <= log_offset:
                del self._retired[hour], self._hours[hour]
                self._order.remove(hour)
                state.hours.pop(hour, None)
                self._removed.append(hour)
        saved = self._saved
        if (
            saved is not None
            and (state.hours, state.topics) == (saved.hours, saved.topics)
            and log_offset - saved.log_offset < _REFOLD_BYTES
        ):
            return
        for directory in self._pool.take_unsynced_names():
            self._disk.sync_names(directory)
        data = msgspec.json.encode(state)
        self._disk.replace(self.directory / STATE, b"%08x\n%b" % (crc32(data), data))
        self._saved = state
        # Only now: before, a power cut could leave a ``state`` that counts files which are gone.
        removed, self._removed = self._removed, []
        for hour in removed:
            if hour not in self._hours:
                for path in _paths(self.directory, hour):
                    self._pool.remove(path)

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

    def retire(self, hour: int) -> None:
        """All messages of an hour are done, by what is folded now, and its time is over: its files may go."""
        files = self._hours.get(hour)
        if files is not None:
            self._retired[hour] = files.counts, max(files.last_closing, files.last_offset) + 1

    def is_retired(self, files: HourFiles) -> bool:
        """Whether an hour was retired, and nothing has come for it since."""
        retired = self._retired.get(files.hour)
        return retired is not None and retired[0] == files.counts

    @property
    def is_full(self) -> bool:
        """Whether too much waits in memory for a disk that takes nothing."""
        return self._buffered_bytes > BUFFER_BYTES_MAX

    @property
    def waiting(self) -> int:
        """Messages that wait."""
        return sum(files.waiting for files in self._hours.values())

    # --- Inside -------------------------------------------------------------------------------------------------

    def _files(self, hour: int) -> HourFiles:
        files = self._hours.get(hour)
        if files is None:
            files = self._hours[hour] = HourFiles(self._pool, self.directory, hour)
            insort(self._order, hour)
        return files

    def _buffer(self, files: HourFiles, more_bytes: int) -> None:
        self._dirty[files.hour] = files
        self._buffered_bytes += more_bytes
        if self._buffered_bytes >= self._write_at_bytes:
            try:
                self._write_buffers()
            except StoreError:
                # A fold must not fail: the flush tries again, and tells.
                self._write_at_bytes = self._buffered_bytes + BUFFER_BYTES

    def _write_buffers(self) -> None:
        for hour in sorted(self._dirty):
            self._dirty[hour].write_out()
            self._unsynced[hour] = self._dirty.pop(hour)
        self._buffered_bytes = 0
        self._write_at_bytes = BUFFER_BYTES

    def _close_delivered(self, log_offset: int) -> None:
        """Mark what a RocketMQ has delivered that had the directory since: it writes no closing records."""
        handover = self.handover
        for hour, files in self._hours.items():
            if hour * HOUR_MS >= handover.read_time_ms:
                continue
            closed = set(files.closed(0, files.closed_count))
            for entry in files.entries(0, files.entry_count):
                if (
                    entry is not None
                    and entry.log_offset not in closed
                    and handover.has_delivered(entry.slot_ms, entry.queue_offset)
                ):
                    files.close(closing=log_offset - 1, closed=entry.log_offset)
                    self._uncount(_real_topic(unpack_record(files.record(entry)).properties) or "")
                    self._buffer(files, MARK_BYTES)

    def _uncount(self, topic: str) -> None:
        left = self.topics_waiting.get(topic, 0) - 1
        if left > 0:
            self.topics_waiting[topic] = left
        else:
            self.topics_waiting.pop(topic, None)

    def _count_topics(self) -> None:
        """Count anew what waits by topic, from the records themselves."""
        self.topics_waiting = {}
        for files in self._hours.values():
            closed = set(files.closed(0, files.closed_count))
            for entry in files.entries(0, files.entry_count):
                if entry is not None and entry.log_offset not in closed:
                    topic = _real_topic(unpack_record(files.record(entry)).properties) or ""
                    self.topics_waiting[topic] = self.topics_waiting.get(topic, 0) + 1

    def _read_state(self) -> _State | None:
        """What ``state`` tells; None if there is none, or it is damaged."""
        path = self.directory / STATE
        data = self._disk.read(path)
        if data is None:
            return None
        crc, _, text = data.partition(b"\n")
        try:
            if int(crc, 16) == crc32(text):
                return msgspec.json.decode(text, type=_State)
        except (ValueError, msgspec.MsgspecError):
            pass
        log.error("%s is damaged; the delayed messages are counted anew, and the whole log is read", path)
        return None

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
