"""A hostile program on the port for members of a Raft group with access control (N1, P3).

Whatever it says: no message reaches the core, it learns nothing of the group, it is gone after a bounded time, one line
of the audit log tells of it, and a member with the right keys is linked as if it had never been there.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import msgspec
import pytest

from ternmq.auth.acl_files import AclFiles
from ternmq.auth.audit import Audit
from ternmq.auth.plain import PlainAcl
from ternmq.client.config import ClientConfig
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.env import SystemClock
from ternmq.message import Message, SendStatus
from ternmq.net import proof
from ternmq.net.endpoint import bind
from ternmq.net.gate import Gate
from ternmq.raft import arriving
from ternmq.raft.config import Member
from ternmq.raft.greeting import MAGIC, TEXT_BYTES_MAX, Hello, LinkProof, Welcome, pack, statement
from ternmq.raft.links import NEW_MAX, Links
from ternmq.raft.messages import VoteRequest
from ternmq.raft.wire import pack_frame, pack_message
from ternmq.wire.auth import Credentials
from tests.auth.accounts import BOSS, GUEST, acl_in
from tests.net.crowd import crowding
from tests.net.hostile import HostileLine
from tests.raft.test_follow_the_leader import led
from tests.raft.test_links import FRAME_MAX, World, linked
from tests.replication.world import LONG_S, until


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    clock = SystemClock()
    return Gate([PlainAcl(AclFiles(acl_in(tmp_path / "acl")).load(), clock)], audit=Audit(clock))


@pytest.fixture
async def world() -> AsyncIterator[World]:
    bounds = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    yield World(*bounds)
    for bound in bounds:
        bound.close()


@asynccontextmanager
async def member(world: World, number: int, gate: Gate) -> AsyncIterator[Links]:
    def deliver(sender: str, kind: int, body: bytes) -> None:
        world.heard[number].append((sender, kind, body))

    others = [other for index, other in enumerate(world.members) if index != number]
    async with Links(
        world.hello(number),
        others,
        deliver,
        frame_bytes_max=FRAME_MAX,
        is_guarded=True,
        gate=gate,
        credentials=BOSS,
    ) as links:
        world.bounds[number].close()
        await links.serve(bind("127.0.0.1", int(world.members[number].address.rpartition(":")[2])))
        # Before, no member has an address that is known.
        await until(lambda: all(out.ips for out in links._out.values()))
        yield links


class Hostile(HostileLine):
    """To n0."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, world: World) -> None:
        super().__init__(reader, writer)
        self.world = world

    async def challenged(self, hello: Hello) -> str:
        """Greet, and return what is to be signed."""
        self.say(pack(hello))
        return msgspec.json.decode(await self.text(4), type=Welcome).nonce


@asynccontextmanager
async def dialled(world: World, *, source: str = "127.0.0.1") -> AsyncIterator[Hostile]:
    host, port = world.members[0].address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        yield Hostile(reader, writer, world)
    finally:
        writer.close()


Attack = Callable[[Hostile], Awaitable[None]]
#: A vote for another member in a term that would end any leader's.
STRANGE_TERM: Final = 1 << 40
VOTE: Final = b"".join(
    pack_message(
        VoteRequest(sender="n1", receiver="n0", term=STRANGE_TERM, last_index=1 << 40, last_term=1 << 40, commit=0)
    )
)


def says(data: bytes) -> Attack:
    """Say this at once."""

    async def attack(hostile: Hostile) -> None:
        hostile.say(data)

    return attack


def answers(data: bytes) -> Attack:
    """Greet as n1, and say this instead of a proof."""

    async def attack(hostile: Hostile) -> None:
        await hostile.challenged(hostile.world.hello(1, receiver="n0"))
        hostile.say(data)

    return attack


def proves(key: str, secret: str) -> Attack:
    async def attack(hostile: Hostile) -> None:
        hello = hostile.world.hello(1, receiver="n0")
        nonce = await hostile.challenged(hello)
        hostile.say(pack(LinkProof(proof.prove(nonce, Credentials(key, secret), statement(hello)))) + VOTE)

    return attack


def signs(statement_of: Callable[[Hello], bytes]) -> Attack:
    """The right account and the right number, for something else."""

    async def attack(hostile: Hostile) -> None:
        hello = hostile.world.hello(1, receiver="n0")
        nonce = await hostile.challenged(hello)
        hostile.say(pack(LinkProof(proof.prove(nonce, BOSS, statement_of(hello)))) + VOTE)

    return attack


async def replay(hostile: Hostile) -> None:
    """What n1 has proved on another connection."""
    hello = hostile.world.hello(1, receiver="n0")
    async with dialled(hostile.world) as honest:
        recorded = pack(LinkProof(proof.prove(await honest.challenged(hello), BOSS, statement(hello))))
        honest.say(recorded)
    await hostile.challenged(hello)
    hostile.say(recorded + VOTE)


async def no_member(hostile: Hostile) -> None:
    """Says to be one by a change that is not known here yet."""
    hello = hostile.world.hello(1, receiver="n0", members_index=1 << 40, raft_address="127.0.0.1:1")
    hostile.say(pack(msgspec.structs.replace(hello, sender="n7")) + VOTE)


def _length(size: int) -> bytes:
    return struct.pack(">I", size)


ATTACKS: Final[dict[str, Attack]] = {
    "a vote at once": says(VOTE),
    "an append at once": says(b"".join(pack_frame(3, b"x" * 100))),
    "speaks HTTP": says(b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"),
    "speaks DLedger": says(b"\0\0\0\x10\0\0\0\x0c" + b'{"code":51001}'),
    "is not a member": no_member,
    "a greeting of no bytes": says(MAGIC + _length(0)),
    "a greeting of four gigabytes": says(MAGIC + _length((1 << 32) - 1) + b"x" * (1 << 20)),
    "a greeting one byte too long": says(MAGIC + _length(TEXT_BYTES_MAX + 1)),
    "a greeting that is not a map": says(MAGIC + _length(16_000) + b"[" * 16_000),
    "a greeting that is not UTF-8": says(MAGIC + _length(14) + b'{"group":"\xff"}}'),
    "a vote instead of a proof": answers(VOTE),
    "a second greeting instead of a proof": answers(pack(Welcome()) + VOTE),
    "a proof of four gigabytes": answers(_length((1 << 32) - 1) + b"x" * (1 << 20)),
    "a proof without fields": answers(pack(LinkProof({})) + VOTE),
    "an unknown key": proves("unknown-key", "secret-of-the-boss"),
    "a wrong secret": proves(BOSS.access_key, "secret-of-the-bosss"),
    "no admin": proves(GUEST.access_key, GUEST.secret_key),
    "a replayed proof": replay,
    "a proof of a slave": signs(lambda _: b'follow the log: {"cluster":"c","broker":"b","brokerId":1,"address":""}'),
    "a proof of another member": signs(lambda hello: statement(msgspec.structs.replace(hello, sender="n2"))),
    "a proof for another member": signs(lambda hello: statement(msgspec.structs.replace(hello, receiver="n2"))),
    "a proof for another group": signs(lambda hello: statement(msgspec.structs.replace(hello, group="other"))),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_no_message_of_a_hostile_program_reaches_the_core(
    world: World, gate: Gate, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with member(world, 0, gate) as one:
        async with dialled(world) as hostile:
            await attack(hostile)
            await hostile.ended()
        assert not world.heard[0]
        for name in (b"group", b"cluster", b"broker-a", world.members[1].address.encode()):
            assert name not in hostile.heard
        assert len(hostile.heard) < 1_000
        await until(lambda: not len(one._new) and not one._in)

        lines = [each.getMessage() for each in caplog.records if each.name == "ternmq.audit"]
        assert 1 == len([line for line in lines if line.startswith("denied FOLLOW_LOG of ")]), lines
        assert "Traceback" not in caplog.text
        assert BOSS.secret_key not in caplog.text
        async with member(world, 1, gate) as two:
            await linked(one, two)


async def test_a_member_on_another_machine_cannot_be_played(world: World, gate: Gate) -> None:
    """N1: with the keys of an admin, but from the address of none: the id of a member belongs to its machine."""
    async with member(world, 0, gate), dialled(world, source="127.0.0.2") as hostile:
        hostile.say(pack(world.hello(1, receiver="n0")) + VOTE)
        await hostile.ended()
    assert not world.heard[0]
    assert b"nonce" not in hostile.heard


@pytest.mark.parametrize("begins", [b"", MAGIC[:5], MAGIC + _length(9000)], ids=["nothing", "a part", "byte by byte"])
async def test_a_greeting_that_never_ends_is_ended(
    world: World, gate: Gate, begins: bytes, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """N1: also one whose bytes come one by one, each in time."""
    monkeypatch.setattr(arriving, "GREETING_S", 0.5)
    async with member(world, 0, gate), dialled(world) as hostile:
        ending = asyncio.create_task(hostile.ended())
        hostile.say(begins)
        async with asyncio.timeout(LONG_S):
            while not ending.done():
                if len(begins) > len(MAGIC):
                    hostile.say(b"x")
                await asyncio.sleep(0.02)
        assert "has not said who it is within" in caplog.text


async def test_ten_thousand_connections_keep_no_member_out(world: World, gate: Gate) -> None:
    """N1: no more than ``NEW_MAX`` are kept, each with less than one text."""
    half = MAGIC + _length(TEXT_BYTES_MAX) + b"x" * (TEXT_BYTES_MAX - 1)
    async with member(world, 0, gate) as one:
        place = world.members[0].address
        async with crowding(place, half, kept_max=4 * NEW_MAX, waiting=lambda: len(one._new)) as crowd:
            await until(lambda: len(one._new) == NEW_MAX)
            async with member(world, 1, gate) as two:
                await linked(one, two)
                assert not crowd.is_done, "the member came while the crowd was there"
        assert NEW_MAX == crowd.most


async def test_a_group_of_brokers_works_on_and_its_term_is_not_that_of_a_stranger(tmp_path: Path) -> None:
    """N1, P4: each attack against the ports of all three brokers."""
    conf = acl_in(tmp_path / "conf")
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    (conf / "tools.yml").chmod(0o600)
    async with EmbeddedCluster(raft=3, settings={"aclEnable": True, "aclPath": conf}) as cluster:
        await led(cluster)
        nodes = [broker.group.node for broker in cluster.brokers if broker.group is not None]
        assert 3 == len(nodes)
        for node in nodes:
            target = BrokerWorld(node.links)
            for name, attack in ATTACKS.items():
                if attack is replay:
                    continue  # its first half is a right proof, which takes the place of the member
                async with dialled(target) as hostile:
                    await attack(hostile)
                    await hostile.ended()
                assert b"DefaultCluster" not in hostile.heard, name
        assert max(node.core.term for node in nodes) < STRANGE_TERM
        config = ClientConfig(cluster.name_servers, access_key=BOSS.access_key, secret_key=BOSS.secret_key)
        async with Producer("shop", client=config) as producer:
            assert SendStatus.OK is (await producer.send(Message("orders", b"hello"))).status


class BrokerWorld(World):
    """A member of a real group as n0 of the attacks, and another one of it as n1."""

    def __init__(self, links: Links) -> None:
        super().__init__()
        self._said = links.hello
        others = [out.member for out in links._out.values()]
        self.members = [Member(links.hello.sender, links.hello.raft_address), *others]

    def hello(self, number: int, **changes: object) -> Hello:
        said = msgspec.structs.replace(self._said, sender=self.members[number].id, **changes)
        return msgspec.structs.replace(said, receiver=self._said.sender)
