"""``tern delay``: stats, list, peek, cancel (I2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run
from ternmq.cli.shown import body_preview, fields_of
from ternmq.cli.times import format_ms

if TYPE_CHECKING:
    from ternmq.admin.delays import DelayedMessage, DelayStats

app = Commands(no_args_is_help=True, help="Manage messages that wait for their delivery time.")


@app.command("list", cls=Watched)
def list_(name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False) -> None:
    """List the topics that have waiting messages, with their number.

    Example:

        tern delay list
    """
    counts = _stats(name_servers, None)
    Output(as_json=as_json).rows(
        [{"topic": topic, "waiting": count} for topic, count in counts.topics.items()],
        columns=("topic", "waiting"),
        empty="no messages are waiting for their delivery time",
    )


@app.command(cls=Watched)
def stats(
    topic: Annotated[str | None, typer.Argument(help="Count only this topic; default: all.", metavar="TOPIC")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show how many messages are due in each hour.

    Examples:

        tern delay stats

        tern delay stats reminders
    """
    counts = _stats(name_servers, topic)
    Output(as_json=as_json).rows(
        [
            {
                "hour": int(hour.timestamp() * 1000) if as_json else format_ms(int(hour.timestamp() * 1000))[:16],
                "waiting": count,
            }
            for hour, count in counts.hours.items()
        ],
        columns=("hour", "waiting"),
        empty=f"no messages {f'to {topic} ' if topic else ''}are waiting for their delivery time",
    )


@app.command(cls=Watched)
def peek(
    topic: Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")],
    count: Annotated[int, typer.Option("--count", min=1, max=256, help="Show at most this many.")] = 32,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show waiting messages of a topic, the next ones first, with the handles for `tern delay cancel`.

    Example:

        tern delay peek reminders --count 5
    """
    from ternmq.admin import Admin

    async def work() -> list[DelayedMessage]:
        async with Admin(name_servers) as admin:
            return await admin.delays.peek(topic, count_max=count)

    rows: list[dict[str, object]] = [
        {
            **(fields_of(each.message) if as_json else {}),
            "topic": each.topic,
            "due": each.due_ms if as_json else format_ms(each.due_ms)[:19],
            "message_id": each.message.message_id,
            "handle": each.recall_handle,
            **({} if as_json else {"body": body_preview(each.message)}),
        }
        for each in run(work())
    ]
    Output(as_json=as_json).rows(
        rows,
        columns=("due", "message_id", "body", "handle"),
        empty=f"no messages to {topic} are waiting for their delivery time",
    )


@app.command(cls=Destructive)
def cancel(
    handle: Annotated[
        str, typer.Argument(help="Recall handle, from `tern send` or `tern delay peek`.", metavar="HANDLE")
    ],
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Cancel a message before its delivery time; no consumer will get it.

    Example:

        tern delay cancel djEgb3JkZXJzIGJyb2tlci1hIDE3OTQ4...
    """
    from ternmq.admin import Admin
    from ternmq.wire.recall import parse_handle

    async def work() -> str:
        async with Admin(name_servers) as admin:
            return await admin.delays.cancel(handle)

    named = parse_handle(handle)
    confirm(
        [f"message {named.unique_key} to {named.topic}, on {named.broker_name}, will not be delivered"],
        "cancel this message?",
        yes=yes,
    )
    message_id = run(work())
    Output(as_json=as_json).item({"message_id": message_id}, f"message {message_id} is cancelled")


def _stats(name_servers: str, topic: str | None) -> DelayStats:
    from ternmq.admin import Admin

    async def work() -> DelayStats:
        async with Admin(name_servers) as admin:
            return await admin.delays.stats(topic)

    return run(work())
