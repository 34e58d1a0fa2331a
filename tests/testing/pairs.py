"""One seed, one life of a consumer group on a master with slaves: the master goes away and comes back (O3, F1, F7).

A producer sends all the time, and members consume. The master is killed again and again, and is away for a moment or
for minutes; slaves are killed, brokers are cut off from each other, members come, go and die. Clocks differ by minutes.
With some seeds all reads drift to slaves. Always, whatever breaks:

- every message that the master acknowledged is consumed by the end (F1);
- no offset that any broker has passes a message that no listener had (F7): that of no member, no copy, no return.

While the master is away for long and a slave has all messages, members consume them on the slave. And at last: all is
consumed and committed, partly on a slave while the master was away, and all members have left. When the master is back,
its table has that progress: a new member gets no message again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Self

from ternmq import Admin, ConsumeContext, Message, Producer, PushConfig, PushConsumer
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import StartPosition
from ternmq.errors import TernError
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.testing.checkers import Broken, Journal
from ternmq.testing.cluster import BROKER_PORT, Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import OffsetReply, QueryOffset, QueueBounds

TOPIC: Final = "orders"
GROUP: Final = "billing"
NAME: Final = "broker-a"
#: A message that fails, fails this often at most.
FAILURES_MAX: Final = 1
#: How long a master is away: less than a connection's back-off, and longer than routes and leases last.
AWAY_S: Final = (0.2, 2.0, 15.0, 60.0, 150.0)
#: After the storm: registration, routes and heartbeats have periods of 30 s, back-offs add to it.
CALM_S: Final = 90.0
#: Until members have left a master that is gone and are at work on the slave: a route refresh, and some errors before.
MOVE_S: Final = 75.0
#: Until all is consumed: a message that failed comes again after 10 s.
DRAIN_S: Final = 240.0


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed."""

    slaves: int
    queues: int
    members: int
    role: str
    #: Whether far readers are sent to slaves; all readers are far, if memory is 0.
    drifts: bool
    memory_percent: int
    #: Of a message.
    slow: float
    failing: float
    gap_s: float
    faults: tuple[str, ...]
    rounds: int
    weather: Weather
    start: StartPosition

    @classmethod
    def choose(cls, random: Random) -> Self:
        faults = ("kill slave", "pause slave", "pause master", "reset", "block", "leave", "die", "join")
        return cls(
            slaves=random.choice((1, 1, 2)),
            queues=random.choice((1, 2, 4)),
            members=random.choice((1, 2, 3)),
            role=random.choice(("SYNC_MASTER", "ASYNC_MASTER")),
            drifts=random.random() < 0.5,
            memory_percent=random.choice((0, 0, 40)),
            slow=random.choice((0.0, 0.1)),
            failing=random.choice((0.0, 0.05)),
            gap_s=random.choice((0.2, 0.5, 2.0)),
            faults=("kill master", *(fault for fault in faults if random.random() < 0.5)),
            rounds=random.choice((4, 8)),
            weather=Weather(0.000_1, random.choice((0.001, 0.2)), random.choice((0.0, 0.3))),
            start=random.choice((StartPosition.FIRST, StartPosition.LAST)),
        )


class PairSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.journal = Journal()
        self.trace: list[tuple[object, ...]] = []
        self._members: dict[Node, PushConsumer] = {}
        self._sent = 0
        self._mends: list[asyncio.TimerHandle] = []

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.options = Options.choose(self.cluster.random)
            self.cluster.note("options", self.options)
            loop.run_until_complete(self._live())
            loop.check()

    async def _live(self) -> None:
        cluster, options = self.cluster, self.options
        settings = {
            "brokerName": NAME,
            "slaveReadEnable": options.drifts,
            "accessMessageInMemoryMaxRatio": options.memory_percent,
        }
        self._names = cluster.name_server()
        self._master = cluster.broker(NAME, brokerRole=options.role, **settings)
        self._slaves = [
            cluster.broker(f"slave-{number}", brokerRole="SLAVE", brokerId=number, **settings)
            for number in range(1, options.slaves + 1)
        ]
        for node in (self._master, *self._slaves):
            node.clock.jump(cluster.random.choice((-120_000, 0, 0, 120_000)))
        await cluster.start(self._names)
        await cluster.start(self._master)
        await cluster.start(*self._slaves)
        self._observer = cluster.node("observer", self._observe)
        await cluster.start(self._observer)
        self._shop = cluster.node("shop", self._sell)
        await cluster.start(*(self._new_member() for _ in range(options.members)))
        await asyncio.sleep(20)
        await cluster.start(self._shop)
        await asyncio.sleep(20)
        await self._storm()
        await self._mend()
        await self._away_for_long()
        await self._come_back()
        cluster.note("end", len(self.journal.acknowledged), sum(self.journal.consumed.values()))

    # --- What happens -------------------------------------------------------------------------------------------------

    async def _storm(self) -> None:
        chance, network = self.cluster.random, self.cluster.network
        network.weather = self.options.weather
        for _ in range(self.options.rounds):
            self._happen(chance.choice(self.options.faults))
            await asyncio.sleep(chance.choice((1.0, 5.0, 40.0)))

    def _happen(self, fault: str) -> None:
        chance, network = self.cluster.random, self.cluster.network
        slave, running = chance.choice(self._slaves), self._running()
        node = self._master if fault.endswith("master") else slave
        match fault:
            case "kill master" | "kill slave":
                if node.is_up and not node.is_paused:
                    node.kill()
                    self._later(AWAY_S, self._revive, node)
            case "pause master" | "pause slave":
                if node.is_up and not node.is_paused:
                    node.pause()
                    self._later((1.0, 10.0, 40.0), lambda: node.resume() if node.is_paused else None)
            case "reset":
                self.cluster.note("reset", network.reset(slave.ip, self._master.ip))
            case "block":
                # Between the brokers, or between the master and the name server, which then forgets it.
                ways = chance.choice([(self._master.ip, slave.ip), (self._master.ip, self._names.ip)])
                self.cluster.note("block", *ways)
                for way in (ways, ways[::-1]):
                    network.block(*way)
                    self._later((5.0, 30.0, 150.0), network.unblock, *way)
            case "join":
                self._new_member().start()
            case "leave" | "die" if len(running) > 1:
                leaver = chance.choice(running)
                if fault == "die":
                    leaver.kill()
                else:
                    leaver.stopping.set()

    def _later(self, choices_s: Sequence[float], mend: Callable[..., object], *arguments: object) -> None:
        seconds = self.cluster.random.choice(choices_s)
        self._mends.append(self.cluster.loop.call_later(seconds, mend, *arguments))

    def _revive(self, node: Node) -> None:
        if not node.is_up:
            node.start()

    async def _mend(self) -> None:
        for pending in self._mends:
            pending.cancel()
        self.cluster.network.heal()
        self.cluster.network.weather = Weather()
        for node in (self._master, *self._slaves):
            if node.is_paused:
                node.resume()
            self._revive(node)
            await node.ready()
        if not self._running():
            await self.cluster.start(self._new_member())
        self.cluster.note("calm")
        await asyncio.sleep(CALM_S)

    async def _away_for_long(self) -> None:
        """The master is gone, and the slaves have all: members consume the rest of it there, also one that starts
        now. Then all leave."""
        chance = self.cluster.random
        if chance.random() < 0.7:
            # There is something left to consume on the slave, for members that start without a master.
            for node in self._running():
                await node.stop()
            await asyncio.sleep(10)
        await self._shop.stop()
        await asyncio.sleep(chance.choice((0.0, 3.0, 15.0)))
        ends = await self._wait_for_slaves()
        self._master.kill()
        await self.cluster.start(self._new_member())
        for node in self._running()[:-1]:
            if chance.random() < 0.5:
                await node.stop()
        await asyncio.sleep(MOVE_S)
        # What failed is sent back to the master, so it waits for its return.
        if not self.options.failing:
            await self._until(self.journal.check_consumed, DRAIN_S)
        for node in self._running():
            await node.stop()
        if not self.options.failing:
            found = [await self._committed(self._slaves[0], queue) for queue in ends]
            if found != list(ends.values()):
                raise Broken(f"queues that end at {ends} are committed on the slave up to {found}")

    async def _come_back(self) -> None:
        """The master is back: nothing was lost, and a new member gets nothing again that was done."""
        await self.cluster.start(self._master)
        await asyncio.sleep(CALM_S)
        before = self.journal.consumed.copy()
        await self.cluster.start(self._new_member())
        await self._until(self.journal.check_consumed, DRAIN_S)
        await asyncio.sleep(CALM_S)
        again = self.journal.consumed - before
        if not self.options.failing and again:
            raise Broken(f"messages that were done, and committed on a slave, came again: {again}")
        for node in (*self._slaves, self._master):
            for queue in self._queues():
                end, committed = await self._end(self._master, queue), await self._committed(node, queue)
                if committed != end:
                    raise Broken(f"{queue} ends at {end}, and {node.name} has the offset {committed}")

    # --- Programs -----------------------------------------------------------------------------------------------------

    async def _sell(self, node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            while not node.stopping.is_set():
                self._sent += 1
                body = b"%d" % self._sent
                try:
                    receipt = await producer.send(Message(TOPIC, body))
                except TernError as error:
                    self.cluster.note("not sent", body, type(error).__name__)
                else:
                    self.journal.acknowledged[body] = receipt.queue, receipt.queue_offset
                await asyncio.sleep(node.env.random.expovariate(1 / self.options.gap_s))

    async def _listen(self, node: Node, message: ReceivedMessage, context: ConsumeContext) -> None:
        body, chance = message.body, node.random
        if chance.random() < self.options.slow:
            await asyncio.sleep(chance.choice((0.05, 0.5, 3.0)))
        if self.journal.failed[body] < FAILURES_MAX and chance.random() < self.options.failing:
            self.journal.failed[body] += 1
            self.cluster.note("failed", node.name, body)
            raise RuntimeError("this listener has a bad day")
        self.journal.consumed[body] += 1
        self.cluster.note("consumed", node.name, body, str(context.queue), message.queue_offset)

    async def _consume(self, node: Node) -> None:
        node.on_death = partial(self._died, node)
        consumer = PushConsumer(
            GROUP,
            partial(self._listen, node),
            client=node.client_config(),
            config=PushConfig(start=self.options.start),
            env=node.env,
        )
        consumer.subscribe(TOPIC)
        while True:
            try:
                await consumer.__aenter__()
                break
            except TernError as error:
                self.cluster.note("not started", node.name, type(error).__name__)
                await asyncio.sleep(1)
        self._members[node] = consumer
        node.is_ready()
        await node.stopping.wait()
        self._members.pop(node, None)
        await consumer.__aexit__(None, None, None)

    def _died(self, node: Node) -> None:
        self._members.pop(node, None)

    async def _observe(self, node: Node) -> None:
        """Creates the topic; then asks each broker again and again how far the group is. No fault hits this node."""
        async with Admin(config=node.client_config(), env=node.env) as admin:
            await admin.topics.create(TOPIC, queues=self.options.queues)
        async with ClientInstance(node.client_config(), env=node.env) as instance:
            self._instance = instance
            node.is_ready()
            while not node.stopping.is_set():
                await asyncio.sleep(3)
                for broker in (self._master, *self._slaves):
                    for queue in self._queues():
                        with contextlib.suppress(TernError):
                            self.journal.check_progress(queue, await self._committed(broker, queue))

    # ------------------------------------------------------------------------------------------------------------------

    def _new_member(self) -> Node:
        return self.cluster.node(f"member-{len(self.cluster.nodes)}", self._consume)

    def _running(self) -> list[Node]:
        """Members that read, and were not told to end."""
        return [node for node in self._members if node.is_up and not node.stopping.is_set()]

    def _queues(self) -> list[MessageQueue]:
        return [MessageQueue(TOPIC, NAME, number) for number in range(self.options.queues)]

    async def _committed(self, broker: Node, queue: MessageQueue) -> int:
        header = QueryOffset(consumer_group=GROUP, topic=TOPIC, queue_id=queue.queue_id, set_zero_if_not_found=False)
        address = f"{broker.ip}:{BROKER_PORT}"
        response = await self._instance.call(address, RequestCode.QUERY_CONSUMER_OFFSET, header)
        return response.read(OffsetReply).queue_offset if response.code == ResponseCode.SUCCESS else 0

    async def _end(self, broker: Node, queue: MessageQueue) -> int:
        header = QueueBounds(topic=TOPIC, queue_id=queue.queue_id)
        response = await self._instance.ask(f"{broker.ip}:{BROKER_PORT}", RequestCode.GET_MAX_OFFSET, header)
        return response.read(OffsetReply).queue_offset

    async def _wait_for_slaves(self) -> dict[MessageQueue, int]:
        """Wait until the slaves have all messages; returns where the queues end."""
        ends = {queue: await self._end(self._master, queue) for queue in self._queues()}
        for slave in self._slaves:
            for queue, end in ends.items():
                deadline = self.cluster.loop.time() + CALM_S
                while await self._end(slave, queue) < end:
                    if self.cluster.loop.time() > deadline:
                        raise Broken(f"{slave.name} does not get the messages of {queue}")
                    await asyncio.sleep(0.5)
        return ends

    async def _until(self, check: Callable[[], None], timeout_s: float) -> None:
        end = self.cluster.loop.time() + timeout_s
        while True:
            self.cluster.loop.check()
            try:
                check()
                return
            except Broken:
                if self.cluster.loop.time() > end:
                    raise
            await asyncio.sleep(0.5)
