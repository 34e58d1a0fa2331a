"""Faults from a seed: which faults a simulation has, and when they happen (C8, G1).

Each seed enables some kinds of faults and disables the others (*swarm testing*): with all of them at once, some would
hide others; for example, a group whose members die every second never has a long partition. A ``Storm`` then makes
nodes and connections fail for a while, and repairs everything at its end.

::

    swarm = Swarm.choose(cluster.random)
    await Storm(cluster, swarm, servers=brokers, clients=members).rage()
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from random import Random
from typing import Final, Self

from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.net import Weather


class FaultKind(Enum):
    """Kinds of faults."""

    KILL_CLIENT = "kill a client"
    KILL_SERVER = "kill a server"
    #: Only for servers that sync before they answer; others may lose acknowledged messages.
    CUT_POWER = "cut a server's power"
    PAUSE_CLIENT = "pause a client"
    PAUSE_SERVER = "pause a server"
    PARTITION = "block both ways between a client and a server"
    CUT_OFF = "break a client's connections to a server and allow no new ones"
    ONE_WAY = "block one way between a client and a server"
    RESET = "break connections"
    CLOCK = "set a clock"


#: Average seconds between two faults, and the maximum duration of one: time-outs are between 3 and 60 s.
_GAP_S: Final = 4.0
_LASTS_S: Final = (0.2, 1.0, 4.0, 10.0, 35.0, 75.0)


@dataclass(slots=True, frozen=True)
class Swarm:
    """What a seed decides in advance."""

    faults: tuple[FaultKind, ...]
    weather: Weather
    #: Duration of the storm, in virtual seconds.
    storm_s: float
    #: Brokers sync before they answer; otherwise they never lose power.
    sync_flush: bool

    @classmethod
    def choose(cls, random: Random) -> Self:
        sync_flush = random.random() < 0.3
        faults = [fault for fault in FaultKind if random.random() < 0.4]
        slow = random.random() < 0.3
        return cls(
            faults=tuple(fault for fault in faults if sync_flush or fault is not FaultKind.CUT_POWER),
            weather=Weather(
                delay_min_s=0.000_1, delay_max_s=0.2 if slow else 0.002, chop=random.choice((0.0, 0.2, 0.7))
            ),
            storm_s=random.choice((10.0, 20.0, 40.0, 100.0)),
            sync_flush=sync_flush,
        )


class Storm:
    """Injects faults and repairs them. Servers are restarted automatically, clients by ``revive``."""

    def __init__(
        self,
        cluster: Cluster,
        swarm: Swarm,
        *,
        servers: Sequence[Node],
        clients: Callable[[], Sequence[Node]],
        revive: bool = True,
    ) -> None:
        self._cluster = cluster
        self._swarm = swarm
        self._servers = servers
        self._clients = clients
        self._revive = revive
        self._random = Random(cluster.random.getrandbits(64))
        #: Active faults: how to repair them, by a number.
        self._broken: dict[int, Callable[[], None]] = {}
        self._count = 0

    async def rage(self) -> None:
        """Inject faults for a while; at the end all of them are repaired."""
        self._cluster.network.weather = self._swarm.weather
        end = self._cluster.loop.time() + self._swarm.storm_s
        while True:
            await asyncio.sleep(self._random.expovariate(1 / _GAP_S))
            if self._cluster.loop.time() >= end or not self._swarm.faults:
                break
            self._happen(self._random.choice(self._swarm.faults))
        self.calm()

    def calm(self) -> None:
        """Repair everything now."""
        for number in list(self._broken):
            self._mend(number)
        self._cluster.network.heal()
        self._cluster.network.weather = Weather()

    def _happen(self, fault: FaultKind) -> None:
        chance, network = self._random, self._cluster.network
        server = self._pick(self._servers)
        client = self._pick(self._clients())
        is_server = fault in (FaultKind.KILL_SERVER, FaultKind.CUT_POWER, FaultKind.PAUSE_SERVER)
        node = server if is_server else client
        if node is None or server is None:
            return
        match fault:
            case FaultKind.KILL_CLIENT | FaultKind.KILL_SERVER | FaultKind.CUT_POWER:
                (node.cut_power if fault is FaultKind.CUT_POWER else node.kill)()
                if is_server or self._revive:
                    self._later(lambda: None if node.is_up else node.start())
            case FaultKind.PAUSE_CLIENT | FaultKind.PAUSE_SERVER:
                node.pause()
                self._later(lambda: node.resume() if node.is_paused else None)
            case FaultKind.PARTITION | FaultKind.ONE_WAY | FaultKind.CUT_OFF:
                ways = [(node.ip, server.ip), (server.ip, node.ip)]
                if fault is FaultKind.ONE_WAY:
                    ways = [chance.choice(ways)]
                if fault is FaultKind.CUT_OFF:
                    network.reset(node.ip, server.ip)
                self._cluster.note(fault.value, ways)
                self._later(partial(self._unblock, ways))
                for way in ways:
                    network.block(*way)
            case FaultKind.RESET:
                self._cluster.note(fault.value, node.name, server.name, network.reset(node.ip, server.ip))
            case FaultKind.CLOCK:
                ms = chance.choice((-60_000, -1_000, 1_000, 60_000))
                self._cluster.note(fault.value, node.name, ms)
                node.clock.jump(ms)

    def _unblock(self, ways: Sequence[tuple[str, str]]) -> None:
        for way in ways:
            self._cluster.network.unblock(*way)

    def _pick(self, nodes: Sequence[Node]) -> Node | None:
        up = [node for node in nodes if node.is_up and not node.is_paused]
        return self._random.choice(up) if up else None

    def _later(self, mend: Callable[[], None]) -> None:
        self._count += 1
        number = self._count
        self._broken[number] = mend
        self._cluster.loop.call_later(self._random.choice(_LASTS_S), self._mend, number)

    def _mend(self, number: int) -> None:
        mend = self._broken.pop(number, None)
        if mend is not None:
            mend()


async def come_and_go(cluster: Cluster, running: Callable[[], Sequence[Node]], new: Callable[[], Node]) -> None:
    """Let clients join and leave cleanly, one to six of them, until cancelled."""
    chance = Random(cluster.random.getrandbits(64))
    while True:
        await asyncio.sleep(chance.expovariate(1 / 6))
        now = running()
        if len(now) > 1 and chance.random() < 0.5:
            node = chance.choice(now)
            cluster.note("leaves", node.name)
            node.stopping.set()
        elif len(now) < 6:
            new().start()
