"""``tern dlq``: list, show, resend, purge (H2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, GroupArgument, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.cli.shown import body_preview, fields_of, lines_of
from ternmq.cli.times import format_ms, parse_time
from ternmq.env import SystemClock

if TYPE_CHECKING:
    from ternmq.admin.deadletters import DeadLetter, DeadLetterCount, Purged, Resent

app = Commands(no_args_is_help=True, help="Manage dead letters: messages that failed all attempts of a group.")

From = Annotated[str | None, typer.Option("--from", metavar="TIME", help="Failed at this time or later.")]
To = Annotated[str | None, typer.Option("--to", metavar="TIME", help="Failed at this time or earlier.")]


@app.command("list", cls=Watched)
def list_(
    group: Annotated[
        str | None, typer.Argument(help="Name of a group; default: all groups with dead letters.", metavar="GROUP")
    ] = None,
    begin: From = None,
    end: To = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Show at most this many, the oldest first.")] = 100,
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include those that are already resent or purged.")
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the groups that have dead letters, or the dead letters of one group, oldest first.

    Dead letters that are already resent or purged are not shown. A TIME is 2026-01-31T12:00:00.250, 15m (ago), or
    milliseconds since 1970.

    Examples:

        tern dlq list

        tern dlq list billing --from 2h
    """
    if group is None:
        _list_groups(name_servers, everything=everything, as_json=as_json)
        return
    from ternmq.admin import Admin

    begin_ms, end_ms = _times(begin, end)

    async def work(group: str) -> list[DeadLetter]:
        async with Admin(name_servers) as admin:
            return await admin.dead_letters.all(group, begin=begin_ms, end=end_ms, count_max=count, handled=everything)

    found = run(work(group))
    output = Output(as_json=as_json)
    output.rows(
        [_fields(letter) if as_json else _row(letter) for letter in found],
        columns=("given_up", "origin", "attempts", "message_id", "keys", "body"),
        empty=f"group {group} has no dead letters{' in this time' if begin or end else ''}"
        + ("" if everything else " left; --all shows also those that are already resent or purged"),
    )
    if len(found) == count and output.is_terminal and not as_json:
        note(f"only the oldest {count} are shown; for more, use --count or --from")


def _list_groups(name_servers: str, *, everything: bool, as_json: bool) -> None:
    from ternmq.admin import Admin

    async def work() -> list[DeadLetterCount]:
        async with Admin(name_servers) as admin:
            return [one for one in await admin.dead_letters.groups() if everything or one.waiting]

    Output(as_json=as_json).rows(
        [
            {
                "group": one.group,
                "waiting": one.waiting,
                "total": one.total,
                "last": one.last_ms if as_json else format_ms(one.last_ms),
            }
            for one in run(work())
        ],
        columns=("group", "waiting", "total", "last"),
        empty="no dead letters"
        if everything
        else "no dead letters left; --all counts also those that are already resent or purged",
    )


@app.command()
def show(
    group: GroupArgument,
    message_id: Annotated[str, typer.Argument(help="A message id, or an offset id.", metavar="ID")],
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show one dead letter: its original topic, the number of attempts, and its contents.

    The reason of the failure is in the log of the consumers; brokers do not know it. A dead letter that was resent
    and failed again is shown once for each failure.

    Example:

        tern dlq show billing C0A8000700010B1E4A3C5D2B7E8F0000
    """
    from ternmq.admin import Admin

    async def work() -> list[tuple[DeadLetter, Resent]]:
        async with Admin(name_servers) as admin:
            letters = await admin.dead_letters.find(group, message_id)
            ids = [letter.message.offset_id for letter in letters]
            return list(zip(letters, await admin.dead_letters.resend(group, ids, dry_run=True), strict=True))

    output = Output(as_json=as_json)
    for letter, resent in run(work()):
        again_ms = resent.earlier.store_time_ms if resent.earlier is not None else None
        if as_json:
            output.item(_fields(letter) | {"sent_again_ms": again_ms}, "")
            continue
        known: dict[str, object] = {
            "group": letter.group,
            "origin": letter.origin_topic or None,
            "origin id": letter.origin_id or None,
            "attempts": letter.attempts,
            "failed": format_ms(letter.message.store_time_ms),
            "resent": format_ms(again_ms) if again_ms is not None else None,
        }
        rows = [{"field": field, "value": value} for field, value in known.items()]
        output.rows([*rows, *lines_of(letter.message)], columns=("field", "value"), empty="")


@app.command()
def resend(
    group: GroupArgument,
    message_ids: Annotated[list[str] | None, typer.Argument(help="Message ids, or offset ids.", metavar="ID")] = None,
    everything: Annotated[bool, typer.Option("--all", "-a", help="All that are not resent or purged yet.")] = False,
    begin: From = None,
    end: To = None,
    to_topic: Annotated[
        bool, typer.Option("--to-topic", help="Send to the original topic, and so to all its groups.")
    ] = False,
    again: Annotated[bool, typer.Option("--again", help="Include those that were already resent.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and send nothing.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Resend dead letters: by id, by time, or all.

    They are sent only to the group that failed to consume them, get all attempts again, and keep their ids, keys and
    tags. Dead letters that were already resent are skipped.

    Examples:

        tern dlq resend billing C0A8000700010B1E4A3C5D2B7E8F0000

        tern dlq resend billing --from 2h --dry-run

        tern dlq resend billing --all
    """
    from ternmq.admin import Admin

    if sum((bool(message_ids), everything, begin is not None or end is not None)) != 1:
        raise typer.BadParameter("choose the dead letters in one of three ways: ids, a time (--from, --to), or --all")
    begin_ms, end_ms = _times(begin, end)
    output = Output(as_json=as_json)
    sent = left_alone = 0

    def tell(resent: Resent) -> None:
        nonlocal sent, left_alone
        if resent.earlier is None:
            sent += 1
        else:
            left_alone += 1
        output.item(_outcome(resent), _sentence(resent))

    async def work() -> None:
        async with Admin(name_servers) as admin:
            await admin.dead_letters.resend(
                group,
                message_ids or (),
                begin=begin_ms,
                end=end_ms,
                to_topic=to_topic,
                again=again,
                dry_run=dry_run,
                on_resent=tell,
            )

    try:
        run(work())
    finally:
        if not as_json:
            note(
                f"{sent} {'would be resent' if dry_run else 'resent'}"
                + (
                    f", {left_alone} skipped because they were already resent (use --again to include them)"
                    if left_alone
                    else ""
                )
            )


@app.command(cls=Destructive)
def purge(
    group: GroupArgument,
    before: Annotated[
        str | None, typer.Option("--before", metavar="TIME", help="Only those that failed before this time.")
    ] = None,
    for_good: Annotated[
        bool,
        typer.Option(
            "--for-good", help="Delete the dead-letter topic of the group; the messages cannot be read afterwards."
        ),
    ] = False,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Mark dead letters as handled: they are no longer listed or resent, unless you use --all.

    The messages stay in the log until they expire. With --for-good they cannot be read any more.

    Examples:

        tern dlq purge billing --before 7d

        tern dlq purge billing --for-good
    """
    from ternmq.admin import Admin

    before_ms, _ = _times(before, None)

    async def work(*, dry_run: bool = False) -> list[Purged]:
        async with Admin(name_servers) as admin:
            return await admin.dead_letters.purge(group, before=before_ms, for_good=for_good, dry_run=dry_run)

    if not yes and (waiting := sum(one.count for one in run(work(dry_run=True)))):
        done = (
            "deleted, and cannot be read afterwards"
            if for_good
            else "marked as handled; `tern dlq list --all` shows them"
        )
        confirm([f"{waiting} dead letters of group {group} are {done}"], f"purge the dead letters of {group}?", yes=yes)
    count = sum(one.count for one in run(work()))
    Output(as_json=as_json).item(
        {"group": group, "count": count, "for_good": for_good},
        f"{count} dead letters of group {group} are {'deleted' if for_good else 'marked as handled'}",
    )


def _times(*texts: str | None) -> tuple[int | None, ...]:
    now_ms = SystemClock().now_ms()
    return tuple(None if text is None else parse_time(text, now_ms=now_ms) for text in texts)


def _row(letter: DeadLetter) -> dict[str, object]:
    return {
        "given_up": format_ms(letter.message.store_time_ms),
        "origin": letter.origin_topic or None,
        "attempts": letter.attempts,
        "message_id": letter.message.message_id,
        "keys": letter.message.keys or None,
        "body": body_preview(letter.message),
    }


def _fields(letter: DeadLetter) -> dict[str, object]:
    return {
        "group": letter.group,
        "origin_topic": letter.origin_topic,
        "origin_id": letter.origin_id,
        "attempts": letter.attempts,
        **fields_of(letter.message),
    }


def _outcome(resent: Resent) -> dict[str, object]:
    dead, copy = resent.letter.message, resent.receipt
    return {
        "message_id": dead.message_id,
        "dead_offset_id": dead.offset_id,
        "topic": resent.topic,
        "offset_id": copy.offset_id if copy is not None else None,
        "sent_before_ms": resent.earlier.store_time_ms if resent.earlier is not None else None,
    }


def _sentence(resent: Resent) -> str:
    dead = resent.letter.message
    if resent.earlier is not None:
        return f"{dead.message_id} was already resent, {format_ms(resent.earlier.store_time_ms)}"
    return f"{dead.message_id} to {resent.topic}" + (f" as {resent.receipt.offset_id}" if resent.receipt else "")
