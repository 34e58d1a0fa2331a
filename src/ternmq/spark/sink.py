"""Rows into topics: ``df.write.format("ternmq")`` and ``df.writeStream.format("ternmq")`` (U2, V2).

Which process calls what: the *planner* makes the writer and checks options and schema; each *executor* calls ``write``
for a task, after which its rows are in the stage (``staging``) and its commit message says where; the *driver*, in a
Python process of its own, calls ``commit`` when all tasks of the batch have succeeded (``publish``, ``ledger``).

Nothing reaches the target topic before ``commit``. ``abort`` has nothing to undo: what is staged and not decided is
never published. With ``delivery=at-least-once`` tasks send straight to the target, and there is nothing to commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from ternmq.env import Env
from ternmq.spark import sink_rows
from ternmq.spark.cluster import cluster_at
from ternmq.spark.ledger import Ledger, Staged, Work
from ternmq.spark.logs import ClusterLogs
from ternmq.spark.publish import Committer
from ternmq.spark.sink_options import SinkOptions
from ternmq.spark.staging import Ship, Shipping, Stage, Straight, Timers, new_id, writable

log = logging.getLogger(__name__)

#: Under which name Spark tells tasks of a stream the query that they belong to (``StreamExecution.QUERY_ID_KEY``).
_QUERY_ID: Final = "sql.streaming.queryId"


class Written(WriterCommitMessage):
    """What one task has staged, in order, and for which query. Travels from executor to driver."""

    def __init__(self, staged: Sequence[Staged], query: str) -> None:
        self.staged = tuple(staged)
        self.query = query


class _Writing:
    """What batch and stream have in common. Pickled to executors: what to write and how, and nothing that lives."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        sink_rows.check_schema(schema, topic=options.topic)
        self.options = options

    def write(self, batches: Iterator[pa.RecordBatch]) -> Written:
        """Executor: the rows of one task into the stage, or straight into the topic."""
        options, task = self.options, TaskContext.get()
        assert task is not None
        cluster = cluster_at(options.name_servers)
        logs = ClusterLogs(cluster, retry_timeout_ms=options.retry_timeout_ms)
        timeout_ms = options.retry_timeout_ms
        ship: Ship = Stage(logs, timeout_ms=timeout_ms).ship
        if not options.is_exactly_once:
            ship = Straight(logs, timeout_ms=timeout_ms).ship
        packer = sink_rows.Packer(
            topic=options.topic,
            namespace=options.namespace,
            partition=task.partitionId(),
            chunk_bytes=options.chunk_bytes,
            drops_reserved=options.drops_reserved,
            queues_of=lambda topic: writable(cluster, logs, topic, timeout_ms=timeout_ms),
            new_id=lambda: new_id(cluster.instance),
        )
        timers = Timers(cluster, logs)
        shipping = Shipping(cluster, ship, bytes_max=options.in_flight_bytes)
        try:
            for batch in batches:
                for chunk in packer.add(batch):
                    timers.check(chunk)
                    shipping.put(chunk)
            for chunk in packer.rest():
                timers.check(chunk)
                shipping.put(chunk)
            return Written(shipping.finish(), task.getLocalProperty(_QUERY_ID) or "")
        finally:
            shipping.close()

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], work: Work, writer: _Steps, *, is_known: bool
    ) -> None:
        """Driver: publish what the tasks have staged."""
        options = self.options
        staged = [one for message in messages if isinstance(message, Written) for one in message.staged]
        cluster = cluster_at(options.name_servers)
        logs = ClusterLogs(cluster, retry_timeout_ms=options.retry_timeout_ms)
        ledger = Ledger(logs, work, new_id=cluster.instance.unique_ids.next, timeout_ms=options.retry_timeout_ms)
        committer = Committer(
            logs,
            ledger,
            at_once=max(1, options.in_flight_bytes // options.chunk_bytes),
            timeout_ms=options.retry_timeout_ms,
            on_step=writer.on_step,
        )
        cluster.run(committer.commit(staged, is_known=is_known))


class _Steps:
    """Where a commit is. Tests override it to break a job off at any step."""

    def on_step(self, step: str) -> None:
        """Driver: a commit has come to this step."""
        log.debug("a commit goes on", extra={"step": step})


class BatchWriter(DataSourceArrowWriter, _Steps):
    """Planner, executor and driver: one write of a DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        options.check_for_batch(overwrite=overwrite)
        self._writing = _Writing(options, schema)
        self._write_id = options.write_id or f"{Env().random.getrandbits(128):032x}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Executor."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Driver: all tasks have succeeded."""
        options = self._writing.options
        if options.is_exactly_once:
            # Without an id of the user's nobody can ever run this write again.
            self._writing.commit(messages, Work(self._write_id, 0), self, is_known=bool(options.write_id))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Driver: what is staged is never decided."""


class StreamWriter(DataSourceStreamArrowWriter, _Steps):
    """Planner, executor and driver: the micro-batches of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        options.check_for_stream(overwrite=overwrite)
        self._writing = _Writing(options, schema)

    # Spark's argument names for the rest of this class.
    # ruff: noqa: N803

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Executor."""
        return self._writing.write(iterator)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Driver: all tasks of a micro-batch have succeeded, in this run of it."""
        if not self._writing.options.is_exactly_once:
            return
        # Spark makes a task even where there are no rows, so there is a message.
        (query,) = {message.query for message in messages if isinstance(message, Written)}
        self._writing.commit(messages, Work(query, batchId), self, is_known=True)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Driver: what is staged is never decided."""
