"""``tern pipeline reconcile``: compares sent, stored and consumed messages (U4)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.pipelines.job import Master, Settings, spark_job
from ternmq.cli.times import format_ms, parse_time
from ternmq.env import SystemClock
from ternmq.names import TRACE_TOPIC

if TYPE_CHECKING:
    from ternmq.spark.pipelines.reconcile import Reconciled


def reconcile(
    topic: Annotated[str, typer.Argument(help="Topic to check.", metavar="TOPIC")],
    sent: Annotated[
        str,
        typer.Option(
            "--sent", metavar="SIDE", help="Source of the sent messages: trace, topic:NAME, table:NAME or a file."
        ),
    ] = "",
    consumed: Annotated[
        str,
        typer.Option(
            "--consumed",
            metavar="SIDE",
            help="Source of the consumed messages: group:NAME (its offsets), trace:GROUP, topic:NAME, table:NAME or "
            "a file.",
        ),
    ] = "",
    by: Annotated[
        str,
        typer.Option(
            "--by", metavar="SQL", help="Expression that identifies a message, such as keys or properties['order']."
        ),
    ] = "message_id",
    sent_by: Annotated[str, typer.Option("--sent-by", metavar="SQL", help="The same for --sent.")] = "",
    sent_time: Annotated[str, typer.Option("--sent-time", metavar="SQL", help="Column of the time in --sent.")] = "",
    consumed_by: Annotated[str, typer.Option("--consumed-by", metavar="SQL", help="The same for --consumed.")] = "",
    consumed_time: Annotated[
        str, typer.Option("--consumed-time", metavar="SQL", help="Column of the time in --consumed.")
    ] = "",
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Sent at this time or later.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Sent before this time.")] = None,
    late_ms: Annotated[
        int,
        typer.Option(
            "--late-ms", min=0, help="A message that takes longer is late; a younger message does not count as missing."
        ),
    ] = 60_000,
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Also write all messages with a problem to this directory.")
    ] = "",
    out_format: Annotated[str, typer.Option("--format", help="Format of --out: parquet, json or csv.")] = "parquet",
    strict: Annotated[bool, typer.Option("--strict", help="Exit with code 1 if a message is missing.")] = False,
    trace_topic: Annotated[
        str, typer.Option("--trace-topic", metavar="TOPIC", help="Topic of the traces.")
    ] = TRACE_TOPIC,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    master: Master = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Compare sent, stored and consumed messages, and report missing, duplicate and late ones.

    A file is .parquet, .csv, .json or .jsonl, or a directory of Parquet. Its columns id, message_id, key or keys, and
    time or timestamp are detected; name other columns with --sent-by and --sent-time.

    Examples:

        tern pipeline reconcile orders --sent orders.csv --by keys --consumed group:billing --from 1d --strict

        tern pipeline reconcile orders --sent trace --consumed trace:billing --late-ms 5000

        tern pipeline reconcile orders --consumed topic:acks --by "properties['order']" --out differences
    """
    now_ms = SystemClock().now_ms()
    begin_ms, end_ms = (None if text is None else parse_time(text, now_ms=now_ms) for text in (begin, end))
    if not sent and not consumed:
        raise typer.BadParameter("nothing to compare with; give --sent, --consumed or both")
    with spark_job("reconcile", master=master, settings=settings, as_json=as_json) as (spark, watch):
        from ternmq.spark.pipelines import reconcile as pipeline
        from ternmq.spark.pipelines.reconcile_sides import Sides

        sides = Sides(
            spark,
            topic,
            name_servers=name_servers,
            by=by,
            begin_ms=begin_ms,
            end_ms=end_ms,
            trace_topic=trace_topic,
        )
        result = pipeline.reconcile(
            spark,
            topic,
            sides.stored(),
            sent=sides.sent(sent, by=sent_by, time=sent_time) if sent else None,
            consumed=sides.consumed(consumed, by=consumed_by, time=consumed_time) if consumed else None,
            begin_ms=begin_ms,
            end_ms=end_ms,
            late_ms=late_ms,
            now_ms=now_ms,
            out=out,
            out_format=out_format,
            watch=watch,
        )
    _show(result, out, as_json=as_json)
    if strict and result.missing:
        raise typer.Exit(1)


def _show(result: Reconciled, out: str, *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    if as_json:
        output.item({"event": "report", "missing": result.missing, **dataclasses.asdict(result)}, "")
        return
    kinds = list(result.problems)
    output.rows(
        [
            {
                "hour": "-" if one.hour_ms is None else format_ms(one.hour_ms)[:16],
                "sent": one.sent,
                "stored": one.stored,
                "consumed": one.consumed,
            }
            | {name: one.problems.get(name, 0) for name in kinds}
            for one in result.hours
        ],
        columns=("hour", "sent", "stored", "consumed", *kinds),
        empty=f"{result.topic} has no messages in this time range, and none were sent",
    )
    if result.differences:
        output.rows(
            [
                {
                    "problem": f"{one.problem} {one.side}",
                    "id": one.id,
                    "count": one.count,
                    "sent": _when(one.sent, one.sent_ms),
                    "stored": _when(one.stored, one.stored_ms),
                    "consumed": _when(one.consumed, one.consumed_ms),
                    "place": one.place,
                }
                for one in result.differences
            ],
            columns=("problem", "id", "count", "sent", "stored", "consumed", "place"),
            empty="",
        )
    found = ", ".join(f"{count:,} {name}" for name, count in result.problems.items())
    note(f"{result.sent:,} sent, {result.stored:,} stored, {result.consumed:,} consumed: {found or 'all agree'}")
    if result.nameless:
        note(
            f"{result.nameless:,} messages of {result.topic} have no id and were not compared; choose another id "
            "with --by"
        )
    if out:
        note(f"the full list is in {out}")


def _when(count: int, time_ms: int | None) -> str:
    return str(count) if time_ms is None else f"{count}, {format_ms(time_ms)}"
