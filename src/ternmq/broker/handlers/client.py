"""What clients say of themselves and ask about each other: 34, 35, 38, 41, 42, 46; and 40, which the broker sends when
a group's members change (D3, F2).

A heartbeat names all groups of a client at once. A group that this broker does not have is skipped, not refused: the
others in the same heartbeat must not suffer. A consumer's first heartbeat also brings its retry topic into being, whose
route it asks for right afterwards.
"""

from __future__ import annotations

import contextlib

from ternmq import names
from ternmq.broker.clients import Clients
from ternmq.broker.filters import Filters
from ternmq.broker.flow import CLIENT
from ternmq.broker.groups import Groups
from ternmq.broker.locks import Locks
from ternmq.broker.topics import Topics
from ternmq.errors import BrokerRefused, NetworkError, SystemFailure
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import (
    ClientCheck,
    Heartbeat,
    LockedQueues,
    MemberList,
    QueueLocks,
)
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import ConsumerGroup, UnregisterClient


class ClientHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        clients: Clients,
        groups: Groups,
        topics: Topics,
        locks: Locks,
        filters: Filters,
        notify_members: bool = True,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._locks = locks
        self._filters = filters
        self._notify_members = notify_members

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.HEART_BEAT: Route(self.heartbeat, CLIENT),
            RequestCode.UNREGISTER_CLIENT: Route(self.unregister, CLIENT),
            RequestCode.CHECK_CLIENT_CONFIG: Route(self.check_config, CLIENT),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: Route(self.members, CLIENT),
            RequestCode.LOCK_BATCH_MQ: Route(self.lock, CLIENT),
            RequestCode.UNLOCK_BATCH_MQ: Route(self.unlock, CLIENT),
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
            self._filters.register(consumer.group_name, consumer.subscription_data_set)
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
        """Before a consumer with a filter starts: would this broker understand it (K2)?"""
        said = decode(request.body, ClientCheck).subscription_data
        self._filters.check(said.expression_type, said.sub_string)
        return Reply()

    # --- Locks of queues (F2) -----------------------------------------------------------------

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
