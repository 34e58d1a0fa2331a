"""Whole entries of another member, checked before any of them is taken into the log (P2, P3).

Each follows the one before: index, term and position, so that the data files of all members are equal byte for byte.
Each holds one whole record, by the CRCs of both.
"""

from __future__ import annotations

from typing import NamedTuple

from ternmq.errors import RemoteProtocolError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.raft.membership import MEMBERS_FLAG
from ternmq.raft.places import EntryStretch
from ternmq.types import Buffer
from ternmq.wire.layouts.raft_entry import (
    ENTRY_BYTES_MIN,
    ENTRY_HEADER_BYTES,
    EntryPlace,
    is_record_whole,
    pack_index_unit,
    unpack_entry_header,
)
from ternmq.wire.record import BLANK_BYTES, MAGIC_V1, MAGIC_V2, unpack_log_place


class CheckedEntries(NamedTuple):
    data: Buffer
    #: At least one.
    stretches: list[EntryStretch]
    #: Records among them that may name the members.
    named: list[tuple[EntryPlace, bytes]]


class BeginsElsewhere(RemoteProtocolError):
    """The group has an old log in front of its entries, and this member has not, or another one."""


def check_entries(data: Buffer, *, index: int, term: int, end: int, file_bytes: int) -> CheckedEntries:
    """Check entries that are to follow in a log that ends at ``end``, with data files of ``file_bytes``: the first one
    has ``index``, and ``term`` or a later one. Raises ``RemoteProtocolError``."""
    found: list[EntryStretch] = []
    named: list[tuple[EntryPlace, bytes]] = []
    at, length_bytes = 0, len(data)
    while at < length_bytes:
        if HAS_NATIVE:
            # What it leaves is looked at below, one entry; then it goes on.
            at, units = native.check_entries(
                data,
                at,
                index=index,
                term=term,
                position=end,
                file_bytes=file_bytes,
                members_flag=MEMBERS_FLAG,
            )
            if units:
                found.append(stretch := EntryStretch(units))
                end, index = stretch.last.end, stretch.last.index + 1
                continue
        place = unpack_entry_header(data, at) if at + ENTRY_HEADER_BYTES <= length_bytes else None
        if place is None or at + place.size > length_bytes:
            raise RemoteProtocolError(f"entry {index} of another member is cut short or has a damaged header")
        rest = -end % file_bytes
        # Where there is no room for it and a blank, it goes to the next data file.
        wanted = end if not rest or place.size + BLANK_BYTES <= rest else end + rest
        if place.index != index or place.position != wanted or place.term < term:
            raise _does_not_follow(place, index, term, wanted)
        record_at = at + ENTRY_HEADER_BYTES
        at += place.size
        size, magic, flag, log_offset = (
            unpack_log_place(data, record_at) if place.size > ENTRY_BYTES_MIN else (0, 0, 0, 0)
        )
        if (
            record_at + size != at
            or log_offset != wanted + ENTRY_HEADER_BYTES
            or (magic != MAGIC_V1 and magic != MAGIC_V2)
            or not is_record_whole(data, at - place.size)
        ):
            raise RemoteProtocolError(f"entry {index} of another member does not hold a whole record")
        if flag == MEMBERS_FLAG:
            named.append((place, bytes(memoryview(data)[record_at:at])))
        found.append(EntryStretch(pack_index_unit(place)))
        end, index, term = wanted + place.size, index + 1, place.term
    if not found:
        raise RemoteProtocolError("an append of another member has no entries")
    return CheckedEntries(data, found, named)


def _does_not_follow(place: EntryPlace, index: int, term: int, wanted: int) -> RemoteProtocolError:
    if place.index == index == 0 and place.position != wanted:
        return BeginsElsewhere(
            f"the entries of this group begin at log offset {place.position}, behind the messages that its first "
            f"member had as a single broker; this log ends at {wanted}"
        )
    return RemoteProtocolError(
        f"entry {place.index} of term {place.term} at {place.position} does not follow here: expected entry "
        f"{index} of term {term} or later at {wanted}"
    )
