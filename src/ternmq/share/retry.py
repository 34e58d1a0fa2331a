"""Lost messages: written again, at the hot end of the log, into the group's retry topic (R2, H1).

What a consumer held when it died or left, what it skipped when it confirmed, and what it held for too long is moved to
a pull log without a consumer (``LOST``). From there it is written again, one by one: the copy is an ordinary message of
the retry topic, with its count, its delay, and the dead letters behind the last attempt. Then the original is
confirmed. A crash in between writes some copies twice and loses none, as the lost ones are part of the state.

A copy has more properties than its original. One that does not fit a record then goes to another consumer as it is.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from ternmq.errors import GroupMissing, MessageIllegal, SystemFailure
from ternmq.share.actions import LOST, Ack, ShareAction
from ternmq.share.pull_log import Run
from ternmq.share.state import Place
from ternmq.store.log.draft import Placed
from ternmq.store.read.query import QueueEntry
from ternmq.wire.layouts.queue_entry import FILLER_SIZE

log = logging.getLogger(__name__)

#: Messages that are written again in one turn of the loop, and confirmed by one action. Each takes some 50 µs, by
#: estimate, and no lane counts them.
TURN_MAX: Final = 8


class LostStore(Protocol):
    """What rewriting needs of the message store."""

    def entries(self, topic: str, queue_id: int, queue_offset: int, count_max: int) -> list[QueueEntry]: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    @property
    def min_log_offset(self) -> int: ...


#: Writes the record at a log offset again for a group: now (None), or when the disk has brought it.
Resend = Callable[[str, int], Awaitable[None] | None]


class Rewriter:
    """All methods belong to the broker's loop. ``done`` is told how many were written again, and how many are gone."""

    def __init__(
        self,
        *,
        store: LostStore,
        resend: Resend,
        do: Callable[[ShareAction], Placed],
        done: Callable[[int, int], None],
        is_current: Callable[[Place], bool],
        pass_on: Callable[[Place, Run], bool],
    ) -> None:
        """``is_current`` tells whether a place is still known: its topic may be deleted while the disk is read.
        ``pass_on`` gives lost messages to a consumer as they are, if there is one."""
        self._store = store
        self._resend = resend
        self._do = do
        self._done = done
        self._is_current = is_current
        self._pass_on = pass_on

    async def rewrite(self, place: Place) -> bool:
        """Write some of a place's lost messages again; False if none is left. Raises what the store raises."""
        lost = place.consumers.get(LOST)
        if lost is None or not lost.runs:
            return False
        run = lost.runs[0]
        first, count = run.first, min(run.count, TURN_MAX)
        entries = self._store.entries(place.topic, run.queue_id, run.offset, count)
        if not entries:
            # Retention has taken the first ones of them, or the topic was made anew.
            gone = self._store.min_offset(place.topic, run.queue_id) - run.offset
            if 0 < gone < count:
                count = gone
            self._confirm(place, first, count, gone=count)
            return True
        written = 0
        for number, entry in enumerate(entries):
            try:
                written += await self._write(place, entry)
            except MessageIllegal:
                if not self._is_current(place):
                    return False
                if number:
                    self._confirm(place, first, number, gone=number - written)
                return self._pass_on(place, run.part(first + number, first + number))
            if not self._is_current(place):
                return False
        self._confirm(place, first, len(entries), gone=len(entries) - written)
        return True

    async def _write(self, place: Place, entry: QueueEntry) -> int:
        if entry.size == FILLER_SIZE or entry.log_offset < self._store.min_log_offset:
            return 0
        try:
            coming = self._resend(place.group, entry.log_offset)
            if coming is not None:
                await coming
        except (SystemFailure, GroupMissing) as error:
            # It cannot be read any more, or no consumer can want it: it would stand in the way for ever.
            log.warning(
                "a message of %s that group %s has not confirmed cannot be written again: %s",
                place.topic,
                place.group,
                error,
            )
            return 0
        return 1

    def _confirm(self, place: Place, first: int, count: int, *, gone: int) -> None:
        self._do(Ack(place.group, place.topic, LOST, first, first + count - 1))
        self._done(count - gone, gone)
