"""What stands between the records of a log's segment: the bytes in front of each, and the blank at the end (C1, P2).

A plain segment has nothing in front of its records and ends with RocketMQ's blank. One of a Raft log has an entry
header of 48 bytes there and ends with DLedger's blank (``wire.layouts.raft_entry``). A log may have both kinds: plain
segments from the time before its broker joined a group, then the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.types import Buffer
from ternmq.wire.layouts.raft_entry import BLANK_MARK, ENTRY_HEADER_BYTES, pack_raft_blank, unpack_entry_header
from ternmq.wire.record import MAGIC_AT, MAGIC_BLANK, Page, pack_blank, peek_head


@dataclass(slots=True, frozen=True)
class SegmentForm:
    """The form of a segment."""

    #: Bytes in front of each record.
    lead: int = 0
    #: Whether those are entry headers, and the blank is DLedger's.
    is_raft: bool = False

    def is_blank(self, data: Buffer, at: int = 0) -> bool:
        """Whether a blank stands at this position; the data must have at least 8 bytes there."""
        first, second = peek_head(data, at)
        return first == BLANK_MARK if self.is_raft else second == MAGIC_BLANK

    @property
    def blank_mark(self) -> tuple[bytes, int]:
        """The bytes that mark a blank, and where in it they stand; its other 4 bytes are the space left."""
        return _RAFT_MARK if self.is_raft else _PLAIN_MARK

    def blank_bytes(self, data: Buffer, at: int = 0) -> int:
        """The space left that a blank tells."""
        first, second = peek_head(data, at)
        return second if self.is_raft else first

    def pack_blank(self, page: Page, at: int, space_left: int) -> None:
        """Mark the rest of a segment, ``space_left`` bytes from ``at`` on, as unused."""
        (pack_raft_blank if self.is_raft else pack_blank)(page, at, space_left)

    def is_lead(self, data: Buffer, log_offset: int, size: int) -> bool:
        """Whether ``data`` begins with what belongs in front of the record of ``size`` bytes at ``log_offset``."""
        if not self.is_raft:
            return True
        place = unpack_entry_header(data)
        return place is not None and place.position == log_offset - self.lead and place.size == size + self.lead


_PLAIN_MARK: Final = ((MAGIC_BLANK & 0xFFFFFFFF).to_bytes(4, "big"), MAGIC_AT)
_RAFT_MARK: Final = ((BLANK_MARK & 0xFFFFFFFF).to_bytes(4, "big"), 0)

PLAIN_FORM: Final = SegmentForm()
RAFT_FORM: Final = SegmentForm(ENTRY_HEADER_BYTES, is_raft=True)
