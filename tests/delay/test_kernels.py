"""Compiled kernels of delayed messages do what the Python versions do (I2, C1–C5)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import ExitStack
from random import Random
from typing import Any
from unittest import mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ternmq.delay import delivery, hour_files, schedule_log
from ternmq.delay import timer as timer_module
from ternmq.delay.hour_files import ENTRY_BYTES
from ternmq.delay.quick import DueRewriter, Spans
from ternmq.delay.timer import Timer
from ternmq.errors import NotRunning, TernError
from ternmq.kernels import HAS_NATIVE
from ternmq.message import TIMER_PROPERTIES
from ternmq.names import WHEEL_TOPIC
from ternmq.raft import log as raft_log_module
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.derived import follower, index
from ternmq.store.log.draft import Draft
from ternmq.store.log.run import PackedRun, PackingRoom, RunPacker, record_count
from ternmq.wire.record import pack_host
from tests.delay.timers import ROOT, TimerWorld
from tests.delay.world import in_virtual_time
from tests.manual_clock import ManualClock
from tests.store.derived.test_follower import sent_by
from tests.store.log.test_put_all import content
from tests.store.small import BORN, draft

pytestmark = pytest.mark.skipif(not HAS_NATIVE, reason="the compiled kernels are not installed")

#: Of a record in the timer topic that came another way, behind its slot.
PLACES = (
    "REAL_TOPIC\x01orders\x02REAL_QID\x011\x02",
    "REAL_TOPIC\x01orders\x02REAL_QID\x0101\x02",
    "REAL_TOPIC\x01é\x02REAL_QID\x010\x02",
    "REAL_TOPIC\x01\x02REAL_QID\x010\x02",
    f"REAL_TOPIC\x01{WHEEL_TOPIC}\x02REAL_QID\x010\x02",
    "REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010\x02",
    "REAL_QID\x010\x02REAL_TOPIC\x01orders\x02",
    f"REAL_TOPIC\x01{'t' * 140}\x02REAL_QID\x010\x02",
    "REAL_TOPIC\x01orders\x02REAL_QID\x01-1\x02",
    "REAL_TOPIC\x01orders\x02REAL_QID\x013000000000\x02",
    "REAL_TOPIC\x01orders\x02REAL_QID\x010\x02TAGS\x01late\x02",
    "",
)
TEXTS = (
    "",
    "TAGS\x01a\x02",
    "TAGS\x01b\x02KEYS\x01k l\x02",
    "TAGS\x01\x02TAGS\x01\x02",
    "KEYS\x01\x02",
    "A\x01" + "v" * 900 + "\x02",
    "A\x01\ud800\x02",
    "A\x01é\0\x02",
    "TIMER_ROLL_TIMES\x011\x02",
    "TIMER_DEL_UNIQKEY\x01K1\x02",
    "XTIMER_OUT_MS\x0112\x02",
)
bodies = st.sampled_from((b"", b"hello", b"x" * 300, b"y" * 3000))
hosts = st.sampled_from((BORN, BORN, BORN, pack_host("::1", 7)))
#: As the intake makes them: topic, queue id, ms until they are due, text.
timed = st.tuples(
    st.sampled_from(("orders", "orders", "bills", "é", "t" * 127)),
    st.integers(0, 2),
    st.integers(1, 2_500),
    st.sampled_from(TEXTS),
)
#: As another client or broker may store them: slot, text, place.
foreign = st.tuples(
    st.sampled_from(("0", "1700000001000", "00", "x", "", "1" * 15)), st.sampled_from(TEXTS), st.sampled_from(PLACES)
)
drafts = st.tuples(
    st.one_of(timed, timed, timed, foreign), bodies, hosts, st.sampled_from((0, 0, 1, 8)), st.integers(0, 3)
)


def put(world: TimerWorld, number: int, what: tuple[object, ...]) -> None:
    place, body, host, sysflag, times = what
    assert isinstance(place, tuple)
    message = Draft("orders", 0, body, "", 1_699_999_999_000, host, 5, sysflag, times)  # type: ignore[arg-type]
    key = f"UNIQ_KEY\x01K{number}\x02"
    if len(place) == 4:
        message.topic, message.queue_id, delay_ms, text = place
        message.properties = f"{key}{text}TIMER_DELAY_MS\x01{delay_ms}\x02"
        world.timer.redirect(message)
    else:
        slot, text, rest = place
        message.topic, message.properties = WHEEL_TOPIC, f"{key}{text}TIMER_OUT_MS\x01{slot}\x02{rest}"
    world.store.put(message)


async def files_after(messages: list[tuple[object, ...]], *, from_log: bool) -> object:
    ratio: dict[str, Any] = {} if from_log else {"access_message_in_memory_max_ratio": 0}
    world = TimerWorld(mapped_file_size_commit_log=8192, max_index_num=1000, max_hash_slot_num=100, **ratio)
    world.start()
    for number, message in enumerate(messages):
        put(world, number, message)
        if number % 7 == 6:
            await asyncio.sleep(0.4)
    await asyncio.sleep(5)
    waiting = dict(world.schedule.topics_waiting), world.schedule.waiting, world.delivery.delivered
    await world._tasks.close()
    world.store.close()
    world.schedule.close()
    # Files of the index are named by the time of day when they were made.
    index_files = content(world.disk, ROOT / "index")
    others = {path: data for path, data in content(world.disk, ROOT).items() if path not in index_files}
    return waiting, others, list(index_files.values())


@settings(max_examples=60, deadline=None)
@given(st.lists(drafts, max_size=40), st.booleans())
@example([(("orders", 0, 500 - number, "TAGS\x01a\x02"), b"hello", BORN, 0, 0) for number in range(30)], True)
@example([(("orders", 0, 500 - number, "TAGS\x01a\x02"), b"hello", BORN, 0, 0) for number in range(30)], False)
def test_the_files_are_those_of_the_python_version(messages: list[tuple[object, ...]], from_log: bool) -> None:
    """Over the ends of segments, with records of any kind in between, from the log and from the files of the hour."""
    by_kernel = in_virtual_time(files_after(messages, from_log=from_log))
    with ExitStack() as stack:
        for module in (delivery, hour_files, timer_module, schedule_log, follower, index):
            stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
        by_python = in_virtual_time(files_after(messages, from_log=from_log))
        stack.enter_context(mock.patch.object(delivery, "quick_delivery", return_value=None))
        the_long_way = in_virtual_time(files_after(messages, from_log=from_log))
    assert the_long_way == by_python == by_kernel


def raft_log(world: TimerWorld) -> RaftLog:
    paths = RaftPaths.of(world.config, "n0")
    log = RaftLog(world.disk, paths, segment_bytes=world.config.mapped_file_size_commit_log, index_file_bytes=64 << 10)
    log.term = 1
    return log


async def group_after(messages: list[tuple[object, ...]], seed: int) -> object:
    """What a leader has whose entries are confirmed or taken back some time later."""
    world = TimerWorld(make_log=raft_log, mapped_file_size_commit_log=8192, max_index_num=1000, max_hash_slot_num=100)
    world.start()
    log, choose, states = world.store.log, Random(seed), []
    assert isinstance(log, RaftLog)
    for number, message in enumerate(messages):
        put(world, number, message)
    world.store.confirm(world.store.written)
    log.note_committed(log.last_index)
    for _ in range(24):
        await asyncio.sleep(choose.choice((0, 0.05, 0.4)))
        index = choose.randint(log.committed, log.last_index)
        if choose.random() < 0.2 and index < log.last_index:
            await world.end_term()
            world.store.truncate(log.cut_before(index + 1), NotRunning("another broker leads"))
            world.begin_term()
        elif (end := log.end_of(index)) is not None and index >= 0:
            world.store.confirm(end)
            log.note_committed(index)
        states.append(
            (log.last_index, world.store.dispatched, world.schedule.waiting, dict(world.schedule.topics_waiting))
        )
    for _ in range(20):
        await asyncio.sleep(0.5)
        world.store.confirm(world.store.written)
    assert not world.schedule.in_flight
    counts: dict[str, tuple[int, int]] = {}
    for topic, count, size in world.counted:
        counts[topic] = counts.get(topic, (0, 0))[0] + count, counts.get(topic, (0, 0))[1] + size
    await world._tasks.close()
    world.store.close()
    world.schedule.close()
    index_files = content(world.disk, ROOT / "index")
    others = {path: data for path, data in content(world.disk, ROOT).items() if path not in index_files}
    return states, counts, others, list(index_files.values())


@settings(max_examples=40, deadline=None)
@given(st.lists(drafts, max_size=40), st.integers(0, 1 << 30))
@example([(("orders", 0, 500 - number, "TAGS\x01a\x02"), b"hello", BORN, 0, 0) for number in range(30)], 1)
@example([(("orders", number % 3, 100, ""), b"hello", BORN, 0, 0) for number in range(30)], 2)
def test_a_leader_of_a_group_delivers_what_the_python_version_delivers(
    messages: list[tuple[object, ...]], seed: int
) -> None:
    """I2, P2: deliveries are confirmed, in part or all, or taken back; then another term delivers what waits."""
    by_kernel = in_virtual_time(group_after(messages, seed))
    with ExitStack() as stack:
        for module in (delivery, hour_files, timer_module, schedule_log, follower, index, raft_log_module):
            stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
        by_python = in_virtual_time(group_after(messages, seed))
    assert by_python == by_kernel


def copies_of(messages: list[tuple[object, ...]], cuts: list[int]) -> list[object]:
    """Files of a master that let messages wait, of a replica that got its log in pieces, and of a master that died
    before it had written any of them, and folds its log again."""

    async def program() -> list[object]:
        world = TimerWorld(mapped_file_size_commit_log=8192, max_index_num=1000, max_hash_slot_num=100)
        replica = TimerWorld(mapped_file_size_commit_log=8192, max_index_num=1000, max_hash_slot_num=100)
        for each in (world, replica):
            each.start()
            await each._tasks.close()
        for number, message in enumerate(messages):
            put(world, number, message)
            world.store.put(draft("plain", number % 2, b"between", KEYS="k"))
        data = sent_by(world.store)
        at = 0
        for length_bytes in [*cuts, len(data)]:
            piece = data[at : at + length_bytes]
            if piece:
                replica.store.append_raw(at, piece)
                replica.store.follow(60.0)
                at += length_bytes
        replica.store.stop_following()
        found: list[object] = []
        for each in (world, replica):
            waiting = dict(each.schedule.topics_waiting)
            if each is world:
                each.disk.die()
                each.start()
                await each._tasks.close()
                assert waiting == each.schedule.topics_waiting
            each.store.close()
            each.schedule.close()
            contents = content(each.disk, ROOT / "schedule") | content(each.disk, ROOT / "consumequeue")
            found.append((waiting, {path: data for path, data in contents.items() if path.name != "position"}))
        return found

    return in_virtual_time(program())


@settings(max_examples=60, deadline=None)
@given(st.lists(drafts, max_size=30), st.lists(st.integers(1, 3_000), max_size=6))
@example([(("orders", 0, 500 - number, "TAGS\x01a\x02"), b"hello", BORN, 0, 0) for number in range(30)], [])
def test_recovery_and_a_replica_fold_what_the_master_folded(
    messages: list[tuple[object, ...]], cuts: list[int]
) -> None:
    """C5, C8, I2: by the kernel, which takes many records at once, as without it; records of any kind in between."""
    by_kernel = copies_of(messages, cuts)
    with ExitStack() as stack:
        for module in (hour_files, timer_module, schedule_log, follower, index):
            stack.enter_context(mock.patch.object(module, "HAS_NATIVE", False))
        by_python = copies_of(messages, cuts)
    assert by_python == by_kernel
    assert by_kernel[0] == by_kernel[1]


@pytest.mark.parametrize("make_log", [None, raft_log])
def test_ordinary_messages_are_delivered_by_the_kernel(make_log: Callable[[TimerWorld], RaftLog] | None) -> None:
    """I2, P2: all but the first of each queue, which makes the queue; though others are in flight."""

    async def program() -> None:
        world = TimerWorld(mapped_file_size_commit_log=1 << 20, make_log=make_log)
        world.start()
        made = []
        put_packed = world.store.put_packed

        def counted(pack: RunPacker, *, answers_at_once: bool = True) -> bool:
            def noted(room: PackingRoom) -> PackedRun | None:
                packed = pack(room)
                made.append(sum(map(record_count, packed.parts)) if packed is not None else 0)
                return packed

            return put_packed(noted, answers_at_once=answers_at_once)

        world.store.put_packed = counted
        for number in range(2):
            for _ in range(40):
                assert world.send(1_000 + number)
            world.store.confirm(world.store.written)
            await asyncio.sleep(3)
        world.store.confirm(world.store.written)
        world.check_complete()
        assert 40 == made[-1]
        await world.stop()

    in_virtual_time(program())


V6 = pack_host("::1", 7)


@pytest.mark.parametrize(
    ("hosts_in_turn", "queues", "own_max"),
    [((BORN, V6), 1, 100), ((BORN,) * 9 + (V6,), 1, 100), ((V6,), 1, 100), ((BORN,), 16, 4)],
    ids=["every second one unusual", "every tenth", "all", "more queues than are known"],
)
@pytest.mark.parametrize("from_log", [True, False])
def test_what_is_prepared_is_in_proportion_to_what_is_delivered(
    hosts_in_turn: tuple[bytes, ...], queues: int, own_max: int, from_log: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I3: the kernel stops at each unusual message, and what it was given behind that was read in vain."""
    monkeypatch.setattr("ternmq.delay.quick._OWN_MAX", own_max)
    count, prepared = 600, 0
    pack = DueRewriter.pack

    def counted(self: DueRewriter, spans: Spans, *arguments: Any) -> PackedRun | None:
        nonlocal prepared
        prepared += len(spans.places)
        return pack(self, spans, *arguments)

    monkeypatch.setattr(DueRewriter, "pack", counted)

    async def program() -> None:
        ratio: dict[str, Any] = {} if from_log else {"access_message_in_memory_max_ratio": 0}
        world = TimerWorld(mapped_file_size_commit_log=1 << 20, **ratio)
        world.start()
        for number in range(count):
            host = hosts_in_turn[number % len(hosts_in_turn)]
            put(world, number, (("orders", number % queues, 1_000, ""), b"hello", host, 0, 0))
        await asyncio.sleep(5)
        assert count == world.delivery.delivered
        assert count == sum(world.store.max_offset("orders", queue_id) for queue_id in range(queues))
        await world.stop()

    in_virtual_time(program())
    # The first portions, and then at most a few for each that is delivered.
    assert prepared <= 2 * delivery.BATCH + 4 * count


def test_a_damaged_entry_that_names_the_place_of_another_message_delivers_none_twice() -> None:
    """I2: what the log has there is a sound record, and not the one of the entry."""

    async def program() -> None:
        world = TimerWorld(mapped_file_size_commit_log=1 << 20)
        world.start()
        sent = [world.send(3_600_000 * 3, absolute=True) for _ in range(20)]
        assert all(sent)
        world.store.flush_now()
        await world.stop()
        [path] = [entry.name for entry in world.disk.list(ROOT / "schedule") if entry.name.endswith(".index")]
        file = world.disk.open_file(ROOT / "schedule" / path)
        other = sent[5]
        assert other is not None
        file.write(3 * ENTRY_BYTES + 8, other.log_offset.to_bytes(8, "big"))
        world.start()
        await asyncio.sleep(3 * 3_600 + 5)
        world.look()
        assert 19 == len(world.delivered["orders"])
        await world.stop()

    in_virtual_time(program())


wishes = st.lists(
    st.tuples(
        st.sampled_from(
            (*TIMER_PROPERTIES, "DELAY", "TIMER_OUT_MS", "REAL_TOPIC", "TIMER_ROLL_TIMES", "XTIMER_OUT_MS", "T", "")
        ),
        st.sampled_from(
            ("", "0", "5", "0005", "90000", "-1", "x", "٣", "1700000100000", "9" * 18, "9" * 19, "a\x01b", "é")
        ),
    ),
    max_size=4,
)


@given(wishes, st.booleans(), st.sampled_from(("orders", "é", "%RETRY%g", WHEEL_TOPIC)), st.sampled_from((0, 4)))
def test_a_message_waits_as_the_python_version_lets_it_wait(
    pairs: list[tuple[str, str]], ends: bool, topic: str, sysflag: int
) -> None:
    """I2: the same text, slot and announcement, or the same refusal."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in pairs)[: None if ends else -1]
    found = []
    for is_native in (True, False):
        announced: list[object] = []
        timer = Timer(
            clock=ManualClock(),
            broker_name="a",
            is_enabled=True,
            max_delay_sec=100_000,
            announce=lambda *what, into=announced: into.append(what),
        )
        message = Draft(topic, 3, b"", text, 1, BORN, sysflag=sysflag)
        refusal = ""
        with mock.patch.object(timer_module, "HAS_NATIVE", is_native):
            try:
                timer.redirect(message)
            except TernError as error:
                refusal = str(error)
        found.append((message, refusal, announced, timer.handle(message, 7, "k")))
    assert found[1] == found[0]
