"""``tern raft``: status, transfer, add, remove (P4)."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated

import typer

from ternmq.cli.command import Commands, Destructive, Watched
from ternmq.cli.confirm import Yes, confirm
from ternmq.cli.options import NAME_SERVER_DEFAULT, Json, NameServers
from ternmq.cli.output import Output
from ternmq.cli.running import run

if TYPE_CHECKING:
    from ternmq.admin.raft import RaftMemberInfo

app = Commands(no_args_is_help=True, help="Show Raft groups, and change their leaders and members.")

BrokerName = Annotated[str | None, typer.Option("--broker", "-b", metavar="NAME", help="Only of this broker.")]


@app.command(cls=Watched)
def status(broker: BrokerName = None, name_servers: NameServers = NAME_SERVER_DEFAULT, as_json: Json = False) -> None:
    """Show the members of Raft groups: role, term, leader, commit index, and what each lacks of the leader's log.

    Examples:

        tern raft status

        tern raft status --broker broker-a --json
    """
    from ternmq.admin import Admin

    async def work() -> list[RaftMemberInfo]:
        async with Admin(name_servers) as admin:
            return await admin.raft.status(broker)

    members = run(work())
    Output(as_json=as_json).rows(
        [_fields(member) if as_json else _row(member) for member in members],
        columns=("broker", "member", "address", "role", "term", "leader", "commit", "last", "lag", "lag_bytes"),
        empty="no broker is a member of a Raft group",
    )


@app.command()
def transfer(
    to: Annotated[str, typer.Argument(help="The member that shall lead, as in n1; default: the best one.")] = "",
    broker: BrokerName = None,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let another member lead, before maintenance of the leader's machine for example. No message is lost.

    Examples:

        tern raft transfer n1

        tern broker transfer n1 --broker broker-a
    """
    from ternmq.admin import Admin

    async def work() -> str:
        async with Admin(name_servers) as admin:
            return await admin.raft.transfer(broker, to=to)

    leader = run(work())
    Output(as_json=as_json).item({"leader": leader}, f"{leader} leads the group")


@app.command()
def add(
    member: Annotated[str, typer.Argument(metavar="ID-HOST:PORT", help="The new member, as in n3-10.0.0.4:40911.")],
    broker: BrokerName = None,
    wait_s: Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait until it votes.")] = 600,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let a member join a group that works. Start it first, with raftJoin=true.

    It gets the log from the group, and votes when it keeps up.

    Example:

        tern raft add n3-10.0.0.4:40911
    """
    from ternmq.admin import Admin

    async def work() -> None:
        async with Admin(name_servers) as admin:
            await admin.raft.add(member, broker, wait_s=wait_s)

    run(work())
    name = member.partition("-")[0]
    Output(as_json=as_json).item({"member": name}, f"{name} is a member that votes" if wait_s else f"{name} joins")


@app.command(cls=Destructive)
def remove(
    member: Annotated[str, typer.Argument(help="The member that leaves, as in n1.")],
    broker: BrokerName = None,
    yes: Yes = False,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Let a member leave a group that works. If it leads, another one leads first. Stop its broker afterwards.

    Example:

        tern raft remove n1
    """
    from ternmq.admin import Admin

    async def look() -> list[str]:
        async with Admin(name_servers) as admin:
            members = await admin.raft.status(broker)
        voters = [one.member for one in members if one.votes and one.member != member]
        left = ", ".join(sorted(voters)) or "none"
        return [f"{member} leaves its group; {len(voters)} members that vote are left: {left}"]

    async def work() -> None:
        async with Admin(name_servers) as admin:
            await admin.raft.remove(member, broker)

    if not yes:
        confirm(run(look()), f"remove {member}?", yes=yes)
    run(work())
    Output(as_json=as_json).item({"member": member}, f"{member} is not a member any more; stop its broker")


def _fields(member: RaftMemberInfo) -> dict[str, object]:
    return dataclasses.asdict(member)


def _row(member: RaftMemberInfo) -> dict[str, object]:
    return {
        "broker": member.broker,
        "member": member.member,
        "address": member.address or member.raft_address,
        "role": member.trouble or _role(member),
        "term": member.term,
        "leader": member.leader or "-",
        "commit": member.commit_index,
        "last": member.last_index,
        "lag": member.lag_entries,
        "lag_bytes": member.lag_bytes,
    }


def _role(member: RaftMemberInfo) -> str:
    role = member.role if member.votes else "learner"
    return f"{role}: {member.filling}" if member.filling else role
