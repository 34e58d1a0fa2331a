"""Single messages: by their place in the log, 33, and by key, 12 (L1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Final

from ternmq.broker.flow import QUERY
from ternmq.broker.services.internal import is_shown
from ternmq.errors import NotFound, StoreError, SystemFailure
from ternmq.names import HALF_TOPIC
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.read.cold import THREADS
from ternmq.store.read.query import QUERY_BYTES_MAX, KeySearch, QueryResult
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import QueryMessage, QueryReply, ViewMessage

#: A unique key has few messages (its retries); RocketMQ asks for this many whatever the client says.
_BY_UNIQUE_ID_MAX: Final = 32
_NOT_FOUND: Final = "can not find message, maybe time range not correct"


class QueryHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: Route(self.view, QUERY, Rule(Action.SUB, topic="topic"), takes_body=False),
            RequestCode.QUERY_MESSAGE: Route(self.query, QUERY, Rule(Action.SUB, topic="topic"), takes_body=False),
        }

    def view(self, _peer: Peer, request: Request[ViewMessage]) -> Reply | Awaitable[Reply]:
        """One record, by the log offset in its offset id."""
        log_offset = request.fields.log_offset
        cold = self._store.cold.record(log_offset)
        if cold is not None:
            return self._view_cold(log_offset, cold)
        return _viewed(self._store.record_at(log_offset), log_offset)

    async def record(self, log_offset: int) -> memoryview | None:
        """One record that may be shown, by its log offset; on another thread if it is old."""
        record = await self._record(log_offset, self._store.cold.record(log_offset))
        return record if record is not None and is_shown(record) else None

    async def _view_cold(self, log_offset: int, cold: Future[bytes | None]) -> Reply:
        return _viewed(await self._record(log_offset, cold), log_offset)

    def query(self, _peer: Peer, request: Request[QueryMessage]) -> Reply | Awaitable[Reply]:
        """Records by key or unique key within a span of store time; the index may find too much, the client checks."""
        header = request.fields
        if header.topic == HALF_TOPIC:
            raise NotFound(_NOT_FOUND)
        count_max = _BY_UNIQUE_ID_MAX if header.by_unique_id else header.count_max
        span = {"begin_ms": header.begin_ms, "end_ms": header.end_ms}
        search = self._store.cold.key_search(header.topic, header.key, count_max=count_max, **span)
        if search is not None:
            return self._query_cold(search)
        return self._found(self._store.query(header.topic, header.key, count_max=count_max, **span))

    async def _query_cold(self, search: KeySearch) -> Reply:
        """Carry out a search, the old records read on other threads."""
        log_offsets = next(search)
        while isinstance(log_offsets, list):
            log_offsets = search.send(await self._newest_records(log_offsets))
        return self._found(log_offsets)

    async def _newest_records(self, log_offsets: list[int]) -> list[memoryview | None]:
        """Records, in order; those that are too many for a reply, the oldest, are not even read."""
        records: list[memoryview | None] = []
        size = 0
        for end in range(len(log_offsets), 0, -THREADS):
            if size > QUERY_BYTES_MAX:
                break
            some = log_offsets[max(end - THREADS, 0) : end]
            cold = [(log_offset, self._store.cold.record(log_offset)) for log_offset in some]
            read = [await self._record(*each) for each in cold]
            size += sum(len(record) for record in read if record is not None)
            records = [*read, *records]
        return records

    async def _record(self, log_offset: int, cold: Future[bytes | None] | None) -> memoryview | None:
        if cold is None:
            return self._store.record_at(log_offset)
        try:
            record = await asyncio.wrap_future(cold)
        except StoreError:
            # Deleted meanwhile; or it cannot be read, which is then said here.
            return self._store.record_at(log_offset)
        return memoryview(record) if record is not None else None

    def _found(self, result: QueryResult) -> Reply:
        if not result.buffers:
            raise NotFound(_NOT_FOUND)
        return Reply(
            header=QueryReply(last_update_ms=result.last_update_ms, last_update_offset=result.last_update_offset),
            body=result.buffers,
        )


def _viewed(record: memoryview | None, log_offset: int) -> Reply:
    if record is None or not is_shown(record):
        raise SystemFailure(
            f"can not find message by the offset, {log_offset}: it was deleted, or belongs to another broker"
        )
    return Reply(body=record)
