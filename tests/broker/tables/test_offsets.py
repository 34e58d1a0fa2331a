"""Consumer offsets (D4)."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.broker.tables.offsets import VERSION_STEP, Offsets
from ternmq.files import TableFile
from tests.manual_clock import ManualClock
from tests.recordings import DATA


def table(path: Path) -> Offsets:
    offsets = Offsets(TableFile(path / "consumerOffset.json"), ManualClock())
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
