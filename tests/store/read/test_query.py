"""Reading by queue offset, time, key and log offset: RocketMQ's answers (C2, C4, C10, F3)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ternmq.errors import CorruptFile
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.read.query import GetStatus, Query
from ternmq.store.store import MessageStore, StoreConfig
from ternmq.wire.ids import java_hash
from ternmq.wire.layouts.queue_entry import ENTRY
from ternmq.wire.record import unpack_record, unpack_records
from tests.manual_clock import ManualClock
from tests.store.small import draft, quiet_store, small_config

FOREVER = 1 << 62


@pytest.mark.parametrize(
    ("queue_offset", "status", "next_offset"),
    [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (0, GetStatus.FOUND, 3),
        (2, GetStatus.FOUND, 3),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
    ],
)
def test_an_offset_outside_the_queue_is_corrected(
    queue_offset: int, status: GetStatus, next_offset: int, tmp_path: Path
) -> None:
    """§10 of getMessage."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(3):
            store.put(draft())
        result = store.get("orders", 0, queue_offset, count_max=32)

        assert (status, next_offset, 0, 3) == (result.status, result.next_offset, result.min_offset, result.max_offset)


def test_a_queue_without_messages_says_so(tmp_path: Path) -> None:
    """§10 of getMessage: never heard of, and heard of but empty."""
    with quiet_store(small_config(tmp_path)) as store:
        half = draft("empty", 0)
        half.sysflag = 4
        store.put(half)

        assert GetStatus.NO_MATCHED_LOGIC_QUEUE is store.get("unknown", 0, 5, count_max=1).status
        result = store.get("empty", 0, 5, count_max=1)
        assert (GetStatus.NO_MESSAGE_IN_QUEUE, 0) == (result.status, result.next_offset)
        assert (0, 0, -1, 0) == (
            store.min_offset("unknown", 0),
            store.max_offset("unknown", 0),
            store.store_time("unknown", 0, 0),
            store.offset_by_time("unknown", 0, 1),
        )


def test_one_read_returns_so_many_messages_and_bytes(tmp_path: Path) -> None:
    """M1: 32 messages or 256 KiB, but one message in any case."""
    with quiet_store(
        small_config(tmp_path, max_transfer_count_on_message_in_memory=3, max_transfer_bytes_on_message_in_memory=1000)
    ) as store:
        for body in (b"1", b"2", b"3", b"4", b"x" * 2000, b"5"):
            store.put(draft(body=body))

        counts = []
        queue_offset = 0
        while (result := store.get("orders", 0, queue_offset, count_max=32)).status is GetStatus.FOUND:
            counts.append(result.count)
            queue_offset = result.next_offset
        assert [3, 1, 1, 1] == counts
        assert 2 == store.get("orders", 0, 0, count_max=2).count
        assert 1 == store.get("orders", 0, 0, count_max=32, bytes_max=1).count
        # A caller that limits the bytes gets as many messages as fit.
        assert (4, 2) == (
            store.get("orders", 0, 0, count_max=32, bytes_max=9_999).count,
            store.get("orders", 0, 0, count_max=2, bytes_max=9_999).count,
        )


@pytest.mark.parametrize(
    "queue_of",
    [
        pytest.param(lambda number: (number // 3 + number // 5) % 2, id="side by side in twos and threes"),
        pytest.param(lambda number: number % 37 == 0, id="side by side in dozens"),
        pytest.param(lambda number: number > 100, id="side by side, all of them"),
    ],
)
def test_a_read_without_a_filter_is_one_whose_filter_lets_all_pass(
    tmp_path: Path, queue_of: Callable[[int], int]
) -> None:
    """M1: the short way through entries takes what the long one takes, wherever records lie and whatever limits it."""
    with quiet_store(small_config(tmp_path)) as store:
        for number in range(150):
            store.put(draft(queue_id=int(queue_of(number)), body=b"x" * (number * 37 % 300)))
        for queue_id, start, count_max, bytes_max in itertools.product(
            (0, 1), (0, 1, 7, 35), (1, 3, 40, 200), (1, 400, 1_500, 9_000, 99_999)
        ):
            get = partial(store.get, "orders", queue_id, start, count_max=count_max, bytes_max=bytes_max)

            assert get(matches=lambda _: True) == get()


def test_what_lies_far_back_comes_in_small_portions(tmp_path: Path) -> None:
    """M1: behind 40 % of memory 8 messages or 64 KiB, and a slave is suggested."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(40):
            store.put(draft(body=b"x" * 100))
        size = store.written // 40
        # 40 % of this is what the last ten records take.
        near = Query(
            store.config,
            FileDisk(),
            store._log,
            store._queues,
            None,
            store._pending,
            memory_bytes=size * 10 * 100 // 40,
        )

        old = near.get("orders", 0, 0, count_max=32)
        across = near.get("orders", 0, 25, count_max=32)
        fresh = near.get("orders", 0, 32, count_max=32)

        assert (8, True) == (old.count, old.is_behind)
        assert (8, False) == (fresh.count, fresh.is_behind)
        assert across.count in range(8, 16)
        # A caller that limits the bytes gets what fits, from there too.
        assert 20 == near.get("orders", 0, 0, count_max=32, bytes_max=20 * size).count


def test_a_filter_sees_tags_codes_and_is_told_where_to_go_on(tmp_path: Path) -> None:
    """K1: low and high offsets move on, also when nothing matches."""
    red = java_hash("red")
    with quiet_store(small_config(tmp_path, max_filter_message_size=5 * 20)) as store:
        for number in range(20):
            store.put(draft(body=b"%d" % number, TAGS="red" if number in (7, 8, 19) else "blue"))
        store.flush_now()

        def read(queue_offset: int) -> tuple[GetStatus, int, list[bytes]]:
            result = store.get("orders", 0, queue_offset, count_max=5, matches=lambda code: code == red)
            found = [bytes(record.body) for buffer in result.buffers for record in unpack_records(buffer)]
            return result.status, result.next_offset, found

        assert (GetStatus.NO_MATCHED_MESSAGE, 5, []) == read(0)
        assert (GetStatus.FOUND, 10, [b"7", b"8"]) == read(5)
        assert (GetStatus.NO_MATCHED_MESSAGE, 19, []) == read(14)


def test_entries_whose_records_are_gone_are_skipped(tmp_path: Path) -> None:
    """C9: a queue may still name records of a segment that was deleted."""
    with quiet_store(small_config(tmp_path)) as store:
        for number in range(12):
            store.put(draft(body=b"%02d" % number + b"x" * 900))
        kept = store.get("orders", 0, 0, count_max=1).buffers[0]
        store._log.drop_first().unlink()

        removing = store.get("orders", 0, 0, count_max=2)
        found = store.get("orders", 0, 0, count_max=6)

        assert (GetStatus.MESSAGE_WAS_REMOVING, 2) == (removing.status, removing.next_offset)
        (first, *_) = unpack_records(found.buffers[0])
        assert 4096 == first.log_offset == store.min_log_offset
        assert b"00" == bytes(unpack_record(kept).body)[:2]
        assert store.record_at(0) is None


def test_an_entry_that_points_nowhere_is_an_error_with_a_cure(tmp_path: Path) -> None:
    """C11: a damaged queue file."""
    config = small_config(tmp_path)
    with quiet_store(config) as store:
        for _ in range(3):
            store.put(draft())
    path = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    ENTRY.pack_into(data, 20, 3000, 4000, 0)
    path.write_bytes(data)

    with (
        quiet_store(config) as store,
        pytest.raises(CorruptFile, match="move the consumequeue directory away: it is built again"),
    ):
        store.get("orders", 0, 0, count_max=3)


# --- By time ----------------------------------------------------------------------------------------------------


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[MessageStore]:
    """Messages stored at 10, 20, 20, 30, 40, 50 s, in three files and in memory."""
    clock = ManualClock(0)
    with quiet_store(small_config(tmp_path, mapped_file_size_consume_queue=40), clock=clock) as store:
        for passed_s in (10, 10, 0, 10, 10):
            clock.advance(passed_s)
            store.put(draft())
        store._queues.write_out(1)
        clock.advance(10)
        store.put(draft())
        yield store


def test_the_first_message_from_a_time_on(timed: MessageStore) -> None:
    """F6: LOWER, between min and max."""
    assert [0, 0, 1, 1, 3, 5, 6] == [
        timed.offset_by_time("orders", 0, seconds * 1000) for seconds in (0, 10, 11, 20, 21, 50, 51)
    ]


def test_the_last_message_up_to_a_time(timed: MessageStore) -> None:
    """F6: UPPER."""
    assert [0, 0, 0, 2, 2, 5, 5] == [
        timed.offset_by_time("orders", 0, seconds * 1000, upper=True) for seconds in (0, 10, 11, 20, 21, 50, 99)
    ]


def test_store_times(timed: MessageStore) -> None:
    """D6."""
    assert [10_000, 20_000, 20_000, -1, -1] == [timed.store_time("orders", 0, at) for at in (0, 1, 2, 6, -1)]
    assert -1 == timed.store_time("unknown", 0, 0)


# --- By log offset and key ------------------------------------------------------------------------------------------


def test_a_record_is_found_by_its_log_offset(tmp_path: Path) -> None:
    """C10: only where one begins."""
    with quiet_store(small_config(tmp_path)) as store:
        first = store.put(draft(body=b"x" * 3000))
        second = store.put(draft(body=b"y" * 3000))

        view = store.record_at(second.log_offset)
        assert view is not None
        assert b"y" * 3000 == bytes(unpack_record(view).body)
        assert store.record_at(0, len(view)) is not None
        for nowhere in (1, first.end_offset, second.end_offset, -1, 1 << 40):
            assert store.record_at(nowhere) is None
        assert store.record_at(0, 17) is None


def test_messages_are_found_by_key_within_a_time(tmp_path: Path) -> None:
    """C4: by unique key and by each key, oldest first, newest if there are too many."""
    clock = ManualClock(1_000_000)
    with quiet_store(small_config(tmp_path), clock=clock) as store:
        for number in range(30):
            store.put(draft(body=b"%d" % number, UNIQ_KEY=f"U{number}", KEYS=f"even odd k{number}"))
            store.put(draft("other", 0, b"no", KEYS="even"))
            clock.advance(1)

        def found(key: str, count_max: int = 64, begin_ms: int = 0, end_ms: int = FOREVER) -> list[bytes]:
            result = store.query("orders", key, count_max=count_max, begin_ms=begin_ms, end_ms=end_ms)
            return [bytes(unpack_record(buffer).body) for buffer in result.buffers]

        assert [b"12"] == found("U12") == found("k12")
        assert [b"%d" % number for number in range(30)] == found("odd")
        assert [b"27", b"28", b"29"] == found("odd", 3)
        assert [b"10", b"11", b"12"] == found("odd", begin_ms=1_010_000, end_ms=1_012_500)
        assert [] == found("") == found("U") == found("odd", begin_ms=2_000_000)
        result = store.query("orders", "x", count_max=1, begin_ms=0, end_ms=FOREVER)
        assert (1_029_000, store.written) == (result.last_update_ms, result.last_update_offset + len(_last(store)))


def _last(store: MessageStore) -> memoryview:
    return store.get("other", 0, 29, count_max=1).buffers[0]


def test_without_an_index_nothing_is_found_by_key(tmp_path: Path) -> None:
    """C4: messageIndexEnable=false."""
    with quiet_store(small_config(tmp_path, message_index_enable=False)) as store:
        store.put(draft(KEYS="k"))

        assert [] == store.query("orders", "k", count_max=1, begin_ms=0, end_ms=FOREVER).buffers
    assert not (tmp_path / "index").exists()


def test_defaults_are_those_of_rocketmq() -> None:
    """M1."""
    config = StoreConfig()
    assert (262_144, 32, 65_536, 8, 40) == (
        config.max_transfer_bytes_on_message_in_memory,
        config.max_transfer_count_on_message_in_memory,
        config.max_transfer_bytes_on_message_in_disk,
        config.max_transfer_count_on_message_in_disk,
        config.access_message_in_memory_max_ratio,
    )
