"""Positions: how far groups are, and how they are moved: commit, query, reset, clone (D4, D6, F3, F6).

A group that is connected keeps its offsets itself and would soon overwrite what a tool changes here. So its members
must be told of a reset, in one of two ways (``useServerSideResetOffset``):

- as RocketMQ 5 does: the next pull of a moved queue, or the one that waits, is answered with the new offset, and
  commits before that do not count (``Offsets.reset``). A group without members is just moved.
- as RocketMQ 4.9 does: each member is called with the new offsets, drops the queues that it has, commits and begins
  there. A group without members is refused with ``ConsumerOffline``; tools then commit the offsets.

In broadcasting, members keep their offsets themselves and all read all queues, so they are always told the second way.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from ternmq.broker.config import BrokerConfig
from ternmq.broker.services.access import check_move
from ternmq.broker.services.table_journal import TableJournal
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.topics import Topics
from ternmq.errors import ConsumerOffline, GroupMissing, InvalidParameter, NotFound, StoreError, TernError
from ternmq.message import MessageQueue
from ternmq.names import is_internal_topic
from ternmq.replication.returning import COUNT_MAX
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import MessageModel
from ternmq.wire.bodies.offsets import OwnOffset
from ternmq.wire.bodies.raft import MovedGroup, TableChange

log = logging.getLogger(__name__)

#: What tools of RocketMQ 5 write where they mean no queue in particular.
ALL_QUEUES: Final = -1
_LONG_MAX: Final = (1 << 63) - 1


class ResetCommand(Protocol):
    """Move a group to a time, or to an offset if one is given."""

    topic: str
    group: str
    #: Below 0: to the end.
    time_ms: int
    #: Also forward; otherwise only back.
    force: bool
    queue_id: int | None
    queue_offset: int | None


@dataclass(slots=True, frozen=True)
class Reset:
    """Where a group was moved to."""

    targets: Mapping[MessageQueue, int]
    #: Its members must be called with the targets; nothing was changed here.
    tells_members: bool


class Positions:
    """All methods belong to the broker's loop. ``moved`` is told of each queue in which a group was moved."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        journal: TableJournal,
        store: MessageStore,
        offsets: Offsets,
        topics: Topics,
        groups: Groups,
        clients: Clients,
        moved: Callable[[str, str, int], None],
    ) -> None:
        self._journal = journal
        self._store = store
        self._offsets = offsets
        self._topics = topics
        self._groups = groups
        self._clients = clients
        self._moved = moved
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._broker_name = config.broker_name
        self._on_server = config.use_server_side_reset_offset

    # --- Of consumers -----------------------------------------------------------------------------------------------

    def query(self, group: str, topic: str, queue_id: int, *, young_from_first: bool) -> int:
        """How far a group is. A group that is new to a young queue begins with its first message.

        Young means that nothing was deleted from the queue yet and its first message is still in memory: a consumer
        that is started right after the first sends should see them, and it costs nothing. Otherwise, or without
        ``young_from_first``, raises ``NotFound``, and the client uses its own setting (first, last, time).
        """
        queue_offset = self._offsets.get(group, topic, queue_id)
        if queue_offset < 0:
            if not young_from_first or not self._is_young(topic, queue_id):
                raise NotFound("Not found, maybe this group consumer boot first")
            queue_offset = 0
        return queue_offset

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Note how far a group is. Only for what exists, or typing errors would stay in the table for ever.

        Raises ``TopicMissing``, ``GroupMissing``, ``InvalidParameter``, and ``NoPermission`` for an internal topic.
        """
        self._check_commit(group, topic, queue_id, queue_offset)
        self._offsets.commit(group, topic, queue_id, queue_offset)

    def _check_commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        config = self._topics.find(topic)
        check_move(topic)
        if queue_id < 0 or queue_offset < 0:
            raise InvalidParameter(
                f"cannot commit offset {queue_offset} of queue {queue_id} of {topic}: queue and offset must not be "
                "negative"
            )
        queues = max(config.read_queue_nums, config.write_queue_nums)
        # Of a topic that was made smaller, consumers may still finish the queues that they have begun.
        if queue_id >= queues and self._offsets.get(group, topic, queue_id) < 0:
            raise InvalidParameter(
                f"cannot commit an offset of queue {queue_id} of {topic}: the topic has {queues} queues"
            )
        self._groups.find(group)

    def take_over(self, offsets: Sequence[OwnOffset]) -> int:
        """Merge what was committed on a slave while this master was away; returns how many of them count (O3).

        Times are those of this broker's clock. What does not exist here any more is left out; an offset beyond the end
        of a queue leads to the end. Raises ``InvalidParameter`` if there are more than a slave sends at once.
        """
        if len(offsets) > COUNT_MAX:
            raise InvalidParameter(
                f"{len(offsets)} offsets in one request: expected at most {COUNT_MAX}; return them in parts"
            )
        taken, dropped = 0, ""
        for each in offsets:
            group, topic, queue_id = each.group, each.topic, each.queue_id
            try:
                self._check_commit(group, topic, queue_id, each.queue_offset)
            except TernError as error:
                dropped = str(error)
                continue
            queue_offset = min(each.queue_offset, self._store.max_offset(topic, queue_id))
            taken += self._offsets.merge(group, topic, queue_id, queue_offset, committed_ms=each.committed_ms)
        if dropped:
            log.info("offsets that were committed on a slave are dropped, the last one because %s", dropped)
        return taken

    def by_time(self, topic: str, queue_id: int, time_ms: int, *, upper: bool) -> int | Awaitable[int]:
        """The first message since a time. In a long log other threads look at the messages on the way."""
        cold = self._store.cold.offset_by_time(topic, queue_id, time_ms, upper=upper)
        if cold is not None:
            return self._by_time_old(topic, queue_id, time_ms, cold, upper=upper)
        return self._store.offset_by_time(topic, queue_id, time_ms, upper=upper)

    async def _by_time_old(self, topic: str, queue_id: int, time_ms: int, cold: Future[int], *, upper: bool) -> int:
        try:
            return await asyncio.wrap_future(cold)
        except StoreError:
            # A file that was deleted meanwhile; or one that cannot be read, which the next call says.
            return self._store.offset_by_time(topic, queue_id, time_ms, upper=upper)

    def _is_young(self, topic: str, queue_id: int) -> bool:
        if self._store.min_offset(topic, queue_id) > 0:
            return False
        if self._store.max_offset(topic, queue_id) <= 0:
            return True
        return not self._store.get(topic, queue_id, 0, count_max=1).is_behind

    # --- Of tools ---------------------------------------------------------------------------------------------------

    def reset(self, command: ResetCommand) -> Awaitable[Reset]:
        """Reset the offsets of a group to a time, to the end or to a given offset; done when that is on disk.

        Raises ``TopicMissing``, ``GroupMissing``, ``NoPermission`` and ``ConsumerOffline``.
        """
        config = self._topics.find(command.topic)
        check_move(command.topic)
        if self._groups.get(command.group) is None:
            raise GroupMissing(f"subscription group [{command.group}] does not exist; see `tern group list`")
        queue_ids = [
            queue_id
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
            if command.queue_id in (None, ALL_QUEUES, queue_id)
        ]
        # In a long log other threads look at the messages on the way to a time.
        by_time = (command.queue_offset is None or command.queue_offset < 0) and command.time_ms >= 0
        cold = {
            queue_id: self._store.cold.offset_by_time(command.topic, queue_id, command.time_ms)
            for queue_id in (queue_ids if by_time else ())
        }
        return self._reset_when_found(command, queue_ids, cold)

    async def _reset_when_found(
        self, command: ResetCommand, queue_ids: Sequence[int], cold: Mapping[int, Future[int] | None]
    ) -> Reset:
        found: dict[int, int] = {}
        for queue_id, future in cold.items():
            # What could not be read is looked for once more below.
            with contextlib.suppress(StoreError):
                if future is not None:
                    found[queue_id] = await asyncio.wrap_future(future)
        reset = self._reset(command, queue_ids, found)
        await self._saved()
        return reset

    async def _saved(self) -> None:
        """Wait until what a tool has moved is on disk, and in a Raft group on a majority. Raises ``TableUnsaved``, and
        ``ServiceNotAvailable``."""
        await self._journal.safe()
        # With the number of changes, too: else the next start would make this one once more, over later commits.
        self._offsets.save_again()
        await self._offsets.saved()

    def _reset(self, command: ResetCommand, queue_ids: Sequence[int], found: Mapping[int, int]) -> Reset:
        group, topic = command.group, command.topic
        targets = {
            MessageQueue(topic, self._broker_name, queue_id): self._target(command, queue_id, found)
            for queue_id in queue_ids
        }
        members = self._clients.group_info(group)
        tells_members = members is not None and (
            members.message_model is MessageModel.BROADCASTING or not self._on_server
        )
        if not tells_members:
            if not self._on_server:
                raise ConsumerOffline(
                    f"Consumer not online, so can not reset offset. Group: {group}; commit the offsets instead"
                )
            # Without readers no member could be told, and no reset may wait for ever.
            has_readers = members is not None and topic in members.subscriptions
            offsets = {queue.queue_id: queue_offset for queue, queue_offset in targets.items()}
            self._note_move(group, topic, offsets, has_readers=has_readers)
            self._move(group, targets, has_readers=has_readers)
        log.info("offsets of group %s on topic %s were reset to time %d ms", group, topic, command.time_ms)
        return Reset(targets, tells_members)

    def _note_move(self, group: str, topic: str, offsets: dict[int, int], *, has_readers: bool = False) -> None:
        """In a Raft group: write it to the log, for the next leader. Raises as ``TableJournal.require``."""
        moved = MovedGroup(group=group, topic=topic, offsets=offsets, has_readers=has_readers)
        self._journal.require(TableChange(moved=moved))

    def _move(self, group: str, targets: Mapping[MessageQueue, int], *, has_readers: bool) -> None:
        for queue, queue_offset in targets.items():
            self._offsets.reset(group, queue.topic, queue.queue_id, queue_offset, has_readers=has_readers)
            self._moved(group, queue.topic, queue.queue_id)

    async def clone(self, source: str, target: str, *, topic: str | None, is_offline: bool) -> None:
        """Copy the offsets of one group to another, on a topic or on all that the source has offsets for; done when
        that is on disk. Raises ``GroupMissing`` and ``NoPermission``."""
        if topic:
            check_move(topic)
        self._groups.find(target)
        online = None if is_offline else self._clients.group_info(source)
        for name in [topic] if topic else self._offsets.topics_of(source):
            # What the source does not subscribe to any more is of no use to its copy.
            if self._topics.get(name) is None or is_internal_topic(name):
                continue
            if online is None or name in online.subscriptions:
                self._note_move(target, name, self._offsets.of_group(source, name))
                self._offsets.clone(source, target, name)
                for queue_id in self._offsets.of_group(target, name):
                    self._moved(target, name, queue_id)
        await self._saved()
        await self._groups.saved()

    def smallest(self, topic: str, *, compare_group: str, without: set[str]) -> dict[int, int]:
        """By queue, the smallest offset of all groups of a topic but ``without``.

        Where the group to compare with is behind that, RocketMQ answers with the largest number there is.
        """
        found: dict[int, int] = {}
        for group in self._offsets.groups_of(topic):
            for queue_id, queue_offset in self._offsets.of_group(group, topic).items():
                # A group that stands before the first message has long given up the queue.
                if group not in without and queue_offset >= self._store.min_offset(topic, queue_id):
                    found[queue_id] = min(found.get(queue_id, queue_offset), queue_offset)
        for queue_id, queue_offset in self._offsets.of_group(compare_group, topic).items():
            if found.get(queue_id, -1) > queue_offset:
                found[queue_id] = _LONG_MAX
        return found

    def _target(self, command: ResetCommand, queue_id: int, found: Mapping[int, int]) -> int:
        current = self._offsets.get(command.group, command.topic, queue_id)
        first = self._store.min_offset(command.topic, queue_id)
        end = self._store.max_offset(command.topic, queue_id)
        if command.queue_offset is not None and command.queue_offset >= 0:
            target = min(max(command.queue_offset, first), end)
        elif command.time_ms < 0:
            target = end
        else:
            by_time = found.get(queue_id)
            if by_time is None:
                by_time = self._store.offset_by_time(command.topic, queue_id, command.time_ms)
            target = max(by_time, 0)
        return target if command.force or current < 0 else min(target, current)
