"""One seed, one life of a consumer group: members come, go and die, brokers crash, the network breaks (F1, F7, G1, G2).

A producer sends all the time. A storm (``testing.swarm``) rages; then all is mended, and some more changes come one by
one: members join, leave and die, connections break, a broker is killed, all are. Always, whatever breaks:

- every message that a broker acknowledged is consumed by the end (F1), also those whose listener failed or hung;
- no committed offset ever passed a message that no listener had seen (F7), asked of the brokers again and again;
- a listener is called with messages of its member's queues only.

After the storm each queue belongs to exactly one member (G1, G2), and a member that comes, leaves or dies changes that
for no longer than about a second, not for the 20 of the periodic rebalance. As soon as it is so, nothing comes late,
early, twice, or in greater numbers than the member's limits allow (``testing.deliveries``).
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection
from functools import partial
from random import Random
from typing import Final

from ternmq import Admin, ConsumeContext, ConsumeResult, Message, Producer, PushConfig, PushConsumer, SendReceipt
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.errors import TernError
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import retry_topic
from ternmq.testing.checkers import Broken, Journal, check_owned_once
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.deliveries import Deliveries, Promises
from ternmq.testing.loop import simulated_loop
from ternmq.testing.swarm import Storm, come_and_go
from tests.testing.options import Options

TOPIC: Final = "orders"
GROUP: Final = "billing"
#: After the storm: a broker notices within 30 s that a name server forgot it, a client within further 30 s that the
#: broker is back (A2, A4), and then there is a rebalance.
CALM_S: Final = 70.0
#: Until the last message is consumed: two retries take 10 and 30 s, and more where a broker had to be found again.
DRAIN_S: Final = 240.0
#: A message fails this often at most.
FAILURES_MAX: Final = 2
#: Seconds until a message comes again (H1): delay levels 3 and 4.
RETRY_S: Final = (10.0, 30.0)
#: A listener that takes longer has its messages sent back; real ones have 15 minutes.
HANG_S: Final = 20.0
#: In all: each one costs a member one of its tasks for ever, and a queue that holds few messages half a minute.
HANGS_MAX: Final = 5
#: What a member that dies takes with it: members store their progress every 5 s.
MEMBER_BACK_S: Final = 6.0
#: And a broker: it writes all progress down every 5 s.
BROKER_BACK_S: Final = MEMBER_BACK_S + 6.0
#: A pull that failed is repeated after 3 s. Then the connections are there again, and the members know each other.
RECONNECT_S: Final = 4.5
#: A broker that was killed is found again by all: who asked the name server in between, asks again after 30 s (A4).
RESTART_S: Final = 32.0
#: Both ways of sending a message back take 5 s until they fail, and 5 s later it is tried again.
ISOLATED_S: Final = 18.0
#: Calls that were not answered have their time-outs, heartbeats among them.
RECOVERY_S: Final = 32.0
#: Seconds between two messages, in a storm and when all is well.
STORMY_S: Final = (0.01, 0.1, 0.5, 2.0, 4.0)
CALM_GAPS_S: Final = (5.0,)
STEADY_S: Final = (0.01, 0.1, 0.5)


class GroupSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    orderly = False
    #: When all is well: until the queues are divided anew after a member came or left, and after one died.
    rebalance_s = 1.2
    takeover_s = 1.2
    #: What the next owner of a queue may not know yet after a clean change: no member waits for the last report.
    handover_back_s = MEMBER_BACK_S

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.journal = Journal()
        self.trace: list[tuple[object, ...]] = []
        #: How long changes of members took to settle when all was well.
        self.settled_s: list[float] = []
        self._members: dict[Node, PushConsumer] = {}
        self._sent = 0
        self._hangs = 0
        #: A member whose calls end when all are told to, and fail.
        self._trapped: Node | None = None
        self._trap = asyncio.Event()
        self._gaps_s: tuple[float, ...] = STORMY_S

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.options = self._choose(self.cluster.random)
            self.deliveries = Deliveries(self._promises(), loop.time)
            loop.run_until_complete(self._live())
            loop.check()

    def _choose(self, random: Random) -> Options:
        return Options.choose(random)

    def _promises(self) -> Promises:
        return self.options.promises(orderly=self.orderly)

    async def _live(self) -> None:
        options, cluster = self.options, self.cluster
        name_servers = [cluster.name_server(f"ns{number}") for number in range(options.name_servers)]
        flush = "SYNC_FLUSH" if options.swarm.sync_flush else "ASYNC_FLUSH"
        self._brokers = [
            cluster.broker(f"broker-{'abc'[number]}", flushDiskType=flush) for number in range(options.brokers)
        ]
        self._servers = [*name_servers, *self._brokers]
        await cluster.start(*name_servers)
        await cluster.start(*self._brokers)
        self._observer = cluster.node("observer", self._observe)
        await cluster.start(self._observer)
        self._shop = cluster.node("shop", self._sell)
        await cluster.start(self._shop, *(self._new_member() for _ in range(options.members)))
        storm = Storm(cluster, options.swarm, servers=self._servers, clients=lambda: [self._shop, *self._all_members()])
        changes = cluster.watch(come_and_go(cluster, self._running, self._new_member)) if options.changes else None
        await storm.rage()
        if changes is not None:
            changes.cancel()
        for node in (*self._servers, self._shop):
            if node.is_up:
                await node.ready()
        cluster.note("calm")
        self._gaps_s = CALM_GAPS_S
        await asyncio.sleep(CALM_S)
        await self._settle(self.rebalance_s)
        await self._rest()
        await self._change_in_calm()
        await self._drain()
        cluster.note("end", len(self.journal.acknowledged), sum(self.journal.consumed.values()))

    async def _rest(self) -> None:
        """Between the storm and the changes nothing happens but messages, and what is done then is done for good."""
        await asyncio.sleep(3)
        self._gaps_s = CALM_GAPS_S
        await asyncio.sleep(BROKER_BACK_S)

    async def _drain(self) -> None:
        """Stop sending, and wait until all is consumed."""
        await self._shop.stop()
        await self._until(self.journal.check_consumed, DRAIN_S)

    # --- Programs ---------------------------------------------------------------------------------------------------

    async def _sell(self, node: Node) -> None:
        """Sends without end; what is not acknowledged may be there or not."""
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            while not node.stopping.is_set():
                await self._send(node, producer)
                await asyncio.sleep(node.random.choice(self._gaps_s))
            await self._say_farewell(node, producer)

    async def _send(self, node: Node, producer: Producer, queue: MessageQueue | None = None) -> None:
        self._sent += 1
        body = b"%d" % self._sent
        message = self._message(node, body)
        self.deliveries.sent(body, not_before=self.cluster.loop.time() + self._delay_s(message))
        try:
            receipt = await producer.send(message, queue=queue)
        except TernError as error:
            self.cluster.note("not sent", body, type(error).__name__)
        else:
            self.journal.acknowledged[body] = self._place(message, receipt)
            self.deliveries.acknowledged(body)
            self.cluster.note("sent", body, str(receipt.queue), receipt.queue_offset)

    async def _say_farewell(self, node: Node, producer: Producer) -> None:
        """Nothing is sent after this."""

    def _message(self, node: Node, body: bytes) -> Message:
        return Message(TOPIC, body)

    def _delay_s(self, message: Message) -> float:
        return 0.0

    def _place(self, message: Message, receipt: SendReceipt) -> tuple[MessageQueue, int]:
        """Where consumers find it."""
        return receipt.queue, receipt.queue_offset

    async def _called(
        self, node: Node, messages: ReceivedMessage | list[ReceivedMessage], context: ConsumeContext
    ) -> ConsumeResult | None:
        """What a listener is called with."""
        batch = messages if isinstance(messages, list) else [messages]
        self._begin(node, context.queue, batch)
        try:
            return await self._listen(node, context, batch)
        finally:
            self._end(node, context.queue, batch)

    def _begin(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        member = self._members.get(node)
        try:
            self.deliveries.begin(node.name, queue, batch)
            if not self.orderly and member is not None and queue not in member.queues:
                raise Broken(f"{node.name} works on {queue}, which is not its own")
            if {message.topic for message in batch} != {TOPIC}:
                raise Broken(f"{node.name} was given messages of {queue} that do not name their topic")
        except Broken as error:
            self.fail(error)

    def _end(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        self.deliveries.end(node.name, queue, batch)

    def _died(self, node: Node) -> None:
        self._members.pop(node, None)
        self.deliveries.died(node.name)

    async def _listen(self, node: Node, context: ConsumeContext, batch: list[ReceivedMessage]) -> ConsumeResult | None:
        """What a listener does with messages."""
        options, chance, queue = self.options, node.random, context.queue
        keys = [message.body for message in batch]
        may_fail = all(self.journal.failed[key] < FAILURES_MAX for key in keys)
        if not self.orderly and may_fail and self._hangs < HANGS_MAX and chance.random() < options.hanging:
            self._hangs += 1
            self.journal.failed.update(keys)
            self.deliveries.failed(queue, batch, delay_s=HANG_S + RETRY_S[0])
            self.cluster.note("hangs", node.name, keys)
            # Its messages are given up, but the call never ends.
            self.deliveries.end(node.name, queue, batch)
            await asyncio.Event().wait()
        is_trapped = node is self._trapped
        if is_trapped:
            await self._trap.wait()
        if chance.random() < options.slow:
            await asyncio.sleep(chance.choice((0.05, 0.5, 3.0)))
        if may_fail and (is_trapped or chance.random() < options.failing):
            self.journal.failed.update(keys)
            self.deliveries.failed(queue, batch, delay_s=self._retry_s(batch))
            self.cluster.note("failed", node.name, keys)
            raise RuntimeError("this listener has a bad day")
        return self._decide(node, context, batch)

    def _decide(self, node: Node, context: ConsumeContext, batch: list[ReceivedMessage]) -> ConsumeResult | None:
        """All went well."""
        self._done(node, context.queue, batch)
        return None

    def _done(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        keys = [message.body for message in batch]
        self.journal.consumed.update(keys)
        self.deliveries.done(node.name, queue, batch)
        self.cluster.note("consumed", node.name, keys)

    def _retry_s(self, batch: list[ReceivedMessage]) -> float:
        """The shortest time until one of these comes again."""
        return RETRY_S[min(message.reconsume_times for message in batch)]

    async def _consume(self, node: Node) -> None:
        options = self.options
        node.on_death = partial(self._died, node)
        consumer = PushConsumer(
            GROUP,
            partial(self._called, node),
            client=node.client_config(),
            config=PushConfig(
                start=options.start,
                allocation=options.allocation,
                batch_max=options.batch_max,
                threads=options.threads,
                orderly=self.orderly,
                limits=options.limits,
                pull_count_max=options.pull_count_max,
                consume_timeout_ms=int(HANG_S * 1000),
            ),
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
        del self._members[node]
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
        """Those that read, and were not told to end."""
        nodes = self._all_members()
        return [node for node in nodes if node.is_up and not node.is_paused and not node.stopping.is_set()]

    # --- Changes when all is well -----------------------------------------------------------------------------------

    async def _change_in_calm(self) -> None:
        """The queues are divided anew within about a second of each change (G1), and all is well again."""
        random = self.cluster.random
        alone = [self._join, self._cut_off, self._isolate, self._restart_broker, self._restart_all]
        for _ in range(3):
            change = random.choice([*alone, self._leave, self._die] if len(self._running()) > 1 else alone)
            await self._settle(await change())
            await asyncio.sleep(random.choice((1.0, 3.0, 7.0)))

    async def _settle(self, within_s: float) -> None:
        since = self.cluster.loop.time()
        await self._until(self._check_owned_once, within_s)
        self.settled_s.append(self.cluster.loop.time() - since)
        self.cluster.note("all is well")
        self.deliveries.settle()
        self._gaps_s = STEADY_S

    def _disturb(self, back_s: float, leaving: Collection[str] = ()) -> None:
        self.deliveries.disturb(back_s=back_s, leaving=leaving)
        self._gaps_s = CALM_GAPS_S

    async def _join(self) -> float:
        self._disturb(self.handover_back_s)
        await self.cluster.start(self._new_member())
        return self.rebalance_s

    async def _leave(self) -> float:
        node = self.cluster.random.choice(self._running())
        # What a call that hangs has before it, is no progress.
        self._disturb(self.handover_back_s, leaving=() if self.options.hanging else [node.name])
        await node.stop()
        return self.rebalance_s

    async def _die(self) -> float:
        self._disturb(MEMBER_BACK_S)
        self.cluster.random.choice(self._running()).kill()
        return self.takeover_s

    async def _cut_off(self) -> float:
        """All connections of a member break; others may take its queues before it is back."""
        self._disturb(MEMBER_BACK_S)
        node = self.cluster.random.choice(self._running())
        self.cluster.note("cut off", node.name)
        for server in self._servers:
            self.cluster.network.reset(node.ip, server.ip)
        await asyncio.sleep(RECONNECT_S)
        return self.rebalance_s

    async def _isolate(self) -> float:
        """A member cannot reach any broker when its listener fails, so that no broker takes the messages back."""
        self._trapped, self._trap = self.cluster.random.choice(self._running()), asyncio.Event()
        await asyncio.sleep(1)
        self._disturb(MEMBER_BACK_S)
        self.cluster.note("isolated", self._trapped.name)
        self.cluster.network.partition([self._trapped.ip], [broker.ip for broker in self._brokers])
        self._trap.set()
        await asyncio.sleep(ISOLATED_S)
        # Nothing that it sent arrives later.
        for broker in self._brokers:
            self.cluster.network.reset(self._trapped.ip, broker.ip)
        self._trapped = None
        self.cluster.network.heal()
        await asyncio.sleep(RECOVERY_S)
        return self.rebalance_s

    async def _restart_broker(self) -> float:
        self._disturb(BROKER_BACK_S)
        broker = self.cluster.random.choice(self._brokers)
        broker.kill()
        await self.cluster.start(broker)
        await asyncio.sleep(RESTART_S)
        return self.rebalance_s

    async def _restart_all(self) -> float:
        """No member is left that would remember anything."""
        self._disturb(BROKER_BACK_S)
        members = self._running()
        for node in (*members, *self._brokers):
            node.kill()
        await self.cluster.start(*self._brokers)
        await self.cluster.start(*members)
        await asyncio.sleep(RESTART_S)
        return self.rebalance_s

    # --- What must hold -----------------------------------------------------------------------------------------------

    def fail(self, error: Broken) -> None:
        """For listeners, whose errors a consumer takes for a bad day."""
        self.cluster.loop.failures.append(error)

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

    async def _until(self, check: Callable[[], None], timeout_s: float) -> None:
        """Wait until a check raises nothing; when the time is over, whatever it raises."""
        end = self.cluster.loop.time() + timeout_s
        while True:
            self.cluster.loop.check()
            try:
                check()
                return
            except Broken as error:
                if self.cluster.loop.time() > end:
                    error.add_note(f"That is so after {timeout_s} s.")
                    raise
            await asyncio.sleep(max(0.05, timeout_s / 200))
