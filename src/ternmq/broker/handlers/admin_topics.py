"""Topics, as tools create, change, list and delete them: 17, 18, 21, 202, 215, 300, 305, 351 (D1, D6)."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from ternmq.broker.flow import ADMIN
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.services.catalog import Catalog, changed_attributes
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.message import MessageQueue
from ternmq.net.gate import ANY_CALLER, Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.codec import by_key, decode, encode
from ternmq.wire.bodies.groups import GroupList
from ternmq.wire.bodies.stats import QueueStats, TopicStats
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs, TopicList
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import Topic, UpdateTopic


class TopicHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        catalog: Catalog,
        topics: Topics,
        store: MessageStore,
        offsets: Offsets,
        clients: Clients,
        stats: Stats,
        broker_name: str,
    ) -> None:
        self._catalog = catalog
        self._topics = topics
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._broker_name = broker_name

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.UPDATE_AND_CREATE_TOPIC: Route(self.update, ADMIN, Rule(Action.ADMIN, topic="topic")),
            RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: Route(
                self.update_list, ADMIN, Rule(Action.ADMIN, in_body=_topics)
            ),
            RequestCode.GET_ALL_TOPIC_CONFIG: Route(self.all, ADMIN, ANY_CALLER),
            RequestCode.GET_TOPIC_CONFIG: Route(self.get, ADMIN, Rule(Action.ANY, topic="topic")),
            RequestCode.DELETE_TOPIC_IN_BROKER: Route(self.delete, ADMIN, Rule(Action.ADMIN, topic="topic")),
            RequestCode.GET_TOPIC_STATS_INFO: Route(self.topic_stats, ADMIN, Rule(Action.ANY, topic="topic")),
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: Route(self.consumed_by, ADMIN, Rule(Action.ANY, topic="topic")),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: Route(self.system, ADMIN, ANY_CALLER),
        }

    def update(self, _peer: Peer, request: Request[UpdateTopic]) -> Awaitable[Reply]:
        """Create or change a topic; answered when it is on disk and the name servers know it, so that its route can be
        asked for."""
        header = request.fields
        old = self._topics.get(header.topic)
        self._catalog.put_topic(
            TopicConfig(
                topic_name=header.topic,
                read_queue_nums=header.read_queue_nums,
                write_queue_nums=header.write_queue_nums,
                perm=header.perm,
                topic_filter_type=header.topic_filter_type,
                topic_sys_flag=header.topic_sysflag or 0,
                order=header.order,
                attributes=changed_attributes(old.attributes if old else None, header.attributes or ""),
            )
        )
        return self._when_published()

    def update_list(self, _peer: Peer, request: Request[object]) -> Awaitable[Reply]:
        """The same for many topics; a bad one refuses all from there on, as it names itself."""
        for config in decode(request.body, TopicConfigs).topic_config_list:
            self._catalog.put_topic(config)
        return self._when_published()

    def all(self, _peer: Peer, _request: Request[object]) -> Reply:
        """The whole table at once; an answer without ``totalTopicNum`` tells newer tools that there are no pages."""
        return Reply(body=encode(self._topics.copied_body()))

    def get(self, _peer: Peer, request: Request[Topic]) -> Reply:
        return Reply(body=encode(self._topics.find(request.fields.topic)))

    def delete(self, _peer: Peer, request: Request[Topic]) -> Awaitable[Reply]:
        """Forget a topic; answered when that is on disk and the name servers know it."""
        topic = request.fields.topic
        is_known = self._catalog.delete_topic(topic)
        return self._when_deleted(None if is_known else f"{self._broker_name} has no topic {topic}")

    def topic_stats(self, _peer: Peer, request: Request[Topic]) -> Reply | Awaitable[Reply]:
        """First, last and time of the last message, for each queue."""
        return with_store_times(self._store, partial(self._topic_stats, request.fields.topic))

    def _topic_stats(self, topic: str, store_time: StoreTime) -> Reply:
        config = self._topics.find(topic)
        table = {
            MessageQueue(topic, self._broker_name, queue_id): self._queue_stats(topic, queue_id, store_time)
            for queue_id in range(max(config.read_queue_nums, config.write_queue_nums))
        }
        return Reply(body=encode(TopicStats(offset_table=by_key(table), topic_put_tps=self._stats.put_rate(topic))))

    def consumed_by(self, _peer: Peer, request: Request[Topic]) -> Reply:
        """Groups that read a topic now, or have an offset on it."""
        topic = request.fields.topic
        groups = {*self._clients.consumer_groups(topic), *self._offsets.groups_of(topic)}
        return Reply(body=encode(GroupList(group_list=sorted(groups))))

    def system(self, _peer: Peer, _request: Request[object]) -> Reply:
        return Reply(body=encode(TopicList(topic_list=self._topics.system_names())))

    async def _when_published(self) -> Reply:
        await self._catalog.published()
        return Reply()

    async def _when_deleted(self, remark: str | None) -> Reply:
        await self._catalog.published(offsets_too=True)
        return Reply(remark=remark)

    def _queue_stats(self, topic: str, queue_id: int, store_time: StoreTime) -> QueueStats:
        min_offset = max(self._store.min_offset(topic, queue_id), 0)
        max_offset = max(self._store.max_offset(topic, queue_id), 0)
        last_ms = store_time(topic, queue_id, max_offset - 1) if max_offset > min_offset else 0
        return QueueStats(min_offset=min_offset, max_offset=max_offset, last_update_timestamp=max(last_ms, 0))


def _topics(body: memoryview) -> list[Resource]:
    return [Resource(ResourceKind.TOPIC, config.topic_name) for config in decode(body, TopicConfigs).topic_config_list]
