"""``tern pipeline trace``: latency, and lost, duplicated and slow messages, from the trace topic (U4)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.pipelines.job import Master, Settings, spark_job
from ternmq.cli.times import format_ms, parse_time
from ternmq.env import SystemClock
from ternmq.names import TRACE_TOPIC

if TYPE_CHECKING:
    from ternmq.spark.pipelines.trace_report import HistoryStep, Percentiles, TraceReport

_PROBLEMS = ("lost", "failed", "duplicated", "slow", "waiting")


def trace(
    topics: Annotated[list[str] | None, typer.Argument(help="Only these topics.", metavar="TOPIC")] = None,
    message_id: Annotated[
        str | None, typer.Option("--message", metavar="ID", help="Show the path of this message only.")
    ] = None,
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Traced at this time or later.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Traced before this time.")] = None,
    slow_ms: Annotated[int, typer.Option("--slow-ms", min=0, help="A message that takes longer is slow.")] = 1_000,
    grace_ms: Annotated[
        int,
        typer.Option(
            "--grace-ms", min=0, help="A message sent this shortly before the end of the trace does not count as lost."
        ),
    ] = 60_000,
    by_tag: Annotated[
        bool, typer.Option("--by-tag", help="Expect a group to consume only the tags that it consumed before.")
    ] = False,
    html: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="Also write an HTML page with plots to this file.")
    ] = None,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Topic of the traces.")
    ] = TRACE_TOPIC,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    master: Master = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Report latencies and lost, duplicated or slow messages, from the traces of clients.

    Java clients trace if they are created with enableMsgTrace. Times from send to consume compare the clocks of two
    machines, so they are only as accurate as these clocks.

    Examples:

        tern pipeline trace --from 1h --html report.html

        tern pipeline trace orders --slow-ms 200 --by-tag

        tern pipeline trace --message C0A8000700010B1E4A3C5D2B7E8F0000
    """
    now_ms = SystemClock().now_ms()
    begin_ms, end_ms = (None if text is None else parse_time(text, now_ms=now_ms) for text in (begin, end))
    if html is not None and not html.parent.is_dir():
        raise typer.BadParameter(f"cannot write {html}: the directory {html.parent} does not exist")
    with spark_job("trace", master=master, settings=settings, as_json=as_json) as (spark, watch):
        from ternmq.spark.pipelines import trace as pipeline

        if message_id is not None:
            steps = pipeline.path(
                spark,
                message_id,
                name_servers=name_servers,
                trace_topic=trace_topic,
                begin_ms=begin_ms,
                end_ms=end_ms,
                watch=watch,
            )
        else:
            report = pipeline.trace(
                spark,
                name_servers=name_servers,
                trace_topic=trace_topic,
                begin_ms=begin_ms,
                end_ms=end_ms,
                topics=topics or (),
                by_tag=by_tag,
                slow_ms=slow_ms,
                grace_ms=grace_ms,
                watch=watch,
            )
    if message_id is not None:
        _show_path(steps, as_json=as_json)
        return
    if html is not None:
        from ternmq.spark.pipelines.trace_html import page

        html.write_text(page(report), encoding="utf-8")
    _show(report, html, as_json=as_json)


def _show(report: TraceReport, html: Path | None, *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    if as_json:
        output.item({"event": "report", **dataclasses.asdict(report)}, "")
        return
    if not report.records:
        note(f"{report.trace_topic} has no traces in this time range")
        return
    output.rows(
        [
            {"topic": one.topic, "producers": one.group, "sent": one.sent, "not_safe": one.failed}
            | _columns("send", one.cost_ms)
            for one in report.sending
        ],
        columns=("topic", "producers", "sent", "not_safe", *_names("send")),
        empty="no sends were traced",
    )
    output.rows(
        [
            {"topic": one.topic, "group": one.group, "messages": one.messages, "calls": one.calls}
            | {name: getattr(one, name) for name in _PROBLEMS}
            | _columns("to_consume", one.to_consume_ms)
            | _columns("consume", one.consume_ms)
            for one in report.consuming
        ],
        columns=("topic", "group", "messages", "calls", *_PROBLEMS, *_names("to_consume"), *_names("consume")),
        empty="no consumption of these messages was traced",
    )
    output.rows(
        [
            {
                "problem": one.problem,
                "topic": one.topic,
                "group": one.group,
                "message_id": one.message_id,
                "keys": one.keys,
                "sent": format_ms(one.sent_ms),
                "calls": one.calls,
                "to_consume_ms": one.to_consume_ms,
                "consume_ms": one.consume_ms,
            }
            for one in report.findings
        ],
        columns=("problem", "topic", "group", "message_id", "keys", "sent", "calls", "to_consume_ms", "consume_ms"),
        empty="no message was lost, failed, duplicated or slow",
    )
    note(
        f"{report.records:,} records from {format_ms(report.begin_ms)} to {format_ms(report.end_ms)} by the "
        "clocks of the clients; times from send to consume compare the clocks of two machines"
    )
    if report.bad:
        note(f"{report.bad:,} records could not be read, such as {report.bad_samples[0]!r}")
    if report.unknown_calls:
        note(f"{report.unknown_calls:,} consumed messages have no send in this trace")
    if html is not None:
        note(f"wrote the page {html}")


def _show_path(steps: list[HistoryStep], *, as_json: bool) -> None:
    Output(as_json=as_json).rows(
        [
            dataclasses.asdict(step)
            if as_json
            else dataclasses.asdict(step) | {"time": "-" if step.time_ms is None else format_ms(step.time_ms)}
            for step in steps
        ],
        columns=("time", "since_send_ms", "what", "group", "where", "cost_ms", "result"),
        empty="",
    )


def _names(what: str) -> tuple[str, ...]:
    return tuple(f"{what}_{mark}" for mark in ("p50", "p95", "p99", "max"))


def _columns(what: str, figures: Percentiles) -> dict[str, object]:
    return dict(zip(_names(what), (figures.p50, figures.p95, figures.p99, figures.max), strict=True))
