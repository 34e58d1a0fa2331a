"""Connections to brokers and name servers, one per address, made when first needed (B2).

A connection that broke is forgotten and made anew by the next call. While one is being made, all calls that
need it wait for the same attempt. ``on_open`` sees each new connection before any call of its user goes out on it: the
instance sends its heartbeat there, since a broker forgets its clients with their connection. ``on_lost`` hears of each
one that ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import Callable

from ternmq.client.connect.single_flight import SingleFlight
from ternmq.net.dial import connect
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, RouteTable, TaskOwner
from ternmq.wire.auth import Credentials


class Connections:
    """Open peers by address. All methods belong to the loop's thread."""

    def __init__(
        self,
        requests: RouteTable,
        lanes: Lanes,
        tasks: TaskOwner,
        *,
        timeout_ms: int,
        credentials: Credentials | None = None,
        tls_context: Callable[[], ssl.SSLContext | None] = lambda: None,
        on_open: Callable[[str, Peer], None],
        on_lost: Callable[[str], None],
    ) -> None:
        self._requests = requests
        self._lanes = lanes
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._credentials = credentials
        self._tls_context = tls_context
        self._on_open = on_open
        self._on_lost = on_lost
        self._open: dict[str, Peer] = {}
        self._connecting: SingleFlight[str, Peer] = SingleFlight(tasks)

    def get(self, address: str) -> Peer | None:
        """The open connection to ``address``, if there is one."""
        return self._open.get(address)

    def calls_open(self, address: str) -> int:
        """How many requests to ``address`` have no answer yet."""
        peer = self._open.get(address)
        return 0 if peer is None else peer.calls_open

    async def to(self, address: str) -> Peer:
        """The connection to ``address``, made if there is none; raises ``NetworkError`` with the reason."""
        return self._open.get(address) or await self._connecting.run(address, lambda: self._connect(address))

    async def _connect(self, address: str) -> Peer:
        def forget(peer: Peer) -> None:
            if self._open.get(address) is peer:
                del self._open[address]
                self._on_lost(address)

        peer = await connect(
            address,
            routes=self._requests,
            lanes=self._lanes,
            tasks=self._tasks,
            on_close=forget,
            credentials=self._credentials,
            tls=self._tls_context(),
            timeout_ms=self._timeout_ms,
        )
        self._open[address] = peer
        self._on_open(address, peer)
        return peer

    async def close(self, *, timeout_ms: int = 1000) -> None:
        """Close all, once what was written has left or the time is over."""
        peers = list(self._open.values())
        for peer in peers:
            peer.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                for peer in peers:
                    await peer.closed.wait()
        for peer in peers:
            peer.abort()
            await peer.closed.wait()
