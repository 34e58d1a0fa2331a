"""Common parts of batch and stream: which queues, from where to where, and how a slice becomes rows (U1).

The user's names have no namespace; those on the wire and in checkpoints do (``NS%orders``). The options add it, and the
rows and filters of a query are without it; between them all queues have their names on the wire.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.types import StructType

from ternmq.client.connect.namespace import unwrap
from ternmq.errors import ConfigError, RouteMissing
from ternmq.filter.tags import TagFilter
from ternmq.message import MessageQueue
from ternmq.spark.runtime.cluster import Bounds, ClusterClient, cluster_at
from ternmq.spark.runtime.garbage import keep_loaded
from ternmq.spark.source import columns
from ternmq.spark.source.bodies import BodyReader
from ternmq.spark.source.cursor import PullParameters
from ternmq.spark.source.options import EARLIEST_OFFSET, LATEST, LATEST_OFFSET, BadMessages, Position, SourceOptions
from ternmq.spark.source.plan import Slice
from ternmq.spark.source.pulls import read_slice

log = logging.getLogger(__name__)


#: Columns that need decompressed bodies.
_NEED_BODIES: Final = frozenset({"body", columns.PROBLEM})


def columns_of(options: SourceOptions) -> Mapping[str, columns.Column]:
    """The columns of a read with these options."""
    return columns.COLUMNS_AND_PROBLEM if options.bad_messages is BadMessages.NULL else columns.COLUMNS


class TopicReading:
    """Pickled to executors: what to read and how, without open resources."""

    def __init__(self, options: SourceOptions, schema: StructType) -> None:
        columns.check_schema(schema, columns.spark_schema(columns_of(options)))
        self.options = options
        self.schema = schema
        self.tags = options.tags

    def read(self, part: Slice) -> Iterator[pa.RecordBatch]:
        """Executor: the rows of one slice."""
        options = self.options
        batches = columns.Batches(self.schema, tags=TagFilter.parse(self.tags).tags, columns=columns_of(options))
        wanted = PullParameters(self.tags, options.sql, options.fail_on_data_loss, options.retry_timeout_ms)
        bodies = BodyReader(
            self.as_shown(part.queue),
            options.bad_messages,
            bytes_max=options.max_body_bytes,
            decompresses=not _NEED_BODIES.isdisjoint(self.schema.names),
        )
        for records in read_slice(self.cluster(), part, wanted):
            for rows in bodies.rows(records):
                batch = batches.of(rows)
                keep_loaded()
                yield batch
        bodies.close()

    def as_shown(self, queue: MessageQueue) -> MessageQueue:
        """A queue with its name in rows."""
        return queue._replace(topic=unwrap(self.options.namespace, queue.topic))

    def cluster(self) -> ClusterClient:
        return cluster_at(self.options.client)

    def queues(self) -> list[MessageQueue]:
        """Planner: all current queues of the selected topics. Waits for name servers, and for a first broker, for
        ``retryTimeoutMs``. Raises ``ConfigError`` for topics that do not exist."""
        cluster = self.cluster()
        return cluster.run(
            cluster.patiently(
                None, lambda: self._find_queues(leave_out_missing=False), timeout_ms=self.options.retry_timeout_ms
            )
        )

    def existing_queues(self, *, wait: bool) -> list[MessageQueue]:
        """Planner: the queues of existing topics, perhaps none. Raises ``NetworkError`` if no name server
        answers or no broker is registered, at once or after ``retryTimeoutMs``."""
        cluster = self.cluster()
        if not wait:
            return cluster.run(self._find_queues(leave_out_missing=True))
        return cluster.run(
            cluster.patiently(
                None, lambda: self._find_queues(leave_out_missing=True), timeout_ms=self.options.retry_timeout_ms
            )
        )

    async def _find_queues(self, *, leave_out_missing: bool) -> list[MessageQueue]:
        options, cluster = self.options, self.cluster()
        await cluster.check_brokers()
        topics: Collection[str] = options.topics
        if not topics:
            topics = [topic for topic in await cluster.topics_on_loop() if options.selects(topic)]
            if not topics and not leave_out_missing:
                raise ConfigError(f"no topic matches topicPattern={options.topic_pattern!r}; see `tern topic list`")
        try:
            return await cluster.queues_on_loop(topics, leave_out_missing=leave_out_missing)
        except RouteMissing as error:
            raise ConfigError(
                f"there is no topic {error.topic!r} at {options.name_servers}; see `tern topic list`"
            ) from error

    def check_named(self, position: Position | None, queues: Collection[MessageQueue]) -> None:
        """Raise ``ConfigError`` if the user names a queue that is not in ``queues``."""
        if position is not None:
            for queue in position.offsets or position.times_ms or ():
                if queue not in queues:
                    raise ConfigError(f"there is no queue {queue}; see `tern topic status {queue.topic}`")

    def resolve(
        self,
        position: Position,
        queues: Collection[MessageQueue],
        bounds: Mapping[MessageQueue, Bounds],
        *,
        otherwise: int = EARLIEST_OFFSET,
    ) -> dict[MessageQueue, int]:
        """Planner: an offset in each of these queues, inside its bounds; ``otherwise`` for those that are not named."""
        timeout_ms = self.options.retry_timeout_ms
        if position.time_ms is not None:
            return self.cluster().first_since(dict.fromkeys(queues, position.time_ms), timeout_ms=timeout_ms)
        if position.where == LATEST:
            return {queue: bounds[queue].end for queue in queues}
        given = position.offsets or {}
        if position.times_ms is not None:
            times_ms = {queue: time_ms for queue, time_ms in position.times_ms.items() if queue in bounds}
            given = self.cluster().first_since(times_ms, timeout_ms=timeout_ms)
        return {queue: self._inside(queue, given.get(queue, otherwise), bounds[queue]) for queue in queues}

    def _inside(self, queue: MessageQueue, offset: int, bounds: Bounds) -> int:
        if offset == EARLIEST_OFFSET:
            return bounds.first
        if offset == LATEST_OFFSET:
            return bounds.end
        inside = min(max(offset, bounds.first), bounds.end)
        if inside != offset:
            held = f"{bounds.first} to {bounds.end - 1}" if bounds.first < bounds.end else "no messages"
            sentence = f"the offset {offset} of {queue} is out of range; it has {held}, and the next is {bounds.end}"
            if self.options.fail_on_data_loss:
                raise ConfigError(f"{sentence}; give one of these, or set the option failOnDataLoss to false")
            log.warning("%s; using the nearest offset", sentence)
        return inside
