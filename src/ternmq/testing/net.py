"""A network in memory: streams like TCP's, with delays, interruptions and losses (B2, A6).

Machines have addresses, processes (``testing.loop``) bind ports on the machine they run on, and connections are two
``SimulatedTransport`` with a pipe in each direction (``testing.stream``). Faults::

    delay, chop      a piece takes some time; a write arrives in several pieces
    block            nothing passes from one machine to another: pieces wait, as with TCP, which sends them again
                     until they arrive; new connections wait, too. In one direction or both (``partition``)
    silence          a firewall forgets a connection: all that is sent on it is lost, and neither end is notified
    reset            both ends of a connection are notified that it broke; bytes in transit are lost
    process killed   its machine closes its connections: the other ends read the rest, then the end of the stream
    machine off      no reply at all: others wait. When it is on again, packets of an old connection are answered
                     with a reset

All randomness comes from the given ``random``, all order from the loop.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ternmq.testing.loop import NOWHERE, Process, SimulatedLoop
from ternmq.testing.stream import END, SimulatedTransport

#: The first port that is used if any port is requested.
_FIRST_PORT: Final = 40_000


@dataclass(slots=True)
class Weather:
    """The current properties of a network; they may be changed at any time."""

    #: Minimum and maximum time of a piece.
    delay_min_s: float = 0.000_1
    delay_max_s: float = 0.000_5
    #: How often a write arrives in pieces.
    chop: float = 0.0


class Network:
    """All machines and their connections. It registers itself with the loop."""

    def __init__(self, loop: SimulatedLoop, random: Random, weather: Weather | None = None) -> None:
        self.weather = weather if weather is not None else Weather()
        self.random = random
        self.loop = loop
        loop.sockets = self
        #: Called with each piece that arrives: from, to, bytes (-1: the end of a stream, -2: a reset).
        self.on_arrival: Callable[[str, str, int], None] | None = None
        self._ports: dict[tuple[str, int], _Port] = {}
        self._next_port = _FIRST_PORT
        self._blocked: dict[tuple[str, str], None] = {}
        self._off: dict[str, None] = {}
        #: Callbacks for when the way is not blocked any more.
        self._held_up: dict[tuple[str, str], list[Callable[[], None]]] = {}
        #: Each open connection by its first end, in the order of creation.
        self._open: dict[SimulatedTransport, None] = {}

    # --- Faults ---------------------------------------------------------------------------------------------------

    def block(self, source: str, target: str) -> None:
        """Block the way from one machine to another; the other direction is not affected."""
        self._blocked[source, target] = None

    def unblock(self, source: str, target: str) -> None:
        self._blocked.pop((source, target), None)
        self._go_on(source, target)

    def partition(self, ips: Iterable[str], others: Iterable[str]) -> None:
        """Block all ways between these machines and those, in both directions."""
        others = list(others)
        for ip in ips:
            for other in others:
                self.block(ip, other)
                self.block(other, ip)

    def heal(self) -> None:
        """Unblock all ways."""
        for source, target in list(self._blocked):
            self.unblock(source, target)

    def reset(self, ip: str, other: str) -> int:
        """Break all connections between two machines; returns how many there were."""
        broken = [end for end in self._ends() if end.process.ip == ip and end.other.process.ip == other]
        for end in broken:
            end.broken()
            end.other.broken()
        return len(broken)

    def silence(self, ip: str, other: str) -> int:
        """Let all connections between two machines carry nothing any more, silently; returns how many there were.

        New connections are not affected.
        """
        ends = [end for end in self._ends() if end.process.ip == ip and end.other.process.ip == other]
        for end in ends:
            for pipe in (end.pipe, end.other.pipe):
                pipe.is_silent = True
                pipe.clear()
        return len(ends)

    def closed_with(self, process: Process) -> None:
        """A process was killed: its machine closes its connections and ports."""
        for end in self._ends():
            if end.process is process:
                end.vanish()
                end.pipe.send(END)
        self._free_ports(process)

    def switch_off(self, process: Process) -> None:
        """The machine of a process loses power."""
        self._off[process.ip] = None
        for end in self._ends():
            if end.process.ip == process.ip:
                end.vanish()
                end.pipe.clear()
                end.other.unheard_since = self.loop.time()
        self._free_ports(process)

    def switch_on(self, ip: str) -> None:
        """The machine runs again, without its old connections."""
        self._off.pop(ip, None)

    # --- For the loop (``testing.loop.Sockets``) --------------------------------------------------------------------

    def bind(self, ip: str, port: int) -> _Port:  # noqa: ARG002
        """Bind a port of the machine of this process, for any ``ip``: a machine has one address."""
        process = _running()
        port = port or self._free_port(process.ip)
        if (process.ip, port) in self._ports:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        held = self._ports[process.ip, port] = _Port(self, process, port)
        return held

    def listen(self, sock: Any, factory: Callable[[], asyncio.BaseProtocol]) -> asyncio.AbstractServer:
        assert isinstance(sock, _Port)
        sock.serve(factory)
        return _Server(self.loop, sock)

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], ip: str, port: int
    ) -> tuple[asyncio.BaseTransport, asyncio.BaseProtocol]:
        process = _running()
        await self._travel(process.ip, ip)
        held = self._ports.get((ip, port))
        if ip in self._off:
            # No reply; the caller has a time-out.
            await self.loop.create_future()
        await self._travel(ip, process.ip)
        if held is None or held.is_closed:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        here = SimulatedTransport(self, process, self._free_port(process.ip))
        there = SimulatedTransport(self, held.process, port)
        here.join(there)
        self._open[here] = None
        held.accept(there)
        protocol = factory()
        here.begin(protocol)
        return here, protocol

    # --- For ports, ends and pipes ----------------------------------------------------------------------------------

    def delay_s(self) -> float:
        return self.random.uniform(self.weather.delay_min_s, self.weather.delay_max_s)

    def is_blocked(self, source: str, target: str) -> bool:
        return (source, target) in self._blocked

    def is_off(self, ip: str) -> bool:
        return ip in self._off

    def when_free(self, source: str, target: str, go_on: Callable[[], None]) -> None:
        """Call ``go_on`` when the way from one machine to another is not blocked any more."""
        self._held_up.setdefault((source, target), []).append(go_on)

    def release(self, port: _Port) -> None:
        if self._ports.get((port.process.ip, port.number)) is port:
            del self._ports[port.process.ip, port.number]

    def forget(self, end: SimulatedTransport) -> None:
        """Remove a connection whose ends are both closed."""
        self._open.pop(end, None)
        self._open.pop(end.other, None)

    def _go_on(self, source: str, target: str) -> None:
        for go_on in self._held_up.pop((source, target), ()):
            self.loop.call_later(self.delay_s(), go_on, context=NOWHERE)

    async def _travel(self, source: str, target: str) -> None:
        """Wait as long as a packet takes; a lost packet is sent again."""
        await asyncio.sleep(self.delay_s())
        while self.is_blocked(source, target):
            is_free = asyncio.Event()
            self.when_free(source, target, is_free.set)
            await is_free.wait()

    def _ends(self) -> list[SimulatedTransport]:
        return [end for one in self._open for end in (one, one.other)]

    def _free_port(self, ip: str) -> int:
        while True:
            self._next_port += 1
            if (ip, self._next_port) not in self._ports:
                return self._next_port

    def _free_ports(self, process: Process) -> None:
        for port in [port for port in self._ports.values() if port.process is process]:
            port.close()


class _Port:
    """A bound port of a process; connections wait until it is served."""

    def __init__(self, network: Network, process: Process, number: int) -> None:
        self._network = network
        self.process = process
        self.number = number
        self.is_closed = False
        self._factory: Callable[[], asyncio.BaseProtocol] | None = None
        self._waiting: list[SimulatedTransport] = []

    def getsockname(self) -> tuple[str, int]:
        return self.process.ip, self.number

    def serve(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        self._factory = factory
        for end in self._waiting:
            self.accept(end)
        self._waiting.clear()

    def accept(self, end: SimulatedTransport) -> None:
        if self._factory is None:
            self._waiting.append(end)
        else:
            self._network.loop.call_soon(self._begin, end, context=self.process.context)

    def _begin(self, end: SimulatedTransport) -> None:
        if self._factory is not None:
            end.begin(self._factory())

    def close(self) -> None:
        self.is_closed = True
        self._network.release(self)


class _Server(asyncio.AbstractServer):
    def __init__(self, loop: SimulatedLoop, port: _Port) -> None:
        self._loop = loop
        self._port = port

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def is_serving(self) -> bool:
        return not self._port.is_closed

    def close(self) -> None:
        self._port.close()

    async def start_serving(self) -> None:
        """Does nothing: it serves from the beginning."""

    async def serve_forever(self) -> None:
        await self._loop.create_future()

    async def wait_closed(self) -> None:
        """Does nothing: closing takes no time."""


def _running() -> Process:
    process = Process.current()
    assert process is not None, "sockets belong to processes; use Process.run"
    return process
