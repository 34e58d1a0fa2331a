"""The progress of a job for Prometheus: ``--metrics PORT`` (U5).

Any HTTP request gets the last progress; unknown values are left out. Import this module only if metrics are requested:
prometheus-client takes a seventh of a second to load, and comes with the extra ``spark``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ternmq.cli.output import note
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from ternmq.spark.runtime.jobs import JobProgress

#: Field of a progress → kind, name, description, and the factor to Prometheus' base units.
_METRICS: Final = {
    "rows": (CounterMetricFamily, "tern_pipeline_rows_total", "Messages read by this run.", 1.0),
    "rows_per_s": (GaugeMetricFamily, "tern_pipeline_rows_per_second", "Messages per second in the last batch.", 1.0),
    "lag": (GaugeMetricFamily, "tern_pipeline_lag", "Messages not read yet.", 1.0),
    "batch": (GaugeMetricFamily, "tern_pipeline_batch", "Number of the last batch.", 1.0),
    "batch_ms": (GaugeMetricFamily, "tern_pipeline_batch_seconds", "Duration of the last batch.", 0.001),
    "done": (
        GaugeMetricFamily,
        "tern_pipeline_parts_done",
        "Finished tasks, or messages read of a stream with an end.",
        1.0,
    ),
    "total": (GaugeMetricFamily, "tern_pipeline_parts", "All tasks, or messages.", 1.0),
}


class Metrics(Collector):
    """The served values. ``take`` and ``collect`` may be called from different threads."""

    def __init__(self) -> None:
        self._progress: dict[str, JobProgress] = {}

    def take(self, progress: JobProgress) -> None:
        # A new dict instead of a change: another thread may be iterating over the old one.
        self._progress = self._progress | {progress.job: progress}

    def collect(self) -> Iterator[Metric]:
        jobs = self._progress
        for field, (family, name, what, factor) in _METRICS.items():
            values = {job: getattr(progress, field) for job, progress in jobs.items()}
            metric = family(name, what, labels=("job",))
            for job, value in values.items():
                if value is not None:
                    metric.add_metric((job,), value * factor)
            if metric.samples:
                yield metric


@contextmanager
def serving_metrics(port: int) -> Iterator[Metrics]:
    """Serve metrics on a port of all interfaces (0: a free one, which is printed) during the block."""
    metrics, registry = Metrics(), CollectorRegistry()
    registry.register(metrics)
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        raise ConfigError(f"--metrics cannot use port {port}: {error.strerror}; choose another port") from error
    with server:
        if port == 0:
            note(f"metrics on port {server.server_port}")
        try:
            yield metrics
        finally:
            server.shutdown()
            thread.join()
