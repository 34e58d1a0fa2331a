"""Where a message is stored, and when its sender may be told (C6, E1).

Everything that comes from outside and becomes a record passes here: sends, batches, messages sent back. *Redirects* see
a draft first and may change where it goes (a delayed message goes to a system topic until it is due); then the store
gives it its place. Each redirect has a mark, a text without which the properties do not concern it: a plain message
costs one search for each mark, and no call.

A sender is answered when its record is safe (``store.durable.safety``). Under ASYNC_FLUSH on a single broker that is at
once. Under SYNC_FLUSH it is when the log is on disk up to the record's end, after 5 s, or when the disk has failed:
FLUSH_DISK_TIMEOUT, the message is stored but a power cut could still take it. No task waits for a single message: the
store keeps the senders in order, and one timer here watches the first deadline.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from ternmq.broker.config import BrokerConfig
from ternmq.errors import (
    DiskFull,
    MessageIllegal,
    NotRunning,
    RecordRefused,
    ServiceNotAvailable,
    StoreError,
    SystemBusy,
    TernError,
)
from ternmq.store.durable.safety import Answer, WaitingRun
from ternmq.store.log.batch import BatchPart, PlacedBatch
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.store import MessageStore

if TYPE_CHECKING:
    from ternmq._native import SendTerms

#: More than a run has (``native/src/sends.rs``).
RUN_SENDS_MAX: Final = 1024

#: Changes where a draft goes, or leaves it alone.
Redirect = Callable[[Draft], None]


class Intake:
    """All methods belong to the broker's loop."""

    def __init__(
        self, store: MessageStore, *, waiting_max: int, redirects: Mapping[str, Redirect] | None = None
    ) -> None:
        self._put = store.put
        self._put_batch = store.put_batch
        self._put_sent_batch = store.put_sent_batch
        self._run_terms = store.run_terms
        #: Make records of sends of one read, at most ``run_room``; see ``RunWriter.put``.
        self.store_run = store.put_run
        self.store_packed = store.put_packed
        #: Tells by ``is_awaited`` whether a sender has to wait for ``when_safe``.
        self.safety = store.safety
        #: By mark, in order.
        self._redirects = tuple((redirects or {}).items())
        self._waiting_max = waiting_max
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def apply(self, config: BrokerConfig) -> None:
        self._waiting_max = config.send_thread_pool_queue_capacity

    def store(self, draft: Draft) -> Placed:
        """Make a record of a draft. Raises ``MessageIllegal``, ``ServiceNotAvailable`` (disk full), ``SystemBusy``, or
        what a level of safety refuses with."""
        if self.safety.is_guarded:
            self._check_write()
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
        parcels: Callable[[], Sequence[BatchPart]],
        *,
        sent: bytes | None,
        count_max: int,
        born_time_ms: int,
        born_host: bytes,
        sysflag: int,
        more_properties: bytes,
    ) -> PlacedBatch:
        """Make records of messages of one queue, with consecutive queue offsets: all, or none. Raises as ``store``.

        ``sent`` is the batch as it came, if all is plain in it; ``parcels`` takes it apart if that is needed, as it is
        for more messages than ``count_max``.
        Redirects do not see them: a batch is neither delayed nor part of a transaction (E6).
        """
        if self.safety.is_guarded:
            self._check_write()
        try:
            placed = None
            if sent is not None:
                placed = self._put_sent_batch(
                    topic,
                    queue_id,
                    sent,
                    count_max=count_max,
                    born_time_ms=born_time_ms,
                    born_host=born_host,
                    sysflag=sysflag,
                    more_properties=more_properties,
                )
            return placed or self._put_batch(
                topic,
                queue_id,
                parcels(),
                born_time_ms=born_time_ms,
                born_host=born_host,
                sysflag=sysflag,
                more_properties=more_properties,
            )
        except (StoreError, NotRunning) as error:
            _refuse(error)

    def run_room(self) -> int:
        """How many sends can be stored one after the other before one must be looked at for the sake of safety: it may
        be refused. Each of them counts as one that waits, whether it does or not."""
        safety = self.safety
        if not safety.is_guarded:
            return RUN_SENDS_MAX
        try:
            safety.check_write()
        except TernError:
            # ``store`` will say it.
            return 0
        return max(min(self._waiting_max - safety.waiting, safety.room(), RUN_SENDS_MAX), 0)

    def run_terms(
        self, more_properties: bytes, marks: Sequence[str], *, passing: Collection[str] = ()
    ) -> SendTerms | None:
        """What runs share, with the marks of the redirects; None if there can be none (``RunWriter.terms``).

        Messages with the marks ``passing`` are meant, and a kernel does what their redirect would do.
        """
        own = [mark.encode() for mark, _ in self._redirects]
        if any(mark in more_properties for mark in own):
            # A redirect looks at every message then.
            return None
        own = [mark.encode() for mark, _ in self._redirects if mark not in passing]
        return self._run_terms(more_properties, [*own, *(mark.encode() for mark in marks)])

    def when_safe(self, end_offset: int, answer: Answer) -> None:
        """Call ``answer`` when the record that ends at ``end_offset`` is safe, or when that takes too long.

        It gets SUCCESS, or the code of the level that is late. If the record is taken back, it gets the code of a
        refusal.
        """
        now = self._loop.time()
        self.safety.wait(end_offset, answer, now)
        self._watch(now)

    def when_all_safe(self, run: WaitingRun) -> None:
        """``when_safe`` for all senders of a run, who are usually answered together."""
        now = self._loop.time()
        self.safety.wait_all(run, now)
        self._watch(now)

    def close(self) -> None:
        """Answer all senders that still wait: their records are not safe."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.safety.give_up()

    def _watch(self, now: float) -> None:
        if self._timer is None or now + self.safety.limit_s < self._timer.when():
            self._set_timer()

    def _look(self) -> None:
        self._timer = None
        self.safety.expire(self._loop.time())
        self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self.safety.deadline
        if deadline is not None:
            self._timer = self._loop.call_at(deadline, self._look)

    def _check_write(self) -> None:
        self.safety.check_write()
        if self.safety.waiting >= self._waiting_max:
            raise SystemBusy(
                f"[PC_SYNCHRONIZED]broker busy, start flow control for a while: {self.safety.waiting} messages "
                "are waiting for the disk"
            )


def _refuse(error: StoreError | NotRunning) -> NoReturn:
    """The one place where a store's error becomes a response code."""
    if isinstance(error, RecordRefused):
        raise MessageIllegal(str(error)) from None
    if isinstance(error, DiskFull | NotRunning):
        raise ServiceNotAvailable(str(error)) from None
    raise error
