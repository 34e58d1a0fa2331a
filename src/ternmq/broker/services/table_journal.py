"""Changes of topics and groups in the log of a Raft group, so that the next leader has them (P4): they are created,
changed and deleted; a group pops from now on, or pulls; a tool moves its offsets.

::

    leader:     a change is asked for ─▶ record in TERNMQ_SYS_TABLES ─▶ table ─▶ answered when a majority has the record
    follower:   copies the whole tables every few seconds, each with the number of changes in it (``tables.included``)
    new leader: all records are dispatched ─▶ the changes that its tables lack are made, in order ─▶ its term begins

The record comes first. So a message of a topic that was created for it lies behind the record of that topic: a leader
that has the message knows the topic as it was created.

What an administrator asks for is refused if its record cannot be written (``require``), and so is a message whose topic
is created for it. A heartbeat is not (``note``): the next one creates its group and retry topic again.

Retention may delete old records: the tables have files of their own, and the log has what is newer.

A plain broker, and a group with RocketMQ members, have no journal: nothing is written, and nothing is waited for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from ternmq import names
from ternmq.broker.services.intake import Intake
from ternmq.broker.tables.included import Lacking, TableNumbers
from ternmq.env import Clock
from ternmq.errors import NotMaster, ServiceNotAvailable, TernError
from ternmq.rare_log import RareLog
from ternmq.store.log.draft import Draft
from ternmq.store.read.records import queue_records
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.raft import TableChange
from ternmq.wire.codes import ResponseCode
from ternmq.wire.record import Record

log = logging.getLogger(__name__)

#: Changes that are made in one turn of the loop: some ms.
_TURN: Final = 100
_QUEUE: Final = names.TABLES_TOPIC, 0

#: Gets a change, where its record ends, and which tables lack it.
Make = Callable[[TableChange, int, Lacking], None]


class TableJournal:
    """All methods belong to the broker's loop. Give ``open`` and ``shut`` to ``roles.Switch``, if ``is_on``."""

    def __init__(
        self,
        *,
        is_on: bool,
        store: MessageStore,
        intake: Intake,
        numbers: TableNumbers,
        clock: Clock,
        host: bytes,
    ) -> None:
        """``numbers`` are those of the tables, which are loaded."""
        self.is_on = is_on
        self._store = store
        self._intake = intake
        self._numbers = numbers
        self._clock = clock
        self._host = host
        self._logs = RareLog(log, clock.monotonic)
        self._refusal: TernError | None = NotMaster("this broker does not lead its group yet")
        #: Where the last record of this term ends; 0 before the first one.
        self._end = 0
        for table in numbers:
            table.begin(self._dispatched if is_on else None)

    def _dispatched(self) -> int:
        return self._store.max_offset(*_QUEUE)

    # --- As leader ----------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """A term begins: changes can be written. All that were committed are folded."""
        self._refusal = None
        self._end = 0
        for table in self._numbers:
            table.lead()

    def shut(self, reason: TernError) -> None:
        """The term is over. Changes that no majority has may be taken back."""
        self._refusal = reason
        for table in self._numbers:
            table.follow()

    def require(self, change: TableChange) -> None:
        """Write a change, which the caller makes when this returns. Raises as ``Intake.store``, and ``NotMaster``."""
        if not self.is_on:
            return
        if self._refusal is not None:
            raise NotMaster(f"topics and groups are changed on the leader of the group only: {self._refusal}")
        draft = Draft(*_QUEUE, encode(change), "", self._clock.now_ms(), self._host)
        self._end = self._intake.store(draft).end_offset

    def note(self, change: TableChange) -> None:
        """Write a change that clients cause, if that is possible now. The caller makes it in any case."""
        if self._refusal is not None:
            return
        try:
            self.require(change)
        except TernError as error:
            self._logs.warning(
                "note", f"a topic or group is created, and the log does not take it: {error}; its next use creates it"
            )

    async def safe(self) -> None:
        """Wait until all changes of this term are on a majority. Raises ``ServiceNotAvailable``."""
        if not self._end:
            return
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def answer(code: int) -> None:
            # The caller may be gone.
            if not answered.done():
                answered.set_result(code)

        if self._refusal is None:
            self._intake.when_safe(self._end, answer)
        # The term may have ended before this call: what the log has at that offset now may be another record.
        if self._refusal is not None or await answered != ResponseCode.SUCCESS:
            raise ServiceNotAvailable(
                "the change is not on a majority of the group; it may still be made by the next leader. Ask for it "
                "again, and make it once more if it is missing"
            )

    # --- As next leader -----------------------------------------------------------------------------------------------

    async def fold(self, make: Make) -> None:
        """Make the changes that can be read, and that tables lack: ``make`` gets each, where its record ends, and which
        tables lack it.

        A change that cannot be made is logged and left out.
        """
        if not self.is_on:
            return
        counts = [table.count or 0 for table in self._numbers]
        number = 0
        for _, record in queue_records(self._store, *_QUEUE, min(counts)):
            if record is None:
                continue
            self._fold(record, make)
            number += 1
            if not number % _TURN:
                await asyncio.sleep(0)
        if number:
            log.info("%d changes of topics and groups were read from the log", number)

    def _fold(self, record: Record, make: Make) -> None:
        lacking = Lacking(*(table.fold(record.queue_offset) for table in self._numbers))
        try:
            make(decode(record.body, TableChange), record.log_offset + record.size, lacking)
        except TernError as error:
            log.warning("a change of topics or groups at log offset %d is left out: %s", record.log_offset, error)
