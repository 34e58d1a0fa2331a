"""``tern store dump``: records as a table, as lines, or as JSON (C11, T1)."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.options import ConfigFile, Json
from ternmq.cli.output import Output, OutputRow, note
from ternmq.cli.progress import progress_bar
from ternmq.cli.store import Directory, Sizes, app, config_of
from ternmq.cli.times import format_ms

if TYPE_CHECKING:
    from ternmq.wire.record import Record

_COLUMNS: Final = ("log_offset", "topic", "queue", "queue_offset", "stored", "size", "tags", "keys")
#: Rows of one table in a terminal. To align its columns all rows must be known, and a log may have a billion.
_TABLE_ROWS: Final = 200
#: Characters of a body in lines and tables.
_PREVIEW_CHARACTERS: Final = 60


@app.command()
def dump(
    directory: Directory,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only records of this topic.")] = None,
    queue: Annotated[int | None, typer.Option("--queue", "-q", min=0, help="Only records of this queue.")] = None,
    from_offset: Annotated[
        int | None,
        typer.Option(
            "--from-offset",
            min=0,
            help="First offset: a queue offset with --topic and --queue, otherwise a log offset.",
        ),
    ] = None,
    key: Annotated[str | None, typer.Option("--key", "-k", help="Only records with this key or message id.")] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Maximum number of records.")] = None,
    body: Annotated[bool, typer.Option("--body", help="Show the decompressed bodies; with --json in full.")] = False,
    settings: Sizes = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Print records in log order. Damaged places are skipped.

    Examples:

        tern store dump ternmq-data/broker-a --count 10

        tern store dump ternmq-data/broker-a --topic orders --queue 0 --from-offset 1000 --body

        tern store dump ternmq-data/broker-a --key order-4711 --json
    """
    from ternmq.store.inspect.dump import RecordChoice, records
    from ternmq.store.inspect.view import StoreView

    view = StoreView(directory, config_of(settings, config))
    wanted = RecordChoice(topic=topic, queue_id=queue, from_offset=from_offset, key=key, count_max=count)
    total_bytes = len(view.log.starts) * view.sizes.segment
    output = Output(as_json=as_json)
    with progress_bar("read") as tell:
        # A bar and lines would overwrite each other; the bar is for searches, which print little.
        progress = (lambda done: tell(done, total_bytes)) if key is not None else None
        found = records(view, wanted, progress=progress)
        shown = _print(output, (_fields(record, body=body) for record in found), body=body)
    if not shown and not as_json:
        note(f"no matching records in {directory}")


def _print(output: Output, rows: Iterator[dict[str, object]], *, body: bool) -> int:
    """Print all rows as they arrive; returns their number."""
    columns = (*_COLUMNS, "body") if body else _COLUMNS
    count = 0
    if output.as_json or not output.is_terminal:
        for row in rows:
            if not count and not output.as_json:
                output.item({}, "\t".join(columns))
            output.item(row, "\t".join(str(value) for value in _line(row, columns).values()))
            count += 1
        return count
    while page := [_line(row, columns) for row in islice(rows, _TABLE_ROWS)]:
        output.rows(page, columns=columns, empty="")
        count += len(page)
    return count


def _line(row: OutputRow, columns: tuple[str, ...]) -> dict[str, object]:
    """The part of a row that a line shows."""
    line = {column: row.get(column, "") for column in columns} | {"stored": format_ms(_int(row["store_time_ms"]))}
    if "body" in columns:
        text = str(row.get("body") or row.get("body_base64") or "").replace("\t", " ").replace("\n", " ")
        line["body"] = text if len(text) <= _PREVIEW_CHARACTERS else f"{text[:_PREVIEW_CHARACTERS]}…"
    return line


def _int(value: object) -> int:
    assert isinstance(value, int)
    return value


def _fields(record: Record, *, body: bool) -> dict[str, object]:
    """All fields of a record, under the names of ``--json``."""
    from ternmq.message import Property
    from ternmq.wire.ids import offset_id
    from ternmq.wire.properties import parse
    from ternmq.wire.record import unpack_host

    properties = parse(record.properties)
    born_host, store_host = (":".join(map(str, unpack_host(host))) for host in (record.born_host, record.store_host))
    fields: dict[str, object] = {
        "log_offset": record.log_offset,
        "topic": record.topic,
        "queue": record.queue_id,
        "queue_offset": record.queue_offset,
        "size": record.size,
        "tags": properties.get(Property.TAGS, ""),
        "keys": properties.get(Property.KEYS, ""),
        "offset_id": offset_id(record.store_host, record.log_offset),
        "store_time_ms": record.store_time_ms,
        "store_host": store_host,
        "born_time_ms": record.born_time_ms,
        "born_host": born_host,
        "flag": record.flag,
        "sysflag": record.sysflag,
        "reconsume_times": record.reconsume_times,
        "prepared_transaction_offset": record.prepared_transaction_offset,
        "body_bytes": len(record.body),
        "body_crc": record.body_crc,
        "properties": properties,
    }
    return fields | _body(record) if body else fields


def _body(record: Record) -> dict[str, object]:
    """The body as text, or in base64 if it is not text; as it was sent, if it cannot be decompressed."""
    from ternmq.errors import TernError
    from ternmq.wire.compress import decompress

    try:
        data = decompress(record.body, record.sysflag)
    except TernError:
        data = bytes(record.body)
    try:
        return {"body": data.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(data).decode()}
