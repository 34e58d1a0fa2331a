"""A server: sockets that listen, with a table of handlers behind them (B2, B3, B5).

``async with Server.running(…)`` owns every connection and every task of its handlers; leaving the block closes them.
Several ports may share one server: RocketMQ's «VIP» port (listen port − 2) serves the same table less the calls that
may wait long.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager

from ternmq.errors import ConfigError, NetworkError
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Routes, TaskOwner
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)


class Server:
    """Use as ``async with Server.running(…) as server``; then ``await server.listen(host, port)``."""

    def __init__(
        self,
        routes: Routes,
        lanes: Lanes,
        tasks: TaskOwner,
        *,
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
    ) -> None:
        self._routes = routes
        self.lanes = lanes
        self._tasks = tasks
        self._on_open = on_open
        self._on_close = on_close
        self._listeners: list[asyncio.Server] = []
        self.peers: set[Peer] = set()

    @classmethod
    @asynccontextmanager
    async def running(
        cls,
        routes: Routes,
        lanes: Iterable[LaneConfig],
        *,
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
    ) -> AsyncIterator[Server]:
        """A server that lives as long as the block; handlers' tasks end with it."""
        async with Tasks() as tasks:
            server = cls(routes, Lanes(lanes), tasks, on_open=on_open, on_close=on_close)
            try:
                yield server
            finally:
                await server._stop()

    async def listen(self, host: str, port: int, *, without: Collection[int] = ()) -> int:
        """Listen on one more port and return its number (0 asks for a free one). ``without``: codes not served there.

        Raises ``NetworkError`` when the port is in use, ``ConfigError`` when the address is not of this machine.
        """
        routes = {code: route for code, route in self._routes.items() if code not in without}
        loop = asyncio.get_running_loop()

        def connected() -> Peer:
            return Peer(routes, self.lanes, self._tasks, on_open=self._opened, on_close=self._closed)

        try:
            listener = await loop.create_server(connected, host, port, backlog=1024)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise NetworkError(
                    f"port {port} on {host} is in use; stop the program that holds it, or choose another port",
                    address=f"{host}:{port}",
                ) from None
            if error.errno == errno.EACCES:
                raise ConfigError(
                    f"no permission to listen on port {port}; choose one above 1023, or run with the right to use it"
                ) from None
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}; check the address") from None
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        return bound

    def _opened(self, peer: Peer) -> None:
        self.peers.add(peer)
        if self._on_open is not None:
            self._on_open(peer)

    def _closed(self, peer: Peer) -> None:
        self.peers.discard(peer)
        if self._on_close is not None:
            self._on_close(peer)

    async def _stop(self) -> None:
        for listener in self._listeners:
            listener.close()
        for peer in list(self.peers):
            peer.close()
        # A peer that does not read would keep its replies, and us, for ever.
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1):
                for peer in list(self.peers):
                    await peer.closed.wait()
        for peer in list(self.peers):
            peer.abort()
        for peer in list(self.peers):
            await peer.closed.wait()
