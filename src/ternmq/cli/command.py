"""What all commands of ``tern`` have in common (T1): options that are added to them, and three marks.

A group of commands is a ``Commands``, not a plain ``typer.Typer``. Then each of its commands is a ``TernCommand``:

- One with ``--json`` also has ``--output table|json|csv``; ``--json`` is its short form.
- One with ``--name-server`` also has ``--profile NAME``, and ``tern --profile NAME COMMAND`` works, too.
- Parameters named ``topic``, ``group`` and ``broker`` are completed with names from the cluster (``completion``).

``cls=Watched`` marks a command that shows a state: it has ``--watch [SECONDS]`` as well. ``cls=Destructive`` marks one
that deletes or overwrites something: it has ``--yes`` and asks with ``confirm``. Tests walk the tree and check that.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any, Final, TypeVar

import typer
import typer.main
from typer.core import TyperCommand

from ternmq.cli import completion, profiles
from ternmq.cli.output import Form, shown_as
from ternmq.cli.watch import EVERY_S, repeat

Function = TypeVar("Function", bound=Callable[..., Any])

_WATCH: Final = ("--watch", "-w")


class TernCommand(TyperCommand):
    """A command with the options that it shares with others.

    The context is typed as ``Any``: typer does not export the class that its own signatures use.
    """

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **more: Any) -> None:
        own = list(params or ())
        names = {param.name for param in own}
        for needed, option in _ADDED.items():
            if needed in names:
                own.append(_shared()[option])
        for param in own:
            completion.complete_names(param)
        super().__init__(name, params=own, **more)

    def invoke(self, ctx: Any) -> Any:
        form = ctx.params.pop("output", None)
        if form is Form.JSON:
            ctx.params["as_json"] = True
        elif form is not None and ctx.params["as_json"]:
            raise typer.BadParameter(f"--json and --output {form} exclude each other; choose one of them")
        with shown_as(form if form is not None else Form.TABLE):
            return super().invoke(ctx)


class Watched(TernCommand):
    """A command that shows a state, once or again and again."""

    def __init__(self, name: str | None, *, params: list[Any] | None = None, **more: Any) -> None:
        super().__init__(name, params=[*(params or ()), _shared()["watch"]], **more)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, with_seconds(args))

    def invoke(self, ctx: Any) -> Any:
        every_s = ctx.params.pop("watch")
        if every_s is None:
            return super().invoke(ctx)
        params = dict(ctx.params)

        def show() -> None:
            ctx.params = dict(params)
            super(Watched, self).invoke(ctx)

        redraws = not params.get("as_json") and params.get("output") in (None, Form.TABLE)
        repeat(show, every_s, title=ctx.command_path, redraws=redraws)
        return None


class Destructive(TernCommand):
    """A command that deletes or overwrites something: it shows what, and asks (``confirm``)."""


class Commands(typer.Typer):
    """A group of commands."""

    def command(
        self, name: str | None = None, *, cls: type[TyperCommand] | None = TernCommand, **more: Any
    ) -> Callable[[Function], Function]:
        return super().command(name, cls=cls, **more)


def with_seconds(arguments: Sequence[str]) -> list[str]:
    """Arguments with a number after ``--watch``: it may be left out, which typer cannot express."""
    given: list[str] = []
    for index, argument in enumerate(arguments):
        if argument == "--":
            return [*given, *arguments[index:]]
        given.append(argument)
        if argument in _WATCH and not _is_number(arguments[index + 1 : index + 2]):
            given.append(str(EVERY_S))
    return given


def _is_number(following: Sequence[str]) -> bool:
    try:
        return bool(following) and float(following[0]) == float(following[0])
    except ValueError:
        return False


# --- Options that are added --------------------------------------------------------------------------------------


def _use_profile(name: str) -> None:
    """Into the environment, from which the name servers come if -n is not given: options that are given go first."""
    if name:
        profiles.use(name, os.environ)


def _template(
    output: Annotated[
        Form | None,
        typer.Option(
            "--output", "-o", metavar="table|json|csv", help="Form of the output; --json is short for --output json."
        ),
    ] = None,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            metavar="NAME",
            help="Cluster and credentials from the profiles; -n wins over its name servers.",
            expose_value=False,
            callback=_use_profile,
        ),
    ] = "",
    watch: Annotated[
        float | None,
        typer.Option(
            *_WATCH, min=0.1, metavar="[SECONDS]", help=f"Show it again and again, every {EVERY_S} s by default."
        ),
    ] = None,
) -> None:
    """Not a command: typer makes its options, which others get."""


#: Which parameter of a command asks for which option.
_ADDED: Final = {"as_json": "output", "name_servers": "profile"}


@cache
def _shared() -> dict[str, Any]:
    template = typer.Typer(add_completion=False)
    template.command()(_template)
    return {str(param.name): param for param in typer.main.get_command(template).params}
