"""The pop loop: one for each broker, or queue, that this member is assigned (F8, F9, M2).

It is the loop of ``fetch`` with another question. Nobody owns a queue: a pop brings whatever comes next, hidden from
the others for a while, and each message a *handle* (``wire.handles``) by which it is acked. What came in one answer is
a ``Popped``: its messages are ours until its time is over, by our own clock, counted from the answer. After that they
are somebody else's, and nothing is said of them any more.

What the answer's code means:

- 0: here they are.
- 19, 210: none came in time; ask again at once. A broker that did not wait because our clock is behind its own (it
  compares them) is asked again after a moment.
- 209: too many ask; wait 3 s, as for any error.

As in ``fetch``, a limit may be reached in the middle of an answer. What is not decompressed then waits for room, and if
its invisible time is over before, it is left to others.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from typing import Final

from ternmq.client.consume.config import PopConfig
from ternmq.client.consume.decode import to_messages
from ternmq.client.consume.fetch import QUICK_PAUSE_S, QUICK_S, Fetching, QueueReader, restore_topic
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.env import Clock
from ternmq.errors import RemoteProtocolError, refused
from ternmq.message import MessageQueue, Property, ReceivedMessage
from ternmq.names import pop_retry_topic, pop_retry_topic_v2
from ternmq.wire.bodies.clients import ConsumeFromWhere
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.handles import NORMAL, RETRY_V1, RETRY_V2, Handle, parse_starts
from ternmq.wire.record import Record, read_records
from ternmq.wire.requests import PopMessage, PopReply

log = logging.getLogger(__name__)

#: For the answer, beyond the time that the broker was asked to wait.
ANSWER_MS: Final = 10_000

_NOTHING: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT})
_FROM_FIRST: Final = 0
_FROM_LAST: Final = 1

#: Takes messages that nobody is to see.
GiveUp = Callable[["PopReader", "Popped", Sequence[ReceivedMessage]], None]


class Popped(ProcessQueue):
    """The messages of one answer; ``dropped`` once their invisible time is over."""

    __slots__ = ("_clock", "_unsettled", "deadline")

    def __init__(
        self, queue: MessageQueue, messages: Sequence[ReceivedMessage], *, deadline: float, clock: Clock
    ) -> None:
        #: Of the clock's ``monotonic``.
        self.deadline = deadline
        self._clock = clock
        #: By identity: messages of several queues may have one offset.
        self._unsettled = {id(message): message for message in messages}
        super().__init__(queue, 0)
        self.body_bytes = sum([len(message.body) for message in messages])

    @property
    def dropped(self) -> bool:
        return self._clock.monotonic() >= self.deadline

    @dropped.setter
    def dropped(self, value: bool) -> None:
        if value:
            self.deadline = 0.0

    def __len__(self) -> int:
        return len(self._unsettled)

    def settled(self, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Those of the messages that were not settled before; they are now."""
        settled = [message for message in messages if self._unsettled.pop(id(message), None) is not None]
        self.body_bytes -= sum([len(message.body) for message in settled])
        return settled

    @property
    def unsettled(self) -> list[ReceivedMessage]:
        return list(self._unsettled.values())


class PopReader(QueueReader):
    """Pops from one queue, or with queue id -1 from all of a broker. All methods belong to the loop's thread."""

    def __init__(self, fetching: Fetching, queue: MessageQueue, config: PopConfig, give_up: GiveUp) -> None:
        super().__init__(fetching, queue, 0)
        self._pop_config = config
        self._give_up = give_up
        self._clock = fetching.instance.env.clock
        self._popped: list[Popped] = []

    def __repr__(self) -> str:
        return f"<PopReader {self.queue} {sum(map(len, self.in_hand()))} not settled>"

    def in_hand(self) -> list[Popped]:
        """What was popped and is not settled yet, as long as it is ours."""
        self._popped = [popped for popped in self._popped if len(popped) and not popped.dropped]
        return self._popped

    def has_room(self) -> None:
        """Some messages are settled."""
        self._room.set()

    async def _wait_for_room(self) -> None:
        while limit := self._limit_reached():
            if self._may_say(limit):
                log.warning(
                    "group %s has reached its limit %s and stops popping from %s until messages are acknowledged: %d "
                    "messages with %d bytes are in progress",
                    self._fetching.group,
                    limit,
                    self.queue,
                    sum(map(len, self._popped)),
                    self._bytes_in_hand(),
                )
            self._room.clear()
            # What takes too long makes room, too.
            first_s = min(popped.deadline for popped in self._popped) - self._clock.monotonic()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, first_s)):
                    await self._room.wait()

    def _limit_reached(self) -> str | None:
        if sum(map(len, self.in_hand())) >= self._pop_config.unsettled_max:
            return "unsettled_max"
        return "unsettled_bytes_max" if self._bytes_in_hand() >= self._pop_config.unsettled_bytes_max else None

    def _bytes_in_hand(self) -> int:
        return sum([popped.body_bytes for popped in self._popped])

    async def _fetch(self) -> None:
        fetching, queue, clock = self._fetching, self.queue, self._clock
        asked_at = clock.monotonic()
        response = await fetching.instance.call(
            self._address(),
            RequestCode.POP_MESSAGE,
            self._pop_question(),
            timeout_ms=self._pop_config.poll_ms + ANSWER_MS,
        )
        now = clock.monotonic()
        self.held.last_fetched_ms = clock.now_ms()
        if response.code in _NOTHING:
            if self._pop_config.poll_ms and now - asked_at < QUICK_S:
                await asyncio.sleep(QUICK_PAUSE_S)
            return
        if response.code != ResponseCode.SUCCESS:
            raise refused(
                response.code,
                f"{queue.broker_name} refused a pop of {queue}: {response.remark}",
                broker=queue.broker_name,
            )
        reply = response.read(PopReply)
        deadline = now + reply.invisible_ms / 1000
        records: Sequence[Record] = read_records(response.body)
        while records:
            messages = await to_messages(
                records,
                queue.broker_name,
                bytes_max=fetching.instance.config.decompressed_bytes_max,
                room_bytes=self._pop_config.unsettled_bytes_max - self._bytes_in_hand(),
            )
            records = records[len(messages) :]
            self._take(self._with_handles(reply, messages), deadline, took_s=now - asked_at)
            if records:
                await self._wait_for_room()
                if clock.monotonic() >= deadline:
                    return

    def _take(self, messages: Sequence[ReceivedMessage], deadline: float, *, took_s: float) -> None:
        fetching = self._fetching
        if not messages:
            return
        fetching.stats.pulled(self.queue.topic, len(messages), took_s=took_s)
        popped = Popped(self.queue, messages, deadline=deadline, clock=self._clock)
        self._popped.append(popped)
        unwanted, wanted = self._sorted_out(messages)
        if unwanted:
            self._give_up(self, popped, unwanted)
        if wanted:
            fetching.deliver(self, popped, wanted)

    def _pop_question(self) -> PopMessage:
        fetching, queue, config = self._fetching, self.queue, self._pop_config
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

    def _with_handles(self, reply: PopReply, messages: Sequence[ReceivedMessage]) -> list[ReceivedMessage]:
        """Messages of an answer. Those from a retry topic bring their handle along, the others get it here."""
        queue, fetching = self.queue, self._fetching
        starts = parse_starts(reply.start_offset_info)
        retries = {
            pop_retry_topic(fetching.group, queue.topic): RETRY_V1,
            pop_retry_topic_v2(fetching.group, queue.topic): RETRY_V2,
        }
        namespace = fetching.instance.config.namespace
        with_handles = []
        for message in messages:
            if not _has_handle(message, reply):
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
                message.properties[Property.POP_CHECKPOINT] = handle.text
            message.properties.setdefault(Property.FIRST_POP_TIME, str(reply.pop_time_ms))
            # Whatever retry topic it took, the application subscribed to this one.
            message.topic = queue.topic
            if namespace:
                restore_topic(message, namespace)
            with_handles.append(message)
        return with_handles

    def _sorted_out(
        self, messages: Sequence[ReceivedMessage]
    ) -> tuple[Sequence[ReceivedMessage], Sequence[ReceivedMessage]]:
        """What the application need not see, and what it wants.

        The first are messages with another tag of the same hash (K1), and those that came too often: whoever had them
        died with them.
        """
        subscription = self._fetching.subscriptions.get(self.queue.topic)
        times_max = self._pop_config.max_reconsume_times
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


def _has_handle(message: ReceivedMessage, reply: PopReply) -> bool:
    """Whether a message brings the handle of this answer, and not one that its sender made up or that was stored."""
    text = message.properties.get(Property.POP_CHECKPOINT)
    if text is None:
        return False
    try:
        return Handle.parse(text).pop_time_ms == reply.pop_time_ms
    except RemoteProtocolError:
        return False
