"""Consumer groups and their progress over all brokers (D2, D4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from ternmq.admin.brokers import BrokerAdmin, BrokerInfo
from ternmq.admin.clients import ClientAdmin
from ternmq.admin.loads import ASKED_AT_ONCE, GroupLoad
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import GroupMissing, TopicMissing
from ternmq.message import MessageQueue
from ternmq.names import TOOLS_GROUP, check_group
from ternmq.wire.bodies.clients import GroupRequestMode, RequestMode
from ternmq.wire.bodies.codec import by_queue, decode, encode
from ternmq.wire.bodies.groups import GroupTable, SubscriptionGroupConfig
from ternmq.wire.bodies.stats import ConsumeStats
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests_admin import AllGroups, ConsumeStatsQuery, DeleteGroup

#: Groups that belong to RocketMQ's brokers and tools.
_SYSTEM_GROUPS: Final = frozenset(
    {
        TOOLS_GROUP,
        "FILTERSRV_CONSUMER",
        "__MONITOR_CONSUMER",
        "CLIENT_INNER_PRODUCER",
        "SELF_TEST_P_GROUP",
        "SELF_TEST_C_GROUP",
        "SCHEDULE_CONSUMER",
    }
)
_SYSTEM_PREFIXES: Final = ("CID_ONSAPI_", "CID_ONS-HTTP-PROXY", "CID_RMQ_SYS_", "rmq_sys_")


def is_system_group(group: str) -> bool:
    return group in _SYSTEM_GROUPS or group.startswith(_SYSTEM_PREFIXES)


@dataclass(slots=True, frozen=True)
class QueueProgress:
    """The progress of a group in one queue."""

    queue: MessageQueue
    #: The offset after the last message of the queue.
    broker_offset: int
    #: The first message that the group has not finished.
    consumer_offset: int
    #: The first message that no member has pulled; if the broker does not report it (RocketMQ 4), ``consumer_offset``.
    pull_offset: int
    #: When the message before that was stored, ms since 1970; 0 if unknown.
    last_store_ms: int

    @property
    def lag(self) -> int:
        """Messages that are not consumed yet."""
        return self.broker_offset - self.consumer_offset

    @property
    def in_flight(self) -> int:
        """Those of them that members have pulled but not finished."""
        return self.pull_offset - self.consumer_offset


@dataclass(slots=True, frozen=True)
class GroupInfo:
    """A group, its members, and its lag."""

    name: str
    members: int
    #: CLUSTERING or BROADCASTING; empty if the group has no active consumers.
    model: str
    lag: int


class GroupAdmin:
    """Consumer groups and their progress over all brokers: ``admin.groups``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin, clients: ClientAdmin) -> None:
        self._instance = instance
        self._brokers = brokers
        self._clients = clients

    async def names(self) -> list[str]:
        """The names of all groups on all brokers."""
        masters = await self._brokers.masters()
        tables = await asyncio.gather(*map(self.table, masters))
        return sorted({group for table in tables for group in table})

    async def table(self, broker: BrokerInfo) -> Mapping[str, SubscriptionGroupConfig]:
        """The groups of one ``broker``, with their settings there."""
        response = await self._instance.ask(broker.address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, AllGroups())
        return decode(response.body, GroupTable).subscription_group_table

    async def create(
        self, group: str, *, retry_max: int = 16, broadcast: bool = True, cluster: str | None = None
    ) -> list[BrokerInfo]:
        """Create ``group`` on each master of ``cluster``, or change it there; returns those masters.

        ``retry_max`` is how often a message is delivered again before it becomes a dead letter; ``broadcast``, whether
        members may consume in broadcasting mode. ``cluster`` may be None if there is only one. Needed only if brokers
        do not create groups automatically (autoCreateSubscriptionGroup), or for other values than these. Raises
        ``InvalidName``, ``ConfigError`` for an unknown cluster.
        """
        config = SubscriptionGroupConfig(
            group_name=check_group(group), retry_max_times=retry_max, consume_broadcast_enable=broadcast
        )
        masters = await self._brokers.masters_of(cluster)
        for master in masters:
            code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
            await self._instance.ask(master.address, code, None, encode(config))
        return masters

    async def delete(self, group: str, *, cluster: str | None = None) -> list[BrokerInfo]:
        """Delete ``group``, its settings and its offsets, on the masters of ``cluster`` that have it; returns those.

        Members that are still active create it again. Messages in its retry and dead-letter topics stay. ``cluster``
        may be None if there is only one. Raises ``GroupMissing``, ``ConfigError`` for an unknown cluster.
        """
        check_group(group)
        deleted: list[BrokerInfo] = []
        for master in await self._brokers.masters_of(cluster):
            if group in await self.table(master):
                header = DeleteGroup(group_name=group, remove_offset=True, clean_offset=True)
                await self._instance.ask(master.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)
                deleted.append(master)
        if not deleted:
            raise GroupMissing(f"group {group!r} does not exist; see `tern group list`")
        return deleted

    async def set_mode(
        self, group: str, topic: str, mode: RequestMode, *, share: int = 0, cluster: str | None = None
    ) -> list[BrokerInfo]:
        """Let ``group`` pop the messages of ``topic`` from now on, or pull them, as ``mode`` says; returns the masters
        that have the topic.

        It applies to members that let the brokers divide the queues. ``share`` is how many queues of other members each
        member pops besides its own; 0: all members pop all queues. ``cluster`` may be None if there is only one. Raises
        ``TopicMissing``, ``NoPermission`` for a retry topic, ``ConfigError`` for an unknown cluster.
        """
        body = GroupRequestMode(topic=topic, consumer_group=check_group(group), mode=mode, pop_share_queue_num=share)
        set_on: list[BrokerInfo] = []
        missing: TopicMissing | None = None
        for master in await self._brokers.masters_of(cluster):
            try:
                await self._instance.ask(master.address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode(body))
            except TopicMissing as error:
                missing = error  # other brokers may have it
            else:
                set_on.append(master)
        if missing is not None and not set_on:
            raise missing
        return set_on

    async def all(self, *, system: bool = True) -> list[GroupInfo]:
        """All groups with their members and lag; without ``system``, not those of brokers and tools."""
        return [await self.info(name) for name in await self.names() if system or not is_system_group(name)]

    async def info(self, name: str) -> GroupInfo:
        """The group ``name`` with its members and lag; both are 0 for an unknown group."""
        members = await self._clients.consumers(name)
        progress = await self._progress(name, None)
        return GroupInfo(
            name=name,
            members=len(members.members) if members else 0,
            model=members.model if members else "",
            lag=sum(queue.lag for queue in progress),
        )

    async def loads(
        self, *, count_max: int = 1_000, choose: Callable[[list[str]], list[str]] | None = None
    ) -> list[GroupLoad]:
        """How busy groups are: those that ``choose`` takes of all names, or the first ``count_max`` by name; without
        those of the system. Each is a call to each master.
        """
        names = [name for name in await self.names() if not is_system_group(name)]
        wanted = choose(names) if choose is not None else names[:count_max]
        slots = asyncio.Semaphore(ASKED_AT_ONCE)
        masters = await self._brokers.masters()

        async def load(group: str) -> GroupLoad:
            async with slots:
                members = await self._clients.consumers(group)
                answers = [
                    await self._stats(master.address, ConsumeStatsQuery(consumer_group=group)) for master in masters
                ]
            return GroupLoad(
                group,
                len(members.members) if members else 0,
                out_s=sum(answer.consume_tps for answer in answers),
                lag=sum(
                    queue.broker_offset - queue.consumer_offset
                    for answer in answers
                    for queue in answer.offset_table.values()
                ),
            )

        return list(await asyncio.gather(*map(load, wanted)))

    async def progress(self, group: str, *, topic: str | None = None) -> list[QueueProgress]:
        """The progress of ``group`` in each queue, of one ``topic`` or of all, by topic, broker and queue id.

        Empty when it has not consumed yet. Raises ``GroupMissing`` when no broker knows the group.
        """
        found = await self._progress(group, topic)
        if not found and group not in await self.names():
            raise GroupMissing(f"group {group!r} does not exist; see `tern group list`")
        return found

    async def _progress(self, group: str, topic: str | None) -> list[QueueProgress]:
        header = ConsumeStatsQuery(consumer_group=group, topic=topic or "")
        masters = await self._brokers.masters()
        answers = await asyncio.gather(*(self._stats(master.address, header) for master in masters))
        return sorted(
            (
                QueueProgress(
                    queue,
                    broker_offset=stats.broker_offset,
                    consumer_offset=stats.consumer_offset,
                    pull_offset=max(stats.pull_offset or 0, stats.consumer_offset),
                    last_store_ms=stats.last_timestamp,
                )
                for answer in answers
                for queue, stats in by_queue(answer.offset_table).items()
            ),
            key=lambda progress: progress.queue,
        )

    async def _stats(self, address: str, header: ConsumeStatsQuery) -> ConsumeStats:
        try:
            response = await self._instance.ask(address, RequestCode.GET_CONSUME_STATS, header)
        except (GroupMissing, TopicMissing):
            return ConsumeStats()  # this broker does not have the group; another may
        return decode(response.body, ConsumeStats)
