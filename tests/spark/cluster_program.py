"""Everything that TernMQ does with Spark, once, in one session on a Spark cluster: for ``test_on_a_cluster``.

To start a driver and its executors takes longer than any of the parts, so they share them. Each part has topics of its
own and prints one line of JSON, ``{"part": …, …}``; the trace of one that fails goes to stderr, and the next begins::

    python -m tests.spark.cluster_program NAME_SERVERS MASTER DIRECTORY
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from pyspark.sql import DataFrame, Row

from ternmq import Message
from ternmq.spark.pipelines import deadletters as dead
from ternmq.spark.pipelines.archive import archive
from ternmq.spark.pipelines.compact import compact
from ternmq.spark.pipelines.rebuild import rebuild
from ternmq.spark.pipelines.reconcile import reconcile
from ternmq.spark.pipelines.reconcile_sides import Sides
from ternmq.spark.pipelines.replay import replay
from ternmq.spark.pipelines.sql import run_sql
from ternmq.spark.pipelines.trace import trace
from ternmq.spark.pipelines.trace_html import page
from ternmq.spark.session import session
from tests.spark.givingup import give_up
from tests.spark.small import SMALL, SMALL_JVM
from tests.spark.stores import load, write_store
from tests.spark.topics import Topics, bodies_of, numbered
from tests.spark.traces import call, pub, send_traces
from tests.store.small import log_queues_index

SETTINGS = {
    **SMALL,
    "spark.driver.host": "127.0.0.1",
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": SMALL_JVM,
    "spark.ui.enabled": "false",
    # The first task waits for both executors; else the first of them might be done before the second is there.
    "spark.cores.max": "2",
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "100s",
}

COUNT = 40
Facts = dict[str, object]


# --- Executors ----------------------------------------------------------------------------------------------------


def executor_pid() -> int:
    """A Python worker is the child of a daemon, which is that of the executor."""

    def parent(pid: int) -> int:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])

    return parent(parent(os.getpid()))


def pids(_: Iterable[Row]) -> Iterator[int]:
    yield executor_pid()


def dying(mark: Path) -> Callable[[Iterable[Row]], Iterator[bytes]]:
    """The bodies of a slice; the first executor that has read three rows of one is killed."""

    def bodies(rows: Iterable[Row]) -> Iterator[bytes]:
        for number, row in enumerate(rows):
            if number == 3:
                with contextlib.suppress(FileExistsError):
                    mark.touch(exist_ok=False)
                    os.kill(executor_pid(), signal.SIGKILL)
            yield bytes(row["body"])

    return bodies


# --- Source and sink ----------------------------------------------------------------------------------------------


def batch(topics: Topics, directory: Path) -> Facts:
    topics.create("batch")
    topics.send("batch", numbered(COUNT))
    frame = topics.read("batch", sliceMessages=10)
    return {
        "is_whole": numbered(COUNT) == bodies_of(frame.collect()),
        "executors": len(set(frame.rdd.mapPartitions(pids).collect())),
    }


def stream(topics: Topics, directory: Path) -> Facts:
    topics.create("stream")
    topics.send("stream", numbered(COUNT))
    found: list[bytes] = []
    batches: list[int] = []
    read_slice = dying(directory / "killed")

    def take(frame: DataFrame, number: int) -> None:
        found.extend(frame.rdd.mapPartitions(read_slice).collect())
        batches.append(number)

    options = {"startingOffsets": "earliest", "sliceMessages": 10, "maxMessagesPerTrigger": 24}
    writer = topics.stream(**options).load("stream").writeStream.foreachBatch(take)
    writer = writer.option("checkpointLocation", str(directory / "stream")).trigger(availableNow=True)
    writer.start().awaitTermination()
    return {
        "is_whole": numbered(COUNT) == sorted(found),
        "batches": batches,
        "was_killed": (directory / "killed").exists(),
    }


def sink(topics: Topics, directory: Path) -> Facts:
    topics.create("sink-from")
    topics.create("sink-to")
    topics.send("sink-from", numbered(COUNT))
    frame = topics.stream(startingOffsets="earliest", sliceMessages=10).load("sink-from").select("body")
    writer = frame.writeStream.format("ternmq").option("nameServers", topics.name_servers)
    writer = writer.option("checkpointLocation", str(directory / "sink")).trigger(availableNow=True)
    writer.start("sink-to").awaitTermination()
    return {"is_whole": numbered(COUNT) == bodies_of(topics.read("sink-to").collect())}


def files(topics: Topics, directory: Path) -> Facts:
    frame = load(topics.spark, write_store(directory / "files", count=100), sliceBytes=8192).select("log_offset")
    rows = frame.collect()
    return {"records": len(rows), "places": len(set(rows)), "is_sliced": frame.rdd.getNumPartitions() > 2}


# --- Pipelines ----------------------------------------------------------------------------------------------------


def lake(topics: Topics, directory: Path) -> Facts:
    topics.create("lake-from")
    topics.create("lake-to", queues=1)
    topics.send("lake-from", numbered(COUNT))
    spark, names, path = topics.spark, topics.name_servers, directory / "lake"
    archived = archive(spark, lake=path, topics=["lake-from"], name_servers=names, once=True, rows_per_batch=24)
    merged = compact(spark, lake=path)
    replayed = replay(spark, lake=path, to="lake-to", name_servers=names)
    return {
        "archived": archived.rows,
        "is_merged": merged.files_after < merged.files_before,
        "replayed": replayed.rows,
        "is_whole": numbered(COUNT) == bodies_of(topics.read("lake-to").collect()),
    }


def traced(topics: Topics, directory: Path) -> Facts:
    stories = [pub(f"M{n}", at=n) + (call(f"M{n}", at=2 * n) if n != 3 else b"") for n in range(9)]
    send_traces(topics.name_servers, "traces", stories)
    report = trace(topics.spark, name_servers=topics.name_servers, trace_topic="traces", grace_ms=0)
    return {
        "consuming": [(one.topic, one.group, one.messages, one.calls, one.lost) for one in report.consuming],
        "findings": [(one.problem, one.message_id) for one in report.findings],
        "has_plot": "<svg" in page(report),
    }


def deadletters(topics: Topics, directory: Path) -> Facts:
    names = topics.name_servers
    messages = [Message("dead", b"body", keys=str(n), tags="odd" if n % 2 else "even") for n in range(4)]
    give_up(names, "billing", "dead", messages)
    found = dead.letters(topics.spark, ["billing"], name_servers=names)
    report = dead.examine(topics.spark, found)
    resent = dead.redrive(topics.spark, dead.where(found, "tags = 'odd'"), name_servers=names, dry_run=False)
    return {
        "groups": sorted((one.origin_topic, one.tags, one.count) for one in report.groups),
        "resent": sorted((one.topic, " ".join(one.letter.message.keys), one.receipt is not None) for one in resent),
    }


def reconciled(topics: Topics, directory: Path) -> Facts:
    topics.send("reconciled", [b"0", b"0", b"1", b"2", b"3"])
    (directory / "sent.csv").write_text("id\n0\n1\n2\n3\n4\n")
    sides = Sides(topics.spark, "reconciled", name_servers=topics.name_servers, by="keys")
    sent = sides.sent(str(directory / "sent.csv"))
    report = reconcile(topics.spark, "reconciled", sides.stored(), sent=sent, late_ms=0)
    return {
        "problems": report.problems,
        "differences": sorted((one.problem, one.side, one.id) for one in report.differences),
    }


def sql(topics: Topics, directory: Path) -> Facts:
    topics.create("people", queues=1)
    topics.create("points", queues=1)
    topics.create("joined", queues=1)
    topics.send("people", [json.dumps({"id": n, "name": f"n{n}"}).encode() for n in range(8)])
    topics.send("points", [json.dumps({"id": n % 5, "amount": n}).encode() for n in range(10)])
    done = run_sql(
        topics.spark,
        """
        CREATE VIEW people (id INT, name STRING) FROM TOPIC people;
        CREATE VIEW points (id INT, amount INT) FROM TOPIC points;
        INSERT INTO TOPIC joined SELECT name, amount FROM people JOIN points ON people.id = points.id
        """,
        name_servers=topics.name_servers,
        checkpoint=str(directory / "sql"),
        once=True,
    )
    joined = map(json.loads, bodies_of(topics.read("joined").collect()))
    return {
        "messages": [one.messages for one in done],
        "joined": sorted((row["name"], row["amount"]) for row in joined),
    }


def rebuilt(topics: Topics, directory: Path) -> Facts:
    store, made = write_store(directory / "store", count=100), directory / "made"
    report = rebuild(topics.spark, store, output=made, slice_bytes=8192)
    return {
        "records": report.records,
        "queues": report.queues,
        "is_same": log_queues_index(store)[1:] == log_queues_index(made)[1:],
    }


PARTS: tuple[Callable[[Topics, Path], Facts], ...] = (
    batch,
    stream,
    sink,
    files,
    lake,
    traced,
    deadletters,
    reconciled,
    sql,
    rebuilt,
)


def main(name_servers: str, master: str, directory: str) -> None:
    topics = Topics(session(master=master, settings=SETTINGS), name_servers)
    for part in PARTS:
        try:
            facts = part(topics, Path(directory))
        except Exception:
            traceback.print_exc()
        else:
            print(json.dumps({"part": part.__name__, **facts}), flush=True)  # noqa: T201
    topics.spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
