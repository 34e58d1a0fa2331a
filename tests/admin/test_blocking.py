"""The synchronous admin: ``Admin`` from plain code and from threads (D6, L1, L2). ``tests/test_sync_classes.py``
compares the two method by method."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from ternmq import EmbeddedCluster, Message, StartPosition, SyncAdmin, SyncProducer, SyncPullConsumer
from ternmq.admin.offsets import Move
from ternmq.errors import ConfigError, NameServersUnreachable, NotRunning, RouteMissing


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with EmbeddedCluster() as running:
        yield running


def test_it_finds_and_moves_from_plain_code(cluster: EmbeddedCluster) -> None:
    """L1, L2."""
    names = cluster.name_servers
    with SyncAdmin(names) as admin, SyncProducer("shop", name_servers=names) as producer:
        admin.topics.create("orders", queues=1)
        receipt = producer.send(Message("orders", b"one book", keys="k"))
        with SyncPullConsumer("billing", name_servers=names) as consumer:
            consumer.queues("orders")
            consumer.commit(receipt.queue, 1)

        found = [
            admin.messages.by_id(receipt.offset_id),
            *admin.messages.by_unique_key("orders", receipt.message_id),
            *admin.messages.by_key("orders", "k"),
            admin.messages.by_queue_offset(receipt.queue, 0),
            *admin.messages.by_time("orders", 0),
        ]
        moves = admin.offsets.reset("billing", "orders", StartPosition.FIRST)

        assert [b"one book"] * 5 == [message.body for message in found]
        assert [Move(receipt.queue, 1, 0)] == moves
        assert {receipt.queue: 0} == admin.offsets.of("billing")
        assert moves[0].queue == admin.offsets.clone("billing", "other")[0].queue
        assert ["broker-a"] == [broker.name for broker in admin.brokers.masters()]
        assert 1 == admin.topics.status("orders")[0].messages
        assert "billing" in admin.groups.names()
        assert None is admin.clients.consumers("billing")


def test_many_threads_share_one_admin(cluster: EmbeddedCluster) -> None:
    with SyncAdmin(cluster.name_servers) as admin, ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: admin.brokers.all(), range(50)))

    assert [answers[0]] * 50 == answers


def test_errors_come_out_as_they_are(cluster: EmbeddedCluster) -> None:
    with pytest.raises(ConfigError, match="invalid address 'nonsense'"):
        SyncAdmin("nonsense")
    with SyncAdmin("127.0.0.1:1") as admin, pytest.raises(NameServersUnreachable):
        admin.brokers.all()
    with SyncAdmin(cluster.name_servers) as admin, pytest.raises(RouteMissing):
        admin.messages.by_key("nothing", "k")
    with pytest.raises(NotRunning, match="use it inside `with SyncAdmin"):
        admin.brokers.all()
