"""Settings that no store could work with are refused, with the key and the cure (T2)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ternmq.errors import ConfigError
from ternmq.store.config import FlushDiskType, StoreConfig


def test_the_defaults_are_rocketmqs() -> None:
    """C1, C2, C4, C6."""
    config = StoreConfig(store_path_root_dir=Path("/store"))

    assert (1 << 30, 6_000_000, 420_000_040) == (
        config.mapped_file_size_commit_log,
        config.queue_file_bytes,
        config.index_file_bytes,
    )
    assert (FlushDiskType.ASYNC_FLUSH, 500, 4, 10_000, 5_000) == (
        config.flush_disk_type,
        config.flush_interval_commit_log,
        config.flush_commit_log_least_pages,
        config.flush_commit_log_thorough_interval,
        config.sync_flush_timeout,
    )
    assert (Path("/store/commitlog"),) == config.log_paths.writable
    assert (18, 1_000, 7_200_000) == (
        len(config.delay_levels_ms),
        config.delay_levels_ms[0],
        config.delay_levels_ms[-1],
    )


def test_a_queue_file_holds_whole_entries() -> None:
    """C2."""
    assert 120 == StoreConfig(mapped_file_size_consume_queue=101).queue_file_bytes


def test_the_log_may_have_a_directory_of_its_own() -> None:
    """C1."""
    assert (Path("/fast"),) == StoreConfig(store_path_commit_log=(Path("/fast"),)).log_paths.writable


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"mapped_file_size_commit_log": 100}, "mappedFileSizeCommitLog = 100 is too small; use at least 4096"),
        ({"mapped_file_size_consume_queue": 19}, "mappedFileSizeConsumeQueue = 19"),
        ({"max_index_num": 1}, "maxIndexNum = 1 is too small; use at least 2"),
        ({"flush_interval_commit_log": 0}, "flushIntervalCommitLog = 0"),
        ({"sync_flush_timeout": -5}, "syncFlushTimeout = -5"),
        ({"access_message_in_memory_max_ratio": 96}, "accessMessageInMemoryMaxRatio = 96 .* use at most 95"),
        ({"message_delay_level": " "}, "messageDelayLevel is empty; write levels like 1s"),
        ({"message_delay_level": "1s 5x"}, "messageDelayLevel has '5x', which is no duration; write levels like 1s"),
        (
            {"store_path_commit_log": (Path("/a"),), "read_only_commit_log_store_paths": (Path("/b"), Path("/a"))},
            "readOnlyCommitLogStorePaths names every directory of storePathCommitLog; leave at least one",
        ),
        (
            {"mapped_file_size_consume_queue_ext": 31},
            "mappedFileSizeConsumeQueueExt = 31 is too small; use at least 32",
        ),
    ],
)
def test_a_wrong_setting_is_named(changes: dict[str, Any], sentence: str) -> None:
    """T2."""
    with pytest.raises(ConfigError, match=sentence):
        StoreConfig(**changes)
