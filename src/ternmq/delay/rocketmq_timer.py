"""What RocketMQ's timer notes about a directory, and what we leave for it (I2): ``config/timercheck``.

4096 bytes, of which RocketMQ 5 uses seven numbers of 8 bytes: the slot that it delivers next, how far its timer log is
flushed, the queue offset in the timer topic up to which it has taken messages in, the same of its master, and a
version. So what a RocketMQ has delivered is: slot before the first number, queue offset before the third. It writes
nothing into the log that says so.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.store.disk.base import Disk

PATH: Final = Path("config") / "timercheck"
FILE_BYTES: Final = 4096
_NUMBERS: Final = struct.Struct(">qqqqqqq")


@dataclass(slots=True, frozen=True)
class Handover:
    """How far the messages of the timer topic are delivered, by the word of another owner of the directory."""

    #: Slots before this time are delivered …
    read_time_ms: int = 0
    #: … of messages before this queue offset of the timer topic.
    queue_offset: int = 0
    #: Whether a RocketMQ has written it, since we had the directory.
    is_foreign: bool = False

    def has_delivered(self, slot_ms: int, queue_offset: int) -> bool:
        return self.is_foreign and slot_ms < self.read_time_ms and queue_offset < self.queue_offset


def read_handover(disk: Disk, root: Path, ours: tuple[int, int] | None) -> Handover:
    """What ``timercheck`` tells; ``ours`` is what we have last written into it."""
    data = disk.read(root / PATH)
    if data is None or len(data) < _NUMBERS.size:
        return Handover()
    read_time_ms, _, queue_offset, *_ = _NUMBERS.unpack_from(data)
    return Handover(read_time_ms, queue_offset, is_foreign=(read_time_ms, queue_offset) != ours)
