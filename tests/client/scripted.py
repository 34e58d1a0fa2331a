"""A name server and brokers that say what a test tells them, on real sockets: for what real ones say seldom."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from ternmq.errors import refused
from ternmq.message import Message
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.wire.batch import unpack_messages
from ternmq.wire.bodies.clients import Heartbeat
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.routes import BrokerData, QueueData, TopicRouteBody
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import SendMessageV2, SendReply, UnregisterClient
from ternmq.wire.requests_admin import RouteQuery

#: What a broker says next to a send: an answer, an error, or None for silence.
Answer = Reply | Exception | None


class Bell:
    """Rings when something has happened, so that a test can wait for it without looking again and again."""

    def __init__(self) -> None:
        self._rung = asyncio.Event()

    def ring(self) -> None:
        self._rung.set()

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait for a condition that only changes when the bell rings; the test's own time limit ends a wait in vain."""
        while not condition():
            self._rung.clear()
            await self._rung.wait()


class ScriptedBroker:
    """Answers sends with SEND_OK and the next offset, unless ``answers`` has something else to say first."""

    def __init__(self, name: str, *, write_queues: int = 4, read_queues: int = 4, perm: int = 6) -> None:
        self.name = name
        self.write_queues = write_queues
        self.read_queues = read_queues
        self.perm = perm
        self.address = ""
        self.peers: Collection[Peer] = ()
        self.answers: deque[Answer] = deque()
        self.sends: list[SendMessageV2] = []
        self.requests: list[Request[Any]] = []
        self.bodies: list[bytes] = []
        self.heartbeats: list[Heartbeat] = []
        self.left: list[UnregisterClient] = []
        #: What it says of each heartbeat.
        self.remark: str | None = None
        #: Codes in the order in which they came, per connection they came on.
        self.codes: list[int] = []
        self.on_send: Callable[[Peer, Request[Any]], None] = lambda _peer, _request: None
        self.offsets = 0
        self.bell = Bell()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedBroker]:
        routes: dict[int, Route] = {
            RequestCode.SEND_MESSAGE_V2: Route(self._send, "work", ANY_CALLER),
            RequestCode.SEND_BATCH_MESSAGE: Route(self._send, "work", ANY_CALLER),
            RequestCode.HEART_BEAT: Route(self._heartbeat, "work", ANY_CALLER),
            RequestCode.UNREGISTER_CLIENT: Route(self._unregister, "work", ANY_CALLER),
        }
        async with Server.running(routes, [LaneConfig("work")], on_open=lambda _: self.bell.ring()) as server:
            self.peers = server.peers
            port = await server.listen("127.0.0.1", 0)
            self.address = f"127.0.0.1:{port}"
            yield self

    def _send(self, peer: Peer, request: Request[SendMessageV2]) -> Reply | None:
        header = request.header
        assert header is not None
        self.codes.append(request.code)
        self.bell.ring()
        self.sends.append(header)
        self.requests.append(request)
        self.bodies.append(bytes(request.body))
        self.on_send(peer, request)
        if self.answers:
            answer = self.answers.popleft()
            if isinstance(answer, Exception):
                raise answer
            return answer
        return self.stored(header, count=len(unpack_messages(bytes(request.body))) if header.batch else 1)

    def stored(self, header: SendMessageV2, code: int = ResponseCode.SUCCESS, *, count: int = 1) -> Reply:
        """The answer for a message that was stored, or for a batch of ``count``."""
        first = self.offsets
        self.offsets += count
        ids = ",".join(f"{offset:032X}" for offset in range(first, first + count))
        return Reply(code, header=SendReply(message_id=ids, queue_id=header.queue_id, queue_offset=first))

    def _heartbeat(self, _: Peer, request: Request[Any]) -> Reply:
        self.codes.append(request.code)
        self.bell.ring()
        self.heartbeats.append(decode(request.body, Heartbeat))
        return Reply(remark=self.remark)

    def _unregister(self, _: Peer, request: Request[UnregisterClient]) -> Reply:
        self.codes.append(request.code)
        assert request.header is not None
        self.bell.ring()
        self.left.append(request.header)
        return Reply()


class ScriptedCluster:
    """One name server that knows ``topics``, each on all ``brokers``; use ``scripted_cluster()``."""

    def __init__(self, brokers: Sequence[ScriptedBroker], topics: Sequence[str]) -> None:
        self.brokers = list(brokers)
        self.topics = set(topics)
        self.slaves: dict[str, str] = {}
        self.order_conf: str | None = None
        self.questions: list[str] = []
        self.name_servers = ""
        self.broken: Exception | None = None
        #: The name server gives no answer.
        self.is_silent = False
        #: The brokers are slaves without a master.
        self.is_unled = False
        #: One for the name server and all brokers.
        self.bell = Bell()
        for broker in self.brokers:
            broker.bell = self.bell

    @property
    def broker(self) -> ScriptedBroker:
        (broker,) = self.brokers
        return broker

    def route(self) -> TopicRouteBody:
        return TopicRouteBody(
            broker_datas=[
                BrokerData(
                    cluster="DefaultCluster",
                    broker_name=broker.name,
                    broker_addrs={2 if self.is_unled else 0: broker.address}
                    | ({1: self.slaves[broker.name]} if broker.name in self.slaves else {}),
                )
                for broker in self.brokers
            ],
            queue_datas=[
                QueueData(
                    broker_name=broker.name,
                    perm=broker.perm,
                    read_queue_nums=broker.read_queues,
                    write_queue_nums=broker.write_queues,
                )
                for broker in self.brokers
            ],
            order_topic_conf=self.order_conf,
        )

    def handle_route(self, _: Peer, request: Request[RouteQuery]) -> Reply | None:
        header = request.header
        assert header is not None
        self.bell.ring()
        self.questions.append(header.topic)
        if self.is_silent:
            return None
        if self.broken is not None:
            raise self.broken
        if header.topic not in self.topics:
            raise refused(
                ResponseCode.TOPIC_NOT_EXIST, f"No topic route info in name server for the topic: {header.topic}"
            )
        return Reply(body=encode(self.route()))


@asynccontextmanager
async def scripted_cluster(
    *brokers: ScriptedBroker, topics: Sequence[str] = ("orders",)
) -> AsyncIterator[ScriptedCluster]:
    cluster = ScriptedCluster(brokers or [ScriptedBroker("broker-a")], topics)
    async with AsyncExitStack() as stack:
        for broker in cluster.brokers:
            await stack.enter_async_context(broker.running())
        routes: dict[int, Route] = {RequestCode.GET_ROUTEINFO_BY_TOPIC: Route(cluster.handle_route, "work", ANY_CALLER)}
        server = await stack.enter_async_context(Server.running(routes, [LaneConfig("work")]))
        cluster.name_servers = f"127.0.0.1:{await server.listen('127.0.0.1', 0)}"
        yield cluster


def order(number: int = 0, **settings: Any) -> Message:
    return Message("orders", f"order {number}".encode(), **settings)
