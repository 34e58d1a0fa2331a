"""Analysis of the trace topic: latency, and lost, duplicated and slow messages (U4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ternmq.errors import ConfigError, NotFound
from ternmq.names import TRACE_TOPIC
from ternmq.spark.pipelines.trace_report import (
    ConsumeReport,
    Finding,
    HistoryStep,
    Percentiles,
    Point,
    SendReport,
    TraceReport,
)
from ternmq.spark.pipelines.trace_rows import (
    DUPLICATED,
    FAILED,
    LOST,
    PROBLEMS,
    SLOW,
    WAITING,
    calls,
    deliveries,
    problems,
    read,
    sends,
)
from ternmq.spark.runtime.jobs import Watch
from ternmq.wire.trace import AFTER, BAD, BEFORE, END_TRANSACTION, PUB

SLOW_MS: Final = 1_000
GRACE_MS: Final = 60_000
#: How many messages of each problem in each group, and how many unreadable records, a report shows.
SAMPLES: Final = 20
#: Maximum number of points in a plot.
_POINTS: Final = 60
_STEPS_MS: Final = tuple(
    1_000 * step for step in (1, 5, 10, 30, 60, 300, 900, 3_600, 4 * 3_600, 12 * 3_600, 24 * 3_600)
)
#: Accuracy of percentiles; ten times Spark's default, and exact for this many values.
_ACCURACY: Final = 100_000


# --- The pipeline -----------------------------------------------------------------------------------------------------


def trace(
    spark: SparkSession,
    *,
    name_servers: str = "",
    trace_topic: str = TRACE_TOPIC,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    topics: Sequence[str] = (),
    by_tag: bool = False,
    slow_ms: int = SLOW_MS,
    grace_ms: int = GRACE_MS,
    watch: Watch | None = None,
) -> TraceReport:
    """Read the trace topic from ``begin_ms`` to before ``end_ms`` (store time) and return a report.

    ``topics``: only these. ``by_tag``: a group is expected to consume only the tags of a topic that it got
    at least once, which suits groups that filter by tag. Raises ``NotFound`` if there is no trace.
    """
    records = read(spark, name_servers=name_servers, trace_topic=trace_topic, begin_ms=begin_ms, end_ms=end_ms)

    def work() -> TraceReport:
        kept = records.persist()
        try:
            return report(
                kept, trace_topic=trace_topic, topics=topics, by_tag=by_tag, slow_ms=slow_ms, grace_ms=grace_ms
            )
        finally:
            kept.unpersist()

    return (watch or Watch()).run("trace", spark, work)


def path(
    spark: SparkSession,
    message_id: str,
    *,
    name_servers: str = "",
    trace_topic: str = TRACE_TOPIC,
    begin_ms: int | None = None,
    end_ms: int | None = None,
    watch: Watch | None = None,
) -> list[HistoryStep]:
    """The steps of one message, in the order of the clients' clocks. Raises ``NotFound``."""
    records = read(spark, name_servers=name_servers, trace_topic=trace_topic, begin_ms=begin_ms, end_ms=end_ms)

    def work() -> list[HistoryStep]:
        mine = records.where(F.col("message_id") == message_id).distinct().persist()
        try:
            published = [row for row in mine.where(F.col("kind") == PUB).collect() if row["time_ms"] is not None]
            sent_ms = min((row["time_ms"] for row in published), default=None)
            told = mine.where(~F.col("kind").isin(BEFORE, AFTER)).collect()
            steps = [_told(row, sent_ms) for row in told] + [_called(row, sent_ms) for row in calls(mine).collect()]
        finally:
            mine.unpersist()
        if not steps:
            raise NotFound(
                f"{trace_topic} has no trace of message {message_id!r} in this time range; its clients do not "
                "trace (see `tern message find`), or the trace has expired"
            )
        return sorted(steps, key=lambda step: (step.time_ms is None, step.time_ms or 0, step.what))

    return (watch or Watch()).run("trace", spark, work)


# --- The report -------------------------------------------------------------------------------------------------------


def report(
    records: DataFrame,
    *,
    trace_topic: str = TRACE_TOPIC,
    topics: Sequence[str] = (),
    by_tag: bool = False,
    slow_ms: int = SLOW_MS,
    grace_ms: int = GRACE_MS,
) -> TraceReport:
    """The report of some records; runs several jobs on them, so ``persist`` them first."""
    if slow_ms < 0 or grace_ms < 0:
        raise ConfigError(f"invalid slow_ms={slow_ms} or grace_ms={grace_ms}: expected 0 or more")
    (span,) = records.agg(
        F.count(F.lit(1)).alias("records"),
        F.count_if(F.col("kind") == BAD).alias("bad"),
        F.min("time_ms").alias("begin_ms"),
        F.max("time_ms").alias("end_ms"),
    ).collect()
    begin_ms, end_ms = span["begin_ms"] or 0, span["end_ms"] or 0
    step_ms = _step_ms(end_ms - begin_ms)
    sent = sends(records)
    if topics:
        sent = sent.where(F.col("topic").isin(list(topics)))
    called = calls(records)
    made = deliveries(sent, called, by_tag=by_tag, slow_ms=slow_ms, judged_until_ms=end_ms - grace_ms)
    made = made.persist()
    try:
        unknown = 0 if topics else called.join(sent, "message_id", "left_anti").count()
        return TraceReport(
            trace_topic=trace_topic,
            begin_ms=begin_ms,
            end_ms=end_ms,
            records=span["records"],
            bad=span["bad"],
            bad_samples=tuple(row["text"] for row in _bad(records)) if span["bad"] else (),
            unknown_calls=unknown,
            slow_ms=slow_ms,
            grace_ms=grace_ms,
            step_ms=step_ms,
            sending=_sending(sent),
            consuming=_consuming(made),
            findings=_findings(made),
            points=_points(made, step_ms),
        )
    finally:
        made.unpersist()


def _bad(records: DataFrame) -> list[Row]:
    return records.where(F.col("kind") == BAD).select("text").limit(SAMPLES).collect()


def _sending(sent: DataFrame) -> tuple[SendReport, ...]:
    rows = (
        sent.groupBy("topic", "group")
        .agg(
            F.count(F.lit(1)).alias("sent"),
            F.count_if(~F.col("success")).alias("failed"),
            *_percentiles("cost_ms"),
        )
        .orderBy("topic", "group")
        .collect()
    )
    return tuple(
        SendReport(row["topic"], row["group"], row["sent"], row["failed"], _ms(row, "cost_ms")) for row in rows
    )


def _consuming(made: DataFrame) -> tuple[ConsumeReport, ...]:
    rows = (
        made.groupBy("topic", "group")
        .agg(
            F.count(F.lit(1)).alias("messages"),
            F.sum("calls").alias("calls"),
            *(F.count_if(name).alias(name) for name in (*PROBLEMS, WAITING)),
            *_percentiles("to_consume_ms"),
            *_percentiles("consume_ms"),
        )
        .orderBy("topic", "group")
        .collect()
    )
    return tuple(
        ConsumeReport(
            topic=row["topic"],
            group=row["group"],
            messages=row["messages"],
            calls=row["calls"],
            lost=row[LOST],
            failed=row[FAILED],
            duplicated=row[DUPLICATED],
            slow=row[SLOW],
            waiting=row[WAITING],
            to_consume_ms=_ms(row, "to_consume_ms"),
            consume_ms=_ms(row, "consume_ms"),
        )
        for row in rows
    )


def _findings(made: DataFrame) -> tuple[Finding, ...]:
    numbered = F.expr("row_number() OVER (PARTITION BY problem, topic, `group` ORDER BY sent_ms, message_id)")
    rows = (
        problems(made)
        .withColumn("number", numbered)
        .where(F.col("number") <= SAMPLES)
        .orderBy("topic", "group", "problem", "number")
        .collect()
    )
    names = Finding.__dataclass_fields__
    return tuple(Finding(**{name: row[name] for name in names}) for row in rows)


def _points(made: DataFrame, step_ms: int) -> tuple[Point, ...]:
    rows = (
        made.withColumn("begin_ms", F.col("sent_ms") - F.pmod("sent_ms", F.lit(step_ms)))
        .groupBy("topic", "group", "begin_ms")
        .agg(F.count(F.lit(1)).alias("messages"), *_percentiles("to_consume_ms"))
        .orderBy("topic", "group", "begin_ms")
        .collect()
    )
    return tuple(
        Point(row["topic"], row["group"], row["begin_ms"], row["messages"], figures.p50, figures.p95)
        for row in rows
        for figures in (_ms(row, "to_consume_ms"),)
    )


def _percentiles(column: str) -> tuple[Column, Column]:
    marks = F.array(*map(F.lit, (0.5, 0.95, 0.99)))
    return (
        F.percentile_approx(column, marks, F.lit(_ACCURACY)).alias(f"{column}_marks"),
        F.max(column).alias(f"{column}_max"),
    )


def _ms(row: Row, column: str) -> Percentiles:
    p50, p95, p99 = row[f"{column}_marks"] or (None, None, None)
    return Percentiles(p50, p95, p99, row[f"{column}_max"])


def _step_ms(span_ms: int) -> int:
    return next((step for step in _STEPS_MS if span_ms <= step * _POINTS), _STEPS_MS[-1])


def _told(row: Row, sent_ms: int | None) -> HistoryStep:
    """The step of a single record."""
    results: dict[str, Any] = {PUB: "sent" if row["success"] else "not safe", END_TRANSACTION: row["state"]}
    return HistoryStep(
        time_ms=row["time_ms"],
        since_send_ms=_since(row["time_ms"], sent_ms),
        what={PUB: "send", END_TRANSACTION: "end of transaction"}.get(row["kind"], row["kind"].lower()),
        group=row["group"],
        where=f"{row['topic']} at {row['broker']}" if row["broker"] else row["topic"],
        cost_ms=row["cost_ms"],
        result=results.get(row["kind"]) or ("done" if row["success"] else "failed"),
    )


def _called(row: Row, sent_ms: int | None) -> HistoryStep:
    results = {True: "success", False: f"failed (code {row['code']})", None: "no end"}
    return HistoryStep(
        time_ms=row["begin_ms"],
        since_send_ms=_since(row["begin_ms"], sent_ms),
        what="consume" if not row["retries"] else f"consume, retry {row['retries']}",
        group=row["group"],
        where=row["client"],
        cost_ms=row["cost_ms"],
        result=results[row["success"]],
    )


def _since(time_ms: int | None, sent_ms: int | None) -> int | None:
    return None if time_ms is None or sent_ms is None else time_ms - sent_ms
