"""Looking into directories without a broker: sizes, records, faults and what they cost (C2, C4, C5, C7, C8)."""

from __future__ import annotations

import gc
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmq.errors import CorruptFile, StoreError, StoreLocked
from ternmq.store.inspect.dump import RecordChoice, records
from ternmq.store.inspect.faults import Fault
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.scan import Damage, LogScan
from ternmq.store.inspect.sizes import InspectConfig
from ternmq.store.inspect.summary import by_topic, log_summary, queue_summaries
from ternmq.store.inspect.verify import verify
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.record import Sysflag
from tests.manual_clock import ManualClock
from tests.store.small import (
    RecordedStore,
    crash,
    draft,
    files,
    quiet_store,
    sha1,
    small_config,
)
from tests.store.spoiled import BODY, SMALL_INDEX, edit, kinds, queue_file, segment, twenty_messages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return twenty_messages(tmp_path / "store")


# --- What is there ------------------------------------------------------------------------------------------------


def test_sizes_are_read_off_the_files(root: Path) -> None:
    """C11: a tool is given nothing but a directory."""
    sizes = StoreView(root).sizes

    assert (4096, 100, 7, 10) == (sizes.segment, sizes.queue_file, sizes.index_slots, sizes.index_entries)


def test_sizes_of_the_usual_ratio_and_given_ones(recorded: RecordedStore) -> None:
    """C4, C11: RocketMQ's index has four entries a slot, in files of any size; an operator may give them."""
    sizes = StoreView(recorded.root).sizes
    assert (1 << 20, 2000, 500, 2000) == (sizes.segment, sizes.queue_file, sizes.index_slots, sizes.index_entries)

    given = InspectConfig(max_hash_slot_num=505, max_index_num=1999)
    assert (505, 1999) == (StoreView(recorded.root, given).sizes.index_slots, 1999)


def test_sizes_are_read_off_an_index_of_records_with_two_keys(tmp_path: Path) -> None:
    """C4: the last two entries have one log offset, and few slots all lead to the newest entries."""
    config = small_config(tmp_path, max_hash_slot_num=100, max_index_num=1000)
    with quiet_store(config) as store:
        for number in range(364):
            store.put(draft(KEYS=f"k{number}", UNIQ_KEY=f"{number:032X}"))

    sizes = StoreView(tmp_path).sizes
    assert (100, 1000) == (sizes.index_slots, sizes.index_entries)
    assert [] == verify(tmp_path).findings


def test_an_index_that_hides_its_sizes_is_named(root: Path) -> None:
    """C4: with the cure."""
    for path in (root / "index").iterdir():
        edit(path, 40, b"\xff" * 100)

    with pytest.raises(CorruptFile, match=r"index/\d+ do not show how many slots .* --set maxHashSlotNum=… "):
        StoreView(root)


def test_a_summary_needs_no_scan(root: Path) -> None:
    """C1, C2: where everything begins and ends, and when."""
    view = StoreView(root)
    log, queues = log_summary(view), queue_summaries(view)

    assert (7, 0) == (log.segments, log.min_offset)
    assert [1_700_000_000_000, 1_700_000_019_000] == [log.first_time_ms, log.last_time_ms]
    assert [("orders", 0, 10), ("orders", 1, 10)] == [(one.topic, one.queue_id, one.messages) for one in queues]
    assert [("orders", 2, 20)] == [(topic.topic, topic.queues, topic.messages) for topic in by_topic(queues)]
    assert (True, None) == (view.was_closed, view.holder)


def test_the_log_s_end_is_found_without_queues(root: Path) -> None:
    """C1: they may be what is broken."""
    end = log_summary(StoreView(root)).end_offset
    shutil.rmtree(root / "consumequeue")

    assert end == log_summary(StoreView(root)).end_offset


def test_a_summary_of_a_log_that_was_cleaned(root: Path) -> None:
    """C9: queues begin with what is left."""
    segment(root, 0).unlink()

    queues = queue_summaries(StoreView(root))

    assert [(2, 10), (1, 10)] == [(queue.min_offset, queue.max_offset) for queue in queues]


def test_who_holds_a_store_is_known_and_stays_so(root: Path) -> None:
    """C7: to look at a lock must not drop it."""
    with quiet_store(small_config(root)):
        assert os.getpid() == StoreView(root).holder
        with pytest.raises(StoreLocked):
            rebuild(root, clock=ManualClock())
    assert None is StoreView(root).holder


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.mkdir(), "is no store, it has no commitlog"),
    ],
)
def test_what_is_no_store_is_refused(make: Callable[[Path], object], sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "elsewhere"
    make(path)

    with pytest.raises(StoreError, match=f"elsewhere {sentence}.*storePathRootDir names"):
        StoreView(path)


def test_a_file_is_no_store(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(StoreError, match=r"cannot read .*file: Not a directory; storePathRootDir "):
        StoreView(tmp_path / "file")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_a_directory_that_may_not_be_read(root: Path) -> None:
    """T1: root may read everything, so another user has to look."""
    root.chmod(0o700)
    os.seteuid(65534)
    try:
        with pytest.raises(StoreError, match="Permission denied; let the broker's user"):
            StoreView(root)
    finally:
        os.seteuid(0)


def test_a_segment_of_another_length_is_named(root: Path) -> None:
    """C1: nothing is guessed."""
    os.truncate(segment(root, 2), 4000)

    with pytest.raises(CorruptFile, match="00000000000000008192 has 4000 bytes, but mappedFileSizeCommitLog is 4096"):
        verify(root)


# --- Records ------------------------------------------------------------------------------------------------------


def numbers(root: Path, **wanted: object) -> list[int]:
    """Which of the twenty messages a dump has."""
    found = records(StoreView(root), RecordChoice(**wanted))  # type: ignore[arg-type]  # options by name
    return [int(bytes(record.body[len(BODY) :])) for record in found]


def test_records_are_chosen_by_topic_queue_key_and_place(root: Path) -> None:
    """L1."""
    view = StoreView(root)
    third = next(iter(records(view, RecordChoice(key="k3"))))

    assert [*range(20)] == numbers(root)
    assert [*range(1, 20, 2)] == numbers(root, topic="orders", queue_id=1)
    assert [5, 7] == numbers(root, topic="orders", queue_id=1, from_offset=2, count_max=2)
    assert [7] == numbers(root, key="k7")
    assert [3, 4] == numbers(root, from_offset=third.log_offset, count_max=2)
    # From the middle of a record on: the next one is found.
    assert [4, 5] == numbers(root, from_offset=third.log_offset + 1, count_max=2)
    assert [] == numbers(root, topic="no such")
    assert [] == numbers(root, topic="no such", queue_id=0)


def test_a_recorded_directory_is_scanned_like_by_its_makers(recorded: RecordedStore) -> None:
    """C11."""
    scan = LogScan(StoreView(recorded.root).log)

    found = [(record.log_offset, sha1(record.body)) for record in scan]

    assert [(line["log_offset"], line["body_sha1"]) for line in recorded.lines] == found
    assert ([], None) == (scan.damages, scan.torn_tail)


# --- Faults -------------------------------------------------------------------------------------------------------


def test_a_whole_store_has_no_faults(root: Path, recorded: RecordedStore) -> None:
    """C11: neither ours nor those that RocketMQ wrote, closed or killed."""
    before = files(root)
    for path, count in ((root, 20), (recorded.root, len(recorded.lines))):
        verdict = verify(path)
        assert ([], count) == (verdict.faults, verdict.records)
    assert before == files(root)


def test_progress_is_told_up_to_the_end(root: Path) -> None:
    told: list[tuple[int, int]] = []

    verify(root, progress=lambda done, total: told.append((done, total)))

    assert (7 * 4096, 7 * 4096) == told[-1]


def test_a_flipped_bit_in_a_body_costs_one_message(root: Path) -> None:
    """C8: and is found where it is; what follows is read."""
    edit(segment(root, 1), 200, b"y")

    (fault,) = verify(root).faults

    assert ("record-crc", 4096, str(segment(root, 1))) == (fault.kind, fault.at, fault.path)
    assert "1 message cannot be read" in fault.cost
    assert "loses the 16 records behind it" in fault.cost
    assert [0, 1, 2, *range(4, 20)] == numbers(root)


def test_lengths_that_do_not_add_up_are_passed_over(root: Path) -> None:
    """C8: the next whole record is searched for."""
    edit(segment(root, 1), 84, struct.pack(">i", 77))

    assert ["record-length"] == kinds(root)[:1]
    assert [0, 1, 2, *range(4, 20)] == numbers(root)


def test_a_lost_page_is_a_hole(root: Path) -> None:
    """C8: zeros are no end when records follow, in this segment or the next."""
    edit(segment(root, 0), 0, bytes(4096))
    scan = LogScan(StoreView(root).log)
    assert 17 == len([*scan])
    assert [(Damage.HOLE, 0, 4096, 17)] == [
        (damaged.kind, damaged.begin, damaged.end, damaged.records_behind) for damaged in scan.damages
    ]

    (fault,) = verify(root).faults
    assert "3 messages cannot be read" in fault.cost


def test_a_record_of_another_place_is_none(root: Path) -> None:
    """C8: a copy of a record, as a message may hold one, is not taken for one."""
    data = segment(root, 0).read_bytes()
    edit(segment(root, 1), 0, data[:1200])

    assert "log-damage" == kinds(root)[0]


def test_a_torn_tail_costs_what_was_being_written(root: Path) -> None:
    """C8."""
    end = log_summary(StoreView(root)).end_offset
    head = segment(root, 0).read_bytes()[:50]
    edit(segment(root, end // 4096), end % 4096, head)

    (fault,) = verify(root).faults

    assert ("torn-tail", end) == (fault.kind, fault.at)
    assert "at most the message that was being written" in fault.cost


def test_an_entry_that_leads_elsewhere_is_found(root: Path) -> None:
    """C2: another place, another size, other tags."""
    path = queue_file(root, 0)
    first, second = ENTRY.unpack_from(path.read_bytes(), 20), ENTRY.unpack_from(path.read_bytes(), 40)
    edit(path, 20, ENTRY.pack(second[0], *first[1:]))
    edit(path, 40, ENTRY.pack(*second[:2], 7))

    (fault,) = verify(root).faults

    assert ("queue-wrong", 1, 2) == (fault.kind, fault.at, fault.count)
    assert "consumers get other messages" in fault.cost


def test_missing_and_extra_entries_are_found(root: Path) -> None:
    """C2: at the end, in between, and a whole queue."""
    edit(queue_file(root, 0, 1), 80, bytes(20))
    edit(queue_file(root, 1, 0), 40, ENTRY.pack(0, 0x7FFFFFFF, 0))
    last = queue_file(root, 1, 1).read_bytes()[80:]
    (root / "consumequeue" / "orders" / "1" / f"{200:020d}").write_bytes(last + bytes(80))

    found = [(fault.kind, fault.path[-1], fault.at, fault.count) for fault in verify(root).faults]

    assert [("queue-missing", "0", 9, 1), ("queue-missing", "1", 2, 1), ("queue-extra", "1", 10, 1)] == found
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    assert ["the queue is missing, the log has 10 messages of it"] == [
        fault.what for fault in verify(root).faults if fault.path.endswith("1")
    ]


def test_a_queue_file_of_another_length_is_one_of_the_faults(root: Path) -> None:
    os.truncate(queue_file(root, 0, 1), 99)

    found = [(fault.kind, fault.path[-30:]) for fault in verify(root).faults]

    assert [
        ("file-length", str(queue_file(root, 0, 1))[-30:]),
        ("queue-missing", str(queue_file(root, 0).parent)[-30:]),
    ] == found


def test_what_a_killed_broker_had_in_memory_is_no_fault(tmp_path: Path) -> None:
    """C8: the next start folds it again."""
    with quiet_store(small_config(tmp_path / "store")) as store:
        for number in range(3):
            store.put(draft("orders", 0, b"%d" % number, KEYS=f"k{number}"))
        crash(store, tmp_path / "crashed")
    verdict = verify(tmp_path / "crashed")

    assert [] == verdict.faults
    assert [("queue-missing", 3), ("index-none", 3)] == [(note.kind, note.count) for note in verdict.findings]


def test_a_topic_that_was_deleted_and_made_again_is_no_fault(tmp_path: Path) -> None:
    """C5, D1: by TernMQ, which notes it, and by RocketMQ, which does not."""
    config = small_config(tmp_path)
    with quiet_store(config) as store:
        for _ in range(7):
            store.put(draft())
        store.delete_topics(["orders"])
        store.put(draft(body=b"new"))
    assert [] == verify(tmp_path).findings
    (tmp_path / "deletedTopics.json").unlink()
    assert [] == verify(tmp_path).findings


def test_records_of_a_deleted_topic_are_noted(tmp_path: Path) -> None:
    """D1: ``topics.json`` does not know it any more."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())
    shutil.rmtree(tmp_path / "consumequeue")
    assert ["queue-missing"] == kinds(tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{}")

    (note,) = verify(tmp_path).findings

    assert ("queue-deleted", True) == (note.kind, note.is_note)


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (40, struct.pack(">7i", *[0] * 7), "index-chain"),
        (40 + 28 + 20 * 9 + 16, struct.pack(">i", 5), "index-chain"),
        (24, struct.pack(">q", 1 << 40), "index-header"),
        (40 + 28 + 20 * 5 + 4, struct.pack(">q", 1 << 50), "index-wrong"),
        (40 + 28 + 20 * 5, struct.pack(">i", 77), "index-missing"),
    ],
)
def test_damage_in_the_index_is_found(at: int, data: bytes, kind: str, root: Path) -> None:
    """C4: slots, chains, the header, log offsets and hashes."""
    first = min((root / "index").iterdir())
    edit(first, at, data)

    faults = verify(root, SMALL_INDEX).faults

    assert kind in [fault.kind for fault in faults]
    assert {str(first), str(root / "index")} >= {fault.path for fault in faults}


def test_missing_index_files_are_found(root: Path) -> None:
    """C4: one of them; all of them is a store without an index."""
    min((root / "index").iterdir()).unlink()
    (fault,) = verify(root).faults
    assert ("index-missing", 9) == (fault.kind, fault.count)
    shutil.rmtree(root / "index")
    (note,) = verify(root).findings
    assert ("index-none", 20, True) == (note.kind, note.count, note.is_note)


def test_a_checkpoint_that_vouches_for_more_than_there_is(root: Path) -> None:
    """C7."""
    (root / "checkpoint").write_bytes(struct.pack(">qqq", 1_700_000_020_000, 0, 0).ljust(4096, b"\0"))
    (fault,) = verify(root).faults
    assert "1,000 ms after the last one" in fault.what
    (root / "checkpoint").write_bytes(b"\0" * 100)
    assert ["checkpoint"] == kinds(root)


def test_tables_that_cannot_be_read_and_groups_ahead_of_their_queues(root: Path) -> None:
    """D1, D4: RocketMQ's form of the file, with keys without quotes."""
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{nonsense")
    (root / "config" / "consumerOffset.json").write_text('{"offsetTable":{"orders@g":{0:10,1:11}}}')

    found = {fault.kind: fault for fault in verify(root).faults}

    assert {"table", "offset-ahead"} == found.keys()
    assert "group g is at queue offset 11 of orders, queue 1, and that ends at 10" == found["offset-ahead"].what


def test_prepared_and_rolled_back_records_need_no_entry(tmp_path: Path) -> None:
    """K: neither in the queue, nor, after a rollback, in the index."""
    with quiet_store(small_config(tmp_path)) as store:
        for sysflag in (Sysflag.PREPARED, Sysflag.ROLLBACK, Sysflag.COMMIT):
            one = draft(KEYS="k")
            one.sysflag = sysflag
            store.put(one)

    verdict = verify(tmp_path)

    assert ([], 3, 1, 2) == (verdict.findings, verdict.records, verdict.queue_entries, verdict.index_entries)


def test_every_finding_says_what_it_costs(root: Path) -> None:
    edit(segment(root, 1), 200, b"y")
    edit(queue_file(root, 0), 20, b"\xff" * 5)

    def is_complete(fault: Fault) -> bool:
        return bool(fault.kind and fault.path and fault.what and fault.cost and (fault.cure or fault.is_note))

    assert all(is_complete(fault) for fault in verify(root).findings)


def test_who_has_looked_keeps_no_file_open(root: Path) -> None:
    """C11: Spark's driver looks again and again, and each look left a descriptor for each queue."""
    gc.collect()
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        assert [] == verify(root).faults
    gc.collect()
    assert len(list(Path("/proc/self/fd").iterdir())) <= before
