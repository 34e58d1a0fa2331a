"""Messages that were popped in one answer: each is acknowledged by its own handle (F9, H1).

Done: acknowledged, with others that are done at the same time (``acks``). Failed: hidden for longer
(CHANGE_MESSAGE_INVISIBLETIME 200053), the longer the more often it failed, and then popped again by any member. Failed
too often: a dead letter. (RocketMQ's client goes on for some hours and then acknowledges it; ours keeps H1.) Not
settled within its invisible time: another member gets it, and it is not this consumer's any more.

``extend`` hides a message for longer while the application still works on it. The answer contains a new handle, so what
settles the message meanwhile waits for the answer.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.acks import PopAck
from ternmq.client.consume.claimed import NEVER, After, Claimed
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.timed_lot import TimedLot
from ternmq.errors import TernError
from ternmq.message import MessageQueue
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import Handle
from ternmq.wire.requests import ChangeInvisibleTime, ChangeInvisibleTimeReply

log = logging.getLogger(__name__)

#: RocketMQ's ``popDelayLevel``: by the listener's delay level, or by how often the message came before.
DELAYS_MS: Final = tuple(
    1000 * seconds for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
#: For messages that are given back at the end. Not at once: brokers still hold pops of this consumer, which would get
#: them again; they drop these pops with the connections, in a moment.
SOON_MS: Final = 1_000


def delay_ms(message: Claimed, after: After) -> int:
    """How long a message that failed stays hidden."""
    if after.ms is not None:
        return after.ms
    return DELAYS_MS[min(max(0, after.level) or message.reconsume_times, len(DELAYS_MS) - 1)]


class PopLot(TimedLot):
    """Of one answer to a pop."""

    __slots__ = ("_group", "_handles", "_instance", "_questions", "_room", "_times_max")

    def __init__(
        self,
        queue: MessageQueue,
        popped: Sequence[tuple[Claimed, Handle]],
        settling: Settling,
        instance: ClientInstance,
        *,
        group: str,
        deadline: float,
        max_reconsume_times: int,
        room: Callable[[], None],
        limit_reached: Callable[[], str | None],
    ) -> None:
        """``room`` is called when messages are settled."""
        messages = [message for message, _ in popped]
        super().__init__(queue, messages, settling, deadline=deadline, limit_reached=limit_reached)
        self._instance = instance
        self._group = group
        self._times_max = max_reconsume_times
        self._room = room
        self._handles = {id(message): handle for message, handle in popped}
        #: Of those that are hidden for longer, the question about it.
        self._questions: dict[int, asyncio.Task[None]] = {}

    def done(self, messages: Sequence[Claimed]) -> None:
        assert self._settling.acks is not None
        for message in self._settled(messages):
            question = self._questions.get(id(message))
            if question is not None and not question.done():
                self._settling.start(self._ack_after(question, message))
            else:
                self._settling.acks.add(self._ack(message))

    def failed(self, messages: Sequence[Claimed], after: After) -> None:
        failed = self._settled(messages)
        if failed:
            self._settling.start(self._put_off(failed, after))

    def unwanted(self, messages: Sequence[Claimed]) -> None:
        """Messages that the application does not see: of another tag, or delivered too often."""
        self.done([message for message in messages if message.reconsume_times <= self._times_max])
        self.failed([message for message in messages if message.reconsume_times > self._times_max], NEVER)

    def keep(self, message: Claimed) -> None:
        if id(message) in self._unsettled:
            invisible_ms = self._handles[id(message)].invisible_ms
            if self._left_s(message) < invisible_ms / 2000:
                self._extend(message, invisible_ms)

    async def hide(self, message: Claimed, invisible_ms: int) -> bool:
        """Have a message delivered again after this time, but not before; returns whether the broker agrees."""
        handle = self._handles[id(message)]
        header = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=handle.real_topic(self._group, self.queue.topic),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            queue_offset=handle.queue_offset,
            invisible_ms=invisible_ms,
        )
        try:
            address = self._instance.broker_address(handle.broker_name)
            response = await self._instance.ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
            reply = response.read(ChangeInvisibleTimeReply)
        except TernError as error:
            log.warning(
                "cannot change the invisible time of message %s for group %s: %s; it is delivered again when its "
                "present invisible time is over",
                message.message_id,
                self._group,
                error,
            )
            return False
        # The message is now alone in a check point of its own, as if it had been popped again.
        self._handles[id(message)] = handle._replace(
            start_offset=handle.queue_offset,
            pop_time_ms=reply.pop_time_ms,
            invisible_ms=reply.invisible_ms,
            revive_queue_id=reply.revive_queue_id,
        )
        return True

    def _settled(self, messages: Sequence[Claimed]) -> list[Claimed]:
        settled = super()._settled(messages)
        self._room()
        return settled

    def _ack(self, message: Claimed) -> PopAck:
        return PopAck(self.queue.topic, self._handles[id(message)])

    async def _ack_after(self, question: asyncio.Task[None], message: Claimed) -> None:
        await asyncio.wait([question])
        assert self._settling.acks is not None
        self._settling.acks.add(self._ack(message))

    async def _put_off(self, messages: Sequence[Claimed], after: After) -> None:
        assert self._settling.acks is not None
        for message in messages:
            question = self._questions.get(id(message))
            if question is not None:
                await asyncio.wait([question])
            is_hopeless = after.is_never or message.reconsume_times >= self._times_max
            if is_hopeless and await self.bury(message):
                self._settling.acks.add(self._ack(message))
            else:
                await self.hide(message, delay_ms(message, after))

    def _ask_for_time(self, message: Claimed, by_ms: int) -> None:
        before, granted = self._questions.get(id(message)), self._until.get(id(message), self.deadline)
        self._until[id(message)] = self._settling.clock.monotonic() + by_ms / 1000
        self._questions[id(message)] = self._settling.start(self._hide_longer(message, by_ms, before, granted))

    async def _hide_longer(
        self, message: Claimed, by_ms: int, before: asyncio.Task[None] | None, granted: float
    ) -> None:
        if before is not None:
            await asyncio.wait([before])  # its answer has the handle that counts
        if not await self.hide(message, by_ms):
            # What was granted before still counts.
            self._until[id(message)] = min(self._until[id(message)], granted)
