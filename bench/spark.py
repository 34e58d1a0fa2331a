"""``python -m bench.spark``: rows a second from a topic into Spark, beside rows that cost nothing to make.

One TernMQ broker is filled with messages of 200 bytes in four queues. Spark reads them with ``local[2]`` and throws the
rows away (its ``noop`` sink): all columns, and the body alone. *Arrow generator*, a source on the same Python API,
hands out one and the same batch of these columns again and again: what Spark itself takes, with no broker, network or
decoding behind it. All on this machine, one after the other, several rounds; the table shows medians.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from bench import systems
from ternmq import Message, SyncAdmin, SyncProducer
from ternmq.message import MessageQueue
from ternmq.spark.columns import Batches, spark_schema
from ternmq.spark.records import Records
from ternmq.spark.session import session
from ternmq.wire.record import pack_host, pack_record, record_bytes

BODY: Final = b"x" * 200
TASKS: Final = 4
BATCH_ROWS: Final = 10_000
PROPERTIES: Final = (
    b"UNIQ_KEY\x01C000020270E455B2439B4D68D8790001\x02CLUSTER\x01DefaultCluster\x02MSG_REGION\x01DefaultRegion\x02"
    b"TRACE_ON\x01true\x02"
)
COLUMN_SETS: Final = {"all columns": "", "body alone": "body BINARY"}


class Generator(DataSource):
    """Rows out of nothing."""

    @classmethod
    def name(cls) -> str:
        return "generator"

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return GeneratorReader(schema, int(self.options["rows"]))


class GeneratorReader(DataSourceReader):
    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema = schema
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - all are alike
        batch = Batches(self._schema).batch(Records(_record() * BATCH_ROWS), MessageQueue("bench", "broker-a", 0))
        for _ in range(self._rows // TASKS // BATCH_ROWS):
            yield batch


def _record() -> bytes:
    host = pack_host("127.0.0.1", 10911)
    size = record_bytes(body=len(BODY), topic=5, properties=len(PROPERTIES), born_host=8, store_host=8)
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=0,
        flag=0,
        queue_offset=0,
        log_offset=0,
        sysflag=0,
        born_time_ms=1_700_000_000_000,
        born_host=host,
        store_time_ms=1_700_000_000_000,
        store_host=host,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=BODY,
        topic=b"bench",
        properties=PROPERTIES,
    )
    return bytes(page)


def fill(name_servers: str, rows: int) -> None:
    """``rows`` messages in four queues."""
    with SyncAdmin(name_servers) as admin:
        admin.topics.create("bench", queues=TASKS)
    with SyncProducer("bench", name_servers=name_servers) as producer:
        for number in range(rows // 100):
            queue = MessageQueue("bench", "broker-a", number % TASKS)
            producer.send_batch([Message("bench", BODY) for _ in range(100)], queue=queue)


def rate(frame: DataFrame, rows: int) -> float:
    """Rows a second from planning to the last task's end."""
    started = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return rows / (time.monotonic() - started)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    spark = session(master=f"local[{TASKS // 2}]", settings={"spark.driver.memory": "1g"})
    spark.dataSource.register(Generator)
    with (
        tempfile.TemporaryDirectory(prefix="ternmq-bench-") as directory,
        systems.start_ternmq(Path(directory) / "ternmq") as broker,
    ):
        fill(broker.namesrv, args.rows)
        _measure(spark, broker.namesrv, args)
    spark.stop()


def _measure(spark: SparkSession, name_servers: str, args: argparse.Namespace) -> None:
    print("| | Arrow generator, rows/s | TernMQ, rows/s | TernMQ / generator |\n|---|--:|--:|--:|")
    for title, columns in COLUMN_SETS.items():

        def load(name: str, columns: str = columns) -> DataFrame:
            reader = spark.read.format(name)
            reader = reader.schema(columns) if columns else reader
            if name == "generator":
                return reader.option("rows", args.rows).load()
            return reader.option("nameServers", name_servers).load("bench")

        rates: dict[str, list[float]] = {"generator": [], "ternmq": []}
        # The first round warms up the JVM and the workers, and does not count.
        for number in range(args.rounds + 1):
            for name, found in rates.items():
                measured = rate(load(name), args.rows)
                if number:
                    found.append(measured)
        bare, ours = (statistics.median(found) for found in rates.values())
        print(f"| {title} | {bare:,.0f} | {ours:,.0f} | {ours / bare:.2f}× |", flush=True)


if __name__ == "__main__":
    main()
