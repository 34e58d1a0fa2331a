"""One seed, one life of two brokers of one name, whose roles are swapped while everything breaks (O1, O2).

Whole brokers with SYNC_MASTER and SYNC_FLUSH, a name server, a producer, and an operator who promotes the slave again
and again: with the master alive or dead, with force or without. Some promote the master by force, and some have a rival
who promotes the other broker at about the same moment. Meanwhile brokers are killed and lose power, also in
the middle of a promotion, and the network between any two machines is cut, one way or both. Then all is mended, and:

- one broker is the master, and the other follows it. If there are two slaves, the operator promotes once more;
- at no time did two brokers take messages in one epoch, whatever the operators did;
- what was answered with OK is in the log: a promotion of the only slave loses none of it (O2);
- both logs are equal byte for byte, and queue offsets have neither holes nor doubles;
- queues and index of both equal a fresh fold of the log (C5).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Self

from ternmq.admin.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Role
from ternmq.client.send.producer import Producer
from ternmq.config import Settings
from ternmq.errors import TernError
from ternmq.message import Message, SendStatus
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.slave import SlaveState
from ternmq.store.config import StoreConfig
from ternmq.store.store import MessageStore
from ternmq.testing.cluster import BROKER_PORT, SMALL_FILES, Cluster, DiskFiles, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from tests.store.simulation import _index, _queues
from tests.store.small import HOST

#: Far beyond back-off, registration, and the time after which name servers forget a broker, in virtual seconds.
CALM_S: Final = 400.0
#: How often the roles are looked at.
_LOOK_S: Final = 0.05
LASTS_S: Final = (0.05, 0.3, 1.0, 4.0, 12.0, 40.0)
_TOPIC: Final = "orders"


class WrongPromotion(AssertionError):
    """What the simulation found; the seed replays it."""


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed."""

    segment_bytes: int
    faults: tuple[str, ...]
    promotions: int
    weather: Weather
    send_gap_s: float
    #: How long files take that are written on another thread.
    thread_s: float
    #: How often the operator does not care whether the old master is alive, and how often there are two of them.
    force_share: float
    rival_share: float

    @classmethod
    def choose(cls, random: Random) -> Self:
        faults = ("kill", "kill", "cut", "partition", "one way", "names")
        return cls(
            segment_bytes=random.choice((8192, 65_536)),
            faults=tuple(fault for fault in faults if random.random() < 0.6),
            promotions=random.choice((2, 4, 6)),
            weather=Weather(0.000_1, random.choice((0.001, 0.1)), random.choice((0.0, 0.3))),
            send_gap_s=random.choice((0.1, 0.3)),
            thread_s=random.choice((0.0, 0.0, 0.02, 0.3)),
            force_share=random.choice((0.0, 0.3, 1.0)),
            rival_share=random.choice((0.0, 0.5, 1.0)),
        )


class PromotionSimulation:
    """Runs one seed. Raises ``WrongPromotion``, or whatever a node should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[tuple[object, ...]] = []
        #: For statistics.
        self.promoted = 0
        self.refused = 0
        self.acknowledged: set[bytes] = set()
        #: Which broker was the master in an epoch.
        self.masters: dict[int, str] = {}

    def run(self) -> None:
        with simulated_loop() as loop:
            cluster = Cluster(loop, self.seed)
            self.trace = cluster.trace
            loop.run_until_complete(self._story(cluster))
            loop.check()

    async def _story(self, cluster: Cluster) -> None:
        self.cluster, self.random = cluster, cluster.random
        self.options = Options.choose(self.random)
        cluster.note("options", self.options)
        self.brokers: dict[str, Broker] = {}
        self.names = cluster.name_server()
        self.nodes = [
            cluster.node("one", partial(self._run_broker, brokerRole="SYNC_MASTER")),
            cluster.node("two", partial(self._run_broker, brokerRole="SLAVE", brokerId=1)),
        ]
        for node in self.nodes:
            node.on_death = partial(self._died, node.name)
        shop = cluster.node("shop", self._sell)
        await cluster.start(self.names, self.nodes[0])
        await cluster.start(self.nodes[1])
        await cluster.start(shop)
        await asyncio.sleep(12.0)
        cluster.network.weather, cluster.loop.thread_s = self.options.weather, self.options.thread_s
        watching = asyncio.create_task(self._watch_masters())
        for number in range(self.options.promotions):
            await self._promote(number)
            await asyncio.sleep(self.random.choice((0.5, 5.0, 20.0)))
        await self._calm(shop)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
        for node in self.nodes:
            await node.stop()
        await self.names.stop()
        self._check()

    # --- Programs -----------------------------------------------------------------------------------------------------

    def _settings(self, node: Node, **more: object) -> Settings:
        given = SMALL_FILES | {
            "brokerName": "broker-a",
            "listenPort": BROKER_PORT,
            "brokerIP1": node.ip,
            "namesrvAddr": self.cluster.name_servers,
            "mappedFileSizeCommitLog": self.options.segment_bytes,
            "flushDiskType": "SYNC_FLUSH",
            **more,
        }
        return Settings.gather(flags=[f"{key}={value}" for key, value in given.items()])

    async def _run_broker(self, node: Node, **more: object) -> None:
        own = self._settings(node, **more)
        disk, files = node.disk, DiskFiles(node.disk)
        async with Broker(
            own.build(BrokerConfig),
            own.build(StoreConfig),
            node.env,
            replication=own.build(ReplicationConfig),
            disk=disk,
            files=files,
        ) as broker:
            self.brokers[node.name] = broker
            node.is_ready()
            await node.stopping.wait()
        self.brokers.pop(node.name, None)

    async def _sell(self, node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            number = 0
            while not node.stopping.is_set():
                number += 1
                body = b"<%d>" % number
                await asyncio.sleep(node.env.random.expovariate(1 / self.options.send_gap_s))
                try:
                    receipt = await producer.send(Message(_TOPIC, body))
                except TernError:
                    continue
                if receipt.status is SendStatus.OK:
                    self.acknowledged.add(body)

    def _died(self, name: str) -> None:
        self.brokers.pop(name, None)

    # --- The operator -------------------------------------------------------------------------------------------------

    async def _promote(self, number: int) -> None:
        """Promote the slave, while something breaks, or after its master did."""
        chance = self.random
        force = chance.random() < self.options.force_share
        alive = [node for node in self.nodes if node.name in self.brokers]
        # By force also a master, which begins a new epoch.
        targets = [node for node in alive if not self._is_master(node) or (force and chance.random() < 0.3)]
        if not targets:
            return
        target = chance.choice(targets)
        other = next(node for node in self.nodes if node is not target)
        if self.options.faults and chance.random() < 0.5:
            self._happen(chance.choice(self.options.faults), other)
            await asyncio.sleep(chance.choice((0.1, 2.0, 30.0)))
        if self.options.faults and chance.random() < 0.7:
            fault, victim = chance.choice(self.options.faults), chance.choice((target, other))
            after_s = chance.choice((0.0, 0.01, 0.1, 0.5, 1.0, 1.5)) * chance.random()
            self.cluster.loop.call_later(after_s, self._happen, fault, victim)

        operators = [self._operator(f"operator-{number}", target, after_s=0.0, force=force)]
        if chance.random() < self.options.rival_share:
            after_s = chance.choice((0.0, 0.01, 0.1, 0.5)) * chance.random()
            rival_force = chance.random() < self.options.force_share
            operators.append(self._operator(f"rival-{number}", other, after_s=after_s, force=rival_force))
        await self.cluster.start(*operators)
        await asyncio.sleep(chance.choice((1.0, 10.0, 70.0)))
        for operator in operators:
            await operator.stop()

    def _operator(self, name: str, target: Node, *, after_s: float, force: bool) -> Node:
        async def work(node: Node) -> None:
            node.is_ready()
            await asyncio.sleep(after_s)
            try:
                async with Admin(config=node.client_config(), env=node.env) as admin:
                    await admin.brokers.promote(f"{target.ip}:{BROKER_PORT}", force=force, role="SYNC_MASTER")
            except TernError as error:
                self.refused += 1
                self.cluster.note("not promoted", target.name, str(error)[:100])
            else:
                self.promoted += 1
                self.cluster.note("promoted", target.name)
            await node.stopping.wait()

        self.cluster.note("promote", target.name, force, after_s)
        return self.cluster.node(name, work)

    async def _watch_masters(self) -> None:
        """Note which broker is the master in which epoch."""
        while True:
            for name, broker in self.brokers.items():
                if broker.roles.is_master and (parts := broker.replicating) is not None:
                    epoch = parts.memory.epochs.newest
                    if self.masters.setdefault(epoch, name) != name:
                        raise WrongPromotion(f"seed {self.seed}: {self.masters[epoch]} and {name} had epoch {epoch}")
            await asyncio.sleep(_LOOK_S)

    def _is_master(self, node: Node) -> bool:
        broker = self.brokers.get(node.name)
        return broker is not None and broker.roles.role is Role.MASTER

    def _happen(self, fault: str, victim: Node) -> None:
        chance = self.random
        other = next(node for node in self.nodes if node is not victim)
        match fault:
            case "kill" | "cut":
                if victim.is_up:
                    victim.kill() if fault == "kill" else victim.cut_power()
                    self._later(partial(self._revive, victim))
            case "names":
                self._block(victim, self.names)
                self._block(self.names, victim)
            case "partition":
                self._block(victim, other)
                self._block(other, victim)
            case _:
                self._block(*chance.choice(((victim, other), (other, victim))))

    def _block(self, source: Node, target: Node) -> None:
        self.cluster.note("block", source.name, target.name)
        self.cluster.network.block(source.ip, target.ip)
        self._later(partial(self.cluster.network.unblock, source.ip, target.ip))

    def _later(self, mend: Callable[[], None]) -> None:
        self.cluster.loop.call_later(self.random.choice(LASTS_S), mend)

    def _revive(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    # --- What must hold at the end ------------------------------------------------------------------------------------

    async def _calm(self, shop: Node) -> None:
        """Mend all, and wait until one is the master and the other has everything."""
        self.cluster.network.heal()
        self.cluster.network.weather, self.cluster.loop.thread_s = Weather(), 0.0
        for node in self.nodes:
            self._revive(node)
        end = self.cluster.loop.time() + CALM_S
        if not await self._settles(end):
            # A handover that was broken off leaves two slaves: the operator promotes the one that has more.
            if not self._are_slaves():
                raise WrongPromotion(f"seed {self.seed}: no master with a slave: {self._states()}")
            await self._promote_at_last(max(self.nodes, key=self._log_end))
            if not await self._settles(self.cluster.loop.time() + CALM_S):
                raise WrongPromotion(f"seed {self.seed}: no master with a slave: {self._states()}")
        await asyncio.sleep(5.0)
        await shop.stop()
        while not self._is_settled():
            await asyncio.sleep(0.5)

    async def _settles(self, end: float) -> bool:
        while not self._is_settled():
            if self.cluster.loop.time() > end or self._are_slaves():
                return False
            await asyncio.sleep(0.5)
        return True

    def _are_slaves(self) -> bool:
        parts = [broker.replicating for broker in self.brokers.values()]
        return len(parts) == len(self.nodes) and all(part is not None and part.is_slave for part in parts)

    async def _promote_at_last(self, target: Node) -> None:
        async def work(node: Node) -> None:
            async with Admin(config=node.client_config(), env=node.env) as admin:
                await admin.brokers.promote(f"{target.ip}:{BROKER_PORT}", role="SYNC_MASTER")
            node.is_ready()
            await node.stopping.wait()

        operator = self.cluster.node("last operator", work)
        self.cluster.note("promote at last", target.name)
        await self.cluster.start(operator)
        await operator.stop()

    def _log_end(self, node: Node) -> int:
        parts = self.brokers[node.name].replicating if node.name in self.brokers else None
        return parts.log_end if parts is not None else -1

    def _is_settled(self) -> bool:
        parts = [broker.replicating for broker in self.brokers.values()]
        masters = [part for part in parts if part is not None and part.master is not None]
        slaves = [part.slave for part in parts if part is not None and part.is_slave]
        return (
            len(masters) == len(slaves) == 1
            and all(slave is not None and slave.state is SlaveState.FOLLOWING for slave in slaves)
            and len({part.log_end for part in parts if part is not None}) == 1
        )

    def _states(self) -> list[object]:
        return [
            (name, broker.roles.role, parts.status().epoch, parts.slave and (parts.slave.state, parts.slave.trouble))
            for name, broker in self.brokers.items()
            if (parts := broker.replicating) is not None
        ]

    def _check(self) -> None:
        stores = [self._opened(node) for node in self.nodes]
        bodies = [[bytes(record.body) for record in store.log.walk(0) if record.topic == _TOPIC] for store in stores]
        self._same("messages of both logs", bodies[0], bodies[1])
        self._same("lost messages", [], sorted(self.acknowledged - set(bodies[0])))
        ends = {store.written for store in stores}
        self._same("ends of the logs", 1, len(ends))
        for node, store in zip(self.nodes, stores, strict=True):
            offsets: dict[tuple[str, int], list[int]] = {}
            for record in store.log.walk(0):
                offsets.setdefault((record.topic, record.queue_id), []).append(record.queue_offset)
            for queue, found in offsets.items():
                self._same(f"queue offsets of {queue} on {node.name}", list(range(len(found))), found)
                self._same(f"length of {queue} on {node.name}", len(found), store.max_offset(*queue))
            fresh = self._opened(node, fresh=True)
            for what, read in (("queues", partial(_queues, with_tags=True)), ("index", _index)):
                self._same(f"{what} of {node.name}, folded again", read(fresh), read(store))
        self._same("queues of both", *(_queues(store, with_tags=True) for store in stores))
        self.cluster.note("end", self.promoted, self.refused, len(self.acknowledged), len(bodies[0]))

    def _opened(self, node: Node, *, fresh: bool = False) -> MessageStore:
        config = self._settings(node).build(StoreConfig)
        disk = node.disk.copy()
        if fresh:
            for name in ("consumequeue", "index", "checkpoint", "abort"):
                disk.remove(config.store_path_root_dir / name)
        store = MessageStore.open(config, store_host=HOST, clock=node.clock, disk=disk, threads=False)
        assert store._index is not None
        store._index.write_out()
        return store

    def _same(self, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            raise WrongPromotion(f"seed {self.seed}: {what}: expected {str(expected)[:300]}, found {str(actual)[:300]}")
