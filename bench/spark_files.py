"""``python -m bench.spark_files``: a store's log read by Spark from its files, compared with Parquet and raw bytes; and
its queues and index rebuilt by Spark, compared with ``tern store rebuild``.

A store is written with messages of 200 bytes in four queues. Spark reads it with ``local[2]`` and discards the rows
(its ``noop`` sink): all columns, and the body alone. *Parquet* is the same rows, written by Spark with its defaults.
*Raw* is Spark's ``binaryFile`` on the same segments: only the bytes. MB/s count the log's bytes for
all of them; CPU is that of JVM, workers and this process together, which is more meaningful than seconds on a busy
machine. All on this machine, one after the other, several rounds; the tables show medians.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from pyspark.sql import DataFrame, SparkSession

from bench.generator import BODY, PROPERTIES
from ternmq.env import SystemClock
from ternmq.spark.pipelines.rebuild import rebuild
from ternmq.spark.session import session
from ternmq.store.inspect.rebuild import rebuild as rebuild_alone
from ternmq.store.store import MessageStore, StoreConfig
from ternmq.wire.record import pack_host

QUEUES: Final = 4
BATCH: Final = 100
#: Small enough for ``binaryFile``, which makes one row of a file.
SEGMENT_BYTES: Final = 64 << 20
COLUMN_SETS: Final = {"all columns": "", "body alone": "body BINARY"}
_MB: Final = 1_000_000


def write_store(root: Path, rows: int) -> int:
    """A store of ``rows`` messages; returns the bytes of its log."""
    host = pack_host("127.0.0.1", 10911)
    config = StoreConfig(store_path_root_dir=root, mapped_file_size_commit_log=SEGMENT_BYTES)
    with MessageStore.open(config, store_host=host, clock=SystemClock()) as store:
        for number in range(rows // BATCH):
            keys = (f"KEYS\x01order-{number * BATCH + each}\x02".encode() + PROPERTIES for each in range(BATCH))
            drafts = [(0, BODY, properties) for properties in keys]
            store.put_batch("bench", number % QUEUES, drafts, born_time_ms=1_700_000_000_000, born_host=host, sysflag=0)
        return store.written


class Cost(NamedTuple):
    """The cost of one run."""

    seconds: float
    cpu_seconds: float


def cost_of(work: Callable[[], object]) -> Cost:
    started, cpu = time.monotonic(), cpu_seconds()
    work()
    return Cost(time.monotonic() - started, cpu_seconds() - cpu)


def cpu_seconds() -> float:
    """CPU time of this process and all below it, also of those that have ended."""
    ticks, parents = {}, {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended meanwhile
        parents[int(path.parent.name)] = int(fields[1])
        ticks[int(path.parent.name)] = sum(map(int, fields[11:15]))
    ours = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return sum(ticks[pid] for pid in ours) / os.sysconf("SC_CLK_TCK")


def read(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def medians(works: dict[str, Callable[[], object]], rounds: int) -> dict[str, Cost]:
    """The cost of each, interleaved. The first round warms up the JVM and the workers, and does not count."""
    found: dict[str, list[Cost]] = {name: [] for name in works}
    for number in range(rounds + 1):
        for name, work in works.items():
            taken = cost_of(work)
            if number:
                found[name].append(taken)
    return {name: Cost(*map(statistics.median, zip(*costs, strict=True))) for name, costs in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spark = session(master="local[2]", settings={"spark.driver.memory": "2g"})
    with tempfile.TemporaryDirectory(prefix="ternmq-bench-") as directory:
        root = Path(directory) / "store"
        log_bytes = write_store(root, args.rows)
        print(f"{args.rows:,} records, {log_bytes / _MB:,.0f} MB of log\n")
        _measure_reads(spark, root, Path(directory) / "parquet", log_bytes, args)
        _measure_rebuilds(spark, root, Path(directory) / "fresh", log_bytes, args)
    spark.stop()


def _measure_reads(spark: SparkSession, root: Path, lake: Path, log_bytes: int, args: argparse.Namespace) -> None:
    spark.read.format("ternmq_files").load(str(root)).write.parquet(str(lake))

    def load(name: str, path: Path, columns: str) -> DataFrame:
        reader = spark.read.format(name)
        frame = (reader.schema(columns) if columns and name == "ternmq_files" else reader).load(str(path))
        return frame.select("body") if columns else frame

    print("| | seconds | rows/s | MB/s of log | CPU s |\n|---|--:|--:|--:|--:|")
    for title, columns in COLUMN_SETS.items():
        works: dict[str, Callable[[], object]] = {
            "CommitLog source": lambda columns=columns: read(load("ternmq_files", root, columns)),  # type: ignore[misc]
            "Parquet": lambda columns=columns: read(load("parquet", lake, columns)),  # type: ignore[misc]
        }
        if not columns:
            works["raw bytes"] = lambda: read(spark.read.format("binaryFile").load(str(root / "commitlog")))
        for name, taken in medians(works, args.rounds).items():
            rows = f"{args.rows / taken.seconds:,.0f}" if name != "raw bytes" else ""
            what = f"{name}, {title}" if name != "raw bytes" else name
            speed = log_bytes / _MB / taken.seconds
            print(f"| {what} | {taken.seconds:.2f} | {rows} | {speed:,.0f} | {taken.cpu_seconds:.2f} |", flush=True)


def _measure_rebuilds(spark: SparkSession, root: Path, fresh: Path, log_bytes: int, args: argparse.Namespace) -> None:
    def afresh(work: Callable[[], object]) -> Callable[[], object]:
        def run() -> None:
            shutil.rmtree(fresh, ignore_errors=True)
            work()

        return run

    works = {
        "`tern store rebuild`": afresh(lambda: rebuild_alone(root, out=fresh, clock=SystemClock())),
        "`tern pipeline rebuild`, `local[2]`": afresh(lambda: rebuild(spark, root, output=fresh)),
    }
    print("\n| | seconds | MB/s of log | CPU s |\n|---|--:|--:|--:|")
    for name, taken in medians(works, args.rounds).items():
        speed = log_bytes / _MB / taken.seconds
        print(f"| {name} | {taken.seconds:.2f} | {speed:,.0f} | {taken.cpu_seconds:.2f} |", flush=True)


if __name__ == "__main__":
    main()
