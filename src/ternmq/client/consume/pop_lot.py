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
from ternmq.client.consume.claimed import NEVER, NOT_STARTED, After, Claimed
from ternmq.client.consume.settle import Settling
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


class PopLot:
    """A ``Lot``: the messages of one answer, which are ours until ``deadline`` (of the clock's ``monotonic``)."""

    __slots__ = (
        "_extended",
        "_group",
        "_handles",
        "_instance",
        "_limit_reached",
        "_room",
        "_settling",
        "_times_max",
        "_unsettled",
        "body_bytes",
        "calls",
        "deadline",
        "last_consumed_ms",
        "queue",
        "took_s",
    )

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
        """``queue`` names the topic as on the wire; ``room`` is called when messages are settled."""
        self.queue = queue
        self.deadline = deadline
        self.calls = 0
        self.took_s = 0.0
        self.last_consumed_ms = 0
        self._settling = settling
        self._instance = instance
        self._group = group
        self._times_max = max_reconsume_times
        self._room = room
        self._limit_reached = limit_reached
        #: By identity: messages of several queues may have one offset.
        self._unsettled = {id(message): message for message, _ in popped}
        self._handles = {id(message): handle for message, handle in popped}
        #: Those that are hidden for longer: until when, and the question about it while it is under way.
        self._extended: dict[int, tuple[float, asyncio.Task[None]]] = {}
        self.body_bytes = sum([len(message.body) for message, _ in popped])
        for message, _ in popped:
            message.lot, message.is_settled, message.started = self, False, NOT_STARTED

    def __len__(self) -> int:
        """How many messages are not settled."""
        return len(self._unsettled)

    def __repr__(self) -> str:
        return f"<PopLot {self.queue} {len(self)} not settled>"

    @property
    def is_ours(self) -> bool:
        return self._settling.clock.monotonic() < self.deadline

    @property
    def is_in_hand(self) -> bool:
        """Whether a message of it is not settled and ours."""
        if not self._unsettled:
            return False
        return self.is_ours or any(self._is_ours(message) for message in self._unsettled.values())

    @property
    def last_deadline(self) -> float:
        """When the last message of it stops being ours."""
        return max([self.deadline, *(deadline for deadline, _ in self._extended.values())])

    @property
    def unsettled(self) -> list[Claimed]:
        return list(self._unsettled.values())

    def done(self, messages: Sequence[Claimed]) -> None:
        assert self._settling.acks is not None
        for message in self._settled(messages):
            extension = self._extended.get(id(message))
            if extension is not None and not extension[1].done():
                self._settling.start(self._ack_after(extension[1], message))
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

    def holds(self, message: Claimed) -> bool:
        return self._is_ours(message)

    def keep(self, message: Claimed) -> None:
        if id(message) in self._unsettled:
            invisible_ms = self._handles[id(message)].invisible_ms
            extension = self._extended.get(id(message))
            deadline = self.deadline if extension is None else extension[0]
            if deadline - self._settling.clock.monotonic() < invisible_ms / 2000:
                self._extend(message, invisible_ms)

    async def bury(self, message: Claimed) -> bool:
        return await self._settling.bury(message)

    def limit_reached(self) -> str | None:
        return self._limit_reached()

    def told(self, message: Claimed, after: After | None) -> None:
        self._settling.told(self, message, after)

    def extend(self, message: Claimed, by_ms: int) -> None:
        message.started = self._settling.started_for(by_ms)
        self._settling.on_loop(lambda: self._extend(message, by_ms))

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
        """Those of the messages that were not settled before and are still ours; all of them are settled now."""
        settled = [message for message in messages if self._unsettled.pop(id(message), None) is not None]
        self.body_bytes -= sum([len(message.body) for message in settled])
        self._room()
        if self._settling.is_closed:
            return []
        return settled if self.is_ours else [message for message in settled if self._is_ours(message)]

    def _is_ours(self, message: Claimed) -> bool:
        extension = self._extended.get(id(message))
        deadline = self.deadline if extension is None else extension[0]
        return self._settling.clock.monotonic() < deadline

    def _ack(self, message: Claimed) -> PopAck:
        return PopAck(self.queue.topic, self._handles[id(message)])

    async def _ack_after(self, extension: asyncio.Task[None], message: Claimed) -> None:
        await asyncio.wait([extension])
        assert self._settling.acks is not None
        self._settling.acks.add(self._ack(message))

    async def _put_off(self, messages: Sequence[Claimed], after: After) -> None:
        assert self._settling.acks is not None
        for message in messages:
            extension = self._extended.get(id(message))
            if extension is not None:
                await asyncio.wait([extension[1]])
            is_hopeless = after.is_never or message.reconsume_times >= self._times_max
            if is_hopeless and await self.bury(message):
                self._settling.acks.add(self._ack(message))
            else:
                await self.hide(message, delay_ms(message, after))

    def _extend(self, message: Claimed, by_ms: int) -> None:
        if id(message) not in self._unsettled or not self._is_ours(message) or self._settling.is_closed:
            return
        before = self._extended.get(id(message))
        deadline = self._settling.clock.monotonic() + by_ms / 1000
        question = self._hide_longer(message, by_ms, None if before is None else before[1])
        self._extended[id(message)] = deadline, self._settling.start(question)

    async def _hide_longer(self, message: Claimed, by_ms: int, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])  # its answer has the handle that counts
        if not await self.hide(message, by_ms):
            deadline, task = self._extended[id(message)]
            self._extended[id(message)] = min(deadline, self.deadline), task
