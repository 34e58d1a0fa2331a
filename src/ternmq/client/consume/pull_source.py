"""The pull loop: one per queue, from the broker's log into the process queue (F1, F6, F8, M2).

Each loop asks for the next messages, and the broker holds the question until there are some or 15 s are over. So there
is always one pull under way for each queue, and a message arrives as soon as it is stored. What came is put into the
process queue and delivered; the loop goes on at once, unless a limit of M2 is reached: then it waits until something is
done, and logs that once a minute. Bodies count as they are after decompression, so the limit may be reached in the
middle of an answer; the rest of it waits, too. Each pull also carries the queue's progress, so that brokers know it
without another call.

One bad record does not stop its queue: it is delivered as a message with a ``body_error``, and the consumer treats it
as one that failed. Only an answer whose records cannot be told apart is an error, and asked for again.

What the answer's code means:

- 0: here they are. Tags are compared again by text: the broker compared hashes (K1).
- 19, 20: none now, or none that are wanted; go on from where the broker says.
- 21: there is no such offset. The log was cut, deleted or reset: the queue starts afresh where the broker says, and
  what was fetched before has no effect any more.
- a broker that is not the master (any more): ask for routes, and wait 0.2 s, then longer.
- anything else, and every network error: wait 3 s. A broker that has forgotten our subscription gets a heartbeat first.

A broker that answers at once and leads nowhere (with nothing, and no further; or from one offset to another and back)
is not asked thousands of times a second: such an answer is followed by a pause.

An orderly consumer reads a queue only with its lock, and asks where to start when it has the lock.

A lite pull consumer (F4) reads by the same loop. Its pulls bring their subscription along, commit nothing, and have a
code of their own (361) where the broker knows it: RocketMQ 4.9 does not.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final, NamedTuple

from ternmq.client.consume import source
from ternmq.client.consume.claimed import NOT_STARTED, Claimed
from ternmq.client.consume.message_filter import MessageFilter, is_chosen
from ternmq.client.consume.offsets import BrokerOffsets, OffsetStore, start_offset
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.pull_lot import PullLot
from ternmq.client.consume.slaves import check_slave
from ternmq.client.consume.source import Asking, Deliver, Fetching, restore_topic
from ternmq.errors import QueueLocked, TernError, refused
from ternmq.message import MessageQueue
from ternmq.names import RETRY_PREFIX
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import MessageModel, ProcessQueueInfo
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Response
from ternmq.wire.record import Sysflag, read_records
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag
from ternmq.wire.stored import read_stored

log = logging.getLogger(__name__)

#: How long an answer may take beyond the time that the broker was asked to hold the pull.
ANSWER_MS: Final = 15_000
#: A pull that is under way for longer will never end. RocketMQ's ``rocketmq.client.pull.pullMaxIdleTime``.
STUCK_S: Final = 120.0

_MIB: Final = 1024 * 1024
_NO_MESSAGES: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)


@dataclass(slots=True, frozen=True)
class Pulling:
    """What all pull sources of one consumer share, besides ``Fetching``."""

    fetching: Fetching
    #: Where the group's progress is kept.
    progress: OffsetStore
    brokers: BrokerOffsets
    #: What the application wants of the messages that it subscribed to.
    chooses: MessageFilter | None = None
    #: Whether these are pulls of a lite pull consumer, and the names of brokers that do not know their code.
    lite: bool = False
    without_lite: set[str] = field(default_factory=set)


class _PullAnswer(NamedTuple):
    """What a pull has brought, once its messages are delivered."""

    #: Where to go on.
    next_offset: int
    is_found: bool = False
    #: There is no such offset as was asked for.
    is_moved: bool = False
    took_s: float = 0.0
    #: Messages that are not delivered yet.
    compressed: Sequence[Claimed] = ()


#: Ask again, in another way.
_NO_ANSWER: Final = _PullAnswer(-1)


def pulls(
    progress: OffsetStore, brokers: BrokerOffsets, *, chooses: MessageFilter | None = None, lite: bool = False
) -> Callable[[Fetching], Callable[[MessageQueue], PullSource]]:
    """Sources that pull, for the ``ConsumerParts`` of a consumer."""
    return lambda fetching: partial(PullSource, Pulling(fetching, progress, brokers, chooses, lite=lite))


class PullSource:
    """Reads one queue, from ``open`` on. A ``Source``; all methods belong to the loop's thread."""

    def __init__(self, pulling: Pulling, queue: MessageQueue) -> None:
        fetching = pulling.fetching
        self._pulling = pulling
        self._fetching = fetching
        self._clock = fetching.instance.env.clock
        self.queue = queue
        self.lot = self._lot_from(0)
        locks = fetching.locks
        self._asking = Asking(fetching, queue, "pull", on_unreachable=locks.doubt if locks is not None else None)
        self._room = asyncio.Event()
        #: When the pull that is under way began, by the clock's ``monotonic``.
        self._pulling_since: float | None = None
        #: Whether the last answer sent us to another offset.
        self._is_moved = False

    def __repr__(self) -> str:
        return f"<PullSource {self.held!r}>"

    @property
    def held(self) -> ProcessQueue[Claimed]:
        return self.lot.held

    # --- Where it stands -------------------------------------------------------------------------------------

    async def open(self) -> None:
        pulling, queue, locks = self._pulling, self.queue, self._fetching.locks
        if locks is not None and not await locks.lock(queue):
            raise QueueLocked(f"another member has the lock of {queue}")
        try:
            queue_offset = await pulling.progress.load(queue)
            if queue_offset is None or queue_offset < 0:
                queue_offset = await start_offset(queue, self._fetching.config.start, pulling.brokers)
            if locks is not None and not locks.is_held(queue):
                raise QueueLocked(f"the lock of {queue} was lost again")
        except TernError:
            if locks is not None:
                # The next round may give the queue to another member, and the lock would never be released.
                await locks.unlock([queue])
            raise
        self.lot = self._lot_from(queue_offset)

    @property
    def progress(self) -> int:
        return self.held.progress

    @property
    def is_ours(self) -> bool:
        return self.lot.is_ours

    def move(self, queue_offset: int) -> None:
        self.drop()
        self.lot = self._lot_from(queue_offset)

    def drop(self) -> None:
        self.held.dropped = True

    def leave(self) -> None:
        self._asking.is_leaving = True

    async def give_back(self) -> None:
        """Nothing: the next consumer of the queue begins at the stored progress."""

    def in_hand(self) -> Sequence[Claimed]:
        return self.held.in_flight()

    @property
    def is_stuck(self) -> bool:
        """Every call has a time limit, but limits can fail, too."""
        since, config = self._pulling_since, self._fetching.config
        longest_s = max(STUCK_S, 2 * (config.suspend_ms + ANSWER_MS) / 1000)
        return since is not None and self._clock.monotonic() - since > longest_s

    def info(self) -> ProcessQueueInfo:
        held, locks, clock = self.held, self._fetching.locks, self._clock
        locked_at = locks.asked_at(self.queue) if locks is not None else None
        return ProcessQueueInfo(
            commit_offset=held.progress,
            cached_msg_min_offset=held.progress if len(held) else 0,
            cached_msg_max_offset=held.progress + held.span if len(held) else 0,
            cached_msg_count=len(held),
            cached_msg_size_in_mib=held.body_bytes // _MIB,
            locked=locks is not None and locks.is_held(self.queue),
            last_lock_timestamp=0
            if locked_at is None
            else clock.now_ms() - int((clock.monotonic() - locked_at) * 1000),
            dropped=held.dropped,
            last_pull_timestamp=held.last_fetched_ms,
            last_consume_timestamp=self.lot.last_consumed_ms,
        )

    def _lot_from(self, queue_offset: int) -> PullLot:
        held = ProcessQueue[Claimed](self.queue, queue_offset)
        return PullLot(held, self._fetching.settling, room=self._has_room, limit_reached=self._limit_reached)

    # --- Limits ----------------------------------------------------------------------------------------------

    def _has_room(self) -> None:
        self._room.set()

    def _limit_reached(self, held: ProcessQueue[Claimed]) -> str | None:
        config, counts = self._fetching.config, self._fetching.queue_counts
        return config.limits.reached(
            held,
            topic_queues=counts.get(self.queue.topic, 1),
            all_queues=sum(counts.values()),
            orderly=config.orderly,
        )

    def _count_max(self) -> int:
        """How many messages to ask for. As many as are missing to the limit would be one by one at a slow listener."""
        config, counts = self._fetching.config, self._fetching.queue_counts
        count = config.limits.queue_count(topic_queues=counts.get(self.queue.topic, 1), all_queues=sum(counts.values()))
        return min(config.pull_count_max, count)

    async def _wait_for_room(self) -> None:
        self._fetching.settling.flush()
        while limit := self._limit_reached(self.held):
            held = self.held
            if self._fetching.may_log(limit):
                log.warning(
                    "group %s has reached its limit %s and stops pulling from %s until messages are consumed: %d "
                    "messages with %d bytes, queue offsets %d to %d, are in progress",
                    self._fetching.group,
                    limit,
                    self.queue,
                    len(held),
                    held.body_bytes,
                    held.progress,
                    held.progress + held.span,
                )
            self._room.clear()
            await self._room.wait()

    # --- The loop --------------------------------------------------------------------------------------------

    async def run(self, deliver: Deliver) -> None:
        async def fetch() -> None:
            await self._fetch(deliver)

        await self._asking.run(self._wait_for_room, fetch)

    async def _fetch(self, deliver: Deliver) -> None:
        fetching, lot, held = self._fetching, self.lot, self.held
        asked_at = self._pulling_since = self._clock.monotonic()
        asked_offset = held.next_offset
        try:
            copy = self._asking.copy()
            is_lite = self._pulling.lite and self.queue.broker_name not in self._pulling.without_lite

            def read(response: Response) -> _PullAnswer:
                return self._answered(
                    lot, response, deliver, is_of_master=copy.is_master, is_lite=is_lite, asked_at=asked_at
                )

            answer = await fetching.instance.call_held(
                read,
                copy.address,
                RequestCode.LITE_PULL_MESSAGE if is_lite else RequestCode.PULL_MESSAGE,
                self._question(held, is_of_master=copy.is_master),
                timeout_ms=fetching.config.suspend_ms + ANSWER_MS,
            )
        finally:
            self._pulling_since = None
        if answer is _NO_ANSWER:
            return
        if answer.is_moved:
            await self._start_afresh(answer.next_offset)
            return
        self._is_moved = False
        if answer.compressed:
            await self._take_compressed(lot, answer, deliver)
        if held.next_offset == asked_offset and answer.took_s < source.QUICK_S:
            await asyncio.sleep(source.QUICK_PAUSE_S)
        elif answer.is_found and fetching.config.pull_interval_ms:
            await asyncio.sleep(fetching.config.pull_interval_ms / 1000)

    def _answered(
        self, lot: PullLot, response: Response, deliver: Deliver, *, is_of_master: bool, is_lite: bool, asked_at: float
    ) -> _PullAnswer:
        """Deliver the messages of an answer, in the call that has read it: a message does not wait for the turn of this
        loop. Those that must be decompressed are left."""
        held = lot.held
        if is_lite and response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._pulling.without_lite.add(self.queue.broker_name)
            return _NO_ANSWER
        if not is_of_master:
            check_slave(self.queue, held.next_offset, response)
        is_found = response.code == ResponseCode.SUCCESS
        if not is_found and response.code not in _NO_MESSAGES:
            raise refused(
                response.code,
                f"{self.queue.broker_name} refused a pull of {self.queue}: {response.remark}",
                broker=self.queue.broker_name,
            )
        reply = response.read(PullReply)
        next_offset = reply.next_offset
        self._asking.broker_id = reply.suggested_broker_id
        held.last_fetched_ms = self._clock.now_ms()
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            return _PullAnswer(next_offset, is_moved=True)
        took_s = self._clock.monotonic() - asked_at
        messages: list[Claimed] = []
        if is_found:
            messages, flags = self._read(response.body, held, reply)
            for message in messages:
                message.lot = lot
                message.is_settled = False
                message.started = NOT_STARTED
            if flags & Sysflag.COMPRESSED and messages:
                return _PullAnswer(next_offset, is_found=True, took_s=took_s, compressed=messages)
        self._put(lot, messages, next_offset, deliver, took_s=took_s)
        return _PullAnswer(next_offset, is_found=is_found, took_s=took_s)

    def _put(
        self, lot: PullLot, messages: Sequence[Claimed], next_offset: int, deliver: Deliver, *, took_s: float
    ) -> None:
        """Put messages into the process queue, and deliver those that are wanted and new."""
        new = lot.held.put(self._wanted(messages) if messages else (), next_offset)
        if new:
            self._fetching.settling.stats.pulled(self.queue.topic, len(new), took_s=took_s)
            deliver(new)

    async def _take_compressed(self, lot: PullLot, answer: _PullAnswer, deliver: Deliver) -> None:
        """Decompress the messages of an answer, as far as there is room, and deliver them."""
        fetching, held, messages = self._fetching, lot.held, answer.compressed
        while messages:
            room_bytes = fetching.config.limits.room_bytes(
                held, topic_queues=fetching.queue_counts.get(self.queue.topic, 1)
            )
            count = await fetching.instance.inflater.messages(messages, room_bytes=room_bytes)
            readable, messages = messages[:count], messages[count:]
            next_offset = messages[0].queue_offset if messages else answer.next_offset
            self._put(lot, readable, next_offset, deliver, took_s=answer.took_s)
            if messages:
                await self._wait_for_room()

    def _question(self, held: ProcessQueue[Claimed], *, is_of_master: bool) -> PullMessage:
        fetching, queue, lite, progress = self._fetching, self.queue, self._pulling.lite, held.progress
        # Progress of broadcasting is stored here, and slaves of RocketMQ take none from pulls.
        commits = progress > 0 and is_of_master and fetching.config.model is MessageModel.CLUSTERING and not lite
        subscription = fetching.subscriptions.get(queue.topic)
        sysflag = PullSysflag.SUSPEND | (PullSysflag.COMMIT_OFFSET if commits else 0)
        if lite:
            sysflag |= PullSysflag.SUBSCRIPTION | PullSysflag.LITE_PULL
        return PullMessage(
            consumer_group=fetching.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            count_max=self._count_max(),
            sysflag=sysflag,
            commit_offset=progress if commits else 0,
            suspend_timeout_ms=fetching.config.suspend_ms,
            subscription=subscription.data.sub_string if subscription is not None and lite else None,
            sub_version=subscription.data.sub_version if subscription is not None else 0,
            expression_type=subscription.data.expression_type if subscription is not None else None,
            bytes_max=fetching.config.pull_bytes_max,
        )

    def _read(self, body: Buffer, held: ProcessQueue[Claimed], reply: PullReply) -> tuple[list[Claimed], int]:
        """The messages of an answer, and their sysflags."""
        name, low, high = self.queue.broker_name, reply.min_offset, reply.max_offset
        read = read_stored(body, Claimed, name, low, high)
        if read is not None:
            return read
        messages: list[Claimed] = []
        flags = 0
        for record in read_records(body):
            if not record.error or held.next_offset <= record.queue_offset < reply.next_offset:
                record.topic = record.topic or self.queue.topic
                messages.append(Claimed.of(record, name, low, high))
                flags |= record.sysflag
                continue
            # Its fields are damaged, too: taken for a place in the queue, this offset would lead the reader astray.
            log.error(
                "skipped a damaged record of %s before queue offset %d: %s",
                self.queue,
                reply.next_offset,
                record.error,
            )
        return messages, flags

    def _wanted(self, messages: Sequence[Claimed]) -> Sequence[Claimed]:
        queue, fetching = self.queue, self._fetching
        subscription = fetching.subscriptions.get(queue.topic)
        if subscription is not None and not subscription.filter.all:
            matches = subscription.filter.matches
            # What is left of a damaged record has no tags; the broker found that it has the right ones.
            messages = [one for one in messages if matches(one.tags) or (one.body_error and not one.tags)]
        namespace = fetching.instance.config.namespace
        if namespace or queue.topic.startswith(RETRY_PREFIX):
            for message in messages:
                restore_topic(message, namespace)
        chooses = self._pulling.chooses
        return messages if chooses is None else [one for one in messages if is_chosen(one, chooses)]

    async def _start_afresh(self, queue_offset: int) -> None:
        held = self.held
        if queue_offset == held.next_offset:
            raise refused(
                ResponseCode.PULL_OFFSET_MOVED,
                f"{self.queue.broker_name} returned the offset {queue_offset}, which {self.queue} does not have",
            )
        log.warning("the broker moved the offset of %s from %d to %d", self.queue, held.next_offset, queue_offset)
        self.move(queue_offset)
        await self._pulling.progress.save({self.queue: queue_offset}, wait=True)
        if self._is_moved:
            # Once is usual where old messages were deleted; a broker that goes on so is not followed at full speed.
            await asyncio.sleep(source.ERROR_PAUSE_S)
        self._is_moved = True
