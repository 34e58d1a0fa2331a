"""Messages that were pulled from one queue: the progress of the queue moves on as they are done (F1, F5, F7, H1).

Failed messages are sent back to a broker, which delivers them again through the group's retry topic; here they are done
once a broker has them. If no broker takes one, it is delivered here again after 5 s, with ``reconsume_times`` one
higher. In broadcasting a message cannot be sent back; a failure is logged.

When the queue goes to another consumer, or is moved to another offset, the process queue is ``dropped``, and the lot
with it: what becomes of its messages here has no effect. The next consumer gets them again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ternmq.client.consume.claimed import After, Claimed
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.settle import Settling
from ternmq.message import MessageQueue

log = logging.getLogger(__name__)


class PullLot:
    """A ``Lot``: a process queue, and how its messages are settled."""

    __slots__ = ("_limit_reached", "_room", "_settling", "calls", "held", "last_consumed_ms", "queue", "took_s")

    def __init__(
        self,
        held: ProcessQueue[Claimed],
        settling: Settling,
        *,
        room: Callable[[], None],
        limit_reached: Callable[[ProcessQueue[Claimed]], str | None],
    ) -> None:
        """``room`` is called when messages are done; ``limit_reached`` says why no more are fetched."""
        self.held = held
        self.queue: MessageQueue = held.queue
        self.calls = 0
        self.took_s = 0.0
        self.last_consumed_ms = 0
        self._settling = settling
        self._room = room
        self._limit_reached = limit_reached

    def __repr__(self) -> str:
        return f"<PullLot {self.held!r}>"

    @property
    def is_ours(self) -> bool:
        return not self.held.dropped

    def done(self, messages: Sequence[Claimed]) -> None:
        if not self.held.dropped and not self._settling.is_closed:
            self.held.done(messages)
            self._room()

    def failed(self, messages: Sequence[Claimed], after: After) -> None:
        if self.held.dropped or self._settling.is_closed:
            return
        if self._settling.returns is None:
            if self._settling.left(messages):
                return
            self._settling.skipped(messages)
            self.done(messages)
        else:
            self._settling.start(self._send_back(messages, after))

    def holds(self, message: Claimed) -> bool:  # noqa: ARG002
        return self.is_ours

    def keep(self, message: Claimed) -> None:
        pass  # as long as the queue is ours

    async def bury(self, message: Claimed) -> bool:
        return await self._settling.bury(message)

    def limit_reached(self) -> str | None:
        return self._limit_reached(self.held)

    def told(self, message: Claimed, after: After | None) -> None:
        self._settling.told(self, message, after)

    def extend(self, message: Claimed, by_ms: int) -> None:
        # Brokers know nothing of it; only this consumer sends back what takes too long.
        message.started = self._settling.started_for(by_ms)

    async def _send_back(self, messages: Sequence[Claimed], after: After) -> None:
        returns = self._settling.returns
        assert returns is not None
        kept = []
        for message in messages:
            try:
                is_back = await returns.send_back(message, delay_level=after.delay_level)
            except Exception:
                # Whatever it is: progress does not pass the message, so it must be delivered again.
                log.exception("message %s of %s cannot be sent back", message.message_id, self.queue)
                is_back = False
            if is_back:
                self.held.done([message])
                self._room()
            else:
                # Another object: the application may still hold this one, and an ack of it, at the end of its block
                # or with the next message of a loop, would count for the delivery to come.
                again = message.renewed()
                again.reconsume_times += 1
                self.held.replace(again)
                kept.append(again)
        if kept:
            self._settling.again_soon(self, kept)
