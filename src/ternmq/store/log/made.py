"""Records that a compiled kernel packs into the log's window by itself (C1, C5): the room for them, and what it made.

The kernel packs whole records, one behind the other, and makes what is derived from them: queue entries, index entries
and closing marks. ``RecordWriter.put_made`` seals and dispatches them in one piece.

Sends of one read that become records of a queue other than their own (``RunWriter.put_packed``) have ``PackedRun``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple, TypeAlias

from ternmq.store.derived.queue import ConsumeQueue
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.record import FIXED_V4_BYTES, Page

_INT: Final = struct.Struct(">i")


class PackingRoom(NamedTuple):
    """Where records may be packed, and what they need to know."""

    page: Page
    #: Between these positions of the page.
    at: int
    end: int
    #: Of the first record.
    log_offset: int
    store_time_ms: int
    store_host: bytes
    #: A record of this size breaks no limit, whatever it is made of.
    record_bytes_max: int
    #: By topic and queue id.
    table: dict[tuple[str, int], ConsumeQueue]


class Made(NamedTuple):
    """Records that stand in the room."""

    record_count: int
    #: Log offset behind the last one.
    end_offset: int
    #: For each queue its new entries, the log offset behind the last of them, and each of their tags codes once.
    runs: list[tuple[ConsumeQueue, bytes, int, list[int]]]
    #: Index entries.
    keys: bytes
    #: 16 bytes for each record: its log offset, and that of the record that it closes.
    marks: bytes

    def bodies(self, room: PackingRoom) -> Iterator[tuple[str, int, int]]:
        """What was packed into ``room``: topics, the number of their messages, and the bytes of their bodies.

        Kernels pack records of IPv4 hosts only.
        """
        length_at = room.at - room.log_offset + FIXED_V4_BYTES - _INT.size
        length = _INT.unpack_from
        for queue, entries, _, _ in self.runs:
            lengths = [length(room.page, log_offset + length_at)[0] for log_offset, _, _ in ENTRY.iter_unpack(entries)]
            yield queue.topic, len(lengths), sum(lengths)


#: Packs records into a room; None if it packed none.
Maker: TypeAlias = Callable[[PackingRoom], Made | None]
