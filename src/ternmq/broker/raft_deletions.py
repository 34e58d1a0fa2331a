"""Deletions of topics that tools ask every member of a Raft group for (P4, D6).

``mqadmin deleteTopic`` of 4.9.4, ``DefaultMQAdminExt.deleteTopic`` of 5.2.0 and ``tern topic delete`` ask the master
and all slaves, one after the other, and give up at the first error. In a group the leader alone deletes, so followers
pass the request on to it (DELETE_TOPIC_IN_GROUP 15045). That is one command, and must be one deletion: a producer may
have made the topic again between the first request and the last, and its messages were acknowledged.

A command asks each member once. So a request that comes by a member that was not asked since the last deletion of the
topic belongs to it; the second one by the same member is a new command. After ``SAME_S`` every request is one.
"""

from __future__ import annotations

from typing import Final

from ternmq.errors import NetworkError, ServiceNotAvailable, refused
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


class AskedDeletions:
    """What the leader was asked for. Pure."""

    __slots__ = ("_asked",)

    def __init__(self) -> None:
        #: Topic → when it was deleted, and which members were asked for that; the oldest first.
        self._asked: dict[str, tuple[float, set[str]]] = {}

    def is_new(self, topic: str, member: str, now_s: float) -> bool:
        """Whether a request that came by ``member`` asks for a deletion that is not made yet."""
        deleted_s, members = self._asked.get(topic, (-SAME_S, {member}))
        if member in members or now_s - deleted_s >= SAME_S:
            return True
        members.add(member)
        return False

    def made(self, topic: str, member: str, now_s: float) -> None:
        """The topic is deleted, by a request that came by ``member``."""
        self._asked.pop(topic, None)
        if len(self._asked) >= TOPICS_MAX:
            del self._asked[next(iter(self._asked))]
        self._asked[topic] = now_s, {member}


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
