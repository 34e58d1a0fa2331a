"""``tern backup``: copies of the stores of running brokers (T1)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from ternmq.cli.command import Commands
from ternmq.cli.options import NAME_SERVER_DEFAULT, ConfigFile, Json, NameServers, Set
from ternmq.cli.output import Output
from ternmq.cli.progress import progress_bar
from ternmq.cli.running import run
from ternmq.config import Settings
from ternmq.errors import BrokerMissing

app = Commands(no_args_is_help=True)

BackupDirectory = Annotated[Path, typer.Argument(help="Directory of the backup.", metavar="DIR")]

_PATIENCE_S: Final = 30.0


@app.callback()
def backup() -> None:
    """Copy the store of a running broker, check such copies, and restore them.

    A backup is consistent: messages, messages that wait for their time, topics, groups and offsets of one moment. The
    broker goes on with its work.
    """


@app.command()
def create(
    broker: Annotated[str, typer.Argument(help="Name of the broker, or HOST:PORT of its master.", metavar="BROKER")],
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="An empty directory, or an older backup of it.")],
    patience: Annotated[
        float, typer.Option("--patience", min=1, metavar="SECONDS", help="Give up if nothing comes for so long.")
    ] = _PATIENCE_S,
    settings: Set = None,
    config: ConfigFile = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Copy the store of a running broker; into an older backup, only what is new.

    It works as a slave of the broker, for which no send waits. Where slaves need keys or TLS, it takes them as a
    slave does: from TERNMQ_ACCESS_KEY and TERNMQ_SECRET_KEY, and from --config or --set tls.enable=true.

    Examples:

        tern backup create broker-a --to /backups/broker-a

        tern backup create 10.0.0.2:10911 --to /backups/broker-a --set tls.enable=true
    """
    from ternmq.admin import Admin
    from ternmq.auth.access import own_credentials
    from ternmq.broker.backup import Backup
    from ternmq.broker.config import BrokerConfig

    given = Settings.gather(files=[config] if config else [], env=os.environ, flags=settings or [])

    async def work() -> None:
        async with Admin(name_servers) as admin:
            address = broker
            if ":" not in broker:
                masters = [each.address for each in await admin.brokers.masters() if each.name == broker]
                if not masters:
                    raise BrokerMissing(f"no master of {broker!r} is registered; see `tern broker status`")
                address = masters[0]
            status = await admin.brokers.status_of(address)
            told = await admin.brokers.settings(address)
        credentials = own_credentials(given.build(BrokerConfig), os.environ)
        with progress_bar("backup") as tell:
            note = await Backup(to, status, told, given, credentials).run(tell, patience_s=patience)
        Output(as_json=as_json).item(
            {
                "broker": note.broker,
                "directory": str(to),
                "messages": note.messages,
                "log_begin": note.log_begin,
                "log_end": note.log_end,
            },
            f"{to} is a backup of {note.broker}: {note.messages} messages, log from {note.log_begin} to {note.log_end}",
        )

    run(work())


@app.command()
def verify(directory: BackupDirectory, as_json: Json = False) -> None:
    """Check each record, queue, index and table of a backup. The exit code is 1 if there is a fault.

    Example:

        tern backup verify /backups/broker-a
    """
    from ternmq.broker.backup import read_note
    from ternmq.cli.store import verify as verify_store

    note = read_note(directory)
    verify_store(directory, [f"{name}={value}" for name, value in note.settings.items()], None, as_json)


@app.command()
def restore(
    directory: BackupDirectory,
    to: Annotated[Path, typer.Option("--to", metavar="DIR", help="Directory of the new store; it must be empty.")],
    as_json: Json = False,
) -> None:
    """Copy a backup to the directory of a store. Then start a broker on it, under the old name.

    Messages and progress that came after the backup are missing: consumers get some messages again.

    Example:

        tern backup restore /backups/broker-a --to /var/lib/ternmq/broker-a
    """
    from ternmq.broker.backup import restore as copy

    with progress_bar("restore") as tell:
        note = copy(directory, to, tell)
    sizes = " ".join(f"--set {name}={value}" for name, value in note.settings.items())
    Output(as_json=as_json).item(
        {"broker": note.broker, "cluster": note.cluster, "directory": str(to), "settings": note.settings},
        f"{to} has the store of {note.broker}; start it with `tern broker --set brokerName={note.broker} "
        f"--set brokerClusterName={note.cluster} --set storePathRootDir={to} {sizes}`",
    )
