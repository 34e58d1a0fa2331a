"""``tern trace``: the path of one message (Q2)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run
from ternmq.cli.times import format_ms, parse_time
from ternmq.cli.trace_lines import timeline
from ternmq.env import SystemClock
from ternmq.errors import NotFound, RouteMissing
from ternmq.names import TRACE_TOPIC

if TYPE_CHECKING:
    from ternmq.admin.traces import TraceStep


def trace(
    message_id: Annotated[
        str, typer.Argument(help="The message id that a send returns (`tern send` prints it).", metavar="MESSAGE_ID")
    ],
    topic: Annotated[str, typer.Option("--topic", "-t", help="The trace topic of the clients.")] = TRACE_TOPIC,
    begin: Annotated[
        str | None, typer.Option("--from", metavar="TIME", help="Only traces stored at this time or later.")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", metavar="TIME", help="Only traces stored at this time or earlier.")
    ] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the path of one message: who sent and consumed it, when, where, how long it took, with which result.

    Its clients must trace: Producer(…, trace=True), PushConsumer(…, trace=True), or enableMsgTrace in Java. Traces
    arrive up to a few seconds late. Times are those of the clients' clocks.

    Example:

        tern trace C0A8000700010B1E4A3C5D2B7E8F0000
    """
    from ternmq.admin import Admin

    now_ms = SystemClock().now_ms()
    begin_ms, end_ms = (None if text is None else parse_time(text, now_ms=now_ms) for text in (begin, end))

    async def work() -> list[TraceStep]:
        async with Admin(name_servers) as admin:
            try:
                return await admin.traces.path(message_id, topic=topic, begin=begin_ms, end=end_ms)
            except RouteMissing:
                raise NotFound(
                    f"there are no traces: no broker has the topic {topic!r}. Clients that trace (trace=True) create "
                    "it where autoCreateTopicEnable is on; else set traceTopicEnable=true on a broker"
                ) from None

    steps = run(work())
    if not steps:
        raise NotFound(
            f"topic {topic!r} has no trace of message {message_id!r}; its clients do not trace (set trace=True), use "
            "another trace topic (--topic), or have not sent their traces yet"
        )
    output = Output(as_json=as_json)
    if output.is_terminal and not as_json:
        output.item({}, "\n".join(timeline(steps, width=shutil.get_terminal_size().columns)))
        return
    output.rows(
        [asdict(step) for step in steps] if as_json else _timeline(steps),
        columns=("time", "after", "group", "client", "what", "where", "took", "result"),
        empty="",
    )


def _timeline(steps: Sequence[TraceStep]) -> list[dict[str, object]]:
    first_ms = next((step.time_ms for step in steps if step.time_ms is not None), 0)
    return [
        {
            "time": None if step.time_ms is None else format_ms(step.time_ms),
            "after": None if step.time_ms is None else f"+{step.time_ms - first_ms} ms",
            "group": step.group,
            "client": step.client,
            "what": step.what if (step.attempt or 1) == 1 else f"{step.what}, attempt {step.attempt}",
            "where": step.where,
            "took": None if step.took_ms is None else f"{step.took_ms} ms",
            "result": step.result,
        }
        for step in steps
    ]
