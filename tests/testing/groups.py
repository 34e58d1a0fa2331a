"""One seed, one life of a consumer group: members come, go and die, brokers crash, the network breaks (F1, F7, G1, G2).

A producer sends all the time. A storm (``testing.swarm``) rages; then all is mended, and what must hold is checked:

- every message that a broker acknowledged is consumed by the end (F1), also those whose listener failed;
- no committed offset ever passed a message that no listener had seen (F7), asked of the brokers again and again;
- after the storm each queue belongs to exactly one member (G1, G2), and when all is well a member that comes, leaves or
  dies changes that for no longer than about a second, not for the 20 of the periodic rebalance.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from ternmq import Admin, Message, Producer, PushConsumer, SendReceipt
from ternmq.allocation import Allocation, Averagely, AveragelyByCircle, ConsistentHash
from ternmq.client.instance import ClientInstance
from ternmq.client.offsets import BrokerOffsets, StartPosition
from ternmq.errors import TernError
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import retry_topic
from ternmq.testing.checkers import Broken, Journal, check_owned_once
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import simulated_loop
from ternmq.testing.swarm import Storm, Swarm

TOPIC: Final = "orders"
GROUP: Final = "billing"
#: After the storm: a broker notices within 30 s that a name server forgot it, a client within further 30 s that the
#: broker is back (A2, A4), and then there is a rebalance.
CALM_S: Final = 70.0
#: Until the last message is consumed: two retries take 10 and 30 s, and more where a broker had to be found again.
DRAIN_S: Final = 240.0
#: A message fails this often at most.
FAILURES_MAX: Final = 2


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed, besides the storm."""

    swarm: Swarm
    brokers: int
    name_servers: int
    queues: int
    members: int
    allocation: Allocation
    batch_max: int
    #: How often a listener takes its time, and how often it fails.
    slow: float
    failing: float
    #: Members come and go in good order, too.
    changes: bool

    @classmethod
    def choose(cls, random: Random) -> Options:
        return cls(
            swarm=Swarm.choose(random),
            brokers=random.choice((1, 1, 2, 3)),
            name_servers=random.choice((1, 1, 2)),
            queues=random.choice((1, 2, 4)),
            members=random.choice((1, 2, 3, 5)),
            allocation=random.choice((Averagely(), AveragelyByCircle(), ConsistentHash())),
            batch_max=random.choice((1, 1, 4)),
            slow=random.choice((0.0, 0.1, 0.5)),
            failing=random.choice((0.0, 0.1)),
            changes=random.random() < 0.7,
        )


class GroupSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    orderly = False
    #: When all is well: until the queues are divided anew after a member came or left, and after one died.
    rebalance_s = 1.2
    takeover_s = 1.2

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.journal = Journal()
        self.trace: list[tuple[object, ...]] = []
        #: How long changes of members took to settle when all was well.
        self.settled_s: list[float] = []
        #: When the storm was over, and whether all is well since long.
        self.calm_at = math.inf
        self.is_quiet = False
        self._members: dict[Node, PushConsumer] = {}
        self._sent = 0

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.options = Options.choose(self.cluster.random)
            loop.run_until_complete(self._live())
            loop.check()

    async def _live(self) -> None:
        options, cluster = self.options, self.cluster
        name_servers = [cluster.name_server(f"ns{number}") for number in range(options.name_servers)]
        flush = "SYNC_FLUSH" if options.swarm.sync_flush else "ASYNC_FLUSH"
        self._brokers = [
            cluster.broker(f"broker-{'abc'[number]}", flushDiskType=flush) for number in range(options.brokers)
        ]
        await cluster.start(*name_servers)
        await cluster.start(*self._brokers)
        self._observer = cluster.node("observer", self._observe)
        await cluster.start(self._observer)
        self._shop = cluster.node("shop", self._sell)
        await cluster.start(self._shop, *(self._new_member() for _ in range(options.members)))
        storm = Storm(
            cluster,
            options.swarm,
            servers=[*name_servers, *self._brokers],
            clients=lambda: [self._shop, *self._all_members()],
        )
        changes = cluster.watch(self._change_members()) if options.changes else None
        await storm.rage()
        if changes is not None:
            changes.cancel()
        for node in (*name_servers, *self._brokers, self._shop):
            if node.is_up:
                await node.ready()
        cluster.note("calm")
        await asyncio.sleep(CALM_S)
        self.calm_at, self.is_quiet = cluster.loop.time(), True
        await self._until(self._is_owned_once, self.rebalance_s, "each queue has one owner")
        await self._drain()
        self.is_quiet = False
        await cluster.start(self._shop)
        await self._change_in_calm()
        await self._drain()
        self.journal.check_consumed()
        cluster.note("end", len(self.journal.acknowledged), sum(self.journal.consumed.values()))

    async def _drain(self) -> None:
        """Stop sending, and wait until all is consumed."""
        if self._shop.is_up:
            await self._shop.stop()
        await self._until(lambda: not self.journal.missing, DRAIN_S, "all is consumed")

    # --- Programs ---------------------------------------------------------------------------------------------------

    async def _sell(self, node: Node) -> None:
        """Sends without end; what is not acknowledged may be there or not."""
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            while not node.stopping.is_set():
                self._sent += 1
                body = b"%d" % self._sent
                message = self._message(node, body)
                try:
                    receipt = await producer.send(message)
                except TernError as error:
                    self.cluster.note("not sent", body, type(error).__name__)
                else:
                    self.journal.acknowledged[body] = self._place(message, receipt)
                    self.cluster.note("sent", body, str(receipt.queue), receipt.queue_offset)
                await asyncio.sleep(node.random.choice((0.01, 0.1, 0.5, 2.0)))

    def _message(self, node: Node, body: bytes) -> Message:
        return Message(TOPIC, body)

    def _place(self, message: Message, receipt: SendReceipt) -> tuple[MessageQueue, int]:
        """Where consumers find it."""
        return receipt.queue, receipt.queue_offset

    async def _listen(self, node: Node, batch: list[ReceivedMessage]) -> None:
        """What a listener does with messages."""
        options = self.options
        if node.random.random() < options.slow:
            await asyncio.sleep(node.random.choice((0.05, 0.5, 3.0)))
        keys = [message.body for message in batch]
        if node.random.random() < options.failing and all(self.journal.failed[key] < FAILURES_MAX for key in keys):
            self.journal.failed.update(keys)
            self.cluster.note("failed", node.name, keys)
            raise RuntimeError("this listener has a bad day")
        self.journal.consumed.update(keys)
        self.cluster.note("consumed", node.name, keys)

    async def _consume(self, node: Node) -> None:
        async def on_messages(messages: ReceivedMessage | list[ReceivedMessage]) -> None:
            await self._listen(node, messages if isinstance(messages, list) else [messages])

        consumer = PushConsumer(
            GROUP,
            on_messages,
            client=node.client_config(),
            start=StartPosition.FIRST,
            allocation=self.options.allocation,
            batch_max=self.options.batch_max,
            orderly=self.orderly,
            env=node.env,
        )
        consumer.subscribe(TOPIC)
        # A member that is told to start when no name server answers tries until one does, as a supervisor would.
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
        await consumer.__aexit__(None, None, None)

    async def _observe(self, node: Node) -> None:
        """Creates the topic; then asks brokers again and again how far the group is. No fault hits this node."""
        async with Admin(config=node.client_config(), env=node.env) as admin:
            await admin.topics.create(TOPIC, queues=self.options.queues)
        async with ClientInstance(node.client_config(), env=node.env) as instance:
            brokers = BrokerOffsets(instance, GROUP)
            node.is_ready()
            while not node.stopping.is_set():
                await asyncio.sleep(3)
                for queue in self._queues():
                    with contextlib.suppress(TernError):
                        committed = await brokers.load(queue)
                        self.journal.check_progress(queue, committed or 0)

    # --- Members ----------------------------------------------------------------------------------------------------

    def _new_member(self) -> Node:
        return self.cluster.node(f"member-{len(self.cluster.nodes)}", self._consume)

    def _all_members(self) -> list[Node]:
        return [node for node in self.cluster.nodes.values() if node.name.startswith("member")]

    def _running(self) -> list[Node]:
        return [node for node in self._all_members() if node.is_up and not node.is_paused]

    async def _change_members(self) -> None:
        """During the storm, members come and go in good order."""
        random = Random(self.cluster.random.getrandbits(64))
        while True:
            await asyncio.sleep(random.expovariate(1 / 6))
            running = self._running()
            if len(running) > 1 and random.random() < 0.5:
                node = random.choice(running)
                self.cluster.note("leaves", node.name)
                node.stopping.set()
            elif len(running) < 6:
                self._new_member().start()

    async def _change_in_calm(self) -> None:
        """When all is well, the queues are divided anew within about a second of each change (G1)."""
        for _ in range(3):
            running = [node for node in self._running() if node in self._members]
            within_s = self.rebalance_s
            match self.cluster.random.randrange(3):
                case 0 if len(running) > 1:
                    self.cluster.random.choice(running).kill()
                    within_s = self.takeover_s
                case 1 if len(running) > 1:
                    await self.cluster.random.choice(running).stop()
                case _:
                    await self.cluster.start(self._new_member())
            since = self.cluster.loop.time()
            await self._until(self._is_owned_once, within_s, "queues are divided anew")
            self.settled_s.append(self.cluster.loop.time() - since)
            await asyncio.sleep(self.cluster.random.choice((0.0, 1.0, 5.0)))

    def fail(self, error: Broken) -> None:
        """For listeners, whose errors a consumer takes for a bad day."""
        self.cluster.loop.failures.append(error)

    # --- What must hold -----------------------------------------------------------------------------------------------

    def _queues(self) -> list[MessageQueue]:
        return [
            MessageQueue(TOPIC, broker.name, number)
            for broker in self._brokers
            for number in range(self.options.queues)
        ]

    def _check_owned_once(self) -> None:
        retries = [MessageQueue(retry_topic(GROUP), broker.name, 0) for broker in self._brokers]
        owned = {node.name: self._members[node].queues for node in self._running() if node in self._members}
        check_owned_once(owned, [*self._queues(), *retries])

    def _is_owned_once(self) -> bool:
        try:
            self._check_owned_once()
        except Broken:
            return False
        return True

    async def _until(self, holds: Callable[[], bool], timeout_s: float, what: str) -> None:
        end = self.cluster.loop.time() + timeout_s
        while not holds():
            if self.cluster.loop.time() > end:
                self.journal.check_consumed()
                self._check_owned_once()
                raise Broken(f"{what}: not within {timeout_s} s")
            await asyncio.sleep(max(0.05, timeout_s / 200))
            self.cluster.loop.check()
