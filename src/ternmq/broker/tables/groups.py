"""The subscription groups of a broker (D2): ``config/subscriptionGroup.json``.

A group's configuration says whether it may consume (also in broadcast), how often a message is tried again and over how
many retry queues, which broker to read from when it lags, and whether its members are told of each other. A group may
be forbidden to read single topics. Groups are created by an administrator, or when a consumer first uses the name,
unless ``autoCreateSubscriptionGroup`` is off or the table has ``auto_create_max`` groups already. A question about a
group never creates it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Final

import msgspec

from ternmq import names
from ternmq.broker.config import READ
from ternmq.broker.tables.included import Included
from ternmq.broker.tables.topics import QUEUES_MAX
from ternmq.broker.tables.versions import counted_on
from ternmq.env import Clock
from ternmq.errors import GroupMissing, InvalidName, InvalidParameter
from ternmq.files import Encode, TableFile
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.groups import GroupTable, SubscriptionGroupConfig
from ternmq.wire.bodies.topics import DataVersion

log = logging.getLogger(__name__)

#: Groups of tools and of the system itself; they exist whatever ``autoCreateSubscriptionGroup`` says.
SELF_TEST_GROUP: Final = "SELF_TEST_C_GROUP"
FILTER_SERVER_GROUP: Final = "FILTERSRV_CONSUMER"
SYSTEM_GROUP_PREFIX: Final = "CID_RMQ_SYS_"
OWN_GROUPS: Final = (names.TOOLS_GROUP, SELF_TEST_GROUP, FILTER_SERVER_GROUP)


class Groups:
    """All methods belong to the broker's loop. Call ``load`` once before anything else."""

    def __init__(
        self,
        file: TableFile,
        clock: Clock,
        *,
        broker_name: str,
        auto_create: bool = True,
        auto_create_max: int = 10_000,
    ) -> None:
        self._file = file
        self._clock = clock
        self._broker_name = broker_name
        self._auto_create = auto_create
        self._auto_create_max = auto_create_max
        self._table: dict[str, SubscriptionGroupConfig] = {}
        # Of RocketMQ 5: what a group may not do with a topic, as bits; other bits than ours are kept as they are.
        self._forbidden: dict[str, dict[str, int]] | None = None
        self.data_version = DataVersion()
        #: Called with each group that is created automatically, before it is in the table; set by the assembly.
        self.on_create: Callable[[SubscriptionGroupConfig], None] = _ignore
        #: Called with each group created or changed, and with None when others were; set by the assembly.
        self.on_change: Callable[[SubscriptionGroupConfig | None], None] = _ignore
        #: Which changes of a Raft group's log are in the table.
        self.included = Included()

    def apply(self, *, auto_create: bool, auto_create_max: int) -> None:
        """Set whether and up to how many groups are created by consumers."""
        self._auto_create = auto_create
        self._auto_create_max = auto_create_max

    def load(self) -> None:
        """Read the file; raises ``CorruptFile`` when it and its backup are both unreadable."""
        saved = self._file.load(lambda data: decode(data, GroupTable))
        if saved is not None:
            self._table = {name: _bounded(group) for name, group in saved.subscription_group_table.items()}
            self._forbidden = saved.forbidden_table
            self.data_version = saved.data_version
            self.included.take(saved.changes_included)
        else:
            self.included.take(0)
        for group in OWN_GROUPS:
            self._table.setdefault(group, SubscriptionGroupConfig(group_name=group))

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        return self._table.get(group)

    def find(self, group: str) -> SubscriptionGroupConfig:
        """The group's configuration, created now if it may be; raises ``GroupMissing``."""
        config = self._table.get(group)
        if config is not None:
            return config
        self._check_creatable(group)
        if len(self._table) >= self._auto_create_max:
            raise GroupMissing(
                f"subscription group [{group}] does not exist, and {self._broker_name} already has "
                f"{len(self._table)} groups, so it does not create more automatically; create it with `tern "
                f"group create {group}`, or raise autoCreateSubscriptionGroupMax",
                broker=self._broker_name,
            )
        config = SubscriptionGroupConfig(group_name=group)
        self.on_create(config)
        self._table[group] = config
        self._save()
        return config

    def for_read(self, group: str) -> SubscriptionGroupConfig:
        """The configuration that the group has, or would have if it were created; raises ``GroupMissing``."""
        config = self._table.get(group)
        if config is None:
            self._check_creatable(group)
            config = SubscriptionGroupConfig(group_name=group)
        return config

    def _check_creatable(self, group: str) -> None:
        if not self._auto_create and not group.startswith(SYSTEM_GROUP_PREFIX):
            raise GroupMissing(
                f"subscription group [{group}] does not exist; create it with `tern group create {group}`, or set "
                f"autoCreateSubscriptionGroup=true on {self._broker_name}",
                broker=self._broker_name,
            )
        try:
            names.check_group(group, length_max=names.SERVED_GROUP_LENGTH_MAX)
        except InvalidName as error:
            raise GroupMissing(str(error), broker=self._broker_name) from None

    def save_again(self) -> None:
        """Write the file, without a change: its number of changes is known now."""
        self._file.save(self._copy)

    async def saved(self) -> None:
        """Wait until all changes are on disk; raises ``TableUnsaved``."""
        await self._file.saved()

    @property
    def all(self) -> Mapping[str, SubscriptionGroupConfig]:
        """The whole table, to look at."""
        return MappingProxyType(self._table)

    def body(self) -> GroupTable:
        """The whole table in its wire form, as it is now (for the file, slaves and tools)."""
        return GroupTable(
            data_version=self.data_version,
            subscription_group_table=self._table.copy(),
            forbidden_table=self._forbidden,
            changes_included=self.included.count,
        )

    def put(self, config: SubscriptionGroupConfig) -> None:
        """Create or change a group; raises ``InvalidParameter`` for a bad name or number of retry queues."""
        check(config)
        self._table[config.group_name] = config
        self._save()
        self.on_change(config)

    def copy(self, table: GroupTable) -> None:
        """Have the groups of a master, and no others but those of the system (O4)."""
        self.included.take(table.changes_included)
        if table.data_version == self.data_version:
            return
        own = {group: SubscriptionGroupConfig(group_name=group) for group in OWN_GROUPS}
        self._table = own | {name: _bounded(group) for name, group in table.subscription_group_table.items()}
        self._forbidden = table.forbidden_table
        self.data_version = table.data_version
        self._file.save(self._copy)
        self.on_change(None)

    def delete(self, group: str) -> None:
        """Forget a group; unknown ones are forgotten already. Raises ``InvalidParameter`` for one of the system's."""
        check_deletable(group)
        if self._table.pop(group, None) is not None:
            self._save()
            self.on_change(None)

    def may_read(self, group: str, topic: str) -> bool:
        """Whether an administrator lets the group read the topic."""
        return not self._forbidden or not self._forbidden.get(group, {}).get(topic, 0) & READ

    def let_read(self, group: str, topic: str, *, readable: bool) -> None:
        """Let a group read a topic, or forbid it."""
        if readable == self.may_read(group, topic):
            return
        topics = (self._forbidden or {}).get(group, {})
        bits = topics.get(topic, 0) & ~READ if readable else topics.get(topic, 0) | READ
        others = {name: bits for name, bits in topics.items() if name != topic}
        self._forbidden = (self._forbidden or {}) | {group: others | ({topic: bits} if bits else {})}
        self._save()

    def _save(self) -> None:
        self.data_version = counted_on(self.data_version, self._clock.now_ms())
        self._file.save(self._copy)

    def _copy(self) -> Encode:
        return partial(encode, self.body())


def check(config: SubscriptionGroupConfig) -> None:
    """Raise ``InvalidParameter`` for a bad name or number of retry queues."""
    try:
        names.check_group(config.group_name, length_max=names.SERVED_GROUP_LENGTH_MAX)
    except InvalidName as error:
        raise InvalidParameter(str(error)) from None
    if config.retry_queue_nums > QUEUES_MAX:
        raise InvalidParameter(
            f"invalid retryQueueNums {config.retry_queue_nums} of group {config.group_name}: expected 0 to {QUEUES_MAX}"
        )


def check_deletable(group: str) -> None:
    """Raise ``InvalidParameter`` for a group of the system."""
    if group in OWN_GROUPS:
        raise InvalidParameter(f"{group} is a system group and cannot be deleted")


def _ignore(config: SubscriptionGroupConfig | None) -> None:
    """Before the assembly sets ``on_change`` and ``on_create``."""


def _bounded(config: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
    """A group of a file, which may be RocketMQ's and know no bound."""
    if config.retry_queue_nums <= QUEUES_MAX:
        return config
    log.warning(
        f"invalid retryQueueNums {config.retry_queue_nums} of group {config.group_name} in "
        f"subscriptionGroup.json; using {QUEUES_MAX}, the maximum of a topic"
    )
    return msgspec.structs.replace(config, retry_queue_nums=QUEUES_MAX)
