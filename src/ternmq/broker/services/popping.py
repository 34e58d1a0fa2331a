"""Popping: what pop, peek, notification, ack and a change of the invisible time mean (F8, F9, K1, K2).

A pop names a topic and one queue or all of them, and gets up to 32 messages that are hidden from the rest of its group
for a while. It looks into the topic's retry topics as well: one time in five before the topic itself, else after it.
Old records, which are probably not in memory, are read on other threads (``read_old``), as for pulls.

An ack that comes too late, or for a pop of a broker that was killed since, is not an error: the message comes again, at
least once. A change that comes too late is refused, because the consumer would otherwise believe that the message is
still its own.

What is in flight belongs to a term (``pop_term``). Without one, on a slave, all calls raise ``NotMaster``.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Final, Protocol

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Term
from ternmq.broker.services.access import Access, Way, check_queue
from ternmq.broker.services.polls import PollKind, Polls
from ternmq.broker.services.pop_term import PopTerm
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.reading import COLD_MAX
from ternmq.broker.tables.filters import Filters, Wanted
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.included import Included
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import (
    InvalidParameter,
    MessageIllegal,
    NoMessage,
    NotMaster,
    StoreError,
    SystemBusy,
    TernError,
)
from ternmq.files import TableFile
from ternmq.pop.assign import RequestModeTable
from ternmq.pop.buffer import IN_FLIGHT_MAX
from ternmq.pop.checkpoints import GroupQueue
from ternmq.pop.take import Left, PopTaken, PopWish
from ternmq.store.read.query import accepted
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.handles import ALL_QUEUES, COUNT_MAX, ORDERED, RETRY_V1, RETRY_V2

#: Stretches of old records that one pop reads for something that its filter lets through.
OLD_READS_MAX: Final = 32

_FROM_LAST: Final = 1
#: It is kept with each ordered queue; clients send a UUID.
_ATTEMPT_ID_MAX: Final = 255


class PlaceQuery(Protocol):
    """Which messages a request is about. The headers of the remoting protocol fit."""

    consumer_group: str
    topic: str
    #: Below 0: all queues.
    queue_id: int


class PopQuery(PlaceQuery, Protocol):
    """What a pop asks for."""

    count_max: int
    invisible_ms: int
    #: 1: a group that is new to a queue begins behind its last message.
    init_mode: int
    expression_type: str | None
    subscription: str | None
    order: bool | None
    attempt_id: str | None


class PopOutcome(Enum):
    FOUND = "found"
    #: Records must be read first: ``Popping.read_old``.
    OLD = "old"
    #: Nothing is there; the request may wait.
    NOTHING = "nothing"
    #: Pop again at once.
    AGAIN = "again"
    #: Too much is in flight, or too many wait for the disk: pop again later.
    FULL = "full"


@dataclass(slots=True)
class Popped:
    """What became of a pop."""

    wish: PopWish
    taken: PopTaken
    wanted: Wanted
    outcome: PopOutcome


class Popping:
    """All methods belong to the broker's loop. Give ``begin`` to ``Roles.add``; ``close`` before the store closes."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        access: Access,
        polls: Polls,
        table_file: Callable[[str], TableFile],
        store: MessageStore,
        store_host: bytes,
        topics: Topics,
        groups: Groups,
        offsets: Offsets,
        stats: Stats,
        quotas: Quotas,
        filters: Filters,
        clock: Clock,
        choice: random.Random,
    ) -> None:
        """``table_file`` is a file of that name under ``config/``; raises ``CorruptFile`` if it cannot be read."""
        self._access = access
        self._polls = polls
        self._table_file = table_file
        self._store = store
        self._store_host = store_host
        self._topics = topics
        self._groups = groups
        self._offsets = offsets
        self._stats = stats
        self._quotas = quotas
        self._filters = filters
        self._clock = clock
        self._random = choice
        self._cold_count = 0
        self._running: PopTerm | None = None
        self._reason: TernError = NotMaster("this broker is not the master: pop from the master")
        #: How groups share queues; every node has this table. And which changes of a Raft group's log are in it.
        self.modes_included = Included()
        self.modes = RequestModeTable(
            table_file("messageRequestMode.json"),
            default_mode=config.default_message_request_mode,
            default_share=config.default_pop_share_queue_num,
            included=self.modes_included,
        )
        self._orders_file = table_file("consumerOrderInfo.json")
        self.apply(config)
        self.modes.load()

    def apply(self, config: BrokerConfig) -> None:
        self._config = config
        self._retry_percent = config.pop_from_retry_probability
        self._retry_kinds = [RETRY_V1]
        if config.enable_retry_topic_v2:
            self._retry_kinds = [RETRY_V2, RETRY_V1] if config.retrieve_message_from_pop_retry_topic_v1 else [RETRY_V2]
        self.modes.apply(
            default_mode=config.default_message_request_mode, default_share=config.default_pop_share_queue_num
        )
        if self._running is not None:
            self._running.apply(config)

    # --- Terms --------------------------------------------------------------------------------------------------

    def begin(self, _term: Term) -> PopTerm:
        """What pops in this term (``roles.RunnerFactory``). Raises ``CorruptFile``."""
        self._running = PopTerm(
            self._config,
            orders_file=self._orders_file,
            store=self._store,
            store_host=self._store_host,
            topics=self._topics,
            groups=self._groups,
            offsets=self._offsets,
            stats=self._stats,
            clock=self._clock,
            on_free=self._freed,
            on_end=self._ended,
        )
        return self._running

    def _ended(self, _term: PopTerm, reason: TernError) -> None:
        self._running, self._reason = None, reason
        self._polls.answer_all(reason)

    def _freed(self, key: GroupQueue) -> None:
        self._wake(*key)

    def close(self) -> None:
        """The broker stops: keep what is in flight for the next start."""
        if self._running is not None:
            self._running.close()

    def _term(self) -> PopTerm:
        if self._running is None:
            raise self._reason.with_traceback(None)
        return self._running

    def _check_term(self, term: PopTerm) -> None:
        """Raise if a term has ended while a call waited: its check points count no more."""
        if self._running is not term:
            raise self._reason.with_traceback(None)

    # --- Pop ----------------------------------------------------------------------------------------------------

    def take(self, query: PopQuery, *, is_first: bool) -> Popped:
        """Hand out messages. ``is_first``: the pop has just come, and may wait for the disk.

        Raises ``NotMaster``, ``NoPermission``, ``TopicMissing``, ``GroupMissing``, ``InvalidParameter``.
        """
        term = self._term()
        config = self._check(query, creates=True)
        if not 0 < query.count_max <= COUNT_MAX:
            raise InvalidParameter(f"invalid number of messages {query.count_max} for a pop: expected 1 to {COUNT_MAX}")
        if query.attempt_id is not None and len(query.attempt_id) > _ATTEMPT_ID_MAX:
            raise InvalidParameter(
                f"the attempt id has {len(query.attempt_id)} characters: expected at most {_ATTEMPT_ID_MAX}"
            )
        wanted = self._filters.of_request(query.consumer_group, query.topic, query.expression_type, query.subscription)
        ordered = bool(query.order)
        wish = PopWish(
            group=query.consumer_group,
            topic=query.topic,
            count_max=query.count_max,
            invisible_ms=query.invisible_ms,
            pop_time_ms=self._clock.now_ms(),
            revive_queue_id=ORDERED if ordered else term.next_revive_queue(),
            matches=wanted.matches,
            accepts=wanted.accepts,
            from_last=query.init_mode == _FROM_LAST,
            ordered=ordered,
            attempt_id=query.attempt_id,
            may_wait=is_first and self._cold_count < COLD_MAX,
            is_over=self._filters.timer() if wanted.accepts is not None else None,
        )
        taken = PopTaken()
        if not term.buffer.is_full:
            self._take(term, wish, config, query.queue_id, taken)
        return Popped(wish, taken, wanted, self._outcome(term, query, wish, taken))

    def _outcome(self, term: PopTerm, query: PopQuery, wish: PopWish, taken: PopTaken) -> PopOutcome:
        if taken.left is not None and wish.may_wait:
            return PopOutcome.OLD
        if taken.count:
            self._count(query, taken)
            return PopOutcome.OLD if taken.cold else PopOutcome.FOUND
        self._stats.missed()
        if taken.left is not None:
            # A consumer that has waited pops again, and has time for the disk then; if too many wait for it, later.
            return PopOutcome.FULL if self._cold_count >= COLD_MAX else PopOutcome.AGAIN
        return PopOutcome.FULL if term.buffer.is_full else PopOutcome.NOTHING

    def _count(self, query: PlaceQuery, taken: PopTaken) -> None:
        self._stats.got(query.topic, query.consumer_group, taken.count, taken.body_bytes)
        if self._quotas.groups:
            self._quotas.got(query.consumer_group, taken.count, taken.body_bytes)
        if taken.rest:
            self._polls.wake(PollKind.POP, query.consumer_group, query.topic, query.queue_id)

    async def read_old(self, query: PopQuery, popped: Popped) -> Popped:
        """Read the records of a pop whose outcome is ``OLD``: now FOUND or AGAIN. Raises ``StoreError``, ``NotMaster``.

        Should it fail after messages were taken, they come again when their time is over.
        """
        wish, taken = popped.wish, popped.taken
        if taken.left is not None:
            await self._take_old(self._term(), wish, taken, taken.left)
            if not taken.count:
                self._stats.missed()
                return replace(popped, outcome=PopOutcome.AGAIN)
            self._count(query, taken)
        if taken.cold:
            self._cold_count += 1
            try:
                read = await asyncio.wrap_future(self._store.cold.read(taken.cold))
                taken.buffers.append(memoryview(read))
            finally:
                self._cold_count -= 1
        return replace(popped, outcome=PopOutcome.FOUND)

    async def _take_old(self, term: PopTerm, wish: PopWish, taken: PopTaken, left: Left) -> None:
        """Take old records that must be looked at: read on other threads, a stretch at a time.

        Nothing is taken if a filter lets none of them through, or if another pop was faster.
        """
        taker = term.taker
        self._cold_count += 1
        try:
            for _ in range(OLD_READS_MAX):
                # The filter's time begins again with each read: others were served meanwhile.
                taken.left, taken.is_over = None, False
                start, found = taker.look(wish, taken, left)
                if found.cold is None:
                    # What follows is in memory.
                    taker.take(self._on_time(wish), taken, left.topic, left.queue_id, left.retry)
                    break
                count, seen = found.count, None
                try:
                    body = await asyncio.wrap_future(self._store.cold.read(found.cold))
                except StoreError:
                    # Retention was faster: what is left now? If it was not, the same error comes again.
                    count = 1
                else:
                    if wish.accepts is not None:
                        records, seen = accepted(body, wish.accepts, self._filters.timer())
                        count = len(records)
                self._check_term(term)
                if count:
                    # No more than was read: what lies behind it must not be touched.
                    limited = replace(self._on_time(wish), count_max=taken.count + count)
                    taker.take(limited, taken, left.topic, left.queue_id, left.retry, read_from=start)
                    break
                if seen is not None:
                    # The same entries once more, to know where those that the filter has seen end.
                    found = taker.look(replace(wish, count_max=taken.count + seen), taken, left)[1]
                taker.pass_over(wish, left, start, found.next_offset)
                if seen is not None:
                    break
        finally:
            self._cold_count -= 1

    def _on_time(self, wish: PopWish) -> PopWish:
        return wish if wish.accepts is None else replace(wish, is_over=self._filters.timer())

    def _take(self, term: PopTerm, wish: PopWish, config: TopicConfig, queue_id: int, taken: PopTaken) -> None:
        retries = () if wish.ordered else self._retry_topics(wish.group, wish.topic)
        retry_first = bool(retries) and self._random.randrange(100) < self._retry_percent
        if retry_first:
            self._take_retries(term, wish, retries, taken)
        for number in self._queue_ids(config, queue_id):
            term.taker.take(wish, taken, wish.topic, number)
        if not retry_first:
            self._take_retries(term, wish, retries, taken)

    def _take_retries(
        self, term: PopTerm, wish: PopWish, retries: Sequence[tuple[int, TopicConfig]], taken: PopTaken
    ) -> None:
        for retry, config in retries:
            for number in self._queue_ids(config, ALL_QUEUES):
                term.taker.take(wish, taken, config.topic_name, number, retry)

    # --- Beside it ----------------------------------------------------------------------------------------------

    def peek(self, query: PlaceQuery, *, count_max: int) -> PopTaken:
        """What a pop would get; nothing is hidden, no offset moves."""
        taker = self._term().taker
        group, topic = query.consumer_group, query.topic
        config = self._check(query)
        taken = PopTaken()
        for queue_id in self._queue_ids(config, query.queue_id):
            taker.peek(group, taken, topic, queue_id, count_max=count_max)
        for _, retry in self._retry_topics(group, topic):
            for queue_id in self._queue_ids(retry, ALL_QUEUES):
                taker.peek(group, taken, retry.topic_name, queue_id, count_max=count_max)
        return taken

    def has_message(self, query: PlaceQuery, *, ordered: bool, attempt_id: str | None) -> bool:
        """Whether there is anything to pop."""
        taker = self._term().taker
        group, topic = query.consumer_group, query.topic
        config = self._check(query)
        return any(
            taker.has_message(group, topic, queue_id, ordered=ordered, attempt_id=attempt_id)
            for queue_id in self._queue_ids(config, query.queue_id)
        ) or any(
            taker.has_message(group, retry.topic_name, queue_id)
            for _, retry in self._retry_topics(group, topic)
            for queue_id in self._queue_ids(retry, ALL_QUEUES)
        )

    def waiting(self, query: PlaceQuery) -> int:
        """How many pops wait for the same messages."""
        self._check(query)
        return self._polls.waiting_at(PollKind.POP, query.consumer_group, query.topic, query.queue_id)

    def listened(self, group: str, topic: str) -> list[str]:
        """Topics whose messages a pop that waits wants: also retry topics that do not exist yet."""
        return [topic, *(_retry_topic(group, topic, retry) for retry in self._kinds_of(group, topic))]

    # --- Acks ---------------------------------------------------------------------------------------------------

    def ack(
        self, key: GroupQueue, queue_offset: int, *, start_offset: int, pop_time_ms: int, revive_queue_id: int
    ) -> None:
        """One message is done. Raises ``TopicMissing``, ``MessageIllegal`` or ``NoMessage`` for one that cannot exist,
        and ``StoreError`` if the ack cannot be written."""
        term = self._term()
        self._check_message(key, queue_offset)
        if revive_queue_id == ORDERED:
            self._ack_ordered(term, key, queue_offset, pop_time_ms)
        else:
            term.buffer.ack(key, start_offset, pop_time_ms, (queue_offset,))

    def ack_all(
        self,
        key: GroupQueue,
        queue_offsets: Sequence[int],
        *,
        start_offset: int,
        pop_time_ms: int,
        revive_queue_id: int,
    ) -> None:
        """Messages of one check point are done. Raises ``MessageIllegal`` for an ordered one that is not its own; the
        others are done all the same."""
        term = self._term()
        if revive_queue_id != ORDERED:
            term.buffer.ack(key, start_offset, pop_time_ms, queue_offsets)
            return
        illegal: MessageIllegal | None = None
        for queue_offset in queue_offsets:
            try:
                self._ack_ordered(term, key, queue_offset, pop_time_ms)
            except MessageIllegal as error:
                illegal = error
        if illegal is not None:
            raise illegal

    def change(
        self,
        key: GroupQueue,
        queue_offset: int,
        *,
        start_offset: int,
        pop_time_ms: int,
        revive_queue_id: int,
        invisible_ms: int,
    ) -> tuple[int, int]:
        """Hide a message for another while, from now on; the pop time and invisible time of its new handle.

        Raises ``NoMessage`` for a message that is not in flight any more, and ``SystemBusy`` if too many are.
        """
        term = self._term()
        self._check_message(key, queue_offset)
        if revive_queue_id == ORDERED:
            if queue_offset >= self._offsets.get(*key):
                visible_ms = self._clock.now_ms() + invisible_ms
                term.orders.change(key, queue_offset, pop_time_ms, visible_ms)
                invisible_ms = visible_ms - pop_time_ms
            return pop_time_ms, invisible_ms
        if term.buffer.is_full:
            raise SystemBusy(
                f"[OVERLOAD]system busy: {IN_FLIGHT_MAX} pops are not acknowledged; acknowledge popped messages first"
            )
        changed_ms = term.buffer.change(key, start_offset, pop_time_ms, queue_offset, invisible_ms=invisible_ms)
        if changed_ms is None:
            _, topic, queue_id = key
            raise NoMessage(
                f"{topic}@{queue_id}:{queue_offset} is no longer covered by this handle; it was acknowledged, or is "
                "delivered again"
            )
        return changed_ms, invisible_ms

    def _ack_ordered(self, term: PopTerm, key: GroupQueue, queue_offset: int, pop_time_ms: int) -> None:
        if queue_offset < self._offsets.get(*key):
            return
        next_offset = term.orders.ack(key, queue_offset, pop_time_ms)
        if next_offset is not None:
            self._offsets.commit(*key, next_offset)

    def _check_message(self, key: GroupQueue, queue_offset: int) -> None:
        group, topic, queue_id = key
        config = self._topics.find(topic)
        if not 0 <= queue_id < config.read_queue_nums:
            raise MessageIllegal(
                f"queueId[{queue_id}] is illegal, topic:[{topic}] has {config.read_queue_nums} queues "
                f"to read; consumer:[{group}]"
            )
        first, end = self._store.span(topic, queue_id)
        if not first <= queue_offset <= end:
            raise NoMessage(f"offset is illegal, key:{topic}@{queue_id}, commit:{queue_offset}, store:{first}~{end}")

    # --- What tools do --------------------------------------------------------------------------------------------

    def moved(self, group: str, topic: str, queue_id: int) -> None:
        """A tool has moved a group: pop from there."""
        if self._running is not None:
            self._running.taker.reset((group, topic, queue_id))

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """A group or a topic is gone."""
        if self._running is not None:
            self._running.buffer.forget(group=group, topic=topic)
            self._running.orders.forget(group=group, topic=topic)
        self.modes.forget(group=group, topic=topic)

    # --------------------------------------------------------------------------------------------------------------

    def _wake(self, group: str, topic: str, queue_id: int) -> None:
        self._polls.wake(PollKind.POP, group, topic, queue_id)
        self._polls.wake(PollKind.NOTICE, group, topic, queue_id)

    def _check(self, query: PlaceQuery, *, creates: bool = False) -> TopicConfig:
        """The topic; raises what forbids the group to read it. A pop moves the group on; questions do not create it."""
        group = self._access.group(query.consumer_group, creates=False)
        config = self._access.topic_for(group, query.topic, Way.POP)
        check_queue(config, query.queue_id, query.consumer_group, may_be_all=True)
        if creates:
            self._groups.find(query.consumer_group)
        return config

    def _queue_ids(self, config: TopicConfig, queue_id: int) -> Sequence[int]:
        """The one asked for, or all, from a random one on: no queue is always the last."""
        if queue_id >= 0:
            return (queue_id,)
        count = config.read_queue_nums
        if count <= 1:
            return range(count)
        first = self._random.randrange(count)
        return [*range(first, count), *range(first)]

    def _retry_topics(self, group: str, topic: str) -> list[tuple[int, TopicConfig]]:
        """The retry topics of a group and topic that exist, with their flags."""
        found = []
        for retry in self._kinds_of(group, topic):
            config = self._topics.get(_retry_topic(group, topic, retry))
            if config is not None:
                found.append((retry, config))
        return found

    def _kinds_of(self, group: str, topic: str) -> list[int]:
        """Which retry topics a group reads. The first form of the name may be the retry topic of another group, whose
        messages are not for this one: it reads that only if it began to before there was such a group, so that none of
        its own is lost."""
        if self._groups.get(names.namesake(group, topic)) is None:
            # Also the second form where it is not written any more: it may have been while there was such a group.
            return self._retry_kinds if RETRY_V2 in self._retry_kinds else [*self._retry_kinds, RETRY_V2]
        has_begun = self._offsets.get(group, names.pop_retry_topic(group, topic), 0) >= 0
        return [RETRY_V2, RETRY_V1] if has_begun and RETRY_V1 in self._retry_kinds else [RETRY_V2]


def _retry_topic(group: str, topic: str, retry: int) -> str:
    return names.pop_retry_topic_v2(group, topic) if retry == RETRY_V2 else names.pop_retry_topic(group, topic)
