"""Bytes of another node are folded in steps, by what recovery uses (C5, C8; issue 14)."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random

import pytest

from ternmq.errors import CorruptFile, NotRunning, StoreError
from ternmq.store.store import MessageStore
from ternmq.wire.record import Sysflag
from tests.manual_clock import ManualClock
from tests.store.small import bodies, crash, draft, files, log_queues_index, put_all, quiet_store, small_config
from tests.store.test_late_log import TAKEN_BACK, late_store

#: Steps end after each piece.
AT_ONCE = 0.0


def fill(store: MessageStore, number_of: int = 60) -> None:
    """Messages of all kinds."""
    for number in range(number_of):
        body = b"%d" % number * (number % 7 * 40)
        if number % 10 == 3:
            put_all(store, [draft("batch", 0, body, TAGS="a"), draft("batch", 0, b"", KEYS="k")])
        else:
            each = draft("orders", number % 2, body, TAGS="red" if number % 3 else "", KEYS=f"k{number}")
            each.sysflag = Sysflag.PREPARED if number % 20 == 7 else 0
            store.put(each)


def sent_by(store: MessageStore) -> bytes:
    """The bytes of a store's log."""
    log = store._log
    pieces = []
    for start in log.starts:
        view = log.view(start, min(log.segment_bytes, log.end - start))
        assert view is not None
        pieces.append(bytes(view))
    return b"".join(pieces)


@pytest.mark.parametrize("seed", range(12))
def test_a_replica_has_what_its_master_has(tmp_path: Path, seed: int) -> None:
    """C5: files of log, queues and index, however the bytes are cut; late or at once."""
    chance = Random(seed)
    make = late_store if seed % 2 else quiet_store
    woken: dict[tuple[str, int], int] = {}

    def arrived(topic: str, queue_id: int, end: int, _code: int, _text: str | None) -> None:
        woken[topic, queue_id] = end

    master, replica = make(small_config(tmp_path / "one")), make(small_config(tmp_path / "two"), on_arrival=arrived)
    with master, replica:
        fill(master)
        master.confirm(master.written)
        sent, at = sent_by(master), 0
        while at < len(sent):
            step = chance.choice((1, 30, 100, 700, 5000))
            replica.append_raw(at, sent[at : at + step])
            at = min(at + step, len(sent))
            replica.confirm(at)
            assert replica.dispatched <= at
            if chance.random() < 0.5:
                replica.follow(AT_ONCE)
        while not replica.follow(AT_ONCE):
            pass
        assert len(sent) == replica.dispatched == replica.written
        assert {queue: replica.max_offset(*queue) for queue in replica.queues()} == woken
    ours, theirs = (log_queues_index(tmp_path / name) for name in ("one", "two"))
    assert ours == theirs


def test_half_a_record_waits_for_its_rest(tmp_path: Path) -> None:
    """C8: it is neither an end nor damage; and a node does not write behind it."""
    with quiet_store(small_config(tmp_path / "one")) as master, quiet_store(small_config(tmp_path / "two")) as replica:
        first, second = master.put(draft(body=b"1")), master.put(draft(body=b"2"))
        sent = sent_by(master)
        for at in range(len(sent)):
            replica.append_raw(at, sent[at : at + 1])
            assert replica.follow(1.0)
            assert (at + 1 >= first.end_offset) + (at + 1 >= second.end_offset) == replica.max_offset("orders", 0)
            if 0 < at + 1 - first.end_offset < 200 and at + 1 < second.end_offset:
                with pytest.raises(StoreError, match="half a record"):
                    replica.stop_following()
        assert [b"1", b"2"] == bodies(replica)


def test_a_step_ends_when_its_time_is_over(tmp_path: Path) -> None:
    """C5: others have their turn on the loop; each step takes in a piece at least."""
    clock, config = ManualClock(), small_config(tmp_path / "two", mapped_file_size_commit_log=1 << 20)
    with (
        quiet_store(small_config(tmp_path / "one", mapped_file_size_commit_log=1 << 20)) as master,
        quiet_store(config, clock=clock) as replica,
    ):
        for _ in range(2000):
            master.put(draft(body=b"x" * 200))
        replica.append_raw(0, sent_by(master))
        steps = next(number for number in count(1) if replica.follow(AT_ONCE))
        assert steps >= master.written // (64 << 10)
        assert 2000 == replica.max_offset("orders", 0)


def test_messages_are_refused_while_another_node_sends_its_log(tmp_path: Path) -> None:
    """C6: and taken when it does not any more, with the queue offsets that follow."""
    with quiet_store(small_config(tmp_path / "one")) as master, quiet_store(small_config(tmp_path / "two")) as replica:
        fill(master)
        replica.append_raw(0, sent_by(master))
        with pytest.raises(NotRunning, match="another node"):
            replica.put(draft())

        replica.stop_following()

        expected = master.put(draft(body=b"new"))
        assert expected == replica.put(draft(body=b"new"))
        assert bodies(master) == bodies(replica)


def test_what_is_not_confirmed_is_not_followed_and_may_be_taken_back(tmp_path: Path) -> None:
    """C5: a follower of a Raft group that becomes its leader."""
    with late_store(small_config(tmp_path / "one")) as leader, late_store(small_config(tmp_path / "two")) as other:
        ends = [leader.put(draft(body=b"%d" % number)).end_offset for number in range(4)]
        other.append_raw(0, sent_by(leader))
        other.confirm(ends[0])
        assert other.follow(1.0)
        assert [b"0"] == bodies(other)

        other.truncate(ends[2], TAKEN_BACK)
        other.stop_following()

        assert ([b"0"], ends[0], 2) == (bodies(other), other.dispatched, len(other._pending))
        assert 3 == other.put(draft(body=b"mine")).queue_offset
        other.confirm(other.written)
        assert [b"0", b"1", b"2", b"mine"] == bodies(other)


def test_an_empty_replica_begins_where_its_master_does(tmp_path: Path) -> None:
    """C9: queues begin with the offsets of the first records that are left; also after a start."""
    config = small_config(tmp_path / "two")
    with quiet_store(small_config(tmp_path / "one")) as master:
        fill(master)
        sent = sent_by(master)
        with quiet_store(config) as replica:
            replica.begin_at(4096)
            replica.append_raw(4096, sent[4096:])
            assert replica.follow(1.0)
            assert (4096, master.written) == (replica.min_log_offset, replica.dispatched)
        with quiet_store(config) as again:
            for queue in master.queues():
                assert 0 < again.min_offset(*queue) < again.max_offset(*queue) == master.max_offset(*queue)
                assert bodies(master, *queue)[again.min_offset(*queue) :] == bodies(again, *queue)


def test_a_replica_that_died_goes_on(tmp_path: Path) -> None:
    """C8: recovery cuts half a record, and folds what was not."""
    with quiet_store(small_config(tmp_path / "one")) as master, quiet_store(small_config(tmp_path / "two")) as replica:
        fill(master)
        sent = sent_by(master)
        replica.append_raw(0, sent[:5000])
        replica.follow(AT_ONCE)
        killed = crash(replica, tmp_path / "three")
        with quiet_store(killed) as again:
            assert again.written == again.dispatched <= 5000
            again.append_raw(again.written, sent[again.written :])
            again.stop_following()
            assert bodies(master) == bodies(again)
        assert files(tmp_path / "one" / "commitlog") == files(tmp_path / "three" / "commitlog")


def test_a_topic_that_is_deleted_on_a_replica_is_not_folded_into_what_is_gone(tmp_path: Path) -> None:
    """D1: queues that the follower knows may have been removed."""
    with quiet_store(small_config(tmp_path / "one")) as master, quiet_store(small_config(tmp_path / "two")) as replica:
        for store in (master, replica):
            if store is master:
                for number in range(5):
                    store.put(draft(body=b"%d" % number))
            else:
                store.append_raw(0, sent_by(master))
                store.follow(1.0)
            store.delete_topics(["orders"])
        begin = master.written
        for number in range(5, 8):
            master.put(draft(body=b"%d" % number))
        replica.append_raw(begin, sent_by(master)[begin:])
        assert replica.follow(1.0)
        assert [b"5", b"6", b"7"] == bodies(master) == bodies(replica)


def test_bytes_that_are_no_log_are_an_error(tmp_path: Path) -> None:
    """C8: another master's, or junk."""
    with quiet_store(small_config(tmp_path)) as replica:
        replica.append_raw(0, b"junk" * 100)
        with pytest.raises(CorruptFile, match="no log"):
            replica.follow(1.0)
        assert 0 == replica.dispatched
