"""*replay*: messages of a lake into a topic, selected by time, key, tag or any SQL, with a rate limit (U4).

Body, keys, tags and the user's properties are kept; ``REPLAYED_FROM`` is the original position of a message,
``REPLAYED_ID`` its original id. All messages of one original queue go to one queue of the target, in their old order:
the queue's name is their sharding key.

Rows are written by the exactly-once sink. With a rate they are sent in *portions*, each the messages of a few seconds
and a separate write; a portion has the same share of every original queue. With a name (``replay_id``) a run that ended
early can be run again: its rows and the number of portions are recorded in the lake, and the sink knows which portions
were sent.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from pyspark import StorageLevel
from pyspark.errors import AnalysisException
from pyspark.sql import Column, DataFrame, Row, SparkSession, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)
from pyspark.sql.types import DateType, IntegerType, StructField, StructType

from ternmq.env import Env
from ternmq.errors import ConfigError, RouteMissing
from ternmq.message import MessageQueue
from ternmq.spark.lake.lake import Lake
from ternmq.spark.runtime.cluster import cluster_at
from ternmq.spark.runtime.jobs import JobProgress, JobStopped, Watch
from ternmq.spark.session import sentence_of
from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.source import columns
from ternmq.spark.source.source import NAME

#: Properties that a replayed message has in addition to its own.
REPLAYED_FROM: Final = "REPLAYED_FROM"
REPLAYED_ID: Final = "REPLAYED_ID"

#: A portion has the messages of this time. A write takes a second or two, however small it is.
PORTION_S: Final = 5

SAMPLE_ROWS: Final = 5

_QUEUE: Final = ("topic", "broker", "queue_id")


@dataclass(slots=True, frozen=True, kw_only=True)
class Selection:
    """Selects messages of a lake: all given conditions must hold."""

    topics: Sequence[str] = ()
    #: By store time: from the first to before the second.
    since_ms: int | None = None
    until_ms: int | None = None
    key: str = ""
    tag: str = ""
    #: Any condition of Spark's SQL on the columns of the lake.
    where: str = ""

    def of(self, table: DataFrame) -> DataFrame:
        """The selected rows; raises ``ConfigError`` for an invalid condition."""
        for condition in self._conditions():
            table = table.where(condition)
        if self.where:
            try:
                table = table.where(self.where)
            except AnalysisException as error:
                raise ConfigError(f"invalid condition {self.where!r}: {sentence_of(error)}") from error
        return table

    def _conditions(self) -> Iterator[Column]:
        if self.topics:
            yield F.col("topic").isin(*self.topics)
        for time_ms, name in ((self.since_ms, "__ge__"), (self.until_ms, "__lt__")):
            if time_ms is not None:
                time = F.timestamp_millis(F.lit(time_ms))
                yield getattr(F.col("store_time"), name)(time)
                # Directories without matching rows are not opened.
                day = F.date_from_unix_date(F.lit(time_ms // 86_400_000))
                yield F.col("date") >= day if name == "__ge__" else F.col("date") <= day
        if self.key:
            yield F.array_contains(F.split("keys", " "), self.key)
        if self.tag:
            yield F.col("tags") == self.tag


class _Plan(msgspec.Struct, frozen=True):
    """The content of a named replay: for each queue, the number of rows and the last offset. Kept in the lake."""

    to: str
    selection: str
    portions: int
    queues: Mapping[str, tuple[int, int]]

    @property
    def rows(self) -> int:
        return sum(rows for rows, _ in self.queues.values())


@dataclass(slots=True, frozen=True)
class Replayed:
    """The result of ``replay``: number of messages, including those sent by an earlier run of the same name."""

    rows: int
    portions: int


@dataclass(slots=True, frozen=True)
class Preview:
    """What a replay would send: number of messages by topic, date and hour, and the first few of them."""

    hours: Sequence[Row]
    sample: Sequence[Row]

    @property
    def rows(self) -> int:
        return sum(hour["rows"] for hour in self.hours)


def lake_table(spark: SparkSession, lake: Lake) -> DataFrame:
    """All messages of a lake. Unlike with plain Parquet readers, a topic name of digits stays a text."""
    lake.tidy()
    if not lake.hours():
        raise ConfigError(f"the lake {lake.path} is empty; fill it with `tern pipeline archive`")
    own = columns.spark_schema().fields
    places = [StructField("date", DateType()), StructField("hour", IntegerType())]
    return spark.read.schema(StructType([*own, *places])).parquet(str(lake.path))


def preview(spark: SparkSession, *, lake: str | Path, selection: Selection, watch: Watch | None = None) -> Preview:
    """What ``replay`` would send, without sending it."""
    chosen = selection.of(lake_table(spark, Lake.at(lake)))
    by_hour = ("topic", "date", "hour")
    counted = chosen.groupBy(*by_hour).agg(F.count("*").alias("rows")).orderBy(*by_hour)
    ordered = chosen.orderBy("store_time", *_QUEUE, "queue_offset").limit(SAMPLE_ROWS)
    first = ordered.withColumn("store_time_ms", F.unix_millis("store_time"))
    return (watch or Watch()).run("replay", spark, lambda: Preview(counted.collect(), first.collect()))


def replay(
    spark: SparkSession,
    *,
    lake: str | Path,
    to: str,
    selection: Selection | None = None,
    name_servers: str = "",
    rate: int | None = None,
    replay_id: str = "",
    watch: Watch | None = None,
    env: Env | None = None,
) -> Replayed:
    """Send the selected messages of a lake to a topic, at most ``rate`` messages per second on average.

    With a ``replay_id``, a second run sends only what is missing, and nothing twice. Raises ``ConfigError``,
    ``JobStopped`` or ``JobFailed``.
    """
    watch, selection, env = watch or Watch(), selection or Selection(), env or Env()
    at = Lake.at(lake)
    write_id = replay_id or f"replay-{env.random.getrandbits(64):016x}"
    options = {"nameServers": name_servers, "topic": to, "writeId": write_id, "reservedProperties": "drop"}
    options = {name: text for name, text in options.items() if text}
    _check_topic(SinkOptions.parse(options))
    chosen = selection.of(lake_table(spark, at))
    plan = _planned(spark, at, chosen, to, selection, rate, replay_id, watch)
    if not plan.rows:
        return Replayed(0, 0)
    rows = _as_messages(_in_portions(spark, chosen, plan))
    began_s = env.clock.monotonic()
    sent = 0
    with _kept(rows, plan.portions > 1):
        for number in range(plan.portions):
            # The first one is sent at once, the others when they are due.
            due_s = began_s + number * PORTION_S
            if watch.stopped_within(max(0.0, due_s - env.clock.monotonic()) if rate else 0):
                again = f"; run it again with --id {replay_id} to continue" if replay_id else ""
                raise JobStopped(f"replay was stopped after {number} of {plan.portions} portions{again}")
            portion = rows.where(F.col("portion") == number).drop("portion") if plan.portions > 1 else rows
            write = portion.write.format(NAME).options(**options | {"writeId": f"{write_id}.{number}"}).mode("append")
            watch.run("replay", spark, write.save)
            sent = round(plan.rows * (number + 1) / plan.portions)
            watch.tell(JobProgress(job="replay", rows=sent, done=sent, total=plan.rows))
    return Replayed(plan.rows, plan.portions)


def _check_topic(options: SinkOptions) -> None:
    try:
        cluster_at(options.client).queues([options.topic])
    except RouteMissing as error:
        raise ConfigError(
            f"there is no topic {error.topic!r} at {options.name_servers}; create it with `tern topic create "
            f"{error.topic}`"
        ) from error


def _planned(
    spark: SparkSession,
    lake: Lake,
    chosen: DataFrame,
    to: str,
    selection: Selection,
    rate: int | None,
    replay_id: str,
    watch: Watch,
) -> _Plan:
    """The plan of this run: as recorded by an earlier run of the same name, or from the current content."""
    note = lake.home / "replays" / f"{replay_id}.json"
    text = msgspec.json.encode(selection).decode()
    if replay_id and note.exists():
        known = msgspec.json.decode(note.read_bytes(), type=_Plan)
        if (known.to, known.selection) != (to, text):
            raise ConfigError(f"the replay {replay_id!r} had other messages or another topic; use another --id")
        # Messages archived since then do not belong to it.
        found = _counted(_up_to_the_last(spark, chosen, known), spark, watch)
        if found != known.queues:
            raise ConfigError(
                f"the messages of the lake have changed since the replay {replay_id!r} started; use another --id"
            )
        return known
    queues = _counted(chosen, spark, watch)
    rows = sum(count for count, _ in queues.values())
    plan = _Plan(to, text, max(1, math.ceil(rows / (rate * PORTION_S))) if rate else 1, queues)
    if replay_id:
        note.parent.mkdir(exist_ok=True)
        new = note.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(plan))
        new.rename(note)
    return plan


def _counted(chosen: DataFrame, spark: SparkSession, watch: Watch) -> dict[str, tuple[int, int]]:
    counts = chosen.groupBy(*_QUEUE).agg(F.count("*").alias("rows"), F.max("queue_offset").alias("last"))
    found = watch.run("replay", spark, counts.collect)
    return {
        str(MessageQueue(row["topic"], row["broker"], row["queue_id"])): (row["rows"], row["last"])
        for row in sorted(found)
    }


def _up_to_the_last(spark: SparkSession, chosen: DataFrame, plan: _Plan) -> DataFrame:
    """The rows of a plan, each with the number of rows of its queue."""
    schema = "replayed_queue STRING, queue_rows BIGINT, queue_last BIGINT"
    queues = spark.createDataFrame([(name, *ends) for name, ends in plan.queues.items()], schema)
    named = chosen.withColumn("replayed_queue", _queue_name())
    return named.join(F.broadcast(queues), "replayed_queue").where("queue_offset <= queue_last")


def _in_portions(spark: SparkSession, chosen: DataFrame, plan: _Plan) -> DataFrame:
    """The rows of each original queue together and in order, and the number of the portion of each."""
    rows = _up_to_the_last(spark, chosen, plan)
    if plan.portions > 1:
        rank = F.row_number().over(Window.partitionBy("replayed_queue").orderBy("queue_offset"))
        portion = F.floor((rank - 1) * plan.portions / F.col("queue_rows"))
        return rows.withColumn("portion", portion.cast("int"))
    return rows.repartition("replayed_queue").sortWithinPartitions("replayed_queue", "queue_offset")


def _as_messages(rows: DataFrame) -> DataFrame:
    origin = F.create_map(
        F.lit(REPLAYED_FROM),
        F.concat(F.col("replayed_queue"), F.lit(":"), F.col("queue_offset").cast("string")),
        F.lit(REPLAYED_ID),
        F.col("message_id"),
    )
    # The marks of an earlier replay are replaced.
    old = F.map_filter("properties", lambda name, _: ~name.isin(REPLAYED_FROM, REPLAYED_ID))
    kept = ["body", "keys", "tags", *(["portion"] if "portion" in rows.columns else [])]
    return rows.select(
        *kept, F.map_concat(old, origin).alias("properties"), F.col("replayed_queue").alias("sharding_key")
    )


def _queue_name() -> Column:
    return F.concat("topic", F.lit("@"), "broker", F.lit(":"), F.col("queue_id").cast("string"))


@contextmanager
def _kept(rows: DataFrame, is_kept: bool) -> Iterator[None]:
    """Keep the rows on the workers' disks, so that the lake is read once and not for each portion."""
    if is_kept:
        rows.persist(StorageLevel.DISK_ONLY)
    try:
        yield
    finally:
        if is_kept:
            rows.unpersist()
