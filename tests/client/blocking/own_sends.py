"""What tests of sends on lines share: a producer with an open line, and a broker that notes where sends came from."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, ParamSpec, TypeVar

from ternmq.client.blocking.producer import SyncProducer
from ternmq.client.send.lines import SendLine, SendLines
from ternmq.message import Message
from ternmq.net.peer import Peer
from ternmq.wire.header import Request
from tests.client.scripted import ScriptedBroker, ScriptedCluster, scripted_cluster

P = ParamSpec("P")
T = TypeVar("T")

#: Far beyond what anything here takes, also on a busy machine.
LONG_MS: Final = 60_000


def lines(producer: SyncProducer) -> SendLines:
    running = producer._async._running
    assert running is not None
    return running.sender.instance.lines


def open_lines(producer: SyncProducer) -> list[SendLine]:
    return [line for line in lines(producer)._lines.values() if line.connection is not None]


def open_line(producer: SyncProducer, topic: str = "orders", *, count: int = 1) -> None:
    """Send until the producer has lines to so many brokers."""
    while len(open_lines(producer)) < count:
        producer.send(Message(topic, b"first"), timeout_ms=LONG_MS)


class Noting:
    """Notes from which connection each send came."""

    def __init__(self, *brokers: ScriptedBroker) -> None:
        self.peers: list[Peer] = []
        for broker in brokers:
            broker.on_send = self._note

    def _note(self, peer: Peer, _: Request[Any]) -> None:
        self.peers.append(peer)


@asynccontextmanager
async def noted(*brokers: ScriptedBroker) -> AsyncIterator[tuple[ScriptedCluster, Noting]]:
    async with scripted_cluster(*brokers) as cluster:
        yield cluster, Noting(*cluster.brokers)


async def in_thread(call: Callable[P, T], *args: P.args, **options: P.kwargs) -> T:
    """Run what blocks, as a program without a loop does, while the test's loop runs the brokers."""
    return await asyncio.to_thread(call, *args, **options)
