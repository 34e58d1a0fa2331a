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

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ternmq.errors import ConfigError, RouteMissing
from ternmq.filter.tags import TagFilter
from ternmq.message import MessageQueue
from ternmq.spark import columns, plan
from ternmq.spark.cluster import Bounds, Cluster, cluster_at
from ternmq.spark.options import (
    EARLIEST,
    EARLIEST_OFFSET,
    LATEST,
    LATEST_OFFSET,
    OffsetTable,
    Position,
    SourceOptions,
    offset_table,
    offsets_of,
)
from ternmq.spark.plan import Slice
from ternmq.spark.pulls import Wanted, read_slice, record_bytes
from ternmq.spark.pushed import Pushed
from ternmq.spark.sink import BatchWriter, StreamWriter
from ternmq.spark.sink_options import SinkOptions

log = logging.getLogger(__name__)

NAME: Final = "ternmq"


class TernSource(DataSource):
    """Driver: the format itself. Options are checked when a reader is made of it, or its schema is asked for."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        # Called by ``load``: a wrong option shows there, not at the first action.
        SourceOptions.parse(self.options)
        return columns.spark_schema()

    def reader(self, schema: StructType) -> BatchReader:
        return BatchReader(SourceOptions.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        return StreamReader(SourceOptions.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        return BatchWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(SinkOptions.parse(self.options), schema, overwrite=overwrite)


# --- What batch and stream have in common -----------------------------------------------------------------------


class Reading:
    """Pickled to executors: what to read and how, and nothing that lives."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns.check_schema(schema)
        self.options = options
        self.schema = schema
        self.tags = options.tags

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Executor: the rows of one slice."""
        options = self.options
        batches = columns.Batches(self.schema, tags=TagFilter.parse(self.tags).tags)
        wanted = Wanted(self.tags, options.sql, options.fail_on_data_loss, options.retry_timeout_ms)
        for records in read_slice(self.cluster(), part, wanted):
            yield batches.batch(records, part.queue)

    def cluster(self) -> Cluster:
        return cluster_at(self.options.name_servers)

    def queues(self) -> list[MessageQueue]:
        """Planner: all queues of the topics chosen, as they are now."""
        options, cluster = self.options, self.cluster()
        topics: Collection[str] = options.topics
        if not topics:
            topics = [topic for topic in cluster.topics() if options.selects(topic)]
            if not topics:
                raise ConfigError(f"no topic matches topicPattern={options.topic_pattern!r}; see `tern topic list`")
        try:
            return cluster.queues(topics)
        except RouteMissing as error:
            raise ConfigError(
                f"there is no topic {error.topic!r} at {options.name_servers}; see `tern topic list`"
            ) from error

    def resolve(
        self, position: Position, queues: Collection[MessageQueue], bounds: Mapping[MessageQueue, Bounds]
    ) -> dict[MessageQueue, int]:
        """Planner: a place in each of these queues, inside its bounds."""
        if position.time_ms is not None:
            return self.cluster().first_since(queues, position.time_ms, timeout_ms=self.options.retry_timeout_ms)
        if position.where == LATEST:
            return {queue: bounds[queue].end for queue in queues}
        given = position.offsets or {}
        for queue in given:
            if queue not in bounds:
                raise ConfigError(f"there is no queue {queue}; see `tern topic status {queue.topic}`")
        return {queue: self._inside(queue, given.get(queue, EARLIEST_OFFSET), bounds[queue]) for queue in queues}

    def _inside(self, queue: MessageQueue, offset: int, bounds: Bounds) -> int:
        if offset == EARLIEST_OFFSET:
            return bounds.first
        if offset == LATEST_OFFSET:
            return bounds.end
        inside = min(max(offset, bounds.first), bounds.end)
        if inside != offset:
            held = f"{bounds.first} to {bounds.end - 1}" if bounds.first < bounds.end else "no messages"
            sentence = f"the offset {offset} of {queue} is out of range; it holds {held}, and the next is {bounds.end}"
            if self.options.fail_on_data_loss:
                raise ConfigError(f"{sentence}; give one of those, or set the option failOnDataLoss to false")
            log.warning("an offset is out of range; the nearest is taken", extra={"why": sentence})
        return inside


# --- Batch --------------------------------------------------------------------------------------------------------


class BatchReader(DataSourceReader):
    """Planner, then executor: one read from a fixed start to a fixed end."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_for_batch()
        self._reading = Reading(options, schema)
        self._pushed = Pushed()

    @property
    def pushFilters(self) -> Callable[[list[Filter]], Iterable[Filter]]:
        return _PushFilters(self._push)

    def _push(self, filters: list[Filter]) -> Iterable[Filter]:
        """Planner: narrow the read by what the filters allow. Spark applies all of them once more, so a filter that
        narrows too little is no mistake.

        Spark 4.3 keeps the plan that comes of this for *every* later query of the same DataFrame, also for those
        without a filter, which would silently get the narrowed rows. So it takes an option of the user to do it."""
        options = self._reading.options
        if not options.push_down_filters:
            return filters
        for one in filters:
            self._pushed.take(one)
        if self._pushed.tags and options.tags == TagFilter.parse("").expression and not options.sql:
            self._reading.tags = self._pushed.tags_expression()
        return filters

    def partitions(self) -> list[InputPartition]:
        """Planner: one task a slice."""
        reading, options, pushed = self._reading, self._reading.options, self._pushed
        queues = [queue for queue in reading.queues() if pushed.selects(queue)]
        bounds = reading.cluster().bounds(queues, timeout_ms=options.retry_timeout_ms)
        starts = reading.resolve(options.start or Position(where=EARLIEST), queues, bounds)
        ends = reading.resolve(options.end or Position(where=LATEST), queues, bounds)
        for time_ms, offsets, choose in ((pushed.from_ms, starts, max), (pushed.until_ms, ends, min)):
            if time_ms is not None:
                found = reading.resolve(Position(time_ms=time_ms), queues, bounds)
                offsets.update({queue: choose(offset, found[queue]) for queue, offset in offsets.items()})
        for queue in queues:
            starts[queue] = max(starts[queue], pushed.from_offset)
            ends[queue] = min(ends[queue], pushed.until_offset) if pushed.until_offset is not None else ends[queue]
        slices = plan.cut(starts, ends, slice_messages=options.slice_messages, min_partitions=options.min_partitions)
        return list(slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        # Spark makes one partition of its own where there is none.
        return self._reading.read(partition) if isinstance(partition, Slice) else iter(())


class _PushFilters:
    """``pushFilters`` that Spark calls where it pushes filters, and overlooks where it does not.

    With ``spark.sql.python.filterPushdown.enabled`` off, which is its default, Spark refuses to run a reader that has a
    ``pushFilters`` of its own. It tells by ``__func__``; here that is the method which pushes nothing, so that a plain
    session works and filters the rows itself.
    """

    def __init__(self, push: Callable[[list[Filter]], Iterable[Filter]]) -> None:
        self.__func__ = DataSourceReader.pushFilters
        self._push = push

    def __call__(self, filters: list[Filter]) -> Iterable[Filter]:
        return self._push(filters)


# --- Stream -------------------------------------------------------------------------------------------------------


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planner (one process for the whole stream), and executor for ``read``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_for_stream()
        self._reading = Reading(options, schema)
        #: The queues as last seen, and when that was.
        self._queues: list[MessageQueue] = []
        self._seen_s: float | None = None
        #: Where a stream that reads what is there now, and no more, ends.
        self._target: dict[MessageQueue, int] | None = None

    # Spark's names and argument types for the rest of this class.
    # ruff: noqa: N802

    def initialOffset(self) -> OffsetTable:
        options, reading = self._reading.options, self._reading
        queues = reading.queues()
        bounds = reading.cluster().bounds(queues, timeout_ms=options.retry_timeout_ms)
        return offset_table(reading.resolve(options.start or Position(where=LATEST), queues, bounds))

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._reading.options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        queues = self._reading.queues()
        bounds = self._reading.cluster().bounds(queues, timeout_ms=self._reading.options.retry_timeout_ms)
        self._target = {queue: bound.end for queue, bound in bounds.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> OffsetTable:
        starts = self._offsets(start)
        ends = self._target if self._target is not None else self._reading.cluster().ends(self._current_queues())
        starts = self._with_new(starts, ends)
        # A queue whose broker is away stays where it is.
        ends = {queue: ends.get(queue, at) for queue, at in starts.items()}
        for queue, end in ends.items():
            if end < starts[queue]:
                self._wanted().lost(queue, end, starts[queue])
        return offset_table(self._trimmed(starts, ends, limit))

    def reportLatestOffset(self) -> OffsetTable:
        return offset_table(self._reading.cluster().ends(self._current_queues()))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options = self._reading.options
        ends = self._offsets(end)
        starts = self._with_new(self._offsets(start), ends)
        slices = plan.cut(starts, ends, slice_messages=options.slice_messages, min_partitions=options.min_partitions)
        return list(slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        assert isinstance(partition, Slice)
        return self._reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        """Tell brokers how far the stream is, under the option ``group``, so that its lag can be seen."""
        group = self._reading.options.group
        if group:
            self._reading.cluster().report(group, self._offsets(end))

    def _offsets(self, table: dict[str, Any]) -> dict[MessageQueue, int]:
        offsets = offsets_of(table, source="the checkpoint")
        options = self._reading.options
        for queue in offsets:
            if not options.selects(queue.topic):
                wanted = ", ".join(options.topics) or options.topic_pattern
                raise ConfigError(
                    f"the checkpoint is of the topic {queue.topic!r}, and the stream reads {wanted!r}; "
                    "give it a checkpointLocation of its own"
                )
        return offsets

    def _current_queues(self) -> list[MessageQueue]:
        now_s = self._reading.cluster().instance.env.clock.monotonic()
        age_s = self._reading.options.discover_interval_ms / 1000
        if self._seen_s is None or now_s - self._seen_s >= age_s:
            self._queues, self._seen_s = self._reading.queues(), now_s
        return self._queues

    def _with_new(
        self, starts: Mapping[MessageQueue, int], queues: Collection[MessageQueue]
    ) -> dict[MessageQueue, int]:
        """Queues that came while the stream ran are read from their first message on."""
        new = [queue for queue in queues if queue not in starts]
        if not new:
            return dict(starts)
        bounds = self._reading.cluster().bounds(new, timeout_ms=self._reading.options.retry_timeout_ms)
        return {**starts, **{queue: bound.first for queue, bound in bounds.items()}}

    def _trimmed(
        self, starts: dict[MessageQueue, int], ends: dict[MessageQueue, int], limit: ReadLimit
    ) -> dict[MessageQueue, int]:
        if isinstance(limit, ReadAllAvailable):
            return ends
        if isinstance(limit, ReadMaxRows):
            ends = plan.trim(starts, ends, limit.max_rows)
        # Spark takes one limit from us; the other one counts as well.
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._reading.options.max_bytes_per_trigger
        if bytes_max is not None:
            waiting = {queue: starts[queue] for queue, end in ends.items() if starts[queue] < end}
            costs = record_bytes(self._reading.cluster(), waiting, self._wanted())
            ends = plan.trim(starts, ends, bytes_max, cost=costs)
        return ends

    def _wanted(self) -> Wanted:
        options = self._reading.options
        return Wanted(self._reading.tags, options.sql, options.fail_on_data_loss, options.retry_timeout_ms)
