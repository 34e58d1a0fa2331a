"""Links between members, on real sockets (P3): they come back, strangers harm nothing, everything is bounded."""

from __future__ import annotations

import asyncio
import logging
import random
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from ternmq.net.endpoint import Bound, bind
from ternmq.raft import links as links_module
from ternmq.raft import outgoing
from ternmq.raft.config import Member
from ternmq.raft.greeting import Hello, TextReader, Welcome, pack
from ternmq.raft.links import NEW_MAX, Links
from ternmq.raft.wire import pack_frame
from tests.replication.world import until

FRAME_MAX = 1 << 20


class World:
    """Two members, each on its port."""

    def __init__(self, *bounds: Bound) -> None:
        self.bounds = bounds
        self.members = [Member(f"n{i}", f"127.0.0.1:{bound.getsockname()[1]}") for i, bound in enumerate(bounds)]
        self.heard: list[list[tuple[str, int, bytes]]] = [[] for _ in bounds]

    def hello(self, number: int, **changes: object) -> Hello:
        ids = tuple(member.id for member in self.members)
        ours = Hello(1, "group", "cluster", "broker-a", ids[number], "", ids, 4096, self.members[number].address)
        return msgspec.structs.replace(ours, **changes)

    @asynccontextmanager
    async def member(self, number: int, **changes: object) -> AsyncIterator[Links]:
        def deliver(sender: str, kind: int, body: bytes) -> None:
            self.heard[number].append((sender, kind, body))

        others = [member for i, member in enumerate(self.members) if i != number]
        is_guarded = bool(changes.pop("is_guarded", False))
        async with Links(
            self.hello(number, **changes), others, deliver, frame_bytes_max=FRAME_MAX, is_guarded=is_guarded
        ) as links:
            self.bounds[number].close()
            await links.serve(bind("127.0.0.1", int(self.members[number].address.rpartition(":")[2])))
            yield links


@pytest.fixture
async def world() -> AsyncIterator[World]:
    bounds = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    yield World(*bounds)
    for bound in bounds:
        bound.close()


async def linked(one: Links, two: Links) -> None:
    await until(lambda: one.is_linked("n1") and two.is_linked("n0"))


async def test_messages_flow_both_ways_in_order(world: World) -> None:
    async with world.member(0) as one, world.member(1) as two:
        await linked(one, two)
        for number in range(100):
            assert one.send("n1", pack_frame(number % 7, b"%d" % number, [b"x" * number, b"y"], number + 1))
            assert two.send("n0", pack_frame(3, b"back"))
        await until(lambda: len(world.heard[1]) == 100 and len(world.heard[0]) == 100)

    assert [("n0", i % 7, b"%d" % i + b"x" * i + b"y") for i in range(100)] == world.heard[1]
    assert [("n1", 3, b"back")] * 100 == world.heard[0]


async def test_a_message_without_a_link_is_dropped(world: World) -> None:
    async with world.member(0) as one:
        assert not one.send("n1", pack_frame(1, b""))


async def test_links_come_back_after_a_restart_and_after_a_cut(world: World) -> None:
    async with world.member(0) as one:
        for _ in range(2):
            async with world.member(1) as two:
                await linked(one, two)
                one.cut()
                await until(lambda: one.send("n1", pack_frame(1, b"again")) and world.heard[1])
            await until(lambda: not one.is_linked("n1"))
            world.heard[1].clear()


async def test_a_member_of_another_group_is_refused_and_both_say_why(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with world.member(0), world.member(1, group="other"):
        await until(lambda: "n1 at" in caplog.text and "it refuses this member: it has dLegerGroup=" in caplog.text)

    assert "closing a Raft connection from 127.0.0.1" in caplog.text


async def test_callers_that_say_to_be_members_by_a_change_keep_no_place(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """P3: there are few places, and the next one may be a member indeed."""
    monkeypatch.setattr(links_module, "LEAVING_S", 0.1)
    async with world.member(0) as one:
        host, port = world.members[0].address.split(":")
        for number in range(2, 30):
            reader, writer = await asyncio.open_connection(host, int(port))
            hello = world.hello(1, receiver="n0", members_index=5, raft_address="127.0.0.1:1")
            writer.write(pack(msgspec.structs.replace(hello, sender=f"n{number}")))
            assert await asyncio.wait_for(reader.read(1), 60)
            writer.close()
        await until(lambda: one._out.keys() == {"n1"})
        assert {} == one.known
        async with world.member(1) as two:
            await linked(one, two)


async def test_a_guarded_member_takes_only_named_machines(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.members[1] = Member("n1", world.members[1].address.replace("127.0.0.1", "127.0.0.9"))
    async with world.member(0, is_guarded=True):
        host, port = world.members[0].address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack(world.hello(1, receiver="n0")))
        found = TextReader(Welcome).feed(await reader.read())
        writer.close()

    assert found is not None
    assert isinstance(found[0], Welcome)
    assert "its address is not that of 'n1'" in found[0].reason


async def test_a_guarded_member_looks_names_up_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine whose name is not known yet when this one starts, as in a cluster of containers."""
    known: list[str] = []

    def look_up(_address: str) -> frozenset[str]:
        return frozenset(known)

    monkeypatch.setattr(links_module, "_ips_of", look_up)
    async with world.member(0, is_guarded=True) as one:
        host, port = world.members[0].address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack(world.hello(1, receiver="n0")))
        found = TextReader(Welcome).feed(await reader.read())
        writer.close()
        assert found is not None
        assert isinstance(found[0], Welcome)
        assert found[0].reason
        known.append("127.0.0.1")
        async with world.member(1) as two:
            await linked(one, two)


async def test_a_flood_of_silent_connections_is_bounded(world: World) -> None:
    """Also if they all come in one turn of the loop."""
    async with world.member(0):
        host, port = world.members[0].address.split(":")
        strangers = [socket.socket() for _ in range(3 * NEW_MAX)]
        try:
            # Blocking: they wait in the backlog of the port, and are accepted together.
            for stranger in strangers[:NEW_MAX]:
                stranger.connect((host, int(port)))
            for stranger in strangers[NEW_MAX:]:
                stranger.setblocking(False)
                stranger.connect_ex((host, int(port)))

            def left() -> int:
                return sum(not _is_ended(stranger) for stranger in strangers)

            await until(lambda: left() == NEW_MAX)
        finally:
            for stranger in strangers:
                stranger.close()


def _is_ended(connection: socket.socket) -> bool:
    """Whether the other side has closed it."""
    connection.setblocking(False)
    try:
        return not connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return False
    except OSError:
        return True


async def test_garbage_and_silent_connections_harm_nothing(world: World) -> None:
    """A scanner finds the port, a broken peer sends nonsense behind a good greeting."""
    chance = random.Random(5)
    async with world.member(0) as one, world.member(1) as two:
        await linked(one, two)
        host, port = world.members[1].address.split(":")
        writers = []
        for number in range(NEW_MAX + 20):
            _, writer = await asyncio.open_connection(host, int(port))
            writers.append(writer)
            if number % 3:
                writer.write(chance.randbytes(200) if number % 2 else b"TERNRAFT\xff\xff\xff\xff")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(pack(world.hello(0, receiver="n1")) + (FRAME_MAX + 1).to_bytes(4, "big") + b"\x01")
        assert await reader.read()  # a welcome, then the end
        writers.append(writer)
        await linked(one, two)
        await until(lambda: one.send("n1", pack_frame(1, b"still here")) and world.heard[1])
        for writer in writers:
            writer.close()

    assert ("n0", 1, b"still here") == world.heard[1][-1]


async def test_what_waits_for_a_member_that_does_not_read_is_bounded(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outgoing, "OUT_BYTES_MAX", 1 << 20)
    async with world.member(0) as one, world.member(1) as two:
        await linked(one, two)
        two.hold()
        body = bytes(256 * 1024)
        for _ in range(10_000):
            if not one.send("n1", pack_frame(1, b"", [body], len(body))):
                break
            await asyncio.sleep(0)
        else:
            raise AssertionError("nothing was ever dropped")
        two.go_on()
        await until(lambda: one.send("n1", pack_frame(2, b"end")) and world.heard[1] and world.heard[1][-1][1] == 2)
