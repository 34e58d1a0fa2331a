"""``tern pipeline archive`` and ``compact``: topics into a lake of Parquet files; merging small files there (U4)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.pipelines.job import Checkpoint, Master, Metrics, Once, Settings, spark_job


def archive(
    lake: Annotated[
        Path, typer.Option("--lake", metavar="DIR", help="Directory of the lake; created if it does not exist.")
    ],
    topics: Annotated[list[str] | None, typer.Argument(metavar="TOPIC", help="Names of topics.")] = None,
    pattern: Annotated[
        str,
        typer.Option(
            "--pattern",
            metavar="REGEX",
            help="Topics whose whole name matches this regular expression, including new ones.",
        ),
    ] = "",
    once: Once = False,
    checkpoint: Checkpoint = None,
    rows_per_batch: Annotated[int, typer.Option(min=1, metavar="N", help="Maximum number of messages per batch.")] = (
        1_000_000
    ),
    interval: Annotated[int, typer.Option(min=0, metavar="SECONDS", help="Time between two batches.")] = 10,
    group: Annotated[str, typer.Option(help="Commit offsets to the brokers as this group.")] = "",
    skip_lost: Annotated[
        bool, typer.Option("--skip-lost", help="Continue if messages were deleted before they were read.")
    ] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Skip messages whose bodies are damaged or cannot be decompressed.")
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    master: Master = "",
    settings: Settings = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Copy topics into a lake of Parquet files, partitioned by topic, date and hour. Each message is copied once.

    Runs until Ctrl-C; a new run continues from there. The lake keeps the queue offsets of its messages, so no
    run duplicates or loses a message, even after a crash.

    Examples:

        tern pipeline archive orders --lake /data/lake

        tern pipeline archive orders payments --lake /data/lake --once

        tern pipeline archive --pattern 'shop-.*' --lake /data/lake --metrics 9400
    """
    with spark_job("archive", master=master, settings=settings, metrics_port=metrics, as_json=as_json) as (
        spark,
        watch,
    ):
        from ternmq.spark.pipelines.archive import archive as run
        from ternmq.spark.runtime.jobs import JobStopped

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
            skip_bad=skip_bad,
            watch=watch,
        )
        if once and watch.stopped:
            raise JobStopped(f"archive was stopped after {done.rows:,} messages; run it again to continue")
    if done.rows_skipped:
        note(f"tern: {done.rows_skipped:,} messages were skipped because their bodies cannot be read")
    Output(as_json=as_json).item(
        {
            "event": "archived",
            "lake": str(lake),
            "rows": done.rows,
            "rows_in_lake": done.rows_in_lake,
            "rows_skipped": done.rows_skipped,
        },
        f"archived {done.rows:,} messages; {lake} has {done.rows_in_lake:,}",
    )


def compact(
    lake: Annotated[Path, typer.Argument(metavar="LAKE", help="Directory of the lake.")],
    target: Annotated[
        int, typer.Option("--target", metavar="MIB", min=1, help="Merge smaller files up to this size.")
    ] = 128,
    master: Master = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Merge the small files of a lake into large ones.

    Safe while an archive job or readers are active: they see the old files or the new ones, never both. It can be
    stopped at any time, and run again.

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
        f"merged {done.files_before:,} small files of {done.hours:,} hours into {done.files_after:,}"
        if done.hours
        else f"{lake} has no small files to merge",
    )
