"""The simulation of a store whose log confirms records late and takes some back (``late_log``; issue 14).

What must hold beside all that holds for a plain log:

- only confirmed records can be read and are folded by derived parts, after any crash, too; and all that the log knew
  to be confirmed can;
- records that were taken back are gone, their queue offsets and their place in the log are used again;
- a caller that waits for a record that is taken back is told so, and never hears that the disk has it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from ternmq.errors import DiskFull, NotRunning, StoreError, TernError
from ternmq.store.log.protocol import Log
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from tests.store.late_log import LEAD_BYTES, LateLog, lead_of
from tests.store.sim_model import ROOT, Entry
from tests.store.simulation import HOST, Simulation


class LateSimulation(Simulation):
    """Runs one seed."""

    def __init__(self, seed: int, *, actions: int = 60) -> None:
        super().__init__(seed, actions=actions)
        #: Positions up to which the store was told that records are confirmed, and up to which the log has noted it.
        self._confirmed = 0
        self._saved = 0
        #: Callers that wait for the disk: the end of their record, and what they heard.
        self._waiting: list[tuple[int, list[str]]] = []
        self._log: LateLog | None = None

    @property
    def log(self) -> LateLog:
        assert self._log is not None
        return self._log

    def _new_store(self, disk: SimulatedDisk) -> MessageStore:
        config = self.options.config
        log = LateLog(
            disk,
            config.log_paths,
            segment_bytes=config.mapped_file_size_commit_log,
            confirmed_path=ROOT / "confirmed",
        )
        if disk is self.disk:
            self._log = log
        return self._new_store_on(log, disk)

    def _new_store_on(self, log: Log, disk: SimulatedDisk) -> MessageStore:
        if disk is self.disk:
            self._waiting = []
        return MessageStore.open(
            self.options.config,
            store_host=HOST,
            clock=self.clock,
            disk=disk,
            log=log,
            derived=[self._new_part(disk)],
            threads=False,
        )

    def _weights(self) -> dict[Callable[[], None], int]:
        return super()._weights() | {
            self._confirm: 25,
            self._save_confirmed: 6,
            self._truncate: 6,
        }

    # --- Calls --------------------------------------------------------------------------------------------------

    def _stored(self, entry: Entry, log_offset: int, end_offset: int, queue_offset: int) -> None:
        super()._stored(entry, log_offset, end_offset, queue_offset)
        heard: list[str] = []
        self._waiting.append((end_offset, heard))
        mark = self.store.safe if self._number % 2 else self.store.flushed
        mark.call_when(end_offset, partial(heard.append, "flushed"), partial(_fail, heard))

    def _unconfirmed(self) -> list[Entry]:
        return [entry for entry in self.model.entries if entry.end_offset > self.store.dispatched]

    def _confirm(self) -> None:
        """The majority has some more records."""
        waiting = self._unconfirmed()
        if waiting:
            to = self.random.choice(waiting).end_offset
            # Before the call: it may be cut short when some records are dispatched.
            self._confirmed = max(self._confirmed, to)
            self.store.confirm(to)
            self._same("dispatched", to, self.store.dispatched)
            self._note("confirmed", to)

    def _save_confirmed(self) -> None:
        self.log.save_confirmed(self.store.dispatched)
        self._saved = self.store.dispatched

    def _truncate(self) -> None:
        """Another leader has other records than some of the last ones."""
        to = self._place_to_cut()
        if to is not None:
            self._truncate_at(to)

    def _place_to_cut(self) -> int | None:
        """A position before a record that may be taken back; None if none may."""
        waiting = [entry for entry in self._unconfirmed() if entry.end_offset > self._confirmed]
        if not waiting:
            return None
        first = self.random.choice(waiting)
        earlier = [entry.end_offset for entry in self.model.entries if entry.end_offset <= first.log_offset]
        return max(earlier[-1] if earlier else self.store.min_log_offset, self.store.dispatched)

    def _truncate_at(self, to: int) -> None:
        # What is to be taken back may be gone or not if the call is cut short.
        self.model.flushed = min(self.model.flushed, to)
        self._note("truncate", to)
        try:
            self.store.truncate(to, NotRunning("another leader has other records here"))
        except DiskFull as error:
            # Not one that is tried again: such a store must be opened anew.
            raise StoreError(str(error)) from None
        self.model.entries = [entry for entry in self.model.entries if entry.end_offset <= to]
        for end_offset, heard in self._waiting:
            if end_offset > to:
                self._same("last word to a caller", True, heard[-1:] in (["failed"], ["flushed"]))
            else:
                self._same("failure of a kept record", False, "failed" in heard)
        # Their place belongs to others from now on.
        self._waiting = [each for each in self._waiting if each[0] <= to]
        self._same("end of the log", to, self.store.written)
        self._check_queues()

    # --- What must hold -----------------------------------------------------------------------------------------

    def _check_log(self) -> None:
        super()._check_log()
        store = self.store
        self._confirmed = min(self._confirmed, store.written)
        self._saved = min(self._saved, store.written)
        if not self._saved <= store.dispatched <= max(self._confirmed, store.min_log_offset):
            self._same("dispatched", (self._saved, self._confirmed), store.dispatched)
        self._check_leads([entry for entry in self.model.entries if entry.log_offset >= self.model.log_min])
        self._note("dispatched", store.dispatched)

    def _check_leads(self, entries: list[Entry]) -> None:
        for entry in entries:
            lead = self.store._log.view(entry.log_offset - LEAD_BYTES, LEAD_BYTES)
            size = entry.end_offset - entry.log_offset
            self._same("bytes in front of a record", lead_of(entry.log_offset, size), bytes(lead or b""))

    def _visible(self, entries: list[Entry]) -> list[Entry]:
        return [entry for entry in entries if entry.end_offset <= self.store.dispatched]

    def _length(self, topic: str, queue_id: int) -> int:
        queue = self.store._queues.get(topic, queue_id)
        return queue.assigned if queue is not None else 0

    def _check_queue(self, topic: str, queue_id: int) -> None:
        super()._check_queue(topic, queue_id)
        self._same("assigned", len(self.model.queue(topic, queue_id)), self._length(topic, queue_id))
        for entry in self._unconfirmed()[:2]:
            self._same("unconfirmed record", None, self.store.record_at(entry.log_offset))

    def _folded_again(self, fresh: MessageStore) -> None:
        fresh.confirm(self.store.dispatched)


def _fail(heard: list[str], _error: TernError) -> None:
    heard.append("failed")
