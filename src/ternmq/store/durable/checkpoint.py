"""``checkpoint`` and ``abort``: what is on the disk for certain, and whether the last stop was clean (C7).

``checkpoint`` has 4096 bytes; five 8-byte values of RocketMQ, three of our own, the rest zero::

     0  store time of the last record that is flushed         24  master's flushed offset  } RocketMQ 5's,
     8  store time up to which queues and index are flushed   32  confirmed offset         } kept as found
    16  store time up to which full index files are flushed

    40  8  log offset up to which the log is flushed          56  4  CRC-32 of the 16 bytes before
    48  8  log offset up to which queues and index are

All are true when they are written: first the files, then the time. (RocketMQ sets the second at dispatch, before
the queue is flushed, and subtracts 3 s when it reads it.) Times are those of a clock that may be set back, and then a
record that is on no disk looks older than what is vouched for. Offsets only grow, so both must agree. RocketMQ keeps
ours as they are: after it has run here they are too small, which costs time and no data.

``abort`` exists while a store is open; a start that finds it knows that the last process died. It names the boot of the
machine: after the same one the page cache has lost nothing.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from zlib import crc32

from ternmq.store.disk.base import Disk

CHECKPOINT_BYTES: Final = 4096
_VALUES: Final = struct.Struct(">qqqqq")
_OFFSETS: Final = struct.Struct(">qq")
_CRC: Final = struct.Struct(">I")
_CRC_AT: Final = _VALUES.size + _OFFSETS.size


@dataclass(slots=True)
class Checkpoint:
    """The values of the file."""

    log_time_ms: int = 0
    queue_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0
    #: Log offset up to which the log, and all that is derived from it, is on the disk; None: only the times are known.
    log_offset: int | None = None
    derived_offset: int | None = None

    @classmethod
    def load(cls, disk: Disk, path: Path) -> Checkpoint:
        """The file's values; all 0, «trust nothing», without a file or with one cut short."""
        data = disk.read(path) or b""
        if len(data) < _VALUES.size:
            return cls()
        found = cls(*_VALUES.unpack_from(data))
        offsets, crc = data[_VALUES.size : _CRC_AT], data[_CRC_AT : _CRC_AT + _CRC.size]
        if crc == _CRC.pack(crc32(offsets)):
            found.log_offset, found.derived_offset = _OFFSETS.unpack(offsets)
        return found

    def pack(self) -> bytes:
        """The file's content."""
        data = _VALUES.pack(
            self.log_time_ms,
            self.queue_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
        )
        if self.log_offset is not None and self.derived_offset is not None:
            offsets = _OFFSETS.pack(self.log_offset, self.derived_offset)
            data += offsets + _CRC.pack(crc32(offsets))
        return data.ljust(CHECKPOINT_BYTES, b"\0")

    def take_back(self, log_offset: int, store_time_ms: int) -> None:
        """Vouch for nothing from ``log_offset`` on, where a record of that time stands: queues and index are about to
        be cut there, and what is folded again is not on the disk for a while."""
        self.queue_time_ms = min(self.queue_time_ms, store_time_ms)
        self.index_time_ms = min(self.index_time_ms, store_time_ms)
        self.log_offset = self.derived_offset = log_offset

    def cut(self, log_end: int) -> None:
        """Vouch for nothing behind the log's end, where other records will stand."""
        if self.log_offset is not None and self.derived_offset is not None:
            self.log_offset, self.derived_offset = min(self.log_offset, log_end), min(self.derived_offset, log_end)

    @property
    def trusted_time_ms(self) -> int:
        """Records stored before this are on disk, and so is all that is derived from them."""
        return min(self.log_time_ms, self.queue_time_ms)

    @property
    def trusted_offset(self) -> int | None:
        """The same as a log offset; None if it is not known."""
        if self.log_offset is None or self.derived_offset is None:
            return None
        return min(self.log_offset, self.derived_offset)
