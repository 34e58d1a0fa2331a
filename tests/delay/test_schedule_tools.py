"""The hour files in ``tern store verify|rebuild|info`` (I2, C5, C8): what is found, mended, and never dropped."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.delay.due import HOUR_MS
from ternmq.delay.hour_files import ENTRY_BYTES, HourFiles
from ternmq.delay.recalls import RECALLED, closing_draft
from ternmq.delay.rocketmq_timer import write_handover
from ternmq.delay.schedule_check import ScheduleCheck, load_schedule, summary
from ternmq.delay.schedule_log import DIRECTORY, STATE, ScheduleLog
from ternmq.delay.schedule_rebuild import fresh_schedule
from ternmq.delay.timer import Timer
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.rebuild import rebuild
from ternmq.store.inspect.verify import Verification, verify
from ternmq.store.inspect.view import StoreView
from ternmq.store.store import MessageStore
from ternmq.wire.record import FIXED_V4_BYTES, unpack_record
from tests.manual_clock import ManualClock
from tests.store.small import HOST, draft, small_config

#: Messages of the store that the tests share; the first ones are older than its log.
COUNT = 60
#: Hours after the clock's, for which they wait in turn.
HOURS = (2, 3, 50)


class Made:
    """A closed store in which messages wait, some are recalled, and the log has forgotten the oldest."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.clock = ManualClock()
        self.offsets: dict[int, int] = {}
        for numbers in (range(COUNT // 2), range(COUNT // 2, COUNT)):
            with self.opened() as store:
                for number in numbers:
                    self.send(store, number)
                    if number % 4 == 3:
                        self.recall(store, self.offsets[number - 2])
        with self.opened() as store:
            # An old one.
            self.recall(store, self.offsets[0])
        # The log forgets a third of them.
        segments = sorted((root / "commitlog").iterdir())
        for segment in segments[: len(segments) // 3]:
            segment.unlink()
        with self.opened() as store:
            self.log_begin = store.min_log_offset
        assert self.offsets[5] < self.log_begin < self.offsets[COUNT // 2]

    def opened(self) -> MessageStore:
        self.schedule = ScheduleLog(FileDisk(), self.root, ring=lambda _: None)
        self.timer = Timer(
            clock=self.clock, broker_name="a", is_enabled=True, max_delay_sec=10**7, announce=self.schedule.announce
        )
        config = small_config(self.root, max_hash_slot_num=50, max_index_num=1_000)
        return MessageStore.open(config, store_host=HOST, clock=self.clock, derived=(self.schedule,), threads=False)

    def send(self, store: MessageStore, number: int) -> None:
        delay_ms = HOURS[number % len(HOURS)] * HOUR_MS + 7 * number
        wish = ("TIMER_DELAY_MS", delay_ms) if number % 2 else ("TIMER_DELIVER_MS", self.clock.now_ms() + delay_ms)
        body, key = b"%d" % number + b"." * 200, f"K{number}"
        message = draft(f"orders{number % 2}", 0, body, UNIQ_KEY=key, **{wish[0]: str(wish[1])})
        self.timer.redirect(message)
        # A delay counts from the store time, and not from when the intake looked at it.
        self.clock.advance(0.003)
        self.offsets[number] = store.put(message).log_offset

    def recall(self, store: MessageStore, log_offset: int) -> None:
        for files in self.schedule.hours():
            entry = files.find(log_offset)
            if entry is not None:
                record = unpack_record(files.record(entry))
                store.put(closing_draft(entry, record, RECALLED, now_ms=self.clock.now_ms()))
                return
        raise AssertionError(f"nothing waits at {log_offset}")

    def verdict(self) -> Verification:
        return verify(self.root, checks=(ScheduleCheck,))

    def rebuild(self) -> None:
        rebuild(self.root, clock=self.clock, derived=(fresh_schedule,))

    def waiting(self) -> dict[int, tuple[int, bytes]]:
        """By log offset: when it is due, and its record."""
        schedule, _ = load_schedule(StoreView(self.root))
        found = {}
        for files in schedule.hours():
            closed = set(files.closed(0, files.closed_count))
            for entry in files.entries(0, files.entry_count):
                if entry is not None and entry.log_offset not in closed:
                    found[entry.log_offset] = (entry.due_ms, files.record(entry))
        schedule.close()
        return found

    def flip(self, path: Path, at: int) -> None:
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    def place(self, number: int) -> tuple[HourFiles, int]:
        """The files of a message, and the number of its entry."""
        schedule, _ = load_schedule(StoreView(self.root))
        for files in schedule.hours():
            for at, entry in enumerate(files.entries(0, files.entry_count)):
                if entry is not None and entry.log_offset == self.offsets[number]:
                    return files, at
        raise AssertionError(f"message {number} is not there")


@pytest.fixture
def made(tmp_path: Path) -> Made:
    return Made(tmp_path / "store")


def test_a_sound_schedule_has_no_faults_and_is_made_again_as_it_was(made: Made) -> None:
    """C5, I2: what only the hour files have is kept, and what is recalled stays so."""
    before, told = made.waiting(), summary(StoreView(made.root))
    assert [] == made.verdict().findings
    assert COUNT - COUNT // 4 - 1 == len(before) == told.waiting == sum(told.topics.values())
    assert (len(HOURS), 48 * HOUR_MS) == (told.hours, told.last_hour_ms - told.first_hour_ms)
    assert any(log_offset < made.log_begin for log_offset in before)
    for _ in range(2):
        made.rebuild()
        assert before == made.waiting()
        assert told == summary(StoreView(made.root))
        assert [] == made.verdict().findings
    with made.opened() as store:
        assert store.written
        assert len(before) == made.schedule.waiting


def test_a_schedule_that_is_lost_is_made_from_what_the_log_has(made: Made) -> None:
    """I2: an empty directory ``schedule`` would be taken for one that was never synced."""
    before = made.waiting()
    (made.root / DIRECTORY / STATE).write_bytes(b"")
    for path in (made.root / DIRECTORY).glob("*.*"):
        path.unlink()
    made.rebuild()
    assert {offset: each for offset, each in before.items() if offset >= made.log_begin} == made.waiting()


@pytest.mark.parametrize("what", ["index", "records", "closed", "state"])
def test_damage_to_what_the_log_has_is_found_and_mended(made: Made, what: str) -> None:
    """C8, I2: an entry, a record, a mark, the file that counts them."""
    before = made.waiting()
    files, number = made.place(COUNT - 2)
    entry = files.entry(number)
    assert entry is not None
    match what:
        case "index":
            made.flip(files.paths[0], number * ENTRY_BYTES + 3)
        case "records":
            made.flip(files.paths[1], entry.at + FIXED_V4_BYTES)
        case "closed":
            files, _ = made.place(COUNT - 3)
            made.flip(files.paths[2], files.paths[2].stat().st_size - 1)
        case "state":
            made.flip(made.root / DIRECTORY / STATE, 30)
    kinds = {"index": "schedule-missing", "records": "schedule-wrong", "closed": "schedule-closed"}
    assert [kinds.get(what, "schedule-state")] == [fault.kind for fault in made.verdict().faults]
    made.rebuild()
    assert before == made.waiting()
    assert [] == made.verdict().findings


@pytest.mark.parametrize("what", ["index", "records"])
def test_damage_to_what_only_the_schedule_has_is_told_and_costs_no_other_message(made: Made, what: str) -> None:
    """C8, I2"""
    before = made.waiting()
    files, number = made.place(2)
    entry = files.entry(number)
    assert entry is not None
    assert entry.log_offset < made.log_begin
    if what == "index":
        made.flip(files.paths[0], number * ENTRY_BYTES + 3)
    else:
        made.flip(files.paths[1], entry.at + FIXED_V4_BYTES)
    [fault] = made.verdict().faults
    assert ("schedule-lost", 1) == (fault.kind, fault.count)
    del before[entry.log_offset]
    made.rebuild()
    assert before == made.waiting()
    assert [] == made.verdict().findings


def test_messages_that_the_files_do_not_have_are_found(made: Made) -> None:
    """I2: ``state`` tells that they are complete, and an hour is gone."""
    before = made.waiting()
    files, _ = made.place(COUNT - 2)
    state = (made.root / DIRECTORY / STATE).read_bytes()
    for path in files.paths:
        path.unlink()
    assert ["schedule-state"] == [fault.kind for fault in made.verdict().faults]
    assert state == (made.root / DIRECTORY / STATE).read_bytes()
    made.rebuild()
    kept = {offset for offset, (due_ms, _) in before.items() if due_ms // HOUR_MS != files.hour}
    assert kept | {offset for offset in before if offset >= made.log_begin} == set(made.waiting())


def test_what_rocketmq_has_delivered_is_not_brought_back(made: Made) -> None:
    """I2, C11: no record of the log tells it."""
    before = made.waiting()
    limit_ms = made.clock.now_ms() + 10 * HOUR_MS
    write_handover(FileDisk(), made.root, limit_ms, COUNT * 2)
    with made.opened():
        pass
    left = made.waiting()
    assert {offset: each for offset, each in before.items() if each[0] > limit_ms} == left
    made.rebuild()
    assert left == made.waiting()


def test_a_rebuild_that_was_killed_between_two_steps_loses_no_message(made: Made) -> None:
    """I2: the old files were aside, and the new ones not yet in their place."""
    before = made.waiting()
    (made.root / "replaced.tmp").mkdir()
    (made.root / DIRECTORY).rename(made.root / "replaced.tmp" / DIRECTORY)
    made.rebuild()
    assert before == made.waiting()


def test_a_rebuild_without_the_schedule_leaves_it_alone(made: Made) -> None:
    """I2: as the one by Spark does."""
    before = made.waiting()
    rebuild(made.root, clock=made.clock)
    assert before == made.waiting()
