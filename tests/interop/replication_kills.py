"""A master and a slave as real processes that are killed under load, TernMQ and RocketMQ in each place (O1, O2, V3).

A producer sends all the time to a SYNC_MASTER. In each round the master, the slave or both are killed (``kill -9``) at
some moment. What was answered with SEND_OK must then be in the log of the one that survived, and of both after they
have caught up. Logs are read as bytes: each message has a number that stands nowhere else.

``script/soak replication-kills [--rounds N] [--pairs 4.9.4/ternmq …]`` runs all pairs for long.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import re
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, Self

from ternmq.client.send.producer import Producer
from ternmq.env import Env
from ternmq.errors import TernError
from ternmq.message import Message, SendStatus
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.tasks import Tasks
from tests.interop import rocketmq
from tests.interop.rocketmq import free_port

LONG_S: Final = 120.0
SEGMENT_BYTES: Final = 1 << 20
SENDERS: Final = 8
#: Messages that are acknowledged before something is killed.
ACKED: Final = 150
_NUMBER: Final = re.compile(rb"<message (\d+)>")
_SIZES: Final = {
    "mappedFileSizeCommitLog": SEGMENT_BYTES,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxHashSlotNum": 500,
    "maxIndexNum": 2000,
}
PAIRS: Final = ("ternmq/ternmq", "ternmq/4.9.4", "ternmq/5.2.0", "4.9.4/ternmq", "5.2.0/ternmq")


class Lost(AssertionError):
    """Acknowledged messages that a survivor does not have."""


class Node:
    """A broker process of TernMQ or RocketMQ, which can be killed and started again."""

    def __init__(self, kind: str, directory: Path, names: str, *, broker_id: int) -> None:
        self.kind = kind
        self._directory = directory
        self._names = names
        self._port = free_port(neighbours=(-2, 1))
        role = {"brokerRole": "SLAVE"} if broker_id else {"brokerRole": "SYNC_MASTER"}
        if kind == "5.2.0" and not broker_id:
            # Else a SYNC_MASTER of RocketMQ 5 waits for no slave.
            role["inSyncReplicas"] = "2"
        self._settings = {**_SIZES, **role, "brokerId": broker_id}
        self._is_slave = bool(broker_id)
        self._stack = ExitStack()
        self._kill: Callable[[], None] | None = None

    def start(self) -> None:
        """Return when it serves."""
        if self.kind == "ternmq":
            self._start_ternmq()
            return
        server = self._stack.enter_context(
            rocketmq.broker(
                self.kind,
                self._directory,
                namesrv=self._names,
                port=self._port,
                settings=self._settings,
                has_route=not self._is_slave,
            )
        )
        self._kill = server.kill

    def _start_ternmq(self) -> None:
        settings = {
            **self._settings,
            "brokerName": "broker-a",
            "brokerIP1": "127.0.0.1",
            "listenPort": self._port,
            "storePathRootDir": self._directory / "store",
        }
        flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
        self._directory.mkdir(parents=True, exist_ok=True)
        log = self._stack.enter_context((self._directory / "server.log").open("ab"))
        process = subprocess.Popen(
            [sys.executable, "-m", "ternmq.cli", "broker", "-n", self._names, *flags],
            stdout=subprocess.PIPE,
            stderr=log,
            env=os.environ,
        )
        assert process.stdout is not None
        self._stack.callback(process.stdout.close)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        self._kill = process.kill
        if not process.stdout.readline().startswith(b"ready"):
            raise AssertionError(f"a broker did not start: {(self._directory / 'server.log').read_text()[-2000:]}")

    def kill(self) -> None:
        """``kill -9``; the process is gone when this returns."""
        if self._kill is not None:
            self._kill()
            self._kill = None
        self._stack.close()

    def numbers(self) -> set[int]:
        """The messages in its log, as it stands in its files."""
        found: set[int] = set()
        for path in sorted((self._directory / "store" / "commitlog").glob("*")):
            found.update(int(number) for number in _NUMBER.findall(path.read_bytes()))
        return found


class Pair:
    """A master, a slave, and what a producer was told."""

    def __init__(self, names: str, directory: Path, pair: str) -> None:
        master, _, slave = pair.partition("/")
        self.master = Node(master, directory / "master", names, broker_id=0)
        self.slave = Node(slave, directory / "slave", names, broker_id=1)
        self.acked: set[int] = set()
        self._names = names
        self._next = 0

    @classmethod
    @asynccontextmanager
    async def running(cls, directory: Path, pair: str) -> AsyncIterator[Self]:
        """Both run, and a producer sends."""
        config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
        async with NameServer(config, Env()) as names:
            running = cls(f"127.0.0.1:{names.port}", directory, pair)
            try:
                await asyncio.to_thread(running.master.start)
                await asyncio.to_thread(running.slave.start)
                async with Tasks() as tasks:
                    for _ in range(SENDERS):
                        tasks.create_task(running._send())
                    yield running
            finally:
                await asyncio.to_thread(running.slave.kill)
                await asyncio.to_thread(running.master.kill)

    async def _send(self) -> None:
        async with Producer(f"shop-{self._next}", name_servers=self._names) as producer:
            while True:
                self._next += 1
                number = self._next
                try:
                    receipt = await producer.send(
                        Message("orders", b"<message %d>" % number + b"." * 500), timeout_ms=10_000
                    )
                except TernError:
                    await asyncio.sleep(0.1)
                    continue
                if receipt.status is SendStatus.OK:
                    self.acked.add(number)
                else:
                    # Stored, and not replicated.
                    await asyncio.sleep(0.05)

    async def is_acknowledged(self, more: int) -> None:
        """Wait until so many more messages are on both."""
        goal = len(self.acked) + more
        async with asyncio.timeout(LONG_S):
            while len(self.acked) < goal:
                await asyncio.sleep(0.01)

    def check(self, node: Node, what: str, acked: set[int]) -> None:
        missing = acked - node.numbers()
        if missing:
            raise Lost(f"{what}: the {node.kind} node lacks {len(missing)} of {len(acked)}: {sorted(missing)[:10]}")

    async def kill_master(self) -> None:
        """The slave has everything that was acknowledged; the master comes back, and both go on."""
        await asyncio.to_thread(self.master.kill)
        self.check(self.slave, "the master was killed", set(self.acked))
        await asyncio.to_thread(self.master.start)
        await self.is_acknowledged(ACKED)

    async def kill_slave(self) -> None:
        """The master has everything; the slave comes back and gets the rest."""
        await asyncio.to_thread(self.slave.kill)
        self.check(self.master, "the slave was killed", set(self.acked))
        await asyncio.to_thread(self.slave.start)
        await self.is_acknowledged(ACKED)

    async def kill_both(self) -> None:
        """Each has everything: what is in the page cache survives processes."""
        await asyncio.gather(asyncio.to_thread(self.master.kill), asyncio.to_thread(self.slave.kill))
        for node in (self.master, self.slave):
            self.check(node, "both were killed", set(self.acked))
        await asyncio.to_thread(self.master.start)
        await asyncio.to_thread(self.slave.start)
        await self.is_acknowledged(ACKED)


async def rounds(pair: str, directory: Path, kills: list[str]) -> int:
    """Kill what is named, one after the other; returns how many messages were acknowledged. Raises ``Lost``."""
    async with Pair.running(directory, pair) as running:
        await running.is_acknowledged(ACKED)
        for kill in kills:
            await {"master": running.kill_master, "slave": running.kill_slave, "both": running.kill_both}[kill]()
        return len(running.acked)


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak replication-kills")
    parser.add_argument("--rounds", type=int, default=20, help="kills for each pair (20)")
    parser.add_argument("--pairs", nargs="+", choices=PAIRS, default=PAIRS, help="master/slave (all)")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    for pair in given.pairs:
        kills = [random.choice(("master", "slave", "both")) for _ in range(given.rounds)]
        with tempfile.TemporaryDirectory() as directory, suppress(KeyboardInterrupt):
            count = asyncio.run(rounds(pair, Path(directory), kills))
            sys.stdout.write(f"{pair}: {given.rounds} kills, {count} acknowledged messages, none lost\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main()
