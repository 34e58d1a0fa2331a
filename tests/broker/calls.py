"""A broker for tests, and a client that speaks the protocol to it: nothing between the test and the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.env import Env
from ternmq.net.dial import connect
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.store.config import StoreConfig
from ternmq.tasks import Tasks
from ternmq.wire.batch import pack_messages
from ternmq.wire.bodies.clients import ConsumerData, Heartbeat, MessageModel, SubscriptionData
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request, Response
from ternmq.wire.properties import join
from ternmq.wire.record import Record, unpack_records
from ternmq.wire.requests import PullMessage, PullSysflag, SendBack, SendMessage, SendMessageV2, SendReply

#: Longer than any test runs.
FAR_MS = 60_000


def small_store(path: Path, **changes: Any) -> StoreConfig:
    """A store whose files are quickly made."""
    sizes: dict[str, Any] = {
        "mapped_file_size_commit_log": 1 << 20,
        "mapped_file_size_consume_queue": 20_000,
        "max_hash_slot_num": 500,
        "max_index_num": 2_000,
    }
    return StoreConfig(store_path_root_dir=path, **(sizes | changes))


def settings(**changes: Any) -> BrokerConfig:
    given: dict[str, Any] = {
        "broker_name": "broker-a",
        "bind_address": "127.0.0.1",
        "listen_port": 0,
        # A machine with much to do must not make a broker refuse what a test sends.
        "wait_time_mills_in_send_queue": 60_000,
    }
    return BrokerConfig(**(given | changes))


class Caller:
    """One connection to a broker."""

    def __init__(self, peer: Peer) -> None:
        self.peer = peer

    async def call(self, code: int, header: Any = None, body: bytes = b"", **options: Any) -> Response:
        return await self.peer.call(code, header, body, **options)

    async def send(self, topic: str, body: bytes, *, queue_id: int = 0, **fields: Any) -> Response:
        """SEND_MESSAGE_V2; ``properties`` may be a table or a text."""
        return await self.call(RequestCode.SEND_MESSAGE_V2, v2(topic, queue_id=queue_id, **fields), body)

    async def sent(self, topic: str, body: bytes, **fields: Any) -> SendReply:
        """The same, which must succeed."""
        response = await self.send(topic, body, **fields)
        assert response.code == 0, response.remark
        return response.read(SendReply)

    async def send_batch(
        self, topic: str, messages: Sequence[tuple[bytes, dict[str, str]]], *, queue_id: int = 0, **fields: Any
    ) -> Response:
        body = pack_messages((0, body, join(properties)) for body, properties in messages)
        header = v2(topic, queue_id=queue_id, batch=True, **fields)
        return await self.call(RequestCode.SEND_BATCH_MESSAGE, header, body)

    async def send_back(self, group: str, log_offset: int, **fields: Any) -> Response:
        header = SendBack(group=group, log_offset=log_offset, **fields)
        return await self.call(RequestCode.CONSUMER_SEND_MSG_BACK, header)

    async def pull(self, topic: str, queue_offset: int = 0, **fields: Any) -> Response:
        return await self.call(RequestCode.PULL_MESSAGE, pull(topic, queue_offset=queue_offset, **fields))

    async def records(self, topic: str, queue_offset: int = 0, **fields: Any) -> list[Record]:
        """What a pull finds, which may be nothing."""
        return unpack_records((await self.pull(topic, queue_offset, **fields)).body)

    async def arrived(self, topic: str, count: int, **fields: Any) -> list[Record]:
        """The first messages of a queue, as soon as there are so many."""
        found: list[Record] = []
        while len(found) < count:
            response = await self.pull(
                topic,
                len(found),
                sysflag=PullSysflag.SUBSCRIPTION | PullSysflag.SUSPEND,
                suspend_timeout_ms=FAR_MS,
                **fields,
            )
            found += unpack_records(response.body)
        return found

    async def bodies(self, topic: str, **fields: Any) -> list[bytes]:
        return [bytes(record.body) for record in await self.records(topic, **fields)]

    async def heartbeat(
        self,
        group: str,
        subscriptions: dict[str, str],
        *,
        version: int = 1,
        model: MessageModel = MessageModel.CLUSTERING,
        kind: str = "TAG",
    ) -> None:
        """Say that this client is a member of ``group`` and wants these topics, by these expressions."""
        data = ConsumerData(
            group_name=group,
            message_model=model,
            subscription_data_set=[
                SubscriptionData(topic=topic, sub_string=expression, sub_version=version, expression_type=kind)
                for topic, expression in subscriptions.items()
            ],
        )
        body = encode(Heartbeat(client_id="127.0.0.1@1", consumer_data_set=[data]))
        assert (await self.call(RequestCode.HEART_BEAT, None, body)).code == 0


def v2(topic: str, *, properties: dict[str, str] | str = "", **fields: Any) -> SendMessageV2:
    text = properties if isinstance(properties, str) else join(properties)
    return SendMessageV2(topic=topic, properties=text, **fields)


def v1(topic: str, *, properties: str = "", **fields: Any) -> SendMessage:
    return SendMessage(topic=topic, properties=properties, **fields)


def pull(topic: str, **fields: Any) -> PullMessage:
    """A pull that brings its subscription along, so that no heartbeat is needed."""
    given: dict[str, Any] = {
        "consumer_group": "readers",
        "queue_id": 0,
        "queue_offset": 0,
        "count_max": 32,
        "sysflag": PullSysflag.SUBSCRIPTION,
        "subscription": "*",
    }
    return PullMessage(topic=topic, **(given | fields))


@asynccontextmanager
async def dialled(address: str) -> AsyncIterator[Caller]:
    """A connection to a broker; it takes what the broker tells its clients."""

    def take(_peer: Peer, _request: Request[Any]) -> Reply:
        return Reply()

    async with Tasks() as tasks:
        routes: dict[int, Route] = {RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: Route(take, "client", ANY_CALLER)}
        peer = await connect(
            address, routes=routes, lanes=Lanes([LaneConfig("client")]), tasks=tasks, timeout_ms=FAR_MS
        )
        yield Caller(peer)
        peer.close()
        await peer.closed.wait()


@asynccontextmanager
async def serving(
    path: Path, *, store: dict[str, Any] | None = None, env: Env | None = None, **changes: Any
) -> AsyncIterator[Caller]:
    """A connection to a broker of its own."""
    async with (
        Broker(settings(**changes), small_store(path, **(store or {})), env) as broker,
        dialled(broker.address) as caller,
    ):
        yield caller
