"""A Spark session with suitable settings: this Python for the workers, filter push-down, and few log lines (U5).

``session()`` keeps existing settings (of ``spark-submit``, or a cluster's defaults) and adds only those that TernMQ's
formats need; any master works. ``use`` lets another thread write with a session. ``sentence_of`` finds the relevant
sentence of an error in the text that Spark wraps around it.
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

#: Settings that the formats of this package need or prefer, unless the user sets others.
_SETTINGS: Final = {
    # Filters on time, queue and tags reach ``source.BatchReader``.
    "spark.sql.python.filterPushdown.enabled": "true",
    # The command or program that runs the job shows the progress.
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
}
#: For a session on this machine only: no progress bar on the console, no port for others, few tasks after a shuffle.
_LOCAL_SETTINGS: Final = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": str(max(2, os.cpu_count() or 1)),
}

#: PySpark's loggers that write each error of a query to stderr, with its trace, before it is raised.
_TALKERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")

#: The last line of a Python traceback inside Spark's text: the error's class, with its module, and the message.
_OURS: Final = re.compile(r"^(?:ternmq\.[\w.]+): (.+?)(?:\s+SQLSTATE: \w+)?$", re.MULTILINE)
#: An error of Spark: its condition, and its message. Some only say that they contain another one.
_SPARKS: Final = re.compile(r"\[([A-Z][A-Z0-9_.]+)\] (.+?)(?= SQLSTATE: \w+|\n|\Z)", re.DOTALL)
_WRAPPERS: Final = frozenset({"STREAM_FAILED"})
#: Errors that Spark raises before any code of TernMQ runs, with the cure.
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
    """The running session, or a new one: of ``master``, of Spark's own settings, or ``local[*]``.

    ``settings`` are Spark's and override those of this module. If ``log_file`` is given, Java's stderr goes to it; then
    no other thread may start processes during this call. Raises ``ConfigError``.
    """
    given = dict(settings or {})
    builder = SparkSession.builder.appName(name)
    chosen = master or given.get("spark.master") or os.environ.get("MASTER", "")
    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if chosen or not is_submitted:
        builder = builder.master(chosen or LOCAL)
    is_local = (chosen or LOCAL).startswith("local") and not is_submitted
    # Workers are started by name, and the system's Python does not have this package; planners, by the second setting.
    for variable in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        # Values that an earlier session of this process chose were not set by the user.
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
    """Make a session the active one of this thread. Spark looks for the format of a *write* only in the active session
    of the thread that starts it, so a thread that neither created the session nor belongs to one of its streams must
    call this first."""
    java = getattr(spark, "_jvm", None)
    # A client of Spark Connect has no Java process; there the server's session is always known.
    if java is not None:
        java.SparkSession.setActiveSession(spark._jsparkSession)  # noqa: SLF001 - as PySpark itself does


@contextmanager
def _stderr_to(log_file: Path | None) -> Iterator[None]:
    """Processes that are started in the block write their stderr to a file, until they end."""
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
    """The cause of a job's error in one sentence, without the traces of Spark and Python."""
    text = str(error)
    if _SAVE_MODE.search(text):
        # Spark's advice also mentions overwriting, which topics do not support.
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
