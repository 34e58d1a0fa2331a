"""Groups of three in which TernMQ and RocketMQ's DLedger are members together (P3, P4, V3).

One member is preferred as the leader (``preferredLeaderId``), of the kind that is alone in its group. So it gets the
leadership from one of the other kind, is killed while it takes messages, one of the other kind follows it, it comes
back, catches up with that one, and gets the leadership again.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq.admin import Admin
from ternmq.client.consume.pull import PullConsumer
from ternmq.embedded import free_ports
from ternmq.env import Env
from ternmq.errors import TernError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from tests.cli.conftest import Serving
from tests.interop import rocketmq
from tests.interop.test_store_exchange import bodies_of
from tests.raft.processes import FILE_BYTES, Load, entries_of

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

BROKER: Final = "broker-a"
TERN: Final = "tern"
#: Elections with DLedger take up to 10 s, on a machine that is not busy.
PATIENCE_S: Final = 120.0
_BODY: Final = re.compile(rb"<(\d+)>")

SIZES: Final = {
    "mappedFileSizeCommitLog": FILE_BYTES,
    "mappedFileSizeConsumeQueue": 20_000,
    "maxMessageSize": 65_536,
    "maxHashSlotNum": 1000,
    "maxIndexNum": 4000,
}


class Member:
    """A broker process of one kind, with a directory that both kinds can open."""

    def __init__(self, directory: Path, member: str, kind: str, names: str, settings: dict[str, object]) -> None:
        self.id = member
        self.kind = kind
        self.store = directory / member / "store"
        self.store.mkdir(parents=True)
        self._directory = directory / member
        self._names = names
        self._port = rocketmq.free_port(neighbours=(-2, 1))
        self._settings = settings | {"dLegerSelfId": member}
        self._stack = ExitStack()
        self._tern: Serving | None = None
        self._java: rocketmq.Server | None = None
        self._starts = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        self._starts += 1
        if self.kind == TERN:
            settings = self._settings | {
                "brokerName": BROKER,
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "listenPort": self._port,
                "storePathRootDir": self.store,
                "raftPeerProtocol": "dledger",
            }
            flags = [part for key, value in settings.items() for part in ("--set", f"{key}={value}")]
            log = self._directory / f"{self._starts}.log"
            self._tern = Serving("broker", "-n", self._names, *flags, log=log)
        else:
            broker = rocketmq.broker(
                self.kind,
                self._directory,
                namesrv=self._names,
                name=BROKER,
                port=self._port,
                settings=self._settings
                | {"storePathRootDir": self.store, "storePathCommitLog": self.store / "commitlog"},
                has_route=False,
            )
            self._java = self._stack.enter_context(broker)

    def kill(self) -> None:
        if self._tern is not None:
            self._tern.end(signal.SIGKILL)
            self._tern = None
        if self._java is not None:
            self._java.kill()
            self._java = None
            self._stack.close()

    def topics(self) -> str:
        """The table of topics, as it is on the disk."""
        path = self.store / "config" / "topics.json"
        return path.read_text() if path.exists() else ""

    def log(self) -> bytes:
        """The log of this member up to its last entry."""
        files = sorted((self.store / f"dledger-{self.id}" / "data").iterdir())
        return entries_of((path.read_bytes() for path in files), FILE_BYTES)


class Group:
    def __init__(self, directory: Path, kinds: list[str], names: str, preferred: str) -> None:
        self.names = names
        peers = ";".join(f"n{number}-127.0.0.1:{port}" for number, port in enumerate(free_ports(3)))
        settings: dict[str, object] = SIZES | {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": BROKER,
            "dLegerPeers": peers,
            "preferredLeaderId": preferred,
        }
        self.members = {
            f"n{number}": Member(directory, f"n{number}", kind, names, settings) for number, kind in enumerate(kinds)
        }

    def start(self) -> None:
        with ThreadPoolExecutor() as threads:
            list(threads.map(Member.start, self.members.values()))

    def kill(self) -> None:
        for member in self.members.values():
            member.kill()

    async def leader(self, admin: Admin, *, but: str = "") -> str:
        """The member that is registered as the master, when there is one that is not ``but``."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                with contextlib.suppress(TernError):
                    masters = {each.address for each in await admin.brokers.masters()}
                    for member in self.members.values():
                        if member.address in masters and member.id != but:
                            return member.id
                await asyncio.sleep(0.1)

    async def led_by(self, admin: Admin, wanted: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while await self.leader(admin) != wanted:
                await asyncio.sleep(0.1)

    async def all_know(self, topic: str) -> None:
        """Wait until each member has a topic in its table: followers copy those of the leader."""
        async with asyncio.timeout(PATIENCE_S):
            while not all(f'"{topic}"' in member.topics() for member in self.members.values()):
                await asyncio.sleep(0.2)

    async def level(self) -> bytes:
        """Wait until all members have the same log; it is returned."""
        async with asyncio.timeout(PATIENCE_S):
            while True:
                logs = [await asyncio.to_thread(member.log) for member in self.members.values()]
                if len(set(logs)) == 1:
                    return logs[0]
                await asyncio.sleep(0.2)


@asynccontextmanager
async def running(directory: Path, kinds: list[str], preferred: str) -> AsyncIterator[tuple[Group, Admin]]:
    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        names = f"127.0.0.1:{name_server.port}"
        group = Group(directory, kinds, names, preferred)
        try:
            await asyncio.to_thread(group.start)
            async with Admin(names) as admin:
                yield group, admin
        finally:
            await asyncio.to_thread(group.kill)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param([TERN, "4.9.4", "4.9.4"], marks=pytest.mark.nightly),
        ["5.2.0", TERN, TERN],
        pytest.param([TERN, "5.2.0", "5.2.0"], marks=pytest.mark.nightly),
        pytest.param(["4.9.4", TERN, TERN], marks=pytest.mark.nightly),
    ],
    ids="+".join,
)
async def test_the_leadership_goes_from_kind_to_kind(kinds: list[str], tmp_path: Path) -> None:
    """P3, P4, V3: by transfer, by the death of a leader and back. Followers copy the tables of a leader of the other
    kind. In the end a RocketMQ broker becomes TernMQ in its own directory. No acknowledged message is lost, and the
    data files of all are equal."""
    async with running(tmp_path, kinds, "n0") as (group, admin):
        first = group.members["n0"]
        await group.led_by(admin, "n0")
        await admin.topics.create("orders", queues=3)
        await group.all_know("orders")
        load = Load(group.names)
        async with load.running():
            await load.goes_on(100)
            await asyncio.to_thread(first.kill)
            other = group.members[await group.leader(admin, but="n0")]
            await load.goes_on(100)
            await asyncio.to_thread(first.start)
            await group.led_by(admin, "n0")
            await load.goes_on(100)
            theirs = next(member for member in group.members.values() if member.kind != TERN)
            await asyncio.to_thread(theirs.kill)
            theirs.kind = TERN
            await asyncio.to_thread(theirs.start)
            await load.goes_on(100)
        # It may be n0 that was killed last, and it gets the leadership back.
        await group.led_by(admin, "n0")
        data = await group.level()
        async with PullConsumer("readers", name_servers=group.names) as consumer:
            found = await bodies_of(consumer, ["orders"])
    assert (kinds[int(other.id[1:])] == TERN) != (kinds[0] == TERN)
    assert load.acknowledged <= {int(number) for number in _BODY.findall(data)}
    assert load.acknowledged <= {int(number) for body in found.values() for number in _BODY.findall(body)}
