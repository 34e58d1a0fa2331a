"""What a broker measures, for Prometheus: ``/metrics`` on ``httpPort`` (T4, D5).

Nothing here is called while messages go in and out: counters are kept anyway (``broker.tables.stats``), and a request
reads them. Names and labels are those of RocketMQ 5 where it has the metric; others begin with ``ternmq_``.

The rows are read on the loop, in slices; the text is made of them on a thread, one at a time, and kept for
``KEPT_S``, since that thread takes its turns with the loop. A metric has at most ``SERIES_MAX`` series;
``ternmq_metrics_left_out`` tells how many it lacks. Import this module only if HTTP is on: prometheus-client comes with
the extra ``http``.
"""

from __future__ import annotations

import asyncio
import importlib.metadata
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ternmq import kernels
from ternmq.broker.config import BrokerConfig
from ternmq.broker.roles import Role, Roles
from ternmq.broker.services.sharing import Sharing
from ternmq.broker.share_metrics import read_shares
from ternmq.broker.tables.tables import Tables
from ternmq.env import Clock
from ternmq.names import is_internal_topic, is_retry_topic, is_system_topic
from ternmq.net.server import Server
from ternmq.store.store import MessageStore
from ternmq.tasks import Tasks
from ternmq.wire.bodies.stats import HaStatus

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
#: Series of one metric: more would take the broker seconds, and Prometheus its memory.
SERIES_MAX: Final = 5_000
#: Rows, and queues of them, that are read before clients have their turn.
SLICE_ROWS: Final = 500
#: How long a text is given to all that ask.
KEPT_S: Final = 5.0
_STORAGE: Final = ("local", "disk")

T = TypeVar("T")


class BrokerMetrics:
    """Reads the measures of one broker, on its loop."""

    def __init__(
        self,
        *,
        config: Callable[[], BrokerConfig],
        store: MessageStore,
        tables: Tables,
        server: Server,
        roles: Roles,
        sharing: Sharing,
        ha_status: Callable[[], HaStatus],
        clock: Clock,
        tasks: Tasks,
    ) -> None:
        self._clock = clock
        self._tasks = tasks
        #: The last text, or the one that is being made, and when that began.
        self._made: tuple[float, asyncio.Task[bytes]] | None = None
        self._config = config
        self._store = store
        self._tables = tables
        self._server = server
        self._roles = roles
        self._sharing = sharing
        self._ha_status = ha_status

    async def text(self) -> bytes:
        """All metrics, in Prometheus' form, as they were within the last ``KEPT_S``."""
        now, made = self._clock.monotonic(), self._made
        if made is None or (made[1].done() and (now - made[0] >= KEPT_S or made[1].cancelled() or made[1].exception())):
            made = self._made = now, self._tasks.create_task(self._make(), name="metrics: make the text")
        # One who gives up ends nothing for others.
        return await asyncio.shield(made[1])

    async def _make(self) -> bytes:
        config = self._config()
        reading = _Reading((config.broker_cluster_name, "broker", config.broker_name))
        await self._read(reading)
        return await asyncio.to_thread(reading.text)

    async def _read(self, reading: _Reading) -> None:
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
        reading.gauge("rocketmq_consumer_lag_messages", "Messages behind the committed offset.", group_labels)
        async for group, topic in reading.slices(sorted(self._tables.offsets.pairs())):
            offsets = self._tables.offsets.of_group(group, topic)
            reading.row(_of_group(topic, group), self._lag(topic, offsets))
            reading.spent += len(offsets)

        await self._read_clients(reading)
        self._read_server(reading)
        self._read_store(reading)
        self._read_replicas(reading)
        read_shares(reading, self._sharing, self._server.lanes)

    def _lag(self, topic: str, offsets: Mapping[int, int]) -> int:
        return sum(
            max(self._store.max_offset(topic, queue_id) - max(offset, self._store.min_offset(topic, queue_id)), 0)
            for queue_id, offset in offsets.items()
        )

    async def _read_clients(self, reading: _Reading) -> None:
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

    def _read_server(self, reading: _Reading) -> None:
        server = self._server
        reading.gauge("ternmq_connections", "Open connections of clients and other servers.")
        reading.row((), len(server.peers))
        lanes = server.lanes.by_name
        reading.gauge("rocketmq_processor_watermark", "Requests that wait.", ("processor",))
        for name, lane in lanes.items():
            reading.row((name,), lane.count)
        reading.counter("ternmq_refused_requests", "Requests that were refused as busy.", ("processor", "reason"))
        for name, lane in lanes.items():
            reading.row((name, "full"), lane.refused_full)
            reading.row((name, "late"), lane.refused_late)

    def _read_store(self, reading: _Reading) -> None:
        store = self._store
        labels = ("storage_type", "storage_medium")
        behind = store.written - store.flushed.value
        for name, what, value in (
            ("rocketmq_storage_size", "Bytes of the log.", store.written - store.min_log_offset),
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

    def _read_replicas(self, reading: _Reading) -> None:
        status = self._ha_status()
        reading.gauge("ternmq_replicas_in_sync", "Slaves that keep up with this master.")
        reading.row((), status.in_sync_slave_nums)
        reading.gauge("ternmq_replica_lag_bytes", "Bytes that a slave has not confirmed.", ("replica",))
        for each in status.ha_connection_info:
            # Below 0: not known yet.
            if each.diff >= 0:
                reading.row((each.addr,), each.diff)


class _Reading(Collector):
    """The metrics of one request: first filled on the loop, then read on a thread."""

    _NAMES: Final = ("cluster", "node_type", "node_id")

    def __init__(self, node: tuple[str, ...]) -> None:
        self._node = node
        self._families: list[GaugeMetricFamily | CounterMetricFamily] = []
        self._left_out: Counter[str] = Counter()
        #: What was read since clients had their turn; readers add what a row takes besides itself.
        self.spent = 0

    def gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> None:
        self._families.append(GaugeMetricFamily(name, what, labels=(*self._NAMES, *labels)))

    def counter(self, name: str, what: str, labels: Sequence[str] = ()) -> None:
        self._families.append(CounterMetricFamily(name, what, labels=(*self._NAMES, *labels)))

    def row(self, labels: tuple[str, ...], value: float) -> None:
        """A series of the metric that was begun last."""
        family = self._families[-1]
        if len(family.samples) < SERIES_MAX:
            family.add_metric((*self._node, *labels), value)
        else:
            self._left_out[family.name] += 1

    async def slices(self, rows: Iterable[T]) -> AsyncIterator[T]:
        for row in rows:
            yield row
            self.spent += 1
            if self.spent >= SLICE_ROWS:
                self.spent = 0
                await asyncio.sleep(0)

    def text(self) -> bytes:
        registry = CollectorRegistry()
        registry.register(self)
        ProcessCollector(registry=registry)
        return generate_latest(registry)

    def collect(self) -> Iterator[Metric]:
        yield from self._families
        left_out = GaugeMetricFamily(
            "ternmq_metrics_left_out", "Series that a metric lacks, as it has too many.", labels=("metric",)
        )
        for name, count in sorted(self._left_out.items()):
            left_out.add_metric((name,), count)
        yield left_out


def _of_group(topic: str, group: str) -> tuple[str, ...]:
    return topic, group, _flag(_is_system(topic)), _flag(is_retry_topic(topic))


def _is_system(topic: str) -> bool:
    return is_system_topic(topic) or is_internal_topic(topic)


def _flag(value: bool) -> str:
    return "true" if value else "false"
