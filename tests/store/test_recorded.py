"""Directories that RocketMQ wrote: they open, serve everything, and what we write has their bytes (C11)."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from ternmq.store.checkpoint import Checkpoint
from ternmq.store.reader import LogReader
from ternmq.store.segment import FileDisk
from ternmq.store.store import Draft, GetStatus, MessageStore, StoreConfig
from ternmq.wire.ids import parse_offset_id
from ternmq.wire.properties import parse
from ternmq.wire.record import Record, unpack_record
from tests.manual_clock import ManualClock
from tests.store.small import (
    RECORDED,
    RECORDED_SIZES,
    draft,
    quiet_store,
    read_all,
    recorded_records,
    recorded_text,
    sha1,
    unpack_store,
)


def config_of(root: Path) -> StoreConfig:
    return StoreConfig(store_path_root_dir=root, **RECORDED_SIZES)


def queued(name: str) -> dict[tuple[str, int], list[dict[str, object]]]:
    """Recorded records by queue. A prepared half or a rollback has no queue."""
    queues: dict[tuple[str, int], list[dict[str, object]]] = {}
    for line in recorded_records(name):
        if not line["sysflag"] & 4:
            queues.setdefault((line["topic"], line["queue_id"]), []).append(line)
    return queues


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


@pytest.mark.parametrize("name", RECORDED)
def test_a_reader_finds_every_record(name: str, tmp_path: Path) -> None:
    """C1, C11."""
    reader = LogReader(unpack_store(name, tmp_path))

    found = [shown(record) for record in reader]

    assert recorded_records(name) == found


@pytest.mark.parametrize("name", RECORDED)
def test_every_message_is_served(name: str, tmp_path: Path) -> None:
    """C8, C11."""
    with quiet_store(config_of(unpack_store(name, tmp_path))) as store:
        for (topic, queue_id), lines in queued(name).items():
            assert lines == [shown(record) for record in read_all(store, topic, queue_id)]
        assert set(queued(name)) == set(store.queues())


@pytest.mark.parametrize("name", RECORDED)
def test_every_message_is_found_by_its_keys(name: str, tmp_path: Path) -> None:
    """C4, C11."""
    with quiet_store(config_of(unpack_store(name, tmp_path))) as store:
        for line in recorded_records(name)[-500:]:
            properties = line["properties"]
            for key in f"{properties.get('UNIQ_KEY', '')} {properties.get('KEYS', '')}".split():
                found = store.query(line["topic"], key, count_max=64, begin_ms=0, end_ms=1 << 62)
                assert line["log_offset"] in [unpack_record(buffer).log_offset for buffer in found.buffers]


def test_after_a_crash_every_acknowledged_message_is_served(tmp_path: Path) -> None:
    """C8: RocketMQ was killed while a producer sent; what it had answered for is there."""
    name = "rocketmq-4.9.4-crashed"
    with quiet_store(config_of(unpack_store(name, tmp_path))) as store:
        acknowledged = [line.split() for line in recorded_text(name, "acked.txt")]
        for _, status, unique_key, offset_id, queue_id, queue_offset in acknowledged:
            assert status == "SEND_OK"
            result = store.get("CrashTopic", int(queue_id), int(queue_offset), count_max=1)
            assert result.status is GetStatus.FOUND
            record = unpack_record(result.buffers[0])
            assert parse_offset_id(offset_id)[2] == record.log_offset
            assert unique_key == parse(record.properties)["UNIQ_KEY"]


@pytest.mark.parametrize("name", RECORDED)
def test_a_directory_goes_on_where_rocketmq_stopped(name: str, tmp_path: Path) -> None:
    """C11: append, close, open again."""
    root = unpack_store(name, tmp_path)
    (topic, queue_id), lines = next(iter(queued(name).items()))
    with quiet_store(config_of(root)) as store:
        placed = store.put(draft(topic, queue_id, b"one more", UNIQ_KEY="U1"))
        assert len(lines) == placed.queue_offset

    with quiet_store(config_of(root)) as store:
        records = read_all(store, topic, queue_id)
        assert [*(line["body_sha1"] for line in lines), sha1(b"one more")] == [sha1(record.body) for record in records]
        assert 1 == len(store.query(topic, "U1", count_max=1, begin_ms=0, end_ms=1 << 62).buffers)


def test_opening_and_closing_changes_nothing_that_was_there(tmp_path: Path) -> None:
    """C11: logs, queues and index of a clean directory are byte for byte what they were."""
    for name in ("rocketmq-4.9.4-clean", "rocketmq-5.2.0-clean"):
        root = unpack_store(name, tmp_path)
        before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
        quiet = quiet_store(config_of(root))
        quiet.open()
        quiet.close()

        after = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}

        before.pop(root / "checkpoint")
        after.pop(root / "checkpoint")
        assert before == after


@pytest.mark.parametrize("name", RECORDED)
def test_the_same_messages_make_the_same_files(name: str, tmp_path: Path) -> None:
    """C1, C2, C4: put again what RocketMQ had stored, at the same times, and compare all bytes."""
    theirs = unpack_store(name, tmp_path)
    records = list(LogReader(theirs))
    ours = tmp_path / "ours"
    clock = SteppingClock()
    store = MessageStore(config_of(ours), store_host=records[0].store_host, clock=clock, threads=False)
    with store:
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

    for file in sorted((ours / "commitlog").iterdir()):
        assert (theirs / "commitlog" / file.name).read_bytes() == file.read_bytes()
    assert tree(theirs / "consumequeue") == tree(ours / "consumequeue")
    assert index_files(theirs) == index_files(ours)


class SteppingClock(ManualClock):
    """Shows the time that it was given last."""

    time_ms = 0

    def now_ms(self) -> int:
        return self.time_ms


def tree(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def index_files(root: Path) -> list[bytes]:
    """What the index files hold; they are named by the time of day when they were made."""
    return [path.read_bytes() for path in sorted((root / "index").iterdir())]


def test_the_checkpoint_of_rocketmq_is_read(tmp_path: Path) -> None:
    """C7."""
    root = unpack_store("rocketmq-4.9.4-clean", tmp_path)

    checkpoint = Checkpoint.load(FileDisk(), root / "checkpoint")

    last_ms = recorded_records("rocketmq-4.9.4-clean")[-1]["store_ms"]
    assert (last_ms, last_ms, 0) == (checkpoint.log_time_ms, checkpoint.queue_time_ms, checkpoint.index_time_ms)
    assert struct.pack(">qq", last_ms, last_ms).ljust(4096, b"\0") == (root / "checkpoint").read_bytes()
