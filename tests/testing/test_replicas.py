"""Whole brokers as master and slave, in a simulated cluster (O1–O4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import pytest

from ternmq.client.send.producer import Producer
from ternmq.errors import TernError
from ternmq.message import Message, SendStatus
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from tests.replication.simulation import log_bytes

SEGMENT_BYTES: Final = 65_536
#: Far beyond back-off, registration and housekeeping, in virtual seconds.
CALM_S: Final = 120.0


@pytest.mark.parametrize("seed", range(12))
def test_messages_that_a_sync_master_acknowledged_survive_its_machine(seed: int) -> None:
    """O1, O2: what was answered with OK is in the slave's log, whatever was killed, cut off or blocked in between."""
    with simulated_loop() as loop:
        loop.run_until_complete(_story(Cluster(loop, seed)))
        loop.check()


async def _story(cluster: Cluster) -> None:
    chance = cluster.random
    acknowledged: list[bytes] = []
    names = cluster.name_server()
    flush = chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
    master = cluster.broker("broker-a", brokerRole="SYNC_MASTER", flushDiskType=flush)
    copy = cluster.broker("slave", brokerRole="SLAVE", brokerId=1, brokerName="broker-a", flushDiskType="SYNC_FLUSH")

    async def sell(node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            number = 0
            while not node.stopping.is_set():
                number += 1
                body = b"<%d>" % number
                await asyncio.sleep(node.env.random.expovariate(5))
                try:
                    receipt = await producer.send(Message("orders", body))
                except TernError:
                    continue
                if receipt.status is SendStatus.OK:
                    acknowledged.append(body)
                    assert body in _log(copy, durable=True), f"{body!r} is not on the slave's disk"

    shop = cluster.node("shop", sell)
    await cluster.start(names, master)
    await cluster.start(copy)
    await cluster.start(shop)
    cluster.network.weather = Weather(0.000_1, chance.choice((0.001, 0.05)), chance.choice((0.0, 0.5)))
    # Without a power cut of the master: it may come back with less, and its slave would rightly not follow.
    faults: list[Callable[[], None]] = [
        lambda: _break(cluster, copy, copy.kill),
        lambda: _break(cluster, copy, copy.cut_power),
        lambda: _break(cluster, master, master.kill),
        lambda: cluster.note("reset", cluster.network.reset(copy.ip, master.ip)),
        lambda: _block(cluster, copy.ip, master.ip),
        lambda: _block(cluster, master.ip, copy.ip),
    ]
    await asyncio.sleep(15.0)
    for _ in range(8):
        chance.choice(faults)()
        await asyncio.sleep(chance.choice((0.5, 3.0, 12.0)))
    cluster.network.heal()
    cluster.network.weather = Weather()
    for node in (master, copy):
        if not node.is_up:
            await cluster.start(node)
    await asyncio.sleep(CALM_S)
    await shop.stop()
    await asyncio.sleep(CALM_S)
    # The machine of the master burns down.
    await master.stop()
    ours, theirs = (_log(node) for node in (master, copy))
    assert acknowledged
    for body in acknowledged:
        assert body in theirs, body
    assert ours == theirs
    await copy.stop()


def _log(node: Node, *, durable: bool = False) -> bytes:
    """All bytes of a node's log, without what stands behind its end."""
    return log_bytes(node.disk, 0, 64 * SEGMENT_BYTES, SEGMENT_BYTES, durable=durable).rstrip(b"\0")


def _break(cluster: Cluster, node: Node, how: Callable[[], None]) -> None:
    if node.is_up:
        how()
        cluster.loop.call_later(cluster.random.choice((0.2, 2.0, 10.0)), lambda: None if node.is_up else node.start())


def _block(cluster: Cluster, source: str, target: str) -> None:
    cluster.note("block", source, target)
    cluster.network.block(source, target)
    cluster.loop.call_later(cluster.random.choice((1.0, 5.0, 30.0)), cluster.network.unblock, source, target)
