"""The program ``tern``: its commands, and the one place that turns an error into a sentence and an exit code (T1).

An error is one sentence on stderr that names the cure; its kind is the exit code (``exits``). ``--debug``, anywhere in
the command line, adds the traceback.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from ternmq.cli import completion, logs, profiles
from ternmq.cli.command import Commands
from ternmq.cli.exits import ExitCode, exit_code_of
from ternmq.cli.output import ReaderGone, note, sentence_of
from ternmq.cli.tree import Tree

app = Commands(
    name="tern",
    cls=Tree,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    # Boxes and colours only for terminals; a pipe gets plain text.
    rich_markup_mode="rich" if sys.stdout.isatty() else None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help=(
        "TernMQ: a message queue that speaks RocketMQ's protocol.\n\n"
        "Start a cluster, send a message, read it:\n\n"
        "    tern up\n\n"
        "    tern send orders 'hello' --tag new\n\n"
        "    tern consume orders\n\n"
        "    tern group progress my-group\n\n"
        "Name servers are taken from -n, else from --profile, else from the variable NAMESRV_ADDR; the default is "
        "127.0.0.1:9876."
    ),
    epilog="Help for a command: tern COMMAND --help. Use --debug for tracebacks, --json or --output csv for programs."
    " Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 refused, 5 unreachable.",
)


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", is_eager=True, callback=lambda shown: _show(shown))
    ] = False,
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            envvar="TERNMQ_PROFILE",
            metavar="NAME",
            help="Name servers and credentials from a table of ~/.config/ternmq/profiles.toml.",
        ),
    ] = "",
) -> None:
    """The options of ``tern`` itself."""
    if profile:
        profiles.use(profile, os.environ)


def _show(shown: bool) -> None:
    if shown:
        from ternmq.cli.version import version

        version()
        raise typer.Exit


def main() -> None:
    """The entry point of the program."""
    arguments, debug = _take_debug(sys.argv[1:])
    # Commands report an error themselves, in one sentence; servers set up their own log.
    logs.set_up("debug" if debug else "error")
    if completion.VARIABLE in os.environ:
        completion.prepare()
    try:
        app(args=arguments, prog_name="tern", complete_var=completion.VARIABLE)
    except ReaderGone:
        # Not an error. Without this, Python would complain again when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(ExitCode.INTERRUPTED)
    except Exception as error:
        if debug:
            raise
        note(f"{_label()} {sentence_of(error)}")
        sys.exit(exit_code_of(error))


def _label() -> str:
    """What an error begins with: red in a terminal."""
    is_coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    return typer.style("tern:", fg="red", bold=True) if is_coloured else "tern:"


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """``--debug`` may be anywhere before a ``--``, which begins plain text."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, text = arguments[:end], arguments[end:]
    debug = "--debug" in options or bool(os.environ.get("TERNMQ_DEBUG"))
    return [option for option in options if option != "--debug"] + text, debug
