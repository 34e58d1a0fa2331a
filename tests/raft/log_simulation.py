"""The store's simulation of a late log, on the log of a Raft group (P2, C8; ``tests.store.late_simulation``).

More happens here, and more must hold:

- terms rise; another node leads for a while: a copy of the disk is its store, its entries come as bytes, some of ours
  are taken back before; afterwards data files of both are equal byte for byte;
- some seeds begin as a single broker with a plain log, and its records stay readable in front of the entries;
- index files disappear;
- each entry is found by its index, with its term, and the header in front of each record tells both.
"""

from __future__ import annotations

from collections.abc import Callable

from ternmq.errors import DiskFull, NotRunning
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER_BYTES, INDEX_UNIT_BYTES, EntryPlace, unpack_entry_header
from tests.store.late_simulation import LateSimulation
from tests.store.sim_model import QUEUES, ROOT, Entry
from tests.store.simulation import BORN, BORN_MS, Simulation

HOME = ROOT / "dledger-n0"


class RaftLogSimulation(LateSimulation):
    """Runs one seed."""

    def __init__(self, seed: int, *, actions: int = 60) -> None:
        super().__init__(seed, actions=actions)
        self._raft_log: RaftLog | None = None
        #: Log offset of each record that has a header → index and term.
        self._numbers: dict[int, tuple[int, int]] = {}
        self._was_single = seed % 3 == 0
        if self._was_single:
            self._be_single()

    @property
    def raft_log(self) -> RaftLog:
        assert self._raft_log is not None
        return self._raft_log

    def _be_single(self) -> None:
        """What a broker leaves that was no member of a group: closed, killed, or without power."""
        self.disk.capacity_bytes, capacity_bytes = None, self.disk.capacity_bytes
        self._store = Simulation._new_store(self, self.disk)
        for _ in range(self.random.choice((0, 1, 6, 20))):
            entry = self._entry(*self.random.choice(QUEUES))
            draft = Draft(entry.topic, entry.queue_id, entry.body, entry.properties, BORN_MS, BORN)
            entry.closes = None
            placed = self.store.put(draft)
            Simulation._stored(self, self._unsure(entry), placed.log_offset, placed.end_offset, placed.queue_offset)
            if self.random.random() < 0.2:
                self._flush()
        if self.random.random() < 0.5:
            self._close()
        elif self.random.random() < 0.5:
            self.disk.die()
        else:
            self.disk.power_cut(self.random)
        self.disk.die()
        self._confirmed = 1 << 60
        if capacity_bytes is not None:
            self.disk.capacity_bytes = capacity_bytes + 60_000

    def _unsure(self, entry: Entry) -> Entry:
        self.model.limbo = [entry]
        return entry

    def _new_store(self, disk: SimulatedDisk) -> MessageStore:
        config = self.options.config
        log = RaftLog(
            disk,
            RaftPaths.of(config, "n0"),
            segment_bytes=config.mapped_file_size_commit_log,
            index_file_bytes=16 * INDEX_UNIT_BYTES,
        )
        store = self._new_store_on(log, disk)
        log.term = max(log.last_term, 1)
        if disk is self.disk:
            self._raft_log = log
        return store

    def _weights(self) -> dict[Callable[[], None], int]:
        return super()._weights() | {self._new_term: 8, self._follow_another: 6}

    # --- Calls ------------------------------------------------------------------------------------------------------

    def _new_term(self) -> None:
        self.raft_log.term += self.random.choice((1, 1, 3))

    def _stored(self, entry: Entry, log_offset: int, end_offset: int, queue_offset: int) -> None:
        super()._stored(entry, log_offset, end_offset, queue_offset)
        log = self.raft_log
        index = log.index_at(end_offset)
        self._numbers[log_offset] = (index, log.term)
        self._same("position of an entry", log_offset - ENTRY_HEADER_BYTES, log.position_of(index))
        self._same("term of an entry", log.term, log.term_of(index))

    def _confirm(self) -> None:
        super()._confirm()
        self.raft_log.note_committed(self.raft_log.index_at(self.store.dispatched))

    def _save_confirmed(self) -> None:
        self.raft_log.save_committed()
        self._saved = max(self._saved, self.raft_log.end_of(self.raft_log.committed) or 0)

    def _restart(self) -> None:
        self._close()
        if self.random.random() < 0.2:
            # Files of the index go, all of them or some; the log does without.
            for path in [each for each in self.disk.files() if each.parent == HOME / "index"]:
                if self.random.random() < 0.7:
                    self.disk.remove(path)
        self._open()

    def _truncate_at(self, to: int) -> None:
        super()._truncate_at(to)
        self._check_kept()

    def _check_kept(self) -> None:
        self._check_leads([entry for entry in self.model.entries if entry.log_offset >= self.store.min_log_offset])

    def _follow_another(self) -> None:
        """Another node leads for a while: it takes some of our records back and has others."""
        leader_disk = self.disk.copy()
        leader = self._new_store(leader_disk)
        leader_log = leader.log
        assert isinstance(leader_log, RaftLog)
        leader_log.term = self.raft_log.term = self.raft_log.term + 1
        self._note("follow", leader_log.term)
        to = self._place_to_cut() if self.random.random() < 0.5 else None
        if to is not None:
            kept = leader_log.index_at(to)
            leader.truncate(to, NotRunning("not a majority"))
            self._truncate_at(self.raft_log.cut_before(kept + 1))
        entries = self._put_at(leader)
        first = self.raft_log.last_index + 1
        self.model.limbo = list(entries)
        try:
            while first <= leader_log.last_index:
                last, pieces = leader_log.entries(first, self.random.choice((1, 500, 3000, 1 << 20)))
                self._same("first entry that is sent", True, last >= first)
                data = b"".join(pieces)
                arrived = self.raft_log.check_append(data)
                self._same("entries that arrived", (first, last), (arrived.first_index, arrived.last_index))
                self.store.append_raw(arrived.position, data)
                if self.random.random() < 0.3:
                    self.store.follow(0.0)
                first = last + 1
        except DiskFull:
            self._take_over(entries)
            self.store.stop_following()
            raise
        self._take_over(entries)
        self._same("end of both logs", leader.written, self.store.written)
        self.store.stop_following()
        self._check_kept()
        for start in self.raft_log.starts:
            size = min(self.raft_log.segment_bytes, self.store.written - start)
            if size > 0:
                one, two = (bytes(log.view(start, size) or b"") for log in (self.raft_log, leader_log))
                self._same(f"bytes of the file at {start}", one, two)

    def _put_at(self, leader: MessageStore) -> list[Entry]:
        entries: list[Entry] = []
        log = leader.log
        assert isinstance(log, RaftLog)
        for _ in range(self.random.randint(1, 8)):
            entry = self._entry(*self.random.choice(QUEUES))
            draft = Draft(entry.topic, entry.queue_id, entry.body, entry.properties, BORN_MS, BORN)
            entry.closes = None
            placed = leader.put(draft)
            entry.log_offset, entry.end_offset, entry.queue_offset = placed[:3]
            self._numbers[entry.log_offset] = (log.last_index, log.term)
            entries.append(entry)
        return entries

    def _take_over(self, entries: list[Entry]) -> None:
        """Those that have arrived are ours."""
        end = self.store.written
        self.model.entries += [entry for entry in entries if entry.end_offset <= end]
        self.model.limbo = []
        self._note("took over", end)

    # --- What must hold -----------------------------------------------------------------------------------------------

    def _log_end(self) -> int:
        """Behind the last entry, never behind a blank; without one, where the first begins."""
        end = self.model.entries[-1].end_offset if self.model.entries else 0
        return max(end, self.raft_log.closed, self.raft_log.begin)

    def _check_leads(self, entries: list[Entry]) -> None:
        log = self.raft_log
        numbered = [entry for entry in entries if entry.log_offset >= log.closed]
        expected = log.first_index
        for entry in numbered:
            lead = log.view(entry.log_offset - ENTRY_HEADER_BYTES, ENTRY_HEADER_BYTES)
            place = unpack_entry_header(lead or bytes(ENTRY_HEADER_BYTES))
            assert place is not None
            size = ENTRY_HEADER_BYTES + entry.end_offset - entry.log_offset
            position = entry.log_offset - ENTRY_HEADER_BYTES
            index, term = self._numbers.get(entry.log_offset, (place.index, place.term))
            self._same("header", EntryPlace(index, term, position, size), place)
            self._same("index of an entry", expected, place.index)
            self._same("place of an entry", (position, entry.end_offset), (log.position_of(index), log.end_of(index)))
            self._same("term of an entry", term, log.term_of(index))
            self._same("entry that ends there", index, log.index_at(entry.end_offset))
            expected += 1
        self._same("last entry", expected - 1, log.last_index)
        self._same("end of the log", log.end, log.end_of(log.last_index))

    def _flip_a_bit(self) -> None:
        rotten = (HOME / "data", HOME / "index", HOME / "checkpoint", ROOT / "consumequeue")
        files = [
            path
            for path, data in self.disk.files().items()
            if data and any(path.is_relative_to(each) for each in rotten)
        ]
        if not files:
            return
        path = self.random.choice(files)
        at = self.random.randrange(len(self.disk.files()[path]))
        if path.parent == HOME / "data" and not self._is_covered(int(path.name) + at):
            return
        self.disk.flip_bit(path, at * 8 + self.random.randrange(8))
        self._note("rot", str(path), at)
