"""What tools ask a group's members, by way of the broker: 307, 309, 223 (D6, F10).

Consumers listen on no port; the only way to one is the connection that it made to us. So a tool asks us, we ask the
member, and its answer goes back as it is. A member that does not answer within 10 s is reported as such (207).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from ternmq.broker.flow import ADMIN
from ternmq.broker.tables.clients import Clients, GroupMember
from ternmq.errors import CallTimeout, ConsumeTimeout, InvalidName, NetworkError, NotFound, SystemFailure
from ternmq.net.gate import Action, Rule, check_record
from ternmq.net.peer import Peer, Route
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import ClientOffsets, GroupOffsets
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Header, Reply, Request, Response
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.record import unpack_record
from ternmq.wire.requests import ConsumeDirectly, ConsumerStatus, RunningInfoQuery

log = logging.getLogger(__name__)

TIMEOUT_MS: Final = 10_000
#: How far a member is, is a question with a short answer.
STATUS_TIMEOUT_MS: Final = 5_000
#: V3_1_8_SNAPSHOT, the first version that answers 307 and 309.
_VERSION_3_1_8: Final = 62

FindRecord = Callable[[int], Awaitable[memoryview | None]]


class RelayHandlers:
    """All methods belong to the broker's loop. ``find_record`` gives the record at a log offset, if there is one."""

    def __init__(self, *, clients: Clients, find_record: FindRecord, broker_name: str) -> None:
        self._clients = clients
        self._find_record = find_record
        self._broker_name = broker_name

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_CONSUMER_RUNNING_INFO: Route(
                self.running_info, ADMIN, Rule(Action.ANY, group="consumerGroup")
            ),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Route(
                self.consume_directly, ADMIN, Rule(Action.ADMIN, topic="topic", group="consumerGroup")
            ),
            RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: Route(
                self.offsets, ADMIN, Rule(Action.ANY, topic="topic", group="group")
            ),
        }

    async def running_info(self, _peer: Peer, request: Request[RunningInfoQuery]) -> Reply:
        """Settings, queues and speed of a member, and its stacks if asked for."""
        header = request.fields
        return await self._relay(header.consumer_group, header.client_id, request.code, header, b"")

    async def consume_directly(self, peer: Peer, request: Request[ConsumeDirectly]) -> Reply:
        """Have a member's listener called with a message of ours, whatever the group's progress."""
        header, access = request.fields, peer.access
        header.broker_name = self._broker_name
        body = await self._record(header.message_id or "")
        if access is not None:
            # The message is found by its place: the topic that the request names may be another one.
            check_record(access, unpack_record(body).topic)
        return await self._relay(header.consumer_group, header.client_id or "", request.code, header, body)

    async def offsets(self, _peer: Peer, request: Request[ConsumerStatus]) -> Reply:
        """How far each member is in its queues of a topic, as it knows itself; or one, by its client id."""
        header = request.fields
        group = self._clients.group_info(header.group)
        wanted = header.client_address
        members = [one for one in group.members.values() if wanted in (None, "", one.client_id)] if group else []
        if not members:
            raise SystemFailure(f"No Any Consumer online in the consumer group: [{header.group}]")
        answers = await asyncio.gather(*(self._status(member, header) for member in members))
        table = {member.client_id: answer for member, answer in zip(members, answers, strict=True) if answer}
        return Reply(
            body=encode(GroupOffsets(consumer_table={key: one.message_queue_table for key, one in table.items()}))
        )

    async def _status(self, member: GroupMember, header: ConsumerStatus) -> ClientOffsets | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            response = await member.peer.call(code, header, timeout_ms=STATUS_TIMEOUT_MS)
        except NetworkError as error:
            log.info("consumer %s did not return its offsets: %s", member.client_id, error)
            return None
        return decode(response.body, ClientOffsets) if response.code == ResponseCode.SUCCESS else None

    async def _relay(self, group: str, client_id: str, code: int, header: Header, body: Buffer) -> Reply:
        member = self._clients.find_consumer(group, client_id)
        if member is None:
            raise SystemFailure(f"The Consumer <{group}> <{client_id}> not online")
        if member.version < _VERSION_3_1_8:
            raise SystemFailure(
                f"The Consumer <{client_id}> Version <{member.version}> too low to finish, please upgrade it"
            )
        try:
            response: Response = await member.peer.call(code, header, body, timeout_ms=TIMEOUT_MS)
        except CallTimeout:
            raise ConsumeTimeout(f"consumer <{group}> <{client_id}> Timeout: no answer in {TIMEOUT_MS} ms") from None
        except NetworkError as error:
            raise SystemFailure(f"invoke consumer <{group}> <{client_id}> Exception: {error}") from None
        return Reply(response.code, remark=response.remark, body=bytes(response.body))

    async def _record(self, offset_id: str) -> Buffer:
        try:
            _, _, log_offset = parse_offset_id(offset_id)
        except InvalidName as error:
            raise SystemFailure(str(error)) from None
        record = await self._find_record(log_offset)
        if record is None:
            raise NotFound(
                f"{self._broker_name} has no message {offset_id}: it was deleted, or belongs to another broker"
            )
        return bytes(record)
