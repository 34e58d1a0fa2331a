"""The files of a Raft log, in DLedger's layout (P2; replication.md C).

``data/`` holds entries, a header and one record each::

    4 magic (1)   4 size (48 + record)   8 index   8 term   8 position   4 channel (0)
    4 header CRC  4 record CRC           4 size of the record            record

The position is that of the header. The record's own log offset is 48 more. DLedger leaves the two CRCs at 0 and never
looks at them (it calls the first one the chain CRC). TernMQ's leaders fill them: a flipped bit in an index or a term
must not go unnoticed, and the CRC in a record covers its body only. The header's CRC is that of the 36 bytes before it;
that of the record begins with the header's, so that it covers both. 0 means that there is none; a CRC that is 0 is
written as 1.

A file that has no room for the next entry and 8 bytes more ends with a *blank*: ``int -1, int rest``, then zeros.

``index/`` has 32 bytes for each entry, that of index *i* at byte 32 · i of files of 167,772,160 bytes::

    4 magic   8 position   4 size (48 + record)   8 index   8 term
"""

from __future__ import annotations

import struct
from typing import Final
from zlib import crc32

import msgspec

from ternmq.types import Buffer
from ternmq.wire.record import RECORD_BYTES_MIN, Page

ENTRY_MAGIC: Final = 1
ENTRY_HEADER: Final = struct.Struct(">iiqqqiIIi")
ENTRY_HEADER_BYTES: Final = ENTRY_HEADER.size
#: A header, and the smallest record.
ENTRY_BYTES_MIN: Final = ENTRY_HEADER_BYTES + RECORD_BYTES_MIN
#: The header before its CRC, and the rest.
_BEFORE: Final = struct.Struct(">iiqqqi")
_BEFORE_BYTES: Final = _BEFORE.size
_REST: Final = struct.Struct(">IIi")

INDEX_UNIT: Final = struct.Struct(">iqiqq")
INDEX_UNIT_BYTES: Final = INDEX_UNIT.size
#: DLedger's default; no setting of RocketMQ's broker changes it.
INDEX_FILE_BYTES: Final = 5 * 1024 * 1024 * INDEX_UNIT_BYTES

#: No term is so large: others could follow it for ever.
TERM_END: Final = 1 << 62

#: First number of a blank (``MmapFileList.BLANK_MAGIC_CODE``), where an entry has its magic.
BLANK_MARK: Final = -1
_BLANK: Final = struct.Struct(">ii")


class EntryPlace(msgspec.Struct, frozen=True, gc=False):
    """What an entry's header, and its unit in the index, say."""

    index: int
    term: int
    position: int
    #: Header and record together.
    size: int

    @property
    def end(self) -> int:
        """Position behind the entry."""
        return self.position + self.size


def pack_entry_header(index: int, term: int, position: int, record: Buffer) -> bytes:
    """The 48 bytes in front of a record."""
    before = _BEFORE.pack(ENTRY_MAGIC, ENTRY_HEADER_BYTES + len(record), index, term, position, 0)
    crc = crc32(before) or 1
    return before + _REST.pack(crc, crc32(record, crc) or 1, len(record))


def unpack_entry_header(data: Buffer, at: int = 0) -> EntryPlace | None:
    """What a header says; None if there is none: wrong magic, lengths that do not fit, a wrong CRC, or numbers that no
    entry can have. DLedger's entries have no CRC: one flipped bit of an index would leave no room for the next, or a
    member would take itself for one that has all between."""
    magic, size, index, term, position, _, crc, _, record_bytes = ENTRY_HEADER.unpack_from(data, at)
    if magic != ENTRY_MAGIC or size != ENTRY_HEADER_BYTES + record_bytes or record_bytes <= 0:
        return None
    # All entries before it have their places before it.
    if not 0 <= index <= position // ENTRY_BYTES_MIN or not 0 <= term < TERM_END:
        return None
    if crc and (crc32(data[at : at + _BEFORE_BYTES]) or 1) != crc:
        return None
    return EntryPlace(index, term, position, size)


def is_record_whole(data: Buffer, at: int = 0) -> bool:
    """Whether the record of the entry ``at`` this place has the CRC that its header says; True if it says none."""
    _, size, _, _, _, _, crc, record_crc, _ = ENTRY_HEADER.unpack_from(data, at)
    return not record_crc or (crc32(data[at + ENTRY_HEADER_BYTES : at + size], crc) or 1) == record_crc


def pack_raft_blank(page: Page, at: int, space_left: int) -> None:
    """Mark the rest of a data file, ``space_left`` bytes from ``at`` on, as unused."""
    _BLANK.pack_into(page, at, BLANK_MARK, space_left)


def pack_index_unit(place: EntryPlace) -> bytes:
    """The 32 bytes of an entry in the index."""
    return INDEX_UNIT.pack(ENTRY_MAGIC, place.position, place.size, place.index, place.term)


def unpack_index_unit(data: Buffer, at: int = 0) -> EntryPlace | None:
    """What a unit of the index says; None if there is none."""
    magic, position, size, index, term = INDEX_UNIT.unpack_from(data, at)
    return EntryPlace(index, term, position, size) if magic == ENTRY_MAGIC else None
