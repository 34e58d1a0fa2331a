"""*archive*: topics into a Parquet lake, by topic, date and hour, each message once (U4).

A stream of the topics; each micro-batch is written beside the lake and then taken in by ``lake.Lake.add``, which
knows by offsets what is there. Spark's checkpoint only tells where to go on: a batch that comes again, a checkpoint
that was lost, two runs at once, none of them makes a row double or lets one be forgotten. A run without a checkpoint
begins at the first message of each queue that the lake does not have.
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
from ternmq.spark.lake.covered import Covered, Span
from ternmq.spark.lake.files import local_path
from ternmq.spark.lake.lake import Lake, Stage
from ternmq.spark.runtime.jobs import LEFT_OUT, JobFailed, Watch, start
from ternmq.spark.session import sentence_of
from ternmq.spark.source import columns
from ternmq.spark.source.options import EARLIEST, BadMessages, OffsetTable, SourceOptions, offset_table
from ternmq.spark.source.reading import Reading, columns_of
from ternmq.spark.source.source import NAME

JOB: Final = "archive"
ROWS_PER_BATCH: Final = 1_000_000
INTERVAL_S: Final = 10

#: In a checkpoint: the id of the lake that it belongs to.
_MARK: Final = "ternmq-lake"

_QUEUE: Final = ("topic", "broker", "queue_id")


@dataclass(slots=True, frozen=True)
class Archived:
    """What a run of ``archive`` did."""

    #: Messages that came into the lake, and messages that were read; those that it had before are in the second only.
    rows: int
    rows_read: int
    #: Messages in the lake now.
    rows_in_lake: int
    #: Messages that were read and left out, as their bodies cannot be had.
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
    """Copy the messages of topics into a lake: what is there now (``once``), or on and on until ``watch.stop()``.

    ``checkpoint`` is a directory that only this job uses; by default it lies in the lake. A new batch begins every
    ``interval_s``, with ``rows_per_batch`` messages at most. ``skip_bad`` leaves out, and counts, messages whose bodies
    are damaged or do not decompress; otherwise one of them ends the job. Raises ``ConfigError`` before anything is
    written, or ``JobFailed``; what was taken in before stays.
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
    # Asked before the lake is made: a topic that is not there leaves nothing behind.
    reading = Reading(options, columns.spark_schema(columns_of(options)))
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
        # A stream that was stopped leaves its last batch to end by itself.
        writer.idle.acquire()
    return Archived(writer.rows, last.rows or 0, into.content().rows, last.left_out or 0)


def _starts(reading: Reading, queues: Sequence[MessageQueue], covered: Covered) -> OffsetTable:
    """Where a stream without a checkpoint begins; queues that the lake has nothing of begin at their first message."""
    known = [queue for queue in queues if covered.of(queue)]
    if not known:
        return {}
    bounds = reading.cluster().bounds(known, timeout_ms=reading.options.retry_timeout_ms)
    starts = {queue: covered.first_missing(queue, since=bound.first) for queue, bound in bounds.items()}
    return offset_table(starts)


def _checkpoint(given: str | Path | None, lake: Lake, lake_id: str, what: str) -> Path:
    """The directory of the checkpoint, marked as this lake's. One of another lake would leave out all that the other
    has."""
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
            f"the checkpoint {place} is not of the lake {lake.path}; give it one of its own, or none at all: "
            "the archive goes on where the lake ends"
        )
    return place


class _Writer:
    """Driver: takes the micro-batches into the lake, in the thread that Spark calls it in."""

    def __init__(self, lake: Lake, tasks: int) -> None:
        self.rows = 0
        self.error: Exception | None = None
        #: Held while a batch is written.
        self.idle = threading.Lock()
        self._lake = lake
        self._tasks = tasks

    def write(self, batch: DataFrame, _number: int) -> None:
        with self.idle:
            try:
                # Whole numbers, which every reader knows, instead of Spark's twelve bytes of old. The session is the
                # stream's own.
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

    def _write_files(self, batch: DataFrame, stage: Stage) -> None:
        seconds = F.unix_seconds("store_time")
        by_hour = batch.withColumns(
            {
                # UTC, whatever the session's zone is.
                "date": F.date_from_unix_date(F.floor(seconds / 86_400).cast("int")),
                "hour": F.lpad(F.pmod(F.floor(seconds / 3_600), F.lit(24)).cast("string"), 2, "0"),
            }
        )
        place = ("topic", "date", "hour")
        # As many files for each hour as there are cores, not as there are queues; each in the order of its queues.
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


def _found(stage: Stage) -> tuple[Mapping[MessageQueue, Span], int]:
    """Which offsets the files of a stage hold, and how many rows. A batch has all offsets of a queue between its first
    and its last, but for messages that are to be left out, so these two tell all."""
    found: dict[MessageQueue, Span] = {}
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
