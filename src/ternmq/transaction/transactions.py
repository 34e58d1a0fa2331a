"""The transactions of one term as master: how they end, and what is noted of them (J1, J2).

The log is the truth: halves and ops are folded from their queues (``ledger``) when the term begins, and read on from
there. One object per term; a new master folds anew.

How a transaction ends, in one turn of the loop::

    commit     the message is stored under its own topic ─▶ an op record closes the half
    rollback                                                an op record closes the half

*Once, and always.* The message comes before the op, so a crash in between cannot lose it. The half is then open again,
though its message is stored; a check would have it stored twice. So every half that was open when the term began is
*in doubt*: before it is checked or committed, its message is searched by its unique key (``transaction.search``), and
if it is there the half is only closed. A store without an index has one candidate, the last record of its log: there
nothing is appended between message and op, so a crash leaves at most that one. (RocketMQ 5, which collects ops before
it writes them, may leave those of some seconds. They are found only by an index.)

*Ops are gathered* where the index can tell what a crash has left: all commits of a turn have their ops written together
at its end, one record each, which takes half the time. Until then, or while the disk is full, such a half is closed in
memory only (``_unclosed``), and the progress in the queue stays before it. Where the producer's answer waits for the
disk, the op is part of what it waits for, and is written at once; so is that of a rollback, as nothing else tells it.

*Progress* is noted for the group CID_RMQ_SYS_TRANS, as RocketMQ does, but only up to what was on the disk before: after
a power cut no half may lie before the progress whose op is lost.

Where this differs from RocketMQ: a transaction that was ended is ended. There, a second commit stores the message
again, and so does one that names an older copy of the half.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final, Protocol

import msgspec

from ternmq import names
from ternmq.env import Clock
from ternmq.errors import CorruptRecord, NotRunning, RecordRefused, StoreError, SystemBusy, SystemFailure, TernError
from ternmq.message import Outcome, Property
from ternmq.rare_log import RareLog
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.read.query import QueueEntry
from ternmq.store.store import MessageStore
from ternmq.transaction import half as halves
from ternmq.transaction.half import GROUP, QUEUE_ID, Half
from ternmq.transaction.ledger import HalfLedger
from ternmq.transaction.ops import OpWriter
from ternmq.transaction.search import MessageSearch, last_record
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.record import Record, unpack_record

log = logging.getLogger(__name__)

#: Entries of a queue that are read in a row: some 2 ms of the loop for ops, which must be decoded.
SLICE: Final = 200
#: Op records that are written together.
_OPS_MAX: Final = 256
#: How often that is done in one turn; ``tend`` goes on.
_BATCHES_MAX: Final = 64
#: Requests that may wait until the queues are folded.
_WAITING_MAX: Final = 10_000
#: A reader who starts anew should not have to read more entries than this, or four for each open half.
LAG_MAX: Final = 100_000
_LAG_PER_OPEN: Final = 4
#: Halves that are moved in one turn for that.
_MOVES_MAX: Final = 100


class Ending(msgspec.Struct, frozen=True, gc=False):
    """A request to end a transaction."""

    group: str
    outcome: Outcome
    #: Where the half is, as its producer was told by the answer to its send, or by a check.
    log_offset: int
    queue_offset: int
    #: The unique key of the message; empty where a client does not say it.
    transaction_id: str = ""


@dataclass(slots=True, frozen=True)
class CheckRules:
    """Settings of the check-back (J2)."""

    #: No half is checked before this age, unless its producer asks for longer.
    immunity_ms: int
    #: Pause between two checks.
    interval_ms: int
    #: Checks that reached a producer, before a half is discarded.
    checks_max: int
    #: How long a half waits for a producer of its group, before it is discarded.
    wait_max_ms: int


class OffsetTable(Protocol):
    def get(self, group: str, topic: str, queue_id: int) -> int: ...

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None: ...


class Transactions:
    """All methods belong to the broker's loop; the store is open."""

    def __init__(
        self,
        store: MessageStore,
        *,
        take_in: Callable[[Draft], Placed],
        offsets: OffsetTable,
        make_discard_topic: Callable[[], object],
        clock: Clock,
        host: bytes,
    ) -> None:
        """``take_in`` stores what becomes visible, through the broker's redirects: a commit may be delayed."""
        self.store = store
        self._take_in = take_in
        self._offsets = offsets
        self._make_discard_topic = make_discard_topic
        self._ops = OpWriter(store, clock=clock, host=host)
        self.ledger = HalfLedger(
            self._begin_of(names.HALF_TOPIC),
            self._begin_of(names.OP_HALF_TOPIC),
        )
        #: Open halves whose message may be stored, and those of them for which it was not looked for yet.
        self.in_doubt: set[int] = set()
        self._unsearched: set[int] = set()
        #: Closed halves whose op record could not be written yet.
        self._unclosed: set[int] = set()
        #: Progress that is noted when the log is safe up to the third number.
        self._to_note: tuple[int, int, int] | None = None
        #: Without an index: the last record that was there when the term began.
        self._has_index = store.config.message_index_enable
        self._search = MessageSearch(store, None if self._has_index else last_record(store))
        #: On a full disk, each end of a transaction is a line.
        self._logs = RareLog(log, clock.monotonic)
        self._loop = asyncio.get_running_loop()
        #: A record of the log by its log offset, read by a thread if it is cold.
        self.read = self._search.read
        #: Whether the end of this turn writes what is gathered in ``_unclosed``.
        self._is_gathering = False
        self._folded = asyncio.Event()
        self._waiting = 0
        #: Whether transactions can end now.
        self.is_folded = False
        self._stopped: TernError | None = None

    # --- The fold when the term begins ------------------------------------------------------------------------------

    async def fold(self) -> None:
        """Read both queues from where they are not done with, in slices. To be called first; raises ``StoreError``, and
        a further call goes on from there."""
        await self.caught_up()
        while entries := self._next_ops():
            for entry, cold in [(entry, self.store.cold.record(entry.log_offset)) for entry in entries]:
                page: Buffer | None = None
                if cold is not None:
                    try:
                        page = await asyncio.wrap_future(cold)
                    except StoreError:
                        page = None
                self._fold_op(page if page is not None else self._page(entry))
            await asyncio.sleep(0)
        self._drop_deleted()
        # Which of them are copies, so that who names an older one is understood.
        open_halves = itertools.chain.from_iterable(map(self.ledger.on_page, self.ledger.pages()))
        for number, queue_offset in enumerate(open_halves, 1):
            self.in_doubt.add(queue_offset)
            self._unsearched.add(queue_offset)
            found = self.find(queue_offset)
            if found is not None and not isinstance(found, tuple):
                found = await found
            if found is not None and not self._has_index and self._search.look(found[1]):
                # Now: in the next term, another record will be the last.
                self.close(queue_offset)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        if self.ledger.open:
            log.info("%d transactions are open", len(self.ledger.open))
        self.is_folded = self._stopped is None
        self._folded.set()

    def _next_ops(self) -> list[QueueEntry]:
        """The ops to be read next. Between two slices, retention may have deleted some."""
        self.ledger.skip_to(0, self.store.min_offset(names.OP_HALF_TOPIC, QUEUE_ID))
        return self.store.entries(names.OP_HALF_TOPIC, QUEUE_ID, self.ledger.next_op, SLICE)

    def _drop_deleted(self) -> None:
        """Close halves that retention has deleted since they were read; their ops may be gone, too."""
        low = self.store.min_offset(names.HALF_TOPIC, QUEUE_ID)
        deleted = [at for at in self.ledger.open if at < low]
        self.ledger.close_all(deleted)
        if deleted:
            log.error(
                "%d half messages were deleted from the log before this broker knew whether they were ended; what was "
                "open of them is lost",
                len(deleted),
            )

    def _fold_op(self, page: Buffer | None) -> None:
        closed: list[int] = []
        if page is not None:
            try:
                record = unpack_record(page)
                closed = halves.closed_by(record.body, props.find(record.properties, Property.TAGS))
            except CorruptRecord as error:
                log.error("an op record of transactions cannot be read, and is skipped: %s", error)
        self.ledger.op(closed)

    def catch_up(self, count_max: int = SLICE) -> bool:
        """Read new entries of the half queue; whether there may be more. Only entries: no record is decoded."""
        ledger, store = self.ledger, self.store
        low = store.min_offset(names.HALF_TOPIC, QUEUE_ID)
        if ledger.next_half < low:
            ledger.skip_to(low, 0)
        entries = store.entries(names.HALF_TOPIC, QUEUE_ID, ledger.next_half, count_max)
        for entry in entries:
            ledger.half(ledger.next_half, entry.log_offset)
        return bool(entries)

    async def caught_up(self) -> None:
        """Read all new entries, in slices."""
        while True:
            if not self.catch_up():
                return
            await asyncio.sleep(0)

    def _catch_up_all(self) -> None:
        ledger, max_offset = self.ledger, self.store.max_offset
        while ledger.next_half < max_offset(names.HALF_TOPIC, QUEUE_ID) and self.catch_up():
            pass

    def _begin_of(self, topic: str) -> int:
        """From where a queue is to be read: its progress, or its begin; never outside of it."""
        low, high = self.store.min_offset(topic, QUEUE_ID), self.store.max_offset(topic, QUEUE_ID)
        return min(max(self._offsets.get(GROUP, topic, QUEUE_ID), low), high)

    @property
    def open_count(self) -> int:
        """How many transactions are open, with the halves that were not read yet."""
        # Before the fold is done, most of these are closed by ops that were not read either.
        unread = self.store.max_offset(names.HALF_TOPIC, QUEUE_ID) - self.ledger.next_half if self.is_folded else 0
        return len(self.ledger.open) + unread

    async def folded(self) -> None:
        """Return when the fold is done. Raises ``SystemBusy`` when too many wait, or why the term is over."""
        if not self._folded.is_set():
            if self._waiting >= _WAITING_MAX:
                raise SystemBusy(
                    f"[OVERLOAD]system busy: {self._waiting} requests wait until the open transactions are "
                    "read; retry later"
                )
            self._waiting += 1
            try:
                await self._folded.wait()
            finally:
                self._waiting -= 1
        if self._stopped is not None:
            raise self._stopped

    def stop(self, reason: TernError) -> None:
        """The term is over."""
        self._stopped = reason
        self.is_folded = False
        self._folded.set()

    # --- The end of a transaction -----------------------------------------------------------------------------------

    def end(
        self, ending: Ending, page: Buffer | None, check_topic: Callable[[str], None] | None = None
    ) -> int | Awaitable[int]:
        """Commit or roll back. ``page`` is the record at ``ending.log_offset``. ``check_topic`` gets the topic of its
        message, and raises if the caller may not send there.

        Returns the log offset to wait for, 0 if nothing had to be written; awaited if the message must be searched
        first, and that takes a while. Raises ``SystemFailure`` with RocketMQ's words for a transaction that is unknown,
        of another group or ended otherwise; and what ``take_in`` raises, when the transaction is open as before.
        """
        record, half = self._named(ending, page, check_topic)
        self._catch_up_all()
        if self.ledger.open.get(half.queue_offset) != half.log_offset and not self._is_in_queue(half):
            raise _no_half(ending)
        queue_offset = self.ledger.current(half.queue_offset, half.first)
        if queue_offset is None or queue_offset in self.in_doubt:
            was_committed = self._search.look(half)
            if was_committed is None:
                return self._end_searched(ending, half, check_topic)
            if queue_offset is None:
                self._ended_before(ending, half, was_committed=was_committed)
                return 0
            if was_committed:
                end_offset = self.close(queue_offset)
                if ending.outcome is not Outcome.COMMIT:
                    raise _was_committed(half)
                return end_offset
        if ending.outcome is not Outcome.COMMIT:
            return self.close(queue_offset)
        try:
            committed_end = self._take_in(halves.committed(record, half)).end_offset
        except Exception as error:
            if not isinstance(error, TernError):  # it may be stored
                self.in_doubt.add(queue_offset)
            raise
        self._search.stored(half)
        if self._has_index and half.unique_key and not self.store.safety.is_awaited:
            self._close_soon(queue_offset)
            return committed_end
        return max(committed_end, self.close(queue_offset))

    def open_for_run(self) -> dict[int, int] | None:
        """The log offset of each open half by its queue offset, for a kernel that commits some of them
        (``transaction.runs``); None if ``end`` must decide about all."""
        if not (self.is_folded and self._has_index) or self._search.is_busy or self.store.safety.is_awaited:
            return None
        try:
            self._catch_up_all()
        except (StoreError, NotRunning):
            return None
        return self.ledger.open

    def committed(self, queue_offsets: Sequence[int]) -> None:
        """Halves were open and not in doubt, and their messages have just been stored."""
        self.ledger.close_all(queue_offsets)
        self._unclosed.update(queue_offsets)
        self._gather()

    async def _end_searched(self, ending: Ending, half: Half, check_topic: Callable[[str], None] | None) -> int:
        async with self._search.known(half):
            page = await self.read(ending.log_offset)
            if self._stopped is not None:
                raise self._stopped
            end_offset = self.end(ending, page, check_topic)
            assert isinstance(end_offset, int), "what was searched is known"
            return end_offset

    def _named(
        self, ending: Ending, page: Buffer | None, check_topic: Callable[[str], None] | None
    ) -> tuple[Record, Half]:
        """The half that a request names; raises ``SystemFailure`` if it is not the caller's."""
        try:
            record = unpack_record(page) if page is not None else None
            if record is None or record.topic != names.HALF_TOPIC:
                raise _no_half(ending)
            half = halves.read_half(record)
        except CorruptRecord as error:
            raise SystemFailure(f"Find prepared transaction message failed: {error}") from None
        if check_topic is not None:
            check_topic(half.topic)
        if half.group != ending.group:
            raise SystemFailure(
                f"The producer group wrong: this transaction belongs to another group than {ending.group!r}; end it "
                "by a producer of the group that began it"
            )
        if record.queue_offset != ending.queue_offset:
            raise SystemFailure(
                f"The transaction state table offset wrong: the half message at {ending.log_offset} has "
                f"queue offset {record.queue_offset}, not {ending.queue_offset}"
            )
        if ending.transaction_id and ending.transaction_id != half.unique_key:
            raise SystemFailure(
                f"The transaction id wrong: the half message at {ending.log_offset} is not part of transaction "
                f"{ending.transaction_id!r}"
            )
        return record, half

    def _is_in_queue(self, half: Half) -> bool:
        """Whether the half queue has a half where it says. The body of a message can look like one: its sender knows
        where the log will have it, and could end the transactions of others by it."""
        entries = self.store.entries(names.HALF_TOPIC, QUEUE_ID, half.queue_offset, 1)
        return bool(entries) and entries[0].log_offset == half.log_offset

    def _ended_before(self, ending: Ending, half: Half, *, was_committed: bool) -> None:
        """A producer that repeats itself, since an answer was lost, is right; one that says the opposite is not."""
        if not was_committed and not self._has_index:
            raise SystemFailure(
                f"Find prepared transaction message failed: the transaction {half.unique_key} has ended before; how, "
                "cannot be told without an index (messageIndexEnable)"
            )
        if ending.outcome is Outcome.COMMIT and not was_committed:
            raise SystemFailure(
                f"Find prepared transaction message failed: the transaction {half.unique_key} was rolled back or "
                f"discarded before; see {names.CHECK_MAX_TOPIC} for discarded ones"
            )
        if ending.outcome is Outcome.ROLLBACK and was_committed:
            raise _was_committed(half)

    def close(self, queue_offset: int) -> int:
        """Note in the log that a half is done with; returns where the log ends then, 0 if it could not be written."""
        self.in_doubt.discard(queue_offset)
        self._unsearched.discard(queue_offset)
        try:
            return self._write_op(queue_offset)
        except (StoreError, NotRunning) as error:
            self.ledger.close(queue_offset)
            self._unclosed.add(queue_offset)
            self._logs.warning("unclosed", f"cannot note the end of a transaction now: {error}; retrying")
            return 0

    def _write_op(self, queue_offset: int) -> int:
        end_offset = self._ops.write(queue_offset)
        self.ledger.op((queue_offset,))
        return end_offset

    def _close_soon(self, queue_offset: int) -> None:
        """Note the same at the end of this turn, together with others."""
        self.in_doubt.discard(queue_offset)
        self._unsearched.discard(queue_offset)
        self.ledger.close(queue_offset)
        self._unclosed.add(queue_offset)
        self._gather()

    def _gather(self) -> None:
        if not self._is_gathering:
            self._is_gathering = True
            self._loop.call_soon(self._close_gathered)

    def _close_gathered(self) -> None:
        self._is_gathering = False
        if self._stopped is not None:
            # The next master finds the messages.
            return
        try:
            self._write_ops()
        except (StoreError, NotRunning) as error:
            self._logs.warning(
                "gathered", f"cannot note the end of {len(self._unclosed)} transactions now: {error}; retrying"
            )

    def _write_ops(self) -> None:
        """Write what is left of ``_unclosed``, as far as a turn has time. Raises ``StoreError`` or ``NotRunning``."""
        unclosed = self._unclosed
        for _ in range(_BATCHES_MAX):
            if len(unclosed) <= 1:
                break
            # Not sorted as a whole: after a full disk, a million may wait.
            closed = sorted(itertools.islice(unclosed, _OPS_MAX))
            self._ops.write_all(closed)
            self.ledger.ops_written(closed)
            unclosed.difference_update(closed)
        if len(unclosed) == 1:
            [queue_offset] = unclosed
            self._write_op(queue_offset)
            unclosed.remove(queue_offset)

    # --- In doubt ---------------------------------------------------------------------------------------------------

    def is_in_doubt(self, queue_offset: int) -> bool:
        """Whether the message of an open half may have been stored before this term, and was not searched yet.

        It is searched once (``is_committed``): what is stored later is stored by ``end``, which searches by itself.
        """
        return queue_offset in self._unsearched

    async def is_committed(self, half: Half) -> bool:
        """Whether the message of such a half is stored, so that the half has only to be closed. Raises
        ``SystemBusy``."""
        is_stored = self._search.look(half)
        if is_stored is None:
            async with self._search.known(half) as is_stored:
                pass
        self._unsearched.discard(half.queue_offset)
        return is_stored

    # --- What the checker does with halves --------------------------------------------------------------------------

    def find(self, queue_offset: int) -> Awaitable[tuple[Record, Half] | None] | tuple[Record, Half] | None:
        """An open half; None if it is closed by now or cannot be read, and then it is closed. Awaited if it is cold."""
        log_offset = self.ledger.open.get(queue_offset)
        if log_offset is None:
            return None
        cold = self.store.cold.record(log_offset)
        if cold is not None:
            return self._find_cold(queue_offset, log_offset, asyncio.wrap_future(cold))
        return self._examine(queue_offset, self.store.record_at(log_offset))

    async def _find_cold(
        self, queue_offset: int, log_offset: int, cold: Awaitable[bytes | None]
    ) -> tuple[Record, Half] | None:
        page: Buffer | None
        try:
            page = await cold
        except StoreError:
            page = self.store.record_at(log_offset)
        return self._examine(queue_offset, page)

    def _examine(self, queue_offset: int, page: Buffer | None) -> tuple[Record, Half] | None:
        ledger = self.ledger
        if queue_offset not in ledger.open:
            return None
        why = "it was deleted from the log"
        try:
            if page is not None:
                record = unpack_record(page)
                if record.topic == names.HALF_TOPIC and record.queue_offset == queue_offset:
                    half = halves.read_half(record)
                    if half.first != queue_offset and ledger.current(half.first, half.first) != queue_offset:
                        # Of an earlier term, that may have died before its original was closed.
                        older = ledger.copied(half.first, queue_offset, record.log_offset)
                        if older is not None:
                            self.close(older)
                    return (record, half) if queue_offset in ledger.open else None
                why = "there is another record in its place"
        except CorruptRecord as error:
            why = str(error)
        log.error("the half message at queue offset %d cannot be read and is dropped: %s", queue_offset, why)
        self.close(queue_offset)
        return None

    def copy(self, record: Record, half: Half, *, checks: int, since_ms: int | None = None) -> Half:
        """Write an open half again, at the end of its queue. Raises ``StoreError`` or ``NotRunning``."""
        self._catch_up_all()
        placed = self.store.put(halves.copy(record, half, checks=checks, since_ms=since_ms))
        was_in_doubt = half.queue_offset in self.in_doubt
        self.ledger.copied(half.first, placed.queue_offset, placed.log_offset)
        self.close(half.queue_offset)
        if was_in_doubt:
            self.in_doubt.add(placed.queue_offset)
        return Half(
            queue_offset=placed.queue_offset,
            log_offset=placed.log_offset,
            first=half.first,
            topic=half.topic,
            queue_id=half.queue_id,
            group=half.group,
            unique_key=half.unique_key,
            checks=checks,
            immunity_ms=half.immunity_ms,
            born_time_ms=half.born_time_ms,
            store_time_ms=placed.store_time_ms,
            since_ms=placed.store_time_ms if since_ms is None else since_ms,
        )

    def discard(self, record: Record, half: Half, why: str) -> None:
        """Give a half up: its record goes to another topic, where an administrator finds it."""
        self._make_discard_topic()
        self.store.put(halves.discarded(record))
        self.close(half.queue_offset)
        log.error(
            "the transaction %s of group %s to topic %s is discarded to %s: %s",
            half.unique_key,
            half.group,
            half.topic,
            names.CHECK_MAX_TOPIC,
            why,
        )

    async def resume(self, log_offset: int, offset_id: str) -> None:
        """Check a discarded half again, from the first time on (323)."""
        _, half = _discarded(await self.read(log_offset), offset_id)
        async with self._search.known(half) as was_committed:
            if was_committed:
                raise _was_committed(half)
            record, _ = _discarded(await self.read(log_offset), offset_id)
            if self._stopped is not None:
                raise self._stopped
            self._catch_up_all()
            placed = self.store.put(halves.resumed(record))
            self._catch_up_all()
        # It may be resumed twice, and committed once.
        self.in_doubt.add(placed.queue_offset)

    # --- Progress ---------------------------------------------------------------------------------------------------

    def tend(self) -> None:
        """To be called every second: read what is new, write what could not be written, note the progress."""
        try:
            self._catch_up_all()
            self._write_ops()
            self._move_oldest()
        except (StoreError, NotRunning) as error:
            log.debug("cannot tend the open transactions now: %s", error)
        self._note_progress()

    def _move_oldest(self) -> None:
        """Move halves that have waited long to the end of the queue, when much was read past them."""
        ledger = self.ledger
        if ledger.lag <= max(LAG_MAX, _LAG_PER_OPEN * len(ledger.open)):
            return
        for queue_offset in ledger.oldest(_MOVES_MAX):
            found = self._examine(queue_offset, self.store.record_at(ledger.open[queue_offset]))
            if found is not None:
                record, half = found
                # One whose copy does not fit stays; the others are moved.
                with suppress(RecordRefused):
                    self.copy(record, half, checks=half.checks, since_ms=half.since_ms)

    def _note_progress(self) -> None:
        if self._to_note is not None and self.store.safe.value >= self._to_note[2]:
            half_offset, op_offset, _ = self._to_note
            self._to_note = None
            for topic, queue_offset in ((names.HALF_TOPIC, half_offset), (names.OP_HALF_TOPIC, op_offset)):
                if self._offsets.get(GROUP, topic, QUEUE_ID) != queue_offset:
                    self._offsets.commit(GROUP, topic, QUEUE_ID, queue_offset)
        if self._to_note is None:
            self._to_note = (*self.ledger.progress(keep=self._unclosed), self.store.written)

    def _page(self, entry: QueueEntry) -> memoryview | None:
        return self.store.record_at(entry.log_offset, entry.size)


def _discarded(page: Buffer | None, offset_id: str) -> tuple[Record, Half]:
    try:
        record = unpack_record(page) if page is not None else None
        if record is None or record.topic != names.CHECK_MAX_TOPIC:
            raise SystemFailure(
                f"there is no discarded half message {offset_id!r}; give the offset id of a message of "
                f"{names.CHECK_MAX_TOPIC}"
            )
        return record, halves.read_half(record)
    except CorruptRecord as error:
        raise SystemFailure(f"the message {offset_id!r} cannot be checked again: {error}") from None


def _no_half(ending: Ending) -> SystemFailure:
    return SystemFailure(
        f"Find prepared transaction message failed: there is no half message at {ending.log_offset}; it was deleted, "
        "or belongs to another broker"
    )


def _was_committed(half: Half) -> SystemFailure:
    return SystemFailure(f"the transaction {half.unique_key} was committed before; its message is in {half.topic}")
