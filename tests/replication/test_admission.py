"""Who may fetch the log: signatures, certificates, TLS (N1, N2, O1)."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from ternmq.auth.accounts import AccessRules
from ternmq.auth.acl_files import AclFiles
from ternmq.auth.plain import PlainAcl
from ternmq.env import SystemClock
from ternmq.errors import NoPermission, RemoteProtocolError
from ternmq.net.gate import Gate, Rights
from ternmq.net.tls import ClientAuth, LiveTls, ServerTls
from ternmq.replication import admission
from ternmq.replication.admission import Admission, Challenge, Proof
from ternmq.replication.handshake import Refusal
from ternmq.replication.metadata import MasterCaller
from ternmq.replication.slave import SlaveState
from ternmq.replication.stream import PROBE, pack_report, pack_text
from ternmq.wire.auth import Credentials
from tests.auth.accounts import BOSS, GUEST, acl_in
from tests.auth.certificates import Certificates
from tests.replication.world import LONG_S, Serving, following, place, serving


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture
def rules(tmp_path: Path) -> AccessRules:
    return AclFiles(acl_in(tmp_path / "acl")).load()


@pytest.fixture
def guarded(rules: AccessRules) -> Admission:
    """A master with accounts."""
    return Admission(gate=Gate([PlainAcl(rules, SystemClock())]), is_guarded=True)


def server_tls(certificates: Certificates, *, plain_too: bool = False, needs_certificate: bool = False) -> LiveTls:
    auth = ClientAuth.REQUIRE if needs_certificate else ClientAuth.NONE
    files = ServerTls(certificates / "server.pem", certificates / "server.key", "", certificates / "ca.pem", auth)
    return LiveTls(files, plain_too=plain_too)


@asynccontextmanager
async def dialled(master: Serving) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    host, port = master.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield reader, writer
    finally:
        writer.close()


async def frame(reader: asyncio.StreamReader) -> bytes:
    head = await asyncio.wait_for(reader.readexactly(12), LONG_S)
    return await asyncio.wait_for(reader.readexactly(int.from_bytes(head[8:], "big")), LONG_S)


async def ended(reader: asyncio.StreamReader) -> bytes:
    """All that comes until the connection ends."""
    try:
        return await asyncio.wait_for(reader.read(), LONG_S)
    except ConnectionError:
        return b""


async def test_a_slave_that_signs_follows(tmp_path: Path, guarded: Admission) -> None:
    """N1, O1: with the account of an admin."""
    async with serving(tmp_path / "one", admission=guarded) as master:
        end = master.put(50)
        async with following(tmp_path / "two", master.address, caller=MasterCaller(BOSS)) as slave:
            await slave.reaches(end)


@pytest.mark.parametrize(
    ("credentials", "said"),
    [
        (None, "give this broker the keys of an admin"),
        (GUEST, "needs an account with admin"),
        (Credentials("boss-key", "another secret"), "signature is not valid"),
        (Credentials("unknown-key", "secret-of-the-boss"), "signature is not valid"),
    ],
)
async def test_a_slave_without_the_right_account_hears_why(
    tmp_path: Path, guarded: Admission, credentials: Credentials | None, said: str
) -> None:
    """N1, O1: and gets no byte of the log."""
    async with serving(tmp_path / "one", admission=guarded) as master:
        master.put(5)
        async with following(tmp_path / "two", master.address, caller=MasterCaller(credentials)) as slave:
            await slave.comes_to(SlaveState.REFUSED)
            assert Refusal.NOT_ADMITTED is slave.slave.refusal
            assert said in slave.slave.trouble
            assert 0 == slave.store.written


class Talkative:
    """A gate with a validator that fails, and says a lot."""

    def admit(self, _caller: object, _request: object, _rule: object) -> None:
        raise ValueError("x" * 100_000)


async def test_a_long_refusal_is_told_in_part(tmp_path: Path) -> None:
    """N1, O1: a text of the handshake is short, and the slave is to hear why it is refused."""
    gate = cast("Gate", Talkative())
    async with (
        serving(tmp_path / "one", admission=Admission((), gate, is_guarded=True)) as master,
        following(tmp_path / "two", master.address, caller=MasterCaller(BOSS)) as slave,
    ):
        await slave.comes_to(SlaveState.REFUSED)
        assert Refusal.NOT_ADMITTED is slave.slave.refusal
        assert "the proof could not be checked: xxx" in slave.slave.trouble


async def test_a_stranger_learns_nothing(tmp_path: Path, guarded: Admission, caplog: pytest.LogCaptureFixture) -> None:
    """N1: neither a RocketMQ slave nor a TernMQ slave that does not sign; no names, no offsets."""
    async with serving(tmp_path / "one", admission=guarded) as master:
        master.put(5)
        for first in (pack_report(0), pack_report(100)):
            async with dialled(master) as (reader, writer):
                writer.write(first)
                assert b"" == await ended(reader)
        async with dialled(master) as (reader, writer):
            writer.write(pack_report(PROBE))
            assert {"nonce"} == msgspec.json.decode(await frame(reader)).keys()
            # A hello instead of a proof.
            writer.write(pack_text(b'{"version":1}'))
            assert b"" == await ended(reader)
        async with dialled(master) as (reader, writer):
            writer.write(pack_report(PROBE))
            await frame(reader)
            writer.write(pack_text(b'{"fields":' + b"[" * 16_000))
            assert b"" == await ended(reader)
        assert "Traceback" not in caplog.text
        async with dialled(master) as (reader, writer):
            writer.write(pack_report(PROBE))
            await frame(reader)
            writer.write(pack_report(0))
            assert b"" == await ended(reader)


async def test_a_proof_is_good_for_one_connection(tmp_path: Path, guarded: Admission) -> None:
    """N1: one that was recorded is refused."""
    async with serving(tmp_path / "one", admission=guarded) as master:
        async with dialled(master) as (reader, writer):
            writer.write(pack_report(PROBE))
            challenge = admission.read_challenge(await frame(reader))
            proof = admission.prove(challenge, BOSS, place(1))
            writer.write(pack_text(proof))
            assert b"segmentBytes" in await frame(reader)
        async with dialled(master) as (reader, writer):
            writer.write(pack_report(PROBE))
            await frame(reader)
            writer.write(pack_text(proof))
            assert b"connect again" in await frame(reader)


def test_a_slave_signs_no_text_of_the_master_s_choice() -> None:
    """N1: a false master could make a request of it."""
    for nonce in ("deleteTopic=orders", "0" * 31, "0" * 33, "A" * 32, ""):
        with pytest.raises(RemoteProtocolError):
            admission.prove(Challenge(nonce=nonce), BOSS, place(1))


def test_a_proof_covers_who_the_slave_is(guarded: Admission) -> None:
    """N1: it cannot be used for another broker id."""

    class Stranger:
        def __init__(self) -> None:
            self.address, self.proved = "10.0.0.9:1", ""
            self.access: Rights | None = None
            self.certificate: dict[str, object] = {}

        @property
        def remote_ip(self) -> str:
            return "10.0.0.9"

    challenge = guarded.challenge()
    assert challenge is not None
    data = admission.prove(challenge, BOSS, place(1))
    guarded.check(Stranger(), challenge, data)
    changed = msgspec.json.decode(data, type=Proof)
    with pytest.raises(NoPermission):
        guarded.check(Stranger(), challenge, admission.encode(Proof(changed.fields, place(2))))


def test_named_addresses_need_no_proof_and_others_are_refused() -> None:
    """N1, O1: haAllowedAddresses, for slaves of RocketMQ; also where IPv4 arrives as IPv6."""
    named = Admission([ipaddress.ip_network("10.1.0.0/16")], is_guarded=True)
    assert (True, "") == (named.is_trusted("10.1.2.3", has_certificate=False), named.refusal("10.1.2.3"))
    assert (True, "") == (named.is_trusted("::ffff:10.1.2.3", has_certificate=False), named.refusal("::ffff:10.1.2.3"))
    assert "haAllowedAddresses" in named.refusal("10.2.0.1")
    assert "haAllowedAddresses" in named.refusal("no address")
    assert not Admission(is_guarded=True).is_trusted("10.1.2.3", has_certificate=False)
    assert Admission(is_guarded=True).is_trusted("10.1.2.3", has_certificate=True)
    assert Admission().is_trusted("10.1.2.3", has_certificate=False)


async def test_the_log_flows_through_tls(tmp_path: Path, certificates: Certificates, guarded: Admission) -> None:
    """N2, B4, O1: with accounts, over segment ends, also to a slave that was away; plain slaves are refused."""
    tls = server_tls(certificates)
    caller = MasterCaller(BOSS, certificates.client())
    async with serving(tmp_path / "one", admission=guarded, tls=tls) as master:
        end = master.put(200, body=b"x" * 500)
        async with following(tmp_path / "two", master.address, caller=caller) as slave:
            await slave.reaches(end)
        end = master.put(200, body=b"y" * 500)
        async with following(tmp_path / "two", master.address, caller=caller) as slave:
            await slave.reaches(end)
        async with following(tmp_path / "three", master.address, caller=MasterCaller(BOSS)) as slave:
            async with asyncio.timeout(LONG_S):
                while not slave.slave.trouble:
                    await asyncio.sleep(0.01)
            assert 0 == slave.store.written


async def test_a_permissive_port_serves_slaves_with_and_without_tls(tmp_path: Path, certificates: Certificates) -> None:
    """N2, B4: a RocketMQ slave speaks no TLS; nor does a slave with haTlsEnable=false."""
    async with serving(tmp_path / "one", tls=server_tls(certificates, plain_too=True)) as master:
        end = master.put(20)
        callers: list[Any] = [MasterCaller(None, certificates.client()), MasterCaller()]
        for number, caller in enumerate(callers, 1):
            async with following(tmp_path / f"slave-{number}", master.address, caller=caller) as slave:
                await slave.reaches(end)
        async with dialled(master) as (reader, writer):
            writer.write(pack_report(0))
            head = await asyncio.wait_for(reader.readexactly(12), LONG_S)
            assert bytes(8) == head[:8]


async def test_a_certificate_is_proof_enough(tmp_path: Path, certificates: Certificates) -> None:
    """N1, N2: where the broker asks clients for certificates, and has no accounts."""
    tls = server_tls(certificates, needs_certificate=True)
    async with serving(tmp_path / "one", admission=Admission(is_guarded=True), tls=tls) as master:
        end = master.put(20)
        caller = MasterCaller(None, certificates.client(shows=True))
        async with following(tmp_path / "two", master.address, caller=caller) as slave:
            await slave.reaches(end)
        async with following(
            tmp_path / "three", master.address, caller=MasterCaller(None, certificates.client())
        ) as slave:
            async with asyncio.timeout(LONG_S):
                while not slave.slave.trouble:
                    await asyncio.sleep(0.01)
            assert 0 == slave.store.written
