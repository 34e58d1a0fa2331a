"""The measured servers, each started in the same way: in an empty directory, on free ports, until ready.

RocketMQ (4.9.4, and 5.2.0 for pop) runs with its own defaults (1 GiB files, asynchronous flush) and its
recommended collector, with a heap of 1 GiB that is not touched in advance, so that its real memory use is measured.
TernMQ is a name server and a broker, too.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Final

from tests.interop import rocketmq

ROCKETMQ_VERSION: Final = "4.9.4"
#: The first with pop is 5.0.
POP_VERSION: Final = "5.2.0"

_ROOT: Final = Path(__file__).resolve().parents[1]
_STOP_S: Final = 60.0
# The options of RocketMQ's own start script, with a smaller heap.
_ROCKETMQ_FLAGS: Final = (
    "-Xms1g",
    "-XX:+UseG1GC",
    "-XX:G1HeapRegionSize=16m",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
)


@dataclass(slots=True, frozen=True)
class System:
    """A running system under test."""

    name: str
    namesrv: str
    broker_pid: int
    ready_s: float
    #: Further processes whose CPU time counts: slaves.
    more_pids: tuple[int, ...] = ()

    def cpu_s(self) -> float:
        """CPU time that the broker has used so far, in user and kernel mode."""
        return sum(map(cpu_s, (self.broker_pid, *self.more_pids)))

    def memory_mb(self) -> float:
        """Resident memory without mapped files."""
        return memory_mb(self.broker_pid)


def memory_mb(pid: int) -> float:
    """Resident memory of a process without mapped files."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return sum(int(status[field].split()[0]) for field in ("RssAnon", "RssShmem")) / 1024


def cpu_s(pid: int, *, with_waited: bool = False) -> float:
    """CPU time of a process so far, in user and kernel mode; ``with_waited``: and of children it has waited for."""
    # The name in parentheses may contain spaces: count fields after it (proc(5): utime is 14, stime 15, and those of
    # children that were waited for 16 and 17).
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11 : 15 if with_waited else 13])) / os.sysconf("SC_CLK_TCK")


def cpu_by_process(pid: int) -> dict[int, float]:
    """The same for a process and all below it, by process id."""
    found: dict[int, float] = {}
    with suppress(FileNotFoundError, ProcessLookupError):  # It ended meanwhile.
        found[pid] = cpu_s(pid, with_waited=True)
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found |= cpu_by_process(int(child))
    return found


@contextmanager
def start_rocketmq(
    directory: Path,
    version: str = ROCKETMQ_VERSION,
    *,
    settings: Mapping[str, object] | None = None,
    properties: Mapping[str, str] | None = None,
) -> Iterator[System]:
    """RocketMQ's name server and broker. ``settings`` are the broker's, ``properties`` those of both JVMs."""
    started = time.monotonic()
    with (
        rocketmq.name_server(version, directory / "namesrv", properties=properties) as names,
        rocketmq.broker(
            version,
            directory / "broker-a",
            namesrv=names.address,
            settings={"flushDiskType": "ASYNC_FLUSH", "diskMaxUsedSpaceRatio": 95, **(settings or {})},
            properties=properties,
            small=False,
            heap_mb=1024,
            flags=_ROCKETMQ_FLAGS,
        ) as broker,
    ):
        yield System(f"RocketMQ {version}", names.address, broker.process.pid, ready_s=time.monotonic() - started)
        # The store is not needed any more.
        broker.kill()
        names.kill()


@contextmanager
def start_ternmq(
    directory: Path, *, settings: Mapping[str, object] | None = None, brokers: int = 1
) -> Iterator[System]:
    """A name server and brokers as processes of this session, as RocketMQ's are. The brokers of ``tern up`` have
    sessions of their own, and the kernel may schedule by session: see ``is_scheduled_here``."""
    started = time.monotonic()
    with ExitStack() as stack:
        names = stack.enter_context(start_ternmq_names(directory / "namesrv"))
        first, *more = (
            stack.enter_context(_ternmq_broker(directory / name, names, {**(settings or {}), "brokerName": name}))
            for name in [f"broker-{letter}" for letter in ascii_lowercase[:brokers]]
        )
        yield System("TernMQ", names, first.pid, time.monotonic() - started, tuple(node.pid for node in more))


def is_scheduled_here(pid: int) -> bool:
    """Whether the kernel schedules a process together with this one. Where it does not (``sched_autogroup_enabled``,
    and another session), priorities of one group mean nothing to the other: a process of ours with SCHED_IDLE keeps
    the processor until the next tick, 4 ms with 250 Hz, while a broker of another session waits for it."""
    try:
        if not int(Path("/proc/sys/kernel/sched_autogroup_enabled").read_text()):
            return True
        return Path(f"/proc/{pid}/autogroup").read_text() == Path("/proc/self/autogroup").read_text()
    except FileNotFoundError:
        return True  # a kernel without such groups


@dataclass(slots=True, frozen=True)
class Node:
    """A broker of a set: its remoting address, and its process."""

    address: str
    pid: int


@contextmanager
def start_rocketmq_names(directory: Path) -> Iterator[str]:
    with rocketmq.name_server(ROCKETMQ_VERSION, directory) as names:
        yield names.address
        names.kill()


@contextmanager
def start_rocketmq_node(directory: Path, names: str, role: str, broker_id: int) -> Iterator[Node]:
    """A master or a slave of RocketMQ with its own sizes of files, in a directory that may have a store."""
    settings = {"brokerRole": role, "brokerId": broker_id, "flushDiskType": "ASYNC_FLUSH", "diskMaxUsedSpaceRatio": 95}
    with rocketmq.broker(
        ROCKETMQ_VERSION,
        directory,
        namesrv=names,
        settings=settings,
        small=False,
        heap_mb=1024,
        flags=_ROCKETMQ_FLAGS,
        has_route=not broker_id,
    ) as broker:
        yield Node(broker.address, broker.process.pid)
        broker.kill()


@contextmanager
def start_dledger_node(directory: Path, names: str, member: str, peers: str) -> Iterator[Node]:
    """A member of a DLedger group of RocketMQ; it is ready when its port is open, with or without a leader."""
    settings = {
        "enableDLegerCommitLog": "true",
        "dLegerGroup": "broker-a",
        "dLegerPeers": peers,
        "dLegerSelfId": member,
        "flushDiskType": "ASYNC_FLUSH",
        "diskMaxUsedSpaceRatio": 95,
    }
    with rocketmq.broker(
        ROCKETMQ_VERSION,
        directory,
        namesrv=names,
        settings=settings,
        small=False,
        heap_mb=1024,
        flags=_ROCKETMQ_FLAGS,
        has_route=False,
    ) as broker:
        yield Node(broker.address, broker.process.pid)
        broker.kill()


@contextmanager
def start_raft_node(
    directory: Path, names: str, member: str, peers: str, *, flush: str = "ASYNC_FLUSH"
) -> Iterator[Node]:
    """A member of a Raft group of TernMQ."""
    settings: dict[str, object] = {
        "enableDLegerCommitLog": "true",
        "dLegerPeers": peers,
        "dLegerSelfId": member,
        "flushDiskType": flush,
    }
    with _ternmq_broker(directory, names, settings) as node:
        yield node


@contextmanager
def start_ternmq_names(directory: Path) -> Iterator[str]:
    port = rocketmq.free_port()
    tern = str(Path(sys.executable).with_name("tern"))
    with _started([tern, "namesrv", "-p", str(port)], directory):
        yield f"127.0.0.1:{port}"


@contextmanager
def start_ternmq_node(directory: Path, names: str, role: str, broker_id: int) -> Iterator[Node]:
    """A master or a slave of TernMQ."""
    with _ternmq_broker(directory, names, {"brokerRole": role, "brokerId": broker_id}) as node:
        yield node


@contextmanager
def _ternmq_broker(directory: Path, names: str, settings: dict[str, object]) -> Iterator[Node]:
    port = rocketmq.free_port(neighbours=(-2, 1))
    settings = {
        "brokerName": "broker-a",
        **settings,
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "storePathRootDir": directory,
    }
    flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
    tern = str(Path(sys.executable).with_name("tern"))
    with _started([tern, "broker", "-n", names, *flags], directory) as (process, _):
        yield Node(f"127.0.0.1:{port}", process.pid)


@contextmanager
def start_echo(directory: Path) -> Iterator[System]:
    """The bare echo of ``echo.py``: for sends only."""
    port = rocketmq.free_port()
    with _started([sys.executable, "-m", "bench.echo", str(port)], directory) as (process, ready_s):
        yield System("uvloop echo", f"127.0.0.1:{port}", process.pid, ready_s)


@contextmanager
def _started(command: list[str], directory: Path) -> Iterator[tuple[subprocess.Popen[str], float]]:
    """A process whose first line begins with "ready"; stopped at the end of the block."""
    directory.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    log_path = directory.with_suffix(".log")
    with log_path.open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, cwd=_ROOT)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if not line.startswith("ready"):
            raise SystemExit(f"{' '.join(command)} did not start: {line}\n{log_path.read_text()}")
        yield process, time.monotonic() - started
    finally:
        process.terminate()
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        process.stdout.close()
