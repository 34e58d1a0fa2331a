"""``tern group``: list, progress (D2, D4)."""

from __future__ import annotations

from typing import Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.cli.times import format_ms

app = typer.Typer(no_args_is_help=True, help="List consumer groups and see how far they are.")


@app.command("list")
def list_(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Also groups of the system.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List consumer groups, their live members and how many messages wait."""
    from ternmq.admin import Admin
    from ternmq.admin.groups import GroupInfo

    async def work() -> list[GroupInfo]:
        async with Admin(name_servers) as admin:
            return await admin.groups.all(system=everything)

    Output(as_json=as_json).rows(
        [
            {"group": group.name, "members": group.members, "model": group.model or None, "lag": group.lag}
            for group in run(work())
        ],
        columns=("group", "members", "model", "lag"),
        empty="no groups yet; the first consumer of a group makes it",
    )


@app.command()
def progress(
    group: Annotated[str, typer.Argument(help="Name of the group.", metavar="GROUP")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show how far a group is in each queue, and how many messages wait (lag).

    Example:

        tern group progress billing --topic orders
    """
    from ternmq.admin import Admin
    from ternmq.admin.groups import QueueProgress

    async def work() -> list[QueueProgress]:
        async with Admin(name_servers) as admin:
            return await admin.groups.progress(group, topic=topic)

    found = run(work())
    output = Output(as_json=as_json)
    output.rows(
        [
            {
                "topic": one.queue.topic,
                "broker": one.queue.broker_name,
                "queue": one.queue.queue_id,
                "broker_offset": one.broker_offset,
                "consumer_offset": one.consumer_offset,
                "lag": one.lag,
                "consumed_up_to": one.last_store_ms if as_json else format_ms(one.last_store_ms),
            }
            for one in found
        ],
        columns=("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "consumed_up_to"),
        empty=f"group {group} has consumed nothing{f' of {topic}' if topic else ''} yet",
    )
    if output.is_terminal and not as_json and found:
        note(f"{sum(one.lag for one in found)} messages wait in {len(found)} queues")
