"""What a broker measures, for Prometheus: ``/metrics`` on ``httpPort`` (T4, D5).

Nothing here is called while messages go in and out: counters are kept anyway (``broker.tables.stats``), and a request
reads them. Names and labels are those of RocketMQ 5 where it has the metric; others begin with ``ternmq_``.

How a text is made, and how many series it may have, is in ``net.exposition``. Import this module only if HTTP is on:
prometheus-client comes with the extra ``http``.

The lag of a group in time is the age of the oldest message that it has not consumed. Where that is not in memory, the
disk has to be asked: for ``OLD_MAX`` pairs of group and topic at most, those with the most messages to consume.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from ternmq import kernels
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Role, Roles
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.sharing import Sharing
from ternmq.broker.share_metrics import read_shares
from ternmq.broker.tables.tables import Tables
from ternmq.env import Clock
from ternmq.names import is_internal_topic, is_retry_topic, is_system_topic
from ternmq.net.exposition import Exposition, KeptText
from ternmq.net.server import Server
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.stats import HaStatus

#: Records that are read from the disk for one text.
OLD_MAX: Final = 256
_STORAGE: Final = ("local", "disk")


class _Lag(NamedTuple):
    """What a group has not consumed of a topic."""

    topic: str
    group: str
    messages: int
    #: Where the oldest of them lies in the log, and when it was stored: -1 if it is not known.
    log_offset: int
    stored_ms: int


class BrokerMetrics:
    """Reads the measures of one broker, on its loop."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        store: MessageStore,
        tables: Tables,
        quotas: Quotas,
        server: Server,
        roles: Roles,
        sharing: Sharing,
        ha_status: Callable[[], HaStatus],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._clock = clock
        self._quotas = quotas
        self._kept = KeptText(self._reading, clock=clock, tasks=tasks)
        self._config = config
        self._store = store
        self._tables = tables
        self._server = server
        self._roles = roles
        self._sharing = sharing
        self._ha_status = ha_status

    async def text(self) -> bytes:
        """All metrics, in Prometheus' form, as they were some seconds ago."""
        return await self._kept.text()

    async def _reading(self) -> Exposition:
        config = self._config()
        reading = Exposition((config.broker_cluster_name, "broker", config.broker_name))
        await self._read(reading)
        return reading

    async def _read(self, reading: Exposition) -> None:
        config, stats = self._config(), self._tables.stats
        version = importlib.metadata.version("ternmq")
        reading.gauge("ternmq_build_info", "Version of TernMQ.", ("version", "kernels"))
        reading.row((version, kernels.describe()), 1)
        reading.gauge("ternmq_broker_role", "1 for the present role, 0 for others.", ("role",))
        for role in Role:
            reading.row((role.name.lower(),), int(role is self._roles.role))
        reading.gauge("rocketmq_broker_permission", "4: read, 2: write, 6: both.")
        reading.row((), config.broker_permission)
        reading.gauge("rocketmq_topic_number", "Topics in the table.")
        reading.row((), len(self._tables.topics.all))
        reading.gauge("rocketmq_consumer_group_number", "Consumer groups in the table.")
        reading.row((), len(self._tables.groups.all))

        topic_labels = ("topic", "is_system")
        puts = sorted(stats.put_by_topic)
        for name, what, field in (
            ("rocketmq_messages_in", "Messages stored.", "messages"),
            ("rocketmq_throughput_in", "Bytes of messages stored.", "size_bytes"),
        ):
            reading.counter(name, what, topic_labels)
            async for topic in reading.slices(puts):
                if (count := stats.put_by_topic.get(topic)) is not None:
                    reading.row((topic, _flag(_is_system(topic))), getattr(count, field))
        group_labels = ("topic", "consumer_group", "is_system", "is_retry")
        gets = sorted(stats.got_by_group)
        for name, what, field in (
            ("rocketmq_messages_out", "Messages given to consumers.", "messages"),
            ("rocketmq_throughput_out", "Bytes of messages given to consumers.", "size_bytes"),
        ):
            reading.counter(name, what, group_labels)
            async for topic, group in reading.slices(gets):
                if (count := stats.got_by_group.get((topic, group))) is not None:
                    reading.row(_of_group(topic, group), getattr(count, field))
        reading.counter("rocketmq_send_to_dlq_messages", "Messages that were tried too often.", group_labels)
        async for topic, group in reading.slices(sorted(stats.dead_by_group)):
            if (count := stats.dead_by_group.get((topic, group))) is not None:
                reading.row(_of_group(topic, group), count.messages)
        reading.gauge("ternmq_stats_left_out", "How often a topic or group had no room in the tables of counters.")
        reading.row((), stats.room.refused)

        await self._read_lags(reading, group_labels)
        await self._read_clients(reading)
        await self._read_quotas(reading)
        self._read_server(reading)
        self._read_store(reading)
        self._read_replicas(reading)
        read_shares(reading, self._sharing, self._server.lanes)

    async def _read_lags(self, reading: Exposition, labels: tuple[str, ...]) -> None:
        lags = []
        async for group, topic in reading.slices(sorted(self._tables.offsets.pairs())):
            offsets = self._tables.offsets.of_group(group, topic)
            lags.append(self._lag(topic, group, offsets))
            reading.spent += len(offsets)
        lags = await self._with_times(lags)
        now_ms, end = self._clock.now_ms(), self._store.dispatched
        reading.gauge("rocketmq_consumer_lag_messages", "Messages behind the committed offset.", labels)
        async for lag in reading.slices(lags):
            reading.row(_of_group(lag.topic, lag.group), lag.messages)
        reading.gauge(
            "rocketmq_consumer_lag_latency_milliseconds", "Age in ms of the oldest message not consumed.", labels
        )
        async for lag in reading.slices(lags):
            if not lag.messages or lag.stored_ms >= 0:
                age_ms = max(now_ms - lag.stored_ms, 0) if lag.messages else 0
                reading.row(_of_group(lag.topic, lag.group), age_ms)
        reading.gauge("ternmq_consumer_lag_bytes", "Bytes of the log since the oldest message not consumed.", labels)
        async for lag in reading.slices(lags):
            reading.row(_of_group(lag.topic, lag.group), max(end - lag.log_offset, 0) if lag.log_offset >= 0 else 0)

    def _lag(self, topic: str, group: str, offsets: Mapping[int, int]) -> _Lag:
        store, messages, oldest = self._store, 0, -1
        for queue_id, offset in offsets.items():
            first = max(offset, store.min_offset(topic, queue_id))
            behind = store.max_offset(topic, queue_id) - first
            if behind > 0:
                messages += behind
                place = store.log_place(topic, queue_id, first)
                # The log is in the order of time.
                oldest = place if oldest < 0 else min(oldest, place) if place >= 0 else oldest
        return _Lag(topic, group, messages, oldest, -1)

    async def _with_times(self, lags: list[_Lag]) -> list[_Lag]:
        """Lags with the times of their oldest messages."""
        store = self._store
        is_old = {lag.log_offset: lag.messages for lag in lags if lag.messages and store.cold.is_cold(lag.log_offset)}
        asked = sorted(is_old, key=is_old.__getitem__, reverse=True)[:OLD_MAX]
        times = await asyncio.wrap_future(store.cold.store_times(asked)) if asked else {}
        return [
            lag._replace(
                stored_ms=times.get(lag.log_offset, -1)
                if lag.log_offset in is_old
                else store.log_time(lag.log_offset)
                if lag.log_offset >= 0
                else -1
            )
            for lag in lags
        ]

    async def _read_quotas(self, reading: Exposition) -> None:
        labels = ("kind", "name", "unit")
        tables = (("topic", self._quotas.topics), ("group", self._quotas.groups))
        reading.gauge("ternmq_quota", "What may pass in a second.", labels)
        for kind, table in tables:
            async for name, quota in reading.slices(sorted(table.items())):
                for unit, rate in (("messages", quota.messages), ("bytes", quota.bytes)):
                    if rate is not None:
                        reading.row((kind, name, unit), rate)
        reading.counter("ternmq_quota_exceeded", "Requests that were refused or had to wait.", ("kind", "name"))
        for kind, table in tables:
            async for name, quota in reading.slices(sorted(table.items())):
                reading.row((kind, name), quota.refused)

    async def _read_clients(self, reading: Exposition) -> None:
        clients = self._tables.clients
        producers: Counter[tuple[str, str]] = Counter()
        async for group in reading.slices(clients.producer_groups()):
            producers.update((each.language, str(each.version)) for each in clients.producer_members(group))
        reading.gauge("rocketmq_producer_connections", "Producers, one for each group.", ("language", "version"))
        for labels, count in sorted(producers.items()):
            reading.row(labels, count)
        reading.gauge("rocketmq_consumer_connections", "Consumers.", ("consumer_group",))
        async for group in reading.slices(clients.consumer_groups()):
            reading.row((group,), len(clients.consumer_ids(group)))

    def _read_server(self, reading: Exposition) -> None:
        server = self._server
        reading.gauge("ternmq_connections", "Open connections of clients and other servers.")
        reading.row((), len(server.peers))
        reading.lanes(server.lanes)
        reading.rpcs(server.latencies)

    def _read_store(self, reading: Exposition) -> None:
        store = self._store
        labels = ("storage_type", "storage_medium")
        behind = store.written - store.flushed.value
        for name, what, value in (
            ("rocketmq_storage_size_bytes", "Bytes of the log.", store.written - store.min_log_offset),
            ("rocketmq_storage_flush_behind_bytes", "Bytes that are not on the disk yet.", behind),
            ("rocketmq_storage_dispatch_behind_bytes", "Bytes not in queues yet.", store.written - store.dispatched),
        ):
            reading.gauge(name, what, labels)
            reading.row(_STORAGE, value)
        disk = store.disk_usage(store.config.store_path_root_dir)
        reading.gauge("ternmq_disk_free_bytes", "Free bytes of the disk with the store.")
        reading.row((), disk.free_bytes)
        reading.gauge("ternmq_disk_used_bytes", "Used bytes of the disk with the store.")
        reading.row((), disk.used_bytes)

    def _read_replicas(self, reading: Exposition) -> None:
        status = self._ha_status()
        reading.gauge("ternmq_replicas_in_sync", "Slaves that keep up with this master.")
        reading.row((), status.in_sync_slave_nums)
        reading.gauge("ternmq_replica_lag_bytes", "Bytes that a slave has not confirmed.", ("replica",))
        for each in status.ha_connection_info:
            # Below 0: not known yet.
            if each.diff >= 0:
                reading.row((each.addr,), each.diff)


def _of_group(topic: str, group: str) -> tuple[str, ...]:
    return topic, group, _flag(_is_system(topic)), _flag(is_retry_topic(topic))


def _is_system(topic: str) -> bool:
    return is_system_topic(topic) or is_internal_topic(topic)


def _flag(value: bool) -> str:
    return "true" if value else "false"
