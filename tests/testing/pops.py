"""One seed, one life of a group that pops (F9): brokers hand out messages and hide them for a while.

Poppers ask all brokers in turn, on the wire, without a client in between. Some acknowledge at once, some later than
they may, some change the time and some forget; they die, are paused and cut off. Always, whatever breaks:

- every message that a broker took from its sender is acknowledged by a popper in the end, or was at least handed out.

As long as brokers live (what they hide is in their memory for some seconds):

- nobody gets a message while it is hidden: popped by one, and neither acknowledged nor given up, nor its time over;
- a message whose acknowledgement was answered in time never comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final

from ternmq import Admin, Message, Producer, ProducerConfig
from ternmq.client.instance import ClientInstance
from ternmq.errors import TernError
from ternmq.testing.checkers import Broken, Journal
from ternmq.testing.clock import EPOCH_MS
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.loop import BEGIN_S, simulated_loop
from ternmq.testing.swarm import Fault, Storm, Swarm
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeReply, PopMessage
from tests.broker.popping import Popped, messages

TOPIC: Final = "orders"
GROUP: Final = "poppers"
#: Until all is consumed: a message that was popped and forgotten comes again after its time, and again.
DRAIN_S: Final = 300.0
CALL_MS: Final = 3_000


@dataclass(slots=True, frozen=True)
class Options:
    """What differs from seed to seed, besides the storm."""

    swarm: Swarm
    brokers: int
    queues: int
    poppers: int
    invisible_ms: int
    count_max: int
    #: How often a popper forgets a message, acknowledges it late, or changes its time.
    forgetful: float
    late: float
    changing: float

    @classmethod
    def choose(cls, random: Random) -> Options:
        return cls(
            swarm=Swarm.choose(random),
            brokers=random.choice((1, 1, 2)),
            queues=random.choice((1, 2, 4)),
            poppers=random.choice((1, 2, 4)),
            invisible_ms=random.choice((1_000, 5_000, 15_000)),
            count_max=random.choice((1, 3, 16)),
            forgetful=random.choice((0.0, 0.1)),
            late=random.choice((0.0, 0.1)),
            changing=random.choice((0.0, 0.1)),
        )


class PopSimulation:
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.journal = Journal()
        self.trace: list[tuple[object, ...]] = []
        #: From when to when a message was hidden, in ms of the brokers' time; by body.
        self._hidden: dict[bytes, list[tuple[int, int]]] = {}
        #: When it was acknowledged for good.
        self._done_ms: dict[bytes, int] = {}
        self._sent = 0
        self._is_calm = False

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.options = Options.choose(self.cluster.random)
            self._remembers = not {Fault.KILL_SERVER, Fault.CUT_POWER} & {*self.options.swarm.faults}
            loop.run_until_complete(self._live())
            loop.check()

    async def _live(self) -> None:
        options, cluster = self.options, self.cluster
        name_server = cluster.name_server()
        flush = "SYNC_FLUSH" if options.swarm.sync_flush else "ASYNC_FLUSH"
        self._brokers = [cluster.broker(f"broker-{'abc'[n]}", flushDiskType=flush) for n in range(options.brokers)]
        await cluster.start(name_server)
        await cluster.start(*self._brokers)
        self._shop = cluster.node("shop", self._sell)
        await cluster.start(self._shop)
        poppers = [cluster.node(f"popper-{number}", self._pop_forever) for number in range(options.poppers)]
        await cluster.start(*poppers)
        clients = [self._shop, *poppers]
        await Storm(cluster, options.swarm, servers=self._brokers, clients=lambda: clients).rage()
        for node in cluster.nodes.values():
            await node.ready()
        cluster.note("calm")
        self._is_calm = True
        await self._shop.stop()
        await self._until(lambda: not self.journal.missing, DRAIN_S)
        cluster.note("end", len(self.journal.acknowledged), sum(self.journal.consumed.values()))

    # --- Programs -----------------------------------------------------------------------------------------------------

    async def _sell(self, node: Node) -> None:
        """Sends without end, each message once: what is stored twice would be handed out twice."""
        async with Admin(config=node.client_config(), env=node.env) as admin:
            with contextlib.suppress(TernError):
                await admin.topics.create(TOPIC, queues=self.options.queues)
        config = ProducerConfig(retries=0)
        async with Producer("shop", client=node.client_config(), config=config, env=node.env) as producer:
            node.is_ready()
            while not node.stopping.is_set():
                self._sent += 1
                body = b"%d" % self._sent
                with contextlib.suppress(TernError):
                    receipt = await producer.send(Message(TOPIC, body))
                    self.journal.acknowledged[body] = receipt.queue, receipt.queue_offset
                    self.cluster.note("sent", body, str(receipt.queue), receipt.queue_offset)
                await asyncio.sleep(node.random.choice((0.01, 0.1, 0.5)))

    async def _pop_forever(self, node: Node) -> None:
        async with ClientInstance(node.client_config(), env=node.env) as instance:
            node.is_ready()
            while not node.stopping.is_set():
                try:
                    await instance.routes.of(TOPIC)
                    for broker in self._brokers:
                        await self._pop(node, instance, broker)
                except TernError as error:
                    self.cluster.note("failed", node.name, type(error).__name__)
                    await asyncio.sleep(1)

    async def _pop(self, node: Node, instance: ClientInstance, broker: Node) -> None:
        wish = PopMessage(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=ALL_QUEUES,
            count_max=self.options.count_max,
            invisible_ms=self.options.invisible_ms,
            poll_ms=1_000,
            born_time_ms=node.clock.now_ms(),
        )
        response = await instance.call_broker(broker.name, RequestCode.POP_MESSAGE, wish, timeout_ms=2 * CALL_MS)
        popped = messages(response, GROUP, TOPIC, broker.name)
        for message in popped:
            self._take(node, message)
        for message in popped:
            await self._settle(node, instance, broker, message)

    def _take(self, node: Node, message: Popped) -> None:
        """Note that a popper has a message; its answer may have been on its way for long."""
        self.cluster.note("popped", node.name, message.body, message.record.reconsume_times)
        begin_ms, end_ms = _hidden_ms(message)
        if self._remembers:
            done_ms = self._done_ms.get(message.body)
            if done_ms is not None and done_ms < begin_ms:
                self._fail(f"{message.body!r} is handed out, though its acknowledgement was answered before")
            for other_begin_ms, other_end_ms in self._hidden.get(message.body, ()):
                if max(begin_ms, other_begin_ms) < min(end_ms, other_end_ms):
                    self._fail(f"{message.body!r} is handed out twice within {abs(begin_ms - other_begin_ms)} ms")
        self._hidden.setdefault(message.body, []).append((begin_ms, end_ms))

    async def _settle(self, node: Node, instance: ClientInstance, broker: Node, message: Popped) -> None:
        options, chance = self.options, 0.5 if self._is_calm else node.random.random()
        if chance < options.forgetful:
            return
        if chance < options.forgetful + options.late:
            await asyncio.sleep(self.options.invisible_ms / 1000 * node.random.choice((0.5, 0.99, 1.01, 1.5)))
        if chance > 1 - options.changing:
            message = await self._change(node, instance, broker, message)
        header = AckMessage(
            consumer_group=GROUP,
            topic=message.real_topic,
            queue_id=message.handle.queue_id,
            extra_info=message.handle.text,
            queue_offset=message.handle.queue_offset,
        )
        # Before the question: once it is answered, it may count.
        self.journal.consumed[message.body] += 1
        await instance.ask(instance.broker_address(broker.name), RequestCode.ACK_MESSAGE, header, timeout_ms=CALL_MS)
        if (now_ms := self._now_ms()) < _hidden_ms(message)[1]:
            self._done_ms[message.body] = now_ms
            self.cluster.note("acknowledged", node.name, message.body)

    async def _change(self, node: Node, instance: ClientInstance, broker: Node, message: Popped) -> Popped:
        header = ChangeInvisibleTime(
            consumer_group=GROUP,
            topic=message.real_topic,
            queue_id=message.handle.queue_id,
            extra_info=message.handle.text,
            queue_offset=message.handle.queue_offset,
            invisible_ms=node.random.choice((1_000, 10_000)),
        )
        # Its time may be shorter from now on, whether the answer arrives or not.
        self._hidden[message.body] = [(begin, min(end, self._now_ms())) for begin, end in self._hidden[message.body]]
        address = instance.broker_address(broker.name)
        response = await instance.ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, timeout_ms=CALL_MS)
        message = message.changed(response.read(ChangeInvisibleTimeReply))
        self._hidden[message.body].append(_hidden_ms(message))
        return message

    # --- What must hold -----------------------------------------------------------------------------------------------

    def _now_ms(self) -> int:
        """The brokers' time, whose clocks are right."""
        return EPOCH_MS + int((self.cluster.loop.time() - BEGIN_S) * 1000)

    def _fail(self, what: str) -> None:
        self.cluster.loop.failures.append(Broken(what))

    async def _until(self, holds: Callable[[], bool], timeout_s: float) -> None:
        end = self.cluster.loop.time() + timeout_s
        while not holds() and self.cluster.loop.time() < end:
            await asyncio.sleep(0.5)
            self.cluster.loop.check()
        self.journal.check_consumed()


def _hidden_ms(message: Popped) -> tuple[int, int]:
    return message.handle.pop_time_ms, message.handle.pop_time_ms + message.handle.invisible_ms
