"""The directory of a Raft group of one member, opened by TernMQ and by RocketMQ's DLedger in turn (P2, C11).

A single TernMQ broker has some messages first. Then the directory becomes that of a member: RocketMQ 4.9.4 (DLedger
0.2.6) makes it one, or TernMQ does and RocketMQ 5.2.0 (DLedger 0.3.1.2) goes on. Each reads what the others wrote,
adds entries and closes; at the end RocketMQ is killed while it takes messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Final

import pytest

from ternmq.client.config import ProducerConfig
from ternmq.client.consume.pull import PullConsumer
from ternmq.client.send.producer import Producer
from ternmq.env import Env, SystemClock
from ternmq.errors import TernError
from ternmq.message import Message, MessageQueue, SendReceipt
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.raft.log import RaftLog, RaftPaths
from ternmq.raft.term_file import TermFile
from ternmq.store.config import StoreConfig
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.inspect.verify import verify
from ternmq.store.read.reader import LogReader
from ternmq.store.store import GetStatus, MessageStore
from ternmq.wire.layouts.raft_entry import INDEX_UNIT_BYTES
from ternmq.wire.layouts.raft_state import Vote
from ternmq.wire.properties import parse
from ternmq.wire.record import Sysflag, unpack_record
from tests.interop import jvm, rocketmq
from tests.interop.test_store_exchange import Place, bodies_of, settings_of
from tests.store.killed import config_for
from tests.store.small import draft, files, quiet_store

pytestmark = pytest.mark.interop

BROKER: Final = "broker-a"
TOPIC: Final = "exchange"
MEMBER: Final = "n0"
CLIENT: Final = ProducerConfig(retries=0, send_timeout_ms=3_000)


class Member:
    """The directory of a group's only member."""

    def __init__(self, path: Path, version: str, names: str) -> None:
        self.config: StoreConfig = config_for(path / "store")
        self.root = self.config.store_path_root_dir
        self.home = self.root / f"dledger-{MEMBER}"
        self.names = names
        self._path = path
        self._version = version
        self._port = rocketmq.free_port(neighbours=(-2, 1))

    @asynccontextmanager
    async def in_rocketmq(self) -> AsyncIterator[rocketmq.Server]:
        settings = settings_of(self.config) | {
            "enableDLegerCommitLog": "true",
            "dLegerGroup": BROKER,
            "dLegerPeers": f"{MEMBER}-127.0.0.1:{rocketmq.free_port()}",
            "dLegerSelfId": MEMBER,
        }
        with ExitStack() as stack:
            context = rocketmq.broker(
                self._version, self._path, namesrv=self.names, name=BROKER, port=self._port, settings=settings
            )
            yield await asyncio.to_thread(stack.enter_context, context)
            await asyncio.to_thread(stack.close)

    def store(self) -> tuple[MessageStore, RaftLog]:
        """In TernMQ, as the leader of a new term, in which all that is there becomes committed."""
        log = RaftLog(
            FileDisk(),
            RaftPaths.of(self.config, MEMBER),
            segment_bytes=self.config.mapped_file_size_commit_log,
        )
        store = quiet_store(self.config, log=log, clock=SystemClock())
        terms = TermFile(FileDisk(), self.home / "currterm")
        term = terms.load().term + 1
        terms.save(Vote(term, MEMBER))
        assert term > log.last_term
        log.term = term
        return store, log

    def add(self, count: int, text: str) -> None:
        """Messages by TernMQ."""
        store, log = self.store()
        with store:
            for number in range(count):
                body = b"%d %s " % (number, text.encode()) * 100
                store.put(draft(TOPIC, number % 2, body, UNIQ_KEY=f"{text}{number}", KEYS=text))
            store.confirm(log.end)
            log.note_committed(log.last_index)

    def messages(self) -> dict[Place, bytes]:
        """All that the log has for consumers."""
        return {
            (record.topic, record.queue_id, record.queue_offset): bytes(record.body)
            for record in LogReader(self.root)
            if record.topic == TOPIC and not record.sysflag & Sysflag.PREPARED
        }


async def first_sent(producer: Producer) -> SendReceipt:
    """A group of one needs some seconds to elect its leader."""
    async with asyncio.timeout(90):
        while True:
            with contextlib.suppress(TernError):
                return await producer.send(Message(TOPIC, b"first", keys="java"))
            await asyncio.sleep(0.1)


async def served(member: Member) -> dict[Place, bytes]:
    async with PullConsumer("readers", name_servers=member.names) as consumer:
        return await bodies_of(consumer, [TOPIC])


@pytest.mark.timeout(300)  # a clean stop of 5.2.0 alone takes 18 s
@pytest.mark.parametrize("version", jvm.mostly("4.9.4"))
async def test_the_directory_of_a_member_goes_from_hand_to_hand(version: str, tmp_path: Path) -> None:
    """P2, C11: TernMQ alone → (TernMQ →) DLedger → TernMQ → DLedger, killed while it takes messages → TernMQ."""
    async with NameServer(NamesrvConfig(listen_port=0), Env()) as name_server:
        member = Member(tmp_path, version, f"127.0.0.1:{name_server.port}")
        with quiet_store(member.config, clock=SystemClock()) as single:
            for number in range(200):
                single.put(draft(TOPIC, number % 2, b"%d alone " % number * 200, UNIQ_KEY=f"alone{number}"))
            alone_end = single.written
        if version >= "5":
            member.add(20, "first of TernMQ")
        await dledger_serves_and_adds(member)
        index_is_what_dledger_wrote(member, tmp_path / "copy", alone_end)
        member.add(30, "later of TernMQ")
        assert [] == verify(member.root).faults
        acknowledged = await dledger_serves_and_is_killed(member)
        all_is_there(member, acknowledged)


async def dledger_serves_and_adds(member: Member) -> None:
    written = member.messages()
    async with (
        member.in_rocketmq() as broker,
        Producer("shop", name_servers=member.names, config=CLIENT) as producer,
    ):
        await first_sent(producer)
        for number in range(300):
            queue = MessageQueue(TOPIC, BROKER, number % 2)
            await producer.send(Message(TOPIC, b"%d by Java " % number * 50, keys=f"java{number}"), queue=queue)
        found = await served(member)
        assert written == {place: found[place] for place in written}
        assert len(written) + 301 == len(found)
        await asyncio.to_thread(broker.stop, 60)
    assert found == member.messages()
    assert not (member.root / "abort").exists()


def index_is_what_dledger_wrote(member: Member, copy: Path, alone_end: int) -> None:
    """P2: data files stay as they are, byte for byte, and an index that TernMQ makes of them is DLedger's."""
    size = member.config.mapped_file_size_commit_log
    assert min((member.home / "data").iterdir()).name == f"{-(-alone_end // size) * size:020d}"
    before = files(member.home / "data")
    shutil.copytree(member.root, copy, ignore=shutil.ignore_patterns("index", "timer*"))
    config = config_for(copy)
    log = RaftLog(FileDisk(), RaftPaths.of(config, MEMBER), segment_bytes=size)
    with quiet_store(config, log=log, clock=SystemClock()) as store:
        assert log.committed == log.last_index
        assert store.dispatched == log.end
        count = log.last_index + 1
        assert count >= 301
    made, theirs = ((root / "index" / f"{0:020d}").open("rb") for root in (copy / member.home.name, member.home))
    with made, theirs:
        assert theirs.read(count * INDEX_UNIT_BYTES) == made.read(count * INDEX_UNIT_BYTES)
    # A file that RocketMQ made in advance has no entries, and TernMQ removes it.
    after = files(copy / member.home.name / "data")
    assert after == {name: data for name, data in before.items() if any(data)}
    shutil.rmtree(copy)


async def dledger_serves_and_is_killed(member: Member) -> list[SendReceipt]:
    """Returns what it had acknowledged when it died."""
    written = member.messages()
    acknowledged: list[SendReceipt] = []
    async with member.in_rocketmq() as broker:
        async with Producer("shop", name_servers=member.names, config=CLIENT) as producer:
            acknowledged.append(await first_sent(producer))
            found = await served(member)
            assert written == {place: found[place] for place in written}

            async def send_until_it_dies(sender: int) -> None:
                with contextlib.suppress(TernError):
                    while True:
                        body = b"%d %d" % (sender, len(acknowledged))
                        acknowledged.append(await producer.send(Message(TOPIC, body * 50, keys="crash")))
                        if len(acknowledged) == 500:
                            broker.process.kill()

            await asyncio.gather(*(send_until_it_dies(sender) for sender in range(8)))
        broker.kill()
    return acknowledged


def all_is_there(member: Member, acknowledged: list[SendReceipt]) -> None:
    """C8: what DLedger had committed, after TernMQ has confirmed it in a term of its own."""
    member.add(1, "after the crash")
    log = RaftLog(
        FileDisk(), RaftPaths.of(member.config, MEMBER), segment_bytes=member.config.mapped_file_size_commit_log
    )
    with quiet_store(member.config, log=log) as store:
        for receipt in acknowledged:
            result = store.get(TOPIC, receipt.queue.queue_id, receipt.queue_offset, count_max=1)
            assert GetStatus.FOUND is result.status
            assert receipt.message_id == parse(unpack_record(result.buffers[0]).properties)["UNIQ_KEY"]
    assert [] == verify(member.root).faults
