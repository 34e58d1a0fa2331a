"""Consumer offsets (D4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.broker.tables.offsets import DELETIONS_MAX, VERSION_STEP, Offsets
from ternmq.files import TableFile
from ternmq.names import REVIVE_PREFIX
from ternmq.wire.bodies.stats import ConsumerOffsets
from tests.manual_clock import ManualClock
from tests.recordings import DATA


def table(path: Path) -> Offsets:
    offsets = Offsets(TableFile(path / "consumerOffset.json"), TableFile(path / "ownOffset.json"), ManualClock())
    offsets.load()
    return offsets


def test_an_offset_is_what_was_committed_last(tmp_path: Path) -> None:
    """D4: also backwards, which is what a reset does."""
    offsets = table(tmp_path)
    assert offsets.get("g", "t", 0) == -1

    offsets.commit("g", "t", 0, 7)
    offsets.commit("g", "t", 1, 3)
    offsets.commit("g", "t", 0, 5)

    assert offsets.of_group("g", "t") == {0: 5, 1: 3}
    assert offsets.get("other", "t", 0) == -1


def test_a_reset_counts_more_than_commits_until_a_member_knows(tmp_path: Path) -> None:
    """D4: of this queue of this group only."""
    offsets = table(tmp_path)
    offsets.commit("g", "t", 0, 7)

    offsets.reset("g", "t", 0, 3, has_readers=True)
    for group, queue_id in (("g", 0), ("g", 1), ("other", 0)):
        offsets.commit(group, "t", queue_id, 9)

    assert [3, 9, 9] == [offsets.get("g", "t", 0), offsets.get("g", "t", 1), offsets.get("other", "t", 0)]
    assert [None, None, 3, None] == [
        offsets.take_reset(group, "t", queue_id) for group, queue_id in (("g", 1), ("other", 0), ("g", 0), ("g", 0))
    ]
    offsets.commit("g", "t", 0, 4)
    assert 4 == offsets.get("g", "t", 0)


def test_a_reset_that_no_member_needs_to_know_of_is_a_commit(tmp_path: Path) -> None:
    """D4: also after one that no member has heard of, and with what was deleted since."""
    offsets = table(tmp_path)
    offsets.reset("g", "t", 0, 3, has_readers=True)
    offsets.reset("g", "t", 0, 5, has_readers=False)
    assert (5, None) == (offsets.get("g", "t", 0), offsets.take_reset("g", "t", 0))

    offsets.reset("g", "t", 0, 3, has_readers=True)
    offsets.delete_topic("t")
    offsets.commit("g", "t", 0, 1)
    assert (1, None) == (offsets.get("g", "t", 0), offsets.take_reset("g", "t", 0))


def test_offsets_survive_a_restart(tmp_path: Path) -> None:
    """D4."""
    offsets = table(tmp_path)
    offsets.commit("g", "t", 0, 7)
    offsets.save()

    assert table(tmp_path).get("g", "t", 0) == 7


def test_nothing_new_is_not_written(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    offsets.save()

    assert not (tmp_path / "consumerOffset.json").exists()


def test_topics_of_a_group_and_groups_of_a_topic_are_found_and_forgotten(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    for group, topic in (("g", "a"), ("g", "b"), ("h", "a")):
        offsets.commit(group, topic, 0, 1)
    assert offsets.topics_of("g") == ["a", "b"]
    assert offsets.groups_of("a") == ["g", "h"]

    offsets.delete_topic("b")
    assert offsets.topics_of("g") == ["a"]
    offsets.delete_group("g")
    assert offsets.groups_of("a") == ["h"]
    offsets.save()
    assert table(tmp_path).groups_of("a") == ["h"]


def test_a_clone_stands_where_its_source_stood(tmp_path: Path) -> None:
    """D4."""
    offsets = table(tmp_path)
    offsets.commit("g", "t", 0, 7)

    offsets.clone("g", "copy", "t")
    offsets.commit("g", "t", 0, 9)

    assert offsets.get("copy", "t", 0) == 7


def test_the_version_counts_up_now_and_then(tmp_path: Path) -> None:
    offsets = table(tmp_path)
    for queue_offset in range(VERSION_STEP):
        offsets.commit("g", "t", 0, queue_offset)

    assert offsets.data_version.counter == 1


NAMES = st.text("abcXYZ019_-%|", min_size=1, max_size=12)


@given(commits=st.lists(st.tuples(NAMES, NAMES, st.integers(0, 1023), st.integers(0, 2**63 - 1)), max_size=40))
def test_any_table_is_the_same_after_a_restart(
    tmp_path_factory: pytest.TempPathFactory, commits: list[tuple[str, str, int, int]]
) -> None:
    """D4: the last commit of each queue, whatever the names."""
    path = tmp_path_factory.mktemp("offsets")
    offsets = table(path)
    for commit in commits:
        offsets.commit(*commit)
    offsets.save()

    restarted = table(path)
    for group, topic, queue_id, queue_offset in {commit[:3]: commit for commit in commits}.values():
        assert restarted.get(group, topic, queue_id) == queue_offset


@pytest.mark.parametrize("version", ["4.9.4", "5.2.0"])
def test_a_file_of_rocketmq_is_read(tmp_path: Path, version: str) -> None:
    """C11: its integer keys stand without quotes."""
    name = f"rocketmq-{version}-clean"
    shutil.unpack_archive(DATA / "stores" / f"{name}.tar.gz", tmp_path, filter="data")

    assert sum(table(tmp_path / name / "config").of_group("golden_push", "GoldenTopic").values()) > 0


# --- Commits on a slave ----------------------------------------------------------------------------------------------


def clocked(path: Path, clock: ManualClock) -> Offsets:
    offsets = Offsets(TableFile(path / "consumerOffset.json"), TableFile(path / "ownOffset.json"), clock)
    offsets.load()
    return offsets


def of_master(**queues: int) -> ConsumerOffsets:
    return ConsumerOffsets(offset_table={"t@g": {int(queue[1:]): at for queue, at in queues.items()}})


def test_a_copy_of_the_master_s_table_does_not_replace_own_offsets(tmp_path: Path) -> None:
    """O3: until they are returned; a commit in between is returned later."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.begin_slave()
    offsets.copy(of_master(q0=5, q1=5))
    assert not offsets.has_own
    offsets.commit("g", "t", 0, 9)

    offsets.copy(of_master(q0=6, q1=6))
    assert {0: 9, 1: 6} == offsets.of_group("g", "t")

    (own,) = offsets.own()
    assert ("g", "t", 0, 9, clock.now_ms()) == (own.group, own.topic, own.queue_id, own.queue_offset, own.committed_ms)
    clock.advance(1)
    offsets.commit("g", "t", 0, 11)
    offsets.returned([own])
    assert [11] == [each.queue_offset for each in offsets.own()]
    offsets.returned(offsets.own())
    offsets.copy(of_master(q0=7))
    assert ({0: 7}, False) == (offsets.of_group("g", "t"), offsets.has_own)


def test_own_offsets_survive_a_restart_of_the_slave(tmp_path: Path) -> None:
    """O3: with their times. A master returns nothing."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.begin_slave()
    offsets.copy(of_master(q0=5, q1=5))
    offsets.commit("g", "t", 0, 9)
    offsets.save()
    own = offsets.own()

    again = clocked(tmp_path, clock)
    again.begin_slave()
    assert own == again.own()
    again.returned(own)
    again.save()
    assert [] == clocked(tmp_path, clock).own()

    master = clocked(tmp_path, clock)
    master.begin_master(lambda _topic, _queue: 100)
    master.commit("g", "t", 0, 10)
    assert [] == master.own()


def test_the_newer_commit_counts_when_a_slave_returns_offsets(tmp_path: Path) -> None:
    """O3: also a reset, also one that goes back; and one that members do not know of yet."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.commit("g", "t", 0, 5)
    clock.advance(10)
    now = clock.now_ms()

    assert offsets.merge("g", "t", 0, 9, committed_ms=now)
    assert not offsets.merge("g", "t", 0, 7, committed_ms=now - 1_000)
    assert 9 == offsets.get("g", "t", 0)
    assert offsets.merge("g", "t", 1, 3, committed_ms=now - 1_000)

    clock.advance(10)
    offsets.commit("g", "t", 0, 2)
    assert not offsets.merge("g", "t", 0, 9, committed_ms=now)
    offsets.reset("g", "t", 1, 1, has_readers=True)
    assert not offsets.merge("g", "t", 1, 9, committed_ms=clock.now_ms() + 1)
    assert {0: 2, 1: 1} == offsets.of_group("g", "t")


def test_what_a_master_wrote_before_its_end_is_older_than_what_a_slave_took_since(tmp_path: Path) -> None:
    """O3: and newer than what the slave took before."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.commit("g", "t", 0, 5)
    clock.advance(10)
    offsets.save()
    died_ms = clock.now_ms()

    clock.advance(60)
    again = clocked(tmp_path, clock)
    assert not again.merge("g", "t", 0, 9, committed_ms=died_ms)
    assert again.merge("g", "t", 0, 9, committed_ms=died_ms + 1)


def test_a_slave_that_becomes_master_sends_members_back_to_the_end_of_its_log(tmp_path: Path) -> None:
    """O3: they had read messages on the old master that no slave had; what is stored in their place is not skipped."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.begin_slave()
    offsets.commit("g", "t", 0, 120)
    offsets.commit("g", "t", 1, 90)

    offsets.begin_master(lambda _topic, _queue: 110)
    offsets.commit("g", "t", 0, 121)
    assert {0: 110, 1: 90} == offsets.of_group("g", "t")
    assert (110, None) == (offsets.take_reset("g", "t", 0), offsets.take_reset("g", "t", 1))


def test_copied_offsets_behind_the_end_are_corrected_when_a_slave_becomes_master(tmp_path: Path) -> None:
    """O3: a power cut took the messages from the slave, and the table was on its disk."""
    offsets = clocked(tmp_path, ManualClock())
    offsets.begin_slave()
    offsets.copy(of_master(q0=120, q1=90))
    internal = f"{REVIVE_PREFIX}DefaultCluster"
    offsets.copy(ConsumerOffsets(offset_table={f"{internal}@own": {0: 120}}))
    offsets.begin_master(lambda _topic, _queue: 110)
    assert {0: 110, 1: 90} == offsets.of_group("g", "t")
    # Members must be told first; the broker's own readers need not.
    for group, topic in (("g", "t"), ("own", internal)):
        offsets.commit(group, topic, 0, 111)
    assert (110, 111) == (offsets.get("g", "t", 0), offsets.get("own", internal, 0))


@pytest.mark.parametrize("is_topic", [True, False])
def test_an_offset_of_a_topic_or_group_that_was_deleted_since_is_not_taken(tmp_path: Path, is_topic: bool) -> None:
    """O3: one of the same name begins with queue offset 0, and its messages must not be skipped."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    before_ms = clock.now_ms()
    clock.advance(10)
    if is_topic:
        offsets.delete_topic("t")
    else:
        offsets.delete_group("g")

    assert not offsets.merge("g", "t", 0, 500, committed_ms=before_ms)
    assert offsets.merge("h", "u", 0, 5, committed_ms=before_ms)
    offsets.save()
    clock.advance(10)
    again = clocked(tmp_path, clock)
    assert not again.merge("g", "t", 0, 500, committed_ms=before_ms)
    assert again.merge("g", "t", 0, 2, committed_ms=clock.now_ms())


def test_many_deletions_are_remembered_by_the_time_of_the_last_that_was_forgotten(tmp_path: Path) -> None:
    """O3: the list of them is bounded."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    before_ms = clock.now_ms()
    clock.advance(10)
    for number in range(DELETIONS_MAX + 1):
        offsets.delete_topic(f"t{number}")
    assert len(offsets._deleted_ms) == DELETIONS_MAX
    assert not offsets.merge("g", "t0", 0, 500, committed_ms=before_ms)


def test_what_was_copied_is_newer_than_what_another_slave_took_before(tmp_path: Path) -> None:
    """O3: a slave that becomes master knows no time of a single commit or reset on the old one."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.begin_slave()
    before_ms = clock.now_ms()
    clock.advance(10)
    offsets.copy(of_master(q0=3))
    offsets.begin_master(lambda _topic, _queue: 1_000)

    assert not offsets.merge("g", "t", 0, 500, committed_ms=before_ms)
    assert offsets.merge("g", "t", 0, 500, committed_ms=clock.now_ms() + 1)


def test_a_commit_of_the_future_counts_as_one_of_now(tmp_path: Path) -> None:
    """O3: if this broker becomes a slave, it must not win over what its new master takes later."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    assert offsets.merge("g", "t", 0, 9, committed_ms=1 << 62)
    offsets.begin_slave()
    assert [clock.now_ms()] == [each.committed_ms for each in offsets.own()]


def test_own_offsets_of_a_log_that_was_cut_stay_corrected_after_a_crash(tmp_path: Path) -> None:
    """O1: the file of own offsets counts more than the table."""
    clock = ManualClock()
    offsets = clocked(tmp_path, clock)
    offsets.begin_slave()
    offsets.commit("g", "t", 0, 120)
    offsets.save()
    again = clocked(tmp_path, clock)
    assert 1 == again.cut(lambda _topic, _queue: 110)
    again.save()
    assert 110 == clocked(tmp_path, clock).get("g", "t", 0)
