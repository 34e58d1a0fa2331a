"""``tern broker``: starts one; status, promote (O1, T1)."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli import raft, servers
from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, ConfigFile, Json, LogLevel, NameServers, Set
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from ternmq.admin.brokers import BrokerState
    from ternmq.wire.bodies.replication import BrokerStatus, SlaveLine

app = Commands(invoke_without_command=True)

#: The state of a slave that gets the log (``replication.slave.SlaveState``).
FOLLOWING = "following"
_COLUMNS = (
    "broker",
    "id",
    "role",
    "epoch",
    "address",
    "log_begin",
    "log_end",
    "state",
    "lag_bytes",
    "lag_s",
    "in_sync",
)


@app.callback()
def broker(
    context: typer.Context,
    config: ConfigFile = None,
    name_server: Annotated[
        str | None, typer.Option("--name-server", "-n", metavar="HOST:PORT", help="Name servers, separated by ';'.")
    ] = None,
    settings: Set = None,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Start a broker, and run until Ctrl-C. With a command: show running brokers, or make a slave the master.

    Reads RocketMQ's configuration files. Order of precedence: --set, -n, environment (TERNMQ_LISTEN_PORT),
    file.

    Examples:

        tern broker -c broker.conf -n 10.0.0.1:9876

        tern broker -n 127.0.0.1:9876 --set brokerName=broker-b --set listenPort=10931

        tern broker -n 10.0.0.1:9876 --set brokerName=broker-a --set brokerRole=SLAVE --set brokerId=1

        tern broker status
    """
    if context.invoked_subcommand is None:
        servers.broker(config, name_server, settings, as_json=as_json, log_level=log_level)
    elif config is not None or name_server is not None or settings or as_json:
        raise ConfigError(f"options of `tern broker {context.invoked_subcommand}` go behind its name")


@app.command(cls=Watched)
def status(
    name: Annotated[str | None, typer.Argument(help="Only brokers of this name.", metavar="NAME")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the role, epoch and log of each broker, and how far its slaves are behind.

    lag_s is the time between the last message of the master and the last one that the slave has.

    Examples:

        tern broker status

        tern broker status broker-a --watch 2
    """
    from ternmq.admin import Admin

    async def work() -> list[BrokerState]:
        async with Admin(name_servers) as admin:
            return await admin.brokers.status(name)

    _show(Output(as_json=as_json), run(work()))


class MasterKind(enum.StrEnum):
    SYNC_MASTER = "SYNC_MASTER"
    ASYNC_MASTER = "ASYNC_MASTER"


@app.command(cls=Destructive)
def promote(
    address: Annotated[str, typer.Argument(help="The slave, as `tern broker status` shows it.", metavar="HOST:PORT")],
    role: Annotated[
        MasterKind | None, typer.Option(help="Role of the new master; without it, as the old one was.")
    ] = None,
    force: Annotated[
        bool,
        typer.Option(
            "--force",
            help="Also if the old master may be alive, or another slave may have more. This can lose messages.",
        ),
    ] = False,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Make a slave the master of its name, without a restart.

    A master that is alive hands over: it takes no more messages, waits until the slave has everything, and becomes a
    slave. No message is lost. A master that is gone comes back as a slave, and what only it has is set aside.

    The role is kept over restarts, whatever brokerRole and brokerId say.

    Examples:

        tern broker promote 10.0.0.2:10911

        tern broker promote 10.0.0.2:10911 --force --yes
    """
    from ternmq.admin import Admin

    async def look() -> BrokerStatus:
        async with Admin(name_servers) as admin:
            return await admin.brokers.status_of(address)

    async def work() -> BrokerStatus:
        async with Admin(name_servers) as admin:
            return await admin.brokers.promote(address, force=force, role=role.value if role is not None else "")

    before = run(look())
    confirm([_at_risk(before)], f"make {address} the master of {before.broker}?", yes=yes)
    after = run(work())
    Output(as_json=as_json).item(
        {
            "broker": after.broker,
            "address": address,
            "role": after.role,
            "epoch": after.epoch,
            "log_end": after.log_end,
        },
        f"{address} is {after.role} of {after.broker} now, in epoch {after.epoch} from log offset {after.log_end} on",
    )


def _at_risk(slave: BrokerStatus) -> str:
    """What could be lost, as far as the slave knows."""
    master = slave.master
    if master is None or master.known_end < 0:
        return f"{slave.address} has the log up to {slave.log_end}; it does not know what its master has"
    lag_bytes = max(0, master.known_end - slave.log_end)
    size = (slave.log_end - slave.log_begin) // slave.messages if slave.messages else 0
    count = f" (about {-(-lag_bytes // size)} messages)" if lag_bytes and size else ""
    return (
        f"{slave.address} is {master.state}; {master.known_ms_ago / 1000:.1f} s ago it lacked {lag_bytes} bytes of its "
        f"master{count}. A master that is alive hands over and loses nothing; if it is gone, what the slave lacks, and "
        "what was sent since, is lost"
    )


app.command()(raft.transfer)


# --- Shared -------------------------------------------------------------------------------------------------------


def _show(output: Output, states: list[BrokerState]) -> None:
    if output.as_json:
        output.rows([_fields(state) for state in states], columns=_COLUMNS, empty="")
        return
    lines = {
        (state.info.name, line.broker_id): line for state in states if state.status for line in state.status.slaves
    }
    output.rows([_row(state, lines) for state in states], columns=_COLUMNS, empty="no brokers are registered")
    for state in states:
        if state.trouble:
            note(f"{state.info.address}: {state.trouble}")
        elif state.status is not None and state.status.master is not None and state.status.master.trouble:
            note(f"{state.info.address}: {state.status.master.trouble}")


def _fields(state: BrokerState) -> dict[str, object]:
    from msgspec import to_builtins

    known = {"cluster": state.info.cluster, "broker": state.info.name, "brokerId": state.info.broker_id}
    told = to_builtins(state.status) if state.status is not None else {}
    return {**known, "address": state.info.address, **told, "trouble": state.trouble}


def _row(state: BrokerState, lines: dict[tuple[str, int], SlaveLine]) -> dict[str, object]:
    """A slave's lag is what its master says."""
    status = state.status
    row: dict[str, object] = dict.fromkeys(_COLUMNS)
    row |= {"broker": state.info.name, "id": state.info.broker_id, "address": state.info.address}
    if status is None:
        return row | {"state": "unknown"}
    row |= {"role": status.role, "epoch": status.epoch, "log_begin": status.log_begin, "log_end": status.log_end}
    if status.master is None:
        return row | {"state": "serving" if status.role != "NONE" else "no role"}
    row["state"] = status.master.state
    line = lines.get((state.info.name, status.broker_id))
    # The line may be that of another broker with the same id, or of a connection that has just ended.
    if line is not None and status.master.state == FOLLOWING:
        row |= {"lag_bytes": line.lag_bytes, "lag_s": line.lag_ms / 1000, "in_sync": line.in_sync}
    return row
