"""One seed, one life of a group that pops (F9): brokers hand out messages and hide them for a while.

Poppers ask all brokers in turn, on the wire, without a client in between. Some acknowledge at once, some later than
they may, some change the time and some forget; they die, are paused and cut off. Always, whatever breaks:

- every message that a broker took from its sender is acknowledged by a popper in the end, or was at least handed out;
- no message is popped, by its handle, before it was sent: its invisible time would be over too early;
- in groups that pop in order, a message is handed out only when each one before it in its queue was acknowledged.

As long as brokers live (what they hide is in their memory for some seconds):

- no member gets a message while it is hidden: popped by one, and neither acknowledged nor given up, nor its time over;
  nor, in order, any other message of that queue, except a member that repeats an attempt whose reply was lost;
- a message whose acknowledgement was answered in time never comes again, but in order with one before it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ternmq import Admin, Message, Producer, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import TernError
from ternmq.message import MessageQueue
from ternmq.testing.checkers import Broken, Journal
from ternmq.testing.clock import EPOCH_MS
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.hidden import Hidden, Span
from ternmq.testing.loop import BEGIN_S, simulated_loop
from ternmq.testing.swarm import FaultKind, Storm, Swarm
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import ALL_QUEUES, Handle
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
    members: int
    #: The group pops in order.
    ordered: bool
    retry_v2: bool
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
            members=random.choice((1, 2, 4)),
            ordered=random.random() < 0.3,
            retry_v2=random.random() < 0.3,
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
        self._hidden = Hidden()
        #: When the sender began to send each message.
        self._sent_ms: dict[bytes, int] = {}
        self.is_calm = False

    def run(self) -> None:
        with simulated_loop() as loop:
            self.cluster = Cluster(loop, self.seed)
            self.trace = self.cluster.trace
            self.options = Options.choose(self.cluster.random)
            #: Whether brokers know at any time what they have handed out.
            self._remembers = not {FaultKind.KILL_SERVER, FaultKind.CUT_POWER} & {*self.options.swarm.faults}
            loop.run_until_complete(self._live())
            loop.check()

    async def _live(self) -> None:
        options, cluster = self.options, self.cluster
        name_server = cluster.name_server()
        flush = "SYNC_FLUSH" if options.swarm.sync_flush else "ASYNC_FLUSH"
        self._brokers = [
            cluster.broker(f"broker-{'abc'[number]}", flushDiskType=flush, **self._broker_settings())
            for number in range(options.brokers)
        ]
        await cluster.start(name_server)
        await cluster.start(*self._brokers)
        self._shop = cluster.node("shop", self._sell)
        await cluster.start(self._shop)
        await self._begin()
        await cluster.start(*(self._new_member() for _ in range(options.members)))
        storm = Storm(cluster, options.swarm, servers=self._brokers, clients=lambda: [self._shop, *self._members()])
        await self._rage(storm)
        for node in cluster.nodes.values():
            if node.is_up:
                await node.ready()
        cluster.note("calm")
        self.is_calm = True
        await self._end()
        cluster.note("end", len(self.journal.acknowledged), sum(self.journal.consumed.values()))

    # --- The story, which another kind of member may have another of ----------------------------------------------

    def _broker_settings(self) -> dict[str, Any]:
        return {"enableRetryTopicV2": self.options.retry_v2}

    async def _begin(self) -> None:
        """Before the first member comes."""

    async def _rage(self, storm: Storm) -> None:
        await storm.rage()

    async def _end(self) -> None:
        """When all is mended."""
        await self._drain(DRAIN_S)

    async def _member(self, node: Node) -> None:
        """The program of a member: here, one that pops by itself."""
        async with ClientInstance(node.client_config(), env=node.env) as instance:
            node.is_ready()
            popper = _Popper(self, node, instance)
            while not node.stopping.is_set():
                try:
                    await instance.routes.of(TOPIC)
                    for broker in self._brokers:
                        await popper.pop(broker)
                except TernError as error:
                    self.cluster.note("failed", node.name, type(error).__name__)
                    await asyncio.sleep(1)

    # --- Members and the shop -----------------------------------------------------------------------------------------

    def _new_member(self) -> Node:
        return self.cluster.node(f"member-{len(self.cluster.nodes)}", self._member)

    def _members(self) -> list[Node]:
        return [node for node in self.cluster.nodes.values() if node.name.startswith("member")]

    async def _sell(self, node: Node) -> None:
        """Sends without end, each message once: what is stored twice would be handed out twice."""
        async with Admin(config=node.client_config(), env=node.env) as admin:
            with contextlib.suppress(TernError):
                await admin.topics.create(TOPIC, queues=self.options.queues)
        config = ProducerConfig(retries=0)
        async with Producer("shop", client=node.client_config(), config=config, env=node.env) as producer:
            node.is_ready()
            while not node.stopping.is_set():
                body = b"%d" % (len(self._sent_ms) + 1)
                self._sent_ms[body] = self.now_ms()
                with contextlib.suppress(TernError):
                    receipt = await producer.send(Message(TOPIC, body))
                    self.journal.acknowledged[body] = receipt.queue, receipt.queue_offset
                    self.cluster.note("sent", body, str(receipt.queue), receipt.queue_offset)
                await asyncio.sleep(node.random.choice((0.01, 0.1, 0.5)))

    # --- What must hold -----------------------------------------------------------------------------------------------

    def check_sent(self, key: bytes, handle: Handle) -> None:
        """A message that a member has must have been sent before it was popped."""
        if handle.pop_time_ms < self._sent_ms[key]:
            self.fail(Broken(f"{key!r} is hidden from a time on when it was not sent yet"))

    def hide(self, key: Hashable, handle: Handle, *, is_own: bool = False) -> Span:
        """A message or queue is hidden, by an answer that may have been on its way for long.

        ``is_own``: by the member that hides it already.
        """
        begin_ms, end_ms = hidden_ms(handle)
        try:
            if self._remembers and not is_own:
                return self._hidden.take(key, begin_ms, end_ms)
        except Broken as error:
            self.fail(error)
        return self._hidden.hide(key, begin_ms, end_ms)

    def done(self, key: bytes, handle: Handle) -> None:
        """A broker has answered that a message is done."""
        if (now_ms := self.now_ms()) < hidden_ms(handle)[1] and not self.options.ordered:
            self._hidden.done(key, now_ms)

    def now_ms(self) -> int:
        """The brokers' time, whose clocks are right."""
        return EPOCH_MS + int((self.cluster.loop.time() - BEGIN_S) * 1000)

    def fail(self, error: Broken) -> None:
        """For programs, whose own errors may be taken for a bad day."""
        self.cluster.loop.failures.append(error)

    async def _drain(self, timeout_s: float) -> None:
        """Stop sending, and wait until all is consumed."""
        await self._shop.stop()
        await self._until(lambda: not self.journal.missing, timeout_s)
        self.journal.check_consumed()

    async def _until(self, holds: Callable[[], bool], timeout_s: float, *, step_s: float = 0.5) -> None:
        end = self.cluster.loop.time() + timeout_s
        while not holds() and self.cluster.loop.time() < end:
            await asyncio.sleep(step_s)
            self.cluster.loop.check()


class _Popper:
    """A member that asks for messages and says what became of them, on the wire."""

    def __init__(self, simulation: PopSimulation, node: Node, instance: ClientInstance) -> None:
        self._simulation = simulation
        self._options = simulation.options
        self._journal = simulation.journal
        self._node = node
        self._instance = instance
        self._attempts = 0

    async def pop(self, broker: Node) -> None:
        options, node = self._options, self._node
        wish = PopMessage(
            consumer_group=GROUP,
            topic=TOPIC,
            queue_id=ALL_QUEUES,
            count_max=options.count_max,
            invisible_ms=options.invisible_ms,
            poll_ms=1_000,
            born_time_ms=node.clock.now_ms(),
            order=options.ordered,
            # The same until it is answered: a member that lost the reply gets the same again.
            attempt_id=f"{node.name}-{node.starts}-{broker.name}-{self._attempts}",
        )
        instance = self._instance
        response = await instance.call_broker(broker.name, RequestCode.POP_MESSAGE, wish, timeout_ms=2 * CALL_MS)
        self._attempts += 1
        popped = messages(response, GROUP, TOPIC, broker.name)
        spans = self._take(broker, popped)
        for message, span in zip(popped, spans, strict=True):
            await self._settle(broker, message, span)

    def _take(self, broker: Node, popped: Sequence[Popped]) -> list[Span]:
        simulation = self._simulation
        spans: list[Span] = []
        begun: set[MessageQueue] = set()
        for message in popped:
            simulation.cluster.note("popped", self._node.name, message.body, message.record.reconsume_times)
            simulation.check_sent(message.body, message.handle)
            if not self._options.ordered:
                spans.append(simulation.hide(message.body, message.handle))
                continue
            queue = MessageQueue(TOPIC, broker.name, message.handle.queue_id)
            spans.append(simulation.hide(queue, message.handle, is_own=queue in begun))
            if queue not in begun:
                begun.add(queue)
                try:
                    self._journal.check_order(queue, message.handle.queue_offset)
                except Broken as error:
                    simulation.fail(error)
        return spans

    async def _settle(self, broker: Node, message: Popped, span: Span) -> None:
        options, random, simulation = self._options, self._node.random, self._simulation
        chance = 0.5 if simulation.is_calm else random.random()
        if chance < options.forgetful:
            return
        if chance < options.forgetful + options.late:
            await asyncio.sleep(options.invisible_ms / 1000 * random.choice((0.5, 0.99, 1.01, 1.5)))
        if chance > 1 - options.changing:
            message, span = await self._change(broker, message, span)
        header = AckMessage(
            consumer_group=GROUP,
            topic=message.real_topic,
            queue_id=message.handle.queue_id,
            extra_info=message.handle.text,
            queue_offset=message.handle.queue_offset,
        )
        # Before the question: once it is asked, it may count.
        self._journal.consumed[message.body] += 1
        span.release(simulation.now_ms())
        address = self._instance.broker_address(broker.name)
        await self._instance.ask(address, RequestCode.ACK_MESSAGE, header, timeout_ms=CALL_MS)
        simulation.cluster.note("acknowledged", self._node.name, message.body)
        simulation.done(message.body, message.handle)

    async def _change(self, broker: Node, message: Popped, span: Span) -> tuple[Popped, Span]:
        header = ChangeInvisibleTime(
            consumer_group=GROUP,
            topic=message.real_topic,
            queue_id=message.handle.queue_id,
            extra_info=message.handle.text,
            queue_offset=message.handle.queue_offset,
            invisible_ms=self._node.random.choice((1_000, 10_000)),
        )
        # Its time may be shorter from now on, whether the answer arrives or not.
        asked_ms = self._simulation.now_ms()
        span.release(asked_ms)
        address = self._instance.broker_address(broker.name)
        code = RequestCode.CHANGE_MESSAGE_INVISIBLETIME
        response = await self._instance.ask(address, code, header, timeout_ms=CALL_MS)
        if self._simulation.now_ms() >= hidden_ms(message.handle)[1]:
            # In order, that is answered as if it counted.
            return message, span
        message = message.changed(response.read(ChangeInvisibleTimeReply))
        if hidden_ms(message.handle)[1] < asked_ms + header.invisible_ms:
            self._simulation.fail(Broken(f"the changed time of {message.body!r} does not count from the change"))
        queue = MessageQueue(TOPIC, broker.name, message.handle.queue_id)
        key = queue if self._options.ordered else message.body
        return message, self._simulation.hide(key, message.handle, is_own=True)


def hidden_ms(handle: Handle) -> tuple[int, int]:
    """From when to when its message is hidden."""
    return handle.pop_time_ms, handle.pop_time_ms + handle.invisible_ms
