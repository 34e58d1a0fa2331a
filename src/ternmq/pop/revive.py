"""Messages that were not acknowledged in time: written again, to a retry topic of their group and topic (F9).

    %RETRY%group_topic     in general
    %RETRY%group+topic     with enableRetryTopicV2: cannot be mistaken for the retry topic of another group

A copy keeps all properties, counts one consumption more, and remembers when the message was first popped
(``1ST_POP_TIME``). What was popped from a retry topic goes back there. Pops of the topic look into its retry topics by
themselves, so consumers know nothing of them.

Messages are given up when their topic or their group was deleted, or when retention has taken them. Those that lie far
back in the log are read on other threads (``store.read.cold``), one after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Protocol

from ternmq import names
from ternmq.errors import StoreError
from ternmq.message import Property
from ternmq.pop.checkpoints import CheckPoint
from ternmq.pop.revive_log import PopOffsets, PopStore
from ternmq.store.log.rewrite import put_first_that_fits, rewrite
from ternmq.store.read.query import GetStatus
from ternmq.wire import properties as props
from ternmq.wire.record import Record, unpack_record

#: A retry topic has one queue: its messages are few.
RETRY_QUEUES: Final = 1

Exists = Callable[[str], bool]


class RetryTopics(Protocol):
    """What reviving needs of the broker's topics."""

    def get(self, topic: str) -> object | None: ...

    def ensure(self, topic: str, *, queues: int) -> object: ...


class Reviver:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        store: PopStore,
        offsets: PopOffsets,
        topics: RetryTopics,
        has_group: Exists,
        retry_v2: bool,
        count: Callable[[str, int, int], None],
    ) -> None:
        """``count`` gets the topic, the number and the bytes of messages that were written again."""
        self._store = store
        self._count = count
        self._offsets = offsets
        self._topics = topics
        self._has_group = has_group
        self.apply(retry_v2=retry_v2)

    def apply(self, *, retry_v2: bool) -> None:
        """Set which kind of name new retry topics get."""
        self._retry_topic = names.pop_retry_topic_v2 if retry_v2 else names.pop_retry_topic

    def _target(self, group: str, topic: str) -> str:
        """Where messages that a group popped from a topic and did not ack are written. The first form of the name may
        be the retry topic of a group: its members would get them."""
        is_taken = self._has_group(names.namesake(group, topic))
        return names.pop_retry_topic_v2(group, topic) if is_taken else self._retry_topic(group, topic)

    def is_old(self, check_point: CheckPoint) -> bool:
        """Whether a message that is not acked is probably not in memory: then ``revive_old`` must be called."""
        _, topic, queue_id = check_point.queue.key
        place = self._store.cold.place
        return any(place(topic, queue_id, queue_offset) is not None for queue_offset in check_point.open_offsets())

    def revive(self, check_point: CheckPoint) -> None:
        """Write again what is not acked, and note it as done, one by one. Raises what the store raises."""
        if self._is_wanted(check_point):
            _, topic, queue_id = check_point.queue.key
            for queue_offset in check_point.open_offsets():
                self._revive_one(check_point, queue_offset, self._read(topic, queue_id, queue_offset))

    async def revive_old(self, check_point: CheckPoint) -> None:
        """The same, without waiting for the disk on the loop. Acks that come meanwhile count."""
        _, topic, queue_id = check_point.queue.key
        for queue_offset in check_point.open_offsets():
            record = await self._read_old(topic, queue_id, queue_offset)
            if check_point.is_over or not self._is_wanted(check_point):
                return
            if check_point.holds(queue_offset):
                self._revive_one(check_point, queue_offset, record)

    def _is_wanted(self, check_point: CheckPoint) -> bool:
        group, topic, _ = check_point.queue.key
        return self._topics.get(_origin(group, topic)) is not None and self._has_group(group)

    def _revive_one(self, check_point: CheckPoint, queue_offset: int, record: Record | None) -> None:
        group, topic, _ = check_point.queue.key
        # One behind its check point in the log is of a topic that was deleted and made again. (Times would not tell: a
        # clock that was set back between storing and popping makes every message look younger.)
        if record is not None and (check_point.read_at is None or record.log_offset < check_point.read_at):
            end_offset = self._write(record, group, topic, check_point.pop_time_ms)
            for step in (check_point.step, check_point.stored):
                if step is not None:
                    step.rest_on(end_offset)
        check_point.acked |= check_point.bits((queue_offset,))

    async def _read_old(self, topic: str, queue_id: int, queue_offset: int) -> Record | None:
        log_offset = self._store.cold.place(topic, queue_id, queue_offset)
        coming = self._store.cold.record(log_offset) if log_offset is not None else None
        if coming is not None:
            try:
                page = await asyncio.wrap_future(coming)
            except StoreError:
                # Deleted meanwhile; or it cannot be read, which is then said below.
                pass
            else:
                return unpack_record(page) if page is not None else None
        return self._read(topic, queue_id, queue_offset)

    def _read(self, topic: str, queue_id: int, queue_offset: int) -> Record | None:
        found = self._store.get(topic, queue_id, queue_offset, count_max=1)
        return unpack_record(found.buffers[0]) if found.status is GetStatus.FOUND else None

    def _write(self, record: Record, group: str, topic: str, pop_time_ms: int) -> int:
        target = topic if names.is_retry_topic(topic) else self._target(group, topic)
        if self._topics.get(target) is None:
            self._topics.ensure(target, queues=RETRY_QUEUES)
            if self._offsets.get(group, target, 0) < 0:
                self._offsets.commit(group, target, 0, 0)
        # The last one adds nothing, for a message whose properties leave no room.
        choices: list[dict[str, str]] = [{}]
        if record.reconsume_times == 0 or props.find(record.properties, Property.FIRST_POP_TIME) is None:
            choices.insert(0, {Property.FIRST_POP_TIME: str(pop_time_ms)})
        drafts = (
            rewrite(record, target, 0, changes, reconsume_times=record.reconsume_times + 1) for changes in choices
        )
        end_offset = put_first_that_fits(self._store.put, drafts).end_offset
        self._count(target, 1, len(record.body))
        return end_offset


def _origin(group: str, topic: str) -> str:
    """The topic that a retry topic of pop belongs to; any other is its own."""
    for make in (names.pop_retry_topic_v2, names.pop_retry_topic):
        prefix = make(group, "")
        if topic.startswith(prefix):
            return topic.removeprefix(prefix)
    return topic
