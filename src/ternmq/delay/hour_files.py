"""The messages that wait for one hour: three files that only grow (I2).

::

    2026122418.records   whole records of the log, one behind the other: the log forgets after 72 hours, a delay may
                         last for years
    2026122418.index     48 bytes for each of them, in the order of the log
    2026122418.closed    16 bytes for each that is done: log offsets of the record that closes, and of the closed one

An entry of the index::

    at  bytes
     0  8      due time, ms
     8  8      log offset of the record
    16  8      where the record stands in the file of records
    24  8      its queue offset in the timer topic
    32  4      its size
    36  4      hash of its own topic, as Java computes it
    40  2      due time - slot (TIMER_OUT_MS)
    42  2      kind: 1 waits, 2 waits in place of an earlier record of the same key, 3 takes back by key
    44  4      CRC-32 of the 44 bytes before

All three are folds of the log, so entries stand in the order of log offsets, and a record is found among millions by
bisection. What was folded stays in memory until it is written out (``Tail``); readers see no difference. Which part of
the files counts is written elsewhere (``schedule_log``): bytes behind it are overwritten.
"""

from __future__ import annotations

import enum
import struct
from array import array
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from sys import byteorder
from typing import Final, NamedTuple
from zlib import crc32

from ternmq.delay.due import HOUR_MS
from ternmq.kernels import HAS_NATIVE, native
from ternmq.store.derived.queue_files import FilePool
from ternmq.store.disk.base import PlainFile

_FIELDS: Final = struct.Struct(">qqqqiiHH")
_ENTRY: Final = struct.Struct(">qqqqiiHHI")
_pack_fields: Final = _FIELDS.pack
_pack_crc: Final = struct.Struct(">I").pack
_MARK: Final = struct.Struct(">qq")
ENTRY_BYTES: Final = _ENTRY.size
MARK_BYTES: Final = _MARK.size
_NAME: Final = "%Y%m%d%H"
#: Records that lie closer are read at once, up to so many bytes.
#: Entries or marks that are read at once where all are needed.
_PORTION: Final = 10_000
_GAP_BYTES: Final = 2_048
_PIECE_BYTES: Final = 1 << 18
SUFFIXES: Final = ("index", "records", "closed")


class EntryKind(enum.IntEnum):
    """What an entry is."""

    WAITS = 1
    #: RocketMQ wrote the record again on its way to a far time ("roll"); earlier ones of its key are done with.
    ROLLED = 2
    #: RocketMQ's way to take back: names the key of a message in the same slot.
    TAKES_BACK = 3


class IndexLine(NamedTuple):
    """One line of the index."""

    due_ms: int
    log_offset: int
    at: int
    queue_offset: int
    size: int
    topic_hash: int
    early_ms: int
    kind: int

    @property
    def slot_ms(self) -> int:
        """The record's TIMER_OUT_MS."""
        return self.due_ms - self.early_ms


class Numbers(NamedTuple):
    """Of consecutive entries: due times, log offsets, where their records stand, and sizes; and which of them are not
    simply waiting."""

    dues_ms: array[int]
    log_offsets: array[int]
    places: array[int]
    sizes: array[int]
    special: list[int]
    #: Whether the checksums of all were right; False without compiled kernels, which look.
    is_sound: bool


class Counts(NamedTuple):
    """How much of an hour's files counts."""

    entries: int
    record_bytes: int
    closed: int


NOTHING: Final = Counts(0, 0, 0)


def hour_name(hour: int) -> str:
    """The name of an hour's files, in UTC.

    >>> hour_name(498_162)
    '2026103018'
    """
    return datetime.fromtimestamp(hour * HOUR_MS // 1000, UTC).strftime(_NAME)


def parse_hour_name(name: str) -> int | None:
    """The hour of a file's name without suffix; None if it is no such name."""
    try:
        time = datetime.strptime(name, _NAME).replace(tzinfo=UTC)
    except ValueError:
        return None
    hour = int(time.timestamp()) * 1000 // HOUR_MS
    return hour if hour_name(hour) == name else None


class Tail:
    """A file that only grows, its last part in memory until it is written out."""

    __slots__ = ("_pool", "buffer", "is_unsynced", "path", "written")

    def __init__(self, pool: FilePool, path: Path, length_bytes: int = 0) -> None:
        self._pool = pool
        self.path = path
        self.written = length_bytes
        self.buffer = bytearray()
        self.is_unsynced = False

    @property
    def length_bytes(self) -> int:
        return self.written + len(self.buffer)

    def read(self, at: int, length_bytes: int) -> bytes:
        """A part of it; fewer bytes at its end. Raises ``StoreError``."""
        in_memory = at - self.written
        if in_memory >= 0:
            return bytes(self.buffer[in_memory : in_memory + length_bytes])
        length_bytes = min(length_bytes, self.length_bytes - at)
        on_disk = self._pool.get(self.path).read(at, min(length_bytes, -in_memory))
        return on_disk if length_bytes <= -in_memory else on_disk + self.buffer[: length_bytes + in_memory]

    def open_file(self) -> PlainFile:
        """The file itself, for many reads of what is written, and no write in between. Raises ``StoreError``."""
        return self._pool.get(self.path)

    def write_out(self) -> None:
        """Write what is in memory; raises ``StoreError``, and then it stays there."""
        if self.buffer:
            self._pool.get(self.path, create_size=0).write(self.written, self.buffer)
            self.written += len(self.buffer)
            self.buffer = bytearray()
            self.is_unsynced = True

    def cut(self, length_bytes: int) -> None:
        """Forget what stands behind this length."""
        del self.buffer[max(length_bytes - self.written, 0) :]
        self.written = min(self.written, length_bytes)


class HourFiles:
    """Belongs to the store's thread, like all that is derived from the log."""

    __slots__ = ("_closed", "_index", "_records", "hour", "last_closing", "last_offset")

    def __init__(self, pool: FilePool, directory: Path, hour: int, counts: Counts = NOTHING) -> None:
        self.hour = hour
        name = hour_name(hour)
        self._index = Tail(pool, directory / f"{name}.index", counts.entries * ENTRY_BYTES)
        self._records = Tail(pool, directory / f"{name}.records", counts.record_bytes)
        self._closed = Tail(pool, directory / f"{name}.closed", counts.closed * MARK_BYTES)
        #: Log offsets of the newest record, and of the newest that closes one: what is folded again comes before.
        self.last_offset = self._last(self._index, ENTRY_BYTES, 8)
        self.last_closing = self._last(self._closed, MARK_BYTES, 0)

    @staticmethod
    def _last(tail: Tail, unit_bytes: int, at: int) -> int:
        length_bytes = tail.length_bytes
        return int.from_bytes(tail.read(length_bytes - unit_bytes + at, 8), "big") if length_bytes else -1

    @property
    def counts(self) -> Counts:
        return Counts(
            self._index.length_bytes // ENTRY_BYTES,
            self._records.length_bytes,
            self._closed.length_bytes // MARK_BYTES,
        )

    @property
    def entry_count(self) -> int:
        return self._index.length_bytes // ENTRY_BYTES

    @property
    def records_end(self) -> int:
        """Length of the file of records: where the next one begins."""
        return self._records.length_bytes

    @property
    def closed_count(self) -> int:
        return self._closed.length_bytes // MARK_BYTES

    @property
    def waiting(self) -> int:
        """Messages that are not closed."""
        return self.entry_count - self.closed_count

    @property
    def paths(self) -> list[Path]:
        return [self._index.path, self._records.path, self._closed.path]

    # --- Folding ------------------------------------------------------------------------------------------------

    def add(
        self,
        due_ms: int,
        slot_ms: int,
        log_offset: int,
        queue_offset: int,
        topic_hash: int,
        kind: EntryKind,
        record: memoryview,
    ) -> None:
        """Take in a record that waits; its log offset is the highest so far. Hot, so without keywords."""
        records = self._records
        at = records.written + len(records.buffer)
        line = _pack_fields(due_ms, log_offset, at, queue_offset, len(record), topic_hash, due_ms - slot_ms, kind)
        self._index.buffer += line + _pack_crc(crc32(line))
        records.buffer += record
        self.last_offset = log_offset

    def add_all(self, lines: bytes, records: bytes, last_offset: int) -> None:
        """``add`` for many: lines of the index, made for records that begin at ``records_end``, and the records."""
        self._index.buffer += lines
        self._records.buffer += records
        self.last_offset = last_offset

    def close(self, *, closing: int, closed: int) -> None:
        """Note that the record at ``closing`` closes the one at ``closed``."""
        self._closed.buffer += _MARK.pack(closing, closed)
        self.last_closing = closing

    def close_all(self, marks: bytes) -> None:
        """``close`` for many: log offsets of the record that closes and of the closed one, in pairs."""
        self._closed.buffer += marks
        self.last_closing = int.from_bytes(marks[-MARK_BYTES:-8], "big")

    def write_out(self) -> int:
        """Write everything to the files; how many bytes. Raises ``StoreError``; the rest is written the next time."""
        # The index last: an entry that a tool finds in the files has its record.
        tails = (self._records, self._closed, self._index)
        written_bytes = sum(len(tail.buffer) for tail in tails)
        for tail in tails:
            tail.write_out()
        return written_bytes

    def take_unsynced(self) -> list[Path]:
        """Files that have grown since they were last taken."""
        grown = [tail for tail in (self._records, self._closed, self._index) if tail.is_unsynced]
        for tail in grown:
            tail.is_unsynced = False
        return [tail.path for tail in grown]

    def cut(self, log_offset: int) -> None:
        """Forget what records from ``log_offset`` on have told."""
        if self.last_offset >= log_offset:
            kept = self._bisect(self._index, ENTRY_BYTES, 8, log_offset)
            # Not by the entry behind: it may be one that never reached the disk.
            before = self.entry(kept - 1) if kept else None
            self._records.cut(before.at + before.size if before is not None else 0)
            self._index.cut(kept * ENTRY_BYTES)
        if self.last_closing >= log_offset:
            self._closed.cut(self._bisect(self._closed, MARK_BYTES, 0, log_offset) * MARK_BYTES)
        self.last_offset = self._last(self._index, ENTRY_BYTES, 8)
        self.last_closing = self._last(self._closed, MARK_BYTES, 0)

    # --- Reading ------------------------------------------------------------------------------------------------

    def entry(self, number: int) -> IndexLine | None:
        """One entry; None if the disk has damaged it."""
        return _entry(self._index.read(number * ENTRY_BYTES, ENTRY_BYTES))

    def entries(self, first: int, count: int) -> Iterator[IndexLine | None]:
        """Entries by number, fewer at the end."""
        data = self._index.read(first * ENTRY_BYTES, count * ENTRY_BYTES)
        return (_entry(data[at : at + ENTRY_BYTES]) for at in range(0, len(data), ENTRY_BYTES))

    def numbers(self, first: int, count: int) -> Numbers:
        """What a wheel wants to know of many entries."""
        data = self._index.read(first * ENTRY_BYTES, count * ENTRY_BYTES)
        words = _words(data)
        kinds = data[43::ENTRY_BYTES]
        special = [number for number, kind in enumerate(kinds, first) if kind != 1] if kinds.strip(b"\1") else []
        sizes = array("i", data)[8::12]
        if byteorder == "little":
            sizes.byteswap()
        is_sound = HAS_NATIVE and native.has_sound_entries(data)
        return Numbers(words[0::6], words[1::6], words[2::6], sizes, special, is_sound)

    def log_offsets(self, first: int, count: int) -> array[int]:
        """Log offsets of consecutive entries, fewer at the end. They are not checked."""
        return _words(self._index.read(first * ENTRY_BYTES, count * ENTRY_BYTES))[1::6]

    def closed(self, first: int, count: int) -> array[int]:
        """Log offsets of closed records, in the order in which they were closed."""
        return closed_by(self._closed.read(first * MARK_BYTES, count * MARK_BYTES))

    def record(self, entry: IndexLine) -> bytes:
        """A whole record."""
        return self._records.read(entry.at, entry.size)

    def pieces(self, spans: Sequence[tuple[int, int]]) -> Iterator[tuple[bytes, int]]:
        """For each span of the file of records, begin and end: bytes that hold it, and where it begins in them.

        Spans that lie close behind each other are read at once. A span that is no part of the file gives fewer bytes.
        """
        records, count = self._records, len(spans)
        data, begin, end, length_bytes, written = b"", 0, 0, records.length_bytes, records.written
        read = records.open_file().read if written else records.read
        for number, (at, until) in enumerate(spans):
            if at < begin or until > end or until < at:
                if not 0 <= at <= until <= length_bytes:
                    # The entry is damaged.
                    yield b"", 0
                    continue
                begin, end, following = at, until, number + 1
                while following < count:
                    next_at, next_until = spans[following]
                    if not end <= next_at <= end + _GAP_BYTES or not next_at < next_until <= begin + _PIECE_BYTES:
                        break
                    end = next_until
                    following += 1
                data = read(begin, end - begin) if end <= written else records.read(begin, end - begin)
            yield data, at - begin

    def joined(self, spans: Sequence[tuple[int, int]]) -> tuple[bytes, list[int]]:
        """The bytes of ``pieces`` as one, and where each span begins in them."""
        parts: list[bytes] = []
        places: list[int] = []
        begin = end = 0
        for data, at in self.pieces(spans):
            if not parts or data is not parts[-1]:
                parts.append(data)
                begin, end = end, end + len(data)
            places.append(begin + at)
        return b"".join(parts), places

    def entries_from(self, log_offset: int) -> Iterator[IndexLine]:
        """The entries of records from a log offset on."""
        if self.last_offset < log_offset:
            return iter(())
        first = self._bisect(self._index, ENTRY_BYTES, 8, log_offset)
        return (entry for entry in self.entries(first, self.entry_count - first) if entry is not None)

    def closed_from(self, log_offset: int) -> array[int]:
        """Log offsets of what was closed by records from ``log_offset`` on."""
        first = self.first_mark(log_offset)
        return self.closed(first, self.closed_count - first)

    def first_mark(self, log_offset: int) -> int:
        """Number of the first closing mark that a record from ``log_offset`` on has left; behind the last if none."""
        if self.last_closing < log_offset:
            return self.closed_count
        return self._bisect(self._closed, MARK_BYTES, 0, log_offset)

    def find(self, log_offset: int) -> IndexLine | None:
        """The entry of the record at a log offset."""
        number = self._bisect(self._index, ENTRY_BYTES, 8, log_offset)
        if number < self.entry_count:
            entry = self.entry(number)
            if entry is not None and entry.log_offset == log_offset:
                return entry
        return None

    def sound(self) -> Counts:
        """How much is sound: entries up to the first that is damaged or without its record, marks likewise."""
        entries, record_bytes = 0, 0
        for entry in self.all_entries():
            if entry is None or entry.at != record_bytes or entry.at + entry.size > self._records.length_bytes:
                break
            entries += 1
            record_bytes = entry.at + entry.size
        closed, last = 0, -1
        for closing, of in self.all_marks():
            if closing <= last or of >= closing:
                break
            closed, last = closed + 1, closing
        return Counts(entries, record_bytes, closed)

    def all_entries(self) -> Iterator[IndexLine | None]:
        """All entries; they are read in portions, as there may be millions."""
        for first in range(0, self.entry_count, _PORTION):
            yield from self.entries(first, _PORTION)

    def all_marks(self) -> Iterator[tuple[int, int]]:
        """All closing marks: log offsets of the record that closes, and of the closed one."""
        for first in range(0, self.closed_count, _PORTION):
            data = self._closed.read(first * MARK_BYTES, _PORTION * MARK_BYTES)
            yield from _MARK.iter_unpack(data)

    @staticmethod
    def _bisect(tail: Tail, unit_bytes: int, at: int, log_offset: int) -> int:
        """Number of the first unit whose log offset is not smaller."""
        low, high = 0, tail.length_bytes // unit_bytes
        while low < high:
            middle = (low + high) // 2
            if int.from_bytes(tail.read(middle * unit_bytes + at, 8), "big") < log_offset:
                low = middle + 1
            else:
                high = middle
        return low


def closed_by(marks: bytes) -> array[int]:
    """Log offsets of the records that some marks close."""
    return _words(marks)[1::2]


def _entry(line: bytes) -> IndexLine | None:
    if len(line) < ENTRY_BYTES:
        return None
    *fields, crc = _ENTRY.unpack(line)
    return IndexLine._make(fields) if crc32(line[: _FIELDS.size]) == crc else None


def _words(data: bytes) -> array[int]:
    words = array("q", data)
    if byteorder == "little":
        words.byteswap()
    return words
