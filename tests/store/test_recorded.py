"""Directories that RocketMQ wrote: they open, serve everything, and what we write has their bytes (C11)."""

from __future__ import annotations

import struct
from pathlib import Path

from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.read.reader import LogReader
from ternmq.store.store import Draft, GetStatus, MessageStore, StoreConfig
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.properties import parse
from ternmq.wire.record import Record, unpack_record
from tests.manual_clock import ManualClock
from tests.store.small import RECORDED_SIZES, RecordedStore, draft, log_queues_index, quiet_store, read_all, sha1


def shown(record: Record) -> dict[str, object]:
    """A record in the words of the recording."""
    return {
        "log_offset": record.log_offset,
        "size": record.size,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "sysflag": record.sysflag,
        "reconsume_times": record.reconsume_times,
        "prepared_offset": record.prepared_transaction_offset,
        "born_ms": record.born_time_ms,
        "store_ms": record.store_time_ms,
        "body_bytes": len(record.body),
        "body_sha1": sha1(record.body),
        "crc_ok": True,
        "properties": parse(record.properties),
    }


def test_a_reader_finds_every_record(recorded: RecordedStore) -> None:
    """C1, C11."""
    assert recorded.lines == [shown(record) for record in LogReader(recorded.root)]


def test_every_message_is_served(recorded: RecordedStore) -> None:
    """C8, C11."""
    with quiet_store(recorded.config) as store:
        for (topic, queue_id), lines in recorded.queues.items():
            assert lines == [shown(record) for record in read_all(store, topic, queue_id)]
        assert set(recorded.queues) == set(store.queues())


def test_every_message_is_found_by_its_keys(recorded: RecordedStore) -> None:
    """C4, C11."""
    with quiet_store(recorded.config) as store:
        for line in recorded.lines[:200] + recorded.lines[-200:]:
            properties = line["properties"]
            for key in f"{properties.get('UNIQ_KEY', '')} {properties.get('KEYS', '')}".split():
                found = store.query(line["topic"], key, count_max=64, begin_ms=0, end_ms=1 << 62)
                assert line["log_offset"] in [unpack_record(buffer).log_offset for buffer in found.buffers]


def test_after_a_crash_every_acknowledged_message_is_served(crashed: RecordedStore) -> None:
    """C8: RocketMQ was killed while a producer sent; what it had answered for is there."""
    with quiet_store(crashed.config) as store:
        for _, status, unique_key, offset_id, queue_id, queue_offset in crashed.acknowledged:
            assert status == "SEND_OK"
            result = store.get("CrashTopic", int(queue_id), int(queue_offset), count_max=1)
            assert result.status is GetStatus.FOUND
            record = unpack_record(result.buffers[0])
            assert parse_offset_id(offset_id)[2] == record.log_offset
            assert unique_key == parse(record.properties)["UNIQ_KEY"]


def test_a_directory_goes_on_where_rocketmq_stopped(recorded: RecordedStore) -> None:
    """C11: append, close, open again."""
    (topic, queue_id), lines = next(iter(recorded.queues.items()))
    with quiet_store(recorded.config) as store:
        placed = store.put(draft(topic, queue_id, b"one more", UNIQ_KEY="U1"))
        assert len(lines) == placed.queue_offset

    with quiet_store(recorded.config) as store:
        records = read_all(store, topic, queue_id)
        assert [*(line["body_sha1"] for line in lines), sha1(b"one more")] == [sha1(record.body) for record in records]
        assert 1 == len(store.query(topic, "U1", count_max=1, begin_ms=0, end_ms=1 << 62).buffers)


def test_opening_and_closing_changes_nothing_that_was_there(recorded: RecordedStore) -> None:
    """C11: byte for byte. Only a segment made in advance, which a crash leaves, is gone."""
    log, queues, index = log_queues_index(recorded.root)
    if recorded.acknowledged:
        del log["00000000000002097152"]
    with quiet_store(recorded.config):
        pass

    assert (log, queues, index) == log_queues_index(recorded.root)


def test_the_same_messages_make_the_same_files(recorded: RecordedStore, tmp_path: Path) -> None:
    """C1, C2, C4: put again what RocketMQ had stored, at the same times, and compare all bytes."""
    records = list(LogReader(recorded.root))
    ours = tmp_path / "ours"
    clock = SteppingClock()
    config = StoreConfig(store_path_root_dir=ours, **RECORDED_SIZES)
    with MessageStore.open(config, store_host=records[0].store_host, clock=clock, threads=False) as store:
        for record in records:
            clock.time_ms = record.store_time_ms
            placed = store.put(
                Draft(
                    record.topic,
                    record.queue_id,
                    record.body,
                    record.properties,
                    record.born_time_ms,
                    record.born_host,
                    record.flag,
                    record.sysflag,
                    record.reconsume_times,
                    record.prepared_transaction_offset,
                )
            )
            assert (record.log_offset, record.queue_offset) == (placed.log_offset, placed.queue_offset)

    log, queues, index = log_queues_index(recorded.root)
    our_log, our_queues, our_index = log_queues_index(ours)
    assert {name: log[name] for name in our_log} == our_log
    assert queues == our_queues
    assert index == our_index


class SteppingClock(ManualClock):
    """Shows the time that it was given last."""

    time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


def test_the_checkpoint_of_rocketmq_is_read(recorded: RecordedStore) -> None:
    """C7: and written in the same form."""
    path = recorded.root / "checkpoint"

    checkpoint = Checkpoint.load(FileDisk(), path)

    last_ms = recorded.lines[-1]["store_ms"]
    assert last_ms - 60_000 < checkpoint.queue_time_ms <= last_ms
    assert (
        struct.pack(">qqq", checkpoint.log_time_ms, checkpoint.queue_time_ms, checkpoint.index_time_ms)
        == (path.read_bytes()[:24])
    )
    assert checkpoint.pack() == path.read_bytes()
