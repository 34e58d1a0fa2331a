"""The loop of a share consumer: one for each broker of a topic (R1, R2, F8, M2).

Each pull says up to which number the consumer has what it was given; an answer that was lost on its way comes again.
What came is done in any order, and confirmed in the order of the numbers (``given``), a range at a time: one call for
all that was done while the last one was under way. A call that fails is made again; one that the broker refuses is
forgotten, as the messages are delivered again.

The codes of an answer are those of a pop: 0 here they are; 210 none came in time, ask at once; 209 too much is held or
too many ask, wait 3 s. A pull is a sign of life; a source that has no room to pull sends heartbeats instead.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from typing import Final

from ternmq.client.consume import source
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import ShareConfig
from ternmq.client.consume.given import Given, Range
from ternmq.client.consume.room import Room
from ternmq.client.consume.share_lot import ShareLot
from ternmq.client.consume.source import Asking, Deliver, Fetching, restore_topic
from ternmq.errors import BrokerRefused, NetworkError, TernError, refused
from ternmq.message import MessageQueue, Property
from ternmq.names import is_retry_topic
from ternmq.wire.bodies.clients import ConsumeFromWhere, PopQueueInfo
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.record import Sysflag
from ternmq.wire.requests_share import ShareAck, ShareHold, ShareLeave, SharePull, SharePullReply
from ternmq.wire.stored import read_answer

log = logging.getLogger(__name__)

#: For the answer, beyond the time that the broker was asked to wait.
ANSWER_MS: Final = 10_000
#: Until an ack that could not be sent is sent again.
ACK_PAUSE_S: Final = 1.0
#: Lines in which an ordered consumer works off its messages: those of one key are always in the same.
LINES: Final = 64

_NOTHING: Final = frozenset({ResponseCode.PULL_NOT_FOUND, ResponseCode.POLLING_TIMEOUT})
_FROM_FIRST: Final = 0
_FROM_LAST: Final = 1


class ShareSource:
    """Takes messages of a topic from one broker. A ``Source``; all methods belong to the loop's thread."""

    progress: Final = None
    is_stuck: Final = False
    is_ours: Final = True

    def __init__(self, fetching: Fetching, queue: MessageQueue, config: ShareConfig, consumer: str) -> None:
        """``consumer`` is the name under which this consumer is known to the broker."""
        self._fetching = fetching
        self._config = config
        self._consumer = consumer
        self._clock = fetching.instance.env.clock
        self.queue = queue
        self._asking = Asking(fetching, queue, "take messages")
        self._room = Room[ShareLot](
            fetching,
            queue,
            verb="taking from",
            count_max=config.unsettled_max,
            bytes_max=config.unsettled_bytes_max,
            beat=self._beat,
            gone=self._gone,
        )
        self._given = Given()
        self._unsent: list[Range] = []
        self._is_sending = False
        self._last_pulled_ms = 0

    def __repr__(self) -> str:
        return f"<ShareSource {self.queue} {self._room.count()} not settled>"

    def in_hand(self) -> list[Claimed]:
        return self._room.in_hand()

    async def open(self) -> None:
        """Nothing: the broker knows where the group stands."""

    def move(self, queue_offset: int) -> None:
        """Nothing: the broker was told, and is asked each time."""

    def drop(self) -> None:
        """Nothing: what was given stays ours."""

    def leave(self) -> None:
        self._asking.is_leaving = True

    async def give_back(self) -> None:
        """Tell the broker that this consumer ends: others get what is not confirmed."""
        header = ShareLeave(consumer_group=self._fetching.group, topic=self.queue.topic, consumer=self._consumer)
        try:
            await self._ask(RequestCode.SHARE_LEAVE, header)
        except TernError as error:
            log.warning(
                "cannot tell %s that consumer %s ends: %s; it will be noticed in some minutes",
                self.queue.broker_name,
                self._consumer,
                error,
            )

    def info(self) -> PopQueueInfo:
        return PopQueueInfo(wait_ack_count=self._room.count(), last_pop_timestamp=self._last_pulled_ms)

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
            fetching.instance.broker_address(queue.broker_name),
            RequestCode.SHARE_PULL,
            self._question(),
            timeout_ms=self._config.poll_ms + ANSWER_MS,
        )
        now = clock.monotonic()
        self._last_pulled_ms = clock.now_ms()
        if response.code in _NOTHING:
            if now - asked_at < source.QUICK_S:
                await asyncio.sleep(source.QUICK_PAUSE_S)
            return
        if response.code != ResponseCode.SUCCESS:
            raise refused(
                response.code,
                f"{queue.broker_name} refused a shared pull of {queue.topic}: {response.remark}",
                broker=queue.broker_name,
            )
        reply = response.read(SharePullReply)
        messages, flags = read_answer(response.body, Claimed, queue.broker_name)
        is_new = self._given.add(reply.life, reply.first, len(messages))
        numbered = [pair for pair, new in zip(enumerate(messages, reply.first), is_new, strict=True) if new]
        # From the answer on: the pull may have waited for longer than the limit. The broker counts from a moment
        # before; what is confirmed in between has no effect, and the message is delivered again.
        deadline = now + self._hold_ms / 1000 if self._hold_ms else math.inf
        try:
            while numbered:
                count = len(numbered)
                if flags & Sysflag.COMPRESSED:
                    waiting = [message for _, message in numbered]
                    count = await fetching.instance.inflater.messages(waiting, room_bytes=self._room.left_bytes())
                self._take(reply.life, numbered[:count], deliver, deadline, took_s=now - asked_at)
                numbered = numbered[count:]
                if numbered:
                    await self._room.wait()
                    if clock.monotonic() >= deadline:
                        break
        finally:
            # The time is over, or there was an error: a thread may not have started. Left as they are, they would never
            # be settled, and nothing behind them could be confirmed.
            self._given.drop(reply.life, [number for number, _ in numbered])

    @property
    def _hold_ms(self) -> int:
        return 0 if self._config.ordered else self._config.hold_ms

    def _question(self) -> SharePull:
        fetching, queue, config = self._fetching, self.queue, self._config
        subscription = fetching.subscriptions.get(queue.topic)
        is_new = config.start.where is ConsumeFromWhere.FIRST_OFFSET or is_retry_topic(queue.topic)
        return SharePull(
            consumer_group=fetching.group,
            topic=queue.topic,
            consumer=self._consumer,
            count_max=config.count_max,
            bytes_max=config.bytes_max,
            held=self._given.held,
            life=self._given.life,
            hold_ms=self._hold_ms,
            poll_ms=config.poll_ms,
            init_mode=_FROM_FIRST if is_new else _FROM_LAST,
            expression_type=subscription.data.expression_type if subscription is not None else None,
            subscription=subscription.data.sub_string if subscription is not None else None,
            order=config.ordered,
        )

    def _take(
        self,
        life: int,
        numbered: Sequence[tuple[int, Claimed]],
        deliver: Deliver,
        deadline: float,
        *,
        took_s: float,
    ) -> None:
        """Make lots of messages, and deliver those that the application wants."""
        fetching = self._fetching
        fetching.settling.stats.pulled(self.queue.topic, len(numbered), took_s=took_s)
        namespace = fetching.instance.config.namespace
        if namespace or is_retry_topic(self.queue.topic):
            for _, message in numbered:
                restore_topic(message, namespace)
        if not self._config.ordered:
            self._deliver(self._lot(self.queue, life, numbered, deadline), [each for _, each in numbered], deliver)
            return
        lines: dict[int, list[tuple[int, Claimed]]] = {}
        for number, message in numbered:
            lines.setdefault(_line_of(message), []).append((number, message))
        for line, members in lines.items():
            lot = self._lot(self.queue._replace(queue_id=line), life, members, deadline)
            self._deliver(lot, [each for _, each in members], deliver)

    def _lot(
        self, queue: MessageQueue, life: int, numbered: Sequence[tuple[int, Claimed]], deadline: float
    ) -> ShareLot:
        async def extension(number: int, by_ms: int) -> bool:
            return await self._hold(life, number, by_ms)

        lot = ShareLot(
            queue,
            numbered,
            self._fetching.settling,
            life=life,
            deadline=deadline,
            done=self._done,
            extension=extension,
            limit_reached=self._room.limit_reached,
        )
        self._room.add(lot)
        return lot

    def _deliver(self, lot: ShareLot, messages: list[Claimed], deliver: Deliver) -> None:
        # Messages with another tag of the same hash (K1).
        subscription = self._fetching.subscriptions.get(self.queue.topic)
        if subscription is not None and not subscription.filter.all:
            matches = subscription.filter.matches
            wanted = [message for message in messages if message.body_error or matches(message.tags)]
            if len(wanted) < len(messages):
                kept = {id(message) for message in wanted}
                lot.done([message for message in messages if id(message) not in kept])
                messages = wanted
        if messages:
            deliver(messages)

    # --- Acks ------------------------------------------------------------------------------------------------

    def _done(self, life: int, numbers: Sequence[int]) -> None:
        self._given.done(life, numbers)
        self._room.freed()
        self._send_soon()

    def _gone(self, lot: ShareLot) -> None:
        """What is left of a lot is not ours any more."""
        self._given.drop(lot.life, lot.numbers())
        self._send_soon()

    def _send_soon(self) -> None:
        while (done := self._given.take()) is not None:
            before = self._unsent[-1] if self._unsent else None
            if before is not None and (before.life, before.last + 1) == (done.life, done.first):
                self._unsent[-1] = before._replace(last=done.last)
            else:
                self._unsent.append(done)
        if self._unsent and not self._is_sending:
            self._is_sending = True
            self._fetching.settling.start(self._send())

    async def _send(self) -> None:
        try:
            while self._unsent:
                done = self._unsent.pop(0)
                if not await self._ack(done):
                    self._unsent.insert(0, done)
                    if self._fetching.settling.is_closed:
                        return
                    await asyncio.sleep(ACK_PAUSE_S)
        finally:
            self._is_sending = False

    async def _ack(self, done: Range) -> bool:
        """Confirm a range; False if that must be tried again."""
        header = ShareAck(
            consumer_group=self._fetching.group,
            topic=self.queue.topic,
            consumer=self._consumer,
            life=done.life,
            first=done.first,
            last=done.last,
        )
        try:
            await self._ask(RequestCode.SHARE_ACK, header)
        except (NetworkError, BrokerRefused) as error:
            if error.retriable or isinstance(error, NetworkError):
                log.warning("cannot confirm messages of %s: %s; retrying", self.queue, error)
                return False
            log.warning(
                "%s does not accept that %d messages of %s are done: %s",
                self.queue.broker_name,
                done.last - done.first + 1,
                self.queue.topic,
                error,
            )
        return True

    async def _hold(self, life: int, number: int, by_ms: int) -> bool:
        header = ShareHold(
            consumer_group=self._fetching.group,
            topic=self.queue.topic,
            consumer=self._consumer,
            life=life,
            first=number,
            last=number,
            hold_ms=by_ms,
        )
        if not self._hold_ms:
            return False
        try:
            await self._ask(RequestCode.SHARE_HOLD, header)
        except TernError as error:
            log.warning("cannot get more time for a message of %s: %s", self.queue, error)
            return False
        return True

    def _beat(self) -> None:
        self._fetching.settling.start(self._send_beat())

    async def _send_beat(self) -> None:
        header = ShareAck(consumer_group=self._fetching.group, topic=self.queue.topic, consumer=self._consumer)
        try:
            await self._ask(RequestCode.SHARE_ACK, header)
        except TernError as error:
            log.warning("cannot send a heartbeat to %s: %s", self.queue.broker_name, error)

    async def _ask(self, code: RequestCode, header: ShareAck | ShareHold | ShareLeave) -> None:
        instance = self._fetching.instance
        await instance.ask(instance.broker_address(self.queue.broker_name), code, header)


def _line_of(message: Claimed) -> int:
    """The line in which an ordered consumer works off a message; the same for all messages of a key."""
    key = message.property_of(Property.SHARDING_KEY) or message.property_of(Property.KEYS) or ""
    # Not Python's hash, which is another one in each process: a simulation must run the same way twice.
    return sum(key.encode()) % LINES if key else message.queue_id % LINES
