"""``tern quota``: set, show, delete (M1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Watched
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run

if TYPE_CHECKING:
    from ternmq.admin.brokers import BrokerInfo
    from ternmq.admin.quotas import QuotaInfo

app = Commands(no_args_is_help=True, help="Limit what producers send to a topic, and what a group gets.")

_Topic = Annotated[str, typer.Option("--topic", "-t", help="Limit what producers send to this topic.")]
_Group = Annotated[str, typer.Option("--group", "-g", help="Limit what the consumers of this group get.")]


@app.command("set")
def set_(
    topic: _Topic = "",
    group: _Group = "",
    messages: Annotated[int | None, typer.Option("--messages", min=1, help="Messages a second.")] = None,
    size_bytes: Annotated[int | None, typer.Option("--bytes", min=1, help="Bytes of message bodies a second.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Set the quota of a topic or group on each broker that has it, at once and for good.

    Each broker counts alone. A limit that is not given is removed. Producers that exceed it are told SYSTEM_BUSY;
    consumers wait.

    Examples:

        tern quota set --topic orders --messages 1000 --bytes 10000000

        tern quota set --group reports --bytes 1000000
    """
    if messages is None and size_bytes is None:
        raise typer.BadParameter("give --messages, --bytes or both; `tern quota delete` removes a quota")
    _change(topic, group, messages, size_bytes, name_servers, as_json)


@app.command()
def delete(
    topic: _Topic = "",
    group: _Group = "",
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Remove the quota of a topic or group.

    Example:

        tern quota delete --topic orders
    """
    _change(topic, group, None, None, name_servers, as_json)


@app.command(cls=Watched)
def show(name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show all quotas of all brokers.

    Example:

        tern quota show --watch 5
    """
    from ternmq.admin import Admin

    async def work() -> list[QuotaInfo]:
        async with Admin(name_servers) as admin:
            return await admin.quotas.all()

    Output(as_json=as_json).rows(
        [
            {
                "kind": quota.kind,
                "name": quota.name,
                "broker": quota.broker,
                "messages_s": quota.messages,
                "bytes_s": quota.bytes,
            }
            for quota in run(work())
        ],
        columns=("kind", "name", "broker", "messages_s", "bytes_s"),
        empty="no topic and no group has a quota; set one with `tern quota set`",
    )


def _change(
    topic: str, group: str, messages: int | None, size_bytes: int | None, name_servers: str, as_json: bool
) -> None:
    from ternmq.admin import Admin

    if bool(topic) == bool(group):
        raise typer.BadParameter("give either --topic or --group")

    async def work() -> list[BrokerInfo]:
        async with Admin(name_servers) as admin:
            if topic:
                return await admin.quotas.set_topic(topic, messages=messages, size_bytes=size_bytes)
            return await admin.quotas.set_group(group, messages=messages, size_bytes=size_bytes)

    brokers = [broker.name for broker in run(work())]
    what = f"topic {topic}" if topic else f"group {group}"
    limits = [
        f"{rate} {unit}" for rate, unit in ((messages, "messages/s"), (size_bytes, "bytes/s")) if rate is not None
    ]
    Output(as_json=as_json).item(
        {"topic": topic, "group": group, "messages": messages, "bytes": size_bytes, "brokers": brokers},
        f"{what} is limited to {' and '.join(limits)} on each of {', '.join(brokers)}"
        if limits
        else f"{what} has no quota on {', '.join(brokers)}",
    )
