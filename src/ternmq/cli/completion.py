"""Shell completion (T1): commands, options, and names of topics, groups and brokers, which the cluster is asked for.

``tern completion bash`` prints a script. The shell then calls ``tern`` at each Tab with the line so far in its
environment. What happens at a Tab must be quick, and must never write into the line that a person types: names are
asked for within ``LIMIT_S``, and any error means that there are none.
"""

from __future__ import annotations

import asyncio
import enum
import logging
import os
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from ternmq.cli import profiles
from ternmq.cli.options import NAME_SERVER_DEFAULT

if TYPE_CHECKING:
    from ternmq.admin import Admin

#: Set by the scripts of shells.
VARIABLE: Final = "_TERN_COMPLETE"
#: A person waits for it.
LIMIT_S: Final = 1.0
#: Longer lists are not readable.
NAMES_MAX: Final = 500


class Shell(enum.StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell.", metavar="bash|zsh|fish")]) -> None:
    """Print the script that completes commands, options, topics, groups and brokers at a Tab.

    Examples:

        source <(tern completion bash)

        tern completion zsh > ~/.zfunc/_tern

        tern completion fish > ~/.config/fish/completions/tern.fish
    """
    from typer._completion_shared import get_completion_script

    typer.echo(get_completion_script(prog_name="tern", complete_var=VARIABLE, shell=shell.value))


def prepare() -> None:
    """Before a line is completed: the classes of shells, and silence."""
    from typer._completion_classes import completion_init

    completion_init()
    logging.disable()


def complete_names(param: Any) -> None:
    """Let a parameter be completed with names from the cluster, if its own name says what it is."""
    find = _FINDERS.get(param.name)
    if find is not None:
        # What typer makes of `autocompletion=` in an option; here for all parameters of a name.
        param._custom_shell_complete = _completer(find)  # noqa: SLF001


def _completer(find: Callable[[Admin], Awaitable[list[str]]]) -> Callable[[Any, Any, str], list[str]]:
    def complete(ctx: Any, _param: Any, incomplete: str) -> list[str]:
        # All errors, also those of this program: a traceback would be typed into the line.
        with suppress(Exception):
            return [name for name in _names(ctx, find) if name.startswith(incomplete)][:NAMES_MAX]
        return []

    return complete


def _names(ctx: Any, find: Callable[[Admin], Awaitable[list[str]]]) -> list[str]:
    from ternmq.admin import Admin

    if profile := ctx.find_root().params.get("profile"):
        profiles.use(profile, os.environ)
    given = ctx.params.get("name_servers")
    servers = given if given not in (None, NAME_SERVER_DEFAULT) else os.environ.get("NAMESRV_ADDR", NAME_SERVER_DEFAULT)

    async def ask() -> list[str]:
        async with asyncio.timeout(LIMIT_S), Admin(servers) as admin:
            return sorted(await find(admin))

    return asyncio.run(ask())


async def _topics(admin: Admin) -> list[str]:
    return [topic.name for topic in await admin.topics.all() if not topic.is_system]


async def _groups(admin: Admin) -> list[str]:
    from ternmq.admin.groups import is_system_group

    return [group for group in await admin.groups.names() if not is_system_group(group)]


async def _brokers(admin: Admin) -> list[str]:
    return list({broker.name for broker in await admin.brokers.all()})


async def _addresses(admin: Admin) -> list[str]:
    return [broker.address for broker in await admin.brokers.all()]


#: By the name of the parameter.
_FINDERS: Final[dict[str, Callable[[Admin], Awaitable[list[str]]]]] = {
    "topic": _topics,
    "topics": _topics,
    "group": _groups,
    "groups": _groups,
    "target_group": _groups,
    "broker": _brokers,
    "address": _addresses,
}
