"""Ordered pops and pops' retry topics: Java 5.2.0's client API gets the same answers of TernMQ's broker and RocketMQ's
(F9, V1, V3).

Java's consumers never pop in order; RocketMQ's proxies do, through the API that is called here.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import pytest

from ternmq.admin import Admin
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets, StartPosition
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.message import Message, MessageQueue
from ternmq.wire.codes import RequestCode
from tests.interop.java import Java, Peer
from tests.interop.rocketmq import RocketMQ

pytestmark = pytest.mark.interop

BROKER = "broker-a"
#: An invisible time that no test waits for, and one that a test does.
LONG_MS, SHORT_MS = 60_000, 1_000
#: Longer than RocketMQ takes to redeliver messages without an ack: its timer and its revive have their own intervals.
PATIENT_MS = 30_000

_topics = (f"popped-in-order-{number}" for number in itertools.count())


@dataclass(slots=True)
class Popper:
    """Orders to a ``Pop.java``. Messages are known by their bodies, handles by body and the number of the delivery."""

    peer: Peer
    handles: dict[str, list[str]] = field(default_factory=dict)
    seen: dict[str, list[tuple[int, str]]] = field(default_factory=dict)

    async def pop(self, **order: object) -> list[tuple[str, int, str]]:
        """Body, consumptions before, and the flag of the retry topic, of each message."""
        answer = await self.peer.ask("pop", **order)
        messages = answer["messages"]
        for message in messages:
            self.handles.setdefault(message["body"], []).append(message["handle"])
        return [(message["body"], message["times"], message["retry"]) for message in messages]

    async def fifo(self, count: int, attempt: str, **order: object) -> list[tuple[str, int]]:
        """An ordered pop: body and consumptions before."""
        given: dict[str, object] = {"order": True, "count": count, "attempt": attempt, "invisibleMs": LONG_MS}
        return [(body, times) for body, times, _ in await self.pop(**(given | order))]

    async def deliveries(self, body: str, count: int) -> list[tuple[int, str]]:
        """Let messages come again and again until one has come so often: its consumptions before, and the flags."""
        async with asyncio.timeout(PATIENT_MS / 1000):
            # One by one: RocketMQ looks into one retry topic with each pop, and chooses by chance.
            while len(self.seen.get(body, ())) < count:
                for seen, times, retry in await self.pop(count=1, invisibleMs=SHORT_MS, pollMs=500):
                    self.seen.setdefault(seen, []).append((times, retry))
        return self.seen[body][:count]

    async def ack(self, body: str, delivery: int = -1) -> str:
        return str((await self.peer.ask("ack", handle=self.handles[body][delivery]))["status"])

    async def batch_ack(self, *bodies: str) -> str:
        handles = [self.handles[body][-1] for body in bodies]
        return str((await self.peer.ask("batchAck", handles=handles))["status"])

    async def change(self, body: str, invisible_ms: int) -> str:
        """Also takes the new handle."""
        answer = await self.peer.ask("change", handle=self.handles[body][-1], invisibleMs=invisible_ms)
        self.handles[body].append(answer["handle"])
        return str(answer["status"])


@dataclass(slots=True)
class Place:
    """A topic of one queue, with a group of its own, on a broker of either kind."""

    names: str
    java: Java
    topic: str
    address: str
    group: str = "fifo"

    @classmethod
    async def make(cls, names: str, java: Java, topic: str) -> Place:
        async with Admin(names) as admin:
            await admin.topics.create(topic, queues=1)
        async with ClientInstance(ClientConfig(names)) as instance:
            address = (await instance.routes.of(topic)).address(BROKER)
        assert address is not None
        return cls(names, java, topic, address)

    @asynccontextmanager
    async def popper(self) -> AsyncIterator[Popper]:
        async with self.java.popper(
            self.names, address=self.address, broker=BROKER, group=self.group, topic=self.topic
        ) as peer:
            yield Popper(peer)

    async def send(self, *bodies: str) -> None:
        async with Producer("shop", name_servers=self.names) as producer:
            for body in bodies:
                await producer.send(Message(self.topic, body.encode()))

    async def committed(self) -> int | None:
        async with ClientInstance(ClientConfig(self.names)) as instance:
            return await BrokerOffsets(instance, self.group).load(MessageQueue(self.topic, BROKER, 0))

    async def rewind(self) -> None:
        async with Admin(self.names) as admin:
            await admin.offsets.reset(self.group, self.topic, StartPosition.FIRST)


class Servers(Protocol):
    """A name server and a broker of either kind."""

    @property
    def names(self) -> str: ...

    async def use_retry_v2(self) -> None:
        """Turn ``enableRetryTopicV2`` on; ``names`` may be others then."""
        ...


class Ours:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._cluster = EmbeddedCluster(directory=directory)

    async def start(self) -> None:
        await self._cluster.__aenter__()

    async def stop(self) -> None:
        await self._cluster.__aexit__(None, None, None)

    @property
    def names(self) -> str:
        return self._cluster.name_servers

    async def use_retry_v2(self) -> None:
        await self.stop()
        self._cluster = EmbeddedCluster(directory=self._directory, settings={"enableRetryTopicV2": True})
        await self.start()


class Theirs:
    def __init__(self, rocketmq: RocketMQ) -> None:
        self._rocketmq = rocketmq

    @property
    def names(self) -> str:
        return self._rocketmq.address

    async def use_retry_v2(self, on: str = "true") -> None:
        async with ClientInstance(ClientConfig(self.names)) as instance:
            body = f"enableRetryTopicV2={on}\n".encode()
            await instance.ask(self._rocketmq.broker.address, RequestCode.UPDATE_BROKER_CONFIG, None, body)


@pytest.fixture(params=["ternmq", "rocketmq"])
async def servers(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Servers]:
    if request.param == "ternmq":
        ours = Ours(tmp_path / "ternmq")
        await ours.start()
        yield ours
        await ours.stop()
    else:
        theirs = Theirs(request.getfixturevalue("rocketmq_5"))
        yield theirs
        await theirs.use_retry_v2("false")


async def test_ordered_pops_block_count_and_move_alike(servers: Servers, tmp_path: Path) -> None:
    """F9, V1, V3: attempts, acks out of order and too late, changed times, a batch, the end of the time, a reset."""
    place = await Place.make(servers.names, Java("5.2.0", tmp_path), next(_topics))
    await place.send(*"abcdefgh")
    async with place.popper() as popper:
        assert [("a", 0), ("b", 0), ("c", 0)] == await popper.fifo(3, "1", pollMs=5_000)
        # Blocked, but for a client that lost the reply; that is not a second consumption.
        assert [] == await popper.fifo(3, "2")
        assert [("a", 0), ("b", 0), ("c", 0)] == await popper.fifo(3, "1")
        assert "OK" == await popper.ack("a", delivery=0)
        assert 0 == await place.committed()
        # Out of order: the queue is free when all are acked, and the offset moves behind the first ones.
        assert ["OK", "OK"] == [await popper.ack("a"), await popper.ack("c")]
        assert 1 == await place.committed()
        assert [] == await popper.fifo(3, "3")
        # Sooner visible than it was: it comes again in its place, with what followed it.
        assert "OK" == await popper.change("b", SHORT_MS)
        assert [("b", 1), ("c", 1), ("d", 0)] == await popper.fifo(3, "4", pollMs=PATIENT_MS)
        # An ack of an earlier pop counts no more; nor does one of a message that is done.
        assert "OK" == await popper.ack("c", delivery=0)
        assert "OK" == await popper.batch_ack("b", "c", "d")
        assert 4 == await place.committed()
        assert "OK" == await popper.ack("b")
        # Without an ack: the same again when the time is over, for any client.
        assert [("e", 0), ("f", 0)] == await popper.fifo(2, "5", invisibleMs=SHORT_MS)
        assert [("e", 1), ("f", 1), ("g", 0)] == await popper.fifo(3, "6", pollMs=PATIENT_MS)
        # Later visible than it was, with the handle of the change; then acked by that.
        assert ["OK", "OK"] == [await popper.change("e", LONG_MS), await popper.change("e", 2 * LONG_MS)]
        assert "OK" == await popper.ack("e")
        assert 5 == await place.committed()
        # A reset frees the queue, and what was in flight says nothing any more.
        await place.rewind()
        assert "OK" == await popper.ack("f")
        assert [("a", 0), ("b", 0)] == await popper.fifo(2, "7")
        assert "OK" == await popper.ack("g")
        assert 0 == await place.committed()
        assert "OK" == await popper.batch_ack("a", "b")
        assert [(body, 0) for body in "cdefgh"] == await popper.fifo(32, "8")


async def test_both_kinds_of_retry_topics_are_popped(servers: Servers, tmp_path: Path) -> None:
    """F9, V1, V3: what lies in a retry topic of the old kind stays there, and is found when the setting has changed."""
    java, topic = Java("5.2.0", tmp_path), next(_topics)
    place = await Place.make(servers.names, java, topic)
    await place.send("a")
    async with place.popper() as popper:
        assert [(0, "0"), (1, "1")] == await popper.deliveries("a", 2)
    await servers.use_retry_v2()
    place = await Place.make(servers.names, java, topic)
    await place.send("b")
    async with place.popper() as popper:
        assert [(0, "0"), (1, "2")] == await popper.deliveries("b", 2)
        assert [(2, "1")] == await popper.deliveries("a", 1)
        assert "OK" == await popper.change("b", LONG_MS)
        assert "OK" == await popper.batch_ack("a", "b")
