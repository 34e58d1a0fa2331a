"""Which member of a Raft group serves a read, and takes offsets of groups (P4).

::

    leader with a lease       serves: no other leader can have acknowledged anything that it does not have
    leader without a lease    the read waits: for the next answers of a majority, or the end of the leadership
    any other member          refuses, unless ``slaveReadEnable`` is set; it shows committed messages only

A refusal is SERVICE_NOT_AVAILABLE: clients ask for the route again and find the new leader. A leader that no majority
answers steps down after an election time-out, so no read waits for longer than that. Requests that wait are bounded as
all that wait for a disk are (``net.limits``). A pull or pop that was parked before is answered in the turn in which the
leadership ends.

Reads are what clients conclude something from: pulls, pops, bounds of queues, offsets of groups, messages by key. A
single message by its id is given by every member that has it: what is committed never changes. Statistics for tools
are given by all, as they are.

Offsets that a group commits are for the leader only, also with ``slaveReadEnable``: a follower copies the leader's, and
would forget what it was told.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from ternmq.errors import NotMaster, SystemFailure
from ternmq.net.peer import Peer, Route, RouteTable
from ternmq.raft.node import RaftNode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request

_READS: Final = (
    RequestCode.PULL_MESSAGE,
    RequestCode.LITE_PULL_MESSAGE,
    RequestCode.POP_MESSAGE,
    RequestCode.PEEK_MESSAGE,
    RequestCode.NOTIFICATION,
    RequestCode.QUERY_MESSAGE,
    RequestCode.QUERY_CONSUMER_OFFSET,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
    RequestCode.GET_MAX_OFFSET,
    RequestCode.GET_MIN_OFFSET,
    RequestCode.GET_EARLIEST_MSG_STORETIME,
)
_WRITES: Final = (RequestCode.UPDATE_CONSUMER_OFFSET,)

_Answer = Reply | bytes | Awaitable[Reply | None] | None


def not_leading(node: RaftNode, cure: str = "") -> NotMaster:
    """The refusal of a member that does not lead; it names the leader, and where clients reach that."""
    leader = node.core.leader
    if leader in (None, node.id):
        return NotMaster(f"{node.id} does not lead its group, and there is no leader yet; ask again soon{cure}")
    hello = node.links.known.get(leader or "")
    place = f" ({hello.address})" if hello is not None else ""
    return NotMaster(f"{node.id} does not lead its group: {leader}{place} does; ask the leader{cure}")


class RaftReads:
    """All methods belong to the broker's loop. ``is_enabled``: whether followers serve reads (``slaveReadEnable``)."""

    def __init__(
        self, node: Callable[[], RaftNode], *, is_master: Callable[[], bool], is_enabled: Callable[[], bool]
    ) -> None:
        self._node = node
        self._is_master = is_master
        self._is_enabled = is_enabled

    def routes(self, others: RouteTable) -> dict[int, Route]:
        """The reads among the routes of every broker, with the rule of a group."""
        by_id = others[RequestCode.VIEW_MESSAGE_BY_ID]
        return {
            **{code: self._guarded(others[code]) for code in _READS},
            **{code: self._guarded(others[code], is_write=True) for code in _WRITES},
            RequestCode.VIEW_MESSAGE_BY_ID: replace(by_id, handler=self._by_id(by_id)),
        }

    def refusal(self, *, is_write: bool = False) -> NotMaster | None:
        """Why this member may not answer a read, or take an offset, now; None if it may."""
        if self._is_master():
            node = self._node()
            if node.has_lease():
                return None
            return NotMaster(f"{node.id} has not heard a majority of its group lately: another member may lead now")
        return self._of_follower(is_write=is_write)

    def _of_follower(self, *, is_write: bool) -> NotMaster | None:
        if self._is_enabled() and not is_write:
            return None
        cure = "" if is_write else ", or let followers serve reads (slaveReadEnable=true)"
        return not_leading(self._node(), cure)

    def _guarded(self, route: Route, *, is_write: bool = False) -> Route:
        handler = route.handler

        def handle(peer: Peer, request: Request[Any]) -> _Answer:
            refusal = self.refusal(is_write=is_write)
            if refusal is None:
                return handler(peer, request)
            if not self._is_master():
                raise refusal
            return later(peer, request)

        async def later(peer: Peer, request: Request[Any]) -> Reply | None:
            await self._node().leased()
            refusal = self.refusal(is_write=is_write)
            if refusal is not None:
                raise refusal
            if route.needs_connection and peer.closed.is_set():
                # Meanwhile: what a pop takes now, no client would get.
                return None
            answer = handler(peer, request)
            if isinstance(answer, Awaitable):
                return await answer
            assert not isinstance(answer, bytes), "no read is answered with a whole prepared frame"
            return answer

        return replace(route, handler=handle)

    def _by_id(self, route: Route) -> Callable[[Peer, Request[Any]], _Answer]:
        """A message that is here is valid on any member. Only a leader can say that there is no such message."""

        def handle(peer: Peer, request: Request[Any]) -> _Answer:
            try:
                answer = route.handler(peer, request)
            except SystemFailure:
                self._only_a_leader_knows()
                raise
            return later(answer) if isinstance(answer, Awaitable) else answer

        async def later(answer: Awaitable[Reply | None]) -> Reply | None:
            try:
                return await answer
            except SystemFailure:
                self._only_a_leader_knows()
                raise

        return handle

    def _only_a_leader_knows(self) -> None:
        refusal = self.refusal()
        if refusal is not None:
            raise refusal from None
