"""Settings of one store directory, under RocketMQ's names in snake case (C1–C8, T2).

``config.py`` at the top of the package maps ``mappedFileSizeCommitLog`` and its like to these fields. A value that
no store could work with raises ``ConfigError`` here, once, so that nothing else has to check it again.
"""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ternmq.errors import ConfigError
from ternmq.store.log.paths import LogPaths
from ternmq.wire.layouts.index_file import index_file_bytes
from ternmq.wire.layouts.queue_entry import ENTRY_BYTES

#: A unit without its bit map, and what a file of units keeps free at its end (RocketMQ's ``ConsumeQueueExt``).
UNIT_BYTES: Final = 20
UNIT_END_BYTES: Final = 4

#: A record may be this much larger than the largest body: topic, properties, fixed part (RocketMQ's ``CommitLog``).
RECORD_EXTRA_BYTES: Final = 64 * 1024

#: Two years, as in QMQ.
TIMER_MAX_DELAY_SEC: Final = 2 * 365 * 86_400
_DELAY_LEVELS: Final = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS: Final = {"s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DELAY: Final = re.compile(r"([0-9]{1,9})([smhd])\Z")


class FlushDiskType(enum.Enum):
    """When a send is answered: with the record in the page cache, or on the disk (C6)."""

    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


@dataclass(slots=True, frozen=True, kw_only=True)
class StoreConfig:
    """What one store needs to know. The defaults are RocketMQ's."""

    # --- Where -------------------------------------------------------------------------------------------------

    #: The directory of everything (C11). One process at a time holds it.
    store_path_root_dir: Path = field(default_factory=lambda: Path.home() / "store")
    #: The log's own directories, for disks of its own, between which segments alternate; none: ``commitlog`` under the
    #: root (C1). In a file: paths with commas between them.
    store_path_commit_log: tuple[Path, ...] = ()
    #: Directories of the log that get no new segments, such as a disk that is to be emptied.
    read_only_commit_log_store_paths: tuple[Path, ...] = ()

    # --- Sizes of files: fixed when a directory is first used -----------------------------------------------------

    #: Bytes of a log segment (C1). Every file has exactly this length, or RocketMQ would not open it.
    mapped_file_size_commit_log: int = 1 << 30
    #: Bytes of a queue file, rounded up to whole entries of 20 (C2): 300,000 entries.
    mapped_file_size_consume_queue: int = 6_000_000
    #: Whether entries get a unit beside them, for the bit map of SQL filters (C3). Units that exist are read anyway.
    enable_consume_queue_ext: bool = False
    #: Bytes of a file of units: 1.4 million of them with RocketMQ's bit maps.
    mapped_file_size_consume_queue_ext: int = 48 << 20
    #: Bits that a unit's map is expected to have. As in RocketMQ a map may have others: the filter's settings decide.
    bit_map_length_consume_queue_ext: int = 64
    #: Slots and entries of an index file (C4): 40 + 4 · slots + 20 · entries bytes, sparse.
    max_hash_slot_num: int = 5_000_000
    max_index_num: int = 20_000_000
    #: Off saves about 1 µs a message and loses the search by key (C4).
    message_index_enable: bool = True

    # --- Flush (C6) -----------------------------------------------------------------------------------------------

    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    #: ms between two looks of the flush thread under ASYNC_FLUSH.
    flush_interval_commit_log: int = 500
    #: Fewer dirty pages of 4 KiB than this wait for the thorough flush, to spare the disk.
    flush_commit_log_least_pages: int = 4
    #: ms after which any dirty page is flushed.
    flush_commit_log_thorough_interval: int = 10_000
    #: ms that a send waits for the disk under SYNC_FLUSH before it is answered FLUSH_DISK_TIMEOUT.
    sync_flush_timeout: int = 5_000
    #: The same three for the queues. They are derived from the log: a late flush costs recovery time, no data.
    flush_interval_consume_queue: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000

    # --- What is accepted (C1) ------------------------------------------------------------------------------------

    #: Bytes of the largest body; the whole record may have 64 KiB more.
    max_message_size: int = 4 << 20
    #: Whether topics of more than 127 bytes (retry topics of long groups) are stored, in records of version 2. RocketMQ
    #: 4 takes the first of these for the log's end: turn it off where it may have to read the directory.
    auto_message_version_on_topic_len: bool = True

    # --- Recovery (C8) --------------------------------------------------------------------------------------------

    #: Whether recovery compares bodies with their CRC. Off only where the disk itself does so.
    check_crc_on_recover: bool = True

    # --- Retention (C9) -------------------------------------------------------------------------------------------

    #: Hours after its last write at which a log segment may be deleted, consumed or not.
    file_reserved_time: int = 72
    #: Hours of the day (local time) in which that happens, ``;`` between several: when the disk has little to do.
    delete_when: str = "04"
    #: ms between two looks at ages and disks; the first comes 60 s after the start.
    clean_resource_interval: int = 10_000
    #: Segments deleted after one look, at most.
    delete_file_batch_max: int = 10
    #: Use of the disk (%) above which old segments are deleted at any hour. RocketMQ takes 10…95 and moves other values
    #: to the nearest of these, as it does with the next two, and so do we (``clean_percent``).
    disk_max_used_space_ratio: int = 75
    #: Above which the oldest segments are deleted whatever their age, rather than to stop (30…85) …
    disk_space_clean_forcibly_ratio: int = 85
    #: … unless this forbids it.
    clean_file_forcibly_enable: bool = True
    #: Above which messages are refused (35…90), until use is down to the mark before.
    disk_space_warning_level_ratio: int = 90

    # --- What one read returns at most (F, §10 of the store's protocol page) ------------------------------------------

    #: From the page cache: bytes and messages.
    max_transfer_bytes_on_message_in_memory: int = 256 * 1024
    max_transfer_count_on_message_in_memory: int = 32
    #: From further back, where reads meet the disk and one consumer must not hold up the others.
    max_transfer_bytes_on_message_in_disk: int = 64 * 1024
    max_transfer_count_on_message_in_disk: int = 8
    #: «Further back» begins at this part (%) of the machine's memory behind the log's end.
    access_message_in_memory_max_ratio: int = 40
    #: Bytes of queue entries that one read scans for matching tags: 800 entries.
    max_filter_message_size: int = 16_000
    #: Most messages that a search by key returns.
    max_msgs_num_batch: int = 64

    # --- Delay levels (I1) ----------------------------------------------------------------------------------------

    #: Level 1, 2, …: an entry of SCHEDULE_TOPIC_XXXX holds its delivery time where others hold the tags code (C2).
    message_delay_level: str = _DELAY_LEVELS
    #: ms between two saves of how far each level is delivered; a broker that is killed repeats at most so much.
    flush_delay_offset_interval: int = 10_000

    # --- Delivery at any time (I2) ------------------------------------------------------------------------------------

    #: Whether messages with a delivery time are accepted; those that wait are delivered in any case.
    timer_wheel_enable: bool = True
    #: Longest delay in s: 40 days (RocketMQ: 3 days, because its log must keep what waits). At most two years.
    timer_max_delay_sec: int = 40 * 86_400

    def __post_init__(self) -> None:
        if not set(self._log_directories) - set(self.read_only_commit_log_store_paths):
            raise ConfigError(
                "readOnlyCommitLogStorePaths names every directory of storePathCommitLog; leave at least one to write "
                "to"
            )
        _at_least("mappedFileSizeCommitLog", self.mapped_file_size_commit_log, 4096, "bytes")
        _at_least("mappedFileSizeConsumeQueue", self.mapped_file_size_consume_queue, ENTRY_BYTES, "bytes")
        _at_least("bitMapLengthConsumeQueueExt", self.bit_map_length_consume_queue_ext, 0, "bits")
        _at_least(
            "mappedFileSizeConsumeQueueExt",
            self.mapped_file_size_consume_queue_ext,
            UNIT_BYTES + self.bit_map_length_consume_queue_ext // 8 + UNIT_END_BYTES,
            "bytes",
        )
        _at_least("maxHashSlotNum", self.max_hash_slot_num, 1, "slots")
        # Entry 0 is never used, so a file of one entry would be full before its first.
        _at_least("maxIndexNum", self.max_index_num, 2, "entries")
        _at_least("flushIntervalCommitLog", self.flush_interval_commit_log, 1, "ms")
        _at_least("flushCommitLogLeastPages", self.flush_commit_log_least_pages, 0, "pages")
        _at_least("flushCommitLogThoroughInterval", self.flush_commit_log_thorough_interval, 1, "ms")
        _at_least("syncFlushTimeout", self.sync_flush_timeout, 1, "ms")
        _at_least("flushIntervalConsumeQueue", self.flush_interval_consume_queue, 1, "ms")
        _at_least("flushConsumeQueueLeastPages", self.flush_consume_queue_least_pages, 0, "pages")
        _at_least("flushConsumeQueueThoroughInterval", self.flush_consume_queue_thorough_interval, 1, "ms")
        _at_least("maxMessageSize", self.max_message_size, 1, "bytes")
        _at_least("maxTransferBytesOnMessageInMemory", self.max_transfer_bytes_on_message_in_memory, 1, "bytes")
        _at_least("maxTransferCountOnMessageInMemory", self.max_transfer_count_on_message_in_memory, 1, "messages")
        _at_least("maxTransferBytesOnMessageInDisk", self.max_transfer_bytes_on_message_in_disk, 1, "bytes")
        _at_least("maxTransferCountOnMessageInDisk", self.max_transfer_count_on_message_in_disk, 1, "messages")
        _at_least("maxFilterMessageSize", self.max_filter_message_size, ENTRY_BYTES, "bytes")
        _at_least("maxMsgsNumBatch", self.max_msgs_num_batch, 1, "messages")
        _at_least("accessMessageInMemoryMaxRatio", self.access_message_in_memory_max_ratio, 0, "%")
        if self.access_message_in_memory_max_ratio > 95:
            raise ConfigError(
                f"accessMessageInMemoryMaxRatio = {self.access_message_in_memory_max_ratio} leaves no memory for "
                "anything else; use at most 95 (%)"
            )
        _at_least("fileReservedTime", self.file_reserved_time, 0, "hours")
        _at_least("cleanResourceInterval", self.clean_resource_interval, 1, "ms")
        _at_least("deleteFileBatchMax", self.delete_file_batch_max, 1, "files")
        for key, value, most in (
            ("fileReservedTime", self.file_reserved_time, 100 * 365 * 24),
            ("cleanResourceInterval", self.clean_resource_interval, 24 * 3_600_000),
            ("deleteFileBatchMax", self.delete_file_batch_max, 1_000_000),
        ):
            if value > most:
                raise ConfigError(f"{key} = {value} is too large; use at most {most}")
        _at_least("timerMaxDelaySec", self.timer_max_delay_sec, 1, "s")
        if self.timer_max_delay_sec > TIMER_MAX_DELAY_SEC:
            raise ConfigError(
                f"timerMaxDelaySec = {self.timer_max_delay_sec} is too large; use at most {TIMER_MAX_DELAY_SEC} "
                "(s, two years)"
            )
        parse_hours(self.delete_when)
        parse_delay_levels(self.message_delay_level)

    @property
    def _log_directories(self) -> tuple[Path, ...]:
        return self.store_path_commit_log or (self.store_path_root_dir / "commitlog",)

    @property
    def log_paths(self) -> LogPaths:
        """Where the log is, and where it grows."""
        return LogPaths(self._log_directories, self.read_only_commit_log_store_paths)

    @property
    def queue_file_bytes(self) -> int:
        """Bytes of a queue file: whole entries."""
        return -(-self.mapped_file_size_consume_queue // ENTRY_BYTES) * ENTRY_BYTES

    @property
    def index_file_bytes(self) -> int:
        return index_file_bytes(self.max_hash_slot_num, self.max_index_num)

    @property
    def delete_hours(self) -> frozenset[int]:
        """Hours of the day in which old segments are deleted."""
        return parse_hours(self.delete_when)

    @property
    def clean_percent(self) -> int:
        return _within(self.disk_max_used_space_ratio, 10, 95)

    @property
    def force_percent(self) -> int:
        return _within(self.disk_space_clean_forcibly_ratio, 30, 85)

    @property
    def refuse_percent(self) -> int:
        return _within(self.disk_space_warning_level_ratio, 35, 90)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """Delay of level 1, 2, … in ms."""
        return parse_delay_levels(self.message_delay_level)


def parse_delay_levels(text: str) -> tuple[int, ...]:
    """``"1s 5s 1m"`` → (1000, 5000, 60000); ``ConfigError`` if a part is no duration."""
    delays = []
    for part in text.split():
        matched = _DELAY.match(part)
        if matched is None:
            raise ConfigError(
                f"messageDelayLevel has {part!r}, which is no duration; write levels like 1s 5m 2h 1d, blanks between"
            )
        delays.append(int(matched[1]) * _UNIT_MS[matched[2]])
    if not delays:
        raise ConfigError("messageDelayLevel is empty; write levels like 1s 5m 2h 1d, blanks between, or leave it out")
    return tuple(delays)


def parse_hours(text: str) -> frozenset[int]:
    """``"04;16"`` → {4, 16}; ``ConfigError`` if a part is no hour of the day."""
    hours = [part.strip() for part in text.split(";") if part.strip()]
    for hour in hours:
        if not (hour.isascii() and hour.isdigit() and int(hour) < 24):
            raise ConfigError(f"invalid deleteWhen {text!r}: expected hours from 00 to 23, with ; between them")
    return frozenset(int(hour) for hour in hours)


def _within(value: int, least: int, most: int) -> int:
    return min(max(value, least), most)


def _at_least(key: str, value: int, least: int, unit: str) -> None:
    if value < least:
        raise ConfigError(f"{key} = {value} is too small; use at least {least} ({unit})")
