"""The processes of the shop, which can be killed and started again one by one.

A name server, two brokers with a slave each, a relay, two workers, two processes for customers, and PostgreSQL unless
there is one already. Their logs are files in one directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from shop.schema import LEASE_MS, TOPICS
from ternmq import SyncAdmin
from ternmq.errors import TernError

EXAMPLES = Path(__file__).resolve().parent.parent
BROKERS = ("broker-a", "broker-b")
READY_S = 120.0
#: How often one process may end by itself.
ENDS_MAX = 20
#: Should this program be killed, the kernel kills its processes; where ``setpriv`` is missing, they stay.
DIE_TOGETHER = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
#: Quick answers after kills, for a demonstration: retries after a second, checks of transactions every second.
QUICK = {
    "messageDelayLevel": " ".join(["1s"] * 18),
    "transactionTimeOut": 1_000,
    "transactionCheckInterval": 1_000,
    "transactionCheckMax": 1_000,
    "mappedFileSizeCommitLog": 16 << 20,
}


@dataclass(slots=True)
class Servers:
    """All processes but PostgreSQL."""

    directory: Path
    database: str
    seed: int
    #: The package of ``worker`` and ``customers``.
    program: str = "shop"
    #: Starts since the beginning, for the names of logs and orders.
    starts: int = 0
    commands: dict[str, Callable[[], list[str]]] = field(default_factory=dict)
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    ends: Counter[str] = field(default_factory=Counter)
    name_servers: str = ""

    def start_all(self) -> None:
        """Start them, and create the topics."""
        port = free_port()
        self.name_servers = f"127.0.0.1:{port}"
        # With its list of queues, no key of an ordered topic moves to another broker while its own one is down.
        settings = ("bindAddress=127.0.0.1", f"kvConfigPath={self.directory / 'names.json'}", "orderMessageEnable=true")
        kept = [part for setting in settings for part in ("--set", setting)]
        self.commands["name-server"] = lambda: ["ternmq.cli", "namesrv", "-p", str(port), *kept]
        for name in BROKERS:
            self._plan_broker(name, name, brokerRole="SYNC_MASTER")
            self._plan_broker(f"{name}-slave", name, brokerRole="SLAVE", brokerId=1)
        for name in list(self.commands):
            self.start(name)
        self._create_topics()
        lease = str(LEASE_MS / 1000)
        relay = ["ternmq.cli", "outbox", "relay", "-d", self.database, "-n", self.name_servers, "--lease", lease]
        self.commands["relay"] = lambda: relay
        for number in (1, 2):
            self.commands[f"worker-{number}"] = lambda: [f"{self.program}.worker", self.database, self.name_servers]
            self.commands[f"customers-{number}"] = lambda: [
                f"{self.program}.customers",
                self.database,
                self.name_servers,
                f"{self.seed}-{self.starts}",
            ]
        for name in self.commands:
            if name not in self.processes:
                self.start(name)

    def start(self, name: str) -> None:
        self.starts += 1
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(EXAMPLES), os.environ.get("PYTHONPATH", "")])}
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(  # noqa: S603 - our own programs
                [*DIE_TOGETHER, sys.executable, "-m", *self.commands[name]()],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                env=environment,
            )

    def kill(self, name: str) -> None:
        """``kill -9``."""
        self.processes[name].kill()
        self.processes[name].wait()

    def tend(self) -> None:
        """Start what has ended by itself, as systemd would: a client that finds no name server at its start ends with
        an error. Raises ``RuntimeError`` if that does not help."""
        for name, process in self.processes.items():
            if process.poll() in (None, -signal.SIGKILL):
                continue
            self.ends[name] += 1
            if self.ends[name] > ENDS_MAX:
                log = (self.directory / f"{name}.log").read_text(errors="replace")
                raise RuntimeError(f"{name} ends again and again:\n{log[-3000:]}")
            self.start(name)

    def close(self) -> None:
        for name in self.processes:
            self.kill(name)

    def _plan_broker(self, name: str, broker: str, **own: object) -> None:
        settings = {
            **QUICK,
            **own,
            "brokerName": broker,
            "brokerIP1": "127.0.0.1",
            "bindAddress": "127.0.0.1",
            "listenPort": free_port(),
            "haListenPort": free_port(),
            "storePathRootDir": self.directory / name,
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self.commands[name] = lambda: ["ternmq.cli", "broker", "-n", self.name_servers, *flags]

    def _create_topics(self) -> None:
        """When all brokers are there."""
        limit = time.monotonic() + READY_S
        while True:
            self.tend()
            try:
                with SyncAdmin(self.name_servers) as admin:
                    brokers = admin.brokers.all()
                    found = f"{len(brokers)} brokers"
                    if len(brokers) == 2 * len(BROKERS):
                        for topic in TOPICS:
                            admin.topics.create(topic, queues=4, order=True)
                        return
            except TernError as error:
                found = str(error)
            if time.monotonic() > limit:
                raise RuntimeError(f"the brokers are not ready after {READY_S:.0f} s: {found}; see {self.directory}")
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
