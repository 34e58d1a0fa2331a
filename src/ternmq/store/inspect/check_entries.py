"""Whether the entries of a Raft log are numbered as they must be, and its index leads to them (P2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from ternmq.kernels import native
from ternmq.store.disk.segment import segment_name
from ternmq.store.inspect.faults import Fault, Tally, plural
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.raft_entry import (
    INDEX_FILE_BYTES,
    INDEX_UNIT_BYTES,
    EntryPlace,
    is_record_whole,
    pack_index_unit,
    unpack_entry_header,
    unpack_index_unit,
)
from ternmq.wire.record import Record

#: Units that are read together.
_UNITS: Final = 4096


class EntryCheck:
    """Is told of each whole record, in log order."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._last: EntryPlace | None = None
        self._disordered = Tally()
        self._changed = Tally()
        self._unindexed = Tally()
        #: Units of the index, and the number of the first.
        self._units = b""
        self._units_begin = 0

    def expect(self, record: Record) -> None:
        """A whole record."""
        form = self._view.log.form_at(record.log_offset)
        if not form.is_raft:
            return
        position = record.log_offset - form.lead
        data = self._view.log.view(position, form.lead + record.size)
        if data is not None:
            self._look(data, position)

    def expect_all(self, data: memoryview, position: int) -> None:
        """Entries that follow each other in one data file, each with the header of its record; the first is at
        ``position``. For compiled kernels."""
        at = 0
        while at < len(data):
            last, begin = self._last, position + at
            if last is not None and begin in self._behind(last):
                # What it leaves is looked at below, one entry; then it goes on.
                behind, units = native.check_entries(
                    data,
                    at,
                    index=last.index + 1,
                    term=last.term,
                    position=begin,
                    file_bytes=self._view.sizes.segment,
                    members_flag=-1,
                )
                if units:
                    self._check_units(last.index + 1, units)
                    self._last = unpack_index_unit(units, len(units) - INDEX_UNIT_BYTES)
                    at = behind
                    continue
            place = self._look(data[at:], begin)
            if place is None:
                # No entry, but then this was not called for it.
                return
            at += place.size

    def _behind(self, place: EntryPlace) -> tuple[int, int]:
        """Where the next entry may be."""
        return place.end, place.end + -place.end % self._view.sizes.segment

    def _look(self, data: memoryview, position: int) -> EntryPlace | None:
        """Look at the entry that ``data`` begins with; None if there is none."""
        last, place = self._last, unpack_entry_header(data)
        if place is None:
            return None
        if not is_record_whole(data):
            self._changed.add(position)
        follows = last is not None and position in self._behind(last)
        if last is not None and ((follows and place.index != last.index + 1) or place.term < last.term):
            self._disordered.add(position)
        self._check_units(place.index, pack_index_unit(place))
        self._last = place
        return place

    def _check_units(self, index: int, units: bytes) -> None:
        """Compare the units of entries from ``index`` on with those of the index."""
        while units:
            found = self._some_units(index, len(units))
            wanted = units[: max(len(found), INDEX_UNIT_BYTES)]
            if found != wanted:
                for at in range(0, len(wanted), INDEX_UNIT_BYTES):
                    if found[at : at + INDEX_UNIT_BYTES] != wanted[at : at + INDEX_UNIT_BYTES]:
                        self._unindexed.add(index + at // INDEX_UNIT_BYTES)
            index += len(wanted) // INDEX_UNIT_BYTES
            units = units[len(wanted) :]

    def _some_units(self, index: int, bytes_max: int) -> bytes:
        """Units of the index from this one on; at least one if there is one."""
        at = (index - self._units_begin) * INDEX_UNIT_BYTES
        if not 0 <= at < len(self._units):
            self._units, self._units_begin, at = self._read(index), index, 0
        return self._units[at : at + bytes_max]

    def _read(self, index: int) -> bytes:
        at = index * INDEX_UNIT_BYTES
        path = self._directory / segment_name(at - at % INDEX_FILE_BYTES)
        if not path.exists():
            return bytes(INDEX_UNIT_BYTES)
        data = self._view.disk.read_at(path, at % INDEX_FILE_BYTES, _UNITS * INDEX_UNIT_BYTES)
        return data or bytes(INDEX_UNIT_BYTES)

    @property
    def _directory(self) -> Path:
        home = self._view.place.home
        assert home is not None, "entries are those of a member"
        return home / "index"

    def faults(self) -> Iterator[Fault]:
        view = self._view
        if self._disordered.count:
            yield Fault(
                kind="entry-order",
                path=view.segment_path(self._disordered.first),
                at=self._disordered.first,
                count=self._disordered.count,
                what=f"{plural(self._disordered.count, 'entry', 'entries')} do not follow the one before, by index or "
                f"term; the first at {self._disordered.first:,}",
                cost="a start that recovers from before here ends the log there",
                cure="move the directory of this member away and start it again: it gets the log from the group",
            )
        if self._changed.count:
            yield Fault(
                kind="entry-crc",
                path=view.segment_path(self._changed.first),
                at=self._changed.first,
                count=self._changed.count,
                what=f"{plural(self._changed.count, 'record')} do not match the CRC of their entry; the first at "
                f"{self._changed.first:,}",
                cost="they are not what was sent, and no other member takes these entries",
                cure="move the directory of this member away and start it again: it gets the log from the group",
            )
        if self._unindexed.count:
            yield Fault(
                kind="entry-index",
                path=str(self._directory),
                at=self._unindexed.first,
                count=self._unindexed.count,
                what=f"{plural(self._unindexed.count, 'entry', 'entries')} are missing in the index or differ there, "
                f"the first is {self._unindexed.first:,}",
                cost="none: the entries themselves are read where the index is wrong",
                cure="start a broker on it: it writes the index again where it needs it",
                is_note=True,
            )
