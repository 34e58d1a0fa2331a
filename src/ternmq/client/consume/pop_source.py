"""The pop loop: one for each broker, or queue, that this member is assigned (F8, F9, M2).

No member owns a queue: a pop brings the next messages, hidden from the other members for a while, and for each message
a *handle* (``wire.handles``) by which it is acknowledged. What came in one answer is a ``PopLot``: its messages are
ours until its time is over, by our own clock, counted from the answer. After that they belong to another member, and
are not settled here any more.

What the answer's code means:

- 0: here they are.
- 19, 210: none came in time; ask again at once.
- 209: too many members ask; wait 3 s, as for any error.

A broker that answers at once without a message (its clock is ahead of ours, which it compares, or it is broken) is
asked again only after a pause.

As for pulls, a limit may be reached in the middle of an answer. What is not decompressed then waits for room, and if
its invisible time is over before, it is left to other members.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final

from ternmq.client.consume import source
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import PopConfig
from ternmq.client.consume.pop_lot import SOON_MS, PopLot
from ternmq.client.consume.room import Room
from ternmq.client.consume.source import Asking, Deliver, Fetching, restore_topic
from ternmq.errors import RemoteProtocolError, refused
from ternmq.message import MessageQueue, Property
from ternmq.names import pop_retry_topic, pop_retry_topic_v2
from ternmq.wire.bodies.clients import ConsumeFromWhere, PopQueueInfo
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.handles import NORMAL, RETRY_V1, RETRY_V2, Handle, parse_starts
from ternmq.wire.record import Sysflag
from ternmq.wire.requests import PopMessage, PopReply
from ternmq.wire.stored import read_answer

log = logging.getLogger(__name__)

#: For the answer, beyond the time that the broker was asked to wait.
ANSWER_MS: Final = 10_000

_NOTHING: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT})
_FROM_FIRST: Final = 0
_FROM_LAST: Final = 1


class PopSource:
    """Pops from one queue, or with queue id -1 from all of a broker. A ``Source``; all methods belong to the loop's
    thread."""

    progress: Final = None
    is_stuck: Final = False
    is_ours: Final = True

    def __init__(self, fetching: Fetching, queue: MessageQueue, config: PopConfig) -> None:
        self._fetching = fetching
        self._config = config
        self._clock = fetching.instance.env.clock
        self.queue = queue
        self._asking = Asking(fetching, queue, "pop")
        self._room = Room[PopLot](
            fetching,
            queue,
            verb="popping from",
            count_max=config.unsettled_max,
            bytes_max=config.unsettled_bytes_max,
        )
        self._last_popped_ms = 0

    def __repr__(self) -> str:
        return f"<PopSource {self.queue} {self._room.count()} not settled>"

    def lots(self) -> list[PopLot]:
        """What was popped and is not settled yet, as long as it is ours."""
        return self._room.lots()

    def in_hand(self) -> list[Claimed]:
        return self._room.in_hand()

    async def open(self) -> None:
        """Nothing: the broker knows where the group stands."""

    def move(self, queue_offset: int) -> None:
        """Nothing: the broker was told, and is asked each time."""

    def drop(self) -> None:
        """Nothing: what was popped stays ours."""

    def leave(self) -> None:
        self._asking.is_leaving = True

    async def give_back(self) -> None:
        tasks = [
            self._fetching.settling.start(_hidden(lot, message)) for lot in self.lots() for message in lot.unsettled
        ]
        if tasks:
            await asyncio.wait(tasks)

    def info(self) -> PopQueueInfo:
        return PopQueueInfo(wait_ack_count=self._room.count(), last_pop_timestamp=self._last_popped_ms)

    # --- The loop --------------------------------------------------------------------------------------------

    async def run(self, deliver: Deliver) -> None:
        async def fetch() -> None:
            await self._fetch(deliver)

        await self._asking.run(self._room.wait, fetch)

    async def _fetch(self, deliver: Deliver) -> None:
        fetching, queue, clock = self._fetching, self.queue, self._clock
        asked_at = clock.monotonic()
        response = await fetching.instance.call_held(
            source.as_it_is,
            self._fetching.instance.broker_address(self.queue.broker_name),
            RequestCode.POP_MESSAGE,
            self._question(),
            timeout_ms=self._config.poll_ms + ANSWER_MS,
        )
        now = clock.monotonic()
        self._last_popped_ms = clock.now_ms()
        if response.code == ResponseCode.SUCCESS:
            reply = response.read(PopReply)
            messages, flags = read_answer(response.body, Claimed, queue.broker_name)
        elif response.code in _NOTHING:
            messages = []
        else:
            raise refused(
                response.code,
                f"{queue.broker_name} refused a pop of {queue}: {response.remark}",
                broker=queue.broker_name,
            )
        if not messages:
            if now - asked_at < source.QUICK_S:
                await asyncio.sleep(source.QUICK_PAUSE_S)
            return
        deadline = now + reply.invisible_ms / 1000
        while messages:
            count = len(messages)
            if flags & Sysflag.COMPRESSED:
                count = await fetching.instance.inflater.messages(messages, room_bytes=self._room.left_bytes())
            readable, messages = messages[:count], messages[count:]
            self._take(reply, readable, deliver, deadline, took_s=now - asked_at)
            if messages:
                await self._room.wait()
                if clock.monotonic() >= deadline:
                    return

    def _question(self) -> PopMessage:
        fetching, queue, config = self._fetching, self.queue, self._config
        subscription = fetching.subscriptions.get(queue.topic)
        return PopMessage(
            consumer_group=fetching.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            count_max=config.count_max,
            invisible_ms=config.invisible_ms,
            poll_ms=config.poll_ms,
            born_time_ms=self._clock.now_ms(),
            init_mode=_FROM_FIRST if config.start.where is ConsumeFromWhere.FIRST_OFFSET else _FROM_LAST,
            expression_type=subscription.data.expression_type if subscription is not None else None,
            subscription=subscription.data.sub_string if subscription is not None else None,
            order=False,
        )

    def _take(
        self, reply: PopReply, messages: Sequence[Claimed], deliver: Deliver, deadline: float, *, took_s: float
    ) -> None:
        """Make a lot of messages, and deliver those that the application wants."""
        fetching = self._fetching
        popped = self._with_handles(reply, messages)
        if not popped:
            return
        fetching.settling.stats.pulled(self.queue.topic, len(popped), took_s=took_s)
        lot = PopLot(
            self.queue,
            popped,
            fetching.settling,
            fetching.instance,
            group=fetching.group,
            deadline=deadline,
            max_reconsume_times=self._config.max_reconsume_times,
            room=self._room.freed,
            limit_reached=self._room.limit_reached,
        )
        self._room.add(lot)
        unwanted, wanted = self._sorted_out([message for message, _ in popped])
        if unwanted:
            lot.unwanted(unwanted)
        if wanted:
            deliver(wanted)

    def _with_handles(self, reply: PopReply, messages: Sequence[Claimed]) -> list[tuple[Claimed, Handle]]:
        """Messages of an answer. Those from a retry topic bring their handle along, the others get it here."""
        queue, fetching = self.queue, self._fetching
        starts = parse_starts(reply.start_offset_info)
        retries = {
            pop_retry_topic(fetching.group, queue.topic): RETRY_V1,
            pop_retry_topic_v2(fetching.group, queue.topic): RETRY_V2,
        }
        namespace, pop_time = fetching.instance.config.namespace, str(reply.pop_time_ms)
        with_handles = []
        for message in messages:
            handle = handle_of(message, reply)
            if handle is None:
                retry = retries.get(message.topic, NORMAL)
                start_offset = starts.get((retry, message.queue_id))
                if start_offset is None:
                    if message.body_error:
                        log.error("skipped a damaged record of %s: %s", queue, message.body_error)
                        continue
                    raise RemoteProtocolError(
                        f"the answer of {queue.broker_name} to a pop has no start offset of queue "
                        f"{message.queue_id} of {message.topic!r}: {reply.start_offset_info!r}"
                    )
                handle = Handle(
                    start_offset,
                    reply.pop_time_ms,
                    reply.invisible_ms,
                    reply.revive_queue_id,
                    retry,
                    queue.broker_name,
                    message.queue_id,
                    message.queue_offset,
                )
                message.add_property(Property.POP_CHECKPOINT, handle.text)
            if message.property_of(Property.FIRST_POP_TIME) is None:
                message.add_property(Property.FIRST_POP_TIME, pop_time)
            # Whatever retry topic it took, the application subscribed to this one.
            message.topic = queue.topic
            if namespace:
                restore_topic(message, namespace)
            with_handles.append((message, handle))
        return with_handles

    def _sorted_out(self, messages: Sequence[Claimed]) -> tuple[Sequence[Claimed], Sequence[Claimed]]:
        """What the application need not see, and what it wants.

        The first are messages with another tag of the same hash (K1), and those that were delivered too often: their
        consumers died with them.
        """
        subscription = self._fetching.subscriptions.get(self.queue.topic)
        times_max = self._config.max_reconsume_times
        matches = subscription.filter.matches if subscription is not None and not subscription.filter.all else None
        wanted = [
            message
            for message in messages
            if message.reconsume_times <= times_max and (matches is None or message.body_error or matches(message.tags))
        ]
        if len(wanted) == len(messages):
            return (), messages
        kept = {id(message) for message in wanted}
        return [message for message in messages if id(message) not in kept], wanted


async def _hidden(lot: PopLot, message: Claimed) -> None:
    await lot.hide(message, SOON_MS)


def handle_of(message: Claimed, reply: PopReply) -> Handle | None:
    """The handle that a message brings along; None unless it is of this answer: a sender may have made one up, or it
    was stored with the message."""
    text = message.property_of(Property.POP_CHECKPOINT)
    if text is None:
        return None
    try:
        handle = Handle.parse(text)
    except RemoteProtocolError:
        return None
    return handle if handle.pop_time_ms == reply.pop_time_ms else None
