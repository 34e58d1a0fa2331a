"""One seed, one life of three whole brokers in a Raft group: everything breaks, and what must hold (P1–P4).

Two producers send all the time, a consumer listens, two auditors ask any member, leader or not, for the ends of queues
and for messages. Members are killed, lose power, stand still, are cut off one way or both, for a while or again and
again, hand over, have their wall clock set, a full disk, a disk that stalls, one that loses pages or flips bits;
connections break. ``script/soak raft`` runs it for hours. Checked at all times:

- one master a term;
- what can be read at a queue offset, on whichever member, never changes afterwards;

and when all is well again:

- there is a master soon, and it takes messages;
- the history of each queue is linearizable (``linearizable``): sends, acknowledged or not, and what auditors were told.
  With ``slaveReadEnable`` followers may lag, so what auditors were told must only be true at the end;
- the consumer has got each acknowledged message;
- each member has each acknowledged message at its queue offset;
- data files are equal, byte for byte, on all members;
- queue offsets have neither holes nor doubles;
- queues and index of each member are those of a fresh fold of its log.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import ClassVar, Final, NamedTuple, Self
from unittest.mock import patch

from ternmq import ConsumeContext, PushConfig, PushConsumer
from ternmq.admin.queues import tools_pull
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.send.producer import Producer
from ternmq.errors import TernError
from ternmq.message import Message, MessageQueue, ReceivedMessage, SendReceipt, SendStatus
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.store import MessageStore
from ternmq.store.upkeep import Upkeep
from ternmq.testing.cluster import BROKER_PORT, SMALL_FILES, Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.layouts.raft_state import unpack_saved
from ternmq.wire.record import read_records
from ternmq.wire.requests import OffsetReply, PullReply, QueueBounds
from tests.raft.linearizable import Appended, Operation, QueueAct, Read, queue_copy, violation
from tests.store.simulation import _index, _queues
from tests.store.small import HOST, read_all

TOPIC: Final = "orders"
#: Of a topic that a producer makes.
QUEUES: Final = 4
#: How long faults last: around heartbeats, elections, time-outs of clients.
LASTS_S: Final = (0.1, 0.4, 1.0, 2.5, 8.0)
#: How long it may take until all is well again, in virtual seconds: producers ask for routes every 30 s.
CALM_S: Final = 90.0
#: And until there is a master: two elections and a record.
MASTER_S: Final = 10.0


class WrongGroup(AssertionError):
    """What the simulation found; the seed replays it."""


class Sale(NamedTuple):
    """An acknowledged message."""

    body: bytes
    queue_id: int
    queue_offset: int
    done_s: float


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed."""

    flush: str
    faults: tuple[str, ...]
    weather: Weather
    storm_s: float
    per_second: float
    settings: dict[str, object]

    @classmethod
    def choose(cls, random: Random) -> Self:
        flush = random.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
        faults = ["kill", "pause", "partition", "one way", "flap", "reset", "transfer", "clock", "full", "slow"]
        if flush == "SYNC_FLUSH":
            # A member whose page cache is lost is more than a minority of page caches (decision 0027).
            faults += ["power", "power of all", "rot"]
        settings: dict[str, object] = {"slaveReadEnable": random.random() < 0.2}
        if random.random() < 0.3:
            settings["preferredLeaderId"] = random.choice(("n0", "n1", "n2"))
        return cls(
            flush=flush,
            faults=tuple(fault for fault in faults if random.random() < 0.6),
            weather=Weather(0.000_1, random.choice((0.001, 0.03)), random.choice((0.0, 0.5))),
            storm_s=random.choice((6.0, 12.0, 20.0)),
            per_second=random.choice((5.0, 30.0)),
            settings=settings,
        )


class RaftSimulation:
    """Runs one seed. Raises ``WrongGroup``, or whatever a node should not have raised."""

    #: How many messages a producer sends at once.
    together: ClassVar[int] = 1

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.trace: list[tuple[object, ...]] = []
        self.sales: list[Sale] = []
        #: When each message was sent, and what auditors were told, by queue.
        self._sent_s: dict[bytes, float] = {}
        self._told: dict[int, list[Operation[QueueAct]]] = {}
        self._consumed: set[bytes] = set()
        #: One disk of a life is damaged at most.
        self._is_rotten = False
        #: (queue, offset) → body, as any member has ever shown it.
        self._shown: dict[tuple[int, int], bytes] = {}
        self._masters: dict[int, str] = {}
        #: What was acknowledged too early.
        self._unkept: list[str] = []

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
        self._is_calm = False
        self.members = cluster.raft_group("broker-a", 3, flushDiskType=options.flush, **options.settings)
        shops = [cluster.node(f"shop-{number}", self._sell) for number in range(2)]
        others = [cluster.node(f"auditor-{number}", self._audit) for number in range(2)]
        others.append(cluster.node("billing", self._consume))
        await cluster.start(cluster.name_server(), *self.members)
        await cluster.start(*shops, *others)
        watching = cluster.watch(self._watch())
        await self._storm()
        await self._calm()
        for shop in shops:
            await shop.stop()
        await self._until(self._is_equal, CALM_S, "members are not equal")
        if self._unkept:
            self._wrong(self._unkept[0])
        self._check_sales()
        acknowledged = {sale.body for sale in self.sales}
        await self._until(lambda: acknowledged <= self._consumed, CALM_S, "not all messages are consumed")
        for node in others:
            await node.stop()
        await self._until(self._is_equal, CALM_S, "members are not equal")
        if watching.done():
            watching.result()
        watching.cancel()
        self._check_all()
        for member in self.members:
            await member.stop()

    async def _sell(self, node: Node) -> None:
        time = asyncio.get_running_loop().time
        async with Producer(node.name, client=node.client_config(), env=node.env) as producer:
            node.is_ready()

            async def sell(number: int) -> None:
                body = f"<{node.name} {number}>".encode()
                self._sent_s[body] = time()
                try:
                    receipt = await producer.send(Message(TOPIC, body, keys=f"k{number % 7}", tags="red"))
                except TernError:
                    return
                if receipt.status is SendStatus.OK:
                    self._check_disks(body, receipt)
                    self.sales.append(Sale(body, receipt.queue.queue_id, receipt.queue_offset, time()))

            number = 0
            while not node.stopping.is_set():
                await asyncio.sleep(node.env.random.expovariate(self.options.per_second))
                if self.together == 1:
                    await sell(number + 1)
                else:
                    await asyncio.gather(*(sell(number + 1 + each) for each in range(self.together)))
                number += self.together

    async def _audit(self, node: Node) -> None:
        """Ask members, whatever they are, for the end of a queue, or for a message and the end."""
        time, chance = asyncio.get_running_loop().time, node.env.random
        async with ClientInstance(node.client_config(), env=node.env) as instance:
            node.is_ready()
            while not node.stopping.is_set():
                await asyncio.sleep(chance.expovariate(20.0))
                address = f"{chance.choice(self.members).ip}:{BROKER_PORT}"
                queue = MessageQueue(TOPIC, "broker-a", chance.randrange(QUEUES))
                # Around the end, which moves.
                at = max(0, self._end_of(queue.queue_id) + chance.randint(-2, 1)) if chance.random() < 0.5 else None
                called_s = time()
                with suppress(TernError):
                    told = await _ask(instance, address, queue, at)
                    if told is not None:
                        operation = Operation[QueueAct](told, called_s, time())
                        self._told.setdefault(queue.queue_id, []).append(operation)

    def _end_of(self, queue_id: int) -> int:
        return max((sale.queue_offset + 1 for sale in self.sales if sale.queue_id == queue_id), default=0)

    async def _consume(self, node: Node) -> None:
        async def listen(message: ReceivedMessage, _context: ConsumeContext) -> None:
            self._consumed.add(message.body)

        config = PushConfig(start=StartPosition.FIRST)
        consumer = PushConsumer("billing", listen, client=node.client_config(), config=config, env=node.env)
        consumer.subscribe(TOPIC)
        async with consumer:
            node.is_ready()
            await node.stopping.wait()

    # --- At all times -------------------------------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Look at all members again and again."""
        while True:
            self._look()
            await asyncio.sleep(0.1)

    def _look(self) -> None:
        for member in self.members:
            broker = member.broker
            if broker is None or broker.group is None or member.is_paused:
                continue
            if broker.roles.is_master:
                term = broker.roles.term.number
                if self._masters.setdefault(term, member.name) != member.name:
                    self._wrong(f"{member.name} and {self._masters[term]} are masters in term {term}")
            self._read(member.name, broker.group.node.store)

    def _read(self, name: str, store: MessageStore) -> None:
        for queue_id, offset, body in shown(store):
            if self._shown.setdefault((queue_id, offset), body) != body:
                before = self._shown[queue_id, offset]
                self._wrong(f"{offset} of queue {queue_id} was {before!r}, and is {body!r} on {name}")

    def _check_disks(self, body: bytes, receipt: SendReceipt) -> None:
        """Under SYNC_FLUSH a message that is acknowledged is on the disks of a majority, at this moment. A disk that
        was damaged may have been among those."""
        if self.options.flush != "SYNC_FLUSH" or self._is_rotten:
            return
        _, _, log_offset = parse_offset_id(receipt.offset_id)
        lacking = [each.name for each in self.members if not _is_kept(each, body, log_offset)]
        if len(lacking) > 1:
            self._unkept.append(f"{body!r} is acknowledged, and not on the disks of {', '.join(lacking)}")

    # --- What befalls them --------------------------------------------------------------------------------------------

    async def _storm(self) -> None:
        loop, chance = self.cluster.loop, self.random
        self.cluster.network.weather = self.options.weather
        end = loop.time() + self.options.storm_s
        while loop.time() < end:
            await asyncio.sleep(chance.expovariate(1 / 1.2))
            if self.options.faults:
                await self._happen(chance.choice(self.options.faults))

    async def _happen(self, fault: str) -> None:
        chance, network = self.random, self.cluster.network
        awake = [each for each in self.members if each.is_up and not each.is_paused]
        masters = [each for each in awake if each.broker is not None and each.broker.roles.is_master]
        if not awake:
            return
        victim = masters[0] if masters and chance.random() < 0.6 else chance.choice(awake)
        others = [each for each in self.members if each is not victim]
        match fault:
            case "kill" | "power":
                (victim.kill if fault == "kill" else victim.cut_power)()
                self._later(partial(self._revive, victim))
            case "power of all":
                for member in self.members:
                    if member.is_up:
                        member.cut_power()
                        self._later(partial(self._revive, member))
            case "pause":
                victim.pause()
                self._later(partial(_resume, victim))
            case "partition":
                self.cluster.note("partition", victim.name)
                self._block([(victim.ip, each.ip) for each in others] + [(each.ip, victim.ip) for each in others])
            case "one way":
                way = chance.choice([(victim.ip, others[0].ip), (others[0].ip, victim.ip)])
                self.cluster.note("one way", way)
                self._block([way])
            case "flap":
                way = chance.choice([(victim.ip, others[0].ip), (others[0].ip, victim.ip)])
                ways = chance.choice(([way], [way, way[::-1]]))
                self.cluster.note("flap", ways)
                self.cluster.watch(self._flap(ways))
            case "slow":
                self.cluster.note("slow", victim.name)
                victim.disk.before = partial(self._stall, victim, Random(chance.getrandbits(32)))
                self._later(partial(_hurry, victim))
            case "rot":
                # A member with nothing on its disk lacks it like a damaged one: two of three are beyond the promise.
                if not self._is_rotten and all(map(_has_synced, others)) and self._rot(victim):
                    self._later(partial(self._revive, victim))
            case "reset":
                self.cluster.note("reset", victim.name, network.reset(victim.ip, chance.choice(others).ip))
            case "clock":
                self.cluster.note("clock", victim.name)
                victim.clock.jump(chance.choice((-3_600_000, -1000, 1000, 3_600_000)))
            case "full":
                if any(each.disk.capacity_bytes is not None for each in self.members):
                    return
                self.cluster.note("full", victim.name)
                victim.disk.capacity_bytes = victim.disk.usage(Path("/")).used_bytes
                self._later(partial(_make_room, victim))
            case "transfer":
                if masters and masters[0].broker is not None and masters[0].broker.group is not None:
                    self.cluster.note("transfer", masters[0].name)
                    await self._transfer(masters[0])

    async def _transfer(self, master: Node) -> None:
        assert master.broker is not None
        assert master.broker.group is not None
        node = master.broker.group.node
        # It may lead already, the heir may not be reached, or die meanwhile.
        with suppress(TernError, TimeoutError):
            await asyncio.wait_for(node.transfer(self.random.choice((None, "n0", "n1", "n2"))), 5)

    def _block(self, ways: list[tuple[str, str]]) -> None:
        for way in ways:
            self.cluster.network.block(*way)

        def mend() -> None:
            for way in ways:
                self.cluster.network.unblock(*way)

        self._later(mend)

    async def _flap(self, ways: list[tuple[str, str]]) -> None:
        """A link that is cut and whole again, many times."""
        network, chance = self.cluster.network, self.random
        end = self.cluster.loop.time() + chance.choice(LASTS_S)
        while self.cluster.loop.time() < end and not self._is_calm:
            for way in ways:
                network.block(*way)
            await asyncio.sleep(chance.uniform(0.01, 0.4))
            for way in ways:
                network.unblock(*way)
            await asyncio.sleep(chance.uniform(0.01, 0.4))

    def _stall(self, node: Node, chance: Random, kind: str, _path: Path) -> None:
        """A sync that takes long: what the loop does next waits for it."""
        if kind.startswith("sync") and chance.random() < 0.3 and node.is_up and not node.is_paused:
            node.pause()
            self.cluster.loop.call_later(chance.choice((0.02, 0.1, 0.4, 1.0)), partial(_resume, node))

    def _rot(self, victim: Node) -> bool:
        """Kill a member, and damage an entry that it knew as committed, in its last file. What it does not know yet is
        beyond the promise: nothing tells such damage from a write that a power cut has torn."""
        group = victim.broker.group if victim.broker is not None else None
        if group is None:
            return False
        home = Path(SMALL_FILES["storePathRootDir"]) / f"dledger-{victim.name.rpartition('-')[2]}"
        saved = unpack_saved(victim.disk.read(home / "checkpoint") or b"")
        start = group.log.starts[-1] if group.log.starts else 0
        position = group.log.position_of(self.random.randint(0, max(saved.committed_index, 0)))
        if position is None or position < start or saved.committed_index < 0:
            return False
        victim.kill()
        path = home / "data" / f"{start:020d}"
        at = position - start + self.random.randrange(100)
        if self.random.random() < 0.5:
            self.cluster.note("flipped bit", victim.name, position)
            victim.disk.flip_bit(path, 8 * at + self.random.randrange(8))
        else:
            self.cluster.note("lost page", victim.name, position)
            victim.disk.lose_page(path, at)
        self._is_rotten = True
        return True

    def _later(self, mend: Callable[[], None]) -> None:
        self.cluster.loop.call_later(self.random.choice(LASTS_S), mend)

    def _revive(self, node: Node) -> None:
        if not node.is_up and not self._is_calm:
            node.start()

    async def _calm(self) -> None:
        """Mend all, and see a master take messages."""
        self._is_calm = True
        self.cluster.note("calm")
        self.cluster.network.heal()
        self.cluster.network.weather = Weather()
        for member in self.members:
            _hurry(member)
            _resume(member)
            _make_room(member)
            if not member.is_up:
                await self.cluster.start(member)
        await self._until(self._has_master, MASTER_S, "there is no master")
        before = len(self.sales)
        await self._until(lambda: len(self.sales) > before + 10, CALM_S, "no messages are taken")

    def _has_master(self) -> bool:
        return any(each.broker is not None and each.broker.roles.is_master for each in self.members)

    def _is_equal(self) -> bool:
        ends = set()
        for member in self.members:
            if member.broker is None or member.broker.group is None:
                return False
            store = member.broker.group.node.store
            ends |= {member.broker.group.log.end, store.dispatched}
        return len(ends) == 1 and self._has_master()

    async def _until(self, is_true: Callable[[], bool], limit_s: float, complaint: str) -> None:
        end = self.cluster.loop.time() + limit_s
        while not is_true():
            if self.cluster.loop.time() > end:
                self._wrong(f"{complaint} within {limit_s} s: {[self._status(each) for each in self.members]}")
            await asyncio.sleep(0.05)

    def _status(self, member: Node) -> object:
        group = member.broker.group if member.broker is not None else None
        return member if group is None else group.node.status()

    # --- What must hold at the end ------------------------------------------------------------------------------------

    def _check_all(self) -> None:
        self._check_sales()
        self._check_histories()
        files = [data_files(member) for member in self.members]
        if not files[0] or files[0] != files[1] or files[0] != files[2]:
            self._wrong("data files differ")
        for member in self.members:
            assert member.broker is not None
            assert member.broker.group is not None
            store = member.broker.group.node.store
            self._same(f"what {member.name} shows", len(self._shown), sum(1 for _ in shown(store)))
            self._check_offsets(member, store)
            self._check_fold(member, store)
        self.cluster.note("end", len(self.sales), len(self._shown))

    def _check_sales(self) -> None:
        self._look()
        for sale in self.sales:
            found = self._shown.get((sale.queue_id, sale.queue_offset))
            if found != sale.body:
                self._wrong(f"{sale.body!r} was at {sale.queue_offset} of {sale.queue_id}; found {found!r}")

    def _check_histories(self) -> None:
        """Each message in a queue was appended after its send began, and before it was acknowledged there. One that was
        sent again by its producer is there twice, and only one of them has an answer."""
        done_s = {(sale.queue_id, sale.queue_offset): sale.done_s for sale in self.sales}
        lengths = Counter(queue_id for queue_id, _ in self._shown)
        for queue_id in range(QUEUES):
            contents = [self._shown[queue_id, offset] for offset in range(lengths[queue_id])]
            history: list[Operation[QueueAct]] = [
                Operation(Appended(offset), self._sent_s[body], done_s.get((queue_id, offset)))
                for offset, body in enumerate(contents)
            ]
            told = self._told.get(queue_id, [])
            if not self.options.settings["slaveReadEnable"]:
                wrong = violation([*history, *told], 0, queue_copy(contents))
                if wrong is not None:
                    self._wrong(f"queue {queue_id} is not linearizable: {wrong[:5]}")
                continue
            for operation in told:
                assert isinstance(operation.act, Read)
                end, offset = operation.act.end, operation.act.offset
                there = contents[offset] if offset is not None and offset < end else None
                if end > len(contents) or operation.act.body != there:
                    self._wrong(f"a reader of queue {queue_id} was told what was never true: {operation}")

    def _check_offsets(self, member: Node, store: MessageStore) -> None:
        offsets: dict[tuple[str, int], list[int]] = {}
        for record in store._log.walk(0):
            offsets.setdefault((record.topic, record.queue_id), []).append(record.queue_offset)
        for queue, found in offsets.items():
            self._same(f"queue offsets of {queue} on {member.name}", list(range(len(found))), found)
            self._same(f"length of {queue} on {member.name}", len(found), store.max_offset(*queue))

    def _check_fold(self, member: Node, store: MessageStore) -> None:
        assert store._index is not None
        store._index.write_out()
        disk = member.disk.copy()
        root = Path(SMALL_FILES["storePathRootDir"])
        for name in ("consumequeue", "index", "checkpoint", "abort"):
            disk.remove(root / name)
        log = RaftLog(
            disk,
            RaftPaths.of(store.config, member.name.rpartition("-")[2]),
            segment_bytes=store.config.mapped_file_size_commit_log,
            index_file_bytes=int(SMALL_FILES["raftIndexFileBytes"]),
        )
        fresh = MessageStore.open(store.config, store_host=HOST, clock=member.clock, disk=disk, log=log, threads=False)
        fresh.confirm(log.end)
        while not fresh.follow(1.0):
            pass
        assert fresh._index is not None
        fresh._index.write_out()
        expected, found = _queues(fresh, with_tags=True), _queues(store, with_tags=True)
        self._same(f"queues of {member.name}, folded again", expected, found)
        self._same(f"index of {member.name}, folded again", _index(fresh), _index(store))

    def _same(self, what: str, expected: object, actual: object) -> None:
        if expected != actual:
            self._wrong(f"{what}: expected {str(expected)[:300]}, found {str(actual)[:300]}")

    def _wrong(self, what: str) -> None:
        raise WrongGroup(f"seed {self.seed}: {what}")


class SlowSyncs(RaftSimulation):
    """The same, but a sync takes some ms, and the member does other things meanwhile: as with a flush thread. Otherwise
    it is done in the next turn of the loop, before any answer that was sent too early can arrive."""

    sync_s: ClassVar[float] = 0.02

    def run(self) -> None:
        def flush_later(upkeep: Upkeep) -> None:
            if not upkeep._is_woken:
                upkeep._is_woken = True
                asyncio.get_running_loop().call_later(self.sync_s, upkeep._flush_woken)

        with patch.object(Upkeep, "_flush_next", flush_later):
            super().run()


class VerySlowSyncs(SlowSyncs):
    """A sync takes longer than the pause between two looks at what members show: what is shown too early is seen, and
    a power cut may take it back."""

    sync_s: ClassVar[float] = 0.3


async def _ask(instance: ClientInstance, address: str, queue: MessageQueue, at: int | None) -> Read | None:
    """What a member says of a queue. Raises ``TernError``."""
    if at is None:
        bounds = QueueBounds(topic=queue.topic, queue_id=queue.queue_id)
        response = await instance.ask(address, RequestCode.GET_MAX_OFFSET, bounds)
        return Read(response.read(OffsetReply).queue_offset)
    pull = tools_pull(queue, at, count_max=1)
    response = await instance.call(address, RequestCode.PULL_MESSAGE, pull, timeout_ms=3_000)
    if response.code not in (ResponseCode.SUCCESS, ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_OFFSET_MOVED):
        return None
    bodies = [bytes(record.body) for record in read_records(response.body)]
    return Read(response.read(PullReply).max_offset, at, bodies[0] if bodies else None)


def shown(store: MessageStore) -> list[tuple[int, int, bytes]]:
    """Queue, offset and body of all messages of the topic that can be read."""
    return [
        (queue_id, record.queue_offset, bytes(record.body))
        for topic, queue_id in sorted(store.queues())
        if topic == TOPIC
        for record in read_all(store, topic, queue_id)
    ]


def data_files(node: Node) -> dict[str, bytes]:
    return {path.name: data for path, data in node.disk.files().items() if path.parent.name == "data"}


def _hurry(node: Node) -> None:
    node.disk.before = None


def _is_kept(member: Node, body: bytes, log_offset: int) -> bool:
    """Whether a message is on the disk of a member; of one that is down, whether it was ever written there."""
    group = member.broker.group if member.broker is not None else None
    if group is not None and group._node is not None:
        return group.node.store.flushed.value > log_offset
    return any(body in data for path, data in member.disk.files().items() if path.parent.name == "data")


def _has_synced(member: Node) -> bool:
    """Whether a member is up, and has entries on its disk that no power cut takes."""
    group = member.broker.group if member.broker is not None else None
    # Of the core: what a member says of it begins only when it knows what is committed.
    if group is None or group._node is None or group.node.core.is_filling:
        return False
    store = group.node.store
    return store.flushed.value > store.min_log_offset


def _resume(node: Node) -> None:
    if node.is_paused:
        node.resume()


def _make_room(node: Node) -> None:
    node.disk.capacity_bytes = None


class RaftRunSimulation(RaftSimulation):
    """Producers send several messages at once, which come to a broker in one read: in a run (issue 21)."""

    together = 8
