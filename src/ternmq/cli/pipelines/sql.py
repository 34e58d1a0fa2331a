"""``tern pipeline sql``: streaming SQL on topics, with rows in the terminal (U4)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, ReaderGone, note
from ternmq.cli.pipelines.job import Checkpoint, Master, Metrics, Once, Settings, spark_job
from ternmq.errors import ConfigError

if TYPE_CHECKING:
    from ternmq.spark.pipelines.sql import Shown
    from ternmq.spark.runtime.jobs import Watch

_SAMPLE_MESSAGES: Final = 1000


def sql(
    file: Annotated[Path | None, typer.Argument(metavar="FILE.sql", help="File of the script; - for stdin.")] = None,
    text: Annotated[str, typer.Option("--execute", "-e", metavar="SQL", help="The script as text.")] = "",
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    checkpoint: Checkpoint = None,
    once: Once = False,
    every: Annotated[
        str, typer.Option("--every", metavar="TIME", help="Time between two batches, as '10 seconds'; default: none.")
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="Option of the source, for all topics. Can be repeated."),
    ] = None,
    bad_rows: Annotated[
        str,
        typer.Option(
            "--bad-rows", metavar="drop|fail", help="How to treat bodies that do not match the columns: drop or fail."
        ),
    ] = "drop",
    sample: Annotated[
        int, typer.Option("--sample", min=1, metavar="N", help="Number of messages to detect columns from.")
    ] = _SAMPLE_MESSAGES,
    master: Master = "",
    settings: Settings = None,
    metrics: Metrics = None,
    as_json: Json = False,
) -> None:
    """Run streaming SQL from topics to topics, tables and the console.

    Each topic is a table. Its columns are detected from the last messages, or declared by CREATE VIEW name (column
    TYPE, …) FROM TOPIC topic. INSERT INTO TOPIC name SELECT … and INSERT INTO TABLE 'directory' SELECT … write; a
    SELECT alone is printed. Separate statements by semicolons.

    Examples:

        tern pipeline sql -e "SELECT customer, sum(amount) FROM orders GROUP BY customer" --once

        tern pipeline sql alerts.sql --checkpoint /var/lib/alerts
    """
    script = _script(file, text)
    pairs = dict(one.partition("=")[::2] for one in options or ())
    if bad_rows not in ("drop", "fail"):
        raise ConfigError(f"invalid --bad-rows {bad_rows!r}: expected drop or fail")
    # The live line redirects the terminal's stdout while it is shown, and must not redirect a pipe.
    piped = None if sys.stdout.isatty() else sys.stdout
    with spark_job("sql", master=master, settings=settings, metrics_port=metrics, as_json=as_json) as (spark, watch):
        from ternmq.spark.pipelines.sql import run_sql
        from ternmq.spark.pipelines.topic_views import BadRows
        from ternmq.spark.runtime.jobs import JobStopped

        console = _Console(Output(as_json=as_json, stream=piped), watch)
        done = run_sql(
            spark,
            script,
            name_servers=name_servers,
            checkpoint=checkpoint or "",
            once=once,
            every=every,
            options=pairs,
            bad_rows=BadRows(bad_rows),
            sample_messages=sample,
            show=console.show,
            note=note,
            watch=watch,
        )
        if console.is_closed:
            return
        if once and watch.stopped:
            raise JobStopped("sql was stopped before its end; with a checkpoint, a new run continues from there")
    output = Output(as_json=as_json)
    for one in done:
        if as_json:
            output.item(
                {"event": "done", "statement": one.statement, "messages": one.messages, "left_out": one.left_out}, ""
            )
        else:
            note(f"{one.statement}: {one.messages:,} messages read")
        if one.left_out:
            note(
                f"tern: {one.left_out:,} of them did not match the columns and were skipped; the view NAME_bad "
                "of each view shows them"
            )


def _script(file: Path | None, text: str) -> str:
    if (file is None) == (not text):
        raise ConfigError("no script given: expected a file, - for stdin, or -e 'SELECT …'")
    if file is None:
        return text
    if str(file) == "-":
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 text") from error


class _Console:
    """Prints the rows of queries, in a thread of Spark."""

    def __init__(self, output: Output, watch: Watch) -> None:
        self._output = output
        self._watch = watch
        self.is_closed = False

    def show(self, shown: Shown) -> None:
        try:
            if not self._output.as_json:
                rows = [{name: _cell(row[name]) for name in shown.columns} for row in shown.rows]
                self._output.rows(rows, columns=shown.columns, empty="")
                return
            place = {"statement": shown.statement} | ({} if shown.batch is None else {"batch": shown.batch})
            for row in shown.rows:
                self._output.item({"event": "row", **place, "row": row}, "")
        except ReaderGone:
            # As in `… | head`: the end of the pipe ends the job, without an error.
            self.is_closed = True
            self._watch.stop()


def _cell(value: object) -> object:
    return json.dumps(value) if isinstance(value, dict | list) else value
