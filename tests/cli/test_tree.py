"""Rules for all commands, checked by walking the tree: each new command is held to them (T1, decision 0044)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main

from ternmq.cli.command import Destructive, Watched, with_seconds
from ternmq.cli.main import app

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "command-line.md"
ROOT = typer.main.get_command(app)
CONTEXT: Any = None

#: Verbs of commands that take something away, or overwrite it.
DESTROYING = {"delete", "remove", "reset", "purge", "cancel", "discard", "revoke", "cut", "rebuild", "promote", "clone"}
#: Verbs of commands that show a state.
SHOWING = {"list", "status", "stats", "progress", "members", "policies", "traffic", "route", "peek"}
#: Servers have events; the script of a shell is a script.
WITHOUT_JSON = {"completion"}


def leaves(command: Any = ROOT, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "list_commands"):
        yield path, command
        return
    for name in command.list_commands(CONTEXT):
        yield from leaves(command.get_command(CONTEXT, name), (*path, name))


COMMANDS = [pytest.param(path, command, id=" ".join(path)) for path, command in leaves()]
each_command = pytest.mark.parametrize(("path", "command"), COMMANDS)


def options_of(command: Any) -> dict[str, set[str]]:
    """By parameter: all its spellings."""
    return {
        param.name: {*param.opts, *param.secondary_opts}
        for param in command.params
        if param.param_type_name == "option"
    }


def short_options() -> dict[str, set[str]]:
    """Each short option, and the long ones that it stands for, over all commands and groups."""
    found: dict[str, set[str]] = {}
    groups = [(name, ROOT.get_command(CONTEXT, name)) for name in ROOT.list_commands(CONTEXT)]  # type: ignore[attr-defined]
    for _, command in [*leaves(), *groups]:
        for spellings in options_of(command).values():
            for short in (one for one in spellings if re.fullmatch(r"-[A-Za-z]", one)):
                found.setdefault(short, set()).update(one for one in spellings if one.startswith("--"))
    return found


def test_a_short_option_has_one_meaning_everywhere() -> None:
    """T1: `-n`, `-t` and `-p` once had two meanings each."""
    clashing = {short: longs for short, longs in short_options().items() if len(longs) > 1}

    assert {} == clashing


def test_the_guide_lists_all_short_options() -> None:
    """T1"""
    documented = dict(re.findall(r"^\| `(-[A-Za-z])` \| `(--[a-z-]+)` \|", GUIDE.read_text(), re.MULTILINE))

    assert {short: longs.pop() for short, longs in short_options().items()} | {"-h": "--help"} == documented


@each_command
def test_a_command_prints_json_and_csv(path: tuple[str, ...], command: Any) -> None:
    """T1: ``--json`` is short for ``--output json``."""
    has_json = "as_json" in options_of(command)

    assert has_json == (path[-1] not in WITHOUT_JSON)
    assert has_json == ({"--output", "-o"} == options_of(command).get("output"))


@each_command
def test_a_command_that_shows_a_state_can_be_watched(path: tuple[str, ...], command: Any) -> None:
    """T1"""
    if path[-1] in SHOWING:
        assert isinstance(command, Watched)
    assert isinstance(command, Watched) == ("watch" in options_of(command))


@each_command
def test_a_command_that_destroys_something_is_marked_and_asks(path: tuple[str, ...], command: Any) -> None:
    """T1: ``test_confirm`` runs each of them."""
    if path[-1] in DESTROYING:
        assert isinstance(command, Destructive)
    assert isinstance(command, Destructive) == ("yes" in options_of(command))


@each_command
def test_the_help_of_a_command_has_an_example(path: tuple[str, ...], command: Any) -> None:
    """T1"""
    assert re.search(rf"^ +(.*\| |source <\()?tern {' '.join(path).removesuffix(' check')}", command.help, re.MULTILINE)


@each_command
def test_a_command_takes_its_cluster_from_a_profile(
    path: tuple[str, ...], command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T1, N1: after the command as well as before it; `-n` wins."""
    profiles = tmp_path / "profiles.toml"
    profiles.write_text('[far]\nname_servers = "10.9.8.7:9876"\n')
    profiles.chmod(0o600)
    monkeypatch.setenv("TERNMQ_PROFILES", str(profiles))
    monkeypatch.setenv("NAMESRV_ADDR", "10.0.0.1:9876")
    if "name_servers" not in options_of(command):
        assert "profile" not in {param.name for param in command.params}
        return
    needed = [text for param in command.params if param.required for text in _some_value(param)]

    chosen = command.make_context(path[-1], [*needed, "--profile", "far"]).params["name_servers"]
    named = command.make_context(path[-1], [*needed, "--profile", "far", "-n", "10.2.2.2:1"]).params["name_servers"]

    assert ("10.9.8.7:9876", "10.2.2.2:1") == (chosen, named)


def _some_value(param: Any) -> list[str]:
    value = {"how": "pop"}.get(param.name, "1")
    return [param.opts[-1], value] if param.param_type_name == "option" else [value]


def test_the_seconds_of_watch_may_be_left_out() -> None:
    """T1"""
    assert ["--watch", "2"] == with_seconds(["--watch"])
    assert ["-w", "2", "--json"] == with_seconds(["-w", "--json"])
    assert ["--watch", "0.5", "broker-a"] == with_seconds(["--watch", "0.5", "broker-a"])
    assert ["--watch", "2", "broker-a"] == with_seconds(["--watch", "broker-a"])
    assert ["--", "--watch"] == with_seconds(["--", "--watch"])
