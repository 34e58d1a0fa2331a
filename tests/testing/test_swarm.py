"""Storms break what they may, and mend it all (C8, G1)."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from ternmq.testing.swarm import FaultKind, Storm, Swarm


def test_a_seed_chooses_faults_and_power_is_cut_only_where_brokers_sync() -> None:
    """C6: others may lose what they acknowledged."""
    chosen = [Swarm.choose(Random(seed)) for seed in range(200)]

    assert chosen == [Swarm.choose(Random(seed)) for seed in range(200)]
    assert {*FaultKind} == {fault for swarm in chosen for fault in swarm.faults}
    assert all(swarm.sync_flush for swarm in chosen if FaultKind.CUT_POWER in swarm.faults)


@pytest.mark.parametrize("fault", list(FaultKind))
def test_after_a_storm_everything_works_again(fault: FaultKind) -> None:
    """Programs run, machines reach each other, and time goes on for all."""

    class Echo(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            self._transport = transport

        def data_received(self, data: bytes) -> None:
            self._transport.write(data)

    class Ask(asyncio.Protocol):
        def __init__(self) -> None:
            self.answer = asyncio.get_running_loop().create_future()

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            assert isinstance(transport, asyncio.Transport)
            transport.write(b"ping")

        def data_received(self, data: bytes) -> None:
            self.answer.set_result(data)

    async def program(node: Node) -> None:
        await node.cluster.loop.create_server(Echo, node.ip, 7)
        node.is_ready()
        await node.stopping.wait()

    async def ask(cluster: Cluster, server: Node) -> bytes:
        answers: list[bytes] = []

        async def client(node: Node) -> None:
            _, protocol = await cluster.loop.create_connection(Ask, server.ip, 7)
            assert isinstance(protocol, Ask)
            answers.append(await protocol.answer)
            node.is_ready()
            await node.stopping.wait()

        await cluster.start(cluster.node(f"asks {server.name}", client))
        return answers[0]

    async def story(cluster: Cluster) -> None:
        nodes = [cluster.node(name, program) for name in ("a", "b", "c")]
        await cluster.start(*nodes)
        swarm = Swarm((fault,), Weather(), storm_s=60, sync_flush=True)
        await Storm(cluster, swarm, servers=nodes[:1], clients=lambda: nodes[1:]).rage()
        for node in nodes:
            assert node.is_up
            assert not node.is_paused
            await node.ready()
            assert b"ping" == await ask(cluster, node)

    with simulated_loop() as loop:
        cluster = Cluster(loop, seed=1)
        loop.run_until_complete(story(cluster))
        loop.check()
        assert len(cluster.trace) > 5
