"""Running a Spark job that somebody watches: how far it is, how it is stopped, how it fails (U5).

A pipeline is a function that gets a session and a ``Watch``, and does its work inside one of two calls::

    watch.run("archive", spark, lambda: table.write.parquet(path))       # an action, from beginning to end
    watch.follow("archive", table.writeStream….start())                   # a stream, until it ends or is stopped

Both tell ``Progress`` to whoever made the ``Watch``, about once a second; both end early and cleanly after
``Watch.stop()``, which any thread and any signal handler may call; and both raise what went wrong as one sentence
(``JobFailed``), with Spark's trace in the log.
"""

from __future__ import annotations

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from ternmq.errors import ConfigError, TernError
from ternmq.spark.options import offsets_of
from ternmq.spark.session import sentence_of

log = logging.getLogger(__name__)

T = TypeVar("T")

INTERVAL_S: Final = 1

_numbers = itertools.count(1)


class JobFailed(TernError):
    """A Spark job ended with an error; the text is the cause alone."""


class JobStopped(TernError):
    """A job was stopped before its end."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Progress:
    """How far a job is. What is not known is None."""

    job: str
    #: Messages that this run has read so far, and how many a second in the last batch.
    rows: int | None = None
    rows_per_s: float | None = None
    #: Messages that wait to be read.
    lag: int | None = None
    #: The number of the last micro-batch, and how long it took.
    batch: int | None = None
    batch_ms: int | None = None
    #: Parts done, where their number is known: tasks of an action, messages of a stream that has an end.
    done: int | None = None
    total: int | None = None


Tell = Callable[[Progress], None]


class Watch:
    """Who is told how far a job is, and who may stop it. Serves several jobs, one after the other."""

    def __init__(self, tell: Tell | None = None, *, interval_s: int = INTERVAL_S) -> None:
        self._tell = tell or _tell_nobody
        self._interval_s = interval_s
        self._stopped = threading.Event()

    @property
    def stopped(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Have the running job, and any later one, end. Safe in threads and signal handlers."""
        self._stopped.set()

    # --- An action ------------------------------------------------------------------------------------------------

    def run(self, job: str, spark: SparkSession, work: Callable[[], T]) -> T:
        """Do ``work``, which runs Spark's actions, and give what it gives. Raises ``JobStopped`` when stopped."""
        if self.stopped:
            raise JobStopped(f"{job} was stopped before it began")
        group = f"ternmq-{job}-{next(_numbers)}"
        done = threading.Event()
        deaf: list[Exception] = []

        def watch() -> None:
            try:
                self._watch(job, spark, group, done)
            except Exception as error:
                # Nobody to tell, as in `… | head`: no reason to go on.
                deaf.append(error)
                spark.sparkContext.cancelJobGroup(group)

        watcher = threading.Thread(target=watch, name=group, daemon=True)
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
            # Later jobs of this thread are none of ours.
            spark.sparkContext.setLocalProperty("spark.jobGroup.id", "")
            spark.sparkContext.setLocalProperty("spark.job.description", "")

    def _watch(self, job: str, spark: SparkSession, group: str, done: threading.Event) -> None:
        tracker = spark.sparkContext.statusTracker()
        while not done.wait(self._interval_s):
            if self.stopped:
                # Again and again: an action may begin its next Spark job after the first was cancelled.
                spark.sparkContext.cancelJobGroup(group)
                continue
            tasks = finished = 0
            for job_id in tracker.getJobIdsForGroup(group):
                info = tracker.getJobInfo(job_id)
                for stage in map(tracker.getStageInfo, info.stageIds if info else ()):
                    if stage is not None:
                        tasks, finished = tasks + stage.numTasks, finished + stage.numCompletedTasks
            if tasks:
                self._tell(Progress(job=job, done=finished, total=tasks))

    # --- A stream -------------------------------------------------------------------------------------------------

    def follow(self, job: str, query: StreamingQuery) -> int:
        """Wait for a stream to end, or end it when stopped, which is no error: it resumes from its checkpoint.
        Gives the number of messages that were read."""
        seen = _Seen(job)
        try:
            while not query.awaitTermination(self._interval_s):
                if self.stopped:
                    query.stop()
                    break
                self._tell_news(seen, query)
            self._tell_news(seen, query)
        except Exception as error:
            query.stop()
            raise _failed(job, error) from error
        return seen.rows

    def _tell_news(self, seen: _Seen, query: StreamingQuery) -> None:
        for progress in map(_plain, query.recentProgress):
            if seen.take(progress):
                self._tell(seen.told)


class _Seen:
    """What Spark has told about a stream so far."""

    def __init__(self, job: str) -> None:
        self.rows = 0
        self.told = Progress(job=job)
        #: Spark keeps its last hundred reports; these are the number and time of the last that was taken in.
        self._batch = -1
        self._at = ""

    def take(self, progress: Mapping[str, Any]) -> bool:
        """Take in a report; whether it was news. Between batches, reports tell of the lag."""
        at, batch, sources = str(progress["timestamp"]), int(progress["batchId"]), progress["sources"]
        if at <= self._at:
            return False
        self._at = at
        rows = sum(map(_rows, sources))
        lag = _sum(map(_lag, sources))
        if batch > self._batch:
            self.rows += rows
            self._batch = batch
        duration_ms = int(progress.get("batchDuration") or 0)
        self.told = Progress(
            job=self.told.job,
            rows=self.rows,
            rows_per_s=rows * 1000 / duration_ms if duration_ms else None,
            lag=lag,
            batch=batch,
            batch_ms=duration_ms,
            done=self.rows,
            total=None if lag is None else self.rows + lag,
        )
        return True


def _rows(source: Mapping[str, Any]) -> int:
    """Messages of a batch. Offsets tell it better than Spark's count, which doubles where a batch is read twice."""
    starts, ends = _offsets(source.get("startOffset")), _offsets(source.get("endOffset"))
    if starts is None or ends is None:
        return int(source["numInputRows"])
    return sum(end - starts[queue] for queue, end in ends.items() if queue in starts)


def _lag(source: Mapping[str, Any]) -> int | None:
    ends, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
    if ends is None or latest is None:
        return None
    return sum(max(0, end - ends.get(queue, 0)) for queue, end in latest.items())


def _offsets(table: object) -> dict[Any, int] | None:
    """A source's offsets, if it is one of ours."""
    try:
        return offsets_of(table, source="a checkpoint") or None
    except ConfigError:
        return None


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None


def _plain(progress: Any) -> Mapping[str, Any]:
    """Spark's progress as its JSON says it: PySpark's object has the offsets as texts."""
    table: Mapping[str, Any] = json.loads(progress.json)
    return table


def _failed(job: str, error: Exception) -> TernError:
    if isinstance(error, TernError):
        return error
    log.error("a job failed", extra={"job": job}, exc_info=error)
    return JobFailed(sentence_of(error))


def _tell_nobody(_progress: Progress) -> None:
    """For jobs that run unseen."""
