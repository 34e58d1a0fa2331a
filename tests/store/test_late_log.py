"""A store on a log that confirms records late and takes some back: what Raft will ask of it (C5, C8; issue 14)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from ternmq.errors import NotRunning, StoreError
from ternmq.store.config import StoreConfig
from ternmq.store.derived.dispatch import OnArrival
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log import pending
from ternmq.store.store import MessageStore
from tests.manual_clock import ManualClock
from tests.store.late_log import LEAD_BYTES, LateLog
from tests.store.late_simulation import LateSimulation
from tests.store.small import BORN, HOST, bodies, crash, draft, quiet_store, small_config
from tests.store.spoiled import edit

#: Seeds of one test.
PORTION = 30

TAKEN_BACK = NotRunning("another leader has other records here")


def late_store(config: StoreConfig, *, on_arrival: OnArrival | None = None) -> MessageStore:
    return quiet_store(config, log=late_log(config), on_arrival=on_arrival)


def late_log(config: StoreConfig) -> LateLog:
    return LateLog(
        FileDisk(),
        config.log_paths,
        segment_bytes=config.mapped_file_size_commit_log,
        confirmed_path=config.store_path_root_dir / "confirmed",
    )


@pytest.mark.parametrize("first", range(0, 120, PORTION))
def test_only_what_is_confirmed_is_served_and_what_is_taken_back_is_gone(first: int) -> None:
    """C5, C6, C8: power cuts, failing and full disks between any two steps; and each seed lives the same life twice."""
    for seed in range(first, first + PORTION):
        one, two = LateSimulation(seed), LateSimulation(seed)
        one.run()
        two.run()
        assert one.trace == two.trace


def test_a_flipped_bit_in_such_a_log_is_noticed_or_does_no_harm() -> None:
    """C8: also one in front of a record."""
    for seed in range(PORTION):
        LateSimulation(seed, actions=30).rot()


def test_a_record_is_seen_when_it_is_confirmed_and_not_before(tmp_path: Path) -> None:
    """C5: by queue offset, by key, by log offset; and consumers are woken then."""
    woken: list[tuple[str, int, int]] = []
    with late_store(small_config(tmp_path), on_arrival=lambda *what: woken.append(what[:3])) as store:
        first, second = (store.put(draft(body=body, KEYS="k")) for body in (b"1", b"2"))
        assert (0, 1, []) == (first.queue_offset, second.queue_offset, bodies(store))
        assert 0 == store.max_offset("orders", 0)
        assert store.record_at(first.log_offset) is None
        assert [] == store.query("orders", "k", count_max=9, begin_ms=0, end_ms=1 << 62).buffers

        store.confirm(second.end_offset - 1)
        assert ([b"1"], [("orders", 0, 1)]) == (bodies(store), woken)
        assert store.record_at(second.log_offset) is None
        assert first.end_offset == store.dispatched

        store.confirm(second.end_offset)
        assert ([b"1", b"2"], 2) == (bodies(store), len(woken))
        assert 2 == len(store.query("orders", "k", count_max=9, begin_ms=0, end_ms=1 << 62).buffers)


def test_offsets_that_are_taken_back_are_given_out_again(tmp_path: Path) -> None:
    """C2: in each queue; what was visible stays."""
    with late_store(small_config(tmp_path)) as store:
        store.confirm(store.put(draft(body=b"kept")).end_offset)
        end = store.written
        for queue_id in (0, 0, 1):
            store.put(draft(queue_id=queue_id, body=b"gone"))

        store.truncate(end, TAKEN_BACK)

        again = [store.put(draft(queue_id=queue_id, body=b"new")) for queue_id in (0, 1)]
        assert [1, 0] == [placed.queue_offset for placed in again]
        assert end + LEAD_BYTES == again[0].log_offset
        store.confirm(store.written)
        assert ([b"kept", b"new"], [b"new"]) == (bodies(store), bodies(store, queue_id=1))


async def test_callers_that_wait_for_what_is_taken_back_are_told(tmp_path: Path) -> None:
    """C6: the record of another leader at the same place must not answer them."""
    with late_store(small_config(tmp_path)) as store:
        kept, gone = store.put(draft(body=b"kept")), store.put(draft(body=b"gone"))
        waiting = [asyncio.create_task(store.flushed.reached(each.end_offset, 60_000)) for each in (kept, gone)]
        await asyncio.sleep(0)

        store.truncate(kept.end_offset, TAKEN_BACK)
        store.put(draft(body=b"other"))
        store.flush_now()

        assert await waiting[0]
        with pytest.raises(NotRunning, match="another leader"):
            await waiting[1]


def test_what_is_flushed_and_taken_back_is_not_vouched_for(tmp_path: Path) -> None:
    """C7: else a start would trust records that came later and never reached the disk."""
    with late_store(small_config(tmp_path)) as store:
        kept = store.put(draft(body=b"kept"))
        store.put(draft(body=b"gone"))
        store.flush_now()
        store.truncate(kept.end_offset, TAKEN_BACK)
        assert kept.end_offset == store.flushed.value
        store.put(draft(body=b"new"))
        assert kept.end_offset == store.flushed.value
        store.flush_now()
        assert store.written == store.flushed.value


def test_unconfirmed_records_wait_again_after_a_start(tmp_path: Path) -> None:
    """C8: closed or killed, and with all that is derived thrown away or not."""
    config = small_config(tmp_path / "one")
    with late_store(config) as store:
        store.confirm(store.put(draft(body=b"1")).end_offset)
        end = store.put(draft(body=b"2")).end_offset
        killed = crash(store, tmp_path / "two")
    for each in (config, killed):
        with late_store(each) as again:
            assert (end, 1 if each is config else 0) == (again.written, again.max_offset("orders", 0))
            assert 2 == again.put(draft(body=b"3")).queue_offset
            again.confirm(again.written)
            assert [b"1", b"2", b"3"] == bodies(again)


def test_a_long_log_of_which_nothing_is_confirmed_stays_invisible(tmp_path: Path) -> None:
    """C7, C8: a start begins some segments before the end, and must not take what lies before for dispatched."""
    config = small_config(tmp_path / "one")
    with late_store(config) as store:
        for number in range(20):
            store.put(draft(body=b"%d" % number * 500))
        assert len(store._log.starts) > 4
    # A queue without entries, or all would be folded from the beginning.
    (tmp_path / "one/consumequeue/other/0").mkdir(parents=True)
    (tmp_path / "one/consumequeue/other/0/00000000000000000000").write_bytes(bytes(100))
    with late_store(config) as again:
        assert (0, 20) == (again.dispatched, len(again._pending))
        killed = crash(again, tmp_path / "two")
    with late_store(killed) as again:
        assert (0, 20) == (again.dispatched, len(again._pending))
        again.confirm(again.written)
        assert [b"%d" % number * 500 for number in range(20)] == bodies(again)


@pytest.mark.parametrize("number", range(4))
def test_a_record_whose_lead_was_lost_ends_the_log(tmp_path: Path, number: int) -> None:
    """C8: it may stand on another page than its record, and then a power cut takes one of both."""
    config = small_config(tmp_path / "one")
    log = late_log(config)
    with quiet_store(config, log=log) as store:
        placed = [store.put(draft(body=b"%d" % each)) for each in range(4)]
        store.confirm(store.written)
        log.save_confirmed(store.written)
        killed = crash(store, tmp_path / "two")
    edit(tmp_path / "two/commitlog/00000000000000000000", placed[number].log_offset - LEAD_BYTES, bytes(LEAD_BYTES))
    with late_store(killed) as again:
        assert placed[number].log_offset - LEAD_BYTES == again.written
        again.confirm(again.written)
        assert [b"%d" % each for each in range(number)] == bodies(again)


def test_a_topic_that_is_deleted_takes_its_unconfirmed_records_with_it(tmp_path: Path) -> None:
    """D1, C5: and one of the same name begins with 0, whether these are confirmed or taken back."""
    for name, confirms in (("one", True), ("two", False)):
        with late_store(small_config(tmp_path / name)) as store:
            store.confirm(store.put(draft(body=b"1")).end_offset)
            end = store.written
            store.put(draft(body=b"2"))
            store.delete_topics(["orders"])
            if confirms:
                store.confirm(store.written)
            else:
                store.truncate(end, TAKEN_BACK)
            assert 0 == store.max_offset("orders", 0)
            assert 0 == store.put(draft(body=b"new")).queue_offset
            store.confirm(store.written)
            assert [b"new"] == bodies(store)


def test_records_that_wait_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C6: other nodes that do not keep up must not fill the memory."""
    monkeypatch.setattr(pending, "PENDING_MAX", 3)
    with late_store(small_config(tmp_path)) as store:
        for _ in range(3):
            store.put(draft())
        with pytest.raises(StoreError, match="3 messages wait to be confirmed"):
            store.put(draft())
        store.confirm(store.written)
        store.put(draft())


def test_records_are_taken_back_while_a_thread_flushes(tmp_path: Path) -> None:
    """C6: with the threads of a broker."""
    config = small_config(tmp_path, flush_interval_commit_log=1, flush_interval_consume_queue=1)
    store = MessageStore.open(config, store_host=HOST, clock=ManualClock(), log=late_log(config))
    with store:
        for number in range(200):
            store.confirm(store.put(draft(body=b"%d" % number)).end_offset)
            end = store.written
            parcels = [(0, b"gone" * 100, b"")] * 4
            store.put_batch("orders", 0, parcels, born_time_ms=1, born_host=BORN)
            store.truncate(end, TAKEN_BACK)
            assert store.flushed.value <= end
        assert [b"%d" % number for number in range(200)] == bodies(store)
    with late_store(config) as again:
        assert [b"%d" % number for number in range(200)] == bodies(again)
