"""``tern store``: info, dump, verify, rebuild, diff, cut: a store directory without a broker (C11, O1, T1).

All but ``rebuild`` and ``cut`` only read, also while a broker is running. For verify and diff, exit code 1 means "found
something", as usual for such tools.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import ConfigFile, Json
from ternmq.cli.output import Output, note
from ternmq.cli.progress import progress_bar
from ternmq.cli.times import format_ms
from ternmq.config import Settings, nearest
from ternmq.env import SystemClock
from ternmq.errors import ConfigError, StoreLocked

if TYPE_CHECKING:
    from ternmq.store.inspect.sizes import InspectConfig
    from ternmq.store.inspect.verify import Verification
    from ternmq.store.inspect.view import StoreView

app = Commands(no_args_is_help=True, help="Inspect, check and repair a store directory. No broker is needed.")

Directory = Annotated[
    Path,
    # The store checks whether it is readable, with a better message.
    typer.Argument(
        help="Directory of the store (storePathRootDir), of TernMQ or RocketMQ.", metavar="DIR", readable=False
    ),
]
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="A setting of the store that its files do not show. Can be repeated."
    ),
]

_MB: Final = 1_000_000


@app.command(cls=Watched)
def info(
    directory: Directory,
    queues: Annotated[bool, typer.Option("--queues", help="Show one line per queue instead of one per topic.")] = False,
    settings: Sizes = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Show the contents of a store: sizes, offsets, topics, times, and whether a broker uses it.

    Example:

        tern store info ternmq-data/broker-a
    """
    from ternmq.delay.schedule_check import summary
    from ternmq.store.inspect.faults import plural
    from ternmq.store.inspect.summary import by_topic, log_summary, member_summary, queue_summaries
    from ternmq.store.inspect.view import StoreView

    view = StoreView(directory, config_of(settings, config))
    log, rows, delayed = log_summary(view), queue_summaries(view), summary(view)
    member = member_summary(view, log)
    output = Output(as_json=as_json)
    fields = {
        "directory": str(directory),
        "state": _state(view),
        "holder_pid": view.holder,
        "log": dataclasses.asdict(log),
        "raft": dataclasses.asdict(member) if member is not None else None,
        "checkpoint": dataclasses.asdict(view.checkpoint),
        "sizes": dataclasses.asdict(view.sizes),
        "index_files": [path.name for path, _ in view.index_files],
        "messages": sum(queue.messages for queue in rows),
        "delayed": dataclasses.asdict(delayed),
    }
    if as_json:
        output.item(fields | {"queues": [dataclasses.asdict(queue) for queue in rows]}, "")
        return
    sizes, segments, files = view.sizes, plural(log.segments, "segment"), plural(len(view.index_files), "file")
    in_group = (
        f"member {member.member}, term {member.term}, voted for {member.voted_for or 'none'}; entries "
        f"{member.first_index:,} to {member.last_index:,}, the last of term {member.last_term}, committed to "
        f"{member.committed_index:,}"
        if member is not None
        else ""
    )
    for name, text in (
        ("state", _state(view)),
        ("log", f"{log.min_offset:,} to {log.end_offset:,}, in {segments} of {sizes.segment:,} bytes"),
        *([("raft", in_group)] if in_group else []),
        ("stored", f"{format_ms(log.first_time_ms)} to {format_ms(log.last_time_ms)}"),
        ("messages", f"{fields['messages']:,} in {len(rows):,} queues, whose files have {sizes.queue_file:,} bytes"),
        ("index", f"{files} of {sizes.index_file:,} bytes"),
        (
            "checkpoint",
            f"log {format_ms(view.checkpoint.log_time_ms)}, queues {format_ms(view.checkpoint.queue_time_ms)}, "
            f"index {format_ms(view.checkpoint.index_time_ms)}",
        ),
        (
            "delayed",
            f"{plural(delayed.waiting, 'message')} in {plural(delayed.hours, 'hour')}"
            + (f", from {format_ms(delayed.first_hour_ms)} on" if delayed.waiting else ""),
        ),
    ):
        output.item({}, f"{name:<11}{text}")
    if queues:
        output.rows(
            [
                {
                    "topic": queue.topic,
                    "queue": queue.queue_id,
                    "min_offset": queue.min_offset,
                    "max_offset": queue.max_offset,
                    "messages": queue.messages,
                    "first_message": format_ms(queue.first_time_ms),
                    "last_message": format_ms(queue.last_time_ms),
                }
                for queue in rows
            ],
            columns=("topic", "queue", "min_offset", "max_offset", "messages", "first_message", "last_message"),
            empty="no queues yet",
        )
        return
    output.rows(
        [
            {
                "topic": topic.topic,
                "queues": topic.queues,
                "messages": topic.messages,
                "last_message": format_ms(topic.last_time_ms),
            }
            for topic in by_topic(rows)
        ],
        columns=("topic", "queues", "messages", "last_message"),
        empty="no queues yet",
    )


@app.command()
def verify(directory: Directory, settings: Sizes = None, config: ConfigFile = None, as_json: Json = False) -> None:
    """Check log, queues, index, delayed messages, checkpoint and tables; report each fault with its effect and remedy.

    Reads every record. The exit code is 1 if there is a fault. Notes are not faults: the next start repairs those.

    Example:

        tern store verify ternmq-data/broker-a
    """
    from ternmq.delay.schedule_check import ScheduleCheck
    from ternmq.store.inspect.verify import verify as check

    clock = SystemClock()
    began = clock.monotonic()
    with progress_bar("verify") as tell:
        verdict = check(directory, config_of(settings, config), checks=(ScheduleCheck,), progress=tell)
    seconds = clock.monotonic() - began
    if as_json:
        Output(as_json=True).item(_as_fields(verdict, seconds), "")
    else:
        _print_verdict(verdict, seconds)
    if verdict.faults:
        raise typer.Exit(1)


@app.command(cls=Destructive)
def rebuild(
    directory: Directory,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="DIR", help="Write the files to this directory, and do not change the store."),
    ] = None,
    yes: Yes = False,
    settings: Sizes = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Rebuild the queues, the index and the schedule of delayed messages, and replace the present ones.

    They are made from the log, which is not changed. Delayed messages that are older than the log are kept. The old
    files are replaced once the new ones are complete. Stop the broker first.

    Examples:

        tern store rebuild ternmq-data/broker-a

        tern store rebuild ternmq-data/broker-a --out /tmp/fresh
    """
    from ternmq.delay.schedule_rebuild import fresh_schedule
    from ternmq.store.inspect.rebuild import rebuild as make
    from ternmq.store.inspect.view import StoreView

    inspect = config_of(settings, config)
    # Before the question: fail if the rebuild would be refused anyway.
    holder = StoreView(directory, inspect, on_corrupt=lambda _: None).holder
    if out is None and holder is not None:
        raise StoreLocked(str(directory))
    if out is None:
        confirm(
            [f"the queues, the index and the schedule in {directory} are replaced; its log is not changed"],
            f"replace the queues, the index and the schedule of {directory}?",
            yes=yes,
        )
    clock = SystemClock()
    began = clock.monotonic()
    with progress_bar("rebuild") as tell:
        made = make(directory, inspect, out=out, clock=clock, derived=(fresh_schedule,), progress=tell)
    seconds = clock.monotonic() - began
    Output(as_json=as_json).item(
        {
            "directory": str(out or directory),
            "records": made.records,
            "log_bytes": made.log_bytes,
            "queues": made.queues,
            "damaged_places": [
                {"log_offset": damaged.begin, "end_offset": damaged.end, "what": damaged.kind.value}
                for damaged in made.damages
            ],
            "seconds": round(seconds, 3),
            "mb_per_second": _speed(made.log_bytes, seconds),
        },
        f"rebuilt {made.queues:,} queues and the index from {made.records:,} records in {out or directory} "
        f"({made.log_bytes / _MB:,.1f} MB in {seconds:.1f} s, {_speed(made.log_bytes, seconds)} MB/s)",
    )
    for damaged in made.damages:
        note(f"skipped log offsets {damaged.begin:,} to {damaged.end:,}: {damaged.kind.value}")


@app.command()
def diff(
    left: Annotated[Path, typer.Argument(help="A store directory.", metavar="A", readable=False)],
    right: Annotated[Path, typer.Argument(help="Store directory to compare with.", metavar="B", readable=False)],
    settings: Sizes = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Compare two stores: records, queues, index and tables. The exit code is 1 if they differ.

    Example:

        tern store diff ternmq-data/broker-a backup/broker-a
    """
    from ternmq.store.inspect.compare import compare
    from ternmq.store.inspect.view import StoreView

    inspect = config_of(settings, config)
    views = [StoreView(directory, inspect) for directory in (left, right)]
    with progress_bar("compare") as tell:
        found = [dataclasses.asdict(difference) for difference in compare(*views, progress=tell)]
    Output(as_json=as_json).rows(found, columns=("part", "name", "what"), empty=f"{left} and {right} are equal")
    if found:
        raise typer.Exit(1)


@app.command(cls=Destructive)
def cut(
    directory: Directory,
    at: Annotated[int, typer.Option("--at", min=0, metavar="OFFSET", help="Log offset at which the log is to end.")],
    keep: Annotated[
        Path | None,
        typer.Option("--keep", metavar="DIR", help="New directory for what is cut off; by default in DIR/cut."),
    ] = None,
    yes: Yes = False,
    settings: Sizes = None,
    config: ConfigFile = None,
    as_json: Json = False,
) -> None:
    """Cut the end off the log, so that a slave can follow a master that does not have it. Stop the broker first.

    The log of the slave names the offset (AHEAD). What is cut off is kept, and `tern store dump` shows it. Offsets of
    consumers behind the new end are corrected when the broker starts.

    Example:

        tern store cut ternmq-data/broker-a --at 1048576
    """
    from ternmq.store.cut import cut_log
    from ternmq.store.disk.file_disk import FileDisk
    from ternmq.store.inspect.view import StoreView

    inspect = config_of(settings, config)
    view = StoreView(directory, inspect, on_corrupt=lambda _: None)
    if view.holder is not None:
        raise StoreLocked(str(directory))
    disk = FileDisk()
    place = inspect.log_place(disk, directory)
    if place.home is not None:
        raise ConfigError(
            f"{directory} is of a member of a Raft group, which cuts its log by itself: start it, or empty the "
            "directory"
        )
    confirm(
        [f"messages behind log offset {at} are taken out of {directory}, and kept in {keep or directory / 'cut'}"],
        f"cut all behind log offset {at} off the log of {directory}?",
        yes=yes,
    )
    held = disk.lock(directory / "lock")
    try:
        made = cut_log(disk, directory, place.paths, segment_bytes=view.sizes.segment, log_offset=at, keep=keep)
    finally:
        held.release()
    Output(as_json=as_json).item(
        {
            "directory": str(directory),
            "log_offset": made.log_offset,
            "cut_bytes": made.cut_bytes,
            "messages": made.messages,
            "kept": str(made.kept) if made.kept is not None else None,
        },
        f"cut {made.cut_bytes:,} bytes with {made.messages:,} messages off {directory}; they are in {made.kept}"
        if made.kept is not None
        else f"{directory} has nothing behind log offset {at}",
    )


# --- Shared -------------------------------------------------------------------------------------------------------


def config_of(flags: list[str] | None, file: Path | None) -> InspectConfig:
    """The given settings of a store; the others are derived from its files. Raises ``ConfigError``."""
    from ternmq.store.config import StoreConfig
    from ternmq.store.inspect.sizes import InspectConfig

    settings = Settings.gather(files=[file] if file is not None else [], flags=flags or [])
    for stranger in settings.strangers(StoreConfig):
        if stranger.place == "--set":
            near = nearest(stranger, StoreConfig)
            hint = (
                f"; did you mean {near}?" if near else "; give file sizes, such as mappedFileSizeCommitLog=1073741824"
            )
            raise ConfigError(f"unknown setting {stranger.key!r} of a store{hint}")
    given = {setting.name for setting in settings.given}
    store = settings.build(StoreConfig)
    names = [field.name for field in dataclasses.fields(InspectConfig) if field.name.replace("_", "") in given]
    return InspectConfig(**{name: getattr(store, name) for name in names})


def _state(view: StoreView) -> str:
    if view.holder is not None:
        return f"in use by a broker (process {view.holder or 'of another container'})"
    return (
        "closed"
        if view.was_closed
        else "not closed: the broker stopped unexpectedly; the next start recovers the store"
    )


def _as_fields(verdict: Verification, seconds: float) -> dict[str, object]:
    return {
        "faults": len(verdict.faults),
        "findings": [dataclasses.asdict(finding) for finding in verdict.findings],
        "records": verdict.records,
        "log_bytes": verdict.log_bytes,
        "queue_entries": verdict.queue_entries,
        "index_entries": verdict.index_entries,
        "seconds": round(seconds, 3),
        "mb_per_second": _speed(verdict.log_bytes, seconds),
    }


def _print_verdict(verdict: Verification, seconds: float) -> None:
    output = Output(as_json=False)
    if output.as_csv:
        rows = [dataclasses.asdict(finding) for finding in verdict.findings]
        output.rows(rows, columns=("path", "what", "cost", "cure", "is_note"), empty="")
        return
    for finding in verdict.findings:
        output.item({}, f"{'note' if finding.is_note else 'FAULT'}  {finding.path}: {finding.what}")
        output.item({}, f"       effect: {finding.cost}")
        if finding.cure:
            output.item({}, f"       remedy: {finding.cure}")
    faults = len(verdict.faults)
    output.item(
        {},
        f"{faults or 'no'} fault{'' if faults == 1 else 's'} in {verdict.records:,} records, "
        f"{verdict.queue_entries:,} queue entries and {verdict.index_entries:,} index entries "
        f"({verdict.log_bytes / _MB:,.1f} MB in {seconds:.1f} s, {_speed(verdict.log_bytes, seconds)} MB/s)",
    )


def _speed(log_bytes: int, seconds: float) -> float:
    return round(log_bytes / _MB / seconds, 1) if seconds else 0.0
