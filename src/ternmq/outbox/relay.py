"""The relay: takes messages that are due out of a table, sends them, and deletes them (J3).

Any number of relays can work on one table, in applications and as processes (``tern outbox relay``). One round is

1. *take*: rows that are due get this relay as their owner until the end of its lease (``table``);
2. *send*: in batches, in order per key (``sending``);
3. *settle*: what was sent is deleted, what failed waits or dies (``rules``), what was not tried is given back.

A relay that dies between 2 and 3 leaves rows that were sent: another one sends them again after the lease. That is the
«at least» of «at least once»; both copies have the same id.

An application's relay also gets messages straight from its commits, without a take: they were inserted with this relay
as their owner. Before it sends them, it asks the table whether they are there. Only that tells what was committed: a
commit may have been that of an inner transaction, and a savepoint may have been rolled back past the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Final, Protocol, TypeVar

from ternmq.env import Env, unpredictable
from ternmq.errors import OutboxFailed, OutboxMissing
from ternmq.outbox.config import OutboxConfig
from ternmq.outbox.entry import NewRow
from ternmq.outbox.rules import FailedAttempt, Failure, backoff_ms, failure_of, judge, reason_of
from ternmq.outbox.sending import Results, RowSending
from ternmq.outbox.table import Execute, OutboxTable
from ternmq.rare_log import RareLog
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

T = TypeVar("T")

#: Of its lease, what a relay leaves for storing the results.
_SETTLE_SHARE: Final = 0.25
#: From so many committed messages a millisecond on, rounds are further apart: each costs the same, whatever it sends.
_BUSY_A_MS: Final = 0.5
#: So much further.
_BUSY_TIMES: Final = 5
#: Rows behind a dead one are looked at after so many of the longest back-offs, should it be gone by then.
_HOLD_TIMES: Final = 10
#: A database that is back is used soon.
_DATABASE_BACKOFF_MAX_MS: Final = 5_000


class Database(Protocol):
    """A database with an outbox table."""

    @property
    def name(self) -> str:
        """What people are told; without a password."""
        ...

    @property
    def table(self) -> OutboxTable: ...

    async def run(self, work: Callable[[Execute], T], *, is_single: bool = False) -> T:
        """Do ``work`` in one transaction, and commit it. Raises ``OutboxFailed``.

        ``is_single``: it is one statement, which is a transaction by itself.
        """
        ...

    def listen(self) -> contextlib.AbstractAsyncContextManager[Callable[[], Awaitable[None]] | None]:
        """What waits for a notification of the database; None: it has none, or the driver cannot."""
        ...


@dataclass(slots=True)
class Counters:
    """What a relay has done since it began."""

    #: Messages that brokers have, from commits of this process.
    sent_directly: int = 0
    #: Messages that brokers have, from the table.
    sent_later: int = 0
    #: Attempts that failed because no broker could be reached.
    outages: int = 0
    #: Attempts that a broker refused.
    refusals: int = 0
    #: Messages that will not be sent again by themselves.
    buried: int = 0
    #: Messages that were sent when their lease had ended: another relay may have sent them, too.
    leases_lost: int = 0
    #: Attempts to use the database that failed.
    database_failures: int = 0

    @classmethod
    def sum(cls, several: Iterable[Counters]) -> Counters:
        """What several relays have done together."""
        each = [one.as_dict() for one in several]
        return cls(**{one.name: sum(counts[one.name] for counts in each) for one in fields(cls)})

    def as_dict(self) -> dict[str, int]:
        return {one.name: getattr(self, one.name) for one in fields(self)}


def gather_ms(rows: int, *, passed_ms: float, config: OutboxConfig) -> float:
    """How long after the begin of a round the next one begins, at the earliest, if so many messages were committed in
    the time that has ``passed_ms`` before it. Pure.
    """
    is_busy = rows >= _BUSY_A_MS * passed_ms
    # A quarter of the lease: there must be time left to send.
    return min(config.gather_ms * (_BUSY_TIMES if is_busy else 1), config.lease_ms / 4)


class Relay:
    """Relays the messages of one database; runs inside its block.

    Args:
        database: The database.
        sending: What sends.
        config: Settings.
        env: Clock.
    """

    def __init__(self, database: Database, sending: RowSending, *, config: OutboxConfig, env: Env) -> None:
        self.database = database
        self.counters = Counters()
        #: Owner of what this process has inserted; those of takes begin with it.
        self.owner = unpredictable(12)
        self._sending = sending
        self._config = config
        self._clock = env.clock
        #: What this process has committed. Its threads add to it, and wake the loop only if the relay would not look
        #: by itself: to wake it for each commit costs more than what the relay does for it.
        self._lock = threading.Lock()
        self._committed: deque[NewRow] = deque()
        self._committed_bytes = 0
        self._is_waiting = False
        self._is_gathering = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._has_committed = asyncio.Event()
        self._is_due = asyncio.Event()
        self._idle = asyncio.Event()
        self._takes = 0
        #: When the last round of committed messages began, in monotonic seconds, and how long to gather for the next.
        self._round_began = -math.inf
        self._gather_s = 0.0
        #: Set when a round shall not wait for more: there is enough, or this is the end.
        self._hurries = asyncio.Event()
        self._is_closing = False
        self._rare_log = RareLog(log, self._clock.monotonic)
        #: Held during a round: the end of the relay waits for it.
        self._in_round = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def running(self, *, sweeps: bool = True) -> AsyncIterator[None]:
        """Relay until the end of the block; what was committed by then is sent first, if that takes not too long."""
        self._loop = asyncio.get_running_loop()
        async with Tasks() as tasks:
            tasks.create_task(self._forever(self._send_committed))
            if sweeps:
                tasks.create_task(self._forever(self._sweep_and_wait))
                tasks.create_task(self._forever(self._listen))
            try:
                yield
            finally:
                self._is_closing = True
                self._hurries.set()
                with contextlib.suppress(TimeoutError, OutboxFailed):
                    async with asyncio.timeout(self._config.close_timeout_ms / 1000):
                        await self._drained(sweeps=sweeps)
        await self._give_back()

    # --- Messages of this process ----------------------------------------------------------------------------

    @property
    def has_room(self) -> bool:
        """Whether committed messages may be kept in memory. May be called in any thread."""
        return self._committed_bytes < self._config.direct_bytes_max

    def committed(self, entries: Sequence[NewRow]) -> None:
        """Send entries that were inserted with ``owner``. May be called in any thread of the process."""
        size = sum(entry.size_bytes for entry in entries)
        with self._lock:
            self._committed.extend(entries)
            self._committed_bytes += size
            wakes = self._is_waiting or (self._is_gathering and self._is_full)
            if wakes:
                self._is_waiting = self._is_gathering = False
        if wakes and self._loop is not None:
            # At the end of the program nothing may be left to call.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._look)

    def _look(self) -> None:
        self._idle.clear()
        self._has_committed.set()
        self._hurries.set()

    def wake(self) -> None:
        """Look into the table now. On the loop's thread only."""
        self._is_due.set()

    async def _send_committed(self) -> None:
        with self._lock:
            waits = self._is_waiting = not self._committed
        if waits:
            self._idle.set()
            self._has_committed.clear()
            await self._has_committed.wait()
        await self._gather()
        entries = self._next_committed()
        try:
            if entries:
                await self._deliver_committed(entries)
        finally:
            with self._lock:
                self._committed_bytes -= sum(entry.size_bytes for entry in entries)

    async def _gather(self) -> None:
        """A round is two statements, whatever it sends: while commits follow each other closely, they share one."""
        early_s = self._round_began + self._gather_s - self._clock.monotonic()
        self._hurries.clear()
        with self._lock:
            gathers = self._is_gathering = early_s > 0 and not self._is_full and not self._is_closing
        if gathers:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(early_s):
                    await self._hurries.wait()
            with self._lock:
                self._is_gathering = False
        now = self._clock.monotonic()
        passed_ms, self._round_began = (now - self._round_began) * 1000, now
        self._gather_s = gather_ms(len(self._committed), passed_ms=passed_ms, config=self._config) / 1000

    @property
    def _is_full(self) -> bool:
        """Whether there is enough for a round."""
        return len(self._committed) >= self._config.rows_max or self._committed_bytes >= self._config.bytes_max

    def _next_committed(self) -> list[NewRow]:
        entries: list[NewRow] = []
        total = 0
        with self._lock:
            while self._committed and len(entries) < self._config.rows_max and total < self._config.bytes_max:
                entries.append(self._committed.popleft())
                total += entries[-1].size_bytes
        return entries

    async def _deliver_committed(self, entries: Sequence[NewRow]) -> None:
        until = self._end_of_lease(self._config.lease_ms / 2)
        # Inserted up to half a lease ago: what is left must be enough for a send.
        until_ms = self._clock.now_ms() + self._config.lease_ms // 2
        table = self.database.table
        rows = await self.database.run(
            lambda execute: table.held(execute, entries, owner=self.owner, until_ms=until_ms), is_single=True
        )
        if rows:
            results = await self._sending.send(rows, until=until)
            self.counters.sent_directly += len(results.sent)
            await self._settle(results, owner=self.owner)

    async def deliver(self, entry: NewRow) -> bool:
        """Send one entry that was inserted with ``owner`` and committed. False: it waits in the table."""
        table, until_ms = self.database.table, self._clock.now_ms()
        until = self._end_of_lease(self._config.lease_ms)
        rows = await self.database.run(
            lambda execute: table.held(execute, [entry], owner=self.owner, until_ms=until_ms), is_single=True
        )
        results = await self._sending.send(rows, until=until)
        self.counters.sent_directly += len(results.sent)
        await self._settle(results, owner=self.owner)
        return bool(results.sent)

    # --- Messages of the table -------------------------------------------------------------------------------

    async def sweep(self) -> int:
        """Send all that is due now; returns how many messages were sent. Raises ``OutboxFailed``."""
        total = 0
        while True:
            async with self._in_round:
                sent, cleared = await self._round()
            total += sent
            # Those that failed wait. While no broker can be reached, the others are not tried, either.
            if not sent and not cleared:
                return total

    async def _sweep_and_wait(self) -> None:
        self._is_due.clear()
        await self.sweep()
        # Not wait_for: before Python 3.12 it loses a cancellation that comes together with the event.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._config.sweep_interval_ms / 1000):
                await self._is_due.wait()

    async def _round(self) -> tuple[int, int]:
        """Returns how many messages were sent, and how many others are out of the way now: dead, or postponed."""
        self._takes += 1
        config, table, owner = self._config, self.database.table, f"{self.owner}.{self._takes}"
        until, now_ms = self._end_of_lease(config.lease_ms), self._clock.now_ms()
        rows, postponed = await self.database.run(
            lambda execute: table.take(
                execute,
                owner=owner,
                now_ms=now_ms,
                lease_ms=config.lease_ms,
                rows_max=config.rows_max,
                bytes_max=config.bytes_max,
                hold_ms=config.backoff_max_ms * _HOLD_TIMES,
            )
        )
        if not rows:
            return 0, postponed
        results = await self._sending.send(rows, until=until)
        self.counters.sent_later += len(results.sent)
        return len(results.sent), postponed + await self._settle(results, owner=owner)

    async def _listen(self) -> None:
        async with self.database.listen() as notified:
            if notified is None:
                await asyncio.Event().wait()
                return
            while True:
                # Also at first: nothing was heard before.
                self.wake()
                await notified()

    # --- Both ------------------------------------------------------------------------------------------------

    async def _settle(self, results: Results, *, owner: str) -> int:
        """Store what became of rows, in one transaction; returns how many are dead now."""
        now_ms, table = self._clock.now_ms(), self.database.table
        verdicts = [judge(row, error, now_ms=now_ms, config=self._config) for row, error in results.failed]
        self._count(results, verdicts)

        def work(execute: Execute) -> int:
            deleted = table.delete(execute, [row.id for row in results.sent], owner=owner) if results.sent else 0
            if verdicts:
                table.fail(execute, verdicts, owner=owner)
            if results.unsent:
                table.release(execute, [row.id for row in results.unsent], owner=owner)
            return deleted

        deleted = await self.database.run(work, is_single=not verdicts and not results.unsent)
        self.counters.leases_lost += len(results.sent) - deleted
        return sum(verdict.is_dead for verdict in verdicts)

    def _count(self, results: Results, verdicts: Sequence[FailedAttempt]) -> None:
        for (row, error), verdict in zip(results.failed, verdicts, strict=True):
            is_outage = failure_of(error) is Failure.OUTAGE
            self.counters.outages += is_outage
            self.counters.refusals += not is_outage
            self.counters.buried += verdict.is_dead
            if verdict.is_dead:
                log.error(
                    "message %s to %s in the outbox of %s is dead after %d refusals: %s",
                    row.message_id or f"in row {row.id}",
                    row.topic,
                    self.database.name,
                    verdict.refusals,
                    verdict.error,
                )
        if results.failed and any(not verdict.is_dead for verdict in verdicts):
            row, error = results.failed[0]
            self._rare_log.warning(
                "failed",
                f"{len(results.failed)} messages in the outbox of {self.database.name} could not be sent now, such as "
                f"one to {row.topic}: {reason_of(error)}; they wait",
            )

    async def _forever(self, step: Callable[[], Awaitable[None]]) -> None:
        """Repeat a step; while the database fails, less and less often."""
        failures = 0
        while True:
            try:
                await step()
                failures = 0
            except OutboxFailed as error:
                failures += 1
                self.counters.database_failures += 1
                level = logging.ERROR if isinstance(error, OutboxMissing) else logging.WARNING
                if failures == 1:
                    log.log(level, "%s; trying again until it works", error)
            except Exception:
                # A mistake of ours, or of a driver: a relay that ended would leave all messages without a word.
                failures += 1
                log.exception("the relay of %s failed; trying again", self.database.name)
            if failures:
                await asyncio.sleep(min(backoff_ms(failures, self._config), _DATABASE_BACKOFF_MAX_MS) / 1000)

    def _end_of_lease(self, lease_ms: float) -> float:
        return self._clock.monotonic() + lease_ms / 1000 * (1 - _SETTLE_SHARE)

    async def _drained(self, *, sweeps: bool) -> None:
        with self._lock:
            if self._committed:
                # What wakes the relay for it may still be on its way.
                self._idle.clear()
        await self._idle.wait()
        if sweeps:
            # What was committed last may not have been seen yet.
            await self.sweep()
        # Not released: no round begins any more.
        await self._in_round.acquire()

    async def _give_back(self) -> None:
        """Other relays need not wait for the end of our leases."""
        table = self.database.table
        with self._lock:
            entries = list(self._committed)
            self._committed.clear()
        if not entries:
            return

        def work(execute: Execute) -> None:
            rows = table.held(execute, entries, owner=self.owner, until_ms=0)
            if rows:
                table.release(execute, [row.id for row in rows], owner=self.owner)

        with contextlib.suppress(OutboxFailed, TimeoutError):
            async with asyncio.timeout(self._config.close_timeout_ms / 1000):
                await self.database.run(work)
