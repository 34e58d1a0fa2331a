"""What a batch and a stream have in common: which queues, from where to where, and how a slice becomes rows (U1).

A user's names have no namespace, those on the wire and in checkpoints do (``NS%orders``). Between the options, which
put it on, and the rows and filters of a query, which are without it, all queues here are named as on the wire.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping

import pyarrow as pa
from pyspark.sql.types import StructType

from ternmq.client.namespace import unwrap
from ternmq.errors import ConfigError, RouteMissing
from ternmq.filter.tags import TagFilter
from ternmq.message import MessageQueue
from ternmq.spark import columns
from ternmq.spark.cluster import Bounds, Cluster, cluster_at
from ternmq.spark.cursor import Wanted
from ternmq.spark.garbage import keep_loaded
from ternmq.spark.options import EARLIEST_OFFSET, LATEST, LATEST_OFFSET, Position, SourceOptions
from ternmq.spark.plan import Slice
from ternmq.spark.pulls import read_slice

log = logging.getLogger(__name__)


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
        shown = self.as_shown(part.queue)
        for records in read_slice(self.cluster(), part, wanted):
            batch = batches.batch(records, shown)
            keep_loaded()
            yield batch

    def as_shown(self, queue: MessageQueue) -> MessageQueue:
        """A queue as rows name it."""
        return queue._replace(topic=unwrap(self.options.namespace, queue.topic))

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
