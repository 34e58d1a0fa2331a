"""Ordered pop (F9): one batch of a queue at a time, and the next only when it is done.

An ordered pop makes no check point. The queue is *blocked* while a message that it handed out is neither acked nor
visible again; then the group's committed offset tells where the next pop begins: behind the last of a row of acked
messages. So a message that was not acked in time comes again from its own place, before all that follow it, and no
retry topic is needed.

A pop that repeats the *attempt id* of the one before (its answer was lost) gets the same messages, blocked or not.

The table is RocketMQ's ``config/consumerOrderInfo.json``, saved every 10 s. A crash may lose its end: then messages are
handed out again from the committed offset, in order, while another consumer may still have them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from msgspec import Raw

from ternmq.env import Clock
from ternmq.errors import MessageIllegal, RemoteProtocolError
from ternmq.files import TableFile
from ternmq.pop.checkpoints import GroupQueue
from ternmq.pop.deadlines import CallLater, Deadlines
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.pop import OrderRecord, OrderTable

log = logging.getLogger(__name__)

SAVE_S: Final = 10.0
#: A batch after which nothing was popped for so long is forgotten (RocketMQ's ``CLEAN_SPAN_FROM_LAST``): tables of
#: groups that are gone would grow for ever. The group's offset stays where it is; counts begin anew.
FORGET_MS: Final = 24 * 3600 * 1000
_SEPARATOR: Final = "@"
#: The latest time that the file can hold.
_LONG_MAX: Final = 2**63 - 1


class Batch:
    """What an ordered pop handed out of one queue."""

    __slots__ = (
        "acked",
        "attempt_id",
        "counts",
        "invisible_ms",
        "is_over",
        "key",
        "offsets",
        "pop_time_ms",
        "visible_ms",
        "wake_ms",
        "wake_number",
    )

    def __init__(
        self,
        key: GroupQueue,
        *,
        pop_time_ms: int,
        invisible_ms: int,
        offsets: Sequence[int],
        attempt_id: str | None,
    ) -> None:
        self.key = key
        self.pop_time_ms = pop_time_ms
        self.invisible_ms = invisible_ms
        self.offsets = offsets
        self.attempt_id = attempt_id
        #: Bit i is set when ``offsets[i]`` is acked.
        self.acked = 0
        #: Where it was changed: when a message is visible again, by queue offset.
        self.visible_ms: dict[int, int] = {}
        #: How often a message was handed out before, by queue offset; only those that were.
        self.counts: dict[int, int] = {}
        #: Replaced by the next one.
        self.is_over = False
        #: When the queue is looked at, and the number of that deadline; those with lower numbers are void.
        self.wake_ms = -1
        self.wake_number = 0

    @property
    def free_ms(self) -> int:
        """When the queue is free again, if no ack comes; 0 if it is."""
        return max(
            (
                self.visible_ms.get(offset, self.pop_time_ms + self.invisible_ms)
                for index, offset in enumerate(self.offsets)
                if not self.acked >> index & 1
            ),
            default=0,
        )

    @property
    def next_offset(self) -> int:
        """Behind the row of acked messages that it begins with."""
        for index, offset in enumerate(self.offsets):
            if not self.acked >> index & 1:
                return offset
        return self.offsets[-1] + 1


#: A batch, and the number of a deadline of it.
_Wake = tuple[Batch, int]


class Orders:
    """All methods belong to the broker's loop. ``on_free`` is told of a queue whose messages are visible again."""

    def __init__(
        self, file: TableFile, clock: Clock, *, call_later: CallLater, on_free: Callable[[GroupQueue], None]
    ) -> None:
        self._file = file
        self._now_ms = clock.now_ms
        self._on_free = on_free
        self._batches: dict[GroupQueue, Batch] = {}
        self.deadlines: Deadlines[_Wake] = Deadlines(
            now_ms=self._now_ms, call_later=call_later, on_due=self._on_due, is_over=_is_over
        )
        self._dirty = False

    # --- The file -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable.

        A queue whose record cannot be is left out: it is free, and popped from the group's committed offset.
        """
        saved = self._file.load(lambda data: decode(data, OrderTable))
        if saved is None:
            return
        for name, queues in saved.table.items():
            topic, separator, group = name.partition(_SEPARATOR)
            for queue_id, data in queues.items():
                try:
                    record = decode(data, OrderRecord)
                except RemoteProtocolError as error:
                    log.warning(
                        f"invalid entry for {name} queue {queue_id} in consumerOrderInfo.json: {error}; its messages "
                        "are delivered again from the committed offset"
                    )
                    continue
                if separator and record.offsets:
                    batch = self._batches[group, topic, queue_id] = _batch((group, topic, queue_id), record)
                    self._wake_at(batch, batch.free_ms)

    def save(self) -> None:
        """Hand the table to the file's thread, if anything changed since the last time."""
        if not self._dirty:
            return
        self._dirty = False
        now_ms = self._now_ms()
        for key, batch in list(self._batches.items()):
            if now_ms >= max(batch.pop_time_ms + FORGET_MS, batch.free_ms):
                batch.is_over = True
                del self._batches[key]
        table: dict[str, dict[int, Raw]] = {}
        for (group, topic, queue_id), batch in self._batches.items():
            table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = Raw(encode(_record(batch)))
        body = OrderTable(table=table)
        self._file.save(lambda: partial(encode, body))

    def close(self) -> None:
        """The broker stops, or the term ends: no queue becomes free any more."""
        self.deadlines.close()
        self.save()

    # --- Pops and acks ------------------------------------------------------------------------------------------

    def is_blocked(self, key: GroupQueue, attempt_id: str | None) -> bool:
        batch = self._batches.get(key)
        if batch is None or (batch.attempt_id is not None and batch.attempt_id == attempt_id):
            return False
        return self._now_ms() < batch.free_ms

    def popped(
        self,
        key: GroupQueue,
        *,
        pop_time_ms: int,
        invisible_ms: int,
        queue_offsets: Sequence[int],
        attempt_id: str | None,
    ) -> tuple[dict[int, int], int]:
        """These messages go out; returns how often each was handed out before (if it was), and the least of that."""
        batch = Batch(
            key,
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            offsets=queue_offsets,
            attempt_id=attempt_id,
        )
        before = self._batches.get(key)
        if before is not None:
            before.is_over = True
            if attempt_id is not None and before.attempt_id == attempt_id:
                batch.counts = before.counts
            else:
                known = frozenset(before.offsets)
                batch.counts = {offset: before.counts.get(offset, 0) + 1 for offset in queue_offsets if offset in known}
        self._batches[key] = batch
        self._dirty = True
        self._wake_at(batch, batch.free_ms)
        least = min(batch.counts.values()) if len(batch.counts) == len(queue_offsets) else 0
        return batch.counts, least

    def ack(self, key: GroupQueue, queue_offset: int, pop_time_ms: int) -> int | None:
        """A message is done; returns the offset to commit, None for a message of another pop than the last.

        Raises ``MessageIllegal`` for one that the last pop did not hand out.
        """
        batch = self._batches.get(key)
        if batch is None or batch.pop_time_ms != pop_time_ms:
            return None
        if queue_offset not in batch.offsets:
            group, topic, queue_id = key
            raise MessageIllegal(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{queue_offset}: the last ordered pop "
                "of this queue did not return it"
            )
        batch.acked |= 1 << batch.offsets.index(queue_offset)
        self._dirty = True
        free_ms = batch.free_ms
        if free_ms:
            # It may have been the one that was hidden longest.
            self._wake_at(batch, free_ms)
        else:
            self._on_free(key)
        return batch.next_offset

    def change(self, key: GroupQueue, queue_offset: int, pop_time_ms: int, visible_ms: int) -> None:
        """Hide a message until ``visible_ms``; one of another pop than the last is left alone."""
        batch = self._batches.get(key)
        if batch is not None and batch.pop_time_ms == pop_time_ms and queue_offset in batch.offsets:
            batch.visible_ms[queue_offset] = min(visible_ms, _LONG_MAX)
            self._dirty = True
            self._wake_at(batch, batch.free_ms)

    # --- What tools do ------------------------------------------------------------------------------------------

    def reset(self, key: GroupQueue) -> None:
        """The group was moved in this queue: it is free."""
        batch = self._batches.pop(key, None)
        if batch is not None:
            batch.is_over = True
            self._dirty = True

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """A group or a topic is gone."""
        for key in list(self._batches):
            if group in (None, key[0]) and topic in (None, key[1]):
                self.reset(key)

    # ------------------------------------------------------------------------------------------------------------

    def _wake_at(self, batch: Batch, when_ms: int) -> None:
        """Look at a batch at this time instead of the one that was set before."""
        if when_ms != batch.wake_ms:
            batch.wake_ms = when_ms
            batch.wake_number += 1
            self.deadlines.add(when_ms, (batch, batch.wake_number))

    def _on_due(self, wake: _Wake) -> None:
        batch, _ = wake
        if batch.free_ms:
            self._on_free(batch.key)


def _is_over(wake: _Wake) -> bool:
    batch, number = wake
    return batch.is_over or number != batch.wake_number


def _batch(key: GroupQueue, record: OrderRecord) -> Batch:
    first = record.offsets[0]
    batch = Batch(
        key,
        pop_time_ms=record.pop_time_ms,
        invisible_ms=record.invisible_ms or 0,
        offsets=[first, *(first + diff for diff in record.offsets[1:])],
        attempt_id=record.attempt_id,
    )
    batch.acked = record.bits
    batch.visible_ms = dict(record.visible_ms or {})
    batch.counts = dict(record.counts or {})
    return batch


def _record(batch: Batch) -> OrderRecord:
    first, *others = batch.offsets
    return OrderRecord(
        pop_time_ms=batch.pop_time_ms,
        invisible_ms=batch.invisible_ms,
        offsets=[first, *(offset - first for offset in others)],
        visible_ms=batch.visible_ms or None,
        counts=batch.counts or None,
        last_time_ms=batch.pop_time_ms,
        bits=batch.acked,
        attempt_id=batch.attempt_id,
    )
