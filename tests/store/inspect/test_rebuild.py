"""Queues and index made anew from the log, and two directories compared (C5, C11)."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from ternmq.errors import StoreError
from ternmq.names import SCHEDULE_TOPIC
from ternmq.store.inspect.compare import compare
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.scan import Damage
from ternmq.store.inspect.sizes import InspectConfig
from ternmq.store.inspect.summary import log_summary
from ternmq.store.inspect.verify import verify
from ternmq.store.inspect.view import StoreView
from ternmq.wire.layouts.queue_entry import ENTRY
from tests.manual_clock import ManualClock
from tests.store.small import (
    RecordedStore,
    bodies,
    draft,
    files,
    log_queues_index,
    quiet_store,
    read_all,
    small_config,
)
from tests.store.spoiled import BODY, SMALL_INDEX, edit, kinds, queue_file, segment, twenty_messages


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return twenty_messages(tmp_path / "store")


# --- Rebuilding ---------------------------------------------------------------------------------------------------


def test_queues_and_index_are_made_anew(root: Path) -> None:
    """C5: what was wrong is right again, and equal to what a broker had made."""
    before = log_queues_index(root)
    edit(queue_file(root, 0), 0, b"\xff" * 60)
    shutil.rmtree(root / "consumequeue" / "orders" / "1")
    min((root / "index").iterdir()).unlink()

    made = rebuild(root, clock=ManualClock())

    assert (20, 2, []) == (made.records, made.queues, made.damages)
    assert before == log_queues_index(root)
    assert [] == verify(root).findings
    with quiet_store(small_config(root)) as store:
        assert 10 == len(bodies(store))
    assert not [*root.glob("*.tmp")]


def test_due_times_are_those_of_the_broker_s_levels(tmp_path: Path) -> None:
    """C2, I1: a tool that is told of them finds nothing and rebuilds the same bytes; else it says what it lacks."""
    root, levels = tmp_path / "store", InspectConfig(message_delay_level="7s 9s")
    with quiet_store(small_config(root, message_delay_level=levels.message_delay_level)) as store:
        for level in (1, 2, 2):
            store.put(draft(SCHEDULE_TOPIC, level - 1, KEYS="k", DELAY=f"{level}", REAL_TOPIC="orders", REAL_QID="0"))
    before = log_queues_index(root)

    assert [] == verify(root, levels).findings
    rebuild(root, levels, clock=ManualClock())
    assert before == log_queues_index(root)

    notes = verify(root).findings
    assert [("queue-delay", 1, True), ("queue-delay", 2, True)] == [
        (note.kind, note.count, note.is_note) for note in notes
    ]
    assert "--set messageDelayLevel" in notes[0].cure
    assert [] == verify(root).faults


def test_recorded_directories_are_rebuilt_to_the_byte(recorded: RecordedStore, tmp_path: Path) -> None:
    """C5, C11: into another directory; the recorded one is only read."""
    before = files(recorded.root)

    rebuild(recorded.root, out=tmp_path / "out", clock=ManualClock())

    assert before == files(recorded.root)
    _, queues, index = log_queues_index(recorded.root)
    _, our_queues, our_index = log_queues_index(tmp_path / "out")
    assert (queues, index) == (our_queues, our_index)


def test_a_rebuild_passes_over_damage_and_keeps_queue_offsets(root: Path) -> None:
    """C5, C8: the messages behind it are served under their own numbers."""
    edit(segment(root, 1), 200, b"y")

    made = rebuild(root, clock=ManualClock())

    assert [Damage.CRC] == [damaged.kind for damaged in made.damages]
    assert ["record-crc"] == kinds(root)
    with quiet_store(small_config(root)) as store:
        assert [0, 2, 3, 4, 5, 6, 7, 8, 9] == [record.queue_offset for record in read_all(store, "orders", 1)]


def test_a_queue_without_records_keeps_its_numbers(tmp_path: Path) -> None:
    """C2, C9: its next message must not get an offset that consumers have behind them."""
    config = small_config(tmp_path)
    with quiet_store(config) as store:
        for _ in range(7):
            placed = store.put(draft("gone"))
        last_log_offset, last_size = placed.log_offset, placed.end_offset - placed.log_offset
        for _ in range(9):
            store.put(draft(body=BODY))
    segment(tmp_path, 0).unlink()

    rebuild(tmp_path, SMALL_INDEX, clock=ManualClock())

    # What it ends with is of the log before its beginning: a filler's size would tell RocketMQ that queues are ahead.
    entry = (tmp_path / "consumequeue" / "gone" / "0" / f"{100:020d}").read_bytes()[20:40]
    assert (last_log_offset, last_size, 0) == ENTRY.unpack(entry)
    with quiet_store(config) as store:
        assert (7, 7) == (store.min_offset("gone", 0), store.max_offset("gone", 0))
        assert 7 == store.put(draft("gone")).queue_offset


def test_deleted_topics_stay_deleted(root: Path) -> None:
    """D1: those that RocketMQ deleted, too."""
    shutil.rmtree(root / "consumequeue" / "orders")
    (root / "config").mkdir()
    (root / "config" / "topics.json").write_text("{}")
    size = small_config(root).mapped_file_size_consume_queue

    rebuild(root, InspectConfig(mapped_file_size_consume_queue=size), clock=ManualClock())

    assert [] == verify(root).faults
    assert not (root / "consumequeue" / "orders").exists()


def test_queues_of_an_unknown_file_size_are_not_made(root: Path) -> None:
    """Issue 13, 12: they would get the default size silently, and a broker would not start with them."""
    config = small_config(root)
    expected = files(root / "consumequeue")
    shutil.rmtree(root / "consumequeue")
    before = files(root)

    with pytest.raises(StoreError, match=r"how large its queue files are; .* --set mappedFileSizeConsumeQueue=…"):
        rebuild(root, clock=ManualClock())
    assert before == files(root)

    size = config.mapped_file_size_consume_queue
    rebuild(root, InspectConfig(mapped_file_size_consume_queue=size), clock=ManualClock())
    assert expected == files(root / "consumequeue")


def test_an_index_of_unknown_sizes_is_not_made(tmp_path: Path) -> None:
    """C4: a broker would not start with files of another length."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())
    shutil.rmtree(tmp_path / "index")
    before = files(tmp_path)

    with pytest.raises(
        StoreError, match=r"how large its index files are; .* --set maxHashSlotNum=… --set maxIndexNum=…"
    ):
        rebuild(tmp_path, clock=ManualClock())
    assert before == files(tmp_path)


def test_a_rebuild_into_a_directory_in_use_is_refused(root: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")

    with pytest.raises(StoreError, match="out exists and is not empty; name a new directory"):
        rebuild(root, out=tmp_path / "out", clock=ManualClock())


# --- Comparing ----------------------------------------------------------------------------------------------------


def differences(left: Path, right: Path) -> list[tuple[str, str, str]]:
    return [(found.part, found.name, found.what) for found in compare(StoreView(left), StoreView(right))]


def test_copies_are_equal_however_their_files_are_named(root: Path, tmp_path: Path) -> None:
    """C11: names of index files, and what lies behind a blank, mean nothing."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    edit(segment(copy, 0), 4090, b"junk")
    for number, path in enumerate(sorted((copy / "index").iterdir())):
        path.rename(path.with_name(f"2026010101010100{number}"))

    assert [] == differences(root, copy)


def test_what_differs_is_named(root: Path, tmp_path: Path) -> None:
    """C11: a copy that went its own way."""
    copy = tmp_path / "copy"
    shutil.copytree(root, copy)
    end = log_summary(StoreView(root)).end_offset
    with quiet_store(small_config(copy)) as store:
        store.put(draft("orders", 0, b"more"))
        store.put(draft("others", 0, b"more"))
        copy_end = store.written
    edit(segment(copy, 1), 200, b"y")
    edit(queue_file(copy, 1), 12, struct.pack(">q", 7))
    for path, queues in ((root, 4), (copy, 8)):
        (path / "config").mkdir()
        row = f'{{"topicName":"orders","readQueueNums":{queues}}}'
        (path / "config" / "topics.json").write_text(f'{{"topicConfigTable":{{"orders":{row}}}}}')

    assert [
        ("log", "", f"ends at {end:,} and at {copy_end:,}"),
        ("log", "", "1 record differ, or only one log has them; the first at 4,096"),
        ("queue", "orders 0", "ends at queue offset 10 and at 11"),
        ("queue", "orders 1", "1 entry differ, the first at queue offset 0"),
        ("queue", "others 0", f"is only in {copy}"),
        ("table", "topics.json orders", "readQueueNums 4 and 8"),
    ] == differences(root, copy)
