"""A Spark session that fits: this Python for the workers, filters pushed down, and quiet (U5).

``session()`` takes what is set already (``spark-submit``, a cluster's defaults) for granted and adds only what TernMQ's
formats need; any master works. ``use`` lets another thread write with a session. ``sentence_of`` finds the one sentence
that an error is about in what Spark wraps around it.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from ternmq.errors import ConfigError
from ternmq.spark.runtime.worker_python import worker_python

LOCAL: Final = "local[*]"

#: Needed or better for the formats of this package, unless the user says otherwise.
_SETTINGS: Final = {
    # Filters on time, queue and tags reach ``source.BatchReader``.
    "spark.sql.python.filterPushdown.enabled": "true",
    # Progress is shown by whoever runs the job.
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
#: For a session on this machine alone: no console in the way, no port for anybody else, few tasks after a shuffle.
_LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
}

#: Loggers of PySpark's that write each error of a query to stderr, trace and all, before it is raised.
_TALKERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

#: The last line of a Python traceback inside Spark's text: the error's class, with its module, and the sentence.
_OURS: Final = re.compile(r"^(?:ternmq\.[\w.]+): (.+?)(?:\s+SQLSTATE: \w+)?$", re.MULTILINE)
#: An error of Spark's own: its condition, and what it is about. Some only say that there is another inside.
_SPARKS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.+?)(?= SQLSTATE: \w+|\n|\Z)", re.DOTALL)
_WRAPPERS: Final = frozenset({"STREAM_FAILED"})
#: Errors that Spark raises before any code of ours runs, with what cures them here.
_PYTHON_CURE: Final = (
    "set PYSPARK_PYTHON to the Python that has the package before the session is made, or make the session with "
    "ternmq.spark.session.session(), which does it"
)
_NOT_FOUND: Final = re.compile(r"Failed to find the data source: (ternmq\w*)")
_NOT_INSTALLED: Final = re.compile(r"No module named '(ternmq|pyarrow|numpy|msgspec)\b")
_SAVE_MODE: Final = re.compile(r"UNSUPPORTED_DATA_SOURCE_SAVE_MODE\].*\bternmq\b")
_WRAPPED: Final = re.compile(r"^.*?terminated with exception: |\s*SQLSTATE: \w+.*$")


def session(
    *,
    master: str = "",
    name: str = "ternmq",
    settings: Mapping[str, str] | None = None,
    log_level: str = "ERROR",
    log_file: Path | None = None,
) -> SparkSession:
    """The running session, or a new one: of ``master``, of what Spark's own settings say, or ``local[*]``.

    ``settings`` are Spark's and go before those of this module. What Java would write to stderr goes to ``log_file``
    where one is given; then this must be called while nobody else starts processes. Raises ``ConfigError``.
    """
    given = dict(settings or {})
    builder = SparkSession.builder.appName(name)
    chosen = master or given.get("spark.master") or os.environ.get("MASTER", "")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if chosen or not is_submitted:
        builder = builder.master(chosen or LOCAL)
    is_local = (chosen or LOCAL).startswith("local") and not is_submitted
    # Workers are started by name, and the system's Python would not have this package; those that plan, by the second.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # What an earlier session of this process chose was nobody's wish.
        if os.environ.get(variable) in (None, sys.executable, worker_python()):
            os.environ[variable] = worker_python() if is_local else sys.executable
    ours = _SETTINGS | (_LOCAL_SETTINGS if is_local else {})
    for key, value in (ours | given).items():
        builder = builder.config(key, value)
    try:
        with _stderr_to(log_file):
            spark = builder.getOrCreate()
    except PySparkRuntimeError as error:
        if error.getCondition() == "JAVA_GATEWAY_EXITED":
            raise ConfigError(
                "Spark could not start Java; install Java 17 or newer (Debian: apt-get install default-jre-headless), "
                f"or set JAVA_HOME to it{f'; what it said is in {log_file}' if log_file else ''}"
            ) from error
        raise
    spark.sparkContext.setLogLevel(log_level)
    for name in _TALKERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)
    return spark


def use(spark: SparkSession) -> None:
    """Make a session this thread's own. Spark looks for the format of a *write* only in the session of the thread that
    starts it, so a thread that did not make the session, and is none of its streams', must call this before."""
    java = getattr(spark, "_jvm", None)
    # A client of Spark Connect has no Java of its own; there the server's session is always known.
    if java is not None:
        java.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - as PySpark itself does


@contextmanager
def _stderr_to(log_file: Path | None) -> Iterator[None]:
    """Processes that are started in the block write their stderr into a file, for as long as they live."""
    if log_file is None:
        yield
        return
    kept = os.dup(2)
    with log_file.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def sentence_of(error: BaseException) -> str:
    """What an error of a job is about, in one sentence, without Spark's and Python's traces."""
    text = str(error)
    if _SAVE_MODE.search(text):
        # Spark advises to overwrite as well, which no topic can.
        return 'a topic can only be appended to; write with .mode("append")'
    if not_found := _NOT_FOUND.search(text):
        return (
            f"Spark did not find the format {not_found[1]}: its Python does not have the package ternmq, or the write "
            f"began in another thread than the session's; {_PYTHON_CURE}; in another thread, call "
            "ternmq.spark.session.use(spark) first"
        )
    if missing := _NOT_INSTALLED.search(text):
        return f"the Python that Spark starts does not have the package {missing[1]}; {_PYTHON_CURE}"
    ours = _OURS.findall(text)
    if ours:
        return str(ours[-1]).strip()
    sparks = [found for found in _SPARKS.findall(text) if found[0] not in _WRAPPERS]
    if sparks:
        return str(sparks[-1][1]).strip(" ;")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return _WRAPPED.sub("", lines[0]).rstrip(" ;") if lines else type(error).__name__
