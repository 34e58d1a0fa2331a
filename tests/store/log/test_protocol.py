"""What a log must do that no plain broker asks of it yet: bytes of another node, a beginning in the middle, and
records that are taken back (C1, C5; issue 14)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.errors import NotRunning
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.paths import LogPaths
from ternmq.store.log.plain_log import PlainLog
from ternmq.wire.layouts.segment_form import SegmentForm
from ternmq.wire.record import pack_record, record_bytes
from tests.store.small import BORN, HOST, draft, files, quiet_store, small_config

SEGMENT = 4096


def open_log(root: Path, *, lead: int = 0) -> PlainLog:
    """A log as recovery leaves an empty one, or one that was closed."""
    log = PlainLog(FileDisk(), LogPaths([root]), segment_bytes=SEGMENT, form=SegmentForm(lead))
    log.load()
    end, time_ms = 0, 0
    if log.starts:
        walk = log.walk(log.begin)
        time_ms = max((record.store_time_ms for record in walk), default=0)
        end = walk.position
    log.open_at(end, time_ms)
    return log


def append(log: PlainLog, body: bytes, time_ms: int = 1) -> int:
    """One record, as a writer does it; returns its log offset."""
    size = record_bytes(body=len(body), topic=1, properties=0, born_host=8, store_host=8)
    if log.window.at + size > log.window.limit:
        log.reserve(size)
    log_offset = log.window.at
    pack_record(
        log.window.page,
        log_offset - log.window.base,
        size=size,
        queue_id=0,
        flag=0,
        queue_offset=0,
        log_offset=log_offset,
        sysflag=0,
        born_time_ms=0,
        born_host=BORN,
        store_time_ms=time_ms,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=b"t",
        properties=b"",
    )
    log.seal(log_offset + size, time_ms)
    return log_offset


def bodies_of(log: PlainLog) -> list[bytes]:
    return [bytes(record.body) for record in log.walk(log.begin)] if log.starts else []


@pytest.mark.parametrize("step", [1, 7, 1000, 10_000])
def test_bytes_of_another_log_may_be_cut_anywhere(tmp_path: Path, step: int) -> None:
    """C1: a replica has the same files, blanks included, however the bytes came."""
    with quiet_store(small_config(tmp_path / "one")) as store:
        for number in range(60):
            store.put(draft(body=b"%d" % number * 100))
        end = store.written
    sent = b"".join(files(tmp_path / "one" / "commitlog").values())[:end]

    log = open_log(tmp_path / "two")
    for at in range(0, end, step):
        log.append_raw(at, sent[at : at + step])
    log.close()

    assert end > 2 * SEGMENT
    assert files(tmp_path / "one" / "commitlog") == files(tmp_path / "two")


def test_an_empty_log_begins_in_the_middle(tmp_path: Path) -> None:
    """C1: a replica that is new needs only what the master still has."""
    log = open_log(tmp_path)
    log.begin_at(3 * SEGMENT)
    assert 3 * SEGMENT == append(log, b"first")
    assert 3 * SEGMENT == log.begin
    log.close()

    again = open_log(tmp_path)
    assert [b"first"] == bodies_of(again)
    assert again.begin == 3 * SEGMENT
    again.close()


@pytest.mark.parametrize("kept", range(8))
@pytest.mark.parametrize("lead", [0, 48])
def test_what_is_taken_back_is_gone_and_its_place_is_used_again(tmp_path: Path, lead: int, kept: int) -> None:
    """C8: also over the border of a segment; and nothing of it is found after a start."""
    log = open_log(tmp_path, lead=lead)
    ends = [log.end]
    for number in range(8):
        append(log, b"%d" % number * 1000, time_ms=number + 1)
        ends.append(log.end)

    log.truncate(ends[kept], kept)

    assert (ends[kept], kept) == (log.end, log.store_time_ms)
    assert [b"%d" % number * 1000 for number in range(kept)] == bodies_of(log)
    new = append(log, b"new")
    assert new >= ends[kept] + lead
    record = log.record(new)
    assert record is not None
    assert log.end == new + len(record)
    log.close()
    again = open_log(tmp_path, lead=lead)
    assert [*(b"%d" % number * 1000 for number in range(kept)), b"new"] == bodies_of(again)
    again.close()


def test_a_log_that_prepares_ahead_takes_records_back(tmp_path: Path) -> None:
    """C8: the segment that was made in advance does not follow the one that is the last now."""
    log = open_log(tmp_path)
    log.start_threads(lambda _: None)
    for round_ in range(20):
        begin = log.end
        for _ in range(6):
            append(log, b"x" * 1000)
        log.truncate(begin, 0)
        append(log, b"%d" % round_)
    assert [b"%d" % round_ for round_ in range(20)] == bodies_of(log)
    log.close()


def test_a_log_that_refuses_takes_no_raw_bytes_either(tmp_path: Path) -> None:
    """C6: the one switch covers both ways to append."""
    log = open_log(tmp_path)
    log.refuse(NotRunning("this node is no slave"))
    with pytest.raises(NotRunning, match="no slave"):
        log.append_raw(0, b"x")
    with pytest.raises(NotRunning, match="no slave"):
        log.reserve(100)
    log.close()


def test_a_batch_leaves_room_in_front_of_each_record(tmp_path: Path) -> None:
    """C1: log offsets of neighbours differ by size and lead."""
    config = small_config(tmp_path)
    log = PlainLog(FileDisk(), config.log_paths, segment_bytes=SEGMENT, form=SegmentForm(48))
    with quiet_store(config, log=log) as store:
        store.put(draft())
        placed = store.put_batch("orders", 0, [(0, b"%d" % n, b"") for n in range(3)], born_time_ms=1, born_host=BORN)
        sizes = [len(store.record_at(at) or b"") for at in placed.log_offsets]
        ends = [at + size for at, size in zip(placed.log_offsets, sizes, strict=True)]
        assert [end + 48 for end in ends[:2]] == placed.log_offsets[1:]
        assert ends[2] == placed.end_offset == store.written
        assert b"\0" * 48 == bytes(log.view(ends[0], 48) or b"")
