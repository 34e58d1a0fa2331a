"""Taking messages out of queues, for one pop (F9).

A pop begins where the group's last one ended: at the end of what is in flight, else at the committed offset, else at
the first message or behind the last as the consumer wishes. What is found goes out as views of the log, and is hidden:
by a check point (``buffer``), or by blocking the queue (``orderly``).

Messages from a retry topic are told apart from all others by consumers only with help: their records go out under the
topic that they were first popped from, with their handle ready in POP_CK.

Records that are probably not in memory are not touched here. Those that can go out as they are get named, and are read
before the reply is sent. A queue whose records must be looked at first (a filter by properties, gaps, a retry topic) is
*left*: it has to be read ahead (``look``, and then ``take`` with ``read_from``), and the pop takes nothing more behind
it, so that such a queue is not passed over for ever.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from ternmq.message import Property
from ternmq.pop.buffer import PopBuffer
from ternmq.pop.checkpoints import GroupQueue
from ternmq.pop.orderly import Orders
from ternmq.store.log.protocol import Piece
from ternmq.store.read.query import GetResult, GetStatus
from ternmq.store.read.records import offsets_of, start_offset
from ternmq.store.read.taking import TakeStore, TakeWish
from ternmq.wire import properties as props
from ternmq.wire.handles import NORMAL, Handle, OffsetInfos
from ternmq.wire.record import PROPERTIES_BYTES_MAX, repacked, unpack_record

#: A reply gets no more than this, as frames have a bound; a first message may be larger.
BYTES_MAX: Final = 4 * 1024 * 1024
#: Stretches of a queue that one pop looks through for something that its filter lets through.
SCANS_MAX: Final = 4


class TakenOffsets(Protocol):
    """What taking needs of the groups' offsets; -1 where there is none."""

    def get(self, group: str, topic: str, queue_id: int) -> int: ...

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None: ...

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None: ...


@dataclass(slots=True, frozen=True, kw_only=True)
class PopWish(TakeWish):
    """What a consumer that pops wants of a topic."""

    invisible_ms: int
    pop_time_ms: int
    revive_queue_id: int
    attempt_id: str | None
    #: Whether there is time to read records that are probably not in memory (``store.read.cold``).
    may_wait: bool = False


@dataclass(slots=True, frozen=True)
class Left:
    """A queue that has to be read ahead: topic, queue id, and whether it is of a retry topic."""

    topic: str
    queue_id: int
    retry: int


@dataclass(slots=True)
class PopTaken:
    """What it gets, gathered from queue to queue."""

    infos: OffsetInfos = field(default_factory=OffsetInfos)
    buffers: list[memoryview] = field(default_factory=list)
    #: Where further records are, which other threads must read.
    cold: list[Piece] = field(default_factory=list)
    count: int = 0
    body_bytes: int = 0
    #: Messages that are left in the queues.
    rest: int = 0
    #: A filter let nothing through so far, and there is more to look at.
    unfinished: bool = False
    #: The filter has taken enough time: other queues are not looked at any more.
    is_over: bool = False
    #: The queue behind which nothing was taken any more, as its records are probably not in memory.
    left: Left | None = None

    def has_room_for(self, found: GetResult) -> bool:
        """Whether what a queue has can be added to the rest of the reply."""
        return not self.count or self.body_bytes + found.body_bytes <= BYTES_MAX


class PopTaker:
    """All methods belong to the broker's loop."""

    def __init__(
        self, *, store: TakeStore, offsets: TakenOffsets, buffer: PopBuffer, orders: Orders, broker_name: str
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._buffer = buffer
        self._orders = orders
        self._broker_name = broker_name

    def take(
        self,
        wish: PopWish,
        taken: PopTaken,
        topic: str,
        queue_id: int,
        retry: int = NORMAL,
        *,
        read_from: int | None = None,
    ) -> None:
        """Add what one queue has; ``topic`` is the wish's own or, with ``retry``, one of its retry topics.

        ``read_from``: what is wanted was read ahead from this queue offset on, and is in memory now. Nothing is added
        if another pop has taken it meanwhile.
        """
        key = wish.group, topic, queue_id
        start = self._start(key, from_last=wish.from_last and retry == NORMAL)
        if read_from not in (None, start):
            return
        end = self._store.max_offset(topic, queue_id)
        if (
            taken.count >= wish.count_max
            or taken.body_bytes >= BYTES_MAX
            or taken.left is not None
            or start == end
            or self._is_blocked(key, wish)
        ):
            taken.rest += max(end - start, 0)
            return
        if taken.is_over:
            taken.unfinished = True
            taken.rest += max(end - start, 0)
            return
        # Where a filter leaves gaps, and where records are changed, they must be seen now.
        as_they_are = wish.may_wait and retry == NORMAL and wish.matches is None and wish.accepts is None
        for _ in range(SCANS_MAX):
            found = self._store.get(
                topic,
                queue_id,
                start,
                count_max=wish.count_max - taken.count,
                matches=wish.matches,
                accepts=wish.accepts,
                is_over=wish.is_over,
                leave_cold=read_from is None,
            )
            taken.is_over = wish.is_over is not None and wish.is_over()
            if found.cold is not None and not (as_they_are and found.count == found.next_offset - start):
                taken.left = Left(topic, queue_id, retry)
                if not wish.may_wait:
                    taken.rest += max(found.max_offset - start, 0)
                return
            if found.status is GetStatus.FOUND:
                if not taken.has_room_for(found):
                    # Nothing is hidden yet: it is left to the next pop.
                    taken.rest += max(found.max_offset - start, 0)
                    return
                self._hand_out(wish, taken, key, start, found, retry)
                break
            if found.status in (GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_TOO_SMALL):
                # The queue begins or ends elsewhere by now: retention, or a topic made anew.
                self.reset(key)
                self._offsets.commit(*key, found.next_offset)
            elif found.next_offset > start:
                self._skip(key, found.next_offset, ordered=wish.ordered)
            start = found.next_offset
            if start >= found.max_offset:
                break
            if taken.is_over:
                taken.unfinished = True
                break
        else:
            taken.unfinished = True
        taken.rest += max(found.max_offset - found.next_offset, 0)

    def look(self, wish: PopWish, taken: PopTaken, left: Left) -> tuple[int, GetResult]:
        """Where one queue continues for this group, and what it has there, whatever their properties are; records that
        are not in memory are named."""
        start = self._start((wish.group, left.topic, left.queue_id), from_last=False)
        return start, self._store.get(
            left.topic,
            left.queue_id,
            start,
            count_max=wish.count_max - taken.count,
            matches=wish.matches,
            leave_cold=True,
        )

    def pass_over(self, wish: PopWish, left: Left, start: int, next_offset: int) -> None:
        """A filter let nothing through from ``start`` on. Does nothing if another pop was there meanwhile."""
        key = wish.group, left.topic, left.queue_id
        if self._start(key, from_last=False) == start and not self._is_blocked(key, wish):
            self._skip(key, next_offset, ordered=wish.ordered)

    def peek(self, group: str, taken: PopTaken, topic: str, queue_id: int, *, count_max: int) -> None:
        """Add what a pop would get from one queue now, and hide nothing."""
        start = self._start((group, topic, queue_id), from_last=False)
        if taken.count < count_max and taken.body_bytes < BYTES_MAX:
            found = self._store.get(topic, queue_id, start, count_max=count_max - taken.count)
            if found.status is GetStatus.FOUND and taken.has_room_for(found):
                taken.buffers += found.buffers
                taken.count += found.count
                taken.body_bytes += found.body_bytes
        taken.rest += max(self._store.max_offset(topic, queue_id) - start, 0)

    def has_message(
        self, group: str, topic: str, queue_id: int, *, ordered: bool = False, attempt_id: str | None = None
    ) -> bool:
        """Whether there is anything to pop in one queue."""
        key = group, topic, queue_id
        if ordered and self._orders.is_blocked(key, attempt_id):
            return False
        return self._store.max_offset(topic, queue_id) > self._start(key, from_last=False)

    def reset(self, key: GroupQueue) -> None:
        """The group was moved in this queue: pop from its committed offset."""
        self._buffer.reset(key)
        self._orders.reset(key)

    # ------------------------------------------------------------------------------------------------------------

    def _is_blocked(self, key: GroupQueue, wish: PopWish) -> bool:
        # In order or not, one way at a time: each would move the committed offset past what the other has in flight.
        if wish.ordered:
            return self._buffer.is_popping(key) or self._orders.is_blocked(key, wish.attempt_id)
        return self._orders.is_blocked(key, None)

    def _start(self, key: GroupQueue, *, from_last: bool) -> int:
        # A pop learns of a reset by beginning where it says; from then on commits count again.
        self._offsets.take_reset(*key)
        start = self._buffer.next_offset(key, self._offsets.get(*key))
        if start >= 0:
            return start
        start = start_offset(self._store, key[1], key[2], from_last=from_last)
        if from_last and start > 0:
            # Noted, so that what comes between two pops that find nothing is not left out.
            self._offsets.commit(*key, start)
        return start

    def _skip(self, key: GroupQueue, next_offset: int, *, ordered: bool) -> None:
        if ordered:
            self._offsets.commit(*key, next_offset)
        else:
            self._buffer.skipped(key, next_offset)

    def _hand_out(
        self, wish: PopWish, taken: PopTaken, key: GroupQueue, start: int, found: GetResult, retry: int
    ) -> None:
        queue_id = key[2]
        queue_offsets: Sequence[int] = range(start, found.next_offset)
        if len(queue_offsets) != found.count:
            queue_offsets = offsets_of(found.buffers)
        if wish.ordered:
            counts, least = self._orders.popped(
                key,
                pop_time_ms=wish.pop_time_ms,
                invisible_ms=wish.invisible_ms,
                queue_offsets=queue_offsets,
                attempt_id=wish.attempt_id,
            )
            self._offsets.commit(*key, start)
            taken.infos.add_counts(queue_id, counts, least=least)
        else:
            self._buffer.popped(
                key,
                start_offset=start,
                next_offset=found.next_offset,
                queue_offsets=queue_offsets,
                pop_time_ms=wish.pop_time_ms,
                invisible_ms=wish.invisible_ms,
                revive_queue_id=wish.revive_queue_id,
            )
        taken.infos.add(retry, queue_id, start, queue_offsets)
        taken.count += found.count
        taken.body_bytes += found.body_bytes
        if retry == NORMAL:
            taken.buffers += found.buffers
            taken.cold += found.cold or ()
        else:
            handle = Handle(
                start, wish.pop_time_ms, wish.invisible_ms, wish.revive_queue_id, retry, self._broker_name, queue_id, 0
            )
            for view in found.buffers:
                taken.buffers += _under_origin(view, wish.topic, handle)


def _under_origin(view: memoryview, topic: str, handle: Handle) -> Iterator[memoryview]:
    """Records of a retry topic as consumers of ``topic`` are to see them."""
    at = 0
    while at < len(view):
        record = unpack_record(view, at, check_crc=False)
        text = handle._replace(queue_offset=record.queue_offset).text
        properties = props.with_(record.properties, Property.POP_CHECKPOINT, text).encode()
        # Without room for the handle the client makes it by itself, from the record's own topic.
        fits = len(properties) <= PROPERTIES_BYTES_MAX
        yield repacked(record, topic=topic.encode(), properties=properties) if fits else view[at : at + record.size]
        at += record.size
