"""What consumers of a shared group hold, on a slave that takes over and in a Raft group (R1, O1, P4)."""

from __future__ import annotations

import asyncio
from pathlib import Path

from ternmq.admin import Admin
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.share import ShareConsumer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import TernError
from ternmq.message import Message, ReceivedMessage
from ternmq.wire.codes import ResponseCode
from tests.broker.calls import dialled
from tests.broker.handlers.test_share import ack, given, members, pull
from tests.broker.test_promotion import promote, sent
from tests.broker.test_replicating import has_all, names, pair, state_of, until

__all__ = ["names"]


async def test_a_slave_that_is_promoted_knows_what_each_consumer_holds(tmp_path: Path, names: str) -> None:
    """R1, O1: by the fold of the same records; numbers of the old master count, those of none do not."""
    async with pair(tmp_path, names, brokerRole="SYNC_MASTER") as (old, new):
        await sent(old, *(b"%d" % number for number in range(5)))
        async with dialled(old.address) as caller:
            first, _ = await given(caller, "ann", count_max=2)
            await given(caller, "bob", count_max=2)
            assert (await ack(caller, "ann", first, 0, 0)).code == 0
        await has_all(new, old)
        async with dialled(new.address) as caller:
            assert ResponseCode.SERVICE_NOT_AVAILABLE == (await pull(caller, "ann")).code
        await promote(names, new)
        async with dialled(new.address) as caller:
            assert {"ann": ("online", 1), "bob": ("online", 2)} == await members(caller)
            assert (await ack(caller, "ann", first, 1, 1)).code == 0
            reply, bodies = await given(caller, "ann", held=1, life=first.life)
            assert (2, [b"4"]) == (reply.first, bodies)
            stale = await ack(caller, "ann", first, 2, 2)
            assert "belong to other messages" in (stale.remark or "")
        async with dialled(old.address) as caller:
            assert ResponseCode.SERVICE_NOT_AVAILABLE == (await pull(caller, "ann")).code
        await until(lambda: state_of(old) is not None)


async def test_share_consumers_follow_the_leader_of_a_raft_group() -> None:
    """R1, P4: messages go out when a majority has the record that says so; a transfer loses none."""
    seen: set[bytes] = set()
    arrived = asyncio.Condition()

    async def listener(message: ReceivedMessage) -> None:
        async with arrived:
            seen.add(message.body)
            arrived.notify_all()

    async with EmbeddedCluster(raft=3) as cluster:
        await until(lambda: cluster.leader() is not None)
        first = cluster.leader()
        async with (
            Producer("shop", name_servers=cluster.name_servers) as producer,
            Admin(cluster.name_servers) as admin,
        ):
            sent_bodies: set[bytes] = set()

            async def sell(count: int) -> None:
                end = len(sent_bodies) + count
                while len(sent_bodies) < end:
                    body = b"%d" % len(sent_bodies)
                    try:
                        await producer.send(Message("orders", body))
                    except TernError:
                        continue
                    sent_bodies.add(body)

            await sell(10)
            consumer = ShareConsumer(
                "billing", listener, name_servers=cluster.name_servers, start=StartPosition.FIRST, consumer="ann"
            )
            consumer.subscribe("orders")
            async with consumer, asyncio.timeout(60):
                async with arrived:
                    await arrived.wait_for(lambda: sent_bodies <= seen)
                other = next(each for each in cluster.brokers if each is not first)
                assert other.group is not None
                await admin.raft.transfer(to=other.group.config.d_leger_self_id)
                await until(lambda: cluster.leader() is other)
                await sell(10)
                async with arrived:
                    await arrived.wait_for(lambda: sent_bodies <= seen)
