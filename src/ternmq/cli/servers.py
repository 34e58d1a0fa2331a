"""``tern up``, ``tern namesrv``, ``tern broker``: the commands that run servers (T1)."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli import logs
from ternmq.cli.options import ConfigFile, Json, LogLevel, Set
from ternmq.cli.output import Output
from ternmq.cli.progress import late_bar
from ternmq.cli.running import check_system, serve
from ternmq.config import Settings
from ternmq.errors import ConfigError, TernError

if TYPE_CHECKING:
    from ternmq.broker.config import BrokerConfig
    from ternmq.namesrv.config import NamesrvConfig
    from ternmq.raft.config import RaftConfig
    from ternmq.replication.config import ReplicationConfig
    from ternmq.store.config import StoreConfig

#: Settings that ``tern up`` sets for each broker, and the option to change them.
_CHOSEN_BY_UP: Final = {
    "listenport": "use --broker-port (the ports of brokers are 20 apart)",
    "brokername": "the brokers are named broker-a, broker-b, …; for other names use `tern broker`",
    "brokerid": "use --slaves; for other ids use `tern broker`",
    "storepathrootdir": "use --dir",
    "namesrvaddr": "use --port; to use other name servers run `tern broker -n`",
    "enabledlegercommitlog": "use --raft",
    "dlegerpeers": "use --raft; for members on several machines use `tern broker`",
    "dlegerselfid": "use --raft; for members on several machines use `tern broker`",
}
#: Features that a developer may want to try; RocketMQ's default is off (K2).
_ON_UNLESS_SAID: Final = ["enablePropertyFilter=true"]
LOOPBACK: Final = "127.0.0.1"
#: From a member's port for clients to the one for the others: 10911 and 40911, as in RocketMQ's examples.
RAFT_PORT_STEP: Final = 30_000
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound


def up(
    directory: Annotated[Path, typer.Option("--dir", help="Directory of the stores.")] = Path("ternmq-data"),
    port: Annotated[int, typer.Option("--port", "-p", help="Port of the name server; 0: any free port.")] = 9876,
    broker_port: Annotated[
        int,
        typer.Option("--broker-port", help="Port of broker-a; the others follow in steps of 20. 0: any free ports."),
    ] = 10911,
    brokers: Annotated[int, typer.Option("--brokers", help="Number of brokers; each is a process.")] = 1,
    slaves: Annotated[int, typer.Option("--slaves", help="Number of slaves of each broker, which copy it.")] = 0,
    raft: Annotated[
        bool, typer.Option("--raft", help="Make the brokers one Raft group, which elects its master; use 3 of them.")
    ] = False,
    host: Annotated[
        str,
        typer.Option(
            "--host",
            help="Address that clients connect to. With any other address than 127.0.0.1, the servers listen on all "
            "interfaces.",
        ),
    ] = LOOPBACK,
    settings: Set = None,
    as_json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Start a name server and brokers on this machine, and run until Ctrl-C.

    By default they accept connections from this machine only. Use --host for other machines, and --set
    bindAddress=ADDRESS for one network. A line that begins with "ready" shows when clients can connect, and where.

    Examples:

        tern up

        tern up --brokers 2 --dir /var/lib/ternmq --set flushDiskType=SYNC_FLUSH

        tern up --slaves 1 --set brokerRole=SYNC_MASTER

        tern up --brokers 3 --raft
    """
    check_system()
    logs.set_up(log_level, label="up")
    serve(
        _up(
            directory=directory,
            port=port,
            broker_port=broker_port,
            brokers=brokers,
            slaves=slaves,
            raft=raft,
            host=host,
            flags=settings or [],
            output=Output(as_json=as_json),
            log_level=log_level,
        )
    )


async def _up(
    *,
    directory: Path,
    port: int,
    broker_port: int,
    brokers: int,
    slaves: int,
    raft: bool,
    host: str,
    flags: Sequence[str],
    output: Output,
    log_level: str,
) -> None:
    from ternmq.broker.config import BrokerConfig
    from ternmq.cli.supervise import BrokerProcesses, plan_brokers
    from ternmq.env import Env
    from ternmq.namesrv.config import NamesrvConfig
    from ternmq.namesrv.server import NameServer
    from ternmq.raft.config import MEMBERS_MAX, RaftConfig
    from ternmq.replication.config import ReplicationConfig
    from ternmq.store.config import StoreConfig

    for option, number in (("--port", port), ("--broker-port", broker_port)):
        if not 0 <= number <= 65_535:
            raise ConfigError(f"invalid {option} {number}: expected a port from 1 to 65535, or 0 for any free port")
    if host in _ANYWHERE:
        raise ConfigError(
            f"invalid --host {host}: clients cannot connect to this address; give the address of this machine"
        )
    bound = LOOPBACK if host in ("localhost", LOOPBACK) else "0.0.0.0"  # noqa: S104 - asked for by --host
    settings = Settings.gather(env=os.environ, flags=flags)
    bound_by_user = {setting.section for setting in settings.given if setting.name == "bindaddress"}
    for setting in settings.given:
        if not setting.shared and setting.name in _CHOSEN_BY_UP:
            raise ConfigError(f"{setting.key} cannot be set with `tern up --set`: {_CHOSEN_BY_UP[setting.name]}")
    settings.report_strangers(BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig, NamesrvConfig)
    settings.report_exposed(BrokerConfig, NamesrvConfig)
    # Built here to find errors before any server runs; the brokers build theirs again.
    settings.build(BrokerConfig)
    settings.build(StoreConfig)
    settings.build(ReplicationConfig)
    settings.build(RaftConfig)
    if raft and slaves:
        raise ConfigError("--raft and --slaves exclude each other: the members of a Raft group copy each other")
    if raft and brokers > MEMBERS_MAX:
        raise ConfigError(f"invalid --brokers {brokers}: a Raft group has at most {MEMBERS_MAX} members; 3 are usual")
    namesrv_config = settings.build(NamesrvConfig)
    kv_path = namesrv_config.kv_config_path or directory / "namesrv" / "kvConfig.json"
    namesrv_config = dataclasses.replace(namesrv_config, listen_port=port, kv_config_path=kv_path)
    if not bound_by_user & {"", "namesrv"}:
        namesrv_config = dataclasses.replace(namesrv_config, bind_address=bound)
    _make_directory(directory)

    origins = {"listenPort": "--port"} | settings.origins(NamesrvConfig)
    async with NameServer(namesrv_config, Env(), origins=origins) as name_server:
        listens_on = namesrv_config.bind_address
        dialled = LOOPBACK if listens_on in _ANYWHERE else listens_on
        known = (BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig)
        strangers = {id(setting) for setting in settings.strangers(*known)}
        plans = plan_brokers(
            count=brokers,
            slaves=slaves,
            raft_ports=_raft_ports(brokers, broker_port, host) if raft else (),
            directory=directory,
            first_port=broker_port,
            host=host,
            name_server=f"{dialled}:{name_server.port}",
            settings=[
                *([] if bound_by_user & {"", "broker"} else [f"bindAddress={bound}"]),
                *([] if any(setting.name == "enablepropertyfilter" for setting in settings.given) else _ON_UNLESS_SAID),
                *(
                    _as_flag(setting.section, setting.key, setting.value)
                    for setting in settings.flags()
                    if id(setting) not in strangers
                ),
            ],
        )
        with late_bar("recover") as tell:
            async with BrokerProcesses.running(plans, log_level=log_level, on_progress=tell) as running:
                address = f"{host}:{name_server.port}"
                output.item(
                    {
                        "event": "ready",
                        "name_server": address,
                        "listens_on": listens_on,
                        "brokers": running.addresses,
                        "pids": running.pids,
                        "dir": str(directory),
                    },
                    f"ready: name server {address}, "
                    + ", ".join(f"{name} {broker}" for name, broker in running.addresses.items())
                    + f"; listening on {listens_on}; data in {directory}",
                )
                raise TernError(await running.first_to_end())


def _raft_ports(count: int, broker_port: int, host: str) -> list[int]:
    """A port for each member of a group, in RocketMQ's distance from those for clients; free ones if those are."""
    from ternmq.cli.supervise import PORTS_APART
    from ternmq.embedded import free_ports

    if broker_port:
        return [broker_port + RAFT_PORT_STEP + PORTS_APART * number for number in range(count)]
    return free_ports(count, host)


def _as_flag(section: str, key: str, value: str) -> str:
    return f"{section}.{key}={value}" if section else f"{key}={value}"


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"cannot use the directory {directory}: {error.strerror}; choose another with --dir"
        ) from None


def namesrv(
    config: ConfigFile = None,
    port: Annotated[int | None, typer.Option("--port", "-p", help="Port to listen on (9876).")] = None,
    settings: Set = None,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Start a name server, and run until Ctrl-C.

    Key-value settings (mqadmin updateKvConfig) are kept in ~/namesrv/kvConfig.json. A second name server on the same
    machine needs another file: --set kvConfigPath=FILE.

    Example:

        tern namesrv -p 9876
    """
    from ternmq.namesrv.config import KV_CONFIG_PATH, NamesrvConfig

    check_system()
    logs.set_up(log_level)
    flags = [*(settings or []), *([f"listenPort={port}"] if port is not None else [])]
    given = Settings.gather(files=[config] if config else [], env=os.environ, flags=flags)
    given.report_strangers(NamesrvConfig)
    given.report_exposed(NamesrvConfig)
    built = given.build(NamesrvConfig)
    # An empty kvConfigPath keeps settings in memory only.
    if not any(setting.name == "kvconfigpath" for setting in given.given):
        built = dataclasses.replace(built, kv_config_path=KV_CONFIG_PATH.expanduser())
    serve(_namesrv(built, given.origins(NamesrvConfig), Output(as_json=as_json)))


async def _namesrv(config: NamesrvConfig, origins: dict[str, str], output: Output) -> None:
    from ternmq.env import Env
    from ternmq.namesrv.server import NameServer

    async with NameServer(config, Env(), origins=origins) as server:
        address = f"{config.bind_address}:{server.port}"
        output.item({"event": "ready", "name_server": address}, f"ready: name server listening on {address}")
        await asyncio.Event().wait()  # until cancelled


def broker(
    config: Path | None, name_server: str | None, settings: list[str] | None, *, as_json: bool, log_level: str
) -> None:
    """Start a broker, and run until Ctrl-C (``cli.brokers``)."""
    check_system()
    from ternmq.broker.config import BrokerConfig
    from ternmq.raft.config import RaftConfig
    from ternmq.replication.config import ReplicationConfig
    from ternmq.store.config import StoreConfig

    logs.set_up(log_level)
    flags = [*([f"namesrvAddr={name_server}"] if name_server else []), *(settings or [])]
    given = Settings.gather(files=[config] if config else [], env=os.environ, flags=flags)
    given.report_strangers(BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig)
    given.report_exposed(BrokerConfig)
    built = given.build(BrokerConfig), given.build(StoreConfig), given.build(ReplicationConfig), given.build(RaftConfig)
    origins = given.origins(BrokerConfig, StoreConfig, ReplicationConfig, RaftConfig)
    serve(_broker(*built, origins, Output(as_json=as_json)))


async def _broker(
    broker_config: BrokerConfig,
    store_config: StoreConfig,
    replication: ReplicationConfig,
    raft: RaftConfig,
    origins: dict[str, str],
    output: Output,
) -> None:
    from ternmq.auth.access import own_credentials
    from ternmq.broker.broker import Broker
    from ternmq.env import Env
    from ternmq.net.peer import format_address

    credentials = own_credentials(broker_config, os.environ)
    with late_bar("recover") as tell:
        async with Broker(
            broker_config,
            store_config,
            Env(),
            replication=replication,
            raft=raft,
            credentials=credentials,
            on_progress=tell,
            origins=origins,
        ) as broker:
            name, store = broker_config.broker_name, store_config.store_path_root_dir
            listens_on = format_address(broker_config.bind_address, broker.port)
            output.item(
                {
                    "event": "ready",
                    "broker": name,
                    "address": broker.address,
                    "listens_on": listens_on,
                    "store": str(store),
                },
                f"ready: {name} listening on {listens_on}, clients connect to {broker.address}; store in {store}",
            )
            await broker.failed()  # until cancelled
