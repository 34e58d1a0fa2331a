"""Who is connected, as tools ask: 203, 204, 328 (D3, D6)."""

from __future__ import annotations

from collections.abc import Iterable

from ternmq.broker.clients import Clients, Member
from ternmq.broker.flow import ADMIN
from ternmq.env import Clock
from ternmq.errors import ConsumerOffline, SystemFailure
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import Connection, ConsumerConnection, ProducerConnection, ProducerInfo, ProducerTable
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
            RequestCode.GET_CONSUMER_CONNECTION_LIST: Route(self.consumers, ADMIN),
            RequestCode.GET_PRODUCER_CONNECTION_LIST: Route(self.producers, ADMIN),
            RequestCode.GET_ALL_PRODUCER_INFO: Route(self.all_producers, ADMIN),
        }

    def consumers(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """The members of a consumer group and what they subscribed to."""
        group = request.fields.consumer_group
        known = self._clients.group_info(group)
        if known is None:
            raise ConsumerOffline(f"the consumer group[{group}] not online")
        body = ConsumerConnection(
            connection_set=_connections(known.members.values()),
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
        return Reply(body=encode(ProducerConnection(connection_set=_connections(members))))

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


def _connections(members: Iterable[Member]) -> list[Connection]:
    return [
        Connection(
            client_id=member.client_id,
            client_addr=member.peer.address,
            language=member.language,
            version=member.version,
        )
        for member in members
    ]
