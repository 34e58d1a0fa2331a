"""The program ``tern``: its commands, and the one place that turns an error into a sentence and an exit code (T1).

Exit codes: 0 done, 1 an error (one sentence on stderr that names the cure), 2 wrong usage. ``--debug``, anywhere in the
command line, adds the traceback.
"""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Annotated

import typer

from ternmq.cli import (
    backup,
    brokers,
    certs,
    deadletters,
    delay,
    groups,
    logs,
    messages,
    outbox,
    pipelines,
    profiles,
    raft,
    servers,
    settings,
    store,
    topics,
    transactions,
    users,
)
from ternmq.cli.consume import consume
from ternmq.cli.dump import dump
from ternmq.cli.options import Json
from ternmq.cli.output import Output, ReaderGone, note, sentence_of
from ternmq.cli.send import send
from ternmq.cli.trace import trace

app = typer.Typer(
    name="tern",
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
        "Name servers are taken from -n, else from the variable NAMESRV_ADDR; the default is 127.0.0.1:9876."
    ),
    epilog="Help for a command: tern COMMAND --help. Use --debug for tracebacks, --json for machine-readable output.",
)

app.command(rich_help_panel="Servers")(servers.up)
app.command(rich_help_panel="Servers")(servers.namesrv)
brokers.app.command()(raft.transfer)
app.add_typer(brokers.app, name="broker", rich_help_panel="Servers")
app.command(rich_help_panel="Messages")(send)
app.command(rich_help_panel="Messages")(consume)
app.add_typer(messages.app, name="message", rich_help_panel="Messages")
app.command(rich_help_panel="Messages")(trace)
app.add_typer(delay.app, name="delay", rich_help_panel="Messages")
app.add_typer(topics.app, name="topic", rich_help_panel="Administration")
app.add_typer(groups.app, name="group", rich_help_panel="Administration")
app.add_typer(deadletters.app, name="dlq", rich_help_panel="Administration")
app.add_typer(transactions.app, name="transaction", rich_help_panel="Administration")
app.add_typer(settings.app, name="config", rich_help_panel="Administration")
app.add_typer(outbox.app, name="outbox", rich_help_panel="Administration")
app.add_typer(raft.app, name="raft", rich_help_panel="Administration")
store.app.command()(dump)
app.add_typer(store.app, name="store", rich_help_panel="Administration")
app.add_typer(backup.app, name="backup", rich_help_panel="Administration")
app.add_typer(users.app, name="user", rich_help_panel="Administration")
app.add_typer(certs.app, name="certs", rich_help_panel="Administration")
app.add_typer(pipelines.app, name="pipeline", rich_help_panel="Data")


@app.command(rich_help_panel="Administration")
def version(as_json: Json = False) -> None:
    """Print the versions of TernMQ, Python and the event loop, and whether compiled kernels are used."""
    import platform
    from importlib import metadata

    from ternmq import kernels

    try:
        loop = f"uvloop {metadata.version('uvloop')}"
    except metadata.PackageNotFoundError:
        loop = "asyncio"
    ternmq, python = metadata.version("ternmq"), platform.python_version()
    used = kernels.describe()
    Output(as_json=as_json).item(
        {"ternmq": ternmq, "python": python, "loop": loop, "kernels": used},
        f"tern {ternmq} (Python {python}, {loop}, {used})",
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
        version()
        raise typer.Exit


def main() -> None:
    """The entry point of the program."""
    arguments, debug = _take_debug(sys.argv[1:])
    # Commands report an error themselves, in one sentence; servers set up their own log.
    logs.set_up("debug" if debug else "error")
    try:
        app(args=arguments, prog_name="tern")
    except ReaderGone:
        # Not an error. Without this, Python would complain again when it flushes stdout at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (KeyboardInterrupt, asyncio.CancelledError):
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        note(f"tern: {sentence_of(error)}")
        sys.exit(1)


def _take_debug(arguments: list[str]) -> tuple[list[str], bool]:
    """``--debug`` may be anywhere before a ``--``, which begins plain text."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    options, text = arguments[:end], arguments[end:]
    debug = "--debug" in options or bool(os.environ.get("TERNMQ_DEBUG"))
    return [option for option in options if option != "--debug"] + text, debug
