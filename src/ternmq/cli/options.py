"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

NAME_SERVER_DEFAULT: Final = "127.0.0.1:9876"

NameServers = Annotated[
    str,
    typer.Option(
        "--name-server",
        "-n",
        envvar="NAMESRV_ADDR",
        metavar="HOST:PORT",
        help="Name servers, separated by ';', or the URL of an address server.",
    ),
]
GroupArgument = Annotated[str, typer.Argument(help="Name of the group.", metavar="GROUP")]
TopicArgument = Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting; overrides file and environment. Can be repeated."),
]
ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="Configuration file: key=value as for RocketMQ, or .toml."),
]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warning or error.")]
