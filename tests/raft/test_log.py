"""The log of a Raft group: numbers, places, bytes for others, and what is left after the end of a process (P2)."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

from ternmq.errors import CorruptFile, DiskFull, NotRunning, RemoteProtocolError
from ternmq.raft.checked_entries import BeginsElsewhere
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.store import MessageStore
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER_BYTES, INDEX_UNIT, INDEX_UNIT_BYTES, unpack_entry_header
from tests.manual_clock import ManualClock
from tests.raft.log_simulation import RaftLogSimulation
from tests.store.small import BORN, HOST, bodies, crash, draft, quiet_store, small_config
from tests.store.spoiled import edit

#: Seeds of one test.
PORTION = 12
SEGMENT = 4096
INDEX_FILE_BYTES = 16 * INDEX_UNIT_BYTES
TAKEN_BACK = NotRunning("another leader has other records here")


def config_of(root: Path) -> StoreConfig:
    return small_config(root, mapped_file_size_commit_log=SEGMENT)


def raft_log(config: StoreConfig) -> RaftLog:
    return RaftLog(FileDisk(), RaftPaths.of(config, "n0"), segment_bytes=SEGMENT, index_file_bytes=INDEX_FILE_BYTES)


def raft_store(root: Path, *, term: int = 1) -> tuple[MessageStore, RaftLog]:
    log = raft_log(config_of(root))
    store = quiet_store(config_of(root), log=log)
    log.term = max(term, log.last_term)
    return store, log


def put(store: MessageStore, *texts: str, size: int = 0) -> None:
    for text in texts:
        store.put(draft(body=text.encode().ljust(size, b".")))


def commit(store: MessageStore, log: RaftLog, index: int | None = None) -> None:
    """A majority has the entries up to ``index``, or all."""
    index = log.last_index if index is None else index
    end = log.end_of(index)
    assert end is not None
    store.confirm(end)
    log.note_committed(index)


def copy_all(source: RaftLog, store: MessageStore, log: RaftLog, *, bytes_max: int = 1 << 20) -> None:
    """Bring a follower up to date."""
    while log.last_index < source.last_index:
        _, pieces = source.entries(log.last_index + 1, bytes_max)
        data = b"".join(pieces)
        store.append_raw(log.check_append(data).position, data)


# --- Simulation ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", range(0, 4 * PORTION, PORTION))
def test_the_store_keeps_its_promises_on_a_raft_log(first: int) -> None:
    """P2, C5, C6, C8: power cuts, full and failing disks, truncations, other leaders, lost indexes."""
    for seed in range(first, first + PORTION):
        RaftLogSimulation(seed).run()


def test_each_seed_is_one_life() -> None:
    """V1: a failure can be replayed."""
    for seed in range(4):
        one, two = RaftLogSimulation(seed), RaftLogSimulation(seed)
        one.run()
        two.run()
        assert one.trace == two.trace


def test_a_flipped_bit_in_a_raft_log_is_noticed_or_does_no_harm() -> None:
    """P2, C8: in records, entry headers, the index of entries and the checkpoint."""
    for seed in range(PORTION):
        RaftLogSimulation(seed, actions=30).rot()


# --- Numbers and places -----------------------------------------------------------------------------------------------


def test_entries_have_the_headers_that_dledger_writes(tmp_path: Path) -> None:
    """P2: magic 1, size, index, term, position; the record's own log offset is 48 more."""
    store, log = raft_store(tmp_path, term=7)
    with store:
        placed = store.put(draft(body=b"one"))
        more = store.put_batch("orders", 0, [(0, b"%d" % n, b"") for n in range(3)], born_time_ms=1, born_host=BORN)
        assert (0, 3, 7) == (log.first_index, log.last_index, log.last_term)
        for index, log_offset in enumerate([placed.log_offset, *more.log_offsets]):
            header = unpack_entry_header(log.view(log_offset - 48, 48) or b"")
            assert header is not None
            assert (index, 7, log_offset - 48) == (header.index, header.term, header.position)
            assert (log_offset - 48, header.end) == (log.position_of(index), log.end_of(index))
        assert more.end_offset == log.end == log.end_of(3)
    units = (tmp_path / "dledger-n0" / "index" / "00000000000000000000").read_bytes()
    assert INDEX_FILE_BYTES == len(units)
    assert (1, 0, placed.end_offset, 0, 7) == INDEX_UNIT.unpack_from(units)
    assert b"endIndex=3\ncommittedIndex=-1" in (tmp_path / "dledger-n0" / "checkpoint").read_bytes()


def test_terms_and_places_are_known_again_after_a_start(tmp_path: Path) -> None:
    """P2: also without the index, which is written anew."""
    store, log = raft_store(tmp_path)
    with store:
        for number in range(60):
            log.term = 1 + number // 7
            put(store, str(number), size=number * 5)
        commit(store, log)
        expected = [(log.term_of(index), log.position_of(index), log.end_of(index)) for index in range(-1, 61)]
        assert len(log.starts) > 3
    for path in sorted((tmp_path / "dledger-n0" / "index").iterdir())[1:]:
        path.unlink()
    index_files = sorted((tmp_path / "dledger-n0" / "index").iterdir())
    for _ in range(2):
        store, log = raft_store(tmp_path)
        with store:
            found = [(log.term_of(index), log.position_of(index), log.end_of(index)) for index in range(-1, 61)]
            assert expected == found
            assert list(range(60)) == [log.index_at(log.end_of(index) or 0) for index in range(60)]
            assert [str(number) for number in range(60)] == [body.decode().rstrip(".") for body in bodies(store)]
        assert len(sorted((tmp_path / "dledger-n0" / "index").iterdir())) > len(index_files)


def test_what_is_committed_is_served_after_a_crash_and_nothing_else(tmp_path: Path) -> None:
    """P2, C8: the saved commit index tells how far; the rest waits as before."""
    store, log = raft_store(tmp_path)
    put(store, "1", "2", "3", "4")
    commit(store, log, 1)
    log.save_committed()
    store.flush_now()
    crash(store, tmp_path / "again")
    store, log = raft_store(tmp_path / "again")
    with store:
        assert [b"1", b"2"] == bodies(store)
        assert (1, 3) == (log.committed, log.last_index)
        commit(store, log)
        assert [b"1", b"2", b"3", b"4"] == bodies(store)


def test_committed_entries_that_are_lost_make_no_others_committed(tmp_path: Path) -> None:
    """P2, P3: a power cut took the last two, which a majority has. Others come in their place, not committed."""
    store, log = raft_store(tmp_path / "one")
    put(store, "1", "2", "3", "4")
    commit(store, log)
    log.save_committed()
    store.flush_now()
    at = log.position_of(2) or 0
    crash(store, tmp_path / "two")
    edit(tmp_path / "two" / "dledger-n0" / "data" / f"{0:020d}", at, bytes(600))
    shutil.rmtree(tmp_path / "two" / "consumequeue", ignore_errors=True)
    store, log = raft_store(tmp_path / "two", term=2)
    assert (1, 1, [b"1", b"2"]) == (log.committed, log.last_index, bodies(store))
    put(store, "other", "one more")
    store.flush_now()
    crash(store, tmp_path / "three")
    store, log = raft_store(tmp_path / "three")
    with store:
        assert (1, 3, [b"1", b"2"]) == (log.committed, log.last_index, bodies(store))


class _NoRoom(FileDisk):
    """No room for a new ``checkpoint``."""

    is_full = True

    def replace(self, path: Path, data: bytes) -> None:
        if self.is_full and path.name == "checkpoint":
            raise DiskFull(f"cannot write {path}: no space left")
        super().replace(path, data)


def test_a_log_that_lost_entries_opens_on_a_full_disk_and_takes_others_when_there_is_room(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """P2, P3: until the smaller commit index is on the disk, other entries could be taken for committed ones
    (``raft``, seed 710117)."""
    store, log = raft_store(tmp_path / "one")
    put(store, "1", "2", "3", "4")
    commit(store, log)
    log.save_committed()
    store.flush_now()
    at = log.position_of(2) or 0
    crash(store, tmp_path / "two")
    edit(tmp_path / "two" / "dledger-n0" / "data" / f"{0:020d}", at, bytes(600))
    shutil.rmtree(tmp_path / "two" / "consumequeue", ignore_errors=True)
    config, disk = config_of(tmp_path / "two"), _NoRoom()
    log = RaftLog(disk, RaftPaths.of(config, "n0"), segment_bytes=SEGMENT, index_file_bytes=INDEX_FILE_BYTES)
    store = quiet_store(config, log=log)
    log.term = 2
    assert (1, 1, [b"1", b"2"]) == (log.committed, log.last_index, bodies(store))
    assert "takes no entries before there is room on its disk" in caplog.text
    with pytest.raises(DiskFull):
        put(store, "other")
    assert 1 == log.last_index
    disk.is_full = False
    put(store, "other", "one more")
    store.flush_now()
    crash(store, tmp_path / "three")
    store, log = raft_store(tmp_path / "three")
    with store:
        assert (1, 3, [b"1", b"2"]) == (log.committed, log.last_index, bodies(store))


def test_committed_entries_that_are_lost_are_missed_until_they_are_committed_again(tmp_path: Path) -> None:
    """P1, P3: a member must not vote without them, also after another restart."""
    store, log = raft_store(tmp_path / "one")
    put(store, "1", "2", "3", "4")
    commit(store, log)
    log.save_committed()
    store.flush_now()
    at = log.position_of(2) or 0
    crash(store, tmp_path / "two")
    edit(tmp_path / "two" / "dledger-n0" / "data" / f"{0:020d}", at + 60, b"?")
    store, log = raft_store(tmp_path / "two")
    assert (3, 1) == (log.lost, log.last_index)
    store.close()
    store, log = raft_store(tmp_path / "two", term=2)
    assert 3 == log.lost
    put(store, "3", "4")
    log.note_committed(2)
    assert 3 == log.lost
    log.note_committed(3)
    store.close()
    store, log = raft_store(tmp_path / "two")
    with store:
        assert (-1, 3) == (log.lost, log.last_index)


def test_an_entry_that_is_taken_back_gives_its_index_and_place_to_another(tmp_path: Path) -> None:
    """P3: the queue offsets, too."""
    store, log = raft_store(tmp_path)
    with store:
        put(store, "1", "2", "3")
        commit(store, log, 0)
        position = log.position_of(1)
        store.truncate(log.cut_before(1), TAKEN_BACK)
        assert (0, 1, None) == (log.last_index, log.last_term, log.position_of(1))
        log.term = 3
        put(store, "two")
        assert (1, 3, position) == (log.last_index, log.last_term, log.position_of(1))
        log.term = 4
        put(store, "3")
        store.truncate(log.cut_before(1), TAKEN_BACK)
        log.term = 5
        put(store, "two", "three")
        assert [1, 5, 5, None] == [log.term_of(index) for index in range(4)]
        store.truncate(log.cut_before(2), TAKEN_BACK)
        commit(store, log)
        assert [b"1", b"two"] == bodies(store)


# --- Bytes of another node ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bytes_max", [1, 700, 1 << 20])
def test_a_follower_has_the_same_files_byte_for_byte(tmp_path: Path, bytes_max: int) -> None:
    """P3: blanks are not sent, and stand where the leader has them."""
    leader, leader_log = raft_store(tmp_path / "n0")
    follower, log = raft_store(tmp_path / "n1")
    with leader, follower:
        for number in range(30):
            leader_log.term = 1 + number // 10
            put(leader, str(number), size=number % 7 * 200)
        copy_all(leader_log, follower, log, bytes_max=bytes_max)
        assert (29, 3, leader_log.end) == (log.last_index, log.last_term, log.end)
        follower.confirm(log.end_of(9) or 0)
        assert follower.follow(1.0)
        assert 10 == follower.max_offset("orders", 0)
        follower.confirm(log.end)
        assert follower.follow(1.0)
        follower.stop_following()
        leader.confirm(leader_log.end)
        assert bodies(leader) == bodies(follower)
        log.term = 4
        put(follower, "mine")
        assert 30 == log.last_index
        follower.truncate(log.cut_before(30), TAKEN_BACK)
    homes = [tmp_path / member / "dledger-n0" / "data" for member in ("n0", "n1")]
    data = [{path.name: path.read_bytes() for path in home.iterdir()} for home in homes]
    assert len(data[0]) > 2
    assert data[0] == data[1]


def test_what_recovery_saw_last_says_nothing_about_later_entries(tmp_path: Path) -> None:
    """P3: an entry of another leader begins where one ended that was taken back, with another index."""
    store, log = raft_store(tmp_path / "n1")
    with store:
        put(store, "1", "2", "3", size=300)
        end, taken = log.end, log.end - (log.position_of(1) or 0)
    leader, leader_log = raft_store(tmp_path / "n0", term=2)
    with leader:
        leader_log.term = 1
        put(leader, "1", size=300)
        leader_log.term = 2
        # As long as two of the others together.
        put(leader, "other", size=300 + taken // 2)
        put(leader, "more")
        assert end == leader_log.position_of(2)
        follower, log = raft_store(tmp_path / "n1")
        with follower:
            follower.truncate(log.cut_before(1), TAKEN_BACK)
            copy_all(leader_log, follower, log)
            follower.confirm(log.end)
            assert follower.follow(5.0)
            assert 3 == follower.max_offset("orders", 0)


def test_a_blank_for_an_entry_that_never_came_is_taken_back(tmp_path: Path) -> None:
    """P3: the disk was full when the next file began; the next leader has an entry that fits before the blank."""
    leaders = [raft_store(tmp_path / name, term=term) for name, term in (("n0", 1), ("n2", 2))]
    for (leader, leader_log), size in zip(leaders, (2000, 100), strict=True):
        leader_log.term = 1
        put(leader, "1", "2", size=1200)
        leader_log.term = 2
        put(leader, "3", size=size)
    disk = SimulatedDisk()
    config = config_of(Path("/store"))
    paths = RaftPaths.of(config, "n0")
    log = RaftLog(disk, paths, segment_bytes=SEGMENT, index_file_bytes=INDEX_FILE_BYTES)
    store = MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=disk, log=log, threads=False)
    for index in range(2):
        data = b"".join(leaders[0][1].entries(index, 1)[1])
        store.append_raw(log.check_append(data).position, data)

    def fill_up(kind: str, path: Path) -> None:
        if kind == "write" and path.name == f"{SEGMENT:020d}":
            raise DiskFull("no space left")

    disk.before = fill_up
    data = b"".join(leaders[0][1].entries(2, 1)[1])
    end = log.end
    with pytest.raises(DiskFull):
        store.append_raw(log.check_append(data).position, data)
    disk.before = None
    assert (1, end) == (log.last_index, log.end)
    data = b"".join(leaders[1][1].entries(2, 1)[1])
    store.append_raw(log.check_append(data).position, data)
    assert (2, end) == (log.last_index, log.position_of(2))
    store.confirm(log.end)
    assert store.follow(5.0)
    assert 3 == store.max_offset("orders", 0)
    store.close()
    for leader, _ in leaders:
        leader.close()
    theirs = (tmp_path / "n2" / "dledger-n0" / "data" / f"{0:020d}").read_bytes()
    assert theirs == disk.files()[Path("/store/dledger-n0/data") / f"{0:020d}"]


def test_a_leader_whose_disk_was_full_writes_where_the_others_expect_it(tmp_path: Path) -> None:
    """P3: the next file began with an entry that never came; a smaller one fits before it (``raft-runs``, seed 118)."""
    disk = SimulatedDisk()
    config = config_of(Path("/store"))
    log = RaftLog(disk, RaftPaths.of(config, "n0"), segment_bytes=SEGMENT, index_file_bytes=INDEX_FILE_BYTES)
    leader = MessageStore.open(config, store_host=HOST, clock=ManualClock(), disk=disk, log=log, threads=False)
    log.term = 1
    put(leader, "1", "2", size=1200)

    def fill_up(kind: str, path: Path) -> None:
        if kind == "write" and path.name == f"{SEGMENT:020d}":
            raise DiskFull("no space left")

    disk.before = fill_up
    end = log.end
    with pytest.raises(DiskFull):
        put(leader, "3", size=2000)
    disk.before = None
    put(leader, "3", size=100)
    assert (2, end) == (log.last_index, log.position_of(2))
    follower, follower_log = raft_store(tmp_path)
    copy_all(log, follower, follower_log)
    assert 2 == follower_log.last_index
    leader.close()
    follower.close()


def test_what_was_taken_back_is_not_committed_after_a_power_cut() -> None:
    """P2: the commit index is saved when entries of another leader have come in its place, and they are not synced
    yet. If the power cut brought the old ones back, they would count as committed."""
    for seed in range(30):
        disk = SimulatedDisk()
        config = config_of(Path("/store"))

        def opened(disk: SimulatedDisk = disk, config: StoreConfig = config) -> tuple[MessageStore, RaftLog]:
            log = RaftLog(disk, RaftPaths.of(config, "n0"), segment_bytes=SEGMENT, index_file_bytes=INDEX_FILE_BYTES)
            return MessageStore.open(
                config, store_host=HOST, clock=ManualClock(), disk=disk, log=log, threads=False
            ), log

        store, log = opened()
        log.term = 1
        put(store, *(f"old {number}" for number in range(12)), size=700)
        store.flush_now()
        position = log.position_of(2)
        assert position is not None
        store.truncate(position, TAKEN_BACK)
        log.term = 2
        put(store, *(f"new {number}" for number in range(9)), size=700)
        commit(store, log, 8)
        log.save_committed()
        disk.power_cut(Random(seed))
        _, log = opened()
        assert log.committed <= log.last_index
        assert all(log.term_of(index) == 2 for index in range(2, log.last_index + 1))


def test_bytes_that_do_not_follow_are_refused_and_change_nothing(tmp_path: Path) -> None:
    """P3: a damaged header or record, a gap, an older term, another place, half an entry, nothing."""
    leader, leader_log = raft_store(tmp_path / "n0", term=2)
    follower, log = raft_store(tmp_path / "n1", term=2)
    with leader, follower:
        put(leader, "one", "two", "three")
        one, two, three = (b"".join(leader_log.entries(index, 1)[1]) for index in range(3))
        places = (*range(ENTRY_HEADER_BYTES), 60, len(one) - 1)
        flips = [bytes([*one[:at], one[at] ^ 1, *one[at + 1 :]]) for at in places]
        for wrong in (b"", one[:40], one[:-1], two, one + three, one + two[:50], *flips):
            with pytest.raises(RemoteProtocolError):
                log.check_append(wrong)
        copy_all(leader_log, follower, log)
        assert [one, two, three] == [b"".join(log.entries(index, 1)[1]) for index in range(3)]
        older, older_log = raft_store(tmp_path / "n2", term=1)
        with older:
            put(older, "one", "two", "three", "four")
            assert log.end == older_log.position_of(3)
            with pytest.raises(RemoteProtocolError, match=r"expected entry 3 of term 2 or later"):
                log.check_append(b"".join(older_log.entries(3, 1)[1]))


def test_an_empty_node_begins_where_the_leader_does(tmp_path: Path) -> None:
    """P3, C9: the leader has deleted its first files; the other knows the term before its first entry, also later."""
    leader, leader_log = raft_store(tmp_path / "n0")
    with leader:
        for number in range(40):
            leader_log.term = 1 + number // 10
            put(leader, str(number), size=300)
        commit(leader, leader_log)
        leader.flush_now()
        while leader_log.first_index < 15:
            leader_log.drop_first().unlink()
        first = leader_log.first_index
        begin, term = leader_log.position_of(first), leader_log.term_of(first - 1)
        assert begin == leader_log.begin
        assert (2, None) == (term, leader_log.term_of(first - 2))
        follower, log = raft_store(tmp_path / "n1")
        with follower:
            log.begin_at(begin, index=first, prev_term=term)
            assert (first, first - 1, 2) == (log.first_index, log.last_index, log.last_term)
            assert begin == log.end_of(first - 1)
            copy_all(leader_log, follower, log)
            follower.confirm(log.end)
            assert follower.follow(5.0)
            follower.stop_following()
            assert 40 == follower.max_offset("orders", 0)
        follower, log = raft_store(tmp_path / "n1")
        with follower:
            assert (first, 39, term) == (log.first_index, log.last_index, log.term_of(first - 1))
    again, leader_log = raft_store(tmp_path / "n0")
    with again:
        assert (first, 39, term) == (leader_log.first_index, leader_log.last_index, leader_log.term_of(first - 1))
        assert b"39".ljust(300, b".") == bodies(again)[-1]


def test_the_numbers_go_on_when_all_entries_are_lost(tmp_path: Path) -> None:
    """C8, C9: retention has deleted all files but the last, and a power cut takes what was in that."""
    store, log = raft_store(tmp_path / "one")
    put(store, *map(str, range(30)), size=300)
    commit(store, log)
    store.flush_now()
    while len(log.starts) > 1:
        log.drop_first().unlink()
    first, begin = log.first_index, log.begin
    crash(store, tmp_path / "two")
    edit(tmp_path / "two" / "dledger-n0" / "data" / f"{begin:020d}", 0, bytes(SEGMENT))
    again, log = raft_store(tmp_path / "two", term=2)
    with again:
        assert (first, first - 1, 1) == (log.first_index, log.last_index, log.term_of(first - 1))
        put(again, "next")
        assert (first, begin) == (log.last_index, log.position_of(first))


# --- A single broker becomes a member ---------------------------------------------------------------------------------


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_single_broker_becomes_a_member_and_keeps_its_messages(tmp_path: Path, is_killed: bool) -> None:
    """P2: the old log is closed with a blank, and entries begin with the next file, as in DLedger."""
    root = tmp_path / "store"
    single = quiet_store(config_of(root))
    put(single, *(f"old {number}" for number in range(30)), size=200)
    old_end = single.written
    assert old_end > SEGMENT
    if is_killed:
        crash(single, tmp_path / "killed")
        root = tmp_path / "killed"
    single.close()
    closed = -(-old_end // SEGMENT) * SEGMENT
    for start in range(3):
        store, log = raft_store(root, term=start + 1)
        with store:
            assert (closed, 0, 5 * start - 1) == (log.closed, log.first_index, log.last_index)
            assert 30 + 5 * start == len(bodies(store)) == store.max_offset("orders", 0)
            put(store, *(f"new {start}" for _ in range(5)))
            commit(store, log)
            assert closed == log.position_of(0)
            assert log.end_of(-1) == closed
            if start:
                assert b"old 3".ljust(200, b".") == bodies(store)[3]
    last_old = (root / "commitlog" / f"{closed - SEGMENT:020d}").read_bytes()
    at = old_end % SEGMENT
    assert (SEGMENT - at).to_bytes(4, "big") + bytes.fromhex("cbd43194") == last_old[at : at + 8]
    assert f"{closed:020d}" == min((root / "dledger-n0" / "data").iterdir()).name


def test_damage_in_the_old_log_does_not_end_the_entries(tmp_path: Path) -> None:
    """C8, P2: it was recovered and closed when the member joined; what stands behind it is the group's."""
    with quiet_store(config_of(tmp_path / "one")) as single:
        put(single, *map(str, range(20)), size=400)
    store, log = raft_store(tmp_path / "one")
    put(store, "20", "21")
    commit(store, log)
    store.flush_now()
    crash(store, tmp_path / "two")
    edit(tmp_path / "two" / "commitlog" / f"{0:020d}", 300, b"\xff" * 8)
    shutil.rmtree(tmp_path / "two" / "consumequeue")
    again, log = raft_store(tmp_path / "two")
    with again:
        assert (1, log.closed) == (log.last_index, log.position_of(0))


def test_retention_goes_from_the_old_log_into_the_entries(tmp_path: Path) -> None:
    """C9, P2: the oldest file goes, whichever directory it is in."""
    with quiet_store(config_of(tmp_path)) as single:
        put(single, *map(str, range(20)), size=400)
    store, log = raft_store(tmp_path)
    with store:
        put(store, *map(str, range(20, 40)), size=400)
        commit(store, log)
        store.flush_now()
        old = len(list((tmp_path / "commitlog").iterdir()))
        dropped = [log.drop_first() for _ in range(old)]
        assert {tmp_path / "commitlog"} == {path.parent for path in dropped}
        assert (0, log.closed) == (log.first_index, log.begin)
        assert log.drop_first().parent.name == "data"
        assert (log.begin, True) == (log.position_of(log.first_index), log.first_index > 0)


def test_a_member_without_the_old_messages_is_told_to_get_them(tmp_path: Path) -> None:
    """P2, P3: it could not serve them as the next leader. With a copy of the old log it takes the entries."""
    old = tmp_path / "old"
    with quiet_store(config_of(old)) as single:
        put(single, "1", "2")
    shutil.copytree(old, tmp_path / "n0")
    shutil.copytree(old, tmp_path / "n1")
    leader, leader_log = raft_store(tmp_path / "n0")
    with leader:
        put(leader, "3")
        data = b"".join(leader_log.entries(0, 1)[1])
        empty, log = raft_store(tmp_path / "n2")
        with empty, pytest.raises(BeginsElsewhere, match=r"begin at log offset 4096, .* this log ends at 0"):
            log.check_append(data)
        follower, log = raft_store(tmp_path / "n1")
        with follower:
            copy_all(leader_log, follower, log)
            follower.confirm(log.end)
            assert follower.follow(5.0)
            assert [b"1", b"2", b"3"] == bodies(follower)


# --- Damage -----------------------------------------------------------------------------------------------------------


def test_what_dledger_has_truncated_and_left_in_its_file_is_not_read(tmp_path: Path) -> None:
    """P2: it only moves its end back. What follows the last entry may be whole, of an older term or with a gap."""
    one, log = raft_store(tmp_path / "one", term=2)
    with one:
        put(one, "1", "2", "3")
        commit(one, log, 0)
        stale = b"".join(bytes(piece) for piece in log.entries(2, 1)[1])
        at = log.position_of(2)
        one.truncate(log.cut_before(1), TAKEN_BACK)
        log.term = 5
        put(one, "2")
        assert at == log.end
    edit(tmp_path / "one" / "dledger-n0" / "data" / f"{0:020d}", at, stale)
    again, log = raft_store(tmp_path / "one")
    with again:
        assert (1, 5, at) == (log.last_index, log.last_term, log.end)


def test_an_index_file_that_is_lost_under_a_running_store_costs_time_only(tmp_path: Path) -> None:
    """P2: the places come from the headers."""
    store, log = raft_store(tmp_path)
    with store:
        put(store, *map(str, range(50)), size=300)
        log.write_out()
        expected = [log.position_of(index) for index in range(50)]
        files = sorted((tmp_path / "dledger-n0" / "index").iterdir())
        # Of an entry that was taken back, and had another size.
        edit(files[0], 7 * INDEX_UNIT_BYTES, INDEX_UNIT.pack(1, expected[7] or 0, 1000, 7, 1))
        assert expected[8] == log.end_of(7)
        for path in files:
            edit(path, 0, bytes(INDEX_FILE_BYTES))
        assert expected == [log.position_of(index) for index in range(50)]


def test_a_torn_last_entry_is_cut_and_not_kept_aside(tmp_path: Path) -> None:
    """C8: only what stands behind a damaged entry is worth a file of its own."""
    store, log = raft_store(tmp_path)
    put(store, "1", "2", size=500)
    at = log.position_of(1) or 0
    store.flush_now()
    for name, torn in (("torn", at + 300), ("damaged", 300)):
        crash(store, tmp_path / name)
        edit(tmp_path / name / "dledger-n0" / "data" / f"{0:020d}", torn, bytes(20))
        again, log = raft_store(tmp_path / name)
        with again:
            assert (0 if name == "torn" else -1) == log.last_index
        assert (name == "damaged") == (tmp_path / name / "dledger-n0" / "cut").exists()


def test_a_header_that_is_damaged_before_the_end_is_named(tmp_path: Path) -> None:
    """C8: recovery ends the log there; the group has the rest."""
    store, log = raft_store(tmp_path)
    put(store, *map(str, range(6)))
    at = log.position_of(3)
    store.flush_now()
    crash(store, tmp_path / "again")
    edit(tmp_path / "again" / "dledger-n0" / "data" / f"{0:020d}", (at or 0) + 15, b"\x09")
    store, log = raft_store(tmp_path / "again")
    with store:
        assert (2, at) == (log.last_index, log.end)


def test_a_file_of_the_wrong_kind_is_refused(tmp_path: Path) -> None:
    """C11: two logs of one place."""
    store, _ = raft_store(tmp_path)
    with store:
        put(store, "1")
    with quiet_store(config_of(tmp_path)) as single:
        put(single, "2")
    with pytest.raises(CorruptFile, match="have the same name"):
        raft_store(tmp_path)
