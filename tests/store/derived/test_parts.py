"""Derived parts: what they are given, in which order, and when (C5, C9)."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from ternmq.errors import DiskFull
from ternmq.store.derived.fact import Fact
from ternmq.store.derived.parts import Closings
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore, StoreConfig
from ternmq.wire.record import Sysflag
from tests.manual_clock import ManualClock
from tests.store.late_log import LateLog
from tests.store.small import HOST, draft, put_all, small_config
from tests.store.waiting_part import WaitingPart


class Folding:
    """Remembers in memory what it was told, and does not keep it."""

    def __init__(self, *topics: str, loaded: int = 0) -> None:
        self.topics = topics
        self.directory = Path("/nowhere")
        self.loaded = loaded
        self.facts: list[Fact] = []
        self.records: list[bytes] = []
        self.closed: list[tuple[int, int]] = []
        self.calls: list[str] = []
        self.views: list[memoryview] = []

    def load(self) -> int:
        return self.loaded

    def fold(self, fact: Fact, record: memoryview) -> None:
        self.facts.append(fact)
        self.records.append(bytes(record))
        self.views.append(record)

    def fold_closing(self, fact: Fact, closed: int) -> None:
        self.closed.append((fact.log_offset, closed))

    def fold_run(self, entries: bytes, data: memoryview, begin: int) -> int:
        return 0

    def fold_closings(self, closings: Closings) -> None:
        self.closed += struct.Struct(">qq").iter_unpack(closings.marks)

    def cut(self, log_offset: int) -> None:
        self.calls.append(f"cut {log_offset}")

    def write_some(self) -> bool:
        return True

    def write_out(self) -> list[Path]:
        self.calls.append("write out")
        return []

    def synced(self, log_offset: int) -> None:
        self.calls.append(f"synced {log_offset}")

    def files(self) -> list[Path]:
        return []


def store_with(config: StoreConfig, *parts: Folding | WaitingPart, late: bool = False) -> MessageStore:
    log = None
    if late:
        log = LateLog(
            FileDisk(),
            config.log_paths,
            segment_bytes=config.mapped_file_size_commit_log,
            confirmed_path=config.store_path_root_dir / "confirmed",
        )
    return MessageStore.open(config, store_host=HOST, clock=ManualClock(), derived=parts, log=log, threads=False)


def closing(log_offset: int, topic: str = "orders") -> Draft:
    message = draft(topic)
    message.closes = log_offset
    return message


@pytest.mark.parametrize("late", [False, True])
def test_a_part_gets_the_records_of_its_topics_and_those_that_close_others(tmp_path: Path, late: bool) -> None:
    """C5: fresh records, batches, records that were confirmed later, and those read back give the same."""
    fresh, again = Folding("timer", "other"), Folding("timer", "other")
    with store_with(small_config(tmp_path), fresh, late=late) as store:
        placed = [store.put(draft("timer", number % 2, b"x" * 300, TAGS="t")) for number in range(12)]
        store.put(draft("orders"))
        put_all(store, [draft("timer", body=b"in a batch"), draft("timer", body=b"too")])
        done = [store.put(closing(each.log_offset)).log_offset for each in placed[:3]]
        half = draft("timer")
        half.sysflag = Sysflag.COMMIT
        half.prepared_transaction_offset = 17
        store.put(half)
        if late:
            assert [] == fresh.facts
            store.confirm(store.written)

        assert 15 == len(fresh.facts)
        assert {"timer"} == {fact.topic for fact in fresh.facts}
        assert [bytes(store.record_at(fact.log_offset) or b"") for fact in fresh.facts] == fresh.records
        # The first record of a plain log is at log offset 0, and it can be closed, too.
        assert [(by, each.log_offset) for by, each in zip(done, placed[:3], strict=True)] == fresh.closed

    with store_with(small_config(tmp_path), again, late=late):
        assert fresh.facts == again.facts
        assert fresh.records == again.records
        assert fresh.closed == again.closed


def test_a_record_is_valid_during_the_fold_only(tmp_path: Path) -> None:
    """C5: a part that keeps a view would keep a mapped segment alive."""
    part = Folding("timer")
    with store_with(small_config(tmp_path), part) as store:
        store.put(draft("timer"))
        with pytest.raises(ValueError, match="released"):
            bytes(part.views[0])


def test_recovery_folds_from_where_each_part_ends(tmp_path: Path) -> None:
    """C5, C8: each part gets each record once, and a part ahead of the log is cut."""
    first = Folding("timer")
    with store_with(small_config(tmp_path), first) as store:
        for number in range(20):
            store.put(closing(5, "timer") if number % 3 else draft("timer", body=b"y" * 300))
        end = store.written
    middle = first.facts[10].log_offset
    whole, late, ahead = Folding("timer"), Folding("timer", loaded=middle), Folding("timer", loaded=end + 1000)
    with store_with(small_config(tmp_path), whole, late, ahead) as store:
        assert first.facts == whole.facts
        assert first.facts[10:] == late.facts
        assert [each for each in first.closed if each[0] >= middle] == late.closed
        assert [] == ahead.facts
        assert [f"cut {end}", "write out", f"synced {end}"] == ahead.calls
        store.put(draft("timer"))
        assert 1 == len(ahead.facts)


def test_a_part_without_a_log_is_cut(tmp_path: Path) -> None:
    """C5: nothing derived knows more than the log."""
    ahead = Folding(loaded=1000)
    with store_with(small_config(tmp_path), ahead):
        assert ["cut 0", "write out", "synced 0"] == ahead.calls


def test_a_store_that_was_closed_has_nothing_to_fold(tmp_path: Path) -> None:
    """C5, C7: also for a part that has seen no record for a long time."""
    config = small_config(tmp_path)
    part = WaitingPart(FileDisk(), tmp_path / "waiting", ["timer"])
    with store_with(config, part) as store:
        store.put(draft("timer"))
        for _ in range(50):
            store.put(draft("orders", body=b"z" * 500))
        end = store.written
    again = WaitingPart(FileDisk(), tmp_path / "waiting", ["timer"])
    assert end == again.load()
    assert part.content == again.content


def test_a_part_that_lost_its_files_folds_the_log_again(tmp_path: Path) -> None:
    """C5: what is derived can be thrown away."""
    config = small_config(tmp_path)
    part = WaitingPart(FileDisk(), tmp_path / "waiting", ["timer"])
    with store_with(config, part) as store:
        for number in range(30):
            store.put(draft(("timer", "orders")[number % 2], body=b"z" * 300))
    shutil.rmtree(tmp_path / "waiting")
    again = WaitingPart(FileDisk(), tmp_path / "waiting", ["timer"])
    with store_with(config, again):
        assert part.content == again.content
        assert 15 == len(again.content)


def test_a_part_takes_part_in_each_flush_pass(tmp_path: Path) -> None:
    """C6: written out, synced, and then told so."""
    clock, part = ManualClock(), Folding("timer")
    config = small_config(tmp_path)
    with MessageStore.open(config, store_host=HOST, clock=clock, derived=[part], threads=False) as store:
        end = store.put(draft("timer")).end_offset
        assert [] == part.calls
        clock.advance(config.flush_consume_queue_thorough_interval / 1000)
        store.tick()
        store._mailbox.pick_up()
        assert ["write out", f"synced {end}"] == part.calls
        part.calls.clear()
    assert ["write out", f"synced {end}"] * 2 == part.calls


class Full(Folding):
    """Cannot write for a while."""

    is_full = True

    def fold(self, fact: Fact, record: memoryview) -> None:
        super().fold(fact, record)
        if self.is_full:
            raise DiskFull("cannot write: no space left")

    def write_out(self) -> list[Path]:
        if self.is_full:
            raise DiskFull("cannot write: no space left")
        return super().write_out()


def test_a_part_that_cannot_write_keeps_the_log_from_running_away(tmp_path: Path) -> None:
    """C5: its memory is bounded, as messages are refused meanwhile."""
    part = Full("timer")
    with store_with(small_config(tmp_path), part) as store:
        store.put(draft("timer"))
        for _ in range(2):
            with pytest.raises(DiskFull):
                store.put(draft("orders"))
        part.is_full = False
        store.put(draft("orders"))
        assert 1 == len(part.facts)


@pytest.mark.parametrize("step", [7, 300, 100_000])
def test_a_part_of_a_replica_folds_the_same(tmp_path: Path, step: int) -> None:
    """C5, O2: closing records and those of its topics, among others that take the short way."""
    one, two = Folding("timer"), Folding("timer")
    with (
        store_with(small_config(tmp_path / "one"), one) as master,
        store_with(small_config(tmp_path / "two"), two) as other,
    ):
        for number in range(60):
            placed = master.put(draft(("orders", "timer")[number % 5 == 0], body=b"x" * 100))
            if number % 7 == 0:
                master.put(closing(placed.log_offset))
        sent = b"".join(bytes(piece) for piece in master._log.views([(0, 4096), (4096, 8192)]) or ())
        for at in range(0, len(sent), step):
            other.append_raw(at, sent[at : at + step])
            other.follow(60.0)
        assert [fact for fact in one.facts if fact.end_offset <= other.dispatched] == two.facts
        assert [each for each in one.closed if each[0] < other.dispatched] == two.closed
        assert one.records[: len(two.records)] == two.records
        assert two.facts
        assert two.closed
