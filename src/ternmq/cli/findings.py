"""What ``tern doctor`` makes of the facts (T1): values in, findings out. It reads nothing itself.

A *problem* means that something does not work, or will not after a restart: the exit code is 1. A *warning* asks an
operator to look. ``ok`` says that it was checked.
"""

from __future__ import annotations

import enum
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ternmq.admin.loads import BrokerLoad, GroupLoad, TopicLoad

#: Clocks may differ by this much: delays, retention and search by time use the clock of the broker.
CLOCK_WARNING_MS: Final = 1_000
CLOCK_PROBLEM_MS: Final = 10_000
#: Descriptors: two per mapped file, one per connection (docs/operations.md).
FILES_WARNING: Final = 65_536
FILES_PROBLEM: Final = 4_096
#: The kernel's limit of mappings; queues and log segments are mapped files.
MAPPINGS_WARNING: Final = 65_530
#: Of diskMaxUsedSpaceRatio and diskSpaceWarningLevelRatio: old segments are deleted early, sends are refused.
DISK_WARNING: Final = 0.75
DISK_PROBLEM: Final = 0.90
_NETWORK_FILE_SYSTEMS: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "9p", "fuse.sshfs"})
_MEMORY_FILE_SYSTEMS: Final = frozenset({"tmpfs", "ramfs"})
#: Schedulers that reorder for the sake of a turning disk, or of fairness between programs.
_SLOW_SCHEDULERS: Final = frozenset({"bfq", "cfq"})


class Level(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(slots=True, frozen=True)
class Finding:
    """One result of a check, and what to do about it."""

    level: Level
    area: str
    what: str
    cure: str = ""


@dataclass(slots=True, frozen=True)
class DiskFacts:
    """The disk of a directory; empty where this system does not tell."""

    directory: str
    free_bytes: int
    total_bytes: int
    file_system: str = ""
    scheduler: str = ""
    is_rotational: bool | None = None


# --- This machine ---------------------------------------------------------------------------------------------------


def about_disk(disk: DiskFacts) -> list[Finding]:
    """Space, file system and scheduler."""
    used = 1 - disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0
    space = f"{disk.directory}: {disk.free_bytes / (1 << 30):.1f} GiB free, {used:.0%} used"
    if used >= DISK_PROBLEM:
        cure = "free space or shorten fileReservedTime: brokers refuse messages from diskSpaceWarningLevelRatio on"
        found = [Finding(Level.PROBLEM, "disk", space, cure)]
    elif used >= DISK_WARNING:
        cure = "free space: brokers delete old segments early from diskMaxUsedSpaceRatio on"
        found = [Finding(Level.WARNING, "disk", space, cure)]
    else:
        found = [Finding(Level.OK, "disk", space)]
    kind = disk.file_system
    if kind in _MEMORY_FILE_SYSTEMS:
        found.append(
            Finding(Level.PROBLEM, "file system", f"{kind} is lost at a restart", "choose a directory on a disk")
        )
    elif kind in _NETWORK_FILE_SYSTEMS:
        cure = "use a local disk, and replicas for safety: locks and fsync of network file systems differ"
        found.append(Finding(Level.PROBLEM, "file system", f"{kind} is a network file system", cure))
    elif kind:
        found.append(Finding(Level.OK, "file system", kind))
    if disk.scheduler in _SLOW_SCHEDULERS and not disk.is_rotational:
        cure = "use none or mq-deadline: echo none > /sys/block/DEVICE/queue/scheduler"
        found.append(Finding(Level.WARNING, "scheduler", f"{disk.scheduler} on a disk without heads", cure))
    elif disk.is_rotational and disk.scheduler == "none":
        cure = "use mq-deadline for a turning disk: echo mq-deadline > /sys/block/DEVICE/queue/scheduler"
        found.append(Finding(Level.WARNING, "scheduler", "none on a disk with heads", cure))
    elif disk.scheduler:
        found.append(Finding(Level.OK, "scheduler", disk.scheduler))
    return found


def about_limits(files: int | None, locked_bytes: int | None, mappings: int | None) -> list[Finding]:
    """Limits of the process and of the kernel; None: not known here. A negative number is "no limit"."""
    found = []
    if files is not None:
        text, cure = (
            f"{files if files >= 0 else 'any number of'} open files",
            "LimitNOFILE=65536 in the unit, or ulimit -n",
        )
        level = Level.OK
        if 0 <= files < FILES_WARNING:
            level = Level.PROBLEM if files < FILES_PROBLEM else Level.WARNING
        found.append(Finding(level, "limits", text, "" if level is Level.OK else f"raise it: {cure}"))
    if locked_bytes is not None:
        size = "any amount" if locked_bytes < 0 else f"{locked_bytes >> 10} KiB"
        found.append(Finding(Level.OK, "limits", f"{size} of locked memory; TernMQ locks none"))
    if mappings is not None:
        is_low = mappings < MAPPINGS_WARNING
        cure = "sysctl -w vm.max_map_count=262144: each segment and queue file is a mapping" if is_low else ""
        found.append(Finding(Level.WARNING if is_low else Level.OK, "limits", f"{mappings} mappings", cure))
    return found


def about_versions(*, python: tuple[int, int], kernels: str, has_kernels: bool, loop: str) -> list[Finding]:
    """Of this installation."""
    found = [Finding(Level.OK, "versions", f"Python {python[0]}.{python[1]}, {loop}")]
    if has_kernels:
        found.append(Finding(Level.OK, "kernels", kernels))
    else:
        cure = "install a wheel with compiled kernels; without them all works, but takes more CPU time"
        found.append(Finding(Level.WARNING, "kernels", kernels, cure))
    return found


def about_ports(ports: Mapping[str, tuple[int, str]]) -> list[Finding]:
    """Ports that a broker of this configuration needs, by use, and why each cannot be had: ``""`` is free.

    A port in use is a warning, as the broker itself may run already.
    """
    return [
        Finding(Level.OK, "ports", f"{number} for {use} is free")
        if not trouble
        else Finding(Level.WARNING, "ports", f"{number} for {use} is not free", f"unless it is this broker: {trouble}")
        for use, (number, trouble) in ports.items()
    ]


# --- The cluster ----------------------------------------------------------------------------------------------------


def about_name_servers(answers: Mapping[str, Sequence[str] | str]) -> list[Finding]:
    """What each name server says: the addresses of brokers, or why it does not answer."""
    found = []
    alive = {address: set(answer) for address, answer in answers.items() if not isinstance(answer, str)}
    everywhere = set().union(*alive.values()) if alive else set()
    for address, answer in answers.items():
        if isinstance(answer, str):
            cure = f"start it with `tern namesrv`, or check the address and the firewall: {answer}"
            found.append(Finding(Level.PROBLEM, "name servers", f"{address} does not answer", cure))
        elif missing := sorted(everywhere - set(answer)):
            cure = "name all name servers in namesrvAddr of each broker; they do not copy from each other"
            found.append(Finding(Level.PROBLEM, "name servers", f"{address} does not know {', '.join(missing)}", cure))
        else:
            found.append(Finding(Level.OK, "name servers", f"{address} knows {len(answer)} brokers"))
    if len(answers) == 1 and alive:
        cure = "run two or three; clients find brokers through the others while one is down"
        found.append(Finding(Level.WARNING, "name servers", "there is only one", cure))
    return found


def about_brokers(brokers: Sequence[BrokerLoad], *, is_remote: bool) -> list[Finding]:
    """Reachability, disks and versions. ``is_remote``: the name servers are on other machines."""
    found = []
    for one in brokers:
        name = f"{one.broker}:{one.broker_id} at {one.address}"
        if one.trouble:
            cure = f"check that it runs, and the firewall; brokerIP1 is the address that clients get: {one.trouble}"
            found.append(Finding(Level.PROBLEM, "brokers", f"{name} does not answer", cure))
            continue
        if is_remote and _is_loopback(one.address):
            cure = "set brokerIP1 to its address in the network: other machines cannot connect to this one"
            found.append(Finding(Level.PROBLEM, "brokers", f"{name} is registered with a loopback address", cure))
            continue
        memory = f", {one.memory_bytes >> 20} MiB" if one.memory_bytes is not None else ""
        found.append(Finding(Level.OK, "brokers", f"{name}: {one.version}{memory}"))
        if one.disk_ratio is not None and one.disk_ratio >= DISK_WARNING:
            level = Level.PROBLEM if one.disk_ratio >= DISK_PROBLEM else Level.WARNING
            cure = "free space on its disk, or shorten fileReservedTime (`tern config set fileReservedTime=48`)"
            found.append(Finding(level, "brokers", f"{name}: its disk is {one.disk_ratio:.0%} full", cure))
    versions = {one.version for one in brokers if one.version}
    if len(versions) > 1:
        cure = "finish the rolling update; a mixed cluster works, but for a short time only"
        found.append(Finding(Level.WARNING, "versions", f"brokers of {', '.join(sorted(versions))}", cure))
    return found


def about_clocks(brokers: Iterable[BrokerLoad], *, now_ms: int, took_ms: int) -> list[Finding]:
    """Clocks of brokers against the one of this machine; an answer took up to ``took_ms``."""
    found = []
    for one in brokers:
        if one.time_ms is None:
            continue
        apart_ms = max(abs(now_ms - one.time_ms) - took_ms, 0)
        if apart_ms < CLOCK_WARNING_MS:
            continue
        level = Level.PROBLEM if apart_ms >= CLOCK_PROBLEM_MS else Level.WARNING
        ahead = "behind" if one.time_ms < now_ms else "ahead"
        text = f"the clock of {one.broker}:{one.broker_id} is {apart_ms / 1000:.1f} s {ahead} of this machine's"
        found.append(
            Finding(level, "clock", text, "synchronise the clocks of all machines (chrony, systemd-timesyncd)")
        )
    return found or [Finding(Level.OK, "clock", "the clocks agree within a second")]


def about_topics(topics: Iterable[TopicLoad], *, masters: int) -> list[Finding]:
    """Topics that a part of the brokers has only: they are lost to producers when that broker is away."""
    return [
        Finding(
            Level.WARNING,
            "topics",
            f"{one.topic} is on {len(one.brokers)} of {masters} brokers ({', '.join(one.brokers)})",
            f"`tern topic create {one.topic} --queues {max(one.queues // len(one.brokers), 1)}` puts it on all",
        )
        for one in topics
        if len(one.brokers) < masters
    ]


def about_groups(groups: Iterable[GroupLoad]) -> list[Finding]:
    """Groups that nobody works for, although messages wait."""
    return [
        Finding(
            Level.WARNING,
            "groups",
            f"{one.group} has no active consumers, and {one.lag} messages wait",
            f"start its consumers, or `tern group delete {one.group}` if it is not needed any more",
        )
        for one in groups
        if one.lag > 0 and not one.members
    ]


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
