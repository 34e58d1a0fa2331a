"""Connections to brokers and name servers, one per address, made when first needed (B2).

A connection that broke is forgotten and made anew by the next call. While one is being made, all calls that
need it wait for the same attempt. ``on_open`` sees each new connection before any call of its user goes out on it: the
instance sends its heartbeat there, since a broker forgets its clients with their connection. ``on_lost`` hears of each
one that ended.

A machine that is down accepts no connection and refuses none: each call would wait for the whole time that a connection
may take, although another broker would have taken the message. So the first call that finds it silent is the last one
that waits. The others fail at once while connections are tried in the background, for as long as the address is wanted.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable
from typing import Final

from ternmq.client.connect.single_flight import SingleFlight
from ternmq.errors import MachineSilent, NetworkError
from ternmq.net.dial import connect
from ternmq.net.endpoint import LOOK_S
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, RouteTable, TaskOwner
from ternmq.wire.auth import Credentials

log = logging.getLogger(__name__)

#: Between two attempts to reach a silent machine; each takes as long as a connection may.
SEEK_PAUSE_S: Final = 1.0


class Connections:
    """Open peers by address. All methods belong to the loop's thread, but ``get``."""

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
        is_wanted: Callable[[str], bool],
    ) -> None:
        """``is_wanted`` tells whether a silent machine is worth another attempt: a route names it."""
        self._requests = requests
        self._lanes = lanes
        self._tasks = tasks
        self._timeout_ms = timeout_ms
        self._credentials = credentials
        self._tls_context = tls_context
        self._on_open = on_open
        self._on_lost = on_lost
        self._is_wanted = is_wanted
        #: Addresses of machines that are silent. Other threads look, too, whether one is in it.
        self.silent: set[str] = set()
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
        """The connection to ``address``, made if there is none.

        Raises ``NetworkError`` with the reason; ``MachineSilent`` at once, if it was found silent before.
        """
        peer = self._open.get(address)
        if peer is not None:
            return peer
        if address in self.silent:
            raise MachineSilent(
                f"{address} acknowledges nothing: its machine is down, or the network between is; "
                "it is tried again until it answers",
                address=address,
            )
        try:
            return await self._attempt(address)
        except MachineSilent:
            self._seek(address)
            raise

    async def _attempt(self, address: str) -> Peer:
        return await self._connecting.run(address, lambda: self._connect(address))

    async def watch(self) -> None:
        """Find out, until cancelled, which machines have died with calls of ours."""
        while True:
            await asyncio.sleep(LOOK_S)
            for peer in list(self._open.values()):
                peer.end_if_unheard()

    def suspect(self, address: str) -> None:
        """A connection that is not one of these was lost because this machine is silent: look at ours at once. One that
        hears of the machine stays, with its calls: it may have been a firewall that forgot the other one."""
        peer = self._open.get(address)
        if peer is None:
            self._seek(address)
        else:
            peer.end_if_unheard(is_suspect=True)

    def _seek(self, address: str) -> None:
        """From now on, calls do not wait for this machine."""
        if address not in self.silent and self._is_wanted(address):
            log.warning("%s acknowledges nothing; calls to it fail until it answers", address)
            self.silent.add(address)
            self._tasks.create_task(self._find(address))

    async def _find(self, address: str) -> None:
        """Until the machine answers, if only by refusing the connection, or is not wanted any more."""
        try:
            while self._is_wanted(address):
                try:
                    await self._attempt(address)
                except MachineSilent:
                    await asyncio.sleep(SEEK_PAUSE_S)
                except NetworkError:
                    return
                else:
                    log.info("%s answers again", address)
                    return
        finally:
            self.silent.discard(address)

    async def _connect(self, address: str) -> Peer:
        def forget(peer: Peer) -> None:
            if self._open.get(address) is peer:
                del self._open[address]
                if peer.is_silent:
                    self._seek(address)
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
