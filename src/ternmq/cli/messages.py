"""``tern message``: show, at, find, consume (F10, L1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.command import Commands
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers, TopicArgument
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.cli.shown import body_preview, fields_of, lines_of
from ternmq.cli.times import format_ms, parse_time
from ternmq.env import SystemClock
from ternmq.errors import NotFound

if TYPE_CHECKING:
    from ternmq.message import ReceivedMessage

app = Commands(no_args_is_help=True, help="Find messages by id, key, queue offset or time.")


#: How many messages brokers return for one key at most, and the default.
COUNT_MAX: Final = 64


@app.command()
def show(
    message_id: Annotated[str, typer.Argument(help="An offset id; with --topic, a message id.", metavar="ID")],
    topic: Annotated[
        str | None, typer.Option("--topic", "-t", help="Topic of the message id that `tern send` prints.")
    ] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show one message, by its id.

    The offset id names one record on one broker. The producer sets the message id; it stays the same in copies of the
    message; brokers find it in the index of a topic.

    Examples:

        tern message show 7F00000100002A9F0000000000000000

        tern message show C0A8000700010B1E4A3C5D2B7E8F0000 --topic orders
    """
    from ternmq.admin import Admin

    async def work() -> list[ReceivedMessage]:
        async with Admin(name_servers) as admin:
            if topic is None:
                return [await admin.messages.by_id(message_id)]
            return await admin.messages.by_unique_key(topic, message_id)

    found = run(work())
    if not found:
        raise NotFound(
            f"topic {topic!r} has no message with the id {message_id!r}; it was deleted, or belongs to another "
            "topic. If this is an offset id, omit --topic"
        )
    _show_all(found, as_json=as_json)


@app.command("at")
def at_(
    topic: TopicArgument,
    broker: Annotated[str, typer.Argument(help="Name of the broker.", metavar="BROKER")],
    queue: Annotated[int, typer.Argument(help="Number of the queue.", metavar="QUEUE", min=0)],
    queue_offset: Annotated[int, typer.Argument(help="Queue offset of the message.", metavar="OFFSET", min=0)],
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show one message, by its queue offset.

    Example:

        tern message at orders broker-a 3 1024
    """
    from ternmq.admin import Admin
    from ternmq.message import MessageQueue

    async def work() -> ReceivedMessage:
        async with Admin(name_servers) as admin:
            return await admin.messages.by_queue_offset(MessageQueue(topic, broker, queue), queue_offset)

    _show_all([run(work())], as_json=as_json)


@app.command()
def find(
    topic: TopicArgument,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Key of the messages.")] = None,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="With --key: stored at this time or later.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="With --key: stored at this time or earlier.")
    ] = None,
    count: Annotated[
        int, typer.Option("--count", min=1, max=COUNT_MAX, help="With --key: show at most this many, the newest first.")
    ] = COUNT_MAX,
    time: Annotated[
        str | None,
        typer.Option("--time", metavar="TIME", help="The first message of each queue stored at this time or later."),
    ] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List messages with a key, or the first message of each queue since a time.

    `tern message at` shows one message of the list in full; --json shows all in full. A TIME is
    2026-01-31T12:00:00.250, 15m (ago), or milliseconds since 1970.

    Examples:

        tern message find orders --key order-4711 --from 2h

        tern message find orders --time 2026-01-31T12:00
    """
    from ternmq.admin import Admin

    if (key is None) == (time is None):
        raise typer.BadParameter("give either --key or --time")
    if time is not None and (begin is not None or end is not None):
        raise typer.BadParameter("--from and --to need --key; they cannot be combined with --time")
    now_ms = SystemClock().now_ms()
    begin_ms, end_ms, time_ms = (
        None if text is None else parse_time(text, now_ms=now_ms) for text in (begin, end, time)
    )

    async def work() -> list[ReceivedMessage]:
        async with Admin(name_servers) as admin:
            if key is not None:
                return await admin.messages.by_key(topic, key, begin=begin_ms, end=end_ms, count_max=count)
            assert time_ms is not None
            return await admin.messages.by_time(topic, time_ms)

    found = run(work())
    output = Output(as_json=as_json)
    output.rows(
        [fields_of(message) if as_json else _row(message) for message in found],
        columns=("stored", "broker", "queue", "queue_offset", "keys", "body"),
        empty=f"topic {topic} has no message"
        + (f" since {format_ms(time_ms)}" if time_ms is not None else f" with the key {key}"),
    )
    if key is not None and len(found) == count and output.is_terminal and not as_json:
        note(f"only the newest {count} are shown; for more, use --count or --to")


@app.command()
def consume(
    message_id: Annotated[str, typer.Argument(help="An offset id; with --topic, a message id.", metavar="ID")],
    group: Annotated[
        str, typer.Argument(help="Name of the group whose listener processes the message.", metavar="GROUP")
    ],
    client: Annotated[
        str | None, typer.Option("--client", help="Client id of the member; default: any member.")
    ] = None,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Topic of the message id.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let an active consumer process one message, and show the result of its listener.

    The offsets of the group do not change, and the message is not sent back, whatever the result is.

    Example:

        tern message consume 7F00000100002A9F0000000000000000 billing
    """
    from ternmq.admin import Admin
    from ternmq.admin.clients import Consumed

    async def work() -> Consumed:
        async with Admin(name_servers) as admin:
            offset_id = message_id
            if topic is not None:
                found = await admin.messages.by_unique_key(topic, message_id)
                if not found:
                    raise NotFound(f"topic {topic!r} has no message with the id {message_id!r}")
                offset_id = found[-1].offset_id
            return await admin.clients.consume(group, offset_id, client_id=client)

    told = run(work())
    Output(as_json=as_json).item(
        asdict(told),
        f"{told.client_id} returned {told.result} after {told.took_ms} ms"
        + (f": {told.remark}" if told.remark else ""),
    )


def _row(message: ReceivedMessage) -> dict[str, object]:
    return {
        "stored": format_ms(message.store_time_ms),
        "broker": message.broker_name,
        "queue": message.queue_id,
        "queue_offset": message.queue_offset,
        "keys": message.keys or None,
        "body": body_preview(message),
    }


def _show_all(messages: Sequence[ReceivedMessage], *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    for message in messages:
        if as_json:
            output.item(fields_of(message), "")
        else:
            output.rows(lines_of(message), columns=("field", "value"), empty="")
