"""The entry of a queue: 20 bytes that point to a record (C2)::

    8 log offset   4 size of the record   8 tags code (Java's hash of the TAGS text, sign-extended; 0 without tags)

The tags code may be replaced by the address of a unit that holds the code and more (``store.derived.queue_ext``).

A *filler*, (0, 0x7FFFFFFF, 0), marks a queue offset without a record: before the first one in a queue's first file,
as in RocketMQ, and where the log is damaged. RocketMQ skips it only if its log offset is 0.
"""

from __future__ import annotations

import struct
from typing import Final

ENTRY: Final = struct.Struct(">qiq")
ENTRY_BYTES: Final = ENTRY.size
#: Name and bytes of each field, for reading whole columns.
ENTRY_FIELDS: Final = (("log_offset", 8), ("size", 4), ("tags_code", 8))
#: Where the tags code of an entry begins, highest byte first.
TAGS_AT: Final = 12
FILLER_SIZE: Final = 0x7FFFFFFF
FILLER: Final = ENTRY.pack(0, FILLER_SIZE, 0)
