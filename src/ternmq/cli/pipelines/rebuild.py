"""``tern pipeline rebuild``: queues and index of a very large log, built by many workers (U4)."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Final

import typer

from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import ConfigFile, Json
from ternmq.cli.output import Output, note
from ternmq.cli.pipelines.job import Master, Settings, spark_job
from ternmq.cli.store import Directory, Sizes, config_of
from ternmq.env import SystemClock
from ternmq.errors import ConfigError

_MB: Final = 1_000_000


def rebuild(
    directory: Directory,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the files to this directory, and do not change the store."),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only compare the present files with the log; exit code 1 if they differ.")
    ] = False,
    yes: Yes = False,
    slice_bytes: Annotated[
        int | None,
        typer.Option("--slice-bytes", min=1, metavar="BYTES", help="Size of the log part that one task reads."),
    ] = None,
    sizes: Sizes = None,
    config: ConfigFile = None,
    master: Master = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Rebuild the queues and the index of a store from its log, on a Spark cluster.

    The files are identical to those of `tern store rebuild`. All workers need the directory under the same path. The
    old files are replaced once the new ones are complete; if the job fails, the store is unchanged.

    Examples:

        tern pipeline rebuild /data/broker-a --master spark://host:7077

        tern pipeline rebuild /data/broker-a --check
    """
    if check and out is not None:
        raise ConfigError("--check and --out exclude each other; --check writes no files")
    inspect = config_of(sizes, config)
    if out is None and not check:
        confirm(
            [f"the queues and the index in {directory} are replaced; its log is not changed"],
            f"replace the queues and the index of {directory}?",
            yes=yes,
        )
    clock = SystemClock()
    with spark_job("rebuild", master=master, settings=settings, as_json=as_json) as (spark, watch):
        from ternmq.spark.files.options import SLICE_BYTES
        from ternmq.spark.pipelines import rebuild as pipeline

        began = clock.monotonic()
        slice_bytes = slice_bytes or SLICE_BYTES
        checked = made = None
        if check:
            checked = pipeline.check(spark, directory, config=inspect, slice_bytes=slice_bytes, watch=watch)
        else:
            made = pipeline.rebuild(spark, directory, output=out, config=inspect, slice_bytes=slice_bytes, watch=watch)
        seconds = clock.monotonic() - began
    rebuilt = checked.rebuilt if checked is not None else made
    assert rebuilt is not None
    for damaged in rebuilt.damages:
        note(f"skipped log offsets {damaged.begin:,} to {damaged.end:,}: {damaged.kind.value}")
    fields: dict[str, object] = {
        "event": "checked" if check else "rebuilt",
        "directory": str(out or directory),
        "records": rebuilt.records,
        "log_bytes": rebuilt.log_bytes,
        "queues": rebuilt.queues,
        "index_files": rebuilt.index_files,
        "damaged_places": len(rebuilt.damages),
        "seconds": round(seconds, 3),
        "mb_per_second": round(rebuilt.log_bytes / _MB / seconds, 1) if seconds else 0.0,
    }
    speed = f"({rebuilt.log_bytes / _MB:,.1f} MB in {seconds:.1f} s, {fields['mb_per_second']} MB/s)"
    if checked is None:
        text = (
            f"rebuilt {rebuilt.queues:,} queues and the index from {rebuilt.records:,} records in {out or directory} "
        )
        Output(as_json=as_json).item(fields, text + speed)
        return
    counts = {key: value for key, value in dataclasses.asdict(checked).items() if key != "rebuilt"}
    words = [f"{value:,} {key.replace('_', ' entries ')}" for key, value in counts.items() if value]
    verdict = ", ".join(words) or "queues and index agree with the log"
    Output(as_json=as_json).item(fields | counts, f"{verdict} {speed}")
    if not checked.is_right:
        raise typer.Exit(1)
