"""Java clients and ``mqadmin`` of both versions on a Raft group of TernMQ (P4, V1)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.admin import Admin
from tests.interop import jvm
from tests.interop.java import Java
from tests.raft.processes import filled, leader, level, lose_leaders, registered, running

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

#: Java's producers ask for routes every 30 s; until then they send to the dead broker.
PATIENCE_S = 120.0


@pytest.mark.parametrize("java", jvm.mostly("5.2.0"), indirect=True)
async def test_java_clients_follow_a_killed_leader(java: Java, tmp_path: Path) -> None:
    """P4: no restart of the clients, no acknowledged message lost, and the consumer gets all of them."""
    async with running(tmp_path / "group") as processes, Admin(processes.name_servers) as admin:
        names = processes.name_servers
        old = await leader(admin)
        await registered(admin)
        await admin.topics.create("orders", queues=4)
        acknowledged: set[str] = set()
        async with (
            java.consumer(names, group="billing", topic="orders") as consumer,
            java.producer(names, group="shop", timeoutMs=3_000) as producer,
        ):
            received: set[str] = set()

            async def send(number: int, count: int = 5) -> bool:
                answers = await producer.order(topic="orders", count=count, body=f"round{number}", limit_s=120.0)
                ok = [each for each in answers if each["event"] == "result" and each["status"] == "SEND_OK"]
                acknowledged.update(f"round{number}-{each['index']}" for each in ok)
                return len(ok) == count

            for number in range(10):
                assert await send(number)
            number = 10
            await asyncio.to_thread(processes.kill, old)
            async with asyncio.timeout(PATIENCE_S):
                while not await send(number):
                    number += 1
                    await asyncio.sleep(0.2)
            await asyncio.to_thread(processes.restart, old)
            for number in range(1000, 1010):
                assert await send(number)
            async with asyncio.timeout(120):
                while acknowledged - received:
                    [message] = await consumer.messages(1, limit_s=120.0)
                    received.add(message["body"].decode())
            shown = await java.admin(names, "clusterList")
            status = await java.admin(names, "brokerStatus", "-b", (await admin.brokers.masters())[0].address)
        await level(admin)
    assert 3 == sum("broker-a" in line for line in shown.splitlines())
    assert "commitLogMaxOffset" in status


async def test_leaders_that_are_killed_under_java_s_producers_take_nothing_along(tmp_path: Path) -> None:
    """P4: producers of both versions at once. Fifty rounds are in ``script/soak raft-kill --java``."""
    await lose_leaders(tmp_path, 3, with_java=True)


@pytest.mark.nightly
@pytest.mark.parametrize("java", jvm.VERSIONS, indirect=True)
async def test_mqadmin_deletes_topics_and_groups_on_every_member(java: Java, tmp_path: Path) -> None:
    """P4, D6: it asks some or all members, one after the other, and gives up at the first error. What is deleted is
    gone on all of them, and does not come back with the next leader."""
    cluster = ("-c", "DefaultCluster")
    async with running(tmp_path / "group") as processes, Admin(processes.name_servers) as admin:
        names = processes.name_servers
        await filled(admin)
        for topic in ("orders", "kept"):
            assert "success" in await java.admin(names, "updateTopic", *cluster, "-t", topic, "-w", "4", "-r", "4")
        for group in ("billing", "audit"):
            assert "success" in await java.admin(names, "updateSubGroup", *cluster, "-g", group)
        async with java.producer(names, group="shop", timeoutMs=3_000) as producer:
            for topic in ("orders", "kept"):
                await producer.order(topic=topic, count=8, body=topic, limit_s=60.0)
        deleted = await java.admin(names, "deleteTopic", *cluster, "-t", "orders")
        left = await java.admin(names, "deleteSubGroup", *cluster, "-g", "billing")
        assert "delete topic [orders] from cluster [DefaultCluster] success" in deleted
        assert "delete subscription group [billing] from broker" in left
        assert "success" in left
        assert "Exception" not in deleted + left
        for _ in range(2):
            listed = (await java.admin(names, "topicList")).split()
            assert ("orders" in listed, "kept" in listed) == (False, True)
            groups = {group.name for group in await admin.groups.all()}
            assert ("billing" in groups, "audit" in groups) == (False, True)
            await level(admin)
            await admin.raft.transfer("broker-a")
            await filled(admin)


@pytest.mark.nightly
async def test_java_s_callers_see_no_error_at_a_transfer(tmp_path: Path) -> None:
    """P4: producers of both versions that ask for routes every second. They are refused so slowly that their last
    attempts find the new leader."""
    _, errors = await lose_leaders(tmp_path, 3, with_java=True, way="transfer")
    assert [] == errors
