"""The format ``ternmq``: topics of TernMQ or RocketMQ as tables, read once or as a stream (U1, V2).

::

    orders = spark.read.format("ternmq").option("nameServers", "127.0.0.1:9876").load("orders")
    stream = spark.readStream.format("ternmq").option("nameServers", "127.0.0.1:9876").load("orders")

Spark pickles a ``TernSource`` and sends it to its own Python processes:

- *planner*, on the driver's machine: ``BatchReader.pushFilters`` and ``partitions``, in one process per query;
  the methods of ``StreamReader`` except ``read``, in one process for the whole stream;
- *executor*: ``read``, in one process per running task, reused for later ones.

A batch reads each queue from one offset to another; both are fixed before the first task begins. A stream repeats that,
and Spark's checkpoint keeps the offsets in between; ``commit`` only reports them to brokers, for the lag. Queue offsets
identify messages exactly, so a repeated task or batch reads the same messages again.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.sink.sink import TopicBatchWriter, TopicStreamWriter
from ternmq.spark.source import columns
from ternmq.spark.source.batch import BatchReader
from ternmq.spark.source.options import SourceOptions
from ternmq.spark.source.reading import columns_of
from ternmq.spark.source.stream import StreamReader

NAME: Final = "ternmq"


class TernSource(DataSource):
    """Driver: the format itself. Options are checked when a reader is created, or when the schema is requested."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Called by ``load``: an invalid option is reported there, not at the first action.
        return columns.spark_schema(columns_of(SourceOptions.parse(self.options)))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> TopicBatchWriter:
        return TopicBatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802 - Spark's name
        return TopicStreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)
