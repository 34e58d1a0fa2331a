"""One seed, one life of a group of ``PopConsumer``s (F9, G1, H1); brokers, shop and storm are those of ``pops``.

Members come, leave and die. Their listeners are slow, fail, or hang for longer than messages are hidden. In some lives
the group pushes first, and what its listeners refuse then is there when it pops. Always, whatever breaks:

- every message that a broker took from its sender is consumed by the end.

As long as brokers live: no listener is called with a message that is hidden by a pop of another. When all is well, and
brokers have lived all the time:

- each member pops each broker, and one of them pulls the group's retries, within about a second of each change;
- a message comes within a second, if no listener is slow, and a message that is done never comes again;
- what a member held is consumed as soon as its invisible time is over.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from random import Random
from typing import Final

from ternmq import ConsumeContext, PopConsumer, PushConsumer
from ternmq.client.consume.config import PopConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.errors import TernError
from ternmq.message import MessageQueue, Property, ReceivedMessage
from ternmq.names import is_retry_topic
from ternmq.testing.checkers import Broken
from ternmq.testing.cluster import Node
from ternmq.testing.hidden import Span
from ternmq.testing.swarm import Storm, come_and_go
from ternmq.wire.handles import ALL_QUEUES, Handle
from tests.testing.pops import GROUP, TOPIC, PopSimulation

#: After the storm: until members have found again all that was lost (A2, A4, G1).
CALM_S: Final = 70.0
#: When all is well: until a change of members is known to all, and until a message has come.
SOON_S: Final = 1.2
#: A message fails this often at most; then it is hidden for 10 and for 30 s.
FAILURES_MAX: Final = 2
FAILED_S: Final = 45.0
#: How long the shop goes on when all is well.
QUIET_S: Final = 20.0


@dataclass(slots=True, frozen=True)
class Habits:
    """What differs from seed to seed, besides what does in ``pops``."""

    invisible_ms: int
    unsettled_max: int
    #: How often a listener takes its time, fails, or hangs for longer than it may.
    slow: float
    failing: float
    hanging: float
    #: Members come and go in good order, too.
    changes: bool
    #: The group pushes first.
    pushes: bool

    @classmethod
    def choose(cls, random: Random) -> Habits:
        return cls(
            invisible_ms=random.choice((5_000, 15_000, 60_000)),
            unsettled_max=random.choice((2, 16, 96)),
            slow=random.choice((0.0, 0.0, 0.1)),
            failing=random.choice((0.0, 0.0, 0.1)),
            hanging=random.choice((0.0, 0.0, 0.02)),
            changes=random.random() < 0.6,
            pushes=random.random() < 0.3,
        )

    @property
    def is_prompt(self) -> bool:
        """Whether no listener is a reason for being late."""
        return not self.slow and not self.failing and not self.hanging


class PopConsumerSimulation(PopSimulation):
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._consumers: dict[Node, PopConsumer] = {}
        #: What each member has in hand, for the case that it leaves.
        self._in_hand: dict[Node, list[Span]] = {}
        #: Since when all is well, in the brokers' time.
        self._quiet_ms = math.inf

    async def _begin(self) -> None:
        self.habits = Habits.choose(self.cluster.random)
        if self.habits.pushes:
            pusher = self.cluster.node("pusher", self._push)
            await self.cluster.start(pusher)
            await asyncio.sleep(3)
            await pusher.stop()

    async def _rage(self, storm: Storm) -> None:
        changes = (
            self.cluster.watch(come_and_go(self.cluster, self._running, self._new_member))
            if self.habits.changes
            else None
        )
        await storm.rage()
        if changes is not None:
            changes.cancel()

    async def _end(self) -> None:
        await self._until(self._is_shared, CALM_S)
        self._check_shared()
        self._quiet_ms = self.now_ms()
        await asyncio.sleep(QUIET_S)
        habits = self.habits
        # What a member had that died just now, and what its listener hung with or refused before.
        await self._drain(3 * habits.invisible_ms / 1000 + FAILURES_MAX * FAILED_S + 5.0)
        self._quiet_ms = math.inf
        await self._change_in_calm()
        # What was not acknowledged would come again.
        await asyncio.sleep(2 * habits.invisible_ms / 1000 + FAILED_S)
        self.cluster.loop.check()

    # --- Programs -----------------------------------------------------------------------------------------------------

    async def _push(self, node: Node) -> None:
        """A member of the time before: it refuses half of what it gets, to come again after a second."""

        async def refuse(message: ReceivedMessage, context: ConsumeContext) -> None:
            context.delay_level = 1
            if node.random.random() < 0.5:
                raise RuntimeError("not while we push")
            self.journal.consumed[message.body] += 1

        consumer = PushConsumer(GROUP, refuse, client=node.client_config(), start=StartPosition.FIRST, env=node.env)
        consumer.subscribe(TOPIC)
        async with consumer:
            node.is_ready()
            await node.stopping.wait()

    async def _member(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            await self._listen(node, message)

        config = PopConfig(
            start=StartPosition.FIRST,
            count_max=self.options.count_max,
            invisible_ms=self.habits.invisible_ms,
            unsettled_max=self.habits.unsettled_max,
            # A call that hangs or dies counts as a consumption; nothing shall be given up here.
            max_reconsume_times=10_000,
        )
        consumer = PopConsumer(GROUP, listen, client=node.client_config(), config=config, env=node.env)
        consumer.subscribe(TOPIC)
        # A member that is told to start when no broker answers tries until one does, as a supervisor would.
        while True:
            try:
                await consumer.__aenter__()
                break
            except TernError as error:
                self.cluster.note("not started", node.name, type(error).__name__)
                await asyncio.sleep(1)
        self._consumers[node] = consumer
        self._in_hand[node] = []
        node.is_ready()
        await node.stopping.wait()
        for span in self._in_hand[node]:
            # It gives back what it has.
            span.release(self.now_ms())
        await consumer.__aexit__(None, None, None)

    async def _listen(self, node: Node, message: ReceivedMessage) -> None:
        habits, random, body = self.habits, node.random, message.body
        self.cluster.note("begins", node.name, body, message.reconsume_times)
        span = self._took(node, message)
        if random.random() < habits.hanging:
            await asyncio.sleep(habits.invisible_ms / 1000 * 1.2)
        elif random.random() < habits.slow:
            await asyncio.sleep(random.choice((0.05, 0.5, 3.0)))
        if random.random() < habits.failing and self.journal.failed[body] < FAILURES_MAX:
            self.journal.failed[body] += 1
            self.cluster.note("failed", node.name, body)
            if span is not None:
                span.release(self.now_ms())
            raise RuntimeError("this listener has a bad day")
        self.journal.consumed[body] += 1
        self.cluster.note("consumed", node.name, body)
        if span is not None and self._quiet_ms < self.now_ms() < span.end_ms:
            # The ack is sent in a moment, and nothing can keep it from arriving.
            self._hidden.done(body, self.now_ms())

    def _took(self, node: Node, message: ReceivedMessage) -> Span | None:
        """Check a message that a listener is called with; None for one that was pulled."""
        body, now_ms = message.body, self.now_ms()
        text = message.properties.get(Property.POP_CHECKPOINT)
        if text is None:
            if not self.habits.pushes:
                self.fail(Broken(f"{body!r} was sent back, although no member pushes"))
            return None
        handle = Handle.parse(text)
        self.check_sent(body, handle)
        if self._is_prompt and self._quiet_ms < self._sent_ms[body] < now_ms - SOON_S * 1000:
            self.fail(Broken(f"{body!r} came {now_ms - self._sent_ms[body]} ms after it was sent, without faults"))
        span = self.hide(body, handle)
        self._in_hand.setdefault(node, []).append(span)
        return span

    @property
    def _is_prompt(self) -> bool:
        return self._remembers and self.habits.is_prompt

    # --- Members ------------------------------------------------------------------------------------------------------

    def _running(self) -> list[Node]:
        return [node for node in self._members() if node.is_up and not node.is_paused]

    async def _change_in_calm(self) -> None:
        """Without faults, all members soon know what to pop, and one pulls the retries (G1)."""
        for _ in range(2):
            running = [node for node in self._running() if node in self._consumers]
            match self.cluster.random.randrange(3):
                case 0 if len(running) > 1:
                    self.cluster.random.choice(running).kill()
                case 1 if len(running) > 1:
                    await self.cluster.random.choice(running).stop()
                case _:
                    await self.cluster.start(self._new_member())
            await self._until(self._is_shared, SOON_S, step_s=0.05)
            self._check_shared()

    def _check_shared(self) -> None:
        """Each member pops each broker, and the retries of each broker are one member's."""
        brokers = {MessageQueue(TOPIC, broker.name, ALL_QUEUES) for broker in self._brokers}
        pulling: list[str] = []
        for node in self._running():
            queues = self._consumers[node].queues if node in self._consumers else []
            popped = {queue for queue in queues if not is_retry_topic(queue.topic)}
            if popped != brokers:
                raise Broken(f"{node.name} pops {sorted(popped)} instead of {sorted(brokers)}")
            pulling += [queue.broker_name for queue in queues if is_retry_topic(queue.topic)]
        if self._running() and sorted(pulling) != sorted(broker.name for broker in self._brokers):
            raise Broken(f"the group's retries are pulled from {sorted(pulling)}, once too often or not at all")

    def _is_shared(self) -> bool:
        with contextlib.suppress(Broken):
            self._check_shared()
            return True
        return False
