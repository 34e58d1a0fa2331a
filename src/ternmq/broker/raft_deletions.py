"""Deletions of topics that tools ask every member of a Raft group for (P4, D6).

``mqadmin deleteTopic`` of 4.9.4, ``DefaultMQAdminExt.deleteTopic`` of 5.2.0 and ``tern topic delete`` ask the master
and all slaves, one after the other, and give up at the first error. In a group the leader alone deletes, so followers
pass the request on to it (DELETE_TOPIC_IN_GROUP 15045). That is one command, and must be one deletion: a producer may
have made the topic again between the first request and the last, and its messages were acknowledged.

A command asks each member once. So a request that comes by a member that was not asked since the last deletion of the
topic belongs to it, and has its outcome; the second one by the same member is a new command. So is every request after
``SAME_S``, in a new term, and after a deletion that failed.
"""

from __future__ import annotations

import asyncio
from typing import Final

from ternmq.errors import NetworkError, ServiceNotAvailable, TernError, refused
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer
from ternmq.replication.metadata import MasterCaller
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.requests_admin import DeleteTopicInGroup, Topic

#: A command is over by then. ``mqadmin`` waits 5 s for each member.
SAME_S: Final = 15.0
#: Topics that are remembered; the oldest is forgotten first.
TOPICS_MAX: Final = 10_000
#: How long the leader may take for a request that is passed on to it.
_PASS_ON_MS: Final = 4_000


class Deletion:
    """One deletion: the members that were asked for it, and what became of it."""

    __slots__ = ("asked_s", "members", "outcome", "term")

    def __init__(self, term: int, member: str, asked_s: float) -> None:
        self.term = term
        self.members = {member}
        self.asked_s = asked_s
        #: None when it is on a majority, else why it is not.
        self.outcome: asyncio.Future[TernError | None] = asyncio.get_running_loop().create_future()


class AskedDeletions:
    """What the leader was asked for."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        #: By topic; the oldest first.
        self._asked: dict[str, Deletion] = {}

    def same(self, topic: str, member: str, term: int, now_s: float) -> Deletion | None:
        """The deletion that a request that came by ``member`` belongs to; None if it asks for a new one."""
        deletion = self._asked.get(topic)
        # What an earlier term deleted may have been taken back.
        if deletion is None or deletion.term != term or member in deletion.members:
            return None
        if now_s - deletion.asked_s >= SAME_S:
            return None
        deletion.members.add(member)
        return deletion

    def begin(self, topic: str, member: str, term: int, now_s: float) -> Deletion:
        """A request that came by ``member`` deletes the topic now."""
        self._asked.pop(topic, None)
        if len(self._asked) >= TOPICS_MAX:
            del self._asked[next(iter(self._asked))]
        deletion = self._asked[topic] = Deletion(term, member, now_s)
        return deletion

    def ended(self, topic: str, deletion: Deletion, error: TernError | None) -> None:
        """It is on a majority, or failed: then the next request is a new one."""
        if not deletion.outcome.done():
            deletion.outcome.set_result(error)
        if error is not None and self._asked.get(topic) is deletion:
            del self._asked[topic]


async def delete_on_leader(caller: MasterCaller, address: str, topic: str, *, member: str) -> None:
    """As ``member``, which was asked: have the leader at ``address`` delete a topic. Raises ``BrokerRefused``."""
    async with Tasks() as tasks:
        try:
            peer = await caller.connect(address, Lanes([LaneConfig("client")]), tasks)
            try:
                response = await _ask(peer, topic, member)
            finally:
                peer.close()
        except NetworkError as error:
            raise ServiceNotAvailable(f"the leader cannot be asked to delete {topic}: {error}; try again") from None
    if response.code != ResponseCode.SUCCESS:
        raise refused(response.code, response.remark or f"the leader at {address} does not delete {topic}")


async def _ask(peer: Peer, topic: str, member: str) -> Response:
    asked = DeleteTopicInGroup(topic=topic, member=member)
    response = await peer.call(RequestCode.DELETE_TOPIC_IN_GROUP, asked, timeout_ms=_PASS_ON_MS)
    if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        # It is a RocketMQ broker.
        response = await peer.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic=topic), timeout_ms=_PASS_ON_MS)
    return response
