"""The format ``ternmq``: topics of TernMQ or RocketMQ as tables, read once or as a stream (U1, V2).

::

    orders = spark.read.format("ternmq").option("nameServers", "127.0.0.1:9876").load("orders")
    stream = spark.readStream.format("ternmq").option("nameServers", "127.0.0.1:9876").load("orders")

Who calls what. Spark pickles a ``TernSource`` and sends it to Python processes of its own:

- *planner*, on the driver's machine: ``BatchReader.pushFilters`` and ``partitions``, in a process for each query;
  ``StreamReader``'s methods but ``read``, in one process as long as the stream runs;
- *executor*: ``read``, a process for each task at a time, reused for later ones.

A batch reads each queue from one offset to another that was fixed before the first task began. A stream does that again
and again, and Spark's checkpoint keeps the offsets in between; ``commit`` only tells brokers of them, for lag. Queue
offsets name messages exactly, so a task or a batch that is done again reads the same messages again.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.sink.sink import BatchWriter, StreamWriter
from ternmq.spark.source import columns
from ternmq.spark.source.batch import BatchReader
from ternmq.spark.source.options import SourceOptions
from ternmq.spark.source.reading import columns_of
from ternmq.spark.source.stream import StreamReader

NAME: Final = "ternmq"


class TernSource(DataSource):
    """Driver: the format itself. Options are checked when a reader is made of it, or its schema is asked for."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Called by ``load``: a wrong option shows there, not at the first action.
        return columns.spark_schema(columns_of(SourceOptions.parse(self.options)))

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        return StreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802 - Spark's name
        return StreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)
