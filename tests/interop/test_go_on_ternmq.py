"""Apache's Go client (v2.1.2) on TernMQ's servers (V1, J1, J2). Each test has a cluster of its own in this process."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq import Admin, EmbeddedCluster
from tests.client.send.test_transaction import QUICK, is_settled, until
from tests.interop.conftest import PEER
from tests.interop.go import Go
from tests.interop.java import Event
from tests.interop.test_transactions import came, reading

pytestmark = pytest.mark.interop

TOPIC = "orders"
GROUP = "shop"


@pytest.fixture
def go(tmp_path: Path) -> Go:
    return Go(tmp_path)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    # A message that failed waits as level 3 says.
    async with EmbeddedCluster(settings={**QUICK, "messageDelayLevel": "1s 5s 1s"}) as cluster:
        async with Admin(cluster.name_servers) as admin:
            # Go's consumers do not start without it, on RocketMQ, too.
            await admin.topics.create(TOPIC)
        yield cluster


def bodies(messages: list[Event]) -> list[bytes]:
    return sorted(message["body"] for message in messages)


def numbered(count: int, prefix: str) -> list[bytes]:
    return sorted(f"{prefix}-{number}".encode() for number in range(count))


async def test_what_go_sends_go_receives(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, E1, F1, K1: sync, async, one-way, with tags, keys and Chinese text in properties; found again by key."""
    names = cluster.name_servers
    async with (
        go.producer(names) as producer,
        go.consumer(names, group=GROUP, topic=TOPIC, expression="paid || sent") as consumer,
    ):
        await producer.send(topic=TOPIC, body="other", tags="other")
        results = {
            mode: await producer.send(
                topic=TOPIC, mode=mode, body=mode, count=10, tags="paid", key="键", properties={"城市": "杭州"}
            )
            for mode in ("sync", "async", "oneway")
        }
        messages = await consumer.messages(30)

    assert sorted(body for mode in results for body in numbered(10, mode)) == bodies(messages)
    assert {("paid", "杭州")} == {(message["tags"], message["properties"]["城市"]) for message in messages}
    received = {message["msgId"] for message in messages}
    for mode in ("sync", "async"):
        assert ["SEND_OK"] * 10 == [result["status"] for result in results[mode]]
        assert {result["msgId"] for result in results[mode]} <= received
    async with Admin(names) as admin:
        found = await admin.messages.by_key(TOPIC, "键-3")
    assert [b"async-3", b"oneway-3", b"sync-3"] == sorted(message.body for message in found)


async def test_a_batch_of_go_is_stored_as_single_messages(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, E6."""
    names = cluster.name_servers
    async with go.producer(names) as producer:
        [result] = await producer.send(topic=TOPIC, mode="batch", body="batch", count=5)
        assert "SEND_OK" == result["status"]
    async with go.consumer(names, group=GROUP, topic=TOPIC) as consumer:
        messages = await consumer.messages(5)
    assert numbered(5, "batch") == bodies(messages)
    assert 5 == len({message["msgId"] for message in messages})


async def test_a_go_consumer_gets_what_failed_again(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, H1: sent back, delivered through the retry topic with its first id."""
    names = cluster.name_servers
    async with Admin(names) as admin, reading(names, TOPIC, group=GROUP):
        # The first member of a group makes its retry topic. Go's consumers would learn of that 30 s later.
        await until(lambda: exists(admin, f"%RETRY%{GROUP}"))
    async with go.producer(names) as producer, go.consumer(names, group=GROUP, topic=TOPIC, failures=1) as consumer:
        [sent] = await producer.send(topic=TOPIC, body="failing")
        first, again = await consumer.messages(2)
    assert [(b"failing-0", 0), (b"failing-0", 1)] == [(one["body"], one["reconsumeTimes"]) for one in (first, again)]
    assert {sent["msgId"]} == {first["msgId"], again["msgId"]}


async def test_an_orderly_go_consumer_keeps_the_order_of_each_queue(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, E5, F2: also when each message fails once."""
    names = cluster.name_servers
    async with go.producer(names) as producer:
        results = await producer.send(topic=TOPIC, body="step", count=24, shards=3)
        assert len({result["queueId"] for result in results}) <= 3
    async with go.consumer(names, group=GROUP, topic=TOPIC, orderly=True, failures=1) as consumer:
        messages = await consumer.messages(48)
    by_queue: defaultdict[int, list[int]] = defaultdict(list)
    for message in messages:
        if message["attempt"] == 2:
            by_queue[message["queueId"]].append(message["queueOffset"])
    assert 24 == sum(map(len, by_queue.values()))
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())


async def test_a_delayed_message_of_go_is_never_early(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, I1, I3: delay level 2, five seconds."""
    names = cluster.name_servers
    async with go.producer(names) as producer, go.consumer(names, group=GROUP, topic=TOPIC) as consumer:
        sent_at_ms = time.time() * 1000
        await producer.send(topic=TOPIC, body="later", delayLevel=2)
        await producer.send(topic=TOPIC, body="now")
        came_at_ms = {message["body"]: message["at"] for message in await consumer.messages(2)}
    assert {b"now-0", b"later-0"} == came_at_ms.keys()
    assert came_at_ms[b"later-0"] >= sent_at_ms + 5_000


async def test_go_transactions_are_committed_rolled_back_and_checked(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, J1, J2: a transaction of unknown state is checked back."""
    names = cluster.name_servers
    async with (
        reading(names, TOPIC) as got,
        go.transactions(names, group="payers", check="COMMIT_MESSAGE") as payer,
        go.transactions(names, group="losers", check="ROLLBACK_MESSAGE") as loser,
    ):
        results = await payer.send(topic=TOPIC, count=3, body="paid", local="COMMIT_MESSAGE", tags="paid")
        assert {"SEND_OK"} == {result["status"] for result in results}
        assert all(result["transactionId"] == result["msgId"] for result in results)
        await loser.send(topic=TOPIC, count=2, body="failed", local="ROLLBACK_MESSAGE")
        await loser.send(topic=TOPIC, body="unpaid", local="UNKNOW")
        await payer.send(topic=TOPIC, body="checked", local="UNKNOW", properties={"城市": "杭州"})
        check = await payer.event("check", where=lambda check: check["body"] == "checked-0")
        assert (TOPIC, "杭州") == (check["topic"], check["properties"]["城市"])
        await loser.event("check", where=lambda check: check["body"] == "unpaid-0")
        await until(lambda: is_settled(cluster))
        await came(got, [*numbered(3, "paid"), b"checked-0"])


async def test_a_go_producer_answers_for_one_that_died(cluster: EmbeddedCluster, go: Go) -> None:
    """V1, J2: another member of its group is asked."""
    names = cluster.name_servers
    async with reading(names, TOPIC) as got:
        async with go.transactions(names, group=GROUP, check="UNKNOW") as first:
            await first.send(topic=TOPIC, body="orphan", local="UNKNOW")
            await first.event("check")
            await first.kill()
        async with go.transactions(names, group=GROUP, check="COMMIT_MESSAGE") as second:
            # A producer is known to the brokers of the topics to which it has sent.
            await second.send(topic=TOPIC, body="hello", local="COMMIT_MESSAGE")
            await second.event("check", where=lambda check: check["body"] == "orphan-0")
            await came(got, [b"orphan-0", b"hello-0"])


async def test_go_signs_and_is_let_in(signed_cluster: EmbeddedCluster, go: Go) -> None:
    """V1, N1: sends, transactions and a consumer; a wrong secret is refused."""
    names = signed_cluster.name_servers
    keys = {"accessKey": PEER.access_key, "secretKey": PEER.secret_key}
    async with (
        go.consumer(names, group=GROUP, topic=TOPIC, **keys) as consumer,
        go.producer(names, **keys) as producer,
        go.transactions(names, group="payers", check="COMMIT_MESSAGE", **keys) as payer,
        go.producer(names, accessKey=PEER.access_key, secretKey="another") as stranger,
    ):
        await producer.send(topic=TOPIC, body="signed", count=3)
        await payer.send(topic=TOPIC, body="paid", local="COMMIT_MESSAGE")
        messages = await consumer.messages(4)
        [refused] = await stranger.order(topic=TOPIC, body="wrong")
    assert sorted([*numbered(3, "signed"), b"paid-0"]) == bodies(messages)
    assert "error" == refused["event"]


async def exists(admin: Admin, topic: str) -> bool:
    return topic in {one.name for one in await admin.topics.all()}
