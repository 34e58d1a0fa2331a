"""Questions before a command deletes or changes something (T1).

Each such command shows what it would do, and asks. ``--yes`` answers for scripts. Without a terminal and without
``--yes`` it does nothing and says so: a script that hangs on a question would be worse.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Annotated

import typer

from ternmq.cli.output import note
from ternmq.errors import ConfigError

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")]


def confirm(plan: Iterable[str], question: str, *, yes: bool) -> None:
    """Show what would be done, and return only if the user agrees. Raises ``ConfigError`` if there is no terminal."""
    if yes:
        return
    for line in plan:
        note(line)
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} There is no terminal for the answer; add --yes")
    typer.confirm(question, abort=True, err=True)
