"""A file of the hash index (C4): a header, slots, and entries in chains::

     0   8  begin time    store time of the first entry      32  4  slots in use
     8   8  end time      … of the last                      36  4  number of the next entry, from 1 on
    16   8  begin offset  log offset of the first entry      40     slots of 4 bytes: the newest entry, or 0
    24   8  end offset    … of the last                             entries of 20 bytes; number 0 is unused

    entry:  4 hash   8 log offset   4 seconds since begin time   4 the slot's previous entry

``store.derived.index`` explains how a file is used.
"""

from __future__ import annotations

import struct
from typing import Final

INDEX_HEADER: Final = struct.Struct(">qqqqii")
INDEX_SLOT: Final = struct.Struct(">i")
INDEX_ENTRY: Final = struct.Struct(">iqii")
INDEX_HEADER_BYTES: Final = INDEX_HEADER.size
INDEX_SLOT_BYTES: Final = INDEX_SLOT.size
INDEX_ENTRY_BYTES: Final = INDEX_ENTRY.size
#: Name and bytes of each field of an entry, for reading whole columns.
INDEX_ENTRY_FIELDS: Final = (("hash", 4), ("log_offset", 8), ("seconds", 4), ("previous", 4))
#: The seconds of an entry are a signed number and never negative.
INDEX_SECONDS_MAX: Final = 0x7FFFFFFF


def index_entries_at(slots: int) -> int:
    """Where the entries begin in a file with this many slots."""
    return INDEX_HEADER_BYTES + INDEX_SLOT_BYTES * slots


def index_file_bytes(slots: int, entries: int) -> int:
    """Bytes of a file with this many slots and entries."""
    return index_entries_at(slots) + INDEX_ENTRY_BYTES * entries
