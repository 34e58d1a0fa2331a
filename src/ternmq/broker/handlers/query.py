"""Single messages: by their place in the log, 33, and by key, 12 (L1)."""

from __future__ import annotations

from typing import Final

from ternmq.broker.flow import QUERY
from ternmq.errors import NotFound, SystemFailure
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import QueryMessage, QueryReply, ViewMessage

#: A unique key has few messages (its retries); RocketMQ asks for this many whatever the client says.
_BY_UNIQUE_ID_MAX: Final = 32


class QueryHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: Route(self.view, QUERY),
            RequestCode.QUERY_MESSAGE: Route(self.query, QUERY),
        }

    def view(self, _peer: Peer, request: Request[ViewMessage]) -> Reply:
        """One record, by the log offset in its offset id."""
        header = request.fields
        record = self._store.record_at(header.log_offset)
        if record is None:
            raise SystemFailure(
                f"can not find message by the offset, {header.log_offset}: it is deleted, or of another broker"
            )
        return Reply(body=[record])

    def query(self, _peer: Peer, request: Request[QueryMessage]) -> Reply:
        """Records by key or unique key within a span of store time; the index may find too much, the client checks."""
        header = request.fields
        result = self._store.query(
            header.topic,
            header.key,
            count_max=_BY_UNIQUE_ID_MAX if header.by_unique_id else header.count_max,
            begin_ms=header.begin_ms,
            end_ms=header.end_ms,
        )
        if not result.buffers:
            raise NotFound("can not find message, maybe time range not correct")
        return Reply(
            header=QueryReply(last_update_ms=result.last_update_ms, last_update_offset=result.last_update_offset),
            body=result.buffers,
        )
