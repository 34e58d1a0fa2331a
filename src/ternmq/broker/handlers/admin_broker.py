"""The broker itself, as tools ask: its state 28, its settings 25, 26, and cleaning up 306, 316, 329 (D5, D6, C9, T2).

Tools of RocketMQ parse some of the state's values as numbers and print the rest as it is; names are theirs.
"""

from __future__ import annotations

import heapq
import importlib.metadata
import itertools
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from ternmq.broker.changes import LiveSettings
from ternmq.broker.flow import ADMIN, CLIENT, PULL, QUERY, SEND
from ternmq.broker.process_table import process_table
from ternmq.broker.tables.stats import Stats
from ternmq.broker.tables.topics import Topics
from ternmq.env import Clock
from ternmq.names import is_internal_topic
from ternmq.net.gate import ANY_CALLER, Action, Rights, Rule, may_know_group
from ternmq.net.latency import Latency
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.net.settings_text import refusals, settings_text
from ternmq.store.disk.base import DiskUsage
from ternmq.store.store import MessageStore
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.routes import KvTable
from ternmq.wire.bodies.topics import DataVersion
from ternmq.wire.codes import VERSION, RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.record import unpack_record
from ternmq.wire.requests_admin import ConfigReply

log = logging.getLogger(__name__)

#: Groups whose time is told, those that took most.
_GROUPS_SHOWN: Final = 20
#: Lanes under the names of RocketMQ's thread pools.
#: Bounds of RocketMQ's distribution of puts.
_DISTRIBUTION_MS: Final = (1, 10, 50, 100, 200, 500, 1_000, 2_000, 3_000, 4_000, 5_000, 10_000)
_POOLS: Final = ((SEND, "send"), (PULL, "pull"), (QUERY, "query"))


class BrokerHandlers:
    """All methods belong to the broker's loop. ``runtime`` is what its way of replication adds to its state."""

    def __init__(
        self,
        *,
        stats: Stats,
        store: MessageStore,
        topics: Topics,
        server: Callable[[], Server],
        settings: LiveSettings,
        store_path: Path,
        delays: Callable[[], Mapping[int, tuple[int, int]]],
        measures: Callable[[], Mapping[str, str]],
        runtime: Callable[[], dict[str, str]],
        clock: Clock,
    ) -> None:
        self._stats = stats
        self._store = store
        self._topics = topics
        self._server = server
        self._settings = settings
        self._store_path = store_path
        self._delays = delays
        #: Of shared consumption (R3).
        self._measures = measures
        self._more = runtime
        #: Where the log began at the last question, and the time of that record.
        self._earliest: tuple[int, int] | None = None
        self._clock = clock

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.GET_BROKER_RUNTIME_INFO: Route(self.runtime, ADMIN, ANY_CALLER),
            RequestCode.GET_BROKER_CONFIG: Route(self.get_config, ADMIN, ANY_CALLER),
            RequestCode.UPDATE_BROKER_CONFIG: Route(self.update_config, ADMIN, Rule(Action.ADMIN)),
            RequestCode.CLEAN_UNUSED_TOPIC: Route(self.clean_unused_topics, ADMIN, Rule(Action.ADMIN)),
            RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE: Route(self.clean_expired_queues, ADMIN, Rule(Action.ADMIN)),
            RequestCode.DELETE_EXPIRED_COMMITLOG: Route(self.delete_expired, ADMIN, Rule(Action.ADMIN)),
        }

    def runtime(self, peer: Peer, _request: Request[object]) -> Reply:
        """Counters, rates, queues of work, and how full the disk is."""
        table = self._stats.runtime() | self._lane_table(peer.access) | self._usage_table() | self._store_table()
        # How far each delay level is delivered, and where its queue ends (I1).
        table |= {f"scheduleMessageOffset_{level}": f"{at},{end}" for level, (at, end) in self._delays().items()}
        table |= self._measures()
        table |= {
            "brokerVersion": str(VERSION),
            "brokerVersionDesc": f"TernMQ_{importlib.metadata.version('ternmq')}",
            "brokerActive": "true",
            # No lock is held while a record is copied into the log: the loop is the only one that does.
            "pageCacheLockTimeMills": "0",
            **process_table(self._clock),
            **self._more(),
        }
        return Reply(body=encode(KvTable(table=table)))

    def get_config(self, _peer: Peer, _request: Request[object]) -> Reply:
        version = DataVersion(counter=self._settings.changes)
        return Reply(header=ConfigReply(version=encode(version).decode()), body=self._settings.text().encode())

    async def update_config(self, peer: Peer, request: Request[object]) -> Reply:
        """Change settings: all of the request, or none; answered when they are on disk."""
        with refusals():
            changed = await self._settings.change(settings_text(request.body))
        for name, (old, new) in changed.items():
            log.info("%s changed %s from %r to %r", peer.address, name, old, new, extra={"event": "setting changed"})
        return Reply()

    def clean_unused_topics(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Delete the queues of topics that the table does not have (any more)."""
        unused = {
            # Some topics of the broker itself are in no table.
            topic
            for topic, _ in self._store.queues()
            if topic not in self._topics.all and not is_internal_topic(topic)
        }
        if unused:
            log.info("deleted the queues of unknown topics: %s", ", ".join(sorted(unused)))
            self._store.delete_topics(unused)
        return Reply()

    def clean_expired_queues(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Delete the files of queues whose messages are all gone; begun now, finished soon."""
        self._store.retention.drop_expired_queues()
        return Reply()

    def delete_expired(self, _peer: Peer, _request: Request[object]) -> Reply:
        """Delete segments past ``fileReservedTime`` at any hour, within the next seconds and in twenty rounds."""
        self._store.retention.ask()
        return Reply()

    def _lane_table(self, access: Rights | None) -> dict[str, str]:
        lanes, now = self._server().lanes, self._clock.monotonic()
        table: dict[str, str] = {}
        for name, pool in _POOLS:
            lane = lanes[name]
            table[f"{pool}ThreadPoolQueueSize"] = str(lane.count)
            table[f"{pool}ThreadPoolQueueCapacity"] = str(lane.config.capacity)
            table[f"{pool}ThreadPoolQueueHeadWaitTimeMills"] = str(lane.head_wait_ms(now))
        puts = lanes[SEND].waits
        table["putMessageDistributeTime"] = _distribution(puts)
        table["putMessageEntireTimeMax"] = str(int(puts.max_s * 1000))
        table["getMessageEntireTimeMax"] = str(int(lanes[PULL].waits.max_s * 1000))
        # How much of the broker's time the busiest groups took, and in how many slices: pulls, and acks (R4). Every
        # account may ask, and is told of groups that it has some permission for.
        spent = dict(lanes[PULL].spent)
        for group, (seconds, slices) in lanes[CLIENT].spent.items():
            before = spent.get(group, (0.0, 0))
            spent[group] = before[0] + seconds, before[1] + slices
        busiest = heapq.nlargest(_GROUPS_SHOWN, spent.items(), key=lambda item: item[1])
        return table | {
            f"pullTimeMs_{group}": f"{seconds * 1000:.1f},{slices}"
            for group, (seconds, slices) in busiest
            if may_know_group(access, group)
        }

    def _usage_table(self) -> dict[str, str]:
        """How much of ``Limits`` is in use; RocketMQ has no such keys."""
        server = self._server()
        usage = server.usage
        queued_bytes = sum(lane.queued_bytes for lane in server.lanes.by_name.values())
        return {
            "connectionCount": str(len(server.peers)),
            "incompleteFrameBytes": str(usage.incomplete_bytes),
            "waitingReplyBytes": str(usage.waiting_bytes),
            "queuedRequestBytes": str(queued_bytes + usage.pending_bytes),
        }

    def _store_table(self) -> dict[str, str]:
        store = self._store
        disk = store.disk_usage(self._store_path)
        logs = {path: _ratio(store.disk_usage(path)) for path in store.log.directories.writable}
        return {
            "commitLogMinOffset": str(store.min_log_offset),
            "commitLogMaxOffset": str(store.written),
            "remainHowManyDataToFlush": f"{store.written - store.flushed.value} B",
            # Of a slave; a master writes queues with the log, in the same turn of the loop.
            "dispatchBehindBytes": str(store.written - store.dispatched),
            "earliestMessageTimeStamp": str(self._earliest_ms()),
            # Of several directories the emptiest counts, as new segments can go there.
            "commitLogDiskRatio": str(min(logs.values())),
            **{f"commitLogDiskRatio_{path}": str(ratio) for path, ratio in logs.items()},
            "consumeQueueDiskRatio": str(_ratio(disk)),
            "commitLogDirCapacity": f"Total : {disk.used_bytes + disk.free_bytes} B, Free : {disk.free_bytes} B.",
        }

    def _earliest_ms(self) -> int:
        """When the first record was stored; -1 without one. Read once: its page is hardly in memory."""
        at = self._store.min_log_offset
        if self._earliest is None or self._earliest[0] != at:
            record = self._store.first_record()
            if record is None:
                return -1
            self._earliest = (at, unpack_record(record, check_crc=False).store_time_ms)
        return self._earliest[1]


def _distribution(latency: Latency) -> str:
    """How long puts took, as RocketMQ writes it; here from the arrival of a request until its turn."""
    first, last = _DISTRIBUTION_MS[0], _DISTRIBUTION_MS[-1]
    texts = [
        f"[<=0ms]:{latency.between(0, first)} ",
        *(f"[{_span(low, high)}]:{latency.between(low, high)} " for low, high in itertools.pairwise(_DISTRIBUTION_MS)),
        f"[{_in_seconds(last)}~]:{latency.between(last, None)} ",
    ]
    return "".join(texts)


def _span(low_ms: int, high_ms: int) -> str:
    """``0~10ms``, ``500ms~1s``, ``1~2s``. Below 1 ms is RocketMQ's 0."""
    if high_ms < 1_000:
        return f"{low_ms if low_ms > 1 else 0}~{high_ms}ms"
    return f"{low_ms // 1000 if low_ms >= 1_000 else f'{low_ms}ms'}~{_in_seconds(high_ms)}"


def _in_seconds(span_ms: int) -> str:
    return f"{span_ms // 1000}s"


def _ratio(disk: DiskUsage) -> float:
    return disk.used_bytes / max(disk.used_bytes + disk.free_bytes, 1)
