"""Running a Spark job: reporting its progress, stopping it, and its errors (U5).

A pipeline is a function that gets a session and a ``Watch``, and does its work inside one of two calls::

    watch.run("archive", spark, lambda: table.write.parquet(path))       # an action, from start to end
    watch.follow("archive", table.writeStream….start())                   # a stream, until it ends or is stopped

``follow_all`` is ``follow`` for several streams that belong together. All of them report their ``JobProgress`` to the
owner of the ``Watch``, about once a second; all end early and cleanly after ``Watch.stop()``, which any thread and
signal handler may call; and all raise an error as one sentence (``JobFailed``), with Spark's trace in the log.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from ternmq.errors import ConfigError, TernError
from ternmq.spark.session import sentence_of, use
from ternmq.spark.source.options import checkpoint_of

log = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL_S: Final = 1

#: Observed metrics whose names begin like this, with a value of this name, count messages that a stream skips.
LEFT_OUT: Final = "ternmq_left_out"

#: Spark's message when a Python process took too long to start.
_TOO_SLOW: Final = "Python worker failed to connect back"
_STARTS_MAX: Final = 5

_numbers = itertools.count(1)


class JobFailed(TernError):
    """A Spark job ended with an error; the text is only the cause."""


class JobStopped(TernError):
    """A job was stopped before its end."""


@dataclass(slots=True, frozen=True, kw_only=True)
class JobProgress:
    """The progress of a job. Unknown values are None."""

    job: str
    #: Messages that this run has read so far, and messages per second in the last batch.
    rows: int | None = None
    rows_per_s: float | None = None
    #: Messages that are not read yet.
    lag: int | None = None
    #: Messages that this run has read and skipped, because they do not match the columns.
    left_out: int | None = None
    #: Number and duration of the last micro-batch.
    batch: int | None = None
    batch_ms: int | None = None
    #: Finished parts, if their number is known: tasks of an action, messages of a stream that ends.
    done: int | None = None
    total: int | None = None


Tell = Callable[[JobProgress], None]


class Watch:
    """Reports the progress of a job, and can stop it. Serves several jobs, one after the other."""

    def __init__(self, tell: Tell | None = None, *, interval_s: int = INTERVAL_S) -> None:
        self._tell = tell or _report_nothing
        self._interval_s = interval_s
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop the running job, and any later one. May be called in threads and signal handlers."""
        self._stopped.set()

    def stopped_within(self, seconds: float) -> bool:
        """Wait for this time, or until stopped; returns whether it is stopped."""
        return self._stopped.wait(seconds)

    def tell(self, progress: JobProgress) -> None:
        """Report the progress of work that consists of several actions."""
        self._tell(progress)

    # --- An action ------------------------------------------------------------------------------------------------

    def run(self, job: str, spark: SparkSession, work: Callable[[], T]) -> T:
        """Call ``work``, which runs Spark's actions, and return its result. Raises ``JobStopped`` if stopped."""
        if self.stopped:
            raise JobStopped(f"{job} was stopped before it began")
        group = f"ternmq-{job}-{next(_numbers)}"
        done = threading.Event()
        deaf: list[Exception] = []

        def watch() -> None:
            try:
                self._watch(job, spark, group, done)
            except Exception as error:
                # The output was closed, as in `… | head`: stop the job.
                deaf.append(error)
                spark.sparkContext.cancelJobGroup(group)

        watcher = threading.Thread(target=watch, name=group, daemon=True)
        use(spark)
        spark.sparkContext.setJobGroup(group, job, interruptOnCancel=True)
        watcher.start()
        try:
            return work()
        except Exception as error:
            if deaf:
                raise deaf[0] from error
            if self.stopped:
                raise JobStopped(f"{job} was stopped before its end") from error
            raise _failed(job, error) from error
        finally:
            done.set()
            watcher.join()
            # Later jobs of this thread do not belong to it.
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
            spark.sparkContext.setLocalProperty("spark.job.description", "")

    def _watch(self, job: str, spark: SparkSession, group: str, done: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(self._interval_s):
            if self.stopped:
                # Repeatedly: an action may begin its next Spark job after the first was cancelled.
                spark.sparkContext.cancelJobGroup(group)
                continue
            tasks = finished = 0
            for job_id in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job_id)
                for stage in map(tracker.getStageInfo, info.stageIds if info else ()):
                    if stage is not None:
                        tasks, finished = tasks + stage.numTasks, finished + stage.numCompletedTasks
            if tasks:
                self._tell(JobProgress(job=job, done=finished, total=tasks))

    # --- A stream -------------------------------------------------------------------------------------------------

    def follow(self, job: str, query: StreamingQuery) -> int:
        """Wait until a stream ends, or end it when stopped, which is not an error: it resumes from its checkpoint.
        Returns the number of messages read."""
        return self.follow_all({job: query})[job].rows or 0

    def follow_all(self, queries: Mapping[str, StreamingQuery]) -> dict[str, JobProgress]:
        """The same for parallel streams, by the names of their jobs. If one fails, the others are stopped.
        Returns the last progress of each."""
        seen = {job: _Seen(job) for job in queries}
        running = dict(queries)
        job = ""
        try:
            while running and not self.stopped:
                job, query = next(iter(running.items()))
                query.awaitTermination(self._interval_s)
                for job, query in list(running.items()):
                    # Checked before its reports, so that the last ones are not missed.
                    is_active, error = query.isActive, query.exception()
                    self._tell_news(seen[job], query)
                    if error is not None:
                        raise error
                    if not is_active:
                        del running[job]
            for job, query in running.items():
                query.stop()
                self._tell_news(seen[job], query)
        except Exception as error:
            raise _failed(job, error) from error
        finally:
            for query in queries.values():
                query.stop()
        return {job: one.told for job, one in seen.items()}

    def _tell_news(self, seen: _Seen, query: StreamingQuery) -> None:
        for progress in map(_plain, query.recentProgress):
            if seen.take(progress):
                self._tell(seen.told)


def start(writer: DataStreamWriter) -> StreamingQuery:
    """Start a stream, and wait until its sources are ready.

    For each of them Spark starts a Python process and waits ten seconds, which is not enough on a busy machine. Nothing
    has been read then, so the stream is started again.
    """
    attempt = 0
    use(writer._spark)  # noqa: SLF001 - it has no other name
    while True:
        attempt += 1
        query = writer.start()
        try:
            while query.isActive and query.status["message"].startswith("Initializing"):
                query.awaitTermination(INTERVAL_S)
            error: Exception | None = query.exception()
        except StreamingQueryException as raised:
            error = raised
        if error is None:
            return query
        if _TOO_SLOW not in str(error) or attempt == _STARTS_MAX:
            raise error
        log.warning("a Python worker of Spark did not start in time; restarting the stream")


class _Seen:
    """The reports of Spark about a stream so far."""

    def __init__(self, job: str) -> None:
        self.rows = 0
        self.left_out: int | None = None
        self.told = JobProgress(job=job)
        #: Spark keeps its last hundred reports; these are the number and time of the last one that was processed.
        self._batch = -1
        self._at = ""

    def take(self, progress: Mapping[str, Any]) -> bool:
        """Process a report; returns whether it was new. Between batches, reports contain the lag."""
        at, batch, sources = str(progress["timestamp"]), int(progress["batchId"]), progress["sources"]
        if at <= self._at:
            return False
        self._at = at
        rows = sum(map(_rows, sources))
        lag = _sum(map(_lag, sources))
        if batch > self._batch:
            self.rows += rows
            self.left_out = _sum([self.left_out, *_left_out(progress)])
            self._batch = batch
        duration_ms = int(progress.get("batchDuration") or 0)
        self.told = JobProgress(
            job=self.told.job,
            rows=self.rows,
            rows_per_s=rows * 1000 / duration_ms if duration_ms else None,
            lag=lag,
            left_out=self.left_out,
            batch=batch,
            batch_ms=duration_ms,
            done=self.rows,
            total=None if lag is None else self.rows + lag,
        )
        return True


def _rows(source: Mapping[str, Any]) -> int:
    """Messages of a batch. Computed from the offsets, because Spark's count doubles if a batch is read twice."""
    starts, ends = _offsets(source.get("startOffset")), _offsets(source.get("endOffset"))
    if starts is None or ends is None:
        return int(source["numInputRows"])
    return sum(end - starts[queue] for queue, end in ends.items() if queue in starts)


def _lag(source: Mapping[str, Any]) -> int | None:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if ends is None or latest is None:
        return None
    return sum(max(0, end - ends.get(queue, 0)) for queue, end in latest.items())


def _left_out(progress: Mapping[str, Any]) -> list[int]:
    observed: Mapping[str, Mapping[str, Any]] = progress.get("observedMetrics") or {}
    return [int(values[LEFT_OUT]) for name, values in observed.items() if name.startswith(LEFT_OUT)]


def _offsets(table: object) -> dict[Any, int] | None:
    """A source's offsets, if it is a source of TernMQ."""
    try:
        return checkpoint_of(table)[0] or None
    except ConfigError:
        return None


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _plain(progress: Any) -> Mapping[str, Any]:
    """Spark's progress in the form of its JSON: PySpark's object has the offsets as texts."""
    table: Mapping[str, Any] = json.loads(progress.json)
    return table


def _failed(job: str, error: Exception) -> TernError:
    if isinstance(error, TernError):
        return error
    log.error("job %s failed", job, exc_info=error)
    return JobFailed(sentence_of(error))


def _report_nothing(_progress: JobProgress) -> None:
    """For jobs without reports."""
