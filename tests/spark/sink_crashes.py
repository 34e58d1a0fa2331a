"""A stream from topic to topic whose processes die at chosen places: for tests and ``script/soak sink`` (U2).

``Crashes`` is a directory with one file for each death to come, named by the place: a step of the commit
(``Committer``), or «task», the end of a task that has staged its rows. The file's number says how many times the place
is passed before. Who dies takes the JVM along if ``jvm.pid`` is there: then it is the whole driver.

As a program, it runs the stream until all is copied::

    python -m tests.spark.sink_crashes NAME_SERVERS DIRECTORY
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.types import StructType

from ternmq.spark.session import session
from ternmq.spark.sink.options import SinkOptions
from ternmq.spark.sink.sink import TopicStreamWriter, Written
from ternmq.spark.source.source import TernSource
from tests.spark.small import SMALL

SOURCE, TARGET = "uncopied", "copied"
STEPS = ("decided", "chunk", "published", "finished", "task")


class Crashes:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def plan(self, place: str, passes: int = 0) -> None:
        (self.directory / place).write_text(str(passes))

    def passed(self, place: str) -> None:
        """Die here, if that is planned."""
        file = self.directory / place
        with contextlib.suppress(FileNotFoundError, ValueError):
            left = int(file.read_text())
            file.unlink()
            if left:
                file.write_text(str(left - 1))
                return
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((self.directory / "jvm.pid").read_text()), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)


class CrashingWriter(TopicStreamWriter):
    crashes: Crashes

    def on_step(self, step: str) -> None:
        self.crashes.passed(step)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        written = super().write(iterator)
        self.crashes.passed("task")
        return written


class CrashingSource(TernSource):
    """The format with one more option, ``crashes``: the directory."""

    @classmethod
    def name(cls) -> str:
        return "ternmq-crashing"

    def streamWriter(self, schema: StructType, overwrite: bool) -> TopicStreamWriter:  # noqa: N802 - Spark's name
        options = dict(self.options)
        crashes = Crashes(Path(options.pop("crashes")))
        writer = CrashingWriter(SinkOptions.parse(options), schema, overwrite=overwrite)
        writer.crashes = crashes
        return writer


def start(spark: SparkSession, name_servers: str, directory: Path) -> StreamingQuery:
    """Copy what is there now and is not copied yet, some messages at a time."""
    # Workers cannot import the tests.
    cloudpickle.register_pickle_by_value(sys.modules[CrashingSource.__module__])  # type: ignore[no-untyped-call]
    spark.dataSource.register(CrashingSource)
    source = spark.readStream.format("ternmq").option("nameServers", name_servers)
    source = source.options(startingOffsets="earliest", maxMessagesPerTrigger="70", sliceMessages="20")
    sink = source.load(SOURCE).select("body", "keys").writeStream.format("ternmq-crashing")
    sink = sink.option("nameServers", name_servers).option("crashes", str(directory)).option("chunkBytes", "1000")
    return sink.option("checkpointLocation", str(directory / "checkpoint")).trigger(availableNow=True).start(TARGET)


def main(name_servers: str, directory: str) -> None:
    # A task that dies is run again, three times.
    spark = session(master="local[2,4]", settings=SMALL)
    pid = spark.sparkContext._jvm.ProcessHandle.current().pid()  # type: ignore[union-attr]
    (Path(directory) / "jvm.pid").write_text(str(pid))
    query = start(spark, name_servers, Path(directory))
    (Path(directory) / "running").touch()
    query.awaitTermination()
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
