"""A client with TLS on a plain port, and a plain one on a port with TLS, are named as such at both ends, on every port
of a server (N2): main, VIP, name server, slaves. That of Raft members is in ``tests/raft/test_admission.py``."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from ternmq import rare_log
from ternmq.broker.broker import Broker
from ternmq.broker.ports import VIP_PORT_STEP
from ternmq.errors import NetworkError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.net.endpoint import dial_blocking
from ternmq.net.tls import LiveTls, ServerTls
from ternmq.replication.config import ReplicationConfig
from ternmq.replication.metadata import MasterCaller
from ternmq.replication.stream import PROBE, pack_report
from tests.auth.certificates import Certificates
from tests.broker import calls
from tests.interop.rocketmq import free_port
from tests.replication.world import following, serving, until


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates") / "dev")


async def plain_is_closed(port: int, data: bytes) -> bool:
    """Whether a port closes a plain connection without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(60):
            return not await reader.read()
    except ConnectionResetError:
        return True
    finally:
        writer.close()


async def refuses_tls(port: int, context: ssl.SSLContext) -> str:
    with pytest.raises(NetworkError) as refused:
        await asyncio.to_thread(dial_blocking, f"127.0.0.1:{port}", context, timeout_ms=60_000)
    return str(refused.value)


@pytest.mark.parametrize("has_tls", [True, False])
async def test_every_port_of_the_servers_names_the_wrong_kind(
    certificates: Certificates,
    has_tls: bool,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Lines of one kind are logged now and then only.
    monkeypatch.setattr(rare_log, "PAUSE_S", 0.0)
    tls = certificates.server() if has_tls else {}
    port = free_port(neighbours=(-VIP_PORT_STEP, 1))
    config = calls.settings(listen_port=port, **tls)
    replication = ReplicationConfig(ha_listen_port=port + 1)
    names = NamesrvConfig(listen_port=0, bind_address="127.0.0.1", **tls)
    frame = b'\0\0\0\x11\0\0\0\x0d{"code": 105}'
    async with (
        NameServer(names) as name_server,
        Broker(config, calls.small_store(tmp_path / "store"), replication=replication),
    ):
        ports = {
            "main": (port, frame),
            "VIP": (port - VIP_PORT_STEP, frame),
            "name server": (name_server.port, frame),
            "slaves": (port + 1, pack_report(PROBE)),
        }
        for name, (number, data) in ports.items():
            caplog.clear()
            if has_tls:
                assert await plain_is_closed(number, data), name
                await until(lambda: "this port needs TLS" in caplog.text)
            else:
                told = await refuses_tls(number, certificates.client().context())
                assert "check that this port speaks TLS" in told, name
                await until(lambda: "the peer speaks TLS, which this port does not" in caplog.text)


async def test_slaves_name_the_wrong_kind(
    certificates: Certificates, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """N2, O1: the log of the slave, for both."""
    live = LiveTls(ServerTls(certificates / "server.pem", certificates / "server.key"), plain_too=False)
    async with serving(tmp_path / "one", tls=live) as master, following(tmp_path / "two", master.address):
        await until(lambda: "this port needs TLS" in caplog.text and "whether it needs TLS" in caplog.text)
    async with (
        serving(tmp_path / "three") as master,
        following(tmp_path / "four", master.address, caller=MasterCaller(tls=certificates.client())),
    ):
        await until(
            lambda: (
                "the peer speaks TLS, which this port does not" in caplog.text
                and "check that this port speaks TLS" in caplog.text
            )
        )
