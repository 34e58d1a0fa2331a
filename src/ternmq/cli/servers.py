"""``tern up``, ``tern namesrv``, ``tern broker``: the commands that stay and serve (T1)."""

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
from ternmq.cli.running import serve
from ternmq.config import Settings
from ternmq.errors import ConfigError, TernError

if TYPE_CHECKING:
    from ternmq.broker.config import BrokerConfig
    from ternmq.namesrv.config import NamesrvConfig
    from ternmq.store.config import StoreConfig

#: Settings that ``tern up`` gives each broker itself, and the option that moves them.
_CHOSEN_BY_UP: Final = {
    "listenport": "use --broker-port (brokers are 20 ports apart)",
    "brokername": "brokers are called broker-a, broker-b, …; for other names use `tern broker`",
    "storepathrootdir": "use --dir",
    "namesrvaddr": "use --port; to join other name servers use `tern broker -n`",
}
#: What a developer may want to try; RocketMQ's default is off (K2).
_ON_UNLESS_SAID: Final = ["enablePropertyFilter=true"]
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", ""})  # noqa: S104 - compared with, not bound


def up(
    directory: Annotated[Path, typer.Option("--dir", help="Where the stores are kept.")] = Path("ternmq-data"),
    port: Annotated[int, typer.Option("--port", help="Port of the name server; 0 takes a free one.")] = 9876,
    broker_port: Annotated[
        int, typer.Option("--broker-port", help="Port of broker-a; the next ones are 20 apart. 0 takes free ones.")
    ] = 10911,
    brokers: Annotated[int, typer.Option("--brokers", help="How many brokers, a process each.")] = 1,
    host: Annotated[str, typer.Option("--host", help="The address that clients are told to connect to.")] = "127.0.0.1",
    settings: Set = None,
    as_json: Json = False,
    log_level: LogLevel = "warning",
) -> None:
    """Start a name server and brokers here, and run until Ctrl-C.

    One line that begins with «ready» says when clients can use them.

    Examples:

        tern up

        tern up --brokers 2 --dir /var/lib/ternmq --set flushDiskType=SYNC_FLUSH
    """
    logs.set_up(log_level, label="up")
    serve(
        _up(
            directory=directory,
            port=port,
            broker_port=broker_port,
            brokers=brokers,
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
    host: str,
    flags: Sequence[str],
    output: Output,
    log_level: str,
) -> None:
    from ternmq.broker.config import BrokerConfig
    from ternmq.cli.supervise import Brokers, plan_brokers
    from ternmq.env import Env
    from ternmq.namesrv.config import NamesrvConfig
    from ternmq.namesrv.server import NameServer
    from ternmq.store.config import StoreConfig

    for option, number in (("--port", port), ("--broker-port", broker_port)):
        if not 0 <= number <= 65_535:
            raise ConfigError(f"{option} {number} is no port; use 1 to 65535, or 0 for any free one")
    settings = Settings.gather(env=os.environ, flags=flags)
    for setting in settings.given:
        if not setting.shared and setting.name in _CHOSEN_BY_UP:
            raise ConfigError(f"{setting.key} is not for `tern up --set`: {_CHOSEN_BY_UP[setting.name]}")
    settings.report_strangers(BrokerConfig, StoreConfig, NamesrvConfig)
    # Built here to find what is wrong before anything runs; the brokers build theirs again.
    settings.build(BrokerConfig)
    settings.build(StoreConfig)
    namesrv_config = settings.build(NamesrvConfig)
    kv_path = namesrv_config.kv_config_path or directory / "namesrv" / "kvConfig.json"
    namesrv_config = dataclasses.replace(namesrv_config, listen_port=port, kv_config_path=kv_path)
    _make_directory(directory)

    async with NameServer(namesrv_config, Env()) as name_server:
        bound = namesrv_config.bind_address
        dialled = "127.0.0.1" if bound in _ANYWHERE else bound
        strangers = {id(setting) for setting in settings.strangers(BrokerConfig, StoreConfig)}
        plans = plan_brokers(
            count=brokers,
            directory=directory,
            first_port=broker_port,
            host=host,
            name_server=f"{dialled}:{name_server.port}",
            settings=[
                *([] if any(setting.name == "enablepropertyfilter" for setting in settings.given) else _ON_UNLESS_SAID),
                *(
                    _as_flag(setting.section, setting.key, setting.value)
                    for setting in settings.given
                    if not setting.shared and id(setting) not in strangers
                ),
            ],
        )
        with late_bar("recover") as tell:
            async with Brokers.running(plans, log_level=log_level, on_progress=tell) as running:
                address = f"{host}:{name_server.port}"
                output.item(
                    {
                        "event": "ready",
                        "name_server": address,
                        "brokers": running.addresses,
                        "pids": running.pids,
                        "dir": str(directory),
                    },
                    f"ready: name server {address}, "
                    + ", ".join(f"{name} {broker}" for name, broker in running.addresses.items())
                    + f"; data in {directory}",
                )
                raise TernError(await running.first_to_end())


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

    Example:

        tern namesrv -p 9876
    """
    from ternmq.namesrv.config import NamesrvConfig

    logs.set_up(log_level)
    flags = [*(settings or []), *([f"listenPort={port}"] if port is not None else [])]
    given = Settings.gather(files=[config] if config else [], env=os.environ, flags=flags)
    given.report_strangers(NamesrvConfig)
    serve(_namesrv(given.build(NamesrvConfig), Output(as_json=as_json)))


async def _namesrv(config: NamesrvConfig, output: Output) -> None:
    from ternmq.env import Env
    from ternmq.namesrv.server import NameServer

    async with NameServer(config, Env()) as server:
        address = f"{config.bind_address}:{server.port}"
        output.item({"event": "ready", "name_server": address}, f"ready: name server {address}")
        await asyncio.Event().wait()  # until cancelled


def broker(
    config: ConfigFile = None,
    name_server: Annotated[
        str | None, typer.Option("--name-server", "-n", metavar="HOST:PORT", help="Name servers, joined by ';'.")
    ] = None,
    settings: Set = None,
    as_json: Json = False,
    log_level: LogLevel = "info",
) -> None:
    """Start a broker, and run until Ctrl-C.

    Takes RocketMQ's own configuration files. Settings rank: --set over -n, over the environment (TERNMQ_LISTEN_PORT),
    over the file.

    Examples:

        tern broker -c broker.conf -n 10.0.0.1:9876

        tern broker -n 127.0.0.1:9876 --set brokerName=broker-b --set listenPort=10931
    """
    from ternmq.broker.config import BrokerConfig
    from ternmq.store.config import StoreConfig

    logs.set_up(log_level)
    flags = [*([f"namesrvAddr={name_server}"] if name_server else []), *(settings or [])]
    given = Settings.gather(files=[config] if config else [], env=os.environ, flags=flags)
    given.report_strangers(BrokerConfig, StoreConfig)
    serve(_broker(given.build(BrokerConfig), given.build(StoreConfig), Output(as_json=as_json)))


async def _broker(broker_config: BrokerConfig, store_config: StoreConfig, output: Output) -> None:
    from ternmq.broker.broker import Broker
    from ternmq.env import Env

    with late_bar("recover") as tell:
        async with Broker(broker_config, store_config, Env(), on_progress=tell) as broker:
            name, store = broker_config.broker_name, store_config.store_path_root_dir
            output.item(
                {"event": "ready", "broker": name, "address": broker.address, "store": str(store)},
                f"ready: {name} {broker.address}; store in {store}",
            )
            await asyncio.Event().wait()  # until cancelled
