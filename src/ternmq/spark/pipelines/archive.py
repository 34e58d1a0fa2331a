"""*archive*: topics into a Parquet lake, by topic, date and hour, each message once (U4).

A stream of the topics; each micro-batch is written beside the lake and then added by ``lake.Lake.add``, which knows
by offsets what the lake has. Spark's checkpoint only says where to continue: a repeated batch, a lost checkpoint, or
two runs at once neither duplicate nor lose a row. A run without a checkpoint begins at the first message of each queue
that the lake does not have.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import pyarrow.parquet as pq
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from ternmq.errors import ConfigError, TernError
from ternmq.message import MessageQueue
from ternmq.spark.lake.covered import Covered, OffsetSpan
from ternmq.spark.lake.files import local_path
from ternmq.spark.lake.lake import Lake, StagingDirectory
from ternmq.spark.runtime.jobs import LEFT_OUT, JobFailed, Watch, start
from ternmq.spark.session import sentence_of
from ternmq.spark.source import columns
from ternmq.spark.source.options import EARLIEST, BadMessages, OffsetsByTopic, SourceOptions, offset_table
from ternmq.spark.source.reading import TopicReading, columns_of
from ternmq.spark.source.source import NAME

JOB: Final = "archive"
ROWS_PER_BATCH: Final = 1_000_000
INTERVAL_S: Final = 10

#: In a checkpoint: the id of the lake that it belongs to.
_MARK: Final = "ternmq-lake"

_QUEUE: Final = ("topic", "broker", "queue_id")


@dataclass(slots=True, frozen=True)
class Archived:
    """The result of ``archive``."""

    #: Messages added to the lake, and messages read; those that it already had are only in the second number.
    rows: int
    rows_read: int
    #: Messages in the lake now.
    rows_in_lake: int
    #: Messages that were read and skipped, because their bodies cannot be read.
    rows_skipped: int = 0


def archive(
    spark: SparkSession,
    *,
    lake: str | Path,
    topics: Sequence[str] = (),
    topic_pattern: str = "",
    name_servers: str = "",
    checkpoint: str | Path | None = None,
    once: bool = False,
    rows_per_batch: int = ROWS_PER_BATCH,
    interval_s: int = INTERVAL_S,
    group: str = "",
    fail_on_data_loss: bool = True,
    skip_bad: bool = False,
    watch: Watch | None = None,
) -> Archived:
    """Copy the messages of topics to a lake: the present messages (``once``), or all until ``watch.stop()``.

    ``checkpoint`` is a directory that only this job uses; by default it is in the lake. A new batch begins every
    ``interval_s``, with ``rows_per_batch`` messages at most. ``skip_bad`` skips and counts messages whose bodies
    are damaged or cannot be decompressed; otherwise one of them ends the job. Raises ``ConfigError`` before anything is
    written, or ``JobFailed``; messages added before stay in the lake.
    """
    texts = {
        "nameServers": name_servers,
        "topics": ",".join(topics),
        "topicPattern": topic_pattern,
        "maxMessagesPerTrigger": str(rows_per_batch),
        "failOnDataLoss": str(fail_on_data_loss).lower(),
        "group": group,
        "badMessages": BadMessages.NULL if skip_bad else "",
    }
    given = {name: text for name, text in texts.items() if text}
    options = SourceOptions.parse(given)
    # Checked before the lake is created: for a missing topic no files are created.
    reading = TopicReading(options, columns.spark_schema(columns_of(options)))
    queues = reading.queues()
    into = Lake.at(lake, make=True)
    into.tidy()
    before = into.content()
    place = _checkpoint(checkpoint, into, before.lake_id, ",".join(options.topics) or options.topic_pattern)
    stream = spark.readStream.format(NAME).options(**given)
    table = _starts(reading, queues, before.covered)
    stream = stream.option("startingOffsets", json.dumps(table) if table else EARLIEST)
    writer = _Writer(into, spark.sparkContext.defaultParallelism)
    messages = stream.load()
    if skip_bad:
        is_bad = F.col(columns.PROBLEM).isNotNull()
        counted = messages.observe(LEFT_OUT, F.count_if(is_bad).alias(LEFT_OUT))
        messages = counted.filter(~is_bad).drop(columns.PROBLEM)
    query = messages.writeStream.foreachBatch(writer.write)
    query = query.option("checkpointLocation", str(place))
    query = query.trigger(availableNow=True) if once else query.trigger(processingTime=f"{interval_s} seconds")
    try:
        last = (watch or Watch()).follow_all({JOB: start(query)})[JOB]
    except (JobFailed, PySparkException) as error:
        if isinstance(writer.error, TernError):
            raise writer.error from None
        raise JobFailed(sentence_of(error)) from error
    finally:
        # The last batch of a stopped stream ends by itself.
        writer.idle.acquire()
    return Archived(writer.rows, last.rows or 0, into.content().rows, last.left_out or 0)


def _starts(reading: TopicReading, queues: Sequence[MessageQueue], covered: Covered) -> OffsetsByTopic:
    """Where a stream without a checkpoint begins; queues that are not in the lake begin at their first message."""
    known = [queue for queue in queues if covered.of(queue)]
    if not known:
        return {}
    bounds = reading.cluster().bounds(known, timeout_ms=reading.options.retry_timeout_ms)
    starts = {queue: covered.first_missing(queue, since=bound.first) for queue, bound in bounds.items()}
    return offset_table(starts)


def _checkpoint(given: str | Path | None, lake: Lake, lake_id: str, what: str) -> Path:
    """The directory of the checkpoint, marked as this lake's. With the checkpoint of another lake, the messages of
    that lake would be missing in this one."""
    if given is None:
        place = lake.home / "checkpoints" / hashlib.sha256(what.encode()).hexdigest()[:16]
    else:
        place = local_path(given)
    place.mkdir(parents=True, exist_ok=True)
    mark = place / _MARK
    is_used = any(path != mark for path in place.iterdir())
    if not is_used:
        mark.write_text(lake_id)
    elif not mark.exists() or mark.read_text() != lake_id:
        raise ConfigError(
            f"the checkpoint {place} does not belong to the lake {lake.path}; give another one, or none: "
            "the archive continues where the lake ends"
        )
    return place


class _Writer:
    """Driver: adds the micro-batches to the lake, in the thread in which Spark calls it."""

    def __init__(self, lake: Lake, tasks: int) -> None:
        self.rows = 0
        self.error: Exception | None = None
        #: Held while a batch is being written.
        self.idle = threading.Lock()
        self._lake = lake
        self._tasks = tasks

    def write(self, batch: DataFrame, _number: int) -> None:
        with self.idle:
            try:
                # Whole numbers, which every reader supports, instead of Spark's old format of twelve bytes. The
                # session belongs to the stream.
                batch.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
                self._take_in(batch)
            except Exception as error:
                self.error = error
                raise

    def _take_in(self, batch: DataFrame) -> None:
        added = self._try(batch, apart_from=None)
        while added is None:
            content = self._lake.content()
            added = self._try(_without(batch, content.covered), apart_from=content.version)
        self.rows += added

    def _try(self, batch: DataFrame, *, apart_from: int | None) -> int | None:
        with self._lake.stage() as stage:
            self._write_files(batch, stage)
            found, rows = _found(stage)
            if not rows:
                return 0
            return rows if self._lake.add(stage, found, rows=rows, apart_from=apart_from) else None

    def _write_files(self, batch: DataFrame, stage: StagingDirectory) -> None:
        seconds = F.unix_seconds("store_time")
        by_hour = batch.withColumns(
            {
                # UTC, independent of the session's zone.
                "date": F.date_from_unix_date(F.floor(seconds / 86_400).cast("int")),
                "hour": F.lpad(F.pmod(F.floor(seconds / 3_600), F.lit(24)).cast("string"), 2, "0"),
            }
        )
        place = ("topic", "date", "hour")
        # As many files per hour as there are cores, not as there are queues; each in the order of its queues.
        sorted_rows = by_hour.coalesce(self._tasks).sortWithinPartitions(*place, "broker", "queue_id", "queue_offset")
        sorted_rows.write.partitionBy(*place).mode("append").parquet(str(stage.path))


def _without(batch: DataFrame, covered: Covered) -> DataFrame:
    """The rows that are not covered."""
    spans = [(*queue, *span) for queue, span in covered]
    names = [f"covered_{name}" for name in (*_QUEUE, "start", "end")]
    types = ("STRING", "STRING", "INT", "BIGINT", "BIGINT")
    schema = ", ".join(f"{name} {kind}" for name, kind in zip(names, types, strict=True))
    known = F.broadcast(batch.sparkSession.createDataFrame(spans, schema))
    same = [batch[name] == known[f"covered_{name}"] for name in _QUEUE]
    inside = (batch["queue_offset"] >= known["covered_start"]) & (batch["queue_offset"] < known["covered_end"])
    return batch.join(known, [*same, inside], "left_anti")


def _found(stage: StagingDirectory) -> tuple[Mapping[MessageQueue, OffsetSpan], int]:
    """The offsets and the number of rows in the files of a stage. A batch has all offsets of a queue between its first
    and its last, except for skipped messages, so these two are enough."""
    found: dict[MessageQueue, OffsetSpan] = {}
    rows = 0
    for path in stage.files():
        topic = unquote(path.relative_to(stage.path).parts[0].removeprefix("topic="))
        table = pq.ParquetFile(path).read(columns=["broker", "queue_id", "queue_offset"])
        rows += table.num_rows
        spans = table.group_by(["broker", "queue_id"]).aggregate([("queue_offset", "min"), ("queue_offset", "max")])
        for row in spans.to_pylist():
            queue = MessageQueue(topic, row["broker"], row["queue_id"])
            start, end = row["queue_offset_min"], row["queue_offset_max"] + 1
            known = found.get(queue, (start, end))
            found[queue] = min(start, known[0]), max(end, known[1])
    return found, rows
