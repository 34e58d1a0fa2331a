"""A whole cluster from one seed: name server, brokers and clients as *nodes* that crash and restart (A6, C8, G1).

::

    with simulated_loop() as loop:
        cluster = Cluster(loop, seed=7)
        loop.run_until_complete(story(cluster))

    async def story(cluster):
        name_server, broker = cluster.name_server(), cluster.broker("broker-a")
        await cluster.start(name_server, broker)
        shop = cluster.client("shop", sell)         # async def sell(node): …
        await cluster.start(shop)
        broker.cut_power()                          # keeps what was synced, and some of the rest
        await cluster.start(broker)

A node is a machine with an address, a clock, a disk and one program. The programs are the real ones: ``NameServer``,
``Broker``, ``Producer``, ``PushConsumer``, on a simulated loop, network and disk. This module does not know what is
tested: a story starts nodes, makes them fail, and uses ``testing.checkers``.

The ``trace`` has all events, with a checksum of all bytes that went over the network. The same seed gives the same
trace; if two runs differ, something from outside the simulation was used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final
from zlib import crc32

from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.client.config import ClientConfig
from ternmq.config import Settings
from ternmq.env import Env
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.raft.config import RaftConfig
from ternmq.replication.config import ReplicationConfig
from ternmq.store.config import StoreConfig
from ternmq.testing.clock import SimulatedClock
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import BEGIN_S, NOWHERE, Process, SimulatedLoop
from ternmq.testing.net import Network

NAME_SERVER_PORT: Final = 9876
BROKER_PORT: Final = 10911
RAFT_PORT: Final = 40911

#: A disk in memory is copied with every sync, so files are small. They also roll over, which real ones rarely do.
SMALL_FILES: Final = {
    "storePathRootDir": "/store",
    "mappedFileSizeCommitLog": "65536",
    "mappedFileSizeConsumeQueue": "2000",
    "maxMessageSize": "4096",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
    "raftIndexFileBytes": "6400",
}

#: The program of a node: calls ``node.is_ready()``, runs until ``node.stopping``, then ends cleanly.
Program = Callable[["Node"], Coroutine[Any, Any, None]]


class Node:
    """A machine and its program; created and started by a ``Cluster``."""

    def __init__(self, cluster: Cluster, name: str, ip: str, program: Program) -> None:
        self.cluster = cluster
        self.name = name
        self.ip = ip
        self.clock = SimulatedClock(cluster.loop)
        self.disk = SimulatedDisk(now_ms=self.clock.now_ms)
        self.random = Random(cluster.random.getrandbits(64))
        #: Passed to the program's parts; a new one with each start.
        self.env = self._new_env()
        #: How often it was started.
        self.starts = 0
        #: The broker that runs here, if it is one's node and it is ready.
        self.broker: Broker | None = None
        #: Called when its program is killed, or its machine loses power.
        self.on_death: Callable[[], None] | None = None
        self.stopping = asyncio.Event()
        self._program = program
        self._ready = asyncio.Event()
        self._process: Process | None = None
        self._main: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Node {self.name} {self.ip}{'' if self.is_up else ' down'}>"

    @property
    def is_up(self) -> bool:
        """Whether its program runs, or is paused."""
        return self._process is not None

    @property
    def is_paused(self) -> bool:
        return self._process is not None and self._process.is_paused

    # --- For its program --------------------------------------------------------------------------------------------

    def is_ready(self) -> None:
        """Called by the program when it is ready to work."""
        self._ready.set()

    def client_config(self) -> ClientConfig:
        """For clients of this node. Each start has another name, as a process has another number."""
        return ClientConfig(self.cluster.name_servers, client_ip=self.ip, instance_name=f"{self.name}-{self.starts}")

    # --- Start and end ----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run the program, with the files that the last one left on the disk."""
        assert self._process is None, f"{self.name} runs already"
        self.starts += 1
        self.cluster.note("start", self.name)
        self.cluster.network.switch_on(self.ip)
        self.env = self._new_env()
        self.stopping, self._ready = asyncio.Event(), asyncio.Event()
        self._process = Process(f"{self.name}-{self.starts}", self.ip)
        self._main = self._process.start(self._program(self))
        self._main.add_done_callback(self._over, context=NOWHERE)

    async def ready(self) -> None:
        """Wait until the program is ready; raises the error that ended it before."""
        assert self._main is not None
        waiting = self.cluster.watch(self._ready.wait())
        await asyncio.wait([waiting, self._main], return_when=asyncio.FIRST_COMPLETED)
        if not waiting.done():
            waiting.cancel()
            self._main.result()
            raise AssertionError(f"{self.name} ended before it was ready")

    async def stop(self) -> None:
        """Stop the program cleanly; raises its error if that fails."""
        assert self._main is not None
        self.cluster.note("stop", self.name)
        self.stopping.set()
        await asyncio.wait([self._main])
        self._main.result()

    def kill(self) -> None:
        """End the program at once. Its machine closes its connections; its writes are in the page cache."""
        self.cluster.note("kill", self.name)
        process = self._die()
        self.cluster.network.closed_with(process)
        self.disk.die()

    def cut_power(self) -> None:
        """End the machine at once, without any notification. Some of the unsynced data is kept at random."""
        self.cluster.note("power cut", self.name)
        process = self._die()
        self.cluster.network.switch_off(process)
        self.disk.power_cut(self.random)

    def pause(self) -> None:
        """Suspend the program."""
        assert self._process is not None
        self.cluster.note("pause", self.name)
        self._process.pause()

    def resume(self) -> None:
        assert self._process is not None
        self.cluster.note("resume", self.name)
        self._process.resume()

    def _over(self, main: asyncio.Task[None]) -> None:
        """A program that ends without being stopped has failed, with or without an error."""
        if main is self._main and self._process is not None:
            self._end()
            error = main.exception() if not main.cancelled() else None
            if error is None and not self.stopping.is_set():
                error = AssertionError(f"{self.name} ended by itself")
            if error is not None:
                self.cluster.loop.failures.append(error)

    def _die(self) -> Process:
        process = self._end()
        process.kill()
        if self.on_death is not None:
            self.on_death()
        return process

    def _end(self) -> Process:
        assert self._process is not None, f"{self.name} does not run"
        process, self._process = self._process, None
        self.broker = None
        return process

    def _new_env(self) -> Env:
        return Env(self.clock, Random(self.random.getrandbits(64)))


class Cluster:
    """Nodes on one loop and one network. Only the driver of the simulation calls these methods, not the programs."""

    def __init__(self, loop: SimulatedLoop, seed: int) -> None:
        self.loop = loop
        self.seed = seed
        #: For the driver of the simulation; nodes and network have their own.
        self.random = Random(seed)
        self.network = Network(loop, Random(self.random.getrandbits(64)))
        self.network.on_arrival = self._arrived
        self.nodes: dict[str, Node] = {}
        self._name_servers: list[Node] = []
        self.trace: list[tuple[object, ...]] = []
        self._checksum = 0
        self._watchers = Process("watchers", "")

    @property
    def name_servers(self) -> str:
        """``host:port`` of all name servers, as clients need it."""
        return ";".join(f"{node.ip}:{NAME_SERVER_PORT}" for node in self._name_servers)

    def note(self, *what: object) -> None:
        """Add an event to the trace."""
        self.trace.append((round(self.loop.time() - BEGIN_S, 6), *what, self._checksum))

    # --- Nodes ------------------------------------------------------------------------------------------------------

    def node(self, name: str, program: Program) -> Node:
        """A machine with a program, not started yet."""
        assert name not in self.nodes, f"there is a node {name} already"
        node = self.nodes[name] = Node(self, name, f"10.0.0.{len(self.nodes) + 1}", program)
        return node

    def name_server(self, name: str = "name-server") -> Node:
        """A name server. Create all of them before you start the nodes that use them."""

        async def run(node: Node) -> None:
            async with NameServer(NamesrvConfig(listen_port=NAME_SERVER_PORT), node.env):
                node.is_ready()
                await node.stopping.wait()

        node = self.node(name, run)
        self._name_servers.append(node)
        return node

    def broker(self, name: str, **settings: object) -> Node:
        """A broker; ``settings`` under RocketMQ's names: ``flushDiskType="SYNC_FLUSH"``."""

        async def run(node: Node) -> None:
            flags = [f"{key}={_text(value)}" for key, value in {**SMALL_FILES, "brokerName": name, **settings}.items()]
            flags += [f"brokerIP1={node.ip}", f"listenPort={BROKER_PORT}"]
            own = Settings.gather(flags=[*flags, f"namesrvAddr={self.name_servers}"])
            disk, files = node.disk, DiskFiles(node.disk)
            async with Broker(
                own.build(BrokerConfig),
                own.build(StoreConfig),
                node.env,
                replication=own.build(ReplicationConfig),
                raft=own.build(RaftConfig),
                disk=disk,
                files=files,
            ) as broker:
                node.broker = broker
                node.is_ready()
                await node.stopping.wait()
            node.broker = None

        return self.node(name, run)

    def raft_group(self, name: str, count: int, **settings: object) -> list[Node]:
        """The brokers of one Raft group, on nodes ``broker-a-n0`` and so on."""
        members: list[Node] = []
        ips = [f"10.0.0.{len(self.nodes) + 1 + number}" for number in range(count)]
        peers = ";".join(f"n{number}-{ip}:{RAFT_PORT}" for number, ip in enumerate(ips))
        for number in range(count):
            own = {"brokerName": name, "dLegerPeers": peers, "dLegerSelfId": f"n{number}"}
            node = self.broker(f"{name}-n{number}", enableDLegerCommitLog=True, **{**own, **settings})
            assert node.ip == ips[number], "members have the next addresses"
            members.append(node)
        return members

    async def start(self, *nodes: Node) -> None:
        """Start nodes together, and wait until all are ready."""
        for node in nodes:
            node.start()
        for node in nodes:
            await node.ready()

    def watch(self, coro: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine that belongs to no node and is never killed."""
        return self._watchers.start(coro)

    # ----------------------------------------------------------------------------------------------------------------

    def _arrived(self, source: str, target: str, length_bytes: int) -> None:
        what = f"{self.loop.time():.9f} {source} {target} {length_bytes}"
        self._checksum = crc32(what.encode(), self._checksum)


class DiskFiles:
    """Implements ``ternmq.files.Files`` on a simulated disk: a power cut may lose or tear unsynced data."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self._disk = disk

    def read(self, path: Path) -> bytes:
        data = self._disk.read(path)
        if data is None:
            raise FileNotFoundError(str(path))
        return data

    def write(self, path: Path, data: bytes) -> None:
        self._disk.make_directory(path.parent)
        self._disk.remove(path)
        self._disk.open_file(path, create_size=0).write(0, data)
        self._disk.sync_file(path)

    def move(self, path: Path, to: Path) -> None:
        self._check(path)
        self._disk.rename(path, to)

    def sync_names(self, directory: Path) -> None:
        self._disk.sync_names(directory)

    def _check(self, path: Path) -> None:
        if self._disk.read(path) is None:
            raise FileNotFoundError(str(path))


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
