"""Rows into topics: ``df.write.format("ternmq")`` and ``df.writeStream.format("ternmq")`` (U2, V2).

Processes: the *planner* creates the writer and checks options and schema; each *executor* calls ``write`` for a task,
after which its rows are in the stage (``staging``) and its commit message has their positions; the *driver*, in a
separate Python process, calls ``commit`` when all tasks of the batch have succeeded (``publish``, ``ledger``).

No row reaches the target topic before ``commit``. ``abort`` does nothing: staged rows without a decision are never
published. With ``delivery=at-least-once`` tasks send directly to the target, and there is nothing to commit.
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

from ternmq.client.connect.namespace import wrap
from ternmq.env import Env
from ternmq.errors import ConfigError
from ternmq.spark.runtime.cluster import ClusterClient, cluster_at
from ternmq.spark.sink import rows as sink_rows
from ternmq.spark.sink.ledger import Ledger
from ternmq.spark.sink.ledger_entries import RunIdentity, SinkWork, Staged, WorkKind
from ternmq.spark.sink.logs import ClusterLogs
from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.sink.publish import Committer
from ternmq.spark.sink.staging import Ship, Shipping, Stage, Straight, Timers, new_id, writable

log = logging.getLogger(__name__)

#: The name of the property with the query id of a stream, for its tasks (``StreamExecution.QUERY_ID_KEY``).
_QUERY_ID: Final = "sql.streaming.queryId"


class Written(WriterCommitMessage):
    """The staged chunks of one task, in order, and its query. Sent from executor to driver."""

    def __init__(self, staged: Sequence[Staged], query: str) -> None:
        self.staged = tuple(staged)
        self.query = query


class _Writing:
    """Common part of batch and stream. Pickled to executors: what to write and how, without open resources."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        sink_rows.check_schema(schema, topic=options.topic)
        self.options = options

    def write(self, batches: Iterator[pa.RecordBatch], *, is_stream: bool) -> Written:
        """Executor: write the rows of one task to the stage, or directly to the topic."""
        options, task = self.options, TaskContext.get()
        assert task is not None
        query = checked_query(task.getLocalProperty(_QUERY_ID)) if is_stream and options.is_exactly_once else ""
        cluster = cluster_at(options.client)
        logs = self._logs(cluster)
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
            return Written(shipping.finish(), query)
        finally:
            shipping.close()

    def commit(
        self, messages: Sequence[WriterCommitMessage | None], work: SinkWork, writer: _Steps, *, is_new: bool = False
    ) -> None:
        """Driver: publish the chunks that the tasks have staged."""
        options = self.options
        staged = [one for message in messages if isinstance(message, Written) for one in message.staged]
        cluster = cluster_at(options.client)
        logs = self._logs(cluster)
        ledger = Ledger(
            logs,
            work,
            self._claim(work.kind),
            retired=options.retired_brokers,
            new_id=cluster.instance.unique_ids.next,
            timeout_ms=options.retry_timeout_ms,
        )
        committer = Committer(
            logs,
            ledger,
            at_once=max(1, options.in_flight_bytes // options.chunk_bytes),
            timeout_ms=options.retry_timeout_ms,
            on_step=writer.on_step,
        )
        cluster.run(committer.commit(staged, is_new=is_new))

    def _logs(self, cluster: ClusterClient) -> ClusterLogs:
        options = self.options
        return ClusterLogs(cluster, retry_timeout_ms=options.retry_timeout_ms, accepts_unsafe=options.accepts_unsafe)

    def _claim(self, kind: WorkKind) -> RunIdentity:
        options = self.options
        target = wrap(options.namespace, options.topic) if options.topic else ""
        if kind is not WorkKind.STREAM:
            # Spark passes a checkpoint to a batch write, too, if one is set.
            return RunIdentity(target, any_rows=options.any_rows)
        return RunIdentity(target, options.checkpoint, options.checkpoint_moved_from, options.any_rows)


def checked_query(query_id: str | None) -> str:
    """The id of a stream that Spark has passed to a task; raises ``ConfigError`` if there is none."""
    if not query_id:
        # All such streams would share their batches in the ledger.
        raise ConfigError(
            f"Spark did not pass the id of the query to its tasks (local property {_QUERY_ID}), so the sink "
            "cannot identify the stream; use foreachBatch with the options txnAppId and txnVersion, or "
            "delivery=at-least-once"
        )
    return query_id


def stream_work(query_id: str, app_id: str, batch: int) -> SinkWork:
    """A micro-batch: identified by the query's id, and by the user's id if there is one."""
    return SinkWork(f"{query_id}@{app_id}" if app_id else query_id, batch)


def write_work(options: SinkOptions, write_id: str) -> SinkWork:
    """A batch write: identified by application and version, or else by its id. Ids have no @, so they are distinct."""
    if options.txn_version is not None:
        return SinkWork(f"txn@{options.txn_app_id}", options.txn_version, WorkKind.TRANSACTION)
    return SinkWork(write_id, 0, WorkKind.WRITE)


class _Steps:
    """The step of a commit. Tests override it to interrupt a job at any step."""

    def on_step(self, step: str) -> None:
        """Driver: a commit has reached this step."""
        log.debug("commit step: %s", step)


class TopicBatchWriter(DataSourceArrowWriter, _Steps):
    """Planner, executor and driver: one write of a DataFrame."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        options.check_for_batch(overwrite=overwrite)
        self._writing = _Writing(options, schema)
        self._write_id = options.write_id or f"{Env().random.getrandbits(128):032x}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Executor."""
        return self._writing.write(iterator, is_stream=False)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Driver: all tasks have succeeded."""
        options = self._writing.options
        if options.is_exactly_once:
            # Without an id of the user this write has a new one; if it fails half-way, the error contains it.
            is_new = not (options.write_id or options.txn_app_id)
            self._writing.commit(messages, write_work(options, self._write_id), self, is_new=is_new)

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Driver: the staged chunks are never decided."""


class TopicStreamWriter(DataSourceStreamArrowWriter, _Steps):
    """Planner, executor and driver: the micro-batches of a stream."""

    def __init__(self, options: SinkOptions, schema: StructType, *, overwrite: bool) -> None:
        options.check_for_stream(overwrite=overwrite)
        self._writing = _Writing(options, schema)

    # Spark's argument names for the rest of this class.
    # ruff: noqa: N803

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        """Executor."""
        return self._writing.write(iterator, is_stream=True)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Driver: all tasks of a micro-batch have succeeded, in this run of it."""
        if not self._writing.options.is_exactly_once:
            return
        # Spark runs a task even if there are no rows, so there is a message.
        (query,) = {message.query for message in messages if isinstance(message, Written)}
        self._writing.commit(messages, stream_work(query, self._writing.options.txn_app_id, batchId), self)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Driver: the staged chunks are never decided."""
