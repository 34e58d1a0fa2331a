"""What RocketMQ's timer notes about a directory, and what we leave for it (I2, C11): ``config/timercheck``.

4096 bytes, of which RocketMQ 5 uses seven numbers of 8 bytes: the slot that it delivers next, how far its timer log is
flushed, the queue offset in the timer topic up to which it has taken messages in, the same of its master, and a
version. So what a RocketMQ has delivered is: slot before the first number, queue offset before the third. It writes
nothing into the log that says so.

When a broker stops, it leaves this file for a RocketMQ: everything before the end of the timer topic is taken in, so
RocketMQ delivers none of it, neither for a second time nor for the first; what waits here comes when the directory is
back. RocketMQ's own ``timerwheel`` and ``timerlog`` are removed when their messages are in the schedule log: RocketMQ
would read from the last unit of the log which messages it had taken in, and deliver all behind it again.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import RemoteProtocolError
from ternmq.store.disk.base import Disk

PATH: Final = Path("config") / "timercheck"
#: RocketMQ's own state of what waits.
WHEEL_FILES: Final = ("timerwheel", "timerlog")
FILE_BYTES: Final = 4096
_NUMBERS: Final = struct.Struct(">qqqqqqq")


@dataclass(slots=True, frozen=True)
class Handover:
    """Which messages of the timer topic a RocketMQ has delivered that had the directory."""

    #: Slots before this time …
    read_time_ms: int = 0
    #: … of messages from this queue offset of the timer topic on: those before were ours …
    begin: int = 0
    #: … and before this one.
    end: int = 0

    @property
    def is_foreign(self) -> bool:
        """Whether a RocketMQ had the directory since we did."""
        return self.end > 0

    def has_delivered(self, slot_ms: int, queue_offset: int) -> bool:
        return slot_ms < self.read_time_ms and self.begin <= queue_offset < self.end


def read_handover(disk: Disk, root: Path, ours: tuple[int, int] | None) -> Handover:
    """What ``timercheck`` tells; ``ours`` is what we have last written into it."""
    data = disk.read(root / PATH)
    if data is None or len(data) < _NUMBERS.size:
        return Handover()
    read_time_ms, _, queue_offset, *_ = _NUMBERS.unpack_from(data)
    if (read_time_ms, queue_offset) == ours:
        return Handover()
    return Handover(read_time_ms, ours[1] if ours is not None else 0, queue_offset)


def write_handover(disk: Disk, root: Path, read_time_ms: int, queue_offset: int) -> None:
    """Leave for a RocketMQ that slots before a time are delivered, and messages before an offset taken in."""
    disk.write(root / PATH, pack_check_point(read_time_ms, queue_offset).ljust(FILE_BYTES, b"\0"))


def pack_check_point(read_time_ms: int, queue_offset: int) -> bytes:
    """The seven numbers, as slaves of RocketMQ 5 ask for them (GET_TIMER_CHECK_POINT 60)."""
    return _NUMBERS.pack(read_time_ms, 0, queue_offset, queue_offset, 0, 0, 0)


def unpack_check_point(data: bytes) -> tuple[int, int]:
    """Read time and queue offset of a master of RocketMQ. Raises ``RemoteProtocolError``."""
    if len(data) < _NUMBERS.size:
        raise RemoteProtocolError(f"a timer check point of {len(data)} bytes; expected {_NUMBERS.size}")
    read_time_ms, _, queue_offset, *_ = _NUMBERS.unpack_from(data)
    return read_time_ms, queue_offset
