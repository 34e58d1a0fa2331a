"""Shell completion, in a real bash (T1)."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import ENVIRONMENT, TERN, Serving, tern

Tern = Callable[..., subprocess.CompletedProcess[str]]

#: What readline does at a Tab: the words of the line are there, the function of the program fills in COMPREPLY.
_TAB = """
source <(tern completion bash)
COMP_WORDS=("$@"); COMP_CWORD=$(( $# - 1 ))
_tern_completion tern
printf '%s\\n' "${COMPREPLY[@]}"
"""


def in_bash(*words: str, name_server: str) -> tuple[set[str], str]:
    """The completions of a line whose last word is begun, and what was written to stderr."""
    path = f"{Path(TERN).parent}:{ENVIRONMENT['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", _TAB, "bash", "tern", *words],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env=ENVIRONMENT | {"PATH": path, "NAMESRV_ADDR": name_server},
    )
    return set(done.stdout.split()), done.stderr


def test_bash_completes_commands_and_options(cluster: Serving) -> None:
    """T1"""
    commands, errors = in_bash("to", name_server=cluster.name_server)
    inner, _ = in_bash("topic", "de", name_server=cluster.name_server)
    options, _ = in_bash("topic", "status", "--wa", name_server=cluster.name_server)

    assert ({"top", "topic"}, {"delete"}, {"--watch"}, "") == (commands, inner, options, errors)


def test_bash_completes_names_of_the_cluster(on_cluster: Tern, cluster: Serving) -> None:
    """T1: topics, groups and brokers."""
    on_cluster("topic", "create", "complete-me", "--queues", "1")
    on_cluster("group", "create", "complete-group")
    server = cluster.name_server

    assert {"complete-me"} == in_bash("consume", "comp", name_server=server)[0]
    assert {"complete-group"} == in_bash("group", "progress", "comp", name_server=server)[0]
    assert {"broker-a", "broker-b"} == in_bash("config", "show", "--broker", "bro", name_server=server)[0]
    # The name server of the line wins over the environment.
    assert {"complete-me"} == in_bash("topic", "route", "-n", server, "comp", name_server="127.0.0.1:1")[0]


def test_a_cluster_that_is_away_completes_nothing_and_says_nothing() -> None:
    """T1: an error text would be typed into the line."""
    assert (set(), "") == in_bash("topic", "route", "comp", name_server="127.0.0.1:1")
    assert (set(), "") == in_bash("topic", "route", "comp", name_server="not an address")
    assert (set(), "") == in_bash("topic", "route", "--profile", "unknown", "comp", name_server="127.0.0.1:1")


@pytest.mark.parametrize(("shell", "line"), [("bash", "complete "), ("zsh", "#compdef tern"), ("fish", "complete ")])
def test_a_script_is_printed_for_each_shell(shell: str, line: str) -> None:
    """T1"""
    done = tern("completion", shell)

    assert (0, "", True) == (
        done.returncode,
        done.stderr,
        any(one.startswith(line) for one in done.stdout.splitlines()),
    )


def test_zsh_and_fish_are_answered(on_cluster: Tern, cluster: Serving) -> None:
    """T1: what their scripts ask for, and how."""
    on_cluster("topic", "create", "shell-topic", "--queues", "1")
    asked = {"NAMESRV_ADDR": cluster.name_server, "_TYPER_COMPLETE_ARGS": "tern topic route shell-"}

    zsh = tern(stdin=b"", _TERN_COMPLETE="complete_zsh", **asked).stdout
    fish = tern(stdin=b"", _TERN_COMPLETE="complete_fish", _TYPER_COMPLETE_FISH_ACTION="get-args", **asked).stdout

    assert ("shell-topic" in zsh, "shell-topic" in fish) == (True, True)
