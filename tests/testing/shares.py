"""One seed, one life of a group of ``ShareConsumer``s (R1–R3, H1); brokers, shop and storm are those of ``pops``.

Members come, leave and die, and start again under their names. Their listeners are slow, fail, or hang for longer than
they may. Brokers are killed and lose power between any two steps. Always, whatever breaks:

- every message that a broker took from its sender is consumed by the end.

When all is well, and brokers have lived all the time:

- each member takes messages of each broker, within about a second of each change;
- a message comes within a second, if no listener is slow, and a message that is done never comes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from ternmq import ShareConsumer
from ternmq.client.consume.config import ShareConfig
from ternmq.client.consume.offsets import StartPosition
from ternmq.errors import TernError
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import is_retry_topic
from ternmq.testing.checkers import Broken
from ternmq.testing.cluster import Node
from ternmq.testing.swarm import Storm, come_and_go
from ternmq.wire.handles import ALL_QUEUES
from tests.testing.pops import GROUP, TOPIC, PopSimulation

#: After the storm: until members have found again all that was lost (A2, A4, G1).
CALM_S: Final = 70.0
#: When all is well: until a message has come.
SOON_S: Final = 1.2
#: A message fails this often at most; then it waits for a few seconds.
FAILURES_MAX: Final = 2
FAILED_S: Final = 10.0
#: In an ordered group messages without a key wait for each other: for all listeners that are slow or hang.
ONE_BY_ONE_S: Final = 300.0
#: How long the shop goes on when all is well.
QUIET_S: Final = 20.0


@dataclass(slots=True, frozen=True)
class Habits:
    """What differs from seed to seed, besides what does in ``pops``."""

    offline_ms: int
    hold_ms: int
    unsettled_max: int
    #: Messages of one key are held by one consumer at a time.
    ordered: bool
    #: Consumers have names of their own, and keep them.
    named: bool
    #: How often a listener takes its time, fails, or hangs for longer than it may.
    slow: float
    failing: float
    hanging: float
    #: Members come and go in good order, too.
    changes: bool

    @classmethod
    def choose(cls, random: Random) -> Habits:
        return cls(
            offline_ms=random.choice((15_000, 60_000)),
            hold_ms=random.choice((0, 5_000, 60_000)),
            unsettled_max=random.choice((2, 16, 96)),
            ordered=random.random() < 0.3,
            named=random.random() < 0.5,
            slow=random.choice((0.0, 0.0, 0.1)),
            failing=random.choice((0.0, 0.0, 0.1)),
            hanging=random.choice((0.0, 0.0, 0.02)),
            changes=random.random() < 0.6,
        )

    @property
    def hanging_s(self) -> float:
        """How long a listener hangs: longer than it may. An ordered group has no limit, and waits for each."""
        return (5_000 if self.ordered or not self.hold_ms else self.hold_ms) / 1000 * 1.2

    @property
    def is_prompt(self) -> bool:
        """Whether no listener is a reason for being late."""
        return not self.slow and not self.failing and not self.hanging


class ShareConsumerSimulation(PopSimulation):
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._consumers: dict[Node, ShareConsumer] = {}
        #: Since when all is well, in the brokers' time.
        self._quiet_ms = math.inf
        #: What was done since then.
        self._done: set[bytes] = set()

    def _broker_settings(self) -> dict[str, Any]:
        self.habits = Habits.choose(self.cluster.random)
        return {
            "shareOfflineTime": self.habits.offline_ms,
            "shareGoneTime": 2 * self.habits.offline_ms,
            # What is lost again and again shall not wait for hours.
            "messageDelayLevel": "1s 2s 3s 4s 5s 5s 5s 5s 5s 5s 5s 5s 5s 5s 5s 5s 5s 5s",
        }

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
        if not self._running():
            await self.cluster.start(self._new_member())
        await self._until(self._is_shared, CALM_S)
        self._check_shared()
        habits = self.habits
        # What members held that died in the storm is written again for others.
        await asyncio.sleep(habits.offline_ms / 1000 + 20.0)
        self._quiet_ms = self.now_ms()
        await asyncio.sleep(QUIET_S)
        wait_s = (habits.offline_ms + 3 * habits.hold_ms) / 1000 + (ONE_BY_ONE_S if habits.ordered else 0)
        await self._drain(wait_s + FAILURES_MAX * FAILED_S + 60.0)

    # --- Programs -----------------------------------------------------------------------------------------------------

    async def _member(self, node: Node) -> None:
        async def listen(message: ReceivedMessage) -> None:
            await self._listen(node, message)

        habits = self.habits
        config = ShareConfig(
            start=StartPosition.FIRST,
            consumer=node.name if habits.named else "",
            count_max=self.options.count_max,
            hold_ms=habits.hold_ms,
            ordered=habits.ordered,
            unsettled_max=habits.unsettled_max,
            # A call that hangs or dies counts as a consumption; nothing shall be given up here.
            max_reconsume_times=10_000,
        )
        consumer = ShareConsumer(GROUP, listen, client=node.client_config(), config=config, env=node.env)
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
        node.is_ready()
        await node.stopping.wait()
        await consumer.__aexit__(None, None, None)

    async def _listen(self, node: Node, message: ReceivedMessage) -> None:
        habits, random, body = self.habits, node.random, message.body
        self.cluster.note("begins", node.name, body, message.reconsume_times)
        now_ms = self.now_ms()
        if body in self._done:
            self.fail(Broken(f"{body!r} is done, and comes again, without faults"))
        is_prompt = self._remembers and habits.is_prompt
        if is_prompt and self._quiet_ms < self._sent_ms[body] < now_ms - SOON_S * 1000:
            self.fail(Broken(f"{body!r} came {now_ms - self._sent_ms[body]} ms after it was sent, without faults"))
        if random.random() < habits.hanging:
            await asyncio.sleep(habits.hanging_s)
        elif random.random() < habits.slow:
            await asyncio.sleep(random.choice((0.05, 0.5, 3.0)))
        if random.random() < habits.failing and self.journal.failed[body] < FAILURES_MAX:
            self.journal.failed[body] += 1
            self.cluster.note("failed", node.name, body)
            raise RuntimeError("this listener has a bad day")
        self.journal.consumed[body] += 1
        self.cluster.note("consumed", node.name, body)
        if is_prompt and self._sent_ms[body] > self._quiet_ms:
            self._done.add(body)

    # --- Members ------------------------------------------------------------------------------------------------------

    def _running(self) -> list[Node]:
        return [node for node in self._members() if node.is_up and not node.is_paused]

    def _check_shared(self) -> None:
        """Each member takes messages of each broker."""
        brokers = {MessageQueue(TOPIC, broker.name, ALL_QUEUES) for broker in self._brokers}
        for node in self._running():
            queues = self._consumers[node].queues if node in self._consumers else []
            shared = {queue for queue in queues if not is_retry_topic(queue.topic)}
            if shared != brokers:
                raise Broken(f"{node.name} takes messages of {sorted(shared)} instead of {sorted(brokers)}")

    def _is_shared(self) -> bool:
        with contextlib.suppress(Broken):
            self._check_shared()
            return True
        return False
