"""*rebuild* with Spark: byte for byte what ``tern store rebuild`` and brokers make (U4, C5)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from ternmq.errors import StoreError, StoreLocked
from ternmq.names import SCHEDULE_TOPIC
from ternmq.spark.pipelines.rebuild import check, rebuild
from ternmq.spark.runtime.jobs import JobFailed
from ternmq.store.inspect.rebuild import rebuild as rebuild_alone
from ternmq.store.inspect.sizes import InspectConfig
from tests.manual_clock import ManualClock
from tests.raft.test_tools import member
from tests.spark.stores import small_cluster, write_store
from tests.store.conftest import recorded, unpacked
from tests.store.small import RecordedStore, draft, files, log_queues_index, quiet_store, small_config
from tests.store.spoiled import edit

__all__ = ["recorded", "unpacked"]


def test_recorded_directories_are_rebuilt_to_the_byte(
    spark: SparkSession, recorded: RecordedStore, tmp_path: Path
) -> None:
    """U4, V1: what RocketMQ itself had written, from slices much smaller than a segment; the directory is only read."""
    before = files(recorded.root)

    made = rebuild(spark, recorded.root, output=tmp_path / "out", slice_bytes=150_000)

    assert before == files(recorded.root)
    _, queues, index = log_queues_index(recorded.root)
    _, our_queues, our_index = log_queues_index(tmp_path / "out")
    assert (queues, index) == (our_queues, our_index)
    assert (len(recorded.lines), len(recorded.queues), len(index)) == (made.records, made.queues, made.index_files)
    assert ["consumequeue", "index"] == sorted(path.name for path in (tmp_path / "out").iterdir())


def odd_store(root: Path) -> InspectConfig:
    """A store with all that a fold has rules for: queues that start over, gaps, delays, light queues, deleted topics,
    halves of transactions, damage; and a log that retention has cut."""
    levels = InspectConfig(message_delay_level="7s 9s", max_hash_slot_num=7, max_index_num=60)
    config = small_config(
        root, mapped_file_size_commit_log=8192, max_index_num=60, message_delay_level=levels.message_delay_level
    )
    with quiet_store(config) as store:
        for number in range(70):
            store.put(
                draft("orders", number % 3, b"b" * 300, KEYS=f"k{number} all", TAGS=f"T{number % 2}", UNIQ_KEY="U")
            )
            if number < 10:
                store.put(draft("gone", 0, b"early"))
            if number % 10 == 0:
                store.put(draft(SCHEDULE_TOPIC, 1, KEYS="k", DELAY="2", REAL_TOPIC="orders", REAL_QID="0"))
                store.put(draft("%LMQ%x", 0, b"its own"))
                names, offsets = "%LMQ%a,%LMQ%b", f"{number // 10},{100 + number // 10}"
                store.put(draft("light", 0, INNER_MULTI_DISPATCH=names, INNER_MULTI_QUEUE_OFFSET=offsets))
                store.put(draft("deleted", 0, b"d"))
            if number == 40:
                store.delete_topics(["deleted"])
    segments = sorted((root / "commitlog").iterdir())
    segments[0].unlink()
    edit(segments[2], 400, b"\xff" * 3)
    edit(segments[3], 1_000, bytes(2_000))
    return levels


def test_odd_stores_are_rebuilt_as_by_one_process(spark: SparkSession, tmp_path: Path) -> None:
    """U4, C5: in place, and equal to what ``tern store rebuild`` makes of a copy."""
    root = tmp_path / "store"
    levels = odd_store(root)
    rebuild_alone(root, levels, out=tmp_path / "alone", clock=ManualClock())
    (root / "consumequeue_ext").mkdir()

    made = rebuild(spark, root, config=levels, slice_bytes=5_000)

    _, queues, index = log_queues_index(tmp_path / "alone")
    assert (queues, index) == log_queues_index(root)[1:]
    assert len(made.damages) >= 2
    assert {"%LMQ%a", "%LMQ%b", "%LMQ%x", "deleted", "gone", "light", "orders", SCHEDULE_TOPIC} == {
        path.name for path in (root / "consumequeue").iterdir()
    }
    assert not [*root.glob("*.tmp")]

    before = files(root)
    edit(min((root / "consumequeue" / "orders" / "0").iterdir()), 8, b"\0\0\0\x7f")
    checked = check(spark, root, config=levels)
    assert (False, 1, 1, 0, 0) == (
        checked.is_right,
        checked.queue_missing,
        checked.queue_extra,
        checked.index_missing,
        checked.index_extra,
    )
    assert before.keys() == files(root).keys()
    assert ["alone", "store"] == sorted(path.name for path in tmp_path.iterdir())


def test_a_member_of_a_raft_group_is_rebuilt_as_by_one_process(spark: SparkSession, tmp_path: Path) -> None:
    """U4, P2: a plain log in front of the entries, and entries that are not committed."""
    root = member(tmp_path / "store", uncommitted=3)
    rebuild_alone(root, out=tmp_path / "alone", clock=ManualClock())

    made = rebuild(spark, root, slice_bytes=1_000)

    assert (20, 2, []) == (made.records, made.queues, made.damages)
    assert log_queues_index(tmp_path / "alone")[1:] == log_queues_index(root)[1:]


def test_a_rebuild_that_cannot_end_leaves_nothing_behind(spark: SparkSession, tmp_path: Path) -> None:
    """U4: a store in use, a directory in use, an index of unknown size, a worker that fails."""
    with small_cluster(tmp_path / "ternmq"), pytest.raises(StoreLocked):
        rebuild(spark, tmp_path / "ternmq" / "broker-a")
    root = write_store(tmp_path / "ternmq", count=50)
    before = files(tmp_path)

    with pytest.raises(StoreError, match="ternmq exists and is not empty; name a new directory for what is made"):
        rebuild(spark, root, output=tmp_path / "ternmq")
    too_large = InspectConfig(max_hash_slot_num=1 << 60, max_index_num=200)
    for output in (None, tmp_path / "out"):
        with pytest.raises(JobFailed, match=r"^cannot open .*: File too large; "):
            rebuild(spark, root, output=output, config=too_large)
    assert before == files(tmp_path)
    assert ["ternmq"] == [path.name for path in tmp_path.iterdir()]
    assert not [*root.glob("*.tmp")]

    shutil.rmtree(root / "index")
    with pytest.raises(StoreError, match="how large its index files are"):
        rebuild(spark, root)
