"""A member that lost its disk, or was away until the leader had deleted what it needs, comes back (P1, P2)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from random import Random
from threading import Event

import pytest

from ternmq.client.send.producer import Producer
from ternmq.delay.schedule_log import ScheduleLog
from ternmq.errors import DiskFull, RemoteProtocolError, StoreError, TernError
from ternmq.message import Message
from ternmq.raft import copies
from ternmq.raft.copies import (
    ANSWER_KIND,
    CHUNK_BYTES,
    Ask,
    Content,
    CopiedFile,
    FillingAnswer,
    FillingSender,
    pack_answer,
    unpack_answer,
    unpack_ask,
)
from ternmq.raft.filling import Filling, FillingPlaces
from ternmq.raft.log import RaftPaths
from ternmq.raft.node import RaftNode
from ternmq.raft.wire import LinkDecoder
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.draft import Draft
from ternmq.tasks import Tasks
from ternmq.testing.cluster import SMALL_FILES, Cluster, Node
from ternmq.testing.disk import SimulatedDisk, SimulatedFile
from ternmq.testing.loop import simulated_loop
from ternmq.types import Buffer
from ternmq.wire.layouts.raft_state import Saved, pack_saved
from tests.raft.test_group_simulation import (
    Shop,
    a_selling_group,
    agree,
    bodies,
    data_files,
    leader_of,
    run,
    until,
    votes_of,
)
from tests.store.small import HOST
from tests.store.small import bodies as all_bodies

SEGMENT = int(SMALL_FILES["mappedFileSizeCommitLog"])


def node_of(member: Node) -> RaftNode:
    assert member.broker is not None
    assert member.broker.group is not None
    return member.broker.group.node


def is_there(member: Node) -> bool:
    return member.broker is not None and member.broker.group is not None and member.broker.group._node is not None


async def delete_old(members: list[Node], *, beyond: int = 100) -> None:
    """Let retention of these members delete all before some entry."""
    for member in members:
        node_of(member).store.retention.ask()
    await until(lambda: all(node_of(each).log.first_index > beyond for each in members), 300.0)


def check_equal(members: list[Node], shop: Shop) -> None:
    """All have the same messages, and the same bytes where they have files; none has anything else."""
    held = [data_files(member) for member in members]
    for files in held:
        for name, data in files.items():
            assert all(name not in other or other[name] == data for other in held)
    last = [max(files) for files in held]
    assert len(set(last)) == 1
    tails = [set(bodies(member)) for member in members]
    newest = shop.acknowledged[-20:]
    assert all(set(newest) <= tail for tail in tails)


async def wiped(member: Node) -> None:
    """A new disk."""
    member.kill()
    member.disk = SimulatedDisk(now_ms=member.clock.now_ms)


async def a_group_that_has_deleted(cluster: Cluster, **settings: object) -> tuple[list[Node], Shop, Node]:
    """Three members, one of which was away until the others had deleted what it needs."""
    members, shop, leader = await a_selling_group(cluster, per_second=200, fileReservedTime=0, **settings)
    away = next(each for each in members if each is not leader)
    away.kill()
    await until(lambda: len(shop.acknowledged) > 700)
    await shop.node.stop()
    await delete_old([each for each in members if each is not away])
    await cluster.start(shop.node)
    return members, shop, away


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_member_whose_entries_are_deleted_comes_back_by_itself(flush: str) -> None:
    """P1, P4: it begins anew where the leader's log begins, keeps its term, and the others go on meanwhile."""

    async def story(cluster: Cluster) -> None:
        members, shop, away = await a_group_that_has_deleted(cluster, flushDiskType=flush)
        before = votes_of(away)
        away.start()
        await shop.sells(100)
        await shop.node.stop()
        await agree(members)
        check_equal(members, shop)
        assert node_of(away).log.first_index > 100
        assert int(before[0].partition("=")[2]) <= node_of(away).core.term
        await until(lambda: not node_of(away).core.is_filling)
        await until(lambda: not [path for path in away.disk.files() if path.name == "fill.json"])
        assert "" == node_of(away).status().trouble

    run(9, story)


def test_tables_that_come_before_the_broker_closes_do_not_undo_the_plan() -> None:
    """P1: they are copied as long as the old life lasts, and a copy ends what that life began with. The files would be
    copied once more, and again."""

    async def story(cluster: Cluster) -> None:
        members, shop, away = await a_group_that_has_deleted(cluster)
        away.start()
        await until(lambda: is_there(away))
        missing, notes = node_of(away).missing, list[int]()
        filling = missing.files
        assert isinstance(filling, Filling)
        ready = filling._on_ready

        def on_ready() -> None:
            missing.tables_copied()
            notes.append(sum(path.name == "fill.json" for path in away.disk.files()))
            ready()

        filling._on_ready = on_ready
        await until(lambda: is_there(away) and node_of(away).log.first_index > 100)
        assert [1] == notes
        await shop.node.stop()
        await agree(members)
        check_equal(members, shop)

    run(9, story)


def test_a_member_that_began_anew_votes_though_another_one_has_lost_its_disk() -> None:
    """P1: what it has dropped was deleted by a leader, so it has lost no answer. The empty one does not vote, and the
    leader loses its role before either has everything (seed 1101221 of changes of members)."""

    async def story(cluster: Cluster) -> None:
        members, shop, away = await a_group_that_has_deleted(cluster)
        leader = leader_of(members)
        assert leader is not None
        [empty] = [each for each in members if each not in (away, leader)]
        await wiped(empty)
        await cluster.start(empty)
        for way in ((leader.ip, empty.ip), (empty.ip, leader.ip)):
            cluster.network.block(*way)
        away.start()
        await until(lambda: is_there(away) and node_of(away).missing.awaits_tables)
        leader.kill()
        await cluster.start(leader)
        await until(lambda: leader_of(members) is leader)
        assert node_of(empty).core.is_filling
        await shop.sells()
        cluster.network.heal()
        await shop.node.stop()
        await agree(members)
        check_equal(members, shop)

    run(17, story)


def test_a_member_that_gives_its_log_up_answers_for_nothing_more() -> None:
    """P1, P2: an answer for an entry that is dropped a moment later would be an acknowledged message lost."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster)
        silent, other = (each for each in members if each is not leader)
        missing = node_of(silent).missing
        assert missing.fall_silent(Content(5, SEGMENT, 1, SEGMENT)), "it has all that was committed before it began"
        end = node_of(silent).log.end
        other.kill()
        await asyncio.sleep(5)
        sent = len(shop.acknowledged)
        await asyncio.sleep(20)
        assert sent == len(shop.acknowledged)
        assert end == node_of(silent).log.end
        missing.go_on()
        await until(lambda: len(shop.acknowledged) > sent + 20)
        await shop.node.stop()
        await cluster.start(other)
        await agree(members)

    run(18, story)


def test_an_empty_member_says_why_it_does_not_vote(caplog: pytest.LogCaptureFixture) -> None:
    """P1: the leader dies before the third member of a new group has anything; the group waits for it, and says so."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        one, two, empty = members
        shop = Shop(cluster)
        await cluster.start(cluster.name_server(), one, two)
        await cluster.start(shop.node)
        await until(lambda: len(shop.acknowledged) > 20)
        leader = leader_of(members)
        assert leader is not None
        for way in ((leader.ip, empty.ip), (empty.ip, leader.ip)):
            cluster.network.block(*way)
        await cluster.start(empty)
        other = two if leader is one else one
        await until(lambda: node_of(other).links.is_linked("n2") and node_of(empty).links.is_linked(other.name[-2:]))
        leader.kill()
        await until(lambda: f"n2 gives no vote to {other.name[-2:]}" in caplog.text)
        assert leader_of(members) is None
        await cluster.start(leader)
        await until(lambda: leader_of(members))
        await shop.node.stop()

    run(21, story)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 3))])
def test_a_lost_disk_is_filled_whatever_is_killed_meanwhile(seed: int) -> None:
    """P1, P2: the member and the leader die at any moment of the copy; then all are equal again, and all delayed
    messages are there, those whose records were deleted, too."""

    async def story(cluster: Cluster) -> None:
        chance = Random(seed)
        members = cluster.raft_group("broker-a", 3, fileReservedTime=0, flushDiskType="SYNC_FLUSH")
        shop = Shop(cluster, per_second=200)
        await cluster.start(cluster.name_server(), *members)
        later = await _delay(cluster)
        await cluster.start(shop.node)
        await until(lambda: len(shop.acknowledged) > 700)
        await shop.node.stop()
        await agree(members)
        await delete_old(members)
        await cluster.start(shop.node)
        lost = chance.choice(members)
        await wiped(lost)
        lost.start()
        for _ in range(4):
            victim = lost if chance.random() < 0.7 else (leader_of(members) or lost)
            await asyncio.sleep(chance.choice((0.02, 0.1, 0.3, 1.0)) * chance.random() * 3)
            if victim.is_up:
                victim.cut_power()
                await asyncio.sleep(chance.random() * 2)
                victim.start()
        await until(lambda: all(is_there(each) for each in members) and leader_of(members))
        await shop.sells(100)
        await shop.node.stop()
        await agree(members)
        check_equal(members, shop)
        await until(lambda: not node_of(lost).core.is_filling)
        # Tables come every 5 s; the queue of the delayed topic has no message yet, that of the first message none left.
        await until(lambda: node_of(lost).store.numbers().items() <= _numbers(members, lost).items())
        [feed] = node_of(lost).store._loaded.parts._feeds
        assert isinstance(feed.part, ScheduleLog)
        assert later == feed.part.waiting
        store = node_of(lost).store
        assert [1] == [store.max_offset(*queue) for queue in store.queues() if queue[0] == "rare"]

    run(100 + seed, story)


def _numbers(members: list[Node], but: Node) -> dict[tuple[str, int], int]:
    return next(node_of(each).store.numbers() for each in members if each is not but)


async def _delay(cluster: Cluster) -> int:
    """How many: messages that wait for minutes, and one of a topic that is not used again."""
    sent = 0
    done = asyncio.Event()

    async def remind(node: Node) -> None:
        nonlocal sent
        async with Producer("reminder", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            while sent < 5:
                try:
                    await producer.send(Message("reminders", b"later", delay=timedelta(minutes=20)))
                    sent += 1
                except TernError:
                    await asyncio.sleep(0.1)
            await producer.send(Message("rare", b"1"))
            done.set()
            await node.stopping.wait()

    reminder = cluster.node("reminder", remind)
    await cluster.start(reminder)
    await until(done.is_set)
    await reminder.stop()
    return sent


def test_an_empty_member_gets_the_log_of_the_single_broker_that_the_group_was() -> None:
    """P2: the old files come as they are, in front of the entries. A member with messages of its own keeps them, and
    says what to do."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        single = cluster.broker("single")
        name_server = cluster.name_server()
        await cluster.start(name_server, single)
        await put(single, 200)
        await single.stop()
        old = single.disk.files()
        for member in members[:2]:
            copy_log(old, member)
        await cluster.start(*members[:2])
        await until(lambda: leader_of(members))
        await cluster.start(members[2])
        await agree(members)
        assert data_files(members[0]) == data_files(members[2])
        assert _old_files(members[0]) == _old_files(members[2]) != {}
        stores = [node_of(member).store for member in members]
        assert list(range(200)) == [int(body) for body in all_bodies(stores[2], "orders", 0)]
        # One with other messages is not emptied.
        await wiped(members[2])
        await cluster.start(single)
        await put(single, 3000)
        await single.stop()
        copy_log(single.disk.files(), members[2])
        await cluster.start(members[2])
        await until(lambda: "not those of the group" in node_of(members[2]).status().trouble)
        assert 3200 == len(all_bodies(node_of(members[2]).store, "orders", 0))

    run(11, story)


async def put(member: Node, count: int) -> None:
    assert member.broker is not None
    assert member.broker.replicating is not None
    store = member.broker.replicating._store
    for number in range(count):
        store.put(Draft("orders", 0, b"%d" % number, "", member.clock.now_ms(), HOST))
    store.flush_now()


def copy_log(files: dict[Path, bytes], member: Node) -> None:
    for path, data in files.items():
        if path.parent.name == "commitlog":
            member.disk.replace(path, data)


def _old_files(member: Node) -> dict[str, bytes]:
    return {path.name: data for path, data in member.disk.files().items() if path.parent.name == "commitlog"}


# --- What others may send ---------------------------------------------------------------------------------------------

ROOT = Path("/store")
HOME = ROOT / "dledger-n0"


def places(disk: SimulatedDisk) -> FillingPlaces:
    return FillingPlaces(
        disk,
        ROOT,
        RaftPaths((HOME / "data",), HOME, (ROOT / "commitlog",)),
        part_directories=[ROOT / "schedule"],
        segment_bytes=SEGMENT,
    )


@pytest.mark.parametrize(
    "name",
    ["", "/etc/passwd", "../x", "schedule/../x", "schedule/a/b", "config/topics.json", "old/x", "old/../x", "currterm"],
)
def test_a_leader_cannot_send_a_file_that_has_no_place(name: str) -> None:
    content = Content(5, SEGMENT, 1, SEGMENT, (CopiedFile(name, 1),))
    with pytest.raises(RemoteProtocolError, match=r"no place here|contradicts"):
        places(SimulatedDisk()).check(content)


@pytest.mark.parametrize(
    "content",
    [
        Content(-1, SEGMENT, 1, SEGMENT),
        Content(5, -SEGMENT, 1, SEGMENT),
        Content(5, 17, 1, SEGMENT),
        Content(5, SEGMENT, 1, 2 * SEGMENT),
        Content(0, SEGMENT, 0, SEGMENT, (CopiedFile(f"old/{0:020d}", 17),)),
        Content(5, SEGMENT, 0, SEGMENT, (CopiedFile(f"old/{0:020d}", SEGMENT),)),
        Content(5, SEGMENT, 0, SEGMENT, (CopiedFile("schedule/a", -1),)),
        Content(5, SEGMENT, 0, SEGMENT, (CopiedFile("schedule/a", 1), CopiedFile("schedule/a", 1))),
    ],
)
def test_a_description_that_contradicts_itself_is_refused(content: Content) -> None:
    with pytest.raises(RemoteProtocolError, match="contradicts"):
        places(SimulatedDisk()).check(content)


def test_an_empty_member_begins_behind_an_old_log_that_was_deleted() -> None:
    """P2: the first entry is there, and the old log before it is not any more."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        single = cluster.broker("single")
        await cluster.start(cluster.name_server(), single)
        await put(single, 200)
        await single.stop()
        for member in members[:2]:
            copy_log(single.disk.files(), member)
        await cluster.start(*members[:2])
        await until(lambda: leader_of(members))
        for member in members[:2]:
            log = node_of(member).log
            member.disk.remove(log.drop_first())
            assert (0, SEGMENT) == (log.first_index, log.begin)
        await cluster.start(members[2])
        await agree(members)
        assert data_files(members[0]) == data_files(members[2])
        members[2].kill()
        await cluster.start(members[2])
        await agree(members)

    run(12, story)


@pytest.mark.parametrize("keeps_vote", [False, True])
@pytest.mark.parametrize("stops", range(1, 40))
def test_files_are_exchanged_whole_whenever_the_power_fails(stops: int, keeps_vote: bool) -> None:
    """P1, P2: before the exchange is done nothing of it is believed; afterwards all is there, and the vote is kept."""
    disk = SimulatedDisk()
    disk.replace(HOME / "currterm", b"currTerm=7\nvoteLeader=n2\n")
    for path in (
        HOME / "data" / f"{0:020d}",
        ROOT / "consumequeue" / "orders" / "0" / f"{0:020d}",
        ROOT / "schedule/x",
    ):
        disk.replace(path, b"old")
    content = Content(5, SEGMENT, 3, SEGMENT, (CopiedFile("schedule/1", 3), CopiedFile("schedule/state", 5)))
    staged = places(disk)
    staged.begin()
    staged.write("schedule/1", 0, b"abc")
    staged.write("schedule/state", 0, b"state")
    staged.finish(content, keeps_vote=keeps_vote)
    calls = _Stops(disk, stops)
    try:
        places(calls).carry_out()  # type: ignore[arg-type]
    except _PowerCut:
        disk.power_cut(Random(stops))
        kept = disk.read(HOME / "currterm") or b""
        assert b"currTerm=7\nvoteLeader=n2\n" in kept
        assert keeps_vote or b"filling=true" in kept or disk.read(HOME / "data" / f"{0:020d}") == b"old"
        places(disk).carry_out()
    found = {str(path.relative_to(ROOT)): data for path, data in disk.files().items()}
    found.pop("dledger-n0/fill.json")
    assert {
        "dledger-n0/currterm": b"currTerm=7\nvoteLeader=n2\n" + (b"" if keeps_vote else b"filling=true\n"),
        "dledger-n0/checkpoint": pack_saved(Saved(4, 4, 5, SEGMENT, 3)),
        "schedule/1": b"abc",
        "schedule/state": b"state",
    } == found


class _PowerCut(Exception):
    pass


class _Stops:
    """A disk that fails at the n-th change."""

    def __init__(self, disk: SimulatedDisk, stops: int) -> None:
        self._disk = disk
        self._left = stops

    def __getattr__(self, name: str) -> object:
        found = getattr(self._disk, name)
        if name not in ("remove", "replace", "move", "sync_names", "sync_file"):
            return found

        def call(*given: object) -> object:
            self._left -= 1
            if not self._left:
                raise _PowerCut
            return found(*given)

        return call


class OldLog:
    """A source of files with one segment of an old log."""

    def begin(self) -> tuple[int, int, int]:
        return 0, 0, 0

    def old_segments(self) -> list[Path]:
        return [ROOT / "commitlog" / f"{0:020d}"]

    def part_files(self) -> list[list[Path]]:
        return []

    def deletions(self) -> dict[str, int]:
        return {}

    def members(self, index: int) -> None:
        return None


def a_sender() -> tuple[SimulatedDisk, FillingSender, str]:
    """And the name of its only file."""
    disk = SimulatedDisk()
    disk.replace(ROOT / "commitlog" / f"{0:020d}", bytes(SEGMENT))
    return disk, FillingSender(disk, ROOT, OldLog(), segment_bytes=SEGMENT), f"old/{0:020d}"


async def test_a_sender_tells_when_its_files_have_changed() -> None:
    """A copy under way begins anew; no byte of another state is among its own."""

    disk, sender, name = a_sender()
    opened, _ = await sender.answer(Ask(1), "n1")
    answer, data = await sender.answer(Ask(2, 1, name, SEGMENT - 10), "n1")
    assert ("", 10) == (answer.reason, len(data))
    for ask in (Ask(3, 1, name, SEGMENT), Ask(4, 1, name, 1 << 60), Ask(5, 1, name, -5)):
        answer, data = await sender.answer(ask, "n1")
        assert len(data) <= CHUNK_BYTES
    assert "" == opened.reason
    disk.remove(ROOT / "commitlog" / f"{0:020d}")
    assert "no such file" in (await sender.answer(Ask(6, 1, name, 0), "n1"))[0].reason
    await sender.answer(Ask(7), "n1")
    assert "begin anew" in (await sender.answer(Ask(8, 1, name, 0), "n1"))[0].reason
    assert "begin anew" in (await sender.answer(Ask(9, 2, "currterm", 0), "n1"))[0].reason


async def test_two_members_copy_at_the_same_time() -> None:
    """P1: each copy that began ended that of the other one, so two members with files of more than 2 s never came to an
    end."""
    _, sender, name = a_sender()
    for copy, member in ((1, "n1"), (2, "n2")):
        await sender.answer(Ask(1), member)
        for at in (0, 10):
            answer, data = await sender.answer(Ask(2, copy, name, at), member)
            assert ("", min(CHUNK_BYTES, SEGMENT - at)) == (answer.reason, len(data))
    answer, _ = await sender.answer(Ask(3, 1, name, 20), "n1")
    assert "" == answer.reason
    answer, _ = await sender.answer(Ask(4, 1, name, 20), "n2")
    assert "begin anew" in answer.reason, "that is the copy of the other one"


class WaitingMessages(OldLog):
    """A source of files with a derived part, whose last file is kept in memory for each copy."""

    def old_segments(self) -> list[Path]:
        return []

    def part_files(self) -> list[list[Path]]:
        return [[ROOT / "schedule" / "1", ROOT / "schedule" / "state"]]


async def test_what_a_sender_keeps_for_all_members_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second copy waits, and takes nothing from the first. A file that is too long is not even read."""
    monkeypatch.setattr(copies, "KEPT_BYTES_MAX", 1500)
    disk = SimulatedDisk()
    sender = FillingSender(disk, ROOT, WaitingMessages(), segment_bytes=SEGMENT)
    disk.replace(ROOT / "schedule/state", bytes(1000))
    assert "" == (await sender.answer(Ask(1), "n1"))[0].reason
    assert "it is the turn of n1" in (await sender.answer(Ask(1), "n2"))[0].reason
    assert "" == (await sender.answer(Ask(2, 1, "schedule/state", 0), "n1"))[0].reason
    sender.forget()
    assert "" == (await sender.answer(Ask(1), "n2"))[0].reason
    disk.replace(ROOT / "schedule/state", bytes(1501))
    disk.before = lambda kind, path: pytest.fail(f"{kind} {path}")
    assert "too much for one copy" in (await sender.answer(Ask(1), "n3"))[0].reason


class FullDisk(SimulatedDisk):
    def open_file(self, path: Path, *, create_size: int | None = None) -> SimulatedFile:
        raise DiskFull(f"no room for {path}")


@pytest.mark.parametrize("is_first_full", [False, True])
def test_members_whose_copies_have_no_room_beside_each_other_are_filled(
    is_first_full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: each began when another one asked, and ended its copy, for ever. Nor does a member whose disk is full, and
    that begins anew and anew, keep the others waiting."""
    monkeypatch.setattr(copies, "KEPT_BYTES_MAX", 1500)
    source = SimulatedDisk()
    source.replace(ROOT / "schedule/1", bytes(4000))
    source.replace(ROOT / "schedule/state", bytes(1000))
    fillings: dict[str, Filling] = {}
    filled: list[str] = []

    def filling(member: str, disk: SimulatedDisk) -> Filling:
        def send(to: str, frames: list[Buffer]) -> None:
            for kind, body in LinkDecoder(1 << 20).feed(b"".join(frames)):
                fillings[to].deliver(member, kind, body)

        return Filling(
            places(disk),
            FillingSender(disk, ROOT, WaitingMessages(), segment_bytes=SEGMENT),
            send=send,
            member=GivesUpItsLog(),
            on_ready=lambda: filled.append(member),
            # A copy takes longer than the pause of a member that waits.
            bytes_per_second=1000,
            self_id=member,
        )

    async def story() -> None:
        fillings["n0"] = filling("n0", source)
        for number in (1, 2, 3):
            is_full = is_first_full and number == 1
            fillings[f"n{number}"] = filling(f"n{number}", FullDisk() if is_full else SimulatedDisk())
        async with Tasks() as tasks:
            tasks.create_task(fillings["n0"].serve())
            for name in ("n1", "n2", "n3"):
                tasks.create_task(fillings[name].run())
            async with asyncio.timeout(1000):
                while len(filled) < 3 - is_first_full:
                    # The leader says it with each heartbeat.
                    for name in {*fillings} - {"n0", *filled}:
                        fillings[name].ask_for("n0")
                    await asyncio.sleep(0.15)

    with simulated_loop() as loop:
        loop.run_until_complete(story())


class SlowDisk(FileDisk):
    """A thread waits in it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_waited_for, self.may_go_on = Event(), Event()

    def sync_names(self, directory: Path) -> None:
        self.is_waited_for.set()
        self.may_go_on.wait(60)
        super().sync_names(directory)


class GivesUpItsLog:
    def may_begin_anew(self, _leader: str, _content: Content) -> bool:
        return True

    def fall_silent(self, _content: Content) -> bool:
        return True

    def go_on(self) -> None:
        raise AssertionError("it is silent")


async def test_a_plan_is_not_written_after_the_broker_has_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P1: the next life of a broker in this process may have answered for entries before; a later start would drop
    them, and vote."""
    disk, loop = SlowDisk(), asyncio.get_running_loop()
    paths = RaftPaths((tmp_path / "data",), tmp_path)
    (tmp_path / "fill").mkdir()
    places = FillingPlaces(disk, tmp_path, paths, part_directories=(), segment_bytes=SEGMENT)
    filling = Filling(
        places, a_sender()[1], send=lambda *_: True, member=GivesUpItsLog(), on_ready=lambda: None, self_id="n1"
    )

    async def content(_leader: str) -> tuple[int, Content]:
        return 1, Content(200, SEGMENT, 3, SEGMENT)

    monkeypatch.setattr(filling, "_content", content)
    with ThreadPoolExecutor() as pool:
        loop.set_default_executor(pool)
        copying = asyncio.create_task(filling.run())
        await asyncio.sleep(0)
        filling.ask_for("n0")
        assert await asyncio.to_thread(disk.is_waited_for.wait, 60)
        copying.cancel()
        await asyncio.wait([copying])
        disk.may_go_on.set()
    assert places.plan() is None


def test_what_is_written_after_the_broker_has_closed_is_no_part_of_the_next_copy() -> None:
    """P1: a thread goes on when its task ends. Its bytes are of files as they were then."""
    disk = SimulatedDisk()
    content = Content(5, SEGMENT, 1, SEGMENT, (CopiedFile("schedule/1", 3),))
    over, present = places(disk), places(disk)
    over.begin()
    over.write("schedule/1", 0, b"old")
    over.end()
    present.begin()
    present.write("schedule/1", 0, b"new")
    late: list[Callable[[], None]] = [
        over.begin,
        lambda: over.write("schedule/1", 0, b"old"),
        lambda: over.finish(content, keeps_vote=True),
        over.give_up,
    ]
    for each in late:
        with pytest.raises(StoreError, match="has closed"):
            each()
    present.finish(content, keeps_vote=True)
    places(disk).carry_out()
    assert b"new" == disk.read(ROOT / "schedule/1")


#: Deeper than any call may be nested.
NESTED = b'{"number":1,"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\0\0\0\x05{}",
        b"\xff" * 40,
        b"\0\0\0\x02{}",
        b"\0\0\0\x00",
        NESTED,
        len(NESTED).to_bytes(4, "big") + NESTED,
    ],
)
def test_bytes_that_are_no_question_and_no_answer_are_refused(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        unpack_answer(body)
    with pytest.raises(RemoteProtocolError):
        unpack_ask(body)


def test_an_answer_has_its_bytes() -> None:
    [(kind, body)] = LinkDecoder(1000).feed(b"".join(pack_answer(FillingAnswer(7, 8), b"abc")))
    assert (ANSWER_KIND, (FillingAnswer(7, 8), b"abc")) == (kind, unpack_answer(body))
