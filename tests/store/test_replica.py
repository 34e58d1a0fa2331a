"""What happens at a log offset of another node: deletions and tables (C5, D1, O2)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.errors import NotMaster
from ternmq.store.store import MessageStore
from tests.store.small import bodies, crash, draft, quiet_store, small_config
from tests.store.test_late_log import late_store

#: Long enough for all that a test has.
BUDGET_S = 60.0


def sent_by(store: MessageStore) -> bytes:
    return b"".join(
        bytes(store._log.view(start, min(4096, store.written - start)) or b"") for start in store._log.starts
    )


def deleted_at_half(master: MessageStore) -> int:
    """A topic with messages is deleted, and made again; returns where that was."""
    for number in range(30):
        master.put(draft(("orders", "kept")[number % 2], number % 4, b"old %d" % number + b"x" * 200))
    as_of = master.written
    master.delete_topics(["orders"])
    for number in range(10):
        master.put(draft(("orders", "kept")[number % 2], number % 4, b"new %d" % number))
    return as_of


def shown(store: MessageStore) -> dict[tuple[str, int], list[bytes]]:
    return {key: bodies(store, *key) for key in sorted(store.queues())}


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("step", [1, 100, 100_000])
def test_a_replica_deletes_a_topic_at_the_same_log_offset(tmp_path: Path, step: int, late: bool) -> None:
    """D1: told early, it waits until dispatch is there, however the bytes are cut and the work is."""
    make = late_store if late else quiet_store
    with make(small_config(tmp_path / "one")) as master, make(small_config(tmp_path / "two")) as replica:
        as_of = deleted_at_half(master)
        master.confirm(master.written)
        sent = sent_by(master)
        replica.delete_topics(["orders", "unknown"], as_of=as_of)
        seen: list[int] = []
        replica.when_dispatched(as_of, lambda: seen.append(replica.dispatched))
        for at in range(0, len(sent), step):
            replica.append_raw(at, sent[at : at + step])
            replica.confirm(replica.written)
            # A budget that is over at once: each call makes some progress.
            replica.follow(0.0 if step > 1 else BUDGET_S)
        while not replica.follow(0.0):
            pass
        assert [as_of] == seen
        assert shown(master) == shown(replica)
        assert {"orders": as_of} == dict(replica._loaded.deleted.ends)
        again = crash(replica, tmp_path / "three") if not late else None
    if again is not None:
        with quiet_store(again) as recovered, quiet_store(small_config(tmp_path / "one")) as master:
            assert shown(master) == shown(recovered)


def test_a_deletion_that_is_told_late_leaves_the_new_topic(tmp_path: Path) -> None:
    """D1: queues with later records belong to a topic that was made since."""
    with quiet_store(small_config(tmp_path / "one")) as master, quiet_store(small_config(tmp_path / "two")) as replica:
        for queue_id in range(3):
            master.put(draft("orders", queue_id, b"old"))
        as_of = master.written
        master.delete_topics(["orders"])
        master.put(draft("orders", 1, b"new"))
        replica.append_raw(0, sent_by(master))
        assert replica.follow(BUDGET_S)
        replica.delete_topics(["orders"], as_of=as_of)
        assert {("orders", 1): [b"new"]} == shown(master) == shown(replica)


def test_calls_come_in_the_order_of_their_offsets_between_two_records(tmp_path: Path) -> None:
    """O2: a table never knows more than the log."""
    with late_store(small_config(tmp_path)) as store:
        ends = [store.put(draft(body=b"%d" % number)).end_offset for number in range(5)]
        seen: list[tuple[int, int]] = []
        for end in (ends[3], ends[1], 0):
            store.when_dispatched(end, lambda end=end: seen.append((end, store.max_offset("orders", 0))))  # type: ignore[misc]
        assert [(0, 0)] == seen
        store.confirm(ends[0])
        assert [(0, 0)] == seen
        store.confirm(ends[4])
        assert [(0, 0), (ends[1], 2), (ends[3], 4)] == seen


def test_an_offset_inside_a_record_is_reached_behind_it(tmp_path: Path) -> None:
    """O2: what another node says must not stop the fold for ever."""
    with quiet_store(small_config(tmp_path / "one")) as master, quiet_store(small_config(tmp_path / "two")) as replica:
        ends = [master.put(draft(body=b"%d" % number)).end_offset for number in range(5)]
        seen: list[int] = []
        replica.when_dispatched(ends[1] + 7, lambda: seen.append(replica.dispatched))
        replica.append_raw(0, sent_by(master))
        replica.stop_following()
        assert 1 == len(seen)
        assert shown(master) == shown(replica)


def test_a_store_that_puts_by_itself_makes_the_calls_with_its_ticks(tmp_path: Path) -> None:
    """O2: a plain put pays nothing for it."""
    with quiet_store(small_config(tmp_path)) as store:
        end = store.put(draft()).end_offset
        seen: list[int] = []
        store.when_dispatched(end, lambda: seen.append(1))
        store.when_dispatched(end + 1, lambda: seen.append(2))
        assert [1] == seen
        store.put(draft())
        store.tick()
        assert [1, 2] == seen


@pytest.mark.parametrize("cut_at", range(-40, 41, 4))
def test_a_replica_takes_over_at_any_byte(tmp_path: Path, cut_at: int) -> None:
    """O1: half a record is taken back, half a blank is completed, and new records can be read after a restart."""
    with quiet_store(small_config(tmp_path / "master")) as master:
        number = 0
        while master.written < 4096:
            blank_at = master.written
            master.put(draft("orders", 0, b"%d" % number + b"x" * 200))
            number += 1
        data = sent_by(master)
        whole = bodies(master)
    with quiet_store(small_config(tmp_path / "slave")) as slave:
        slave.append_raw(0, data[: blank_at + cut_at])
        slave.take_over(NotMaster("it becomes the master"))
        assert slave.dispatched == slave.written
        has = slave.max_offset("orders", 0)
        # The last record ends at the blank; of the blank, the head or more is there.
        assert has == (number - 1 if cut_at >= 0 else number - 2)
        slave.put(draft("orders", 0, b"new"))
        assert [*whole[:has], b"new"] == bodies(slave)
    with quiet_store(small_config(tmp_path / "slave")) as slave:
        assert [*whole[:has], b"new"] == bodies(slave)
