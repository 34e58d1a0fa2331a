"""Recovery: torn tails, damage, power cuts, parts thrown away (C8)."""

from __future__ import annotations

import logging
import shutil
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.store.derived.queue import ConsumeQueue
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.disk.segment import segment_name
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.store import MessageStore, StoreConfig
from ternmq.wire.layouts.queue_entry import ENTRY, FILLER
from tests.manual_clock import ManualClock
from tests.store.small import bodies, crash, draft, files, log_queues_index, quiet_store, small_config


def put_ghost(root: Path, topic: str) -> Path:
    """A queue file for the entries 5 to 9, with one of a record behind the log's end."""
    path = root / "consumequeue" / topic / "0" / f"{100:020d}"
    path.parent.mkdir(parents=True)
    path.write_bytes(ENTRY.pack(1 << 20, 100, 0).ljust(100, b"\0"))
    return path


def test_a_file_of_a_queue_that_the_log_has_no_record_of_gives_no_numbers(tmp_path: Path) -> None:
    """C2, C8: it was cut away, and a power cut has brought it back. (Found by seed 786537515167.)"""
    with quiet_store(small_config(tmp_path)) as store:
        store.put(draft())
    path = put_ghost(tmp_path, "ghost")
    (tmp_path / "abort").touch()
    with quiet_store(small_config(tmp_path)) as store:
        assert 0 == store.put(draft("ghost")).queue_offset
    assert not path.exists()


def test_the_numbers_of_a_queue_whose_last_messages_are_lost_stay_where_they_were(tmp_path: Path) -> None:
    """C2, C9: of its first ones the log has nothing any more, so only the file shows how many there were."""
    with quiet_store(small_config(tmp_path)) as store:
        for _ in range(9):
            store.put(draft(body=b"x" * 1000))
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    put_ghost(tmp_path, "old")
    (tmp_path / "abort").touch()
    for _ in range(2):
        with quiet_store(small_config(tmp_path)) as store:
            assert (5, 5) == (store.min_offset("old", 0), store.max_offset("old", 0))
    with quiet_store(small_config(tmp_path)) as store:
        assert 5 == store.put(draft("old")).queue_offset


def filled(root: Path, count: int = 10, *, body_bytes: int = 50) -> MessageStore:
    store = quiet_store(small_config(root))
    for number in range(count):
        store.put(draft(body=(b"%02d" % number).ljust(body_bytes, b"."), KEYS=f"k{number}"))
    return store


def numbers(store: MessageStore) -> list[int]:
    return [int(body[:2]) for body in bodies(store)]


def put_and_crash(tmp_path: Path, count: int = 10, *, body_bytes: int = 50) -> tuple[StoreConfig, list[int]]:
    """A directory found after a crash, and where its records begin."""
    store = filled(tmp_path / "before", count, body_bytes=body_bytes)
    starts = [store._queues.get("orders", 0).entry(number)[0] for number in range(count)]  # type: ignore[union-attr,index]
    config = crash(store, tmp_path / "after")
    store.close()
    return config, starts


def edit_log(config: StoreConfig, change: Callable[[bytearray], None], segment: int = 0) -> None:
    path = config.log_paths.writable[0] / segment_name(segment * 4096)
    data = bytearray(path.read_bytes())
    change(data)
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "what"),
    [(0, "size"), (4, "magic"), (8, "CRC"), (28, "log offset"), (88, "body"), (84, "body length")],
)
def test_a_torn_tail_is_cut(at: int, what: str, tmp_path: Path) -> None:
    """C8: whichever part of the last record is wrong."""
    config, starts = put_and_crash(tmp_path)

    def flip(data: bytearray) -> None:
        data[starts[-1] + at] ^= 0x55

    edit_log(config, flip)
    with quiet_store(config) as store:
        assert list(range(9)) == numbers(store)
        assert starts[-1] == store.written
        assert [] == store.query("orders", "k9", count_max=1, begin_ms=0, end_ms=1 << 62).buffers
        assert 9 == store.put(draft(body=b"10")).queue_offset
    with quiet_store(config) as store:
        assert [*range(9), 10] == numbers(store)


@given(cut=st.integers(0, 120), garbage=st.binary(max_size=40))
def test_a_record_cut_short_anywhere_is_no_record(
    cut: int, garbage: bytes, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """C8: a power cut leaves the start of a record, then zeros or anything."""
    tmp_path = tmp_path_factory.mktemp("torn")
    config, starts = put_and_crash(tmp_path, 3)

    def tear(data: bytearray) -> None:
        rest = len(data) - starts[-1] - cut
        data[starts[-1] + cut :] = garbage.ljust(rest, b"\0")[:rest]

    edit_log(config, tear)
    with quiet_store(config) as store:
        assert [0, 1] == numbers(store)
        store.put(draft(body=b"07"))
        assert [0, 1, 7] == numbers(store)
    shutil.rmtree(tmp_path)


def test_progress_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C8: bytes done and all bytes, up to the end; and a line of the log now and then."""
    config, _ = put_and_crash(tmp_path, 60, body_bytes=400)
    clock = ManualClock()
    told: list[tuple[int, int]] = []

    def on_progress(done: int, total: int) -> None:
        clock.advance(2)
        told.append((done, total))

    with caplog.at_level(logging.INFO):
        store = quiet_store(config, clock=clock, on_progress=on_progress)
    store.close()

    assert sorted(told) == told
    assert (told[-1][1], told[-1][1]) == told[-1]
    assert len(told) // 3 == caplog.messages.count("recovering")


def test_an_unclean_stop_loses_nothing(tmp_path: Path) -> None:
    """C8: over several segments, with entries that were in memory only."""
    config, _ = put_and_crash(tmp_path, 60, body_bytes=400)
    assert (config.store_path_root_dir / "abort").exists()
    with quiet_store(config) as store:
        assert list(range(60)) == numbers(store)


def test_what_lies_behind_damage_is_set_aside(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """C8: the log ends at the first bad record, but segments behind it are kept for an operator."""
    config, starts = put_and_crash(tmp_path, 30, body_bytes=400)
    last = max(config.log_paths.writable[0].iterdir())

    def damage(data: bytearray) -> None:
        data[starts[4] + 90] ^= 1

    edit_log(config, damage)
    with caplog.at_level(logging.ERROR), quiet_store(config) as store:
        assert list(range(4)) == numbers(store)
    assert (config.store_path_root_dir / "cut" / last.name).exists()
    assert "segment behind a damaged record set aside" in caplog.text


def test_bit_rot_in_a_closed_store_does_not_end_the_log(tmp_path: Path) -> None:
    """C8: after a clean stop the log's end is known, and nothing before it is cut."""
    store = filled(tmp_path, 30, body_bytes=400)
    damaged = store._queues.get("orders", 0).entry(4)[0]  # type: ignore[union-attr,index]
    store.close()
    path = tmp_path / "commitlog" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[damaged + 90] ^= 1
    path.write_bytes(data)
    with quiet_store(small_config(tmp_path)) as store:
        assert 30 == store.max_offset("orders", 0)


def test_the_checkpoint_saves_work(tmp_path: Path) -> None:
    """C7, C8: segments older than it are not read again, and nothing is lost."""
    clock = ManualClock()
    store = quiet_store(small_config(tmp_path / "before"), clock=clock)
    for number in range(30):
        store.put(draft(body=b"%02d" % number + b"x" * 400, KEYS=f"k{number}"))
        clock.advance(5)
        store.flush_now()
        store.tick()
    config = crash(store, tmp_path / "after")
    expected = log_queues_index(store.config.store_path_root_dir)[0]
    store.close()
    checkpoint = Checkpoint.load(FileDisk(), config.store_path_root_dir / "checkpoint")
    assert 0 < checkpoint.queue_time_ms < checkpoint.log_time_ms <= clock.now_ms()

    # Damage in a segment that the checkpoint vouches for is not noticed, since recovery does not look there.
    def damage(data: bytearray) -> None:
        data[100] ^= 1

    edit_log(config, damage)
    with quiet_store(config) as store:
        assert 30 == store.max_offset("orders", 0)
        for number in range(30):
            assert 1 == len(store.query("orders", f"k{number}", count_max=9, begin_ms=0, end_ms=1 << 62).buffers)
    assert set(expected) == set(log_queues_index(config.store_path_root_dir)[0])


def test_a_page_of_a_queue_that_a_power_cut_took_is_folded_again(tmp_path: Path) -> None:
    """C8: also when the page behind it was written."""
    store = filled(tmp_path / "before", 20)
    store._queues.write_out(1)
    config = crash(store, tmp_path / "after")
    store.close()
    queue = config.store_path_root_dir / "consumequeue" / "orders" / "0"
    for start in (0, 200):
        (queue / segment_name(start)).write_bytes(bytes(100))
    with quiet_store(config) as store:
        assert list(range(20)) == numbers(store)


def test_entries_behind_the_end_of_a_cut_log_do_not_come_back(tmp_path: Path) -> None:
    """C8: a power cut took records whose entries were written; later ones must not follow stale entries."""
    store = filled(tmp_path / "before", 10)
    start = store._queues.get("orders", 0).entry(3)[0]  # type: ignore[union-attr,index]
    store._queues.write_out(1)
    config = crash(store, tmp_path / "after")
    store.close()

    def lose(data: bytearray) -> None:
        data[start:] = bytes(len(data) - start)

    edit_log(config, lose)
    # A hole hides the entries behind it.
    path = config.store_path_root_dir / "consumequeue" / "orders" / "0" / segment_name(0)
    data = bytearray(path.read_bytes())
    data[60:80] = bytes(20)
    path.write_bytes(data)
    for expected in ([0, 1, 2], [0, 1, 2, 50], [0, 1, 2, 50, 51]):
        with quiet_store(config) as store:
            assert expected == numbers(store)[: len(expected)]
            assert len(expected) == store.max_offset("orders", 0)
            store.put(draft(body=b"%02d" % (47 + len(expected))))


@pytest.mark.parametrize("thrown_away", [{"consumequeue"}, {"index"}, {"consumequeue", "index"}, {"checkpoint"}])
@pytest.mark.parametrize("was_closed", [True, False])
def test_what_is_derived_can_be_thrown_away(thrown_away: set[str], was_closed: bool, tmp_path: Path) -> None:
    """C5: and comes back byte for byte."""
    store = filled(tmp_path / "before", 40, body_bytes=300)
    config = crash(store, tmp_path / "after")
    store.close()
    expected = log_queues_index(store.config.store_path_root_dir)
    if was_closed:
        config = store.config
    for name in thrown_away:
        path = config.store_path_root_dir / name
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)

    with quiet_store(config):
        pass

    assert expected == log_queues_index(config.store_path_root_dir)


@pytest.mark.parametrize("was_closed", [True, False])
def test_a_queue_that_begins_with_fillers_is_made_again(was_closed: bool, tmp_path: Path) -> None:
    """C5, C8: as RocketMQ 5.2.0 with DLedger leaves its queues when it was killed and started again, though the log has
    all records."""
    with filled(tmp_path, 40, body_bytes=300):
        pass
    expected = log_queues_index(tmp_path)
    first = tmp_path / "consumequeue" / "orders" / "0" / segment_name(0)
    first.write_bytes(FILLER * 3 + first.read_bytes()[60:])
    if not was_closed:
        (tmp_path / "abort").touch()

    with quiet_store(small_config(tmp_path)) as store:
        assert list(range(40)) == numbers(store)

    assert expected == log_queues_index(tmp_path)


def test_a_start_that_dies_while_it_removes_such_a_queue_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C8: the next one trusts no checkpoint, though other queues are there."""
    with filled(tmp_path, 40, body_bytes=300) as store:
        store.put(draft("others"))
    expected = log_queues_index(tmp_path)
    first = tmp_path / "consumequeue" / "orders" / "0" / segment_name(0)
    first.write_bytes(FILLER * 3 + first.read_bytes()[60:])

    def dies(queue: ConsumeQueue) -> None:
        shutil.rmtree(queue.directory)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(ConsumeQueue, "remove", dies)
        quiet_store(small_config(tmp_path))
    with quiet_store(small_config(tmp_path)) as store:
        assert list(range(40)) == numbers(store)
    assert expected == log_queues_index(tmp_path)


def test_queues_without_a_log_are_removed(tmp_path: Path) -> None:
    """C8: they would point nowhere."""
    filled(tmp_path).close()
    shutil.rmtree(tmp_path / "commitlog")
    with quiet_store(small_config(tmp_path)) as store:
        assert ([], 0) == (list(store.queues()), store.written)
        assert 0 == store.put(draft(body=b"01")).queue_offset
        assert [1] == numbers(store)


def test_a_log_that_begins_later_keeps_its_queue_offsets(tmp_path: Path) -> None:
    """C2, C9: the queue's first file is filled, and its min offset is that of the first record left."""
    config, starts = put_and_crash(tmp_path, 30, body_bytes=400)
    first = next(number for number, start in enumerate(starts) if start >= 4096)
    (config.log_paths.writable[0] / segment_name(0)).unlink()
    shutil.rmtree(config.store_path_root_dir / "consumequeue", ignore_errors=True)
    for _ in range(2):
        with quiet_store(config) as store:
            assert (first, 30) == (store.min_offset("orders", 0), store.max_offset("orders", 0))
            assert list(range(first, 30)) == numbers(store)
            assert 4096 == store.min_log_offset
    queue = files(config.store_path_root_dir / "consumequeue" / "orders" / "0")
    data = queue[segment_name(first * 20 // 100 * 100)]
    assert struct.pack(">qiq", 0, 0x7FFFFFFF, 0) * (first % 5) == data[: first % 5 * 20]


def test_a_segment_of_no_length_is_made_anew(tmp_path: Path) -> None:
    """C8: the process died between making a file and giving it its length."""
    filled(tmp_path, 5, body_bytes=500).close()
    (tmp_path / "commitlog" / segment_name(4096)).touch()
    (tmp_path / "abort").touch()
    with quiet_store(small_config(tmp_path)) as store:
        for number in range(5, 12):
            store.put(draft(body=b"%02d" % number + b"x" * 500))
        assert list(range(12)) == numbers(store)


@pytest.mark.parametrize("same_boot", [True, False])
def test_a_torn_index_is_mended(same_boot: bool, tmp_path: Path) -> None:
    """C8: slots that name entries of lost pages lose only those."""
    store = filled(tmp_path / "before", 8)
    store._index.write_out()  # type: ignore[union-attr]
    config = crash(store, tmp_path / "after")
    store.close()
    expected = log_queues_index(store.config.store_path_root_dir)
    if not same_boot:
        (config.store_path_root_dir / "abort").write_text("1\nanother boot\n")
        (path,) = (config.store_path_root_dir / "index").iterdir()
        data = bytearray(path.read_bytes())
        data[36:40] = struct.pack(">i", 4)  # the header's page is older than the entries,
        data[40 + 28 + 20 * 5 :] = bytes(len(data) - 40 - 28 - 20 * 5)  # and the last ones never came
        path.write_bytes(data)

    with quiet_store(config):
        pass

    assert expected == log_queues_index(config.store_path_root_dir)
