"""Consumer offsets and the bounds of queues: 14, 15, 29, 30, 31, 32 (D4, F3, F6). The rules are in
``services.positions``."""

from __future__ import annotations

from collections.abc import Awaitable

from ternmq.broker.flow import CLIENT
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.services.positions import Positions
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import OffsetReply, QueryOffset, QueueBounds, SearchOffset, TimeReply, UpdateOffset


class OffsetHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, positions: Positions, store: MessageStore) -> None:
        self._positions = positions
        self._store = store

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.QUERY_CONSUMER_OFFSET: Route(
                self.query,
                CLIENT,
                Rule(Action.ANY, topic="topic", group="consumerGroup"),
                key="consumer_group",
                topic="topic",
            ),
            RequestCode.UPDATE_CONSUMER_OFFSET: Route(
                self.update,
                CLIENT,
                Rule(Action.SUB, topic="topic", group="consumerGroup"),
                key="consumer_group",
                topic="topic",
            ),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: Route(self.search, CLIENT, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_MAX_OFFSET: Route(self.max_offset, CLIENT, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_MIN_OFFSET: Route(self.min_offset, CLIENT, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_EARLIEST_MSG_STORETIME: Route(self.earliest_time, CLIENT, Rule(Action.ANY, topic="topic")),
        }

    def query(self, _peer: Peer, request: Request[QueryOffset]) -> Reply:
        """How far a group is."""
        header = request.fields
        queue_offset = self._positions.query(
            header.consumer_group,
            header.topic,
            header.queue_id,
            young_from_first=header.set_zero_if_not_found is not False,
        )
        return Reply(header=OffsetReply(queue_offset=queue_offset))

    def update(self, _peer: Peer, request: Request[UpdateOffset]) -> Reply:
        """Commit."""
        header = request.fields
        self._positions.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        return Reply()

    def search(self, _peer: Peer, request: Request[SearchOffset]) -> Reply | Awaitable[Reply]:
        """The first message since a time."""
        header = request.fields
        upper = (header.boundary_type or "").upper() == "UPPER"
        found = self._positions.by_time(header.topic, header.queue_id, header.time_ms, upper=upper)
        return Reply(header=OffsetReply(queue_offset=found)) if isinstance(found, int) else _when_found(found)

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


async def _when_found(queue_offset: Awaitable[int]) -> Reply:
    return Reply(header=OffsetReply(queue_offset=await queue_offset))
