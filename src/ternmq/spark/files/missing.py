"""Records in the log that no consumer gets: what a broker has lost (U3).

The log is authoritative. A consumer finds a record only through the ConsumeQueue, so a record without its entry is lost
although it exists. ``lost`` compares the records of the log with the entries of the queues of the same directory, or
with what a running broker serves; both are joins on topic, queue id, queue offset and log offset.

Not lost: prepared halves and rollbacks of transactions, which have no entry; records of deleted topics, also if the
topic was created again, with queue offsets from 0; topics in RocketMQ 5's batch queues.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - PySpark's own way
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ternmq.env import Clock, SystemClock
from ternmq.errors import ConfigError, RouteMissing, StoreError
from ternmq.message import MessageQueue
from ternmq.spark.files.options import NAME
from ternmq.spark.runtime.cluster import cluster_at
from ternmq.spark.source.options import RETRY_TIMEOUT_MS
from ternmq.store.inspect.view import StoreView
from ternmq.wire.record import Sysflag

#: Why a record is lost, in the column ``why``.
NO_ENTRY: Final = "no entry"
WRONG_ENTRY: Final = "wrong entry"
NO_QUEUE: Final = "no queue"
DELETED: Final = "deleted"
BEHIND_END: Final = "behind the end"
MISSING: Final = "missing"

_LOG_COLUMNS: Final = (
    "topic STRING, queue_id INT, queue_offset BIGINT, log_offset BIGINT, keys STRING, tags STRING, "
    "store_time TIMESTAMP, message_id STRING, sysflag INT, record_bytes INT, segment STRING"
)
_QUEUE: Final = ["topic", "queue_id"]
_PLACE: Final = [*_QUEUE, "queue_offset"]
_BOUNDS: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("first", LongType()),
        StructField("end", LongType()),
    ]
)


def lost(
    spark: SparkSession,
    store: str | Path,
    *,
    topics: Collection[str] = (),
    name_servers: str = "",
    broker: str = "",
    until_ms: int | None = None,
    clock: Clock | None = None,
) -> DataFrame:
    """The records of a store's log that its own queues do not refer to; with ``name_servers``, that ``broker`` does not
    serve. One row each, with the column ``why``.

    Damaged places of the log are skipped. Only records stored before ``until_ms`` count, by default those stored
    before now: later records are not lost. Raises ``StoreError``, ``ConfigError``, ``NetworkError``.
    """
    root = Path(store)
    until_ms = until_ms if until_ms is not None else (clock or SystemClock()).now_ms()
    reader = spark.read.format(NAME).option("onCorrupt", "skip").option("endingTimestamp", until_ms)
    if topics:
        reader = reader.option("topics", ",".join(topics))
    # If a topic was deleted on RocketMQ and created again, its queue begins at its last record with queue offset 0.
    places = reader.schema("topic STRING, queue_id INT, queue_offset BIGINT, log_offset BIGINT").load(str(root))
    begins = places.where("queue_offset = 0").groupBy(_QUEUE).agg(F.max("log_offset").alias("queue_begin"))
    records = (
        reader.schema(_LOG_COLUMNS)
        .load(str(root))
        .where(F.col("sysflag").bitwiseAND(Sysflag.PREPARED) == 0)
        .join(F.broadcast(begins), _QUEUE, "left")
        .where("queue_begin IS NULL OR log_offset >= queue_begin")
        .drop("sysflag", "queue_begin")
    )
    if _is_store(root):
        records = _of_topics(records, root)
    if name_servers:
        return _not_served(spark, records, topics, name_servers, broker)
    if not _is_store(root):
        raise StoreError(
            f"{root} has no queues to compare with; give the directory that storePathRootDir names, or name_servers"
        )
    return _not_queued(spark, records, root)


def _is_store(root: Path) -> bool:
    """Whether the directory has more than a log."""
    return (root / "config").is_dir() or (root / "consumequeue").is_dir()


def _of_topics(records: DataFrame, root: Path) -> DataFrame:
    """The records without those of topics that were deleted, or have queues of another kind."""
    view = StoreView(root, on_corrupt=_pass_over)
    topic = F.col("topic")
    known = view.known_topics()
    if known is not None:
        records = records.where(topic.isin(sorted(known | {name for name, _ in view.queues.table})))
    if view.foreign_topics:
        records = records.where(~topic.isin(sorted(view.foreign_topics)))
    for name, log_offset in view.deleted.ends.items():
        records = records.where((topic != name) | (F.col("log_offset") >= log_offset))
    return records


def _not_queued(spark: SparkSession, records: DataFrame, root: Path) -> DataFrame:
    entries = (
        spark.read.format(NAME)
        .option("part", "queues")
        .schema("topic STRING, queue_id INT, queue_offset BIGINT, log_offset BIGINT, record_bytes INT")
        .load(str(root))
        .withColumnsRenamed({"log_offset": "leads_to", "record_bytes": "leads_to_bytes"})
    )
    joined = records.join(entries, _PLACE, "left")
    why = F.when(F.col("leads_to").isNull(), NO_ENTRY).when(
        (F.col("leads_to") != F.col("log_offset")) | (F.col("leads_to_bytes") != F.col("record_bytes")), WRONG_ENTRY
    )
    return joined.withColumn("why", why).where("why IS NOT NULL").drop("leads_to", "leads_to_bytes")


def _not_served(
    spark: SparkSession, records: DataFrame, topics: Collection[str], name_servers: str, broker: str
) -> DataFrame:
    cluster = cluster_at(name_servers)
    queues: list[MessageQueue] = []
    for topic in topics or cluster.topics():
        try:
            queues += cluster.queues([topic])
        except RouteMissing:
            continue  # all its records are reported as "no queue"
    brokers = sorted({queue.broker_name for queue in queues})
    if not broker and len(brokers) > 1:
        raise ConfigError(f"the topics are on {', '.join(brokers)}; name the one that wrote the store: broker=…")
    broker = broker or next(iter(brokers), "")
    queues = [queue for queue in queues if queue.broker_name == broker]
    bounds = cluster.bounds(queues, timeout_ms=RETRY_TIMEOUT_MS)
    rows = [(queue.topic, queue.queue_id, bound.first, bound.end) for queue, bound in bounds.items()]
    if not topics:
        # Retries, dead letters and system topics are not topics of applications.
        records = records.where(F.col("topic").isin(sorted({queue.topic for queue in queues})))
    held = spark.createDataFrame(rows, _BOUNDS)
    records = records.join(F.broadcast(held), _QUEUE, "left")
    served = _served(spark, name_servers, broker, sorted({queue.topic for queue in queues}))
    if served is not None:
        records = records.join(served, [*_PLACE, "log_offset"], "left_anti")
    offset = F.col("queue_offset")
    why = (
        F.when(F.col("first").isNull(), NO_QUEUE)
        .when(offset < F.col("first"), DELETED)
        .when(offset >= F.col("end"), BEHIND_END)
        .otherwise(MISSING)
    )
    return records.withColumn("why", why).drop("first", "end")


def _served(spark: SparkSession, name_servers: str, broker: str, topics: list[str]) -> DataFrame | None:
    if not topics:
        return None
    return (
        spark.read.format("ternmq")
        .option("nameServers", name_servers)
        .option("topics", ",".join(topics))
        # Messages that the broker has lost are what is searched for, so they are not an error.
        .option("failOnDataLoss", "false")
        .schema("topic STRING, broker STRING, queue_id INT, queue_offset BIGINT, log_offset BIGINT")
        .load()
        .where(F.col("broker") == broker)
        .drop("broker")
    )


def _pass_over(_error: StoreError) -> None:
    """Queue files of a wrong size have no entries."""
