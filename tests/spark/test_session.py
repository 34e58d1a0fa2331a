"""What goes wrong before any code of ours runs, in one sentence with the cure; sessions in threads (U5)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq.spark.runtime.jobs import Watch
from ternmq.spark.session import sentence_of, use
from tests.spark.small import SMALL
from tests.spark.topics import Topics, bodies_of, numbered


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (
            '[UNSUPPORTED_DATA_SOURCE_SAVE_MODE] The data source "ternmq" cannot be written in the "ErrorIfExists" '
            'mode. Please use either the "Append" or "Overwrite" mode instead. SQLSTATE: 0A000',
            'a topic can only be appended to; write with .mode("append")',
        ),
        (
            "An error occurred while calling o71.save.\n: org.apache.spark.SparkClassNotFoundException: "
            "[DATA_SOURCE_NOT_FOUND] Failed to find the data source: ternmq. Make sure the provider name is correct",
            "Spark did not find the format ternmq: its Python does not have the package ternmq, or",
        ),
        (
            "[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call "
            "last):\nModuleNotFoundError: No module named 'ternmq'\n SQLSTATE: 38000",
            "the Python that Spark starts does not have the package ternmq; set PYSPARK_PYTHON",
        ),
        ("[DATA_SOURCE_NOT_FOUND] Failed to find the data source: orc2. Make", "Failed to find the data source: orc2"),
    ],
)
def test_errors_of_spark_itself_are_told_with_the_cure(text: str, sentence: str) -> None:
    """Issue 13, 12: Spark's own words lead astray, or are a trace of Java."""
    assert sentence_of(Exception(text)).startswith(sentence)


def test_a_thread_that_did_not_make_the_session_writes_with_it(
    topics: Topics, spark: SparkSession, tmp_path: Path
) -> None:
    """Issue 13, 12: Spark looks for the format of a write in the session of the thread, which has none."""
    topics.create("thread-from", queues=1)
    topics.create("thread-to", queues=1)
    topics.send("thread-from", numbered(3))
    rows = topics.read("thread-from").select("body")
    failures: list[Exception] = []

    def write() -> None:
        to = {"nameServers": topics.name_servers}
        writer = topics.stream(topic="thread-from", startingOffsets="earliest").load().select("body").writeStream
        writer = writer.format("ternmq").options(**to).option("checkpointLocation", str(tmp_path))
        try:
            writer.trigger(availableNow=True).start("thread-to")
        except Exception as error:
            failures.append(error)
        use(spark)
        writer.trigger(availableNow=True).start("thread-to").awaitTermination()

    def watched() -> None:
        save = rows.write.format("ternmq").option("nameServers", topics.name_servers).mode("append").save
        Watch().run("write", spark, lambda: save("thread-to"))

    for work in (write, watched):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert "ternmq.spark.session.use(spark)" in sentence_of(failures[0])
    assert sorted(numbered(3) * 2) == bodies_of(topics.read("thread-to").collect())


@pytest.mark.nightly
@pytest.mark.spark
@pytest.mark.timeout(300)
def test_a_plain_session_with_another_python_says_what_to_set(tmp_path: Path) -> None:
    """Issue 13, 12: without PYSPARK_PYTHON, Spark takes the ``python3`` of the path, here one without any package."""
    python = tmp_path / "python3"
    python.write_text(f'#!/bin/sh\nexec "{os.path.realpath(sys.executable)}" -S "$@"\n')
    python.chmod(0o755)
    program = f"""
from pyspark.sql import SparkSession
from ternmq.spark.session import sentence_of
builder = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false")
for key, value in {SMALL!r}.items():
    builder = builder.config(key, value)
try:
    builder.getOrCreate().read.format("ternmq").load("orders")
except Exception as error:
    print(sentence_of(error))
"""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK")}
    environment = kept | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)

    assert "Spark did not find the format ternmq" in done.stdout
    assert "set PYSPARK_PYTHON to the Python that has the package" in done.stdout
