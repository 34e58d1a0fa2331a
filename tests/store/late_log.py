"""A log such as a Raft group will have, as far as the store can tell: 48 bytes in front of each record, records that
are confirmed some time after they were sealed, or are taken back. It proves the protocol ``store.log.protocol`` before
there is such a group (issue 14).

It is built on a plain log, by composition. The bytes in front of a record name its place and size, with a CRC, so a
lead that was lost with its page is noticed. How far records are confirmed is kept in a file of its own, which lags
behind, as the commit index of Raft does.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final
from zlib import crc32

from ternmq.errors import TernError
from ternmq.store.disk.base import Disk, Segment
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.plain_log import PlainLog
from ternmq.wire.layouts.segment_form import SegmentForm
from ternmq.wire.record import peek_head

LEAD_BYTES: Final = 48
_LEAD: Final = struct.Struct(">iiqq")
_CRC: Final = struct.Struct(">I20x")
_MAGIC: Final = 0x4C415445
_POSITION: Final = struct.Struct(">q")


def lead_of(log_offset: int, size: int) -> bytes:
    """The bytes in front of a record."""
    fields = _LEAD.pack(_MAGIC, size, log_offset, 1)
    return fields + _CRC.pack(crc32(fields))


class LateLog:
    """Implements ``ternmq.store.log.protocol.Log``."""

    confirms_at_once: Final = False
    lead: Final = LEAD_BYTES

    def __init__(self, disk: Disk, directories: LogPaths, *, segment_bytes: int, confirmed_path: Path) -> None:
        assert len(lead_of(0, 0)) == LEAD_BYTES
        self._disk = disk
        self._confirmed_path = confirmed_path
        plain = self._plain = PlainLog(disk, directories, segment_bytes=segment_bytes, form=SegmentForm(LEAD_BYTES))
        self.window = plain.window
        self.segment_bytes = segment_bytes
        self.directories = directories
        self.closed = plain.closed
        self.form_at = plain.form_at
        self.view = plain.view
        self.views = plain.views
        self.record = plain.record
        self.page_at = plain.page_at
        self.piece = plain.piece
        self.store_time = plain.store_time
        self.read = plain.read
        self.walk = plain.walk
        self.dirty = plain.dirty
        self.write_out = plain.write_out
        self.note_synced = plain.note_synced
        self.sync = plain.sync
        self.oldest = plain.oldest
        self.drop_first = plain.drop_first
        self.append_raw = plain.append_raw
        self.begin_at = plain.begin_at
        self.close = plain.close

    # --- Confirmation -----------------------------------------------------------------------------------------

    @property
    def known_confirmed(self) -> int:
        data = self._disk.read(self._confirmed_path)
        return int(_POSITION.unpack(data)[0]) if data is not None else 0

    def save_confirmed(self, position: int) -> None:
        """Remember, durably, how far records are confirmed."""
        self._disk.replace(self._confirmed_path, _POSITION.pack(position))

    # --- What differs from a plain log --------------------------------------------------------------------------

    def open_at(self, end: int, store_time_ms: int) -> None:
        if self.known_confirmed > end:
            # What a power cut took is not confirmed any more: other records will stand there.
            self.save_confirmed(end)
        self._plain.open_at(end, store_time_ms)

    def reserve(self, record_bytes: int, count: int = 1) -> None:
        """For one append, as a Raft log does: its entries get index and term one by one."""
        self._plain.reserve(record_bytes, count)
        self.window.limit = self.window.at + record_bytes + (count - 1) * LEAD_BYTES

    def seal(self, end: int, store_time_ms: int) -> None:
        page, base, at = self.window.page, self.window.base, self._plain.end
        while at < end:
            log_offset = at + LEAD_BYTES
            size, _ = peek_head(page, log_offset - base)
            page[at - base : log_offset - base] = lead_of(log_offset, size)
            at = log_offset + size
        assert at == end, "records were packed one behind the other"
        self._plain.seal(end, store_time_ms)

    def truncate(self, log_offset: int, store_time_ms: int) -> None:
        assert log_offset >= self.known_confirmed
        self._plain.truncate(log_offset, store_time_ms)

    def is_sealed(self, lead: bytes, log_offset: int, size: int, /) -> bool:
        return lead == lead_of(log_offset, size)

    def entry_before(self, position: int, /) -> tuple[int, int] | None:
        raise AssertionError("these are no entries of Raft")

    def note_checked(self, lead: bytes, /) -> None:
        raise AssertionError("these are no entries of Raft")

    # --- The same as of a plain log -----------------------------------------------------------------------------

    @property
    def begin(self) -> int:
        return self._plain.begin

    @property
    def end(self) -> int:
        return self._plain.end

    @property
    def store_time_ms(self) -> int:
        return self._plain.store_time_ms

    @property
    def starts(self) -> list[int]:
        return self._plain.starts

    def load(self) -> None:
        self._plain.load()

    def start_threads(self, let_go: Callable[[Segment], object]) -> None:
        self._plain.start_threads(let_go)

    def refuse(self, reason: TernError) -> None:
        self._plain.refuse(reason)
