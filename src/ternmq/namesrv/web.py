"""What probes and Prometheus ask of a name server: ``httpPort`` (T4).

::

    GET /healthz    the process answers
    GET /readyz     it answers requests for routes, whether brokers are registered or not
    GET /metrics    brokers, topics, connections, requests

A name server is ready at once: brokers find it by themselves, and clients wait for them. With access control the
metrics are given to this machine only: they name clusters and brokers. Import this module only if HTTP is on: it needs
the extra ``http``.
"""

from __future__ import annotations

import importlib.metadata
from collections import Counter
from http import HTTPStatus
from ipaddress import ip_address

from ternmq import kernels
from ternmq.env import Clock
from ternmq.namesrv.registry import Registry
from ternmq.net.exposition import CONTENT_TYPE, Exposition, KeptText
from ternmq.net.http import HttpAnswer, HttpRequest, plain
from ternmq.net.server import Server
from ternmq.tasks import Tasks


class NameServerWeb:
    """``answer`` is for ``net.http.HttpServer``. All methods belong to the server's loop."""

    def __init__(self, registry: Registry, server: Server, *, clock: Clock, tasks: Tasks, is_guarded: bool) -> None:
        self._registry = registry
        self._server = server
        self._is_guarded = is_guarded
        self._kept = KeptText(self._read, clock=clock, tasks=tasks)

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        match request.path:
            case ("healthz",) | ("readyz",):
                return plain(HTTPStatus.OK, "ok")
            case ("metrics",):
                if self._is_guarded and not ip_address(request.ip).is_loopback:
                    return plain(
                        HTTPStatus.FORBIDDEN,
                        "with access control, metrics of a name server are given to its own machine only; let an agent "
                        "there read them",
                    )
                return HttpAnswer(HTTPStatus.OK, await self._kept.text(), CONTENT_TYPE)
            case _:
                return plain(HTTPStatus.NOT_FOUND, "there are /healthz, /readyz and /metrics")

    async def _read(self) -> Exposition:
        registry = self._registry
        reading = Exposition(("", "namesrv", ""))
        reading.gauge("ternmq_build_info", "Version of TernMQ.", ("version", "kernels"))
        reading.row((importlib.metadata.version("ternmq"), kernels.describe()), 1)
        info = registry.cluster_info()
        brokers: Counter[tuple[str, str]] = Counter()
        for data in info.broker_addr_table.values():
            for broker_id in data.broker_addrs:
                brokers[data.cluster or "", "master" if broker_id == 0 else "slave"] += 1
        reading.gauge("ternmq_registered_brokers", "Brokers that are registered.", ("broker_cluster", "role"))
        for labels, count in sorted(brokers.items()):
            reading.row(labels, count)
        reading.gauge("ternmq_registered_broker_names", "Names of registered brokers that have a master.")
        reading.row((), sum(0 in data.broker_addrs for data in info.broker_addr_table.values()))
        reading.gauge("rocketmq_topic_number", "Topics that have a route.")
        reading.row((), len(registry.topics()))
        reading.gauge("ternmq_connections", "Open connections of brokers and clients.")
        reading.row((), len(self._server.peers))
        reading.lanes(self._server.lanes)
        reading.rpcs(self._server.latencies)
        return reading
