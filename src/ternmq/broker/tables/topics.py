"""The topics of a broker (D1): ``config/topics.json``.

A topic has so many queues to read and to write, permissions (4 read, 2 write, 1 inherit), an order flag and attributes.
It exists on a broker from its creation by an administrator, by the first send to an unknown name
(*auto-creation*: the producer was given the route of TBW102, a template whose «inherit» permission allows copies), or
by the broker itself (retry and dead-letter topics, system topics). Every change counts the table's data version up, is
written to the file soon (``saved`` waits for that), and is handed to ``on_change`` so that the name servers know it at
once. A send does not wait for the file: a topic that was made by one just before the process was killed is found again
by its messages (``find_again``).

Auto-creation ends at ``auto_create_max`` topics, so that clients which invent names cannot fill the table.

Topics that the system itself needs are created at the start and cannot be deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from ternmq import names
from ternmq.broker.config import INHERIT, READ, WRITE
from ternmq.broker.tables.included import Included
from ternmq.broker.tables.versions import counted_on
from ternmq.env import Clock
from ternmq.errors import InvalidName, InvalidParameter, TopicMissing
from ternmq.files import Encode, TableFile
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.topics import DataVersion, TopicConfig, TopicTable

log = logging.getLogger(__name__)

#: An upper bound on the queues of one topic, against typing errors: each queue costs a directory and a file.
QUEUES_MAX: Final = 16_384
_SCHEDULE_QUEUES: Final = 18


class Topics:
    """All methods belong to the broker's loop. Call ``load`` once before anything else."""

    def __init__(
        self,
        file: TableFile,
        clock: Clock,
        *,
        broker_name: str,
        cluster_name: str,
        auto_create: bool = True,
        auto_create_max: int = 10_000,
        default_queues: int = 8,
        revive_queues: int = 8,
        trace_topic: str = "",
        delay_levels: int,
    ) -> None:
        self._file = file
        self._clock = clock
        self._auto_create = auto_create
        self._auto_create_max = auto_create_max
        self._broker_name = broker_name
        self._own_topics = dict(_own_topics(broker_name, cluster_name, default_queues if auto_create else 0))
        self._own_topics[names.revive_topic(cluster_name)] = (revive_queues, READ | WRITE)
        if trace_topic:
            self._own_topics[trace_topic] = (1, READ | WRITE)
        #: A queue for each delay level; RocketMQ has 18, whatever its levels are.
        self._schedule_queues = max(delay_levels, _SCHEDULE_QUEUES)
        self._table: dict[str, TopicConfig] = {}
        #: Topics in the table, less those that groups have for retries and dead letters.
        self._own_count = 0
        self.data_version = DataVersion()
        #: Called with each topic created or changed, and with None when one was deleted; set by the assembly.
        self.on_change: Callable[[TopicConfig | None], None] = _ignore
        #: Called with each topic that is created automatically, before it is in the table; set by the assembly.
        self.on_create: Callable[[TopicConfig], None] = _ignore
        #: The same for a topic that a message needs. The message is refused with the error that this raises.
        self.on_needed: Callable[[TopicConfig], None] = _ignore
        #: Which changes of a Raft group's log are in the table.
        self.included = Included()

    def apply(self, *, auto_create: bool, auto_create_max: int) -> None:
        """Set whether and up to how many topics are created by sends."""
        self._auto_create = auto_create
        self._auto_create_max = auto_create_max

    def load(self) -> None:
        """Read the file and add what the system needs; raises ``CorruptFile`` if file and backup are unreadable."""
        saved = self._file.load(lambda data: decode(data, TopicTable))
        if saved is not None:
            self._table = dict(saved.topic_config_table)
            self.data_version = saved.data_version
            self.included.take(saved.changes_included)
        changed = False
        for topic, (queues, perm) in self._own_topics.items():
            if topic not in self._table:
                self._table[topic] = _config(topic, queues, perm)
                changed = True
        schedule = self._table[names.SCHEDULE_TOPIC]
        if schedule.write_queue_nums < self._schedule_queues or schedule.read_queue_nums < self._schedule_queues:
            self._table[names.SCHEDULE_TOPIC] = _config(names.SCHEDULE_TOPIC, self._schedule_queues, READ | WRITE)
            changed = True
        self._own_count = sum(not names.is_derived_topic(topic) for topic in self._table)
        if changed or saved is None:
            self._save()
        if saved is None:
            self.included.take(0)

    def find_again(self, counts: Mapping[str, int]) -> None:
        """Take in topics that have messages, in so many queues, and are not in the table."""
        for topic, queues in sorted(counts.items()):
            if topic not in self._table and not self.is_protected(topic):
                try:
                    self.ensure(topic, queues=queues)
                except InvalidParameter:
                    # Not a topic of ours: RocketMQ has queues with other names, too.
                    continue
                log.warning(
                    f"topic {topic} has messages but is missing in topics.json; it is restored with {queues} queues"
                )

    def renew(self) -> None:
        """Count the version up, without a change: this broker is a master now.

        Name servers take queues from masters only, and compare versions: they would take the table of a new master for
        the one that they have from it as a slave, and did not use (RocketMQ's ``RouteInfoManager``).
        """
        self._save()

    def save_again(self) -> None:
        """Write the file, without a change: its number of changes is known now."""
        self._file.save(self._copy)

    async def saved(self) -> None:
        """Wait until all changes are on disk; raises ``TableUnsaved``."""
        await self._file.saved()

    # --- Reading -----------------------------------------------------------------------------------------------

    def get(self, topic: str) -> TopicConfig | None:
        return self._table.get(topic)

    def find(self, topic: str) -> TopicConfig:
        """The topic's configuration; raises ``TopicMissing``."""
        config = self._table.get(topic)
        if config is None:
            raise self._missing(topic)
        return config

    def names(self) -> list[str]:
        return list(self._table)

    @property
    def all(self) -> Mapping[str, TopicConfig]:
        """The whole table, to look at."""
        return MappingProxyType(self._table)

    def body(self) -> TopicTable:
        """The whole table in its wire form, as it is now, for name servers."""
        return TopicTable(data_version=self.data_version, topic_config_table=self._table.copy())

    def copied_body(self) -> TopicTable:
        """The same for the file, slaves and tools: with what a copy needs to know."""
        return msgspec.structs.replace(self.body(), changes_included=self.included.count)

    def is_protected(self, topic: str) -> bool:
        """Whether a topic belongs to the system and must stay."""
        return topic in self._own_topics or names.is_system_topic(topic)

    def is_batch(self, topic: str) -> bool:
        """Whether a topic of RocketMQ 5 is to have batch queues, which we cannot write."""
        config = self._table.get(topic)
        return config is not None and (config.attributes or {}).get("queue.type") == "BatchCQ"

    def system_names(self) -> list[str]:
        return sorted(topic for topic in self._table if self.is_protected(topic))

    # --- Changing ----------------------------------------------------------------------------------------------

    def for_send(
        self, topic: str, *, default_topic: str, default_queue_nums: int, from_address: str = ""
    ) -> TopicConfig:
        """The topic that a message goes to, created now if it may be.

        A retry topic is created by the message that comes back; any other from ``default_topic``, if that allows
        copies, with as many queues as both sides agree to. Raises ``TopicMissing`` if there is nothing to copy, or if
        the table has as many topics as may be made so.
        """
        config = self._table.get(topic)
        if config is not None:
            return config
        if topic.startswith(names.RETRY_PREFIX):
            self._check_room(topic)
            return self.ensure(topic, queues=1, for_message=True)
        template = self._table.get(default_topic)
        if (
            template is None
            or not template.perm & INHERIT
            or (default_topic == names.AUTO_CREATE_TOPIC and not self._auto_create)
        ):
            raise self._missing(topic)
        self._check_room(topic)
        queues = max(min(default_queue_nums, template.write_queue_nums), 1)
        config = self.ensure(topic, queues=queues, perm=template.perm & ~INHERIT, for_message=True)
        log.info("created topic %s with %d queues for a send from %s", topic, queues, from_address)
        return config

    def ensure(self, topic: str, *, queues: int, perm: int = READ | WRITE, for_message: bool = False) -> TopicConfig:
        """The topic's configuration, created with these values if it did not exist.

        ``for_message``: a message needs it now. In a Raft group it is refused if the log does not take the topic.
        """
        config = self._table.get(topic)
        if config is None:
            config = _config(topic, queues, perm)
            check(config)
            (self.on_needed if for_message else self.on_create)(config)
            self.put(config)
        return config

    def put(self, config: TopicConfig) -> None:
        """Create or change a topic. Raises ``InvalidParameter`` for a bad name, queue count or permission."""
        check(config)
        if config.topic_name not in self._table:
            self._own_count += not names.is_derived_topic(config.topic_name)
        self._table[config.topic_name] = config
        self._save()
        self.on_change(config)

    def copy(self, table: TopicTable) -> None:
        """Have the topics of a master, and no others but those of the system (O4)."""
        self.included.take(table.changes_included)
        if table.data_version == self.data_version:
            return
        own = {topic: config for topic, config in self._table.items() if self.is_protected(topic)}
        self._table = own | table.topic_config_table
        self._own_count = sum(not names.is_derived_topic(topic) for topic in self._table)
        self.data_version = table.data_version
        self._file.save(self._copy)
        self.on_change(None)

    def delete(self, topic: str) -> None:
        """Forget a topic; unknown ones are forgotten already. Raises ``InvalidParameter`` for a system topic."""
        self.check_deletable(topic)
        if self._table.pop(topic, None) is not None:
            self._own_count -= not names.is_derived_topic(topic)
            self._save()
            self.on_change(None)

    def check_deletable(self, topic: str) -> None:
        """Raise ``InvalidParameter`` for a system topic."""
        if self.is_protected(topic):
            raise InvalidParameter(f"{topic} is a system topic and cannot be deleted")

    def _save(self) -> None:
        self.data_version = counted_on(self.data_version, self._clock.now_ms())
        self._file.save(self._copy)

    def _copy(self) -> Encode:
        return partial(encode, self.copied_body())

    def _check_room(self, topic: str) -> None:
        # Topics of groups count apart: a broker with many groups must not refuse the topics of its producers.
        count = len(self._table) - self._own_count if names.is_derived_topic(topic) else self._own_count
        if count >= self._auto_create_max:
            raise TopicMissing(
                f"topic[{topic}] not exist, and {self._broker_name} already has {count} topics, so it does not "
                f"create more automatically; create it with `tern topic create {topic}`, or raise "
                "autoCreateTopicMax",
                broker=self._broker_name,
            )

    def _missing(self, topic: str) -> TopicMissing:
        cure = f"Create it with `tern topic create {topic}`, or set autoCreateTopicEnable=true on {self._broker_name}"
        try:
            names.check_topic(topic)
        except InvalidName as error:
            # There can be none of this name.
            topic, cure = topic[: names.TOPIC_LENGTH_MAX], f"{error}"
        return TopicMissing(f"topic[{topic}] not exist, apply first please! {cure}", broker=self._broker_name)


def check(config: TopicConfig) -> None:
    """Raise ``InvalidParameter`` with the rule that a topic's configuration breaks."""
    try:
        names.check_topic(config.topic_name)
    except InvalidName as error:
        raise InvalidParameter(str(error)) from None
    for what, queues in (("read", config.read_queue_nums), ("write", config.write_queue_nums)):
        if not 0 <= queues <= QUEUES_MAX:
            raise InvalidParameter(
                f"invalid number of {what} queues {queues} for {config.topic_name}: expected 0 to {QUEUES_MAX}"
            )
    if not 0 <= config.perm <= 15:
        raise InvalidParameter(
            f"invalid permission {config.perm} for {config.topic_name}: expected a sum of 4 (read) and 2 (write)"
        )


def _config(topic: str, queues: int, perm: int) -> TopicConfig:
    return TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)


def _own_topics(broker_name: str, cluster_name: str, default_queues: int) -> Iterator[tuple[str, tuple[int, int]]]:
    """What a RocketMQ broker has from its start, with queue counts and permissions (store.md §2).

    Tools and clients count on them: producers take TBW102's route, ``mqadmin clusterRT`` sends to the topic named after
    the broker. No TBW102 without auto-creation.
    """
    read_write = READ | WRITE
    if default_queues:
        yield names.AUTO_CREATE_TOPIC, (default_queues, read_write | INHERIT)
    yield names.SELF_TEST_TOPIC, (1, read_write)
    yield names.BENCHMARK_TOPIC, (1024, read_write)
    yield cluster_name, (16, read_write | INHERIT)
    yield broker_name, (1, read_write | INHERIT)
    yield names.OFFSET_MOVED_TOPIC, (1, read_write)
    yield names.SCHEDULE_TOPIC, (_SCHEDULE_QUEUES, read_write)
    yield names.WHEEL_TOPIC, (1, read_write)
    yield names.reply_topic(cluster_name), (1, read_write)
    yield names.HALF_TOPIC, (1, read_write)
    yield names.OP_HALF_TOPIC, (1, read_write)


def _ignore(config: TopicConfig | None) -> None:
    """Before the assembly sets ``on_change`` and ``on_create``."""
