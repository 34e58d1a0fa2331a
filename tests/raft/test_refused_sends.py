"""How a member that does not lead refuses messages (P4): RocketMQ's clients later, so that all their attempts are not
over before they ask for routes again."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from ternmq.broker import raft_sends
from ternmq.embedded import EmbeddedCluster
from ternmq.errors import NotMaster
from ternmq.net.gate import Action, Rule
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, Route
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request, encode_json
from tests.raft.test_follow_the_leader import led
from tests.replication.world import LONG_S

_FIELDS: Final = {
    "a": "shop",
    "b": "orders",
    "c": "TBW102",
    "d": "4",
    "e": "0",
    "f": "0",
    "g": "1700000000000",
    "h": "0",
    "j": "0",
    "m": "false",
}


class Sender:
    """Sends as programs in any language, and reads the answers."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    def send(self, *languages: str) -> None:
        """Messages of programs in these languages, which arrive together; the first one has opaque 1."""
        frames = b""
        for opaque, language in enumerate(languages, 1):
            header = encode_json(RequestCode.SEND_MESSAGE_V2, _FIELDS, opaque=opaque, flag=0, language=language)
            frames += struct.pack(">II", 4 + len(header) + 5, len(header)) + header + b"hello"
        self._writer.write(frames)

    async def answer(self) -> tuple[int, int]:
        """Opaque and code of the next answer."""
        async with asyncio.timeout(LONG_S):
            length, header_length = struct.unpack(">II", await self._reader.readexactly(8))
            rest = await self._reader.readexactly(length - 4)
        header = msgspec.json.decode(rest[: header_length & 0xFFFFFF])
        return header["opaque"], header["code"]


@asynccontextmanager
async def a_sender_to_a_follower(directory: Path) -> AsyncIterator[Sender]:
    async with EmbeddedCluster(raft=3, directory=directory) as cluster:
        leader = await led(cluster)
        follower = next(each for each in cluster.brokers if each is not leader)
        host, port = follower.address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        try:
            yield Sender(reader, writer)
        finally:
            writer.close()


async def test_java_is_refused_later_and_our_producers_at_once(tmp_path: Path) -> None:
    async with a_sender_to_a_follower(tmp_path) as sender:
        sender.send("JAVA", "PYTHON", "GO", "PYTHON")
        refused = ResponseCode.SERVICE_NOT_AVAILABLE
        assert [(2, refused), (4, refused)] == [await sender.answer() for _ in range(2)]
        assert [(1, refused), (3, refused)] == sorted([await sender.answer() for _ in range(2)])


async def test_no_more_than_some_refusals_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """M1: one more is refused at once."""
    monkeypatch.setattr(raft_sends, "HELD_MAX", 2)
    monkeypatch.setattr(raft_sends, "HELD_S", 3600.0)
    async with a_sender_to_a_follower(tmp_path) as sender:
        sender.send("JAVA", "JAVA", "JAVA")
        assert 3 == (await sender.answer())[0]


async def test_the_message_of_a_refusal_that_waits_is_not_kept() -> None:
    """Thousands may wait, with bodies of megabytes. The error has the frames that it was raised in, and these have the
    message."""

    def hand_over(_: Peer, request: Request[Any]) -> Reply:
        body = request.body
        raise NotMaster(f"n1 hands the leadership over to n2; {len(body)} bytes are not stored")

    send = Route(hand_over, "send", Rule(Action.PUB, topic="b"))
    routes = raft_sends.RaftSends().routes(
        dict.fromkeys((RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), send)
    )
    message = bytearray(b"hello")
    request = Request[Any](RequestCode.SEND_MESSAGE_V2, language="JAVA", body=memoryview(message))
    async with Tasks() as tasks:
        peer = Peer({}, Lanes([]), tasks)
        assert routes[RequestCode.SEND_MESSAGE_V2].handler(peer, request) is None
    message.clear()  # BufferError if there is a view of it
