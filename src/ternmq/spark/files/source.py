"""The format ``ternmq_files``: the log of a store directory as a table, without a broker (U3).

::

    records = spark.read.format("ternmq_files").load("/data/broker-a")
    entries = spark.read.format("ternmq_files").option("part", "queues").load("/data/broker-a")

The directory may be TernMQ's or RocketMQ's, and a broker may be running on it; nothing is written. *Planner*:
``partitions`` lists the files and cuts segments into slices. *Executor*: ``read``, one slice per task; each needs the
files under the same path.

If a log is being written, its end is determined by the task that reads it. With ``endingTimestamp`` a read can
be repeated with the same result.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ternmq.errors import CorruptRecord
from ternmq.spark.files import index, layout, queues
from ternmq.spark.files.columns import LOG_COLUMNS, LogRows, damage_batch, damage_rows
from ternmq.spark.files.layout import LogSlice
from ternmq.spark.files.options import NAME, FilesOptions, OnCorrupt, StorePart
from ternmq.spark.files.reading import SliceReader
from ternmq.spark.runtime.garbage import keep_loaded
from ternmq.spark.source.columns import Batches, check_schema, spark_schema
from ternmq.spark.source.records import Records
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.scan import Damaged

log = logging.getLogger(__name__)

_SCHEMAS: Final = {
    StorePart.LOG: spark_schema(LOG_COLUMNS),
    StorePart.QUEUES: queues.SCHEMA,
    StorePart.INDEX: index.SCHEMA,
}


class FilesSource(DataSource):
    """Driver: the format itself."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Called by ``load``: an invalid option is reported there, not at the first action.
        return _SCHEMAS[FilesOptions.parse(self.options).part]

    def reader(self, schema: StructType) -> DataSourceReader:
        options = FilesOptions.parse(self.options)
        check_schema(schema, _SCHEMAS[options.part])
        match options.part:
            case StorePart.LOG:
                return LogTableReader(options, schema)
            case StorePart.QUEUES:
                return queues.QueueTableReader(options, schema)
            case StorePart.INDEX:
                return index.IndexTableReader(options, schema)


class LogTableReader(DataSourceReader):
    """Planner, then executor: the records of all segments."""

    def __init__(self, options: FilesOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Planner: one task per slice."""
        options = self._options
        segments = layout.find_segments(
            options.paths,
            segment_bytes=options.segment_bytes,
            lenient=options.on_corrupt is not OnCorrupt.FAIL,
        )
        segments = layout.between(segments, options.begin_ms, options.end_ms)
        return list(layout.cut(segments, slice_bytes=options.slice_bytes))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        # Spark creates one partition of its own if there are none.
        if not isinstance(partition, LogSlice):
            return iter(())
        return _SliceRows(self._options, self._schema, partition).batches()


class _SliceRows:
    """Executor: the batches of one slice."""

    def __init__(self, options: FilesOptions, schema: StructType, part: LogSlice) -> None:
        self._options = options
        self._batches = Batches(schema, columns=LOG_COLUMNS)
        self._part = part
        self._path = str(part.segment.path)

    def batches(self) -> Iterator[pa.RecordBatch]:
        for found in SliceReader(self._part):
            batch = self._of_damage(found) if isinstance(found, Damaged) else self._of_records(found)
            if batch is not None and batch.num_rows:
                keep_loaded()
                yield batch

    def _of_records(self, records: Records) -> pa.RecordBatch:
        options = self._options
        if options.begin_ms is not None or options.end_ms is not None:
            times_ms = records.store_times_ms
            chosen = np.ones(len(records), np.bool_)
            if options.begin_ms is not None:
                chosen &= times_ms >= options.begin_ms
            if options.end_ms is not None:
                chosen &= times_ms < options.end_ms
            records = records.select(chosen)
        rows = self._log_rows(records)
        if options.chooses_topics:
            rows = self._log_rows(records.select(rows.of_topics(options.selects)))
        return self._batches.of(rows)

    def _log_rows(self, records: Records) -> LogRows:
        options = self._options
        return LogRows(
            records,
            segment=self._path,
            broker=options.broker,
            keep_unreadable=options.on_corrupt is not OnCorrupt.FAIL,
            max_body_bytes=options.max_body_bytes,
        )

    def _of_damage(self, damaged: Damaged) -> pa.RecordBatch | None:
        options, segment = self._options, self._part.segment
        is_torn_tail = not damaged.records_behind
        what = f"{self._path} is damaged at log offset {damaged.begin} ({damaged.end - damaged.begin} bytes)"
        if options.on_corrupt is OnCorrupt.FAIL and not (is_torn_tail and not segment.is_closed):
            raise CorruptRecord(
                f"{what}: {damaged.kind.value}; copy the segment from a slave or a backup, or set the option onCorrupt "
                "to skip or keep",
                log_offset=damaged.begin,
            )
        if options.on_corrupt is not OnCorrupt.KEEP:
            if not is_torn_tail:
                log.warning("skipped a damaged place: %s: %s", what, damaged.kind.value)
            return None
        data = b""
        if damaged.end - damaged.begin < segment.size_bytes:
            at = damaged.begin - segment.start
            data = FileDisk(writable=False).read_at(segment.path, at, damaged.end - damaged.begin)
        rows = damage_rows(damaged, data, segment=self._path, broker=options.broker)
        if rows is not None:
            return self._batches.of(rows)
        return damage_batch(damaged, self._batches.schema, segment=self._path, broker=options.broker)
