"""A member of a Raft group for tools (P4): its status 15040, a transfer of the leadership 15041, changes of members
15044. Followers ask the leader which topics were deleted, 15042, and how queues without messages are numbered, 15043.

What tools ask masters and slaves (15010), a member answers, too; it cannot be promoted (15011, 15012).

Changes of what all members have belong to the leader. A follower refuses them and names the leader: what it changed
would be gone with its next copy of the leader's tables. Tools send two requests to all members and give up at the first
error, so a follower does not refuse these:

- the deletion of a topic: it is passed on to the leader (15045), and answered when that has answered. All requests of
  one command are one deletion (``broker.raft_deletions``);
- the cleaning of unused topics: a follower has nothing to do, it copies what the leader deletes.

Settings, users, access rules and the cleaning of files are of each member alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any, Final

from ternmq.broker.flow import ADMIN
from ternmq.broker.raft_deletions import AskedDeletions, Deletion
from ternmq.broker.raft_group import RaftGroup
from ternmq.broker.raft_reads import not_leading
from ternmq.errors import InvalidParameter, ServiceNotAvailable, TernError
from ternmq.net.gate import ANY_CALLER, Action, Rule
from ternmq.net.peer import Peer, Route, RouteTable
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import (
    ChangeMembers,
    DeleteTopicInGroup,
    MembersReply,
    Topic,
    TransferLeadership,
    TransferReply,
)

_Handler = Callable[[Peer, Request[Any]], Any]

#: Only the leader takes these.
CHANGES: Final = (
    RequestCode.UPDATE_AND_CREATE_TOPIC,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.DELETE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
    RequestCode.CLONE_GROUP_OFFSET,
    RequestCode.RESUME_CHECK_HALF_MESSAGE,
    RequestCode.RECALL_MESSAGE,
    RequestCode.RETURN_OFFSETS,
)


async def _has_outcome(topic: str, deletion: Deletion) -> Reply:
    error = await asyncio.shield(deletion.outcome)
    if error is not None:
        raise error.with_traceback(None)
    return Reply(remark=f"{topic} was deleted when another member of the group was asked")


class RaftHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, group: RaftGroup, *, is_master: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self._group = group
        self._is_master = is_master
        self._monotonic = monotonic
        self._asked = AskedDeletions()

    def routes(self, others: RouteTable) -> dict[int, Route]:
        """``others`` are those of every broker, some of which only a leader may carry out."""
        deletes = others[RequestCode.DELETE_TOPIC_IN_BROKER]
        return {
            **{code: self._on_leader(others[code]) for code in CHANGES},
            RequestCode.DELETE_TOPIC_IN_BROKER: replace(deletes, handler=self._deleting(deletes)),
            RequestCode.DELETE_TOPIC_IN_GROUP: replace(deletes, handler=self._deleting_for_others(deletes)),
            RequestCode.CLEAN_UNUSED_TOPIC: self._cleaning(others[RequestCode.CLEAN_UNUSED_TOPIC]),
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
            if not self._is_master():
                raise not_leading(self._group.node)
            return route.handler(peer, request)

        return replace(route, handler=handle)

    def _cleaning(self, route: Route) -> Route:
        def handle(peer: Peer, request: Request[Any]) -> Any:
            return route.handler(peer, request) if self._is_master() else Reply(remark=self._follows())

        return replace(route, handler=handle)

    def _deleting(self, route: Route) -> _Handler:
        """As a tool asks this member."""

        def handle(peer: Peer, request: Request[Topic]) -> Any:
            if self._is_master():
                return self._delete(route, peer, request, self._group.node.id)
            return self._pass_on(request.fields.topic)

        return handle

    def _deleting_for_others(self, route: Route) -> _Handler:
        """As a follower passes it on. It is never passed on again: two members may take each other for the leader."""

        def handle(peer: Peer, request: Request[DeleteTopicInGroup]) -> Any:
            if not self._is_master():
                raise not_leading(self._group.node)
            member, members = request.fields.member, self._group.node.core.members
            if member not in (*members.voters, *members.learners):
                # Those that have asked are remembered.
                raise InvalidParameter(f"{member[:20]!r} is not a member of the group: ask one of {members.voters}")
            return self._delete(route, peer, request, member)

        return handle

    def _delete(
        self, route: Route, peer: Peer, request: Request[Topic] | Request[DeleteTopicInGroup], member: str
    ) -> Any:
        topic, now_s, term = request.fields.topic, self._monotonic(), self._group.node.core.term
        same = self._asked.same(topic, member, term, now_s)
        if same is not None:
            return _has_outcome(topic, same)
        answer = route.handler(peer, request)
        return self._deleted(topic, self._asked.begin(topic, member, term, now_s), answer)

    async def _deleted(self, topic: str, deletion: Deletion, answer: Any) -> Any:
        """The answer to a deletion, when it is known; others that asked for it get the same."""
        error: TernError | None = ServiceNotAvailable(f"the deletion of {topic} was given up; try again")
        try:
            reply = await answer if isinstance(answer, Awaitable) else answer
            error = None
        except TernError as failure:
            error = failure
            raise
        finally:
            self._asked.ended(topic, deletion, error)
        return reply

    async def _pass_on(self, topic: str) -> Reply:
        await self._group.delete_on_leader(topic)
        return Reply(remark=self._follows())

    def _follows(self) -> str:
        node = self._group.node
        return f"{node.id} follows {node.core.leader or 'no leader now'}, which does this for the group"

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
