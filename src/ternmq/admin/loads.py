"""How busy brokers, topics and groups are (D5, T1): what ``tern top`` and ``tern doctor`` show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

#: Topics or groups that are asked for at once: a cluster with thousands of them must not get all questions together.
ASKED_AT_ONCE: Final = 16


@dataclass(slots=True, frozen=True)
class BrokerLoad:
    """What a broker says of its work and its process. None where it does not tell: it is one of RocketMQ, or is gone.

    Attributes:
        cluster: Its cluster.
        broker: Its name.
        broker_id: 0 is the master of its name.
        address: Where clients connect to.
        version: Its version, as its tools show it.
        in_s: Messages a second that it stored in the last 10 seconds.
        out_s: Messages a second that it sent to consumers.
        memory_bytes: Memory of its process.
        disk_ratio: How full the disk of its log is, from 0 to 1.
        disk_free_bytes: What is left on it.
        connections: Open connections.
        time_ms: Its clock.
        python: Version of its Python.
        kernels: Which compiled kernels it uses.
        trouble: Why it did not answer; empty if it did.
    """

    cluster: str
    broker: str
    broker_id: int
    address: str
    version: str = ""
    in_s: float | None = None
    out_s: float | None = None
    memory_bytes: int | None = None
    disk_ratio: float | None = None
    disk_free_bytes: int | None = None
    connections: int | None = None
    time_ms: int | None = None
    python: str = ""
    kernels: str = ""
    trouble: str = ""


@dataclass(slots=True, frozen=True)
class TopicLoad:
    """A topic: messages a second into it over the last minute, what it holds, and the brokers that have it."""

    topic: str
    brokers: tuple[str, ...]
    queues: int
    in_s: float
    messages: int


@dataclass(slots=True, frozen=True)
class GroupLoad:
    """A group: messages a second to it over the last minute, its members, and messages that it has not consumed."""

    group: str
    members: int
    out_s: float
    lag: int


def broker_load(table: Mapping[str, str], *, cluster: str, broker: str, broker_id: int, address: str) -> BrokerLoad:
    """From the reply to GET_BROKER_RUNTIME_INFO 28; keys of TernMQ's own are missing in those of RocketMQ."""
    ratio = _number(table.get("commitLogDiskRatio"))
    return BrokerLoad(
        cluster,
        broker,
        broker_id,
        address,
        version=table.get("brokerVersionDesc", ""),
        in_s=_number(table.get("putTps")),
        out_s=_number(table.get("getTransferredTps") or table.get("getTransferedTps")),
        memory_bytes=_whole(table.get("residentBytes")),
        disk_ratio=ratio if ratio is None or ratio >= 0 else None,
        disk_free_bytes=_free_bytes(table.get("commitLogDirCapacity", "")),
        connections=_whole(table.get("connectionCount")),
        time_ms=_whole(table.get("timeMs")),
        python=table.get("pythonVersion", ""),
        kernels=table.get("kernels", ""),
    )


def _number(text: str | None) -> float | None:
    """The first of several numbers: rates are told for 10 seconds, a minute and ten minutes."""
    try:
        return float(text.split()[0]) if text else None
    except (ValueError, IndexError):
        return None


def _whole(text: str | None) -> int | None:
    number = _number(text)
    return int(number) if number is not None else None


def _free_bytes(text: str) -> int | None:
    """``Total : 1000 B, Free : 400 B.``; RocketMQ writes GiB with a fraction, which is not needed here."""
    _, _, free = text.partition("Free : ")
    return _whole(free) if free.rstrip(". ").endswith(" B") else None
