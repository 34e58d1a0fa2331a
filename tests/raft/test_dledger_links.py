"""Connections of a mixed group on real sockets (P3): who is what, calls and answers, and strangers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ternmq.net.endpoint import Bound, bind
from ternmq.raft import arriving
from ternmq.raft import links as raft_links
from ternmq.raft.config import Member as Peer
from ternmq.raft.dledger_links import DledgerLinks
from ternmq.raft.greeting import Hello
from ternmq.raft.links import Links
from ternmq.raft.messages import Append, AppendReply, RaftMessage
from ternmq.raft.ready import RaftRole
from ternmq.raft.wire import EntriesGone, pack_frame
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.bodies.dledger import Base, Code, DLedgerCode, Metadata, Push, PushAnswer, VoteCall
from ternmq.wire.frame import FrameDecoder, encode_reply, encode_request
from ternmq.wire.header import Reply, Request, Response
from tests.raft.test_dledger_calls import Member
from tests.replication.world import until


class World:
    """n0 and n1 are TernMQ; n2 is what a test makes of it."""

    def __init__(self, bounds: list[Bound]) -> None:
        self.bounds = bounds
        self.peers = [Peer(f"n{i}", f"127.0.0.1:{bound.getsockname()[1]}") for i, bound in enumerate(bounds)]
        self.heard: dict[int, list[RaftMessage | EntriesGone]] = {0: [], 1: []}
        self.view = Member(1, 1, term=3, leader=None)

    @asynccontextmanager
    async def member(self, number: int, *, group: str = "g", is_guarded: bool = False) -> AsyncIterator[Links]:
        loop = asyncio.get_running_loop()
        ids = tuple(peer.id for peer in self.peers)
        hello = Hello(1, group, "c", "broker-a", ids[number], "", ids, 4096, "127.0.0.1:1", peer_protocol="dledger")

        def take(message: RaftMessage | EntriesGone, sender: str, size: int) -> None:
            del sender, size
            self.heard[number].append(message)

        theirs = DledgerLinks(group, ids[number], self.peers, self.view, take, now_ms=lambda: int(loop.time() * 1000))
        others = [peer for peer in self.peers if peer.id != ids[number]]
        async with Links(
            hello,
            others,
            lambda *_: self.heard[number].append(EntriesGone(0, 0)),
            frame_bytes_max=1 << 20,
            is_guarded=is_guarded,
            theirs=theirs,
        ) as links:
            self.bounds[number].close()
            await links.serve(bind("127.0.0.1", self.port(number)))
            yield links

    def port(self, number: int) -> int:
        return int(self.peers[number].address.rpartition(":")[2])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    bounds = [bind("127.0.0.1", 0) for _ in range(3)]
    yield World(bounds)
    for bound in bounds:
        bound.close()


class Caller:
    """Calls as a RocketMQ broker makes them."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._decoder = FrameDecoder(typed=False)

    def send(self, code: int, body: Base, opaque: int = 7) -> None:
        self._writer.writelines(encode_request(code, body=encode(body), opaque=opaque))

    async def answer(self, kind: type[Any] = Base) -> Any:
        async with asyncio.timeout(30):
            while data := await self._reader.read(1 << 16):
                for command in self._decoder.feed(data):
                    assert isinstance(command, Response)
                    assert Code.SUCCESS == command.code
                    return decode(command.body, kind)
        return None


@asynccontextmanager
async def caller(port: int) -> AsyncIterator[Caller]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Caller(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def base(sender: str = "n2", *, to: str = "n0", group: str = "g", term: int = 3) -> Base:
    return Base(group=group, remote_id=to, leader_id=sender, term=term)


async def test_ternmq_members_find_each_other_and_speak_their_own_protocol(world: World) -> None:
    """P3: also where RocketMQ brokers may be members."""
    async with world.member(0) as one, world.member(1) as two:
        await until(lambda: one.is_ours("n1") and two.is_ours("n0"))
        assert not one.is_linked("n2")
        assert one.send("n1", pack_frame(1, b""))
        await until(lambda: world.heard[1] == [EntriesGone(0, 0)])


async def test_a_call_becomes_a_message_and_its_reply_the_answer(world: World) -> None:
    async with world.member(0) as links, caller(world.port(0)) as theirs:
        theirs.send(DLedgerCode.HEART_BEAT, base())
        await until(lambda: bool(world.heard[0]))
        (message,) = world.heard[0]
        assert isinstance(message, Append)
        assert ("n2", 3) == (message.sender, message.term)
        reply = AppendReply(
            sender="n0", receiver="n2", term=3, is_accepted=True, index=1, stored=1, sent_ms=message.sent_ms
        )
        assert links.theirs is not None
        assert links.theirs.send(reply)
        assert Code.SUCCESS == (await theirs.answer()).code
        # There is no call any more that it would answer.
        assert not links.theirs.send(reply)


async def test_who_is_asked_says_that_it_is_ternmq(world: World) -> None:
    async with world.member(0), caller(world.port(0)) as theirs:
        theirs.send(DLedgerCode.METADATA, base(""))
        answer = await theirs.answer(Metadata)

    assert (1, {"n0", "n1", "n2"}, None) == (answer.ternmq, set(answer.peers), answer.leader_id)


@pytest.mark.parametrize(
    ("code", "body", "expected"),
    [
        (DLedgerCode.HEART_BEAT, base(group="other"), Code.UNKNOWN_GROUP),
        (DLedgerCode.HEART_BEAT, base(to="n1"), Code.UNKNOWN_MEMBER),
        (DLedgerCode.HEART_BEAT, base("n9"), Code.UNKNOWN_MEMBER),
        (DLedgerCode.HEART_BEAT, base("n0"), Code.UNKNOWN_MEMBER),
        (50001, base(), Code.UNSUPPORTED),
    ],
)
async def test_calls_that_are_not_for_us_are_answered_so(world: World, code: int, body: Base, expected: Code) -> None:
    async with world.member(0), caller(world.port(0)) as theirs:
        theirs.send(code, body)
        assert expected == (await theirs.answer()).code
    assert [] == world.heard[0]


@pytest.mark.parametrize("data", [b"\0\0\0\x10garbage that is no frame", b"GET / HTTP/1.1\r\n\r\n", b"\x7f" * 64])
async def test_garbage_ends_a_connection(world: World, data: bytes) -> None:
    async with world.member(0):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port(0))
        writer.write(data)
        async with asyncio.timeout(30):
            assert b"" == await reader.read()
        writer.close()


async def test_a_push_that_no_leader_sends_ends_its_connection(world: World) -> None:
    async with world.member(0), caller(world.port(0)) as theirs:
        theirs.send(DLedgerCode.PUSH, Push(group="g", remote_id="n0", leader_id="n2", term=3, type="APPEND"))
        assert await theirs.answer() is None


async def test_a_call_with_a_name_of_megabytes_ends_its_connection(world: World) -> None:
    """P3: two thousand calls may wait for an answer, which repeats the name."""
    async with world.member(0), caller(world.port(0)) as theirs:
        call = VoteCall(group="g", remote_id="n0", leader_id="n2", local_id="n" * 1_000_000, term=3)
        theirs.send(DLedgerCode.VOTE, call)
        assert await theirs.answer() is None
    assert [] == world.heard[0]


async def test_connections_that_do_not_say_whose_they_are_are_few(world: World) -> None:
    """P3: each may keep a large frame in memory."""
    async with world.member(0), contextlib.AsyncExitStack() as stack:
        callers = []
        for _ in range(9):
            callers.append(theirs := await stack.enter_async_context(caller(world.port(0))))
            theirs.send(DLedgerCode.METADATA, base(""))
            assert await theirs.answer(Metadata) is not None

        assert await callers[0].answer() is None


@pytest.mark.parametrize("code", [DLedgerCode.METADATA, DLedgerCode.HEART_BEAT, 50001])
async def test_with_access_control_a_stranger_is_told_nothing(
    world: World, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, P3: neither members nor leader, whatever it calls."""
    monkeypatch.setattr(raft_links, "_ips_of", lambda _address: frozenset({"192.0.2.1"}))
    async with world.member(0, is_guarded=True), caller(world.port(0)) as theirs:
        theirs.send(code, base(""))
        assert await theirs.answer() is None


async def test_with_access_control_a_rocketmq_broker_is_known_when_its_name_is(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N1, P3: its name may not be known yet when this member starts."""
    looked_up: list[str] = []

    def ips_of(address: str) -> frozenset[str]:
        looked_up.append(address)
        return frozenset({"127.0.0.1"} if looked_up.count(address) > 1 else ())

    monkeypatch.setattr(raft_links, "_ips_of", ips_of)
    monkeypatch.setattr(raft_links, "_LOOK_UP_S", 0.1)
    async with world.member(0, is_guarded=True) as one:
        await until(lambda: bool(one._out["n2"].ips))
        async with caller(world.port(0)) as theirs:
            theirs.send(DLedgerCode.HEART_BEAT, base())
            await until(lambda: bool(world.heard[0]))


async def test_a_member_that_does_not_read_its_answers_is_closed(
    world: World, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: they would be kept in memory."""
    monkeypatch.setattr(arriving, "OUT_BYTES_MAX", 100_000)
    async with world.member(0):
        reader, writer = await asyncio.open_connection("127.0.0.1", world.port(0), limit=1024)
        call = b"".join(map(bytes, encode_request(DLedgerCode.HEART_BEAT, body=encode(base("n9")), opaque=7)))
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(60):
                while not reader.at_eof() and "does not read its answers" not in caplog.text:
                    writer.write(call * 1_000)
                    await writer.drain()
        assert "does not read its answers" in caplog.text
        writer.close()


async def test_a_rocketmq_broker_is_called_as_dledger_does(world: World) -> None:
    """P3: it gets heart beats and entries, and its answers come as replies."""
    calls: list[tuple[int, Base]] = []
    kinds: dict[int, type[Any]] = {DLedgerCode.METADATA: Metadata, DLedgerCode.VOTE: VoteCall, DLedgerCode.PUSH: Push}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        decoder = FrameDecoder(typed=False)
        while data := await reader.read(1 << 16):
            for request in decoder.feed(data):
                assert isinstance(request, Request)
                body = decode(request.body, kinds.get(request.code, Base))
                calls.append((request.code, body))
                answer: Base = Base()
                if request.code == DLedgerCode.METADATA:
                    answer = Metadata(group="g", peers={peer.id: peer.address for peer in world.peers})
                elif request.code == DLedgerCode.PUSH:
                    answer = PushAnswer(begin_index=0, end_index=1)
                writer.writelines(encode_reply(request, Reply(200, body=encode(answer))))
        writer.close()

    world.bounds[2].close()
    server = await asyncio.start_server(serve, "127.0.0.1", world.port(2))
    async with server, world.member(0) as links:
        await until(lambda: links.is_linked("n2"))
        assert not links.is_ours("n2")
        world.view.role = RaftRole.LEADER
        assert links.theirs is not None
        beat = Append(sender="n0", receiver="n2", term=3, prev_index=1, prev_term=1, last_index=1, commit=-1, sent_ms=5)
        assert links.theirs.send(beat)
        await until(lambda: len(world.heard[0]) == 2)

        assert [DLedgerCode.METADATA, DLedgerCode.HEART_BEAT, DLedgerCode.PUSH] == [code for code, _ in calls]
        heard, aligned = world.heard[0]
        assert isinstance(heard, AppendReply)
        assert isinstance(aligned, AppendReply)
        assert (False, True, 1) == (heard.is_accepted, aligned.is_accepted, aligned.stored)
        links.cut()
        await until(lambda: not links.is_linked("n2"))
        await until(lambda: links.is_linked("n2"))
