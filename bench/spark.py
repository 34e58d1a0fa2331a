"""``script/bench --spark``: rows a second from a topic into Spark, beside Spark's own Kafka source and bare rows.

A TernMQ broker and a Kafka broker are filled with the same messages of 200 bytes, in four queues and four partitions.
Spark reads them with ``local[2]`` and throws the rows away (its ``noop`` sink): all columns, and the body alone, once
and as a stream that ends with what is there (``availableNow``). Then all of it at once, twice and four times as many
rows: what a million more costs must not grow. *Arrow generator* is the source of ``generator``.

Everything runs on this machine, the sources one after the other, several rounds; the table shows medians. The first
round warms up and does not count.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from bench import load, systems
from bench.generator import BATCH_ROWS, BODY, TASKS, Generator
from bench.kafka import Kafka, connector_jars, start_kafka
from bench.run import machine
from ternmq import SyncAdmin
from ternmq.spark.session import session

TOPIC: Final = "bench"
#: What is asked of each source; an empty text is everything it has.
COLUMN_SETS: Final = {"all columns": "", "body alone": "body BINARY"}
#: By how much more is read to see whether a row then costs more.
GROWTH: Final = (1, 2, 4)
BARE, THEIRS, OURS = "Arrow generator", "Kafka's source", "TernMQ"


@dataclass(slots=True, frozen=True)
class Source:
    """How to read one source: so many rows at once, or as a stream that begins after so many; and which columns."""

    batch: Callable[[int, str], DataFrame]
    stream: Callable[[int, str], DataFrame] | None = None


def places(rows: int) -> dict[str, int]:
    """Offsets of all queues or partitions between which and the first there are ``rows``."""
    return {str(number): rows // TASKS for number in range(TASKS)}


def generator(spark: SparkSession) -> Source:
    """Rows out of nothing."""

    def batch(rows: int, columns: str) -> DataFrame:
        reader = spark.read.format("generator").option("rows", rows)
        return (reader.schema(columns) if columns else reader).load()

    return Source(batch)


def ternmq(spark: SparkSession, name_servers: str) -> Source:
    """TernMQ's, filled."""

    def table(rows: int) -> str:
        return json.dumps({TOPIC: {"broker-a": places(rows)}})

    def batch(rows: int, columns: str) -> DataFrame:
        reader = spark.read.format("ternmq").options(nameServers=name_servers, endingOffsets=table(rows))
        return (reader.schema(columns) if columns else reader).load(TOPIC)

    def stream(rows: int, columns: str) -> DataFrame:
        reader = spark.readStream.format("ternmq").options(nameServers=name_servers, startingOffsets=table(rows))
        return (reader.schema(columns) if columns else reader).load(TOPIC)

    return Source(batch, stream)


def kafka_source(spark: SparkSession, kafka: Kafka) -> Source:
    """Spark's own, filled."""
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC}

    def table(rows: int) -> str:
        return json.dumps({TOPIC: places(rows)})

    def batch(rows: int, columns: str) -> DataFrame:
        frame = spark.read.format("kafka").options(**options, endingOffsets=table(rows)).load()
        return frame.select("value") if columns else frame

    def stream(rows: int, columns: str) -> DataFrame:
        frame = spark.readStream.format("kafka").options(**options, startingOffsets=table(rows)).load()
        return frame.select("value") if columns else frame

    return Source(batch, stream)


def fill_ternmq(system: systems.System, directory: Path, rows: int) -> None:
    """At least ``rows`` messages, the same number in each queue; Java's producer takes the queues in turn."""
    with SyncAdmin(system.namesrv) as admin:
        admin.topics.create(TOPIC, queues=TASKS)
    # Threads share one turn over the queues, so that the last messages may be in any of them.
    load.send(system, directory, topic=TOPIC, threads=4, batch=100, bodyBytes=len(BODY), count=rows + rows // 50)


def fill_kafka(spark: SparkSession, kafka: Kafka, rows: int) -> None:
    """The same into partitions, by Spark's own sink."""
    kafka.create(TOPIC, partitions=TASKS)
    frame = spark.range(rows + rows // 50, numPartitions=TASKS)
    columns = (f"CAST(repeat('x', {len(BODY)}) AS BINARY) AS value", f"CAST(id % {TASKS} AS INT) AS partition")
    options = {"kafka.bootstrap.servers": kafka.address, "topic": TOPIC}
    frame.selectExpr(*columns).write.format("kafka").options(**options).save()


def seconds(frame: DataFrame) -> float:
    """From planning to the last task's end, once."""
    started = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - started


def batch_rate(source: Source, *, rows: int, columns: str) -> float:
    """Rows a second, once."""
    return rows / seconds(source.batch(rows, columns))


def stream_rate(source: Source, *, after: int, columns: str, directory: str) -> float:
    """Rows a second of a stream that begins ``after`` so many rows, by Spark's own count of them."""
    assert source.stream is not None
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=directory) as checkpoint:
        writer = source.stream(after, columns).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        rows = sum(progress.numInputRows for progress in query.recentProgress)
        return rows / (time.monotonic() - started)


def medians(sources: Mapping[str, Source], rounds: int, measure: Callable[[Source], float]) -> dict[str, float]:
    """Of each source the median of some rounds, in which the sources take turns; the first round does not count."""
    found: dict[str, list[float]] = {name: [] for name in sources}
    for number in range(rounds + 1):
        for name, source in sources.items():
            measured = measure(source)
            if number:
                found[name].append(measured)
    return {name: statistics.median(values) for name, values in found.items()}


def report(sources: Mapping[str, Source], directory: str, rows: int, rounds: int) -> None:
    """Both tables, line by line as they come."""
    print(f"| rows/s | {BARE} | {THEIRS} | {OURS} | TernMQ / Kafka | TernMQ / generator |\n|---|--:|--:|--:|--:|--:|")
    queued = {name: source for name, source in sources.items() if source.stream is not None}
    for title, columns in COLUMN_SETS.items():
        _print_rates(f"batch, {title}", medians(sources, rounds, partial(batch_rate, rows=rows, columns=columns)))
        tail = partial(stream_rate, after=rows * (GROWTH[-1] - 1), columns=columns, directory=directory)
        _print_rates(f"stream, {title}", medians(queued, rounds, tail))

    print(f"\n| s for … rows | {' | '.join(f'{rows * times:,}' for times in GROWTH)} | s for each further million |")
    print("|---|--:|--:|--:|--:|")
    for name, source in queued.items():
        took = [statistics.median(seconds(source.batch(rows * times, "")) for _ in range(rounds)) for times in GROWTH]
        steps = zip(GROWTH, GROWTH[1:], took, took[1:], strict=False)
        further = [(after - before) / (more - less) / rows * 1e6 for less, more, before, after in steps]
        print(f"| {name} | {' | '.join(f'{one:.2f}' for one in took)} | {', '.join(f'{one:.2f}' for one in further)} |")


def _print_rates(title: str, rates: dict[str, float]) -> None:
    bare, ours, theirs = rates.get(BARE), rates[OURS], rates[THEIRS]
    cells = (
        title,
        f"{bare:,.0f}" if bare else "",
        f"{theirs:,.0f}",
        f"{ours:,.0f}",
        f"{ours / theirs:.2f}×",
        f"{ours / bare:.2f}×" if bare else "",
    )
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --spark", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="rows of a read (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each source is measured (3)")
    args = parser.parse_args()
    # Whole batches of the generator.
    rows = max(1, args.rows // (TASKS * BATCH_ROWS)) * TASKS * BATCH_ROWS
    spark = session(master="local[2]", settings={"spark.driver.memory": "1g", "spark.jars": connector_jars()})
    spark.dataSource.register(Generator)
    with (
        tempfile.TemporaryDirectory(prefix="ternmq-bench-") as directory,
        systems.start_ternmq(Path(directory) / "ternmq") as system,
        start_kafka(Path(directory) / "kafka") as kafka,
    ):
        fill_ternmq(system, Path(directory), rows * GROWTH[-1])
        fill_kafka(spark, kafka, rows * GROWTH[-1])
        sources = {BARE: generator(spark), THEIRS: kafka_source(spark, kafka), OURS: ternmq(spark, system.namesrv)}
        print(f"{machine()}; {rows:,} rows, {args.rounds} round(s)\n")
        report(sources, directory, rows, args.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
