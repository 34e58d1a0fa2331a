"""``checkpoint`` and ``abort``: what is on the disk for certain, and whether the last stop was clean (C7).

``checkpoint`` has 4096 bytes; five 8-byte values, the rest zero::

     0  store time of the last record that is flushed         24  master's flushed offset  } RocketMQ 5's,
     8  store time up to which queues and index are flushed   32  confirmed offset         } kept as found
    16  store time up to which full index files are flushed

All are true when they are written: first the files, then the time. (RocketMQ sets the second at dispatch, before
the queue is flushed, and subtracts 3 s when it reads it.) ``abort`` exists while a store is open; who finds it at
start knows that the last process died.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.store.segment import Disk

CHECKPOINT_BYTES: Final = 4096
_VALUES: Final = struct.Struct(">qqqqq")


@dataclass(slots=True)
class Checkpoint:
    """The values of the file."""

    log_time_ms: int = 0
    queue_time_ms: int = 0
    index_time_ms: int = 0
    master_flushed_offset: int = 0
    confirmed_offset: int = 0

    @classmethod
    def load(cls, disk: Disk, path: Path) -> Checkpoint:
        """The file's values; all 0, «trust nothing», without a file or with one cut short."""
        data = disk.read(path) or b""
        return cls(*_VALUES.unpack_from(data)) if len(data) >= _VALUES.size else cls()

    def pack(self) -> bytes:
        """The file's content."""
        values = _VALUES.pack(
            self.log_time_ms,
            self.queue_time_ms,
            self.index_time_ms,
            self.master_flushed_offset,
            self.confirmed_offset,
        )
        return values.ljust(CHECKPOINT_BYTES, b"\0")

    @property
    def trusted_time_ms(self) -> int:
        """Records stored before this are on disk, and so is all that is derived from them."""
        return min(self.log_time_ms, self.queue_time_ms)
