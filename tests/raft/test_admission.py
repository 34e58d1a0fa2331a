"""Who may speak to a member of a Raft group where callers are checked: other members with the keys of an admin (N1)."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ternmq.auth.acl_files import AclFiles
from ternmq.auth.plain import PlainAcl
from ternmq.client.config import ClientConfig
from ternmq.client.send.producer import Producer
from ternmq.embedded import EmbeddedCluster
from ternmq.env import SystemClock
from ternmq.message import Message, SendStatus
from ternmq.net import proof
from ternmq.net.endpoint import bind
from ternmq.net.gate import CallingPeer, Gate, Rule
from ternmq.net.tls import LiveTls, ServerTls
from ternmq.raft.greeting import Hello, LinkProof, TextReader, Welcome, pack, statement
from ternmq.raft.links import Links
from ternmq.raft.wire import pack_frame
from ternmq.wire.auth import Credentials
from ternmq.wire.header import Fields, Request
from tests.auth.accounts import BOSS, GUEST, acl_in
from tests.auth.certificates import Certificates
from tests.raft.test_follow_the_leader import led
from tests.raft.test_links import FRAME_MAX, World, linked
from tests.replication.world import until


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    return Gate([PlainAcl(AclFiles(acl_in(tmp_path / "acl")).load(), SystemClock())])


@pytest.fixture
async def world() -> AsyncIterator[World]:
    bounds = bind("127.0.0.1", 0), bind("127.0.0.1", 0)
    yield World(*bounds)
    for bound in bounds:
        bound.close()


@asynccontextmanager
async def member(
    world: World,
    number: int,
    *,
    gate: Gate | None = None,
    credentials: Credentials | None = None,
    certificates: Certificates | None = None,
    dials_tls: bool | None = None,
) -> AsyncIterator[Links]:
    """A member; with ``certificates`` its port has TLS, and it dials with TLS, or as ``dials_tls`` says."""

    def deliver(sender: str, kind: int, body: bytes) -> None:
        world.heard[number].append((sender, kind, body))

    server_tls = client_tls = None
    if certificates is not None:
        server_tls = LiveTls(ServerTls(certificates / "server.pem", certificates / "server.key"), plain_too=False)
        client_tls = certificates.client()
    async with Links(
        world.hello(number),
        [other for index, other in enumerate(world.members) if index != number],
        deliver,
        frame_bytes_max=FRAME_MAX,
        is_guarded=gate is not None,
        gate=gate,
        credentials=credentials,
        server_tls=server_tls,
        client_tls=client_tls if dials_tls is not False else None,
    ) as links:
        world.bounds[number].close()
        await links.serve(bind("127.0.0.1", int(world.members[number].address.rpartition(":")[2])))
        yield links


class Stranger:
    """A connection to the port of n0, byte by byte."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def told(self) -> Welcome:
        async with asyncio.timeout(60):
            size = int.from_bytes(await self.reader.readexactly(4), "big")
            return msgspec.json.decode(await self.reader.readexactly(size), type=Welcome)

    async def ended(self) -> bool:
        async with asyncio.timeout(60):
            return not await self.reader.read()


@asynccontextmanager
async def dialled(world: World) -> AsyncIterator[Stranger]:
    host, port = world.members[0].address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Stranger(reader, writer)
    finally:
        writer.close()


@asynccontextmanager
async def dialled_when_known(world: World, one: Links) -> AsyncIterator[Stranger]:
    """The same, once n0 has found out which address n1 has."""
    await until(lambda: bool(one._out["n1"].ips))
    async with dialled(world) as stranger:
        yield stranger


async def test_members_that_sign_as_an_admin_are_linked(world: World, gate: Gate) -> None:
    async with (
        member(world, 0, gate=gate, credentials=BOSS) as one,
        member(world, 1, gate=gate, credentials=BOSS) as two,
    ):
        await linked(one, two)
        assert one.send("n1", pack_frame(1, b"hello"))
        await until(lambda: bool(world.heard[1]))

    assert [("n0", 1, b"hello")] == world.heard[1]


@pytest.mark.parametrize(
    ("credentials", "sentence"),
    [
        (None, "it takes messages of members with an account only; give this broker the keys of an admin"),
        (GUEST, "it refuses this member: this request needs an account with admin: true"),
        (Credentials(BOSS.access_key, "not-the-secret"), "the access key or the signature is not valid"),
        (Credentials("nobody-key", "not-the-secret"), "the access key or the signature is not valid"),
    ],
)
async def test_a_member_without_the_keys_of_an_admin_is_refused_and_both_say_why(
    world: World, gate: Gate, credentials: Credentials | None, sentence: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with member(world, 0, gate=gate, credentials=BOSS), member(world, 1, credentials=credentials) as two:
        await until(lambda: sentence in caplog.text)
        assert not two.is_linked("n0")

    assert not world.heard[0]
    if credentials is not None:
        assert "closing a Raft connection from 127.0.0.1" in caplog.text
        assert credentials.secret_key not in caplog.text


async def test_a_stranger_learns_nothing_and_sends_nothing(world: World, gate: Gate) -> None:
    """N1: also a stranger on the address of a member, with a greeting of another group, or with messages at once."""
    ours = world.hello(1, receiver="n0")
    for hello in (
        ours,
        msgspec.structs.replace(ours, group="other", cluster="other", broker="other"),
        msgspec.structs.replace(ours, members=(), segment_bytes=1),
        msgspec.structs.replace(ours, version=99),
    ):
        async with member(world, 0, gate=gate, credentials=BOSS) as one, dialled_when_known(world, one) as stranger:
            stranger.writer.write(pack(hello))
            told = await stranger.told()
            assert "" == told.reason
            assert 32 == len(told.nonce)
            stranger.writer.write(b"".join(pack_frame(1, b"a message")))
            assert await stranger.ended()
    async with member(world, 0, gate=gate, credentials=BOSS), dialled(world) as stranger:
        stranger.writer.write(pack(msgspec.structs.replace(ours, sender="n7")))
        reason = (await stranger.told()).reason
        assert "its address is not that of 'n7'" in reason
        for name in ("group", "cluster", "broker-a", "n1"):
            assert name not in reason.replace("dLegerPeers", "")
    assert not world.heard[0]


async def test_a_member_by_a_change_that_is_not_known_here_is_linked_if_it_signs(world: World, gate: Gate) -> None:
    """P1, N1: while this member was away, the new one joined, and leads. Its entries tell that; without them this
    member would not follow until another one leads."""
    hello = msgspec.structs.replace(
        world.hello(1, receiver="n0"), sender="n7", members_index=5, raft_address=world.members[1].address
    )
    for credentials, sentence in ((BOSS, ""), (GUEST, "admin: true"), (Credentials("no", "no"), "is not valid")):
        async with member(world, 0, gate=gate, credentials=BOSS) as one, dialled(world) as stranger:
            stranger.writer.write(pack(hello))
            proved = proof.prove((await stranger.told()).nonce, credentials, statement(hello))
            stranger.writer.write(pack(LinkProof(proved)) + b"".join(pack_frame(1, b"entries")))
            reason = (await stranger.told()).reason
            assert sentence in reason
            assert bool(sentence) == bool(reason)
            assert ("n7" in one._out) is not bool(sentence)
            if not sentence:
                await until(lambda: bool(world.heard[0]))
    # It can be reached nowhere.
    nowhere = msgspec.structs.replace(hello, raft_address="nowhere")
    async with member(world, 0, gate=gate, credentials=BOSS) as one, dialled(world) as stranger:
        stranger.writer.write(pack(nowhere))
        proved = proof.prove((await stranger.told()).nonce, BOSS, statement(nowhere))
        stranger.writer.write(pack(LinkProof(proved)))
        assert "n7 does not say where other members reach it" in (await stranger.told()).reason
        assert "n7" not in one._out
    # It names no later change.
    hello = msgspec.structs.replace(hello, members_index=0)
    async with member(world, 0, gate=gate, credentials=BOSS) as one, dialled(world) as stranger:
        one.follow([world.members[1]], 3)
        stranger.writer.write(pack(hello))
        proved = proof.prove((await stranger.told()).nonce, BOSS, statement(hello))
        stranger.writer.write(pack(LinkProof(proved)))
        assert "'n7' is not a member of the group" in (await stranger.told()).reason
    assert [("n7", 1, b"entries")] == world.heard[0]


async def test_a_proof_is_good_once_and_for_one_statement(world: World, gate: Gate) -> None:
    """N1: not replayed, not for another member, and not one that was made to fetch the log."""
    ours = world.hello(1, receiver="n0")
    async with member(world, 0, gate=gate, credentials=BOSS) as one:
        async with dialled_when_known(world, one) as first:
            first.writer.write(pack(ours))
            nonce = (await first.told()).nonce
            good = pack(LinkProof(proof.prove(nonce, BOSS, statement(ours))))
            first.writer.write(good)
            assert Welcome() == await first.told()
        for statements in (statement(msgspec.structs.replace(ours, sender="n2")), b"follow the log: {}", b""):
            async with dialled(world) as other:
                other.writer.write(pack(ours))
                nonce = (await other.told()).nonce
                other.writer.write(pack(LinkProof(proof.prove(nonce, BOSS, statements))))
                assert "is not valid" in (await other.told()).reason
        async with dialled(world) as again:
            again.writer.write(pack(ours))
            await again.told()
            again.writer.write(good)
            assert "has signed something else" in (await again.told()).reason
            assert await again.ended()
        assert not one.is_linked("n1")


class _Failing:
    def __call__(self, _caller: CallingPeer, _request: Request[object], _fields: Fields, _rule: Rule, /) -> None:
        raise ValueError("the directory is down")


async def test_a_validator_that_fails_admits_no_member(world: World, caplog: pytest.LogCaptureFixture) -> None:
    failing = Gate([_Failing()])
    async with member(world, 0, gate=failing, credentials=BOSS), member(world, 1, credentials=BOSS):
        await until(lambda: "the proof could not be checked" in caplog.text)


@pytest.mark.parametrize("nonce", ["x", "ORDERS" * 5 + "AB", "0" * 33])
async def test_a_member_signs_no_text_of_the_other_sides_choice(
    world: World, nonce: str, caplog: pytest.LogCaptureFixture
) -> None:
    """N1: and not a second time on one connection."""
    for texts, sentence in (
        ([Welcome(nonce=nonce)], "sent a challenge that is not valid"),
        ([Welcome(nonce="0" * 32)] * 2, "it asks for a second proof"),
    ):
        heard: list[object] = []

        async def answer(
            reader: asyncio.StreamReader,
            writer: asyncio.StreamWriter,
            texts: list[Welcome] = texts,
            heard: list[object] = heard,
        ) -> None:
            for text in texts:
                writer.write(pack(text))
            data = await reader.read(65536)
            found = TextReader(Hello).feed(data)
            assert found is not None
            heard.append(found[1])
            writer.close()

        world.bounds[0].close()
        host, port = world.members[0].address.split(":")
        server = await asyncio.start_server(answer, host, int(port))
        async with server, member(world, 1, credentials=BOSS) as two:
            await until(lambda sentence=sentence: sentence in caplog.text)  # type: ignore[misc]  # bound early
            assert not two.is_linked("n0")


async def test_what_others_say_breaks_no_line_of_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """N1: neither the greeting of a caller nor the answer of a member."""
    forged = "x\n2026-01-01 root from 10.0.0.1: DELETE_TOPIC\x1b[2J"
    hello = msgspec.structs.replace(world.hello(1, receiver="n0"), members=(forged,))
    async with member(world, 0), dialled(world) as stranger:
        stranger.writer.write(pack(hello))
        assert (await stranger.told()).reason
        await until(lambda: "closing a Raft connection" in caplog.text)

    async def refuse(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(pack(Welcome(reason=forged)))
        writer.close()

    host, port = world.members[0].address.split(":")
    async with await asyncio.start_server(refuse, host, int(port)), member(world, 1):
        await until(lambda: "it refuses this member: x?2026" in caplog.text)
    for record in caplog.records:
        assert record.getMessage().isprintable()


async def test_a_group_with_access_control_works(tmp_path: Path) -> None:
    """N1, P4: members find each other, elect, copy tables and take messages of clients that may send."""
    conf = acl_in(tmp_path / "conf")
    (conf / "tools.yml").write_text(f"accessKey: {BOSS.access_key}\nsecretKey: {BOSS.secret_key}\n")
    (conf / "tools.yml").chmod(0o600)
    async with EmbeddedCluster(raft=3, settings={"aclEnable": True, "aclPath": conf}) as cluster:
        await led(cluster)
        config = ClientConfig(cluster.name_servers, access_key=BOSS.access_key, secret_key=BOSS.secret_key)
        async with Producer("shop", client=config) as producer:
            assert SendStatus.OK is (await producer.send(Message("orders", b"hello"))).status


async def test_a_plain_member_of_a_group_with_tls_is_named_at_both_ends(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N2, P3."""
    certificates = Certificates(tmp_path / "dev")
    async with member(world, 0, certificates=certificates), member(world, 1):
        await until(
            lambda: (
                "this port needs TLS" in caplog.text
                and "no messages to n0" in caplog.text
                and "whether it needs TLS" in caplog.text
            )
        )


async def test_the_port_of_a_member_shows_a_new_certificate_without_a_restart(world: World, tmp_path: Path) -> None:
    """N2, P3: and members go on, and find each other again with it."""
    used, new = Certificates(tmp_path / "used"), Certificates(tmp_path / "new")
    host, port = world.members[0].address.split(":")
    async with member(world, 0, certificates=used) as one, member(world, 1, certificates=used) as two:
        await linked(one, two)
        before = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        for name in ("ca.pem", "server.pem", "server.key"):
            (used / name).write_bytes((new / name).read_bytes())
        for links in (one, two):
            assert links._server_tls is not None
            assert links._server_tls.reload()
        assert before != await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
        assert one.is_linked("n1")
        one.cut()
        two.cut()
        await linked(one, two)


async def test_a_member_with_tls_in_a_plain_group_is_named_at_both_ends(
    world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ternmq.raft.links._ANXIOUS_S", 0.0)
    certificates = Certificates(tmp_path / "dev")
    async with member(world, 0), member(world, 1, certificates=certificates):
        await until(
            lambda: (
                "the peer speaks TLS, which this port does not" in caplog.text
                and "check that this port speaks TLS" in caplog.text
            )
        )
