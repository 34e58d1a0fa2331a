"""``tern config``: settings of running brokers and name servers, shown and changed (T2)."""

from __future__ import annotations

import fnmatch
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run
from ternmq.errors import BrokerMissing, ConfigError

if TYPE_CHECKING:
    from ternmq.admin import Admin
    from ternmq.admin.brokers import BrokerInfo

app = Commands(no_args_is_help=True, help="Show and change the settings of running brokers and name servers.")

Broker = Annotated[
    str | None, typer.Option("--broker", "-b", metavar="NAME", help="A broker's name or address. Without it: all.")
]
OfNameServers = Annotated[bool, typer.Option("--of-name-servers", help="Settings of the name servers, not of brokers.")]


@app.command(cls=Watched)
def show(
    patterns: Annotated[
        list[str] | None, typer.Argument(metavar="[SETTING]...", help="Names of settings; * stands for any text.")
    ] = None,
    broker: Broker = None,
    of_name_servers: OfNameServers = False,
    origin: Annotated[
        bool, typer.Option("--origin", help="Also show where each value was given: default, file and line, …")
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show settings of running brokers or name servers, and which of them can be changed without a restart.

    Examples:

        tern config show

        tern config show 'transaction*' fileReservedTime --broker broker-a

        tern config show --origin --broker broker-a
    """
    from ternmq.admin import Admin
    from ternmq.broker.changes import changeable
    from ternmq.config import rocketmq_name
    from ternmq.namesrv.config import CHANGEABLE

    async def of_brokers(admin: Admin) -> list[dict[str, object]]:
        live = changeable()
        return [
            {"broker": each.name, "id": each.broker_id, **row}
            for each in await _brokers(admin, broker)
            for row in _rows(
                await admin.brokers.settings(each.address),
                await admin.brokers.origins(each.address) if origin else None,
                patterns,
                live,
            )
        ]

    async def of_all_name_servers(admin: Admin) -> list[dict[str, object]]:
        live = {rocketmq_name(name) for name in CHANGEABLE}
        return [
            {"name_server": address, **row}
            for address in await admin.name_servers.all()
            for row in _rows(
                await admin.name_servers.settings(address),
                await admin.name_servers.origins(address) if origin else None,
                patterns,
                live,
            )
        ]

    async def work() -> list[dict[str, object]]:
        async with Admin(name_servers) as admin:
            return await (of_all_name_servers(admin) if of_name_servers else of_brokers(admin))

    _check_choice(broker, of_name_servers=of_name_servers)
    first = ("name_server",) if of_name_servers else ("broker", "id")
    Output(as_json=as_json).rows(
        run(work()),
        columns=(*first, "setting", "value", "live", *(["origin"] if origin else [])),
        empty="no such setting",
    )


@app.command("set", cls=Destructive)
def set_(
    settings: Annotated[list[str], typer.Argument(metavar="KEY=VALUE...", help="Settings and their new values.")],
    broker: Broker = None,
    of_name_servers: OfNameServers = False,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change settings of running brokers or name servers. The changes are kept over restarts.

    A server takes all of the settings, or none. `tern config show` tells which can be changed; others need a restart.

    Examples:

        tern config set fileReservedTime=48 --broker broker-a

        tern config set brokerPermission=4 --broker 10.0.0.2:10911 --yes

        tern config set orderMessageEnable=true --of-name-servers
    """
    from ternmq.admin import Admin

    changes: dict[str, object] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise ConfigError(f"invalid setting {setting!r}: expected KEY=VALUE")
        changes[name.strip()] = value.strip()

    async def find() -> list[BrokerInfo]:
        async with Admin(name_servers) as admin:
            return await _brokers(admin, broker)

    async def change(found: list[BrokerInfo]) -> None:
        async with Admin(name_servers) as admin:
            for each in found:
                await admin.brokers.change_settings(each.address, changes)
                Output(as_json=as_json).item(
                    {"broker": each.name, "id": each.broker_id, "address": each.address, "changed": changes},
                    f"{each.name} at {each.address}: {', '.join(settings)}",
                )

    async def change_name_servers() -> None:
        async with Admin(name_servers) as admin:
            for address in await admin.name_servers.all():
                await admin.name_servers.change_settings(address, changes)
                Output(as_json=as_json).item(
                    {"name_server": address, "changed": changes}, f"name server {address}: {', '.join(settings)}"
                )

    _check_choice(broker, of_name_servers=of_name_servers)
    if of_name_servers:
        # Those that the caller has named: nothing to ask.
        run(change_name_servers())
        return
    found = run(find())
    if len(found) > 1:
        plan = [f"this changes {len(found)} brokers: {', '.join(each.address for each in found)}"]
        confirm(plan, "change all of them?", yes=yes)
    run(change(found))


def _check_choice(broker: str | None, *, of_name_servers: bool) -> None:
    if broker is not None and of_name_servers:
        raise ConfigError("--broker and --of-name-servers exclude each other; choose one of them")


def _rows(
    values: dict[str, str], origins: dict[str, str] | None, patterns: list[str] | None, live: set[str]
) -> list[dict[str, object]]:
    return [
        {
            "setting": name,
            "value": value,
            "live": name in live,
            **({} if origins is None else {"origin": origins.get(name, "default")}),
        }
        for name, value in values.items()
        if not patterns or any(fnmatch.fnmatch(name.lower(), pattern.lower()) for pattern in patterns)
    ]


async def _brokers(admin: Admin, wanted: str | None) -> list[BrokerInfo]:
    brokers = await admin.brokers.all()
    found = [each for each in brokers if wanted in (None, each.name, each.address)]
    if not found:
        known = ", ".join(sorted({each.name for each in brokers})) or "none"
        raise BrokerMissing(f"there is no broker {wanted!r}; the registered brokers are {known}")
    return found
