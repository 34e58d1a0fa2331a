"""The Node client ``ali-ons`` (3.12.0) on TernMQ's servers (V1). It has no transactions and no orderly consumers: it
reads each queue in order, one message at a time."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from ternmq import Admin, EmbeddedCluster
from tests.client.send.test_transaction import until
from tests.interop.conftest import PEER
from tests.interop.java import PeerFailed
from tests.interop.node import Node
from tests.interop.test_go_on_ternmq import bodies, exists, numbered
from tests.interop.test_transactions import reading

pytestmark = pytest.mark.interop

TOPIC = "orders"
GROUP = "shop"


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@pytest.fixture
async def cluster() -> AsyncIterator[EmbeddedCluster]:
    # A message that failed waits as level 3 says.
    async with EmbeddedCluster(settings={"messageDelayLevel": "1s 5s 1s"}) as cluster:
        async with Admin(cluster.name_servers) as admin:
            await admin.topics.create(TOPIC)
        yield cluster


async def test_what_node_sends_node_receives(cluster: EmbeddedCluster, node: Node) -> None:
    """V1, E1, F1, K1: with tags, keys, Chinese text in properties and a large body; found again by key."""
    names = cluster.name_servers
    async with node.peer(names, group=GROUP, topic=TOPIC, expression="paid || sent") as peer:
        await peer.send(topic=TOPIC, body="other", tags="other")
        results = await peer.send(
            topic=TOPIC, body="order", count=10, tags="paid", key="键", properties={"城市": "杭州"}
        )
        # Longer than what it sends as it is.
        await peer.send(topic=TOPIC, body="long" * 10_000, tags="sent")
        messages = await peer.messages(11)

    assert ["SEND_OK"] * 10 == [result["status"] for result in results]
    assert sorted([*numbered(10, "order"), b"long" * 10_000 + b"-0"]) == bodies(messages)
    assert {"杭州"} == {one["properties"]["城市"] for one in messages if one["tags"] == "paid"}
    async with Admin(names) as admin:
        [found] = await admin.messages.by_key(TOPIC, "键-3")
    assert b"order-3" == found.body


async def test_a_node_consumer_gets_what_failed_again_and_goes_on_where_it_was(
    cluster: EmbeddedCluster, node: Node
) -> None:
    """V1, H1, D4."""
    names = cluster.name_servers
    async with Admin(names) as admin, reading(names, TOPIC, group=GROUP):
        # The first member of a group makes its retry topic. Node's consumers would learn of that 30 s later.
        await until(lambda: exists(admin, f"%RETRY%{GROUP}"))
    async with node.peer(names, group=GROUP, topic=TOPIC, failures=1) as peer:
        await peer.send(topic=TOPIC, body="failing")
        first, again = await peer.messages(2)
        await peer.send(topic=TOPIC, body="next")
        await peer.messages(2)
    async with node.peer(names, group=GROUP, topic=TOPIC) as peer:
        await peer.send(topic=TOPIC, body="last")
        [last] = await peer.messages(1)

    assert [(b"failing-0", 0), (b"failing-0", 1)] == [(one["body"], one["reconsumeTimes"]) for one in (first, again)]
    assert b"last-0" == last["body"]


async def test_node_keeps_the_order_of_a_sharding_key(cluster: EmbeddedCluster, node: Node) -> None:
    """V1, E5."""
    async with node.peer(cluster.name_servers, group=GROUP, topic=TOPIC) as peer:
        # Keys of three queues, none of which is 0.
        results = await peer.send(topic=TOPIC, body="step", count=24, shards=list("abe"))
        messages = await peer.messages(24)

    for shard in "abe":
        sent = [result for result in results if "abe"[result["index"] % 3] == shard]
        assert 1 == len({result["queueId"] for result in sent})
        came = [one["body"] for one in messages if one["properties"]["__SHARDING_KEY"] == shard]
        assert [f"step-{result['index']}".encode() for result in sent] == came


async def test_a_delayed_message_of_node_is_never_early(cluster: EmbeddedCluster, node: Node) -> None:
    """V1, I1, I2, I3: by level and by time."""
    async with node.peer(cluster.name_servers, group=GROUP, topic=TOPIC) as peer:
        sent_at_ms = time.time() * 1000
        await peer.send(topic=TOPIC, body="level", delayLevel=2)
        await peer.send(topic=TOPIC, body="time", deliverAtMs=int(sent_at_ms) + 3_000)
        await peer.send(topic=TOPIC, body="now")
        came_at_ms = {message["body"]: message["at"] for message in await peer.messages(3)}

    assert {b"now-0", b"level-0", b"time-0"} == came_at_ms.keys()
    assert came_at_ms[b"level-0"] >= sent_at_ms + 5_000
    assert came_at_ms[b"time-0"] >= int(sent_at_ms) + 3_000


async def test_node_filters_by_sql(cluster: EmbeddedCluster, node: Node) -> None:
    """V1, K2."""
    async with node.peer(cluster.name_servers, group=GROUP, topic=TOPIC, expression="amount > 5", sql=True) as peer:
        for amount in (3, 7, 5, 9):
            await peer.send(topic=TOPIC, body=f"order-{amount}", properties={"amount": str(amount)})
        messages = await peer.messages(2)

    assert [b"order-7-0", b"order-9-0"] == bodies(messages)


async def test_node_signs_and_is_let_in(signed_cluster: EmbeddedCluster, node: Node) -> None:
    """V1, N1: and a wrong secret is refused."""
    names = signed_cluster.name_servers
    async with node.peer(names, group=GROUP, topic=TOPIC, accessKey=PEER.access_key, secretKey=PEER.secret_key) as peer:
        await peer.send(topic=TOPIC, body="signed", count=3)
        messages = await peer.messages(3)
    assert numbered(3, "signed") == bodies(messages)
    async with node.peer(names, accessKey=PEER.access_key, secretKey="another") as stranger:
        with pytest.raises(PeerFailed, match="signature is not valid"):
            await stranger.send(topic=TOPIC, body="wrong")
    async with node.peer(names) as stranger:
        with pytest.raises(PeerFailed, match="is not signed"):
            await stranger.send(topic=TOPIC, body="unsigned")
