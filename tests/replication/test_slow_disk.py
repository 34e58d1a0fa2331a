"""A slave whose disk is slow, in virtual time (O2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from ternmq.net.endpoint import bind
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.master import Master
from ternmq.replication.slave import Slave
from ternmq.store.config import FlushDiskType
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from tests.replication.simulation import HA_PORT, ROOT
from tests.replication.world import place
from tests.store.small import HOST, draft, small_config

#: Longer than any back-off.
A_WHILE_S: Final = 60.0


def test_a_new_connection_does_not_acknowledge_what_is_not_on_the_disk_yet() -> None:
    """O2: the first report says where to go on, and is an acknowledgement, too."""
    with simulated_loop() as loop:
        loop.run_until_complete(_story(Cluster(loop, seed=1)))
        loop.check()


async def _story(cluster: Cluster) -> None:
    stores: dict[str, MessageStore] = {}
    masters: list[Master] = []
    flushes: list[Callable[[], object]] = []

    def opened(node: Node, flush: FlushDiskType, notify: Callable[[Callable[[], object]], object]) -> MessageStore:
        config = small_config(ROOT, flush_disk_type=flush)
        store = MessageStore.open(
            config, store_host=HOST, clock=node.clock, disk=node.disk, threads=False, notify=notify
        )
        stores[node.name] = store
        return store

    async def run_master(node: Node) -> None:
        store = opened(node, FlushDiskType.ASYNC_FLUSH, asyncio.get_running_loop().call_soon)
        # With a number of copies, so that it never goes on alone.
        config = ReplicationConfig(in_sync_replicas=2)
        async with Master(store.log, node.disk, config, place(0)) as master:
            await master.serve(bind(node.ip, HA_PORT))
            masters.append(master)
            node.is_ready()
            await node.stopping.wait()

    async def run_slave(node: Node) -> None:
        store = opened(node, FlushDiskType.SYNC_FLUSH, flushes.append)
        async with Tasks() as tasks:
            address = f"{cluster.nodes['master'].ip}:{HA_PORT}"
            slave = Slave(store, store.log, node.disk, ReplicationConfig(), place(1), lambda: address, node.env)
            tasks.create_task(slave.run())
            node.is_ready()
            await node.stopping.wait()

    first, second = cluster.node("master", run_master), cluster.node("slave", run_slave)
    await cluster.start(first, second)
    placed = stores["master"].put(draft())
    await asyncio.sleep(5.0)
    assert placed.end_offset == stores["slave"].written
    assert placed.end_offset > masters[0].replicas.replicated.value

    assert 1 == cluster.network.reset(second.ip, first.ip)
    await asyncio.sleep(15.0)
    assert placed.end_offset > masters[0].replicas.replicated.value
    while flushes:
        flushes.pop()()
    await asyncio.sleep(A_WHILE_S)
    assert placed.end_offset == masters[0].replicas.replicated.value
