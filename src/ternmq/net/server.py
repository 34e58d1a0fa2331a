"""A server: listening sockets and a table of handlers (B2, B3, B5).

``async with Server.running(…)`` owns all connections and all tasks of its handlers; leaving the block closes them.
Several ports may share one server: RocketMQ's "VIP" port (listen port − 2) serves the same table without the calls that
may wait for long. They share its limits, too (``net.limits``).
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

from ternmq.net import endpoint
from ternmq.net.endpoint import Acceptor, Bound
from ternmq.net.gate import Gate
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.limits import Limits, Usage
from ternmq.net.peer import Peer, RouteTable
from ternmq.net.rpc_latency import RpcLatencies
from ternmq.net.tls import LiveTls
from ternmq.tasks import Tasks


class Server:
    """Use as ``async with Server.running(…) as server``; then ``await server.listen(host, port)``."""

    def __init__(
        self,
        routes: RouteTable,
        lanes: Lanes,
        tasks: Tasks,
        *,
        limits: Limits,
        gate: Gate | None = None,
        tls: LiveTls | None = None,
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
    ) -> None:
        self._routes = routes
        self.lanes = lanes
        self.usage = Usage(limits)
        self.latencies = RpcLatencies()
        self._gate = gate
        self._tls = tls
        self._tasks = tasks
        self._on_open = on_open
        self._on_close = on_close
        self._acceptors: list[Acceptor] = []
        #: In the order of arrival, not a set: a simulation closes them in the same order each time.
        self.peers: dict[Peer, None] = {}

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        routes: RouteTable,
        lanes: Lanes | Iterable[LaneConfig],
        *,
        limits: Limits | None = None,
        gate: Gate | None = None,
        tls: LiveTls | None = None,
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
    ) -> AsyncIterator[Server]:
        """A server for the duration of the block; tasks of handlers end with it. ``tls`` applies to all its ports."""
        async with Tasks() as tasks:
            server = cls(
                routes,
                lanes if isinstance(lanes, Lanes) else Lanes(lanes),
                tasks,
                limits=limits or Limits(),
                gate=gate,
                tls=tls,
                on_open=on_open,
                on_close=on_close,
            )
            try:
                yield server
            finally:
                await server._stop()

    async def listen(self, host: str, port: int, *, without: Collection[int] = ()) -> int:
        """Listen on one more port and return its number (0 asks for a free one). ``without``: codes not served there.

        Raises as ``endpoint.bind``.
        """
        return await self.serve(endpoint.bind(host, port), without=without)

    async def serve(
        self,
        bound: Bound,
        *,
        without: Collection[int] = (),
        tls: ssl.SSLContext | None = None,
        plain_too: bool = False,
    ) -> int:
        """Listen on a socket of ``endpoint.bind``, which the server owns from now on; returns its port.

        For ``tls`` and ``plain_too`` see ``endpoint.listen``.
        """
        routes = {code: route for code, route in self._routes.items() if code not in without}

        def connected() -> Peer:
            return Peer(
                routes,
                self.lanes,
                self._tasks,
                on_open=self._opened,
                on_close=self._closed,
                gate=self._gate,
                usage=self.usage,
                latencies=self.latencies,
            )

        port = bound.getsockname()[1]
        self._acceptors.append(
            await endpoint.listen(bound, connected, tls or self._tls, tasks=self._tasks, plain_too=plain_too)
        )
        return port

    def _opened(self, peer: Peer) -> None:
        if not self.usage.opened(peer):
            peer.abort()
            return
        self.peers[peer] = None
        if self._on_open is not None:
            self._on_open(peer)

    def _closed(self, peer: Peer) -> None:
        if peer not in self.peers:
            return  # It was refused.
        del self.peers[peer]
        self.usage.closed(peer)
        if self._on_close is not None:
            self._on_close(peer)

    async def _stop(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        for peer in list(self.peers):
            peer.close()
        # A peer that does not read would keep its replies, and this server, for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                for peer in list(self.peers):
                    await peer.closed.wait()
        for peer in list(self.peers):
            peer.abort()
        for peer in list(self.peers):
            await peer.closed.wait()
