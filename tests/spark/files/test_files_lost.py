"""What a broker has lost: records of the log against queues, and against what a broker serves (U3)."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from ternmq.spark.files import lost
from ternmq.store.read.reader import LogReader
from tests.spark.stores import SEGMENT_BYTES, small_cluster, write_store
from tests.store.spoiled import edit

Found = list[tuple[str, int, int, str]]


def places(frame: DataFrame) -> Found:
    rows = frame.collect()
    return sorted((row["topic"], row["queue_id"], row["queue_offset"], row["why"]) for row in rows)


def test_records_without_a_right_queue_entry_are_found(spark: SparkSession, tmp_path: Path) -> None:
    """U3: an entry that leads elsewhere, a queue cut short, a queue that is gone; deleted topics are not lost."""
    root = write_store(tmp_path)
    assert [] == places(lost(spark, root))
    files = sorted((root / "consumequeue" / "orders" / "0").iterdir())
    edit(files[0], 20 * 5, struct.pack(">q", 1))
    edit(files[1], 20 * 47, bytes(60))
    shutil.rmtree(root / "consumequeue" / "others" / "0")

    found = places(lost(spark, root))

    expected: Found = [("orders", 0, 5, "wrong entry")]
    expected += [("orders", 0, offset, "no entry") for offset in range(147, 150)]
    expected += [("others", 0, offset, "no entry") for offset in range(10)]
    assert expected == found
    (root / "deletedTopics.json").write_text('{"others": 1000000000}')
    assert expected[:-10] == places(lost(spark, root, topics=["orders", "others"]))


def test_what_a_running_broker_does_not_serve_is_found(spark: SparkSession, tmp_path: Path) -> None:
    """U3: a broker that lost its first and last segments, against a copy of its store from before."""
    root = write_store(tmp_path / "broker")
    copy = shutil.copytree(root, tmp_path / "copy")
    records = list(LogReader(root))
    segments = sorted(path for path in (root / "commitlog").iterdir() if path.read_bytes()[:8] != bytes(8))
    last = int(segments[-1].name)
    for path in (segments[0], *sorted((root / "commitlog").iterdir())[len(segments) - 1 :]):
        path.unlink()
    for name in ("consumequeue", "index"):
        shutil.rmtree(root / name)

    with small_cluster(tmp_path / "broker") as cluster:
        found = places(lost(spark, copy, name_servers=cluster.name_servers))
        alone = lost(spark, copy, name_servers=cluster.name_servers, broker="broker-b", topics=["others"])
        nowhere = places(alone)

    gone = [(record, "deleted") for record in records if record.log_offset < SEGMENT_BYTES]
    gone += [(record, "behind the end") for record in records if record.log_offset >= last]
    assert sorted((record.topic, record.queue_id, record.queue_offset, why) for record, why in gone) == found
    assert [("others", 0, offset, "no queue") for offset in range(10)] == nowhere
