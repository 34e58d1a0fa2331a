"""ConsumeQueues: entries in memory and in files, few open files, cuts and gaps (C2)."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.errors import RecordRefused
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.queue import TAIL_BYTES, ConsumeQueue
from ternmq.store.derived.queue_files import OPEN_FILES_MAX
from ternmq.store.derived.queues import ConsumeQueues
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import segment_name
from ternmq.wire.layouts.queue_entry import ENTRY
from tests.store.small import bodies, draft, files, quiet_store, small_config

FILLER = ENTRY.pack(0, 0x7FFFFFFF, 0)


def queues_in(root: Path, file_bytes: int = 100) -> ConsumeQueues:
    return ConsumeQueues(FileDisk(), root, file_bytes=file_bytes)


def fact(log_offset: int, queue_offset: int, *, size: int = 10, tags_code: int = 0, topic: str = "t") -> Fact:
    return Fact(topic, 0, queue_offset, log_offset, size, 0, 0, tags_code, 0, "")


def entries(queue: ConsumeQueue) -> list[tuple[int, int, int] | None]:
    return [queue.entry(number) for number in range(queue.min_offset, queue.next_offset)]


def test_entries_lie_at_twenty_times_their_number(tmp_path: Path) -> None:
    """C2: big-endian, files of a fixed length, named by their first byte."""
    queues = queues_in(tmp_path)
    queue = queues.make("t", 3)
    for number in range(7):
        queue.append(1000 + number, 50 + number, -number)
    queues.close()

    found = files(tmp_path / "t" / "3")
    expected = b"".join(ENTRY.pack(1000 + number, 50 + number, -number) for number in range(7))
    assert {segment_name(0): expected[:100], segment_name(100): expected[100:].ljust(100, b"\0")} == found


@given(
    steps=st.lists(st.sampled_from(["append", "write out", "reload"]), max_size=60),
    first=st.integers(0, 13),
)
def test_a_queue_reads_the_same_from_memory_and_files(
    steps: list[str], first: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C2: wherever an entry is."""
    root = tmp_path_factory.mktemp("queue")
    queues = queues_in(root)
    queue = queues.make("t", 0)
    queue.begin_at(first)
    model: list[tuple[int, int, int]] = []
    for step in steps:
        match step:
            case "append":
                entry = (100 * len(model) + 7, 90, len(model))
                queue.append(*entry)
                model.append(entry)
            case "write out":
                queue.write_out()
            case _ if model:
                queues.close()
                queues = queues_in(root)
                queues.load()
                queue = queues.make("t", 0)
                queue.raise_min(1)
        assert model == entries(queue)
        assert (first, first + len(model)) == (queue.min_offset, queue.next_offset)
        assert (model[-1][0] + 90 if model else 0) == queue.log_end
    queues.close()


@pytest.mark.parametrize("file_bytes", [100, 20_000, 6_000_000])
@pytest.mark.parametrize("count", [0, 1, 5, 199, 200, 201, 402, 1802, 1803, 5000])
def test_the_end_of_a_queue_is_found_wherever_it_is(file_bytes: int, count: int, tmp_path: Path) -> None:
    """C2: and any place in it, by log offset."""
    queues = queues_in(tmp_path, file_bytes)
    queue = queues.make("t", 0)
    for number in range(count):
        queue.append(number * 10, 10, 0)
    queues.close()

    queues = queues_in(tmp_path, file_bytes)
    queues.load()
    queue = queues.make("t", 0)
    assert (count, count * 10) == (queue.next_offset, queue.log_end)
    for number in (0, 1, count // 3, count - 200, count - 1, count):
        if 0 <= number <= count:
            queue.min_offset, queue._log_begin = 0, -1
            queue.raise_min(number * 10 - 5)
            assert (number, count) == (queue.min_offset, queue.next_offset)
    queues.close()


def test_memory_is_written_out_when_it_is_full(tmp_path: Path) -> None:
    """C2: one page of entries a queue at most."""
    queues = queues_in(tmp_path, file_bytes=6_000_000)
    queue = queues.make("t", 0)
    for number in range(1000):
        queue.append(number, 1, 0)
        assert len(queue._tail) < TAIL_BYTES
    queues.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_few_files_are_open_however_many_queues_there_are(tmp_path: Path) -> None:
    """C2: ten thousand topics must not need ten thousand descriptors."""
    before = open_files()
    queues = queues_in(tmp_path)
    for number in range(OPEN_FILES_MAX + 50):
        queue = queues.make(f"t{number}", 0)
        queue.append(number, 1, 0)
        queue.write_out()
    assert open_files() <= before + OPEN_FILES_MAX
    for number in range(OPEN_FILES_MAX + 50):
        assert [(number, 1, 0)] == entries(queues.make(f"t{number}", 0))
    queues.close()
    assert open_files() == before


def test_the_first_file_is_filled_before_the_first_entry(tmp_path: Path) -> None:
    """C2: as RocketMQ does for a queue that begins later."""
    queues = queues_in(tmp_path)
    queues.fold(fact(500, 13))
    queues.close()

    assert {segment_name(200): FILLER * 3 + ENTRY.pack(500, 10, 0) + bytes(20)} == files(tmp_path / "t" / "0")
    queues = queues_in(tmp_path)
    queues.load()
    queues.raise_min(0)
    queue = queues.make("t", 0)
    assert (13, 14, 510) == (queue.min_offset, queue.next_offset, queue.log_end)
    queues.close()


@given(count=st.integers(0, 30), log_offset=st.integers(0, 320), written=st.booleans())
def test_a_cut_forgets_what_lies_behind(
    count: int, log_offset: int, written: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C8: in memory and in files; the numbering goes on at the cut, and stale entries do not come back."""
    root = tmp_path_factory.mktemp("queue")
    queues = queues_in(root)
    queue = queues.make("t", 0)
    for number in range(count):
        queue.append(number * 10, 10, 0)
    if written:
        queue.write_out()

    queues.cut(log_offset)

    kept = min(count, (log_offset + 9) // 10)
    assert kept == queue.next_offset
    assert [(number * 10, 10, 0) for number in range(kept)] == entries(queue)
    queue.append(log_offset, 10, 1)
    queues.close()
    queues = queues_in(root)
    queues.load()
    assert [*[(number * 10, 10, 0) for number in range(kept)], (log_offset, 10, 1)] == entries(queues.make("t", 0))
    queues.close()


def test_a_record_is_folded_once(tmp_path: Path) -> None:
    """C5: recovery may feed what is there already."""
    queues = queues_in(tmp_path)
    for one in [fact(0, 0), fact(10, 1), fact(0, 0), fact(10, 1), fact(20, 2)]:
        queues.fold(one)

    assert [(0, 10, 0), (10, 10, 0), (20, 10, 0)] == entries(queues.make("t", 0))


def test_a_gap_is_left_out_so_that_numbers_stay_right(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C2: RocketMQ would append at the wrong number."""
    queues = queues_in(tmp_path)
    with caplog.at_level(logging.WARNING):
        for one in [fact(0, 0), fact(10, 3), fact(20, 4)]:
            queues.fold(one)
    queue = queues.make("t", 0)

    filler = (0, 0x7FFFFFFF, 0)
    assert [(0, 10, 0), filler, filler, (10, 10, 0), (20, 10, 0)] == entries(queue)
    assert "queue offsets left out" in caplog.text


#: Queue offsets of the messages that a damaged log has left; each took ten bytes of the log.
LEFT = [*range(10), *range(700, 705), *range(1600, 2100), 2900]


@pytest.mark.parametrize("log_offset", [0, 10, 60, 100, 101, 7000, 7040, 7050, 16_000, 18_010, 29_000, 29_010])
def test_a_gap_leads_no_search_astray(log_offset: int, tmp_path: Path) -> None:
    """C2, C8, C9: fillers have no log offset, and the messages on both sides keep theirs."""
    queues = queues_in(tmp_path, file_bytes=20_000)
    for number in LEFT:
        queues.fold(fact(number * 10, number))
    queues.close()
    queues = queues_in(tmp_path, file_bytes=20_000)
    queues.load()
    queue = queues.make("t", 0)
    assert (2901, 29_010) == (queue.next_offset, queue.log_end)

    queues.raise_min(log_offset)
    assert next((each for each in LEFT if each * 10 >= log_offset), 2901) == queue.min_offset

    queue.min_offset = 0
    queues.cut(log_offset)
    before = [each for each in LEFT if each * 10 < log_offset]
    known = [entry[0] // 10 for entry in entries(queue) if entry is not None and entry[1] != 0x7FFFFFFF]
    assert (before, before[-1] * 10 + 10 if before else 0) == (known, queue.log_end)
    # The records behind come again, and go where they were.
    for number in LEFT:
        queues.fold(fact(number * 10, number))
    assert [(number * 10, 10, 0) for number in LEFT] == [queue.entry(number) for number in LEFT]
    queues.close()


def test_a_queue_offset_out_of_all_bounds_is_no_reason_to_write_for_ever(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """C8: the CRC covers the body only."""
    queues = queues_in(tmp_path)
    with caplog.at_level(logging.ERROR):
        for one in [fact(0, 0), fact(10, 1 << 50), fact(20, 1), fact(30, 0, topic="a/b")]:
            queues.fold(one)

    assert [(0, 10, 0), (20, 10, 0)] == entries(queues.make("t", 0))
    assert 2 == len(caplog.records)


def test_a_topic_made_again_starts_over(tmp_path: Path) -> None:
    """D1: RocketMQ deletes a topic without a trace in the log; its next record has queue offset 0."""
    queues = queues_in(tmp_path)
    for one in [fact(0, 0), fact(10, 1), fact(20, 0), fact(30, 1)]:
        queues.fold(one)

    assert [(20, 10, 0), (30, 10, 0)] == entries(queues.make("t", 0))


def test_the_first_offset_follows_the_log(tmp_path: Path) -> None:
    """C9: and is the last when the log has nothing of the queue."""
    queues = queues_in(tmp_path)
    queue = queues.make("t", 0)
    for number in range(12):
        queue.append(number * 10, 10, 0)
    for log_min, expected in ((0, 0), (35, 4), (110, 11), (111, 12), (500, 12)):
        queues.raise_min(log_min)
        assert (expected, 12) == (queue.min_offset, queue.next_offset)


def test_strange_names_below_consumequeue_are_skipped(tmp_path: Path) -> None:
    """C11: as RocketMQ does."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())
    (tmp_path / "consumequeue" / "notes.txt").write_text("mine")
    (tmp_path / "consumequeue" / "orders" / "backup").mkdir()
    (tmp_path / "consumequeue" / "orders" / "0" / "directory").mkdir()
    with quiet_store(small_config(tmp_path)) as store:
        assert [("orders", 0)] == list(store.queues())
        assert [b"hello"] == bodies(store)


def test_topics_with_batch_queues_are_left_to_rocketmq(tmp_path: Path) -> None:
    """C11: RocketMQ 5 does not start on a directory in which such a topic has queues of the common kind, too."""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft("batches"))
        store.put(draft("orders"))
    (tmp_path / "consumequeue").rename(tmp_path / "thrown away")
    (tmp_path / "batchconsumequeue" / "batches" / "0").mkdir(parents=True)
    with quiet_store(small_config(tmp_path)) as store:
        assert [("orders", 0)] == list(store.queues())
        with pytest.raises(RecordRefused, match="BatchCQ"):
            store.put(draft("batches"))
    assert not (tmp_path / "consumequeue" / "batches").exists()


def test_deleting_names_that_are_no_topics_deletes_nothing(tmp_path: Path) -> None:
    """D1: a name from outside must not lead out of the store."""
    with quiet_store(small_config(tmp_path / "store")) as store:
        (tmp_path / "mine").write_text("precious")
        store.put(draft())
        store.delete_topics(["..", ".", "", "../../mine", "a/b", "unknown"])
        assert [b"hello"] == bodies(store)
    assert (tmp_path / "mine").exists()
