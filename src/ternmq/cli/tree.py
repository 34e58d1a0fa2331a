"""The commands of ``tern``, each with the module that has it (T1).

Modules are imported when one of their commands runs: ``tern send`` does not pay for the forty commands that it is not.
Only the list of all commands (``tern --help``) loads all of them.
"""

from __future__ import annotations

import importlib
from typing import Any, Final

import typer.main
from typer.core import TyperGroup

from ternmq.cli.command import Commands

SERVERS: Final = "Servers"
MESSAGES: Final = "Messages"
ADMINISTRATION: Final = "Administration"
DATA: Final = "Data"

#: In the order of the help: module, attribute (a function, or the ``Commands`` of a group), panel.
COMMANDS: Final = {
    "up": ("servers", "up", SERVERS),
    "namesrv": ("servers", "namesrv", SERVERS),
    "broker": ("brokers", "app", SERVERS),
    "send": ("send", "send", MESSAGES),
    "consume": ("consume", "consume", MESSAGES),
    "message": ("messages", "app", MESSAGES),
    "trace": ("trace", "trace", MESSAGES),
    "delay": ("delay", "app", MESSAGES),
    "bench": ("bench", "bench", MESSAGES),
    "top": ("top", "top", ADMINISTRATION),
    "topic": ("topics", "app", ADMINISTRATION),
    "group": ("groups", "app", ADMINISTRATION),
    "quota": ("quotas", "app", ADMINISTRATION),
    "dlq": ("deadletters", "app", ADMINISTRATION),
    "transaction": ("transactions", "app", ADMINISTRATION),
    "config": ("settings", "app", ADMINISTRATION),
    "doctor": ("doctor", "app", ADMINISTRATION),
    "outbox": ("outbox", "app", ADMINISTRATION),
    "raft": ("raft", "app", ADMINISTRATION),
    "store": ("dump", "app", ADMINISTRATION),
    "user": ("users", "app", ADMINISTRATION),
    "certs": ("certs", "app", ADMINISTRATION),
    "version": ("version", "version", ADMINISTRATION),
    "completion": ("completion", "completion", ADMINISTRATION),
    "pipeline": ("pipelines", "app", DATA),
}


class Tree(TyperGroup):
    """The root of all commands."""

    def list_commands(self, _ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, _ctx: Any, cmd_name: str) -> Any:
        known = self.commands.get(cmd_name)
        if known is None and cmd_name in COMMANDS:
            known = self.commands[cmd_name] = self._load(cmd_name)
        return known

    def _load(self, name: str) -> Any:
        module, attribute, panel = COMMANDS[name]
        found = getattr(importlib.import_module(f"ternmq.cli.{module}"), attribute)
        is_group = isinstance(found, Commands)
        app = found if is_group else Commands(add_completion=False)
        app.rich_markup_mode = self.rich_markup_mode
        if not is_group:
            app.command(name)(found)
        command: Any = typer.main.get_group(app) if is_group else typer.main.get_command(app)
        command.name, command.rich_help_panel = name, panel
        return command
