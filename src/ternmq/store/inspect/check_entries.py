"""Whether the entries of a Raft log are numbered as they must be, and its index leads to them (P2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
)
from ternmq.wire.record import Record

#: Units that are read together.
_UNITS: int = 4096


class EntryCheck:
    """Is told of each whole record, in log order."""

    def __init__(self, view: StoreView) -> None:
        self._view = view
        self._last: EntryPlace | None = None
        self._disordered = Tally()
        self._changed = Tally()
        self._unindexed = Tally()
        #: Units of the index from this one on.
        self._units = b""
        self._units_from = 0

    def expect(self, record: Record) -> None:
        view, last = self._view, self._last
        form = view.log.form_at(record.log_offset)
        if not form.is_raft:
            return
        position = record.log_offset - form.lead
        data = view.log.view(position, form.lead + record.size)
        place = unpack_entry_header(data) if data is not None else None
        if data is None or place is None:
            return
        if not is_record_whole(data):
            self._changed.add(position)
        follows = last is not None and position in (last.end, last.end + -last.end % view.sizes.segment)
        if last is not None and ((follows and place.index != last.index + 1) or place.term < last.term):
            self._disordered.add(position)
        if self._unit(place.index) != pack_index_unit(place):
            self._unindexed.add(place.index)
        self._last = place

    def _unit(self, index: int) -> bytes:
        at = (index - self._units_from) * INDEX_UNIT_BYTES
        if not 0 <= at < len(self._units):
            self._units, self._units_from, at = self._read(index), index, 0
        return self._units[at : at + INDEX_UNIT_BYTES]

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
