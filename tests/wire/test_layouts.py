"""Each layout stands once: fields by name and ``struct`` formats tell the same (C1, C2, C4)."""

from __future__ import annotations

from ternmq.wire.layouts.index_file import INDEX_ENTRY_BYTES, INDEX_ENTRY_FIELDS, index_entries_at, index_file_bytes
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES, ENTRY_FIELDS, TAGS_AT
from ternmq.wire.record import FIELDS_V4, FIXED_V4_BYTES, HEAD_BYTES, field_at, unpack_checked_v4, unpack_place


def test_the_fields_of_a_record_are_where_its_structs_have_them() -> None:
    """C1: a record whose bytes are their own positions."""
    page = bytes(range(FIXED_V4_BYTES))

    def number(name: str) -> int:
        return int.from_bytes(page[field_at(name) :][: dict(FIELDS_V4)[name]], "big")

    assert FIXED_V4_BYTES == sum(length_bytes for _, length_bytes in FIELDS_V4)
    names = "size magic body_crc queue_id queue_offset log_offset sysflag store_time prepared_offset body_bytes"
    assert tuple(map(number, names.split())) == unpack_checked_v4(page)
    assert (number("size"), number("queue_offset")) == unpack_place(page)
    assert HEAD_BYTES == field_at("store_time") + 12 + 8


def test_the_fields_of_entries_are_where_their_structs_have_them() -> None:
    """C2, C4: the sums, and where a queue entry has its tags code."""
    assert ENTRY_BYTES == sum(length_bytes for _, length_bytes in ENTRY_FIELDS) == 20
    assert INDEX_ENTRY_BYTES == sum(length_bytes for _, length_bytes in INDEX_ENTRY_FIELDS) == 20
    assert (0, 0, 1 << 56) == ENTRY.unpack(bytes(TAGS_AT) + b"\1" + bytes(7))
    assert 40 + 4 * 7 == index_entries_at(7)
    assert 40 + 4 * 7 + 20 * 10 == index_file_bytes(7, 10)
