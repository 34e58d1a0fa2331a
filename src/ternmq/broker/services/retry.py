"""Messages that a consumer could not process: tried again, and put aside after too many times (H1).

A consumer sends back *where* the record lies, never the message. The broker appends a copy of the record for the topic
``%RETRY%group``, to which every member of the group is subscribed, with these properties:

    RETRY_TOPIC        the topic it was first sent to, kept through all retries
    ORIGIN_MESSAGE_ID  the offset id of the first record, likewise
    DELAY              the level of the delay: as asked, or 3 + times consumed (10 s, 30 s, 1 m …)
    WAIT               false: no sender waits for the copy to reach the disk

The delay is that of every delayed message (``delay.levels``): the copy waits in the schedule topic first, and keeps
where it waited (REAL_TOPIC, REAL_QID). After 16 times (of the group, or of the request) the copy goes to ``%DLQ%group``
instead, at once (DELAY = 0), which no member reads by itself. The same rule holds for messages that a consumer *sends*
to its retry topic, when sending back failed. All these properties are as RocketMQ 4.9.4 and 5.2.0 write them.

A message whose properties fill a record has no room for them. Its copy gets less: no origin, no delay, in the end
nothing. A copy that is refused would be sent back again and again, and the group would not get past it.

A record from far back is read on another thread (``store.read.cold``), and the consumer is answered later.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from typing import Final

from ternmq import names
from ternmq.broker.config import WRITE
from ternmq.broker.services.access import check_send_back
from ternmq.broker.services.intake import Intake
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.errors import CorruptRecord, NoPermission, StoreError, SystemBusy, SystemFailure
from ternmq.message import Property
from ternmq.store.log.rewrite import put_first_that_fits, rewrite
from ternmq.types import Buffer
from ternmq.wire import properties as props
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.codes import VERSION
from ternmq.wire.ids import offset_id
from ternmq.wire.record import Record, unpack_record
from ternmq.wire.requests import SendBack, SendFields

#: Clients older than V3_4_9 filled the field with something else.
_VERSION_3_4_9: Final = 121
#: The first retry waits for delay level 3: 10 s.
_FIRST_LEVEL: Final = 3
#: One whose consumer was lost, for level 1: 1 s. It has waited for long, and nothing is known to be wrong with it.
_LOST_LEVEL: Final = 1
#: The delay of a dead letter, as RocketMQ notes it.
NO_DELAY: Final = "0"
#: Messages sent back that may wait for the disk at once; beyond that consumers are told to come back later.
COLD_MAX: Final = 100


class Retries:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        intake: Intake,
        topics: Topics,
        groups: Groups,
        record_at: Callable[[int], memoryview | None],
        cold_record: Callable[[int], Future[bytes | None] | None],
        choice: random.Random,
        stats: Stats,
    ) -> None:
        self._intake = intake
        self._topics = topics
        self._groups = groups
        self._record_at = record_at
        self._cold_record = cold_record
        self._cold_count = 0
        self._random = choice
        self._stats = stats

    def send_back(
        self,
        header: SendBack,
        *,
        version: int,
        check_topic: Callable[[str, str], None] | None = None,
        first_level: int = _FIRST_LEVEL,
    ) -> Awaitable[None] | None:
        """Store a copy of the record that a consumer sends back: now (None), or when the disk has brought it.

        ``check_topic`` gets the topic that the record has, and the group for which that may be a retry topic of popped
        messages; it raises if the consumer may not read it. ``first_level``
        is the delay of the first retry, if the request leaves it to the broker.

        Raises ``GroupMissing``, ``NoPermission``, ``SystemFailure`` when there is no such record (any more),
        ``SystemBusy`` when too many wait for the disk, and what ``Intake.store`` raises.
        """
        group = self._groups.find(header.group)
        if group.retry_queue_nums <= 0:
            # As RocketMQ: a group without retry queues gives its failures up, with success.
            return None
        cold = self._cold_record(header.log_offset)
        if cold is None:
            self._copy(header, group, self._record_at(header.log_offset), version, check_topic, first_level)
            return None
        if self._cold_count >= COLD_MAX:
            cold.cancel()
            raise SystemBusy(
                f"[OVERLOAD]system busy: {self._cold_count} old messages that were sent back are already waiting "
                "for the disk; retry later"
            )
        return self._copy_later(header, group, cold, version, check_topic, first_level)

    def resend(self, group: str, log_offset: int) -> Awaitable[None] | None:
        """Store a copy of a message whose consumer was lost (R2): now (None), or when the disk has brought it.

        Raises as ``send_back``.
        """
        return self.send_back(SendBack(log_offset=log_offset, group=group), version=VERSION, first_level=_LOST_LEVEL)

    async def _copy_later(
        self,
        header: SendBack,
        group: SubscriptionGroupConfig,
        cold: Future[bytes | None],
        version: int,
        check_topic: Callable[[str, str], None] | None,
        first_level: int,
    ) -> None:
        self._cold_count += 1
        page: Buffer | None
        try:
            page = await asyncio.wrap_future(cold)
        except StoreError:
            # Deleted meanwhile; or it cannot be read, which is then said here.
            page = self._record_at(header.log_offset)
        finally:
            self._cold_count -= 1
        self._copy(header, group, page, version, check_topic, first_level)

    def _copy(
        self,
        header: SendBack,
        group: SubscriptionGroupConfig,
        page: Buffer | None,
        version: int,
        check_topic: Callable[[str, str], None] | None,
        first_level: int,
    ) -> None:
        record = _read(page, header.log_offset)
        if check_topic is not None:
            # If there is a group of this name, its retries are there, and not what another group popped.
            of_group = record.topic.removeprefix(names.RETRY_PREFIX) if names.is_retry_topic(record.topic) else ""
            check_topic(record.topic, header.group if self._groups.get(of_group) is None else "")
        check_send_back(record.topic)
        # What was popped comes from a retry topic that says in its name what it retries.
        origin_topic = props.find(record.properties, Property.RETRY_TOPIC) or names.popped_topic(
            header.group, record.topic
        )
        origin_id = props.find(record.properties, Property.ORIGIN_MESSAGE_ID) or offset_id(
            record.store_host, record.log_offset
        )
        if header.delay_level < 0 or record.reconsume_times >= _times_max(group, header.max_reconsume_times, version):
            topic, queue_id = self._dead_letter_queue(header.group)
            delay = NO_DELAY
        else:
            topic, queue_id = self._retry_queue(group)
            delay = str(header.delay_level or first_level + record.reconsume_times)
        drafts = (
            rewrite(record, topic, queue_id, changes, reconsume_times=record.reconsume_times + 1)
            for changes in _changes(origin_topic, origin_id, delay)
        )
        put_first_that_fits(self._intake.store, drafts)
        # The name comes from a property of the message, which may say anything.
        if self._topics.get(origin_topic) is not None:
            self._stats.sent_back(origin_topic, header.group, len(record.body), is_dead=delay == NO_DELAY)
        # The copy is a message of the topic where it waits; it counts under its own when it is delivered.
        self._stats.put(topic if delay == NO_DELAY else names.SCHEDULE_TOPIC, 1, len(record.body))

    def target(self, header: SendFields, *, version: int) -> tuple[str, int] | None:
        """Where a message *sent* to a retry topic goes if it was tried too often: topic and queue id; None if not."""
        group = self._groups.find(header.topic.removeprefix(names.RETRY_PREFIX))
        # As 4.9; 5.x lets one more through, unless the group holds locks (its orderly consumers count as 4.9 does).
        if (header.reconsume_times or 0) < _times_max(group, header.max_reconsume_times, version):
            return None
        return self._dead_letter_queue(group.group_name)

    def _retry_queue(self, group: SubscriptionGroupConfig) -> tuple[str, int]:
        topic = names.retry_topic(group.group_name)
        self._ensure_writable(topic, queues=group.retry_queue_nums)
        return topic, self._random.randrange(group.retry_queue_nums)

    def _dead_letter_queue(self, group: str) -> tuple[str, int]:
        topic = names.dead_letter_topic(group)
        self._ensure_writable(topic, queues=1)
        return topic, 0

    def _ensure_writable(self, topic: str, *, queues: int) -> None:
        if not self._topics.ensure(topic, queues=queues, for_message=True).perm & WRITE:
            raise NoPermission(f"the topic[{topic}] sending message is forbidden; give it write permission (perm 6)")


def _read(page: Buffer | None, log_offset: int) -> Record:
    try:
        if page is not None:
            return unpack_record(page)
    except CorruptRecord:
        pass
    raise SystemFailure(f"look message by offset failed, {log_offset}: there is no message, or it was deleted")


def _changes(origin_topic: str, origin_id: str, delay: str) -> Iterator[dict[str, str]]:
    """The properties that a copy gets: all, or less if they have no room. Without a delay it comes again at once, and
    needs no note of where it waited. The last ones add nothing; what an earlier copy has stays."""
    yield {
        Property.RETRY_TOPIC: origin_topic,
        Property.ORIGIN_MESSAGE_ID: origin_id,
        Property.DELAY: delay,
        Property.WAIT: "false",
    }
    no_delay = {Property.DELAY: "", Property.REAL_TOPIC: "", Property.REAL_QUEUE_ID: "", Property.WAIT: ""}
    yield {Property.RETRY_TOPIC: origin_topic, Property.DELAY: delay, Property.WAIT: ""}
    yield {Property.RETRY_TOPIC: origin_topic, **no_delay}
    yield no_delay


def _times_max(group: SubscriptionGroupConfig, asked: int | None, version: int) -> int:
    """How often a message may be consumed before it is a dead letter."""
    return asked if asked is not None and asked >= 0 and version >= _VERSION_3_4_9 else group.retry_max_times
