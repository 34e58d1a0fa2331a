"""How far each group has consumed each queue (D4): ``config/consumerOffset.json``.

A *consumer offset* is the queue offset of the next message the group wants; everything below it is done. Clients commit
it with UPDATE_CONSUMER_OFFSET and with pulls, the broker keeps it in memory and saves the table every 5 s and at its
end, so a crash repeats at most what was consumed since: delivery is «at least once».

On disk, as RocketMQ writes it (integer keys unquoted) and as we do (standard JSON, which it reads)::

    {"dataVersion":{…},"offsetTable":{"topic@group":{"0":5,"1":7}}}

Commits may go backwards: the client that owns the queue decides.

A *pull offset* is the queue offset behind what a member pulled last: what lies between the two is in its hands. It is
for tools only, and does not outlive the broker.

A *reset* is what a tool does to a group. Members that are connected know nothing of it and would soon commit what they
have done since, so until one of them has been told (``take_reset``, with its next pull), commits count no more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from ternmq.broker.tables.versions import counted_on
from ternmq.env import Clock
from ternmq.files import Encode, TableFile
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.stats import ConsumerOffsets
from ternmq.wire.bodies.topics import DataVersion

#: RocketMQ counts the table's version up once in this many commits (``consumerOffsetUpdateVersionStep``).
VERSION_STEP: Final = 500
SEPARATOR: Final = "@"


class Offsets:
    """All methods belong to the broker's loop."""

    def __init__(self, file: TableFile, clock: Clock) -> None:
        self._file = file
        self._clock = clock
        self.data_version = DataVersion()
        self._commits = 0
        self._dirty = False
        # By (group, topic), then queue id.
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        # Resets that no member knows of yet; the same keys. They do not outlive the broker, nor do its connections.
        self._resets: dict[tuple[str, str], dict[int, int]] = {}
        # Pull offsets; the same keys.
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, ConsumerOffsets))
        if saved is None:
            return
        self._take(saved)

    def copy(self, offsets: ConsumerOffsets) -> None:
        """Have the offsets of a master. Groups and topics that it does not have stay, as in RocketMQ (O4)."""
        self._take(offsets)
        self._dirty = True

    def _take(self, offsets: ConsumerOffsets) -> None:
        self.data_version = offsets.data_version or DataVersion()
        for key, queues in offsets.offset_table.items():
            # RocketMQ 5 has groups with the separator in their names: ``topic@group@broadcast``.
            topic, separator, group = key.partition(SEPARATOR)
            if separator and topic and group:
                self._table[group, topic] = dict(queues)

    def save(self) -> None:
        """Hand the table to the file's thread, if anything changed since the last time."""
        if self._dirty:
            self._dirty = False
            self._file.save(self._copy)

    async def saved(self) -> None:
        """Wait until what ``save`` was called for is on disk; raises ``TableUnsaved``."""
        await self._file.saved()

    def body(self) -> ConsumerOffsets:
        """The whole table in its wire form, as it is now (for slaves)."""
        return _body(self.data_version, self._table)

    def _copy(self) -> Encode:
        # The texts of the keys cost more than the copies, and are made on the other thread.
        table = {key: queues.copy() for key, queues in self._table.items()}
        version = self.data_version
        return lambda: encode(_body(version, table))

    def commit(self, group: str, topic: str, queue_id: int, queue_offset: int) -> None:
        """Remember that ``group`` has consumed all of the queue below ``queue_offset``.

        Does nothing while the queue has a reset that no member knows of.
        """
        if self._resets and queue_id in self._resets.get((group, topic), ()):
            return
        queues = self._table.get((group, topic))
        if queues is None:
            queues = self._table[group, topic] = {}
        queues[queue_id] = queue_offset
        self._dirty = True
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.data_version = counted_on(self.data_version, self._clock.now_ms())

    def pulled(self, group: str, topic: str, queue_id: int, next_offset: int) -> None:
        """Remember how far a group has pulled. Hot: called for each pull, of a group and queue that exist."""
        queues = self._pulled.get((group, topic))
        if queues is None:
            queues = self._pulled[group, topic] = {}
        queues[queue_id] = next_offset

    def pull_offset(self, group: str, topic: str, queue_id: int) -> int:
        """How far the group has pulled, at least to the committed queue offset; -1 if there is neither."""
        return max(self._pulled.get((group, topic), {}).get(queue_id, -1), self.get(group, topic, queue_id))

    def reset(self, group: str, topic: str, queue_id: int, queue_offset: int, *, has_readers: bool) -> None:
        """Move a group; members that read the queue must be told, see ``take_reset``."""
        self.take_reset(group, topic, queue_id)
        self.commit(group, topic, queue_id, queue_offset)
        self._pulled.get((group, topic), {}).pop(queue_id, None)
        if has_readers:
            self._resets.setdefault((group, topic), {})[queue_id] = queue_offset

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The queue offset at which a member must continue, returned once; None if it may continue where it is."""
        if not self._resets:
            return None
        queues = self._resets.get((group, topic), {})
        queue_offset = queues.pop(queue_id, None)
        if not queues:
            self._resets.pop((group, topic), None)
        return queue_offset

    def get(self, group: str, topic: str, queue_id: int) -> int:
        """The committed queue offset, -1 if there is none."""
        queues = self._table.get((group, topic))
        return -1 if queues is None else queues.get(queue_id, -1)

    def of_group(self, group: str, topic: str) -> dict[int, int]:
        """A group's offsets on one topic, by queue id."""
        return dict(self._table.get((group, topic), {}))

    def topics_of(self, group: str) -> list[str]:
        """Topics on which a group has offsets."""
        return sorted(topic for owner, topic in self._table if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets on a topic."""
        return sorted(group for group, owner in self._table if owner == topic)

    def delete_group(self, group: str) -> None:
        self._delete(key for key in self._table if key[0] == group)

    def delete_topic(self, topic: str) -> None:
        self._delete(key for key in self._table if key[1] == topic)
        self._pulled = {key: queues for key, queues in self._pulled.items() if key[1] != topic}

    def forget_pulls(self, group: str) -> None:
        """A group is gone, with or without its committed offsets."""
        self._pulled = {key: queues for key, queues in self._pulled.items() if key[0] != group}

    def clone(self, source: str, target: str, topic: str) -> None:
        """Let ``target`` stand where ``source`` stands on a topic."""
        queues = self._table.get((source, topic))
        if queues is not None:
            self._resets.pop((target, topic), None)
            self._table[target, topic] = dict(queues)
            self._dirty = True

    def _delete(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            self._resets.pop(key, None)
            del self._table[key]
            self._dirty = True


def _body(version: DataVersion, table: Mapping[tuple[str, str], dict[int, int]]) -> ConsumerOffsets:
    return ConsumerOffsets(
        data_version=version,
        offset_table={f"{topic}{SEPARATOR}{group}": queues for (group, topic), queues in table.items()},
    )
