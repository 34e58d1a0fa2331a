"""Clients that are connected to the brokers (D3)."""

from __future__ import annotations

from dataclasses import dataclass

from ternmq.admin.brokers import Brokers
from ternmq.client.instance import ClientInstance
from ternmq.errors import BrokerRefused, ConsumerOffline
from ternmq.wire.bodies.clients import Connection, ConsumerConnection, ProducerConnection
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import ConsumerGroup, ProducerGroup


@dataclass(slots=True, frozen=True)
class Member:
    """One live client of a group."""

    client_id: str
    address: str
    language: str
    version: int


@dataclass(slots=True, frozen=True)
class Members:
    """The live consumers of a group, and what they told about it."""

    members: tuple[Member, ...]
    #: CLUSTERING or BROADCASTING.
    model: str
    #: Topic → filter expression.
    subscriptions: dict[str, str]


class Clients:
    """``admin.clients``."""

    def __init__(self, instance: ClientInstance, brokers: Brokers) -> None:
        self._instance = instance
        self._brokers = brokers

    async def consumers(self, group: str) -> Members | None:
        """Who consumes for the group now, over all brokers; None when nobody does."""
        members: dict[str, Member] = {}
        subscriptions: dict[str, str] = {}
        model = ""
        for master in await self._brokers.masters():
            try:
                response = await self._instance.ask(
                    master.address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group=group)
                )
            except ConsumerOffline:
                continue
            info = decode(response.body, ConsumerConnection)
            model = info.message_model.value
            subscriptions |= {topic: data.sub_string for topic, data in info.subscription_table.items()}
            members |= {connection.client_id: _member(connection) for connection in info.connection_set}
        return Members(tuple(members[key] for key in sorted(members)), model, subscriptions) if members else None

    async def producers(self, group: str) -> list[Member]:
        """Who sends for the group now, over all brokers."""
        members: dict[str, Member] = {}
        for master in await self._brokers.masters():
            try:
                response = await self._instance.ask(
                    master.address, RequestCode.GET_PRODUCER_CONNECTION_LIST, ProducerGroup(producer_group=group)
                )
            except BrokerRefused as error:
                if error.code == ResponseCode.SYSTEM_ERROR:  # RocketMQ's answer for a group without producers
                    continue
                raise
            info = decode(response.body, ProducerConnection)
            members |= {connection.client_id: _member(connection) for connection in info.connection_set}
        return [members[key] for key in sorted(members)]


def _member(connection: Connection) -> Member:
    return Member(connection.client_id, connection.client_addr, connection.language, connection.version)
