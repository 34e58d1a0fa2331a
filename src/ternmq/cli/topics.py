"""``tern topic``: create, list, route, status, traffic, entries, delete (D1, D6)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers, TopicArgument
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.cli.times import format_ms
from ternmq.errors import RouteMissing

if TYPE_CHECKING:
    from ternmq.admin import Admin

app = Commands(no_args_is_help=True, help="Create, list, inspect and delete topics.")


@app.command()
def create(
    topic: TopicArgument,
    queues: Annotated[int, typer.Option("--queues", min=1, max=65535, help="Queues on each broker.")] = 8,
    cluster: Annotated[
        str | None, typer.Option("--cluster", help="Cluster to use; needed if there are several.")
    ] = None,
    perm: Annotated[str, typer.Option("--perm", help="rw, r (read only) or w (write only).")] = "rw",
    order: Annotated[
        bool,
        typer.Option(
            "--order",
            help="Keep the queue of each key while a broker is down; needs orderMessageEnable of name servers.",
        ),
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create or change a topic on all brokers of a cluster.

    Example:

        tern topic create orders --queues 16
    """
    from ternmq.admin import Admin

    bits = {"rw": 6, "r": 4, "w": 2}.get(perm)
    if bits is None:
        raise typer.BadParameter(f"invalid permission {perm!r}: expected rw, r or w", param_hint="--perm")

    async def work() -> tuple[list[str], dict[str, int]]:
        async with Admin(name_servers) as admin:
            before = await _read_queues(admin, topic)
            brokers = await admin.topics.create(topic, queues=queues, cluster=cluster, perm=bits, order=order)
            return [broker.name for broker in brokers], before

    brokers, before = run(work())
    Output(as_json=as_json).item(
        {"topic": topic, "queues": queues, "perm": perm, "brokers": brokers},
        f"topic {topic} has {queues} queues on {', '.join(brokers)}",
    )
    for name in brokers:
        if before.get(name, 0) > queues:
            note(
                f"{name} had {before[name]} queues of {topic}; messages in queues {queues} and above are kept, "
                f"but consumers cannot read them until the topic has {before[name]} queues again"
            )


async def _read_queues(admin: Admin, topic: str) -> dict[str, int]:
    """How many queues of a topic can be read now, by broker; empty for a topic that does not exist."""
    try:
        route = await admin.topics.route(topic)
    except RouteMissing:
        return {}
    return {queue.broker_name: queue.read_queue_nums for queue in route.queue_datas}


@app.command("list", cls=Watched)
def list_(
    everything: Annotated[
        bool, typer.Option("--all", "-a", help="Include system topics and topics of groups (retries, dead letters).")
    ] = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """List the topics of all clusters.

    Examples:

        tern topic list

        tern topic list --all --output csv
    """
    from ternmq.admin import Admin
    from ternmq.admin.topics import TopicInfo

    async def work() -> list[TopicInfo]:
        async with Admin(name_servers) as admin:
            return await admin.topics.all()

    Output(as_json=as_json).rows(
        [
            {
                "topic": topic.name,
                "perm": _perm(topic.perm),
                "read_queues": topic.read_queues,
                "write_queues": topic.write_queues,
                "brokers": topic.brokers,
            }
            for topic in run(work())
            if everything or not topic.is_system
        ],
        columns=("topic", "perm", "read_queues", "write_queues", "brokers"),
        empty="no topics yet; create one with `tern topic create NAME`, or send a message to it",
    )


@app.command(cls=Watched)
def route(topic: TopicArgument, name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show the brokers of a topic and their addresses.

    Example:

        tern topic route orders
    """
    from ternmq.admin import Admin
    from ternmq.wire.bodies.routes import TopicRouteBody

    async def work() -> TopicRouteBody:
        async with Admin(name_servers) as admin:
            return await admin.topics.route(topic)

    found = run(work())
    queues = {queue.broker_name: queue for queue in found.queue_datas}
    Output(as_json=as_json).rows(
        [
            {
                "broker": broker.broker_name,
                "cluster": broker.cluster,
                "id": broker_id,
                "address": address,
                "perm": _perm(queues[broker.broker_name].perm),
                "read_queues": queues[broker.broker_name].read_queue_nums,
                "write_queues": queues[broker.broker_name].write_queue_nums,
            }
            for broker in sorted(found.broker_datas, key=lambda broker: broker.broker_name)
            for broker_id, address in sorted(broker.broker_addrs.items())
            if broker.broker_name in queues
        ],
        columns=("broker", "cluster", "id", "address", "perm", "read_queues", "write_queues"),
        empty=f"no running broker has topic {topic}",
    )


@app.command(cls=Watched)
def status(
    topic: Annotated[str | None, typer.Argument(help="Name of a topic; default: all topics.", metavar="TOPIC")] = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the queue offsets and the time of the last message of each queue; or one line for each topic.

    A topic that only a part of the brokers has is named: a message that created it went to one of them.

    Examples:

        tern topic status

        tern topic status orders --watch
    """
    if topic is None:
        _show_all(name_servers, as_json=as_json)
        return
    from ternmq.admin import Admin
    from ternmq.admin.topics import QueueStatus

    async def work() -> tuple[list[QueueStatus], int]:
        async with Admin(name_servers) as admin:
            return await admin.topics.status(topic), len(await admin.brokers.masters())

    queues, masters = run(work())
    output = Output(as_json=as_json)
    output.rows(
        [
            {
                "broker": found.queue.broker_name,
                "queue": found.queue.queue_id,
                "min_offset": found.min_offset,
                "max_offset": found.max_offset,
                "messages": found.messages,
                "last_message": found.last_store_ms if as_json else format_ms(found.last_store_ms),
            }
            for found in queues
        ],
        columns=("broker", "queue", "min_offset", "max_offset", "messages", "last_message"),
        empty=f"topic {topic} has no queues",
    )
    brokers = {found.queue.broker_name for found in queues}
    if not as_json and 0 < len(brokers) < masters:
        note(_partial(topic, sorted(brokers), masters))


def _show_all(name_servers: str, *, as_json: bool) -> None:
    from ternmq.admin import Admin
    from ternmq.admin.loads import TopicLoad

    async def work() -> tuple[list[TopicLoad], int]:
        async with Admin(name_servers) as admin:
            return await admin.topics.loads(), len(await admin.brokers.masters())

    topics, masters = run(work())
    Output(as_json=as_json).rows(
        [
            {
                "topic": one.topic,
                "on": f"{len(one.brokers)} of {masters}",
                "brokers": one.brokers,
                "queues": one.queues,
                "messages": one.messages,
                "in_s": round(one.in_s, 1),
            }
            for one in topics
        ],
        columns=("topic", "on", "brokers", "queues", "messages", "in_s"),
        empty="no topics yet; create one with `tern topic create NAME`, or send a message to it",
    )
    for one in topics:
        if not as_json and len(one.brokers) < masters:
            note(_partial(one.topic, one.brokers, masters))


def _partial(topic: str, brokers: Sequence[str], masters: int) -> str:
    return (
        f"topic {topic} is on {len(brokers)} of {masters} brokers ({', '.join(brokers)}); "
        f"`tern topic create {topic}` puts it on all"
    )


@app.command(cls=Watched)
def traffic(topic: TopicArgument, name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show how many messages go into a topic, and out of it to each group: now, in the last hour, in the last day.

    Example:

        tern topic traffic orders --watch 5
    """
    from ternmq.admin import Admin
    from ternmq.admin.topics import Traffic

    async def work() -> list[Traffic]:
        async with Admin(name_servers) as admin:
            return await admin.topics.traffic(topic)

    Output(as_json=as_json).rows(
        [
            {
                "direction": "out" if found.group else "in",
                "group": found.group,
                "messages_s": round(found.rate, 1),
                "bytes_s": round(found.rate_bytes),
                "last_hour": found.last_hour,
                "last_day": found.last_day,
            }
            for found in run(work())
        ],
        columns=("direction", "group", "messages_s", "bytes_s", "last_hour", "last_day"),
        empty=f"topic {topic} has no traffic",
    )


@app.command()
def entries(
    topic: TopicArgument,
    broker: Annotated[str, typer.Option("--broker", "-b", help="Name of the broker.")],
    queue: Annotated[int, typer.Option("--queue", "-q", min=0, help="Queue id.")] = 0,
    offset: Annotated[int, typer.Option("--offset", min=0, help="Queue offset of the first entry.")] = 0,
    count: Annotated[int, typer.Option("--count", min=1, help="Entries at most; the broker shows up to 1000.")] = 10,
    group: Annotated[str, typer.Option("--group", "-g", help="Whether the filter of this group lets them pass.")] = "",
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Show the entries of a queue: where its messages lie in the log, and what filters see.

    Example:

        tern topic entries orders --broker broker-a --queue 3 --offset 4711 --group billing
    """
    from ternmq.admin import Admin
    from ternmq.admin.topics import QueueEntryInfo
    from ternmq.message import MessageQueue

    async def work() -> list[QueueEntryInfo]:
        async with Admin(name_servers) as admin:
            place = MessageQueue(topic, broker, queue)
            return await admin.topics.entries(place, offset, count_max=count, group=group)

    columns = ["offset", "log_offset", "size", "tags_code", *(["passes"] if group else []), "note"]
    Output(as_json=as_json).rows(
        [
            {
                "offset": found.queue_offset,
                "log_offset": found.log_offset,
                "size": found.size,
                "tags_code": found.tags_code,
                **({"passes": found.may_pass} if group else {}),
                "note": found.note,
            }
            for found in run(work())
        ],
        columns=columns,
        empty=f"queue {queue} of {topic} on {broker} has no entry {offset}; see `tern topic status {topic}`",
    )


@app.command(cls=Destructive)
def delete(
    topic: TopicArgument, yes: Yes = False, name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False
) -> None:
    """Delete a topic and its messages from all brokers and name servers.

    Examples:

        tern topic delete orders

        tern topic delete orders --yes
    """
    from ternmq.admin import Admin

    async def look() -> list[str]:
        async with Admin(name_servers) as admin:
            queues = await admin.topics.status(topic)
            readers = [one for one in await admin.topics.traffic(topic) if one.group]
        brokers = sorted({one.queue.broker_name for one in queues})
        return [
            f"topic {topic} has {sum(one.messages for one in queues)} messages in {len(queues)} queues on "
            f"{', '.join(brokers)}; they cannot be read afterwards",
            *([f"groups that consume it: {', '.join(one.group for one in readers)}"] if readers else []),
        ]

    async def work() -> list[str]:
        async with Admin(name_servers) as admin:
            return [broker.name for broker in await admin.topics.delete(topic)]

    if not yes:
        confirm(run(look()), f"delete topic {topic}?", yes=yes)
    brokers = run(work())
    Output(as_json=as_json).item(
        {"topic": topic, "deleted_on": brokers}, f"topic {topic} was deleted on {', '.join(brokers)}"
    )


def _perm(bits: int) -> str:
    """``rw``, ``r-``, ``-w``, ``--``; an x means that new topics inherit the settings of this one (TBW102)."""
    return ("r" if bits & 4 else "-") + ("w" if bits & 2 else "-") + ("x" if bits & 1 else "")
