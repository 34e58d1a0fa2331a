"""``tern doctor``: checks this machine and the cluster, and says what to do (T1); ``tern doctor sizing``."""

from __future__ import annotations

import asyncio
import math
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from ternmq.cli.command import Commands, Watched
from ternmq.cli.options import NAME_SERVER_DEFAULT, ConfigFile, Json, NameServers, Set
from ternmq.cli.output import Output, note
from ternmq.cli.running import run
from ternmq.env import SystemClock
from ternmq.errors import NameServersUnreachable, TernError

if TYPE_CHECKING:
    from ternmq.cli.findings import DoctorFinding
    from ternmq.config import Settings


class Doctor(TyperGroup):
    """A group whose first command may be left out: `tern doctor` is `tern doctor check`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        is_named = bool(args) and (args[0] in self.commands or args[0] in ("-h", "--help"))
        return super().parse_args(ctx, args if is_named else ["check", *args])


app = Commands(
    cls=Doctor, help="Check this machine and the cluster (`check`, the default), or calculate what a load needs."
)

#: Topics and groups that are looked at.
COUNT_MAX: Final = 1_000
LIMIT_S: Final = 30.0


@app.command(cls=Watched)
def check(
    config: ConfigFile = None,
    settings: Set = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Directory of the store; default: storePathRootDir of the settings.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster/--no-cluster", help="Check the name servers and brokers, or only this machine.")
    ] = True,
    name_servers: NameServers = NAME_SERVER_DEFAULT,
    as_json: Json = False,
) -> None:
    """Check this machine and the cluster, and say what to do about each finding.

    This machine: ports, disk, file system, scheduler, limits, versions. The cluster: name servers, brokers, clocks,
    versions, topics that only a part of the brokers has, groups with a lag and no consumers. The exit code is 1 if
    there is a problem; warnings do not count.

    Examples:

        tern doctor

        tern doctor -c /etc/ternmq/broker.conf --no-cluster

        tern doctor --profile production --json
    """
    from ternmq.cli.findings import Severity

    found = _of_machine(config, settings or [], directory)
    if cluster:
        found += run(_of_cluster(name_servers))
    output = Output(as_json=as_json)
    output.rows([asdict(one) for one in found], columns=("level", "area", "what", "cure"), empty="")
    counts = {level: sum(one.level is level for one in found) for level in Severity}
    if not as_json:
        note(f"{counts[Severity.PROBLEM]} problems, {counts[Severity.WARNING]} warnings, {counts[Severity.OK]} ok")
    if counts[Severity.PROBLEM]:
        raise typer.Exit(1)


@app.command()
def sizing(
    rate: Annotated[
        float, typer.Option("--rate", min=0.001, max=1e12, metavar="COUNT", help="Messages a second, at the peak.")
    ],
    size: Annotated[int, typer.Option("--size", min=0, max=2**31, metavar="BYTES", help="Size of a body.")] = 1024,
    retention: Annotated[
        float, typer.Option("--retention", min=0.1, max=1e6, metavar="HOURS", help="How long messages are kept.")
    ] = 72,
    work: Annotated[
        float,
        typer.Option("--work", min=0.01, max=1e9, metavar="MS", help="Time that a consumer needs for one message."),
    ] = 10,
    threads: Annotated[
        int,
        typer.Option("--threads", min=1, max=10**6, metavar="COUNT", help="Messages that one member works on at once."),
    ] = 20,
    members: Annotated[
        int,
        typer.Option(
            "--members", min=1, max=10**6, metavar="COUNT", help="At least so many members, so that one may fail."
        ),
    ] = 2,
    orderly: Annotated[bool, typer.Option("--orderly", help="Messages of a queue are consumed one by one.")] = False,
    broker_rate: Annotated[
        float,
        typer.Option(
            "--broker-rate",
            min=1,
            max=1e12,
            metavar="COUNT",
            help="Messages a second that one broker takes; see `tern bench`.",
        ),
    ] = 10_000,
    replicas: Annotated[
        int,
        typer.Option("--replicas", min=0, max=1000, metavar="COUNT", help="Copies of each broker, besides the master."),
    ] = 1,
    groups: Annotated[
        int, typer.Option("--groups", min=1, max=10**6, metavar="COUNT", help="Groups that each consume all messages.")
    ] = 1,
    as_json: Json = False,
) -> None:
    """Calculate queues, members, brokers and disk for a load. No cluster is needed.

    Examples:

        tern doctor sizing --rate 5000 --size 2000 --work 20

        tern doctor sizing --rate 200 --work 50 --orderly --retention 168 --json
    """
    from ternmq.cli.sizing import DISK_FILL, HEADROOM
    from ternmq.cli.sizing import size as calculate

    made = calculate(
        rate=rate,
        body_bytes=size,
        retention_h=retention,
        work_ms=work,
        threads=threads,
        members_min=members,
        orderly=orderly,
        broker_rate=broker_rate,
        replicas=replicas,
        groups=groups,
    )
    output = Output(as_json=as_json)
    if as_json:
        output.item(asdict(made), "")
        return
    lines = (
        ("messages in progress", f"{made.at_once:,}", f"rate × time per message × {HEADROOM:g} for peaks"),
        ("members of the group", f"{made.members:,}", f"each works on {threads} messages at once"),
        (
            "queues of the topic",
            f"{made.queues:,}",
            f"{made.queues // made.masters} on each master: `tern topic create TOPIC --queues "
            f"{made.queues // made.masters}`",
        ),
        ("masters", f"{made.masters:,}", f"of {broker_rate:,.0f} messages/s each, twice the rate"),
        ("brokers", f"{made.masters * (1 + replicas):,}", f"with {replicas} replicas of each master"),
        (
            "disk of each broker",
            f"{made.disk_bytes / (1 << 30):,.1f} GiB",
            f"{retention:g} hours, filled to {DISK_FILL:.0%}; set fileReservedTime={math.ceil(retention)}",
        ),
        (
            "network of each master",
            f"{made.network_bytes_s * 8 / 1_000_000:,.1f} Mbit/s",
            f"in, to {replicas} replicas and to {groups} groups",
        ),
    )
    rows = [{"what": what, "value": value, "why": why} for what, value, why in lines]
    output.rows(rows, columns=("what", "value", "why"), empty="")


# --- This machine ---------------------------------------------------------------------------------------------------


def _of_machine(config: Path | None, flags: list[str], directory: Path | None) -> list[DoctorFinding]:
    from ternmq import kernels
    from ternmq.cli import findings, machine
    from ternmq.config import Settings
    from ternmq.store.config import StoreConfig

    given = Settings.gather(files=[config] if config else [], env=os.environ, flags=flags)
    place = directory if directory is not None else given.build(StoreConfig).store_path_root_dir
    return [
        *findings.about_versions(
            python=sys.version_info[:2],
            kernels=kernels.describe(),
            has_kernels=kernels.describe().startswith("compiled"),
            loop=f"{platform.system()} {platform.release()}",
        ),
        *findings.about_limits(*machine.limits()),
        *findings.about_disk(machine.disk_facts(place)),
        *(findings.about_ports(run(_ports(given))) if config is not None or flags else []),
    ]


async def _ports(given: Settings) -> dict[str, tuple[int, str]]:
    """What a broker listens on: for clients, for those of RocketMQ that use the VIP port, for slaves or members."""
    from ternmq.broker.config import BrokerConfig
    from ternmq.cli.machine import trouble_of
    from ternmq.net.endpoint import split_address
    from ternmq.raft.config import RaftConfig
    from ternmq.replication.config import ReplicationConfig

    config, raft = given.build(BrokerConfig), given.build(RaftConfig)
    wanted = {}
    if config.listen_port:
        wanted = {"clients": config.listen_port, "VIP clients": config.listen_port - 2}
    if raft.enable_d_leger_commit_log:
        wanted["members of its Raft group"] = split_address(raft.me.address)[1]
    elif slaves := given.build(ReplicationConfig).ha_listen_port or (config.listen_port and config.listen_port + 1):
        wanted["slaves"] = slaves
    if config.http_port:
        wanted["HTTP"] = config.http_port
    return {use: (port, await trouble_of(config.bind_address, port)) for use, port in wanted.items()}


# --- The cluster ----------------------------------------------------------------------------------------------------


async def _of_cluster(name_servers: str) -> list[DoctorFinding]:
    from ternmq.admin import Admin
    from ternmq.cli import findings
    from ternmq.cli.findings import DoctorFinding, Severity

    try:
        async with Admin(name_servers) as admin:
            addresses = await admin.name_servers.all()
    except NameServersUnreachable as error:  # their list comes from an address server
        return [DoctorFinding(Severity.PROBLEM, "name servers", f"{error.address} does not list them", str(error))]
    answers = dict(zip(addresses, await asyncio.gather(*map(_brokers_at, addresses)), strict=True))
    found = findings.about_name_servers(answers)
    if not any(isinstance(answer, list) for answer in answers.values()):
        return found
    clock = SystemClock()
    async with Admin(name_servers) as admin:
        began = clock.monotonic()
        brokers = await admin.brokers.loads()
        took_ms = int((clock.monotonic() - began) * 1000)
        is_remote = not all(address.startswith(("127.", "localhost")) for address in addresses)
        found += findings.about_brokers(brokers, is_remote=is_remote)
        found += findings.about_clocks(brokers, now_ms=clock.now_ms(), took_ms=took_ms)
        masters = [one for one in brokers if one.broker_id == 0]
        if not masters or any(one.trouble for one in masters):
            return found  # topics and groups need all masters
        found += findings.about_topics(await admin.topics.loads(count_max=COUNT_MAX), masters=len(masters))
        found += findings.about_groups(await admin.groups.loads(count_max=COUNT_MAX))
    return found


async def _brokers_at(address: str) -> list[str] | str:
    """The brokers that one name server knows, or why it does not answer."""
    from ternmq.admin import Admin

    try:
        async with asyncio.timeout(LIMIT_S), Admin(address) as admin:
            return [broker.address for broker in await admin.brokers.all()]
    except (TernError, TimeoutError) as error:
        return str(error) or f"no answer within {LIMIT_S:.0f} s"
