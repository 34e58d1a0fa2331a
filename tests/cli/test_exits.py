"""Exit codes: what a script can tell (T1, decision 0044)."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ternmq.cli.exits import ExitCode, exit_code_of
from ternmq.errors import (
    BrokerMissing,
    CallTimeout,
    ConfigError,
    GroupMissing,
    NameServersUnreachable,
    NoPermission,
    NotMaster,
    RouteMissing,
    StoreError,
    SystemBusy,
    TernError,
)
from tests.cli.conftest import tern

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
Tern = Callable[..., subprocess.CompletedProcess[str]]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (RouteMissing("no topic", topic="t"), ExitCode.NOT_FOUND),
        (GroupMissing("no group"), ExitCode.NOT_FOUND),
        (BrokerMissing("no broker"), ExitCode.NOT_FOUND),
        (NoPermission("no"), ExitCode.REFUSED),
        (NameServersUnreachable("gone"), ExitCode.UNREACHABLE),
        (CallTimeout("late"), ExitCode.UNREACHABLE),
        (SystemBusy("busy"), ExitCode.UNREACHABLE),
        (NotMaster("a slave"), ExitCode.UNREACHABLE),
        (ConfigError("wrong"), ExitCode.USAGE),
        (StoreError("broken"), ExitCode.FAILED),
        (TernError("any"), ExitCode.FAILED),
        (RuntimeError("a bug"), ExitCode.FAILED),
    ],
)
def test_the_kind_of_an_error_is_the_exit_code(error: Exception, code: ExitCode) -> None:
    """T1; also of an error that several tasks raise together."""
    assert code == exit_code_of(error) == exit_code_of(ExceptionGroup("several", [ExceptionGroup("inner", [error])]))


def test_a_script_tells_failures_apart(on_cluster: Tern) -> None:
    """T1: the real program."""
    codes = {
        "done": on_cluster("topic", "list").returncode,
        "not found": on_cluster("topic", "route", "nothing-here").returncode,
        "refused": on_cluster("config", "set", "listenPort=1", "--broker", "broker-a").returncode,
        "usage": on_cluster("topic", "list", "--output", "xml").returncode,
        "unreachable": tern("topic", "list", "-n", "127.0.0.1:1").returncode,
    }

    assert {"done": 0, "not found": 3, "refused": 4, "usage": 2, "unreachable": 5} == codes


def test_the_guide_lists_all_exit_codes() -> None:
    """T1"""
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", GUIDE.read_text(), re.MULTILINE)}

    assert {code.value for code in ExitCode} == documented


@pytest.mark.parametrize(
    "command",
    [
        ("config", "show", "--broker", "nobody"),
        ("broker", "status", "nobody"),
        ("backup", "create", "nobody", "--to", "DIRECTORY"),
        ("topic", "create", "t", "--cluster", "nobody"),
    ],
)
def test_an_unknown_broker_or_cluster_is_not_found(on_cluster: Tern, tmp_path: Path, command: tuple[str, ...]) -> None:
    """T1"""
    done = on_cluster(*(str(tmp_path / "backup") if part == "DIRECTORY" else part for part in command))
    assert (3, True) == (done.returncode, "'nobody'" in done.stderr), done.stderr
