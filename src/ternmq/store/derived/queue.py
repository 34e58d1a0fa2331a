"""ConsumeQueue: where the records of one topic and queue lie in the log (C2).

A queue is a row of entries of 20 bytes (``wire.layouts.queue_entry``): number *n* is the message of queue offset *n*,
at byte 20 · n. Files have 300,000 entries and are named by their first byte. A queue whose first entry is not number 0
begins in the middle of a file, and what lies before is filled.

A queue keeps its newest entries in memory (``_tail``), where consumers that keep up find them, and writes them out 200
at a time. What a crash takes from there is folded again from the log: queues are derived (``store.derived.dispatch``),
the log is the truth. A cut writes zeros, otherwise a later start could take stale entries for good ones.

Invariants: the entries from ``min_offset`` up to ``next_offset`` are there, their log offsets grow, but for fillers;
those before ``_tail_offset`` are in files, the others in ``_tail``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.derived.queue_ext import ADDRESS_BYTE
from ternmq.store.derived.queue_search import PAGE_ENTRIES, first_passing
from ternmq.store.disk.segment import segment_name, segment_starts
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES, FILLER, FILLER_SIZE, TAGS_AT
from ternmq.wire.record import TOPIC_V1_BYTES_MAX

if TYPE_CHECKING:
    from ternmq.store.derived.fact import Fact
    from ternmq.store.derived.queues import ConsumeQueues

TAIL_BYTES: Final = PAGE_ENTRIES * ENTRY_BYTES
_pack_entry: Final = ENTRY.pack


class ConsumeQueue:
    """One queue of one topic. Belongs to the store's thread."""

    __slots__ = (
        "_all",
        "_log_begin",
        "_paths",
        "_tail",
        "_tail_offset",
        "_unsynced",
        "directory",
        "ext",
        "has_due_times",
        "is_special",
        "log_end",
        "min_offset",
        "needs_facts",
        "next_offset",
        "pending",
        "queue_id",
        "topic",
        "topic_bytes",
        "topic_part",
        "topic_record_bytes",
        "unsynced_bytes",
    )

    def __init__(self, owner: ConsumeQueues, topic: str, queue_id: int) -> None:
        self._all = owner
        self.topic = topic
        self.queue_id = queue_id
        self.directory = owner.directory / topic / str(queue_id)
        #: Units beside the entries, where the store has such.
        self.ext = owner.exts.of(topic, queue_id) if owner.exts is not None else None
        #: The topic as records hold it.
        self.topic_bytes = topic.encode()
        is_v1 = len(self.topic_bytes) <= TOPIC_V1_BYTES_MAX
        #: What a record needs more than with an empty topic; a long one has a length of two bytes.
        self.topic_record_bytes = len(self.topic_bytes) + (not is_v1)
        #: Length and topic as they stand in a record of the first version; empty if it takes the second.
        self.topic_part = bytes((len(self.topic_bytes),)) + self.topic_bytes if is_v1 else b""
        #: Whether entries hold when their message is due in place of its tags code (C2).
        self.has_due_times = topic == SCHEDULE_TOPIC
        #: Whether more than a plain entry is made of a record: a unit beside it, or the fold of a derived part.
        self.needs_facts = topic in owner.folded_topics or (owner.exts is not None and owner.exts.writes)
        #: Whether the short ways of kernels are not for its records: those, or records of the second version.
        self.is_special = self.has_due_times or self.needs_facts or not is_v1
        self.min_offset = 0
        #: Number of the next entry: «max offset» in RocketMQ's words.
        self.next_offset = 0
        #: Records that are stored and have no entry yet (``store.log.pending``).
        self.pending = 0
        #: Log offset behind the record of the last entry.
        self.log_end = 0
        #: Log offset of the record at ``min_offset``; -1 if it is not known yet.
        self._log_begin = -1
        #: Start in bytes → path, in order.
        self._paths: dict[int, Path] = {}
        self._tail = bytearray()
        self._tail_offset = 0
        self._unsynced: set[Path] = set()
        self.unsynced_bytes = 0

    @property
    def assigned(self) -> int:
        """The queue offset of the next record that is stored."""
        return self.next_offset + self.pending

    # --- Writing ----------------------------------------------------------------------------------------------

    def append(self, log_offset: int, size: int, tags_code: int) -> None:
        """Add the entry of the next queue offset."""
        tail = self._tail
        if not tail:
            self._begin_tail()
        tail += _pack_entry(log_offset, size, tags_code)
        self.next_offset += 1
        self.log_end = log_offset + size
        if len(tail) >= TAIL_BYTES:
            self._all.overflow(self)

    def extend(self, entries: bytes, log_end: int) -> None:
        """Add entries of the next queue offsets; the record of the last one ends at ``log_end``."""
        tail = self._tail
        if not tail:
            self._begin_tail()
        tail += entries
        self.next_offset += len(entries) // ENTRY_BYTES
        self.log_end = log_end
        if len(tail) >= TAIL_BYTES:
            self._all.overflow(self)

    @staticmethod
    def extend_all(parts: Iterable[tuple[ConsumeQueue, bytes, int, int, object]]) -> None:
        """``extend`` several queues, each by entries and where the record of the last one ends (``run.RunPart``): one
        call for all of them."""
        for queue, entries, log_end, _, _ in parts:
            tail = queue._tail  # noqa: SLF001 - its own
            if not tail:
                queue._begin_tail()  # noqa: SLF001 - its own
            tail += entries
            queue.next_offset += len(entries) // ENTRY_BYTES
            queue.log_end = log_end
            if len(tail) >= TAIL_BYTES:
                queue._all.overflow(queue)  # noqa: SLF001 - its own

    def _begin_tail(self) -> None:
        self._all.dirty[self] = None
        if not self._paths:
            at, file_bytes = self._tail_offset * ENTRY_BYTES, self._all.file_bytes
            self._all.files.make_soon(self.directory / segment_name(at - at % file_bytes), file_bytes)

    def add(self, fact: Fact) -> None:
        """Add the entry of a record, with a unit beside it where the store has such."""
        tags_field = fact.tags_code if self.ext is None else self.ext.tags_field(fact, self._last_address)
        self.append(fact.log_offset, fact.size, tags_field)

    def begin_at(self, queue_offset: int) -> None:
        """Let an empty queue, or one that starts over, begin with this queue offset."""
        self.remove()
        self.min_offset = self.next_offset = self._tail_offset = queue_offset

    def fill_to(self, queue_offset: int) -> None:
        """Leave out queue offsets that the log has no record of, so that the later ones keep their numbers."""
        log_end = self.log_end
        while self.next_offset < queue_offset:
            self.append(0, FILLER_SIZE, 0)
        self.log_end = log_end

    def write_out(self) -> None:
        """Write the entries in memory to their files. Raises ``DiskFull``; then they stay in memory."""
        tail, file_bytes = self._tail, self._all.file_bytes
        if not tail:
            return
        units_bytes = self.ext.write_out() if self.ext is not None else 0
        at = self._tail_offset * ENTRY_BYTES
        done = 0
        while done < len(tail):
            start = at - at % file_bytes
            count = min(len(tail) - done, start + file_bytes - at)
            path = self._paths.get(start) or self._make(start)
            self._all.files.get(path).write(at - start, tail[done : done + count])
            self._unsynced.add(path)
            at += count
            done += count
        self.unsynced_bytes += done + units_bytes
        self._tail_offset = self.next_offset
        self._tail = bytearray()
        self._all.dirty.pop(self, None)
        self._all.unsynced[self] = None

    def _make(self, start: int) -> Path:
        """Make the file that follows, or the first one."""
        path = self.directory / segment_name(start)
        file = self._all.files.get(path, create_size=self._all.file_bytes)
        before = self._tail_offset * ENTRY_BYTES - start
        if not self._paths and before > 0:
            file.write(0, FILLER * (before // ENTRY_BYTES))
        self._paths[start] = path
        return path

    def take_unsynced(self) -> list[Path]:
        """Files written to since they were last asked for; the caller syncs them."""
        paths = sorted(self._unsynced)
        self._unsynced.clear()
        self.unsynced_bytes = 0
        return [*self.ext.take_unsynced(), *paths] if self.ext is not None else paths

    # --- Reading ----------------------------------------------------------------------------------------------

    def read(self, queue_offset: int, count: int) -> bytes | bytearray:
        """Entries from ``queue_offset`` on: at most ``count``, fewer at the end of a file or of the queue."""
        in_tail = queue_offset - self._tail_offset
        if in_tail >= 0:
            at = in_tail * ENTRY_BYTES
            return self._tail[at : at + count * ENTRY_BYTES]
        at = queue_offset * ENTRY_BYTES
        start = at - at % self._all.file_bytes
        path = self._paths.get(start)
        if path is None:
            return b""
        wanted_bytes, in_files_bytes = count * ENTRY_BYTES, -in_tail * ENTRY_BYTES
        length_bytes = min(wanted_bytes, start + self._all.file_bytes - at, in_files_bytes)
        data = self._all.files.get(path).read(at - start, length_bytes)
        return data + self._tail[: wanted_bytes - length_bytes] if length_bytes == in_files_bytes else data

    def entry(self, queue_offset: int) -> tuple[int, int, int] | None:
        """Log offset, size and tags code of one entry; None if it is not there."""
        if not self.min_offset <= queue_offset < self.next_offset:
            return None
        data = self.read(queue_offset, 1)
        return ENTRY.unpack(data) if data else None

    def _pages_back(self) -> Iterator[bytes | bytearray]:
        """The entries from the last one back, in pieces that grow."""
        end, stride, per_file = self.next_offset, PAGE_ENTRIES, self._all.file_bytes // ENTRY_BYTES
        while end > self.min_offset:
            begin = max(self.min_offset, end - stride, (end - 1) // per_file * per_file)
            yield self.read(begin, end - begin)
            end, stride = begin, stride * 8

    def _last_address(self) -> int | None:
        """The newest address of a unit that an entry holds; None if none does."""
        for entries in self._pages_back():
            number = entries[TAGS_AT::ENTRY_BYTES].rfind(ADDRESS_BYTE)
            if number >= 0:
                address: int = ENTRY.unpack_from(entries, number * ENTRY_BYTES)[2]
                return address
        return None

    def _last_end(self) -> int:
        """Log offset behind the last record that an entry knows; 0 if none does."""
        for entries in self._pages_back():
            for at in range(len(entries) - ENTRY_BYTES, -1, -ENTRY_BYTES):
                log_offset, size, _ = ENTRY.unpack_from(entries, at)
                if size != FILLER_SIZE:
                    return int(log_offset + size)
        return 0

    def places(self) -> tuple[dict[int, Path], int, bytes]:
        """Start in bytes → file, and the entries in memory with the queue offset of the first: for other threads."""
        return dict(self._paths), self._tail_offset, bytes(self._tail)

    def file_end(self, queue_offset: int) -> int:
        """The queue offset with which the file after the one of ``queue_offset`` begins."""
        per_file = self._all.file_bytes // ENTRY_BYTES
        return (queue_offset // per_file + 1) * per_file

    def first_from(self, log_offset: int) -> int:
        """The first queue offset of a record at ``log_offset`` or behind; the queue's end if there is none."""
        return first_passing(
            self.read,
            self.min_offset,
            self.next_offset,
            lambda at, size: None if size == FILLER_SIZE else at >= log_offset,
        )

    # --- Life: load, cut, remove --------------------------------------------------------------------------------

    def load(self, *, lenient: bool = False, log_min_offset: int = 0) -> None:
        """Find the files and the end of the queue; changes nothing. Raises ``CorruptFile``."""
        file_bytes = self._all.file_bytes
        starts = self._starts(lenient=lenient, begin=0)
        # A power cut may bring back files that were deleted, and not those between them and what is left.
        while lenient and starts and self._is_expired(starts[-1], log_min_offset):
            later = self._starts(lenient=lenient, begin=starts[-1] + file_bytes)
            if not later:
                break
            starts = later
        if not starts:
            return
        self._paths = {start: self.directory / segment_name(start) for start in starts}
        self.min_offset = starts[0] // ENTRY_BYTES
        self._tail_offset = (starts[-1] + file_bytes) // ENTRY_BYTES
        self._end_at(first_passing(self.read, self.min_offset, self._tail_offset, lambda _, size: size <= 0))

    def _starts(self, *, lenient: bool, begin: int) -> list[int]:
        return segment_starts(
            self._all.disk,
            self.directory,
            size=self._all.file_bytes,
            key="mappedFileSizeConsumeQueue",
            lenient=lenient,
            begin=begin,
        )

    def _is_expired(self, start: int, log_min_offset: int) -> bool:
        """Whether the log has forgotten the records of a whole file."""
        file = self._all.files.get(self.directory / segment_name(start))
        log_offset, size, _ = ENTRY.unpack(file.read(self._all.file_bytes - ENTRY_BYTES, ENTRY_BYTES))
        return bool(0 < size < FILLER_SIZE and log_offset < log_min_offset)

    def _end_at(self, end: int) -> None:
        self.next_offset = self._tail_offset = end
        self._log_begin = -1
        self.log_end = self._last_end()

    def cut(self, log_offset: int) -> None:
        """Forget the entries of records at ``log_offset`` and behind. The numbering goes on where the cut is."""
        self.write_out()
        end = self.first_from(log_offset)
        # A first file that is not number 0 stays, to show where the numbering is. The newest goes first: what a power
        # cut brings back then is a beginning.
        first = next(iter(self._paths), 0)
        behind = [start for start in reversed(self._paths) if start >= end * ENTRY_BYTES]
        for start in behind:
            if start > first or not first:
                self._drop(start)
        if self._paths:
            start, path = next(reversed(self._paths.items()))
            self._all.files.get(path).zero_from(end * ENTRY_BYTES - start)
            self._unsynced.add(path)
            self._all.unsynced[self] = None
        self._end_at(end)
        if self.ext is not None:
            self.ext.cut(self._last_address)

    def resume(self, log_offset: int) -> None:
        """Go on where a killed process stopped: its last write may be torn, and what it wrote of records from
        ``log_offset`` on is not synced."""
        file_bytes = self._all.file_bytes
        first = self.first_from(log_offset)
        self._unsynced.update(path for start, path in self._paths.items() if start + file_bytes > first * ENTRY_BYTES)
        self._all.unsynced[self] = None
        last = self.entry(self.next_offset - 1)
        # A filler knows no record, and has log offset 0.
        self.cut(log_offset if last is None else max(log_offset, last[0]))

    def forget_numbers(self) -> None:
        """Begin with 0 if no entry, not even a filler, shows other queue offsets: a file's name may be a ghost."""
        begin = self.next_offset * ENTRY_BYTES
        if begin and not self._tail and begin == next(iter(self._paths), begin):
            self.remove()

    def is_hollow(self) -> bool:
        """Whether the queue begins with a filler."""
        first = self.entry(self.min_offset)
        return first is not None and first[1] == FILLER_SIZE

    def raise_min(self, log_min_offset: int) -> None:
        """Let the queue begin with the first record that the log still has. Costs nothing if that is so already."""
        if self._log_begin >= log_min_offset:
            return
        self.min_offset = self.first_from(log_min_offset)
        first = self.entry(self.min_offset)
        self._log_begin = first[0] if first is not None else -1
        if self.ext is not None and self.ext.file_count > 1 and first is not None:
            self.ext.drop_before(first[2])

    def drop_old_file(self) -> bool:
        """Delete the oldest file, if all its entries lie before ``min_offset`` and it is not the last one."""
        start = next(iter(self._paths), 0)
        if len(self._paths) < 2 or start + self._all.file_bytes > self.min_offset * ENTRY_BYTES:
            return False
        self._drop(start)
        return True

    def remove(self) -> None:
        """Remove the files; the queue is empty and begins with 0."""
        for start in list(self._paths):
            self._drop(start)
        if self.ext is not None:
            self.ext.remove()
        self._tail = bytearray()
        self._all.dirty.pop(self, None)
        self._all.unsynced.pop(self, None)
        self._unsynced.clear()
        self.unsynced_bytes = 0
        self.min_offset = self.next_offset = self._tail_offset = self.log_end = 0
        self._log_begin = -1

    def remove_strays(self) -> None:
        """Remove files that ``load`` left out: behind one that is missing, or without their length."""
        self._all.files.remove_strays(self.directory, kept=self._paths.values())

    def _drop(self, start: int) -> None:
        path = self._paths.pop(start)
        self._unsynced.discard(path)
        self._all.files.remove(path)
