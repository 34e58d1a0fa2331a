"""One seed, one life of a group that consumes in order (F2); all else is as in ``groups``.

Always, whatever breaks:

- a message is begun only when each one before it in its queue was done, here or in another member;
- all that a group promises: nothing is lost, no progress passes undone work, queues have one owner in the end.

As long as brokers live, which keep the locks in their memory: two members never work on one queue at the same time,
but for calls that last longer than 30 s. That is the time between the end of a member's trust in a lock that it could
not renew (30 s) and the end of the lock (60 s); a member that was paused for longer is found inside by its successor.
"""

from __future__ import annotations

from ternmq.client.locks import BROKER_S, TRUST_S
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.testing.checkers import Broken, Calls
from ternmq.testing.cluster import Node
from ternmq.testing.swarm import Fault
from tests.testing.groups import GroupSimulation


class OrderlySimulation(GroupSimulation):
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    orderly = True
    #: The old owner ends its call first, which takes 3 s at most.
    rebalance_s = 6.0
    #: The lock of a dead member runs out.
    takeover_s = BROKER_S + 6.0

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self._calls = Calls(trusted_s=BROKER_S - TRUST_S)

    async def _listen(self, node: Node, batch: list[ReceivedMessage]) -> None:
        first = batch[0]
        queue = MessageQueue(first.topic, first.broker_name, first.queue_id)
        self.cluster.note("begins", node.name, str(queue), first.queue_offset)
        node.on_death = lambda: self._calls.died(node.name)
        try:
            self.journal.check_order(queue, first.queue_offset)
            if not {Fault.KILL_SERVER, Fault.CUT_POWER} & {*self.options.swarm.faults}:
                self._calls.begin(node.name, queue, self.cluster.loop.time())
        except Broken as error:
            self.fail(error)
        try:
            await super()._listen(node, batch)
        finally:
            self._calls.end(node.name, queue)
