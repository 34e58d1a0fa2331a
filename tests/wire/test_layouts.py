"""Each layout stands once: fields by name and ``struct`` formats tell the same (C1, C2, C4, P2)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.wire.layouts.index_file import INDEX_ENTRY_BYTES, INDEX_ENTRY_FIELDS, index_entries_at, index_file_bytes
from ternmq.wire.layouts.queue_entry import ENTRY, ENTRY_BYTES, ENTRY_FIELDS, TAGS_AT
from ternmq.wire.layouts.raft_entry import (
    ENTRY_HEADER_BYTES,
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    EntryPlace,
    is_record_whole,
    pack_entry_header,
    pack_index_unit,
    unpack_entry_header,
    unpack_index_unit,
)
from ternmq.wire.layouts.raft_state import Saved, Vote, pack_saved, pack_vote, unpack_saved, unpack_vote
from ternmq.wire.layouts.segment_form import PLAIN_FORM, RAFT_FORM
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


# --- A Raft member --------------------------------------------------------------------------------------------------

numbers = st.integers(0, (1 << 63) - 1)


#: No entry is smaller than a header and the smallest record, and all before it have their places before it.
places = numbers.flatmap(lambda position: st.tuples(st.integers(0, position // (48 + 91)), st.just(position)))


@given(at=places, term=st.integers(0, (1 << 62) - 1), record=st.binary(min_size=1, max_size=40), data=st.data())
def test_an_entry_header_says_what_was_packed_or_nothing(
    at: tuple[int, int], term: int, record: bytes, data: st.DataObject
) -> None:
    """P2: DLedger's fields at DLedger's places; no flipped bit, in header or record, goes unnoticed."""
    index, position = at
    header = pack_entry_header(index, term, position, record)
    place = EntryPlace(index, term, position, 48 + len(record))
    assert (ENTRY_HEADER_BYTES, place) == (len(header), unpack_entry_header(header))
    fields = [header[at : at + length].hex() for at, length in ((0, 4), (4, 4), (8, 8), (16, 8), (24, 8), (44, 4))]
    expected = ((1, 4), (48 + len(record), 4), (index, 8), (term, 8), (position, 8), (len(record), 4))
    assert [value.to_bytes(length, "big").hex() for value, length in expected] == fields
    assert is_record_whole(header + record)
    entry = bytearray(header + record)
    bit = data.draw(st.integers(0, len(entry) * 8 - 1))
    entry[bit // 8] ^= 1 << bit % 8
    assert unpack_entry_header(entry) is None or not is_record_whole(entry) or not any(entry[36:40])
    # DLedger has no CRCs; what it wrote is read all the same.
    theirs = header[:36] + bytes(8) + header[44:]
    assert (place, True) == (unpack_entry_header(theirs), is_record_whole(theirs + record))


@pytest.mark.parametrize(
    ("index", "term", "position"),
    [(9, 1, 9 * 139 - 1), ((1 << 63) - 1, 1, (1 << 63) - 1), (0, (1 << 63) - 1, 0), (0, 1 << 62, 0), (0, 1, -1)],
)
def test_numbers_that_no_entry_has_are_damage(index: int, term: int, position: int) -> None:
    """P2: also without a CRC, as DLedger writes them."""
    header = pack_entry_header(index, term, position, b"record")
    assert unpack_entry_header(header) is None
    assert unpack_entry_header(header[:36] + bytes(8) + header[44:]) is None


@given(index=numbers, term=numbers, position=numbers, size=st.integers(49, (1 << 31) - 1))
def test_a_unit_of_the_index_has_dledger_s_fields(index: int, term: int, position: int, size: int) -> None:
    """P2: 32 bytes; a file has 5,242,880 of them."""
    place = EntryPlace(index, term, position, size)
    unit = pack_index_unit(place)
    assert (INDEX_UNIT_BYTES, place) == (len(unit), unpack_index_unit(unit))
    assert (position, size, index, term) == tuple(
        int.from_bytes(unit[at : at + length], "big") for at, length in ((4, 8), (12, 4), (16, 8), (24, 8))
    )
    assert unpack_index_unit(bytes(32)) is None
    assert 167_772_160 == INDEX_FILE_BYTES


def test_each_form_of_a_segment_knows_its_own_blank() -> None:
    """P2: DLedger's has its mark where RocketMQ's has the space left."""
    for form, other, text in ((PLAIN_FORM, RAFT_FORM, "00000064cbd43194"), (RAFT_FORM, PLAIN_FORM, "ffffffff00000064")):
        page = bytearray(120)
        form.pack_blank(page, 20, 100)
        assert text == page[20:28].hex()
        assert (True, False, 100) == (form.is_blank(page, 20), other.is_blank(page, 20), form.blank_bytes(page, 20))
        mark, at = form.blank_mark
        assert mark == page[20 + at : 24 + at]
        assert not form.is_blank(bytes(8))


@given(term=numbers, voted_for=st.sampled_from([None, "n0", "n17"]), saved=st.builds(Saved, *[st.integers(-1)] * 5))
def test_term_vote_and_commit_index_are_read_as_they_were_written(
    term: int, voted_for: str | None, saved: Saved
) -> None:
    """P1, P2: in the form of Java's ``Properties``."""
    assert Vote(term, voted_for) == unpack_vote(pack_vote(Vote(term, voted_for)))
    assert saved == unpack_saved(pack_saved(saved))


@given(st.binary(max_size=60))
def test_any_bytes_in_place_of_these_files_do_no_harm(data: bytes) -> None:
    """P1: a vote is whole or there is none."""
    unpack_saved(data)
    vote = unpack_vote(data)
    assert vote is None or vote.term >= 0
