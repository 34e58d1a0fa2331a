"""``tern transaction``: list, resume (J2)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Watched
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.cli.times import age_text
from ternmq.env import SystemClock

if TYPE_CHECKING:
    from ternmq.admin.transactions import OpenTransactionInfo

app = Commands(no_args_is_help=True, help="Show transactions that are open, and check discarded ones again.")


@app.command("list", cls=Watched)
def list_(
    group: Annotated[str | None, typer.Option("--group", "-g", metavar="GROUP", help="Only of this group.")] = None,
    count: Annotated[int, typer.Option("--count", min=1, help="Show at most this many, the oldest first.")] = 100,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List transactions that are neither committed nor rolled back, with age, producer group and number of checks.

    A transaction stays open while its local work runs, or when its producer died. Brokers ask the producers of its
    group, 15 times; without a producer it waits for 12 hours. Then it is moved to the topic
    TRANS_CHECK_MAX_TIME_TOPIC.

    Examples:

        tern transaction list

        tern transaction list --group shop --json
    """
    from ternmq.admin import Admin

    async def work() -> tuple[list[OpenTransactionInfo], int]:
        async with Admin(name_servers) as admin:
            found = await admin.transactions.open(group=group, count_max=count)
            return found, sum((await admin.transactions.count()).values())

    found, total = run(work())
    now_ms = SystemClock().now_ms()
    output = Output(as_json=as_json)
    output.rows(
        [_fields(one, now_ms) if as_json else _row(one, now_ms) for one in found],
        columns=("age", "group", "topic", "checks", "broker", "transaction_id"),
        empty=f"group {group} has no open transactions" if group else "no open transactions",
    )
    if len(found) == count and total > count and output.is_terminal and not as_json:
        note(f"only {count} of {total} open transactions are shown; for more, use --count")


@app.command()
def resume(
    offset_id: Annotated[str, typer.Argument(help="Offset id of the discarded message.", metavar="OFFSET_ID")],
    broker: Annotated[
        str | None,
        typer.Option("--broker", "-b", metavar="NAME", help="Name of its broker, if the address of that has changed."),
    ] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Check a discarded transaction again: its producers are asked, from the first time on.

    Discarded transactions are messages of the topic TRANS_CHECK_MAX_TIME_TOPIC; `tern message at` shows the offset id
    of each.

    Examples:

        tern message at TRANS_CHECK_MAX_TIME_TOPIC broker-a 0 0

        tern transaction resume 7F00000100002A9F00000000000012AB
    """
    from ternmq.admin import Admin

    async def work() -> None:
        async with Admin(name_servers) as admin:
            await admin.transactions.resume(offset_id, broker=broker)

    run(work())
    Output(as_json=as_json).item({"resumed": offset_id}, f"{offset_id} is checked again")


def _fields(one: OpenTransactionInfo, now_ms: int) -> dict[str, object]:
    return {
        "broker": one.broker,
        "transaction_id": one.transaction_id,
        "group": one.group,
        "topic": one.topic,
        "queue_id": one.queue_id,
        "checks": one.checks,
        "age_ms": max(0, now_ms - one.born_time_ms),
        "born_time_ms": one.born_time_ms,
        "store_time_ms": one.store_time_ms,
    }


def _row(one: OpenTransactionInfo, now_ms: int) -> dict[str, object]:
    return {
        "age": age_text(max(0, now_ms - one.born_time_ms) // 1000),
        "group": one.group,
        "topic": one.topic,
        "checks": one.checks,
        "broker": one.broker,
        "transaction_id": one.transaction_id,
    }
