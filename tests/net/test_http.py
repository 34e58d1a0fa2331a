"""The small HTTP server on real sockets: what it serves, and what hostile clients get (R5)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final

import pytest

from ternmq.net import http
from ternmq.net.endpoint import bind
from ternmq.net.http import BadTarget, HttpAnswer, HttpRequest, HttpServer, parse_target
from ternmq.tasks import Tasks

LONG_S: Final = 60.0


class Site:
    """Answers with what was asked; ``large`` with many bytes, ``held`` when it is let go, ``broken`` not at all."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []
        self.let_go = asyncio.Event()

    async def answer(self, request: HttpRequest) -> HttpAnswer:
        self.asked.append(request.path)
        match request.path:
            case ("large",):
                return HttpAnswer(HTTPStatus.OK, bytes(8 << 20))
            case ("held",):
                await self.let_go.wait()
            case ("held", "large"):
                await self.let_go.wait()
                return HttpAnswer(HTTPStatus.OK, bytes(8 << 20))
            case ("broken",):
                raise RuntimeError("as planned")
        return http.plain(HTTPStatus.OK, f"{'/'.join(request.path)} {dict(request.parameters)}")


@asynccontextmanager
async def served() -> AsyncIterator[tuple[Site, HttpServer, int]]:
    site = Site()
    async with Tasks() as tasks:
        server = HttpServer(site.answer, tasks)
        bound = bind("127.0.0.1", 0)
        port = bound.getsockname()[1]
        await server.listen(bound, None)
        try:
            yield site, server, port
        finally:
            server.close()


async def talk(port: int, data: bytes, *, pieces: int = 0) -> bytes:
    """All that comes back until the server closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for at in range(0, len(data), pieces or len(data) or 1):
            writer.write(data[at : at + (pieces or len(data))])
            await asyncio.sleep(0)
        return await asyncio.wait_for(reader.read(), LONG_S)
    except ConnectionError:
        return b""
    finally:
        writer.close()


async def until(is_true: object) -> None:
    assert callable(is_true)
    async with asyncio.timeout(LONG_S):
        while not is_true():
            await asyncio.sleep(0.01)


def get(target: str, *, method: str = "GET", close: bool = True, more: str = "") -> bytes:
    end = "Connection: close\r\n" if close else ""
    return f"{method} {target} HTTP/1.1\r\nHost: here\r\n{more}{end}\r\n".encode()


@pytest.mark.parametrize("pieces", [0, 1])
async def test_a_request_is_answered_however_it_is_cut(pieces: int) -> None:
    """R5"""
    async with served() as (_, _, port):
        answer = await talk(port, get("/a%20b/c?key=%C3%BC&x="), pieces=pieces)
    head, _, body = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ")
    assert "a b/c {'key': 'ü', 'x': ''}\n" == body.decode()


async def test_requests_on_one_connection_are_answered_in_order() -> None:
    """R5: also those that were sent without waiting; HEAD has no body."""
    async with served() as (site, _, port):
        data = get("/1", close=False) + get("/2", method="HEAD", close=False) + get("/3")
        answer = await talk(port, data)
        assert [("1",), ("2",), ("3",)] == site.asked
    assert 3 == answer.count(b"HTTP/1.1 200 ")
    assert (1, 0, 1) == (answer.count(b"1 {}"), answer.count(b"2 {}"), answer.count(b"3 {}"))


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (get("/1", method="POST", more="Content-Length: 3\r\n") + b"abc", 405),
        (get("/1", method="DELETE"), 405),
        (get("/1", more="Content-Length: 3\r\n") + b"abc", 413),
        (get("/1", more="Content-Length: 9999999999999\r\n"), 413),
        (get("/1", more="Transfer-Encoding: chunked\r\n"), 413),
        (get("/1", more="Content-Length: 3\r\nTransfer-Encoding: chunked\r\n"), 413),
        (get("/%"), 400),
        (get("/%", method="HEAD"), 400),
        (get("/%zz"), 400),
        (get("/%ff"), 400),
        (get("/?a=%ff"), 400),
        (get("/?a=1&a=2"), 400),
        (get("/?" + "&".join(f"p{number}=1" for number in range(100))), 400),
        (get("http://elsewhere/1"), 400),
        (get("*", method="OPTIONS"), 405),
        (b"GET / HTTP/9.9\r\n\r\n", 505),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"nonsense\r\n\r\n", 400),
        (bytes(100), 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (get("/" + "x" * 20_000), 431),
        (get("/" + "x" * 400_000), 431),
        (get("/1", more="X-Many: " + "y" * 20_000 + "\r\n"), 431),
        (get("/broken"), 500),
    ],
)
async def test_what_is_not_a_request_for_us_gets_a_status_and_the_end(data: bytes, status: int) -> None:
    """R5: bodies, other methods, bad targets, long heads, no HTTP at all."""
    async with served() as (_, server, port):
        answer = await talk(port, data)
        assert f"HTTP/1.1 {status} ".encode() == answer[:13]
        await until(lambda: not server._connections)
        assert (await talk(port, get("/fine"))).startswith(b"HTTP/1.1 200 ")


async def test_a_head_that_never_ends_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: a byte now and then keeps no connection open, nor does silence before or after a request."""
    monkeypatch.setattr(http, "HEAD_S", 0.2)
    async with served() as (_, server, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\n")
        assert b"" == await asyncio.wait_for(reader.read(), LONG_S)
        writer.close()
        assert b"" == await talk(port, b"")
        assert (await talk(port, get("/1", close=False))).startswith(b"HTTP/1.1 200 ")
        await until(lambda: not server._connections)


async def test_many_idle_connections_keep_no_client_out() -> None:
    """R5: the oldest one that waits for nothing is closed; those that are answered are not."""
    async with served() as (site, server, port):
        held = asyncio.create_task(talk(port, get("/held")))
        await until(lambda: site.asked)
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(http.CONNECTIONS_MAX + 20)]
        await until(lambda: len(server._connections) == http.CONNECTIONS_MAX)
        assert (await talk(port, get("/1"))).startswith(b"HTTP/1.1 200 ")
        site.let_go.set()
        assert (await held).startswith(b"HTTP/1.1 200 ")
        for _, writer in idle:
            writer.close()


async def test_connections_that_come_at_once_are_bounded_too() -> None:
    """R5: all are accepted in one turn of the loop, before the first one that is closed has gone."""
    async with served() as (_, server, port):
        # Blocking, so that the server sees them together. Fewer than the kernel lets wait.
        many = [socket.create_connection(("127.0.0.1", port), LONG_S) for _ in range(http.CONNECTIONS_MAX + 20)]
        await until(lambda: len(server._connections) >= http.CONNECTIONS_MAX)
        assert (await talk(port, get("/1"))).startswith(b"HTTP/1.1 200 ")
        assert len(server._connections) <= http.CONNECTIONS_MAX
        for each in many[:20]:
            assert b"" == await asyncio.to_thread(each.recv, 1)
        for each in many:
            each.close()


async def test_answers_that_were_asked_for_at_once_are_bounded_too() -> None:
    """R5: all pass the first look, because none has an answer yet."""
    async with served() as (site, server, port):
        lazy = []
        for number in range(1, 13):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(get("/held/large", close=False))
            lazy.append((reader, writer))
            await until(lambda number=number: len(site.asked) == number)
        site.let_go.set()
        await until(lambda: server.is_full)
        await until(lambda: sum(each.untaken_bytes > 0 or not each.is_answering for each in server._connections) == 12)
        # What was there, and one answer.
        assert sum(each.untaken_bytes for each in server._connections) <= http.UNTAKEN_BYTES_MAX + (9 << 20)
        for _, writer in lazy:
            writer.close()


async def test_clients_that_do_not_read_hold_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """R5: beyond 32 MiB others are told to come later, and in the end they are closed."""
    async with served() as (site, server, port):
        lazy = []
        for number in range(1, 9):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(get("/large", close=False) * 3)
            lazy.append((reader, writer))
            await until(lambda number=number: len(site.asked) >= min(number, 4))
            if server.is_full:
                break
        await until(lambda: server.is_full)
        monkeypatch.setattr(http, "TAKE_S", 0.1)
        assert (await talk(port, get("/1"))).startswith(b"HTTP/1.1 503 ")
        # One answer for each connection, not three.
        assert sum(each.untaken_bytes for each in server._connections) <= len(lazy) * (9 << 20)
        for _, writer in lazy:
            writer.close()


async def test_a_client_that_goes_away_harms_nothing() -> None:
    """R5: in the middle of its answer."""
    async with served() as (site, server, port):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(get("/held"))
        await until(lambda: site.asked)
        writer.transport.abort()
        site.let_go.set()
        assert (await talk(port, get("/1"))).startswith(b"HTTP/1.1 200 ")
        await until(lambda: not server._connections)


def test_targets_are_decoded_once() -> None:
    """R5: an escaped slash is part of a name, and %25 is a percent sign."""
    assert (("topics", "a/b", "100%41"), {"k": "%41&="}) == parse_target(b"/topics/a%2Fb/100%2541?k=%2541%26%3D")
    with pytest.raises(BadTarget):
        parse_target("/ü".encode())
