"""The results of the pipeline *trace*: plain values, for the table, the JSON and the page of plots (U4)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Percentiles:
    """Milliseconds; None if there is no data."""

    p50: int | None
    p95: int | None
    p99: int | None
    max: int | None


@dataclass(slots=True, frozen=True)
class SendReport:
    """Sends of a producer group to a topic. ``failed``: perhaps stored, but not as safely as requested."""

    topic: str
    group: str
    sent: int
    failed: int
    cost_ms: Percentiles


@dataclass(slots=True, frozen=True)
class ConsumeReport:
    """The messages of a topic in a consumer group. Counts are messages, except for ``calls``."""

    topic: str
    group: str
    messages: int
    calls: int
    lost: int
    failed: int
    duplicated: int
    slow: int
    waiting: int
    to_consume_ms: Percentiles
    consume_ms: Percentiles


@dataclass(slots=True, frozen=True)
class Finding:
    """A message that was lost, failed, duplicated or slow in a group."""

    problem: str
    topic: str
    group: str
    message_id: str
    keys: str | None
    sent_ms: int
    calls: int
    successes: int
    to_consume_ms: int | None
    consume_ms: int | None


@dataclass(slots=True, frozen=True)
class Point:
    """Messages that were sent to a topic in a step of time, and their latency in a group."""

    topic: str
    group: str
    begin_ms: int
    messages: int
    p50_ms: int | None
    p95_ms: int | None


@dataclass(slots=True, frozen=True)
class TraceReport:
    """The whole report. Times are ms since 1970, on the clients' clocks."""

    trace_topic: str
    begin_ms: int
    end_ms: int
    records: int
    #: Unreadable records, and the first of them.
    bad: int
    bad_samples: tuple[str, ...]
    #: Calls with messages whose send is not in the trace: not traced, or before its start.
    unknown_calls: int
    slow_ms: int
    grace_ms: int
    step_ms: int
    sending: tuple[SendReport, ...]
    consuming: tuple[ConsumeReport, ...]
    #: The first few of each problem, topic and group.
    findings: tuple[Finding, ...]
    points: tuple[Point, ...]


@dataclass(slots=True, frozen=True)
class HistoryStep:
    """One step in the history of a message."""

    time_ms: int | None
    #: Computed from the clocks of different clients.
    since_send_ms: int | None
    what: str
    group: str | None
    where: str | None
    cost_ms: int | None
    result: str
