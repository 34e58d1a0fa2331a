"""How the rows of a query are written to their target: as messages, and in which output mode (U4)."""

from __future__ import annotations

from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812, as everywhere
from pyspark.sql.types import ArrayType, DataType

from ternmq.errors import ConfigError
from ternmq.spark.pipelines.sql_script import CONSOLE, TABLE, TOPIC, ScriptError, ScriptQuery
from ternmq.spark.session import sentence_of
from ternmq.spark.sink.options import checked_topic
from ternmq.spark.sink.rows import READ_ONLY, WRITTEN, check_schema

#: The output modes to try, in order: the console shows changes, other targets need rows that do not change.
_MODES: Final = {CONSOLE: ("Update", "Append", "Complete"), TOPIC: ("Append",), TABLE: ("Append",)}


def output_mode(spark: SparkSession, frame: DataFrame, query: ScriptQuery) -> str:
    """The output mode for a query; raises ``ScriptError`` if there is none.

    Spark checks this when a stream starts. The same internal check is called here, so that a script is known to be
    valid before its first stream writes.
    """
    # ruff: noqa: SLF001
    jvm = spark._jvm
    assert jvm is not None
    checker = jvm.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    modes = jvm.org.apache.spark.sql.streaming.OutputMode
    refused: list[PySparkException] = []
    for mode in _MODES[query.target.kind]:
        try:
            checker.checkForStreaming(frame._jdf.queryExecution().analyzed(), getattr(modes, mode)())
        except PySparkException as error:
            refused.append(error)
        else:
            return mode.lower()
    sentence = sentence_of(refused[0])
    if query.target.kind != CONSOLE and "aggregations without watermark" in sentence:
        sentence = (
            f"cannot write this aggregate to a {query.target.kind}: its rows can always change; give the view a "
            "WATERMARK and group by window(column, …) or by its column, or omit INSERT to print the changes"
        )
    raise ScriptError(query.line, sentence) from refused[0]


def check_columns(frame: DataFrame, query: ScriptQuery) -> None:
    """Raise ``ScriptError`` for duplicate column names, and for a partition column that does not exist."""
    names = [name.lower() for name in frame.columns]
    for name in names:
        if names.count(name) > 1:
            raise ScriptError(
                query.line, f"there are {names.count(name)} columns {name!r}; give them different names with AS"
            )
    for name in query.target.partition_by:
        if name.lower() not in names:
            raise ScriptError(
                query.line,
                f"PARTITIONED BY {name}: there is no such column; the columns are {', '.join(frame.columns)}",
            )


def as_messages(frame: DataFrame, query: ScriptQuery) -> DataFrame:
    """The columns of the sink: attributes of the message, and a body of all others. Raises ``ScriptError``."""
    fields: list[Column] = []
    columns: dict[str, Column] = {}
    for field in frame.schema.fields:
        name, column = field.name.lower().removeprefix("_"), F.col(f"`{field.name}`")
        if not field.name.startswith("_") or name not in (*WRITTEN, *READ_ONLY):
            fields.append(column)
        # The statement contains the topic; columns that a sender cannot set are ignored, as in the sink.
        elif name in WRITTEN and name != TOPIC:
            columns[name] = _typed(name, column, field.dataType).alias(name)
    if "body" in columns and fields:
        raise ScriptError(
            query.line,
            "_body is the whole body and cannot be combined with columns that do not begin with _; omit it or them",
        )
    if fields:
        columns["body"] = F.to_json(F.struct(*fields), {"ignoreNullFields": "false"}).alias("body")
    if "body" not in columns:
        raise ScriptError(
            query.line, "there is no column for the body; columns that begin with _ are attributes of the message"
        )
    messages = frame.select(*columns.values())
    try:
        checked_topic(query.target.name)
        check_schema(messages.schema, topic=query.target.name)
    except ConfigError as error:
        raise ScriptError(query.line, str(error)) from error
    return messages


def _typed(name: str, column: Column, given: DataType) -> Column:
    """A column converted to a type of the sink, if the conversion is unambiguous."""
    if name in ("keys", "tags", "sharding_key") and not isinstance(given, ArrayType):
        return column.cast("string")
    return column.cast("int") if name == "delay_level" else column
