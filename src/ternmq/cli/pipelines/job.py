"""Shared by the commands of ``tern pipeline``: a session, a line with the progress of the job, a clean stop (U5).

::

    with spark_job("archive", master=master, settings=spark_settings, as_json=as_json) as (spark, watch):
        done = archive(spark, …, watch=watch)
    Output(as_json=as_json).item(…)  # results after the block, when the line has been removed

On a terminal the line is a bar if the total is known. With ``--json`` each progress is an event, one object per line
on stdout, before the results; in a pipe without it there is a line on stderr every ten seconds. ``--metrics`` serves
the same numbers to Prometheus.

Exit codes: 0 done, and for a stream also stopped by Ctrl-C or SIGTERM; 130 stopped before the end of finite work; 1 an
error.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.logs import FieldsFormatter
from ternmq.cli.output import Output, note
from ternmq.env import SystemClock
from ternmq.errors import ConfigError, TernError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from ternmq.spark.runtime.jobs import JobProgress, Watch

Master = Annotated[
    str,
    typer.Option("--master", envvar="MASTER", metavar="URL", help="Master of the Spark cluster, as spark://host:7077."),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="KEY=VALUE", help="A Spark setting. Can be repeated."),
]
Checkpoint = Annotated[
    str | None,
    typer.Option("--checkpoint", metavar="DIR", help="Directory for the progress of the stream; one per job."),
]
Once = Annotated[bool, typer.Option("--once", help="Read the present messages, then stop.")]

Metrics = Annotated[
    int | None,
    typer.Option(
        "--metrics",
        metavar="PORT",
        min=0,
        max=65535,
        help="Serve rows, lag and batch times to Prometheus on this port.",
    ),
]

#: Between two lines if there is no terminal.
_PLAIN_INTERVAL_MS: Final = 10_000


@contextmanager
def spark_job(
    name: str,
    *,
    master: str = "",
    settings: list[str] | None = None,
    metrics_port: int | None = None,
    as_json: bool = False,
) -> Iterator[tuple[SparkSession, Watch]]:
    """A session and a watch for one command. Errors inside become one sentence; Java's traces are in a log file."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from ternmq.spark.runtime import jobs
        from ternmq.spark.session import sentence_of, session

        if metrics_port is not None:
            from ternmq.cli.pipelines.metrics import serving_metrics
    except ImportError as error:
        raise ConfigError(f"the package {error.name} is not installed; run `pip install 'ternmq[spark]'`") from error
    log_file = new_log_file(name)
    with ExitStack() as clean_up:
        if metrics_port is not None:
            metrics = clean_up.enter_context(serving_metrics(metrics_port))
        tell = clean_up.enter_context(_telling(name, as_json=as_json))
        clean_up.enter_context(_logging_to(log_file))
        with warnings.catch_warnings():
            # If pandas is installed, Spark warns about its version.
            warnings.simplefilter("ignore", FutureWarning)
            spark = session(master=master, name=f"tern {name}", settings=_pairs(settings), log_file=log_file)
        clean_up.callback(spark.stop)
        watch = jobs.Watch(tell if metrics_port is None else _both(metrics.take, tell))
        # After the session, which has its own handler for Ctrl-C that cancels its jobs from within.
        clean_up.enter_context(_stopped_by_signals(watch))
        try:
            yield spark, watch
        except jobs.JobFailed as error:
            raise TernError(f"{name}: {error}; see the log of Spark in {log_file}") from error
        except jobs.JobStopped as error:
            note(f"tern: {error}")
            raise typer.Exit(130) from error
        except (PySparkException, Py4JError) as error:
            logging.getLogger("ternmq.spark").error("a job failed", extra={"job": name}, exc_info=error)
            raise TernError(f"{name}: {sentence_of(error)}; see the log of Spark in {log_file}") from error


def new_log_file(name: str) -> Path:
    """A file readable by this user only. Its name cannot be guessed or replaced by a link: /tmp is shared."""
    descriptor, path = tempfile.mkstemp(prefix=f"tern-pipeline-{name}-", suffix=".log")
    os.close(descriptor)
    return Path(path)


def _pairs(settings: list[str] | None) -> dict[str, str]:
    pairs = dict(one.partition("=")[::2] for one in settings or ())
    for one in settings or ():
        if "=" not in one or not one.startswith("spark."):
            raise ConfigError(f"invalid --conf {one!r}: expected spark.key=value")
    return pairs


@contextmanager
def _logging_to(log_file: Path) -> Iterator[None]:
    """Log the job, and Spark's Python side, to the file of Java's log; the terminal gets the sentence of an error."""
    handler = logging.FileHandler(log_file, delay=True)
    handler.setFormatter(FieldsFormatter())
    loggers = [logging.getLogger(name) for name in ("ternmq.spark", "pyspark", "py4j")]
    propagated = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagates in zip(loggers, propagated, strict=True):
            logger.propagate = propagates
            logger.removeHandler(handler)
        handler.close()


@contextmanager
def _stopped_by_signals(watch: Watch) -> Iterator[None]:
    """Ctrl-C and SIGTERM stop the job; a second Ctrl-C ends the program immediately."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        if watch.stopped:
            raise KeyboardInterrupt
        watch.stop()

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# --- The live line --------------------------------------------------------------------------------------------------


def _both(*tells: Callable[[JobProgress], None]) -> Callable[[JobProgress], None]:
    def tell(progress: JobProgress) -> None:
        for one in tells:
            one(progress)

    return tell


@contextmanager
def _telling(name: str, *, as_json: bool) -> Iterator[Callable[[JobProgress], None]]:
    if as_json:
        output = Output(as_json=True)
        yield lambda progress: output.item(fields_of(progress), "")
    elif sys.stderr.isatty():
        with _bar(name) as tell:
            yield tell
    else:
        yield _plain_lines()


def fields_of(progress: JobProgress) -> dict[str, object]:
    """An event of ``--json``: the known values, marked as progress, not as a result."""
    import dataclasses

    known = {key: value for key, value in dataclasses.asdict(progress).items() if value is not None}
    return {"event": "progress"} | known


def line_of(progress: JobProgress) -> str:
    """The same for people."""
    parts = []
    if progress.batch is not None:
        seconds = f" in {progress.batch_ms / 1000:.1f} s" if progress.batch_ms else ""
        parts.append(f"batch {progress.batch}{seconds}")
    if progress.rows is not None:
        parts.append(f"{progress.rows:,} messages")
    if progress.rows_per_s is not None:
        parts.append(f"{progress.rows_per_s:,.0f}/s")
    if progress.lag is not None:
        parts.append(f"lag {progress.lag:,}")
    if progress.left_out:
        parts.append(f"{progress.left_out:,} skipped")
    if progress.rows is None and progress.total is not None:
        parts.append(f"{progress.done or 0} of {progress.total} tasks")
    return ", ".join(parts)


def _plain_lines() -> Callable[[JobProgress], None]:
    clock, told_ms = SystemClock(), -_PLAIN_INTERVAL_MS

    def tell(progress: JobProgress) -> None:
        nonlocal told_ms
        now_ms = clock.now_ms()
        if now_ms - told_ms >= _PLAIN_INTERVAL_MS:
            told_ms = now_ms
            note(f"{progress.job}: {line_of(progress)}")

    return tell


@contextmanager
def _bar(name: str) -> Iterator[Callable[[JobProgress], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    columns = (
        SpinnerColumn(),
        TextColumn(name),
        BarColumn(),
        TextColumn("{task.fields[line]}"),
        TimeElapsedColumn(),
    )
    with Bars(*columns, console=Console(file=sys.stderr), transient=True) as bars:
        task = bars.add_task(name, total=None, line="starting Spark")

        def tell(progress: JobProgress) -> None:
            bars.update(task, completed=progress.done or 0, total=progress.total, line=line_of(progress))

        yield tell
