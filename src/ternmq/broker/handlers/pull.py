"""Pulls: 11 and 361 (D4, F3, F8, K1, K2).

A pull names a queue and a queue offset and gets the records from there on that its group's filter lets through, as
views of the log: the reply's body is never copied. What the store found decides the response code:

    0   FOUND
    19  the end of the queue was reached         held back until a message comes, if the client can wait (F8)
    20  nothing in this stretch matched          the client goes on at the next offset at once
    21  the offset lies outside the queue, or a  the client corrects its position
        tool has moved the group (D4)

Every one of these carries the queue's bounds and the offset to go on at; the remark is the store's status.

Records from far back, which are probably not in memory, are read on other threads (``store.read.cold``) and the pull is
answered later; meanwhile the loop serves those who keep up. An SQL filter sees them when they are read, and the pull
goes on until one passes or as many were looked at as in one read from memory.

An SQL filter may keep the loop for ``maxFilterTimePerPull``. After that the pull is answered with what was found, and
with the offset of the first message that the filter has not seen: the client goes on there.

A client that pulls commits its progress with the same request; that counts when the request first comes, not when it
is carried out again after a hold, or it could undo a later commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from ternmq.broker.config import READ, BrokerConfig
from ternmq.broker.flow import PULL
from ternmq.broker.services.holds import Holds
from ternmq.broker.services.internal import check_pull
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import Filters, Wanted
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter, NoPermission, StoreError, SubscriptionMissing, SystemBusy
from ternmq.net.gate import Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.read.query import GetResult, GetStatus, accepted
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag

#: Pulls that may wait for the disk at once; beyond that clients are told to come back later.
COLD_MAX: Final = 1_000

#: Entries that a pull of old messages looks at before it is answered, as in memory (``maxFilterMessageSize``).
SCAN_MAX: Final = 800

_MASTER: Final = 0

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    # These two mean «not found» to a pull from offset 0, which is where a new queue begins.
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
#: RocketMQ's remark, where the store's status stands otherwise.
_RESET: Final = "OFFSET_RESET"
_EMPTY_QUEUE: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)


class PullHandlers:
    """All methods belong to the broker's loop. ``holds`` are its pulls that wait."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        stats: Stats,
        filters: Filters,
    ) -> None:
        self._filters = filters
        self._readable = bool(config.broker_permission & READ)
        self._long_polling = config.long_polling_enable
        self._short_polling_ms = config.short_polling_time_mills
        self._store = store
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._stats = stats
        self._cold_count = 0
        self.holds = Holds(
            resume=self._resume,
            max_offset=store.max_offset,
            capacity=config.max_suspended_pulls,
            bytes_max=config.max_queued_request_bytes,
        )

    def routes(self) -> dict[int, Route]:
        consumes = Rule(Action.SUB, topic="topic", group="consumerGroup")
        return {
            RequestCode.PULL_MESSAGE: Route(self.pull, PULL, consumes, takes_body=False, needs_connection=True),
            RequestCode.LITE_PULL_MESSAGE: Route(self.pull, PULL, consumes, takes_body=False, needs_connection=True),
        }

    def pull(self, peer: Peer, request: Request[PullMessage]) -> Reply | Awaitable[Reply] | None:
        """Answer a pull, now or when the disk has it, or hold it (None)."""
        return self._pull(peer, request, first=True)

    def _resume(self, peer: Peer, request: Request[Any]) -> None:
        """Carry out a held pull again, and answer whatever is found now."""
        try:
            reply = self._pull(peer, request, first=False)
            # What a hold waited for has just come, and is in memory.
            assert isinstance(reply, Reply), "only a pull seen for the first time is held or waits for the disk"
        except Exception as error:
            peer.fail(request, error)
        else:
            peer.reply(request, reply)

    def _pull(self, peer: Peer, request: Request[PullMessage], *, first: bool) -> Reply | Awaitable[Reply] | None:
        header = request.fields
        topic, queue_id = header.topic, header.queue_id
        self._check(header)
        wanted = self._wanted(header)
        moved_to = self._offsets.take_reset(header.consumer_group, topic, queue_id)
        if moved_to is not None and moved_to != header.queue_offset:
            return self._move(header, moved_to)
        if first and header.sysflag & PullSysflag.COMMIT_OFFSET:
            self._offsets.commit(header.consumer_group, topic, queue_id, header.commit_offset)
        found = self._get(header, wanted, header.queue_offset, count_max=max(header.count_max, 1), leave_cold=first)
        if found.cold is not None:
            if self._cold_count >= COLD_MAX:
                raise SystemBusy(
                    f"[OVERLOAD]system busy: {self._cold_count} pulls of old messages are already waiting for "
                    "the disk; retry later"
                )
            return self._when_read(request, found, wanted)
        is_known = self._pulled(header, found.next_offset)
        status = found.status
        code = _CODES[status]
        if status in _EMPTY_QUEUE and header.queue_offset == 0:
            code = ResponseCode.PULL_NOT_FOUND
        if code == ResponseCode.SUCCESS:
            self._stats.got(topic, header.consumer_group if is_known else None, found.count, found.body_bytes)
        else:
            self._stats.missed()
            if code == ResponseCode.PULL_NOT_FOUND and first and header.sysflag & PullSysflag.SUSPEND:
                self.holds.add(
                    peer,
                    request,
                    topic=topic,
                    queue_id=queue_id,
                    queue_offset=header.queue_offset,
                    wanted=wanted,
                    timeout_ms=header.suspend_timeout_ms if self._long_polling else self._short_polling_ms,
                )
                return None
        return _reply(code, found, found.buffers)

    async def _when_read(self, request: Request[PullMessage], found: GetResult, wanted: Wanted) -> Reply:
        """The answer to a pull whose records are being read."""
        header = request.fields
        count_max = max(header.count_max, 1)
        body: bytes | list[memoryview] = []
        self._cold_count += 1
        try:
            queue_offset, scan_end = header.queue_offset, header.queue_offset + SCAN_MAX
            while found.cold is not None:
                body = await asyncio.wrap_future(self._store.cold.read(found.cold))
                if wanted.accepts is None:
                    break
                # Its time begins again with each read: others were served meanwhile.
                body, seen = accepted(body, wanted.accepts, self._filters.timer())
                if seen is not None:
                    found.next_offset = found.cold_offsets[seen]
                found.count, found.body_bytes = len(body), sum(map(len, body))
                if seen is not None or body or found.next_offset >= min(scan_end, found.max_offset):
                    break
                queue_offset = found.next_offset
                found = self._get(header, wanted, queue_offset, count_max=count_max, leave_cold=True)
            else:
                # What follows is in memory.
                body = found.buffers
            if found.status is GetStatus.FOUND and not found.count:
                found.status = GetStatus.NO_MATCHED_MESSAGE
        except StoreError:
            # Retention was quicker: what is left now? If it was not, the same error comes again.
            found = self._get(header, wanted, header.queue_offset, count_max=1)
            body = found.buffers
        finally:
            self._cold_count -= 1
        is_known = self._pulled(header, found.next_offset)
        code = _CODES[found.status]
        if code == ResponseCode.SUCCESS:
            self._stats.got(header.topic, header.consumer_group if is_known else None, found.count, found.body_bytes)
        else:
            self._stats.missed()
        return _reply(code, found, body)

    def _get(
        self, header: PullMessage, wanted: Wanted, queue_offset: int, *, count_max: int, leave_cold: bool = False
    ) -> GetResult:
        return self._store.get(
            header.topic,
            header.queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=header.bytes_max or None,
            matches=wanted.matches,
            may_pass=wanted.may_pass,
            accepts=wanted.accepts,
            is_over=self._filters.timer() if wanted.accepts is not None else None,
            leave_cold=leave_cold,
        )

    def _pulled(self, header: PullMessage, next_offset: int) -> bool:
        """Remember how far a group has pulled; False, and nothing is, if there is no such group."""
        if self._groups.get(header.consumer_group) is None:
            return False
        self._offsets.pulled(header.consumer_group, header.topic, header.queue_id, next_offset)
        return True

    def _move(self, header: PullMessage, queue_offset: int) -> Reply:
        topic, queue_id = header.topic, header.queue_id
        self._pulled(header, queue_offset)
        return Reply(
            ResponseCode.PULL_OFFSET_MOVED,
            remark=_RESET,
            header=PullReply(
                suggested_broker_id=_MASTER,
                next_offset=queue_offset,
                min_offset=self._store.min_offset(topic, queue_id),
                max_offset=self._store.max_offset(topic, queue_id),
            ),
        )

    def _check(self, header: PullMessage) -> None:
        """Raise what forbids this pull: the broker's, the group's or the topic's settings.

        Only a pull that commits creates its group; others leave no traces of its name.
        """
        if not self._readable:
            raise NoPermission("the broker pulling message is forbidden; set brokerPermission to 6")
        known = self._groups.get(header.consumer_group)
        if known is None and header.sysflag & PullSysflag.COMMIT_OFFSET:
            known = self._groups.find(header.consumer_group)
        group = known or self._groups.for_read(header.consumer_group)
        if not group.consume_enable:
            raise NoPermission(
                f"subscription group no permission, {header.consumer_group}; set its consumeEnable to true"
            )
        topic = self._topics.find(header.topic)
        if not self._groups.may_read(header.consumer_group, header.topic):
            raise NoPermission(
                f"the consumer group[{header.consumer_group}] is forbidden for topic[{header.topic}]; an "
                "administrator can allow it again (request code 353)"
            )
        check_pull(header.topic, header.consumer_group)
        if not topic.perm & READ:
            raise NoPermission(f"the topic[{header.topic}] pulling message is forbidden; give it read permission")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise InvalidParameter(
                f"queueId[{header.queue_id}] is illegal, topic:[{header.topic}] has {topic.read_queue_nums} queues "
                f"to read; consumer:[{header.consumer_group}]"
            )
        if not header.sysflag & PullSysflag.SUBSCRIPTION:
            self._check_members(header, group)

    def _check_members(self, header: PullMessage, group: SubscriptionGroupConfig) -> None:
        """Raise unless the group has members that may consume in their way."""
        members = self._clients.group_info(header.consumer_group)
        if members is None:
            raise SubscriptionMissing(
                f"the consumer's group info not exist: no heartbeat of group {header.consumer_group} was received"
            )
        if members.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise NoPermission(
                f"the consumer group[{header.consumer_group}] can not consume by broadcast way; set its "
                "consumeBroadcastEnable to true"
            )

    def _wanted(self, header: PullMessage) -> Wanted:
        """What a record must pass. ``_check`` has been called."""
        group, topic = header.consumer_group, header.topic
        if header.sysflag & PullSysflag.SUBSCRIPTION:
            return self._filters.of_request(group, topic, header.expression_type, header.subscription)
        return self._filters.of_heartbeat(group, topic, header.sub_version)


def _reply(code: int, found: GetResult, body: bytes | list[memoryview]) -> Reply:
    return Reply(
        code,
        remark=found.status.name,
        header=PullReply(
            suggested_broker_id=_MASTER,
            next_offset=found.next_offset,
            min_offset=found.min_offset,
            max_offset=found.max_offset,
        ),
        body=body,
    )
