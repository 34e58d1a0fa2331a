"""Which clients are connected, as tools ask: 203, 204, 328 (D3, D6)."""

from __future__ import annotations

from ternmq.broker.flow import ADMIN
from ternmq.broker.tables.clients import Clients, GroupMember
from ternmq.env import Clock
from ternmq.errors import ConsumerOffline, SystemFailure
from ternmq.net.gate import ANY_CALLER, Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import (
    ConnectionInfo,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
    SubscriptionData,
)
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import ConsumerGroup, ProducerGroup


class ConnectionHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, clients: Clients, clock: Clock) -> None:
        self._clients = clients
        self._clock = clock

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_CONSUMER_CONNECTION_LIST: Route(
                self.consumers, ADMIN, Rule(Action.ANY, group="consumerGroup")
            ),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: Route(self.producers, ADMIN, ANY_CALLER),
            RequestCode.GET_ALL_PRODUCER_INFO: Route(self.all_producers, ADMIN, ANY_CALLER),
        }

    def consumers(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """The members of a consumer group and what they subscribed to, each for itself where they differ."""
        group = request.fields.consumer_group
        known = self._clients.group_info(group)
        if known is None:
            raise ConsumerOffline(f"the consumer group[{group}] not online")
        body = ConsumerConnection(
            connection_set=[
                _connection(member, list(member.subscriptions.values()) if known.difference else None)
                for member in known.members.values()
            ],
            subscription_table=known.subscriptions,
            consume_type=known.consume_type,
            message_model=known.message_model,
            consume_from_where=known.consume_from_where,
        )
        return Reply(body=encode(body))

    def producers(self, _peer: Peer, request: Request[ProducerGroup]) -> Reply:
        """The members of a producer group."""
        group = request.fields.producer_group
        members = self._clients.producer_members(group)
        if not members:
            raise SystemFailure(f"the producer group[{group}] not exist")
        return Reply(body=encode(ProducerConnection(connection_set=[_connection(member) for member in members])))

    def all_producers(self, _peer: Peer, _request: Request[object]) -> Reply:
        """All producers, by group."""
        # Signs of life are noted on a clock without a date; tools want one.
        zero_ms = self._clock.now_ms() - int(self._clock.monotonic() * 1000)
        table = {
            group: [
                ProducerInfo(
                    client_id=member.client_id,
                    remote_ip=member.peer.address.rpartition(":")[0],
                    language=member.language,
                    version=member.version,
                    last_update_timestamp=zero_ms + int(member.seen * 1000),
                )
                for member in self._clients.producer_members(group)
            ]
            for group in self._clients.producer_groups()
        }
        return Reply(body=encode(ProducerTable(data=table)))


def _connection(member: GroupMember, subscriptions: list[SubscriptionData] | None = None) -> ConnectionInfo:
    return ConnectionInfo(
        client_id=member.client_id,
        client_addr=member.peer.address,
        language=member.language,
        version=member.version,
        subscription_data_set=subscriptions,
    )
