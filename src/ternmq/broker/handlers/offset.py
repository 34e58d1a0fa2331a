"""Consumer offsets and the bounds of queues: 14, 15, 29, 30, 31, 32 (D4, F3, F6)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future

from ternmq.broker.flow import CLIENT
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.services.internal import check_move
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter, NotFound, StoreError
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import OffsetReply, QueryOffset, QueueBounds, SearchOffset, TimeReply, UpdateOffset


class OffsetHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, store: MessageStore, offsets: Offsets, topics: Topics, groups: Groups) -> None:
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: Route(
                self.query, CLIENT, Rule(Action.ANY, topic="topic", group="consumerGroup")
            ),
            RequestCode.UPDATE_CONSUMER_OFFSET: Route(
                self.update, CLIENT, Rule(Action.SUB, topic="topic", group="consumerGroup")
            ),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Route(self.search, CLIENT, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_MAX_OFFSET: Route(self.max_offset, CLIENT, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_MIN_OFFSET: Route(self.min_offset, CLIENT, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_EARLIEST_MSG_STORETIME: Route(self.earliest_time, CLIENT, Rule(Action.ANY, topic="topic")),
        }

    def query(self, _peer: Peer, request: Request[QueryOffset]) -> Reply:
        """How far a group is. A group that is new to a young queue begins with its first message.

        Young means that nothing was deleted from it yet and its first message is still in memory: whoever starts a
        consumer right after the first sends wants to see them, and it costs nothing. Otherwise NotFound, and the
        client goes by its own setting (first, last, time).
        """
        header = request.fields
        queue_offset = self._offsets.get(header.consumer_group, header.topic, header.queue_id)
        if queue_offset < 0:
            if header.set_zero_if_not_found is False or not self._is_young(header.topic, header.queue_id):
                raise NotFound("Not found, maybe this group consumer boot first")
            queue_offset = 0
        return Reply(header=OffsetReply(queue_offset=queue_offset))

    def update(self, _peer: Peer, request: Request[UpdateOffset]) -> Reply:
        """Commit. Only for what exists, or typing errors would stay in the table for ever."""
        header = request.fields
        topic = self._topics.find(header.topic)
        check_move(header.topic)
        if header.queue_id < 0 or header.commit_offset < 0:
            raise InvalidParameter(
                f"cannot commit offset {header.commit_offset} of queue {header.queue_id} of {header.topic}: "
                "queue and offset must not be negative"
            )
        queues = max(topic.read_queue_nums, topic.write_queue_nums)
        # Of a topic that was made smaller, consumers may still finish the queues that they have begun.
        has_begun = self._offsets.get(header.consumer_group, header.topic, header.queue_id) >= 0
        if header.queue_id >= queues and not has_begun:
            raise InvalidParameter(
                f"cannot commit an offset of queue {header.queue_id} of {header.topic}: the topic has {queues} queues"
            )
        self._groups.find(header.consumer_group)
        self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return Reply()

    def search(self, _peer: Peer, request: Request[SearchOffset]) -> Reply | Awaitable[Reply]:
        """The first message since a time. In a long log other threads look at the messages on the way."""
        header = request.fields
        upper = (header.boundary_type or "").upper() == "UPPER"
        cold = self._store.cold.offset_by_time(header.topic, header.queue_id, header.time_ms, upper=upper)
        if cold is not None:
            return self._searched(header, cold, upper=upper)
        queue_offset = self._store.offset_by_time(header.topic, header.queue_id, header.time_ms, upper=upper)
        return Reply(header=OffsetReply(queue_offset=queue_offset))

    async def _searched(self, header: SearchOffset, cold: Future[int], *, upper: bool) -> Reply:
        try:
            queue_offset = await asyncio.wrap_future(cold)
        except StoreError:
            # A file that was deleted meanwhile; or one that cannot be read, which is then said here.
            queue_offset = self._store.offset_by_time(header.topic, header.queue_id, header.time_ms, upper=upper)
        return Reply(header=OffsetReply(queue_offset=queue_offset))

    def max_offset(self, _peer: Peer, request: Request[QueueBounds]) -> Reply:
        header = request.fields
        return Reply(header=OffsetReply(queue_offset=self._store.max_offset(header.topic, header.queue_id)))

    def min_offset(self, _peer: Peer, request: Request[QueueBounds]) -> Reply:
        header = request.fields
        return Reply(header=OffsetReply(queue_offset=self._store.min_offset(header.topic, header.queue_id)))

    def earliest_time(self, _peer: Peer, request: Request[QueueBounds]) -> Reply | Awaitable[Reply]:
        """When the oldest message of a queue was stored."""
        topic, queue_id = request.fields.topic, request.fields.queue_id

        def reply(store_time: StoreTime) -> Reply:
            first = self._store.min_offset(topic, queue_id)
            return Reply(header=TimeReply(time_ms=store_time(topic, queue_id, first)))

        return with_store_times(self._store, reply)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        if self._store.max_offset(topic, queue_id) <= 0:
            return True
        return not self._store.get(topic, queue_id, 0, count_max=1).is_behind
