"""Dead letters: their reasons, topics and times; selected ones are sent again (U4, H2).

``letters`` is the table of dead letters, from the topics ``%DLQ%group`` of the given groups, one row each. ``examine``
counts them by group, original topic, tag, reason and hour. ``redrive`` sends those again that match a condition on
the same columns.

Brokers do not know *why* a message failed. Some consumers, and some frameworks, put the reason into a property of the
message before they give it up; ``why`` is the first property whose name contains exception, error, cause or
reason. For counting, its numbers are removed: "timeout after 31 ms" and "timeout after 47 ms" are one reason.

Spark selects; ``admin.dead_letters`` sends, on the driver, with all its guarantees: to the group's retry topic or to
the original topic, with the same id, none of them twice, also in a second run after an interrupted one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812

from ternmq.admin.blocking import SyncAdmin
from ternmq.admin.deadletters import DeadLetter, Resent
from ternmq.errors import ConfigError
from ternmq.message import MessageQueue, Property
from ternmq.names import DEAD_LETTER_PREFIX, dead_letter_topic
from ternmq.spark.runtime.jobs import JobStopped, Watch
from ternmq.spark.session import sentence_of
from ternmq.spark.source.options import offset_table

#: RocketMQ 5 writes it in addition to RETRY_TOPIC.
_DLQ_ORIGIN_TOPIC: Final = "DLQ_ORIGIN_TOPIC"
_WHY: Final = "(?i)exception|error|cause|reason"
#: Reasons are compared up to this length: the rest is often a stack trace.
_WHY_LENGTH: Final = 200
_BODY_LENGTH: Final = 100

#: For an empty table, when there is no topic to get the schema from.
_SCHEMA: Final = (
    "group STRING, origin_topic STRING, origin_id STRING, message_id STRING, keys STRING, tags STRING, why STRING, "
    "attempts INT, given_up TIMESTAMP, born_time TIMESTAMP, properties MAP<STRING, STRING>, body BINARY, "
    "broker STRING, queue_id INT, queue_offset BIGINT"
)
COLUMNS: Final = tuple(column.split()[0] for column in _SCHEMA.replace("<STRING, STRING>", "").split(", "))


@dataclass(slots=True, frozen=True)
class LetterGroup:
    """Similar dead letters, and one of them. Times are ms since 1970."""

    group: str
    origin_topic: str | None
    tags: str | None
    why: str | None
    count: int
    attempts_min: int
    attempts_max: int
    first_ms: int
    last_ms: int
    #: The newest.
    sample_id: str
    sample_keys: str | None
    sample_body: str


@dataclass(slots=True, frozen=True)
class LetterHour:
    """How many messages a group gave up in one hour."""

    group: str
    hour_ms: int
    count: int


@dataclass(slots=True, frozen=True)
class LetterReport:
    """Counts of dead letters."""

    total: int
    #: The largest first.
    groups: tuple[LetterGroup, ...]
    hours: tuple[LetterHour, ...]


def letters(
    spark: SparkSession,
    groups: Sequence[str] = (),
    *,
    name_servers: str = "",
    pattern: str = "",
    begin_ms: int | None = None,
    end_ms: int | None = None,
    handled: bool = False,
) -> DataFrame:
    """The dead letters of some groups, of those whose whole name matches ``pattern``, or of all.

    Those given up from ``begin_ms`` to before ``end_ms``; handled ones only with ``handled``.
    """
    if groups and pattern:
        raise ConfigError("give either groups or a pattern, not both")
    try:
        wanted = re.compile(pattern or ".*")
    except re.error as error:
        raise ConfigError(f"invalid regular expression {pattern!r}: {error}") from None
    starts: dict[MessageQueue, int] = {}
    with SyncAdmin(name_servers) as admin:
        names = groups or [one.group for one in admin.dead_letters.groups() if wanted.fullmatch(one.group)]
        for name in names:
            starts |= admin.dead_letters.marks(name)
    if not starts:
        return spark.createDataFrame([], _SCHEMA)
    reader = (
        spark.read.format("ternmq")
        .option("nameServers", name_servers)
        .option("topics", ",".join(dict.fromkeys(queue.topic for queue in starts)))
        # Letters that expired meanwhile cannot be sent again.
        .option("failOnDataLoss", "false")
        # A body that cannot be decompressed may be the reason of the failure.
        .option("badMessages", "null")
    )
    if not handled:
        reader = reader.option("startingOffsets", json.dumps(offset_table(starts)))
    found = _named(reader.load())
    for time_ms, choose in ((begin_ms, F.col("given_up").__ge__), (end_ms, F.col("given_up").__lt__)):
        if time_ms is not None:
            found = found.where(choose(F.timestamp_millis(F.lit(time_ms))))
    return found


def _named(messages: DataFrame) -> DataFrame:
    """Messages of dead-letter topics with the columns of dead letters."""
    reasons = F.map_entries(F.map_filter("properties", lambda name, _: name.rlike(_WHY)))

    def of(name: str) -> str:
        return f"properties['{name}']"

    return messages.select(
        F.substring("topic", len(DEAD_LETTER_PREFIX) + 1, 255).alias("group"),
        F.expr(f"coalesce({of(Property.RETRY_TOPIC)}, {of(_DLQ_ORIGIN_TOPIC)})").alias("origin_topic"),
        F.expr(of(Property.ORIGIN_MESSAGE_ID)).alias("origin_id"),
        "message_id",
        "keys",
        "tags",
        F.coalesce(F.get(F.sort_array(reasons), F.lit(0))["value"], F.col("problem")).alias("why"),
        F.col("reconsume_times").alias("attempts"),
        F.col("store_time").alias("given_up"),
        "born_time",
        "properties",
        "body",
        "broker",
        "queue_id",
        "queue_offset",
    )


def where(found: DataFrame, condition: str) -> DataFrame:
    """The letters that match a condition in Spark's SQL. Raises ``ConfigError``, with the existing columns."""
    if not condition:
        return found
    try:
        return found.where(condition)
    except (AnalysisException, ParseException) as error:
        raise ConfigError(
            f"invalid condition {condition!r}: {sentence_of(error)}; the columns are {', '.join(COLUMNS)}"
        ) from error


def examine(spark: SparkSession, found: DataFrame, *, watch: Watch | None = None) -> LetterReport:
    """Count dead letters by common properties, and by hour."""

    def work() -> LetterReport:
        # Equal except for the numbers in the reason; the text itself is not grouped by.
        kept = found.withColumn("why", F.regexp_replace(F.substring("why", 1, _WHY_LENGTH), "[0-9]+", "#")).persist()
        try:
            return _count(kept)
        finally:
            kept.unpersist()

    return (watch or Watch()).run("deadletters", spark, work)


def _count(found: DataFrame) -> LetterReport:
    body = F.coalesce(F.substring(F.expr("decode(body, 'UTF-8')"), 1, _BODY_LENGTH), F.lit(""))
    groups = (
        found.groupBy("group", "origin_topic", "tags", "why")
        .agg(
            F.count(F.lit(1)).alias("count"),
            F.min("attempts").alias("attempts_min"),
            F.max("attempts").alias("attempts_max"),
            F.unix_millis(F.min("given_up")).alias("first_ms"),
            F.unix_millis(F.max("given_up")).alias("last_ms"),
            F.max_by(F.struct("message_id", "keys", body.alias("body")), "given_up").alias("sample"),
        )
        .orderBy(F.desc("count"), "group", "origin_topic", "tags", "why")
        .collect()
    )
    hours = (
        found.groupBy("group", F.unix_millis(F.date_trunc("hour", "given_up")).alias("hour_ms"))
        .agg(F.count(F.lit(1)).alias("count"))
        .orderBy("group", "hour_ms")
        .collect()
    )
    return LetterReport(
        total=sum(row["count"] for row in groups),
        groups=tuple(
            LetterGroup(
                group=row["group"],
                origin_topic=row["origin_topic"],
                tags=row["tags"],
                why=row["why"],
                count=row["count"],
                attempts_min=row["attempts_min"],
                attempts_max=row["attempts_max"],
                first_ms=row["first_ms"],
                last_ms=row["last_ms"],
                sample_id=row["sample"]["message_id"],
                sample_keys=row["sample"]["keys"],
                sample_body=row["sample"]["body"],
            )
            for row in groups
        ),
        hours=tuple(LetterHour(row["group"], row["hour_ms"], row["count"]) for row in hours),
    )


def redrive(
    spark: SparkSession,
    chosen: DataFrame,
    *,
    name_servers: str = "",
    to_topic: bool = False,
    again: bool = False,
    dry_run: bool = True,
    on_resent: Callable[[Resent], None] | None = None,
    watch: Watch | None = None,
) -> list[Resent]:
    """Send these letters again (rows of ``letters``), or with ``dry_run`` only return which, and which were before.

    They go to the retry topic of their group, or with ``to_topic`` to the original topic. Handled ones are skipped, and
    so are those that were sent again before, unless ``again``. ``on_resent`` is called with each one when it is done.
    """
    watch = watch or Watch()
    rows = watch.run(
        "deadletters",
        spark,
        chosen.select("group", "broker", "queue_id", "queue_offset", F.unix_millis("given_up").alias("at_ms")).collect,
    )
    places: dict[str, dict[tuple[MessageQueue, int], int]] = {}
    for row in rows:
        queue = MessageQueue(dead_letter_topic(row["group"]), row["broker"], row["queue_id"])
        places.setdefault(row["group"], {})[queue, row["queue_offset"]] = row["at_ms"]
    done: list[Resent] = []
    with SyncAdmin(name_servers) as admin:
        for group, wanted in sorted(places.items()):
            done += admin.dead_letters.resend(
                group,
                begin=min(wanted.values()),
                end=max(wanted.values()),
                chosen=_among(wanted, watch),
                to_topic=to_topic,
                again=again,
                dry_run=dry_run,
                on_resent=on_resent,
            )
    return done


def _among(places: dict[tuple[MessageQueue, int], int], watch: Watch) -> Callable[[DeadLetter], bool]:
    def chosen(letter: DeadLetter) -> bool:
        if watch.stopped:
            # Between two pages: the letters sent so far are marked, and will not be sent again.
            raise JobStopped("deadletters was stopped before its end; run it again to continue")
        return (letter.message.queue, letter.message.queue_offset) in places

    return chosen
