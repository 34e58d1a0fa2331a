"""Requests and their replies (E7)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.blocking.push import SyncPushConsumer
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.client.send.queue_choice import by_hash
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import InvalidMessage, NotRunning, RequestTimeout, SystemFailure
from ternmq.message import Message, Property, ReceivedMessage
from tests.client.listening import Collector

FIRST = StartPosition.FIRST


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@asynccontextmanager
async def replying(client: ClientConfig, topic: str = "sums") -> AsyncIterator[Collector]:
    """Answers each request with its own body, upper case; keeps what it got."""
    seen = Collector()
    async with Producer("replier", client=client) as producer:

        async def listener(message: ReceivedMessage) -> None:
            await seen(message)
            await producer.reply(message, message.body.upper(), properties={"of": message.message_id})

        consumer = PushConsumer("calculators", listener, client=client, start=FIRST)
        consumer.subscribe(topic)
        async with consumer:
            yield seen


async def test_a_request_is_answered(cluster: EmbeddedCluster) -> None:
    """E7: the reply comes to the sender of the request, with what the replier put into it."""
    client = ClientConfig(cluster.name_servers)
    async with Producer("shop", client=client) as producer, replying(client) as seen:
        reply = await producer.request(Message("sums", b"two", keys="k"), timeout_ms=10_000)
    (request,) = seen.messages
    assert (b"TWO", request.message_id) == (reply.body, reply.properties["of"])
    assert request.properties[Property.CORRELATION_ID] == reply.properties[Property.CORRELATION_ID]
    assert "10000" == request.properties[Property.TTL]
    assert (True, False) == (request.is_request, reply.is_request)
    assert int(reply.properties[Property.ARRIVE_TIME]) >= reply.store_time_ms


async def test_many_requests_at_once_each_get_their_own_reply(cluster: EmbeddedCluster) -> None:
    """E7: two producers with two client ids, one replier."""
    client = ClientConfig(cluster.name_servers)
    other = ClientConfig(cluster.name_servers, instance_name="other")
    async with Producer("shop", client=client) as one, Producer("shop", client=other) as two, replying(client):
        bodies = [f"request {number}" for number in range(100)]
        replies = await asyncio.gather(
            *(
                (one if number % 2 else two).request(Message("sums", body.encode()), timeout_ms=20_000)
                for number, body in enumerate(bodies)
            )
        )
    assert [body.upper() for body in bodies] == [reply.body.decode() for reply in replies]


async def test_a_request_may_name_its_queue(cluster: EmbeddedCluster) -> None:
    """E5, E7."""
    client = ClientConfig(cluster.name_servers)
    async with Producer("shop", client=client) as producer, replying(client) as seen:
        queues = await producer.queues("sums")
        await producer.request(Message("sums", b"a"), queue=queues[2], timeout_ms=10_000)
        await producer.request(Message("sums", b"b"), selector=by_hash(7), timeout_ms=10_000)
        await producer.request(Message("sums", b"c", sharding_key="x"), timeout_ms=10_000)
    assert [2, 7 % 4, ord("x") % 4] == [message.queue_id for message in seen.messages]


async def test_a_large_reply_arrives_as_it_was(cluster: EmbeddedCluster) -> None:
    """E7, E1: compressed on its way."""
    client = ClientConfig(cluster.name_servers)
    body = b"large " * 10_000
    async with Producer("shop", client=client) as producer, replying(client):
        reply = await producer.request(Message("sums", body), timeout_ms=10_000)
    assert body.upper() == reply.body
    assert reply.store_bytes < 10_000


async def test_no_reply_in_time_is_an_error_that_says_what_to_look_at(cluster: EmbeddedCluster) -> None:
    """E7: the topic has no consumer."""
    client = ClientConfig(cluster.name_servers)
    async with Producer("shop", client=client) as producer:
        with pytest.raises(RequestTimeout, match=r"no reply .* 'sums' within 3000 ms; check that a consumer") as caught:
            await producer.request(Message("sums", b"two"), timeout_ms=3_000)
        assert "sums" == caught.value.topic
        assert isinstance(caught.value, TimeoutError)


async def test_a_late_reply_is_dropped_and_the_next_request_is_answered(
    cluster: EmbeddedCluster, caplog: pytest.LogCaptureFixture
) -> None:
    """E7: what is over is forgotten at once."""
    caplog.set_level("INFO", "ternmq.client.send.replies")
    client = ClientConfig(cluster.name_servers)
    seen = Collector()
    consumer = PushConsumer("calculators", seen, client=client, start=FIRST)
    consumer.subscribe("sums")
    async with Producer("shop", client=client) as producer, consumer:
        with pytest.raises(RequestTimeout):
            await producer.request(Message("sums", b"slow"), timeout_ms=3_000)
        (request,) = await seen.wait(1)
        await producer.reply(request, b"too late")
        assert "after its request had ended; it is dropped" in caplog.text
        waiting = asyncio.create_task(producer.request(Message("sums", b"fast"), timeout_ms=10_000))
        _, request = await seen.wait(2)
        await producer.reply(request, b"in time")
        await producer.reply(request, b"twice")
        assert b"in time" == (await waiting).body


async def test_a_requester_that_gives_up_leaves_nothing_behind(cluster: EmbeddedCluster) -> None:
    """E7: a cancelled request waits no more."""
    client = ClientConfig(cluster.name_servers)
    seen = Collector()
    consumer = PushConsumer("calculators", seen, client=client, start=FIRST)
    consumer.subscribe("sums")
    async with Producer("shop", client=client) as producer, consumer:
        waiting = asyncio.create_task(producer.request(Message("sums", b"two"), timeout_ms=10_000))
        await seen.wait(1)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        # A reply without a request is accepted: the client itself is still there.
        await producer.reply(seen.messages[0], b"late")


async def test_a_reply_to_one_who_has_left_fails(cluster: EmbeddedCluster) -> None:
    """E7: the replier is told. The time is enough to send the request, on a busy machine, too."""
    client = ClientConfig(cluster.name_servers)
    leaving = ClientConfig(cluster.name_servers, instance_name="leaving")
    seen = Collector()
    consumer = PushConsumer("calculators", seen, client=client, start=FIRST)
    consumer.subscribe("sums")
    async with Producer("replier", client=client) as producer, consumer:
        async with Producer("shop", client=leaving) as requester:
            with pytest.raises(RequestTimeout):
                await requester.request(Message("sums", b"two"), timeout_ms=3_000)
        (request,) = await seen.wait(1)
        with pytest.raises(SystemFailure, match="not found"):
            await producer.reply(request, b"four")


async def test_only_a_request_can_be_answered(cluster: EmbeddedCluster) -> None:
    """E7: no sender waits for a reply to an ordinary message, nor to a reply."""
    client = ClientConfig(cluster.name_servers)
    seen = Collector()
    consumer = PushConsumer("calculators", seen, client=client, start=FIRST)
    consumer.subscribe("sums")
    async with Producer("shop", client=client) as producer, consumer:
        await producer.send(Message("sums", b"two"))
        (message,) = await seen.wait(1)
        with pytest.raises(InvalidMessage, match=r"from topic 'sums' is not a request"):
            await producer.reply(message, b"four")
        with pytest.raises(InvalidMessage, match="is reserved"):
            await producer.request(Message("sums", b"two", properties={"TTL": "5"}))
    with pytest.raises(NotRunning):
        await producer.request(Message("sums", b"two"))


async def test_any_broker_of_the_cluster_can_pass_the_reply_on() -> None:
    """E7: a Java replier sends to any broker, also to one that does not have the topic of the request."""
    async with EmbeddedCluster(brokers=2) as cluster:
        client = ClientConfig(cluster.name_servers)
        elsewhere = ClientConfig(cluster.name_servers, instance_name="elsewhere")
        seen = Collector()
        consumer = PushConsumer("calculators", seen, client=elsewhere, start=FIRST)
        consumer.subscribe("sums")
        async with Producer("shop", client=elsewhere) as producer:
            first, *_ = await producer.queues("sums")
            await producer.send(Message("sums", b"makes the topic on one broker"), queue=first)
        replier = Producer("replier", client=elsewhere)
        async with replier, Producer("shop", client=client) as producer, consumer:
            waiting = asyncio.create_task(producer.request(Message("sums", b"two"), timeout_ms=10_000))
            _, request = await seen.wait(2)
            assert {first.broker_name} == {queue.broker_name for queue in await producer.queues("sums")}
            request.broker_name = "broker-b"
            receipt = await replier.reply(request, b"four")
            reply = await waiting
    assert ("broker-a", "broker-b", b"four") == (first.broker_name, receipt.queue.broker_name, reply.body)


async def test_a_reply_goes_by_another_broker_when_that_of_the_request_is_gone() -> None:
    """E7: brokers that know the requester are as good."""
    async with EmbeddedCluster(brokers=2) as cluster:
        client = ClientConfig(cluster.name_servers)
        seen = Collector()
        consumer = PushConsumer("calculators", seen, client=client, start=FIRST)
        consumer.subscribe("sums")
        async with Producer("shop", client=client) as producer, consumer:
            queue = next(queue for queue in await producer.queues("sums") if queue.broker_name == "broker-b")
            waiting = asyncio.create_task(producer.request(Message("sums", b"two"), queue=queue, timeout_ms=10_000))
            (request,) = await seen.wait(1)
            await cluster.brokers[1].__aexit__(None, None, None)
            receipt = await producer.reply(request, b"four", timeout_ms=5_000)
            assert ("broker-a", b"four") == (receipt.queue.broker_name, (await waiting).body)


async def test_requests_in_a_namespace_are_answered(cluster: EmbeddedCluster) -> None:
    """E7: the reply topic belongs to the cluster and gets no prefix."""
    client = ClientConfig(cluster.name_servers, namespace="team")
    async with Producer("shop", client=client) as producer, replying(client):
        assert b"TWO" == (await producer.request(Message("sums", b"two"), timeout_ms=10_000)).body


async def test_a_request_is_not_held_back_to_be_batched(cluster: EmbeddedCluster) -> None:
    """E6, E7."""
    client = ClientConfig(cluster.name_servers)
    config = ProducerConfig(auto_batch=True, auto_batch_wait_ms=60_000)
    async with Producer("shop", client=client, config=config) as producer, replying(client):
        assert b"TWO" == (await producer.request(Message("sums", b"two"), timeout_ms=10_000)).body


def test_the_blocking_twins_ask_and_answer() -> None:
    """E7: from plain functions; the listener runs in a thread."""
    with EmbeddedCluster() as cluster, SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        answered = threading.Event()

        def listener(message: ReceivedMessage) -> None:
            producer.reply(message, message.body * 2)
            answered.set()

        consumer = SyncPushConsumer("calculators", listener, name_servers=cluster.name_servers, start=FIRST)
        consumer.subscribe("sums")
        with consumer:
            reply = producer.request(Message("sums", b"two "), timeout_ms=10_000)
            assert answered.wait(10)
    assert b"two two " == reply.body
