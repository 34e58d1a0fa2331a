"""The entries of a store's index as a table (U3, C4): hashes of keys, and the records that have them.

The number of slots of a file is derived from the files (``store.inspect.sizes``); after the slots come the entries,
20 bytes each, whose columns NumPy defines. One task reads one file.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from ternmq.errors import StoreError
from ternmq.spark.files.options import FilesOptions
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.sizes import InspectConfig, find_sizes
from ternmq.wire.layouts.index_file import (
    INDEX_ENTRY_BYTES,
    INDEX_ENTRY_FIELDS,
    INDEX_HEADER,
    INDEX_HEADER_BYTES,
    index_entries_at,
)

#: An entry in a file; ``store.derived.index`` explains its parts.
INDEX_ENTRIES: Final = np.dtype([(name, f">i{length_bytes}") for name, length_bytes in INDEX_ENTRY_FIELDS])

_BATCH_ENTRIES: Final = 100_000

SCHEMA: Final = StructType(
    [
        StructField("key_hash", IntegerType()),
        StructField("log_offset", LongType()),
        StructField("file", StringType()),
    ]
)


class IndexPartition(InputPartition):
    """One file, and where its entries begin."""

    def __init__(self, path: Path, entries_at: int) -> None:
        super().__init__((path, entries_at))
        self.path = path
        self.entries_at = entries_at


class IndexTableReader(DataSourceReader):
    """Planner, then executor: the entries of all index files."""

    def __init__(self, options: FilesOptions, schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """Planner."""
        disk = FileDisk(writable=False)
        found: list[InputPartition] = []
        for root in self._options.paths:
            files = [entry.name for entry in disk.list(root / "index") if entry.name.isdigit() and entry.length_bytes]
            slots = find_sizes(disk, root, InspectConfig()).index_slots if files else 0
            if slots is None:
                raise StoreError(f"nothing in {root} shows how large its index files are: they have no entries")
            entries_at = index_entries_at(slots)
            found += [IndexPartition(root / "index" / name, entries_at) for name in files]
        return found

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Executor."""
        if not isinstance(partition, IndexPartition):
            return
        disk, path = FileDisk(writable=False), partition.path
        count = INDEX_HEADER.unpack(disk.read_at(path, 0, INDEX_HEADER_BYTES))[5]
        names = [field.name for field in self._schema.fields]
        # Number 0 is unused.
        for number in range(1, count, _BATCH_ENTRIES):
            wanted = min(count - number, _BATCH_ENTRIES)
            at = partition.entries_at + number * INDEX_ENTRY_BYTES
            data = disk.read_at(path, at, wanted * INDEX_ENTRY_BYTES)
            entries = np.frombuffer(data[: len(data) // INDEX_ENTRY_BYTES * INDEX_ENTRY_BYTES], INDEX_ENTRIES)
            batch = pa.RecordBatch.from_arrays(
                [
                    pa.array(entries["hash"].astype(np.int32)),
                    pa.array(entries["log_offset"].astype(np.int64)),
                    pa.repeat(pa.scalar(str(path)), len(entries)),
                ],
                names=SCHEMA.names,
            )
            yield batch.select(names)
