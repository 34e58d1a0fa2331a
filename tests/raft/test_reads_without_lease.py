"""A read that comes while the leader has no lease waits, and is answered when it has one again (P4)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from ternmq.broker.raft_reads import _READS, _WRITES, RaftReads
from ternmq.errors import NotMaster
from ternmq.net.gate import ANY_CALLER
from ternmq.net.peer import Peer, Route
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request


class Leader:
    """The part of a ``RaftNode`` that reads look at."""

    id = "n0"

    def __init__(self) -> None:
        self.has = asyncio.Event()

    def has_lease(self) -> bool:
        return self.has.is_set()

    async def leased(self) -> None:
        await self.has.wait()


class Reads:
    """Reads of a leader, and a connection that asks."""

    def __init__(self) -> None:
        self.leader = Leader()
        self.is_master = True
        self.peer = SimpleNamespace(closed=asyncio.Event())
        self.ran: list[int] = []
        reads = RaftReads(lambda: cast("Any", self.leader), is_master=lambda: self.is_master, is_enabled=lambda: False)
        needing = (RequestCode.PULL_MESSAGE, RequestCode.POP_MESSAGE)
        codes = (*_READS, *_WRITES, RequestCode.VIEW_MESSAGE_BY_ID)
        self.routes = reads.routes(
            {code: Route(self._note, "lane", ANY_CALLER, needs_connection=code in needing) for code in codes}
        )

    def _note(self, _peer: Peer, request: Request[Any]) -> Reply:
        self.ran.append(request.code)
        return Reply()

    def ask(self, code: RequestCode) -> asyncio.Future[Reply | None]:
        answer = self.routes[code].handler(cast("Peer", self.peer), Request(code=code))
        assert isinstance(answer, Awaitable)
        return asyncio.ensure_future(answer)


async def test_a_read_waits_for_the_lease() -> None:
    reads = Reads()
    answer = reads.ask(RequestCode.GET_MAX_OFFSET)
    await asyncio.sleep(0)
    assert not reads.ran
    reads.leader.has.set()
    assert await answer is not None
    assert [RequestCode.GET_MAX_OFFSET] == reads.ran


async def test_a_read_that_has_waited_for_nothing_is_refused() -> None:
    reads = Reads()
    answer = reads.ask(RequestCode.PULL_MESSAGE)
    await asyncio.sleep(0)
    reads.is_master = False
    reads.leader.id = "n9"
    reads.leader.core = SimpleNamespace(leader=None)  # type: ignore[attr-defined]  # for the words of the refusal
    reads.leader.has.set()
    with pytest.raises(NotMaster):
        await answer


async def test_what_needs_its_connection_is_not_begun_without_it() -> None:
    """F8, F9: a pop would take messages that no client gets, and a pull would be held for as long as it says."""
    reads = Reads()
    answers = [reads.ask(code) for code in (RequestCode.POP_MESSAGE, RequestCode.PULL_MESSAGE)]
    offset = reads.ask(RequestCode.UPDATE_CONSUMER_OFFSET)
    await asyncio.sleep(0)
    reads.peer.closed.set()
    reads.leader.has.set()
    assert [None, None] == await asyncio.gather(*answers)
    assert await offset is not None
    assert [RequestCode.UPDATE_CONSUMER_OFFSET] == reads.ran
