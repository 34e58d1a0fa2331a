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


class Severity(enum.StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "PROBLEM"


@dataclass(slots=True, frozen=True)
class DoctorFinding:
    """One result of a check, and what to do about it."""

    level: Severity
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


def about_disk(disk: DiskFacts) -> list[DoctorFinding]:
    """Space, file system and scheduler."""
    used = 1 - disk.free_bytes / disk.total_bytes if disk.total_bytes else 0.0
    space = f"{disk.directory}: {disk.free_bytes / (1 << 30):.1f} GiB free, {used:.0%} used"
    if used >= DISK_PROBLEM:
        cure = "free space or shorten fileReservedTime: brokers refuse messages from diskSpaceWarningLevelRatio on"
        found = [DoctorFinding(Severity.PROBLEM, "disk", space, cure)]
    elif used >= DISK_WARNING:
        cure = "free space: brokers delete old segments early from diskMaxUsedSpaceRatio on"
        found = [DoctorFinding(Severity.WARNING, "disk", space, cure)]
    else:
        found = [DoctorFinding(Severity.OK, "disk", space)]
    kind = disk.file_system
    if kind in _MEMORY_FILE_SYSTEMS:
        found.append(
            DoctorFinding(
                Severity.PROBLEM, "file system", f"{kind} is lost at a restart", "choose a directory on a disk"
            )
        )
    elif kind in _NETWORK_FILE_SYSTEMS:
        cure = "use a local disk, and replicas for safety: locks and fsync of network file systems differ"
        found.append(DoctorFinding(Severity.PROBLEM, "file system", f"{kind} is a network file system", cure))
    elif kind:
        found.append(DoctorFinding(Severity.OK, "file system", kind))
    if disk.scheduler in _SLOW_SCHEDULERS and not disk.is_rotational:
        cure = "use none or mq-deadline: echo none > /sys/block/DEVICE/queue/scheduler"
        found.append(DoctorFinding(Severity.WARNING, "scheduler", f"{disk.scheduler} on a disk without heads", cure))
    elif disk.is_rotational and disk.scheduler == "none":
        cure = "use mq-deadline for a turning disk: echo mq-deadline > /sys/block/DEVICE/queue/scheduler"
        found.append(DoctorFinding(Severity.WARNING, "scheduler", "none on a disk with heads", cure))
    elif disk.scheduler:
        found.append(DoctorFinding(Severity.OK, "scheduler", disk.scheduler))
    return found


def about_limits(files: int | None, locked_bytes: int | None, mappings: int | None) -> list[DoctorFinding]:
    """Limits of the process and of the kernel; None: not known here. A negative number is "no limit"."""
    found = []
    if files is not None:
        text, cure = (
            f"{files if files >= 0 else 'any number of'} open files",
            "LimitNOFILE=65536 in the unit, or ulimit -n",
        )
        level = Severity.OK
        if 0 <= files < FILES_WARNING:
            level = Severity.PROBLEM if files < FILES_PROBLEM else Severity.WARNING
        found.append(DoctorFinding(level, "limits", text, "" if level is Severity.OK else f"raise it: {cure}"))
    if locked_bytes is not None:
        size = "any amount" if locked_bytes < 0 else f"{locked_bytes >> 10} KiB"
        found.append(DoctorFinding(Severity.OK, "limits", f"{size} of locked memory; TernMQ locks none"))
    if mappings is not None:
        is_low = mappings < MAPPINGS_WARNING
        cure = "sysctl -w vm.max_map_count=262144: each segment and queue file is a mapping" if is_low else ""
        found.append(DoctorFinding(Severity.WARNING if is_low else Severity.OK, "limits", f"{mappings} mappings", cure))
    return found


def about_versions(*, python: tuple[int, int], kernels: str, has_kernels: bool, loop: str) -> list[DoctorFinding]:
    """Of this installation."""
    found = [DoctorFinding(Severity.OK, "versions", f"Python {python[0]}.{python[1]}, {loop}")]
    if has_kernels:
        found.append(DoctorFinding(Severity.OK, "kernels", kernels))
    else:
        cure = "install a wheel with compiled kernels; without them all works, but takes more CPU time"
        found.append(DoctorFinding(Severity.WARNING, "kernels", kernels, cure))
    return found


def about_ports(ports: Mapping[str, tuple[int, str]]) -> list[DoctorFinding]:
    """Ports that a broker of this configuration needs, by use, and why each cannot be had: ``""`` is free.

    A port in use is a warning, as the broker itself may run already.
    """
    return [
        DoctorFinding(Severity.OK, "ports", f"{number} for {use} is free")
        if not trouble
        else DoctorFinding(
            Severity.WARNING, "ports", f"{number} for {use} is not free", f"unless it is this broker: {trouble}"
        )
        for use, (number, trouble) in ports.items()
    ]


# --- The cluster ----------------------------------------------------------------------------------------------------


def about_name_servers(answers: Mapping[str, Sequence[str] | str]) -> list[DoctorFinding]:
    """What each name server says: the addresses of brokers, or why it does not answer."""
    found = []
    alive = {address: set(answer) for address, answer in answers.items() if not isinstance(answer, str)}
    everywhere = set().union(*alive.values()) if alive else set()
    for address, answer in answers.items():
        if isinstance(answer, str):
            cure = f"start it with `tern namesrv`, or check the address and the firewall: {answer}"
            found.append(DoctorFinding(Severity.PROBLEM, "name servers", f"{address} does not answer", cure))
        elif missing := sorted(everywhere - set(answer)):
            cure = "name all name servers in namesrvAddr of each broker; they do not copy from each other"
            found.append(
                DoctorFinding(Severity.PROBLEM, "name servers", f"{address} does not know {', '.join(missing)}", cure)
            )
        else:
            found.append(DoctorFinding(Severity.OK, "name servers", f"{address} knows {len(answer)} brokers"))
    if len(answers) == 1 and alive:
        cure = "run two or three; clients find brokers through the others while one is down"
        found.append(DoctorFinding(Severity.WARNING, "name servers", "there is only one", cure))
    return found


def about_brokers(brokers: Sequence[BrokerLoad], *, is_remote: bool) -> list[DoctorFinding]:
    """Reachability, disks and versions. ``is_remote``: the name servers are on other machines."""
    found = []
    for one in brokers:
        name = f"{one.broker}:{one.broker_id} at {one.address}"
        if one.trouble:
            cure = f"check that it runs, and the firewall; brokerIP1 is the address that clients get: {one.trouble}"
            found.append(DoctorFinding(Severity.PROBLEM, "brokers", f"{name} does not answer", cure))
            continue
        if is_remote and _is_loopback(one.address):
            cure = "set brokerIP1 to its address in the network: other machines cannot connect to this one"
            found.append(
                DoctorFinding(Severity.PROBLEM, "brokers", f"{name} is registered with a loopback address", cure)
            )
            continue
        memory = f", {one.memory_bytes >> 20} MiB" if one.memory_bytes is not None else ""
        found.append(DoctorFinding(Severity.OK, "brokers", f"{name}: {one.version}{memory}"))
        if one.disk_ratio is not None and one.disk_ratio >= DISK_WARNING:
            level = Severity.PROBLEM if one.disk_ratio >= DISK_PROBLEM else Severity.WARNING
            cure = "free space on its disk, or shorten fileReservedTime (`tern config set fileReservedTime=48`)"
            found.append(DoctorFinding(level, "brokers", f"{name}: its disk is {one.disk_ratio:.0%} full", cure))
    versions = {one.version for one in brokers if one.version}
    if len(versions) > 1:
        cure = "finish the rolling update; a mixed cluster works, but for a short time only"
        found.append(DoctorFinding(Severity.WARNING, "versions", f"brokers of {', '.join(sorted(versions))}", cure))
    return found


def about_clocks(brokers: Iterable[BrokerLoad], *, now_ms: int, took_ms: int) -> list[DoctorFinding]:
    """Clocks of brokers against the one of this machine; an answer took up to ``took_ms``."""
    found = []
    for one in brokers:
        if one.time_ms is None:
            continue
        apart_ms = max(abs(now_ms - one.time_ms) - took_ms, 0)
        if apart_ms < CLOCK_WARNING_MS:
            continue
        level = Severity.PROBLEM if apart_ms >= CLOCK_PROBLEM_MS else Severity.WARNING
        ahead = "behind" if one.time_ms < now_ms else "ahead"
        text = f"the clock of {one.broker}:{one.broker_id} is {apart_ms / 1000:.1f} s {ahead} of this machine's"
        found.append(
            DoctorFinding(level, "clock", text, "synchronise the clocks of all machines (chrony, systemd-timesyncd)")
        )
    return found or [DoctorFinding(Severity.OK, "clock", "the clocks agree within a second")]


def about_topics(topics: Iterable[TopicLoad], *, masters: int) -> list[DoctorFinding]:
    """Topics that a part of the brokers has only: they are lost to producers when that broker is away."""
    return [
        DoctorFinding(
            Severity.WARNING,
            "topics",
            f"{one.topic} is on {len(one.brokers)} of {masters} brokers ({', '.join(one.brokers)})",
            f"`tern topic create {one.topic} --queues {max(one.queues // len(one.brokers), 1)}` puts it on all",
        )
        for one in topics
        if len(one.brokers) < masters
    ]


def about_groups(groups: Iterable[GroupLoad]) -> list[DoctorFinding]:
    """Groups without active consumers, although messages wait."""
    return [
        DoctorFinding(
            Severity.WARNING,
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
