"""Consumers go on on a slave while the master is dead: Java's on our brokers, ours on RocketMQ's (O3, V3)."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq import ClientConfig, Message, Producer, PullConsumer, PushConsumer, StartPosition
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.env import Env
from ternmq.errors import BrokerRefused, NetworkError
from ternmq.message import MessageQueue, ReceivedMessage, SendStatus
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.replication.slave import SlaveState
from ternmq.wire.bodies.clients import GroupOffsets
from ternmq.wire.bodies.codec import decode
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import ConsumerStatus, OffsetReply, QueryOffset
from tests.broker.test_replicating import SMALL, copies_tables, slave, state_of
from tests.interop import jvm, rocketmq
from tests.interop.java import Java, Peer
from tests.interop.rocketmq import Server, free_port
from tests.interop.test_replication import ROCKETMQ_SIZES, replicated
from tests.replication.world import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

TOPIC: Final = "orders"
VERSIONS = ["4.9.4", "5.2.0"]
#: Java's clients ask for routes every 30 s, and pull again 3 s after an error.
LONG_S: Final = 150.0


def sent(first: int, end: int) -> list[bytes]:
    return sorted(b"%d" % number for number in range(first, end))


async def send(producer: Producer, first: int, end: int) -> None:
    """Each is on the slave, too."""
    for number in range(first, end):
        receipt = await producer.send(Message(TOPIC, b"%d" % number), timeout_ms=30_000)
        assert SendStatus.OK is receipt.status


async def committed(instance: ClientInstance, address: str, group: str, queues: Sequence[MessageQueue]) -> int:
    """The sum of a group's offsets on one broker."""
    total = 0
    for queue in queues:
        header = QueryOffset(consumer_group=group, topic=TOPIC, queue_id=queue.queue_id, set_zero_if_not_found=False)
        response = await instance.call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        total += response.read(OffsetReply).queue_offset if response.code == 0 else 0
    return total


async def comes_to(
    instance: ClientInstance, address: str, group: str, queues: Sequence[MessageQueue], end: int
) -> None:
    async with asyncio.timeout(LONG_S):
        while (found := await committed(instance, address, group, queues)) < end:
            await asyncio.sleep(0.2)
    assert end == found


async def members_know(instance: ClientInstance, address: str, group: str, end: int) -> None:
    """Wait until the one member of a group, which is connected to this broker, has asked for its offsets."""
    header = ConsumerStatus(topic=TOPIC, group=group)
    found = -1
    async with asyncio.timeout(LONG_S):
        while found < end:
            await asyncio.sleep(0.2)
            with contextlib.suppress(BrokerRefused):
                response = await instance.ask(address, RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, header)
                tables = decode(response.body, GroupOffsets).consumer_table.values()
                found = sum(queue_offset for table in tables for queue_offset in table.values())
    assert end == found


# --- Java's consumers on our brokers ----------------------------------------------------------------------------------


@asynccontextmanager
async def master_process(directory: Path, names: str, port: int) -> AsyncIterator[asyncio.subprocess.Process]:
    """A master that can be killed."""
    settings = {
        **SMALL,
        "brokerName": "broker-a",
        "brokerRole": "SYNC_MASTER",
        "storePathRootDir": directory,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "defaultTopicQueueNums": 4,
    }
    flags = [flag for key, value in settings.items() for flag in ("--set", f"{key}={value}")]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "ternmq.cli", "broker", "-n", names, *flags)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def numbers(peer: Peer, count: int) -> list[bytes]:
    """The next numbered messages, sorted; there are others by which a test finds out whether a slave is there."""
    found: list[bytes] = []
    while len(found) < count:
        (message,) = await peer.messages(1, limit_s=LONG_S)
        if message["body"].isdigit():
            found.append(message["body"])
    return sorted(found)


async def test_java_consumers_go_on_on_our_slave(tmp_path: Path) -> None:
    """O3, V3: those that run, one that starts without a master; progress of both returns to the master."""
    port = free_port(neighbours=(-2, 1))
    address = f"127.0.0.1:{port}"
    javas = [Java(version, tmp_path) for version in VERSIONS]
    groups = [f"shop-{java.version.replace('.', '-')}" for java in javas]
    async with AsyncExitStack() as stack:
        name_server = await stack.enter_async_context(NameServer(NamesrvConfig(listen_port=0), Env()))
        names = f"127.0.0.1:{name_server.port}"
        client = ClientConfig(names, poll_name_server_interval_ms=500)
        instance = await stack.enter_async_context(ClientInstance(client))
        producer = await stack.enter_async_context(Producer("shop", client=client))
        offsets = BrokerOffsets(instance, "tests")
        copy = await stack.enter_async_context(slave(tmp_path / "two", names))
        async with AsyncExitStack() as running:
            async with master_process(tmp_path / "one", names, port) as master:
                await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
                assert SendStatus.OK is await replicated(producer)
                queues = (await instance.routes.of(TOPIC)).to_read
                consumers = [
                    await running.enter_async_context(java.consumer(names, group=group, topic=TOPIC))
                    for java, group in zip(javas, groups, strict=True)
                ]
                await send(producer, 0, 10)
                assert [sent(0, 10)] * 2 == [await numbers(consumer, 10) for consumer in consumers]
                await copies_tables(copy)
                for consumer in consumers:
                    consumer._process.send_signal(signal.SIGSTOP)
                await send(producer, 10, 50)
                end = sum([await offsets.max(queue) for queue in queues])
                master.kill()
            for consumer in consumers:
                consumer._process.send_signal(signal.SIGCONT)
            for consumer, group in zip(consumers, groups, strict=True):
                assert sent(10, 50) == await numbers(consumer, 40)
                await comes_to(instance, copy.address, group, queues, end)
        async with AsyncExitStack() as running:
            # These start without a master.
            consumers = [
                await running.enter_async_context(java.consumer(names, group=group, topic=TOPIC))
                for java, group in zip(javas, groups, strict=True)
            ]
            # Before the master is back: it has the newest offsets only when the slave follows it again.
            for group in groups:
                await members_know(instance, copy.address, group, end)
            async with master_process(tmp_path / "one", names, port):
                await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
                await instance.routes.refresh(TOPIC)
                for group in groups:
                    await comes_to(instance, address, group, queues, end)
                await until(lambda: instance.routes.address("broker-a") is not None)
                assert SendStatus.OK is await replicated(producer)
                await send(producer, 50, 60)
                end = sum([await offsets.max(queue) for queue in queues])
                for consumer, group in zip(consumers, groups, strict=True):
                    assert sent(50, 60) == await numbers(consumer, 10)
                    await comes_to(instance, address, group, queues, end)


# --- Our consumers on RocketMQ's brokers ------------------------------------------------------------------------------


@pytest.mark.nightly
@pytest.mark.parametrize("version", jvm.mostly("5.2.0"))
async def test_our_consumers_go_on_on_a_slave_of_rocketmq(version: str, tmp_path: Path) -> None:
    """O3, V3: one that runs, a pull consumer, one that starts without a master; then the master is back."""
    group, port = "shop", free_port(neighbours=(-2, 1))
    got: list[bytes] = []

    def listen(message: ReceivedMessage) -> None:
        got.append(message.body)

    def consumer() -> PushConsumer:
        made = PushConsumer(group, listen, client=client, config=PushConfig(start=StartPosition.FIRST))
        made.subscribe(TOPIC)
        return made

    async with AsyncExitStack() as stack:
        servers = stack.enter_context(ExitStack())

        async def start(context: AbstractContextManager[Server]) -> Server:
            server = await asyncio.to_thread(servers.enter_context, context)
            # A clean stop takes long, without a use.
            servers.callback(server.kill)
            return server

        def broker(name: str, **settings: object) -> AbstractContextManager[Server]:
            settings = {**ROCKETMQ_SIZES, "defaultTopicQueueNums": 2, **settings}
            own_port = port if name == "one" else free_port(neighbours=(-2, 1))
            return rocketmq.broker(version, tmp_path / name, namesrv=names, port=own_port, settings=settings)

        names = (await start(rocketmq.name_server(version, tmp_path / "names"))).address
        client = ClientConfig(names, poll_name_server_interval_ms=500)
        master = await start(broker("one", brokerRole="SYNC_MASTER", inSyncReplicas=2))
        instance = await stack.enter_async_context(ClientInstance(client))
        producer = await stack.enter_async_context(Producer("shop", client=client))
        await producer.send(Message(TOPIC, b"is a slave there?"), timeout_ms=30_000)
        topics = master.store / "config" / "topics.json"
        await until(lambda: f'"{TOPIC}"' in topics.read_text())
        # As if it had copied the table, which a slave of 5.2.0 does once a minute.
        (tmp_path / "two" / "store" / "config").mkdir(parents=True)
        shutil.copy(topics, tmp_path / "two" / "store" / "config")
        copy = await start(broker("two", brokerRole="SLAVE", brokerId=1))
        assert SendStatus.OK is await replicated(producer)
        offsets = BrokerOffsets(instance, group)
        async with consumer() as running:
            await send(producer, 0, 10)
            await until(lambda: set(sent(0, 10)) <= set(got))
            running.suspend()
            await send(producer, 10, 50)
            queues = (await instance.routes.of(TOPIC)).to_read
            ends = [await offsets.max(queue) for queue in queues]
            master.kill()
            if version == "5.2.0":
                await refuses(client, queues[ends.index(max(ends))])
                await instance.ask(copy.address, RequestCode.UPDATE_BROKER_CONFIG, body=b"slaveReadEnable=true")
            running.resume()
            await until(lambda: set(sent(0, 50)) <= set(got))
            await comes_to(instance, copy.address, group, queues, sum(ends))
            assert ends == [await offsets.max(queue) for queue in queues]
        assert {1} == {count for body, count in Counter(got).items() if body.isdigit()}
        got.clear()
        async with PullConsumer(group, client=client) as puller, consumer():
            assert ends == [await puller.committed(queue) for queue in queues]
            found = [message.body for queue in queues for message in (await puller.pull(queue, 0)).messages]
            assert found
            master = await start(broker("one", brokerRole="SYNC_MASTER", inSyncReplicas=2))
            await until(lambda: instance.routes.address("broker-a") is not None)
            assert SendStatus.OK is await replicated(producer)
            await send(producer, 50, 60)
            await until(lambda: set(sent(50, 60)) <= set(got))
            assert sent(50, 60) == sorted(body for body in got if body.isdigit())
            ends = [await offsets.max(queue) for queue in queues]
            await comes_to(instance, master.address, group, queues, sum(ends))


async def refuses(client: ClientConfig, queue: MessageQueue) -> None:
    """A slave of RocketMQ 5 takes pulls only if it is told to."""
    async with PullConsumer("others", client=client) as puller:
        await puller.queues(TOPIC)
        while True:
            try:
                await puller.pull(queue, 0, wait=False)
            except NetworkError as error:
                if "slaveReadEnable=true" in str(error):
                    return
            await asyncio.sleep(0.2)
