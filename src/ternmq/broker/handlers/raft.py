"""A member of a Raft group for tools (P4): its status 15040, a transfer of the leadership 15041, changes of members
15044. Followers ask the leader which topics were deleted, 15042, and how queues without messages are numbered, 15043.

What tools ask masters and slaves (15010), a member answers, too; it cannot be promoted (15011, 15012).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from ternmq.broker.flow import ADMIN
from ternmq.broker.raft_group import RaftGroup
from ternmq.errors import InvalidParameter
from ternmq.net.gate import ANY_CALLER, Action, Rule
from ternmq.net.peer import Peer, Route, RouteTable
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import ChangeMembers, MembersReply, TransferLeadership, TransferReply

#: Tools send these to followers, too. There they would delete all that has come until then, messages of a new topic of
#: that name included; a follower copies the leader's deletion, with its place in the log.
_DELETING: Final = (RequestCode.DELETE_TOPIC_IN_BROKER, RequestCode.CLEAN_UNUSED_TOPIC)


class RaftHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, group: RaftGroup, *, is_master: Callable[[], bool]) -> None:
        self._group = group
        self._is_master = is_master

    def routes(self, others: RouteTable) -> dict[int, Route]:
        """``others`` are those of every broker, some of which only a leader may carry out."""
        return {
            **{code: self._on_leader(others[code]) for code in _DELETING},
            RequestCode.GET_RAFT_STATUS: Route(self.status, ADMIN, ANY_CALLER),
            RequestCode.TRANSFER_LEADERSHIP: Route(self.transfer, ADMIN, Rule(Action.ADMIN)),
            RequestCode.CHANGE_MEMBERS: Route(self.change_members, ADMIN, Rule(Action.ADMIN)),
            RequestCode.GET_DELETED_TOPICS: Route(self.deleted_topics, ADMIN, ANY_CALLER),
            RequestCode.GET_QUEUE_NUMBERS: Route(self.queue_numbers, ADMIN, ANY_CALLER),
            RequestCode.GET_BROKER_STATUS: Route(self.broker_status, ADMIN, ANY_CALLER),
            RequestCode.PROMOTE_BROKER: Route(self.promote, ADMIN, Rule(Action.ADMIN)),
            RequestCode.HAND_OVER: Route(self.promote, ADMIN, Rule(Action.ADMIN)),
        }

    def _on_leader(self, route: Route) -> Route:
        def handle(peer: Peer, request: Request[Any]) -> Any:
            return route.handler(peer, request) if self._is_master() else Reply()

        return replace(route, handler=handle)

    def status(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._group.status()))

    async def transfer(self, _peer: Peer, request: Request[TransferLeadership]) -> Reply:
        """Answers when another member leads."""
        return Reply(header=TransferReply(leader=await self._group.transfer(request.fields.to)))

    async def change_members(self, _peer: Peer, request: Request[ChangeMembers]) -> Reply:
        """Answers when the change is committed."""
        add, remove = request.fields.add, request.fields.remove
        if bool(add) == bool(remove):
            raise InvalidParameter("a change adds one member, or removes one")
        members = await (self._group.add(add) if add else self._group.remove(remove))
        return Reply(header=MembersReply(members=members))

    def deleted_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._group.deleted_topics()))

    def queue_numbers(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(self._group.queue_numbers()))

    def broker_status(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Role, term and log of this member (``tern broker status``)."""
        return Reply(body=encode(self._group.broker_status()))

    def promote(self, _peer: Peer, _request: Request[object]) -> Reply:
        raise InvalidParameter(
            "this broker is a member of a Raft group, which elects its master; use `tern broker transfer`"
        )
