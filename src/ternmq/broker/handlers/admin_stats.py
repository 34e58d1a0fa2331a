"""Series of the last minute, hour and day, as tools ask for them by name: 315 (D5, D6).

``mqadmin statsAll`` and ``exportMetrics``, RocketMQ's dashboard and its exporter read them. A key is a topic, a topic
and a group (``topic@group``), or the cluster.
"""

from __future__ import annotations

from typing import Final

from ternmq.broker.flow import ADMIN
from ternmq.broker.tables.series import Count, Growth, Period
from ternmq.broker.tables.stats import Stats
from ternmq.errors import SystemFailure
from ternmq.net.gate import ANY_CALLER
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.stats import BrokerStats, Rate
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_admin import BrokerStatsQuery

#: By RocketMQ's name, whether a series counts bytes instead of messages.
SERIES: Final = {
    "TOPIC_PUT_NUMS": False,
    "TOPIC_PUT_SIZE": True,
    "GROUP_GET_NUMS": False,
    "GROUP_GET_SIZE": True,
    "SNDBCK_PUT_NUMS": False,
    "BROKER_PUT_NUMS": False,
    "BROKER_GET_NUMS": False,
}
_SHOWN_MAX: Final = 255


class StatsHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, stats: Stats, *, cluster_name: str) -> None:
        self._stats = stats
        self._cluster_name = cluster_name

    def routes(self) -> dict[int, Route]:
        return {RequestCode.VIEW_BROKER_STATS_DATA: Route(self.view, ADMIN, ANY_CALLER)}

    def view(self, _peer: Peer, request: Request[BrokerStatsQuery]) -> Reply:
        """One series. Raises ``SystemFailure`` if there is none, as tools expect of one that has counted nothing."""
        name, key = request.fields.stats_name, request.fields.stats_key
        if name not in SERIES:
            raise SystemFailure(f"The stats <{name[:_SHOWN_MAX]}> not exist: a TernMQ broker has {', '.join(SERIES)}")
        count = self._count(name, key)
        if count is None:
            raise SystemFailure(
                f"The stats <{name}> <{key[:_SHOWN_MAX]}> not exist: nothing was counted since the start of the broker"
            )
        minute, hour, day = (_rate(self._stats.growth(count, span), in_bytes=SERIES[name]) for span in Period)
        return Reply(body=encode(BrokerStats(stats_minute=minute, stats_hour=hour, stats_day=day)))

    def _count(self, name: str, key: str) -> Count | None:
        stats = self._stats
        if name.startswith("TOPIC_"):
            return stats.put_by_topic.get(key)
        if name.startswith("BROKER_"):
            count = stats.all_put if name == "BROKER_PUT_NUMS" else stats.all_got
            return count if key == self._cluster_name else None
        topic, _, group = key.partition("@")
        return (stats.back_by_group if name == "SNDBCK_PUT_NUMS" else stats.got_by_group).get((topic, group))


def _rate(growth: Growth, *, in_bytes: bool) -> Rate:
    total = growth.size_bytes if in_bytes else growth.messages
    return Rate(
        sum=total,
        tps=total / growth.seconds if growth.seconds > 0 else 0.0,
        avgpt=total / growth.calls if growth.calls else 0.0,
    )
