"""Metrics in Prometheus' text form, as servers give them (T4).

A server fills a ``Exposition`` on its loop, in slices; the text is made of it on a thread, one at a time, and kept for
``KEPT_S`` (``KeptText``), since that thread takes its turns with the loop. A metric has at most ``SERIES_MAX`` series;
``ternmq_metrics_left_out`` tells how many it lacks.

Needs ``pip install ternmq[http]``.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from ternmq.env import Clock
from ternmq.net.lanes import Lanes
from ternmq.net.latency import Latency
from ternmq.net.rpc_latency import RpcEnd, RpcLatencies
from ternmq.tasks import Tasks

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
#: Series of one metric: more would take the server seconds, and Prometheus its memory.
SERIES_MAX: Final = 5_000
#: Rows, and what is read for them, before clients have their turn.
SLICE_ROWS: Final = 500
#: How long a text is given to all that ask.
KEPT_S: Final = 5.0

T = TypeVar("T")


class Exposition(Collector):
    """The metrics of one request: first filled on the loop, then read on a thread."""

    _NAMES: Final = ("cluster", "node_type", "node_id")

    def __init__(self, node: tuple[str, ...]) -> None:
        """``node``: the values of the labels that all series have."""
        self._node = node
        self._families: list[GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily] = []
        self._left_out: Counter[str] = Counter()
        self._rows = 0
        #: What was read since clients had their turn; readers add what a row takes besides itself.
        self.spent = 0

    def gauge(self, name: str, what: str, labels: Sequence[str] = ()) -> None:
        self._begin(GaugeMetricFamily(name, what, labels=(*self._NAMES, *labels)))

    def counter(self, name: str, what: str, labels: Sequence[str] = ()) -> None:
        self._begin(CounterMetricFamily(name, what, labels=(*self._NAMES, *labels)))

    def histogram(self, name: str, what: str, labels: Sequence[str] = ()) -> None:
        self._begin(HistogramMetricFamily(name, what, labels=(*self._NAMES, *labels)))

    def _begin(self, family: GaugeMetricFamily | CounterMetricFamily | HistogramMetricFamily) -> None:
        self._families.append(family)
        self._rows = 0

    def row(self, labels: tuple[str, ...], value: float | Latency) -> None:
        """A series of the metric that was begun last; a ``Latency`` for a histogram, in ms."""
        family = self._families[-1]
        self._rows += 1
        if self._rows > SERIES_MAX:
            self._left_out[family.name] += 1
        elif isinstance(family, HistogramMetricFamily):
            assert isinstance(value, Latency), "a histogram is made of counts in buckets"
            family.add_metric((*self._node, *labels), value.up_to(), value.sum_s * 1000)
        else:
            assert not isinstance(value, Latency), "a gauge or counter has one value"
            family.add_metric((*self._node, *labels), value)

    def lanes(self, lanes: Lanes) -> None:
        """What every server has: requests that wait, that were refused, and how long they waited."""
        self.gauge("rocketmq_processor_watermark", "Requests that wait.", ("processor",))
        for name, lane in lanes.by_name.items():
            self.row((name,), lane.count)
        self.counter("ternmq_refused_requests", "Requests that were refused as busy.", ("processor", "reason"))
        for name, lane in lanes.by_name.items():
            self.row((name, "full"), lane.refused_full)
            self.row((name, "late"), lane.refused_late)
        self.histogram(
            "ternmq_request_wait_milliseconds", "From the arrival of a request until its turn.", ("processor",)
        )
        for name, lane in lanes.by_name.items():
            self.row((name,), lane.waits)

    def rpcs(self, latencies: RpcLatencies) -> None:
        """How long requests take, by request and response code."""
        self.histogram(
            "rocketmq_rpc_latency_milliseconds",
            "Milliseconds from the arrival of a request to its reply.",
            ("protocol_type", "request_code", "response_code", "is_long_polling", "result"),
        )
        for request, response, end, latency in latencies.rows():
            is_held, result = "true" if end is RpcEnd.HELD else "false", "oneway" if end is RpcEnd.ONEWAY else "success"
            self.row(("remoting", request, response, is_held, result), latency)

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


class KeptText:
    """The text of the last reading, for all that ask within ``KEPT_S``."""

    def __init__(self, read: Callable[[], Awaitable[Exposition]], *, clock: Clock, tasks: Tasks) -> None:
        self._read = read
        self._clock = clock
        self._tasks = tasks
        #: The last text, or the one that is being made, and when that began.
        self._made: tuple[float, asyncio.Task[bytes]] | None = None

    async def text(self) -> bytes:
        """All metrics, as they were within the last ``KEPT_S``."""
        now, made = self._clock.monotonic(), self._made
        if made is None or (made[1].done() and (now - made[0] >= KEPT_S or made[1].cancelled() or made[1].exception())):
            made = self._made = now, self._tasks.create_task(self._make(), name="metrics: make the text")
        # One who gives up ends nothing for others.
        return await asyncio.shield(made[1])

    async def _make(self) -> bytes:
        return await asyncio.to_thread((await self._read()).text)
