"""Where check points meet acks (F9): ``checkpoints`` with a clock, a log and the groups' offsets.

A check point begins in memory only. Most are acked within seconds, and never cost a byte of the log. One that is not is
written to the revive log after 10 s, or 3 s before its messages are due, so that it does not hold up the group's
committed offset; acks that come after that are records, too. When the time is over, ``revive`` writes what was not
acked to the retry topic.

What a crash does: a check point that was in memory only is forgotten, and so is every ack of it; but the committed
offset has not passed it, and its messages are popped again. So a crash repeats what was acked in the last seconds,
and loses nothing. A broker that is stopped writes all check points first: it repeats nothing, and handles stay good.

A change of the invisible time makes a new check point of one message, which is written at once, and acks the old one.
A crash between the two leaves both: the message may come twice.

A check point whose messages lie far back in the log waits for its turn in ``run``, which reads them one by one on other
threads.

Bounds: beyond ``popCkMaxBufferSize`` a check point is written at once; beyond ``IN_FLIGHT_MAX`` in all nothing more is
popped (the client is told POLLING_FULL and waits) nor changed (SYSTEM_BUSY).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from typing import Final, Protocol

from ternmq.env import Clock
from ternmq.errors import BrokerRefused, NotRunning, StoreError
from ternmq.pop.checkpoints import CheckPoint, CheckPoints, GroupQueue, PoppedQueue
from ternmq.pop.deadlines import CallLater, Deadlines
from ternmq.pop.revive_log import PopOffsets, PopStore, ReviveLog

log = logging.getLogger(__name__)

#: Check points in memory, written or not; about 500 bytes each.
IN_FLIGHT_MAX: Final = 1_000_000
#: How long until what failed is tried again, in seconds: RocketMQ's table for check points that it puts again.
PAUSES_S: Final = (10, 20, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_WRITE_PAUSE_MS: Final = 1_000


class CanRevive(Protocol):
    """Writes what is open of a check point to the retry topic; raises what the store raises."""

    def is_old(self, check_point: CheckPoint) -> bool:
        """Whether that takes the disk, so that ``revive_old`` must be called."""
        ...

    def revive(self, check_point: CheckPoint) -> None: ...

    async def revive_old(self, check_point: CheckPoint) -> None: ...


class PopBuffer:
    """All methods belong to the broker's loop. Call ``open`` before, and ``close`` after all else."""

    def __init__(
        self,
        *,
        store: PopStore,
        offsets: PopOffsets,
        revive_log: ReviveLog,
        reviver: CanRevive,
        clock: Clock,
        call_later: CallLater,
        enabled: bool = True,
        stay_ms: int = 10_000,
        before_due_ms: int = 3_000,
        count_max: int = 200_000,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._revive_log = revive_log
        self._reviver = reviver
        #: Check points that are due, and whose messages lie far back in the log.
        self._old: asyncio.Queue[CheckPoint] = asyncio.Queue()
        self._now_ms = clock.now_ms
        self.apply(enabled=enabled, stay_ms=stay_ms, before_due_ms=before_due_ms, count_max=count_max)
        self._is_stopped = False
        self._in_flight = CheckPoints()
        #: Check points in memory only.
        self._buffered = 0
        self.deadlines: Deadlines[CheckPoint] = Deadlines(
            now_ms=self._now_ms, call_later=call_later, on_due=self._on_due, is_over=_is_over
        )

    def apply(self, *, enabled: bool, stay_ms: int, before_due_ms: int, count_max: int) -> None:
        """Set how long check points stay in memory only, and how many; for those to come."""
        self._enabled = enabled
        self._stay_ms = stay_ms
        self._before_due_ms = before_due_ms
        self._count_max = count_max

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def is_full(self) -> bool:
        return len(self._in_flight) >= IN_FLIGHT_MAX

    # --- Life ---------------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Take in what the revive log has."""
        self._fold()

    def tend(self) -> None:
        """Now and then: take in what others have put into the revive log, and keep it short. Raises ``StoreError``."""
        self._fold()
        self._revive_log.carry()

    def stop(self) -> None:
        """The term is over: nothing is written, revived or committed any more. As after a crash, what was in memory
        only is popped again, as the committed offset has not passed it."""
        self._is_stopped = True
        self._revive_log.stop()
        self.deadlines.close()

    def close(self) -> None:
        """Write all that is in memory only, so that the next start knows it. Raises ``StoreError``."""
        self.deadlines.close()
        for check_point in self._in_flight:
            if check_point.stored is None:
                self._write(check_point)
        self._store.flush_now()
        for key in self._in_flight.queue_keys():
            self._advance(self._in_flight.queue(key))

    # --- Pops ---------------------------------------------------------------------------------------------------

    def next_offset(self, key: GroupQueue, committed: int) -> int:
        """Where the next pop begins; ``committed`` is what the group's offset says."""
        return self._in_flight.next_offset(key, committed)

    def is_popping(self, key: GroupQueue) -> bool:
        """Whether the group's committed offset in this queue follows check points."""
        return self._in_flight.is_popping(key)

    def popped(
        self,
        key: GroupQueue,
        *,
        start_offset: int,
        next_offset: int,
        queue_offsets: Sequence[int],
        pop_time_ms: int,
        invisible_ms: int,
        revive_queue_id: int,
    ) -> None:
        """These messages go out to a consumer."""
        old = self._in_flight.find(key, start_offset, pop_time_ms)
        if old is not None:
            self._end(old)
        check_point = CheckPoint(
            self._in_flight.queue(key),
            start_offset=start_offset,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            offsets=queue_offsets,
            revive_queue_id=revive_queue_id,
        )
        self._in_flight.popped(check_point, next_offset)
        self._buffered += 1
        if not self._enabled or self._buffered > self._count_max:
            self._on_due(check_point)
        else:
            self.deadlines.add(self._first_deadline(check_point), check_point)

    def skipped(self, key: GroupQueue, next_offset: int) -> None:
        """A pop's filter let nothing through up to here."""
        self._advance(self._in_flight.skipped(key, next_offset))

    # --- Acks ---------------------------------------------------------------------------------------------------

    def ack(self, key: GroupQueue, start_offset: int, pop_time_ms: int, queue_offsets: Sequence[int]) -> int:
        """Messages are done; returns how many of them were in flight. Others are no error: their time is over.

        Raises ``StoreError`` or ``NotRunning`` if the ack must be written and cannot.
        """
        check_point = self._in_flight.find(key, start_offset, pop_time_ms)
        if check_point is None:
            return 0
        bits = check_point.bits(queue_offsets) & ~check_point.acked
        if bits:
            if check_point.stored is not None:
                self._revive_log.write_acks(check_point, [each for each in queue_offsets if check_point.holds(each)])
            self._set_acked(check_point, bits)
        return bits.bit_count()

    def change(
        self, key: GroupQueue, start_offset: int, pop_time_ms: int, queue_offset: int, *, invisible_ms: int
    ) -> int | None:
        """Hide a message for ``invisible_ms`` from now on; returns the pop time of its new check point.

        None if it is not in flight (any more). Raises ``StoreError`` or ``NotRunning``; then it may come twice.
        """
        old = self._in_flight.find(key, start_offset, pop_time_ms)
        if old is None or not old.holds(queue_offset):
            return None
        # Twice in a millisecond: no name may come again, or an old handle would be good for the new one.
        now_ms = max(self._now_ms(), old.pop_time_ms + 1)
        while self._in_flight.find(key, queue_offset, now_ms) is not None:
            now_ms += 1
        new = CheckPoint(
            old.queue,
            start_offset=queue_offset,
            pop_time_ms=now_ms,
            invisible_ms=invisible_ms,
            offsets=(queue_offset,),
            revive_queue_id=old.revive_queue_id,
        )
        end_offset = self._revive_log.write(new)
        self._in_flight.add(new)
        self.deadlines.add(new.due_ms, new)
        for step in (old.step, old.stored):
            if step is not None:
                step.rest_on(end_offset)
        if old.stored is not None:
            self._revive_log.write_acks(old, (queue_offset,))
        self._set_acked(old, old.bits((queue_offset,)))
        return now_ms

    # --- What tools do ------------------------------------------------------------------------------------------

    def reset(self, key: GroupQueue) -> None:
        """The group was moved in this queue: pop from its committed offset."""
        self._in_flight.detach(key)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """A group or a topic is gone."""
        for key in self._in_flight.queue_keys():
            if group in (None, key[0]) and topic in (None, key[1]):
                # Before its check points end, or they would move an offset that is gone.
                self._in_flight.detach(key)
                for check_point in self._in_flight.of(key):
                    self._end(check_point)

    # ------------------------------------------------------------------------------------------------------------

    def _fold(self) -> None:
        for check_point in self._revive_log.fold(self._in_flight):
            self.deadlines.add(check_point.due_ms, check_point)

    def _set_acked(self, check_point: CheckPoint, bits: int) -> None:
        check_point.acked |= bits
        if check_point.is_acked:
            self._end(check_point)

    def _end(self, check_point: CheckPoint) -> None:
        if check_point.stored is None:
            self._buffered -= 1
        self._in_flight.end(check_point)
        self._advance(check_point.queue)
        if check_point.stored is not None:
            self._revive_log.advance(check_point.revive_queue_id)

    def _write(self, check_point: CheckPoint) -> None:
        end_offset = self._revive_log.write(check_point)
        self._buffered -= 1
        step = check_point.step
        if step is not None:
            step.rest_on(end_offset)
            step.is_settled = True
            self._advance(check_point.queue)

    def _advance(self, queue: PoppedQueue) -> None:
        safe = self._store.safe
        self._commit(queue, queue.window.advance(safe.value))
        waits_for = queue.window.waits_for
        if waits_for is not None and not queue.is_waiting:
            queue.is_waiting = True
            safe.call_when(waits_for, partial(self._safe, queue))
        self._in_flight.forget_if_idle(queue)

    def _safe(self, queue: PoppedQueue) -> None:
        queue.is_waiting = False
        if not self._is_stopped:
            self._advance(queue)

    def _commit(self, queue: PoppedQueue, queue_offset: int | None) -> None:
        if queue_offset is not None and queue_offset > self._offsets.get(*queue.key):
            self._offsets.commit(*queue.key, queue_offset)

    # --- Time ---------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Revive old messages when they are due, as long as it is not cancelled."""
        while True:
            check_point = await self._old.get()
            if check_point.is_over:
                continue
            try:
                await self._reviver.revive_old(check_point)
                if not check_point.is_over:
                    self._revived(check_point)
            except Exception as error:
                # Whatever it is, messages that nothing brings back would be worse.
                self.deadlines.add(self._now_ms() + self._failed(check_point, error), check_point)

    def _first_deadline(self, check_point: CheckPoint) -> int:
        """When it must be written, or, if there is no time for that, when it is due."""
        due_ms = check_point.due_ms
        write_ms = min(check_point.pop_time_ms + self._stay_ms, due_ms - self._before_due_ms)
        return write_ms if write_ms > check_point.pop_time_ms else due_ms

    def _on_due(self, check_point: CheckPoint) -> None:
        now_ms = self._now_ms()
        again_ms = check_point.due_ms
        try:
            if now_ms >= check_point.due_ms:
                if self._reviver.is_old(check_point):
                    self._old.put_nowait(check_point)
                    return
                self._reviver.revive(check_point)
                self._revived(check_point)
                return
            if check_point.stored is None:
                self._write(check_point)
        except Exception as error:
            if now_ms < check_point.due_ms:
                again_ms = min(now_ms + _WRITE_PAUSE_MS, check_point.due_ms)
            else:
                again_ms = now_ms + self._failed(check_point, error)
        self.deadlines.add(again_ms, check_point)

    def _revived(self, check_point: CheckPoint) -> None:
        if check_point.stored is not None:
            # One that lies before it may take long, and a restart would begin with that one.
            self._revive_log.write_acks(check_point, check_point.offsets)
        self._end(check_point)

    def _failed(self, check_point: CheckPoint, error: Exception) -> int:
        """Messages could not be written again; returns after how many milliseconds to try it once more."""
        if check_point.failures == 0:
            group, topic, queue_id = check_point.queue.key
            log.warning(
                "cannot write unacknowledged messages of group %s from queue %d of %s to the retry topic: %s; retrying",
                group,
                queue_id,
                topic,
                error,
                exc_info=None if isinstance(error, StoreError | NotRunning | BrokerRefused) else error,
            )
        pause_s = PAUSES_S[min(check_point.failures, len(PAUSES_S) - 1)]
        check_point.failures += 1
        return pause_s * 1000


def _is_over(check_point: CheckPoint) -> bool:
    return check_point.is_over
