"""``spark.read.format("ternmq")``: one read from a fixed start to a fixed end (U1)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition
from pyspark.sql.types import StructType

from ternmq.filter.tags import TagFilter
from ternmq.spark.source import plan
from ternmq.spark.source.options import EARLIEST, LATEST, LATEST_OFFSET, Position, SourceOptions
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.pushed import Pushed
from ternmq.spark.source.reading import TopicReading


class BatchReader(DataSourceReader):
    """Planner, then executor: one read from a fixed start to a fixed end."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_for_batch()
        self._reading = TopicReading(options, schema)
        self._pushed = Pushed()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:  # noqa: N802 - Spark's name
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Planner: narrow the read by the filters. Spark applies all of them again, so narrowing too little is not an
        error.

        Spark 4.3 keeps the resulting plan for *every* later query of the same DataFrame, also for those
        without a filter, which would silently get the narrowed rows. So this must be enabled by an option."""
        options = self._reading.options
        if not options.push_down_filters:
            return filters
        for one in filters:
            self._pushed.take(one)
        if self._pushed.tags and options.tags == TagFilter.parse("").expression and not options.sql:
            self._reading.tags = self._pushed.tags_expression()
        return filters

    def partitions(self) -> list[InputPartition]:
        """Planner: one task per slice."""
        reading, options, pushed = self._reading, self._reading.options, self._pushed
        found = reading.queues()
        for position in (options.start, options.end):
            reading.check_named(position, found)
        queues = [queue for queue in found if pushed.selects(reading.as_shown(queue))]
        bounds = reading.cluster().bounds(queues, timeout_ms=options.retry_timeout_ms)
        starts = reading.resolve(options.start or Position(where=EARLIEST), queues, bounds)
        ends = reading.resolve(options.end or Position(where=LATEST), queues, bounds, otherwise=LATEST_OFFSET)
        for time_ms, offsets, choose in ((pushed.from_ms, starts, max), (pushed.until_ms, ends, min)):
            if time_ms is not None:
                at_time = reading.resolve(Position(time_ms=time_ms), queues, bounds)
                offsets.update({queue: choose(offset, at_time[queue]) for queue, offset in offsets.items()})
        for queue in queues:
            starts[queue] = max(starts[queue], pushed.from_offset)
            ends[queue] = min(ends[queue], pushed.until_offset) if pushed.until_offset is not None else ends[queue]
        slices = plan.cut(starts, ends, slice_messages=options.slice_messages, min_partitions=options.min_partitions)
        return list(slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        # Spark creates one partition of its own if there are none.
        return self._reading.read(partition) if isinstance(partition, Slice) else iter(())


class _PushFilters:
    """``pushFilters`` that Spark calls if it pushes filters down, and ignores otherwise.

    With ``spark.sql.python.filterPushdown.enabled`` off, which is its default, Spark refuses to run a reader that
    overrides ``pushFilters``. It detects that by ``__func__``; here that is the inherited method, so that a plain
    session works and filters the rows itself.
    """

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)
