"""Lists of name servers over HTTP (A6), from a real HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import ssl
from pathlib import Path

import pytest

from ternmq.cli.certs import make
from ternmq.errors import ConfigError, NameServersUnreachable
from ternmq.net.address_server import AddressServer, host_of, parse_list
from tests.net.address_servers import Listing, address_server


@pytest.mark.parametrize(
    ("body", "addresses"),
    [
        (b"a:9876", ("a:9876",)),
        (b"a:9876;b:9876\n", ("a:9876", "b:9876")),
        (b" a:9876 ; b:9876,a:9876 \r\nsecond line", ("a:9876", "b:9876")),
        (b"[::1]:9876;", ("[::1]:9876",)),
    ],
)
def test_the_first_line_has_the_addresses(body: bytes, addresses: tuple[str, ...]) -> None:
    """A6: as RocketMQ's clients read it."""
    assert addresses == parse_list(body)


@pytest.mark.parametrize(
    ("body", "complaint"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (b"<html><body>Please log in</body></html>", "begins with '<html>"),
        (b"a:9876;b", "begins with 'a:9876;b'"),
        (b"\xff\xfe\x00:\x00", "expected host:9876"),
        (";".join(f"h{number}:1" for number in range(1_001)).encode(), "1001 addresses"),
    ],
)
def test_another_answer_is_named(body: bytes, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_list(body)


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "ftp://host/x",
        "ftp://host:21/x",
        "file://localhost:80/etc/hosts",
        "http://host:0/x",
        "http://host:99999/x",
        "http://me:secret@host/x",
        "http://ho st/x",
        "://",
        "http://[::1/x",
    ],
)
def test_a_url_that_cannot_be_one_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="expected a URL such as"):
        host_of(url)


async def test_the_last_list_stays_while_the_server_is_down(caplog: pytest.LogCaptureFixture) -> None:
    """A6: one sentence when it begins, one when it ends."""
    caplog.set_level(logging.INFO, "ternmq.net.address_server")
    lists: list[tuple[str, ...]] = []
    with address_server(Listing("a:9876;b:9876")) as listing:
        server = AddressServer(listing.url, lists.append)
        assert ("a:9876", "b:9876") == await server.known()
        assert not await server.refresh()
    for _ in range(3):
        assert not await server.refresh()
    assert ("a:9876", "b:9876") == await server.known()
    port = host_of(listing.url)[1]
    with address_server(Listing("c:9876"), port=port):
        assert await server.refresh()

    assert [("a:9876", "b:9876"), ("c:9876",)] == lists
    said = [record.getMessage() for record in caplog.records]
    assert [
        f"name servers from {listing.url}: a:9876;b:9876",
        f"cannot fetch the name servers from {listing.url}: connection refused; continuing with a:9876;b:9876",
        f"the address server {listing.url} answers again",
        f"name servers from {listing.url}: c:9876",
    ] == said


@pytest.mark.parametrize(
    ("body", "status", "reason"),
    [
        ("a:9876", 503, "HTTP status 503"),
        ("<html>", 200, "begins with '<html>'"),
        ("a" * 70_000, 200, "more than 65536"),
    ],
)
async def test_what_is_no_list_is_not_used(body: str, status: int, reason: str) -> None:
    with address_server(Listing("a:9876")) as listing:
        server = AddressServer(listing.url, lambda _: None)
        await server.known()
        listing.body, listing.status = body, status
        assert not await server.refresh()
        assert ("a:9876",) == server.addresses

        with pytest.raises(NameServersUnreachable, match=reason):
            await AddressServer(listing.url, lambda _: None).known()


async def test_callers_at_the_same_time_share_a_request() -> None:
    with address_server(Listing("a:9876")) as listing:
        server = AddressServer(listing.url, lambda _: None)
        await asyncio.gather(*(server.known() for _ in range(20)))
        assert 1 == listing.requests


async def test_an_answer_that_ends_too_early_is_not_used() -> None:
    """A6: half of an address may be another one."""

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 31\r\n\r\n10.0.0.1:9876;10.0.0.2:98")
        writer.close()

    async with await asyncio.start_server(cut, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        with pytest.raises(NameServersUnreachable, match="ends 6 bytes too early"):
            await AddressServer(url, lambda _: None).known()


@pytest.mark.parametrize("head", [b"HTTP/1.1 200 OK\r\nX-Long: ", b"HTTP/1.1 200 OK\r\nContent-Length: 60000\r\n\r\n"])
@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_an_answer_that_never_ends_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, head: bytes, scheme: str
) -> None:
    """A6: each byte of its head, or of its body, comes in time, and there is always one more. The thread that reads
    comes back, too: it closes the connection."""
    is_left = asyncio.Event()

    async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        with contextlib.suppress(OSError):
            while not reader.at_eof():
                writer.write(b"x")
                await writer.drain()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(reader.read(1), 0.01)
        is_left.set()
        writer.close()

    context = None
    if scheme == "https":
        make(tmp_path, [], days=1, now=datetime.datetime.now(datetime.UTC))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    async with await asyncio.start_server(drip, "127.0.0.1", 0, ssl=context) as http:
        port = http.sockets[0].getsockname()[1]
        server = AddressServer(f"{scheme}://127.0.0.1:{port}/rocketmq/nsaddr", lambda _: None, timeout_ms=2_000)
        with pytest.raises(NameServersUnreachable, match="no complete answer within 2000 ms"):
            await server.known()
        await is_left.wait()
