"""``tern consume`` (F1, F3, F6).

Four ways to read, by what the reader leaves behind:

- Without a group: nothing. Each reader sees all messages, as often as it likes; brokers keep no progress.
- ``--group`` that follows: a member of the group like any other. Queues are shared with the other members, progress is
  kept, and a second ``tern consume`` with the same group takes over half of the queues.
- ``--group --share``: one of any number of consumers that share the messages of the group, however many queues there
  are (R1).
- ``--group --no-follow``: works off what waits for the group, stores its progress and ends. That is no membership, so
  it is refused while the group has members: they would read the same messages.

What is there already comes in the order in which it was stored, over all queues; what follows comes as it arrives.
"""

from __future__ import annotations

import asyncio
import heapq
import os
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Final, NamedTuple

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.running import serve
from ternmq.cli.shown import body_text, fields_of
from ternmq.cli.times import format_ms, parse_position
from ternmq.errors import ConfigError, TernError
from ternmq.names import TOOLS_GROUP
from ternmq.tasks import Tasks

if TYPE_CHECKING:
    from ternmq.client.consume.offsets import StartPosition
    from ternmq.client.consume.pull import PullConsumer
    from ternmq.message import MessageQueue, ReceivedMessage

#: Messages read ahead while those before are printed.
AHEAD_MAX: Final = 1_000
#: Between two tries to reach a broker that is away.
RETRY_S: Final = 1.0


class _Filter(NamedTuple):
    """Which messages: with one of the tags, or for which an SQL expression is true."""

    tags: str
    sql: str | None


def consume(
    topic: Annotated[str, typer.Argument(help="Topic to read.", metavar="TOPIC")],
    group: Annotated[
        str | None, typer.Option("--group", "-g", help="Consume as a member of this group, and store its offsets.")
    ] = None,
    start: Annotated[
        str,
        typer.Option("--from", metavar="first|last|TIME", help="Start: 2026-01-31T12:00, 15m (ago), or ms since 1970."),
    ] = "first",
    tags: Annotated[
        str, typer.Option("--tag", "-T", metavar="EXPR", help="Only messages with these tags: 'new || paid'.")
    ] = "*",
    sql: Annotated[
        str | None, typer.Option("--sql", metavar="EXPR", help='Only messages whose properties match: "amount > 5".')
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="Wait for new messages, or stop at the end of the queues.")
    ] = True,
    share: Annotated[
        bool, typer.Option("--share", help="With --group: share all queues with any number of other consumers.")
    ] = False,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Stop after this many messages.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Read messages. A terminal shows one line per message, a pipe gets only the bodies.

    Without --group no offsets are stored, so you can read the same messages again. With --group, --from applies only
    if the group has no offsets yet.

    Examples:

        tern consume orders

        tern consume orders --no-follow --from 15m --tag 'new || paid' --json

        tern consume orders --sql "amount BETWEEN 5 AND 10 AND region = 'eu'"

        tern consume orders --group billing --count 10

        tern consume orders --group billing --share
    """
    if share and group is None:
        raise ConfigError("--share needs the name of a group: add --group NAME")
    if share and not follow:
        raise ConfigError("--share waits for new messages: leave out --no-follow, or stop it by --count")
    chosen = _Filter(tags, sql)
    show = _Printer(Output(as_json=as_json), count)
    position = parse_position(start)
    if group is None:
        serve(_look(topic, position, chosen, show, follow=follow, name_servers=name_servers))
    elif follow:
        serve(_join(topic, group, position, chosen, show, share=share, name_servers=name_servers))
    else:
        serve(_work_off(topic, group, position, chosen, show, name_servers=name_servers))


# --- Ways to read -------------------------------------------------------------------------------------------


async def _look(
    topic: str, start: StartPosition, chosen: _Filter, show: _Printer, *, follow: bool, name_servers: str
) -> None:
    from ternmq.client.consume.pull import PullConsumer

    async with PullConsumer(TOOLS_GROUP, name_servers=name_servers) as consumer:
        spans = {queue: await _span(consumer, queue, start) for queue in await consumer.queues(topic)}
        async for message in _stored(consumer, spans, chosen):
            if not show(message):
                return
        if follow:
            await _follow(consumer, {queue: span.stop for queue, span in spans.items()}, chosen, show)


async def _join(
    topic: str, group: str, start: StartPosition, chosen: _Filter, show: _Printer, *, share: bool, name_servers: str
) -> None:
    from ternmq.client.consume.config import ShareConfig
    from ternmq.client.consume.pull import PullConsumer
    from ternmq.client.consume.push import PushConsumer
    from ternmq.client.consume.share import ShareConsumer

    async with PullConsumer(group, name_servers=name_servers) as looker:
        await looker.queues(topic)  # a member would wait for a topic that does not exist
    member: PushConsumer | ShareConsumer
    if share:
        limits = ShareConfig()
        if show.count is not None:
            # What it holds when it ends counts as delivered, and comes again later: it takes no more than it shows.
            limits = replace(
                limits,
                count_max=min(limits.count_max, show.count),
                unsettled_max=min(limits.unsettled_max, show.count),
            )
        member = ShareConsumer(group, name_servers=name_servers, start=start, config=limits)
    else:
        member = PushConsumer(group, name_servers=name_servers, start=start)
    async with member as consumer:
        consumer.subscribe(topic, chosen.tags, sql=chosen.sql)
        async for message in consumer:
            more = show(message)
            message.ack()
            if not more:
                return


async def _work_off(
    topic: str, group: str, start: StartPosition, chosen: _Filter, show: _Printer, *, name_servers: str
) -> None:
    from ternmq.admin import Admin
    from ternmq.client.consume.pull import PullConsumer

    async with Admin(name_servers) as admin:
        members = await admin.clients.consumers(group)
        if members is not None:
            raise ConfigError(
                f"group {group!r} has {len(members.members)} active members, which consume the messages; omit "
                "--no-follow to join them, or stop them first"
            )
    async with PullConsumer(group, name_servers=name_servers) as consumer:
        spans = {}
        for queue in await consumer.queues(topic):
            progress = await consumer.committed(queue)
            span = await _span(consumer, queue, start)
            spans[queue] = span if progress is None else range(progress, span.stop)
        reached: dict[MessageQueue, int] = {}
        try:
            async for message in _stored(consumer, spans, chosen):
                more = show(message)
                reached[message.queue] = message.queue_offset + 1  # only now: what could not be shown is not done
                if not more:
                    break
            else:
                reached = {queue: span.stop for queue, span in spans.items()}  # a filter may have passed over the last
        finally:
            for queue, queue_offset in reached.items():
                await consumer.commit(queue, queue_offset)


# --- Reading --------------------------------------------------------------------------------------------------------


async def _span(consumer: PullConsumer, queue: MessageQueue, start: StartPosition) -> range:
    """The queue offsets from ``start`` to what is the end now."""
    from ternmq.client.consume.offsets import StartPosition

    end = await consumer.max_offset(queue)
    if start is StartPosition.LAST:
        return range(end, end)
    if start is StartPosition.FIRST:
        return range(await consumer.min_offset(queue), end)
    return range(await consumer.offset_at(queue, start.time_ms), end)


async def _stored(
    consumer: PullConsumer, spans: Mapping[MessageQueue, range], chosen: _Filter
) -> AsyncIterator[ReceivedMessage]:
    """The messages of several queues in the order in which they were stored."""
    streams = [_stored_in(consumer, queue, span, chosen) for queue, span in spans.items()]
    # By time, and within a millisecond by log offset, which is exact on one broker; numbers only keep messages apart.
    heads: list[tuple[int, int, int, ReceivedMessage]] = []
    for number, stream in enumerate(streams):
        if (message := await anext(stream, None)) is not None:
            heapq.heappush(heads, (message.store_time_ms, message.log_offset, number, message))
    while heads:
        _, _, number, message = heapq.heappop(heads)
        yield message
        if (following := await anext(streams[number], None)) is not None:
            heapq.heappush(heads, (following.store_time_ms, following.log_offset, number, following))


async def _stored_in(
    consumer: PullConsumer, queue: MessageQueue, span: range, chosen: _Filter
) -> AsyncIterator[ReceivedMessage]:
    queue_offset = span.start
    while queue_offset < span.stop:
        result = await consumer.pull(queue, queue_offset, tags=chosen.tags, sql=chosen.sql, wait=False)
        for message in result.messages:
            if message.queue_offset < span.stop:
                yield message
        if result.next_offset <= queue_offset:
            return  # the log was cut behind us; there is nothing there any more
        queue_offset = result.next_offset


async def _follow(consumer: PullConsumer, starts: Mapping[MessageQueue, int], chosen: _Filter, show: _Printer) -> None:
    """Messages as they arrive, until ``show`` has enough."""
    arrived: asyncio.Queue[ReceivedMessage | TernError] = asyncio.Queue(AHEAD_MAX)
    away: set[str] = set()
    async with Tasks() as tasks:
        for queue, queue_offset in starts.items():
            tasks.create_task(_follow_one(consumer, queue, queue_offset, chosen, arrived, away))
        while True:
            message = await arrived.get()
            if isinstance(message, TernError):
                raise message
            if not show(message):
                return


async def _follow_one(
    consumer: PullConsumer,
    queue: MessageQueue,
    queue_offset: int,
    chosen: _Filter,
    arrived: asyncio.Queue[ReceivedMessage | TernError],
    away: set[str],
) -> None:
    """Read one queue for ever. ``away`` has the brokers that do not answer, so that one remark is made for each."""
    while True:
        try:
            result = await consumer.pull(queue, queue_offset, tags=chosen.tags, sql=chosen.sql)
        except TernError as error:
            if not error.retriable:
                await arrived.put(error)
                return
            if queue.broker_name not in away:
                away.add(queue.broker_name)
                note(f"cannot read from {queue.broker_name}: {error}; retrying until it answers")
            await asyncio.sleep(RETRY_S)
        else:
            away.discard(queue.broker_name)
            for message in result.messages:
                await arrived.put(message)
            queue_offset = result.next_offset


# --- Printing -------------------------------------------------------------------------------------------------------


class _Printer:
    """Prints messages; says False when it has printed as many as were asked for."""

    def __init__(self, output: Output, count: int | None) -> None:
        self._output = output
        self.count = count
        self._left = count
        self._dim = output.is_terminal and not os.environ.get("NO_COLOR")

    def __call__(self, message: ReceivedMessage) -> bool:
        self._output.item(fields_of(message), self._line(message))
        if self._left is None:
            return True
        self._left -= 1
        return self._left > 0

    def _line(self, message: ReceivedMessage) -> str:
        body = body_text(message)
        if not self._output.is_terminal:
            return body
        queue = f"{message.broker_name}:{message.queue_id}:{message.queue_offset}"
        about = "  ".join(filter(None, (format_ms(message.store_time_ms), queue, message.tags, *message.keys)))
        return f"{typer.style(about, dim=True) if self._dim else about}  {body}"
