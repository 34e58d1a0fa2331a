"""``tern group``: create, mode, list, members, info, progress, reset, clone, delete (D2, D4, F9, F10, L2)."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, GroupArgument, Json, NameServers
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.cli.times import format_ms, parse_position

if TYPE_CHECKING:
    from ternmq.admin.clients import ConsumerInfo, LiveConsumers, QueueState, Sharer
    from ternmq.admin.offsets import Move

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the result without changing anything.")]
#: Queues that are listed before a question.
PLAN_LINES: Final = 32

app = Commands(
    no_args_is_help=True, help="Create and list consumer groups, show their progress, and reset their offsets."
)


@app.command()
def create(
    group: GroupArgument,
    retry_max: Annotated[int, typer.Option(help="Retries before a message becomes a dead letter.", min=0)] = 16,
    broadcast: Annotated[bool, typer.Option(help="Allow broadcast consumption.")] = True,
    cluster: Annotated[str | None, typer.Option(help="Only on the brokers of this cluster.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create or change a group.

    A group is created by its first consumer, unless the brokers have autoCreateSubscriptionGroup=false.

    Example:

        tern group create billing --retry-max 5
    """
    from ternmq.admin import Admin
    from ternmq.admin.brokers import BrokerInfo

    async def work() -> list[BrokerInfo]:
        async with Admin(name_servers) as admin:
            return await admin.groups.create(group, retry_max=retry_max, broadcast=broadcast, cluster=cluster)

    brokers = sorted(broker.name for broker in run(work()))
    Output(as_json=as_json).item(
        {"group": group, "retry_max": retry_max, "broadcast": broadcast, "brokers": brokers},
        f"group {group} is on {', '.join(brokers)}",
    )


class Mode(enum.StrEnum):
    POP = "pop"
    PULL = "pull"


@app.command()
def mode(
    group: GroupArgument,
    topic: Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")],
    how: Annotated[Mode, typer.Argument(help="How members receive messages.", metavar="pop|pull")],
    share: Annotated[
        int,
        typer.Option(help="With pop: number of other members whose queues a member also reads; 0: all queues.", min=0),
    ] = 0,
    cluster: Annotated[str | None, typer.Option(help="Only on the brokers of this cluster.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Set whether a group pops or pulls the messages of a topic.

    This affects members whose queues are assigned by the broker (Java clients with clientRebalance=false).

    Examples:

        tern group mode billing orders pop

        tern group mode billing orders pop --share 2

        tern group mode billing orders pull
    """
    from ternmq.admin import Admin
    from ternmq.admin.brokers import BrokerInfo
    from ternmq.wire.bodies.clients import RequestMode

    async def work() -> list[BrokerInfo]:
        async with Admin(name_servers) as admin:
            chosen = RequestMode[how.name]
            return await admin.groups.set_mode(group, topic, chosen, share=share, cluster=cluster)

    brokers = sorted(broker.name for broker in run(work()))
    Output(as_json=as_json).item(
        {"group": group, "topic": topic, "mode": how.value, "share": share, "brokers": brokers},
        f"group {group} now uses {how.value} for topic {topic} on {', '.join(brokers)}",
    )


@app.command("list", cls=Watched)
def list_(
    everything: Annotated[bool, typer.Option("--all", "-a", help="Include system groups.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List consumer groups with their active members and their lag.

    Examples:

        tern group list

        tern group list --watch
    """
    from ternmq.admin import Admin
    from ternmq.admin.groups import GroupInfo

    async def work() -> list[GroupInfo]:
        async with Admin(name_servers) as admin:
            return await admin.groups.all(system=everything)

    Output(as_json=as_json).rows(
        [
            {"group": group.name, "members": group.members, "model": group.model or None, "lag": group.lag}
            for group in run(work())
        ],
        columns=("group", "members", "model", "lag"),
        empty="no groups yet; a group is created by its first consumer, or with `tern group create NAME`",
    )


@app.command(cls=Watched)
def members(group: GroupArgument, name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False) -> None:
    """List the active members of a group and their subscriptions.

    For consumers that share messages, also their state (online, offline, gone) and how many messages they hold. A
    warning is shown if the subscriptions of the members differ.

    Example:

        tern group members billing
    """
    from ternmq.admin import Admin

    async def work() -> tuple[LiveConsumers | None, list[Sharer]]:
        async with Admin(name_servers) as admin:
            return await admin.clients.consumers(group), await admin.clients.sharers(group)

    found, sharers = run(work())
    rows: list[dict[str, object]] = []
    for one in found.members if found is not None else ():
        assert found is not None
        subscribed = found.subscriptions if one.subscriptions is None else one.subscriptions
        rows.append(
            {
                "client": one.client_id,
                "address": one.address,
                "language": one.language,
                "version": one.version,
                "model": found.model,
                "subscribes": subscribed if as_json else ", ".join(map(": ".join, subscribed.items())),
                "differs": found.differ,
                **_shares([sharer for sharer in sharers if sharer.consumer == one.client_id]),
            }
        )
    # Others have a name of their own, or are not connected any more.
    names = {row["client"] for row in rows}
    for name in dict.fromkeys(sharer.consumer for sharer in sharers if sharer.consumer not in names):
        about = dict.fromkeys(("address", "language", "version", "model", "subscribes", "differs"))
        rows.append({"client": name or None, **about, **_shares([one for one in sharers if one.consumer == name])})
    shown = ("state", "held", "idle_s") if sharers else ()
    Output(as_json=as_json).rows(
        rows,
        columns=("client", "address", "language", "version", "model", "subscribes", *shown),
        empty=f"group {group} has no active consumers",
    )
    if found is not None and found.differ and not as_json:
        note(
            f"the members of group {group} have different subscriptions, so each can miss messages; give all "
            "members the same subscriptions, or use one group for each"
        )


def _shares(sharers: Sequence[Sharer]) -> dict[str, object]:
    """What the brokers know of one consumer that shares messages; it is online if any of them heard of it."""
    states = [sharer.state for sharer in sharers]
    return {
        "state": None if not states else "online" if "online" in states else states[0],
        "held": sum([sharer.held for sharer in sharers]) if sharers else None,
        "idle_s": min([sharer.idle_ms for sharer in sharers]) // 1000 if sharers else None,
        "shares": [asdict(sharer) for sharer in sharers],
    }


@app.command(cls=Watched)
def info(
    group: GroupArgument,
    client: Annotated[str | None, typer.Option("--client", help="Only the member with this client id.")] = None,
    stack: Annotated[bool, typer.Option("--stack", help="Also show the stack of each thread and task.")] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the state of the active members of a group: queues, offsets, messages in progress and throughput.

    Examples:

        tern group info billing

        tern group info billing --client 10.0.0.7@4711#28513 --stack
    """
    from ternmq.admin import Admin

    async def work() -> list[ConsumerInfo]:
        async with Admin(name_servers) as admin:
            found = await admin.clients.consumers(group)
            clients = [one.client_id for one in found.members] if found is not None else []
            return [
                await admin.clients.info(group, one, stack=stack)
                for one in ([client] if client is not None else clients)
            ]

    found = run(work())
    output = Output(as_json=as_json)
    if as_json:
        for one in found:
            output.item(asdict(one) | {"queues": [asdict(state) | _place(state) for state in one.queues]}, "")
        return
    output.rows(
        [row for one in found for row in _queue_rows(one)],
        columns=("client", "topic", "broker", "queue", "progress", "in_flight", "locked", "last_pull", "last_call"),
        empty=f"no active consumer of group {group} reads a queue now",
    )
    for one in found:
        for speed in one.topics:
            note(
                f"{one.client_id} {speed.topic}: {speed.done_per_s:.1f} consumed/s, {speed.failed_per_s:.1f} "
                f"failed/s, {speed.call_ms:.1f} ms per call, {speed.failed_last_hour} failed in the last hour"
            )
        if stack:
            output.item({}, f"--- {one.client_id}\n{one.stack}")


def _queue_rows(member: ConsumerInfo) -> list[dict[str, object]]:
    return [
        {
            "client": member.client_id,
            **_place(one),
            "progress": one.progress,
            "in_flight": one.in_flight,
            "locked": one.locked if member.orderly else None,
            "last_pull": format_ms(one.last_pull_ms),
            "last_call": format_ms(one.last_consume_ms),
        }
        for one in member.queues
    ]


def _place(state: QueueState) -> dict[str, object]:
    return {"topic": state.queue.topic, "broker": state.queue.broker_name, "queue": state.queue.queue_id}


@app.command(cls=Watched)
def progress(
    group: GroupArgument,
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the offset and lag of a group in each queue, and the number of messages in progress.

    Example:

        tern group progress billing --topic orders
    """
    from ternmq.admin import Admin
    from ternmq.admin.groups import QueueProgress

    async def work() -> list[QueueProgress]:
        async with Admin(name_servers) as admin:
            return await admin.groups.progress(group, topic=topic)

    found = run(work())
    output = Output(as_json=as_json)
    output.rows(
        [
            {
                "topic": one.queue.topic,
                "broker": one.queue.broker_name,
                "queue": one.queue.queue_id,
                "broker_offset": one.broker_offset,
                "consumer_offset": one.consumer_offset,
                "lag": one.lag,
                "in_flight": one.in_flight,
                "consumed_up_to": one.last_store_ms if as_json else format_ms(one.last_store_ms),
            }
            for one in found
        ],
        columns=("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "in_flight", "consumed_up_to"),
        empty=f"group {group} has consumed nothing{f' of {topic}' if topic else ''} yet",
    )
    if output.is_terminal and not as_json and found:
        note(f"{sum(one.lag for one in found)} messages not consumed yet in {len(found)} queues")


@app.command(cls=Destructive)
def reset(
    group: GroupArgument,
    topic: Annotated[str, typer.Argument(help="Name of the topic.", metavar="TOPIC")],
    to: Annotated[
        str,
        typer.Option("--to", metavar="first|last|TIME", help="2026-01-31T12:00:00.250, 15m (ago), or ms since 1970."),
    ],
    dry_run: DryRun = False,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Reset the offsets of a group: to the first message, the end or a time, in each queue of a topic.

    Active members continue from there with their next pull; Java clients need about 10 s.

    Examples:

        tern group reset billing orders --to 2026-01-31T12:00 --dry-run

        tern group reset billing orders --to first
    """
    from ternmq.admin import Admin

    position = parse_position(to)

    async def work(*, dry_run: bool) -> list[Move]:
        async with Admin(name_servers) as admin:
            return await admin.offsets.reset(group, topic, position, dry_run=dry_run)

    if not dry_run and not yes:
        confirm(_plan(run(work(dry_run=True))), f"reset group {group}?", yes=yes)
    _show_moves(run(work(dry_run=dry_run)), as_json=as_json, empty=f"topic {topic} has no readable queues")
    if dry_run:
        note("dry run: nothing was changed; omit --dry-run to reset the offsets")


@app.command(cls=Destructive)
def clone(
    group: Annotated[str, typer.Argument(help="Group to copy from.", metavar="SOURCE")],
    target_group: Annotated[str, typer.Argument(help="Group to copy to.", metavar="TARGET")],
    topic: Annotated[str | None, typer.Option("--topic", "-t", help="Only this topic.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Copy offsets from one group to another. The target group is created if it does not exist.

    It asks if the target group has offsets already.

    Examples:

        tern group clone billing billing-test --topic orders

        tern group clone billing billing-test --dry-run
    """
    from ternmq.admin import Admin

    async def work(*, dry_run: bool) -> list[Move]:
        async with Admin(name_servers) as admin:
            return await admin.offsets.clone(group, target_group, topic=topic, dry_run=dry_run)

    if not dry_run and not yes:
        overwritten = [move for move in run(work(dry_run=True)) if move.before not in (None, move.after)]
        if overwritten:
            confirm(_plan(overwritten), f"overwrite the offsets of group {target_group}?", yes=yes)
    _show_moves(run(work(dry_run=dry_run)), as_json=as_json, empty="")
    if dry_run:
        note("dry run: nothing was changed; omit --dry-run to copy the offsets")


@app.command(cls=Destructive)
def delete(
    group: GroupArgument,
    cluster: Annotated[str | None, typer.Option(help="Only on the brokers of this cluster.")] = None,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Delete a group: its settings and its offsets. Stop its members first: they would create it again.

    Messages in its retry and dead-letter topics stay; see `tern dlq purge`.

    Example:

        tern group delete billing-test
    """
    from ternmq.admin import Admin

    async def look() -> list[str]:
        async with Admin(name_servers) as admin:
            await admin.groups.progress(group)  # an unknown group is an error
            info = await admin.groups.info(group)
        return [
            f"group {group} has {info.members} active members and a lag of {info.lag} messages; its offsets are lost"
        ]

    async def work() -> list[str]:
        async with Admin(name_servers) as admin:
            return sorted(broker.name for broker in await admin.groups.delete(group, cluster=cluster))

    if not yes:
        confirm(run(look()), f"delete group {group}?", yes=yes)
    brokers = run(work())
    Output(as_json=as_json).item(
        {"group": group, "deleted_on": brokers}, f"group {group} was deleted on {', '.join(brokers)}"
    )


def _plan(moves: Sequence[Move]) -> list[str]:
    """What would change, in lines; queues that stay as they are in none."""
    lines = [f"{move.queue}: {'-' if move.before is None else move.before} → {move.after}" for move in moves]
    return lines if len(lines) <= PLAN_LINES else [*lines[:PLAN_LINES], f"and {len(lines) - PLAN_LINES} more queues"]


def _show_moves(moves: Sequence[Move], *, as_json: bool, empty: str) -> None:
    Output(as_json=as_json).rows(
        [
            {
                "topic": move.queue.topic,
                "broker": move.queue.broker_name,
                "queue": move.queue.queue_id,
                "before": move.before,
                "after": move.after,
            }
            for move in moves
        ],
        columns=("topic", "broker", "queue", "before", "after"),
        empty=empty,
    )
