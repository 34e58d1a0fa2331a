"""A producer while the master changes, by an election, a transfer or a promotion: its callers see no error (E4, P4)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from ternmq.client.config import ProducerConfig
from ternmq.client.send.producer import Producer
from ternmq.errors import NetworkError, NotMaster, RouteMissing, SendFailed, ServiceNotAvailable
from ternmq.message import MessageQueue, SendStatus
from ternmq.net.peer import Peer
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import SendReply
from tests.client.scripted import order, scripted_cluster

HANDS_OVER = NotMaster("n0 hands the leadership over to n1; send again")


async def test_a_send_waits_for_a_master() -> None:
    """E4: nothing was sent before there was one."""
    async with scripted_cluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        cluster.is_unled = True
        sending = asyncio.create_task(producer.send(order(), timeout_ms=60_000))
        await cluster.bell.until(lambda: len(cluster.questions) > 3)
        assert not sending.done()
        cluster.is_unled = False
        assert SendStatus.OK is (await sending).status
        assert 1 == len(cluster.broker.sends)


async def test_a_topic_without_a_master_is_the_reason_when_the_time_is_over() -> None:
    """E4: and not that a name server was slow."""
    async with scripted_cluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        cluster.is_unled = True
        with pytest.raises(RouteMissing, match="its brokers have no master"):
            await producer.send(order(), timeout_ms=300)


async def test_a_message_that_a_master_refuses_while_it_hands_over_is_sent_again() -> None:
    """E4: more often than other failures are, as it takes some time."""
    async with scripted_cluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        cluster.broker.answers.extend([HANDS_OVER] * 5)
        assert SendStatus.OK is (await producer.send(order(), timeout_ms=60_000)).status
        assert 6 == len(cluster.broker.sends)


async def test_a_broker_that_stays_unavailable_is_an_error() -> None:
    """E4: its disk is full, say."""
    async with scripted_cluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        cluster.broker.answers.extend([ServiceNotAvailable("disk full")] * 100)
        with pytest.raises(SendFailed, match=r"7 attempts .*disk full"):
            await producer.send(order(), timeout_ms=60_000)


async def test_without_retries_a_refusal_is_final() -> None:
    """E4."""
    config = ProducerConfig(retries=0)
    async with (
        scripted_cluster() as cluster,
        Producer("shop", name_servers=cluster.name_servers, config=config) as producer,
    ):
        cluster.broker.answers.append(HANDS_OVER)
        with pytest.raises(ServiceNotAvailable, match="hands the leadership over"):
            await producer.send(order())
        assert 1 == len(cluster.broker.sends)


async def test_a_message_for_a_queue_that_no_caller_waits_for_is_not_stored_behind_later_ones() -> None:
    """E1, E4: one that waited for a master would be overtaken by the next, which finds one at once."""
    async with scripted_cluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        cluster.is_unled = True
        queue = MessageQueue("orders", cluster.broker.name, 0)
        old = producer.send_nowait(order(1), queue=queue, timeout_ms=60_000)
        await cluster.bell.until(lambda: old.done() or len(cluster.questions) > 3)
        cluster.is_unled = False
        await producer.send_nowait(order(2), queue=queue, timeout_ms=60_000)
        with pytest.raises(RouteMissing, match="its brokers have no master"):
            await old
        assert [b"order 2"] == cluster.broker.bodies


async def test_an_attempt_before_the_wait_for_a_master_is_not_forgotten() -> None:
    """E4: the broker may have stored the message before the connection broke; "no master" alone would deny that."""
    async with scripted_cluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:

        def break_off(peer: Peer, _request: Request[Any]) -> None:
            cluster.is_unled = True
            peer.close()

        cluster.broker.on_send = break_off
        with pytest.raises(SendFailed, match=r"2 attempts .*was lost.*have no master") as raised:
            await producer.send(order(), timeout_ms=600)
        broken, unled = raised.value.attempts
        assert isinstance(broken, NetworkError)
        assert isinstance(unled, RouteMissing)
        assert 1 == len(cluster.broker.sends)


async def test_a_message_that_is_stored_is_no_error_if_no_master_is_left_for_a_safer_attempt() -> None:
    """E4: consumers will see it. The first attempt stored it, the second broke off, and there is no third."""
    config = ProducerConfig(retry_another_broker_when_not_store_ok=True)
    async with (
        scripted_cluster() as cluster,
        Producer("shop", name_servers=cluster.name_servers, config=config) as producer,
    ):
        broker = cluster.broker

        def break_off(peer: Peer, _request: Request[Any]) -> None:
            if len(broker.sends) == 2:
                cluster.is_unled = True
                peer.close()

        broker.on_send = break_off
        broker.answers.append(
            Reply(ResponseCode.FLUSH_DISK_TIMEOUT, header=SendReply(message_id="ID", queue_id=0, queue_offset=0))
        )
        receipt = await producer.send(order(), timeout_ms=600)
        assert SendStatus.FLUSH_DISK_TIMEOUT is receipt.status
