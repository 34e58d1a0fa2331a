"""One cluster of two brokers and an admin for each test; in some the test moves the brokers' clock."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from ternmq.admin import Admin
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.env import Env
from ternmq.message import Message, MessageQueue, SendReceipt
from tests.manual_clock import ManualClock

#: The queues of the topic that ``Timed`` makes.
QUEUES = [MessageQueue("orders", broker, 0) for broker in ("broker-a", "broker-b")]


@pytest.fixture
def clock() -> ManualClock:
    """The time of a cluster under ``timed``."""
    return ManualClock()


@pytest.fixture
async def cluster(request: pytest.FixtureRequest, clock: ManualClock) -> AsyncIterator[EmbeddedCluster]:
    env = Env(clock=clock) if "timed" in request.fixturenames else Env()
    async with EmbeddedCluster(brokers=2, env=env) as cluster:
        yield cluster


@pytest.fixture
async def admin(cluster: EmbeddedCluster) -> AsyncIterator[Admin]:
    async with Admin(cluster.name_servers) as admin:
        yield admin


class Timed:
    """A cluster whose time stands still unless moved, with the topic ``orders`` of one queue on each broker."""

    def __init__(self, cluster: EmbeddedCluster, clock: ManualClock, producer: Producer) -> None:
        self.name_servers = cluster.name_servers
        self.clock = clock
        self._producer = producer

    async def send(
        self, body: bytes, *, queue: MessageQueue = QUEUES[0], keys: tuple[str, ...] = (), after_ms: int = 0
    ) -> SendReceipt:
        """Store a message, some time after the last."""
        self.clock.advance(after_ms / 1000)
        return await self._producer.send(Message("orders", body, keys=keys), queue=queue)


@pytest.fixture
async def timed(cluster: EmbeddedCluster, admin: Admin, clock: ManualClock) -> AsyncIterator[Timed]:
    await admin.topics.create("orders", queues=1)
    async with Producer("shop", name_servers=cluster.name_servers) as producer:
        yield Timed(cluster, clock, producer)
