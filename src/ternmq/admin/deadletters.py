"""Dead letters: messages that a group has given up. They are listed, sent again, and marked as handled (H2).

They are in the topic ``%DLQ%group``, one queue on each broker, and no consumer reads them automatically. A broker
stores the message, its origin (RETRY_TOPIC, ORIGIN_MESSAGE_ID) and the number of attempts. *Why* it failed
is only in the consumer's log.

Sending again
    The copy goes to the group's retry topic, so that only the group that failed gets the message; other groups of its
    topic have finished it. With ``to_topic`` it goes to the topic that it was first sent to, and to all groups there.
    The copy starts with 0 attempts and keeps body, keys, tags, properties and the message id. It also contains the
    offset id of its dead letter (TERN_RESENT_FROM). With this id and the index of both topics, a letter that was sent
    again before is recognized and skipped, as long as the log has the copy.

Marking as handled
    A log deletes no single messages: a dead letter expires like any other message. But a *mark* can be moved past it:
    the progress of the tools' group in ``%DLQ%group``. All letters before the mark are handled, and shown only on
    request. Sending again moves the mark, too, up to the first unhandled letter. ``for_good`` deletes the topic: its
    messages can then no longer be read, although their bytes stay in the log until they expire.

All of this also works with RocketMQ's brokers; it needs only topics, pulls, sends and offsets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from ternmq.admin.messages import MessageAdmin, in_ms, place_of
from ternmq.admin.queues import Queues
from ternmq.admin.topics import TopicAdmin
from ternmq.client.config import COMPRESSIONS, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.ongoing import Pick
from ternmq.client.send.outgoing import compression_of, prepare, shrink
from ternmq.client.send.queue_choice import by_sharding_key
from ternmq.client.send.sender import Sender
from ternmq.errors import ConfigError, InvalidName, NotFound, RouteMissing
from ternmq.message import TIMER_PROPERTIES, Message, MessageQueue, Property, ReceivedMessage, SendReceipt
from ternmq.names import DEAD_LETTER_PREFIX, check_group, dead_letter_topic, retry_topic

#: RocketMQ's producer group for sends that belong to no producer of the application.
_INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"
_TIMEOUT_MS: Final = 5_000
#: Letters that are read, looked up and sent together.
_PAGE: Final = 32

#: Properties of the message's history that do not apply to the copy.
_NOT_COPIED: Final = (
    Property.RETRY_TOPIC,
    Property.ORIGIN_MESSAGE_ID,
    Property.RESENT_FROM,
    Property.DELAY,
    *TIMER_PROPERTIES,
    Property.REAL_TOPIC,
    Property.REAL_QUEUE_ID,
    Property.WAIT,
    Property.RECONSUME_TIME,
    Property.MAX_RECONSUME_TIMES,
    Property.MIN_OFFSET,
    Property.MAX_OFFSET,
    Property.CONSUME_START_TIME,
    Property.POP_CHECKPOINT,
    Property.TRANSACTION,
    Property.CLUSTER,
    Property.REGION,
    Property.TRACE_ON,
    Property.UNIQUE_KEY,
)


@dataclass(slots=True, frozen=True)
class DeadLetterCount:
    """How many dead letters a group has."""

    group: str
    #: Those that are not handled.
    waiting: int
    #: All that are still in the log.
    total: int
    #: When the last one was stored, ms since 1970; 0 if there is none.
    last_ms: int


@dataclass(slots=True, frozen=True)
class DeadLetter:
    """A message that a group has given up. ``message`` is its record there, stored when it was given up."""

    group: str
    message: ReceivedMessage

    @property
    def origin_topic(self) -> str:
        """The topic that it was first sent to; empty if it was sent directly to the dead-letter topic."""
        return self.message.properties.get(Property.RETRY_TOPIC, "")

    @property
    def origin_id(self) -> str:
        """The offset id of its first record, which may have expired; empty if unknown."""
        return self.message.properties.get(Property.ORIGIN_MESSAGE_ID, "")

    @property
    def attempts(self) -> int:
        """How often it was delivered. If this is less than the group allows, a consumer gave it up itself."""
        return self.message.reconsume_times


@dataclass(slots=True, frozen=True)
class Resent:
    """The result of sending a dead letter again."""

    letter: DeadLetter
    #: The topic of the copy.
    topic: str
    #: Where the copy is; None if there is none: it was sent again before, or this is a dry run.
    receipt: SendReceipt | None = None
    #: The copy made earlier; then no new one is made.
    earlier: ReceivedMessage | None = None


@dataclass(slots=True, frozen=True)
class Purged:
    """Dead letters of one queue that are marked as handled now."""

    queue: MessageQueue
    count: int


class DeadLetterAdmin:
    """Dead letters, messages that a group has given up: ``admin.dead_letters``."""

    def __init__(self, instance: ClientInstance, topics: TopicAdmin, messages: MessageAdmin, queues: Queues) -> None:
        self._instance = instance
        self._topics = topics
        self._messages = messages
        self._queues = queues

    # --- Listing --------------------------------------------------------------------------------------------------

    async def groups(self) -> list[DeadLetterCount]:
        """The groups that have dead letters, also those whose dead letters are all handled, by name."""
        topics = [topic.name for topic in await self._topics.all() if topic.name.startswith(DEAD_LETTER_PREFIX)]
        return [count for topic in topics if (count := await self._count(topic)).total]

    async def all(
        self,
        group: str,
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        count_max: int = 100,
        handled: bool = False,
    ) -> list[DeadLetter]:
        """The oldest dead letters of ``group`` that were stored from ``begin`` to ``end``, at most ``count_max``.

        Both ends are included; times are ``datetime`` or milliseconds since 1970. Those that were sent again or purged
        are included only with ``handled``.

        ::

            for letter in await admin.dead_letters.all("billing"):
                print(letter.origin_topic, letter.message.keys, letter.attempts)
        """
        if count_max < 1:
            raise ConfigError(f"invalid count_max {count_max}: expected 1 or more")

        async def first(queue: MessageQueue) -> list[DeadLetter]:
            found: list[DeadLetter] = []
            async for page in self._pages(group, queue, begin, end, handled=handled):
                found += page
                if len(found) >= count_max:
                    break
            return found

        found = await self._queues.each(await self._queues_of(group), first)
        letters = [letter for one in found for letter in one]
        letters.sort(key=lambda letter: (letter.message.store_time_ms, letter.message.queue))
        return letters[:count_max]

    async def find(self, group: str, message_id: str) -> list[DeadLetter]:
        """The dead letters of ``group`` with this ``message_id`` (or offset id), oldest first.

        There are several if the message was sent again and given up again. Raises ``NotFound``.
        """
        topic = dead_letter_topic(check_group(group))
        try:
            found = await self._messages.by_unique_key(topic, message_id)
        except RouteMissing:
            found = []
        if not found:
            try:
                place_of(message_id)
                found = [await self._messages.by_id(message_id)]
            except (InvalidName, NotFound):
                found = []
        letters = [DeadLetter(group, message) for message in found if message.topic == topic]
        if not letters:
            raise NotFound(
                f"group {group!r} has no dead letter {message_id!r}; it may have expired, see `tern dlq list "
                f"{group} --all`"
            )
        return letters

    async def marks(self, group: str) -> dict[MessageQueue, int]:
        """For each queue of dead letters of ``group``, the first offset that is not handled."""
        queues = await self._queues_of(group)
        bounds = await self._queues.each(queues, self._bounds)
        return {queue: mark for queue, (_, mark, _) in zip(queues, bounds, strict=True)}

    # --- Sending again ----------------------------------------------------------------------------------------------

    async def resend(
        self,
        group: str,
        message_ids: Sequence[str] = (),
        *,
        begin: datetime | int | None = None,
        end: datetime | int | None = None,
        chosen: Callable[[DeadLetter], bool] | None = None,
        to_topic: bool = False,
        again: bool = False,
        dry_run: bool = False,
        on_resent: Callable[[Resent], None] | None = None,
    ) -> list[Resent]:
        """Send dead letters of ``group`` again: those with ``message_ids``, or all that are not handled.

        Of the latter, ``begin`` and ``end`` choose those that were stored in this time (both ends included), ``chosen``
        those for which it returns True. They go to the group's retry topic, or with ``to_topic`` to the topic that they
        were first sent to. A dead letter that was sent again before is skipped, unless ``again``. With ``dry_run``
        nothing is sent. ``on_resent`` is called with each one as soon as it is sent, so that after an error it is known
        which ones were. Raises ``NotFound`` for an id without a dead letter, ``RouteMissing`` when there is no topic to
        send to.

        ::

            for resent in await admin.dead_letters.resend("billing", begin=datetime(2026, 1, 31)):
                print(resent.letter.message.message_id, "already" if resent.earlier else "sent")
        """
        if message_ids and (begin is not None or end is not None or chosen is not None):
            raise ConfigError("choose dead letters by id or by the other parameters, not both")
        work = _Resending(
            self._instance, self._topics, self._messages, group, to_topic=to_topic, again=again, dry_run=dry_run
        )
        done: list[Resent] = []

        async def send(letters: Sequence[DeadLetter]) -> None:
            page, error = await work.send(letters)
            done.extend(page)
            for resent in page:
                if on_resent is not None:
                    on_resent(resent)
            if not dry_run:
                await self._mark(page)
            if error is not None:
                raise error

        if message_ids:
            # Several with one id: the newest one, which failed last.
            named = [(await self.find(group, message_id))[-1] for message_id in dict.fromkeys(message_ids)]
            for at in range(0, len(named), _PAGE):
                await send(named[at : at + _PAGE])
            return done
        for queue in await self._queues_of(group):
            async for page in self._pages(group, queue, begin, end, handled=False):
                await send(page if chosen is None else list(filter(chosen, page)))
        return done

    # --- Marking as handled -------------------------------------------------------------------------------------------

    async def purge(
        self, group: str, *, before: datetime | int | None = None, for_good: bool = False, dry_run: bool = False
    ) -> list[Purged]:
        """Mark the dead letters of ``group`` as handled: all, or those that were stored before the time ``before``.

        They are no longer listed or sent again, unless asked for; the log keeps them as long as any other message. With
        ``for_good`` the group's dead-letter topic is deleted instead: its messages can no longer be read. ``dry_run``
        only counts them.
        """
        if for_good and before is not None:
            raise ConfigError(
                "for_good deletes all dead letters of the group and cannot be combined with a time; omit one of them"
            )
        queues = await self._queues_of(group)
        if for_good:
            bounds = await self._queues.each(queues, self._bounds)
            if queues and not dry_run:
                await self._topics.delete(dead_letter_topic(group))
            return [Purged(queue, high - low) for queue, (low, _, high) in zip(queues, bounds, strict=True)]

        async def purge(queue: MessageQueue) -> Purged:
            _, mark, high = await self._bounds(queue)
            to = high if before is None else await self._queues.first_since(queue, in_ms(before))
            if to <= mark:
                return Purged(queue, 0)
            if not dry_run:
                await self._queues.bounds.commit(queue, to)
            return Purged(queue, to - mark)

        return await self._queues.each(queues, purge)

    # --- Queues and marks ---------------------------------------------------------------------------------------------

    async def _queues_of(self, group: str) -> list[MessageQueue]:
        try:
            return await self._queues.of(dead_letter_topic(check_group(group)))
        except RouteMissing:
            return []

    async def _count(self, topic: str) -> DeadLetterCount:
        status = {one.queue: one for one in await self._topics.status(topic)}
        bounds = await self._queues.each(await self._queues.of(topic), self._bounds)
        return DeadLetterCount(
            topic.removeprefix(DEAD_LETTER_PREFIX),
            waiting=sum(high - mark for _, mark, high in bounds),
            total=sum(high - low for low, _, high in bounds),
            last_ms=max((one.last_store_ms for one in status.values()), default=0),
        )

    async def _bounds(self, queue: MessageQueue) -> tuple[int, int, int]:
        """The queue's first offset, the first unhandled one, and its end."""
        low, high, mark = await asyncio.gather(
            self._queues.bounds.min(queue), self._queues.bounds.max(queue), self._queues.bounds.load(queue)
        )
        # A mark beyond the end belongs to a deleted topic of the same name.
        return low, max(low, mark) if mark is not None and mark <= high else low, high

    async def _pages(
        self,
        group: str,
        queue: MessageQueue,
        begin: datetime | int | None,
        end: datetime | int | None,
        *,
        handled: bool,
    ) -> AsyncIterator[list[DeadLetter]]:
        """The letters of a queue in this time, page by page; handled ones only with ``handled``."""
        low, mark, stop = await self._bounds(queue)
        start = low if handled else mark
        if begin is not None:
            start = max(start, await self._queues.first_since(queue, in_ms(begin)))
        if end is not None:
            stop = min(stop, await self._queues.first_since(queue, in_ms(end) + 1))
        while start < stop:
            messages, start = await self._queues.page(queue, start, count_max=min(_PAGE, stop - start))
            yield [DeadLetter(group, message) for message in messages if message.queue_offset < stop]

    async def _mark(self, resent: Iterable[Resent]) -> None:
        """Move the marks past letters that are handled now, up to the first unhandled one."""
        offsets: dict[MessageQueue, set[int]] = {}
        for one in resent:
            offsets.setdefault(one.letter.message.queue, set()).add(one.letter.message.queue_offset)
        for queue, done in offsets.items():
            _, mark, _ = await self._bounds(queue)
            to = mark
            while to in done:
                to += 1
            if to > mark:
                await self._queues.bounds.commit(queue, to)


class _Resending:
    """One call of ``resend`` for a group."""

    def __init__(
        self,
        instance: ClientInstance,
        topics: TopicAdmin,
        messages: MessageAdmin,
        group: str,
        *,
        to_topic: bool,
        again: bool,
        dry_run: bool,
    ) -> None:
        self._sender = Sender(instance, _INNER_GROUP, ProducerConfig(), ())
        self._topics = topics
        self._messages = messages
        self._retry_topic = retry_topic(group)
        self._to_topic = to_topic
        self._again = again
        self._dry_run = dry_run

    async def send(self, letters: Sequence[DeadLetter]) -> tuple[list[Resent], BaseException | None]:
        """Send some letters at once; returns the results, and the first error, if there was one."""
        if letters and not self._to_topic and not self._dry_run:
            # A broker would create it for a send, but if topics are not created by sends there is no route to a broker.
            brokers = {letter.message.broker_name for letter in letters}
            await self._topics.ensure_on(self._retry_topic, brokers, queues=1)
        outcomes = await asyncio.gather(*map(self._one, letters), return_exceptions=True)
        errors = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        return [outcome for outcome in outcomes if isinstance(outcome, Resent)], next(iter(errors), None)

    async def _one(self, letter: DeadLetter) -> Resent:
        topic = letter.origin_topic if self._to_topic else self._retry_topic
        if not topic:
            raise NotFound(
                f"the dead letter {letter.message.message_id} does not contain its original topic; send it to "
                "the group instead, without to_topic"
            )
        earlier = None if self._again else await self._earlier(letter)
        if earlier is not None or self._dry_run:
            return Resent(letter, topic, earlier=earlier)
        return Resent(letter, topic, await self._copy(letter, topic))

    async def _earlier(self, letter: DeadLetter) -> ReceivedMessage | None:
        """The copy of a letter, if it was sent again before."""
        for topic in filter(None, (self._retry_topic, letter.origin_topic)):
            try:
                found = await self._messages.by_unique_key(topic, letter.message.message_id)
            except RouteMissing:
                continue
            for message in found:
                if message.properties.get(Property.RESENT_FROM) == letter.message.offset_id:
                    return message
        return None

    async def _copy(self, letter: DeadLetter, topic: str) -> SendReceipt:
        dead = letter.message
        kept = {name: value for name, value in dead.properties.items() if name not in _NOT_COPIED}
        system = {Property.RESENT_FROM: dead.offset_id}
        copy = Message(topic, dead.body, properties=kept, flag=dead.flag)
        pick: Pick | None = None
        if not self._to_topic:
            system |= {Property.RETRY_TOPIC: letter.origin_topic, Property.ORIGIN_MESSAGE_ID: letter.origin_id}
            # Queue 0 always exists.
            pick = _always(MessageQueue(topic, dead.broker_name, 0))
        elif key := kept.pop(Property.SHARDING_KEY, ""):
            copy.sharding_key = key
            pick = _by_key(copy)
        outgoing = prepare(copy, message_id=dead.message_id, system=system, sysflag=compression_of(dead))
        config = self._sender.config
        if not dead.body_error and len(dead.body) >= config.compress_from_bytes:
            shrink(outgoing, kind=COMPRESSIONS[config.compression], level=config.compress_level)
        return await self._sender.deliver(outgoing, pick=pick, timeout_ms=_TIMEOUT_MS)


def _always(queue: MessageQueue) -> Pick:
    return lambda _: queue


def _by_key(message: Message) -> Pick:
    return lambda route: by_sharding_key(route.to_write, message)
