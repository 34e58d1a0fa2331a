"""``tern pipeline replay``: messages of a lake into a topic (U4)."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.pipelines.job import Master, Metrics, Settings, spark_job
from ternmq.cli.shown import preview_of
from ternmq.cli.times import format_ms, parse_time
from ternmq.env import SystemClock

if TYPE_CHECKING:
    from ternmq.spark.pipelines.replay import Preview


def replay(
    lake: Annotated[Path, typer.Argument(metavar="LAKE", help="Directory of the lake.")],
    to: Annotated[str, typer.Argument(metavar="TOPIC", help="Topic to send the messages to.")],
    topic: Annotated[
        list[str] | None, typer.Option("--topic", "-t", help="Only messages of this topic. Can be repeated.")
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--from", metavar="TIME", help="Stored at this time or later: 2026-01-31T12:00, 15m (ago), or ms."
        ),
    ] = "",
    until: Annotated[str, typer.Option("--to", metavar="TIME", help="Stored before this time.")] = "",
    key: Annotated[str, typer.Option(metavar="KEY", help="Only messages with this key.")] = "",
    tag: Annotated[str, typer.Option(metavar="TAG", help="Only messages with this tag.")] = "",
    where: Annotated[
        str, typer.Option(metavar="SQL", help="Only messages that match this condition (Spark SQL).")
    ] = "",
    rate: Annotated[int | None, typer.Option(min=1, metavar="N", help="Maximum number of messages per second.")] = None,
    replay_id: Annotated[
        str,
        typer.Option(
            "--id",
            metavar="NAME",
            help="Id of this replay; a second run with the same id sends only the missing messages.",
        ),
    ] = "",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    master: Master = "",
    settings: Settings = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Send messages from a lake to a topic. Messages of the same original queue keep their order.

    Body, keys, tags and properties do not change. The property REPLAYED_FROM names the original queue and offset.

    Examples:

        tern pipeline replay /data/lake orders-test --from 2026-01-31T12:00 --to 2026-01-31T13:00 --dry-run

        tern pipeline replay /data/lake orders-test --key order-17

        tern pipeline replay /data/lake orders --where "properties['region'] = 'eu'" --rate 500 --id eu-again
    """
    now_ms = SystemClock().now_ms()
    times = {name: parse_time(text, now_ms=now_ms) for name, text in (("since_ms", since), ("until_ms", until)) if text}
    with spark_job("replay", master=master, settings=settings, metrics_port=metrics, as_json=as_json) as (spark, watch):
        from ternmq.spark.pipelines.replay import Selection, preview
        from ternmq.spark.pipelines.replay import replay as run

        chosen = Selection(topics=topic or (), key=key, tag=tag, where=where, **times)
        if dry_run:
            shown = preview(spark, lake=lake, selection=chosen, watch=watch)
        else:
            done = run(
                spark,
                lake=lake,
                to=to,
                selection=chosen,
                name_servers=name_servers,
                rate=rate,
                replay_id=replay_id,
                watch=watch,
            )
    if dry_run:
        _show(shown, Output(as_json=as_json))
    else:
        Output(as_json=as_json).item(
            {"event": "replayed", "topic": to, "rows": done.rows}, f"sent {done.rows:,} messages to {to}"
        )


def _show(shown: Preview, output: Output) -> None:
    hours = [
        {"topic": hour["topic"], "date": str(hour["date"]), "hour": hour["hour"], "messages": hour["rows"]}
        for hour in shown.hours
    ]
    if output.as_json:
        for hour in hours:
            output.item({"event": "planned"} | hour, "")
        return
    output.rows(hours, columns=("topic", "date", "hour", "messages"), empty="no message of the lake matches")
    if not hours:
        return
    note(f"{shown.rows:,} messages would be sent; the first ones are:")
    sample = [
        {
            "stored": format_ms(row["store_time_ms"]),
            "queue": f"{row['topic']}@{row['broker']}:{row['queue_id']}",
            "offset": row["queue_offset"],
            "tags": row["tags"],
            "keys": row["keys"],
            "body": preview_of(bytes(row["body"])),
        }
        for row in shown.sample
    ]
    output.rows(sample, columns=("stored", "queue", "offset", "tags", "keys", "body"), empty="")
