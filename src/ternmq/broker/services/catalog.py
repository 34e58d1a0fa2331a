"""The catalog: how topics and groups are created, changed and deleted (D1, D2, D6).

A change is done when the call returns; ``published`` and ``saved`` wait until it is on disk and, for topics, until the
name servers know it, so that a route can be asked for. In a Raft group they first wait until a majority has it: each
change is written to the log before it is made (``services.table_journal``), and ``follow`` makes it on the next leader.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

import msgspec

from ternmq import names
from ternmq.broker import quota
from ternmq.broker.services.table_journal import TableJournal
from ternmq.broker.tables import groups as group_rules
from ternmq.broker.tables import topics as topic_rules
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.included import Lacking
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter
from ternmq.pop.assign import RequestModeTable
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import GroupRequestMode
from ternmq.wire.bodies.groups import GroupReadable, SubscriptionGroupConfig
from ternmq.wire.bodies.raft import TableChange
from ternmq.wire.bodies.topics import TopicConfig

_RESERVE_TIME: Final = "reserve.time"
#: The attributes of a topic, and which values each key takes (None: a number).
ATTRIBUTES: Final[dict[str, frozenset[str] | None]] = {
    "queue.type": frozenset({"SimpleCQ"}),  # BatchCQ would be queues that we cannot write
    "cleanup.policy": frozenset({"DELETE", "COMPACTION"}),
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    _RESERVE_TIME: None,
    # Of TernMQ: what may be sent to it (``broker.quota``).
    **dict.fromkeys(quota.KEYS),
}
#: Attributes that one group may have: RocketMQ 5 has less than ten.
GROUP_ATTRIBUTES_MAX: Final = 64
_ATTRIBUTE_CHARACTERS_MAX: Final = 1_024
_SHOWN_MAX: Final = 64
_NUMBER: Final = re.compile(r"-?[0-9]{1,19}", re.ASCII)

#: Waits until the name servers know the topics of this moment, or gives up soon.
Published = Callable[[], Awaitable[None]]


class Catalog:
    """All methods belong to the broker's loop. ``on_delete`` is told which topic or group is gone."""

    def __init__(
        self,
        *,
        topics: Topics,
        groups: Groups,
        store: MessageStore,
        offsets: Offsets,
        stats: Stats,
        modes: RequestModeTable,
        journal: TableJournal,
        published: Published,
        on_delete_topic: Callable[[str], None],
        on_delete_group: Callable[[str], None],
    ) -> None:
        self._topics = topics
        self._groups = groups
        self._store = store
        self._offsets = offsets
        self._stats = stats
        self._modes = modes
        self._journal = journal
        self._published = published
        self._on_delete_topic = on_delete_topic
        self._on_delete_group = on_delete_group

    # --- Topics -----------------------------------------------------------------------------------------------------

    def put_topic(self, config: TopicConfig) -> None:
        """Create or change a topic. Raises ``InvalidParameter`` for a system topic or invalid settings."""
        if self._topics.is_protected(config.topic_name):
            raise InvalidParameter(f"{config.topic_name} is a system topic and cannot be changed")
        topic_rules.check(config)
        quota.rates(config.attributes)
        self._journal.require(TableChange(topic=config))
        self._topics.put(config)

    def delete_topic(self, topic: str) -> bool:
        """Forget a topic with its queues, offsets and counters, and its retry topics of pop; False if it did not exist.

        Its records stay in the log until that is cleaned. Raises ``InvalidParameter`` for a system topic, and for no
        name.
        """
        _check_named("topic", topic)
        self._topics.check_deletable(topic)
        is_known = self._topics.get(topic) is not None
        topics = [topic, *self._pop_retry_topics(topic)]
        self._journal.require(TableChange(deleted_topics=topics))
        self._delete(topics)
        return is_known

    async def published(self, *, offsets_too: bool = False) -> None:
        """Wait until all changes of topics are on disk, and the name servers know them. Raises ``TableUnsaved``.

        ``offsets_too``: after a deletion, which removes offsets as well.
        """
        await self._safe(self._topics, *((self._offsets, self._modes) if offsets_too else ()))
        await self._topics.saved()
        if offsets_too:
            await self._offsets.saved()
        await self._published()

    def deleted_elsewhere(self, topic: str) -> None:
        """The master of this slave has deleted a topic, and the store has deleted its queues (O4). The table of topics
        comes from the master."""
        self._offsets.delete_topic(topic)
        self._stats.forget_topic(topic)
        self._on_delete_topic(topic)

    def _delete(self, topics: Iterable[str]) -> None:
        """Forget topics, with all that is stored of them."""
        for topic in topics:
            self._topics.delete(topic)
            self._store.delete_topics({topic})
            self.deleted_elsewhere(topic)
        # A topic of the same name begins with queue offset 0: offsets of this one must not come back after a crash.
        self._offsets.save()

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """The retry topics of groups that pop from a topic; without it no group reads them (F9)."""
        found = []
        for name in self._topics.names():
            if name.startswith(names.RETRY_PREFIX) and name.endswith((f"_{topic}", f"+{topic}")):
                group = name[len(names.RETRY_PREFIX) : -len(topic) - 1]
                # The same name may be that of a group "a_b", or of a topic "a_b": its reader has an offset there.
                if self._offsets.groups_of(name) == [group]:
                    found.append(name)
        return found

    # --- Groups -----------------------------------------------------------------------------------------------------

    def put_group(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group. Raises ``InvalidParameter`` for a bad name, number of retry queues, or attribute.

        Attributes are changes of those that the group has (``changed_group_attributes``).
        """
        group_rules.check(config)
        old = self._groups.get(config.group_name)
        attributes = changed_group_attributes(old.attributes if old else None, config.attributes)
        quota.rates(attributes)
        config = msgspec.structs.replace(config, attributes=attributes)
        self._journal.require(TableChange(group=config))
        self._groups.put(config)

    def delete_group(self, group: str, *, offsets_too: bool) -> None:
        """Forget a group, and its offsets if asked to. Its retry topic is a topic, and deleted as such.

        Raises ``InvalidParameter`` for a system group, and for no name.
        """
        _check_named("group", group)
        group_rules.check_deletable(group)
        self._journal.require(TableChange(deleted_group=group, offsets_too=offsets_too))
        self._delete_group(group, offsets_too=offsets_too)

    def _delete_group(self, group: str, *, offsets_too: bool) -> None:
        self._groups.delete(group)
        self._offsets.forget_pulls(group)
        if offsets_too:
            self._offsets.delete_group(group)
            self._offsets.save()
        self._stats.forget_group(group)
        self._on_delete_group(group)

    def let_read(self, group: str, topic: str, *, readable: bool) -> None:
        """Let a group read a topic, or forbid it. Raises ``TopicMissing`` and ``GroupMissing``."""
        # Only for what exists: a name that an administrator mistyped would stay in the table for ever.
        self._topics.find(topic)
        self._groups.find(group)
        self._journal.require(TableChange(readable=GroupReadable(group=group, topic=topic, readable=readable)))
        self._groups.let_read(group, topic, readable=readable)

    def set_mode(self, mode: GroupRequestMode) -> None:
        """Have a group pop the messages of a topic from now on, or pull them. Raises ``TopicMissing`` and
        ``GroupMissing``."""
        self._topics.find(mode.topic)
        self._groups.find(mode.consumer_group)
        self._journal.require(TableChange(mode=mode))
        self._modes.put(mode)

    async def saved(self) -> None:
        """Wait until all changes of groups are on disk. Raises ``TableUnsaved``."""
        await self._safe(self._groups, self._offsets, self._modes)
        await self._groups.saved()
        await self._offsets.saved()
        await self._modes.saved()

    async def _safe(self, *tables: Topics | Groups | Offsets | RequestModeTable) -> None:
        """In a Raft group: wait until a majority has all changes, and have the tables say that theirs are made. Else
        the next start would make them once more, over what came later."""
        await self._journal.safe()
        if self._journal.is_on:
            for table in tables:
                table.save_again()

    # --- Changes of an earlier leader -------------------------------------------------------------------------------

    def follow(self, change: TableChange, end_offset: int, lacking: Lacking) -> None:
        """Make a change whose record ends at ``end_offset``, in the tables that lack it. Raises ``TernError``."""
        if change.topic is not None and lacking.topics:
            self._topics.put(change.topic)
        if change.deleted_topics is not None:
            self._follow_deletion(change.deleted_topics, end_offset, lacking)
        if change.group is not None and lacking.groups:
            self._groups.put(change.group)
        if change.deleted_group is not None:
            self._follow_group_deletion(change.deleted_group, lacking, offsets_too=change.offsets_too)
        if change.readable is not None and lacking.groups:
            self._groups.let_read(change.readable.group, change.readable.topic, readable=change.readable.readable)
        if change.mode is not None and lacking.modes:
            self._modes.put(change.mode)
        if change.moved is not None and lacking.offsets:
            moved = change.moved
            for queue_id, queue_offset in moved.offsets.items():
                self._offsets.reset(moved.group, moved.topic, queue_id, queue_offset, has_readers=moved.has_readers)

    # No term runs now, so no part of one has to be told. A table that has the deletion may have more: a mode, or
    # offsets, of a new topic or group of that name.

    def _follow_deletion(self, topics: Sequence[str], end_offset: int, lacking: Lacking) -> None:
        for topic in topics:
            is_stored = lacking.topics and self._store.deletions.get(topic, 0) < end_offset
            if lacking.topics:
                self._topics.delete(topic)
            if is_stored:
                self._store.delete_topics({topic}, as_of=end_offset)
                self._stats.forget_topic(topic)
            if lacking.offsets or is_stored:
                self._offsets.delete_topic(topic)
            if lacking.modes:
                self._modes.forget(topic=topic)
        self._offsets.save()

    def _follow_group_deletion(self, group: str, lacking: Lacking, *, offsets_too: bool) -> None:
        if lacking.groups:
            self._groups.delete(group)
            self._stats.forget_group(group)
        if lacking.offsets and offsets_too:
            self._offsets.delete_group(group)
            self._offsets.save()
        if lacking.modes:
            self._modes.forget(group=group)


def _check_named(what: str, name: str) -> None:
    # Those that are told of a deletion take an empty name for all.
    if not name:
        raise InvalidParameter(f"the request does not name the {what} to delete; give its name")


def changed_attributes(old: dict[str, str] | None, changes: str) -> dict[str, str]:
    """A topic's attributes after ``+key=value,-key`` (RocketMQ 5); raises ``InvalidParameter`` for an invalid text."""
    attributes = dict(old or {})
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, equals, value = change[1:].partition("=")
        allowed = ATTRIBUTES.get(key)
        shown = change if len(change) <= _SHOWN_MAX else f"{change[:_SHOWN_MAX]}…"
        if change[0] not in "+-" or key not in ATTRIBUTES:
            raise InvalidParameter(
                f"invalid attribute {shown!r}: expected +key=value or -key, with one of the keys "
                f"{', '.join(sorted(ATTRIBUTES))}"
            )
        if change[0] == "-":
            attributes.pop(key, None)
        elif not equals or not value or (allowed is not None and value not in allowed):
            choice = ", ".join(sorted(allowed)) if allowed is not None else "a value"
            raise InvalidParameter(f"invalid attribute {shown!r}: expected {choice} for {key}")
        elif key == _RESERVE_TIME and not _NUMBER.fullmatch(value):
            # Each registration carries it to each name server: a text could be as long as a request.
            raise InvalidParameter(f"invalid attribute {shown!r}: expected a whole number for {key}")
        else:
            attributes[key] = value
    return attributes


def changed_group_attributes(old: dict[str, str] | None, changes: dict[str, str] | None) -> dict[str, str] | None:
    """A group's attributes after a request (RocketMQ 5): ``+key`` sets one, ``-key`` removes it, others stay.

    A key without a sign sets as well: a configuration that was read can be written back. Raises ``InvalidParameter``
    for too many.
    """
    if not changes:
        return old
    attributes = dict(old or {})
    for key, value in changes.items():
        name = key.removeprefix("+")
        if key.startswith("-"):
            attributes.pop(key[1:], None)
        elif not name or len(name) + len(value) > _ATTRIBUTE_CHARACTERS_MAX:
            raise InvalidParameter(
                f"invalid attribute {key[:64]!r}: expected a name and a value of at most {_ATTRIBUTE_CHARACTERS_MAX} "
                "characters"
            )
        else:
            attributes[name] = value
    if len(attributes) > GROUP_ATTRIBUTES_MAX:
        raise InvalidParameter(f"{len(attributes)} attributes: a group has at most {GROUP_ATTRIBUTES_MAX}")
    return attributes
