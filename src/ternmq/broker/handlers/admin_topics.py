"""Topics, as tools create, change, list and delete them: 17, 18, 21, 202, 215, 300, 305, 351 (D1, D6)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from ternmq import names
from ternmq.broker.flow import ADMIN
from ternmq.broker.handlers.store_times import StoreTime, with_store_times
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.offsets import Offsets
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.errors import InvalidParameter
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

#: What may be said of a topic, and which values each key takes (None: any).
ATTRIBUTES: Final[dict[str, frozenset[str] | None]] = {
    "queue.type": frozenset({"SimpleCQ"}),  # BatchCQ would be queues that we cannot write
    "cleanup.policy": frozenset({"DELETE", "COMPACTION"}),
    "message.type": frozenset({"UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED"}),
    "reserve.time": None,
}

#: Waits until the name servers know the topics of this moment, or gives up soon.
Published = Callable[[], Awaitable[None]]


class TopicHandlers:
    """All methods belong to the broker's loop. ``on_delete`` is told which topic is gone."""

    def __init__(
        self,
        *,
        topics: Topics,
        store: MessageStore,
        offsets: Offsets,
        clients: Clients,
        stats: Stats,
        broker_name: str,
        published: Published,
        on_delete: Callable[[str], None],
    ) -> None:
        self._topics = topics
        self._store = store
        self._offsets = offsets
        self._clients = clients
        self._stats = stats
        self._broker_name = broker_name
        self._published = published
        self._on_delete = on_delete

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
        self._put(
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
            self._put(config)
        return self._when_published()

    def all(self, _peer: Peer, _request: Request[object]) -> Reply:
        """The whole table at once; an answer without ``totalTopicNum`` tells newer tools that there are no pages."""
        return Reply(body=encode(self._topics.body()))

    def get(self, _peer: Peer, request: Request[Topic]) -> Reply:
        return Reply(body=encode(self._topics.find(request.fields.topic)))

    def delete(self, _peer: Peer, request: Request[Topic]) -> Awaitable[Reply]:
        """Forget a topic with its queues, offsets and counters; its records stay in the log until that is cleaned."""
        topic = request.fields.topic
        is_known = self._topics.get(topic) is not None
        retries = self._pop_retry_topics(topic)
        self._delete(topic)
        for retry in retries:
            self._delete(retry)
        # A topic of the same name begins with queue offset 0: offsets of this one must not come back after a crash.
        self._offsets.save()
        return self._when_deleted(Reply() if is_known else Reply(remark=f"{self._broker_name} has no topic {topic}"))

    async def _when_deleted(self, reply: Reply) -> Reply:
        await self._topics.saved()
        await self._offsets.saved()
        await self._published()
        return reply

    def _delete(self, topic: str) -> None:
        self._topics.delete(topic)
        self._offsets.delete_topic(topic)
        self._store.delete_topics({topic})
        self._stats.forget_topic(topic)
        self._on_delete(topic)

    def _pop_retry_topics(self, topic: str) -> list[str]:
        """Where groups that pop from a topic have their retries: nobody would look there without it (F9)."""
        found = []
        for name in self._topics.names():
            if name.startswith(names.RETRY_PREFIX) and name.endswith((f"_{topic}", f"+{topic}")):
                group = name[len(names.RETRY_PREFIX) : -len(topic) - 1]
                # The same name may be that of a group «a_b», or of a topic «a_b»: whoever reads it has an offset there.
                if self._offsets.groups_of(name) == [group]:
                    found.append(name)
        return found

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

    def _put(self, config: TopicConfig) -> None:
        if self._topics.is_protected(config.topic_name):
            raise InvalidParameter(f"{config.topic_name} is a system topic and cannot be changed")
        self._topics.put(config)

    async def _when_published(self) -> Reply:
        await self._topics.saved()
        await self._published()
        return Reply()

    def _queue_stats(self, topic: str, queue_id: int, store_time: StoreTime) -> QueueStats:
        min_offset = max(self._store.min_offset(topic, queue_id), 0)
        max_offset = max(self._store.max_offset(topic, queue_id), 0)
        last_ms = store_time(topic, queue_id, max_offset - 1) if max_offset > min_offset else 0
        return QueueStats(min_offset=min_offset, max_offset=max_offset, last_update_timestamp=max(last_ms, 0))


def changed_attributes(old: dict[str, str] | None, changes: str) -> dict[str, str]:
    """A topic's attributes after ``+key=value,-key`` (RocketMQ 5); raises ``InvalidParameter`` for what it is not."""
    attributes = dict(old or {})
    for change in filter(None, (part.strip() for part in changes.split(","))):
        key, equals, value = change[1:].partition("=")
        allowed = ATTRIBUTES.get(key)
        if change[0] not in "+-" or key not in ATTRIBUTES:
            raise InvalidParameter(
                f"invalid attribute {change!r}: expected +key=value or -key, with one of the keys "
                f"{', '.join(sorted(ATTRIBUTES))}"
            )
        if change[0] == "-":
            attributes.pop(key, None)
        elif not equals or not value or (allowed is not None and value not in allowed):
            choice = ", ".join(sorted(allowed)) if allowed is not None else "a value"
            raise InvalidParameter(f"invalid attribute {change!r}: expected {choice} for {key}")
        else:
            attributes[key] = value
    return attributes


def _topics(body: memoryview) -> list[Resource]:
    return [Resource(ResourceKind.TOPIC, config.topic_name) for config in decode(body, TopicConfigs).topic_config_list]
