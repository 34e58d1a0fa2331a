"""Single messages: by their place in the log, 33, and by key, 12 (L1)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from typing import Final

from ternmq.broker.flow import QUERY
from ternmq.errors import NotFound, StoreError, SystemFailure
from ternmq.net.gate import Access, Action, Rule, check_record
from ternmq.net.peer import Peer, Route
from ternmq.store.read.cold import THREADS
from ternmq.store.read.query import QUERY_BYTES_MAX, KeySearch, QueryResult
from ternmq.store.store import MessageStore
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import QueryMessage, QueryReply, ViewMessage

#: A unique key has few messages (its retries); RocketMQ asks for this many whatever the client says.
_BY_UNIQUE_ID_MAX: Final = 32


class QueryHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.VIEW_MESSAGE_BY_ID: Route(self.view, QUERY, Rule(Action.SUB, topic="topic"), takes_body=False),
            RequestCode.QUERY_MESSAGE: Route(self.query, QUERY, Rule(Action.SUB, topic="topic"), takes_body=False),
        }

    def view(self, peer: Peer, request: Request[ViewMessage]) -> Reply | Awaitable[Reply]:
        """One record, by the log offset in its offset id."""
        log_offset = request.fields.log_offset
        cold = self._store.cold.record(log_offset)
        if cold is not None:
            return self._view_cold(log_offset, cold, peer.access)
        return _viewed(self._store.record_at(log_offset), log_offset, peer.access)

    async def record(self, log_offset: int) -> memoryview | None:
        """One record, by its log offset; on another thread if it is old."""
        return await self._record(log_offset, self._store.cold.record(log_offset))

    async def _view_cold(self, log_offset: int, cold: Future[bytes | None], access: Access | None) -> Reply:
        return _viewed(await self._record(log_offset, cold), log_offset, access)

    def query(self, _peer: Peer, request: Request[QueryMessage]) -> Reply | Awaitable[Reply]:
        """Records by key or unique key within a span of store time; the index may find too much, the client checks."""
        header = request.fields
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
            raise NotFound("can not find message, maybe time range not correct")
        return Reply(
            header=QueryReply(last_update_ms=result.last_update_ms, last_update_offset=result.last_update_offset),
            body=result.buffers,
        )


def _viewed(record: memoryview | None, log_offset: int, access: Access | None) -> Reply:
    if record is None:
        raise SystemFailure(
            f"can not find message by the offset, {log_offset}: it was deleted, or belongs to another broker"
        )
    if access is not None:
        check_record(access, unpack_record(record).topic)
    return Reply(body=record)
