"""Where the entries of a Raft log are, and their terms (P2).

Three things answer that, and none needs memory for each entry:

- the *index files* (``raft.index_files``): a hint for each entry, believed only if the entry's header says the same;
- the *first entry of each data file*, from its header: so the file is known that an index or a position lies in, and a
  file whose units are lost is walked once, header by header, and gets them back;
- the *runs*: where each term begins. Terms never decrease, so a few lookups between two entries of different terms find
  them all.

Invariants: entries from ``first_index`` up to ``next_index`` are there, one behind the other, and their terms never
decrease; ``last`` is the last of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from ternmq.errors import CorruptFile
from ternmq.raft.index_files import EntryIndex
from ternmq.store.log.plain_log import PlainLog
from ternmq.wire.layouts.raft_entry import (
    ENTRY_HEADER_BYTES,
    INDEX_UNIT_BYTES,
    EntryPlace,
    unpack_entry_header,
    unpack_index_unit,
)
from ternmq.wire.layouts.segment_form import RAFT_FORM
from ternmq.wire.record import BLANK_BYTES


class EntryStretch:
    """Entries of one term that lie one behind the other in one data file; there is at least one."""

    __slots__ = ("first", "last", "units")

    def __init__(self, units: bytes) -> None:
        """``units`` are theirs in the index."""
        first, last = unpack_index_unit(units), unpack_index_unit(units, len(units) - INDEX_UNIT_BYTES)
        assert first is not None, "units were packed"
        assert last is not None, "units were packed"
        self.first = first
        self.last = last
        self.units = units


class Places:
    """The entries of one log. Belongs to the store's thread."""

    def __init__(self, plain: PlainLog, index: EntryIndex) -> None:
        self._plain = plain
        self._index = index
        #: Start and first entry of each data file that has entries, in order.
        self._starts: list[int] = []
        self._firsts: list[int] = []
        #: First entry and term of each run, in order. The first run may begin before ``first_index``.
        self._run_firsts: list[int] = []
        self._run_terms: list[int] = []
        self.first_index = 0
        self.last: EntryPlace | None = None
        self.next_index = 0
        #: Term of the entry before ``first_index``, if it is known.
        self.prev_term: int | None = 0

    # --- Life -------------------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Find the first entry of each data file; changes nothing."""
        self._index.load()
        self._starts, self._firsts = [], []
        for start in self._plain.starts:
            if self._plain.form_at(start) is RAFT_FORM:
                piece = self._plain.read(start, ENTRY_HEADER_BYTES)
                place = _whole(piece.data, start) if piece is not None else None
                if place is not None:
                    self._starts.append(start)
                    self._firsts.append(place.index)
        if self._firsts:
            self.first_index = self._firsts[0]
            self.prev_term = 0 if self.first_index == 0 else None

    def end_before_open(self, index: int) -> int | None:
        """After ``load``: position behind an entry; None if there is none, as far as the headers show."""
        if not self._firsts or index < self.first_index:
            return None
        place = self._indexed(index)
        if place is None:
            number = bisect_right(self._firsts, index) - 1
            place = next((each for each in self._walk(self._starts[number]) if each.index == index), None)
        return place.end if place is not None else None

    def begin_before(self, end: int) -> bool:
        """Whether there are entries before ``end``, as ``load`` found them."""
        return bool(self._starts) and self._starts[0] < end

    def open(self, end: int, seen: EntryPlace | None) -> None:
        """Recovery found that the log ends at ``end`` with an entry, and saw ``seen`` last. Afterwards ``last.end`` is
        the log's end: a blank with no entry behind it does not count. Raises ``CorruptFile`` if no entry ends there.
        """
        self._index.tidy()
        while self._starts[-1] >= end:
            self._starts.pop()
            self._firsts.pop()
        last = self._last_indexed(end)
        for place in self._walk(last.end if last is not None else self._starts[-1]):
            if place.end > end or (last is not None and place.index != last.index + 1):
                break
            self._index.add(place)
            last = place
        if last is None or not self._is_end(last, end):
            # A damaged header is between: what recovery has seen behind it counts.
            last = seen
        if last is None or not self._is_end(last, end):
            raise self._corrupt(f"has damaged entries before position {end}")
        self.last, self.next_index = last, last.index + 1
        self._index.cut(self.next_index)
        self._find_runs()

    def _is_end(self, last: EntryPlace, end: int) -> bool:
        """Whether nothing but a blank is between an entry and ``end``."""
        return last.end == end or last.end < end == self._file_end(last.position)

    def _file_end(self, position: int) -> int:
        size = self._plain.segment_bytes
        return position - position % size + size

    def _last_indexed(self, end: int) -> EntryPlace | None:
        """The last entry before ``end`` that the index is known to have, or one that is near: a walk finds the rest."""

        def known(index: int) -> EntryPlace | None:
            place = self._indexed(index)
            return place if place is not None and place.end <= end else None

        low = known(self._firsts[-1])
        if low is None:
            return None
        step = 1
        while (place := known(low.index + step)) is not None:
            low, step = place, step * 2
        while step > 1:
            step //= 2
            low = known(low.index + step) or low
        return low

    def _find_runs(self) -> None:
        self._run_firsts, self._run_terms = [], []
        assert self.last is not None
        first = self.locate(self.first_index)
        if first is None:
            raise self._corrupt(f"has lost entry {self.first_index}")
        self._begin_run(first)
        waiting = [(first, self.last)]
        while waiting:
            low, high = waiting.pop()
            if low.term == high.term:
                continue
            if low.index + 1 == high.index:
                self._begin_run(high)
                continue
            middle = self.locate((low.index + high.index) // 2)
            if middle is None:
                raise self._corrupt(f"has lost entry {(low.index + high.index) // 2}")
            # The lower half is looked at first.
            waiting += [(middle, high), (low, middle)]

    def _begin_run(self, place: EntryPlace) -> None:
        self._run_firsts.append(place.index)
        self._run_terms.append(place.term)

    def _corrupt(self, what: str) -> CorruptFile:
        path = str(self._plain.directories.writable[0])
        cure = "move the directory of this member away and start it again: it gets the log from the group"
        return CorruptFile(f"{path} {what}; {cure}", path=path)

    # --- Changes ----------------------------------------------------------------------------------------------------

    def extend(self, added: EntryStretch) -> None:
        """Entries were appended behind the last one."""
        first, last = added.first, self.last
        if last is None or first.position // self._plain.segment_bytes != last.position // self._plain.segment_bytes:
            self._starts.append(first.position)
            self._firsts.append(first.index)
        if not self._run_terms or first.term != self._run_terms[-1]:
            self._begin_run(first)
        self._index.extend(first.index, added.units)
        self.last = added.last
        self.next_index = added.last.index + 1

    def cut(self, index: int) -> None:
        """The entries from ``index`` on are gone."""
        if index <= self.first_index:
            self.forget(self.first_index, self.prev_term)
            return
        self.last = self.locate(index - 1)
        self.next_index = index
        while self._firsts[-1] >= index:
            self._firsts.pop()
            self._starts.pop()
        while self._run_firsts[-1] >= index:
            self._run_firsts.pop()
            self._run_terms.pop()
        self._index.cut(index)

    def forget(self, index: int, prev_term: int | None) -> None:
        """There is no entry, and the next one is ``index``. Raises ``StoreError``."""
        self._starts, self._firsts, self._run_firsts, self._run_terms = [], [], [], []
        self.first_index = self.next_index = index
        self.prev_term = prev_term
        self.last = None
        self._index.cut(index)

    def drop_before(self, position: int) -> None:
        """The data files before ``position`` were dropped."""
        count = bisect_right(self._starts, position - 1)
        if not count:
            return
        if count == len(self._starts):
            # A file without entries follows.
            self.forget(self.next_index, self.term_of(self.next_index - 1))
            return
        first = self._firsts[count]
        self.prev_term = self.term_of(first - 1)
        del self._starts[:count], self._firsts[:count]
        runs = bisect_right(self._run_firsts, first) - 1
        del self._run_firsts[:runs], self._run_terms[:runs]
        self.first_index = first
        self._index.drop_before(first)

    # --- Lookups ----------------------------------------------------------------------------------------------------

    def term_of(self, index: int) -> int | None:
        """Term of an entry; None if it is not known."""
        if index < self.first_index:
            return self.prev_term if index == self.first_index - 1 else None
        if index >= self.next_index:
            return None
        return self._run_terms[bisect_right(self._run_firsts, index) - 1]

    def locate(self, index: int) -> EntryPlace | None:
        """The place of an entry; None if it is not there."""
        last = self.last
        if last is None or not self.first_index <= index <= last.index:
            return None
        if index == last.index:
            return last
        place = self._indexed(index)
        if place is None:
            # Of an entry whose header is damaged, the index may know more.
            place = self._heal(index) or self._index.get(index)
        return place

    def last_in_file(self, place: EntryPlace) -> int:
        """The last entry of the data file that an entry lies in."""
        number = bisect_right(self._starts, place.position)
        return self._firsts[number] - 1 if number < len(self._firsts) else self.next_index - 1

    def index_at(self, position: int) -> int:
        """The last entry that ends at ``position`` or before; ``first_index - 1`` if none does."""
        last = self.last
        if last is None or last.end <= position:
            return self.next_index - 1
        number = bisect_right(self._starts, position - 1) - 1
        if number < 0:
            return self.first_index - 1
        # The answer is between low and high, both included.
        low = self._firsts[number] - 1
        high = self._firsts[number + 1] - 1 if number + 1 < len(self._firsts) else last.index
        while low < high:
            middle = (low + high + 1) // 2
            place = self.locate(middle)
            if place is None:
                raise self._corrupt(f"has lost entry {middle}")
            if place.end <= position:
                low = middle
            else:
                high = middle - 1
        return low

    def _indexed(self, index: int) -> EntryPlace | None:
        """The place of an entry as the index has it, if the entry's header says the same."""
        place = self._index.get(index)
        if place is None or self._header_at(place.position) != place:
            return None
        return place

    def _header_at(self, position: int) -> EntryPlace | None:
        data = self._plain.view(position, ENTRY_HEADER_BYTES) if position >= 0 else None
        return _whole(data, position) if data is not None else None

    def _walk(self, position: int) -> Iterator[EntryPlace]:
        """The entries from ``position`` on, up to the end of the data file, as far as headers show them."""
        end = self._file_end(position)
        while position + ENTRY_HEADER_BYTES <= end - BLANK_BYTES and (place := self._header_at(position)) is not None:
            if place.end > end:
                return
            yield place
            position = place.end

    def _heal(self, index: int) -> EntryPlace | None:
        """Give the index its units of the data file back that ``index`` lies in; returns the place of that entry."""
        found, number = None, bisect_right(self._firsts, index) - 1
        if number < 0:
            return None
        for wanted, place in enumerate(self._walk(self._starts[number]), self._firsts[number]):
            if place.index != wanted or place.index >= self.next_index:
                break
            self._index.add(place)
            found = place if wanted == index else found
        self._index.try_write_out()
        return found


def _whole(data: memoryview | bytes, position: int) -> EntryPlace | None:
    """The header of an entry that stands at ``position``; None if there is none."""
    place = unpack_entry_header(data) if len(data) >= ENTRY_HEADER_BYTES else None
    return place if place is not None and place.position == position else None
