"""The entries of a store's ConsumeQueues as a table (U3, C2).

A queue file has 20 bytes per entry, so a file *is* a table: NumPy defines the columns of its bytes. Fillers are
skipped; a queue ends at an entry without a size. One task reads some files, of one queue or of many.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ternmq.errors import StoreError
from ternmq.spark.files.options import FilesOptions
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import NAME_DIGITS
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES, ENTRY_FIELDS, FILLER_SIZE

ENTRIES: Final = np.dtype([(name, f">i{length_bytes}") for name, length_bytes in ENTRY_FIELDS])

#: Files for one task.
_TASK_FILES: Final = 500


@dataclass(slots=True, frozen=True)
class QueueFile:
    """One file of a queue; ``start`` is its position in the queue in bytes."""

    path: Path
    topic: str
    queue_id: int
    start: int


class QueueFiles(InputPartition):
    """The files of one task."""

    def __init__(self, files: tuple[QueueFile, ...]) -> None:
        super().__init__(files)
        self.files = files


class QueueTableReader(DataSourceReader):
    """Planner, then executor: the entries of all queues."""

    def __init__(self, options: FilesOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Planner: group files by their bytes; a task gets as many as fit into a slice."""
        tasks: list[InputPartition] = []
        files: list[QueueFile] = []
        total_bytes = 0
        for file, length_bytes in self._files():
            if files and (total_bytes + length_bytes > self._options.slice_bytes or len(files) >= _TASK_FILES):
                tasks.append(QueueFiles(tuple(files)))
                files, total_bytes = [], 0
            files.append(file)
            total_bytes += length_bytes
        return [*tasks, QueueFiles(tuple(files))]

    def _files(self) -> Iterator[tuple[QueueFile, int]]:
        disk = FileDisk(writable=False)
        for root in self._options.paths:
            if not root.is_dir():
                raise StoreError(
                    f"there is no directory {root} on this machine; give the directory of storePathRootDir"
                )
            directory = root / "consumequeue"
            for topic, _, is_topic in disk.list(directory):
                if not is_topic or not self._options.selects(topic):
                    continue
                for queue, _, is_queue in disk.list(directory / topic):
                    # RocketMQ skips names that are not numbers, and so do we.
                    if not (is_queue and queue.isascii() and queue.isdigit()):
                        continue
                    for name, length_bytes, _ in disk.list(directory / topic / queue):
                        if name.isdigit() and len(name) == NAME_DIGITS:
                            path = directory / topic / queue / name
                            yield QueueFile(path, topic, int(queue), int(name)), length_bytes

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        disk = FileDisk(writable=False)
        names = [field.name for field in self._schema.fields]
        for file in partition.files if isinstance(partition, QueueFiles) else ():
            # A file that retention has deleted meanwhile has no entries that are still needed.
            data = disk.read(file.path) or b""
            batch = _batch(file, data[: len(data) // ENTRY_BYTES * ENTRY_BYTES])
            yield batch.select(names)


def _batch(file: QueueFile, data: bytes) -> pa.RecordBatch:
    entries = np.frombuffer(data, ENTRIES)
    sizes = entries["size"].astype(np.int32)
    ends = np.flatnonzero(sizes <= 0)
    if len(ends):
        entries, sizes = entries[: ends[0]], sizes[: ends[0]]
    kept = np.flatnonzero(sizes != FILLER_SIZE)
    entries = entries[kept]
    count = len(kept)
    arrays = {
        "topic": pa.repeat(pa.scalar(file.topic), count),
        "queue_id": pa.repeat(pa.scalar(file.queue_id, pa.int32()), count),
        "queue_offset": pa.array(file.start // ENTRY_BYTES + kept),
        "log_offset": pa.array(entries["log_offset"].astype(np.int64)),
        "record_bytes": pa.array(sizes[kept]),
        "tags_code": pa.array(entries["tags_code"].astype(np.int64)),
    }
    return pa.RecordBatch.from_arrays(list(arrays.values()), names=list(arrays))


#: A batch has all columns first, of which the requested ones are selected.
SCHEMA: Final = StructType(
    [
        StructField("topic", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("log_offset", LongType()),
        StructField("record_bytes", IntegerType()),
        StructField("tags_code", LongType()),
    ]
)
