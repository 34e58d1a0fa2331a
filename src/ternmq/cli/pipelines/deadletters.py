"""``tern pipeline deadletters``: statistics of dead letters; selected ones are sent again (U4, H2)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.pipelines.job import Master, Settings, spark_job
from ternmq.cli.times import format_ms, parse_time
from ternmq.env import SystemClock

if TYPE_CHECKING:
    from ternmq.admin.deadletters import Resent
    from ternmq.spark.pipelines.deadletters import LetterReport

#: Length of the longest bar in the chart by hour.
_BAR = 40


def deadletters(
    groups: Annotated[
        list[str] | None,
        typer.Argument(help="Names of groups; default: all groups with dead letters.", metavar="GROUP"),
    ] = None,
    pattern: Annotated[
        str, typer.Option("--pattern", metavar="REGEX", help="Groups whose whole name matches this regular expression.")
    ] = "",
    condition: Annotated[
        str, typer.Option("--where", metavar="SQL", help="Condition in Spark SQL, as \"tags = 'x' AND attempts > 3\".")
    ] = "",
    begin: Annotated[str | None, typer.Option("--from", metavar="TIME", help="Failed at this time or later.")] = None,
    end: Annotated[str | None, typer.Option("--to", metavar="TIME", help="Failed before this time.")] = None,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include those that are already resent or purged.")
    ] = False,
    redrive: Annotated[bool, typer.Option("--redrive", help="Show which would be resent.")] = False,
    for_real: Annotated[bool, typer.Option("--for-real", help="With --redrive: resend them.")] = False,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="Send to the original topic, and so to all its groups.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Include those that were already resent.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    master: Master = "",
    settings: Settings = None,
    as_json: Json = False,
) -> None:
    """Count dead letters by group, topic, tag, reason and hour, or resend selected ones.

    --redrive alone sends nothing: it shows what would be resent. A dead letter is sent to its group only, and never
    twice, as with `tern dlq resend`.

    --where is a Spark SQL condition on the columns group, origin_topic, origin_id, message_id, keys, tags, why,
    attempts, given_up, born_time, properties and body.

    Examples:

        tern pipeline deadletters

        tern pipeline deadletters billing --where "why LIKE '%Timeout%' AND given_up > '2026-01-31 12:00'"

        tern pipeline deadletters billing --where "tags = 'paid'" --redrive --for-real
    """
    if (for_real or to_topic or again) and not redrive:
        raise typer.BadParameter("--for-real, --to-topic and --again need --redrive")
    if redrive and everything:
        raise typer.BadParameter("--all and --redrive exclude each other; omit --all")
    now_ms = SystemClock().now_ms()
    begin_ms, end_ms = (None if text is None else parse_time(text, now_ms=now_ms) for text in (begin, end))
    done: list[Resent] = []
    try:
        with spark_job("deadletters", master=master, settings=settings, as_json=as_json) as (spark, watch):
            from ternmq.spark.pipelines import deadletters as pipeline

            found = pipeline.letters(
                spark,
                groups or (),
                name_servers=name_servers,
                pattern=pattern,
                begin_ms=begin_ms,
                end_ms=end_ms,
                handled=everything,
            )
            found = pipeline.where(found, condition)
            if redrive:
                pipeline.redrive(
                    spark,
                    found,
                    name_servers=name_servers,
                    to_topic=to_topic,
                    again=again,
                    dry_run=not for_real,
                    on_resent=done.append,
                    watch=watch,
                )
            else:
                report = pipeline.examine(spark, found, watch=watch)
    except BaseException:
        # Letters that were sent before the error are still reported.
        if done:
            _show_resent(done, for_real=for_real, as_json=as_json)
        raise
    if redrive:
        _show_resent(done, for_real=for_real, as_json=as_json)
    else:
        _show(report, as_json=as_json)


def _show(report: LetterReport, *, as_json: bool) -> None:
    output = Output(as_json=as_json)
    if as_json:
        output.item({"event": "report", **dataclasses.asdict(report)}, "")
        return
    output.rows(
        [
            {
                "group": one.group,
                "origin": one.origin_topic,
                "tags": one.tags,
                "why": one.why,
                "count": one.count,
                "attempts": f"{one.attempts_min}–{one.attempts_max}"
                if one.attempts_min < one.attempts_max
                else str(one.attempts_max),
                "first": format_ms(one.first_ms),
                "last": format_ms(one.last_ms),
                "sample": one.sample_id,
                "keys": one.sample_keys,
                "body": ascii(one.sample_body)[1:-1],
            }
            for one in report.groups
        ],
        columns=("group", "origin", "tags", "why", "count", "attempts", "first", "last", "sample", "keys", "body"),
        empty="no dead letters; --all counts also those that are already resent or purged",
    )
    most = max((one.count for one in report.hours), default=1)
    if report.hours:
        output.rows(
            [
                {
                    "group": one.group,
                    "hour": format_ms(one.hour_ms)[:16],
                    "count": one.count,
                    "bar": "█" * max(1, round(one.count / most * _BAR)),
                }
                for one in report.hours
            ],
            columns=("group", "hour", "count", "bar"),
            empty="",
        )


def _show_resent(done: list[Resent], *, for_real: bool, as_json: bool) -> None:
    output = Output(as_json=as_json)
    for one in done:
        dead = one.letter.message
        before_ms = one.earlier.store_time_ms if one.earlier is not None else None
        if before_ms is not None:
            line = f"{one.letter.group} {dead.message_id} was already resent, {format_ms(before_ms)}"
        else:
            line = f"{one.letter.group} {dead.message_id} to {one.topic}"
        output.item(
            {
                "event": "resent" if for_real else "planned",
                "group": one.letter.group,
                "message_id": dead.message_id,
                "dead_offset_id": dead.offset_id,
                "topic": one.topic,
                "offset_id": one.receipt.offset_id if one.receipt is not None else None,
                "sent_before_ms": before_ms,
            },
            line,
        )
    left_alone = sum(one.earlier is not None for one in done)
    if not as_json:
        verb = "sent" if for_real else "would be resent"
        note(
            f"{len(done) - left_alone} {verb}"
            + (
                f", {left_alone} skipped because they were already resent (use --again to include them)"
                if left_alone
                else ""
            )
            + ("" if for_real else "; use --for-real to resend them")
        )
