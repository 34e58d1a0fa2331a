"""A whole cluster in the process of a test (T5)."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import ConfigError, NotRunning
from ternmq.message import Message, SendStatus


async def test_a_message_can_be_sent_as_soon_as_the_block_begins() -> None:
    async with EmbeddedCluster() as cluster, Producer("shop", name_servers=cluster.name_servers) as producer:
        receipt = await producer.send(Message("orders", b"hello"))

    assert (SendStatus.OK, "broker-a", 0) == (receipt.status, receipt.queue.broker_name, receipt.queue_offset)


async def test_several_brokers_are_one_cluster() -> None:
    async with EmbeddedCluster(brokers=3) as cluster, Admin(cluster.name_servers) as admin:
        brokers = await admin.brokers.all()

    assert [("DefaultCluster", "broker-a"), ("DefaultCluster", "broker-b"), ("DefaultCluster", "broker-c")] == [
        (broker.cluster, broker.name) for broker in brokers
    ]


async def test_brokers_may_have_slaves() -> None:
    """O1, O2, T5: a message that is acknowledged by a synchronous master is on its slave."""
    async with EmbeddedCluster(slaves=1, settings={"brokerRole": "SYNC_MASTER"}) as cluster:
        (master,), (slave,) = cluster.brokers, cluster.slaves
        assert master.replicating is not None
        assert slave.replicating is not None
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            async with asyncio.timeout(60):
                while (await producer.send(Message("orders", b"hello"))).status is not SendStatus.OK:
                    await asyncio.sleep(0.05)
            assert master.replicating.log_end == slave.replicating.log_end
    with pytest.raises(ConfigError, match="slaves"):
        EmbeddedCluster(slaves=9)


def test_without_asyncio_it_runs_in_a_thread_of_its_own() -> None:
    before = set(threading.enumerate())  # other tests may have a cluster for themselves

    with EmbeddedCluster() as cluster, SyncProducer("shop", name_servers=cluster.name_servers) as producer:
        assert SendStatus.OK is producer.send(Message("orders", b"hello")).status

    more = [thread.name for thread in set(threading.enumerate()) - before]
    assert "ternmq embedded cluster" not in more
    assert len(more) <= 1  # the blocking client's loop thread stays for the next one


async def test_two_clusters_do_not_see_each_other() -> None:
    async with EmbeddedCluster() as one, EmbeddedCluster() as other:
        assert one.name_servers != other.name_servers
        async with Admin(one.name_servers) as admin:
            await admin.topics.create("orders")
        async with Admin(other.name_servers) as admin:
            assert "orders" not in [topic.name for topic in await admin.topics.all()]


async def test_a_directory_that_is_given_is_kept_and_opens_again(tmp_path: Path) -> None:
    """C7: the second cluster finds what the first one stored."""
    async with EmbeddedCluster(directory=tmp_path) as cluster, Admin(cluster.name_servers) as admin:
        await admin.topics.create("orders", queues=1)
        async with Producer("shop", name_servers=cluster.name_servers) as producer:
            await producer.send(Message("orders", b"hello"))

    async with EmbeddedCluster(directory=tmp_path) as cluster, Admin(cluster.name_servers) as admin:
        assert [1] == [queue.messages for queue in await admin.topics.status("orders")]


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    with EmbeddedCluster() as cluster:
        assert [True] == [path.is_dir() for path in tmp_path.iterdir()]
        assert 1 == len(cluster.brokers)

    assert [] == list(tmp_path.iterdir())


async def test_settings_reach_the_servers() -> None:
    async with EmbeddedCluster(settings={"auto_create_topic_enable": False, "defaultTopicQueueNums": 3}) as cluster:
        config = cluster.brokers[0].config

    assert (False, 3) == (config.auto_create_topic_enable, config.default_topic_queue_nums)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"autoCreateTopicEnabel": True}, "did you mean 'autoCreateTopicEnable'"),
        ({"colour": "blue"}, "unknown setting 'colour'"),
        ({"listenPort": 1}, "listenPort is set by the embedded cluster"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(settings: dict[str, object], expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        EmbeddedCluster(settings=settings)


def test_a_cluster_needs_brokers() -> None:
    with pytest.raises(ConfigError, match="expected 1 to 26"):
        EmbeddedCluster(brokers=0)


def test_what_keeps_it_from_starting_is_raised_by_the_thread_too(tmp_path: Path) -> None:
    (tmp_path / "broker-a").write_text("in the way")

    with pytest.raises(Exception, match="broker-a"), EmbeddedCluster(directory=tmp_path):
        pass


def test_outside_its_block_there_is_no_address() -> None:
    with pytest.raises(NotRunning):
        _ = EmbeddedCluster().name_servers
