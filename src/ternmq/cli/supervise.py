"""``tern up``: a name server in this process, and each broker in its own process (T1).

The supervisor communicates with a broker through its pipes. Each broker process (``cli.supervised``) writes a JSON line
to stdout, ``{"ready": address}`` or ``{"error": sentence}``; before that, during a long recovery, some lines with the
number of bytes done. It stops when its stdin is closed, so brokers stop even if their supervisor is killed. They do
not get the terminal's Ctrl-C (they are in another session): the supervisor stops them, brokers first, the
name server last, so that each can unregister.

If a broker ends by itself, all servers are stopped: half a cluster that looks healthy would be worse. To restart
servers automatically, use ``tern broker`` and ``tern namesrv`` with systemd or containers.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ternmq.errors import ConfigError, TernError
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

BROKERS_MAX: Final = 26
#: Room for a broker's VIP port (− 2), its replication port (+ 1) and future ones.
PORTS_APART: Final = 20
#: Slaves have their ports between those of the brokers.
SLAVES_MAX: Final = 4
SLAVE_PORTS_APART: Final = 4
#: A clean stop writes offsets and flushes the log; after this time the disk is stuck, and waiting does not help.
STOP_TIMEOUT_S: Final = 30.0


@dataclass(slots=True, frozen=True)
class BrokerPlan:
    """One broker to start: its name, and its settings as ``key=value``, the last one of a key wins."""

    name: str
    settings: tuple[str, ...]


class BrokerReport(msgspec.Struct, omit_defaults=True):
    """A report of a supervised broker: its address when clients can use it, or why it cannot start; before that, how
    many bytes of its store are recovered, and the total."""

    ready: str = ""
    error: str = ""
    done: int = 0
    total: int = 0


def plan_brokers(
    *,
    count: int,
    directory: Path,
    first_port: int,
    host: str,
    name_server: str,
    settings: Sequence[str],
    slaves: int = 0,
    raft_ports: Sequence[int] = (),
) -> list[BrokerPlan]:
    """Brokers ``broker-a``, ``broker-b``, … with their own ports and directories; ``settings`` are for all.

    Each has so many slaves: ``broker-a-slave-1`` and so on, which copy it. With ``raft_ports``, one for each broker,
    they are the members of one Raft group instead: ``broker-a-n0``, ``broker-a-n1`` and so on.
    """
    if not 0 <= slaves <= SLAVES_MAX:
        raise ConfigError(f"invalid --slaves {slaves}: expected 0 to {SLAVES_MAX}")
    if not 1 <= count <= BROKERS_MAX:
        raise ConfigError(f"invalid --brokers {count}: expected 1 to {BROKERS_MAX}")
    port_last = first_port + PORTS_APART * (count - 1)
    if port_last > 65_535:
        raise ConfigError(
            f"invalid --broker-port {first_port}: there are not enough ports above it for {count} brokers; choose a "
            "smaller one"
        )
    plans = []
    if raft_ports:
        return _plan_group(raft_ports, directory, first_port, host, name_server, settings)
    for number in range(count):
        name = f"broker-{chr(ord('a') + number)}"
        port = first_port + PORTS_APART * number if first_port else 0
        own = (
            f"brokerName={name}",
            f"listenPort={port}",
            f"storePathRootDir={directory / name}",
            f"namesrvAddr={name_server}",
        )
        plans.append(BrokerPlan(name, (f"brokerIP1={host}", *settings, *own)))
        for slave_id in range(1, slaves + 1):
            slave = f"{name}-slave-{slave_id}"
            more = (
                f"listenPort={port + SLAVE_PORTS_APART * slave_id if port else 0}",
                f"storePathRootDir={directory / slave}",
                f"brokerId={slave_id}",
                "brokerRole=SLAVE",
            )
            plans.append(BrokerPlan(slave, (f"brokerIP1={host}", *settings, *own, *more)))
    return plans


def _plan_group(
    raft_ports: Sequence[int], directory: Path, first_port: int, host: str, name_server: str, settings: Sequence[str]
) -> list[BrokerPlan]:
    """The members of one Raft group."""
    peers = ";".join(f"n{number}-{host}:{port}" for number, port in enumerate(raft_ports))
    plans = []
    for number in range(len(raft_ports)):
        name = f"broker-a-n{number}"
        own = (
            "brokerName=broker-a",
            f"listenPort={first_port + PORTS_APART * number if first_port else 0}",
            f"storePathRootDir={directory / name}",
            f"namesrvAddr={name_server}",
            "enableDLegerCommitLog=true",
            f"dLegerPeers={peers}",
            f"dLegerSelfId=n{number}",
        )
        plans.append(BrokerPlan(name, (f"brokerIP1={host}", *settings, *own)))
    return plans


class BrokerProcess:
    """A running broker process."""

    def __init__(self, name: str, process: Process) -> None:
        self.name = name
        self.pid = process.pid
        self._process = process

    @classmethod
    async def start(cls, plan: BrokerPlan, *, log_level: str) -> BrokerProcess:
        arguments = ["-m", "ternmq.cli.supervised", log_level, *plan.settings]
        process = await asyncio.create_subprocess_exec(
            sys.executable, *arguments, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        return cls(plan.name, process)

    async def ready(self, on_progress: Callable[[int, int], object]) -> str:
        """Wait until clients can use the broker, and return its address; raises ``TernError`` with the reason."""
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            report = msgspec.json.decode(line, type=BrokerReport)
            if report.error:
                raise TernError(f"{self.name} cannot start: {report.error}")
            if report.ready:
                return report.ready
            on_progress(report.done, report.total)
        raise TernError(await self.ended())

    async def ended(self) -> str:
        """Wait until the process has ended, and return a sentence about the reason."""
        code = await self._process.wait()
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return f"{self.name} {how}; see its log lines above"

    def ask_to_stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()

    async def stop(self) -> None:
        """Wait for a clean end; kill the process after a time limit."""
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await self._process.wait()
        except TimeoutError:
            log.error("a broker does not stop; killing it", extra={"broker": self.name, "timeout_s": STOP_TIMEOUT_S})
            self._process.kill()
            await self._process.wait()


class BrokerProcesses:
    """The broker processes of one cluster, all ready."""

    def __init__(self, processes: Sequence[BrokerProcess], addresses: dict[str, str]) -> None:
        self._processes = processes
        #: Broker name → ``host:port``.
        self.addresses = addresses

    @property
    def pids(self) -> dict[str, int]:
        return {process.name: process.pid for process in self._processes}

    @classmethod
    @asynccontextmanager
    async def running(
        cls, plans: Sequence[BrokerPlan], *, log_level: str, on_progress: Callable[[int, int], object]
    ) -> AsyncIterator[BrokerProcesses]:
        """Start all at once; the block begins when all are ready, and at its end all are stopped.

        ``on_progress`` is called during long recoveries, for one broker after the other.
        """
        processes: list[BrokerProcess] = []
        try:
            for plan in plans:
                # Added one by one, so that those already started are stopped if the next one fails.
                process = await BrokerProcess.start(plan, log_level=log_level)
                processes.append(process)
            addresses = {process.name: await process.ready(on_progress) for process in processes}
            yield cls(processes, addresses)
        finally:
            for process in processes:
                process.ask_to_stop()
            for process in processes:
                await process.stop()

    async def first_to_end(self) -> str:
        """Wait until one of them ends by itself, and return a sentence that says which and why."""
        async with Tasks() as tasks:
            waiting = [tasks.create_task(process.ended()) for process in self._processes]
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return done.pop().result()
