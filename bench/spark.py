"""``script/bench --spark``: rows per second from a topic into Spark, compared with Spark's Kafka source and bare rows.

A TernMQ broker and a Kafka broker are filled with the same messages of 200 bytes, in four queues and four partitions.
Spark reads them with ``local[2]`` and discards the rows (its ``noop`` sink): all columns (TernMQ has 14, Kafka 7),
those that Kafka has as well, and the body alone; as a batch and as a stream that ends with the present messages
(``availableNow``). Then two and four times as many rows: the cost of a row must not grow, and the start of a query
counts less. *Arrow generator* is the source of ``generator``.

Everything runs on this machine, the sources one after the other, several rounds; the table shows medians. The first
round warms up and does not count. CPU time is that of all processes: on a busy machine it is more meaningful than
rows per second.
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
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession

from bench import load, systems
from bench.generator import BATCH_ROWS, BODY, TASKS, Generator
from bench.kafka import Kafka, connector_jars, start_kafka
from bench.run import machine
from ternmq import SyncAdmin
from ternmq.spark.session import session

TOPIC: Final = "bench"
#: Schemas for TernMQ and the generator; an empty text means all columns.
COLUMN_SETS: Final = {
    "all columns": "",
    "those of Kafka": "keys STRING, body BINARY, topic STRING, queue_id INT, queue_offset BIGINT, store_time TIMESTAMP",
    "body alone": "body BINARY",
}
BODY_ALONE: Final = COLUMN_SETS["body alone"]
#: Factors of the number of rows, to see whether the cost of a row grows.
GROWTH: Final = (1, 2, 4)
BARE, THEIRS, OURS = "Arrow generator", "Kafka's source", "TernMQ"


@dataclass(slots=True, frozen=True)
class Source:
    """How to read one source: a number of rows at once, or as a stream that begins after them; and which columns."""

    #: Processes that are measured: Spark with its Python workers, and the broker.
    pids: tuple[int, ...]
    batch: Callable[[int, str], DataFrame]
    stream: Callable[[int, str], DataFrame] | None = None


def places(rows: int) -> dict[str, int]:
    """Offsets of all queues or partitions between which and the first there are ``rows``."""
    return {str(number): rows // TASKS for number in range(TASKS)}


def _spark_pid(spark: SparkSession) -> int:
    gateway: Any = spark.sparkContext._gateway  # noqa: SLF001 - Spark has no public name for it
    return int(gateway.proc.pid)


def generator(spark: SparkSession) -> Source:
    """Generated rows."""

    def batch(rows: int, columns: str) -> DataFrame:
        reader = spark.read.format("generator").option("rows", rows)
        return (reader.schema(columns) if columns else reader).load()

    return Source((_spark_pid(spark),), batch)


def ternmq(spark: SparkSession, system: systems.System) -> Source:
    """TernMQ's, filled."""

    def table(rows: int) -> str:
        return json.dumps({TOPIC: {"broker-a": places(rows)}})

    def batch(rows: int, columns: str) -> DataFrame:
        reader = spark.read.format("ternmq").options(nameServers=system.namesrv, endingOffsets=table(rows))
        return (reader.schema(columns) if columns else reader).load(TOPIC)

    def stream(rows: int, columns: str) -> DataFrame:
        reader = spark.readStream.format("ternmq").options(nameServers=system.namesrv, startingOffsets=table(rows))
        return (reader.schema(columns) if columns else reader).load(TOPIC)

    return Source((_spark_pid(spark), system.broker_pid), batch, stream)


def kafka_source(spark: SparkSession, kafka: Kafka) -> Source:
    """Spark's Kafka source, on a filled topic."""
    options = {"kafka.bootstrap.servers": kafka.address, "subscribe": TOPIC}

    def table(rows: int) -> str:
        return json.dumps({TOPIC: places(rows)})

    def batch(rows: int, columns: str) -> DataFrame:
        frame = spark.read.format("kafka").options(**options, endingOffsets=table(rows)).load()
        return frame.select("value") if columns == BODY_ALONE else frame

    def stream(rows: int, columns: str) -> DataFrame:
        frame = spark.readStream.format("kafka").options(**options, startingOffsets=table(rows)).load()
        return frame.select("value") if columns == BODY_ALONE else frame

    return Source((_spark_pid(spark), kafka.pid), batch, stream)


def fill_ternmq(system: systems.System, directory: Path, rows: int) -> None:
    """At least ``rows`` messages, the same number in each queue; Java's producer uses the queues in turn."""
    with SyncAdmin(system.namesrv) as admin:
        admin.topics.create(TOPIC, queues=TASKS)
    # Each thread uses the queues in turn; somewhat more, so that none of them has less than its share.
    load.send(system, directory, topic=TOPIC, threads=4, batch=100, bodyBytes=len(BODY), count=rows + rows // 50)


def fill_kafka(spark: SparkSession, kafka: Kafka, rows: int) -> None:
    """The same into partitions, by Spark's own sink."""
    kafka.create(TOPIC, partitions=TASKS)
    frame = spark.range(rows + rows // 50, numPartitions=TASKS)
    columns = (f"CAST(repeat('x', {len(BODY)}) AS BINARY) AS value", f"CAST(id % {TASKS} AS INT) AS partition")
    options = {"kafka.bootstrap.servers": kafka.address, "topic": TOPIC}
    frame.selectExpr(*columns).write.format("kafka").options(**options).save()


@dataclass(slots=True, frozen=True)
class Measured:
    """One read: rows, and what they took."""

    rows: int
    seconds: float
    #: Of Spark, its Python workers and the broker.
    cpu_s: float

    @property
    def rate(self) -> float:
        return self.rows / self.seconds

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.rows * 1e6


def measured(source: Source, read: Callable[[Source], int]) -> Measured:
    """Do a read, from planning to the last task's end."""

    def cpu_by_process() -> dict[int, float]:
        return {pid: cpu_s for root in source.pids for pid, cpu_s in systems.cpu_by_process(root).items()}

    before, started = cpu_by_process(), time.monotonic()
    rows = read(source)
    seconds = time.monotonic() - started
    # Python workers end a minute after their last task, without being waited for: one that has ended did not work here.
    cpu_s = sum(cpu_s - before.get(pid, 0.0) for pid, cpu_s in cpu_by_process().items())
    return Measured(rows, seconds, cpu_s)


def batch(source: Source, *, rows: int, columns: str) -> int:
    """Read a number of rows once."""
    source.batch(rows, columns).write.format("noop").mode("overwrite").save()
    return rows


def stream(source: Source, *, after: int, columns: str, directory: str) -> int:
    """Read all rows ``after`` a number of rows as a stream; returns their number by Spark's own count."""
    assert source.stream is not None
    with tempfile.TemporaryDirectory(dir=directory) as checkpoint:
        writer = source.stream(after, columns).writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)


def compare(sources: Mapping[str, Source], rounds: int, read: Callable[[Source], int]) -> dict[str, list[Measured]]:
    """Some interleaved rounds; the first one does not count."""
    found: dict[str, list[Measured]] = {name: [] for name in sources}
    for number in range(rounds + 1):
        for name, source in sources.items():
            one = measured(source, read)
            if number:
                found[name].append(one)
    return found


def report(sources: Mapping[str, Source], directory: str, rows: int, rounds: int) -> None:
    """The table of all sources, line by line."""
    print(f"| | {BARE} | {THEIRS} | {OURS} | TernMQ / Kafka | TernMQ / generator |\n|---|--:|--:|--:|--:|--:|")
    queued = _queued(sources)
    for title, columns in COLUMN_SETS.items():
        _print(f"batch, {title}", compare(sources, rounds, partial(batch, rows=rows, columns=columns)))
        tail = partial(stream, after=rows * (GROWTH[-1] - 1), columns=columns, directory=directory)
        _print(f"stream, {title}", compare(queued, rounds, tail))


def report_growth(sources: Mapping[str, Source], directory: str, rows: int, rounds: int) -> None:
    """More and more rows, in a JVM that becomes warm."""
    queued = _queued(sources)
    for kind, columns in COLUMN_SETS.items():
        if columns == BODY_ALONE:
            continue
        print(f"\n| {kind} | {' | '.join(f'{rows * times:,} rows' for times in GROWTH)} |\n|---|--:|--:|--:|")
        growing: dict[str, list[Callable[[Source], int]]] = {
            "batch": [partial(batch, rows=rows * times, columns=columns) for times in GROWTH],
            "stream": [
                partial(stream, after=rows * (GROWTH[-1] - times), columns=columns, directory=directory)
                for times in GROWTH
            ],
        }
        for title, reads in growing.items():
            by_size = [compare(queued, rounds, read) for read in reads]
            for name in queued:
                rates = (statistics.median(one.rate for one in found[name]) for found in by_size)
                costs = (statistics.median(one.cpu_us for one in found[name]) for found in by_size)
                print(f"| {title}, {name}: rows/s | {' | '.join(f'{rate:,.0f}' for rate in rates)} |")
                print(f"| … CPU, µs a row | {' | '.join(f'{cost:.2f}' for cost in costs)} |", flush=True)


def _queued(sources: Mapping[str, Source]) -> dict[str, Source]:
    return {name: source for name, source in sources.items() if source.stream is not None}


def _print(title: str, found: dict[str, list[Measured]]) -> None:
    rates = {name: statistics.median(one.rate for one in rounds) for name, rounds in found.items()}
    costs = {name: statistics.median(one.cpu_us for one in rounds) for name, rounds in found.items()}
    for line, values, digits in ((f"{title}: rows/s", rates, 0), ("… CPU, µs a row", costs, 2)):
        cells = [f"{values[name]:,.{digits}f}" if name in values else "" for name in (BARE, THEIRS, OURS)]
        ratios = [f"{values[OURS] / values[name]:.2f}×" if name in values else "" for name in (THEIRS, BARE)]
        print(f"| {' | '.join([line, *cells, *ratios])} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/bench --spark", description=(__doc__ or "").split("\n\n")[1])
    parser.add_argument("--rows", type=int, default=1_000_000, metavar="N", help="rows of a read (1,000,000)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each source is measured (3)")
    parser.add_argument("--growth", action="store_true", help="only the reads of more and more rows")
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
        sources = {BARE: generator(spark), THEIRS: kafka_source(spark, kafka), OURS: ternmq(spark, system)}
        print(f"{machine()}; {rows:,} rows, {args.rounds} round(s)\n")
        if not args.growth:
            report(sources, directory, rows, args.rounds)
        report_growth(sources, directory, rows, args.rounds)
    spark.stop()


if __name__ == "__main__":
    main()
