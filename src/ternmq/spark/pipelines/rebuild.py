"""*rebuild*: ConsumeQueues and index rebuilt from a very large log, by many workers (U4, C5).

``tern store rebuild`` folds the log with one process. Here there are three steps of Spark, with an identical
result::

    scan    one task per slice of the log: entries of queues and of the index (``files.derive``)
    queues  entries shuffled by queue, in log order; a task writes the files of its queues
    index   entries are numbered: the number of entries of each slice is known after the scan, so the file of each
            entry is known, too. They are shuffled by file, and a task writes one file from its first entry to its last

Queues are folded by ``store.derived.queues``, the broker's own code, run by run. An index file depends on the previous
one by one number, the store time of its last entry; that entry is sent to both.

Workers write under separate names, another one for each attempt, and the driver moves the files of the successful
attempts to their places: repeated tasks leave no files. Everything is built aside and replaces the old files at the
end (``store.inspect.rebuild``); after a failure no new files remain. All workers need the directory under the same
path.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from pyspark import RDD, StorageLevel, TaskContext
from pyspark.sql import DataFrame, SparkSession

from ternmq.env import Clock, SystemClock
from ternmq.spark.files import layout
from ternmq.spark.files.derive import KEYED, Rules
from ternmq.spark.files.derived import EntryRun, Keys, QueuePart, Sum, derived
from ternmq.spark.files.index_file import IndexWriter
from ternmq.spark.files.options import NAME, SLICE_BYTES
from ternmq.spark.files.queue_writer import QueueWriter
from ternmq.spark.runtime.jobs import Watch
from ternmq.spark.source.options import local_path
from ternmq.store.derived.index import file_name
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.rebuild import fresh_parts, index_sizes, keep_numbers, left_out, queue_file_bytes
from ternmq.store.inspect.scan import Damaged
from ternmq.store.inspect.sizes import InspectConfig
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.index_file import index_file_bytes

JOB: Final = "rebuild"

_QUEUE_COLUMNS: Final = (
    "topic STRING, queue_id INT, queue_offset BIGINT, log_offset BIGINT, record_bytes INT, tags_code BIGINT"
)

_INDEX_COLUMNS: Final = "key_hash INT, log_offset BIGINT"

#: Queue entries for which one more task is worthwhile.
_TASK_RECORDS: Final = 250_000

#: Directory for the files of workers, below the directory that is built.
_PARTS: Final = "parts.tmp"


@dataclass(slots=True, frozen=True)
class RebuildResult:
    """The result of ``rebuild``."""

    records: int
    log_bytes: int
    queues: int
    index_files: int
    #: Places in the log without records although some follow.
    damages: list[Damaged]


def rebuild(
    spark: SparkSession,
    store_dir: str | Path,
    *,
    output: str | Path | None = None,
    config: InspectConfig | None = None,
    slice_bytes: int = SLICE_BYTES,
    watch: Watch | None = None,
    clock: Clock | None = None,
) -> RebuildResult:
    """Rebuild queues and index of a store, in place, or in a new directory ``output``; then the store is not changed.

    Raises ``StoreLocked`` while a broker uses a store that is to be changed, other ``StoreError``s for files that
    cannot be read or written, ``JobFailed`` and ``JobStopped``; then the old files are unchanged.
    """
    out = _path(output) if output is not None else None
    with fresh_parts(_path(store_dir), config, out=out) as (view, fresh):
        job = _Rebuild(spark, view, fresh, slice_bytes=slice_bytes, clock=clock or SystemClock())
        return (watch or Watch()).run(JOB, spark, job.run)


@dataclass(slots=True, frozen=True)
class Checked:
    """How the existing queues and index differ from the log, in entries."""

    rebuilt: RebuildResult
    #: Entries that are missing or differ; and entries without a record.
    queue_missing: int
    queue_extra: int
    index_missing: int
    index_extra: int

    @property
    def is_right(self) -> bool:
        return not (self.queue_missing or self.queue_extra or self.index_missing or self.index_extra)


def check(
    spark: SparkSession,
    store_dir: str | Path,
    *,
    config: InspectConfig | None = None,
    slice_bytes: int = SLICE_BYTES,
    watch: Watch | None = None,
) -> Checked:
    """Rebuild beside the store, as ``STORE_DIR.check``, compare, and remove it again: the store is not changed.

    Entries of expired records do not count as a difference. Raises as ``rebuild``.
    """
    root, watch = _path(store_dir), watch or Watch()
    fresh = root.with_name(f"{root.name}.check")
    try:
        made = rebuild(spark, root, output=fresh, config=config, slice_bytes=slice_bytes, watch=watch)
        log_min = StoreView(root, config, on_corrupt=lambda _: None).log.begin

        def compare(part: str, columns: str) -> tuple[int, int]:
            """How many entries only the new one has, and only the old one."""

            def table(directory: Path) -> DataFrame:
                reader = spark.read.format(NAME).option("part", part).schema(columns)
                return reader.load(str(directory)).where(f"log_offset >= {log_min}")

            new, old = table(fresh), table(root)
            return new.exceptAll(old).count(), old.exceptAll(new).count()

        def compare_all() -> Checked:
            return Checked(made, *compare("queues", _QUEUE_COLUMNS), *compare("index", _INDEX_COLUMNS))

        return watch.run(JOB, spark, compare_all)
    finally:
        FileDisk().remove(fresh)


def _path(path: str | Path) -> Path:
    return local_path(str(path), cure="mount what it names under one path for all workers").absolute()


class _Rebuild:
    """Driver: one rebuild into the empty directory ``fresh``."""

    def __init__(self, spark: SparkSession, view: StoreView, fresh: Path, *, slice_bytes: int, clock: Clock) -> None:
        self._spark = spark
        self._view = view
        self._fresh = fresh
        self._parts = fresh / _PARTS
        self._clock = clock
        self._disk = FileDisk()
        self._queue_file_bytes = queue_file_bytes(view)
        self._index_slots, self._index_entries = index_sizes(view)
        self._slices = layout.cut(layout.segments_of(view), slice_bytes=slice_bytes, until=view.confirmed)

    def run(self) -> RebuildResult:
        view = self._view
        self._parts.mkdir(parents=True)
        rules = Rules(left_out(view), dict(view.deleted.ends), view.queues.has_light, view.delays_ms)
        numbered = self._spark.sparkContext.parallelize(list(enumerate(self._slices)), max(1, len(self._slices)))
        scanned = numbered.flatMap(lambda each: derived(each[1], each[0], rules)).persist(StorageLevel.DISK_ONLY)
        try:
            told = scanned.filter(lambda each: isinstance(each, (Sum, Damaged))).collect()
            sums = sorted(each for each in told if isinstance(each, Sum))
            records = sum(each.records for each in sums)
            queues = self._write_queues(scanned, records)
            files = self._write_index(scanned, sums)
        finally:
            scanned.unpersist()
        if records and not files:
            # No files at all would mean that the index was deleted.
            files = [self._empty_index()]
        self._place_index(files)
        self._disk.remove(self._parts)
        log_end = max((each.log_end for each in sums), default=0)
        damages = sorted((each for each in told if isinstance(each, Damaged)), key=lambda damaged: damaged.begin)
        return RebuildResult(records, max(log_end - view.log.begin, 0), queues, len(files), damages)

    # --- Queues -----------------------------------------------------------------------------------------------------

    def _write_queues(self, scanned: RDD[Any], records: int) -> int:
        parts, file_bytes = self._parts, self._queue_file_bytes
        tasks_max = int(self._spark.conf.get("spark.sql.shuffle.partitions") or 1)
        tasks = min(tasks_max, records // _TASK_RECORDS + 1)
        written: list[tuple[str, int, Path]] = (
            scanned.filter(lambda each: isinstance(each, EntryRun))
            .map(lambda run: (run.key, run.entries))
            .repartitionAndSortWithinPartitions(tasks, lambda key: key.partition)
            .mapPartitions(lambda runs: _write_queues(runs, parts, file_bytes))
            .collect()
        )
        queues = ConsumeQueues(self._disk, self._fresh / "consumequeue", file_bytes=file_bytes)
        for topic, queue_id, part in written:
            queue = queues.make(topic, queue_id)
            made = part / topic / str(queue_id)
            if made.exists():
                queue.directory.parent.mkdir(parents=True, exist_ok=True)
                made.replace(queue.directory)
                queues.files.unsynced_names |= dict.fromkeys(queue.directory.parents[:3])
        keep_numbers(self._view, queues)
        queues.close()
        return len(queues)

    # --- Index ------------------------------------------------------------------------------------------------------

    def _write_index(self, scanned: RDD[Any], sums: Sequence[Sum]) -> list[Path]:
        """The files of the index, in order."""
        parts, slots, entries = self._parts, self._index_slots, self._index_entries
        counts = itertools.accumulate((each.keys for each in sums), initial=0)
        # zip ends with the sums; the last number is the total.
        firsts = {each.slice: count for each, count in zip(sums, counts, strict=False)}
        total = sum(each.keys for each in sums)
        if not total:
            return []
        written: list[tuple[int, Path]] = (
            scanned.filter(lambda each: isinstance(each, Keys))
            .flatMap(lambda keys: _to_files(keys, firsts[keys.slice], entries - 1, total))
            .repartitionAndSortWithinPartitions(-(-total // (entries - 1)), lambda key: key[0])
            .mapPartitions(lambda pieces: _write_index(pieces, parts, slots, entries, total))
            .collect()
        )
        return [path for _, path in sorted(written)]

    def _empty_index(self) -> Path:
        path = self._parts / "index-empty"
        self._disk.open_segment(path, size=index_file_bytes(self._index_slots, self._index_entries), create=True)
        return path

    def _place_index(self, files: Iterable[Path]) -> None:
        name = ""
        for path in files:
            name = file_name(self._clock.now_ms(), name)
            self._disk.move(path, self._fresh / "index" / name)


# --- Executors ----------------------------------------------------------------------------------------------------


def _attempt() -> int:
    context = TaskContext.get()
    assert context is not None, "runs in a task"
    return context.taskAttemptId()


def _write_queues(
    runs: Iterable[tuple[QueuePart, bytes]], parts: Path, file_bytes: int
) -> Iterator[tuple[str, int, Path]]:
    """Write queues whose runs arrive in order; yields each queue and its directory."""
    directory = parts / f"queues-{_attempt()}"
    writer = QueueWriter(directory, file_bytes=file_bytes)
    for key, entries in runs:
        writer.add(key.topic, key.queue_id, key.queue_offset, entries)
    for topic, queue_id in writer.close():
        yield topic, queue_id, directory


def _to_files(keys: Keys, first: int, per_file: int, total: int) -> Iterator[tuple[tuple[int, int], bytes]]:
    """Split the entries of a slice, whose numbers in the whole index begin at ``first``, by file: yields file and
    number in it. Number -1 is the last one of the previous file."""
    width, data = KEYED.itemsize, keys.entries
    begin = first + keys.before
    end = begin + len(data) // width
    for file in range(begin // per_file, min(end, total - 1) // per_file + 1):
        at, to = max(begin, file * per_file - 1), min(end, (file + 1) * per_file)
        yield (file, at - file * per_file), data[(at - begin) * width : (to - begin) * width]


def _write_index(
    pieces: Iterable[tuple[tuple[int, int], bytes]], parts: Path, slots: int, entries: int, total: int
) -> Iterator[tuple[int, Path]]:
    """Write one file whose entries arrive in order."""
    writer: IndexWriter | None = None
    before_ms = 0
    for (file, number), data in pieces:
        keyed = np.frombuffer(data, KEYED)
        if number < 0:
            before_ms = int(keyed["store_time_ms"][0])
            keyed = keyed[1:]
        if writer is None:
            path = parts / f"index-{_attempt()}"
            count = min(entries - 1, total - file * (entries - 1))
            writer = IndexWriter(path, slots=slots, entries=entries, count=count, before_ms=before_ms)
            yield file, path
        writer.add(keyed)
    if writer is not None:
        writer.close()
