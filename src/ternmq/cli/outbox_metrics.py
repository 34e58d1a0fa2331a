"""The counters of relays for Prometheus: ``tern outbox relay --metrics PORT`` (J3).

Import this module only if metrics are requested: prometheus-client is optional, and slow to load.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, Metric
from prometheus_client.registry import Collector

from ternmq.cli.output import note
from ternmq.errors import ConfigError
from ternmq.outbox.relay import Relay

_METRICS: Final = {
    "sent_later": ("sent", "Messages that brokers have."),
    "outages": ("outages", "Attempts that failed because no broker could be reached."),
    "refusals": ("refusals", "Attempts that a broker refused."),
    "buried": ("buried", "Messages that will not be sent again by themselves."),
    "leases_lost": ("leases_lost", "Messages that were sent after the end of their lease."),
    "database_failures": ("database_failures", "Attempts to use the database that failed."),
}


class Counted(Collector):
    """Read from another thread: each counter is one number."""

    def __init__(self, relays: Sequence[Relay]) -> None:
        self._relays = relays

    def collect(self) -> Iterator[Metric]:
        for field, (name, what) in _METRICS.items():
            metric = CounterMetricFamily(f"tern_outbox_{name}", what, labels=("database",))
            for relay in self._relays:
                metric.add_metric((relay.database.name,), getattr(relay.counters, field))
            yield metric


@contextmanager
def serving(port: int, relays: Sequence[Relay]) -> Iterator[None]:
    """Serve counters on a port of all interfaces (0: a free one, which is printed) during the block."""
    registry = CollectorRegistry()
    registry.register(Counted(relays))
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics cannot use port {port}: {error.strerror}; choose another port") from error
    with server:
        if port == 0:
            note(f"metrics on port {server.server_port}")
        try:
            yield
        finally:
            server.shutdown()
            thread.join()
