"""One seed, one life of a group whose messages come later (I1, I3, H1); all else is as in ``groups``.

A third of the messages has no delay, the others one of the first levels, 1 s to 1 min. Always, whatever breaks:

- no message reaches a listener before its time, counted from when its sender began to send it;
- each one that was acknowledged is consumed by the end, though brokers are killed in between.

When all is well, it comes within a second of its time. After the storm all brokers lose their power at the worst
moment, when they have just noted which messages are delivered. By then everything that was sent is on the disk, so it
must come, though the copies that were delivered last are lost.
"""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Final

from ternmq import Message, SendReceipt
from ternmq.message import MessageQueue
from ternmq.testing.cluster import Node
from ternmq.testing.loop import NOWHERE
from tests.testing.groups import RESTART_S, GroupSimulation

#: Seconds of the first delay levels (I1).
LEVELS_S: Final = (0, 1, 5, 10, 30, 60)
#: Whatever is in the log, is on the disk after 10 s (C7).
FLUSHED_S: Final = 11.0
#: Brokers note every 10 s how far the levels are.
NOTED_S: Final = 11.0
PROGRESS: Final = "delayOffset.json"


class DelaySimulation(GroupSimulation):
    """Runs one seed. Raises ``Broken``, or whatever a program should not have raised."""

    async def _rest(self) -> None:
        await super()._rest()
        self._disturb(0.0)
        await self._shop.stop()
        # No client shall know offsets that are not on disk.
        members = self._running()
        for node in members:
            await node.stop()
        await asyncio.sleep(FLUSHED_S)
        await asyncio.gather(*map(self._cut_at_the_worst_moment, self._brokers))
        # What waits in a broker that starts comes by itself: nothing is sent that could wake it.
        await self.cluster.start(*self._brokers)
        await self.cluster.start(*members)
        await asyncio.sleep(RESTART_S)
        await self._settle(self.rebalance_s)
        await asyncio.sleep(max(LEVELS_S))
        await self.cluster.start(self._shop)

    async def _cut_at_the_worst_moment(self, broker: Node) -> None:
        """Cut its power as soon as it has noted what is delivered, or when nothing was to be noted."""
        noted, loop = asyncio.Event(), self.cluster.loop

        def see(step: str, path: Path) -> None:
            if step == "rename" and path.name == f"{PROGRESS}.tmp":
                loop.call_soon(noted.set, context=NOWHERE)

        broker.disk.before = see
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(NOTED_S):
                await noted.wait()
        broker.cut_power()

    def _message(self, node: Node, body: bytes) -> Message:
        level = node.random.choice((0, 0, *range(1, len(LEVELS_S))))
        return Message(super()._message(node, body).topic, body, delay_level=level)

    def _delay_s(self, message: Message) -> float:
        return LEVELS_S[message.delay_level]

    def _place(self, message: Message, receipt: SendReceipt) -> tuple[MessageQueue, int]:
        place = super()._place(message, receipt)
        # A delayed message has no place yet where consumers look.
        return (MessageQueue("later", receipt.queue.broker_name, 0), place[1]) if message.delay_level else place
