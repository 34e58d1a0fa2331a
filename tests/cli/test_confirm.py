"""Commands that delete or overwrite show what, and ask (T1)."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmq.cli.command import Destructive
from tests.cli.conftest import Serving
from tests.cli.terminal import terminal
from tests.cli.test_tree import leaves

Tern = Callable[..., subprocess.CompletedProcess[str]]

#: Those that ask only in some cases, or need more than the cluster of the tests; each has a test of its own.
ELSEWHERE = {
    "user delete",  # tests/auth/test_users.py
    "user revoke",
    "raft remove",  # tests/raft/test_members_cli.py
    "broker promote",  # tests/cli/test_promote.py
    "pipeline rebuild",  # tests/cli/test_store.py has the same question
    "outbox discard",  # tests/outbox/test_commands.py
    "group clone",  # below
    "dlq purge",  # tests/cli/test_deadletters.py
    "delay cancel",  # tests/cli/test_delay.py
}


@pytest.fixture(scope="module")
def prepared(cluster: Serving, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, ...]]:
    """Arguments for each destructive command, with something that it would destroy."""
    store = next(Path(cluster.ready["dir"]).glob("broker-a"))
    copy = tmp_path_factory.mktemp("copies") / "store"
    subprocess.run(["cp", "-r", store, copy], check=True)
    (copy / "lock").unlink(missing_ok=True)
    return {
        "topic delete": ("topic", "delete", "asked"),
        "group delete": ("group", "delete", "asked-group"),
        "group reset": ("group", "reset", "asked-group", "asked", "--to", "first"),
        "config set": ("config", "set", "fileReservedTime=72"),
        "store rebuild": ("store", "rebuild", str(copy)),
        "store cut": ("store", "cut", str(copy), "--at", "0"),
    }


def test_without_a_terminal_nothing_is_destroyed(on_cluster: Tern, prepared: dict[str, tuple[str, ...]]) -> None:
    """T1: each of them refuses with a sentence, names ``--yes``, and changes nothing."""
    on_cluster("topic", "create", "asked", "--queues", "1")
    on_cluster("send", "asked", "one", "two")
    on_cluster("consume", "asked", "--group", "asked-group", "--count", "2")
    before = on_cluster("group", "progress", "asked-group").stdout

    marked = {" ".join(path) for path, command in leaves() if isinstance(command, Destructive)}
    refused = {name: on_cluster(*arguments) for name, arguments in prepared.items()}

    assert marked == prepared.keys() | ELSEWHERE, "a new destructive command needs a line in this test"
    for name, done in refused.items():
        assert (2, "") == (done.returncode, done.stdout), (name, done.stderr)
        assert "There is no terminal for the answer; add --yes" in done.stderr, name
    assert "asked" in on_cluster("topic", "list").stdout.split()
    assert before == on_cluster("group", "progress", "asked-group").stdout


def test_the_question_shows_what_is_lost_and_no_keeps_it(on_cluster: Tern, cluster: Serving) -> None:
    """T1"""
    on_cluster("topic", "create", "kept", "--queues", "2")
    on_cluster("send", "kept", "a", "b", "c")

    with terminal("topic", "delete", "kept", name_server=cluster.name_server) as asking:
        asked = asking.until("[y/N]")
        asking.type("n\n")
        code = asking.end()

    assert "topic kept has 3 messages in 4 queues on broker-a, broker-b; they cannot be read afterwards" in asked
    assert (1, True) == (code, "kept" in on_cluster("topic", "list").stdout.split())


def test_yes_in_the_terminal_deletes(on_cluster: Tern, cluster: Serving) -> None:
    """T1: here a group, with its offsets."""
    on_cluster("topic", "create", "gone-topic", "--queues", "1")
    on_cluster("send", "gone-topic", "a")
    on_cluster("consume", "gone-topic", "--group", "gone-group", "--count", "1")

    with terminal("group", "delete", "gone-group", name_server=cluster.name_server) as asking:
        asked = asking.until("[y/N]")
        asking.type("y\n")
        shown, code = asking.until("was deleted on"), asking.end()

    assert "group gone-group has 0 active members and a lag of 0 messages; its offsets are lost" in asked
    assert (0, True) == (code, "group gone-group was deleted on broker-a, broker-b" in shown)
    assert 3 == on_cluster("group", "progress", "gone-group").returncode
    assert 3 == on_cluster("group", "delete", "gone-group", "--yes").returncode


def test_a_clone_asks_only_before_it_overwrites(on_cluster: Tern) -> None:
    """T1, L2"""
    on_cluster("topic", "create", "cloned", "--queues", "1")
    on_cluster("send", "cloned", "a", "b")
    on_cluster("consume", "cloned", "--group", "clone-source", "--count", "2")

    shown = on_cluster("group", "clone", "clone-source", "clone-target", "--dry-run", "--json")
    absent = on_cluster("group", "progress", "clone-target").returncode
    fresh = on_cluster("group", "clone", "clone-source", "clone-target")
    on_cluster("group", "reset", "clone-target", "cloned", "--to", "first", "--yes")
    refused = on_cluster("group", "clone", "clone-source", "clone-target")
    forced = on_cluster("group", "clone", "clone-source", "clone-target", "--yes", "--json")

    assert (0, 3, 0, 2, 0) == (shown.returncode, absent, fresh.returncode, refused.returncode, forced.returncode)
    assert "overwrite the offsets of group clone-target?" in refused.stderr
    assert 2 == sum(move["after"] for move in json.loads(forced.stdout))
