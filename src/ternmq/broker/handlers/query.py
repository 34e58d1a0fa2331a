"""Single messages: by their place in the log, 33, and by key, 12 (L1). The rules are in ``services.reading``."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Final

from ternmq.broker.flow import QUERY
from ternmq.broker.services.reading import Reading
from ternmq.net.gate import Action, Rights, Rule, check_record
from ternmq.net.peer import Peer, Route
from ternmq.store.read.query import QueryResult
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import QueryMessage, QueryReply, ViewMessage

#: A unique key has few messages (its retries); RocketMQ asks for this many whatever the client says.
_BY_UNIQUE_ID_MAX: Final = 32


class QueryHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, reading: Reading) -> None:
        self._reading = reading

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: Route(self.view, QUERY, Rule(Action.SUB, topic="topic"), takes_body=False),
            RequestCode.QUERY_MESSAGE: Route(self.query, QUERY, Rule(Action.SUB, topic="topic"), takes_body=False),
        }

    def view(self, peer: Peer, request: Request[ViewMessage]) -> Reply | Awaitable[Reply]:
        """One record, by the log offset in its offset id."""
        record = self._reading.by_id(request.fields.log_offset)
        return _viewed(record, peer.access) if isinstance(record, memoryview) else _view_later(record, peer.access)

    def query(self, _peer: Peer, request: Request[QueryMessage]) -> Reply | Awaitable[Reply]:
        """Records by key or unique key within a span of store time."""
        header = request.fields
        found = self._reading.by_key(
            header.topic,
            header.key,
            count_max=_BY_UNIQUE_ID_MAX if header.by_unique_id else header.count_max,
            begin_ms=header.begin_ms,
            end_ms=header.end_ms,
        )
        return _found(found) if isinstance(found, QueryResult) else _found_later(found)


async def _view_later(record: Awaitable[memoryview], access: Rights | None) -> Reply:
    return _viewed(await record, access)


def _viewed(record: memoryview, access: Rights | None) -> Reply:
    if access is not None:
        check_record(access, unpack_record(record).topic)
    return Reply(body=record)


async def _found_later(result: Awaitable[QueryResult]) -> Reply:
    return _found(await result)


def _found(result: QueryResult) -> Reply:
    return Reply(
        header=QueryReply(last_update_ms=result.last_update_ms, last_update_offset=result.last_update_offset),
        body=result.buffers,
    )
