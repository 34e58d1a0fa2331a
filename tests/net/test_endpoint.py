"""Connections with and without TLS on real sockets: accepted, dialled, refused (issue 14: «ready for TLS»)."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, Final

import pytest

from ternmq.errors import NetworkError
from ternmq.net import endpoint
from ternmq.net.dial import connect
from ternmq.net.endpoint import bind, dial_blocking
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Peer, Route
from ternmq.net.server import Server
from ternmq.tasks import Tasks
from ternmq.wire.frame import encode_request, response_at
from ternmq.wire.header import Reply, Request

ECHO: Final = 9001
LANES: Final = [LaneConfig("work")]
#: Far beyond what anything here takes, also on a busy machine.
LONG_S: Final = 60.0


def echo(_peer: Peer, request: Request[Any]) -> Reply:
    return Reply(body=bytes(request.body))


ROUTES: Final = {ECHO: Route(echo, "work", ANY_CALLER)}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A self-signed certificate of 127.0.0.1 with its key, in one file."""
    path = tmp_path_factory.mktemp("tls") / "server.pem"
    key = path.with_suffix(".key")
    subject = ("-subj", "/CN=ternmq", "-addext", "subjectAltName=IP:127.0.0.1", "-days", "2")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", str(key))
    subprocess.run(["openssl", "req", "-x509", *new_key, *subject, "-out", str(path)], check=True, capture_output=True)
    path.write_text(path.read_text() + key.read_text())
    return path


@pytest.fixture
def for_server(certificate: Path) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    return context


@pytest.fixture
def for_client(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


@asynccontextmanager
async def serving(tls: ssl.SSLContext | None, *, plain_too: bool = False) -> AsyncIterator[tuple[Server, str]]:
    async with Server.running(ROUTES, LANES) as server:
        port = await server.serve(bind("127.0.0.1", 0), tls=tls, plain_too=plain_too)
        yield server, f"127.0.0.1:{port}"


@asynccontextmanager
async def dialled(address: str, tls: ssl.SSLContext | None) -> AsyncIterator[Peer]:
    async with Tasks() as tasks:
        lanes = Lanes(LANES)
        peer = await connect(address, routes=ROUTES, lanes=lanes, tasks=tasks, tls=tls, timeout_ms=int(LONG_S * 1000))
        yield peer
        peer.close()
        await peer.closed.wait()


async def asked(address: str, tls: ssl.SSLContext | None, body: bytes = b"hello") -> bytes:
    async with dialled(address, tls) as peer:
        return bytes((await peer.call(ECHO, body=body, timeout_ms=int(LONG_S * 1000))).body)


def asked_blocking(address: str, tls: ssl.SSLContext | None) -> bytes:
    with closing(dial_blocking(address, tls, timeout_ms=int(LONG_S * 1000))) as connection:
        connection.sendall(b"".join(encode_request(ECHO, body=b"hello", opaque=1)))
        data, end = bytearray(4096), 0
        while True:
            response, _ = response_at(data, 0, end)
            if response is not None:
                return bytes(response.body)
            received = connection.recv_into(memoryview(data)[end:])
            assert received, "the connection ended before the answer"
            end += received


async def ended(connection: socket.socket) -> bool:
    """Wait until the other side has closed a connection on which it sends nothing."""
    connection.setblocking(False)
    async with asyncio.timeout(LONG_S):
        try:
            return await asyncio.get_running_loop().sock_recv(connection, 1) == b""
        except ConnectionError:
            return True


def silent(address: str) -> socket.socket:
    """A connection whose client says nothing."""
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)))


async def test_calls_travel_through_tls(for_server: ssl.SSLContext, for_client: ssl.SSLContext) -> None:
    body = bytes(range(256)) * 20_000  # more than the buffers of a connection hold

    async with serving(for_server) as (_, address):
        assert body == await asked(address, for_client, body)
        assert b"hello" == await asyncio.to_thread(asked_blocking, address, for_client)


@pytest.mark.parametrize("client", ["plain", "tls"])
async def test_a_permissive_port_takes_both_kinds(
    client: str, for_server: ssl.SSLContext, for_client: ssl.SSLContext
) -> None:
    """The first byte is only looked at: what follows sees it, too."""
    tls = for_client if client == "tls" else None

    async with serving(for_server, plain_too=True) as (server, address):
        assert b"hello" == await asked(address, tls)
        assert b"hello" == await asyncio.to_thread(asked_blocking, address, tls)
        async with dialled(address, tls) as peer:
            await peer.call(ECHO)
            [there] = server.peers
            assert peer.local_address == there.address


async def test_a_port_with_tls_closes_plain_connections(for_server: ssl.SSLContext, for_client: ssl.SSLContext) -> None:
    async with serving(for_server) as (server, address):
        with silent(address) as plain:
            plain.sendall(b"".join(encode_request(ECHO, opaque=1)))
            assert await ended(plain)
        assert not server.peers
        assert b"hello" == await asked(address, for_client)


async def test_a_certificate_that_is_not_trusted_is_a_network_error(for_server: ssl.SSLContext) -> None:
    strangers = ssl.create_default_context()

    async with serving(for_server) as (_, address):
        with pytest.raises(NetworkError, match=rf"cannot connect to {address}: .*certificate is trusted") as caught:
            await asked(address, strangers)
        with pytest.raises(NetworkError, match=rf"cannot connect to {address}: .*certificate is trusted"):
            await asyncio.to_thread(asked_blocking, address, strangers)

    assert address == caught.value.address


async def test_a_plain_port_refuses_tls_with_a_network_error(for_client: ssl.SSLContext) -> None:
    async with serving(None) as (_, address):
        with pytest.raises(NetworkError, match=f"cannot connect to {address}: "):
            await asked(address, for_client)
        with pytest.raises(NetworkError, match=f"cannot connect to {address}: "):
            await asyncio.to_thread(asked_blocking, address, for_client)


@pytest.mark.parametrize("start", [b"", b"\x16", b"\x16\x03\x01"], ids=["nothing", "a byte", "half a handshake"])
async def test_clients_that_never_finish_opening_are_bounded_in_number(
    start: bytes, for_server: ssl.SSLContext, for_client: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5: beyond the limit the oldest is closed, and other clients are served."""
    monkeypatch.setattr(endpoint, "OPENING_MAX", 2)

    async with serving(for_server, plain_too=True) as (_, address):
        with silent(address) as first, silent(address) as second:
            for connection in (first, second):
                connection.sendall(start)
            assert b"hello" == await asked(address, for_client)
            assert await ended(first)


@pytest.mark.parametrize("start", [b"", b"\x16\x03\x01"], ids=["nothing", "half a handshake"])
async def test_clients_that_never_finish_opening_are_bounded_in_time(
    start: bytes, for_server: ssl.SSLContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B5"""
    monkeypatch.setattr(endpoint, "OPENING_S", 0.05)

    async with serving(for_server, plain_too=True) as (_, address):
        with silent(address) as client:
            client.sendall(start)
            assert await ended(client)


async def test_a_server_that_ends_closes_connections_that_are_being_opened(for_server: ssl.SSLContext) -> None:
    async with serving(for_server, plain_too=True) as (_, address):
        client = silent(address)

    with client:
        assert await ended(client)
    with pytest.raises(NetworkError, match="cannot connect"):
        await asked(address, None)


@pytest.mark.parametrize("dial", [asked, lambda address, tls: asyncio.to_thread(asked_blocking, address, tls)])
@pytest.mark.parametrize("address", ["nowhere", "127.0.0.1:0", "127.0.0.1:1", f"{'x' * 70}.example:1"])
async def test_what_cannot_be_reached_is_a_network_error_that_names_it(
    dial: Callable[[str, None], Any], address: str
) -> None:
    """A route may have any text for an address."""
    with pytest.raises(NetworkError, match=address[:20]) as caught:
        await dial(address, None)

    assert address == caught.value.address
