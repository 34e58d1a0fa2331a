"""The sides of a reconciliation: sent, stored and consumed messages (U4).

Each is a table of ``id`` (text; null if a row has none) and ``time``. The application chooses what identifies a
message: its message id, its keys, a property, a field of a JSON body. So ``by`` is an expression in Spark's SQL on
the columns of a message; ids in files have a separate expression.

Sides as texts, for the command line:

==================  ============================================================================================
``trace``           sent: traces of producers; consumed, as ``trace:GROUP``: successful calls of the group
``group:GROUP``     consumed: messages before the committed offsets of the group; they have no time
``topic:TOPIC``     messages of another topic, such as acknowledgements
``table:NAME``      a table of Spark's catalog
anything else       a path that Spark can read: ``.parquet``, ``.csv``, ``.json``, ``.jsonl``, or a directory of Parquet
==================  ============================================================================================
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import DataType, NumericType, StringType, TimestampNTZType, TimestampType

from ternmq.admin.blocking import SyncAdmin
from ternmq.errors import ConfigError, NotFound
from ternmq.names import TRACE_TOPIC
from ternmq.spark.pipelines import trace_rows
from ternmq.spark.session import sentence_of
from ternmq.spark.source.columns import COLUMNS

MESSAGE_ID: Final = "message_id"
KEYS: Final = "keys"

#: How far beyond the time range messages are read.
MARGIN_MS: Final = 600_000

#: Columns of files that are used as id and time by default.
_ID_NAMES: Final = ("id", "message_id", "key", "keys")
_TIME_NAMES: Final = ("time", "timestamp", "time_ms", "sent_time", "consumed_time", "ts")
_FORMATS: Final = {
    ".parquet": "parquet",
    ".csv": "csv",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    "": "parquet",
}


@dataclass(slots=True, frozen=True)
class Sides:
    """Builds the sides of one topic: its cluster, what identifies a message, and the time range."""

    spark: SparkSession
    topic: str
    name_servers: str = ""
    by: str = MESSAGE_ID
    begin_ms: int | None = None
    end_ms: int | None = None
    trace_topic: str = TRACE_TOPIC

    # --- From texts ---------------------------------------------------------------------------------------------------

    def sent(self, text: str, *, by: str = "", time: str = "") -> DataFrame:
        """The sent messages. ``by`` and ``time`` are expressions on the columns of a file, table or other topic."""
        if text == "trace":
            return self.sent_by_trace()
        if text.startswith(("group:", "trace:")):
            raise ConfigError(
                f"invalid source {text!r} of the sent messages: expected trace, topic:NAME, table:NAME or a file"
            )
        return self._of_text(text, by=by, time=time)

    def consumed(self, text: str, *, by: str = "", time: str = "") -> DataFrame:
        """The consumed messages."""
        kind, _, name = text.partition(":")
        if kind == "trace":
            if not name:
                raise ConfigError("the group is missing: expected trace:GROUP")
            return self.consumed_by_trace(name)
        if kind == "group" and name:
            return self.consumed_by_offsets(name)
        return self._of_text(text, by=by, time=time)

    def _of_text(self, text: str, *, by: str, time: str) -> DataFrame:
        kind, _, name = text.partition(":")
        if kind == "topic" and name:
            return self.of_topic(name, by=by)
        return self.of_file(text, by=by, time=time)

    # --- Topics -------------------------------------------------------------------------------------------------------

    def stored(self) -> DataFrame:
        """The messages of the topic, each with its queue and offset."""
        end_ms = None if self.end_ms is None else self.end_ms + MARGIN_MS
        return self._messages(self.topic, self.by, end_ms=end_ms)

    def of_topic(self, topic: str, *, by: str = "") -> DataFrame:
        """Messages of another topic; ``by`` (default: as in the first topic) is the id of the message they refer to."""
        return self._messages(topic, by or self.by, end_ms=None).select("id", "time")

    def _messages(self, topic: str, by: str, *, end_ms: int | None) -> DataFrame:
        # A message whose body cannot be read counts as stored.
        reader = self.spark.read.format("ternmq").option("topic", topic).option("badMessages", "null")
        if self.name_servers:
            reader = reader.option("nameServers", self.name_servers)
        if self.begin_ms is not None:
            reader = reader.option("startingTimestamp", str(max(0, self.begin_ms - MARGIN_MS)))
        if end_ms is not None:
            reader = reader.option("endingTimestamp", str(end_ms))
        places = ("broker", "queue_id", "queue_offset", "store_time")
        # Only the columns of the expression are decoded.
        columns = [name for name in COLUMNS if name in places or name in by]
        schema = ", ".join(f"{name} {COLUMNS[name].spark_type.simpleString()}" for name in columns)
        found = reader.schema(schema).load()
        return found.select(
            _id(found, by, where=f"messages of {topic}, which have the columns {', '.join(COLUMNS)}"),
            F.col("store_time").alias("time"),
            *places[:3],
        )

    # --- Traces and offsets -------------------------------------------------------------------------------------------

    def sent_by_trace(self) -> DataFrame:
        """Successful sends to the topic, traced by producers."""
        sent = trace_rows.sends(self._traces()).where((F.col("topic") == self.topic) & F.col("success"))
        return sent.where("is_visible").select(self._traced_id(), F.timestamp_millis("sent_ms").alias("time"))

    def consumed_by_trace(self, group: str) -> DataFrame:
        """Successful calls of a group's listeners. A trace does not contain the topic, so other topics are included."""
        called = trace_rows.calls(self._traces()).where((F.col("group") == group) & F.col("success"))
        ended = F.coalesce("end_ms", F.col("begin_ms") + F.col("cost_ms"))
        return called.select(self._traced_id(), F.timestamp_millis(ended).alias("time"))

    def _traces(self) -> DataFrame:
        begin_ms = None if self.begin_ms is None else max(0, self.begin_ms - MARGIN_MS)
        return trace_rows.read(
            self.spark, name_servers=self.name_servers, trace_topic=self.trace_topic, begin_ms=begin_ms
        )

    def _traced_id(self) -> Column:
        if self.by not in (MESSAGE_ID, KEYS):
            raise ConfigError(f"traces contain only {MESSAGE_ID} and {KEYS} of messages, not {self.by!r}")
        return F.col(self.by).alias("id")

    def consumed_by_offsets(self, group: str) -> DataFrame:
        """Messages before the committed offsets of a group, including failed ones that will be retried."""
        with SyncAdmin(self.name_servers) as admin:
            offsets = admin.offsets.of(group, topic=self.topic)
        if not offsets:
            raise NotFound(f"group {group!r} has committed no offsets of {self.topic!r}; see `tern group progress`")
        rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in sorted(offsets.items())]
        progress = self.spark.createDataFrame(rows, "broker STRING, queue_id INT, next_offset BIGINT")
        before = self.stored().join(F.broadcast(progress), ["broker", "queue_id"]).where("queue_offset < next_offset")
        return before.select("id", F.lit(None).cast("timestamp").alias("time"))

    # --- Files and tables ---------------------------------------------------------------------------------------------

    def of_file(self, text: str, *, by: str = "", time: str = "") -> DataFrame:
        """A file, a directory or a table (``table:NAME``)."""
        kind, _, name = text.partition(":")
        try:
            if kind == "table" and name:
                return self.of_table(self.spark.table(name), what=text, by=by, time=time)
            suffix = PurePosixPath(text.rstrip("/")).suffix.lower()
            if suffix not in _FORMATS:
                raise ConfigError(f"unknown file type of {text!r}: expected one of {', '.join(filter(None, _FORMATS))}")
            form = _FORMATS[suffix]
            reader = self.spark.read.format(form)
            if form == "csv":
                reader = reader.option("header", "true")
            return self.of_table(reader.load(text), what=text, by=by, time=time)
        except AnalysisException as error:
            raise ConfigError(f"cannot read {text!r}: {sentence_of(error)}") from error

    def of_table(self, table: DataFrame, *, what: str = "the table", by: str = "", time: str = "") -> DataFrame:
        """Any table that has an id, and perhaps a time."""
        by = by or next((name for name in _ID_NAMES if name in table.columns), "")
        if not by:
            raise ConfigError(
                f"{what} has none of the columns {', '.join(_ID_NAMES)}; choose the column that identifies a "
                f"message from {', '.join(table.columns)}"
            )
        time = time or next((name for name in _TIME_NAMES if name in table.columns), "")
        there = f"{what}, which has the columns {', '.join(table.columns)}"
        return table.select(_id(table, by, where=there), _time(table, time, where=there))


def _id(table: DataFrame, by: str, *, where: str) -> Column:
    _type_of(table, by, where=where)
    return F.expr(f"nullif(CAST(({by}) AS STRING), '')").alias("id")


def _time(table: DataFrame, time: str, *, where: str) -> Column:
    """A time in any form: a timestamp, its text, or ms since 1970."""
    if not time:
        return F.lit(None).cast("timestamp").alias("time")
    match _type_of(table, time, where=where):
        case TimestampType() | TimestampNTZType():
            return F.expr(f"CAST(({time}) AS TIMESTAMP)").alias("time")
        case NumericType():
            return F.timestamp_millis(F.expr(f"CAST(({time}) AS BIGINT)")).alias("time")
        case StringType():
            # CSV has only texts.
            ms = F.timestamp_millis(F.expr(f"try_cast(({time}) AS BIGINT)"))
            return F.coalesce(ms, F.expr(f"try_cast(({time}) AS TIMESTAMP)")).alias("time")
        case other:
            raise ConfigError(f"{time!r} of {where} has the type {other.simpleString()}: expected a time")


def _type_of(table: DataFrame, expression: str, *, where: str) -> DataType:
    try:
        return table.select(F.expr(expression).alias("it")).schema["it"].dataType
    except (AnalysisException, ParseException) as error:
        raise ConfigError(f"invalid expression {expression!r} for {where}: {sentence_of(error)}") from error
