"""Real processes, killed at random: rolled back is never sent, committed is sent, keys keep their order (J3)."""

from __future__ import annotations

import pytest

from tests.outbox.kills import compare, run


@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", ["postgresql", pytest.param("mariadb", marks=pytest.mark.long)])
def test_tables_and_topics_agree_after_kills_of_everything(kind: str) -> None:
    """J3: ``script/soak outbox`` does this for as long as one likes."""
    outcome = run(kind, seed=20261117, kills=6)

    assert {1} == set(outcome.kills.values())
    assert outcome.committed > 20


@pytest.mark.parametrize(
    ("committed", "found", "reason"),
    [
        ({"free:1"}, ["free:1", "free:2"], "rolled back, but sent"),
        ({"free:1", "free:2"}, ["free:1"], "committed, but not sent"),
        ({"1:1", "1:2"}, ["1:2", "1:1"], "out of order"),
    ],
)
def test_the_comparison_finds_what_it_is_for(committed: set[str], found: list[str], reason: str) -> None:
    """J3: a copy that comes late is no break of the order."""
    compare({"1:1", "1:2", "free:1"}, ["free:1", "1:1", "1:2", "1:1", "1:2"])
    with pytest.raises(AssertionError, match=reason):
        compare(committed, found)
