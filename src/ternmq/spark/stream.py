"""``spark.readStream.format("ternmq")``: the next messages of all queues, again and again (U1).

Spark asks where the queues end now, cuts what lies between that and the last end into tasks, and keeps the ends in its
checkpoint. Queues, brokers and topics that came meanwhile are looked for as often as ``discoverIntervalMs`` says.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ternmq.errors import ConfigError
from ternmq.message import MessageQueue
from ternmq.spark import plan
from ternmq.spark.cursor import Wanted
from ternmq.spark.options import LATEST, OffsetTable, Position, SourceOptions, offset_table, offsets_of
from ternmq.spark.plan import Slice
from ternmq.spark.pulls import record_bytes
from ternmq.spark.reading import Reading


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
