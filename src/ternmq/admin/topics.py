"""Topics over all brokers of a cluster (D1, A4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from ternmq import names
from ternmq.admin.brokers import BrokerAdmin, BrokerInfo
from ternmq.admin.loads import ASKED_AT_ONCE, TopicLoad
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import CallTimeout, InvalidName, InvalidParameter, RouteMissing, refused
from ternmq.message import MessageQueue
from ternmq.wire.bodies.codec import by_queue, decode
from ternmq.wire.bodies.groups import GroupList
from ternmq.wire.bodies.routes import ORDER_TOPICS, TopicRouteBody
from ternmq.wire.bodies.stats import BrokerStats, ConsumeQueueEntries, TopicStats
from ternmq.wire.bodies.topics import TopicConfig, TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests_admin import (
    AllTopics,
    BrokerStatsQuery,
    ConsumeQueueQuery,
    DeleteTopic,
    KvKey,
    PutKv,
    RouteQuery,
    Topic,
    UpdateTopic,
)

READ_WRITE: Final = 6
#: A new topic is on the name server when its broker has registered it. Name servers do not notify, so we poll: with
#: this interval, for at most this long.
ASK_EVERY_MS: Final = 50
SEEN_WITHIN_MS: Final = 5_000


@dataclass(slots=True, frozen=True)
class TopicInfo:
    """A topic as its brokers keep it. Brokers may differ in queues and permission; these are sums and "any"."""

    name: str
    brokers: tuple[str, ...]
    read_queues: int
    write_queues: int
    perm: int
    is_order: bool
    #: Belongs to the servers, or to one group (retry, dead letters).
    is_system: bool


@dataclass(slots=True, frozen=True)
class QueueStatus:
    """The range of one queue: queue offsets from ``min_offset`` to before ``max_offset``."""

    queue: MessageQueue
    min_offset: int
    max_offset: int
    #: When the last message was stored, ms since 1970; 0 if there is none.
    last_store_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


@dataclass(slots=True, frozen=True)
class QueueEntryInfo:
    """An entry of a queue, as its broker has it on disk.

    Attributes:
        queue_offset: Its place in the queue.
        log_offset: Where the record of its message begins in the log.
        size: Bytes of the record.
        tags_code: What filters by tag see: the hash of the tag, or the address of a unit with a Bloom map.
        may_pass: Whether the filter of the group that was asked for lets it pass; False without a group.
        note: What is unusual about it, if anything.
    """

    queue_offset: int
    log_offset: int
    size: int
    tags_code: int
    may_pass: bool
    note: str = ""


@dataclass(slots=True, frozen=True)
class Traffic:
    """Messages into a topic, or out of it to one group, over all its brokers.

    Attributes:
        group: The consumer group; empty for messages into the topic.
        rate: Messages a second over the last minute.
        rate_bytes: Bytes of their bodies a second.
        last_hour: Messages of the last hour.
        last_day: Messages of the last 24 hours. A broker counts from its start on.
    """

    group: str
    rate: float
    rate_bytes: float
    last_hour: int
    last_day: int


class TopicAdmin:
    """Topics over all brokers of a cluster: ``admin.topics``."""

    def __init__(self, instance: ClientInstance, brokers: BrokerAdmin) -> None:
        self._instance = instance
        self._brokers = brokers

    async def create(
        self, topic: str, *, queues: int = 8, cluster: str | None = None, perm: int = READ_WRITE, order: bool = False
    ) -> list[BrokerInfo]:
        """Create ``topic`` on each master of ``cluster``, or change it there; returns those masters.

        It has ``queues`` queues on each of them. ``perm`` says what is allowed: 6 to read and to write, 4 only to read,
        2 only to write. ``order`` marks it as a topic whose messages must keep their order, and stores the list of its
        queues on all name servers. Those with ``orderMessageEnable`` tell it to producers, which then send no message
        of a key to another queue while a broker is down. The list stays until the topic is deleted. ``cluster`` may be
        None if there is only one. Afterwards the name server knows the route. Raises ``InvalidName``, ``ConfigError``
        for an unknown cluster.
        """
        names.check_topic(topic)
        if names.is_system_topic(topic):
            raise InvalidName(f"{topic!r} is a system topic; choose another name", name=topic)
        masters = await self._brokers.masters_of(cluster)
        header = UpdateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm, order=order)
        for master in masters:
            await self._instance.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await self._seen(topic, {master.name for master in masters})
        if order:
            listed = ";".join(f"{master.name}:{queues}" for master in masters)
            for address in await self._instance.name_servers.known():
                put = PutKv(namespace=ORDER_TOPICS, key=topic, value=listed)
                await self._instance.ask(address, RequestCode.PUT_KV_CONFIG, put)
        return masters

    async def ensure_on(self, topic: str, brokers: Iterable[str], *, queues: int) -> None:
        """Create ``topic``, with ``queues`` queues, on those masters of ``brokers`` (their names) that do not have it.

        Afterwards the name server knows the route.
        """
        route = await self._route(topic)
        missing = set(brokers) - {one.broker_name for one in (route.queue_datas if route is not None else ())}
        if not missing:
            return
        masters = [master for master in await self._brokers.masters() if master.name in missing]
        header = UpdateTopic(topic=topic, read_queue_nums=queues, write_queue_nums=queues, perm=READ_WRITE, order=False)
        for master in masters:
            await self._instance.ask(master.address, RequestCode.UPDATE_AND_CREATE_TOPIC, header)
        await self._seen(topic, (master.name for master in masters))

    async def delete(self, topic: str) -> list[BrokerInfo]:
        """Delete ``topic`` on all brokers that have it and on all name servers; returns those brokers.

        Raises ``RouteMissing`` when there is no such topic, ``InvalidName`` for a topic of the system.
        """
        route = await self.route(topic)
        if names.is_system_topic(topic):
            raise InvalidName(f"{topic!r} is a system topic and cannot be deleted", name=topic)
        holders = [
            BrokerInfo(broker.cluster, broker.broker_name, broker_id, address)
            for broker in route.broker_datas
            for broker_id, address in broker.broker_addrs.items()
        ]
        for holder in holders:
            await self._instance.ask(holder.address, RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic=topic))
        # After the brokers: one that still had the topic would register it again. Name servers are independent (A6).
        for address in await self._instance.name_servers.known():
            await self._instance.ask(address, RequestCode.DELETE_TOPIC_IN_NAMESRV, DeleteTopic(topic=topic))
            # Only if there is one: accounts that manage topics may not be allowed to change other settings.
            listed = KvKey(namespace=ORDER_TOPICS, key=topic)
            found = await self._instance.call(address, RequestCode.GET_KV_CONFIG, listed)
            if found.code == ResponseCode.SUCCESS:
                await self._instance.ask(address, RequestCode.DELETE_KV_CONFIG, listed)
        return holders

    async def all(self) -> list[TopicInfo]:
        """All topics of all clusters by name, including those of the system."""
        masters = await self._brokers.masters()
        tables = await asyncio.gather(*(self.table(master) for master in masters))
        found: dict[str, TopicInfo] = {}
        own = {master.name for master in masters} | {master.cluster for master in masters}
        own |= {names.reply_topic(master.cluster) for master in masters}
        for master, table in zip(masters, tables, strict=True):
            for name, config in table.items():
                known = found.get(name)
                found[name] = TopicInfo(
                    name=name,
                    brokers=(*(known.brokers if known else ()), master.name),
                    read_queues=config.read_queue_nums + (known.read_queues if known else 0),
                    write_queues=config.write_queue_nums + (known.write_queues if known else 0),
                    perm=config.perm | (known.perm if known else 0),
                    is_order=config.order or (known is not None and known.is_order),
                    is_system=name in own or names.is_system_topic(name) or names.is_derived_topic(name),
                )
        return sorted(found.values(), key=lambda topic: topic.name)

    async def table(self, broker: BrokerInfo) -> Mapping[str, TopicConfig]:
        """The topics of one ``broker``, with their settings there."""
        response = await self._instance.ask(broker.address, RequestCode.GET_ALL_TOPIC_CONFIG, AllTopics())
        return decode(response.body, TopicTable).topic_config_table

    async def route(self, topic: str) -> TopicRouteBody:
        """The brokers that have ``topic``, and their addresses. Raises ``RouteMissing``."""
        route = await self._route(topic)
        if route is None:
            raise RouteMissing(
                f"there is no topic {topic!r}; see `tern topic list`, or create it with `tern topic create {topic}`",
                topic=topic,
            )
        return route

    async def status(self, topic: str) -> list[QueueStatus]:
        """The offsets of each queue of ``topic``, by broker and queue id. Raises ``RouteMissing``."""
        route = await self.route(topic)
        found: list[QueueStatus] = []
        for broker in route.broker_datas:
            address = broker.broker_addrs[min(broker.broker_addrs)]  # the master, or a slave if there is no master
            for queue, stats in by_queue((await self._topic_stats(address, topic)).offset_table).items():
                found.append(QueueStatus(queue, stats.min_offset, stats.max_offset, stats.last_update_timestamp))
        return sorted(found, key=lambda status: status.queue)

    async def loads(
        self, *, count_max: int = 1_000, choose: Callable[[list[str]], list[str]] | None = None
    ) -> list[TopicLoad]:
        """How busy topics are: those that ``choose`` takes of all names, or the first ``count_max`` by name; without
        those of the system. Each is a call to each of its brokers.
        """
        topics = {topic.name: topic for topic in await self.all() if not topic.is_system}
        chosen = choose(list(topics)) if choose is not None else list(topics)[:count_max]
        wanted = [topics[name] for name in chosen]
        slots = asyncio.Semaphore(ASKED_AT_ONCE)
        addresses = {master.name: master.address for master in await self._brokers.masters()}

        async def load(topic: TopicInfo) -> TopicLoad:
            async with slots:
                answers = [await self._topic_stats(addresses[broker], topic.name) for broker in topic.brokers]
            queues = [queue for answer in answers for queue in answer.offset_table.values()]
            return TopicLoad(
                topic.name,
                topic.brokers,
                topic.write_queues,
                in_s=sum(answer.topic_put_tps or 0.0 for answer in answers),
                messages=sum(queue.max_offset - queue.min_offset for queue in queues),
            )

        return list(await asyncio.gather(*map(load, wanted)))

    async def _topic_stats(self, address: str, topic: str) -> TopicStats:
        response = await self._instance.ask(address, RequestCode.GET_TOPIC_STATS_INFO, Topic(topic=topic))
        return decode(response.body, TopicStats)

    async def entries(
        self, queue: MessageQueue, queue_offset: int, *, count_max: int = 10, group: str = ""
    ) -> list[QueueEntryInfo]:
        """Entries of a ``queue`` from ``queue_offset`` on, at most ``count_max``, and at most what the broker allows.

        They say where messages lie in the log, and what filters see before they read a message. With a ``group`` that
        has members, they say whether its filter lets them pass: for "why does this group not get this message?".
        Raises ``RouteMissing``, and ``InvalidParameter`` for a queue that the topic does not have.
        """
        route = await self.route(queue.topic)
        addresses = {broker.broker_name: broker.broker_addrs for broker in route.broker_datas}
        by_id = addresses.get(queue.broker_name)
        if not by_id:
            raise InvalidParameter(
                f"broker {queue.broker_name!r} does not have topic {queue.topic!r}; "
                f"`tern topic route {queue.topic}` lists those that have it"
            )
        header = ConsumeQueueQuery(
            topic=queue.topic,
            queue_id=queue.queue_id,
            index=queue_offset,
            count=count_max,
            consumer_group=group or None,
        )
        response = await self._instance.ask(by_id[min(by_id)], RequestCode.QUERY_CONSUME_QUEUE, header)
        return [
            QueueEntryInfo(number, entry.physic_offset, entry.physic_size, entry.tags_code, entry.eval, entry.msg or "")
            for number, entry in enumerate(decode(response.body, ConsumeQueueEntries).queue_data, queue_offset)
        ]

    async def traffic(self, topic: str) -> list[Traffic]:
        """How many messages go into ``topic``, and then how many out of it to each group. Raises ``RouteMissing``."""
        route = await self.route(topic)
        masters = [broker.broker_addrs[min(broker.broker_addrs)] for broker in route.broker_datas]
        groups: set[str] = set()
        for address in masters:
            answer = await self._instance.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, Topic(topic=topic))
            groups |= set(decode(answer.body, GroupList).group_list)
        kinds = [("", "TOPIC_PUT", topic), *((group, "GROUP_GET", f"{topic}@{group}") for group in sorted(groups))]
        return [await self._traffic(masters, group, kind, key) for group, kind, key in kinds]

    async def _traffic(self, addresses: list[str], group: str, kind: str, key: str) -> Traffic:
        counts = [await self._series(address, f"{kind}_NUMS", key) for address in addresses]
        sizes = [await self._series(address, f"{kind}_SIZE", key) for address in addresses]
        return Traffic(
            group,
            rate=sum(one.stats_minute.tps for one in counts),
            rate_bytes=sum(one.stats_minute.tps for one in sizes),
            last_hour=sum(one.stats_hour.sum for one in counts),
            last_day=sum(one.stats_day.sum for one in counts),
        )

    async def _series(self, address: str, name: str, key: str) -> BrokerStats:
        header = BrokerStatsQuery(stats_name=name, stats_key=key)
        response = await self._instance.call(address, RequestCode.VIEW_BROKER_STATS_DATA, header)
        if response.code == ResponseCode.SYSTEM_ERROR:
            return BrokerStats()  # so brokers say that a series has counted nothing yet
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, f"{address} does not tell {name} of {key}: {response.remark}")
        return decode(response.body, BrokerStats)

    async def _route(self, topic: str) -> TopicRouteBody | None:
        response = await self._instance.call_name_server(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteQuery(topic=topic))
        if response.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, f"the name server refused the route of topic {topic!r}: {response.remark}")
        return decode(response.body, TopicRouteBody)

    async def _seen(self, topic: str, brokers: Iterable[str]) -> None:
        missing = set(brokers)
        for _ in range(SEEN_WITHIN_MS // ASK_EVERY_MS):
            route = await self._route(topic)
            missing -= {broker.broker_name for broker in route.queue_datas} if route is not None else set()
            if not missing:
                return
            await asyncio.sleep(ASK_EVERY_MS / 1000)
        raise CallTimeout(
            f"topic {topic!r} was created, but {', '.join(sorted(missing))} did not register it with the name "
            f"server within {SEEN_WITHIN_MS} ms; this happens within 30 s, check with `tern topic route {topic}`"
        )
