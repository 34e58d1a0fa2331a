"""A Raft group of real broker processes, with producers that never stop: what tests and the soak share (P4).

``python -m tests.raft.processes 50`` kills the leader fifty times and prints how long there was none; with ``--java``
the producers are Java's, of 4.9.4 and 5.2.0 at once (``script/bootstrap java`` first).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import signal
import statistics
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from ternmq.admin import Admin
from ternmq.admin.raft import RaftMemberInfo
from ternmq.client.send.producer import Producer
from ternmq.embedded import free_ports
from ternmq.errors import TernError
from ternmq.message import Message, SendStatus
from ternmq.tasks import Tasks
from ternmq.wire.layouts.raft_entry import BLANK_MARK, unpack_entry_header
from tests.cli.conftest import Serving
from tests.hosts import Hosts
from tests.interop.java import Java, Peer

LONG_S: Final = 90.0
FILE_BYTES: Final = 1 << 20
#: Of Java's producers.
_VERSIONS: Final = ("4.9.4", "5.2.0")
_BODY: Final = re.compile(rb"<(\d+)>")


class Processes:
    """A name server and three members. ``signal`` a member by its id."""

    def __init__(
        self,
        directory: Path,
        ports: list[int],
        *settings: str,
        homes: Mapping[str, Path] | None = None,
        hosts: Hosts | None = None,
    ) -> None:
        """``homes`` are directories of members that are elsewhere, such as on a disk of their own. With ``hosts``, each
        member runs on the host of its name, and the name server on the host ``names``."""
        self.directory = directory
        self._hosts = hosts
        self._homes = {f"n{number}": directory / f"n{number}" for number in range(3)} | dict(homes or {})
        directory.mkdir(exist_ok=True)
        self._settings = settings
        self._ports = ports
        self._logs = 0
        address = self._address("names")
        settings_of_names = ("--set", f"kvConfigPath={directory / 'kv.json'}", "--set", f"bindAddress={address}")
        self.name_server = self._serve("names", "namesrv", "-p", "0", *settings_of_names)
        self.members = {f"n{number}": self._start(number) for number in range(3)}

    @property
    def name_servers(self) -> str:
        return self.name_server.name_server

    def restart(self, member: str) -> None:
        """Start a member that has died."""
        self.members[member] = self._start(int(member[1:]))

    def signal(self, member: str, number: int) -> None:
        os.kill(self.members[member].process.pid, number)

    def kill(self, member: str) -> None:
        self.signal(member, signal.SIGKILL)
        self.members[member].wait()

    def stop(self) -> None:
        """End all processes cleanly, as far as they can."""
        running = [each for each in (*self.members.values(), self.name_server) if each.process.poll() is None]
        for serving in running:
            serving.process.send_signal(signal.SIGCONT)
            serving.process.terminate()
        for serving in running:
            serving.wait()

    def data(self, member: str) -> list[bytes]:
        """The data files of a member's log, the first first."""
        directory = self._homes[member] / f"dledger-{member}" / "data"
        return [path.read_bytes() for path in sorted(directory.iterdir())]

    def stored(self, member: str) -> set[int]:
        """The numbers of all messages in the log of a member."""
        return {int(number) for file in self.data(member) for number in _BODY.findall(file)}

    def _start(self, number: int) -> Serving:
        member = f"n{number}"
        places = ((f"n{other}", port) for other, port in enumerate(self._ports))
        peers = ";".join(f"{other}-{self._address(other)}:{port}" for other, port in places)
        settings = [
            "brokerName=broker-a",
            f"brokerIP1={self._address(member)}",
            f"bindAddress={self._address(member)}",
            "listenPort=0",
            "enableDLegerCommitLog=true",
            f"dLegerPeers={peers}",
            f"dLegerSelfId={member}",
            f"storePathRootDir={self._homes[member]}",
            f"mappedFileSizeCommitLog={FILE_BYTES}",
            "mappedFileSizeConsumeQueue=20000",
            "maxMessageSize=65536",
            "maxHashSlotNum=1000",
            "maxIndexNum=4000",
            *self._settings,
        ]
        flags = [part for setting in settings for part in ("--set", setting)]
        return self._serve(member, "broker", "-n", self.name_servers, *flags)

    def _serve(self, host: str, *arguments: str) -> Serving:
        self._logs += 1
        within = () if self._hosts is None else self._hosts.within(host)
        return Serving(*arguments, log=self.directory / f"{self._logs}.log", within=within)

    def _address(self, host: str) -> str:
        return "127.0.0.1" if self._hosts is None else self._hosts.address(host)


@asynccontextmanager
async def running(
    directory: Path, *settings: str, homes: Mapping[str, Path] | None = None, hosts: Hosts | None = None
) -> AsyncIterator[Processes]:
    processes = await asyncio.to_thread(Processes, directory, free_ports(3), *settings, homes=homes, hosts=hosts)
    try:
        yield processes
    finally:
        await asyncio.to_thread(processes.stop)


class Load:
    """A producer with several sends under way, and what was acknowledged."""

    def __init__(self, name_servers: str, *, senders: int = 4, pause_s: float = 0.0) -> None:
        self._name_servers = name_servers
        self._senders = senders
        self._pause_s = pause_s
        self._next = 0
        self.acknowledged: set[int] = set()
        #: When the last message was acknowledged.
        self.at = 0.0
        #: The longest time between two answers; set it to 0 to measure anew.
        self.silence_s = 0.0
        #: What sends have raised in spite of the producer's retries, one text each.
        self.errors: list[str] = []

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with Producer("shop", name_servers=self._name_servers) as producer, Tasks() as tasks:
            for _ in range(self._senders):
                tasks.create_task(self._send(producer))
            yield

    async def _send(self, producer: Producer) -> None:
        while True:
            number = self._number()
            try:
                receipt = await producer.send(Message("orders", b"<%d>" % number * (1 + number % 20)), timeout_ms=3_000)
            except TernError as error:
                self.errors.append(str(error))
                await asyncio.sleep(0.01)
                continue
            if receipt.status is SendStatus.OK:
                self._acknowledged(number)
            await asyncio.sleep(self._pause_s)

    def _number(self) -> int:
        self._next += 1
        return self._next

    def _acknowledged(self, number: int) -> None:
        self.acknowledged.add(number)
        now = asyncio.get_running_loop().time()
        self.silence_s = max(self.silence_s, now - self.at if self.at else 0.0)
        self.at = now

    async def goes_on(self, count: int = 20) -> None:
        """Wait until some more messages are acknowledged."""
        wanted = len(self.acknowledged) + count
        async with asyncio.timeout(LONG_S):
            while len(self.acknowledged) < wanted:
                await asyncio.sleep(0.005)


class JavaLoad(Load):
    """Java's producers, one of each version; they ask for routes every second instead of every 30 s."""

    def __init__(self, name_servers: str, directory: Path) -> None:
        super().__init__(name_servers)
        self._directory = directory
        #: How many messages of each version's producer were acknowledged.
        self._counts: Counter[str] = Counter()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            tasks = Tasks()
            for version in _VERSIONS:
                java = Java(version, self._directory)
                options = {"group": "shop", "timeoutMs": 3_000, "pollMs": 1_000}
                producer = await stack.enter_async_context(java.producer(self._name_servers, **options))
                tasks.create_task(self._order(version, producer))
            await stack.enter_async_context(tasks)
            yield

    async def goes_on(self, count: int = 20) -> None:
        """Both producers: one that still waits for the last change of leaders would meet the next one as well."""
        wanted = self._counts + Counter(dict.fromkeys(_VERSIONS, count))
        async with asyncio.timeout(LONG_S):
            while not wanted <= self._counts:
                await asyncio.sleep(0.005)

    async def _order(self, version: str, producer: Peer) -> None:
        while True:
            number = self._number()
            for answer in await producer.order(topic="orders", count=1, body=f"<{number}>", limit_s=LONG_S):
                if answer["event"] == "result" and answer["status"] == "SEND_OK":
                    self._acknowledged(number)
                    self._counts[version] += 1
                else:
                    self.errors.append(str(answer))


async def leader(admin: Admin, *, but: str = "") -> str:
    """The member that leads, when there is one, and it is another than ``but``."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(TernError):
                for member in await admin.raft.status("broker-a"):
                    if member.role == "leader" and member.member != but and not member.trouble:
                        return member.member
            await asyncio.sleep(0.02)


async def registered(admin: Admin) -> None:
    """Return when the name servers know a master: a new leader tells them within a moment."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(TernError):
                await admin.brokers.masters()
                return
            await asyncio.sleep(0.02)


async def filled(admin: Admin) -> str:
    """The leader of a new group, when all members can vote: one that begins with an empty log does so only when it has
    everything (decision 0027), and without it the others have no majority once the leader is gone."""
    await leader(admin)
    await level(admin)
    return await leader(admin)


async def level(admin: Admin) -> list[RaftMemberInfo]:
    """Wait until all three members have the same log, and vote."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(TernError):
                members = await admin.raft.status("broker-a")
                ends = {member.last_index for member in members} | {member.commit_index for member in members}
                are_whole = not any(member.trouble or member.filling for member in members)
                if len(members) == 3 and len(ends) == 1 and are_whole:
                    return members
            await asyncio.sleep(0.05)


async def complete(admin: Admin) -> None:
    """Wait until all three members take part and are close to the leader: one that still starts has no vote to give."""
    async with asyncio.timeout(LONG_S):
        while True:
            with contextlib.suppress(TernError):
                members = await admin.raft.status("broker-a")
                lags = [member.lag_entries for member in members if member.role == "follower" and not member.filling]
                if len(lags) == 2 and all(lag is not None and lag < 100 for lag in lags):
                    return
            await asyncio.sleep(0.05)


async def lose_leaders(
    directory: Path, rounds: int, *settings: str, with_java: bool = False, way: str = "kill"
) -> tuple[list[float], list[str]]:
    """Lose the leader again and again under load; the seconds until a message was acknowledged again, and what sends
    raised.

    ``way``: by ``kill`` -9; by a clean ``stop`` or a ``transfer``, where it is the longest time without an answer.

    Raises ``AssertionError`` if a message that was acknowledged is lost, or the members differ.
    """
    gaps = []
    async with running(directory, *settings) as processes, Admin(processes.name_servers) as admin:
        names = processes.name_servers
        load = JavaLoad(names, directory) if with_java else Load(names)
        await filled(admin)
        async with load.running():
            for _ in range(rounds):
                await load.goes_on()
                if way != "kill":
                    await complete(admin)
                old = await leader(admin)
                load.silence_s = 0.0
                if way == "transfer":
                    await admin.raft.transfer("broker-a")
                    await load.goes_on()
                    gaps.append(load.silence_s)
                    continue
                if way == "stop":
                    processes.signal(old, signal.SIGTERM)
                    await asyncio.to_thread(processes.members[old].wait)
                    await load.goes_on()
                    gaps.append(load.silence_s)
                else:
                    await asyncio.to_thread(processes.kill, old)
                    killed_at = asyncio.get_running_loop().time()
                    await load.goes_on(1)
                    gaps.append(load.at - killed_at)
                await asyncio.to_thread(processes.restart, old)
            await load.goes_on()
        await level(admin)
        await asyncio.to_thread(processes.stop)
        check(processes, load)
    return gaps, load.errors


def check(processes: Processes, load: Load, *, but: str = "") -> None:
    """What was acknowledged is on all members, and their files are equal. Call when all have stopped."""
    members = [member for member in processes.members if member != but]
    for member in members:
        lost = load.acknowledged - processes.stored(member)
        assert not lost, f"{member} has lost {sorted(lost)[:10]} of {len(load.acknowledged)} messages"
    logs = [entries_of(processes.data(member), FILE_BYTES) for member in members]
    # All had the same before they were told to stop. The leader hands over then, and the next one may have had the time
    # to write the first record of its term.
    end = min(len(each) for each in logs)
    assert 1 == len({each[:end] for each in logs}), "the data files of the members differ"


def entries_of(files: Iterable[bytes], file_bytes: int) -> bytes:
    """The log in these data files, up to its last entry."""
    data = b"".join(file[:file_bytes].ljust(file_bytes, b"\0") for file in files)
    at = end = index = 0
    while at + 48 <= len(data):
        place = unpack_entry_header(data, at)
        if place is not None and (place.index, place.position) == (index, at):
            at = end = place.end
            index += 1
        elif int.from_bytes(data[at : at + 4], "big", signed=True) == BLANK_MARK:
            at += -at % file_bytes
        else:
            break
    return data[:end]


def main() -> None:
    parser = argparse.ArgumentParser(prog="script/soak raft-kill")
    parser.add_argument("rounds", type=int, nargs="?", default=50, help="how often the leader is lost (50)")
    parser.add_argument("--java", action="store_true", help="producers of Java, 4.9.4 and 5.2.0, instead of TernMQ's")
    parser.add_argument("--way", choices=("kill", "stop", "transfer"), default="kill", help="how it is lost (kill)")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of the brokers")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        losing = lose_leaders(Path(directory), given.rounds, *given.set, with_java=given.java, way=given.way)
        gaps, errors = asyncio.run(losing)
    lines = [
        f"{len(gaps)} leaders lost by {given.way}, no acknowledged message lost; until the next acknowledged message: "
        f"median {statistics.median(gaps):.2f} s, worst {max(gaps):.2f} s; {len(errors)} sends raised an error",
        *errors,
    ]
    print(*lines, sep="\n")  # noqa: T201 - the result of a program


if __name__ == "__main__":
    main()
