"""A broker that gets frames through a connection that is no socket: what the benchmarks of single requests share.

CPU time of the broker's thread from the bytes that were read to the bytes of the reply, and what the end of the turn
adds, for reads of ``WINDOW`` requests.
"""

from __future__ import annotations

import asyncio
import cProfile
import gc
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Final

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import SEND
from ternmq.net.peer import Peer
from ternmq.net.server import Server
from ternmq.store.config import StoreConfig

#: Requests of one read.
WINDOW: Final = 64
BODY: Final = b"x" * 128


class Wire(asyncio.Transport):
    """A connection that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40_000), "sockname": ("127.0.0.1", 10_911)})
        self.written: list[bytes] = []

    def write(self, data: Any) -> None:
        self.written.append(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.written.extend(map(bytes, list_of_data))

    def get_write_buffer_size(self) -> int:
        return 0

    def is_closing(self) -> bool:
        return False

    def take(self) -> bytes:
        data = b"".join(self.written)
        self.written.clear()
        return data


class Clock:
    """Adds up CPU time per request, of one kind."""

    def __init__(self, name: str, profile: cProfile.Profile | None = None) -> None:
        self.name = name
        self.rounds: list[float] = []
        self._profile = profile

    @contextmanager
    def running(self, count: int = WINDOW) -> Iterator[None]:
        began = time.thread_time()
        if self._profile is not None:
            self._profile.enable()
        yield
        if self._profile is not None:
            self._profile.disable()
        self.rounds.append((time.thread_time() - began) / count * 1e6)

    def __str__(self) -> str:
        costs = sorted(self.rounds)
        return f"{self.name:36s} best {costs[0]:6.2f}  median {costs[len(costs) // 2]:6.2f}  µs CPU"


class FedBroker:
    """A broker, and the connection through which it is fed."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        [self._server] = [one for one in gc.get_objects() if type(one) is Server]
        self._wire = Wire()
        server = self._server
        self.peer = Peer(server._routes, server.lanes, server._tasks, usage=server.usage, latencies=server.latencies)  # noqa: SLF001 - no socket
        self.peer.connection_made(self._wire)

    async def feed(self, data: bytes, clock: Clock, count: int = WINDOW, *, lane: str = SEND) -> bytes:
        """Let the broker read frames of one ``lane``, the work of ``count`` messages; what it replies."""
        return await self.feed_all([data], clock, count, lane=lane)

    async def feed_all(self, reads: Iterable[bytes], clock: Clock, count: int, *, lane: str) -> bytes:
        """The same for reads that follow each other at once, so that the caches are warm; ``count`` of each."""
        for data in reads:
            with clock.running(count):
                self.peer.data_received(data)
                await asyncio.sleep(0)
                while self._server.lanes[lane].count:  # noqa: ASYNC110 - turns of the loop are what is measured
                    # On a busy machine the lane gives way to others before it is done.
                    await asyncio.sleep(0)
        await asyncio.sleep(0.001)
        return self._wire.take()


@asynccontextmanager
async def fed_broker(directory: Path) -> AsyncIterator[FedBroker]:
    """A broker on a directory, ready to be measured."""
    config = BrokerConfig(broker_ip1="127.0.0.1", listen_port=0)
    async with Broker(config, StoreConfig(store_path_root_dir=directory)) as broker:
        fed = FedBroker(broker)
        gc.collect()
        gc.freeze()
        yield fed
        fed.peer.connection_lost(None)
