"""A derived part such as the schedule log of delayed messages will be, as far as the store can tell (issue 14).

It folds the records of some topics, and of any topic those that close one of them. Its files are a row of *events*, 32
bytes each with a CRC, and a small file with the log offset of the last ``synced``, which lags one flush pass behind.
Only the valid beginning of the row counts: what follows it is zero on the disk before something else is written there.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final
from zlib import crc32

from ternmq.store.derived.fact import Fact
from ternmq.store.derived.parts import Closings
from ternmq.store.disk.base import Disk
from ternmq.wire.record import unpack_record

#: Log offset and size of the record, log offset of the record that it closes or -1, CRC of its body or -1 if the record
#: does not belong to our topics; CRC of these. One event for each record: half of what it says must not be found.
_FIELDS: Final = struct.Struct(">qiqq")
_CRC: Final = struct.Struct(">I")
EVENT_BYTES: Final = _FIELDS.size + _CRC.size
_FILE_BYTES: Final = 4096 * EVENT_BYTES
#: Events in memory before they are written to the file.
_MEMORY_MAX: Final = 6
_OFFSET: Final = struct.Struct(">q")
_MARK: Final = struct.Struct(">qq")

#: Log offset, size, closed log offset or -1, CRC of the body or -1.
Event = tuple[int, int, int, int]


class WaitingPart:
    """Implements ``ternmq.store.derived.parts.Derived``."""

    def __init__(self, disk: Disk, directory: Path, topics: Collection[str]) -> None:
        self.directory = directory
        self.topics = topics
        self._disk = disk
        self._events_path = directory / "events"
        self._complete_path = directory / "complete"
        #: All events, and how many of them are in the file.
        self.events: list[Event] = []
        self._written = 0
        self._is_tail_clean = True
        #: What the small file has, and what it is to have.
        self._noted = 0
        self._to_note = 0
        #: Log offset up to which the part's files are on the disk.
        self.on_disk = 0

    @property
    def content(self) -> dict[int, tuple[int, int, int]]:
        """By log offset: size, CRC of the body, and the log offset of the record that closed it or 0."""
        found: dict[int, tuple[int, int, int]] = {}
        for log_offset, size, closed, crc in self.events:
            if crc >= 0:
                found[log_offset] = (size, crc, 0)
            if closed in found:
                found[closed] = (*found[closed][:2], log_offset)
        return found

    # --- Derived ------------------------------------------------------------------------------------------------

    def load(self) -> int:
        data = self._disk.read(self._events_path) or b""
        self.events = []
        for at in range(0, len(data), EVENT_BYTES):
            fields = data[at : at + _FIELDS.size]
            if _CRC.pack(crc32(fields)) != data[at + _FIELDS.size : at + EVENT_BYTES]:
                break
            self.events.append(_FIELDS.unpack(fields))
        noted = self._disk.read(self._complete_path)
        self._noted = self._to_note = _OFFSET.unpack(noted)[0] if noted is not None else 0
        end = self.events[-1][0] + self.events[-1][1] if self.events else 0
        self.on_disk = max(end, self._noted)
        self._written = len(self.events)
        self._is_tail_clean = not any(data[self._written * EVENT_BYTES :])
        return self.on_disk

    def fold(self, fact: Fact, record: memoryview) -> None:
        found = unpack_record(record)
        assert (fact.log_offset, fact.topic) == (found.log_offset, found.topic)
        assert fact.topic in self.topics
        self._add((fact.log_offset, fact.size, -1, crc32(found.body)))

    def fold_closing(self, fact: Fact, closed: int) -> None:
        if self.events and self.events[-1][0] == fact.log_offset:
            self.events[-1] = (fact.log_offset, fact.size, closed, self.events[-1][3])
        else:
            self._add((fact.log_offset, fact.size, closed, -1))

    def fold_run(self, entries: bytes, data: memoryview, begin: int) -> int:
        return 0

    def fold_closings(self, closings: Closings) -> None:
        marks = list(_MARK.iter_unpack(closings.marks))
        ends = [*(closing for closing, _ in marks[1:]), closings.end_offset]
        for (closing, closed), end in zip(marks, ends, strict=True):
            self._add((closing, end - closing, closed, -1))

    def _add(self, event: Event) -> None:
        assert not self.events or self.events[-1][0] < event[0], "records come in log order, and once"
        self.events.append(event)
        if len(self.events) - self._written > _MEMORY_MAX:
            # Not the last one: its record may close another.
            self._write(len(self.events) - 1)

    def cut(self, log_offset: int) -> None:
        self.events = [event for event in self.events if event[0] < log_offset]
        self._written = len(self.events)
        self._is_tail_clean = False
        self._to_note = min(self._to_note, log_offset)

    def write_some(self) -> bool:
        return True

    def write_out(self) -> Sequence[Path]:
        if self._to_note != self._noted:
            self._disk.replace(self._complete_path, _OFFSET.pack(self._to_note))
            self._noted = self._to_note
        self._write(len(self.events))
        return [self._events_path] if self.events else []

    def synced(self, log_offset: int) -> None:
        self._to_note = self.on_disk = log_offset

    def files(self) -> Sequence[Path]:
        return [self._events_path, self._complete_path]

    def _write(self, count: int) -> None:
        if self._written == count and self._is_tail_clean:
            return
        file = self._disk.open_file(self._events_path, create_size=_FILE_BYTES)
        at = self._written * EVENT_BYTES
        if not self._is_tail_clean:
            file.zero_from(at)
            self._disk.sync_file(self._events_path)
            self._is_tail_clean = True
        file.write(at, b"".join(_pack(event) for event in self.events[self._written : count]))
        file.close()
        self._written = count


def _pack(event: Event) -> bytes:
    fields = _FIELDS.pack(*event)
    return fields + _CRC.pack(crc32(fields))
