"""``tern pipeline archive`` and ``compact``: topics into a lake of Parquet files, and few large files there (U4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.pipelines.job import Checkpoint, Master, Metrics, Once, Settings, spark_job


def archive(
    lake: Annotated[Path, typer.Option("--lake", metavar="DIR", help="The lake; made if it is not there.")],
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Names of topics.")] = None,
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="REGEX", help="Topics whose whole name matches, also new ones.")
    ] = "",
    once: Once = False,
    checkpoint: Checkpoint = None,
    rows_per_batch: Annotated[int, typer.Option(min=1, metavar="N", help="At most so many messages at a time.")] = (
        1_000_000
    ),
    interval: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="From one batch to the next.")] = 10,
    group: Annotated[str, typer.Option(help="Report progress to the brokers as this group's.")] = "",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Go on where messages were deleted before they were read.")
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    master: Master = "",
    settings: Settings = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Copy topics into a lake of Parquet files, by topic, date and hour; each message once.

    It goes on until Ctrl-C, and from there when it is started again. The lake knows by queue offsets what it has: no
    run, however it ended, makes a message double or forgets one.

    Examples:

        tern pipeline archive orders --lake /data/lake

        tern pipeline archive orders payments --lake /data/lake --once

        tern pipeline archive --pattern 'shop-.*' --lake /data/lake --metrics 9400
    """
    with spark_job("archive", master=master, settings=settings, metrics_port=metrics, as_json=as_json) as (
        spark,
        watch,
    ):
        from ternmq.spark.jobs import JobStopped
        from ternmq.spark.pipelines.archive import archive as run

        done = run(
            spark,
            lake=lake,
            topics=topics or (),
            topic_pattern=pattern,
            name_servers=name_servers,
            checkpoint=checkpoint,
            once=once,
            rows_per_batch=rows_per_batch,
            interval_s=interval,
            group=group,
            fail_on_data_loss=not skip_lost,
            watch=watch,
        )
        if once and watch.stopped:
            raise JobStopped(f"archive was stopped after {done.rows:,} messages; run it again to go on")
    Output(as_json=as_json).item(
        {"event": "archived", "lake": str(lake), "rows": done.rows, "rows_in_lake": done.rows_in_lake},
        f"archived {done.rows:,} messages; {lake} has {done.rows_in_lake:,}",
    )


def compact(
    lake: Annotated[Path, typer.Argument(metavar="LAKE", help="Directory of the lake.")],
    target: Annotated[
        int, typer.Option("--target", metavar="MIB", min=1, help="Merge files that are smaller, up to this size.")
    ] = 128,
    master: Master = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Merge the small files of a lake into large ones.

    Safe while an archive runs and while others read: they find the old files or the new ones, never both. It may be
    stopped or killed at any moment, and run again.

    Example:

        tern pipeline compact /data/lake
    """
    with spark_job("compact", master=master, settings=settings, as_json=as_json) as (spark, watch):
        from ternmq.spark.pipelines.compact import compact as run

        done = run(spark, lake=lake, target_bytes=target << 20, watch=watch)
    Output(as_json=as_json).item(
        {
            "event": "compacted",
            "lake": str(lake),
            "hours": done.hours,
            "files_before": done.files_before,
            "files_after": done.files_after,
        },
        f"{done.files_before:,} small files of {done.hours:,} hours are {done.files_after:,} now"
        if done.hours
        else f"{lake} has no small files to merge",
    )
