"""A broker whose machine is dead costs the others nothing: its producers do not wait for it (E3, E4, B2)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from ternmq import Admin, Message, Producer, PushConsumer, SendStatus, StartPosition
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import MachineSilent, TernError
from ternmq.message import SendReceipt
from ternmq.net.endpoint import lost_in_silence
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.wire.codes import RequestCode


def live(story: Callable[[Cluster], Awaitable[None]]) -> None:
    with simulated_loop() as loop:

        async def run() -> None:
            await story(Cluster(loop, seed=1))

        loop.run_until_complete(run())
        loop.check()


async def start_two(cluster: Cluster) -> Node:
    """Two brokers that have the topic; returns one of them."""
    broker, other = cluster.broker("broker-a"), cluster.broker("broker-b")
    await cluster.start(cluster.name_server(), broker, other)

    async def create(node: Node) -> None:
        async with Admin(config=node.client_config(), env=node.env) as admin:
            await admin.topics.create("orders")
            node.is_ready()
            await node.stopping.wait()

    creator = cluster.node("creator", create)
    await cluster.start(creator)
    await creator.stop()
    return broker


async def within(
    cluster: Cluster, program: Callable[[Producer], Awaitable[None]], *, vip_channel: bool = False
) -> None:
    """Run a program that sends, on a machine of its own, to its end."""

    async def run(node: Node) -> None:
        client = replace(node.client_config(), vip_channel=vip_channel)
        async with Producer("shop", client=client, env=node.env) as producer:
            await program(producer)
            node.is_ready()
            await node.stopping.wait()

    node = cluster.node(f"shop-{len(cluster.nodes)}", run)
    await cluster.start(node)
    await node.stop()


@pytest.mark.parametrize("vip_channel", [False, True])
def test_only_the_first_sends_wait_for_a_dead_machine(vip_channel: bool) -> None:
    """The name server names it for two minutes more, and each second send would choose it. With ``vip_channel`` they go
    to a port that no route names."""

    async def story(cluster: Cluster) -> None:
        broker = await start_two(cluster)

        async def sell(producer: Producer) -> None:
            for _ in range(20):
                await producer.send(Message("orders", b"before"))
            broker.cut_power()
            # The connection dies with a call that is on its way, or with the attempt to make another one.
            for _ in range(4):
                with contextlib.suppress(TernError):
                    await producer.send(Message("orders", b"lost?"))
            began = cluster.loop.time()
            names = [(await producer.send(Message("orders", b"after"))).queue.broker_name for _ in range(200)]
            assert {"broker-b"} == set(names)
            assert cluster.loop.time() - began < 1.0, "200 sends to a broker that lives, in virtual time"

        await within(cluster, sell, vip_channel=vip_channel)

    live(story)


def test_a_machine_that_is_back_is_found_without_a_call() -> None:
    async def story(cluster: Cluster) -> None:
        broker = await start_two(cluster)

        async def sell(producer: Producer) -> None:
            await producer.send(Message("orders", b"before"))
            broker.cut_power()
            for _ in range(4):
                with contextlib.suppress(TernError):
                    await producer.send(Message("orders", b"lost?"))
            await cluster.start(broker)
            await asyncio.sleep(60)
            names = [(await producer.send(Message("orders", b"after"))).queue.broker_name for _ in range(20)]
            assert {"broker-a", "broker-b"} == set(names)

        await within(cluster, sell)

    live(story)


def test_a_call_to_a_machine_that_was_found_silent_says_so_at_once() -> None:
    async def story(cluster: Cluster) -> None:
        broker = await start_two(cluster)

        async def sell(producer: Producer) -> None:
            queues = {queue.broker_name: queue for queue in await producer.queues("orders")}
            broker.cut_power()
            errors = []
            for _ in range(3):
                try:
                    await producer.send(Message("orders", b"1"), queue=queues["broker-a"])
                except TernError as error:
                    errors.append((error, cluster.loop.time()))
            (_, first), (second, then) = errors[-2:]
            assert isinstance(second, MachineSilent)
            assert "its machine is down" in str(second)
            assert then - first < 0.1

        await within(cluster, sell)

    live(story)


def test_a_call_ends_when_its_machine_is_found_silent_while_the_client_closes() -> None:
    async def story(cluster: Cluster) -> None:
        broker = await start_two(cluster)

        async def run(node: Node) -> None:
            async with ClientInstance(node.client_config(), env=node.env) as instance:
                route = await instance.routes.of("orders")
                address = route.address("broker-a")
                assert address is not None
                peer = await instance.connections.to(address)

                async def end_late() -> None:
                    try:
                        await asyncio.sleep(3600)
                    finally:
                        # As ``end_if_unheard`` does it, while the client waits for its tasks.
                        peer.is_silent = True
                        peer.abort()
                        await asyncio.sleep(10)

                instance.start(end_late)
                call = peer.start_call(RequestCode.GET_BROKER_RUNTIME_INFO)
                broker.cut_power()
                await asyncio.sleep(1)
            assert isinstance(call.exception(), MachineSilent)
            node.is_ready()
            await node.stopping.wait()

        node = cluster.node("caller", run)
        await cluster.start(node)
        await node.stop()

    live(story)


def test_a_silence_that_a_thread_has_found_counts_if_the_loop_hears_nothing_either() -> None:
    """A thread has a connection of its own, and a firewall may have forgotten that one alone."""

    async def story(cluster: Cluster) -> None:
        broker = await start_two(cluster)

        async def run(node: Node) -> None:
            async with ClientInstance(node.client_config(), env=node.env) as instance:
                route = await instance.routes.of("orders")
                addresses = [route.address(name) or "" for name in ("broker-a", "broker-b")]
                connections = instance.connections
                peers = [await connections.to(address) for address in addresses]
                broker.cut_power()
                await asyncio.sleep(2.1)
                for address in addresses:
                    connections.suspect(address)
                await asyncio.sleep(0)
                assert [True, False] == [peer.closed.is_set() for peer in peers]
                assert {addresses[0]} == connections.silent
                # One that was found silent before has no connection.
                connections.suspect(addresses[0])
                assert {addresses[0]} == connections.silent
            node.is_ready()
            await node.stopping.wait()

        node = cluster.node("caller", run)
        await cluster.start(node)
        await node.stop()

    live(story)


def test_a_send_that_found_the_silence_by_itself_goes_to_another_broker_and_those_after_it_too() -> None:
    """E4: as a thread gives it to the loop."""

    async def story(cluster: Cluster) -> None:
        broker = await start_two(cluster)

        async def sell(producer: Producer) -> None:
            queues = {queue.broker_name: queue for queue in await producer.queues("orders")}
            for queue in queues.values():
                await producer.send(Message("orders", b"before"), queue=queue)
            broker.cut_power()
            await asyncio.sleep(2.1)
            sender = producer._now_running().sender
            own = producer._thread_send(Message("orders", b"1"), None, None)
            assert own is not None
            own._queue = queues["broker-a"]
            own._address = address = sender.instance.broker_address("broker-a")
            own._end = lost_in_silence(address)
            receipt: asyncio.Future[SendReceipt] = cluster.loop.create_future()
            own.go_on(receipt)
            assert "broker-b" == (await receipt).queue.broker_name
            assert {address} == sender.instance.connections.silent
            receipts = [await producer.send(Message("orders", b"2")) for _ in range(8)]
            assert {"broker-b"} == {one.queue.broker_name for one in receipts}

        await within(cluster, sell)

    live(story)


def test_a_slave_is_read_while_the_machine_of_its_master_is_dead() -> None:
    """O3: the name server lists the dead master for two minutes more."""

    async def story(cluster: Cluster) -> None:
        master = cluster.broker("broker-a", brokerRole="SYNC_MASTER")
        slave = cluster.broker("slave", brokerName="broker-a", brokerRole="SLAVE", brokerId=1, slaveReadEnable="true")
        await cluster.start(cluster.name_server(), master, slave)
        read: asyncio.Queue[bytes] = asyncio.Queue()

        async def consume(node: Node) -> None:
            consumer = PushConsumer(
                "billing",
                client=node.client_config(),
                env=node.env,
                start=StartPosition.FIRST,
            )
            consumer.subscribe("orders")
            async with consumer:
                node.is_ready()
                async for message in consumer:
                    with message:
                        read.put_nowait(message.body)

        reader = cluster.node("reader", consume)

        async def sell(producer: Producer) -> None:
            for number in range(40):
                while (await producer.send(Message("orders", b"%d" % number))).status is not SendStatus.OK:
                    await asyncio.sleep(0.5)
            master.cut_power()
            began = cluster.loop.time()
            await cluster.start(reader)
            seen: set[bytes] = set()
            while len(seen) < 40:
                seen.add(await read.get())
            assert cluster.loop.time() - began < 60

        await within(cluster, sell)

    live(story)
