"""Check-back (J2): asks producers about transactions that they did not end.

Every ``interval_ms`` all open halves are looked at, in slices. What happens to one:

    younger than its immunity                              nothing; moved before its segment is deleted
    its message is stored (see ``transactions``)           it is closed
    checked ``checks_max`` times                           discarded
    a producer of its group is connected                   copied to the end of its queue with one check more, and asked
    none is connected, for ``wait_max_ms``                 discarded
    none is connected                                      nothing: it waits

RocketMQ counts a check also when there is no producer to be asked: fifteen checks later, after seven and a half minutes
without one, the message is lost. And it writes all halves again each time. Here only a check that was written to a
connection counts, and a half that cannot be asked about stays where it is.

A producer is asked by a one-way CHECK_TRANSACTION_STATE, and answers by an ordinary END_TRANSACTION. The members of a
group are asked in turn, so one that does not answer is not asked again at once. Checks are paced: a client keeps a few
thousand of them at most.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from sys import intern
from typing import Final, NamedTuple, Protocol

from ternmq.env import Clock
from ternmq.errors import NetworkError, NotRunning, RecordRefused, StoreError, SystemBusy, TernError, TooManyCalls
from ternmq.net.gate import Rights
from ternmq.transaction import half as halves
from ternmq.transaction.half import Half
from ternmq.transaction.ledger import page_of
from ternmq.transaction.transactions import CheckRules, Transactions
from ternmq.types import Buffer
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Header
from ternmq.wire.ids import offset_id
from ternmq.wire.record import Record
from ternmq.wire.requests import CheckTransaction

log = logging.getLogger(__name__)

#: Open halves that are looked at in a row; there may be a million.
_SLICE: Final = 50
#: Checks that are sent in a row, and the pause after them: 500 a second.
_BURST: Final = 50
_BURST_PAUSE_S: Final = 0.1
_TEND_S: Final = 1.0


class ProducerPeer(Protocol):
    """The connection of a producer; a ``Peer``."""

    @property
    def access(self) -> Rights | None: ...

    @property
    def is_full(self) -> bool: ...

    def call_oneway(self, code: int, header: Header | None = None, body: Buffer = b"") -> None: ...


class _Waiting(NamedTuple):
    """What was found out about a half that was not checked: enough to leave it alone next time, too."""

    group: str
    due_ms: int
    since_ms: int


class TransactionChecker:
    """The runner of one term (``broker.roles.Runner``)."""

    def __init__(
        self,
        transactions: Transactions,
        *,
        rules: CheckRules,
        producers: Callable[[str], Sequence[ProducerPeer]],
        may_ask: Callable[[ProducerPeer, str], bool] | None = None,
        clock: Clock,
        broker_name: str,
        retention_ms: Callable[[], int],
    ) -> None:
        """``producers`` are the connections of a group's members; ``may_ask`` tells which of them may get messages of a
        topic, as every client can say that it is of a group. After ``retention_ms``, which may change, the log may be
        deleted."""
        self.transactions = transactions
        self._rules = rules
        self._producers = producers
        self._may_ask = may_ask
        self._clock = clock
        self._broker_name = broker_name
        self._retention_ms = retention_ms
        #: By page of the ledger, then by queue offset.
        self._waiting: dict[int, dict[int, _Waiting]] = {}
        #: Checks of halves that cannot be copied.
        self._uncopied: dict[int, int] = {}
        self._turn = 0

    def _move_after_ms(self) -> int:
        """The age at which a half is copied, long before the log forgets it."""
        return self._retention_ms() // 2

    def apply(self, rules: CheckRules) -> None:
        """Go on by other rules; the pause before the next round is the old one."""
        self._rules = rules

    async def run(self) -> None:
        """Fold the queues, then check until cancelled."""
        await self._fold()
        # A group: when one of them fails, both end, and the runner is started again (``broker.roles``).
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._tend_forever())
            tasks.create_task(self._check_forever())

    async def _fold(self) -> None:
        """Fold the queues; while the disk does not let it, try again."""
        while True:
            try:
                await self.transactions.fold()
            except (StoreError, NotRunning) as error:
                log.warning("cannot read the open transactions now: %s; retrying", error)
            else:
                return
            await asyncio.sleep(_TEND_S)

    def stop(self, reason: TernError) -> None:
        self.transactions.stop(reason)

    async def _tend_forever(self) -> None:
        while True:
            await asyncio.sleep(_TEND_S)
            self.transactions.tend()

    async def _check_forever(self) -> None:
        while True:
            await asyncio.sleep(self._rules.interval_ms / 1000)
            await self.check_all()

    async def check_all(self) -> None:
        """Look at all halves that are open now, in order."""
        transactions = self.transactions
        try:
            await transactions.caught_up()
        except (StoreError, NotRunning) as error:
            log.warning("cannot read the open transactions now: %s; retrying", error)
            return
        ledger = transactions.ledger
        pages, end = ledger.pages(), ledger.next_half
        self._waiting = {page: self._waiting[page] for page in pages if page in self._waiting}
        self._uncopied = {at: checks for at, checks in self._uncopied.items() if at in ledger.open}
        sent = 0
        open_halves = itertools.chain.from_iterable(map(self._on_page, pages))
        for number, queue_offset in enumerate(open_halves, 1):
            # Copies of those before are written behind the end.
            if queue_offset >= end:
                return
            if number % _SLICE == 0:
                await asyncio.sleep(0)
            try:
                sent += await self._check(queue_offset)
            except RecordRefused as error:
                # This one cannot be written again; the others can.
                log.debug("the half at queue offset %d cannot be moved: %s", queue_offset, error)
            except (StoreError, NotRunning, SystemBusy) as error:
                log.warning("cannot check open transactions now: %s; retrying", error)
                return
            if sent >= _BURST:
                sent = 0
                await asyncio.sleep(_BURST_PAUSE_S)

    def _on_page(self, page: int) -> list[int]:
        """The open halves of a page; what was noted of others is forgotten."""
        found = self.transactions.ledger.on_page(page)
        if page in self._waiting:
            noted = self._waiting[page]
            self._waiting[page] = {at: noted[at] for at in found if at in noted}
        return found

    def _note(self, half: Half, due_ms: int, now_ms: int) -> None:
        # The clock may be behind where it was.
        waiting = _Waiting(intern(half.group), due_ms, min(half.since_ms, now_ms))
        self._waiting.setdefault(page_of(half.queue_offset), {})[half.queue_offset] = waiting

    async def _check(self, queue_offset: int) -> int:
        """Do with one half what is to be done; how many checks were sent."""
        now_ms = self._clock.now_ms()
        waiting = self._waiting.get(page_of(queue_offset), {}).get(queue_offset)
        if waiting is not None and self._is_left_alone(waiting, now_ms):
            return 0
        found = self.transactions.find(queue_offset)
        if found is not None and not isinstance(found, tuple):
            found = await found
        if found is None:
            return 0
        record, half = found
        due_ms = self._due_ms(half)
        # A clock that was set back must not make it wait for longer than it would have.
        if due_ms > now_ms >= half.store_time_ms:
            move_ms = half.store_time_ms + self._move_after_ms()
            if move_ms <= now_ms:
                # Its producer asks for a longer immunity than its segment lives.
                self.transactions.copy(record, half, checks=half.checks, since_ms=half.since_ms)
            else:
                self._note(half, min(due_ms, move_ms), now_ms)
            return 0
        if self.transactions.is_in_doubt(queue_offset):
            if not await self.transactions.is_committed(half):
                # The search took some turns: the half may be closed, and its record gone.
                return await self._check(queue_offset)
            if queue_offset in self.transactions.ledger.open:
                self.transactions.close(queue_offset)
            return 0
        checks = half.checks + self._uncopied.get(queue_offset, 0)
        if checks >= self._rules.checks_max:
            self.transactions.discard(record, half, f"it was checked {checks} times without a result")
            return 0
        producer = self._next_producer(half.group, half.topic)
        if producer is None:
            self._wait(record, half, now_ms)
            return 0
        return self._ask(producer, record, half)

    def _due_ms(self, half: Half) -> int:
        """When a half may be checked. A copy was checked when it was written, and the next round is an interval later;
        half of one is enough to tell it from a round that a restart repeats."""
        if half.checks:
            return half.store_time_ms + self._rules.interval_ms // 2
        return half.since_ms + max(half.immunity_ms, self._rules.immunity_ms)

    def _is_left_alone(self, waiting: _Waiting, now_ms: int) -> bool:
        """Whether it is still too early for a check, or there is still no producer, and nothing else to do about it."""
        age_ms = now_ms - waiting.since_ms
        if age_ms < 0:
            # The clock was set back.
            return False
        is_over = age_ms >= min(self._rules.wait_max_ms, self._move_after_ms())
        return waiting.due_ms > now_ms or (not is_over and not self._producers(waiting.group))

    def _wait(self, record: Record, half: Half, now_ms: int) -> None:
        due_ms = self._due_ms(half)
        if now_ms - max(half.since_ms, due_ms) >= self._rules.wait_max_ms:
            self.transactions.discard(
                record, half, f"no producer of its group was connected for {self._rules.wait_max_ms // 60_000} minutes"
            )
        elif now_ms - half.store_time_ms >= self._move_after_ms():
            # Or it would be deleted with its segment.
            self.transactions.copy(record, half, checks=half.checks, since_ms=half.since_ms)
        else:
            self._note(half, min(due_ms, now_ms), now_ms)

    def _next_producer(self, group: str, topic: str) -> ProducerPeer | None:
        """The member of a group whose turn it is, that reads what it is sent, and may have the message."""
        members = [
            member
            for member in self._producers(group)
            if not member.is_full and (self._may_ask is None or self._may_ask(member, topic))
        ]
        self._turn += 1
        return members[self._turn % len(members)] if members else None

    def _ask(self, producer: ProducerPeer, record: Record, half: Half) -> int:
        try:
            asked = self.transactions.copy(record, half, checks=half.checks + 1)
        except RecordRefused:
            # The properties of a copy do not fit. Checks of such a half are counted in memory.
            asked = half
            self._uncopied[half.queue_offset] = self._uncopied.get(half.queue_offset, 0) + 1
        header = CheckTransaction(
            topic=asked.topic,
            queue_offset=asked.queue_offset,
            log_offset=asked.log_offset,
            message_id=asked.unique_key,
            transaction_id=asked.unique_key,
            offset_id=offset_id(record.store_host, asked.log_offset),
            broker_name=self._broker_name,
        )
        try:
            producer.call_oneway(RequestCode.CHECK_TRANSACTION_STATE, header, halves.check_body(record, asked))
        except (NetworkError, TooManyCalls) as error:
            log.info("cannot ask a producer of group %s about transaction %s: %s", half.group, half.unique_key, error)
        return 1
