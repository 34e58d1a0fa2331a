"""What clients say of themselves and ask about each other: 34, 35, 38, 41, 42, 46, 400; and 40, which the broker sends
when a group's members change (D3, F2, G1).

A heartbeat names all groups of a client at once. A group that this broker does not have is skipped, not refused: the
others in the same heartbeat must not suffer. A consumer's first heartbeat also brings its retry topic into being, whose
route it asks for right afterwards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from ternmq import names
from ternmq.allocation import Allocation, Averagely, AveragelyByCircle, ConsistentHash
from ternmq.broker.clients import Clients
from ternmq.broker.config import READ
from ternmq.broker.flow import CLIENT
from ternmq.broker.groups import Groups
from ternmq.broker.locks import Locks
from ternmq.broker.topics import Topics
from ternmq.errors import BrokerRefused, InvalidParameter, NetworkError, SystemFailure
from ternmq.message import MessageQueue
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import (
    Assignment,
    AssignmentQuery,
    Assignments,
    ClientCheck,
    Heartbeat,
    LockedQueues,
    MemberList,
    MessageModel,
    QueueLocks,
)
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.bodies.routes import TopicRoute
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import ConsumerGroup, UnregisterClient

#: Strategies that need nothing but the two lists; the others know about machine rooms or fixed lists, which only the
#: client has.
STRATEGIES: Final[dict[str, Allocation]] = {
    strategy.name: strategy for strategy in (Averagely(), AveragelyByCircle(), ConsistentHash())
}

#: Finds a topic's route over all brokers; None where there is no name server to ask.
FindRoute = Callable[[str], Awaitable[TopicRoute | None]]


class ClientHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        clients: Clients,
        groups: Groups,
        topics: Topics,
        locks: Locks,
        broker_name: str,
        find_route: FindRoute,
        notify_members: bool = True,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._locks = locks
        self._broker_name = broker_name
        self._find_route = find_route
        self._notify_members = notify_members

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.HEART_BEAT: Route(self.heartbeat, CLIENT),
            RequestCode.UNREGISTER_CLIENT: Route(self.unregister, CLIENT),
            RequestCode.CHECK_CLIENT_CONFIG: Route(self.check_config, CLIENT),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: Route(self.members, CLIENT),
            RequestCode.LOCK_BATCH_MQ: Route(self.lock, CLIENT),
            RequestCode.UNLOCK_BATCH_MQ: Route(self.unlock, CLIENT),
            RequestCode.QUERY_ASSIGNMENT: Route(self.assignment, CLIENT),
        }

    # --- Members of groups (D3) --------------------------------------------------------------------------------

    def heartbeat(self, peer: Peer, request: Request[object]) -> Reply:
        """Note who is there. The reply says nothing of RocketMQ 5's short heartbeats, so clients send whole ones."""
        said = decode(request.body, Heartbeat)
        language = request.language_name
        for producer in said.producer_data_set:
            self._clients.add_producer(
                producer.group_name, peer, said.client_id, language=language, version=request.version
            )
        for consumer in said.consumer_data_set:
            try:
                group = self._groups.find(consumer.group_name)
            except BrokerRefused:
                continue
            if group.retry_queue_nums > 0:
                self._topics.ensure(names.retry_topic(group.group_name), queues=group.retry_queue_nums)
            self._clients.add_consumer(consumer, peer, said.client_id, language=language, version=request.version)
        return Reply()

    def unregister(self, peer: Peer, request: Request[UnregisterClient]) -> Reply:
        header = request.fields
        if header.producer_group:
            self._clients.remove_producer(header.producer_group, peer)
        if header.consumer_group:
            self._clients.remove_consumer(header.consumer_group, peer)
        return Reply()

    def members(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """Client ids of a group; the caller itself is among them, as its heartbeat came first."""
        group = request.fields.consumer_group
        client_ids = self._clients.consumer_ids(group)
        if not client_ids:
            raise SystemFailure(f"no consumer for this group, {group}")
        return Reply(body=encode(MemberList(consumer_id_list=client_ids)))

    def tell_members(self, group: str) -> None:
        """Let all members of a group rebalance now (``Clients.on_members``)."""
        config = self._groups.get(group)
        if not self._notify_members or (config is not None and not config.notify_consumer_ids_changed_enable):
            return
        header = ConsumerGroup(consumer_group=group)
        for peer in self._clients.peers_of(group):
            # A connection that is closing needs no telling; its end is the next change.
            with contextlib.suppress(NetworkError):
                peer.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)

    def check_config(self, _peer: Peer, request: Request[object]) -> Reply:
        """Before a consumer with a filter starts: would this broker understand it? Tags it always does (K1)."""
        kind = decode(request.body, ClientCheck).subscription_data.expression_type
        if kind not in ("", "TAG"):
            raise SystemFailure(
                f"The broker does not support consumer to filter message by {kind}: it is not enabled on "
                f"{self._broker_name}; subscribe by tags, or filter in the consumer"
            )
        return Reply()

    # --- Queues: locks and assignment (F2, G1) -----------------------------------------------------------------

    def lock(self, _peer: Peer, request: Request[object]) -> Reply:
        asked = decode(request.body, QueueLocks)
        # Queues of topics that do not exist are nobody's, and would fill the table.
        queues = [queue.message_queue for queue in asked.queues if self._topics.get(queue.topic) is not None]
        granted = self._locks.lock(asked.consumer_group, asked.client_id, queues)
        return Reply(body=encode(LockedQueues(queues=[Queue.of(queue) for queue in granted])))

    def unlock(self, _peer: Peer, request: Request[object]) -> Reply:
        asked = decode(request.body, QueueLocks)
        queues = [queue.message_queue for queue in asked.queues]
        self._locks.unlock(asked.consumer_group, asked.client_id, queues)
        return Reply()

    async def assignment(self, _peer: Peer, request: Request[object]) -> Reply:
        """The queues of a topic that a client of RocketMQ 5 reads when it leaves the sharing out to the broker.

        An answer without a list means «keep what you have»: the client or the topic is not known here yet.
        """
        asked = decode(request.body, AssignmentQuery)
        strategy = STRATEGIES.get(asked.strategy_name)
        if strategy is None:
            raise InvalidParameter(
                f"no strategy {asked.strategy_name!r} on the broker; use {', '.join(STRATEGIES)}, or let the client "
                "rebalance (clientRebalance=true)"
            )
        queues = await self._queues(asked.topic)
        mine: list[MessageQueue] | None
        if asked.message_model is MessageModel.BROADCASTING:
            mine = queues or None
        else:
            members = self._clients.consumer_ids(asked.consumer_group)
            mine = strategy.allocate(asked.client_id, queues, members) if queues and members else None
        if mine is None:
            return Reply(body=encode(Assignments()))
        assignments = [Assignment(message_queue=Queue.of(queue)) for queue in mine]
        return Reply(body=encode(Assignments(message_queue_assignments=assignments)))

    async def _queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic on all brokers; on this one alone when no name server answers."""
        route = await self._find_route(topic)
        if route is not None:
            return [
                MessageQueue(topic, data.broker_name, queue_id)
                for data in route.queue_datas
                if data.perm & READ
                for queue_id in range(data.read_queue_nums)
            ]
        config = self._topics.get(topic)
        if config is None or not config.perm & READ:
            return []
        return [MessageQueue(topic, self._broker_name, queue_id) for queue_id in range(config.read_queue_nums)]
