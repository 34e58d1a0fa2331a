"""``tern quota`` with the real program (M1, T1)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest

from tests.cli.test_messages import array, lines

Tern = Callable[..., subprocess.CompletedProcess[str]]


def test_a_quota_is_set_shown_and_deleted(on_cluster: Tern) -> None:
    """M1."""
    on_cluster("topic", "create", "limited", "--queues", "1")

    done = on_cluster("quota", "set", "--topic", "limited", "--messages", "1000")
    [shown, *others] = [row for row in array(on_cluster("quota", "show", "--json")) if row["name"] == "limited"]
    people = on_cluster("quota", "show").stdout

    assert (0, True) == (done.returncode, "topic limited is limited to 1000 messages/s on each of" in done.stdout)
    assert ("topic", 1000, None) == (shown["kind"], shown["messages_s"], shown["bytes_s"])
    assert "broker-b" in [row["broker"] for row in others]
    assert "limited" in people
    [deleted] = lines(on_cluster("quota", "clear", "--topic", "limited", "--json"))
    assert (None, None) == (deleted["messages"], deleted["bytes"])
    assert [] == [row for row in array(on_cluster("quota", "show", "--json")) if row["name"] == "limited"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (("set", "--topic", "limited"), 2, "give --messages, --bytes or both"),
        (("set", "--messages", "1"), 2, "give either --topic or --group"),
        (("clear", "--topic", "a", "--group", "b"), 2, "give either --topic or --group"),
        (("set", "--group", "nobody", "--bytes", "1"), 3, "no broker has group 'nobody'"),
    ],
)
def test_wrong_usage_is_told_in_a_sentence(
    on_cluster: Tern, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    """T1."""
    done = on_cluster("quota", *arguments)
    assert (code, True) == (done.returncode, sentence in " ".join(done.stderr.split()))
