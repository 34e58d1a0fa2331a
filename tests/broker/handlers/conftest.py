"""A broker on a free port, and peers that call it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.net import dial
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.store.config import StoreConfig
from ternmq.tasks import Tasks
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import ConsumerData, Heartbeat, ProducerData, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import JSON, RequestCode, ResponseCode
from ternmq.wire.header import Header, Reply, Request, Response
from ternmq.wire.requests import ConsumerGroup, ResetOffset, SendMessage
from ternmq.wire.requests_admin import UpdateTopic
from tests.broker.calls import settings


class Client:
    """A connection to the broker.

    What the broker sends by itself is kept: in ``told`` the groups whose members changed, in ``resets`` new offsets, in
    ``asked`` what it passed on from tools. Those get what ``answers`` has for the code; without, they wait for ever.
    """

    def __init__(self) -> None:
        self.told: asyncio.Queue[str] = asyncio.Queue()
        self.resets: asyncio.Queue[tuple[ResetOffset, bytes]] = asyncio.Queue()
        self.asked: list[Request[Any]] = []
        self.answers: dict[int, Reply] = {}
        self.peer: Peer

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Route(self.notified, "client", ANY_CALLER),
            RequestCode.RESET_CONSUMER_CLIENT_OFFSET: Route(self.reset, "client", ANY_CALLER),
            RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: Route(self.answer, "client", ANY_CALLER),
            RequestCode.GET_CONSUMER_RUNNING_INFO: Route(self.answer, "client", ANY_CALLER),
            RequestCode.CONSUME_MESSAGE_DIRECTLY: Route(self.answer, "client", ANY_CALLER),
        }

    def answer(self, _peer: Peer, request: Request[Any]) -> Reply | None:
        self.asked.append(request)
        return self.answers.get(request.code)

    def notified(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        self.told.put_nowait(request.fields.consumer_group)
        return Reply()

    def reset(self, _peer: Peer, request: Request[ResetOffset]) -> Reply:
        self.resets.put_nowait((request.fields, bytes(request.body)))
        return Reply()

    async def call(self, code: int, header: Header | None = None, body: Buffer = b"", *, form: int = JSON) -> Response:
        return await self.peer.call(code, header, body, form=form)

    async def ok(self, code: int, header: Header | None = None, body: Buffer = b"", *, form: int = JSON) -> Response:
        response = await self.call(code, header, body, form=form)
        assert response.code == ResponseCode.SUCCESS, response.remark
        return response

    async def create_topic(self, topic: str, queues: int = 2, **more: Any) -> Response:
        header = UpdateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6, **more)
        return await self.call(RequestCode.UPDATE_AND_CREATE_TOPIC, header)

    async def send(self, topic: str, *bodies: bytes, queue_id: int = 0) -> None:
        for body in bodies:
            await self.ok(RequestCode.SEND_MESSAGE, SendMessage(topic=topic, queue_id=queue_id), body)

    async def consume(self, client_id: str, group: str, *topics: str, **more: Any) -> None:
        """A heartbeat as a consumer."""
        subscriptions = [SubscriptionData(topic=topic) for topic in topics]
        data = ConsumerData(group_name=group, subscription_data_set=subscriptions, **more)
        await self.ok(RequestCode.HEART_BEAT, None, encode(Heartbeat(client_id=client_id, consumer_data_set=[data])))

    async def produce(self, client_id: str, group: str) -> None:
        """A heartbeat as a producer."""
        beat = Heartbeat(client_id=client_id, producer_data_set=[ProducerData(group_name=group)])
        await self.ok(RequestCode.HEART_BEAT, None, encode(beat))


Connect = Callable[[], Awaitable[Client]]


def store_config(path: Path) -> StoreConfig:
    """Small files: a test needs little, and gets it fast."""
    return StoreConfig(
        store_path_root_dir=path / "store",
        mapped_file_size_commit_log=1 << 20,
        mapped_file_size_consume_queue=2_000,
        max_hash_slot_num=100,
        max_index_num=400,
        max_message_size=64 << 10,
    )


def broker_config(**more: Any) -> BrokerConfig:
    return settings(broker_ip1="127.0.0.1", **more)


@pytest.fixture
async def broker(tmp_path: Path) -> AsyncIterator[Broker]:
    async with Broker(broker_config(), store_config(tmp_path)) as running:
        yield running


@asynccontextmanager
async def connecting(broker: Broker) -> AsyncIterator[Connect]:
    """Opens connections to a broker; they close with the block."""
    async with AsyncExitStack() as stack:
        tasks = await stack.enter_async_context(Tasks())

        async def connected() -> Client:
            client = Client()
            client.peer = await dial.connect(
                broker.address,
                routes=client.routes(),
                lanes=Lanes([LaneConfig("client")]),
                tasks=tasks,
            )
            stack.callback(client.peer.close)
            return client

        yield connected


@pytest.fixture
async def connect(broker: Broker) -> AsyncIterator[Connect]:
    async with connecting(broker) as connected:
        yield connected


@pytest.fixture
async def client(connect: Connect) -> Client:
    return await connect()
