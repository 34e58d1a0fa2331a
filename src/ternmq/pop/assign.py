"""Which member pops which queues (F9, G1): how a group gets the messages of a topic, and what each member has then.

Clients of RocketMQ 5 may leave the sharing out of queues to the broker (QUERY_ASSIGNMENT). It answers with queues and a
*mode*: PULL, as clients share by themselves, or POP. Of a group that pops, every member may take messages from every
queue, since each is hidden from the others; a queue id of -1 stands for all queues of a broker. With a *share* of n,
which keeps a group of many members from asking every broker all the time, a member has its own queues and those of the
n members that follow it.

Modes are set by an administrator, and kept in ``config/messageRequestMode.json``.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from ternmq import names
from ternmq.allocation import Allocation
from ternmq.files import Encode, TableFile
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import GroupRequestMode, RequestMode
from ternmq.wire.bodies.clients import RequestModes as RequestModesBody
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.handles import ALL_QUEUES


class ChangesIncluded(Protocol):
    """Which changes of a Raft group's log are in the table (``broker.tables.included``)."""

    @property
    def count(self) -> int | None: ...

    def take(self, count: int | None, /) -> None: ...


class RequestModeTable:
    """All methods belong to the broker's loop. Call ``load`` once before anything else."""

    def __init__(
        self, file: TableFile, *, default_mode: RequestMode, default_share: int, included: ChangesIncluded
    ) -> None:
        self._file = file
        self._included = included
        self._default_mode = default_mode
        self._default_share = default_share
        #: By topic, then group.
        self._table: dict[str, dict[str, GroupRequestMode]] = {}

    def apply(self, *, default_mode: RequestMode, default_share: int) -> None:
        """Set what holds for groups without a mode of their own."""
        self._default_mode = default_mode
        self._default_share = default_share

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, RequestModesBody))
        if saved is not None:
            self._table = {topic: dict(groups) for topic, groups in saved.message_request_mode_map.items()}
            self._included.take(saved.changes_included)
        else:
            self._included.take(0)

    def body(self) -> RequestModesBody:
        """The whole table in its wire form, as it is now."""
        table = {topic: dict(groups) for topic, groups in self._table.items()}
        return RequestModesBody(message_request_mode_map=table, changes_included=self._included.count)

    def copy(self, modes: RequestModesBody) -> None:
        """Have the modes of a master (O4)."""
        self._included.take(modes.changes_included)
        table = {topic: dict(groups) for topic, groups in modes.message_request_mode_map.items()}
        if table != self._table:
            self._table = table
            self._file.save(self._copy)

    def save_again(self) -> None:
        """Write the file, without a change: its number of changes is known now."""
        self._file.save(self._copy)

    async def saved(self) -> None:
        """Wait until all changes are on disk; raises ``TableUnsaved``."""
        await self._file.saved()

    def find(self, group: str, topic: str) -> GroupRequestMode:
        """How a group gets the messages of a topic. Retry topics of groups are always pulled."""
        known = self._table.get(topic, {}).get(group)
        if known is not None:
            return known
        mode = RequestMode.PULL if names.is_retry_topic(topic) else self._default_mode
        share = self._default_share if mode is RequestMode.POP else 0
        return GroupRequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share)

    def put(self, mode: GroupRequestMode) -> None:
        self._table.setdefault(mode.topic, {})[mode.consumer_group] = mode
        self._file.save(self._copy)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> None:
        """A group or a topic is gone."""
        gone = [
            (known_topic, known_group)
            for known_topic, groups in self._table.items()
            for known_group in groups
            if topic in (None, known_topic) and group in (None, known_group)
        ]
        for known_topic, known_group in gone:
            del self._table[known_topic][known_group]
            if not self._table[known_topic]:
                del self._table[known_topic]
        if gone:
            self._file.save(self._copy)

    def _copy(self) -> Encode:
        return partial(encode, self.body())


def popped_queues(
    strategy: Allocation, own_id: str, queues: Sequence[MessageQueue], member_ids: Sequence[str], *, share: int
) -> list[MessageQueue]:
    """The queues that a member of a popping group takes messages from."""
    members = sorted(member_ids)
    if share <= 0 or share >= len(members) - 1:
        return sorted({MessageQueue(queue.topic, queue.broker_name, ALL_QUEUES) for queue in queues})
    if own_id not in members:
        return []
    index = members.index(own_id)
    if len(members) > len(queues):
        # Each member has something to do, if only together with others.
        return [sorted(queues)[index % len(queues)]]
    followers = [members[(index + step) % len(members)] for step in range(share + 1)]
    found = {queue for member in followers for queue in strategy.allocate(member, queues, members)}
    return sorted(found)
