"""What the simulation has found, one test for each (C5–C8). A cut keeps a random part, so each is tried many times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from ternmq.errors import DiskFull, StoreError
from ternmq.store.disk.segment import segment_name
from ternmq.store.durable.checkpoint import Checkpoint
from ternmq.store.store import MessageStore
from ternmq.testing.disk import PowerCut, SimulatedDisk
from tests.manual_clock import ManualClock
from tests.store.small import HOST, bodies, draft, small_config

ROOT = Path("/store")
PAGE = 512
EVER = {"count_max": 64, "begin_ms": 0, "end_ms": 1 << 62}


class Machine:
    """A disk, a clock, and the store that lives on them."""

    def __init__(self, seed: int = 0, **changes: Any) -> None:
        self.random = Random(seed)
        self.clock = ManualClock()
        self.disk = SimulatedDisk(page_bytes=PAGE)
        self.config = small_config(ROOT, **changes)
        self.store = self._open()

    def _open(self) -> MessageStore:
        return MessageStore.open(self.config, store_host=HOST, clock=self.clock, disk=self.disk, threads=False)

    def put(self, body: bytes, **fields: Any) -> None:
        self.store.put(draft(body=body, **fields))

    def fill(self, count: int, body_bytes: int = 400) -> list[bytes]:
        """Put so many messages of one size; returns their bodies."""
        sent = [(b"%03d" % number).ljust(body_bytes, b".") for number in range(count)]
        for number, body in enumerate(sent):
            self.put(body, KEYS=f"k{number}")
        return sent

    def sync_all(self) -> None:
        """Have everything on the disk, as it is once a minute, and the checkpoint says so."""
        self.store.flush_now()
        self.clock.advance(61)
        self.store.tick()

    def cut_power(self) -> None:
        self.disk.power_cut(self.random)
        self.store = self._open()

    def kill(self) -> None:
        self.disk.die()
        self.store = self._open()

    def restart(self) -> None:
        self.store.close()
        self.store = self._open()

    def stop_at(self, kind: str, part: str, action: Callable[[], object]) -> None:
        """Let the process die within ``action``, ahead of the first step of this kind below a directory."""

        def stop(step: str, path: Path) -> None:
            if step == kind and part in path.parts:
                raise PowerCut

        self.disk.before = stop
        with pytest.raises(PowerCut):
            action()
        self.disk.before = None


@pytest.fixture(params=range(12))
def machine(request: pytest.FixtureRequest) -> Machine:
    return Machine(request.param)


def machines(**changes: Any) -> Iterator[Machine]:
    for seed in range(12):
        yield Machine(seed, **changes)


# --- The log ----------------------------------------------------------------------------------------------------------


def test_an_acknowledged_message_survives_although_its_directories_are_new(machine: Machine) -> None:
    """C6: names must be on the disk, from the root down, before what is in them counts."""
    machine.put(b"1")
    machine.store.flush_now()
    machine.cut_power()
    assert [b"1"] == bodies(machine.store)


def test_what_a_killed_process_left_in_the_cache_is_synced_by_the_next(machine: Machine) -> None:
    """C7: the checkpoint must not vouch for segments that were not synced."""
    sent = machine.fill(30)
    machine.kill()
    machine.clock.advance(10)
    machine.put(b"last")
    machine.sync_all()
    machine.cut_power()
    assert [*sent, b"last"] == bodies(machine.store)


def test_records_behind_a_cut_never_come_back(machine: Machine) -> None:
    """C8: a new record that ends where an old one begins must not lead into it."""
    machine.fill(5)
    machine.store.flush_now()
    second = machine.store._queues.get("orders", 0).entry(1)[0]  # type: ignore[union-attr,index]
    machine.disk.flip_bit(ROOT / "commitlog" / segment_name(0), (second + 100) * 8)
    machine.disk.die()
    machine.store = machine._open()
    assert 1 == machine.store.max_offset("orders", 0)
    machine.put(b"new".ljust(400, b"."), KEYS="k1")
    machine.disk.write_back(machine.random)
    machine.cut_power()

    assert [b"000", b"new"][: machine.store.max_offset("orders", 0)] == [body[:3] for body in bodies(machine.store)]


def test_records_behind_a_damaged_one_are_set_aside() -> None:
    """C8: those of the same segment, too, each at its place, before zeros take it."""
    machine = Machine(mapped_file_size_commit_log=8192)
    machine.fill(40)
    machine.store.flush_now()
    offsets = [machine.store._queues.get("orders", 0).entry(number)[0] for number in range(40)]  # type: ignore[union-attr,index]
    path = ROOT / "commitlog" / segment_name(0)
    before = machine.disk.files()[path]
    machine.disk.flip_bit(path, (offsets[1] + 100) * 8)
    machine.kill()

    assert 1 == machine.store.max_offset("orders", 0)
    aside = machine.disk.files()[ROOT / "cut" / segment_name(0)]
    assert before[offsets[2] :] == aside[offsets[2] :]
    assert bytes(8192 - offsets[1]) == machine.disk.files()[path][offsets[1] :]
    assert ROOT / "cut" / segment_name(8192) in machine.disk.files()


def test_a_torn_tail_is_nothing_to_keep() -> None:
    """C8: the rest of one record is no record."""
    machine = Machine()
    machine.fill(2)
    machine.store.flush_now()
    last = machine.store._queues.get("orders", 0).entry(1)[0]  # type: ignore[union-attr,index]
    machine.disk.flip_bit(ROOT / "commitlog" / segment_name(0), (last + 100) * 8)
    machine.kill()

    assert 1 == machine.store.max_offset("orders", 0)
    assert [] == machine.disk.list(ROOT / "cut")


def test_properties_that_never_reached_the_disk_tear_a_record() -> None:
    """C8: the CRC covers the body only, but a sector of zeros behind it is noticed."""
    machine = Machine()
    machine.put(b"x" * 330, KEYS="whole")
    machine.put(b"", KEYS="k" * 200)
    machine.store.flush_now()
    path = ROOT / "commitlog" / segment_name(0)
    end = machine.store.written
    assert end // PAGE == 1
    machine.kill()
    assert 2 == machine.store.max_offset("orders", 0)
    for at in range(PAGE, end):
        byte = machine.disk.files()[path][at]
        for bit in range(8):
            if byte & 1 << bit:
                machine.disk.flip_bit(path, at * 8 + bit)
    machine.kill()

    assert 1 == machine.store.max_offset("orders", 0)


def test_a_property_may_hold_a_zero() -> None:
    """C8: not every zero is a lost sector."""
    machine = Machine()
    machine.put(b"", KEYS="a\0b", OTHER="\0" * 40)
    machine.kill()
    assert 1 == machine.store.max_offset("orders", 0)


def test_segments_that_were_never_used_do_not_leave_a_gap() -> None:
    """C8: a recovery that removes several of them and is cut short."""
    for machine in machines():
        machine.fill(1)
        machine.store.flush_now()
        machine.fill(60)
        machine.disk.power_cut(Random(1))
        machine.stop_at("sync names", "commitlog", machine._open)
        machine.cut_power()
        assert machine.store.written > 0


def test_a_failed_sync_is_final() -> None:
    """C6: the next one would succeed and prove nothing."""
    machine = Machine()
    machine.put(b"1")
    machine.store.flush_now()
    machine.put(b"2")

    def fail(kind: str, _path: Path) -> None:
        if kind == "sync":
            raise StoreError("cannot flush: Input/output error")

    machine.disk.before = fail
    with pytest.raises(StoreError, match="Input/output error"):
        machine.store.flush_now()
    machine.disk.before = None
    with pytest.raises(StoreError, match="Input/output error"):
        machine.store.flush_now()
    with pytest.raises(StoreError, match="until the broker is started again"):
        machine.put(b"3")
    with pytest.raises(StoreError, match="Input/output error"):
        machine.store.close()
    machine.kill()
    assert [b"1"] == bodies(machine.store)


# --- Queues and index -------------------------------------------------------------------------------------------------


def test_a_queue_file_gets_its_length_although_its_maker_died() -> None:
    """C2: between making the file and giving it its length."""
    machine = Machine()
    machine.put(b"1")
    machine.stop_at("size", "consumequeue", machine.store.close)
    machine.kill()
    machine.put(b"2")
    machine.restart()
    assert [b"1", b"2"] == bodies(machine.store)


def test_an_index_file_without_its_length_is_made_anew() -> None:
    """C4."""
    machine = Machine()
    machine.put(b"1", KEYS="k")
    machine.stop_at("size", "index", machine.store.close)
    assert 0 == machine.disk.list(ROOT / "index")[0].length_bytes
    machine.kill()
    machine.restart()
    assert 1 == len(machine.store.query("orders", "k", **EVER).buffers)
    assert 1 == len(machine.disk.list(ROOT / "index"))


def test_queue_files_behind_one_that_is_missing_are_folded_again(machine: Machine) -> None:
    """C8: names and lengths that were not synced may be lost in any order."""
    sent = machine.fill(30, body_bytes=10)
    machine.store.flush_now()
    machine.store._queues.write_out(1)
    machine.cut_power()
    assert sent == bodies(machine.store)


def test_a_recovery_that_ends_early_takes_nothing_back(machine: Machine) -> None:
    """C7: queues are cut and folded again in memory; until they are synced, the checkpoint must not vouch for them."""
    machine.put(b"first", queue_id=1)
    sent = machine.fill(10)  # the rest of the first segment, and a part of the second
    machine.clock.advance(61)
    machine.store.tick()  # queues are synced, the log is not
    machine.clock.advance(10)
    machine.kill()  # nothing is trusted, the last entry of each queue is folded again
    machine.clock.advance(10)
    machine.put(b"last")
    machine.store.flush_now()  # with that, the first segment would be trusted
    machine.store.tick()
    machine.cut_power()
    assert ([*sent, b"last"], [b"first"]) == (bodies(machine.store), bodies(machine.store, queue_id=1))


def test_a_clock_that_is_set_back_does_not_fool_recovery(machine: Machine) -> None:
    """C7: records that look older than what the checkpoint vouches for, and are on no disk."""
    sent = machine.fill(3)
    machine.sync_all()
    machine.clock._now_ms -= 600_000
    sent += machine.fill(20)
    machine.store.flush_now()
    machine.cut_power()
    assert sent == bodies(machine.store)


def test_a_checkpoint_of_rocketmq_has_no_offsets() -> None:
    """C11: then the times decide, as before."""
    machine = Machine()
    sent = machine.fill(20)
    machine.sync_all()
    path = ROOT / "checkpoint"
    checkpoint = Checkpoint.load(machine.disk, path)
    assert (machine.store.written, machine.store.written) == (checkpoint.log_offset, checkpoint.derived_offset)
    machine.disk.write(path, machine.disk.read(path)[:40] + bytes(20))  # type: ignore[index]
    machine.clock.advance(10)
    machine.kill()
    assert sent == bodies(machine.store)


def test_an_index_without_files_is_no_lost_index() -> None:
    """C8: if no message has a key, a crash must not fold the log from its beginning."""
    machine = Machine()
    for _ in range(20):
        machine.put(b"x" * 400)
        machine.clock.advance(10)
    machine.sync_all()
    assert 1 == len(machine.disk.list(ROOT / "index"))


def test_damage_does_not_end_a_log_that_was_closed() -> None:
    """C8: also when the index is thrown away and folded again."""
    machine = Machine()
    machine.fill(30)
    damaged = machine.store._queues.get("orders", 0).entry(4)[0]  # type: ignore[union-attr,index]
    machine.store.close()
    machine.disk.flip_bit(ROOT / "commitlog" / segment_name(0), (damaged + 100) * 8)
    machine.disk.remove(ROOT / "index")
    machine.store = machine._open()

    assert 30 == machine.store.max_offset("orders", 0)
    assert 1 == len(machine.store.query("orders", "k3", **EVER).buffers)
    machine.put(b"new", KEYS="new")
    assert 1 == len(machine.store.query("orders", "new", **EVER).buffers)


def test_segments_stay_until_the_queues_of_their_records_are_synced(machine: Machine) -> None:
    """C9: otherwise a power cut takes the numbering of queues that have no record any more."""
    machine.put(b"old".ljust(3000, b"."), queue_id=1)
    machine.fill(20)
    machine.store.flush_now()
    machine.clock.advance(100 * 3600)
    machine.store.retention.ask()
    machine.store.retention.tick()
    machine.store._mailbox.pick_up()
    machine.cut_power()
    assert (1, 20) == (machine.store.max_offset("orders", 1), machine.store.max_offset("orders", 0))


# --- Deleted topics ---------------------------------------------------------------------------------------------------


def test_queue_files_that_come_back_after_their_deletion_do_not_take_the_numbering_back(machine: Machine) -> None:
    """C2, C9: five entries to a file; a power cut may keep any of the names. (Found by seed 786537511060.)"""
    machine.fill(23)
    for _ in range(5):
        machine.store.put(draft("others", body=b"x" * 1000))
    machine.sync_all()
    machine.store.retention.ask()
    machine.store.tick()
    assert (23, [400]) == (
        machine.store.min_offset("orders", 0),
        [int(path.name) for path in machine.disk.files() if "orders" in path.parts],
    )
    machine.cut_power()

    assert 23 == machine.store.max_offset("orders", 0)
    assert 23 == machine.store.put(draft()).queue_offset


def test_a_deletion_does_not_reach_beyond_the_logs_end(machine: Machine) -> None:
    """D1: what was lost with the power is written again, by others."""
    machine.put(b"1")
    machine.store.flush_now()
    machine.put(b"lost".ljust(2000, b"."))
    machine.store.delete_topics(["orders"])
    machine.disk.power_cut(machine.random)
    machine.store = machine._open()
    assert [] == bodies(machine.store)
    machine.put(b"new")
    machine.store.flush_now()
    machine.cut_power()
    assert [b"new"] == bodies(machine.store)


def test_a_deletion_that_was_refused_does_not_come_later() -> None:
    """D1: the disk was full when it should have been written down."""
    machine = Machine()
    machine.put(b"1")
    machine.put(b"2", topic="other")

    def fill_up(_kind: str, _path: Path) -> None:
        raise DiskFull("full")

    machine.disk.before = fill_up
    with pytest.raises(DiskFull):
        machine.store.delete_topics(["orders"])
    machine.disk.before = None
    machine.store.delete_topics(["other"])
    machine.kill()
    assert ([b"1"], []) == (bodies(machine.store), bodies(machine.store, "other"))


def test_a_deletion_that_is_finished_later_leaves_what_is_new(machine: Machine) -> None:
    """D1: a queue of the old topic comes back with the power; those of the new topic stay."""
    machine.put(b"old", queue_id=0)
    machine.put(b"old", queue_id=1)
    machine.sync_all()
    machine.store.delete_topics(["orders"])
    machine.put(b"new", queue_id=1)
    machine.store.flush_now()
    machine.cut_power()
    assert ([], [b"new"]) == (bodies(machine.store), bodies(machine.store, queue_id=1))
    assert (0, 1) == (machine.store.max_offset("orders", 0), machine.store.max_offset("orders", 1))
