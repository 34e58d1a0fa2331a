"""Subscription groups, as tools create, change, list and delete them, what they read and how far they are: 200, 201,
207, 208, 225, 317, 343, 345, 352 and 353 (D2, D4, D6)."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import Final

from ternmq.broker.flow import ADMIN
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.services.catalog import Catalog
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.errors import GroupMissing, InvalidParameter
from ternmq.message import MessageQueue
from ternmq.net.gate import ANY_CALLER, Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.clients import GroupSubscription
from ternmq.wire.bodies.codec import by_key, decode, encode
from ternmq.wire.bodies.groups import GroupConfigs, GroupReadable, SubscriptionGroupConfig
from ternmq.wire.bodies.stats import BrokerConsumeStats, ConsumeStats, QueueConsumeStats
from ternmq.wire.bodies.topics import TopicList
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Fields, Reply, Request
from ternmq.wire.requests_admin import (
    BrokerConsumeStatsQuery,
    ConsumeStatsQuery,
    DeleteGroup,
    Group,
    GroupForbidden,
    TopicOfGroup,
)

#: Topics in one request for the progress of a group.
TOPICS_MAX: Final = 1_000


class GroupHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        groups: Groups,
        topics: Topics,
        store: MessageStore,
        offsets: Offsets,
        clients: Clients,
        stats: Stats,
        broker_name: str,
    ) -> None:
        self._catalog = catalog
        self._groups = groups
        self._topics = topics
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._broker_name = broker_name

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: Route(
                self.update, ADMIN, Rule(Action.ADMIN, in_body=_group)
            ),
            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: Route(
                self.update_list, ADMIN, Rule(Action.ADMIN, in_body=_groups)
            ),
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: Route(self.all, ADMIN, ANY_CALLER),
            RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: Route(self.get, ADMIN, Rule(Action.ANY, group="group")),
            RequestCode.DELETE_SUBSCRIPTIONGROUP: Route(self.delete, ADMIN, Rule(Action.ADMIN, group="groupName")),
            RequestCode.GET_CONSUME_STATS: Route(
                self.progress, ADMIN, Rule(Action.ANY, topic="topic", group="consumerGroup", in_fields=_listed)
            ),
            RequestCode.GET_BROKER_CONSUME_STATS: Route(self.progress_of_all, ADMIN, ANY_CALLER),
            RequestCode.QUERY_TOPICS_BY_CONSUMER: Route(self.topics, ADMIN, Rule(Action.ANY, group="group")),
            RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: Route(
                self.subscription, ADMIN, Rule(Action.ANY, topic="topic", group="group")
            ),
            RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: Route(
                self.forbid, ADMIN, Rule(Action.ADMIN, topic="topic", group="group")
            ),
        }

    def update(self, _peer: Peer, request: Request[object]) -> Awaitable[Reply]:
        """Create or change a group; answered when it is on disk."""
        self._catalog.put_group(decode(request.body, SubscriptionGroupConfig))
        return self._when_saved()

    def update_list(self, _peer: Peer, request: Request[object]) -> Awaitable[Reply]:
        for config in decode(request.body, GroupConfigs).group_config_list:
            self._catalog.put_group(config)
        return self._when_saved()

    def all(self, _peer: Peer, _request: Request[object]) -> Reply:
        """The whole table at once; an answer without ``totalGroupNum`` tells newer tools that there are no pages."""
        return Reply(body=encode(self._groups.body()))

    def get(self, _peer: Peer, request: Request[Group]) -> Reply:
        """One group; asking does not create it."""
        group = request.fields.group
        config = self._groups.get(group)
        if config is None:
            raise GroupMissing(f"No group in this broker. group: {group}", broker=self._broker_name)
        return Reply(body=encode(config))

    def delete(self, _peer: Peer, request: Request[DeleteGroup]) -> Awaitable[Reply]:
        """Forget a group; answered when that is on disk."""
        header = request.fields
        self._catalog.delete_group(header.group_name, offsets_too=header.offsets_too)
        return self._when_saved()

    async def _when_saved(self, reply: Reply | None = None) -> Reply:
        await self._catalog.saved()
        return reply or Reply()

    def progress(self, _peer: Peer, request: Request[ConsumeStatsQuery]) -> Reply | Awaitable[Reply]:
        """How far a group is on one topic or on all it has offsets for, less those it does not subscribe to any more.

        What it subscribed to is only known while a member is connected.
        """
        header = request.fields
        group = header.consumer_group
        if header.topic:
            topics = [header.topic]
        elif header.topic_list:
            topics = _split(header.topic_list)
        else:
            topics = self._offsets.topics_of(group)
        return with_store_times(
            self._store, lambda store_time: Reply(body=encode(self._progress_of(group, topics, store_time)))
        )

    def progress_of_all(self, _peer: Peer, request: Request[BrokerConsumeStatsQuery]) -> Reply | Awaitable[Reply]:
        """How far each group is on each topic it has offsets for, or on the ordered ones of them."""
        is_order = request.fields.is_order
        return with_store_times(self._store, lambda store_time: self._progress_of_all(store_time, is_order=is_order))

    def _progress_of_all(self, store_time: StoreTime, *, is_order: bool) -> Reply:
        found: list[dict[str, list[ConsumeStats]]] = []
        lag = 0
        for group in sorted(self._groups.all):
            topics = self._offsets.topics_of(group)
            if is_order:
                topics = [topic for topic in topics if (config := self._topics.get(topic)) is not None and config.order]
            stats = [one for topic in topics if (one := self._progress_of(group, [topic], store_time)).offset_table]
            lag += sum(
                queue.broker_offset - queue.consumer_offset for one in stats for queue in one.offset_table.values()
            )
            if stats:
                found.append({group: stats})
        return Reply(body=encode(BrokerConsumeStats(consume_stats_list=found, total_diff=lag)))

    def topics(self, _peer: Peer, request: Request[Group]) -> Reply:
        """The topics on which a group has offsets."""
        return Reply(body=encode(TopicList(topic_list=self._offsets.topics_of(request.fields.group))))

    def subscription(self, _peer: Peer, request: Request[TopicOfGroup]) -> Reply:
        """What the members of a group want of a topic; nothing when none is connected."""
        group, topic = request.fields.group, request.fields.topic
        wanted = self._clients.subscription(group, topic)
        return Reply(body=encode(GroupSubscription(group=group, topic=topic, subscription_data=wanted)))

    def forbid(self, _peer: Peer, request: Request[GroupForbidden]) -> Reply | Awaitable[Reply]:
        """Let a group read a topic or forbid it, if asked to; answers how it is."""
        header = request.fields
        if header.readable is not None:
            self._catalog.let_read(header.group, header.topic, readable=header.readable)
        readable = self._groups.may_read(header.group, header.topic)
        reply = Reply(body=encode(GroupReadable(group=header.group, topic=header.topic, readable=readable)))
        return self._when_saved(reply) if header.readable is not None else reply

    def _progress_of(self, group: str, topics: Iterable[str], store_time: StoreTime) -> ConsumeStats:
        online = self._clients.group_info(group)
        table: dict[MessageQueue, QueueConsumeStats] = {}
        rate = 0.0
        for topic in topics:
            config = self._topics.get(topic)
            if config is None or (online is not None and online.subscriptions and topic not in online.subscriptions):
                continue
            for queue_id in range(config.read_queue_nums):
                queue = MessageQueue(topic, self._broker_name, queue_id)
                table[queue] = self._queue_progress(group, topic, queue_id, store_time)
            rate += self._stats.got_rate(topic, group)
        return ConsumeStats(offset_table=by_key(table), consume_tps=rate)

    def _queue_progress(self, group: str, topic: str, queue_id: int, store_time: StoreTime) -> QueueConsumeStats:
        consumer_offset = max(self._offsets.get(group, topic, queue_id), 0)
        last_ms = store_time(topic, queue_id, consumer_offset - 1) if consumer_offset > 0 else 0
        return QueueConsumeStats(
            broker_offset=max(self._store.max_offset(topic, queue_id), 0),
            consumer_offset=consumer_offset,
            pull_offset=max(self._offsets.pull_offset(group, topic, queue_id), 0),
            last_timestamp=max(last_ms, 0),
        )


def _split(topic_list: str) -> list[str]:
    """Raises ``InvalidParameter`` for more topics than are looked at in one go."""
    topics = topic_list.split(";", TOPICS_MAX)
    if len(topics) > TOPICS_MAX:
        raise InvalidParameter(f"topicList has more than {TOPICS_MAX} topics; ask for fewer at a time")
    return list(dict.fromkeys(filter(None, topics)))


def _listed(fields: Fields) -> list[Resource]:
    return [Resource(ResourceKind.TOPIC, topic) for topic in _split(fields.get("topicList", ""))]


def _group(body: memoryview) -> list[Resource]:
    return [Resource(ResourceKind.GROUP, decode(body, SubscriptionGroupConfig).group_name)]


def _groups(body: memoryview) -> list[Resource]:
    return [Resource(ResourceKind.GROUP, config.group_name) for config in decode(body, GroupConfigs).group_config_list]
