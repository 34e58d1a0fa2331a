"""The revive log: check points and acks as records of a system topic, so that they outlive the broker (F9).

The topic ``rmq_sys_REVIVE_LOG_<cluster>`` has eight queues; a check point chooses one when its messages are popped, and
its acks follow it there. Bodies are RocketMQ's JSON (``wire.bodies.pop``). RocketMQ brings each record here through its
timer, when it is nearly due; ours are appended at once, and what is due is known by a heap in memory (``buffer``).

At start the queues are folded again, from the first check point on that has not ended: check points come back with the
acks that followed them. How far that is, is the consumer offset of the group ``CID_RMQ_SYS_REVIVE_GROUP``: as in
RocketMQ the offset of the *last* record done with, not of the next. A check point that takes long is written again
now and then, so that a start has not much more to read than what has not ended.

Only the broker writes here. A record that cannot be one of its own (an older version let clients send to this topic) is
left out, and counted in one line of the log.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final, Protocol

from ternmq import names
from ternmq.errors import RemoteProtocolError
from ternmq.message import Property
from ternmq.pop.checkpoints import CheckPoint, CheckPoints, PopWindow
from ternmq.store.durable.safety import Lowest
from ternmq.store.log.draft import Draft, Placed
from ternmq.store.read.cold import ColdReads
from ternmq.store.read.query import GetResult
from ternmq.store.read.records import queue_records
from ternmq.wire import properties as props
from ternmq.wire.bodies.codec import Body, decode, encode
from ternmq.wire.bodies.pop import AckRecord, CheckPointRecord
from ternmq.wire.record import Record

log = logging.getLogger(__name__)

CHECK_POINT_TAG: Final = "ck"
ACK_TAG: Final = "ack"
BATCH_ACK_TAG: Final = "bAck"

#: When the record is due; RocketMQ's revive compares these (``TIMER_DELIVER_MS``), should it open this store.
_DELIVER_TIME: Final = "TIMER_DELIVER_MS"
_BEFORE_DUE_MS: Final = 1_000
#: A check point that has so many records behind it is written once more: a start would have to read them all.
CARRY_RECORDS: Final = 100_000
#: … or so many times the number of those that wait, if that is more.
_CARRY_SHARE: Final = 4
_INT_BITS: Final = 32
#: A check point of 32 messages with the longest names takes 1 KiB.
_BODY_BYTES_MAX: Final = 16 * 1024


class PopStore(Protocol):
    """What pop needs of the message store."""

    def put(self, draft: Draft) -> Placed: ...

    def get(self, topic: str, queue_id: int, queue_offset: int, *, count_max: int) -> GetResult: ...

    def min_offset(self, topic: str, queue_id: int) -> int: ...

    def max_offset(self, topic: str, queue_id: int) -> int: ...

    @property
    def safe(self) -> Lowest: ...

    @property
    def cold(self) -> ColdReads: ...

    def flush_now(self) -> None: ...


class PopOffsets(Protocol):
    """What pop needs of the groups' offsets; -1 where there is none."""

    def get(self, group: str, topic: str, queue_id: int) -> int: ...

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None: ...


class ReviveLog:
    """All methods belong to the broker's loop; writing raises ``StoreError`` or ``NotRunning``."""

    def __init__(
        self,
        store: PopStore,
        offsets: PopOffsets,
        *,
        topic: str,
        queues: int,
        broker_name: str,
        store_host: bytes,
        now_ms: Callable[[], int],
        carry_records: int = CARRY_RECORDS,
    ) -> None:
        self._store = store
        self._offsets = offsets
        self._topic = topic
        self._broker_name = broker_name
        self._store_host = store_host
        self._now_ms = now_ms
        self._carry_records = carry_records
        self._queues = [_ReviveQueue(queue_id) for queue_id in range(queues)]
        self._turn = 0
        self._is_stopped = False

    def stop(self) -> None:
        """The term is over: what becomes safe from now on is not noted as done any more."""
        self._is_stopped = True

    def next_queue_id(self) -> int:
        """The queue for the next check point: each in turn."""
        self._turn = (self._turn + 1) % len(self._queues)
        return self._turn

    def write(self, check_point: CheckPoint) -> int:
        """Append a check point with the acks that it has; returns where the log ends behind it."""
        group, topic, queue_id = check_point.queue.key
        start, pop_time = check_point.start_offset, check_point.pop_time_ms
        body = CheckPointRecord(
            start_offset=start,
            pop_time_ms=pop_time,
            invisible_ms=check_point.invisible_ms,
            bits=_signed(check_point.acked),
            count=len(check_point.offsets),
            queue_id=queue_id,
            topic=topic,
            group=group,
            diffs=[queue_offset - start for queue_offset in check_point.offsets],
            broker_name=self._broker_name,
        )
        key = f"{topic}@{queue_id}@{start}@{group}@{pop_time}@{self._broker_name}@{CHECK_POINT_TAG}"
        queue = self._queues[check_point.revive_queue_id % len(self._queues)]
        placed = self._put(queue, CHECK_POINT_TAG, key, body, check_point.due_ms - _BEFORE_DUE_MS)
        self._note(queue, check_point, placed.queue_offset)
        return placed.end_offset

    def carry(self) -> None:
        """Write check points once more that lie far back and have not ended. Raises ``StoreError``."""
        for queue in self._queues:
            waiting = queue.check_points
            # Where many wait there is much to read anyway; writing them all again and again would not make it less.
            count = sum(not check_point.is_over for _, check_point in waiting)
            far = queue.position - max(self._carry_records, _CARRY_SHARE * count)
            while waiting and (waiting[0][1].is_over or waiting[0][0] < far):
                _, check_point = waiting.popleft()
                step = check_point.stored
                if not check_point.is_over and step is not None:
                    end_offset = self.write(check_point)
                    step.is_settled = True
                    step.rest_on(end_offset)
            self.advance(queue.queue_id)

    def write_acks(self, check_point: CheckPoint, queue_offsets: Sequence[int]) -> int:
        """Append acks of a check point that lies here; returns where the log ends behind them."""
        group, topic, queue_id = check_point.queue.key
        is_batch = len(queue_offsets) > 1
        body = AckRecord(
            queue_offset=-1 if is_batch else queue_offsets[0],
            start_offset=check_point.start_offset,
            group=group,
            topic=topic,
            queue_id=queue_id,
            pop_time_ms=check_point.pop_time_ms,
            broker_name=self._broker_name,
            offsets=list(queue_offsets) if is_batch else None,
        )
        tag = BATCH_ACK_TAG if is_batch else ACK_TAG
        which = body.offsets if is_batch else body.queue_offset
        key = f"{topic}@{queue_id}@{which}@{group}@{check_point.pop_time_ms}@{self._broker_name}@{tag}"
        queue = self._queues[check_point.revive_queue_id % len(self._queues)]
        return self._put(queue, tag, key, body, check_point.due_ms).end_offset

    def advance(self, revive_queue_id: int) -> None:
        """A check point has ended: note how far its queue is done with."""
        queue = self._queues[revive_queue_id % len(self._queues)]
        safe = self._store.safe
        done = queue.window.advance(safe.value)
        waiting = queue.check_points
        while waiting and waiting[0][1].is_over:
            waiting.popleft()
        if done is not None:
            if not len(queue.window):
                done = queue.position - 1
            self._offsets.commit(names.REVIVE_GROUP, self._topic, queue.queue_id, done)
        waits_for = queue.window.waits_for
        if waits_for is not None and not queue.is_waiting:
            queue.is_waiting = True
            safe.call_when(waits_for, partial(self._safe, queue))

    def fold(self, check_points: CheckPoints) -> list[CheckPoint]:
        """Read what was appended before this broker started, and later by others. To be called before anything else.

        Returns the check points found, which ``check_points`` has now.
        """
        found: list[CheckPoint] = []
        for queue in self._queues:
            end = self._store.max_offset(self._topic, queue.queue_id)
            if queue.position < 0:
                done = self._offsets.get(names.REVIVE_GROUP, self._topic, queue.queue_id)
                queue.position = min(done + 1, end)
            if queue.position < end:
                found += self._fold(queue, check_points)
                self.advance(queue.queue_id)
        return [check_point for check_point in found if not check_point.is_over]

    def _fold(self, queue: _ReviveQueue, check_points: CheckPoints) -> Iterator[CheckPoint]:
        left_out, first_why = 0, ""
        for record in self._records(queue):
            try:
                check_point = self._take(queue, record, check_points)
            except RemoteProtocolError as error:
                left_out += 1
                first_why = first_why or f"the one at log offset {record.log_offset}: {error}"
            else:
                if check_point is not None:
                    yield check_point
        if left_out:
            log.warning(f"skipped {left_out} invalid records of {self._topic} queue {queue.queue_id}, {first_why}")

    def _note(self, queue: _ReviveQueue, check_point: CheckPoint, revive_offset: int) -> None:
        check_point.stored = queue.window.add(revive_offset)
        queue.check_points.append((revive_offset, check_point))

    def _put(self, queue: _ReviveQueue, tag: str, key: str, body: Body, deliver_ms: int) -> Placed:
        properties = {Property.TAGS: tag, Property.UNIQUE_KEY: key, _DELIVER_TIME: str(deliver_ms)}
        placed = self._store.put(
            Draft(
                topic=self._topic,
                queue_id=queue.queue_id,
                body=encode(body),
                properties=props.join(properties),
                born_time_ms=self._now_ms(),
                born_host=self._store_host,
            )
        )
        # What others put here before must be read first.
        if queue.position == placed.queue_offset:
            queue.position = placed.queue_offset + 1
        return placed

    def _safe(self, queue: _ReviveQueue) -> None:
        queue.is_waiting = False
        if not self._is_stopped:
            self.advance(queue.queue_id)

    def _records(self, queue: _ReviveQueue) -> Iterator[Record]:
        for position, record in queue_records(self._store, self._topic, queue.queue_id, queue.position):
            queue.position = position
            if record is not None:
                yield record

    def _take(self, queue: _ReviveQueue, record: Record, check_points: CheckPoints) -> CheckPoint | None:
        """The check point that a record is, None for an ack; raises ``RemoteProtocolError`` for what is neither."""
        if len(record.body) > _BODY_BYTES_MAX:
            raise RemoteProtocolError(f"{len(record.body)} bytes are too many for a checkpoint or an ack")
        tag = props.find(record.properties, Property.TAGS)
        if tag == CHECK_POINT_TAG:
            return self._take_check_point(queue, record, check_points)
        if tag not in (ACK_TAG, BATCH_ACK_TAG):
            raise RemoteProtocolError(f"its tag is {tag!r}")
        _take_ack(decode(record.body, AckRecord), check_points)
        return None

    def _take_check_point(self, queue: _ReviveQueue, record: Record, check_points: CheckPoints) -> CheckPoint:
        body = decode(record.body, CheckPointRecord)
        offsets = [body.start_offset + diff for diff in body.diffs or range(body.count)]
        check_point = CheckPoint(
            check_points.queue((body.group, body.topic, body.queue_id)),
            start_offset=body.start_offset,
            pop_time_ms=body.pop_time_ms,
            invisible_ms=body.invisible_ms,
            offsets=offsets,
            revive_queue_id=queue.queue_id,
            acked=body.bits & (1 << len(offsets)) - 1,
            read_at=record.log_offset,
        )
        self._note(queue, check_point, record.queue_offset)
        check_points.add(check_point)
        if check_point.is_acked:
            check_points.end(check_point)
        return check_point


class _ReviveQueue:
    """One queue of the revive topic."""

    __slots__ = ("check_points", "is_waiting", "position", "queue_id", "window")

    def __init__(self, queue_id: int) -> None:
        self.queue_id = queue_id
        #: Check points that lie here, and how far they are done with.
        self.window = PopWindow()
        #: With their queue offsets; those that are over leave when they are the first.
        self.check_points: deque[tuple[int, CheckPoint]] = deque()
        #: Queue offset of the next record to fold; what this broker appends itself it need not read.
        self.position = -1
        #: Whether the window is looked at when the disk has more.
        self.is_waiting = False


def _take_ack(ack: AckRecord, check_points: CheckPoints) -> None:
    check_point = check_points.find((ack.group, ack.topic, ack.queue_id), ack.start_offset, ack.pop_time_ms)
    if check_point is None:
        return
    check_point.acked |= check_point.bits(ack.offsets or (ack.queue_offset,))
    if check_point.is_acked:
        check_points.end(check_point)


def _signed(bits: int) -> int:
    return bits - (1 << _INT_BITS) if bits >> (_INT_BITS - 1) else bits
