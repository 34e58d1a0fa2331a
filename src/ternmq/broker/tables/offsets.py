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

Commits on a slave
    While a master is away, members commit on a slave. Such an offset is the slave's *own* until it is returned to
    the master (``replication.returning``): copies of the master's table do not replace it, and a file beside the table
    (``config/ownOffset.json``) keeps it over a restart. The master takes it unless its own is newer (``merge``). For
    this each broker remembers when it took a commit. What a master has from before its start counts as committed when
    the table was last written, which is the time of its version; what it copied as a slave, when it did so. A topic or
    group that is deleted counts as a commit: another one of the same name begins with queue offset 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from ternmq.broker.tables.included import Included
from ternmq.broker.tables.versions import counted_on
from ternmq.env import Clock
from ternmq.files import Encode, TableFile
from ternmq.names import is_internal_topic
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.offsets import OwnOffset, OwnOffsets
from ternmq.wire.bodies.stats import ConsumerOffsets
from ternmq.wire.bodies.topics import DataVersion

#: RocketMQ counts the table's version up once in this many commits (``consumerOffsetUpdateVersionStep``).
VERSION_STEP: Final = 500
SEPARATOR: Final = "@"
#: Deletions that are remembered with their times; an older one counts for all groups and topics.
DELETIONS_MAX: Final = 1_000


class Offsets:
    """All methods belong to the broker's loop."""

    def __init__(self, file: TableFile, own_file: TableFile, clock: Clock) -> None:
        self._file = file
        self._own_file = own_file
        self._clock = clock
        #: Whether this broker is a slave; its commits are to be returned to the master.
        self._is_copy = False
        self.data_version = DataVersion()
        self._commits = 0
        self._dirty = False
        # By (group, topic), then queue id.
        self._table: dict[tuple[str, str], dict[int, int]] = {}
        # Resets that no member knows of yet; the same keys. They do not outlive the broker, nor do its connections.
        self._resets: dict[tuple[str, str], dict[int, int]] = {}
        # Pull offsets; the same keys.
        self._pulled: dict[tuple[str, str], dict[int, int]] = {}
        # When this broker took a commit, by its clock; the same keys. On a slave: of its own offsets only.
        self._committed_ms: dict[tuple[str, str], dict[int, int]] = {}
        # All that was loaded or copied was committed at this time at the latest.
        self._loaded_ms = 0
        # When a group (by its name and "") or a topic (by "" and its name) was deleted here, the oldest first.
        self._deleted_ms: dict[tuple[str, str], int] = {}
        # Whether the file of own offsets differs from them.
        self._own_dirty = False
        #: Which changes of a Raft group's log are in the table: what tools did to groups. Commits are not in the log.
        self.included = Included()

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, ConsumerOffsets))
        if saved is not None:
            self._take(saved)
            self.included.take(saved.changes_included)
            self._loaded_ms = self.data_version.timestamp
        else:
            self.included.take(0)
        own = self._own_file.load(lambda data: decode(data, OwnOffsets))
        for each in own.offsets if own is not None else ():
            key = each.group, each.topic
            self._table.setdefault(key, {})[each.queue_id] = each.queue_offset
            self._committed_ms.setdefault(key, {})[each.queue_id] = each.committed_ms
            self._is_copy = True

    def copy(self, offsets: ConsumerOffsets, *, keeps_own: bool = True) -> None:
        """Have the offsets of a master. Groups and topics that it does not have stay, as in RocketMQ (O4), and so do
        own offsets, unless they are not to be kept: a member of a Raft group has what its leader has. It returns no
        offsets, and those of a deleted group would come back with it."""
        if not keeps_own:
            self._committed_ms.clear()
            self._table.clear()
        self.included.take(offsets.changes_included)
        own = [(key, queue_id, self._table[key][queue_id]) for key, queue_id, _ in self._own()]
        self._take(offsets)
        for key, queue_id, queue_offset in own:
            self._table.setdefault(key, {})[queue_id] = queue_offset
        # If this slave becomes master, another slave may have older own offsets.
        self._loaded_ms = max(self._loaded_ms, self._clock.now_ms())
        self._dirty = True

    def _take(self, offsets: ConsumerOffsets) -> None:
        self.data_version = offsets.data_version or DataVersion()
        for key, queues in offsets.offset_table.items():
            # RocketMQ 5 has groups with the separator in their names: ``topic@group@broadcast``.
            topic, separator, group = key.partition(SEPARATOR)
            if separator and topic and group:
                self._table[group, topic] = dict(queues)

    def cut(self, max_offset: Callable[[str, int], int]) -> int:
        """Let no offset lie behind the end of its queue: the log was cut (O1). Returns how many did."""
        count = 0
        for (_, topic), queues in self._table.items():
            for queue_id, queue_offset in queues.items():
                end = max_offset(topic, queue_id)
                if queue_offset > end:
                    queues[queue_id] = end
                    count += 1
        if count:
            # Some may be own offsets, whose file counts more.
            self._dirty = self._own_dirty = True
        return count

    # --- Own offsets of a slave ---------------------------------------------------------------------------------------

    def begin_slave(self) -> None:
        """From now on the master's table is copied, and commits are own offsets."""
        self._is_copy = True
        self._own_dirty = True

    def begin_master(self, max_offset: Callable[[str, int], int]) -> None:
        """From now on this is the table. A member may have committed on this slave what it had read on the old master
        and this log does not have, and a power cut may have taken messages whose offsets were copied: it continues at
        the end of the queue, or it would miss what is stored there now."""
        if not self._is_copy:
            return
        self._is_copy = False
        for (group, topic), queues in list(self._table.items()):
            for queue_id, queue_offset in list(queues.items()):
                end = max_offset(topic, queue_id)
                if queue_offset > end:
                    # What the broker itself reads has no members, and goes on by its commits.
                    self.reset(group, topic, queue_id, end, has_readers=not is_internal_topic(topic))
        self._own_dirty = True

    @property
    def has_own(self) -> bool:
        return self._is_copy and bool(self._committed_ms)

    def own(self) -> list[OwnOffset]:
        """What members have committed here and the master does not know."""
        if not self._is_copy:
            return []
        return [
            OwnOffset(
                group=group,
                topic=topic,
                queue_id=queue_id,
                queue_offset=self._table[group, topic][queue_id],
                committed_ms=committed_ms,
            )
            for (group, topic), queue_id, committed_ms in self._own()
        ]

    def returned(self, offsets: Iterable[OwnOffset]) -> None:
        """The master has decided on these. Those that were committed again meanwhile are still own offsets."""
        for each in offsets:
            key = each.group, each.topic
            queues = self._committed_ms.get(key, {})
            if queues.get(each.queue_id) == each.committed_ms and self._table[key][each.queue_id] == each.queue_offset:
                del queues[each.queue_id]
                if not queues:
                    del self._committed_ms[key]
                self._own_dirty = True

    def merge(self, group: str, topic: str, queue_id: int, queue_offset: int, *, committed_ms: int) -> bool:
        """Take an offset that was committed on a slave at a time of this broker's clock; False if the one here is
        newer, or a reset, or the group or the topic was deleted since."""
        last_ms = max(
            self._committed_ms.get((group, topic), {}).get(queue_id, self._loaded_ms),
            self._deleted_ms.get((group, ""), 0),
            self._deleted_ms.get(("", topic), 0),
        )
        if committed_ms <= last_ms or queue_id in self._resets.get((group, topic), ()):
            return False
        self.commit(group, topic, queue_id, queue_offset)
        # A time that is not over yet would count more than what is committed on another broker later.
        self._committed_ms[group, topic][queue_id] = min(committed_ms, self._clock.now_ms())
        return True

    def _own(self) -> list[tuple[tuple[str, str], int, int]]:
        return [
            (key, queue_id, committed_ms)
            for key, queues in self._committed_ms.items()
            for queue_id, committed_ms in queues.items()
        ]

    # ------------------------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Hand the table to the file's thread, if anything changed since the last time."""
        if self._dirty:
            self._dirty = False
            self._file.save(self._copy)
        if self._own_dirty:
            self._own_dirty = False
            self._own_file.save(self._copy_own)

    def save_again(self) -> None:
        """Write the file, without a change: its number of changes is known now."""
        self._dirty = True
        self.save()

    async def saved(self) -> None:
        """Wait until what ``save`` was called for is on disk; raises ``TableUnsaved``."""
        await self._file.saved()

    def body(self) -> ConsumerOffsets:
        """The whole table in its wire form, as it is now (for slaves)."""
        return _body(self.data_version, self._table, self.included.count)

    def _copy(self) -> Encode:
        # The texts of the keys cost more than the copies, and are made on the other thread.
        table = {key: queues.copy() for key, queues in self._table.items()}
        if not self._is_copy:
            # Also the time at which all of this was committed.
            self.data_version = counted_on(self.data_version, self._clock.now_ms())
        version, included = self.data_version, self.included.count
        return lambda: encode(_body(version, table, included))

    def _copy_own(self) -> Encode:
        own = self.own()
        return lambda: encode(OwnOffsets(offsets=own))

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
        now_ms = self._clock.now_ms()
        times_ms = self._committed_ms.get((group, topic))
        if times_ms is None:
            times_ms = self._committed_ms[group, topic] = {}
        times_ms[queue_id] = now_ms
        self._dirty = True
        if self._is_copy:
            self._own_dirty = True
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self.data_version = counted_on(self.data_version, now_ms)

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

    def pairs(self) -> list[tuple[str, str]]:
        """Groups, and topics on which they have offsets."""
        return list(self._table)

    def topics_of(self, group: str) -> list[str]:
        """Topics on which a group has offsets."""
        return sorted(topic for owner, topic in self._table if owner == group)

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets on a topic."""
        return sorted(group for group, owner in self._table if owner == topic)

    def delete_group(self, group: str) -> None:
        self._note_deletion((group, ""))
        self._delete(key for key in self._table if key[0] == group)

    def delete_topic(self, topic: str) -> None:
        self._note_deletion(("", topic))
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
            self._committed_ms[target, topic] = dict.fromkeys(queues, self._clock.now_ms())
            self._dirty = True

    def _note_deletion(self, what: tuple[str, str]) -> None:
        self._deleted_ms.pop(what, None)
        self._deleted_ms[what] = self._clock.now_ms()
        if len(self._deleted_ms) > DELETIONS_MAX:
            oldest = next(iter(self._deleted_ms))
            self._loaded_ms = max(self._loaded_ms, self._deleted_ms.pop(oldest))
        # The table has this time as its version after a restart.
        self._dirty = True

    def _delete(self, keys: Iterable[tuple[str, str]]) -> None:
        for key in list(keys):
            self._resets.pop(key, None)
            self._committed_ms.pop(key, None)
            self._own_dirty = True
            del self._table[key]
            self._dirty = True


def _body(
    version: DataVersion, table: Mapping[tuple[str, str], dict[int, int]], changes_included: int | None
) -> ConsumerOffsets:
    return ConsumerOffsets(
        data_version=version,
        changes_included=changes_included,
        offset_table={f"{topic}{SEPARATOR}{group}": queues for (group, topic), queues in table.items()},
    )
