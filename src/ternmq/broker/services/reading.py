"""Reading: what a pull means, and how single records are found (D4, F3, K1, K2, L1).

A pull names a queue and a queue offset and gets the records from there on that its group's filter lets through, as
views of the log. ``Reading.pull`` checks whether the group may read (``services.access``), commits the progress that
comes along, and says what was found. Where the records lie far back and are probably not in memory, it says so instead,
and ``Reading.read_old`` reads them on other threads (``store.read.cold``): meanwhile the loop serves others. An SQL
filter sees such records when they are read, and the pull continues until one passes or as many were looked at as in one
read from memory.

An SQL filter may keep the loop for ``maxFilterTimePerPull``. After that the pull ends with what was found, and with the
offset of the first message that the filter has not seen.

On a slave, a position outside the queue is not corrected: beyond the end, the master has messages that the slave does
not have (yet); before the beginning, the master may have older ones. Such a reader waits, as at the end of a queue, and
is sent to the master. A slave that is known to have all that its master has corrects a position that is too small.

A pull commits its group's progress when it first comes, not when it looks again after it has waited, or it could undo a
later commit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import MASTER_ID
from ternmq.broker.services.access import Access, Way, check_queue, is_shown
from ternmq.broker.services.drift import Copies, OwnRole, ReadDrift
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import Filters, Wanted
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.errors import NoPermission, NotFound, StoreError, SubscriptionMissing, SystemBusy, SystemFailure
from ternmq.store.read.cold import THREADS
from ternmq.store.read.query import QUERY_BYTES_MAX, GetResult, GetStatus, KeySearch, QueryResult, accepted
from ternmq.store.store import MessageStore
from ternmq.turns import Turns
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.bodies.groups import SubscriptionGroupConfig
from ternmq.wire.requests import PullSysflag

#: Pulls that may wait for the disk at once; beyond that clients are told to come back later.
COLD_MAX: Final = 1_000
#: Entries that a pull of old messages looks at before it is answered, as in memory (``maxFilterMessageSize``).
SCAN_MAX: Final = 800

_EMPTY_QUEUE: Final = (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE)
_AT_END: Final = (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_FOUND_NULL)


class PullQuery(Protocol):
    """What a pull asks for. The header of the remoting protocol is one."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    count_max: int
    bytes_max: int | None
    #: ``PullSysflag``: whether it commits ``commit_offset``, and whether it has its own ``subscription``; else that of
    #: the group's heartbeats counts, if it is as new as ``sub_version``.
    sysflag: int
    commit_offset: int
    subscription: str | None
    sub_version: int
    expression_type: str | None


@dataclass(slots=True)
class Pulled:
    """What a pull found. Where ``found.cold`` is set, ``Reading.read_old`` must follow."""

    found: GetResult
    #: What records must pass; for a pull that waits.
    wanted: Wanted
    body: bytes | list[memoryview]
    #: A tool has moved the group: the client must continue at ``found.next_offset``.
    is_moved: bool = False
    #: The end of the queue was reached, and the next message is what the pull asked for.
    is_at_end: bool = False
    #: The copy of this broker that the reader should ask next.
    next_broker: int = MASTER_ID


class Reading:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        access: Access,
        store: MessageStore,
        groups: Groups,
        clients: Clients,
        offsets: Offsets,
        stats: Stats,
        filters: Filters,
        drift: ReadDrift,
        role: OwnRole,
        copies: Copies,
    ) -> None:
        self._drift = drift
        self._role = role
        self._copies = copies
        self._access = access
        self._store = store
        self._groups = groups
        self._clients = clients
        self._offsets = offsets
        self._stats = stats
        self._filters = filters
        self._cold_count = 0
        #: Of searches by key that take longer than a slice; topics take turns.
        self._turns = Turns("searches of messages by key")
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._drift.apply(config)
        self._long_polling = config.long_polling_enable
        self._short_polling_ms = config.short_polling_time_mills

    def may_read(self, group: str | None, topic: str, way: Way) -> None:
        """Raise ``GroupMissing``, ``TopicMissing`` or ``NoPermission`` if a topic may not be read in this way.

        One rule for all ways of reading: ``services.access``. Nothing is created.
        """
        self._access.may_read(None if group is None else self._access.group(group, creates=False), topic, way)

    def wait_ms(self, asked_ms: int) -> int:
        """How long a pull that asks to wait so long may wait for a message."""
        return asked_ms if self._long_polling else self._short_polling_ms

    # --- Pulls ------------------------------------------------------------------------------------------------------

    def pull(self, query: PullQuery, *, is_first: bool) -> Pulled:
        """Look for messages. ``is_first``: the pull has just come, and may wait for the disk.

        Raises ``NoPermission``, ``TopicMissing``, ``GroupMissing``, ``SubscriptionMissing`` and the like, and
        ``SystemBusy`` when too many wait for the disk.
        """
        group, topic, queue_id = query.consumer_group, query.topic, query.queue_id
        self._check(query)
        wanted = self._wanted(query)
        moved_to = self._offsets.take_reset(group, topic, queue_id)
        if moved_to is not None and moved_to != query.queue_offset:
            return self._moved(query, moved_to, wanted)
        if is_first and query.sysflag & PullSysflag.COMMIT_OFFSET:
            self._offsets.commit(group, topic, queue_id, query.commit_offset)
        found = self._get(query, wanted, query.queue_offset, count_max=max(query.count_max, 1), leave_cold=is_first)
        if found.cold is not None:
            if self._cold_count >= COLD_MAX:
                raise SystemBusy(
                    f"[OVERLOAD]system busy: {self._cold_count} pulls of old messages are already waiting for "
                    "the disk; retry later"
                )
            return Pulled(found, wanted, b"")
        return self._pulled(query, found, wanted, found.buffers)

    async def read_old(self, query: PullQuery, pulled: Pulled) -> Pulled:
        """Read what ``pull`` has found far back in the log. Raises ``StoreError`` if it cannot be read."""
        found, wanted = pulled.found, pulled.wanted
        count_max = max(query.count_max, 1)
        body: bytes | list[memoryview] = []
        self._cold_count += 1
        try:
            queue_offset, scan_end = query.queue_offset, query.queue_offset + SCAN_MAX
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
                found = self._get(query, wanted, queue_offset, count_max=count_max, leave_cold=True)
            else:
                # What follows is in memory.
                body = found.buffers
            if found.status is GetStatus.FOUND and not found.count:
                found.status = GetStatus.NO_MATCHED_MESSAGE
        except StoreError:
            # Retention was faster: what is left now? If it was not, the same error comes again.
            found = self._get(query, wanted, query.queue_offset, count_max=1)
            body = found.buffers
        finally:
            self._cold_count -= 1
        return self._pulled(query, found, wanted, body)

    def _pulled(self, query: PullQuery, found: GetResult, wanted: Wanted, body: bytes | list[memoryview]) -> Pulled:
        is_elsewhere = not self._role.is_master and self._is_elsewhere(found.status)
        if is_elsewhere:
            found.next_offset = query.queue_offset
        group = self._note_pull(query, found.next_offset)
        next_broker = MASTER_ID
        if group is not None and not is_elsewhere:
            next_broker = self._drift.next_broker((query.consumer_group, query.topic, query.queue_id), group, found)
        status = found.status
        if status is GetStatus.FOUND:
            known = query.consumer_group if group is not None else None
            self._stats.got(query.topic, known, found.count, found.body_bytes)
            return Pulled(found, wanted, body, next_broker=next_broker)
        self._stats.missed()
        # A new queue begins at offset 0: a pull from there has reached the end.
        is_at_end = status in _AT_END or (status in _EMPTY_QUEUE and query.queue_offset == 0)
        return Pulled(found, wanted, body, is_at_end=is_at_end or is_elsewhere, next_broker=next_broker)

    def _is_elsewhere(self, status: GetStatus) -> bool:
        """Whether the master may have the message that a slave does not have."""
        if status is GetStatus.OFFSET_TOO_SMALL:
            return not self._copies.has_beginning
        return status is GetStatus.OFFSET_OVERFLOW_BADLY or status in _EMPTY_QUEUE

    def _moved(self, query: PullQuery, queue_offset: int, wanted: Wanted) -> Pulled:
        self._note_pull(query, queue_offset)
        found = GetResult(
            GetStatus.OFFSET_TOO_SMALL,
            next_offset=queue_offset,
            min_offset=self._store.min_offset(query.topic, query.queue_id),
            max_offset=self._store.max_offset(query.topic, query.queue_id),
        )
        return Pulled(found, wanted, b"", is_moved=True)

    def _get(
        self, query: PullQuery, wanted: Wanted, queue_offset: int, *, count_max: int, leave_cold: bool = False
    ) -> GetResult:
        return self._store.get(
            query.topic,
            query.queue_id,
            queue_offset,
            count_max=count_max,
            bytes_max=query.bytes_max or None,
            matches=wanted.matches,
            may_pass=wanted.may_pass,
            accepts=wanted.accepts,
            is_over=self._filters.timer() if wanted.accepts is not None else None,
            leave_cold=leave_cold,
        )

    def _note_pull(self, query: PullQuery, next_offset: int) -> SubscriptionGroupConfig | None:
        """Remember how far a group has pulled; None, and nothing is, if there is no such group."""
        group = self._groups.get(query.consumer_group)
        if group is not None:
            self._offsets.pulled(query.consumer_group, query.topic, query.queue_id, next_offset)
        return group

    def _check(self, query: PullQuery) -> None:
        """Raise what forbids this pull: settings of the broker, the group or the topic."""
        # Only a pull that commits creates its group.
        group = self._access.group(query.consumer_group, creates=bool(query.sysflag & PullSysflag.COMMIT_OFFSET))
        topic = self._access.topic_for(group, query.topic, Way.PULL)
        check_queue(topic, query.queue_id, query.consumer_group)
        if not query.sysflag & PullSysflag.SUBSCRIPTION:
            self._check_members(query, group)

    def _check_members(self, query: PullQuery, group: SubscriptionGroupConfig) -> None:
        """Raise unless the group has members that may consume in their way."""
        members = self._clients.group_info(query.consumer_group)
        if members is None:
            raise SubscriptionMissing(
                f"the consumer's group info not exist: no heartbeat of group {query.consumer_group} was received"
            )
        if members.message_model is MessageModel.BROADCASTING and not group.consume_broadcast_enable:
            raise NoPermission(
                f"the consumer group[{query.consumer_group}] can not consume by broadcast way; set its "
                "consumeBroadcastEnable to true"
            )

    def _wanted(self, query: PullQuery) -> Wanted:
        """What a record must pass. ``_check`` has been called."""
        group, topic = query.consumer_group, query.topic
        if query.sysflag & PullSysflag.SUBSCRIPTION:
            return self._filters.of_request(group, topic, query.expression_type, query.subscription)
        return self._filters.of_heartbeat(group, topic, query.sub_version)

    # --- Single records ---------------------------------------------------------------------------------------------

    def by_id(self, log_offset: int) -> memoryview | Awaitable[memoryview]:
        """The record at a log offset, now or when it is read. Raises ``SystemFailure`` if there is none."""
        cold = self._store.cold.record(log_offset)
        if cold is not None:
            return self._by_id_old(log_offset, cold)
        return _existing(self._store.record_at(log_offset), log_offset)

    async def _by_id_old(self, log_offset: int, cold: Future[bytes | None]) -> memoryview:
        return _existing(await self._record(log_offset, cold), log_offset)

    async def record(self, log_offset: int) -> memoryview | None:
        """The record at a log offset, if there is one that is shown; read on another thread if it is old."""
        record = await self._record(log_offset, self._store.cold.record(log_offset))
        return record if record is not None and is_shown(record) else None

    def by_key(
        self, topic: str, key: str, *, count_max: int, begin_ms: int, end_ms: int
    ) -> QueryResult | Awaitable[QueryResult]:
        """Records of a topic by key or unique key within a span of store time, now or when they are read.

        The index may find too much; the caller checks. Raises ``NotFound``.
        """
        self._access.may_read(None, topic, Way.QUERY)
        search = self._store.key_search(topic, key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
        step = next(search)
        while isinstance(step, list):
            if not step or any(map(self._store.cold.is_cold, step)):
                return self._by_key_slowly(topic, search, step)
            step = search.send([self._store.record_at(log_offset) for log_offset in step])
        return _found(step)

    async def _by_key_slowly(self, topic: str, search: KeySearch, step: list[int] | QueryResult) -> QueryResult:
        """Carry on with a search that takes long: in slices, and old records are read on other threads."""
        async with self._turns.of(topic):
            while isinstance(step, list):
                if not step:
                    await asyncio.sleep(0)
                step = search.send(await self._newest_records(step))
        return _found(step)

    async def _newest_records(self, log_offsets: list[int]) -> list[memoryview | None]:
        """Records, in order; those that are too many for a reply, the oldest, are not even read."""
        records: list[memoryview | None] = []
        size = 0
        for end in range(len(log_offsets), 0, -THREADS):
            if size > QUERY_BYTES_MAX:
                break
            some = log_offsets[max(end - THREADS, 0) : end]
            cold = [(log_offset, self._store.cold.record(log_offset)) for log_offset in some]
            read = [await self._record(*each) for each in cold]
            size += sum(len(record) for record in read if record is not None)
            records = [*read, *records]
        return records

    async def _record(self, log_offset: int, cold: Future[bytes | None] | None) -> memoryview | None:
        if cold is None:
            return self._store.record_at(log_offset)
        try:
            record = await asyncio.wrap_future(cold)
        except StoreError:
            # Deleted meanwhile; or it cannot be read, which the next call says.
            return self._store.record_at(log_offset)
        return memoryview(record) if record is not None else None


def _existing(record: memoryview | None, log_offset: int) -> memoryview:
    if record is None or not is_shown(record):
        raise SystemFailure(
            f"can not find message by the offset, {log_offset}: it was deleted, or belongs to another broker"
        )
    return record


def _found(result: QueryResult) -> QueryResult:
    if not result.buffers:
        raise NotFound("can not find message, maybe time range not correct")
    return result
