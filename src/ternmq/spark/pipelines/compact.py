"""*compact*: merges many small files of a lake into few large ones (U4).

Each hour's small files are grouped; a task reads the files of a group one after the other and writes them into one
file. Rows are neither sorted nor changed. Then the hour's directory is exchanged with a new one that has the large
files (``lake.Lake.replace``), so that readers find either all old files or all new ones. An archive may run meanwhile,
and so may a second compaction: of two that merged the same files the first wins.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from ternmq.errors import CorruptFile
from ternmq.spark.lake.lake import Lake, StagingDirectory
from ternmq.spark.runtime.jobs import Watch

TARGET_BYTES: Final = 128 << 20

#: A row group is written when it has this size; a task holds it in memory.
_GROUP_BYTES: Final = 32 << 20
_BATCH_ROWS: Final = 16_384
_FILES_AT_ONCE: Final = 64

#: For each new file, the files that are merged into it.
FileGroups: TypeAlias = list[list[Path]]


@dataclass(slots=True, frozen=True)
class Compacted:
    """The result of ``compact``: changed hours, and their files before and after."""

    hours: int
    files_before: int
    files_after: int


def compact(
    spark: SparkSession, *, lake: str | Path, target_bytes: int = TARGET_BYTES, watch: Watch | None = None
) -> Compacted:
    """Merge files of less than ``target_bytes`` into files of about that size. Raises ``ConfigError`` or
    ``JobFailed``; hours that were finished before stay merged."""
    watch = watch or Watch()
    at = Lake.at(lake)
    at.tidy()
    plans = {
        hour: groups
        for hour, files in at.hours().items()
        if (groups := groups_of([(path, path.stat().st_size) for path in files], target_bytes))
    }
    hours = before = after = 0
    for some in _portions(plans):
        with at.stage() as stage:
            new = _merge(spark, stage, some, watch)
            for hour, groups in some.items():
                merged = [path.name for group in groups for path in group]
                if at.replace(hour, merged, new[hour]):
                    hours, before, after = hours + 1, before + len(merged), after + len(groups)
    return Compacted(hours, before, after)


def _portions(plans: Mapping[str, FileGroups]) -> Iterator[dict[str, FileGroups]]:
    """Hours that are processed together: enough files for all cores, without the whole lake twice on the disk."""
    portion: dict[str, FileGroups] = {}
    for hour, groups in plans.items():
        portion[hour] = groups
        if sum(map(len, portion.values())) >= _FILES_AT_ONCE:
            yield portion
            portion = {}
    if portion:
        yield portion


def groups_of(files: Sequence[tuple[Path, int]], target_bytes: int) -> FileGroups:
    """Which files to merge into one, in order; files that are large enough, and single ones, are left out."""
    groups: FileGroups = []
    size = target_bytes
    for path, file_bytes in files:
        if file_bytes >= target_bytes:
            continue
        if size + file_bytes > target_bytes:
            groups.append([])
            size = 0
        groups[-1].append(path)
        size += file_bytes
    return [group for group in groups if len(group) > 1]


def _merge(
    spark: SparkSession, stage: StagingDirectory, plans: Mapping[str, FileGroups], watch: Watch
) -> Mapping[str, Sequence[Path]]:
    """Write the new files of some hours, each hour's into a separate directory."""
    new: dict[str, list[Path]] = {}
    work: list[tuple[list[str], str]] = []
    for number, (hour, groups) in enumerate(plans.items()):
        directory = stage.path / str(number)
        directory.mkdir()
        new[hour] = [directory / f"{one:04}.parquet" for one in range(len(groups))]
        work += [([str(path) for path in group], str(target)) for group, target in zip(groups, new[hour], strict=True)]
    tasks = spark.sparkContext.parallelize(work, len(work))
    watch.run("compact", spark, lambda: tasks.foreach(lambda one: merge(*one)))
    return new


def merge(sources: Sequence[str], target: str) -> None:
    """Executor: write the rows of some files into one, in order. A repeated task writes it again."""
    schema = pq.read_schema(sources[0])
    rows = 0
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for table in _tables(sources, schema):
            writer.write_table(table, row_group_size=table.num_rows)
            rows += table.num_rows
    expected = sum(pq.read_metadata(source).num_rows for source in sources)
    if rows != expected:
        raise CorruptFile(f"{rows} rows were read from files that have {expected}; nothing was changed", path=target)


def _tables(sources: Sequence[str], schema: pa.Schema) -> Iterator[pa.Table]:
    """The rows of some files in tables of suitable size."""
    waiting: list[pa.RecordBatch] = []
    waiting_bytes = 0
    for source in sources:
        for batch in pq.ParquetFile(source).iter_batches(batch_size=_BATCH_ROWS):
            waiting.append(batch)
            waiting_bytes += batch.nbytes
            if waiting_bytes >= _GROUP_BYTES:
                yield pa.Table.from_batches(waiting, schema)
                waiting, waiting_bytes = [], 0
    if waiting:
        yield pa.Table.from_batches(waiting, schema)
