"""Store directories for tests, and tables of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, DataFrameReader, SparkSession

from ternmq import EmbeddedCluster, Message, SyncAdmin, SyncProducer

SEGMENT_BYTES = 16 * 1024
#: Files so small that a few hundred messages fill several.
SMALL = {
    "mappedFileSizeCommitLog": str(SEGMENT_BYTES),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "50",
    "maxIndexNum": "200",
}


def small_cluster(directory: Path) -> EmbeddedCluster:
    return EmbeddedCluster(directory=directory, settings=SMALL)


def write_store(directory: Path, *, count: int = 300) -> Path:
    """A closed store of TernMQ: ``count`` orders in two queues and ten messages of another topic, in many segments."""
    with small_cluster(directory) as cluster:
        with SyncAdmin(cluster.name_servers) as admin:
            admin.topics.create("orders", queues=2)
            admin.topics.create("others", queues=1)
        with SyncProducer("tests", name_servers=cluster.name_servers) as producer:
            for number in range(count):
                text = f"{number:05}"
                body = text.encode() * (300 if number % 50 == 0 else 10)
                producer.send(Message("orders", body, tags=f"T{number % 3}", keys=f"k{text} all"))
                if number % (count // 10) == 0:
                    producer.send(Message("others", text.encode()))
    return directory / "broker-a"


def files_reader(spark: SparkSession, **options: Any) -> DataFrameReader:
    return spark.read.format("ternmq_files").options(**{name: str(value) for name, value in options.items()})


def load(spark: SparkSession, *paths: Path, **options: Any) -> DataFrame:
    return files_reader(spark, **options).load(",".join(map(str, paths)))
