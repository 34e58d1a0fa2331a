"""One seed, one life of a group whose messages come later (I1, I3, H1); all else is as in ``groups``.

A third of the messages has no delay, the others one of the first levels, 1 s to 1 min. Always, whatever breaks:

- no message reaches a listener before its time, counted from when its sender began to send it;
- each one that was acknowledged is consumed by the end, though brokers are killed in between.

When all is well, it comes within a second of its time.
"""

from __future__ import annotations

from typing import Final

from ternmq import Message, SendReceipt
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.testing.checkers import Broken
from ternmq.testing.cluster import Node
from tests.testing.groups import GroupSimulation

#: Seconds of the first delay levels (I1).
LEVELS_S: Final = (0, 1, 5, 10, 30, 60)
#: A broker counts in whole milliseconds.
TICK_S: Final = 0.001
LATE_S: Final = 1.0


class DelaySimulation(GroupSimulation):
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        #: When each message is due, in the loop's time.
        self._due: dict[bytes, float] = {}

    async def _drain(self) -> None:
        """What waits in a broker that starts comes by itself: nothing is sent that could wake it."""
        await self._shop.stop()
        self.is_quiet = False
        for broker in self._brokers:
            (broker.cut_power if self.options.swarm.sync_flush else broker.kill)()
        await self.cluster.start(*self._brokers)
        await super()._drain()

    def _message(self, node: Node, body: bytes) -> Message:
        level = node.random.choice((0, 0, *range(1, len(LEVELS_S))))
        self._due[body] = self.cluster.loop.time() + LEVELS_S[level]
        return Message(super()._message(node, body).topic, body, delay_level=level)

    def _place(self, message: Message, receipt: SendReceipt) -> tuple[MessageQueue, int]:
        place = super()._place(message, receipt)
        # A delayed message has no place yet where consumers look.
        return (MessageQueue("later", receipt.queue.broker_name, 0), place[1]) if message.delay_level else place

    @property
    def _is_prompt(self) -> bool:
        """Whether nothing, not even a listener, is a reason for being late."""
        return self.is_quiet and not self.options.slow and not self.options.failing

    async def _listen(self, node: Node, batch: list[ReceivedMessage]) -> None:
        now = self.cluster.loop.time()
        for message in batch:
            due = self._due[message.body]
            if now < due - TICK_S:
                self.fail(Broken(f"{message.body!r} came {due - now:.3f} s early"))
            is_prompt = not self.options.slow and not self.options.failing
            if (
                is_prompt
                and self.is_quiet
                and self.calm_at < due < now - LATE_S
                and not self.journal.consumed[message.body]
            ):
                self.fail(Broken(f"{message.body!r} came {now - due:.3f} s late, though all was well"))
        await super()._listen(node, batch)
