"""Pops: 200050, and what belongs to them: peek 200052, notification 200054, polling info 200055 (F8, F9, K1, K2).

A pop names a topic and one queue or all of them, and gets up to 32 messages that are hidden from the rest of its group
for a while. It looks into the topic's retry topics as well: one time in five before the topic itself, else after it.

    0    found                     the header tells of which queues, for the handles
    209  POLLING_FULL              too many wait already, or too much is in flight: the client waits 3 s
    210  POLLING_TIMEOUT           nothing came while it was held: the client pops again at once

A pop that finds nothing is held (``pop_holds``) for as long as it says. How long a client has waited is counted from
the arrival of its request: ``bornTime`` is of the client's clock, which may be wrong.

Old records, which are probably not in memory, are read on other threads, as for pulls.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from ternmq import names
from ternmq.broker.config import READ, BrokerConfig
from ternmq.broker.flow import PULL
from ternmq.broker.handlers.pull import COLD_MAX
from ternmq.broker.services.internal import check_pop
from ternmq.broker.services.pop_holds import PopHolds
from ternmq.broker.tables.filters import ALL, Filters, Wanted
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.errors import InvalidParameter, NoPermission, StoreError
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.pop.take import Left, Taken, Taker, Wish
from ternmq.store.log.protocol import Piece
from ternmq.store.read.query import accepted
from ternmq.wire.bodies.topics import TopicConfig
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.handles import ALL_QUEUES, COUNT_MAX, ORDERED, RETRY_V1, RETRY_V2
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import (
    Notification,
    NotificationReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopMessage,
    PopReply,
)

#: Stretches of old records that one pop reads for something that its filter lets through.
OLD_READS_MAX = 32

_FROM_LAST = 1
#: It is kept with each ordered queue; clients send a UUID.
_ATTEMPT_ID_MAX = 255
_FOUND = "FOUND"
_NOTHING = "NO_MESSAGE_IN_QUEUE"


class PopHandlers:
    """All methods belong to the broker's loop. ``holds`` are the pops that wait, ``notices`` the notifications."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        taker: Taker,
        topics: Topics,
        groups: Groups,
        stats: Stats,
        filters: Filters,
        next_revive_queue: Callable[[], int],
        is_full: Callable[[], bool],
        read_cold: Callable[[list[Piece]], Future[bytes]],
        clock: Clock,
        choice: random.Random,
    ) -> None:
        self._readable = bool(config.broker_permission & READ)
        self._retry_percent = config.pop_from_retry_probability
        self._retry_kinds = [RETRY_V1]
        if config.enable_retry_topic_v2:
            self._retry_kinds = [RETRY_V2, RETRY_V1] if config.retrieve_message_from_pop_retry_topic_v1 else [RETRY_V2]
        self._taker = taker
        self._topics = topics
        self._groups = groups
        self._stats = stats
        self._filters = filters
        self._next_revive_queue = next_revive_queue
        self._is_full = is_full
        self._read_cold = read_cold
        self._cold_count = 0
        self._now_ms = clock.now_ms
        self._random = choice
        bounds = {
            "capacity": config.max_pop_polling_size,
            "place_capacity": config.pop_polling_size,
            "bytes_max": config.max_queued_request_bytes,
        }
        self.holds = PopHolds(resume=self._resume_pop, **bounds)
        self.notices = PopHolds(resume=self._resume_notification, **bounds)

    def routes(self) -> dict[int, Route]:
        consumes = Rule(Action.SUB, topic="topic", group="consumerGroup")
        return {
            RequestCode.POP_MESSAGE: Route(self.pop, PULL, consumes, takes_body=False, needs_connection=True),
            RequestCode.PEEK_MESSAGE: Route(self.peek, PULL, consumes, takes_body=False, needs_connection=True),
            RequestCode.NOTIFICATION: Route(self.notification, PULL, consumes, takes_body=False, needs_connection=True),
            RequestCode.POLLING_INFO: Route(
                self.polling_info, PULL, Rule(Action.ANY, topic="topic", group="consumerGroup"), takes_body=False
            ),
        }

    def arrived(self, topic: str, queue_id: int, tags_code: int, properties: str | None) -> None:
        """A record has become visible. Hot: called for each record."""
        self.holds.arrived(topic, queue_id, tags_code, properties)
        self.notices.arrived(topic, queue_id, tags_code, properties)

    def wake(self, group: str, topic: str, queue_id: int) -> None:
        """There may be something to pop in a queue."""
        self.holds.wake(group, topic, queue_id)
        self.notices.wake(group, topic, queue_id)

    # --- Pop ----------------------------------------------------------------------------------------------------

    def pop(self, peer: Peer, request: Request[PopMessage]) -> Reply | Awaitable[Reply] | None:
        """Answer a pop, now or when the disk has it, or hold it (None)."""
        return self._pop(peer, request, None)

    def _resume_pop(self, peer: Peer, request: Request[Any], deadline: float) -> None:
        try:
            reply = self._pop(peer, request, deadline)
            assert reply is None or isinstance(reply, Reply), "only a pop seen for the first time waits for the disk"
        except Exception as error:
            peer.fail(request, error)
        else:
            if reply is not None:
                peer.reply(request, reply)

    def _pop(self, peer: Peer, request: Request[PopMessage], deadline: float | None) -> Reply | Awaitable[Reply] | None:
        header = request.fields
        config = self._check(header)
        if not 0 < header.count_max <= COUNT_MAX:
            raise InvalidParameter(
                f"invalid number of messages {header.count_max} for a pop: expected 1 to {COUNT_MAX}"
            )
        if header.attempt_id is not None and len(header.attempt_id) > _ATTEMPT_ID_MAX:
            raise InvalidParameter(
                f"the attempt id has {len(header.attempt_id)} characters: expected at most {_ATTEMPT_ID_MAX}"
            )
        wanted = self._filters.of_request(
            header.consumer_group, header.topic, header.expression_type, header.subscription
        )
        now_ms = self._now_ms()
        ordered = bool(header.order)
        wish = Wish(
            group=header.consumer_group,
            topic=header.topic,
            count_max=header.count_max,
            invisible_ms=header.invisible_ms,
            pop_time_ms=now_ms,
            revive_queue_id=ORDERED if ordered else self._next_revive_queue(),
            matches=wanted.matches,
            accepts=wanted.accepts,
            from_last=header.init_mode == _FROM_LAST,
            ordered=ordered,
            attempt_id=header.attempt_id,
            may_wait=deadline is None and self._cold_count < COLD_MAX,
            is_over=self._filters.timer() if wanted.accepts is not None else None,
        )
        taken = Taken()
        if not self._is_full():
            self._take(wish, config, header.queue_id, taken)
        if taken.left is not None and wish.may_wait:
            return self._pop_old(header, wish, taken, taken.left)
        if taken.count:
            self._count(header, taken)
            return self._when_read(wish, taken) if taken.cold else _reply(ResponseCode.SUCCESS, wish, taken)
        self._stats.missed()
        if taken.left is not None:
            # A consumer that was held pops again, and has time for the disk then; if too many wait for it, later.
            is_late = self._cold_count >= COLD_MAX
            return _reply(ResponseCode.POLLING_FULL if is_late else ResponseCode.POLLING_TIMEOUT, wish, taken)
        return self._hold(peer, request, deadline, wish, taken, wanted)

    def _count(self, header: PopMessage, taken: Taken) -> None:
        self._stats.got(header.topic, header.consumer_group, taken.count, taken.body_bytes)
        if taken.rest:
            self.holds.wake(header.consumer_group, header.topic, header.queue_id)

    async def _pop_old(self, header: PopMessage, wish: Wish, taken: Taken, left: Left) -> Reply:
        """The answer to a pop of old records that must be looked at: read on other threads, a stretch at a time.

        If a filter lets none of them through, or another pop was quicker, the consumer is told to pop again: there is
        more here or elsewhere.
        """
        self._cold_count += 1
        try:
            for _ in range(OLD_READS_MAX):
                # The filter's time begins again with each read: others were served meanwhile.
                taken.left, taken.is_over = None, False
                start, found = self._taker.look(wish, taken, left)
                if found.cold is None:
                    # What follows is in memory.
                    self._taker.take(self._on_time(wish), taken, left.topic, left.queue_id, left.retry)
                    break
                count, seen = found.count, None
                try:
                    body = await asyncio.wrap_future(self._read_cold(found.cold))
                except StoreError:
                    # Retention was quicker: what is left now? If it was not, the same error comes again.
                    count = 1
                else:
                    if wish.accepts is not None:
                        records, seen = accepted(body, wish.accepts, self._filters.timer())
                        count = len(records)
                if count:
                    # No more than was read: what lies behind it is not to be touched.
                    limited = replace(self._on_time(wish), count_max=taken.count + count)
                    self._taker.take(limited, taken, left.topic, left.queue_id, left.retry, read_from=start)
                    break
                if seen is not None:
                    # The same entries once more, to know where those that the filter has seen end.
                    found = self._taker.look(replace(wish, count_max=taken.count + seen), taken, left)[1]
                self._taker.pass_over(wish, left, start, found.next_offset)
                if seen is not None:
                    break
        finally:
            self._cold_count -= 1
        if not taken.count:
            self._stats.missed()
            return _reply(ResponseCode.POLLING_TIMEOUT, wish, taken)
        self._count(header, taken)
        return await self._when_read(wish, taken) if taken.cold else _reply(ResponseCode.SUCCESS, wish, taken)

    def _on_time(self, wish: Wish) -> Wish:
        return wish if wish.accepts is None else replace(wish, is_over=self._filters.timer())

    async def _when_read(self, wish: Wish, taken: Taken) -> Reply:
        """The answer to a pop whose records are being read. Should that fail, they come again in their time."""
        self._cold_count += 1
        try:
            read = await asyncio.wrap_future(self._read_cold(taken.cold))
            taken.buffers.append(memoryview(read))
        finally:
            self._cold_count -= 1
        return _reply(ResponseCode.SUCCESS, wish, taken)

    def _take(self, wish: Wish, config: TopicConfig, queue_id: int, taken: Taken) -> None:
        retries = () if wish.ordered else self._retry_topics(wish.group, wish.topic)
        retry_first = bool(retries) and self._random.randrange(100) < self._retry_percent
        if retry_first:
            self._take_retries(wish, retries, taken)
        for number in self._queue_ids(config, queue_id):
            self._taker.take(wish, taken, wish.topic, number)
        if not retry_first:
            self._take_retries(wish, retries, taken)

    def _take_retries(self, wish: Wish, retries: Sequence[tuple[int, TopicConfig]], taken: Taken) -> None:
        for retry, config in retries:
            for number in self._queue_ids(config, ALL_QUEUES):
                self._taker.take(wish, taken, config.topic_name, number, retry)

    def _hold(
        self,
        peer: Peer,
        request: Request[PopMessage],
        deadline: float | None,
        wish: Wish,
        taken: Taken,
        wanted: Wanted,
    ) -> Reply | None:
        header = request.fields
        code = ResponseCode.POLLING_FULL if self._is_full() else ResponseCode.POLLING_TIMEOUT
        if deadline is None and header.poll_ms > 0:
            deadline = self.holds.deadline(header.poll_ms)
        if code == ResponseCode.POLLING_TIMEOUT and deadline is not None and deadline > self.holds.deadline(0):
            key = wish.group, wish.topic, header.queue_id
            topics = self._listened(wish.group, wish.topic)
            if self.holds.add(peer, request, key, topics=topics, wanted=wanted, deadline=deadline):
                if taken.unfinished:
                    self.holds.wake(*key)
                return None
            code = ResponseCode.POLLING_FULL
        return _reply(code, wish, taken)

    # --- Beside it ----------------------------------------------------------------------------------------------

    def peek(self, _peer: Peer, request: Request[PeekMessage]) -> Reply:
        """What a pop would get; nothing is hidden, no offset moves."""
        header = request.fields
        config = self._check(header)
        count_max = max(header.count_max, 1)
        taken = Taken()
        for queue_id in self._queue_ids(config, header.queue_id):
            self._taker.peek(header.consumer_group, taken, header.topic, queue_id, count_max=count_max)
        for _, retry in self._retry_topics(header.consumer_group, header.topic):
            for queue_id in self._queue_ids(retry, ALL_QUEUES):
                self._taker.peek(header.consumer_group, taken, retry.topic_name, queue_id, count_max=count_max)
        found = taken.count > 0
        return Reply(
            ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND,
            remark=_FOUND if found else _NOTHING,
            header=PopReply(pop_time_ms=0, invisible_ms=0, revive_queue_id=0, rest_count=taken.rest),
            body=taken.buffers,
        )

    def notification(self, peer: Peer, request: Request[Notification]) -> Reply | None:
        """Whether there is anything to pop; held until there is (None)."""
        return self._notification(peer, request, None)

    def _resume_notification(self, peer: Peer, request: Request[Any], deadline: float) -> None:
        try:
            reply = self._notification(peer, request, deadline)
        except Exception as error:
            peer.fail(request, error)
        else:
            if reply is not None:
                peer.reply(request, reply)

    def _notification(self, peer: Peer, request: Request[Notification], deadline: float | None) -> Reply | None:
        header = request.fields
        config = self._check(header)
        group, topic = header.consumer_group, header.topic
        has_message = any(
            self._taker.has_message(group, topic, queue_id, ordered=bool(header.order), attempt_id=header.attempt_id)
            for queue_id in self._queue_ids(config, header.queue_id)
        ) or any(
            self._taker.has_message(group, retry.topic_name, queue_id)
            for _, retry in self._retry_topics(group, topic)
            for queue_id in self._queue_ids(retry, ALL_QUEUES)
        )
        is_full = False
        if not has_message:
            if deadline is None and header.poll_ms > 0:
                deadline = self.notices.deadline(header.poll_ms)
            if deadline is not None and deadline > self.notices.deadline(0):
                key = group, topic, header.queue_id
                listened = self._listened(group, topic)
                if self.notices.add(peer, request, key, topics=listened, wanted=ALL, deadline=deadline):
                    return None
                is_full = True
        return Reply(header=NotificationReply(has_message=has_message, polling_full=is_full))

    def polling_info(self, _peer: Peer, request: Request[PollingInfo]) -> Reply:
        """How many pops wait."""
        header = request.fields
        self._check(header)
        count = self.holds.count(header.consumer_group, header.topic, header.queue_id)
        return Reply(header=PollingInfoReply(polling_count=count))

    # ------------------------------------------------------------------------------------------------------------

    def _check(self, header: PopMessage | PeekMessage | Notification | PollingInfo) -> TopicConfig:
        """The topic; raises what forbids to read it."""
        if not self._readable:
            raise NoPermission("the broker pop message is forbidden; set brokerPermission to 6")
        config = self._topics.find(header.topic)
        check_pop(header.topic)
        if not config.perm & READ:
            raise NoPermission(f"the topic[{header.topic}] peeking message is forbidden; give it read permission")
        if header.queue_id >= config.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {config.read_queue_nums} queues "
                f"to read; consumer:[{header.consumer_group}]"
            )
        # A pop moves the group on; questions do not create it.
        find = self._groups.find if isinstance(header, PopMessage) else self._groups.for_read
        if not find(header.consumer_group).consume_enable:
            raise NoPermission(
                f"subscription group no permission, {header.consumer_group}; set its consumeEnable to true"
            )
        return config

    def _queue_ids(self, config: TopicConfig, queue_id: int) -> Sequence[int]:
        """The one asked for, or all, from a random one on: no queue is always the last that has a turn."""
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
        for retry in self._retry_kinds:
            config = self._topics.get(_retry_topic(group, topic, retry))
            if config is not None:
                found.append((retry, config))
        return found

    def _listened(self, group: str, topic: str) -> list[str]:
        """Topics whose messages a held pop wants: also retry topics that do not exist yet."""
        return [topic, *(_retry_topic(group, topic, retry) for retry in self._retry_kinds)]


def _retry_topic(group: str, topic: str, retry: int) -> str:
    return names.pop_retry_topic_v2(group, topic) if retry == RETRY_V2 else names.pop_retry_topic(group, topic)


def _reply(code: int, wish: Wish, taken: Taken) -> Reply:
    return Reply(
        code,
        remark=_FOUND if taken.count else _NOTHING,
        header=PopReply(
            pop_time_ms=wish.pop_time_ms,
            invisible_ms=wish.invisible_ms,
            revive_queue_id=wish.revive_queue_id,
            rest_count=taken.rest,
            start_offset_info=taken.infos.starts,
            msg_offset_info=taken.infos.messages,
            order_count_info=taken.infos.counts if wish.ordered else None,
        ),
        body=taken.buffers,
    )
