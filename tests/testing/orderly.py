"""One seed, one life of a group that consumes in order (F2); all else is as in ``groups``.

Always, whatever breaks:

- a message is begun only when each one before it in its queue was done, here or in another member;
- all that a group promises: nothing is lost, no progress passes undone work, queues have one owner in the end.

As long as brokers live, which keep the locks in their memory: two members never work on one queue at the same time,
but for calls that last longer than 30 s. That is the time between the end of a member's trust in a lock that it could
not renew (30 s) and the end of the lock (60 s); a member that was paused for longer is found inside by its successor.
"""

from __future__ import annotations

from typing import Final

from ternmq.client.locks import BROKER_S, TRUST_S
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.testing.checkers import Broken, Calls
from ternmq.testing.cluster import Node
from ternmq.testing.swarm import Fault
from tests.testing.groups import GroupSimulation

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

    def _begin(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        self.cluster.note("begins", node.name, str(queue), batch[0].queue_offset)
        super()._begin(node, queue, batch)
        try:
            self.journal.check_order(queue, batch[0].queue_offset)
            if not self._has_restarted and not {Fault.KILL_SERVER, Fault.CUT_POWER} & {*self.options.swarm.faults}:
                self._calls.begin(node.name, queue, self.cluster.loop.time())
        except Broken as error:
            self.fail(error)

    def _end(self, node: Node, queue: MessageQueue, batch: list[ReceivedMessage]) -> None:
        super()._end(node, queue, batch)
        self._calls.end(node.name, queue)

    def _died(self, node: Node) -> None:
        super()._died(node)
        self._calls.died(node.name)

    def _retry_s(self, batch: list[ReceivedMessage]) -> float:
        return IN_PLACE_S

    async def _restart_broker(self) -> float:
        self._has_restarted = True
        return await super()._restart_broker()
