"""Ordered pop (F9): one batch of a queue at a time, and the next only when it is done.

An ordered pop makes no check point. The queue is *blocked* while a message that it handed out is neither acked nor
visible again; then the group's committed offset tells where the next pop begins: behind the last of a row of acked
messages. So a message that was not acked in time comes again from its own place, before all that follow it, and no
retry topic is needed.

A pop that repeats the *attempt id* of the one before (its answer was lost) gets the same messages, blocked or not.

The table is RocketMQ's ``config/consumerOrderInfo.json``, saved every 10 s. A crash may lose its end: then messages are
handed out again from the committed offset, in order, while somebody may still have them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from ternmq.env import Clock
from ternmq.errors import MessageIllegal
from ternmq.files import TableFile
from ternmq.pop.checkpoints import QueueKey
from ternmq.pop.deadlines import CallLater, Deadlines
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.pop import OrderRecord, OrderTable

SAVE_S: Final = 10.0
#: A batch that nobody has popped after for so long is forgotten (RocketMQ's ``CLEAN_SPAN_FROM_LAST``): tables of groups
#: that are gone would grow for ever. The group's offset stays where it is; counts begin anew.
FORGET_MS: Final = 24 * 3600 * 1000
_SEPARATOR: Final = "@"


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
    )

    def __init__(
        self,
        key: QueueKey,
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


class Orders:
    """All methods belong to the broker's loop. ``on_free`` is told of a queue whose messages are visible again."""

    def __init__(
        self, file: TableFile, clock: Clock, *, call_later: CallLater, on_free: Callable[[QueueKey], None]
    ) -> None:
        self._file = file
        self._now_ms = clock.now_ms
        self._on_free = on_free
        self._batches: dict[QueueKey, Batch] = {}
        self.deadlines: Deadlines[Batch] = Deadlines(
            now_ms=self._now_ms, call_later=call_later, on_due=self._on_due, is_over=_is_over
        )
        self._dirty = False

    # --- The file -----------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, OrderTable))
        if saved is None:
            return
        for name, queues in saved.table.items():
            topic, separator, group = name.partition(_SEPARATOR)
            for queue_id, record in queues.items():
                if separator and record.offsets:
                    batch = self._batches[group, topic, queue_id] = _batch((group, topic, queue_id), record)
                    self.deadlines.add(batch.free_ms, batch)

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
        table: dict[str, dict[int, OrderRecord]] = {}
        for (group, topic, queue_id), batch in self._batches.items():
            table.setdefault(f"{topic}{_SEPARATOR}{group}", {})[queue_id] = _record(batch)
        self._file.save_soon(encode(OrderTable(table=table)))

    def close(self) -> None:
        self.deadlines.close()
        self.save()

    # --- Pops and acks ------------------------------------------------------------------------------------------

    def is_blocked(self, key: QueueKey, attempt_id: str | None) -> bool:
        batch = self._batches.get(key)
        if batch is None or (batch.attempt_id is not None and batch.attempt_id == attempt_id):
            return False
        return self._now_ms() < batch.free_ms

    def popped(
        self,
        key: QueueKey,
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
        self.deadlines.add(batch.free_ms, batch)
        least = min(batch.counts.values()) if len(batch.counts) == len(queue_offsets) else 0
        return batch.counts, least

    def ack(self, key: QueueKey, queue_offset: int, pop_time_ms: int) -> int | None:
        """A message is done; returns the offset to commit, None for a message of another pop than the last.

        Raises ``MessageIllegal`` for one that the last pop did not hand out.
        """
        batch = self._batches.get(key)
        if batch is None or batch.pop_time_ms != pop_time_ms:
            return None
        if queue_offset not in batch.offsets:
            group, topic, queue_id = key
            raise MessageIllegal(
                f"offset is illegal, key:{topic}@{group}@{queue_id}, commit:{queue_offset}: the last ordered pop of "
                "this queue did not hand it out"
            )
        batch.acked |= 1 << batch.offsets.index(queue_offset)
        self._dirty = True
        if not batch.free_ms:
            self._on_free(key)
        return batch.next_offset

    def change(self, key: QueueKey, queue_offset: int, pop_time_ms: int, visible_ms: int) -> None:
        """Hide a message until ``visible_ms``; one of another pop than the last is left alone."""
        batch = self._batches.get(key)
        if batch is not None and batch.pop_time_ms == pop_time_ms and queue_offset in batch.offsets:
            batch.visible_ms[queue_offset] = visible_ms
            self._dirty = True
            self.deadlines.add(batch.free_ms, batch)

    # --- What tools do ------------------------------------------------------------------------------------------

    def reset(self, key: QueueKey) -> None:
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

    def _on_due(self, batch: Batch) -> None:
        free_ms = batch.free_ms
        if free_ms > self._now_ms():
            self.deadlines.add(free_ms, batch)
        elif free_ms:
            self._on_free(batch.key)


def _is_over(batch: Batch) -> bool:
    return batch.is_over


def _batch(key: QueueKey, record: OrderRecord) -> Batch:
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
