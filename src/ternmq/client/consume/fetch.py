"""The pull loop: one per queue, from the broker's log into the process queue (F1, F8, M2).

Each loop asks for the next messages, and the broker holds the question until there are some or 15 s are over. So there
is always one pull under way for each queue, and a message arrives as soon as it is stored. What came is put into the
process queue and handed on; the loop goes on at once, unless a limit of M2 is reached: then it waits until something is
done, and says so once a minute. Bodies count as they are after decompression, so the limit may be reached in the middle
of an answer; the rest of it waits, too. Each pull also carries the queue's progress, so that brokers know it without
another call.

One bad record does not stop its queue: it is handed on as a message with a ``body_error``, and the member treats it as
one that failed. Only an answer whose records cannot be told apart is an error, and asked for again.

What the answer's code means:

- 0: here they are. Tags are compared again by text: the broker compared hashes (K1).
- 19, 20: none now, or none that are wanted; go on from where the broker says.
- 21: there is no such offset. The log was cut, deleted or reset: the queue starts afresh where the broker says, and
  what is still in flight from before counts no more.
- anything else, and every network error: wait 3 s. A broker that has forgotten our subscription gets a heartbeat first.

A broker that answers at once and leads nowhere (with nothing, and no further; or from one offset to another and back)
is not asked thousands of times a second: such an answer is followed by a pause.

A lite pull consumer (F4) reads by the same loop. Its pulls bring their subscription along, commit nothing, and have a
code of their own (361) where the broker knows it: RocketMQ 4.9 does not.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap
from ternmq.client.connect.routes import MASTER_ID
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.decode import to_messages
from ternmq.client.consume.offsets import Progress
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.stats import ConsumeStats
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import (
    CorruptRecord,
    FilterMissing,
    FilterOutdated,
    NetworkError,
    SubscriptionMissing,
    SubscriptionOutdated,
    TernError,
    refused,
)
from ternmq.message import MessageQueue, Property, ReceivedMessage
from ternmq.names import RETRY_PREFIX
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.record import Record, read_records, unpack_records
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag

log = logging.getLogger(__name__)

#: RocketMQ's ``pullTimeDelayMillsWhenException``, and its delay for the answer FLOW_CONTROL.
ERROR_PAUSE_S: Final = 3.0
BUSY_PAUSE_S: Final = 0.02
#: A broker that finds nothing and answers sooner than this did not wait at all; it is asked again after a pause.
QUICK_S: Final = 0.05
QUICK_PAUSE_S: Final = 0.2
#: How long an answer may take beyond the time that the broker was asked to hold the pull.
ANSWER_MS: Final = 15_000
#: A pull that is under way for longer will never end. RocketMQ's ``rocketmq.client.pull.pullMaxIdleTime``.
STUCK_S: Final = 120.0
#: Between two log lines that one limit holds a consumer back; a slow listener reaches it thousands of times.
HELD_BACK_LOG_S: Final = 60.0

Deliver = Callable[["QueueReader", ProcessQueue, Sequence[ReceivedMessage]], None]


@dataclass(slots=True, frozen=True)
class Fetching:
    """What all readers of one consumer have in common."""

    instance: ClientInstance
    #: The group's name on the wire.
    group: str
    config: PushConfig
    #: By topic, on the wire; changes while readers run.
    subscriptions: Mapping[str, Subscription]
    progress: Progress
    stats: ConsumeStats
    #: Takes what a pull brought, on the loop.
    deliver: Deliver
    #: How many queues of each topic are read here.
    queue_counts: Mapping[str, int]
    #: Not set while the consumer is suspended.
    active: asyncio.Event
    #: Told the name of a broker that cannot be reached.
    on_unreachable: Callable[[str], None]
    #: Whether these are pulls of a lite pull consumer, and the names of brokers that do not know their code.
    lite: bool = False
    without_lite: set[str] = field(default_factory=set)
    #: By the name of a limit: when the log last said that it holds this consumer back, by the clock's ``monotonic``.
    held_back: dict[str, float] = field(default_factory=dict)


class QueueReader:
    """Reads one queue from ``queue_offset`` on, as long as ``run`` runs. All methods belong to the loop's thread."""

    def __init__(self, fetching: Fetching, queue: MessageQueue, queue_offset: int) -> None:
        self._fetching = fetching
        self.queue = queue
        self.held = ProcessQueue(queue, queue_offset)
        #: Which copy of the broker to ask; it suggests a slave when we read far behind (O3).
        self._broker_id = MASTER_ID
        self._room = asyncio.Event()
        self._is_leaving = False
        #: When the pull that is under way began, by the clock's ``monotonic``.
        self._pulling_since: float | None = None
        #: Whether the last answer sent us to another offset.
        self._is_moved = False

    def __repr__(self) -> str:
        return f"<QueueReader {self.held!r}>"

    def done(self, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Messages that ``held`` was given need no more work here."""
        held.done(messages)
        self._room.set()

    def move(self, queue_offset: int) -> None:
        """Go on elsewhere: what is still in flight from before must not count any more."""
        self.held.dropped = True
        self.held = ProcessQueue(self.queue, queue_offset)

    def drop(self) -> None:
        """The queue is another's now: what is still in flight must not count any more."""
        self.held.dropped = True

    def leave(self) -> None:
        """Fetch no more, but do not give up the question that is under way."""
        self._is_leaving = True

    @property
    def is_stuck(self) -> bool:
        """Whether its pull should have ended long ago: every call has a time limit, but limits can fail, too."""
        since, config = self._pulling_since, self._fetching.config
        longest_s = max(STUCK_S, 2 * (config.suspend_ms + ANSWER_MS) / 1000)
        return since is not None and self._fetching.instance.env.clock.monotonic() - since > longest_s

    async def run(self) -> None:
        """Fetch for ever, or until told to leave."""
        fetching = self._fetching
        while not self._is_leaving:
            await fetching.active.wait()
            await self._wait_for_room()
            try:
                await self._fetch()
            except TernError as error:
                await self._recover(error)
            except Exception:
                # Whatever it is, a queue that is not read any more, without notice, would be worse.
                log.exception("the pull from %s failed unexpectedly; retrying", self.queue)
                await asyncio.sleep(ERROR_PAUSE_S)

    async def _wait_for_room(self) -> None:
        fetching = self._fetching
        config, topic = fetching.config, self.queue.topic
        while limit := config.limits.reached(
            self.held,
            topic_queues=fetching.queue_counts.get(topic, 1),
            all_queues=sum(fetching.queue_counts.values()),
            orderly=config.orderly,
        ):
            held = self.held
            if self._may_say(limit):
                log.warning(
                    "group %s has reached its limit %s and stops pulling from %s until messages are consumed: %d "
                    "messages with %d bytes, queue offsets %d to %d, are in progress",
                    fetching.group,
                    limit,
                    self.queue,
                    len(held),
                    held.body_bytes,
                    held.progress,
                    held.progress + held.span,
                )
            self._room.clear()
            await self._room.wait()

    def _may_say(self, limit: str) -> bool:
        """Whether the log is to say (again) that a limit holds this consumer back."""
        now, said = self._fetching.instance.env.clock.monotonic(), self._fetching.held_back
        if now - said.get(limit, -HELD_BACK_LOG_S) < HELD_BACK_LOG_S:
            return False
        said[limit] = now
        return True

    async def _fetch(self) -> None:
        fetching, held = self._fetching, self.held
        is_lite = fetching.lite and self.queue.broker_name not in fetching.without_lite
        asked_at = self._pulling_since = fetching.instance.env.clock.monotonic()
        try:
            response = await fetching.instance.call(
                self._address(),
                RequestCode.LITE_PULL_MESSAGE if is_lite else RequestCode.PULL_MESSAGE,
                self._question(held),
                timeout_ms=fetching.config.suspend_ms + ANSWER_MS,
            )
        finally:
            self._pulling_since = None
        if is_lite and response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            fetching.without_lite.add(self.queue.broker_name)
            return
        is_found = response.code == ResponseCode.SUCCESS
        if not is_found and response.code not in _NO_MESSAGES:
            raise refused(
                response.code,
                f"{self.queue.broker_name} refused a pull of {self.queue}: {response.remark}",
                broker=self.queue.broker_name,
            )
        reply = response.read(PullReply)
        self._broker_id = reply.suggested_broker_id
        held.last_fetched_ms = fetching.instance.env.clock.now_ms()
        if response.code == ResponseCode.PULL_OFFSET_MOVED:
            await self._start_afresh(reply.next_offset)
            return
        self._is_moved = False
        asked_offset = held.next_offset
        took_s = fetching.instance.env.clock.monotonic() - asked_at
        records: Sequence[Record] = self._records(response.body, held, reply) if is_found else ()
        while records:
            messages = await to_messages(
                records,
                self.queue.broker_name,
                reply.min_offset,
                reply.max_offset,
                bytes_max=fetching.instance.config.decompressed_bytes_max,
                room_bytes=fetching.config.limits.room_bytes(
                    held, topic_queues=fetching.queue_counts.get(self.queue.topic, 1)
                ),
            )
            records = records[len(messages) :]
            new = held.put(self._wanted(messages), records[0].queue_offset if records else reply.next_offset)
            if new:
                fetching.stats.pulled(self.queue.topic, len(new), took_s=took_s)
                fetching.deliver(self, held, new)
            if records:
                await self._wait_for_room()
        held.put((), reply.next_offset)
        if held.next_offset == asked_offset and took_s < QUICK_S:
            await asyncio.sleep(QUICK_PAUSE_S)

    def _question(self, held: ProcessQueue) -> PullMessage:
        fetching, queue, progress = self._fetching, self.queue, held.progress
        # Progress of broadcasting is nobody's business but ours, and slaves keep none.
        commits = (
            progress > 0
            and self._broker_id == MASTER_ID
            and fetching.config.model is MessageModel.CLUSTERING
            and not fetching.lite
        )
        subscription = fetching.subscriptions.get(queue.topic)
        sysflag = PullSysflag.SUSPEND | (PullSysflag.COMMIT_OFFSET if commits else 0)
        if fetching.lite:
            sysflag |= PullSysflag.SUBSCRIPTION | PullSysflag.LITE_PULL
        return PullMessage(
            consumer_group=fetching.group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=held.next_offset,
            count_max=fetching.config.pull_count_max,
            sysflag=sysflag,
            commit_offset=progress if commits else 0,
            suspend_timeout_ms=fetching.config.suspend_ms,
            subscription=subscription.data.sub_string if subscription is not None and fetching.lite else None,
            sub_version=subscription.data.sub_version if subscription is not None else 0,
            expression_type=subscription.data.expression_type if subscription is not None else None,
            bytes_max=fetching.config.pull_bytes_max,
        )

    def _records(self, body: Buffer, held: ProcessQueue, reply: PullReply) -> Sequence[Record]:
        try:
            return unpack_records(body)
        except CorruptRecord:
            records = read_records(body)
        kept: list[Record] = []
        for record in records:
            if not record.error or held.next_offset <= record.queue_offset < reply.next_offset:
                record.topic = record.topic or self.queue.topic
                kept.append(record)
                continue
            # Its fields are damaged, too: taken for a place in the queue, this offset would lead the reader astray.
            log.error(
                "skipped a damaged record of %s before queue offset %d: %s",
                self.queue,
                reply.next_offset,
                record.error,
            )
        return kept

    def _wanted(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
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
        return messages

    def _address(self) -> str:
        """The broker to ask: the one suggested, else the master, else whatever is left of it (O3)."""
        routes, name = self._fetching.instance.routes, self.queue.broker_name
        address = routes.address(name, self._broker_id) or routes.address(name)
        if address is None:
            route = routes.known(self.queue.topic)
            address = next(iter(route.brokers.get(name, {}).values()), None) if route is not None else None
        return address or self._fetching.instance.broker_address(name)

    async def _start_afresh(self, queue_offset: int) -> None:
        held = self.held
        if queue_offset == held.next_offset:
            raise refused(
                ResponseCode.PULL_OFFSET_MOVED,
                f"{self.queue.broker_name} returned the offset {queue_offset}, which {self.queue} does not have",
            )
        log.warning("the broker moved the offset of %s from %d to %d", self.queue, held.next_offset, queue_offset)
        self.move(queue_offset)
        await self._fetching.progress.save({self.queue: queue_offset}, wait=True)
        if self._is_moved:
            # Once is usual where old messages were deleted; a broker that goes on so is not followed at full speed.
            await asyncio.sleep(ERROR_PAUSE_S)
        self._is_moved = True

    async def _recover(self, error: TernError) -> None:
        instance = self._fetching.instance
        if getattr(error, "code", None) == ResponseCode.FLOW_CONTROL:
            await asyncio.sleep(BUSY_PAUSE_S)
            return
        log.warning("cannot pull from %s: %s; retrying in %g s", self.queue, error, ERROR_PAUSE_S)
        self._broker_id = MASTER_ID
        if isinstance(error, SubscriptionMissing | SubscriptionOutdated | FilterMissing | FilterOutdated):
            instance.heartbeat_soon()
        elif isinstance(error, NetworkError):
            self._fetching.on_unreachable(self.queue.broker_name)
            # Its place may have been taken by another.
            with contextlib.suppress(TernError):
                await instance.routes.refresh(self.queue.topic)
        await asyncio.sleep(ERROR_PAUSE_S)


def restore_topic(message: ReceivedMessage, namespace: str) -> None:
    """Give a message the topic that the application knows: it never heard of retry topics or namespaces."""
    if message.topic.startswith(RETRY_PREFIX):
        message.topic = message.properties.get(Property.RETRY_TOPIC) or message.topic
    message.topic = unwrap(namespace, message.topic)


_NO_MESSAGES: Final = frozenset(
    {ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED}
)
