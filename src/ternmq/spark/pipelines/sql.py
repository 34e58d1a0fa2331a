"""The pipeline *sql*: streaming SQL from topics to topics, tables and the console (U4).

::

    run_sql(spark, '''
        CREATE VIEW orders (id STRING, customer STRING, amount DOUBLE, at TIMESTAMP) FROM TOPIC orders
            WATERMARK at DELAY 10 SECONDS;
        INSERT INTO TOPIC alerts
            SELECT customer AS _keys, customer, window.start, sum(amount) AS spent
            FROM orders GROUP BY customer, window(at, '1 minute') HAVING sum(amount) > 1000
    ''', name_servers="127.0.0.1:9876", checkpoint="/var/lib/alerts")

``sql_script`` parses the statements, ``topic_views`` makes views of topics, and Spark's SQL does the rest. A name
that is not a view is searched among the topics, and its columns are detected from messages.

First all statements are planned, then all are started: a script with an error in its last statement writes nothing.
Each query that writes is a separate stream, with its own checkpoint under ``checkpoint``, named after its target: a
script that was stopped, or changed in another place, continues each of them.

Columns whose names begin with ``_`` are attributes of the message, for input and output (``_keys``, ``_tags``,
``_properties``, ``_sharding_key``, …); the others make the JSON body, or ``_body`` is the whole body.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final

from pyspark.errors import AnalysisException, ParseException, PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everywhere
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter
from pyspark.sql.types import BinaryType, StructField, StructType

from ternmq.client.config import ClientConfig
from ternmq.errors import ConfigError
from ternmq.spark.pipelines import topic_views
from ternmq.spark.pipelines.sql_outputs import as_messages, check_columns, output_mode
from ternmq.spark.pipelines.sql_script import (
    CONSOLE,
    TOPIC,
    ScriptError,
    ScriptQuery,
    SparkStatement,
    Target,
    TopicView,
    statements_of,
)
from ternmq.spark.pipelines.topic_views import BAD_SUFFIX, BadRows, ViewSettings
from ternmq.spark.runtime.jobs import JobFailed, Watch, start
from ternmq.spark.session import sentence_of

SAMPLE_MESSAGES: Final = 1000
#: Rows that are passed to ``show`` at a time.
SHOWN_ROWS: Final = 500

_POSITION: Final = re.compile(r"\bline (\d+),? pos (\d+)")


@dataclass(slots=True, frozen=True)
class Shown:
    """Rows of a query for the console, as in JSON: times are texts. ``batch`` is None if the query is not a stream."""

    statement: str
    batch: int | None
    columns: tuple[str, ...]
    rows: tuple[dict[str, Any], ...]


@dataclass(slots=True, frozen=True)
class SqlResult:
    """The result of a query: messages read, and how many of them did not match the columns."""

    statement: str
    messages: int
    left_out: int


def run_sql(
    spark: SparkSession,
    script: str,
    *,
    name_servers: str = "",
    checkpoint: str = "",
    once: bool = False,
    every: str = "",
    options: Mapping[str, str] | None = None,
    bad_rows: BadRows = BadRows.DROP,
    sample_messages: int = SAMPLE_MESSAGES,
    show: Callable[[Shown], None] | None = None,
    note: Callable[[str], None] | None = None,
    watch: Watch | None = None,
) -> list[SqlResult]:
    """Run the statements of a script until its streams end (``once``: with the present messages) or are stopped.

    ``checkpoint`` is a directory that Spark can access, needed by ``INSERT``. ``every`` is the time between
    micro-batches, such as ``10 seconds``. ``options`` are those of the source, for all topics; without an option for
    the start, topics are read from their first message. Rows of plain queries go to ``show``, remarks to ``note``.

    Raises ``ScriptError`` and ``ConfigError`` before anything is written, and ``JobFailed`` afterwards.
    """
    statements = statements_of(script)
    trigger = _trigger(once=once, every=every)
    reading = ViewSettings(
        name_servers=";".join(ClientConfig(name_servers).addresses),
        options=dict(options or {}),
        message_columns=topic_views.message_columns_in(script),
        bad_rows=bad_rows,
    )
    watch = watch or Watch()
    run = _Run(spark, reading, sample_messages, show or _print, note or _print_nothing, watch)
    try:
        for statement in statements:
            match statement:
                case TopicView():
                    run.declare(statement)
                case ScriptQuery():
                    run.plan(statement, checkpoint=checkpoint)
                case SparkStatement():
                    run.command(statement)
        return run.follow(trigger, checkpoint=checkpoint)
    finally:
        run.forget()


@dataclass(slots=True, frozen=True)
class _Planned:
    """A stream that can be started."""

    name: str
    target: Target
    frame: DataFrame
    mode: str


class _Run:
    """One run of a script."""

    def __init__(
        self,
        spark: SparkSession,
        reading: ViewSettings,
        sample_messages: int,
        show: Callable[[Shown], None],
        note: Callable[[str], None],
        watch: Watch,
    ) -> None:
        self._spark = spark
        self._reading = reading
        self._sample_messages = sample_messages
        self._show = show
        self._note = note
        self._watch = watch
        #: Views of topics, with the columns of their bodies.
        self._views: dict[str, tuple[TopicView, StructType | None]] = {}
        self._made: list[str] = []
        self._planned: dict[str, _Planned] = {}

    # --- Plan -----------------------------------------------------------------------------------------------------

    def declare(self, view: TopicView) -> None:
        """Make a view of topics."""
        spark, reading = self._spark, self._reading
        topic_views.check_topics(view, reading)
        columns = None
        if view.columns:
            columns = topic_views.given_columns(view)
        elif not view.is_text:
            columns = self._watch.run(
                "columns",
                spark,
                lambda: topic_views.inferred_columns(spark, view, reading, sample_messages=self._sample_messages),
            )
            self._note(f"found in the last messages: {topic_views.statement_of(view, columns)}")
        self._views[view.name.lower()] = (view, columns)
        self._make(view.name, topic_views.topic_frame(spark, view, columns, reading))

    def plan(self, query: ScriptQuery, *, checkpoint: str) -> None:
        """Let Spark resolve a query, and check how its rows can be written to the target."""
        frame = self._resolve(query.sql, query.line)
        if not frame.isStreaming:
            if query.target.kind != CONSOLE:
                raise ScriptError(query.line, f"the query reads no topic, so there is no stream to {query.target}")
            self._show_once(query, frame)
            return
        if query.target.kind != CONSOLE and not checkpoint:
            raise ConfigError(
                f"{query.target} needs a checkpoint, because a second run would write everything again; give a "
                "directory"
            )
        check_columns(frame, query)
        if query.target.kind == TOPIC:
            frame = as_messages(frame, query)
        mode = output_mode(self._spark, frame, query)
        if query.target.kind == TOPIC and not topic_views.has_topic(self._reading.name_servers, query.target.name):
            there = f"there is no topic {query.target.name!r} at {self._reading.name_servers}"
            raise ScriptError(query.line, f"{there}; create it with `tern topic create {query.target.name}`")
        name = _free_name(query.target, self._planned)
        self._planned[name] = _Planned(name, query.target, frame, mode)

    def command(self, command: SparkStatement) -> None:
        """Let Spark run a command, such as one that creates a view."""
        frame = self._resolve(command.sql, command.line)
        if frame.columns and not frame.isStreaming:
            self._show_once(command, frame)

    def _resolve(self, sql: str, line: int) -> DataFrame:
        # Each turn creates one view; their number is limited by the names in the query.
        while True:
            try:
                return topic_views.without_doubles(self._spark.sql(sql))
            except (AnalysisException, ParseException) as error:
                if error.getCondition() != "TABLE_OR_VIEW_NOT_FOUND":
                    raise _at_place(error, line) from error
                name = str((error.getMessageParameters() or {})["relationName"]).replace("`", "")
                if not self._find(name):
                    sentence = f"there is no view and no topic {name!r} at {self._reading.name_servers}"
                    raise ScriptError(_place(error, line), f"{sentence}; see `tern topic list`") from error

    def _find(self, name: str) -> bool:
        """Create the view that a query needs, if it is a topic, or the view of messages that do not match."""
        known = self._views.get(name.lower().removesuffix(BAD_SUFFIX))
        if name.lower().endswith(BAD_SUFFIX) and known is not None and known[1] is not None:
            view, columns = known[0], known[1]
            self._make(name, topic_views.bad_frame(self._spark, view, columns, self._reading))
            return True
        if not topic_views.has_topic(self._reading.name_servers, name):
            return False
        self.declare(TopicView(name, (name,)))
        return True

    def _make(self, name: str, frame: DataFrame) -> None:
        frame.createOrReplaceTempView(f"`{name}`")
        self._made.append(name)

    # --- Run ------------------------------------------------------------------------------------------------------

    def follow(self, trigger: Mapping[str, Any], *, checkpoint: str) -> list[SqlResult]:
        """Start the planned streams, and wait for them."""
        started: dict[str, StreamingQuery] = {}
        try:
            for one in self._planned.values():
                writer = self._writer(one).outputMode(one.mode).trigger(**trigger)
                if checkpoint:
                    writer = writer.option("checkpointLocation", f"{checkpoint.rstrip('/')}/{one.name}")
                started[one.name] = start(writer)
        except Exception as error:
            for query in started.values():
                query.stop()
            if isinstance(error, PySparkException):
                raise JobFailed(sentence_of(error)) from error
            raise
        last = self._watch.follow_all(started)
        return [SqlResult(name, progress.rows or 0, progress.left_out or 0) for name, progress in last.items()]

    def _writer(self, one: _Planned) -> DataStreamWriter:
        if one.target.kind == CONSOLE:
            return one.frame.writeStream.foreachBatch(lambda frame, batch: self._show_batch(one.name, frame, batch))
        if one.target.kind == TOPIC:
            writer = one.frame.writeStream.format("ternmq").option("nameServers", self._reading.name_servers)
            return writer.option("topic", one.target.name)
        writer = one.frame.writeStream.format("parquet").option("path", one.target.name)
        return writer.partitionBy(*one.target.partition_by)

    def forget(self) -> None:
        """Restore the session, except for the effects of Spark commands."""
        for name in self._made:
            self._spark.catalog.dropTempView(name)

    # --- Show -----------------------------------------------------------------------------------------------------

    def _show_once(self, statement: ScriptQuery | SparkStatement, frame: DataFrame) -> None:
        name = f"line {statement.line}"
        self._watch.run("select", self._spark, lambda: self._show_batch(name, frame, None))

    def _show_batch(self, statement: str, frame: DataFrame, batch: int | None) -> None:
        columns = tuple(frame.columns)
        row = F.struct(*map(_shown, frame.schema.fields))
        texts = frame.select(F.to_json(row, {"ignoreNullFields": "false"})).toLocalIterator()
        while rows := tuple(json.loads(row[0]) for row in itertools.islice(texts, SHOWN_ROWS)):
            self._show(Shown(statement, batch, columns, rows))


def _trigger(*, once: bool, every: str) -> dict[str, Any]:
    if once and every:
        raise ConfigError("once and a time between batches exclude each other; omit one of them")
    return {"availableNow": True} if once else {"processingTime": every or "0 seconds"}


def _free_name(target: Target, taken: Collection[str]) -> str:
    """The name of a query: for its checkpoint, the progress and the console."""
    last = PurePosixPath(target.name).name
    name = f"{target.kind}-{last}" if last else target.kind
    if name not in taken:
        return name
    return next(one for one in (f"{name}-{number}" for number in itertools.count(2)) if one not in taken)


def _shown(field: StructField) -> Column:
    """A column for the console: bytes as text if they are text, other values as in JSON, in base64."""
    column = F.col(f"`{field.name}`")
    if isinstance(field.dataType, BinaryType):
        text = column.cast("string")
        column = F.when(F.is_valid_utf8(text), text).otherwise(F.base64(column)).alias(field.name)
    return column


def _at_place(error: PySparkException, line: int) -> ScriptError:
    """Spark's error message, with its position in the script."""
    return ScriptError(_place(error, line), sentence_of(error))


def _place(error: PySparkException, line: int) -> int:
    found = _POSITION.search(str(error))
    return int(found[1]) if found else line


def _print(shown: Shown) -> None:
    for row in shown.rows:
        print(json.dumps(row))  # noqa: T201, the default of `show`


def _print_nothing(_remark: str) -> None:
    """For runs without remarks."""
