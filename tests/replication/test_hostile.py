"""A hostile program on the port for slaves of a master with access control (N1, O1).

Whatever it says: it reads no byte of the log, it changes nothing, it is gone after a bounded time, one line of the
audit log tells of it, and a slave with the right keys follows as if it had never been there.
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
from ternmq.env import SystemClock
from ternmq.errors import ConfigError
from ternmq.net import proof as proofs
from ternmq.net.gate import CallingPeer, Gate, Rule
from ternmq.net.tls import ServerTls
from ternmq.replication import admission
from ternmq.replication.admission import Admission, Proof
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.master import NEW_LINES_MAX
from ternmq.replication.metadata import MasterCaller
from ternmq.replication.stream import PROBE, TEXT_BYTES_MAX, pack_header, pack_report, pack_text
from ternmq.wire.auth import Credentials
from ternmq.wire.header import Fields, Request
from tests.auth.accounts import BOSS, GUEST, acl_in
from tests.auth.certificates import Certificates
from tests.net.crowd import crowding
from tests.net.hostile import HostileLine
from tests.replication.world import LONG_S, Serving, following, place, serving, until

#: In each record of the log.
MARK: Final = b"for the eyes of members only"


@pytest.fixture
def guarded(tmp_path: Path) -> Admission:
    clock = SystemClock()
    acl = PlainAcl(AclFiles(acl_in(tmp_path / "acl")).load(), clock)
    return Admission(gate=Gate([acl], audit=Audit(clock)), is_guarded=True)


class Hostile(HostileLine):
    """To the master."""

    async def challenged(self) -> admission.Challenge:
        """Ask for a challenge, and read it."""
        self.say(pack_report(PROBE))
        return admission.read_challenge(await self.text(12))

    async def prove(self, credentials: Credentials) -> None:
        self.say(pack_text(admission.prove(await self.challenged(), credentials, place(1))))


@asynccontextmanager
async def dialled(master: Serving, *, source: str = "127.0.0.1") -> AsyncIterator[Hostile]:
    host, port = master.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port), local_addr=(source, 0))
    try:
        yield Hostile(reader, writer)
    finally:
        writer.close()


Attack = Callable[[Hostile, Serving], Awaitable[None]]


def says(data: bytes) -> Attack:
    """Say this at once."""

    async def attack(hostile: Hostile, _master: Serving) -> None:
        hostile.say(data)

    return attack


def answers(data: bytes) -> Attack:
    """Take a challenge, and say this instead of a proof."""

    async def attack(hostile: Hostile, _master: Serving) -> None:
        await hostile.challenged()
        hostile.say(data)

    return attack


def proves(key: str, secret: str) -> Attack:
    async def attack(hostile: Hostile, _master: Serving) -> None:
        await hostile.prove(Credentials(key, secret))

    return attack


async def replay(hostile: Hostile, master: Serving) -> None:
    """What a slave has proved on another connection."""
    async with dialled(master) as slave:
        recorded = pack_text(admission.prove(await slave.challenged(), BOSS, place(1)))
        slave.say(recorded)
    await hostile.challenged()
    hostile.say(recorded)


async def of_a_raft_member(hostile: Hostile, _master: Serving) -> None:
    """The right account and the right number, signed for the port of Raft members."""
    fields = proofs.prove((await hostile.challenged()).nonce, BOSS, b'member of a Raft group: ["g","c","b","n1","n0"]')
    hostile.say(pack_text(admission.encode(Proof(fields, place(1)))))


async def of_another_slave(hostile: Hostile, _master: Serving) -> None:
    """Signed by slave 2, said by slave 1."""
    signed = admission.prove(await hostile.challenged(), BOSS, place(2))
    hostile.say(pack_text(admission.encode(Proof(msgspec.json.decode(signed, type=Proof).fields, place(1)))))


async def another_number(hostile: Hostile, _master: Serving) -> None:
    """Signed as asked, but the number that was asked for is exchanged afterwards."""
    challenge = await hostile.challenged()
    fields = proofs.prove("0" * 32, BOSS, b"follow the log: " + msgspec.json.encode(place(1)))
    hostile.say(pack_text(admission.encode(Proof(fields | {"nonce": challenge.nonce}, place(1)))))


ATTACKS: Final[dict[str, Attack]] = {
    "asks as a slave of RocketMQ": says(pack_report(0)),
    "asks for the end": says(pack_report(1 << 40)),
    "reports a negative log offset": says(pack_report(-7)),
    "speaks HTTP": says(b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n"),
    "pushes the log": says(pack_header(0, 100) + b"x" * 100),
    "greets without a challenge": says(pack_report(PROBE) + pack_text(b'{"version":1}')),
    "reports instead of a proof": answers(pack_report(0)),
    "pushes instead of a proof": answers(pack_header(0, 1 << 20) + b"x" * (1 << 20)),
    "a text of no bytes": answers(struct.pack(">qi", PROBE, 0)),
    "a text of a negative length": answers(struct.pack(">qi", PROBE, -1)),
    "a text of two gigabytes": answers(struct.pack(">qi", PROBE, (1 << 31) - 1) + b"x" * (1 << 20)),
    "a text one byte too long": answers(struct.pack(">qi", PROBE, TEXT_BYTES_MAX + 1)),
    "a proof without fields": answers(pack_text(b'{"fields":{},"place":{}}')),
    "a proof that is not a map": answers(pack_text(b'{"fields":' + b"[" * 16_000)),
    "a proof that is not UTF-8": answers(pack_text(b'{"fields":{"nonce":"\xff\xfe"}}')),
    "an unknown key": proves("unknown-key", "secret-of-the-boss"),
    "a wrong secret": proves(BOSS.access_key, "secret-of-the-bosss"),
    "no admin": proves(GUEST.access_key, GUEST.secret_key),
    "a replayed proof": replay,
    "a proof for the port of Raft members": of_a_raft_member,
    "a proof of another slave": of_another_slave,
    "a proof of another number": another_number,
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
async def test_a_hostile_program_reads_nothing_and_writes_nothing(
    tmp_path: Path, guarded: Admission, attack: Attack, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with serving(tmp_path / "one", admission=guarded) as master:
        end = master.put(20, body=MARK)
        async with dialled(master) as hostile:
            await attack(hostile, master)
            await hostile.ended()
        assert MARK not in hostile.heard
        assert b"segmentBytes" not in hostile.heard
        assert b"broker-a" not in hostile.heard
        assert len(hostile.heard) < 1_000
        assert end == master.store.written
        await until(lambda: not master.master._new and not master.master._lines)

        lines = [each.getMessage() for each in caplog.records if each.name == "ternmq.audit"]
        assert 1 == len(lines), lines
        assert lines[0].startswith("denied FOLLOW_LOG of ")
        assert " from 127.0.0.1:" in lines[0]
        assert "Traceback" not in caplog.text
        assert BOSS.secret_key not in caplog.text
        async with following(tmp_path / "two", master.address, caller=MasterCaller(BOSS)) as slave:
            await slave.reaches(end)


@pytest.mark.parametrize(
    "begins",
    [b"", b"\xff" * 7, pack_report(PROBE), pack_report(PROBE) + pack_header(PROBE, 9000)],
    ids=["nothing", "a part", "a probe", "byte by byte"],
)
async def test_a_handshake_that_never_ends_is_ended(
    tmp_path: Path, guarded: Admission, begins: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """N1: also one whose bytes come one by one, each in time."""
    short = ReplicationConfig(ha_housekeeping_interval=500, ha_send_heartbeat_interval=100)
    async with serving(tmp_path / "one", settings=short, admission=guarded) as master, dialled(master) as hostile:
        ending = asyncio.create_task(hostile.ended())
        hostile.say(begins)
        async with asyncio.timeout(LONG_S):
            while not ending.done():
                if len(begins) > 8:
                    hostile.say(b"x")
                await asyncio.sleep(0.02)
        await until(lambda: not master.master._new)
        assert "has not said what it wants within 0.5 s" in caplog.text


async def test_ten_thousand_connections_keep_no_slave_on_another_machine_out(
    tmp_path: Path, guarded: Admission
) -> None:
    """N1: and no more than ``NEW_LINES_MAX`` are kept, each with less than a text of the handshake."""
    async with serving(tmp_path / "one", admission=guarded) as master:
        end = master.put(20, body=MARK)
        half = pack_report(PROBE) + pack_header(PROBE, TEXT_BYTES_MAX) + b"x" * (TEXT_BYTES_MAX - 1)
        async with crowding(
            master.address, half, kept_max=4 * NEW_LINES_MAX, waiting=lambda: len(master.master._new)
        ) as crowd:
            await until(lambda: len(master.master._new) == NEW_LINES_MAX)
            assert max(line._decoder.kept_bytes for line in master.master._new) < TEXT_BYTES_MAX + 12
            async with following(tmp_path / "two", master.address, caller=MasterCaller(BOSS)) as slave:
                await slave.reaches(end)
                assert not crowd.is_done, "the slave came while the crowd was there"
        assert NEW_LINES_MAX == crowd.most


class _Failing:
    """A validator that fails with an error of TernMQ that is no denial."""

    def __call__(self, _caller: CallingPeer, _request: Request[object], _fields: Fields, _rule: Rule, /) -> None:
        raise ConfigError("the directory is down")


async def test_a_validator_that_fails_admits_no_slave(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """N1: whatever it raises is told and audited, and is no error of the loop."""
    failing = Admission(gate=Gate([_Failing()], audit=Audit(SystemClock())), is_guarded=True)
    async with serving(tmp_path / "one", admission=failing) as master:
        master.put(5, body=MARK)
        async with dialled(master) as hostile:
            await hostile.prove(BOSS)
            await hostile.ended()
    assert b"the directory is down" in hostile.heard
    assert "denied FOLLOW_LOG of a client without a key" in caplog.text
    assert "Traceback" not in caplog.text


async def test_a_false_master_with_another_certificate_gets_no_proof_and_writes_nothing(tmp_path: Path) -> None:
    """N2, O1: a slave with TLS asks who its master is before it says anything."""
    ours, theirs = Certificates(tmp_path / "ours"), Certificates(tmp_path / "theirs")
    heard = b""

    async def push(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal heard
        writer.write(pack_header(0, len(MARK)) + MARK)
        heard += await reader.read(65536)
        writer.close()

    context = ServerTls(theirs / "server.pem", theirs / "server.key").context()
    async with await asyncio.start_server(push, "127.0.0.1", 0, ssl=context) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        caller = MasterCaller(BOSS, ours.client())
        async with following(tmp_path / "two", address, caller=caller) as slave:
            await until(lambda: "certificate is trusted here" in slave.slave.trouble)
            assert 0 == slave.store.written
    assert b"" == heard
