"""What producers and consumers of a program do, as metrics (T4). Needs no other package.

::

    metrics = ClientMetrics()
    Producer("shop", hooks=[metrics.sends], …)
    PushConsumer("billing", on_message, hooks=[metrics.consumption], …)
    metrics.text()    # for Prometheus: give it out by your own web server
    metrics()         # the same as a dict, for another system

Counts are kept by topic and group. ``SERIES_MAX`` pairs are counted; what comes beyond that is counted together, with
the topic «other». Clients without these hooks count nothing.
"""

from __future__ import annotations

from collections.abc import Iterator
from threading import Lock
from typing import Final

from ternmq.client.consume.listener import ConsumeContext, ConsumeHook
from ternmq.client.send.hooks import SendContext, SendHook
from ternmq.env import Clock, SystemClock
from ternmq.net.latency import Latency

#: Pairs of topic and group, each for sends and for consumption.
SERIES_MAX: Final = 1_000
_OTHER: Final = "other"
_KINDS: Final = (
    ("send", "Attempts to send."),
    ("process", "Calls of listeners, and messages of loops and polls."),
)


class _Series:
    """One topic and group."""

    __slots__ = ("failed", "latency", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.failed = 0
        self.latency = Latency()


class ClientMetrics:
    """Counts of the clients that have its hooks. Its methods may be called in any thread.

    Attributes:
        sends: A hook for producers.
        consumption: A hook for consumers.
    """

    def __init__(self, *, clock: Clock | None = None) -> None:
        """``clock``: another one than the system's, for simulations."""
        self.now = (clock or SystemClock()).monotonic
        self._lock = Lock()
        self._series: dict[str, dict[tuple[str, str], _Series]] = {kind: {} for kind, _ in _KINDS}
        self.sends: SendHook = _Sends(self)
        self.consumption: ConsumeHook = _Consumption(self)

    def __call__(self) -> dict[str, dict[tuple[str, str], dict[str, float]]]:
        """By ``send`` and ``process``, then by topic and group: calls, messages, failed ones, and seconds."""
        with self._lock:
            return {
                kind: {
                    key: {
                        "calls": sum(one.latency.counts),
                        "messages": one.messages,
                        "failed": one.failed,
                        "seconds": one.latency.sum_s,
                        "seconds_max": one.latency.max_s,
                    }
                    for key, one in series.items()
                }
                for kind, series in self._series.items()
            }

    def text(self) -> str:
        """All metrics in Prometheus' text form."""
        with self._lock:
            return "".join(f"{line}\n" for line in self._lines())

    def note(self, kind: str, topic: str, group: str, *, messages: int, failed: int, took_s: float) -> None:
        """So many messages were sent or consumed by one call, and so many of them failed."""
        with self._lock:
            series = self._series[kind]
            key = (topic, group)
            if key not in series and len(series) >= SERIES_MAX:
                key = (_OTHER, "")
            one = series.get(key)
            if one is None:
                one = series[key] = _Series()
            one.messages += messages
            one.failed += failed
            one.latency.add(took_s)

    def _lines(self) -> Iterator[str]:
        for kind, what in _KINDS:
            series = self._series[kind]
            for name, field in (("messages", "messages"), ("failed_messages", "failed")):
                yield f"# TYPE ternmq_client_{kind}_{name}_total counter"
                for labels, one in _labelled(series):
                    yield f"ternmq_client_{kind}_{name}_total{{{labels}}} {getattr(one, field)}"
            name = f"ternmq_client_{kind}_duration_milliseconds"
            yield f"# HELP {name} {what}"
            yield f"# TYPE {name} histogram"
            for labels, one in _labelled(series):
                for bound, count in one.latency.up_to():
                    yield f'{name}_bucket{{{labels},le="{bound}"}} {count}'
                yield f"{name}_sum{{{labels}}} {one.latency.sum_s * 1000}"
                yield f"{name}_count{{{labels}}} {sum(one.latency.counts)}"


class _Sends(SendHook):
    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics

    def before_send(self, context: SendContext) -> None:
        context.notes[self] = self._metrics.now()

    def after_send(self, context: SendContext) -> None:
        began = context.notes.pop(self, None)
        if isinstance(began, float):
            count = len(context.messages)
            self._metrics.note(
                "send",
                context.messages[0].topic,
                context.group,
                messages=count,
                failed=count if context.error is not None else 0,
                took_s=self._metrics.now() - began,
            )


class _Consumption(ConsumeHook):
    def __init__(self, metrics: ClientMetrics) -> None:
        self._metrics = metrics

    def before_consume(self, context: ConsumeContext) -> None:
        context.notes[self] = self._metrics.now()

    def after_consume(self, context: ConsumeContext) -> None:
        began = context.notes.pop(self, None)
        if isinstance(began, float):
            self._metrics.note(
                "process",
                context.messages[0].topic,
                context.group,
                messages=len(context.messages),
                failed=len(context.failed),
                took_s=self._metrics.now() - began,
            )


def _labelled(series: dict[tuple[str, str], _Series]) -> Iterator[tuple[str, _Series]]:
    for (topic, group), one in sorted(series.items()):
        yield f'topic="{_escaped(topic)}",group="{_escaped(group)}"', one


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
