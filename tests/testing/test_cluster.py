"""Whole clusters in one process: the real programs on a simulated loop, network and disk."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from random import Random

import pytest

from ternmq import Message, Producer, PullConsumer
from ternmq.errors import ConfigError, CorruptFile, TernError
from ternmq.files import TableFile
from ternmq.message import MessageQueue
from ternmq.net.lanes import LaneConfig
from ternmq.net.server import Server
from ternmq.net.stream import IDLE_S
from ternmq.testing.cluster import Cluster, DiskFiles, Node
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import simulated_loop

Story = Callable[[Callable[[Cluster], Awaitable[None]]], None]


@pytest.fixture
def tell() -> Iterator[Story]:
    with simulated_loop() as loop:

        async def run(story: Callable[[Cluster], Awaitable[None]]) -> None:
            await story(Cluster(loop, seed=1))

        yield lambda story: loop.run_until_complete(run(story))
        loop.check()


async def send(cluster: Cluster, body: bytes) -> tuple[MessageQueue, int]:
    """Send a message from a machine of its own, and say where it is."""
    places: list[tuple[MessageQueue, int]] = []

    async def program(node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            receipt = await producer.send(Message("orders", body))
            places.append((receipt.queue, receipt.queue_offset))
            node.is_ready()
            await node.stopping.wait()

    node = cluster.node(f"shop-{len(cluster.nodes)}", program)
    await cluster.start(node)
    await node.stop()
    return places[0]


async def read(cluster: Cluster, queue: MessageQueue, queue_offset: int) -> list[bytes]:
    """What stands at a place of a queue."""
    bodies: list[bytes] = []

    async def program(node: Node) -> None:
        async with PullConsumer("reader", client=node.client_config(), env=node.env) as consumer:
            result = await consumer.pull(queue, queue_offset)
            bodies.extend(message.body for message in result.messages)
            node.is_ready()
            await node.stopping.wait()

    node = cluster.node(f"reader-{len(cluster.nodes)}", program)
    await cluster.start(node)
    await node.stop()
    return bodies


def test_an_acknowledged_message_survives_a_power_cut(tell: Story) -> None:
    """C6, C8: SYNC_FLUSH means the record is on disk before SEND_OK."""

    async def story(cluster: Cluster) -> None:
        broker = cluster.broker("broker-a", flushDiskType="SYNC_FLUSH")
        await cluster.start(cluster.name_server(), broker)
        place = await send(cluster, b"1")

        broker.cut_power()
        await cluster.start(broker)

        assert [b"1"] == await read(cluster, *place)

    tell(story)


def test_an_acknowledged_message_survives_the_end_of_the_process(tell: Story) -> None:
    """C6, C8: under ASYNC_FLUSH it is in the page cache."""

    async def story(cluster: Cluster) -> None:
        broker = cluster.broker("broker-a")
        await cluster.start(cluster.name_server(), broker)
        place = await send(cluster, b"1")

        broker.kill()
        await cluster.start(broker)

        assert [b"1"] == await read(cluster, *place)

    tell(story)


def test_a_program_that_fails_to_start_says_why(tell: Story) -> None:
    async def story(cluster: Cluster) -> None:
        cluster.name_server()
        broker = cluster.broker("broker-a", flushDiskType="NEVER")
        with pytest.raises(ConfigError):
            await cluster.start(broker)
        assert not broker.is_up
        cluster.loop.failures.clear()

    tell(story)


def test_a_program_that_ends_by_itself_is_a_failure(tell: Story) -> None:
    async def story(cluster: Cluster) -> None:
        async def program(node: Node) -> None:
            node.is_ready()
            await asyncio.sleep(5)

        await cluster.start(cluster.node("n", program))
        await asyncio.sleep(10)
        with pytest.raises(AssertionError, match="n ended by itself"):
            cluster.loop.check()
        cluster.loop.failures.clear()

    tell(story)


def test_clients_of_two_nodes_share_nothing(tell: Story) -> None:
    """D3: on one loop, yet with connections of their own."""

    async def story(cluster: Cluster) -> None:
        await cluster.start(cluster.name_server(), cluster.broker("broker-a"))
        await send(cluster, b"1")
        before = set(cluster.nodes)
        await send(cluster, b"2")
        (new,) = set(cluster.nodes) - before
        cluster.network.partition([cluster.nodes[new].ip], ["10.0.0.2"])
        with pytest.raises(TernError):
            await cluster.start(cluster.nodes[new])
        cluster.loop.failures.clear()

    tell(story)


def test_idle_connections_are_closed_whatever_the_time(tell: Story) -> None:
    """B5: a rest of 10^-14 s, from rounding, once kept a server busy for ever (group seed 60)."""

    async def story(cluster: Cluster) -> None:
        server_node = cluster.node("server", lambda node: serve(node))
        await cluster.start(server_node)
        closed: list[int] = []

        class Client(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                closed.append(1)

        async def program(node: Node) -> None:
            for number in range(100):
                await cluster.loop.create_connection(Client, server_node.ip, 7)
                await asyncio.sleep(0.1 + number / 7)
            node.is_ready()
            await node.stopping.wait()

        await cluster.start(cluster.node("client", program))
        await asyncio.sleep(IDLE_S + 1)
        assert 100 == len(closed)

    async def serve(node: Node) -> None:
        async with Server.running({}, [LaneConfig("all")]) as server:
            await server.listen(node.ip, 7)
            node.is_ready()
            await node.stopping.wait()

    tell(story)


def test_tables_live_on_the_simulated_disk() -> None:
    """D1: a version and the one before, as on a real disk."""
    disk, path = SimulatedDisk(), Path("/store/config/table.json")
    file = TableFile(path, files=DiskFiles(disk))

    assert None is file.load(bytes)
    for version in (b"a long first version", b"two"):
        file.save(partial(partial, bytes, version))

    assert b"two" == TableFile(path, files=DiskFiles(disk)).load(bytes)
    assert [Path("/store/config/table.json"), Path("/store/config/table.json.bak")] == list(disk.files())
    disk.write(path, b"   ")
    assert b"a long first version" == TableFile(path, files=DiskFiles(disk)).load(bytes)
    disk.remove(path)
    disk.replace(file.backup, b" ")
    with pytest.raises(CorruptFile):
        TableFile(path, files=DiskFiles(disk)).load(bytes)


@pytest.mark.parametrize("seed", range(20))
def test_a_table_that_was_saved_survives_a_power_cut(seed: int) -> None:
    """D1, D4: its bytes, its name, and the directory that was made for it."""
    disk, path = SimulatedDisk(), Path("/store/config/table.json")
    file = TableFile(path, files=DiskFiles(disk))
    for version in (b"one", b"two", b"three"):
        file.save(partial(partial, bytes, version))
    disk.power_cut(Random(seed))
    assert b"three" == file.load(bytes)
