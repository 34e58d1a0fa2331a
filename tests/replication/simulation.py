"""One seed, one life of a master with one or two slaves: everything breaks, and what must hold (O1, O2).

The nodes are machines of ``testing.cluster`` with a store and a ``Master`` or a ``Slave``, without brokers. A sender on
the master appends messages and waits until they are replicated. Meanwhile nodes are killed, lose power or stand still,
disks are slow, connections break or fall silent, one way or both are blocked, and transfers arrive in pieces. A topic
is deleted and made again. Then:

- what was acknowledged as replicated is on the slaves that acknowledged it: on their disk with SYNC_FLUSH, else in
  their page cache, and nothing takes it from them (O2);
- a slave is refused exactly when its log is no beginning of its master's; then it keeps what it has, until an operator
  (here: the simulation) empties its directory (O1);
- connections over which nothing is sent stay open, and those whose other side has vanished are noticed (O1);
- at the end all logs are equal byte for byte, queues and index equal those of a fresh fold, and queue offsets have
  neither holes nor doubles (C5, O1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Final, Self

from ternmq.env import Env
from ternmq.net.endpoint import bind
from ternmq.replication.beside import Beside
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.handshake import BrokerNode, Refusal
from ternmq.replication.master import Master
from ternmq.replication.slave import Slave, SlaveState
from ternmq.store.config import FlushDiskType, StoreConfig
from ternmq.store.disk.segment import segment_name
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from tests.store.simulation import _index, _queues
from tests.store.small import HOST, draft

ROOT: Final = Path("/store")
HA_PORT: Final = 10912
#: A topic that is deleted and made again.
BRIEF: Final = "brief"
#: How long faults last: between the times of heartbeat, back-off and housekeeping.
LASTS_S: Final = (0.05, 0.3, 1.0, 4.0, 12.0, 30.0)
#: How long it may take until all is well again: connections that nobody closed are noticed after 20 s.
CALM_S: Final = 120.0
#: Longer than either side may be silent.
IDLE_S: Final = 45.0
#: A sender that has not heard by then is told that the slave is late.
SLAVE_TIMEOUT_S: Final = 3.0


class WrongReplica(AssertionError):
    """What the simulation found; the seed replays it."""


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed."""

    slaves: int
    segment_bytes: int
    master_flush: FlushDiskType
    slave_flush: FlushDiskType
    #: A flush takes up to this.
    slow_disk_s: float
    #: None: any slave is enough.
    in_sync_replicas: int | None
    batch_bytes: int
    faults: tuple[str, ...]
    weather: Weather
    storm_s: float
    #: Seconds between two sends.
    send_gap_s: float
    #: Whether there is a long time without messages at the end.
    idles: bool

    @classmethod
    def choose(cls, random: Random) -> Self:
        slaves = random.choice((1, 1, 2))
        faults: tuple[str, ...] = (
            "kill master",
            "kill slave",
            "cut master",
            "cut slave",
            "pause",
            "reset",
            "partition",
        )
        faults += "one way", "silence"
        return cls(
            slaves=slaves,
            segment_bytes=random.choice((4096, 4096, 20_000)),
            master_flush=random.choice([*FlushDiskType]),
            slave_flush=random.choice([*FlushDiskType]),
            slow_disk_s=random.choice((0.0, 0.05, 1.0, 4.0)),
            in_sync_replicas=random.choice((None, None, slaves + 1)),
            batch_bytes=random.choice((300, 2000, 32_768)),
            faults=tuple(fault for fault in faults if random.random() < 0.5),
            weather=Weather(0.000_1, random.choice((0.001, 0.3)), random.choice((0.0, 0.3, 0.9))),
            storm_s=random.choice((10.0, 20.0, 40.0)),
            send_gap_s=random.choice((0.1, 0.3, 1.0)),
            idles=random.random() < 0.3,
        )


class ReplicationSimulation:
    """Runs one seed. Raises ``WrongReplica``, or whatever a node should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[tuple[object, ...]] = []
        #: For statistics.
        self.acked = 0
        self.refusals: list[Refusal] = []

    def run(self) -> None:
        with simulated_loop() as loop:
            cluster = Cluster(loop, self.seed)
            self.trace = cluster.trace
            loop.run_until_complete(self._story(cluster))
            loop.check()

    async def _story(self, cluster: Cluster) -> None:
        self.cluster, self.random = cluster, cluster.random
        self.options = options = Options.choose(self.random)
        cluster.note("options", options)
        self.master = cluster.node("master", self._run_master)
        self.slaves = [cluster.node(f"slave-{number}", self._run_slave) for number in range(1, options.slaves + 1)]
        #: What runs on the nodes now.
        self.stores: dict[str, MessageStore] = {}
        self.followers: dict[str, Slave] = {}
        self.serving: Master | None = None
        #: Node → where a record begins → its bytes: what it has acknowledged.
        self.held: dict[str, dict[int, bytes]] = {node.name: {} for node in self.slaves}
        #: Up to here a slave may have lost what it acknowledged: it was only in its page cache.
        self.forgiven: dict[str, int] = {}
        self.is_calm = False
        for node in (self.master, *self.slaves):
            node.on_death = partial(self._died, node)
        await cluster.start(self.master, *self.slaves)
        await self._storm()
        await self._calm()
        await self._idle()
        self._check_all()
        for node in (*self.slaves, self.master):
            await node.stop()

    def _died(self, node: Node) -> None:
        self.stores.pop(node.name, None)
        self.followers.pop(node.name, None)

    # --- Programs -----------------------------------------------------------------------------------------------------

    def _config(self, flush: FlushDiskType) -> StoreConfig:
        return StoreConfig(
            store_path_root_dir=ROOT,
            mapped_file_size_commit_log=self.options.segment_bytes,
            mapped_file_size_consume_queue=400,
            max_hash_slot_num=50,
            max_index_num=100,
            max_message_size=2000,
            flush_disk_type=flush,
        )

    def _open(self, node: Node, flush: FlushDiskType, tasks: Tasks) -> MessageStore:
        loop, slow_s = asyncio.get_running_loop(), self.options.slow_disk_s
        chance = node.env.random

        def notify(job: Callable[[], object]) -> None:
            # What was flushed is known only later, while others go on.
            loop.call_later(chance.uniform(0, slow_s), job) if slow_s else loop.call_soon(job)

        store = MessageStore.open(
            self._config(flush), store_host=HOST, clock=node.clock, disk=node.disk, threads=False, notify=notify
        )
        self.stores[node.name] = store
        for seconds, work in ((max(0.5, slow_s), store.flush_when_due), (1.0, store.tick)):
            tasks.create_task(_every(seconds, work))
        return store

    def _place(self, node: Node) -> BrokerNode:
        number = 0 if node is self.master else self.slaves.index(node) + 1
        return BrokerNode("cluster", "broker", number, f"{node.ip}:10911")

    async def _run_master(self, node: Node) -> None:
        async with Tasks() as tasks:
            store = self._open(node, self.options.master_flush, tasks)
            config = ReplicationConfig(
                in_sync_replicas=self.options.in_sync_replicas, ha_transfer_batch_size=self.options.batch_bytes
            )
            beside = Beside(ROOT, store.part_files, lambda: store.deletions)
            async with Master(store.log, node.disk, config, self._place(node), beside=beside) as master:
                await master.serve(bind(node.ip, HA_PORT))
                self.serving = master
                tasks.create_task(self._send(node, store, master))
                node.is_ready()
                await node.stopping.wait()
        store.close()

    async def _run_slave(self, node: Node) -> None:
        async with Tasks() as tasks:
            store = self._open(node, self.options.slave_flush, tasks)
            self._check_held(node, "after its start")
            address = f"{self.master.ip}:{HA_PORT}"
            env = Env(node.clock, node.env.random)
            slave = Slave(store, store.log, node.disk, ReplicationConfig(), self._place(node), lambda: address, env)
            self.followers[node.name] = slave
            tasks.create_task(slave.run())
            node.is_ready()
            await node.stopping.wait()
        store.close()

    async def _send(self, node: Node, store: MessageStore, master: Master) -> None:
        chance, number, loop = node.env.random, 0, asyncio.get_running_loop()
        while not self.is_calm:
            await asyncio.sleep(chance.expovariate(1 / self.options.send_gap_s))
            if chance.random() < 0.05:
                store.delete_topics({BRIEF})
            for _ in range(chance.choice((1, 1, 5))):
                number += 1
                if chance.random() < 0.2:
                    store.put(draft(BRIEF, 0, b"%d" % number))
                body = b"%d.%d," % (node.starts, number) * chance.choice((1, 30, 150))
                placed = store.put(draft("orders", chance.randrange(2), body, KEYS=f"k{number % 7}", TAGS="red"))
                record = bytes(store.record_at(placed.log_offset) or b"")
                if not master.replicas.check_wait(placed.end_offset):
                    acked = partial(self._acked, master, placed.log_offset, record)
                    ticket = master.replicas.replicated.call_when(placed.end_offset, acked)
                    loop.call_later(SLAVE_TIMEOUT_S, master.replicas.replicated.forget, ticket)
            if chance.random() < 0.5:
                # A sender that waits for slaves; else the master looks by itself.
                master.wake()

    # --- What was acknowledged ----------------------------------------------------------------------------------------

    def _acked(self, master: Master, log_offset: int, record: bytes) -> None:
        """A sender hears that its message is replicated: so it must be."""
        self.acked += 1
        end = log_offset + len(record)
        holders = {each.replica for each in master.status() if each.acked >= end}
        needed = 1 if self.options.in_sync_replicas is None else self.options.in_sync_replicas - 1
        if len(holders) < needed:
            raise WrongReplica(f"seed {self.seed}: {log_offset} was acknowledged, but only {holders} have it")
        for replica in sorted(holders):
            node = self.slaves[int(replica.rpartition(":")[2]) - 1]
            self.held[node.name][log_offset] = record
            self._check_record(node, log_offset, record, "when it was acknowledged")

    def _check_held(self, node: Node, when: str) -> None:
        for log_offset, record in self.held[node.name].items():
            self._check_record(node, log_offset, record, when)

    def _check_record(self, node: Node, log_offset: int, record: bytes, when: str) -> None:
        if log_offset + len(record) <= self.forgiven.get(node.name, 0):
            return
        is_sync = self.options.slave_flush is FlushDiskType.SYNC_FLUSH
        found = log_bytes(node.disk, log_offset, len(record), self.options.segment_bytes, durable=is_sync)
        if found != record:
            raise WrongReplica(f"seed {self.seed}: {node.name} lacks the record at {log_offset} {when}")

    # --- What befalls them --------------------------------------------------------------------------------------------

    async def _storm(self) -> None:
        network, chance = self.cluster.network, self.random
        network.weather = self.options.weather
        end = self.cluster.loop.time() + self.options.storm_s
        while self.cluster.loop.time() < end:
            await asyncio.sleep(chance.expovariate(1 / 2.0))
            if self.options.faults:
                self._happen(chance.choice(self.options.faults))
        await asyncio.sleep(chance.choice(LASTS_S))

    def _happen(self, fault: str) -> None:
        chance, network = self.random, self.cluster.network
        slave = chance.choice(self.slaves)
        node = self.master if fault.endswith("master") else slave if fault.endswith("slave") else None
        if fault == "pause":
            node = chance.choice([self.master, slave])
        if node is not None and (not node.is_up or node.is_paused):
            return
        match fault, node:
            case ("kill master" | "kill slave", Node()):
                node.kill()
                self._later(partial(self._revive, node))
            case ("cut master" | "cut slave", Node()):
                if node is slave and self.options.slave_flush is FlushDiskType.ASYNC_FLUSH:
                    store = self.stores.get(slave.name)
                    self.forgiven[slave.name] = max(store.written if store else 0, self.forgiven.get(slave.name, 0))
                node.cut_power()
                self._later(partial(self._revive, node))
            case ("pause", Node()):
                node.pause()
                self._later(lambda: node.resume() if node.is_paused else None)
            case ("silence", _):
                self.cluster.note("silence", slave.name, network.silence(slave.ip, self.master.ip))
            case ("reset", _):
                self.cluster.note("reset", slave.name, network.reset(slave.ip, self.master.ip))
            case _:
                ways = [(slave.ip, self.master.ip), (self.master.ip, slave.ip)]
                ways = ways if fault == "partition" else [chance.choice(ways)]
                self.cluster.note(fault, ways)
                for way in ways:
                    network.block(*way)
                    self._later(partial(network.unblock, *way))

    def _later(self, mend: Callable[[], None]) -> None:
        self.cluster.loop.call_later(self.random.choice(LASTS_S), mend)

    def _revive(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    async def _calm(self) -> None:
        """Mend all, stop sending, empty what is refused with reason, and wait until all slaves have everything."""
        self.is_calm = True
        self.cluster.network.heal()
        self.cluster.network.weather = Weather()
        for node in (self.master, *self.slaves):
            if node.is_paused:
                node.resume()
            self._revive(node)
        end = self.cluster.loop.time() + CALM_S
        while not self._is_done():
            await asyncio.sleep(0.5)
            for node in self.slaves:
                slave = self.followers.get(node.name)
                if slave is not None and slave.state is SlaveState.REFUSED and "master" in self.stores:
                    await self._empty(node)
                    end = self.cluster.loop.time() + CALM_S
                if not node.is_up:
                    self._revive(node)
            if self.cluster.loop.time() > end:
                states = {name: (each.state, each.trouble) for name, each in self.followers.items()}
                raise WrongReplica(f"seed {self.seed}: slaves do not catch up: {states}")

    async def _idle(self) -> None:
        """Nothing is sent for longer than either side may be silent: connections stay."""
        if not self.options.idles:
            return
        # What the storm has silenced is noticed first, by one side and then by the other.
        await asyncio.sleep(IDLE_S)
        lines = self._lines()
        self._same("connected slaves", len(self.slaves), len(lines))
        await asyncio.sleep(IDLE_S)
        self._same("idle connections", lines, self._lines())
        # A slave that does not answer any more does not count for long.
        stuck = self.slaves[-1]
        stuck.pause()
        await asyncio.sleep(IDLE_S)
        self._same("connected slaves", len(self.slaves) - 1, len(self._lines()))
        stuck.resume()

    def _lines(self) -> list[tuple[str, str]]:
        assert self.serving is not None
        return [(each.replica, each.address) for each in self.serving.status()]

    def _is_done(self) -> bool:
        if len(self.stores) <= len(self.slaves) or len(self.followers) < len(self.slaves):
            return False
        end = self.stores["master"].written
        return all(
            self.followers[node.name].state is SlaveState.FOLLOWING
            and self.stores[node.name].written == self.stores[node.name].dispatched == end
            for node in self.slaves
        )

    async def _empty(self, node: Node) -> None:
        """An operator follows the advice, if it is right."""
        slave, master = self.followers[node.name], self.stores["master"]
        store = self.stores[node.name]
        refusal = slave.refusal
        assert refusal is not None
        self.refusals.append(refusal)
        self.cluster.note("refused", node.name, refusal.value)
        self._check_held(node, "when it was refused")
        common = min(store.written, master.written)
        is_beginning = store.written <= master.written and self._log(node, 0, common) == self._log(
            self.master, 0, common
        )
        if is_beginning or refusal not in (Refusal.AHEAD, Refusal.OTHER_HISTORY):
            raise WrongReplica(f"seed {self.seed}: {node.name} was refused without reason: {slave.trouble}")
        await node.stop()
        self._died(node)
        node.disk = SimulatedDisk(now_ms=node.clock.now_ms)
        self.held[node.name].clear()
        await self.cluster.start(node)

    # --- What must hold at the end ------------------------------------------------------------------------------------

    def _check_all(self) -> None:
        master = self.stores["master"]
        expected = self._log(self.master, 0, master.written)
        for node in (self.master, *self.slaves):
            self._same(f"log of {node.name}", expected, self._log(node, 0, master.written))
            store = self.stores[node.name]
            self._check_fold(node, store)
            self._check_offsets(node, store)
        for node in self.slaves:
            self._check_held(node, "at the end")
            self._same(
                f"queues of {node.name}",
                _queues(master, with_tags=True),
                _queues(self.stores[node.name], with_tags=True),
            )
        self.cluster.note("end", master.written, self.acked)

    def _check_fold(self, node: Node, store: MessageStore) -> None:
        assert store._index is not None
        store._index.write_out()
        disk = node.disk.copy()
        for name in ("consumequeue", "index", "checkpoint", "abort"):
            disk.remove(ROOT / name)
        fresh = MessageStore.open(store.config, store_host=HOST, clock=node.clock, disk=disk, threads=False)
        assert fresh._index is not None
        fresh._index.write_out()
        self._same(
            f"queues of {node.name}, folded again", _queues(fresh, with_tags=True), _queues(store, with_tags=True)
        )
        self._same(f"index of {node.name}, folded again", _index(fresh), _index(store))

    def _check_offsets(self, node: Node, store: MessageStore) -> None:
        offsets: dict[tuple[str, int], list[int]] = {}
        for record in store._log.walk(0):
            if record.topic != BRIEF:
                offsets.setdefault((record.topic, record.queue_id), []).append(record.queue_offset)
        for queue, found in offsets.items():
            self._same(f"queue offsets of {queue} on {node.name}", list(range(len(found))), found)
            self._same(f"length of {queue} on {node.name}", len(found), store.max_offset(*queue))

    def _log(self, node: Node, begin: int, end: int) -> bytes:
        return log_bytes(node.disk, begin, end - begin, self.options.segment_bytes)

    def _same(self, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            raise WrongReplica(f"seed {self.seed}: {what}: expected {str(expected)[:200]}, found {str(actual)[:200]}")


def log_bytes(
    disk: SimulatedDisk, log_offset: int, length_bytes: int, segment_bytes: int, *, durable: bool = False
) -> bytes:
    """Bytes of a log as they stand in its files, without any store; what is missing is left out."""
    found = b""
    while length_bytes:
        start = log_offset - log_offset % segment_bytes
        at = log_offset - start
        part = min(length_bytes, segment_bytes - at)
        path = ROOT / "commitlog" / segment_name(start)
        node = disk._find(path)
        if node is not None:
            data = disk._image(path)._durable if durable else disk._image(path).cached
            found += bytes(data[at : at + part])
        log_offset += part
        length_bytes -= part
    return found


async def _every(seconds: float, work: Callable[[], None]) -> None:
    while True:
        await asyncio.sleep(seconds)
        work()
