"""Offsets of whole groups, as tools move and compare them: reset by time 222, clone 314, times 303, smallest 308
(D4, D6). The rules are in ``services.positions``; here, members are told of a reset:
RESET_CONSUMER_CLIENT_OFFSET 220.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Mapping
from functools import partial

from ternmq.broker.flow import ADMIN
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.services.positions import Positions, Reset
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import TernError
from ternmq.message import MessageQueue
from ternmq.net.gate import Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import QueueOffsets, encode_reset
from ternmq.wire.bodies.codec import Queue, by_key, encode
from ternmq.wire.bodies.stats import CorrectionOffsets, QueueTimeSpan, TimeSpans
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Fields, Reply, Request
from ternmq.wire.requests import ResetOffset
from ternmq.wire.requests_admin import CloneGroupOffset, CorrectionOffset, TopicOfGroup


class GroupOffsetHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        positions: Positions,
        offsets: Offsets,
        store: MessageStore,
        topics: Topics,
        clients: Clients,
        broker_name: str,
        clock: Clock,
    ) -> None:
        self._positions = positions
        self._offsets = offsets
        self._store = store
        self._topics = topics
        self._clients = clients
        self._broker_name = broker_name
        self._clock = clock

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: Route(
                self.reset, ADMIN, Rule(Action.ADMIN, topic="topic", group="group")
            ),
            RequestCode.CLONE_GROUP_OFFSET: Route(
                self.clone, ADMIN, Rule(Action.ADMIN, topic="topic", group="destGroup", in_fields=_source)
            ),
            RequestCode.QUERY_CONSUME_TIME_SPAN: Route(
                self.times, ADMIN, Rule(Action.ANY, topic="topic", group="group")
            ),
            RequestCode.QUERY_CORRECTION_OFFSET: Route(
                self.smallest, ADMIN, Rule(Action.ANY, topic="topic", group="compareGroup")
            ),
        }

    def reset(self, _peer: Peer, request: Request[ResetOffset]) -> Awaitable[Reply]:
        """Reset the offsets of a group; answers where to, when that is on disk."""
        return self._when_reset(request.fields, self._positions.reset(request.fields))

    async def _when_reset(self, header: ResetOffset, resetting: Awaitable[Reset]) -> Reply:
        reset = await resetting
        if reset.tells_members:
            self._tell_members(header, reset.targets)
        return Reply(body=encode(QueueOffsets(offset_table=by_key(reset.targets))))

    def _tell_members(self, header: ResetOffset, targets: Mapping[MessageQueue, int]) -> None:
        body = encode_reset(targets)
        for peer in self._clients.peers_of(header.group):
            # One that is just closing has left, and the next reader of its queues is told as well. One that does not
            # read must not keep the others from hearing of it.
            with contextlib.suppress(TernError):
                peer.call_oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)

    async def clone(self, _peer: Peer, request: Request[CloneGroupOffset]) -> Reply:
        """Copy the offsets of one group to another, on a topic or on all."""
        header = request.fields
        await self._positions.clone(
            header.source_group, header.target_group, topic=header.topic, is_offline=header.offline
        )
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
        """By queue, the smallest offset of all groups of a topic but the filtered ones."""
        header = request.fields
        found = self._positions.smallest(
            header.topic, compare_group=header.compare_group, without=set((header.filter_groups or "").split(","))
        )
        return Reply(body=encode(CorrectionOffsets(correction_offsets=found)))


def _source(fields: Fields) -> list[Resource]:
    """The group whose offsets are copied: the copy tells which topics it reads, and how far it is."""
    return [Resource(ResourceKind.GROUP, fields.get("srcGroup", ""))]
