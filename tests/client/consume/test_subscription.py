"""What consumers ask brokers for: by tags and by SQL, on a real cluster (K1, K2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from ternmq.client.blocking.pull import SyncLitePullConsumer, SyncPullConsumer
from ternmq.client.blocking.push import SyncPushConsumer
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.pull import PullConsumer, PullStatus
from ternmq.client.consume.push import PushConsumer
from ternmq.client.consume.subscription import Subscription
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, InvalidExpression, SubscriptionInvalid, SystemFailure
from ternmq.message import Message, ReceivedMessage
from tests.client.listening import Collector

BIG = "amount > 5 AND region = 'eu'"
FIRST = StartPosition.FIRST


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    async with EmbeddedCluster() as cluster:
        yield cluster


@pytest.fixture
async def producer(cluster: EmbeddedCluster) -> AsyncIterator[Producer]:
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield producer


async def send(producer: Producer, *amounts: int, tags: str = "") -> None:
    for amount in amounts:
        properties = {"amount": str(amount), "region": "eu"}
        await producer.send(Message("orders", str(amount).encode(), tags=tags, properties=properties))


# --- What is subscribed ---------------------------------------------------------------------------------------


def test_an_sql_subscription_tells_brokers_all_and_leaves_nothing_to_do_here() -> None:
    """K2"""
    subscription = Subscription.of("orders", "*", BIG, version=7)
    data = subscription.data
    assert ("orders", BIG, "SQL92", [], [], 7) == (
        data.topic,
        data.sub_string,
        data.expression_type,
        data.tags_set,
        data.code_set,
        data.sub_version,
    )
    assert subscription.filter.all


def test_tags_and_sql_do_not_go_together() -> None:
    """K2: tags are a property like others."""
    with pytest.raises(ConfigError, match="TAGS IN"):
        Subscription.of("orders", "new", BIG, version=0)


def test_what_no_broker_could_read_is_refused_here() -> None:
    """K2: with the place."""
    with pytest.raises(InvalidExpression) as raised:
        Subscription.of("orders", "*", "amount >", version=0)
    assert 8 == raised.value.position


def test_what_an_older_broker_may_read_is_left_to_it() -> None:
    """K2: before RocketMQ 5.1.3 "contains" is a property."""
    assert "contains = 5" == Subscription.of("orders", "*", "contains = 5", version=0).data.sub_string


def test_a_change_is_one_of_the_expression_or_of_its_kind() -> None:
    """D3"""
    tags, sql = Subscription.by_tags("orders", "a", version=1), Subscription.by_sql("orders", "a", version=2)
    assert tags.wants_same_as(Subscription.by_tags("orders", " a ", version=3))
    assert sql.wants_same_as(Subscription.by_sql("orders", "a", version=3))
    assert not tags.wants_same_as(sql)
    assert not sql.wants_same_as(Subscription.by_sql("orders", "a = 1", version=2))


# --- On a cluster ---------------------------------------------------------------------------------------------


async def test_a_push_consumer_gets_what_its_expression_takes(cluster: EmbeddedCluster, producer: Producer) -> None:
    """K2: what is there, what comes, and after a change of mind."""
    seen = Collector()
    await send(producer, 1, 9)
    consumer = PushConsumer("billing", seen, name_servers=cluster.name_servers, start=FIRST)
    consumer.subscribe("orders", sql=BIG)
    async with consumer:
        await send(producer, 2, 8)
        await seen.wait(2)
        consumer.subscribe("orders", sql="amount BETWEEN 4 AND 5")
        await consumer.ready()
        await send(producer, 7, 4)
        await seen.wait(3)
    assert ["4", "8", "9"] == sorted(seen.seen)


async def test_pull_consumers_and_all_blocking_twins_filter_too(cluster: EmbeddedCluster, producer: Producer) -> None:
    """K2, F3, F4"""
    await send(producer, 1, 9, 2, 8)
    names = cluster.name_servers

    async with (
        PullConsumer("audit", name_servers=names) as pull,
        LitePullConsumer("lite", name_servers=names, start=FIRST) as lite,
    ):
        pulled = [
            message
            for queue in await pull.queues("orders")
            for message in (await pull.pull(queue, 0, sql=BIG, wait=False)).messages
        ]
        lite.subscribe("orders", sql=BIG)
        polled: list[ReceivedMessage] = []
        while len(polled) < 2:
            polled += await lite.poll()

    def blocking() -> list[str]:
        with SyncPullConsumer("audit", name_servers=names) as pull:
            replies = [pull.pull(queue, 0, sql=BIG, wait=False) for queue in pull.queues("orders")]
        assert {PullStatus.FOUND, PullStatus.NO_MATCH} >= {reply.status for reply in replies}
        found = [message.body.decode() for reply in replies for message in reply.messages]
        with SyncLitePullConsumer("sync-lite", name_servers=names, start=FIRST) as lite:
            lite.assign(lite.queues("orders"), sql=BIG)
            while len(found) < 4:
                found += [message.body.decode() for message in lite.poll()]
        with SyncPushConsumer("sync-push", name_servers=names, start=FIRST) as push:
            push.subscribe("orders", sql=BIG)
            messages = iter(push)
            found += [next(messages).body.decode() for _ in range(2)]
        return found

    assert ["8", "9"] == sorted(message.body.decode() for message in pulled)
    assert ["8", "9"] == sorted(message.body.decode() for message in polled)
    assert ["8", "8", "8", "9", "9", "9"] == sorted(await asyncio.to_thread(blocking))


async def test_tags_with_one_hash_are_told_apart(cluster: EmbeddedCluster, producer: Producer) -> None:
    """K1: "Aa" and "BB" are one to a broker, not to the client; nor to SQL."""
    await send(producer, 1, tags="Aa")
    await send(producer, 2, tags="BB")
    seen, by_sql = Collector(), Collector()
    one = PushConsumer("tags", seen, name_servers=cluster.name_servers, start=FIRST)
    one.subscribe("orders", "BB")
    other = PushConsumer("sql", by_sql, name_servers=cluster.name_servers, start=FIRST)
    other.subscribe("orders", sql="TAGS = 'BB'")
    async with one, other:
        await send(producer, 3, tags="BB")
        assert ["2", "3"] == sorted(await seen.bodies(2))
        assert ["2", "3"] == sorted(await by_sql.bodies(2))


async def test_a_consumer_does_not_start_on_a_broker_that_cannot_filter() -> None:
    """K2: the error names the setting."""
    async with EmbeddedCluster(settings={"enablePropertyFilter": False}) as cluster:
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            await send(producer, 1)
        consumer = PushConsumer("billing", name_servers=cluster.name_servers)
        consumer.subscribe("orders", sql=BIG)
        with pytest.raises(SystemFailure, match="enablePropertyFilter=true"):
            await consumer.__aenter__()


async def test_a_consumer_does_not_start_with_what_the_broker_refuses(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """K2: CHECK_CLIENT_CONFIG, with the place; here by an expression that only an older broker could read."""
    await send(producer, 1)
    lite = LitePullConsumer("lite", name_servers=cluster.name_servers)
    lite.subscribe("orders", sql="contains = 5")
    with pytest.raises(SubscriptionInvalid, match="at character 1"):
        await lite.__aenter__()


async def test_a_consumer_does_not_start_with_what_is_too_large_for_the_broker(
    cluster: EmbeddedCluster, producer: Producer
) -> None:
    """Issue 13, 4: SQL or tags; the error names the setting, and the client refuses nothing that a broker may take."""
    await send(producer, 1)
    lite = LitePullConsumer("lite", name_servers=cluster.name_servers)
    lite.subscribe("orders", sql=" OR ".join(["amount=9"] * 800))
    with pytest.raises(SubscriptionInvalid, match="maxFilterExpressionTerms"):
        await lite.__aenter__()
    push = PushConsumer("push", name_servers=cluster.name_servers)
    push.subscribe("orders", " || ".join(f"tag-{number}" for number in range(2_000)))
    with pytest.raises(SubscriptionInvalid, match="maxFilterExpressionLength") as raised:
        await push.__aenter__()
    assert len(str(raised.value)) < 1_000


async def test_a_heartbeat_that_a_broker_refuses_is_told_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, 4: with the group, the limit and the setting."""
    async with EmbeddedCluster(settings={"maxSubscriptionsPerGroup": 1}) as cluster:
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            await send(producer, 1)
        consumer = PushConsumer("billing", name_servers=cluster.name_servers)
        consumer.subscribe("orders")
        consumer.subscribe("returns")
        async with consumer:
            pass
    assert "refused the heartbeat" in caplog.text
    assert "subscribes to 3 topics, more than the 1 that maxSubscriptionsPerGroup allows" in caplog.text
