"""Topics as views: JSON bodies become columns; messages that do not match are counted, or end the query (U4).

A row of a view has the body's fields, by name. The attributes of the message are columns, too, whose names begin with
``_``: ``_tags``, ``_keys``, ``_store_time`` and all others of the source. Only the requested ones are read.

A body *matches* if it is a JSON object in UTF-8 whose fields can be converted to the types of their columns, and no
``NOT NULL`` field is missing. Other missing fields are null; fields without a column are ignored. Spark would return
nulls for a body that does not match. Here such a message is skipped and counted (``LEFT_OUT``, which
``jobs.JobProgress`` shows), or ends the query, as ``BadRows`` says; ``name_bad`` is the view of these messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everywhere
from pyspark.sql.types import StringType, StructField, StructType

from ternmq.errors import ConfigError, RouteMissing
from ternmq.message import MessageQueue
from ternmq.spark.pipelines.sql_script import ScriptError, TopicView
from ternmq.spark.runtime.cluster import cluster_at
from ternmq.spark.runtime.jobs import LEFT_OUT
from ternmq.spark.session import sentence_of
from ternmq.spark.source.columns import COLUMNS, COLUMNS_AND_PROBLEM, PROBLEM
from ternmq.spark.source.options import EARLIEST, RETRY_TIMEOUT_MS, BadMessages, SourceOptions, offset_table

#: The end of the name of a view of messages that do not match.
BAD_SUFFIX: Final = "_bad"
#: The position of a message.
_PLACE: Final = ("topic", "broker", "queue_id", "queue_offset")
#: The columns of such a view.
_BAD_COLUMNS: Final = (*_PLACE, "store_time", "keys", "tags", "properties", "body")

#: Spark's column for a body that it could not read.
_UNREADABLE: Final = "_ternmq_unreadable"
_PARSED: Final = "_ternmq_parsed"


class BadRows(Enum):
    """How to treat messages that do not match."""

    DROP = "drop"
    FAIL = "fail"


@dataclass(slots=True, frozen=True)
class ViewSettings:
    """How topics are read, the same for all views of a script."""

    name_servers: str
    #: Options of the source, for all views; those of a view override them.
    options: dict[str, str]
    #: Requested columns of messages, without the ``_``.
    message_columns: tuple[str, ...] = ()
    bad_rows: BadRows = BadRows.DROP

    def options_of(self, view: TopicView) -> dict[str, str]:
        """All options of the source for one view."""
        given = {"nameServers": self.name_servers, "topics": ",".join(view.topics)} | self.options
        if _without_start(view.options) != view.options:
            given = _without_start(given)
        elif _without_start(given) == given:
            given["startingOffsets"] = EARLIEST
        given |= view.options
        if self.bad_rows is BadRows.DROP and not any(name.lower() == "badmessages" for name in given):
            # A body that cannot be decompressed does not match, either.
            given["badMessages"] = BadMessages.NULL
        return given


def _without_start(options: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in options.items() if not name.lower().startswith("starting")}


def message_columns_in(text: str) -> tuple[str, ...]:
    """The columns of messages that occur in a text."""
    named = set(re.findall(r"\b_([a-z_]+)\b", text, re.IGNORECASE))
    return tuple(name for name in COLUMNS if name in {one.lower() for one in named})


def topic_frame(spark: SparkSession, view: TopicView, columns: StructType | None, reading: ViewSettings) -> DataFrame:
    """A stream of the rows of a view. ``columns`` are those of the body; None for a text."""
    needed = list(reading.message_columns)
    if reading.bad_rows is BadRows.FAIL:
        needed += _PLACE
    has_problem = SourceOptions.parse(reading.options_of(view)).bad_messages is BadMessages.NULL
    if has_problem:
        needed.append(PROBLEM)
    messages = _messages(spark, view, reading, [*needed, "body"])
    kept = [F.col(name).alias(f"_{name}") for name in reading.message_columns]
    text = F.col("body").cast("string").alias("body")
    if columns is None:
        if has_problem:
            is_bad = F.col(PROBLEM).isNotNull()
            counted = messages.observe(f"{LEFT_OUT} {view.name}", F.count_if(is_bad).alias(LEFT_OUT))
            messages = counted.filter(~is_bad)
        rows = messages.select(text, *kept)
    else:
        read = messages.select("*", _parsed(columns).alias(_PARSED))
        fits = _fits(columns)
        if reading.bad_rows is BadRows.FAIL:
            read = read.filter(F.when(fits, F.lit(True)).otherwise(_complaint(view).cast("boolean")))
        # Also a barrier: no filter of the query is applied before the count, and none hides messages that do not match.
        counted = read.observe(f"{LEFT_OUT} {view.name}", F.count_if(~fits).alias(LEFT_OUT))
        fields = [F.col(f"{_PARSED}.`{field.name}`") for field in columns.fields]
        rows = counted.filter(fits).select(*fields, *kept)
    return _with_watermark(rows, view) if view.watermark else rows


def bad_frame(spark: SparkSession, view: TopicView, columns: StructType, reading: ViewSettings) -> DataFrame:
    """A stream of the messages that do not match, unchanged."""
    messages = _messages(spark, view, reading, _BAD_COLUMNS).select("*", _parsed(columns).alias(_PARSED))
    return messages.filter(~_fits(columns)).select(*(F.col(name).alias(f"_{name}") for name in _BAD_COLUMNS))


def without_doubles(frame: DataFrame) -> DataFrame:
    """The rows of a query without duplicate columns of messages: ``SELECT *, _tags`` has it twice."""
    names = frame.columns
    unique = [f"{name} {at}" if _is_of_message(name) and name in names[:at] else name for at, name in enumerate(names)]
    if unique == names:
        return frame
    return frame.toDF(*unique).drop(*(new for new, name in zip(unique, names, strict=True) if new != name))


def given_columns(view: TopicView) -> StructType:
    """The declared columns of a view; raises ``ScriptError``."""
    try:
        columns = StructType.fromDDL(view.columns)
    except (ParseException, AnalysisException) as error:
        raise ScriptError(view.line, f"the columns of {view.name}: {sentence_of(error)}") from error
    assert isinstance(columns, StructType)
    for name in columns.names:
        if _is_of_message(name):
            raise ScriptError(
                view.line,
                f"the column {name} is an attribute of the message and always present; remove it from the list",
            )
    return columns


def inferred_columns(
    spark: SparkSession, view: TopicView, reading: ViewSettings, *, sample_messages: int
) -> StructType:
    """The columns of the last messages of a view's topics; raises ``ConfigError`` if there are none."""
    options = _without_start(reading.options_of(view)) | _last(reading, view.topics, sample_messages)
    options["badMessages"] = BadMessages.SKIP
    bodies = spark.read.format("ternmq").options(**options).schema("body BINARY").load()
    texts = [bytes(row["body"]).decode(errors="replace") for row in bodies.collect()]
    named = ", ".join(view.topics)
    if not texts:
        raise ConfigError(
            f"cannot detect the columns of topic {named}: it has no messages; declare them, as in CREATE VIEW "
            f"{quoted(view.name)} (id STRING, at TIMESTAMP) FROM TOPIC {quoted(view.topics[0])}"
        )
    json_reader = spark.read.option("mode", "DROPMALFORMED").option("inferTimestamp", "true")
    found = json_reader.json(spark.sparkContext.parallelize(texts, 1)).schema
    fields: dict[str, StructField] = {}
    for field in found.fields:
        if not _is_of_message(field.name):
            fields.setdefault(field.name.lower(), field)
    if not fields:
        raise ConfigError(
            f"none of the last {len(texts)} messages of {named} has a JSON object as its body; read each body as "
            f"one text: CREATE VIEW {quoted(view.name)} FROM TOPIC {quoted(view.topics[0])} FORMAT TEXT"
        )
    return StructType(list(fields.values()))


def statement_of(view: TopicView, columns: StructType) -> str:
    """The statement that declares the view."""
    listed = ", ".join(f"{quoted(field.name)} {field.dataType.simpleString().upper()}" for field in columns.fields)
    return f"CREATE VIEW {quoted(view.name)} ({listed}) FROM TOPIC {', '.join(map(quoted, view.topics))}"


def quoted(name: str) -> str:
    """A name as it is written in SQL."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) else f"`{name}`"


def check_topics(view: TopicView, reading: ViewSettings) -> None:
    """Raise ``ConfigError`` for a topic that does not exist, or for invalid options."""
    SourceOptions.parse(reading.options_of(view)).check_for_stream()
    _queues(reading, view.topics)


def has_topic(name_servers: str, topic: str) -> bool:
    try:
        return bool(cluster_at(name_servers).queues([topic]))
    except RouteMissing:
        return False


def _is_of_message(name: str) -> bool:
    return name.startswith("_") and name[1:].lower() in COLUMNS


def _messages(spark: SparkSession, view: TopicView, reading: ViewSettings, names: Collection[str]) -> DataFrame:
    """The topics with these columns; others are not decoded."""
    known = COLUMNS_AND_PROBLEM.items()
    schema = StructType([StructField(name, column.spark_type) for name, column in known if name in names])
    return spark.readStream.format("ternmq").options(**reading.options_of(view)).schema(schema).load()


def _parsed(columns: StructType) -> Column:
    schema = StructType([*columns.fields, StructField(_UNREADABLE, StringType())])
    return F.from_json(
        F.col("body").cast("string"), schema, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _UNREADABLE}
    )


def _fits(columns: StructType) -> Column:
    parsed = F.col(_PARSED)
    fits = parsed.isNotNull() & parsed[_UNREADABLE].isNull() & F.is_valid_utf8(F.col("body").cast("string"))
    for field in columns.fields:
        if not field.nullable:
            fits &= F.col(f"{_PARSED}.`{field.name}`").isNotNull()
    return F.coalesce(fits, F.lit(False))


def _complaint(view: TopicView) -> Column:
    where = F.concat("topic", F.lit("@"), "broker", F.lit(":"), "queue_id", F.lit(", queue offset "), "queue_offset")
    body = F.substring(F.col("body").cast("string"), 1, 100)
    return F.raise_error(F.concat(F.lit("the body at "), where, F.lit(f" does not match {view.name}: "), body))


def _with_watermark(rows: DataFrame, view: TopicView) -> DataFrame:
    try:
        if view.watermark != view.watermark_column:
            rows = rows.withColumn(view.watermark_column, F.expr(view.watermark))
        kind = rows.select(view.watermark_column).schema.fields[0].dataType.simpleString()
        if kind not in ("timestamp", "timestamp_ntz"):
            raise ScriptError(
                view.line,
                f"the watermark of {view.name} needs a timestamp, and {view.watermark_column} is of type {kind}; "
                f"write WATERMARK timestamp_millis({view.watermark_column}) AS time DELAY …, or the like",
            )
        return rows.withWatermark(view.watermark_column, view.delay)
    except (AnalysisException, ParseException) as error:
        raise ScriptError(view.line, f"the watermark of {view.name}: {sentence_of(error)}") from error


def _queues(reading: ViewSettings, topics: Sequence[str]) -> list[MessageQueue]:
    try:
        return cluster_at(reading.name_servers).queues(topics)
    except RouteMissing as error:
        raise ConfigError(
            f"there is no topic {error.topic!r} at {reading.name_servers}; see `tern topic list`"
        ) from error


def _last(reading: ViewSettings, topics: Sequence[str], count: int) -> dict[str, str]:
    """The start of the last ``count`` messages, as options of the source."""
    queues = _queues(reading, topics)
    bounds = cluster_at(reading.name_servers).bounds(queues, timeout_ms=RETRY_TIMEOUT_MS)
    each = -(-count // len(queues))
    starts = {queue: max(bound.first, bound.end - each) for queue, bound in bounds.items()}
    return {"startingOffsets": json.dumps(offset_table(starts))}
