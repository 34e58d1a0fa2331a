"""A broker for consumers that says what a test tells it, on real sockets: for what real ones say seldom."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ternmq.errors import BrokerRefused
from ternmq.message import MessageQueue
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    Assignments,
    Heartbeat,
    LockedQueues,
    MemberList,
    QueueAssignment,
    QueueLocks,
    RequestMode,
    RequestModes,
)
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.bodies.routes import BrokerData, QueueData, TopicRouteBody
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Header, Reply, Request
from ternmq.wire.record import pack_host, pack_record, record_bytes
from ternmq.wire.requests import (
    ChangeInvisibleTimeReply,
    ConsumerGroup,
    OffsetReply,
    PopReply,
    PullReply,
    SendMessageV2,
    SendReply,
)
from ternmq.wire.requests_admin import RouteQuery

HOST = pack_host("127.0.0.1", 10911)

#: An answer, an error, or None: the request is held, and never answered.
Answer = Reply | BrokerRefused | None | asyncio.Future[Reply]


def record(
    queue_offset: int, body: bytes = b"it", *, topic: str = "orders", properties: str = "", sysflag: int = 0
) -> bytes:
    """The bytes of one stored message of queue 0."""
    size = record_bytes(body=len(body), topic=len(topic), properties=len(properties), born_host=8, store_host=8)
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=0,
        flag=0,
        queue_offset=queue_offset,
        log_offset=queue_offset * 1000,
        sysflag=sysflag,
        born_time_ms=1,
        born_host=HOST,
        store_time_ms=2,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=topic.encode(),
        properties=properties.encode(),
    )
    return bytes(page)


def pulled(code: int, next_offset: int, *records: bytes, broker_id: int = 0) -> Reply:
    """An answer to a pull."""
    header = PullReply(suggested_broker_id=broker_id, next_offset=next_offset, min_offset=0, max_offset=1000)
    return Reply(code, header=header, body=b"".join(records))


#: An answer to a change of the invisible time.
HIDDEN = ChangeInvisibleTimeReply(pop_time_ms=77_000, invisible_ms=60_000, revive_queue_id=3)


def popped(*records: bytes) -> Reply:
    """An answer to a pop at 5,000 ms, with messages of queue 0 from offset 0 on."""
    header = PopReply(pop_time_ms=5_000, invisible_ms=60_000, revive_queue_id=1, start_offset_info="0 0 0")
    return Reply(header=header, body=b"".join(records))


class ConsumerScript:
    """One server that is name server and ``broker-a`` at once, with one queue per topic.

    Each kind of request has a list of answers; when it is used up, pulls are held for ever, offsets are not known,
    and all else succeeds. ``asked`` has every header that came.
    """

    def __init__(self, *, pops: bool = False) -> None:
        """``pops``: as RocketMQ 5 and TernMQ, not as RocketMQ 4.9."""
        self._pops = pops
        self.topics = {"orders"}
        self.read_queues = 1
        self.slave_address = ""
        self.members: list[str] | BrokerRefused = []
        #: Queue ids whose locks another member has.
        self.locked: set[int] = set()
        self.answers: dict[int, deque[Answer]] = {}
        self.asked: list[tuple[int, Header | None]] = []
        self.heartbeats: list[Heartbeat] = []
        self.address = ""
        self.server: Server | None = None
        self._more = asyncio.Condition()

    def say(self, code: int, *answers: Answer) -> None:
        self.answers.setdefault(code, deque()).extend(answers)

    def headers(self, code: int) -> list[Any]:
        return [header for asked, header in self.asked if asked == code]

    async def wait_for(self, code: int, count: int = 1) -> list[Any]:
        """The headers of the first ``count`` requests of a kind, once they are there."""
        async with asyncio.timeout(20), self._more:
            await self._more.wait_for(lambda: len(self.headers(code)) >= count)
        return self.headers(code)[:count]

    async def tell_members_changed(self, group: str) -> None:
        assert self.server is not None
        for peer in self.server.peers:
            peer.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ConsumerGroup(consumer_group=group))

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ConsumerScript]:
        handlers: dict[int, Callable[[Request[Any]], Reply | None]] = {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self._route,
            RequestCode.HEART_BEAT: self._heartbeat,
            RequestCode.UNREGISTER_CLIENT: lambda _: Reply(),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self._members,
            RequestCode.QUERY_CONSUMER_OFFSET: lambda _: Reply(ResponseCode.QUERY_NOT_FOUND),
            RequestCode.UPDATE_CONSUMER_OFFSET: lambda _: Reply(),
            RequestCode.GET_MAX_OFFSET: lambda _: Reply(header=OffsetReply(queue_offset=100)),
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda _: Reply(header=OffsetReply(queue_offset=50)),
            RequestCode.PULL_MESSAGE: lambda _: None,
            RequestCode.CONSUMER_SEND_MSG_BACK: lambda _: Reply(),
            RequestCode.SEND_MESSAGE_V2: self._send,
            RequestCode.LOCK_BATCH_MQ: self._lock,
            RequestCode.UNLOCK_BATCH_MQ: lambda _: Reply(),
        }
        popping: dict[int, Callable[[Request[Any]], Reply | None]] = {
            RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: lambda _: Reply(body=encode(RequestModes())),
            RequestCode.SET_MESSAGE_REQUEST_MODE: lambda _: Reply(),
            RequestCode.QUERY_ASSIGNMENT: self._assignment,
            RequestCode.POP_MESSAGE: lambda _: None,
            RequestCode.ACK_MESSAGE: lambda _: Reply(),
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: lambda _: Reply(header=HIDDEN),
        }
        handlers |= popping if self._pops else {}
        routes = {code: Route(self._handler(handler), "work", ANY_CALLER) for code, handler in handlers.items()}
        async with Server.running(routes, [LaneConfig("work")]) as self.server:
            self.address = f"127.0.0.1:{await self.server.listen('127.0.0.1', 0)}"
            yield self

    def _handler(self, default: Callable[[Request[Any]], Reply | None]) -> Callable[[Peer, Request[Any]], Any]:
        async def handle(_: Peer, request: Request[Any]) -> Reply | None:
            async with self._more:
                self.asked.append((request.code, request.header))
                self._more.notify_all()
            answers = self.answers.get(request.code)
            if not answers:
                return default(request)
            answer = answers.popleft()
            if isinstance(answer, asyncio.Future):
                return await answer
            if isinstance(answer, BrokerRefused):
                raise answer
            return answer

        return handle

    def _route(self, request: Request[RouteQuery]) -> Reply:
        assert request.header is not None
        if request.header.topic not in self.topics:
            return Reply(ResponseCode.TOPIC_NOT_EXIST, remark="no route")
        addresses = {0: self.address} | ({1: self.slave_address} if self.slave_address else {})
        route = TopicRouteBody(
            broker_datas=[BrokerData(cluster="c", broker_name="broker-a", broker_addrs=addresses)],
            queue_datas=[
                QueueData(broker_name="broker-a", perm=6, read_queue_nums=self.read_queues, write_queue_nums=1)
            ],
        )
        return Reply(body=encode(route))

    def _heartbeat(self, request: Request[Any]) -> Reply:
        self.heartbeats.append(decode(request.body, Heartbeat))
        return Reply()

    def _members(self, _: Request[ConsumerGroup]) -> Reply:
        if isinstance(self.members, BrokerRefused):
            raise self.members
        members = self.members or [self.heartbeats[-1].client_id]
        return Reply(body=encode(MemberList(consumer_id_list=members)))

    def _assignment(self, request: Request[Any]) -> Reply:
        queue = Queue.of(MessageQueue(decode(request.body, AssignmentQuery).topic, "broker-a", -1))
        assigned = QueueAssignment(message_queue=queue, mode=RequestMode.POP)
        return Reply(body=encode(Assignments(message_queue_assignments=[assigned])))

    def _lock(self, request: Request[Any]) -> Reply:
        queues = [queue for queue in decode(request.body, QueueLocks).queues if queue.queue_id not in self.locked]
        return Reply(body=encode(LockedQueues(queues=queues)))

    def _send(self, request: Request[SendMessageV2]) -> Reply:
        assert request.header is not None
        return Reply(header=SendReply(message_id="0" * 32, queue_id=0, queue_offset=0))
