"""``spark.readStream.format("ternmq")``: the next messages of all queues, repeatedly (U1).

Spark asks for the current ends of the queues, splits the messages since the last ends into tasks, and keeps the ends in
its checkpoint. New queues, brokers and topics are searched for in the interval ``discoverIntervalMs``.

The start of a new queue is decided once. The batch in which it appears only makes Spark store its start, and the next
one reads from there: so a repeated batch reads the same. A queue may be new to the stream but not to its broker, which
was down when the stream began. So the start of a stream that begins with ``latest`` or at a time applies to all queues,
whenever they appear: it is in the checkpoint as a time (``options.SINCE``).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from ternmq.errors import ConfigError, NetworkError
from ternmq.message import MessageQueue
from ternmq.spark.source import plan
from ternmq.spark.source.cursor import PullParameters
from ternmq.spark.source.options import (
    LATEST,
    OffsetsByTopic,
    Position,
    SourceOptions,
    checkpoint_of,
    checkpoint_table,
    offset_table,
)
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.pulls import record_bytes
from ternmq.spark.source.reading import TopicReading

log = logging.getLogger(__name__)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Planner (one process for the whole stream), and executor for ``read``."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        options.check_for_stream()
        self._reading = TopicReading(options, schema)
        #: The known queues, and when they were last searched for; None: not yet.
        self._queues: list[MessageQueue] = []
        self._looked_s: float | None = None
        #: Queues that are missing in it but not known to be deleted: their brokers are down.
        self._away: set[MessageQueue] = set()
        #: The end of a stream that reads only the present messages.
        self._target: dict[MessageQueue, int] | None = None
        #: The last offsets reported to brokers under the option ``group``.
        self._reported: dict[MessageQueue, int] = {}
        #: When the last batch began.
        self._batch_s: float | None = None

    # Spark's names and argument types for the rest of this class.
    # ruff: noqa: N802

    def initialOffset(self) -> dict[str, object]:
        options, reading = self._reading.options, self._reading
        start = options.start or Position(where=LATEST)
        # Taken before any queue is read: all later messages are read, in whichever queue they are stored.
        now_ms = reading.cluster().instance.env.clock.now_ms()
        queues = reading.queues()
        reading.check_named(start, queues)
        bounds = reading.cluster().bounds(queues, timeout_ms=options.retry_timeout_ms)
        since_ms = now_ms if start.where == LATEST else start.time_ms or 0
        starts = reading.resolve(start, queues, bounds)
        if self._target is not None:
            # Spark asks for the end first: messages between the two requests are not lost, and not read yet, either.
            self._target |= {queue: max(end, starts.get(queue, 0)) for queue, end in self._target.items()}
        return checkpoint_table(starts, since_ms)

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self._reading.options
        if options.max_messages_per_trigger is not None:
            return ReadMaxRows(options.max_messages_per_trigger)
        if options.max_bytes_per_trigger is not None:
            return ReadMaxBytes(options.max_bytes_per_trigger)
        if options.min_messages_per_trigger is not None:
            return ReadMinRows(options.min_messages_per_trigger)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        queues = self._reading.existing_queues(wait=True)
        bounds = self._reading.cluster().bounds(queues, timeout_ms=self._reading.options.retry_timeout_ms)
        self._queues, self._target = queues, {queue: bound.end for queue, bound in bounds.items()}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, object]:
        starts, since_ms = self._checkpoint(start)
        since_ms = since_ms or 0
        # All before it is done. Spark also reports that with ``commit``, but not before the next batch.
        self._report(starts)
        is_new_look = self._target is not None or self._look()
        ends = self._target if self._target is not None else self._reading.cluster().ends(self._queues)
        if is_new_look:
            starts = self._without_removed(starts)
        new = self._starts_of_new([queue for queue in ends if queue not in starts], since_ms)
        new = {queue: min(at, ends[queue]) for queue, at in new.items()}
        # A queue whose broker is down keeps its offset.
        ends = {queue: ends.get(queue, at) for queue, at in starts.items()}
        for queue, end in self._behind(starts, ends).items():
            self._wanted().lost(queue, end, starts[queue])
        if not self._is_enough(starts, ends, limit):
            ends = starts
        return checkpoint_table({**self._trimmed(starts, ends, limit), **new}, since_ms)

    def reportLatestOffset(self) -> OffsetsByTopic:
        self._look()
        return offset_table(self._reading.cluster().ends(self._queues))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        options = self._reading.options
        starts, _ = self._checkpoint(start)
        ends, since_ms = self._checkpoint(end)
        if since_ms is None:
            # A batch planned by an earlier version also reads new queues, but their start was not stored. A queue with
            # an unknown start would count as read, so wait for the brokers.
            starts |= self._patient_starts([queue for queue in ends if queue not in starts], 0)
        # For a queue that is not in the start, the end is where the next batch begins.
        slices = plan.cut(
            {**ends, **starts}, ends, slice_messages=options.slice_messages, min_partitions=options.min_partitions
        )
        return list(slices)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        assert isinstance(partition, Slice)
        return self._reading.read(partition)

    def commit(self, end: dict[str, Any]) -> None:
        self._report(self._checkpoint(end)[0])

    def _report(self, offsets: dict[MessageQueue, int]) -> None:
        """Report the stream's progress to brokers, under the option ``group``, so that its lag is visible."""
        group = self._reading.options.group
        if group and offsets != self._reported:
            self._reading.cluster().report(group, offsets)
            self._reported = offsets

    def _checkpoint(self, table: dict[str, Any]) -> tuple[dict[MessageQueue, int], int | None]:
        offsets, since_ms = checkpoint_of(table)
        options = self._reading.options
        for queue in offsets:
            if not options.selects(queue.topic):
                wanted = ", ".join(options.topics) or options.topic_pattern
                raise ConfigError(
                    f"the checkpoint belongs to topic {queue.topic!r}, but the stream reads {wanted!r}; use "
                    "another checkpointLocation"
                )
        return offsets, since_ms

    # --- New and deleted queues -----------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Search for queues, if it is time; returns whether it was. If no name server answers, known ones are read."""
        now_s = self._now_s()
        if self._looked_s is not None and now_s - self._looked_s < self._reading.options.discover_interval_ms / 1000:
            return False
        try:
            # A stream that was just restarted knows no queue, and no address.
            self._queues = self._reading.existing_queues(wait=not self._queues)
        except NetworkError as error:
            if not self._queues:
                raise
            log.warning("cannot search for new topics: %s; the stream continues with the known ones", error)
            return False
        finally:
            self._looked_s = self._now_s()
        return True

    def _without_removed(self, starts: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """The offsets without those of queues that do not exist any more. Raises ``MessagesLost``."""
        missing = set(starts).difference(self._queues)
        removed = self._reading.cluster().removed(missing) if missing else set()
        for queue in sorted(removed):
            self._wanted().removed(queue, starts[queue])
        away = missing - removed
        if away - self._away:
            log.warning(
                "the brokers of %s are not available; the stream waits for them", ", ".join(map(str, sorted(away)))
            )
        self._away = away
        return {queue: at for queue, at in starts.items() if queue not in removed}

    def _starts_of_new(self, queues: Collection[MessageQueue], since_ms: int) -> dict[MessageQueue, int]:
        """The starts of new queues; those whose brokers do not answer are added later."""
        if not queues:
            return {}
        if self._target is not None:
            # There is no later: the stream would end without them.
            return self._patient_starts(queues, since_ms)
        return self._reading.cluster().starts_since(queues, since_ms)

    def _patient_starts(self, queues: Collection[MessageQueue], since_ms: int) -> dict[MessageQueue, int]:
        """The same for all these queues; raises ``NetworkError`` after ``retryTimeoutMs``."""
        reading = self._reading
        return reading.cluster().first_since(
            dict.fromkeys(queues, since_ms), timeout_ms=reading.options.retry_timeout_ms
        )

    def _behind(self, starts: Mapping[MessageQueue, int], ends: dict[MessageQueue, int]) -> dict[MessageQueue, int]:
        """Queues that end before the stream's offset, each with its end. A slave may only lag: its queue is left where
        the stream is until the master answers."""
        short = [queue for queue, end in ends.items() if end < starts[queue]]
        if not short:
            return {}
        known = self._reading.cluster().ends_on_masters(short)
        ends |= {queue: known.get(queue, starts[queue]) for queue in short}
        return {queue: ends[queue] for queue in short if ends[queue] < starts[queue]}

    # --- Limits ---------------------------------------------------------------------------------------------------

    def _is_enough(
        self, starts: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int], limit: ReadLimit
    ) -> bool:
        """Whether to start a batch now, by ``minMessagesPerTrigger`` and ``maxTriggerDelayMs``."""
        options = self._reading.options
        waiting = sum(max(0, end - starts[queue]) for queue, end in ends.items())
        now_s = self._now_s()
        # A stream that ends by itself reads only the messages that are present at its start.
        is_bound = self._target is not None or isinstance(limit, ReadAllAvailable)
        if options.min_messages_per_trigger is not None and not is_bound and self._batch_s is not None:
            waited_s = now_s - self._batch_s
            if waiting < options.min_messages_per_trigger and waited_s < options.max_trigger_delay_ms / 1000:
                return False
        if waiting:
            self._batch_s = now_s
        return True

    def _trimmed(
        self, starts: dict[MessageQueue, int], ends: dict[MessageQueue, int], limit: ReadLimit
    ) -> dict[MessageQueue, int]:
        if isinstance(limit, ReadAllAvailable):
            return ends
        if isinstance(limit, ReadMaxRows):
            ends = plan.trim(starts, ends, limit.max_rows)
        # Spark passes one limit; our other limit applies, too.
        bytes_max = limit.max_bytes if isinstance(limit, ReadMaxBytes) else self._reading.options.max_bytes_per_trigger
        if bytes_max is not None:
            waiting = {queue: starts[queue] for queue, end in ends.items() if starts[queue] < end}
            costs = record_bytes(self._reading.cluster(), waiting, self._wanted())
            ends = plan.trim(starts, ends, bytes_max, cost=costs)
        return ends

    def _wanted(self) -> PullParameters:
        options = self._reading.options
        return PullParameters(self._reading.tags, options.sql, options.fail_on_data_loss, options.retry_timeout_ms)

    def _now_s(self) -> float:
        return self._reading.cluster().instance.env.clock.monotonic()
