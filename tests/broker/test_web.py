"""Messages of a broker over HTTP (R5)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.roles import Role, Roles
from ternmq.errors import ConfigError
from ternmq.net.http import HttpRequest
from ternmq.raft.config import RaftConfig
from ternmq.replication.slave import SlaveState
from ternmq.wire.auth import Credentials
from tests.auth.accounts import BILLING, BOSS, GUEST, acl_in
from tests.auth.accounts import dialled as signed
from tests.auth.certificates import Certificates
from tests.broker.calls import dialled, settings, small_store
from tests.broker.test_replicating import broker, has_all, names, slave, state_of, until
from tests.interop.rocketmq import free_port

__all__ = ["names"]

LONG_S: Final = 60.0


class Site:
    """Asks a broker over HTTP."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self.port = port
        self.tls = tls

    async def get(self, target: str, credentials: Credentials | None = None, **headers: str) -> tuple[int, str]:
        """Status and body."""
        if credentials is not None:
            pair = f"{credentials.access_key}:{credentials.secret_key}"
            headers["Authorization"] = f"Basic {b64encode(pair.encode()).decode()}"
        lines = [f"GET {target} HTTP/1.1", "Host: 127.0.0.1", "Connection: close"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        writer.write("\r\n".join([*lines, "", ""]).encode())
        answer = await asyncio.wait_for(reader.read(), LONG_S)
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body.decode()

    async def found(self, target: str, credentials: Credentials | None = None) -> dict[str, Any]:
        status, body = await self.get(target, credentials)
        assert 200 == status, body
        return dict(json.loads(body))

    async def bodies(self, target: str, credentials: Credentials | None = None) -> list[bytes]:
        return [b64decode(each["body_base64"]) for each in (await self.found(target, credentials))["messages"]]


@asynccontextmanager
async def site_of(
    tmp_path: Path, *, store: dict[str, Any] | None = None, **changes: Any
) -> AsyncIterator[tuple[Broker, Site]]:
    port = free_port()
    async with Broker(settings(http_port=port, **changes), small_store(tmp_path / "store", **(store or {}))) as running:
        yield running, Site(port)


async def test_messages_are_found_by_id_key_offset_and_time(tmp_path: Path) -> None:
    """R5"""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        sent = [
            await caller.sent(
                "orders", b"%d" % number, properties={"KEYS": f"k{number % 2} all", "UNIQ_KEY": f"U{number}"}
            )
            for number in range(5)
        ]
        (one,) = (await site.found(f"/messages/{sent[3].message_id}"))["messages"]
        assert ("orders", 0, 3, "U3", "k1 all") == tuple(
            one[name] for name in ("topic", "queue", "queue_offset", "id", "keys")
        )
        assert running.address == one["store_host"]
        assert [b"1", b"3"] == await site.bodies("/topics/orders/messages?key=k1")
        assert [b"4"] == await site.bodies("/topics/orders/messages?key=all&limit=1")
        assert [b"2"] == await site.bodies("/topics/orders/messages?id=U2")
        page = await site.found("/topics/orders/queues/0/messages?offset=1&limit=2")
        assert (3, 0, 5, 2) == (page["next_offset"], page["min_offset"], page["max_offset"], len(page["messages"]))
        assert [b"3", b"4"] == await site.bodies("/topics/orders/queues/0/messages?offset=3")
        assert [] == await site.bodies("/topics/orders/queues/0/messages?offset=5")
        assert 5 == len(await site.bodies(f"/topics/orders/queues/0/messages?time_ms={one['store_time_ms'] - 60_000}"))


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("/", 404),
        ("/topics", 404),
        ("/messages/nonsense", 400),
        ("/messages/" + "0" * 32, 404),
        ("/messages/" + "F" * 32, 400),
        ("/messages/7F00000100002A9F0000000000000001", 404),
        ("/topics/orders/messages", 400),
        ("/topics/orders/messages?key=a&id=b", 400),
        ("/topics/orders/messages?key=nothing", 404),
        ("/topics/none/messages?key=k", 404),
        ("/topics/orders/messages?key=k&limit=1000000", 400),
        ("/topics/orders/messages?key=k&begin_ms=-1", 400),
        ("/topics/orders/messages?key=k&colour=red", 400),
        ("/topics/orders/queues/0/messages", 400),
        ("/topics/orders/queues/x/messages?offset=0", 400),
        ("/topics/orders/queues/99999999999/messages?offset=0", 400),
        ("/topics/orders/queues/9/messages?offset=0", 404),
        ("/topics/orders/queues/0/messages?offset=9223372036854775807", 404),
        ("/topics/orders/queues/0/messages?offset=" + "9" * 5000, 400),
        ("/topics/orders/queues/0/messages?offset=%D9%A1", 400),
        ("/topics/..%2F..%2Fetc/queues/0/messages?offset=0", 404),
        ("/topics/RMQ_SYS_TRANS_HALF_TOPIC/queues/0/messages?offset=0", 404),
    ],
)
async def test_what_is_not_there_or_not_asked_well_is_told(tmp_path: Path, target: str, status: int) -> None:
    """R5: a sentence, and no trace of what went wrong inside."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        await caller.sent("orders", b"1", properties={"KEYS": "k"})
        found, body = await site.get(target)
        assert status == found, body
        assert "Traceback" not in body


async def test_an_answer_is_bounded_in_bytes(tmp_path: Path) -> None:
    """R5: a MiB of records, or one record; the caller goes on at next_offset."""
    async with site_of(tmp_path) as (running, site), dialled(running.address) as caller:
        for _ in range(5):
            await caller.sent("orders", bytes(400_000))
        page = await site.found("/topics/orders/queues/0/messages?offset=0")
        assert (2, 2) == (len(page["messages"]), page["next_offset"])


async def test_probes_tell_role_and_trouble(tmp_path: Path, names: str) -> None:
    """R5, O3: a master in its term; a slave that follows; and both serve messages."""
    first, second = free_port(), free_port()
    async with slave(tmp_path / "two", names, httpPort=second) as copy:
        site = Site(second)
        assert 200 == (await site.get("/healthz"))[0]
        status, body = await site.get("/readyz")
        assert (503, True) == (status, "does not follow its master" in body)
        async with broker(tmp_path / "one", names, httpPort=first) as master, dialled(master.address) as caller:
            assert (200, "ok: master\n") == await Site(first).get("/readyz")
            sent = await caller.sent("orders", b"1")
            await until(lambda: state_of(copy) is SlaveState.FOLLOWING)
            await has_all(copy, master)
            assert (200, "ok: slave\n") == await site.get("/readyz")
            assert [b"1"] == await site.bodies(f"/messages/{sent.message_id}")
        assert Role.SLAVE is copy.roles.role
        assert [b"1"] == await site.bodies("/topics/orders/queues/0/messages?offset=0")


async def test_with_access_control_probes_name_no_machines(tmp_path: Path) -> None:
    """R5, N1: why a slave does not follow is in its log."""
    port, nowhere = free_port(), free_port()
    acl_in(tmp_path / "conf")
    follows: dict[str, Any] = {
        "haMasterAddress": f"127.0.0.1:{nowhere}",
        "aclEnable": True,
        "aclPath": tmp_path / "conf",
    }
    async with slave(tmp_path / "two", "", httpPort=port, **follows) as copy:
        replicating = copy.replicating
        assert replicating is not None
        await until(lambda: replicating.slave is not None and replicating.slave.trouble)
        answer = await Site(port).get("/readyz")
    assert (503, "this slave does not follow its master; see its log\n") == answer


def _has_role(roles: Roles, role: Role) -> bool:
    return roles.role is role


async def test_a_member_of_a_raft_group_is_ready_while_the_group_has_a_leader(tmp_path: Path) -> None:
    """R5, P4: what is committed can be read from each member, also from one that does not follow."""
    port, members = free_port(), [f"n{number}-127.0.0.1:{free_port()}" for number in range(3)]
    for peers, status, text in (
        (members[:1], 200, "ok: master"),
        (members, 503, "takes no part in its Raft group: the group has no leader"),
    ):
        raft = RaftConfig(enable_d_leger_commit_log=True, d_leger_self_id="n0", d_leger_peers=tuple(peers))
        async with Broker(settings(http_port=port), small_store(tmp_path / "store"), raft=raft) as running:
            site, roles = Site(port), running.roles
            await until(partial(_has_role, roles, Role.MASTER if status == 200 else Role.SLAVE))
            if status == 200:
                async with dialled(running.address) as caller:
                    await caller.sent("orders", b"1")
            answer = await site.get("/readyz")
            assert (status, True) == (answer[0], text in answer[1])
            assert [b"1"] == await site.bodies("/topics/orders/queues/0/messages?offset=0")


async def test_access_control_is_that_of_the_port_for_clients(tmp_path: Path) -> None:
    """R5, N1: SUB on the topic, by HTTP Basic; probes need nothing."""
    acl_in(tmp_path / "conf")
    async with (
        site_of(tmp_path, acl_enable=True, acl_path=tmp_path / "conf") as (running, site),
        signed(running.address, BOSS) as caller,
    ):
        sent = await caller.sent("orders", b"1", properties={"KEYS": "k"})
        wrong = Credentials(BILLING.access_key, "not-the-secret")
        for target in (
            "/topics/orders/messages?key=k",
            "/topics/orders/queues/0/messages?offset=0",
            f"/messages/{sent.message_id}",
        ):
            assert [b"1"] == await site.bodies(target, BILLING)
            assert (401, 403, 403) == tuple([(await site.get(target, who))[0] for who in (None, GUEST, wrong)])
        assert 403 == (await site.get("/topics/secrets/messages?key=k", BILLING))[0]
        for text in ("Basic", "Basic ???", "Bearer abc", "Basic " + b64encode(b"no colon").decode()):
            assert 400 == (await site.get("/topics/orders/messages?key=k", Authorization=text))[0]
        assert 200 == (await site.get("/healthz"))[0]
        assert 200 == (await site.get("/readyz"))[0]


async def test_a_secret_that_came_over_the_network_in_plain_is_not_checked(tmp_path: Path) -> None:
    """R5, N2: only TLS, or a connection of this machine."""
    from ternmq.broker.web import _credentials, _Wrong

    text = "Basic " + b64encode(b"boss-key:secret").decode()
    for ip, is_tls in (("127.0.0.1", False), ("::1", False), ("10.0.0.1", True)):
        asked = HttpRequest(("messages",), {}, text, ip, f"{ip}:1", is_tls)
        assert Credentials("boss-key", "secret") == _credentials(asked)
    with pytest.raises(_Wrong, match="without TLS"):
        _credentials(HttpRequest(("messages",), {}, text, "10.0.0.1", "10.0.0.1:1", is_tls=False))


async def test_the_port_has_the_tls_of_the_broker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R5, N2"""
    certificates = Certificates(tmp_path)
    async with site_of(tmp_path, **certificates.server()) as (_, site):
        site.tls = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
        # Two answers on one connection, which is closed then: a first answer that is taken ends nothing.
        monkeypatch.setattr("ternmq.net.http.TAKE_S", 2 * LONG_S)
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port, ssl=site.tls)
        for _ in range(2):
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
            await asyncio.wait_for(reader.readuntil(b"\r\n\r\nok\n"), LONG_S)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\nConnection: close\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), LONG_S)).endswith(b"\r\n\r\nok\n")
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: here\r\n\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert b"" == await asyncio.wait_for(reader.read(), LONG_S)
        writer.close()


async def test_a_port_that_cannot_be_is_refused(tmp_path: Path) -> None:
    """R5"""
    with pytest.raises(ConfigError, match="httpPort"):
        settings(http_port=70_000)
