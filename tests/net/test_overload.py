"""Peers that do not read, do not finish what they send, or ask for too much: others go on, and bytes are bounded."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from ternmq.errors import CallTimeout, InvalidParameter, NetworkError, TooManyCalls
from ternmq.net import peer as peer_module
from ternmq.net import stream as stream_module
from ternmq.net.dial import connect
from ternmq.net.endpoint import bind
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.limits import Limits, Usage
from ternmq.net.peer import Handler, Peer, Route
from ternmq.net.server import Server
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import FRAME_BYTES_MAX, encode_request
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import SendMessageV2

MIB = 1024 * 1024
LANES = [LaneConfig("work")]
#: Codes without a typed header, free to use in tests.
ECHO, GIVE, TAKE, HUGE, HUGE_LATER, HUGE_HELD, QUOTE, WAIT, CALL_BACK = range(9101, 9110)
#: Longer than a working program takes, on any machine.
LONG_S = 60.0


class Servant:
    """Handlers of the tests' server."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.held: list[tuple[Peer, Request[Any]]] = []

    def echo(self, _peer: Peer, request: Request[Any]) -> Reply:
        return Reply(body=bytes(request.body))

    def give(self, _peer: Peer, _request: Request[Any]) -> Reply:
        return Reply(body=bytes(MIB))

    def take(self, _peer: Peer, _request: Request[Any]) -> Reply:
        return Reply()

    def huge(self, _peer: Peer, _request: Request[Any]) -> Reply:
        return Reply(body=[memoryview(bytes(8 * MIB))] * 3)

    async def huge_later(self, peer: Peer, request: Request[Any]) -> Reply:
        await asyncio.sleep(0)
        return self.huge(peer, request)

    def huge_held(self, peer: Peer, request: Request[Any]) -> None:
        asyncio.get_running_loop().call_soon(peer.reply, request, self.huge(peer, request))

    def quote(self, _peer: Peer, request: Request[Any]) -> Reply:
        raise InvalidParameter(f"invalid: {str(request.body, 'utf-8')}")

    async def wait(self, _peer: Peer, _request: Request[Any]) -> Reply:
        await self.gate.wait()
        return Reply()

    async def call_back(self, peer: Peer, request: Request[Any]) -> Reply:
        answers = await asyncio.gather(*(peer.call(ECHO, None, bytes(MIB), timeout_ms=60_000) for _ in range(8)))
        return Reply(body=b"".join(bytes(answer.body) for answer in answers))

    @property
    def routes(self) -> dict[int, Route]:
        handlers: dict[int, Handler] = {
            ECHO: self.echo,
            GIVE: self.give,
            TAKE: self.take,
            HUGE: self.huge,
            HUGE_LATER: self.huge_later,
            HUGE_HELD: self.huge_held,
            QUOTE: self.quote,
            WAIT: self.wait,
            CALL_BACK: self.call_back,
        }
        return {code: Route(handler, "work", ANY_CALLER) for code, handler in handlers.items()}


@asynccontextmanager
async def serving(*, limits: Limits | None = None, tiny_buffers: bool = False) -> AsyncIterator[tuple[Server, int]]:
    async with Server.running(Servant().routes, LANES, limits=limits) as server:
        bound = bind("127.0.0.1", 0)
        if tiny_buffers:
            assert isinstance(bound, socket.socket)
            for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
                bound.setsockopt(socket.SOL_SOCKET, option, 65536)
        yield server, await server.serve(bound)


@asynccontextmanager
async def dialled(port: int) -> AsyncIterator[Peer]:
    async with Tasks() as tasks:
        routes = {ECHO: Route(Servant().echo, "work", ANY_CALLER)}
        peer = await connect(f"127.0.0.1:{port}", routes=routes, lanes=Lanes(LANES), tasks=tasks)
        yield peer
        peer.abort()
        await peer.closed.wait()


def raw(port: int, *, receive_bytes: int = 4096) -> socket.socket:
    """A connection that reads nothing by itself."""
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
    client.connect(("127.0.0.1", port))
    client.setblocking(False)
    return client


async def until(condition: Any) -> None:
    async with asyncio.timeout(LONG_S):
        while not condition():
            await asyncio.sleep(0.005)


async def is_ended(client: socket.socket) -> bool:
    """Read a raw connection to its end."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(LONG_S):
            while await loop.sock_recv(client, 65536):
                pass
    client.close()
    return True


async def frame_sizes(client: socket.socket, count: int) -> list[int]:
    """Read so many frames of a raw connection; their bytes."""
    loop = asyncio.get_running_loop()
    sizes: list[int] = []
    data = bytearray()
    async with asyncio.timeout(LONG_S):
        while len(sizes) < count:
            data += await loop.sock_recv(client, MIB)
            while len(data) >= 4 and len(data) >= (size := 4 + int.from_bytes(data[:4], "big")):
                sizes.append(size)
                del data[:size]
    return sizes


@asynccontextmanager
async def deaf_server() -> AsyncIterator[int]:
    """A port that takes connections, as the kernel does for a stopped process, and reads nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


# --- Replies --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [HUGE, HUGE_LATER, HUGE_HELD])
async def test_a_reply_that_fits_no_frame_becomes_an_error_and_others_are_served(code: int) -> None:
    """Issue 13, point 1: from a handler, a task or a callback."""
    async with serving() as (_, port), dialled(port) as peer, dialled(port) as other:
        answer = await peer.call(code, timeout_ms=60_000)

        assert ResponseCode.SYSTEM_ERROR == answer.code
        assert answer.remark is not None
        assert "is larger than the 16777216 allowed; ask for less" in answer.remark
        for still_served in (peer, other):
            assert b"ok" == bytes((await still_served.call(ECHO, None, b"ok", timeout_ms=60_000)).body)


async def test_a_larger_frame_limit_lets_the_same_reply_through() -> None:
    """Issue 13, point 14: clients take what the server may send."""
    async with serving(limits=Limits(frame_max_length=32 * MIB)) as (_, port), dialled(port) as peer:
        assert 24 * MIB == len((await peer.call(HUGE, timeout_ms=60_000)).body)


async def test_an_error_that_quotes_its_request_is_cut() -> None:
    """Issue 13, point 1: an error reply could be too large for a frame, too: escaped, it is six times as long."""
    async with serving() as (_, port), dialled(port) as peer:
        answer = await peer.call(QUOTE, None, b"\x01" * (4 * MIB), timeout_ms=60_000)

    assert ResponseCode.INVALID_PARAMETER == answer.code
    assert answer.remark is not None
    assert len(answer.remark) < 5_000


async def test_a_request_that_cannot_be_answered_costs_its_connection_only() -> None:
    """Issue 13, point 1: Python refuses to write an opaque of 5,000 digits."""
    head = b'{"code":9102,"flag":0,"opaque":' + b"1" * 4_000 + b"}"
    async with serving() as (_, port), dialled(port) as peer:
        client = raw(port)
        client.setblocking(True)
        client.sendall(struct.pack(">II", 4 + len(head), len(head)) + head)
        client.shutdown(socket.SHUT_WR)
        client.setblocking(False)
        assert await is_ended(client)
        assert b"ok" == bytes((await peer.call(ECHO, None, b"ok", timeout_ms=60_000)).body)


async def test_a_slow_reader_gets_system_busy_instead_of_ever_more_bytes() -> None:
    """Issue 13, point 6: bytes that wait for a peer are bounded; what it asked for beyond is refused, not kept."""
    limits = Limits(max_waiting_reply_bytes=2 * MIB)
    async with serving(limits=limits, tiny_buffers=True) as (server, port), dialled(port) as peer:
        client = raw(port)
        first = b"".join(b"".join(encode_request(GIVE, opaque=number)) for number in range(2))
        rest = b"".join(b"".join(encode_request(GIVE, opaque=number)) for number in range(2, 40))
        client.send(first)
        await until(lambda: server.usage.waiting_bytes > MIB)
        client.send(rest)
        assert b"ok" == bytes((await peer.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
        await until(lambda: any(one._is_paused for one in server.peers))
        assert server.usage.waiting_bytes <= 2 * MIB + 100_000

        sizes = await frame_sizes(client, 40)
        assert all(size > MIB for size in sizes[:2])
        assert any(size < 1000 for size in sizes)
        await until(lambda: server.usage.waiting_bytes == 0)
        client.close()


async def test_a_peer_that_reads_nothing_at_all_is_cut_off(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 2: its replies would wait for ever, as it does not close either."""
    limits = Limits(write_timeout=100)
    async with serving(limits=limits, tiny_buffers=True) as (server, port), dialled(port) as peer:
        client = raw(port)
        client.send(b"".join(b"".join(encode_request(GIVE, opaque=number)) for number in range(20)))
        await until(lambda: any("has not read its replies" in message for message in caplog.messages))
        assert b"ok" == bytes((await peer.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
        await until(lambda: len(server.peers) == 1)
        assert 0 == server.usage.waiting_bytes
        client.close()


# --- Calls of ours --------------------------------------------------------------------------------------------------


async def test_heavy_calls_both_ways_on_one_connection_all_end() -> None:
    """Issue 13, point 2: both ends stopped reading while they could not write, and waited for each other."""
    async with serving(tiny_buffers=True) as (_, port), dialled(port) as peer, asyncio.timeout(LONG_S):
        calls = []
        for _ in range(8):
            calls.append(peer.start_call(TAKE, None, bytes(MIB)))
            calls.append(peer.start_call(GIVE))
            calls.append(peer.start_call(ECHO, None, bytes(MIB)))
        calls.append(peer.start_call(CALL_BACK))
        answers = await asyncio.gather(*calls)

    assert {ResponseCode.SUCCESS} == {answer.code for answer in answers}
    assert 8 * 2 * MIB + 8 * MIB == sum(len(answer.body) for answer in answers)


async def test_small_replies_are_bounded_also_while_a_call_of_ours_waits() -> None:
    """M1: a program that was called asks ten thousands of small things, and reads neither the answers nor the call."""
    limits = Limits(max_waiting_reply_bytes=2 * MIB)
    async with serving(limits=limits, tiny_buffers=True) as (server, port), dialled(port) as peer:
        client = raw(port)
        client.send(b"".join(encode_request(TAKE, opaque=1)))
        await frame_sizes(client, 1)
        (one,) = (each for each in server.peers if each.address.endswith(f":{client.getsockname()[1]}"))
        call = one.start_call(ECHO)
        asked = b"".join(encode_request(QUOTE, body=b"x" * 4000, opaque=2))
        loop = asyncio.get_running_loop()
        asking = asyncio.create_task(loop.sock_sendall(client, asked * 2000))
        await until(lambda: one._is_paused)
        assert b"ok" == bytes((await peer.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
        # One read may be added to what is allowed.
        assert 2 * MIB < server.usage.waiting_bytes < 3 * MIB
        assert not call.done()
        assert not asking.done()

        # It reads after all.
        sizes = await frame_sizes(client, 2001)
        await asking
        assert 2001 == len(sizes)
        await until(lambda: server.usage.waiting_bytes == 0)
        client.close()
        with pytest.raises(NetworkError):
            await call


async def test_a_call_to_a_program_that_does_not_read_times_out() -> None:
    """Issue 13, point 2: the fifth send of 1 MiB to a stopped broker hung, as its timer began only once it had room."""
    async with deaf_server() as port, dialled(port) as peer, asyncio.timeout(LONG_S):
        for _ in range(12):
            with pytest.raises(CallTimeout):
                await peer.call(TAKE, None, bytes(MIB), timeout_ms=20)
        assert peer._is_full
        with pytest.raises(CallTimeout, match="did not read earlier data within 20 ms"):
            await peer.writable(timeout_ms=20)


async def test_calls_that_do_not_wait_are_refused_when_too_many_bytes_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 13, point 6: the program's own calls do not pile up without bound either."""
    monkeypatch.setattr(peer_module, "OUTGOING", Limits(max_waiting_reply_bytes=4 * MIB))
    async with deaf_server() as port, dialled(port) as peer:
        with pytest.raises(TooManyCalls, match="bytes are waiting to be read by 127"):
            for _ in range(100):
                peer.start_call(TAKE, None, bytes(MIB)).add_done_callback(asyncio.Future.exception)
                await asyncio.sleep(0)
        with pytest.raises(TooManyCalls):
            peer.call_oneway(TAKE)


async def test_a_connection_that_cannot_be_written_is_closed_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Issue 13, point 2: ``close`` waited for the other side to read."""
    monkeypatch.setattr(stream_module, "CLOSE_S", 0.05)
    async with deaf_server() as port, dialled(port) as peer, asyncio.timeout(LONG_S):
        call = peer.start_call(TAKE, None, bytes(12 * MIB))
        await until(lambda: peer._is_full)
        peer.close()
        with pytest.raises(NetworkError):
            await call
        await peer.closed.wait()


async def test_an_idle_connection_that_cannot_be_written_is_cut_off() -> None:
    """Issue 13, point 2."""
    async with deaf_server() as port, Tasks() as tasks, asyncio.timeout(LONG_S):
        loop = asyncio.get_running_loop()
        _, peer = await loop.create_connection(lambda: Peer({}, Lanes(LANES), tasks, idle_s=0.05), "127.0.0.1", port)
        with pytest.raises(NetworkError):
            await peer.start_call(TAKE, None, bytes(12 * MIB))
        await peer.closed.wait()


# --- What arrives ---------------------------------------------------------------------------------------------------


async def test_incomplete_frames_are_bounded_and_the_oldest_goes_first(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 6: half-sent frames of 16 MiB each."""
    half = b"".join(encode_request(ECHO, None, bytes(2 * MIB), opaque=1))[:MIB]
    async with serving(limits=Limits(max_incomplete_frame_bytes=4 * MIB)) as (server, port):
        clients = []
        for number in range(1, 5):
            client = socket.create_connection(("127.0.0.1", port))
            client.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(client, half)
            clients.append(client)
            await until(lambda number=number: server.usage.incomplete_bytes == number * MIB)
        async with dialled(port) as peer:
            # This one takes more than is left while it arrives, and is complete a moment later.
            assert MIB == len((await peer.call(ECHO, None, bytes(MIB), timeout_ms=60_000)).body)
        late = socket.create_connection(("127.0.0.1", port))
        late.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(late, half)

        assert await is_ended(clients[0])
        await until(lambda: server.usage.incomplete_bytes <= 4 * MIB)
        assert any("its frame is the oldest" in message for message in caplog.messages)
        for client in (*clients[1:], late):
            client.close()
        await until(lambda: not server.peers)
        assert 0 == server.usage.incomplete_bytes


async def test_a_frame_that_never_ends_loses_its_connection(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 6: a byte a minute kept a connection and its memory for ever."""
    async with serving(limits=Limits(incomplete_frame_timeout=100)) as (server, port), dialled(port) as peer:
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(b"".join(encode_request(ECHO, None, bytes(1000), opaque=1))[:500])
        client.setblocking(False)
        assert await is_ended(client)
        assert any("its frame was not complete after 100 ms" in message for message in caplog.messages)
        assert b"ok" == bytes((await peer.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
        assert 0 == server.usage.incomplete_bytes


async def test_connections_are_bounded_in_all_and_per_address(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 6."""
    for limits, sentence in (
        (Limits(max_connections=2), "2 connections are open already; if all are needed, raise maxConnections"),
        (Limits(max_connections_per_address=2), "2 connections from 127.0.0.1 are open already"),
    ):
        async with serving(limits=limits) as (server, port):
            async with dialled(port) as one, dialled(port) as two:
                await one.call(ECHO, timeout_ms=60_000)
                await two.call(ECHO, timeout_ms=60_000)
                for _ in range(3):
                    assert await is_ended(raw(port))
                assert b"ok" == bytes((await one.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
            await until(lambda server=server: not server.peers)
            async with dialled(port) as three:
                assert b"ok" == bytes((await three.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
        assert 1 == sum(sentence in message for message in caplog.messages)


async def test_a_client_that_speaks_tls_is_named_so_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """Issue 13, point 15: not as a frame of 369,296,133 bytes."""
    hello = bytes.fromhex("16030102000100 01fc0303") + bytes(500)
    async with serving() as (_, port):
        client = socket.create_connection(("127.0.0.1", port))
        client.sendall(hello)
        client.setblocking(False)
        assert await is_ended(client)

    assert any("the peer speaks TLS, which this port does not" in message for message in caplog.messages)


async def test_requests_that_wait_for_others_are_bounded_by_bytes() -> None:
    """Issue 13, point 6: handlers that wait for the disk or another client keep their requests."""
    assert FRAME_BYTES_MAX > 4 * MIB
    async with serving(limits=Limits(max_queued_request_bytes=2 * MIB)) as (server, port), dialled(port) as peer:
        calls = [peer.start_call(WAIT, None, bytes(MIB - 1000)) for _ in range(4)]
        for refused in calls[2:]:
            assert ResponseCode.SYSTEM_BUSY == (await refused).code
        assert 0 < server.usage.pending_bytes <= 2 * MIB
        servant = server._routes[WAIT].handler.__self__  # type: ignore[attr-defined]  # a method of the servant
        servant.gate.set()
        assert [ResponseCode.SUCCESS] * 2 == [(await call).code for call in calls[:2]]
        assert 0 == server.usage.pending_bytes


async def test_a_request_that_waits_for_others_keeps_no_frame_that_came_with_it() -> None:
    """M1: its body is a view of what was read, and its own few bytes are all that is counted."""
    kept: list[Request[Any]] = []

    async def wait(_peer: Peer, request: Request[Any]) -> Reply:
        kept.append(request)
        await asyncio.sleep(0)
        return Reply(body=bytes(request.body))

    routes = {TAKE: Route(Servant().take, "work", ANY_CALLER), WAIT: Route(wait, "work", ANY_CALLER)}
    large, small = encode_request(TAKE, None, bytes(8 * MIB), opaque=1), encode_request(WAIT, None, b"mine", opaque=2)
    async with Server.running(routes, LANES) as server:
        port = await server.listen("127.0.0.1", 0)
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.writelines([*large, *small])
        await until(lambda: kept)
        [request] = kept
        assert b"mine" == bytes(request.body)
        assert b"mine" == request.body.obj
        writer.close()
        await writer.wait_closed()


async def test_what_one_connection_brings_does_not_keep_others_from_being_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """B3, M1: uvloop reads one connection up to 32 times in a turn, as long as there is more."""
    turns: list[int] = []
    turn = read = sent = 0
    receive = Peer.data_received

    def noted(peer: Peer, data: bytes) -> None:
        nonlocal read
        if peer.latencies is not None and not data.endswith(b"ok"):
            read += len(data)
            if len(data) >= peer_module.FULL_READ_BYTES:
                turns.append(turn)
        receive(peer, data)

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        asyncio.get_running_loop().call_soon(next_turn)

    monkeypatch.setattr(Peer, "data_received", noted)
    next_turn()
    async with serving() as (server, port), dialled(port) as peer:
        client = socket.create_connection(("127.0.0.1", port))
        client.setblocking(False)
        await until(lambda: len(server.peers) == 2)
        asked = b"".join(encode_request(TAKE, opaque=1, oneway=True)) * 100
        # The loop stands still meanwhile.
        with contextlib.suppress(BlockingIOError):
            while sent < 8 * MIB:
                sent += client.send(asked)
        assert b"ok" == bytes((await peer.call(ECHO, None, b"ok", timeout_ms=60_000)).body)
        await until(lambda: read == sent)
        assert sorted(set(turns)) == turns
        client.close()


async def test_a_frame_that_is_not_read_has_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """M1, B5: of a connection that brought more sends than the lane takes, and is not read for a while."""
    told: list[str] = []
    for name in ("paused", "resumed"):
        original = getattr(Usage, name)

        def tell(usage: Usage, peer: Peer, name: str = name, original: Any = original) -> None:
            told.append(name)
            original(usage, peer)

        monkeypatch.setattr(Usage, name, tell)
    routes: dict[int, Route] = {RequestCode.SEND_MESSAGE_V2: Route(Servant().take, "work", ANY_CALLER)}
    header = SendMessageV2(topic="orders", queue_id=0, producer_group="g", properties="")
    sends = [b"".join(encode_request(RequestCode.SEND_MESSAGE_V2, header, b"x", opaque=number)) for number in range(9)]
    async with Server.running(routes, [LaneConfig("work", capacity=2)]) as server:
        client = raw(await server.serve(bind("127.0.0.1", 0)))
        with client:
            client.send(b"".join(sends)[:-1])
            await until(lambda: ["paused", "resumed"] == told)
            assert 1 == len(server.usage._incomplete)
            client.send(sends[-1][-1:])
            await until(lambda: not server.usage.incomplete_bytes)
