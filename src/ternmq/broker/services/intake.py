"""Where a message is stored, and when its sender may be told (C6, E1).

Everything that comes from outside and becomes a record passes here: sends, batches, messages sent back. *Redirects* see
a draft first and may change where it goes (a delayed message goes to a system topic until it is due); then the store
gives it its place. Each redirect has a mark, a text without which the properties do not concern it: a plain message
costs one search for each mark, and no call.

Under ASYNC_FLUSH the sender is told at once. Under SYNC_FLUSH it is told when the log is on disk up to the record's
end, or after 5 s, or when the disk has failed: FLUSH_DISK_TIMEOUT, the message is stored but a power cut could still
take it. No task waits for a single message: who waits stands in a queue in the order of arrival, which is also that of
the deadlines, and one timer watches its head.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from ternmq.errors import (
    DiskFull,
    MessageIllegal,
    NotRunning,
    RecordRefused,
    ServiceNotAvailable,
    StoreError,
    SystemBusy,
)
from ternmq.store.log.batch import Parcel, PlacedBatch
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.store import MessageStore
from ternmq.wire.codes import ResponseCode

#: Changes where a draft goes, or leaves it alone.
Redirect = Callable[[Draft], None]
#: Gets SUCCESS or FLUSH_DISK_TIMEOUT.
Answer = Callable[[int], None]


class Intake:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        store: MessageStore,
        *,
        waits_for_disk: bool,
        timeout_ms: int,
        waiting_max: int,
        redirects: Mapping[str, Redirect] | None = None,
    ) -> None:
        self._put = store.put
        self._put_batch = store.put_batch
        self._flushed = store.flushed
        #: By mark, in order.
        self._redirects = tuple((redirects or {}).items())
        #: Whether a sender may have to wait for ``when_safe``.
        self.waits = waits_for_disk
        self._timeout_s = timeout_ms / 1000
        self._waiting_max = waiting_max
        self._waiting: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def store(self, draft: Draft) -> Placed:
        """Make a record of a draft. Raises ``MessageIllegal``, ``ServiceNotAvailable`` (disk full), ``SystemBusy``."""
        if len(self._waiting) >= self._waiting_max:
            self._refuse_busy()
        for mark, redirect in self._redirects:
            if mark in draft.properties:
                redirect(draft)
        try:
            return self._put(draft)
        except (StoreError, NotRunning) as error:
            _refuse(error)

    def store_batch(
        self,
        topic: str,
        queue_id: int,
        parcels: Sequence[Parcel],
        *,
        born_time_ms: int,
        born_host: bytes,
        sysflag: int,
        more_properties: bytes,
    ) -> PlacedBatch:
        """Make records of messages of one queue, with consecutive queue offsets: all, or none. Raises as ``store``.

        Redirects do not see them: a batch is neither delayed nor part of a transaction (E6).
        """
        if len(self._waiting) >= self._waiting_max:
            self._refuse_busy()
        try:
            return self._put_batch(
                topic,
                queue_id,
                parcels,
                born_time_ms=born_time_ms,
                born_host=born_host,
                sysflag=sysflag,
                more_properties=more_properties,
            )
        except (StoreError, NotRunning) as error:
            _refuse(error)

    def when_safe(self, end_offset: int, answer: Answer) -> None:
        """Call ``answer`` when the log is on disk up to ``end_offset``, or when that takes too long."""
        waiting = _Waiting(answer, self._loop.time() + self._timeout_s)
        ticket = self._flushed.call_when(end_offset, waiting.reached)
        if waiting.answer is None:
            return
        waiting.ticket = ticket
        self._forget_served()
        self._waiting.append(waiting)
        if self._timer is None:
            self._timer = self._loop.call_at(waiting.deadline, self._look)

    def give_up(self) -> None:
        """The disk has failed: answer all who wait now, as it will not serve them later either."""
        self._give_up_before(float("inf"))

    def close(self) -> None:
        """Answer all who still wait: the disk does not have theirs."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._give_up_before(float("inf"))

    def _look(self) -> None:
        self._timer = None
        self._give_up_before(self._loop.time())
        if self._waiting:
            self._timer = self._loop.call_at(self._waiting[0].deadline, self._look)

    def _give_up_before(self, now: float) -> None:
        waiting = self._waiting
        while waiting and (waiting[0].answer is None or waiting[0].deadline <= now):
            late = waiting.popleft()
            if late.answer is not None:
                self._flushed.forget(late.ticket)
                late.answer(ResponseCode.FLUSH_DISK_TIMEOUT)

    def _forget_served(self) -> None:
        # They stand at the head: the disk serves in the order of arrival, too.
        waiting = self._waiting
        while waiting and waiting[0].answer is None:
            waiting.popleft()

    def _refuse_busy(self) -> None:
        self._forget_served()
        if len(self._waiting) >= self._waiting_max:
            raise SystemBusy(
                f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {len(self._waiting)} messages "
                "are waiting for the disk"
            )


class _Waiting:
    """A sender that waits for the disk; ``answer`` is None once it was called."""

    __slots__ = ("answer", "deadline", "ticket")

    def __init__(self, answer: Answer, deadline: float) -> None:
        self.answer: Answer | None = answer
        self.deadline = deadline
        self.ticket = 0

    def reached(self) -> None:
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(ResponseCode.SUCCESS)


def _refuse(error: StoreError | NotRunning) -> NoReturn:
    """The one place where a store's error becomes a response code."""
    if isinstance(error, RecordRefused):
        raise MessageIllegal(str(error)) from None
    if isinstance(error, DiskFull | NotRunning):
        raise ServiceNotAvailable(str(error)) from None
    raise error
