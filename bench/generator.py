"""Generated rows: a source on Spark's Python API that returns one Arrow batch repeatedly.

The cost of such rows in Spark itself, without broker, network or decoding: the reference for ``ternmq``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from ternmq.message import MessageQueue
from ternmq.spark.source.columns import Batches, Rows, spark_schema
from ternmq.spark.source.records import Records
from ternmq.wire.record import pack_host, pack_record, record_bytes

NAME: Final = "generator"
BODY: Final = b"x" * 200
TASKS: Final = 4
BATCH_ROWS: Final = 10_000

PROPERTIES: Final = (
    b"UNIQ_KEY\x01C000020270E455B2439B4D68D8790001\x02CLUSTER\x01DefaultCluster\x02MSG_REGION\x01DefaultRegion\x02"
    b"TRACE_ON\x01true\x02"
)


class Generator(DataSource):
    """The columns of a topic, or those of a schema; the option ``rows`` says how many."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        return GeneratorReader(schema, int(self.options["rows"]))


class GeneratorReader(DataSourceReader):
    """Planner, then executor."""

    def __init__(self, schema: StructType, rows: int) -> None:
        self._schema = schema
        self._rows = rows

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(number) for number in range(TASKS)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:  # noqa: ARG002 - all are alike
        batch = Batches(self._schema).of(Rows(Records(_record() * BATCH_ROWS), MessageQueue("bench", "broker-a", 0)))
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
