"""Clients that are connected to the brokers, and the state that they report (D3, F10).

The brokers know which clients are connected. Only a consumer itself knows its state: the broker forwards the query over
the consumer's connection, so the reply may take as long as the consumer's program is busy, 10 s at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.admin.brokers import BrokerAdmin
from ternmq.admin.messages import place_of
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import BrokerRefused, ConsumerOffline, RequestNotSupported
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import (
    ConnectionInfo,
    ConsumedDirectly,
    ConsumerConnection,
    GroupOffsets,
    ProducerConnection,
    RunningInfo,
)
from ternmq.wire.bodies.codec import by_queue, decode
from ternmq.wire.bodies.share import ShareMember, ShareMembers
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import ConsumeDirectly, ConsumerGroup, ConsumerStatus, ProducerGroup, RunningInfoQuery
from ternmq.wire.requests_share import GetShareMembers

#: A little longer than a broker waits for a client.
_TIMEOUT_MS: Final = 12_000


@dataclass(slots=True, frozen=True)
class LiveClient:
    """One live client of a group."""

    client_id: str
    address: str
    language: str
    version: int
    #: Topic → filter expression, if a broker reports that the members of the group differ. Brokers of RocketMQ never
    #: do; there, query each member (``info``).
    subscriptions: dict[str, str] | None = None


@dataclass(slots=True, frozen=True)
class LiveConsumers:
    """The live consumers of a group, and the properties of the group that they reported."""

    members: tuple[LiveClient, ...]
    #: CLUSTERING or BROADCASTING.
    model: str
    #: Topic → filter expression: what the brokers use for the whole group.
    subscriptions: dict[str, str]

    @property
    def differ(self) -> bool:
        """Whether members subscribe differently, so that each may miss messages of its subscription."""
        return any(member.subscriptions is not None for member in self.members)


@dataclass(slots=True, frozen=True)
class QueueState:
    """A queue as the consumer that reads it sees it."""

    queue: MessageQueue
    #: The first message that is not done here; brokers learn it some seconds later.
    progress: int
    #: Messages fetched and not done.
    in_flight: int
    #: Whether an orderly consumer has the queue's lock.
    locked: bool
    #: When the last pull was answered and the last call of the listener ended, ms since 1970; 0: never.
    last_pull_ms: int
    last_consume_ms: int


@dataclass(slots=True, frozen=True)
class TopicSpeed:
    """How fast a consumer consumed one topic in the last minute."""

    topic: str
    done_per_s: float
    failed_per_s: float
    #: Average duration of a call of the listener.
    call_ms: float
    failed_last_hour: int


@dataclass(slots=True, frozen=True)
class ConsumerInfo:
    """The state that a consumer reports."""

    client_id: str
    orderly: bool
    #: Concurrent calls of the listener; 0 if the client does not report it.
    threads: int
    started_ms: int
    #: Topic → filter expression.
    subscriptions: dict[str, str]
    queues: tuple[QueueState, ...]
    topics: tuple[TopicSpeed, ...]
    #: All settings that the client reports, under RocketMQ's names.
    settings: dict[str, str]
    #: Stack of each thread (in Python also of each task); empty unless requested.
    stack: str


@dataclass(slots=True, frozen=True)
class Consumed:
    """The result of a listener for a message that an administrator had it consume."""

    client_id: str
    #: CR_SUCCESS, CR_LATER, CR_THROW_EXCEPTION, …
    result: str
    #: The error, if there was one.
    remark: str
    took_ms: int
    orderly: bool


@dataclass(slots=True, frozen=True)
class Sharer:
    """A consumer that takes messages of a topic together with others, as a broker knows it."""

    broker_name: str
    topic: str
    #: Empty for messages without a consumer, which wait to be delivered again.
    consumer: str
    #: "online", "offline", "gone"; "lost" without a consumer.
    state: str
    #: Messages that it has and did not confirm.
    held: int
    #: The last number that it was given, and the number up to which all are confirmed; -1: none.
    pulled: int
    acked: int
    #: How long it was not heard of.
    idle_ms: int


class ClientAdmin:
    """Clients that are connected to the brokers: ``admin.clients``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin) -> None:
        self._instance = instance
        self._brokers = brokers

    async def consumers(self, group: str) -> LiveConsumers | None:
        """The active consumers of ``group``, over all brokers; None if there are none."""
        members: dict[str, LiveClient] = {}
        subscriptions: dict[str, str] = {}
        model = ""
        for master in await self._brokers.masters():
            info = await self._members_on(master.address, group)
            if info is None:
                continue
            model = info.message_model.value
            subscriptions |= {topic: data.sub_string for topic, data in info.subscription_table.items()}
            members |= {connection.client_id: _member(connection) for connection in info.connection_set}
        return LiveConsumers(tuple(members[key] for key in sorted(members)), model, subscriptions) if members else None

    async def sharers(self, group: str) -> list[Sharer]:
        """The consumers of ``group`` that share messages, on each broker; brokers of RocketMQ have none."""
        found = []
        for master in await self._brokers.masters():
            found += [
                Sharer(
                    master.name,
                    member.topic,
                    member.consumer,
                    member.state,
                    member.held,
                    member.pulled,
                    member.acked,
                    member.idle_ms,
                )
                for member in await self._sharers_on(master.address, group)
            ]
        return sorted(found, key=lambda sharer: (sharer.topic, sharer.consumer, sharer.broker_name))

    async def _sharers_on(self, address: str, group: str) -> list[ShareMember]:
        found: list[ShareMember] = []
        after = "", ""
        while True:
            header = GetShareMembers(consumer_group=group, after_topic=after[0], after_consumer=after[1])
            try:
                response = await self._instance.ask(address, RequestCode.GET_SHARE_MEMBERS, header)
            except RequestNotSupported:
                return []
            told = decode(response.body, ShareMembers)
            found += told.members
            # One that does not go on would be asked for ever.
            if not told.more or not told.members or (told.members[-1].topic, told.members[-1].consumer) <= after:
                return found
            after = told.members[-1].topic, told.members[-1].consumer

    async def producers(self, group: str) -> list[LiveClient]:
        """The active producers of ``group``, over all brokers."""
        members: dict[str, LiveClient] = {}
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

    async def info(self, group: str, client_id: str, *, stack: bool = False) -> ConsumerInfo:
        """What the consumer ``client_id`` of ``group`` reports: its settings, queues and speed, and with ``stack`` what
        its threads and tasks do now.

        ::

            consumers = await admin.clients.consumers("billing")
            for member in consumers.members:
                info = await admin.clients.info("billing", member.client_id, stack=True)
                print(info.stack)

        Raises ``ConsumerOffline`` when no broker has this member, ``ConsumeTimeout`` when it does not answer.
        """
        header = RunningInfoQuery(consumer_group=group, client_id=client_id, jstack_enable=stack)
        for master in await self._brokers.masters():
            known = await self._members_on(master.address, group)
            if known is None or all(client_id != connection.client_id for connection in known.connection_set):
                continue
            code = RequestCode.GET_CONSUMER_RUNNING_INFO
            response = await self._instance.ask(master.address, code, header, timeout_ms=_TIMEOUT_MS)
            return _consumer_info(client_id, decode(response.body, RunningInfo))
        raise ConsumerOffline(f"group {group!r} has no active member {client_id!r}; see `tern group members {group}`")

    async def offsets(self, group: str, topic: str) -> dict[str, dict[MessageQueue, int]]:
        """The offsets of each member of ``group`` in its queues of ``topic``, as the member itself knows them; by
        client id.
        """
        found: dict[str, dict[MessageQueue, int]] = {}
        header = ConsumerStatus(topic=topic, group=group)
        code = RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS
        for master in await self._brokers.masters():
            if await self._members_on(master.address, group) is None:
                continue
            response = await self._instance.ask(master.address, code, header, timeout_ms=_TIMEOUT_MS)
            for client_id, table in decode(response.body, GroupOffsets).consumer_table.items():
                found.setdefault(client_id, {}).update(by_queue(table))
        return found

    async def consume(self, group: str, offset_id: str, *, client_id: str | None = None) -> Consumed:
        """Have the listener of a member of ``group`` called with one message, and return its result.

        ``offset_id`` names the message, ``client_id`` the member; None: any member. Nothing else happens: no offset
        moves, nothing is sent back, and an orderly listener is called out of order. Use it to find out why a message
        fails, or to have it consumed once more.

        Raises ``InvalidName`` for an invalid offset id, ``ConsumerOffline``, ``ConsumeTimeout`` when the listener takes
        more than 10 s (it continues), ``NotFound`` and ``SystemFailure`` when there is no such message.
        """
        address = place_of(offset_id)[0]
        if client_id is None:
            known = await self._members_on(address, group)
            if known is None:
                raise ConsumerOffline(f"group {group!r} has no active consumers at {address}; see `tern group list`")
            client_id = min(connection.client_id for connection in known.connection_set)
        header = ConsumeDirectly(consumer_group=group, client_id=client_id, message_id=offset_id)
        response = await self._instance.ask(
            address, RequestCode.CONSUME_MESSAGE_DIRECTLY, header, timeout_ms=_TIMEOUT_MS
        )
        told = decode(response.body, ConsumedDirectly)
        return Consumed(client_id, told.result.value, told.remark or "", told.spent_ms, told.order)

    async def _members_on(self, address: str, group: str) -> ConsumerConnection | None:
        try:
            response = await self._instance.ask(
                address, RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroup(consumer_group=group)
            )
        except ConsumerOffline:
            return None
        return decode(response.body, ConsumerConnection)


def _consumer_info(client_id: str, info: RunningInfo) -> ConsumerInfo:
    queues = by_queue(info.mq_table)
    settings = info.properties
    return ConsumerInfo(
        client_id=client_id,
        orderly=settings.get("PROP_CONSUMEORDERLY", "").lower() == "true",
        threads=_number(settings.get("PROP_THREADPOOL_CORE_SIZE", "")),
        started_ms=_number(settings.get("PROP_CONSUMER_START_TIMESTAMP", "")),
        subscriptions={data.topic: data.sub_string for data in info.subscription_set},
        queues=tuple(
            QueueState(
                queue,
                progress=queues[queue].commit_offset,
                in_flight=queues[queue].cached_msg_count,
                locked=queues[queue].locked,
                last_pull_ms=queues[queue].last_pull_timestamp,
                last_consume_ms=queues[queue].last_consume_timestamp,
            )
            for queue in sorted(queues)
        ),
        topics=tuple(
            TopicSpeed(topic, one.consume_ok_tps, one.consume_failed_tps, one.consume_rt, one.consume_failed_msgs)
            for topic, one in sorted(info.status_table.items())
        ),
        settings=settings,
        stack=info.jstack or "",
    )


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


def _member(connection: ConnectionInfo) -> LiveClient:
    said = connection.subscription_data_set
    return LiveClient(
        connection.client_id,
        connection.client_addr,
        connection.language,
        connection.version,
        {data.topic: data.sub_string for data in said} if said is not None else None,
    )
