"""What brokers ask consumers, on the connections that the clients made (D4, F10, G1).

========  ==============================  =====================================================
40        NOTIFY_CONSUMER_IDS_CHANGED     the group has other members: rebalance
220       RESET_CONSUMER_CLIENT_OFFSET    a tool has moved the group: go on there
221       GET_CONSUMER_STATUS_FROM_CLIENT how far are you?
307       GET_CONSUMER_RUNNING_INFO       how are you? And if asked for, what does each thread and task do right now?
309       CONSUME_MESSAGE_DIRECTLY        here is a message: call your listener with it, and tell what it said
========  ==============================  =====================================================

The first two are one-way. The others come from tools, by way of a broker (A→B→C).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.decode import Inflater
from ternmq.client.consume.stacks import stack_dump
from ternmq.errors import ConsumerOffline
from ternmq.message import MessageQueue
from ternmq.net.gate import ANY_CALLER
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import ClientOffsets, ConsumedDirectly, ConsumerData, QueueOffsets, RunningInfo
from ternmq.wire.bodies.codec import by_key, by_queue, decode, encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import ConsumeDirectly, ConsumerGroup, ConsumerStatus, ResetOffset, RunningInfoQuery


class LocalMember(Protocol):
    """A member of a consumer group, as its instance and brokers see it."""

    def heartbeat_data(self) -> ConsumerData:
        """Group, kind and subscriptions, as a heartbeat carries them."""
        ...

    def rebalance_soon(self) -> None:
        """The members of the group may have changed (NOTIFY_CONSUMER_IDS_CHANGED 40)."""
        ...

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """A tool has moved the group to these queue offsets (RESET_CONSUMER_CLIENT_OFFSET 220)."""
        ...

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        """How far this member is in its queues of a topic."""
        ...

    def running_info(self) -> RunningInfo:
        """Settings, queues and speed; without a stack dump."""
        ...

    async def consume_directly(self, message: Claimed) -> ConsumedDirectly:
        """Call the listener with a message that a tool chose; raises ``BrokerRefused`` when there is none."""
        ...


class Answers:
    """Answers for the members in ``consumers``, by group on the wire. All methods belong to the loop's thread."""

    def __init__(self, consumers: Mapping[str, LocalMember], inflater: Inflater) -> None:
        self._consumers = consumers
        self._inflater = inflater

    def routes(self, lane: str) -> dict[int, Route]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Route(self.members_changed, lane, ANY_CALLER),
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Route(self.reset, lane, ANY_CALLER),
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Route(self.offsets, lane, ANY_CALLER),
            RequestCode.GET_CONSUMER_RUNNING_INFO: Route(self.running_info, lane, ANY_CALLER),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Route(self.consume_directly, lane, ANY_CALLER),
        }

    def members_changed(self, _: Peer, request: Request[ConsumerGroup]) -> None:
        member = self._consumers.get(request.fields.consumer_group)
        if member is not None:
            member.rebalance_soon()

    def reset(self, _: Peer, request: Request[ResetOffset]) -> None:
        """From RocketMQ 4.9, and to consumers in broadcasting."""
        member = self._consumers.get(request.fields.group)
        if member is not None:
            member.reset(by_queue(decode(request.body, QueueOffsets).offset_table))

    def offsets(self, _: Peer, request: Request[ConsumerStatus]) -> Reply:
        header = request.fields
        offsets = self._member(header.group).offsets(header.topic)
        return Reply(body=encode(ClientOffsets(message_queue_table=by_key(offsets))))

    def running_info(self, _: Peer, request: Request[RunningInfoQuery]) -> Reply:
        header = request.fields
        info = self._member(header.consumer_group).running_info()
        stacks = stack_dump() if header.jstack_enable else None
        return Reply(body=encode(msgspec.structs.replace(info, jstack=stacks)))

    async def consume_directly(self, _: Peer, request: Request[ConsumeDirectly]) -> Reply:
        header = request.fields
        member = self._member(header.consumer_group)
        message = Claimed.of(unpack_record(request.body), header.broker_name or "")
        await self._inflater.messages([message])
        return Reply(body=encode(await member.consume_directly(message)))

    def _member(self, group: str) -> LocalMember:
        member = self._consumers.get(group)
        if member is None:
            raise ConsumerOffline(f"this client no longer has a consumer of group {group}")
        return member
