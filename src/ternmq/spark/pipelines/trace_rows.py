"""Trace records as rows (U4). Each step is a DataFrame:

- *records* (``read``): the records of clients (``wire.trace``), one row each;
- *sends* and *calls*: a send of a message; a call of a listener with a message, with start and end in one row. Each
  occurs once, also if a client sent its trace twice;
- *deliveries*: a message and a group that consumes its topic, with the result.

Only a ``Pub`` contains the topic, so calls are joined to it by the message id, and a group consumes a topic if it was
called with one of its messages. The problems:

- *lost*: sent successfully, but the group was never called with it. Not judged are delayed messages, uncommitted half
  messages, those sent before the first message that the group got, and those of the last ``grace_ms`` of the
  trace, which may still be in transit (*waiting*);
- *failed*: called, never successfully, and not in the last ``grace_ms``; *duplicated*: more than one successful call;
- *slow*: from send to the first call, or in one call, longer than ``slow_ms``.

The clocks of producers and consumers differ. The time from send to consume is the consumer's time minus the producer's,
and only as accurate as their clocks; the other two figures are of one clock each.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ternmq.admin.blocking import SyncAdmin
from ternmq.errors import NotFound, RouteMissing
from ternmq.names import TRACE_TOPIC
from ternmq.spark.source.options import OptionTexts, name_servers
from ternmq.wire.trace import (
    AFTER,
    BAD,
    BEFORE,
    COMMITTED,
    DELAYED,
    END_TRANSACTION,
    HALF,
    PUB,
    TraceRecord,
    parse,
)

LOST: Final = "lost"
FAILED: Final = "failed"
DUPLICATED: Final = "duplicated"
SLOW: Final = "slow"
WAITING: Final = "waiting"
PROBLEMS: Final = (LOST, FAILED, DUPLICATED, SLOW)

_SCHEMA: Final = (
    "kind STRING, time_ms BIGINT, group STRING, topic STRING, message_id STRING, request_id STRING, tags STRING, "
    "keys STRING, broker STRING, body_bytes BIGINT, cost_ms BIGINT, message_type BIGINT, offset_id STRING, "
    "success BOOLEAN, retries BIGINT, code BIGINT, state STRING, text STRING, region STRING, transaction_id STRING, "
    "from_check BOOLEAN"
)
assert [column.split()[0] for column in _SCHEMA.split(", ")] == list(TraceRecord._fields)


def read(
    spark: SparkSession,
    *,
    name_servers: str = "",
    trace_topic: str = TRACE_TOPIC,
    begin_ms: int | None = None,
    end_ms: int | None = None,
) -> DataFrame:
    """The trace records of a time, also unreadable ones (kind ``bad``). Raises ``NotFound``."""
    addresses = check_trace_topic(name_servers, trace_topic)
    reader = spark.read.format("ternmq").option("nameServers", addresses)
    # A body that cannot be decompressed counts as an unreadable record.
    reader = reader.option("badMessages", "null").schema("body BINARY, born_host STRING, problem STRING")
    if begin_ms is not None:
        reader = reader.option("startingTimestamp", str(begin_ms))
    if end_ms is not None:
        reader = reader.option("endingTimestamp", str(end_ms))
    # Spark's functions on Arrow need pandas, which this package does not use.
    records = F.udf(_parse, f"ARRAY<STRUCT<{_SCHEMA}>>", useArrow=False)
    found = reader.load(trace_topic).select(F.explode(records("body", "problem")).alias("record"), F.col("born_host"))
    return found.select("record.*", F.col("born_host").alias("client"))


def check_trace_topic(servers: str, trace_topic: str) -> str:
    """The name servers in one form; raises ``NotFound``, with the cure, if there is no trace topic."""
    addresses = name_servers(OptionTexts({"nameServers": servers} if servers else {}, known=("nameServers",)))
    try:
        with SyncAdmin(addresses) as admin:
            admin.topics.route(trace_topic)
    except RouteMissing as error:
        raise NotFound(
            f"there is no trace topic {trace_topic!r} at {addresses}; enable tracing in the Java clients (new "
            "DefaultMQProducer(group, true, null), new DefaultMQPushConsumer(group, true, null)) and set "
            "traceTopicEnable=true on the brokers"
        ) from error
    return addresses


def _parse(body: bytes | None, problem: str | None) -> list[TraceRecord]:
    """Executor."""
    return list(parse(body)) if body is not None else [TraceRecord(BAD, text=problem)]


def sends(records: DataFrame) -> DataFrame:
    """Each record of a message in the log, once: ``topic``, ``group``, ``message_id``, ``sent_ms``, …"""
    committed = (
        records.where((F.col("kind") == END_TRANSACTION) & (F.col("state") == COMMITTED))
        .select("message_id", F.lit(True).alias("is_committed"))
        .distinct()
    )
    return (
        records.where(F.col("kind") == PUB)
        .dropDuplicates(["topic", "message_id", "offset_id"])
        .join(committed, "message_id", "left")
        .select(
            "topic",
            "group",
            "message_id",
            "tags",
            "keys",
            "broker",
            "client",
            F.col("time_ms").alias("sent_ms"),
            "cost_ms",
            "success",
            (F.col("message_type") == DELAYED).alias("is_delayed"),
            # An uncommitted half message is not visible to consumers.
            ((F.col("message_type") != HALF) | F.coalesce("is_committed", F.lit(False))).alias("is_visible"),
        )
    )


def calls(records: DataFrame) -> DataFrame:
    """Each call of a listener with a message, once: ``group``, ``message_id``, ``begin_ms``, ``cost_ms``, …"""
    is_before = F.col("kind") == BEFORE
    return (
        records.where(F.col("kind").isin(BEFORE, AFTER))
        .groupBy("request_id", "message_id")
        .agg(
            F.max("group").alias("group"),
            F.max("keys").alias("keys"),
            F.min(F.when(is_before, F.col("time_ms"))).alias("before_ms"),
            F.max(F.when(~is_before, F.col("time_ms"))).alias("end_ms"),
            F.max("cost_ms").alias("cost_ms"),
            F.max("success").alias("success"),
            F.max("retries").alias("retries"),
            F.max("code").alias("code"),
            F.max("client").alias("client"),
        )
        # The start may be missing: clients drop traces when they have too many.
        .withColumn("begin_ms", F.coalesce("before_ms", F.col("end_ms") - F.col("cost_ms")))
        .drop("before_ms")
    )


def deliveries(sent: DataFrame, called: DataFrame, *, by_tag: bool, slow_ms: int, judged_until_ms: int) -> DataFrame:
    """Each message with each group that consumes its topic: calls, successes, times, and a flag for each problem."""
    message = sent.groupBy("topic", "message_id").agg(
        F.min("sent_ms").alias("sent_ms"),
        F.max("keys").alias("keys"),
        F.coalesce(F.max("tags"), F.lit("")).alias("tags"),
        F.max("is_delayed").alias("is_delayed"),
        F.max("success").alias("success"),
        F.max("is_visible").alias("is_visible"),
    )
    tried = called.groupBy("message_id", "group").agg(
        F.count(F.lit(1)).alias("calls"),
        F.count_if(F.col("success")).alias("successes"),
        F.min("begin_ms").alias("first_ms"),
        F.max("begin_ms").alias("last_ms"),
        F.max("cost_ms").alias("consume_ms"),
    )
    known = ["topic", "tags"] if by_tag else ["topic"]
    # A group is expected to get all messages after its first one.
    groups = message.join(tried, "message_id").groupBy(*known, "group").agg(F.min("sent_ms").alias("since_ms"))
    count = F.coalesce("calls", F.lit(0))
    successes = F.coalesce("successes", F.lit(0))
    is_called = count > 0
    to_consume = F.col("first_ms") - F.col("sent_ms")
    is_expected = F.col("success") & F.col("is_visible") & (F.col("sent_ms") >= F.col("since_ms"))
    may_come = F.col("is_delayed") | (F.col("sent_ms") > judged_until_ms)
    has_failed = is_called & (successes == 0)
    # The last call may still be running, or its end may be in transit.
    may_succeed = F.coalesce(F.col("last_ms") > judged_until_ms, F.lit(False))
    return (
        message.join(groups, known)
        .join(tried, ["message_id", "group"], "left")
        .where(is_called | is_expected)
        .select(
            "topic",
            "group",
            "message_id",
            "keys",
            "tags",
            "sent_ms",
            count.alias("calls"),
            successes.alias("successes"),
            to_consume.alias("to_consume_ms"),
            "consume_ms",
            (~is_called & ~may_come).alias(LOST),
            (has_failed & ~may_succeed).alias(FAILED),
            (successes > 1).alias(DUPLICATED),
            F.coalesce((to_consume > slow_ms) | (F.col("consume_ms") > slow_ms), F.lit(False)).alias(SLOW),
            ((~is_called & may_come) | (has_failed & may_succeed)).alias(WAITING),
        )
    )


def problems(made: DataFrame) -> DataFrame:
    """Deliveries with a problem, one row for each problem: the full table; the report has only some."""
    named = F.array(*(F.when(F.col(name), F.lit(name)) for name in PROBLEMS))
    return made.select(F.explode(F.array_compact(named)).alias("problem"), "*").drop(*PROBLEMS, WAITING)
