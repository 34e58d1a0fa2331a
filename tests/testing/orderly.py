"""One seed, one life of a group that consumes in order (F2); all else is as in ``groups``.

Always, whatever breaks:

- a message is begun only when each one before it in its queue was done, here or in another member;
- all that a group promises: nothing is lost, no progress passes undone work, queues have one owner in the end.

Some listeners decide later (``auto_commit`` off): what they took comes again until they have committed it, after each
rollback and with each change of hands, and no progress passes it.

As long as brokers live, which keep the locks in their memory: two members never work on one queue at the same time,
but for calls that last longer than 30 s. That is the time between the end of a member's trust in a lock that it could
not renew (30 s) and the end of the lock (60 s); a member that was paused for longer is found inside by its successor.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from ternmq import ConsumeContext, ConsumeResult, Producer
from ternmq.client.consume.config import FlowLimits
from ternmq.client.consume.locks import BROKER_S, TRUST_S
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.testing.checkers import Broken, Calls
from ternmq.testing.cluster import Node
from ternmq.testing.deliveries import Promises
from ternmq.testing.swarm import FaultKind
from tests.testing.groups import GroupSimulation
from tests.testing.options import Options

#: After this long a message that failed is tried again (``orderly_retry_ms``).
IN_PLACE_S: Final = 1.0


class OrderlySimulation(GroupSimulation):
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    orderly = True
    #: The old owner ends its call first, which takes 3 s at most.
    rebalance_s = 6.0
    #: The lock of a dead member runs out.
    takeover_s = BROKER_S + 6.0
    #: The lock is given back after the progress is stored.
    handover_back_s = 0.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._calls = Calls(trusted_s=BROKER_S - TRUST_S)
        self._has_restarted = False
        #: By member and queue: what it took and did not commit yet. None where each message is done at once.
        self._taken: dict[tuple[str, MessageQueue], list[ReceivedMessage]] | None = None

    def _choose(self, random: Random) -> Options:
        options = super()._choose(random)
        if random.random() < 0.3:
            self._taken = {}
            # Or nothing more would come before a commit that is never requested.
            return replace(options, limits=FlowLimits(), pull_count_max=32)
        return options

    def _promises(self) -> Promises:
        promises = super()._promises()
        # What was rolled back waits for a moment, and all behind it.
        return promises if self._taken is None else replace(promises, prompt=False)

    def _begin(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        self.cluster.note("begins", node.name, str(queue), batch[0].queue_offset)
        super()._begin(node, queue, batch)
        taken = self._taken_of(node, queue)
        # What comes again is not taken any more, and nothing behind it.
        taken[:] = [message for message in taken if message.queue_offset < batch[0].queue_offset]
        try:
            self.journal.check_order(queue, batch[0].queue_offset, but_for={message.body for message in taken})
            if not self._has_restarted and not {FaultKind.KILL_SERVER, FaultKind.CUT_POWER} & {
                *self.options.swarm.faults
            }:
                self._calls.begin(node.name, queue, self.cluster.loop.time())
        except Broken as error:
            self.fail(error)

    async def _say_farewell(self, node: Node, producer: Producer) -> None:
        """Who decides later is asked for the last time."""
        for queue in self._queues() if self._taken is not None else ():
            await self._send(node, producer, queue)

    def _taken_of(self, node: Node, queue: MessageQueue) -> list[ReceivedMessage]:
        return [] if self._taken is None else self._taken.setdefault((node.name, queue), [])

    def _decide(self, node: Node, context: ConsumeContext, batch: list[ReceivedMessage]) -> ConsumeResult | None:
        if self._taken is None:
            return super()._decide(node, context, batch)
        context.auto_commit = False
        taken = self._taken_of(node, context.queue)
        taken += batch
        dice = node.random.random()
        if dice < 0.3 or self._shop.stopping.is_set():
            self._done(node, context.queue, taken)
            taken.clear()
            return ConsumeResult.COMMIT
        if dice < 0.4:
            self.cluster.note("rolled back", node.name, str(context.queue), taken[0].queue_offset)
            taken.clear()
            return ConsumeResult.ROLLBACK
        return ConsumeResult.SUCCESS

    def _end(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        super()._end(node, queue, batch)
        self._calls.end(node.name, queue)

    def _died(self, node: Node) -> None:
        super()._died(node)
        for member, queue in list(self._taken or ()):
            if member == node.name:
                self._taken_of(node, queue).clear()
        self._calls.died(node.name)

    def _retry_s(self, batch: list[ReceivedMessage]) -> float:
        return IN_PLACE_S

    async def _restart_broker(self) -> float:
        self._has_restarted = True
        return await super()._restart_broker()
