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
import os
import socket
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from typing import Final, Protocol, cast, runtime_checkable

from ternmq.errors import ConfigError, NetworkError
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Routes, TaskOwner
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Connections that may wait in the kernel to be accepted (RocketMQ's ``serverSocketBacklog``).
BACKLOG: Final = 1024


class Bound(Protocol):
    """A port that is held: a socket, or what stands for one in a simulation."""

    def getsockname(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


@runtime_checkable
class HasPorts(Protocol):
    """A loop with a network of its own (``testing.loop``): it holds the ports, too."""

    def bind(self, host: str, port: int) -> Bound:
        """Hold a port; ``create_server`` takes the result as its ``sock``. Raises ``OSError`` as a socket does."""
        ...


def bind(host: str, port: int) -> Bound:
    """A socket that holds a port (0: a free one) but takes no connections yet, for ``Server.serve``.

    A server that must know its port to build what stands behind it binds first, and serves when all is ready.
    Raises ``NetworkError`` when the port is in use, ``ConfigError`` when the address is not of this machine.
    """
    loop = asyncio.get_running_loop()
    try:
        return loop.bind(host, port) if isinstance(loop, HasPorts) else _socket(host, port)
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


def _socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # A port whose last connections still linger can be taken; on Windows the option means something else.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # With the option, two may bind one port; the second to listen finds it in use. So listen here already:
        # who connects now waits in the kernel until ``serve``.
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


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
        #: In the order of their coming, not a set: a simulation closes them in the same order each time.
        self.peers: dict[Peer, None] = {}

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

        Raises as ``bind``.
        """
        return await self.serve(bind(host, port), without=without)

    async def serve(self, bound: Bound, *, without: Collection[int] = ()) -> int:
        """Listen on a socket of ``bind``, which is ours from now on; returns its port."""
        routes = {code: route for code, route in self._routes.items() if code not in without}

        def connected() -> Peer:
            return Peer(routes, self.lanes, self._tasks, on_open=self._opened, on_close=self._closed)

        port = bound.getsockname()[1]
        loop = asyncio.get_running_loop()
        listener = await loop.create_server(connected, sock=cast("socket.socket", bound), backlog=BACKLOG)
        self._listeners.append(listener)
        return port

    def _opened(self, peer: Peer) -> None:
        self.peers[peer] = None
        if self._on_open is not None:
            self._on_open(peer)

    def _closed(self, peer: Peer) -> None:
        self.peers.pop(peer, None)
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
