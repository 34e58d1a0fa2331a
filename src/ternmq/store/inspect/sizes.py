"""How large a store's files are, read off the files themselves (C11).

A broker knows the sizes from its settings. A tool is often given nothing but a directory, so it looks:

- segments and queue files: the length that most of them have. One that differs is damaged, and is named as such;
- index files: their length is 40 + 4 · slots + 20 · entries, one equation for two unknowns. RocketMQ's defaults are
  tried, then the same ratio of 1 to 4. If the file's entries do not fit to that, the last of them is looked for:
  its log offset stands in the header, its number too, and from where it lies the number of slots follows.

Settings that were given are taken as they are. Without any file the defaults of ``StoreConfig`` stand; but what nothing
shows of an index stays unknown, since a broker would not read one that is made with the wrong numbers.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import CorruptFile
from ternmq.store.config import StoreConfig, parse_delay_levels
from ternmq.store.disk.base import Disk, FileEntry, Segment
from ternmq.store.log.place import LogPlace, find_log
from ternmq.wire.layouts.index_file import (
    INDEX_ENTRY,
    INDEX_ENTRY_BYTES,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    INDEX_SLOT,
    INDEX_SLOT_BYTES,
    index_entries_at,
    index_file_bytes,
)
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES

#: Entries to one slot in RocketMQ's defaults, which smaller sizes usually keep.
_ENTRIES_PER_SLOT: Final = 4
_LONG: Final = struct.Struct(">q")
#: Entries that must fit before a guess is believed.
_TRIED_MAX: Final = 64
#: Bytes that are searched at a time.
_SEARCH_BYTES: Final = 4 << 20
_DEFAULTS: Final = StoreConfig()


@dataclass(slots=True, frozen=True, kw_only=True)
class InspectConfig:
    """What a tool may be told of a store. None: look at the files."""

    #: Where the log is, if not below the root, as in ``StoreConfig``.
    store_path_commit_log: tuple[Path, ...] = ()
    read_only_commit_log_store_paths: tuple[Path, ...] = ()
    #: Bytes of a segment, of a queue file and of a file beside the queues.
    mapped_file_size_commit_log: int | None = None
    mapped_file_size_consume_queue: int | None = None
    mapped_file_size_consume_queue_ext: int | None = None
    #: Slots and entries of an index file.
    max_hash_slot_num: int | None = None
    max_index_num: int | None = None
    #: What delayed messages waited for: their queue entries hold the time at which they are due.
    message_delay_level: str = _DEFAULTS.message_delay_level

    def __post_init__(self) -> None:
        parse_delay_levels(self.message_delay_level)

    def log_place(self, disk: Disk, root: Path) -> LogPlace:
        """Where the log is. Raises ``StoreError``."""
        return find_log(
            disk, root, directories=self.store_path_commit_log, read_only=self.read_only_commit_log_store_paths
        )


@dataclass(slots=True, frozen=True)
class Sizes:
    """Sizes of a store's files, in bytes but for the numbers of slots and entries."""

    segment: int
    queue_file: int
    ext_file: int
    index_file: int
    #: None if that is not known: there are no entries that would show it.
    index_slots: int | None
    index_entries: int | None
    #: No setting gives the size of queue files and no file shows it: ``queue_file`` is the default.
    is_queue_file_assumed: bool = False


def find_sizes(disk: Disk, root: Path, config: InspectConfig) -> Sizes:
    """Look at the files below ``root``. Raises ``CorruptFile`` for an index of which the sizes cannot be told."""
    logs = [entry for directory in config.log_place(disk, root).paths.all for entry in disk.list(directory)]
    segment = config.mapped_file_size_commit_log or usual_length(logs) or _DEFAULTS.mapped_file_size_commit_log
    known_queue_file = config.mapped_file_size_consume_queue or usual_length(
        _files_of_queues(disk, root / "consumequeue")
    )
    queue_file = _whole_entries(known_queue_file or _DEFAULTS.mapped_file_size_consume_queue)
    is_assumed = known_queue_file is None
    ext_file = (
        config.mapped_file_size_consume_queue_ext
        or usual_length(_files_of_queues(disk, root / "consumequeue_ext"))
        or _DEFAULTS.mapped_file_size_consume_queue_ext
    )
    index_file, numbers = _index_sizes(disk, root / "index", config)
    if numbers is None and not index_file and segment == _DEFAULTS.mapped_file_size_commit_log:
        # An operator who has not changed the one has hardly changed the other.
        numbers = _DEFAULTS.max_hash_slot_num, _DEFAULTS.max_index_num
    if numbers is None:
        return Sizes(segment, queue_file, ext_file, index_file, None, None, is_assumed)
    return Sizes(segment, queue_file, ext_file, index_file_bytes(*numbers), *numbers, is_assumed)


def _whole_entries(queue_file_bytes: int) -> int:
    return -(-queue_file_bytes // ENTRY_BYTES) * ENTRY_BYTES


def usual_length(files: Iterable[FileEntry]) -> int | None:
    """The length that most files have; of equally many the smaller number of bytes would be a file cut short."""
    lengths = Counter(entry.length_bytes for entry in files if not entry.is_directory and entry.length_bytes)
    return max(lengths, key=lambda length: (lengths[length], length), default=None)


def _files_of_queues(disk: Disk, directory: Path) -> Iterable[FileEntry]:
    for topic, _, is_directory in disk.list(directory):
        for queue, _, is_queue in disk.list(directory / topic) if is_directory else ():
            yield from disk.list(directory / topic / queue) if is_queue else ()


# --- The index ----------------------------------------------------------------------------------------------------


def _index_sizes(disk: Disk, directory: Path, config: InspectConfig) -> tuple[int, tuple[int, int] | None]:
    """Length of the index's files, 0 without any; slots and entries, None if nothing shows them."""
    files = [entry for entry in disk.list(directory) if entry.name.isdigit() and not entry.is_directory]
    length_bytes = usual_length(files) or 0
    if config.max_hash_slot_num and config.max_index_num:
        return length_bytes, (config.max_hash_slot_num, config.max_index_num)
    # The newest one of this length that has entries tells most.
    for entry in reversed([entry for entry in files if entry.length_bytes == length_bytes]):
        segment = disk.open_segment(directory / entry.name, size=length_bytes, writable=False)
        if INDEX_HEADER.unpack_from(segment.page)[5] > 1:
            found = _sizes_by_content(segment)
            if found is None:
                path = directory / entry.name
                raise CorruptFile(
                    f"the entries of {path} do not show how many slots it has; give both numbers with --set "
                    "maxHashSlotNum=… --set maxIndexNum=…, or move the file away: the index is built again",
                    path=str(path),
                )
            return length_bytes, found
    return length_bytes, _by_ratio(length_bytes)


def _by_ratio(length_bytes: int) -> tuple[int, int] | None:
    slots, rest = divmod(length_bytes - INDEX_HEADER_BYTES, INDEX_SLOT_BYTES + _ENTRIES_PER_SLOT * INDEX_ENTRY_BYTES)
    return (slots, slots * _ENTRIES_PER_SLOT) if slots and not rest else None


def _sizes_by_content(segment: Segment) -> tuple[int, int] | None:
    usual = _by_ratio(segment.size)
    if usual is not None and _fits(segment, usual[0]):
        return usual
    _, _, _, end_offset, _, count = INDEX_HEADER.unpack_from(segment.page)
    before_bytes = INDEX_HEADER_BYTES + INDEX_ENTRY_BYTES * (count - 1) + 4
    wanted = _LONG.pack(end_offset)
    for at in range(before_bytes, segment.size, _SEARCH_BYTES):
        piece = bytes(segment.page[at : at + _SEARCH_BYTES + 7])
        found = piece.find(wanted)
        while found >= 0:
            slots, rest = divmod(at + found - before_bytes, INDEX_SLOT_BYTES)
            entries = (segment.size - INDEX_HEADER_BYTES - slots * INDEX_SLOT_BYTES) / INDEX_ENTRY_BYTES
            if slots and not rest and entries == int(entries) and _fits(segment, slots):
                return slots, int(entries)
            found = piece.find(wanted, found + 1)
    return None


def _fits(segment: Segment, slots: int) -> bool:
    """Whether the file makes sense with so many slots: log offsets rise, and slots lead to entries of their own."""
    page = segment.page
    begin_offset, count = INDEX_HEADER.unpack_from(page)[2], INDEX_HEADER.unpack_from(page)[5]
    entries_at = index_entries_at(slots)
    if entries_at + count * INDEX_ENTRY_BYTES > segment.size:
        return False
    last = begin_offset
    for number in range(1, min(count, _TRIED_MAX)):
        key_hash, log_offset, _, previous = INDEX_ENTRY.unpack_from(page, entries_at + number * INDEX_ENTRY_BYTES)
        if key_hash < 0 or log_offset < last or not 0 <= previous < number:
            return False
        (newest,) = INDEX_SLOT.unpack_from(page, INDEX_HEADER_BYTES + key_hash % slots * INDEX_SLOT_BYTES)
        if not number <= newest < count:
            return False
        newest_hash = INDEX_ENTRY.unpack_from(page, entries_at + newest * INDEX_ENTRY_BYTES)[0]
        if newest_hash % slots != key_hash % slots:
            return False
        last = log_offset
    return True
