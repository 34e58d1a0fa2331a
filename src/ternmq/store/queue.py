"""ConsumeQueues: for each topic and queue, where its records lie in the log (C2).

A queue is a row of 20-byte entries; entry *n* is the message of queue offset *n*, at byte 20 · n::

    8 log offset   4 size of the record   8 tags code (Java's hash of the TAGS text, sign-extended; 0 without tags)

In place of the tags code the address of a unit may stand, which holds the code and more (``store.queue_ext``).

Files have 300,000 entries and are named by their first byte. A queue whose first entry is not number 0 begins in
the middle of a file: what lies before is filled with (0, 0x7FFFFFFF, 0).

There may be 10,000 queues, so nothing is mapped and few files are open. A queue keeps its newest entries in memory
(``_tail``), where consumers that keep up find them, and writes them out 200 at a time. What a crash takes from there
is folded again from the log: queues are derived (``store.dispatch``), the log is the truth. A cut writes zeros,
otherwise a later start could take stale entries for good ones.

Invariants: the entries from ``min_offset`` up to ``next_offset`` are there, their log offsets grow; those before
``_tail_offset`` are in files, the others in ``_tail``.
"""

from __future__ import annotations

import contextlib
import logging
import struct
import threading
from collections.abc import Callable, Container, Iterable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ternmq.errors import CorruptFile, RecordRefused, StoreError
from ternmq.store.config import ENTRY_BYTES
from ternmq.store.light import LIGHT_PREFIX
from ternmq.store.queue_ext import ADDRESS_BYTE, QueueExts
from ternmq.store.segment import Disk, PlainFile, segment_name, segment_starts
from ternmq.wire.record import TOPIC_V1_BYTES_MAX

if TYPE_CHECKING:
    from ternmq.store.dispatch import Fact

log = logging.getLogger(__name__)

ENTRY: Final = struct.Struct(">qiq")
#: Where an entry has its tags code, highest byte first.
TAGS_AT: Final = 12
FILLER_SIZE: Final = 0x7FFFFFFF
_FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)

#: Entries that are looked at or written out together: one page.
PAGE_ENTRIES: Final = 200
TAIL_BYTES: Final = PAGE_ENTRIES * ENTRY_BYTES
#: Topics are directory names, and no longer than those can be.
TOPIC_BYTES_MAX: Final = 255
#: Open queue files, of all queues together.
OPEN_FILES_MAX: Final = 256
_pack_entry: Final = ENTRY.pack


class FilePool:
    """Open queue files, the least recently used closed first; and which directories have names that are not synced.

    To make a file and its directories takes 0.2 to 1 ms, and a thousand new queues may come at once. So a new queue's
    first file is made by another thread while its first entries are still in memory (``make_soon``). If it is not done
    when they are written out, or if it failed, the file is made then.
    """

    __slots__ = ("_disk", "_files", "_limit", "_lock", "_wanted", "chores", "unsynced_names")

    def __init__(self, disk: Disk, limit: int = OPEN_FILES_MAX) -> None:
        self._disk = disk
        self._limit = limit
        self._files: dict[Path, PlainFile] = {}
        #: Runs what may wait for the disk on another thread, if there is one.
        self.chores: Callable[[Callable[[], None]], object] | None = None
        #: Files to be made there. Whoever removes a file or its directory takes it out first, under the lock.
        self._wanted: dict[Path, None] = {}
        self._lock = threading.Lock()
        #: Directories in which files were made or removed, in order. Without a sync of these a power cut may bring
        #: files back, or take them although they were synced.
        self.unsynced_names: dict[Path, None] = {}

    def get(self, path: Path, create_size: int | None = None) -> PlainFile:
        file = self._files.pop(path, None)
        if file is None:
            if len(self._files) >= self._limit:
                self._files.pop(next(iter(self._files))).close()
            file = self._disk.open_file(path, create_size=create_size)
            if create_size is not None:
                # The queue's directory, the topic's, that of all queues, and the store's: any of them may be new.
                self.unsynced_names |= dict.fromkeys(path.parents[:4])
        # A dict keeps its order of insertion: taken out and put in again, the file is the newest.
        self._files[path] = file
        return file

    def make_soon(self, path: Path, size: int) -> None:
        """Have a file made on another thread, if there is one."""
        if self.chores is not None:
            self._wanted[path] = None
            self.chores(partial(self._make, path, size))

    def _make(self, path: Path, size: int) -> None:
        with self._lock:
            if path in self._wanted:
                del self._wanted[path]
                with contextlib.suppress(StoreError):
                    self._disk.open_file(path, create_size=size).close()

    def remove(self, path: Path) -> None:
        """Close a file and remove it; also a whole directory, none of whose files is open."""
        if self._wanted:
            with self._lock:
                for wanted in [each for each in self._wanted if each == path or path in each.parents]:
                    del self._wanted[wanted]
        file = self._files.pop(path, None)
        if file is not None:
            file.close()
        self._disk.remove(path)
        self.unsynced_names[path.parent] = None

    def take_unsynced_names(self) -> list[Path]:
        """Directories to sync."""
        directories = list(self.unsynced_names)
        self.unsynced_names.clear()
        return directories

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


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
        "log_end",
        "min_offset",
        "next_offset",
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
        self.min_offset = 0
        #: Number of the next entry: «max offset» in RocketMQ's words.
        self.next_offset = 0
        #: Log offset behind the record of the last entry.
        self.log_end = 0
        #: Log offset of the record at ``min_offset``; -1 if nobody has looked yet.
        self._log_begin = -1
        #: Start in bytes → path, in order.
        self._paths: dict[int, Path] = {}
        self._tail = bytearray()
        self._tail_offset = 0
        self._unsynced: set[Path] = set()
        self.unsynced_bytes = 0

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
            file.write(0, _FILLER * (before // ENTRY_BYTES))
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

    def _last_address(self) -> int | None:
        """The newest address of a unit that an entry holds; None if none does. Reads back until it finds one."""
        end, stride = self.next_offset, PAGE_ENTRIES
        while end > self.min_offset:
            per_file = self._all.file_bytes // ENTRY_BYTES
            begin = max(self.min_offset, end - stride, (end - 1) // per_file * per_file)
            entries = self.read(begin, end - begin)
            number = entries[TAGS_AT::ENTRY_BYTES].rfind(ADDRESS_BYTE)
            if number >= 0:
                address: int = ENTRY.unpack_from(entries, number * ENTRY_BYTES)[2]
                return address
            end, stride = begin, stride * 8
        return None

    def places(self) -> tuple[dict[int, Path], int, bytes]:
        """Start in bytes → file, and the entries in memory with the queue offset of the first: for other threads."""
        return dict(self._paths), self._tail_offset, bytes(self._tail)

    def file_end(self, queue_offset: int) -> int:
        """The queue offset with which the file after the one of ``queue_offset`` begins."""
        per_file = self._all.file_bytes // ENTRY_BYTES
        return (queue_offset // per_file + 1) * per_file

    def _first(self, low: int, high: int, passes: Callable[[int, int], bool]) -> int:
        """The first queue offset from ``low`` on whose log offset and size pass, as all behind it do; else ``high``.

        Most queues are short and all files are long, so the search strides from ``low`` and ends within one page: two
        or three reads, where halving a file of 300,000 entries takes eighteen. (10,000 queues load in half the time.)
        """

        def passes_at(queue_offset: int) -> bool:
            log_offset, size, _ = ENTRY.unpack(self.read(queue_offset, 1))
            return passes(log_offset, size)

        stride = PAGE_ENTRIES
        while low + stride < high and not passes_at(low + stride):
            low, stride = low + stride + 1, stride * 8
        high = min(high, low + stride)
        while high - low > PAGE_ENTRIES:
            middle = (low + high) // 2
            low, high = (low, middle) if passes_at(middle) else (middle + 1, high)
        # One read, unless a file ends in between.
        while low < high and (data := self.read(low, high - low)):
            for log_offset, size, _ in ENTRY.iter_unpack(data):
                if passes(log_offset, size):
                    return low
                low += 1
        return low

    # --- Life: load, cut, remove --------------------------------------------------------------------------------

    def load(self, *, lenient: bool = False) -> None:
        """Find the files and the end of the queue; changes nothing. Raises ``CorruptFile``."""
        file_bytes = self._all.file_bytes
        starts = segment_starts(
            self._all.disk, self.directory, size=file_bytes, key="mappedFileSizeConsumeQueue", lenient=lenient
        )
        if not starts:
            return
        self._paths = {start: self.directory / segment_name(start) for start in starts}
        self.min_offset = starts[0] // ENTRY_BYTES
        self._tail_offset = (starts[-1] + file_bytes) // ENTRY_BYTES
        self._end_at(self._first(self.min_offset, self._tail_offset, lambda _, size: size <= 0))

    def _end_at(self, end: int) -> None:
        self.next_offset = self._tail_offset = end
        self._log_begin = -1
        log_offset, size, _ = ENTRY.unpack(self.read(end - 1, 1)) if end > self.min_offset else (0, 0, 0)
        self.log_end = log_offset + size if size != FILLER_SIZE else 0

    def cut(self, log_offset: int) -> None:
        """Forget the entries of records at ``log_offset`` and behind. The numbering goes on where the cut is."""
        self.write_out()
        end = self._first(self.min_offset, self.next_offset, lambda at, size: size <= 0 or at >= log_offset)
        for start in [start for start in self._paths if start >= end * ENTRY_BYTES]:
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
        first = self._first(self.min_offset, self.next_offset, lambda at, size: size <= 0 or at >= log_offset)
        self._unsynced.update(path for start, path in self._paths.items() if start + file_bytes > first * ENTRY_BYTES)
        self._all.unsynced[self] = None
        last = self.entry(self.next_offset - 1)
        # A filler knows no record; where one is the last, nothing from there on is kept.
        self.cut(log_offset if last is None or last[1] == FILLER_SIZE else max(log_offset, last[0]))

    def raise_min(self, log_min_offset: int) -> None:
        """Let the queue begin with the first record that the log still has. Costs nothing if that is so already."""
        if self._log_begin >= log_min_offset:
            return
        self.min_offset = self._first(
            self.min_offset, self.next_offset, lambda at, size: size != FILLER_SIZE and at >= log_min_offset
        )
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
        """Remove files that ``load`` left out: behind one that is missing, or without their length.

        The process that died may have made and removed others, so all names here are taken for not synced.
        """
        self._all.files.unsynced_names |= dict.fromkeys((self.directory, *self.directory.parents[:3]))
        for name, _, is_directory in self._all.disk.list(self.directory):
            path = self.directory / name
            if not is_directory and path not in self._paths.values():
                self._all.files.remove(path)

    def _drop(self, start: int) -> None:
        path = self._paths.pop(start)
        self._unsynced.discard(path)
        self._all.files.remove(path)


class ConsumeQueues:
    """All queues of a store, as one thing derived from the log (``store.dispatch.Derived``)."""

    __slots__ = (
        "directory",
        "dirty",
        "disk",
        "exts",
        "file_bytes",
        "files",
        "foreign",
        "has_light",
        "on_trouble",
        "table",
        "unsynced",
    )

    def __init__(self, disk: Disk, directory: Path, *, file_bytes: int) -> None:
        self.disk = disk
        self.directory = directory
        self.file_bytes = file_bytes
        self.files = FilePool(disk)
        #: The rows of units beside the queues (C3); set before anything is loaded.
        self.exts: QueueExts | None = None
        self.table: dict[tuple[str, int], ConsumeQueue] = {}
        #: Topics that RocketMQ 5 keeps in ``batchconsumequeue``: a queue of ours for one of them would keep it from
        #: starting on this directory. Their records are left alone.
        self.foreign: Container[str] = frozenset()
        #: Whether RocketMQ has made light queues here (``store.light``).
        self.has_light = False
        #: Queues with entries in memory only, and queues with files that were written to and not synced; in order.
        self.dirty: dict[ConsumeQueue, None] = {}
        self.unsynced: dict[ConsumeQueue, None] = {}
        #: Told when entries could not be written out; the log should take no more for now.
        self.on_trouble: Callable[[StoreError], None] | None = None

    def __iter__(self) -> Iterator[ConsumeQueue]:
        return iter(self.table.values())

    def __len__(self) -> int:
        return len(self.table)

    def get(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        return self.table.get((topic, queue_id))

    def make(self, topic: str, queue_id: int) -> ConsumeQueue:
        """The queue, new if there was none. Its files come with its first entries."""
        key = (topic, queue_id)
        queue = self.table.get(key)
        if queue is None:
            if not _is_storable(topic, queue_id):
                raise RecordRefused(
                    f"queue {queue_id} of topic {topic!r} cannot be stored; use a topic that is a file name "
                    f"of 1 to {TOPIC_BYTES_MAX} bytes, and a queue id from 0 on"
                )
            if topic in self.foreign:
                raise RecordRefused(
                    f"topic {topic!r} has batch queues of RocketMQ 5 (queue.type=BatchCQ), which TernMQ cannot write; "
                    "use another topic"
                )
            queue = self.table[key] = ConsumeQueue(self, topic, queue_id)
        return queue

    def overflow(self, queue: ConsumeQueue) -> None:
        """Write out a queue whose memory is full. The record is in the log already, so this cannot refuse it."""
        try:
            queue.write_out()
        except StoreError as error:
            if self.on_trouble is not None:
                self.on_trouble(error)

    # --- Derived ------------------------------------------------------------------------------------------------

    def fold(self, fact: Fact) -> None:
        """Add the entry of a record read from the log, unless it is there already."""
        if not fact.is_queued or fact.topic in self.foreign:
            return
        try:
            queue = self.make(fact.topic, fact.queue_id)
        except RecordRefused as error:
            log.error("record left out", extra={"log_offset": fact.log_offset, "reason": str(error)})
            return
        if fact.log_offset < queue.log_end:
            return
        gap = fact.queue_offset - queue.next_offset
        if gap and not self._close_gap(queue, fact, gap):
            return
        queue.add(fact)

    def _close_gap(self, queue: ConsumeQueue, fact: Fact, gap: int) -> bool:
        """Make ``queue`` continue with the record's queue offset; False if the record cannot belong to it."""
        if queue.min_offset == queue.next_offset or fact.queue_offset == 0:
            # The first that is left of the queue, or the first since its topic was deleted and made again.
            queue.begin_at(fact.queue_offset)
            return True
        extra = {"topic": queue.topic, "queue_id": queue.queue_id, "log_offset": fact.log_offset, "gap": gap}
        if 0 < gap <= self.file_bytes // ENTRY_BYTES:
            log.warning("queue offsets left out", extra=extra)
            queue.fill_to(fact.queue_offset)
            return True
        log.error("record left out: its queue offset does not follow", extra=extra)
        return False

    def cut(self, log_offset: int, *, distrust: bool = False) -> None:
        """Forget what came from ``log_offset`` on; with ``distrust`` also what may lie behind a queue's visible end.

        After a power cut, a page that was never written may hide entries behind it from ``load``, and so may a file.
        """
        if distrust and self.exts is not None:
            self.exts.remove_strays()
        for queue in self:
            if distrust:
                queue.remove_strays()
            if distrust or queue.log_end > log_offset:
                queue.cut(log_offset)

    def resume(self, log_offset: int) -> None:
        """Go on where a killed process stopped; what it made of records before ``log_offset`` is synced."""
        if self.exts is not None:
            self.exts.remove_strays()
        for queue in self:
            queue.remove_strays()
            queue.resume(log_offset)

    def write_out(self, count_max: int) -> bool:
        """Write out the entries of at most ``count_max`` queues; True if that was all. Raises ``DiskFull``."""
        for queue in list(islice(self.dirty, count_max)):
            queue.write_out()
        return not self.dirty

    def take_unsynced(self, bytes_min: int) -> list[Path]:
        """Files to sync, of queues to which at least so many bytes were written."""
        queues = [queue for queue in self.unsynced if queue.unsynced_bytes >= bytes_min]
        for queue in queues:
            del self.unsynced[queue]
        return [path for queue in queues for path in queue.take_unsynced()]

    # --- Life -----------------------------------------------------------------------------------------------------

    def load(self, *, lenient: bool = False, on_corrupt: Callable[[CorruptFile], None] | None = None) -> None:
        """Find all queues; changes nothing. Raises ``CorruptFile``, or tells ``on_corrupt`` and leaves that queue out.

        ``lenient``: what a power cut left of files that were not synced is no reason to refuse; a cut follows.
        """
        if self.exts is not None:
            self.exts.load(lenient=lenient)
        batches = self.disk.list(self.directory.with_name("batchconsumequeue"))
        self.foreign = frozenset(topic for topic, _, is_directory in batches if is_directory)
        for topic, _, is_directory in self.disk.list(self.directory):
            if not is_directory or topic in self.foreign:
                continue
            self.has_light = self.has_light or topic.startswith(LIGHT_PREFIX)
            for name, _, is_queue in self.disk.list(self.directory / topic):
                # RocketMQ skips what is no number, and so do we.
                if is_queue and name.isascii() and name.isdigit():
                    try:
                        self.make(topic, int(name)).load(lenient=lenient)
                    except CorruptFile as error:
                        if on_corrupt is None:
                            raise
                        del self.table[topic, int(name)]
                        on_corrupt(error)

    def raise_min(self, log_min_offset: int) -> None:
        for queue in self:
            queue.raise_min(log_min_offset)

    def remove_queue(self, queue: ConsumeQueue) -> None:
        """Remove one queue; the others of its topic stay."""
        queue.remove()
        del self.table[queue.topic, queue.queue_id]
        self.files.remove(queue.directory)
        if not any(topic == queue.topic for topic, _ in self.table):
            self.remove_topics([queue.topic])

    def remove_topics(self, topics: Iterable[str]) -> None:
        """Remove the queues of these topics. Their records stay in the log until it forgets them."""
        gone = {topic for topic in topics if _is_storable(topic, 0)}
        for key, queue in list(self.table.items()):
            if key[0] in gone:
                queue.remove()
                del self.table[key]
        for topic in sorted(gone):
            self.files.remove(self.directory / topic)
        if self.exts is not None:
            self.exts.remove_topics(gone)

    def close(self) -> None:
        """Write everything out, sync it and close the files."""
        self.write_out(len(self.dirty))
        for path in self.take_unsynced(0):
            self.disk.sync_file(path)
        for directory in self.files.take_unsynced_names():
            self.disk.sync_names(directory)
        self.files.close()


def _is_storable(topic: str, queue_id: int) -> bool:
    """Whether a topic can be a directory's name: also what a stranger sends must stay inside the store."""
    if topic in ("", ".", "..") or "/" in topic or "\0" in topic or queue_id < 0:
        return False
    return len(topic.encode("utf-8", "replace")) <= TOPIC_BYTES_MAX
