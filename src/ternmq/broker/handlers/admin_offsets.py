"""Offsets of whole groups, as tools move and compare them: reset by time 222, clone 314, times 303, smallest 308
(D4, D6).

A group that is connected holds its offsets itself and would soon overwrite what is changed here. So its members must
be told, in one of two ways (``useServerSideResetOffset``):

- as RocketMQ 5 does: the next pull of a moved queue, or the one that is held, is answered with the new offset (21), and
  commits before that do not count (``Offsets.reset``). A group without members is just moved.
- as RocketMQ 4.9 does: each member gets RESET_CONSUMER_CLIENT_OFFSET 220 with the new offsets, drops the queues it has,
  commits and begins there. A group without members is refused with CONSUMER_NOT_ONLINE; tools then commit the offsets.

In broadcasting, members keep their offsets themselves and all read all queues, so they are always told the second way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final

from ternmq.broker.flow import ADMIN
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.services.internal import check_move
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import ConsumerOffline, GroupMissing, StoreError, TernError
from ternmq.message import MessageQueue
from ternmq.names import is_internal_topic
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import MessageModel, QueueOffsets, encode_reset
from ternmq.wire.bodies.codec import Queue, by_key, encode
from ternmq.wire.bodies.stats import CorrectionOffsets, QueueTimeSpan, TimeSpans
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import ResetOffset
from ternmq.wire.requests_admin import CloneGroupOffset, CorrectionOffset, TopicOfGroup

log = logging.getLogger(__name__)

#: What tools of RocketMQ 5 write where they mean no queue in particular.
ALL_QUEUES: Final = -1
_LONG_MAX: Final = (1 << 63) - 1


class GroupOffsetHandlers:
    """All methods belong to the broker's loop. ``moved`` is told of each queue in which a group was moved."""

    def __init__(
        self,
        *,
        offsets: Offsets,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        broker_name: str,
        on_server: bool,
        moved: Callable[[str, str, int], None],
        clock: Clock,
    ) -> None:
        self._offsets = offsets
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._broker_name = broker_name
        self._on_server = on_server
        self._moved = moved
        self._clock = clock

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Route(
                self.reset, ADMIN, Rule(Action.ADMIN, topic="topic", group="group")
            ),
            RequestCode.CLONE_GROUP_OFFSET: Route(
                self.clone, ADMIN, Rule(Action.ADMIN, topic="topic", group="destGroup")
            ),
            RequestCode.QUERY_CONSUME_TIME_SPAN: Route(
                self.times, ADMIN, Rule(Action.ANY, topic="topic", group="group")
            ),
            RequestCode.QUERY_CORRECTION_OFFSET: Route(
                self.smallest, ADMIN, Rule(Action.ANY, topic="topic", group="compareGroup")
            ),
        }

    def reset(self, _peer: Peer, request: Request[ResetOffset]) -> Awaitable[Reply]:
        """Send a group back (or on, if forced) to a time, to the end or to a given offset; answers where to when that
        is on disk."""
        header = request.fields
        config = self._topics.find(header.topic)
        check_move(header.topic)
        if self._groups.get(header.group) is None:
            raise GroupMissing(f"subscription group [{header.group}] does not exist; see `tern group list`")
        queue_ids = [
            queue_id
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
            if header.queue_id in (None, ALL_QUEUES, queue_id)
        ]
        # In a long log other threads look at the messages on the way to a time.
        by_time = (header.queue_offset is None or header.queue_offset < 0) and header.time_ms >= 0
        cold = {
            queue_id: self._store.cold.offset_by_time(header.topic, queue_id, header.time_ms)
            for queue_id in (queue_ids if by_time else ())
        }
        return self._reset_when_found(header, queue_ids, cold)

    async def _reset_when_found(
        self, header: ResetOffset, queue_ids: Sequence[int], cold: Mapping[int, Future[int] | None]
    ) -> Reply:
        found: dict[int, int] = {}
        for queue_id, future in cold.items():
            # What could not be read is looked for once more below.
            with contextlib.suppress(StoreError):
                if future is not None:
                    found[queue_id] = await asyncio.wrap_future(future)
        reply = self._reset(header, queue_ids, found)
        self._offsets.save()
        await self._offsets.saved()
        return reply

    def _reset(self, header: ResetOffset, queue_ids: Sequence[int], found: Mapping[int, int]) -> Reply:
        targets = {
            MessageQueue(header.topic, self._broker_name, queue_id): self._target(header, queue_id, found)
            for queue_id in queue_ids
        }
        members = self._clients.group_info(header.group)
        if members is not None and (members.message_model is MessageModel.BROADCASTING or not self._on_server):
            self._push(header, targets)
        elif self._on_server:
            # Where nobody reads, nobody could be told, and no reset may wait for ever.
            self._move(header.group, targets, has_readers=members is not None and header.topic in members.subscriptions)
        else:
            raise ConsumerOffline(
                f"Consumer not online, so can not reset offset. Group: {header.group}; commit the offsets instead"
            )
        log.info("offsets of group %s on topic %s were reset to time %d ms", header.group, header.topic, header.time_ms)
        return Reply(body=encode(QueueOffsets(offset_table=by_key(targets))))

    def _move(self, group: str, targets: Mapping[MessageQueue, int], *, has_readers: bool) -> None:
        for queue, queue_offset in targets.items():
            self._offsets.reset(group, queue.topic, queue.queue_id, queue_offset, has_readers=has_readers)
            self._moved(group, queue.topic, queue.queue_id)

    def _push(self, header: ResetOffset, targets: Mapping[MessageQueue, int]) -> None:
        body = encode_reset(targets)
        for peer in self._clients.peers_of(header.group):
            # One that is just closing has left; who takes over its queues is told as well. One that does not read
            # must not keep the others from hearing of it.
            with contextlib.suppress(TernError):
                peer.call_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)

    async def clone(self, _peer: Peer, request: Request[CloneGroupOffset]) -> Reply:
        """Let one group stand where another stands, on a topic or on all that it has offsets for."""
        header = request.fields
        if header.topic:
            check_move(header.topic)
        self._groups.find(header.target_group)
        online = None if header.offline else self._clients.group_info(header.source_group)
        for topic in [header.topic] if header.topic else self._offsets.topics_of(header.source_group):
            # What the source does not subscribe to any more is of no use to its copy.
            if self._topics.get(topic) is None or is_internal_topic(topic):
                continue
            if online is None or topic in online.subscriptions:
                self._offsets.clone(header.source_group, header.target_group, topic)
                for queue_id in self._offsets.of_group(header.target_group, topic):
                    self._moved(header.target_group, topic, queue_id)
        self._offsets.save()
        await self._groups.saved()
        await self._offsets.saved()
        return Reply()

    def times(self, _peer: Peer, request: Request[TopicOfGroup]) -> Reply | Awaitable[Reply]:
        """By queue: from when its messages are, where a group stands, and for how long its next message has waited."""
        return with_store_times(self._store, partial(self._times, request.fields.topic, request.fields.group))

    def _times(self, topic: str, group: str, store_time: StoreTime) -> Reply:
        spans = [
            self._time_span(group, MessageQueue(topic, self._broker_name, queue_id), store_time)
            for queue_id in range(self._topics.find(topic).read_queue_nums)
        ]
        return Reply(body=encode(TimeSpans(consume_time_span_set=spans)))

    def _time_span(self, group: str, queue: MessageQueue, store_time: StoreTime) -> QueueTimeSpan:
        topic, queue_id = queue.topic, queue.queue_id
        end = self._store.max_offset(topic, queue_id)
        committed = self._offsets.get(group, topic, queue_id)
        first_ms = store_time(topic, queue_id, self._store.min_offset(topic, queue_id))
        waits = 0 <= committed < end
        return QueueTimeSpan(
            message_queue=Queue.of(queue),
            min_time_stamp=first_ms,
            max_time_stamp=store_time(topic, queue_id, end - 1),
            consume_time_stamp=store_time(topic, queue_id, committed - 1) if committed > 0 else first_ms,
            delay_time=self._clock.now_ms() - store_time(topic, queue_id, committed) if waits else 0,
        )

    def smallest(self, _peer: Peer, request: Request[CorrectionOffset]) -> Reply:
        """By queue, the smallest offset of all groups of a topic but the filtered ones.

        Where the group to compare with is behind that, RocketMQ answers with the largest number there is.
        """
        header = request.fields
        filtered = set((header.filter_groups or "").split(","))
        found: dict[int, int] = {}
        for group in self._offsets.groups_of(header.topic):
            for queue_id, queue_offset in self._offsets.of_group(group, header.topic).items():
                # Who stands before the first message has long given up the queue.
                if group not in filtered and queue_offset >= self._store.min_offset(header.topic, queue_id):
                    found[queue_id] = min(found.get(queue_id, queue_offset), queue_offset)
        for queue_id, queue_offset in self._offsets.of_group(header.compare_group, header.topic).items():
            if found.get(queue_id, -1) > queue_offset:
                found[queue_id] = _LONG_MAX
        return Reply(body=encode(CorrectionOffsets(correction_offsets=found)))

    def _target(self, header: ResetOffset, queue_id: int, found: Mapping[int, int]) -> int:
        current = self._offsets.get(header.group, header.topic, queue_id)
        first = self._store.min_offset(header.topic, queue_id)
        end = self._store.max_offset(header.topic, queue_id)
        if header.queue_offset is not None and header.queue_offset >= 0:
            target = min(max(header.queue_offset, first), end)
        elif header.time_ms < 0:
            target = end
        else:
            by_time = found.get(queue_id)
            if by_time is None:
                by_time = self._store.offset_by_time(header.topic, queue_id, header.time_ms)
            target = max(by_time, 0)
        return target if header.force or current < 0 else min(target, current)
