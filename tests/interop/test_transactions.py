"""Transactions with Apache's programs: their producers on our broker, ours on theirs, and stores that change hands
while transactions are open (J1, J2, V1, V2, C11)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq import (
    Admin,
    EmbeddedCluster,
    Message,
    Outcome,
    Producer,
    PushConsumer,
    ReceivedMessage,
    StartPosition,
)
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.env import Env
from ternmq.names import CHECK_MAX_TOPIC
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig
from tests.client.send.test_transaction import QUICK, is_settled, until
from tests.interop import jvm, rocketmq
from tests.interop.java import Java
from tests.interop.rocketmq import RocketMQ
from tests.interop.test_store_exchange import settings_of

pytestmark = pytest.mark.interop

GROUP: Final = "shop"


@asynccontextmanager
async def reading(name_servers: str, topic: str, *, group: str = "readers") -> AsyncIterator[list[bytes]]:
    """What arrives, in a list that grows."""
    got: list[bytes] = []

    async def listener(message: ReceivedMessage) -> None:
        got.append(message.body)

    consumer = PushConsumer(group, listener, name_servers=name_servers, start=StartPosition.FIRST)
    consumer.subscribe(topic)
    async with consumer:
        yield got


async def came(got: list[bytes], wanted: Sequence[bytes], *, limit_s: float = 120.0) -> None:
    """Wait for messages; more than these, or one twice, is a failure."""
    async with asyncio.timeout(limit_s):
        while len(got) < len(wanted):
            await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    assert sorted(wanted) == sorted(got)


@pytest.mark.timeout(300)
async def test_java_transactions_on_ternmq(java: Java) -> None:
    """J1, J2, V1: commit, rollback, unknown and then checked; a delay level is dropped by Java's client itself."""
    async with EmbeddedCluster(settings=QUICK) as cluster:
        names = cluster.name_servers
        async with java.transactions(names, group=GROUP, check="COMMIT_MESSAGE") as producer:
            results = await producer.send(topic="orders", count=3, body="paid", local="COMMIT_MESSAGE")
            await producer.send(topic="orders", count=2, body="failed", local="ROLLBACK_MESSAGE")
            await producer.send(topic="orders", count=2, body="checked", local="UNKNOW", properties={"城市": "杭州"})
            await producer.send(topic="orders", body="delayed", local="COMMIT_MESSAGE", delayLevel=18)
            assert {"SEND_OK"} == {one["status"] for one in results}
            assert all(one["transactionId"] == one["msgId"] for one in results)
            checks = [
                await producer.event("check", where=lambda check, body=body: check["body"] == body)  # type: ignore[misc]
                for body in ("checked-0", "checked-1")
            ]
            assert ("orders", "杭州") == (checks[0]["topic"], checks[0]["properties"]["城市"])
            await until(lambda: is_settled(cluster))
        async with reading(names, "orders") as got:
            wanted = [b"paid-0", b"paid-1", b"paid-2", b"checked-0", b"checked-1", b"delayed-0"]
            await came(got, wanted)


@pytest.mark.timeout(300)
async def test_apaches_tools_have_discarded_transactions_checked_again(java: Java) -> None:
    """J2, V1: RESUME_CHECK_HALF_MESSAGE (323), by the class behind mqadmin: by offset id, and by unique key."""
    settings = {"transactionTimeOut": "0", "transactionCheckInterval": "100", "transactionCheckMax": "1"}
    async with EmbeddedCluster(settings=settings) as cluster, Admin(cluster.name_servers) as admin:
        names = cluster.name_servers
        async with java.transactions(names, group="dying", check="UNKNOW") as dying:
            sent = await dying.send(topic="orders", count=2, body="paid", local="UNKNOW")
            await until(lambda: is_settled(cluster))
        ids = [result["msgId"] for result in sent]
        # Each is found under its unique key in the topic of discarded ones.
        [discarded] = await admin.messages.by_unique_key(CHECK_MAX_TOPIC, ids[0])
        async with java.transactions(names, group="dying", check="COMMIT_MESSAGE") as alive:
            await alive.send(topic="orders", body="hello", local="COMMIT_MESSAGE")
            assert await java.resume(names, message_id=discarded.offset_id)
            assert await java.resume(names, message_id=ids[1])
            async with reading(names, "orders") as got:
                await came(got, [b"hello-0", b"paid-0", b"paid-1"])
            # Once committed, it is not checked again.
            assert not await java.resume(names, message_id=discarded.offset_id)


@pytest.mark.timeout(300)
async def test_a_java_consumer_gets_our_committed_messages(java: Java) -> None:
    """J1, V1"""
    async with EmbeddedCluster(settings=QUICK) as cluster:
        names = cluster.name_servers
        async with (
            Producer(GROUP, name_servers=names, checker=lambda _: Outcome.UNKNOWN) as producer,
            producer.transaction(Message("orders", b"paid", tags="A", properties={"k": "v"})) as tx,
        ):
            pass
        async with java.consumer(names, group="readers", topic="orders", tags="A") as consumer:
            [message] = await consumer.messages(1)
        assert (b"paid", tx.id) == (message["body"], message["msgId"])


@pytest.mark.timeout(300)
async def test_our_transactions_on_rocketmq(any_rocketmq: RocketMQ) -> None:
    """J1, V2: commit and rollback by the API."""
    topic = f"ours-{any_rocketmq.version.replace('.', '-')}"
    names = any_rocketmq.address
    async with Producer(GROUP, name_servers=names, checker=lambda _: Outcome.UNKNOWN) as producer:
        for number in range(3):
            async with producer.transaction(Message(topic, b"paid-%d" % number), timeout_ms=20_000):
                pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(topic, b"failed"), timeout_ms=20_000):
                _ = 1 / 0
    async with reading(names, topic) as got:
        await came(got, [b"paid-0", b"paid-1", b"paid-2"])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", jvm.mostly("4.9.4"))
async def test_rocketmq_checks_our_producers(version: str, tmp_path: Path) -> None:
    """J2, V2: another producer of the group answers, after the first has left."""
    settings = {"transactionTimeOut": 1000, "transactionCheckInterval": 2000}
    with ExitStack() as stack:
        context = rocketmq.cluster(version, tmp_path, settings=settings)
        servers = await asyncio.to_thread(stack.enter_context, context)
        async with Producer(GROUP, name_servers=servers.address, checker=lambda _: Outcome.UNKNOWN) as first:
            committed = await first.transaction(Message("orders", b"committed"), timeout_ms=20_000).__aenter__()
            await first.transaction(Message("orders", b"lost"), timeout_ms=20_000).__aenter__()

        async def checker(message: ReceivedMessage) -> Outcome:
            return Outcome.COMMIT if message.message_id == committed.id else Outcome.ROLLBACK

        names = servers.address
        async with (
            Producer(GROUP, name_servers=names, checker=checker, topics=["orders"]),
            reading(names, "orders") as got,
        ):
            await came(got, [b"committed"])


class Handed:
    """A store directory that TernMQ and RocketMQ open in turn, on one port."""

    def __init__(self, path: Path, version: str, names: str) -> None:
        self.path, self.version, self.names = path, version, names
        self.port = rocketmq.free_port(neighbours=(-2, 1))
        self.config = StoreConfig(
            store_path_root_dir=path / "store",
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=500,
            max_index_num=2_000,
        )

    @asynccontextmanager
    async def in_rocketmq(self, **settings: object) -> AsyncIterator[rocketmq.Server]:
        times = {"transactionTimeOut": 1000, "transactionCheckInterval": 2000, **settings}
        with ExitStack() as stack:
            context = rocketmq.broker(
                self.version,
                self.path,
                namesrv=self.names,
                name="broker-a",
                port=self.port,
                settings={**settings_of(self.config), **times},
            )
            yield await asyncio.to_thread(stack.enter_context, context)
            await asyncio.to_thread(stack.close)

    def in_ternmq(self, **settings: Any) -> Broker:
        times = {"transaction_time_out": 1_000, "transaction_check_interval": 500, "transaction_check_max": 10_000}
        config = BrokerConfig(
            listen_port=self.port,
            broker_ip1="127.0.0.1",
            broker_name="broker-a",
            namesrv_addr=self.names,
            **(times | settings),
        )
        return Broker(config, self.config, Env())


async def begin(names: str, bodies: Sequence[bytes]) -> dict[str, bytes]:
    """Transactions that nobody ends: their ids and bodies."""
    begun: dict[str, bytes] = {}
    async with Producer(GROUP, name_servers=names, checker=lambda _: Outcome.UNKNOWN) as producer:
        for body in bodies:
            transaction = await producer.transaction(Message("orders", body), timeout_ms=20_000).__aenter__()
            begun[transaction.id] = body
    return begun


async def end(names: str, bodies: Sequence[bytes]) -> None:
    async with Producer(GROUP, name_servers=names, checker=lambda _: Outcome.UNKNOWN) as producer:
        for body in bodies:
            async with producer.transaction(Message("orders", body), timeout_ms=20_000):
                pass


NEVER: Final = {"transactionTimeOut": 3_600_000, "transactionCheckInterval": 3_600_000}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("crashes", [pytest.param(False, marks=pytest.mark.nightly), True], ids=["stopped", "killed"])
@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_open_transactions_change_hands(version: str, crashes: bool, tmp_path: Path) -> None:
    """J1, J2, C11: RocketMQ → TernMQ → RocketMQ → TernMQ. Each leaves open ones, and closes some of the other's."""

    async def commit(message: ReceivedMessage) -> Outcome:
        return Outcome.ROLLBACK if message.body.startswith(b"not") else Outcome.COMMIT

    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        names = f"127.0.0.1:{name_server.port}"
        handed = Handed(tmp_path, version, names)
        async with handed.in_rocketmq(**NEVER) as server:
            await end(names, [b"ended in RocketMQ"])
            await begin(names, [b"begun in RocketMQ", b"not in RocketMQ"])
            if crashes:
                # 5.x writes the op of what was ended some seconds later.
                await asyncio.to_thread(server.kill)
        async with handed.in_ternmq() as broker:
            await end(names, [b"ended in TernMQ"])
            async with Producer(GROUP, name_servers=names, checker=commit, topics=["orders"]):
                await _settled(names)
            assert broker.port == handed.port
        async with handed.in_ternmq(transaction_time_out=3_600_000):
            await begin(names, [b"begun in TernMQ", b"not in TernMQ"])
        async with (
            handed.in_rocketmq(),
            Producer(GROUP, name_servers=names, checker=commit, topics=["orders"]),
            reading(names, "orders") as got,
        ):
            wanted = [b"ended in RocketMQ", b"begun in RocketMQ", b"ended in TernMQ", b"begun in TernMQ"]
            await came(got, wanted)
        # RocketMQ closes no half that it has copied, and 5.x writes ops late; none of that is stored again.
        async with (
            handed.in_ternmq(),
            Producer(GROUP, name_servers=names, checker=commit, topics=["orders"]),
        ):
            await _settled(names)
            async with reading(names, "orders", group="again") as got:
                await came(got, wanted)


async def _settled(names: str) -> None:
    async with asyncio.timeout(120), Admin(names) as admin:
        while sum((await admin.transactions.count()).values()):
            await asyncio.sleep(0.1)
