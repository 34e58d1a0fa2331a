"""A store with transactions in virtual time, on a disk in memory: what the tests of this package share."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from ternmq import names
from ternmq.broker.tables.offsets import Offsets
from ternmq.delay.levels import DelayLevels
from ternmq.delay.progress import DelayProgress
from ternmq.files import TableFile, do_now
from ternmq.message import Outcome
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.batch import PlacedBatch
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.log.run import RunPacker
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.testing.clock import SimulatedClock
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import simulated_loop
from ternmq.transaction import half as halves
from ternmq.transaction.checker import TransactionChecker
from ternmq.transaction.transactions import CheckRules, Ending, Transactions
from ternmq.types import Buffer
from ternmq.wire.header import Header
from ternmq.wire.record import Record, Sysflag, unpack_record
from ternmq.wire.requests import CheckTransaction
from tests.memory_files import MemoryFiles
from tests.store.small import HOST, draft, small_config

ROOT = Path("/store")
RULES = CheckRules(immunity_ms=6_000, interval_ms=30_000, checks_max=15, wait_max_ms=12 * 3_600_000)
GROUP = "shop"

T = TypeVar("T")


def in_virtual_time(program: Coroutine[Any, Any, T]) -> T:
    with simulated_loop() as loop:
        return loop.run_until_complete(program)


class Killed(Exception):
    """The broker's process ends here."""


class Asked:
    """A producer that keeps what it is asked, or answers it."""

    def __init__(self, answer: Callable[[CheckTransaction, Record], None] | None = None) -> None:
        self.access = None
        self.is_full = False
        self.checks: list[CheckTransaction] = []
        self.records: list[Record] = []
        self._answer = answer

    def call_oneway(self, code: int, header: Header | None = None, body: Buffer = b"") -> None:
        assert isinstance(header, CheckTransaction)
        assert code == 39
        record = unpack_record(body)
        self.checks.append(header)
        self.records.append(record)
        if self._answer is not None:
            self._answer(header, record)


class World:
    """One broker's store and its transactions."""

    def __init__(
        self,
        seed: int = 0,
        *,
        rules: CheckRules = RULES,
        retention_h: int = 72,
        root: Path | None = None,
        **changes: Any,
    ) -> None:
        """``root`` is a directory of the real disk; without it, all is in memory."""
        self.random = Random(seed)
        self.rules = rules
        self.retention_h = retention_h
        self.clock = SimulatedClock(asyncio.get_running_loop())
        self.disk = SimulatedDisk(page_bytes=512)
        self._on_disk = root is not None
        self.files = MemoryFiles()
        self.config = small_config(
            root or ROOT, **{"mapped_file_size_commit_log": 65_536, "max_index_num": 1000, **changes}
        )
        #: The connections of the group's members.
        self.producers: list[Asked] = []
        #: Appends until the process ends; None: it does not.
        self.puts_left: int | None = None
        self._tasks = Tasks()
        self._keys = 0

    def start(self) -> None:
        disk = FileDisk() if self._on_disk else self.disk
        self.store = MessageStore.open(self.config, store_host=HOST, clock=self.clock, disk=disk, threads=False)
        put, put_batch, put_packed = self.store.put, self.store.put_batch, self.store.put_packed

        def count() -> None:
            if self.puts_left is not None:
                if self.puts_left == 0:
                    raise Killed
                self.puts_left -= 1

        def counted(draft: Draft) -> Placed:
            count()
            return put(draft)

        def counted_batch(*arguments: Any, **options: Any) -> PlacedBatch:
            count()
            return put_batch(*arguments, **options)

        def counted_packed(pack: RunPacker, *, answers_at_once: bool = True) -> bool:
            count()
            return put_packed(pack, answers_at_once=answers_at_once)

        self.store.put = counted  # the places where processes die
        self.store.put_batch = counted_batch
        self.store.put_packed = counted_packed
        progress = DelayProgress(
            TableFile(ROOT / "config" / "delayOffset.json", do_now, self.files), self.store, self.clock
        )
        progress.load()
        self.levels = DelayLevels(self.store, progress, clock=self.clock, count=lambda *_: None)
        file, own_file = (
            TableFile(ROOT / "config" / name, do_now, self.files) for name in ("consumerOffset.json", "ownOffset.json")
        )
        self.offsets = Offsets(file, own_file, self.clock)
        self.offsets.load()
        self.transactions = Transactions(
            self.store,
            take_in=self.take_in,
            offsets=self.offsets,
            make_discard_topic=lambda: None,
            clock=self.clock,
            host=HOST,
        )
        self.checker = TransactionChecker(
            self.transactions,
            rules=self.rules,
            producers=lambda group: self.producers if group == GROUP else [],
            clock=self.clock,
            broker_name="broker-a",
            retention_ms=lambda: self.retention_h * 3_600_000,
        )
        self._tasks = Tasks()
        self._tasks.create_task(self._run_checker())
        self._tasks.create_task(_every(5.0, self.offsets.save))
        self._tasks.create_task(_every(0.5, self.store.flush_when_due))
        self._tasks.create_task(_every(1.0, self.store.tick))

    async def _run_checker(self) -> None:
        try:
            await self.checker.run()
        except* Killed:
            self.puts_left = 0

    async def folded(self) -> None:
        await self.transactions.folded()

    async def stop(self) -> None:
        await self._tasks.close()
        self.store.flush_now()
        self.transactions.tend()
        self.offsets.save()
        self.store.close()

    async def kill(self) -> None:
        await self._tasks.close()
        self.puts_left = None
        self.disk.die()

    async def cut_power(self) -> None:
        await self._tasks.close()
        self.puts_left = None
        self.disk.power_cut(self.random)

    def new_key(self) -> str:
        self._keys += 1
        return f"K{self._keys:015d}"

    def take_in(self, draft: Draft) -> Placed:
        halves.redirect(draft)
        self.levels.redirect(draft)
        return self.store.put(draft)

    # --- What producers do ------------------------------------------------------------------------------------------

    def send(self, body: bytes = b"paid", *, group: str = GROUP, topic: str = "orders", **properties: str) -> Ending:
        """Store a half; the ending that would roll it back."""
        key = properties.pop("UNIQ_KEY", "") or self.new_key()
        message = draft(topic, 0, body, UNIQ_KEY=key, TRAN_MSG="true", PGROUP=group, **properties)
        message.sysflag = Sysflag.PREPARED
        message.born_time_ms = self.clock.now_ms()
        placed = self.take_in(message)
        return Ending(group, Outcome.ROLLBACK, placed.log_offset, placed.queue_offset, key)

    def end(self, ending: Ending, outcome: Outcome) -> int:
        """End a transaction, where that takes no search of several turns."""
        ended = self.begin_end(ending, outcome)
        assert isinstance(ended, int)
        return ended

    def begin_end(self, ending: Ending, outcome: Outcome) -> int | Awaitable[int]:
        named = Ending(ending.group, outcome, ending.log_offset, ending.queue_offset, ending.transaction_id)
        return self.transactions.end(named, self.store.record_at(ending.log_offset))

    async def ended(self, ending: Ending, outcome: Outcome) -> int:
        """The same, where it may."""
        ended = self.begin_end(ending, outcome)
        return ended if isinstance(ended, int) else await ended

    def end_and_die(self, ending: Ending, outcome: Outcome, *, puts: int) -> None:
        """End a transaction in a process that dies after so many appends; ``kill`` or ``cut_power`` must follow.

        Where ops are gathered, that may be at the end of this turn.
        """
        self.puts_left = puts
        with suppress(Killed):
            self.end(ending, outcome)

    def answer(self, check: CheckTransaction, outcome: Outcome, *, group: str = GROUP) -> int:
        ending = Ending(group, outcome, check.log_offset, check.queue_offset, check.transaction_id or "")
        return self.end(ending, outcome)

    # --- What is seen -----------------------------------------------------------------------------------------------

    def records(self, topic: str = "orders", queue_id: int = 0) -> list[Record]:
        found: list[Record] = []
        low = self.store.min_offset(topic, queue_id)
        while entries := self.store.entries(topic, queue_id, low + len(found), 100):
            for entry in entries:
                page = self.store.record_at(entry.log_offset, entry.size)
                assert page is not None
                found.append(unpack_record(page))
        return found

    def bodies(self, topic: str = "orders") -> list[bytes]:
        return [bytes(record.body) for record in self.records(topic)]

    @property
    def open(self) -> int:
        self.transactions.catch_up()
        return len(self.transactions.ledger.open)

    @property
    def progress(self) -> tuple[int, int]:
        """Of halves and ops, as it is noted."""
        return (
            self.offsets.get(halves.GROUP, names.HALF_TOPIC, 0),
            self.offsets.get(halves.GROUP, names.OP_HALF_TOPIC, 0),
        )


def texts(records: Iterable[Record]) -> list[bytes]:
    return [bytes(record.body) for record in records]


async def _every(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        work()
