"""Records that are probably not in memory: named, not touched, and read on other threads (C1, F3)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from ternmq.errors import CorruptFile, StoreError
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.read.query import accepted
from ternmq.store.store import MessageStore
from ternmq.wire.record import unpack_record, unpack_records
from tests.manual_clock import ManualClock
from tests.store.small import HOST, draft, quiet_store, read_all, small_config

BODY = b"x" * 1000


def fill(store: MessageStore, count: int = 20) -> list[int]:
    """Two queues by turns; returns where the records of the first are."""
    places = []
    for number in range(count):
        places.append(store.put(draft(body=b"%03d" % number + BODY)).log_offset)
        store.put(draft(queue_id=1, body=BODY))
    return places


def read(store: MessageStore, log_offset: int) -> bytes | None:
    future = store.cold.record(log_offset)
    assert future is not None
    return future.result()


def test_what_is_in_memory_is_not_left_out(tmp_path: Path) -> None:
    """F3: the usual way stays as it is."""
    with quiet_store(small_config(tmp_path)) as store:
        places = fill(store)
        found = store.get("orders", 0, 0, count_max=32, leave_cold=True)
        assert (None, 20) == (found.cold, found.count)
        assert store.cold.record(places[0]) is None


def test_what_lies_far_back_is_named_by_file_and_place(tmp_path: Path) -> None:
    """C1: with ``accessMessageInMemoryMaxRatio`` = 0 everything does; what is read is what a view would show."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        places = fill(store)
        found = store.get("orders", 0, 3, count_max=32, leave_cold=True)
        same = store.get("orders", 0, 3, count_max=32)
        assert found.cold is not None
        assert ([], 8, 11) == (found.buffers, found.count, found.next_offset)
        assert [(path.name, at) for path, at, _ in found.cold] == [
            (f"{place - place % 4096:020d}", place % 4096) for place in places[3:11]
        ]
        assert b"".join(same.buffers) == store.cold.read(found.cold).result()
        assert (same.status, same.count, same.body_bytes) == (found.status, found.count, found.body_bytes)


def test_records_side_by_side_are_one_piece(tmp_path: Path) -> None:
    """F3: as they are one view."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        for number in range(20):
            store.put(draft(body=b"%d" % number))
        found = store.get("orders", 0, 0, count_max=8, leave_cold=True)
        assert found.cold is not None
        assert 1 == len(found.cold)
        records = unpack_records(store.cold.read(found.cold).result())
        assert [b"%d" % number for number in range(8)] == [bytes(record.body) for record in records]


@pytest.mark.parametrize("body_bytes", [1, 3000, 3900])
def test_a_record_is_read_by_its_place(body_bytes: int, tmp_path: Path) -> None:
    """C10: whatever its size; nothing where none begins."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        first = store.put(draft(body=b"a" * body_bytes)).log_offset
        place = store.put(draft(body=b"b" * body_bytes)).log_offset
        store.put(draft())
        for log_offset in (first, place):
            record = store.record_at(log_offset)
            assert record is not None
            assert bytes(record) == read(store, log_offset)
        for wrong in (1, place + 1, store.written - 5):
            assert read(store, wrong) is None
        assert store.cold.record(store.written) is None
        assert store.cold.record(-1) is None


def test_a_large_record_is_read_whole(tmp_path: Path) -> None:
    """C10: the first page tells how much there is."""
    config = small_config(tmp_path, mapped_file_size_commit_log=1 << 20, access_message_in_memory_max_ratio=0)
    with quiet_store(config) as store:
        store.put(draft(body=b"a" * 100_000))
        store.put(draft())
        record = store.record_at(0)
        assert record is not None
        assert bytes(record) == read(store, 0)


def test_a_file_that_is_gone_is_an_error(tmp_path: Path) -> None:
    """C9: retention does not wait for readers."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        fill(store)
        found = store.get("orders", 0, 0, count_max=1, leave_cold=True)
        assert found.cold is not None
        store._log.drop_first().unlink()
        with pytest.raises(StoreError, match="No such file"):
            store.cold.read(found.cold).result()


def test_an_entry_that_points_nowhere_is_told_here_too(tmp_path: Path) -> None:
    """C2: with the cure."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        store.put(draft())
        store._queues.make("orders", 0).append(4096 * 10, 100, 0)
        with pytest.raises(CorruptFile, match="has entries that point outside the log"):
            store.get("orders", 0, 1, count_max=1, leave_cold=True)


def test_reads_run_on_threads_of_their_own(tmp_path: Path) -> None:
    """C1: and end with the store."""
    names = []

    class Watched(FileDisk):
        def read_at(self, path: Path, at: int, length_bytes: int) -> bytes:
            names.append(threading.current_thread().name)
            return super().read_at(path, at, length_bytes)

    config = small_config(tmp_path, access_message_in_memory_max_ratio=0)
    with MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=Watched()) as store:
        fill(store)
        found = store.get("orders", 0, 0, count_max=4, leave_cold=True)
        assert found.cold is not None
        store.cold.read(found.cold).result()
    assert {"ternmq-cold"} == {name.rsplit("_", 1)[0] for name in names}
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("ternmq-cold")]


@pytest.mark.parametrize("file_bytes", [100, 6000])
def test_a_time_is_found_as_in_memory(file_bytes: int, tmp_path: Path) -> None:
    """L2: entries in files and in memory, times between and beyond."""
    clock = ManualClock()
    config = small_config(tmp_path, access_message_in_memory_max_ratio=0, mapped_file_size_consume_queue=file_bytes)
    with quiet_store(config, clock=clock) as store:
        begin_ms = clock.now_ms()
        for number in range(450):
            store.put(draft(body=b"%d" % number))
            clock.advance(0.002 if number % 3 else 0)
        for upper in (False, True):
            for time_ms in (*range(begin_ms - 3, clock.now_ms() + 3), 0, 1 << 62):
                future = store.cold.offset_by_time("orders", 0, time_ms, upper=upper)
                assert future is not None
                assert store.offset_by_time("orders", 0, time_ms, upper=upper) == future.result()
        assert store.cold.offset_by_time("nobody", 0, 0) is None


@pytest.mark.parametrize("file_bytes", [2000, 6000])
def test_a_gap_hides_no_time(file_bytes: int, tmp_path: Path) -> None:
    """L2: queue offsets that a damaged log has no message of have no time either."""
    clock = ManualClock()
    config = small_config(tmp_path, access_message_in_memory_max_ratio=0, mapped_file_size_consume_queue=file_bytes)
    with quiet_store(config, clock=clock) as store:
        begin_ms = clock.now_ms()
        for number in range(20):
            if number % 7 == 5:
                queue = store._queues.make("orders", 0)
                queue.fill_to(queue.next_offset + 90)
            store.put(draft())
            clock.advance(0.002)
        numbers = [each.queue_offset for each in read_all(store, "orders", 0)]
        for time_ms in range(begin_ms - 1, clock.now_ms() + 1):
            expected = next((each for n, each in enumerate(numbers) if begin_ms + 2 * n >= time_ms), numbers[-1] + 1)
            future = store.cold.offset_by_time("orders", 0, time_ms)
            assert future is not None
            assert [expected] * 2 == [store.offset_by_time("orders", 0, time_ms), future.result()]


def test_a_search_by_time_in_deleted_files_says_so(tmp_path: Path) -> None:
    """C9: the caller looks again."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        fill(store)
        search = store._query.time_search("orders", 0, 1, upper=False)
        assert search is not None
        for path in (tmp_path / "commitlog").iterdir():
            path.unlink()
        with pytest.raises(StoreError, match="No such file"):
            search()


def test_a_key_search_asks_for_its_records(tmp_path: Path) -> None:
    """L1: and takes those of others with the same hash for what they are."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        place = store.put(draft(KEYS="Aa")).log_offset
        other = store.put(draft(KEYS="BB")).log_offset
        search = store.key_search("orders", "Aa", count_max=9, begin_ms=0, end_ms=1 << 62)
        assert [place, other] == next(search)
        result = search.send([store.record_at(place), store.record_at(other)])
        assert not isinstance(result, list)
        assert [store.record_at(place)] == result.buffers


def test_a_key_search_whose_records_are_gone_finds_nothing(tmp_path: Path) -> None:
    """C9."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        store.put(draft(KEYS="k"))
        search = store.key_search("orders", "k", count_max=9, begin_ms=0, end_ms=1 << 62)
        next(search)
        result = search.send([None])
        assert not isinstance(result, list)
        assert [] == result.buffers


def test_old_records_are_filtered_once_they_are_read(tmp_path: Path) -> None:
    """K2: what is left by ``get`` was not asked; bytes that are no record are left to the caller."""
    asked: list[str] = []

    def accepts(properties: str) -> bool:
        asked.append(properties)
        return properties == "TAGS\x01b\x02"

    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        for tag in "abc":
            store.put(draft(TAGS=tag))
        found = store.get("orders", 0, 0, count_max=32, accepts=accepts, leave_cold=True)
        assert found.cold is not None
        body = store.cold.read(found.cold).result()

    assert [] == asked
    (wanted,), seen = accepted(body, accepts, lambda: True)
    assert seen is None
    assert "TAGS\x01b\x02" == unpack_record(wanted).properties
    assert ["TAGS\x01a\x02", "TAGS\x01b\x02", "TAGS\x01c\x02"] == asked
    assert ([wanted, b"\0" * 100], None) == accepted(body + bytes(100), accepts, lambda: False)


@pytest.mark.parametrize(("length", "expected"), [(1, 8), (2_000, 6), (3_900, 5)])
def test_a_filter_whose_time_is_over_has_seen_one_record_at_least(tmp_path: Path, length: int, expected: int) -> None:
    """Issue 13, 4: the time is looked at every eight records, or sooner if their properties are long."""
    with quiet_store(small_config(tmp_path, access_message_in_memory_max_ratio=0)) as store:
        for _ in range(12):
            store.put(draft(a="x" * length))
        found = store.get("orders", 0, 0, count_max=32, bytes_max=1 << 20, accepts=lambda _: True, leave_cold=True)
        assert found.cold is not None
        body = store.cold.read(found.cold).result()
        hot = store.get("orders", 0, 3, count_max=32, bytes_max=1 << 20, accepts=lambda _: True, is_over=lambda: True)

    records, seen = accepted(body, lambda _: True, lambda: True)
    assert (expected, expected) == (len(records), seen)
    assert (expected, 3 + expected) == (hot.count, hot.next_offset)
