"""Calls both ways over real sockets: pipelining, any order, time-outs, limits, bad bytes, idle ends."""

from __future__ import annotations

import asyncio
import random
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ternmq.errors import CallTimeout, NetworkError, NoPermission, TooManyCalls
from ternmq.net.dial import connect
from ternmq.net.endpoint import bind
from ternmq.net.gate import ANY_CALLER
from ternmq.net.lanes import LaneConfig, Lanes
from ternmq.net.peer import Handler, Peer, Route
from ternmq.net.server import Server
from ternmq.tasks import Tasks
from ternmq.wire.codes import BINARY, RequestCode, ResponseCode
from ternmq.wire.frame import encode_request
from ternmq.wire.header import Reply, Request, Response

LANES = [LaneConfig("work")]
#: Codes without a typed header, free to use in tests.
ECHO, SLOW, CALL_BACK, REFUSE, CRASH, LATER = 9001, 9002, 9003, 9004, 9005, 9006


def echo(peer: Peer, request: Request[Any]) -> Reply:
    return Reply(body=bytes(request.body), remark=str(request.opaque))


class Servant:
    """Handlers of the tests' server."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.seen: list[bytes] = []
        self.later: list[tuple[Peer, Request[Any]]] = []

    async def slow(self, peer: Peer, request: Request[Any]) -> Reply:
        await self.gate.wait()
        return Reply(body=b"slow")

    async def call_back(self, peer: Peer, request: Request[Any]) -> Reply:
        answer = await peer.call(ECHO, body=b"from server: " + bytes(request.body))
        return Reply(body=bytes(answer.body))

    def refuse(self, peer: Peer, request: Request[Any]) -> Reply:
        raise NoPermission("not for you; ask the administrator")

    def crash(self, peer: Peer, request: Request[Any]) -> Reply:
        self.seen.append(bytes(request.body))
        raise ZeroDivisionError("a bug")

    def reply_later(self, peer: Peer, request: Request[Any]) -> None:
        self.later.append((peer, request))

    @property
    def routes(self) -> dict[int, Route]:
        handlers: dict[int, Handler] = {
            ECHO: echo,
            SLOW: self.slow,
            CALL_BACK: self.call_back,
            REFUSE: self.refuse,
            CRASH: self.crash,
            LATER: self.reply_later,
        }
        return {code: Route(handler, "work", ANY_CALLER) for code, handler in handlers.items()}


@asynccontextmanager
async def dialled(port: int, **options: Any) -> AsyncIterator[Peer]:
    async with Tasks() as tasks:
        routes = {ECHO: Route(echo, "work", ANY_CALLER)}
        peer = await connect(f"127.0.0.1:{port}", routes=routes, lanes=Lanes(LANES), tasks=tasks, **options)
        yield peer
        peer.close()
        await peer.closed.wait()


@pytest.fixture
async def servant() -> Servant:
    return Servant()


@pytest.fixture
async def port(servant: Servant) -> AsyncIterator[int]:
    async with Server.running(servant.routes, LANES) as server:
        yield await server.listen("127.0.0.1", 0)


async def test_pipelined_calls_are_each_answered(port: int) -> None:
    """B2"""
    async with dialled(port) as peer:
        bodies = [str(number).encode() for number in range(500)]
        answers = await asyncio.gather(*(peer.call(ECHO, body=body) for body in bodies))

    assert bodies == [bytes(answer.body) for answer in answers]


async def test_calls_of_one_turn_share_a_write_and_one_after_the_other_does_not_wait(port: int) -> None:
    """B2: whether a call is written at once, without a turn of the loop, is learnt from the calls before it."""
    async with dialled(port) as peer:

        def is_written_at_once() -> bool:
            before = peer._written_bytes
            calls.append(peer.start_call(ECHO))
            return peer._written_bytes > before

        rounds = []
        for count in (1, 1, 3, 3, 1, 1):
            calls: list[asyncio.Future[Response]] = []
            rounds.append([is_written_at_once() for _ in range(count)])
            await asyncio.gather(*calls)

    assert rounds == [[False], [True], [True, False, False], [False, False, False], [False], [True]]


async def test_calls_that_are_held_do_not_make_others_wait_for_a_turn(port: int, servant: Servant) -> None:
    """B2, F8: a program that consumes has pulls in progress at all times, and its sends leave as soon as without."""
    async with dialled(port) as peer:
        held = [asyncio.ensure_future(peer.call_held(Response.__str__, LATER, timeout_ms=60_000)) for _ in range(2)]
        while len(servant.later) < len(held):
            await asyncio.sleep(0)
        at_once = []
        for number in range(4):
            before = peer._written_bytes
            call = peer.start_call(ECHO)
            at_once.append(peer._written_bytes > before)
            await call
            if number == 1:
                # Its answer has come, and its caller has not gone on yet.
                _answer(servant)
                await held[0]
        held[1].cancel()
        await asyncio.wait(held)
        assert not peer._held_calls
        assert not peer.calls_open

    assert [False, True, True, True] == at_once


async def test_the_answer_of_a_held_call_is_read_in_the_call_that_brings_it(port: int, servant: Servant) -> None:
    """F8: what a pull brought is delivered a turn of the loop before its caller goes on."""
    turns: list[str] = []
    name = ContextVar[str]("name")

    def read(response: Response) -> bytes:
        turns.append(f"read for {name.get()}")
        asyncio.get_running_loop().call_soon(turns.append, "turn")
        return bytes(response.body)

    async with dialled(port) as peer:
        name.set("the caller")
        call = asyncio.create_task(peer.call_held(read, LATER, timeout_ms=60_000))
        call.add_done_callback(lambda _: turns.append("caller"))
        await asyncio.sleep(0)
        name.set("another")
        while not servant.later:
            await asyncio.sleep(0)
        _answer(servant)
        assert b"late" == await call

    assert turns == ["read for the caller", "turn", "caller"]


async def test_what_the_reader_of_a_held_call_raises_is_the_callers(port: int, servant: Servant) -> None:
    """B2: and the connection goes on."""

    def read(_: Response) -> None:
        raise LookupError("not this one")

    async with dialled(port) as peer:
        call = asyncio.ensure_future(peer.call_held(read, LATER, timeout_ms=60_000))
        while not servant.later:
            await asyncio.sleep(0)
        _answer(servant)
        with pytest.raises(LookupError, match="not this one"):
            await call
        assert b"still here" == bytes((await peer.call(ECHO, body=b"still here")).body)


async def test_the_answer_of_a_held_call_that_was_given_up_is_not_read(port: int, servant: Servant) -> None:
    """F6: a source that was stopped, or moved, delivers nothing any more."""
    read: list[Response] = []
    async with dialled(port) as peer:
        call = asyncio.ensure_future(peer.call_held(read.append, LATER, timeout_ms=60_000))
        while not servant.later:
            await asyncio.sleep(0)
        call.cancel()
        _answer(servant)
        await asyncio.wait([call])
        await peer.call(ECHO)

    assert not read


async def test_a_held_call_ends_with_its_time_and_with_its_connection(port: int) -> None:
    """B2: as any call."""
    async with dialled(port) as peer:
        with pytest.raises(CallTimeout, match="did not answer"):
            await peer.call_held(Response.__str__, LATER, timeout_ms=1)
        call = asyncio.ensure_future(peer.call_held(Response.__str__, LATER, timeout_ms=60_000))
        await asyncio.sleep(0)
        peer.abort()
        with pytest.raises(NetworkError, match="was lost"):
            await call
        assert not peer._held_calls


def _answer(servant: Servant) -> None:
    """Answer the oldest request that waits."""
    peer, request = servant.later.pop(0)
    peer.reply(request, Reply(body=b"late"))


async def test_answers_may_come_in_any_order(port: int, servant: Servant) -> None:
    """B2: a slow call does not hold up a later quick one on the same connection."""
    async with dialled(port) as peer:
        slow = asyncio.ensure_future(peer.call(SLOW))
        assert b"quick" == bytes((await peer.call(ECHO, body=b"quick")).body)
        assert not slow.done()
        servant.gate.set()
        assert b"slow" == bytes((await slow).body)


async def test_both_ends_can_call_on_one_connection(port: int) -> None:
    """B2: the broker calls clients too."""
    async with dialled(port) as peer:
        answer = await peer.call(CALL_BACK, body=b"hello")

    assert b"from server: hello" == bytes(answer.body)


async def test_a_handler_may_answer_later_without_a_task(port: int, servant: Servant) -> None:
    """F8's ground: a held pull is answered when something arrives."""
    async with dialled(port) as peer:
        call = peer.start_call(LATER)
        await peer.call(ECHO)
        [(server_side, request)] = servant.later
        server_side.reply(request, Reply(body=b"at last"))
        assert b"at last" == bytes((await call).body)


@pytest.mark.parametrize("form", [0, BINARY])
async def test_the_answer_has_the_form_of_the_question(port: int, form: int) -> None:
    """B1"""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(encode_request(ECHO, body=b"x", opaque=7, form=form)))
    length, header_field = struct.unpack(">II", await reader.readexactly(8))
    await reader.readexactly(length - 4)
    writer.close()
    await writer.wait_closed()

    assert form == header_field >> 24


async def test_one_way_requests_are_never_answered_even_when_they_fail(port: int, servant: Servant) -> None:
    """B2"""
    async with dialled(port) as peer:
        peer.call_oneway(CRASH, body=b"one way")
        peer.call_oneway(4711)
        answer = await peer.call(ECHO, body=b"next")

    assert [b"one way"] == servant.seen
    assert b"next" == bytes(answer.body)


async def test_a_call_without_an_answer_times_out(port: int, servant: Servant) -> None:
    """B2: and its late answer is dropped."""
    async with dialled(port) as peer:
        with pytest.raises(CallTimeout, match="did not answer request 9002 within 20 ms"):
            await peer.call(SLOW, timeout_ms=20)
        servant.gate.set()
        assert b"still fine" == bytes((await peer.call(ECHO, body=b"still fine")).body)


async def test_calls_in_flight_are_limited(port: int) -> None:
    """B2"""
    async with dialled(port) as peer:
        peer._calls_max = 2
        calls = [peer.start_call(LATER), peer.start_call(LATER)]
        with pytest.raises(TooManyCalls, match="2 calls"):
            peer.start_call(LATER)
        calls[0].cancel()
        await asyncio.sleep(0)
        calls.append(peer.start_call(LATER))
        for call in calls:
            call.cancel()


async def test_calls_fail_at_once_when_the_connection_breaks(port: int, servant: Servant) -> None:
    """B2"""
    async with dialled(port) as peer:
        call = peer.start_call(LATER)
        await peer.call(ECHO)
        servant.later[0][0].abort()
        with pytest.raises(NetworkError, match="was lost"):
            await call
        with pytest.raises(NetworkError, match="is closed"):
            peer.start_call(ECHO)


async def test_a_refusal_carries_its_code_and_sentence(port: int) -> None:
    """B3: one place turns errors into response codes."""
    async with dialled(port) as peer:
        answer = await peer.call(REFUSE)

    assert (ResponseCode.NO_PERMISSION, "not for you; ask the administrator") == (answer.code, answer.remark)


async def test_a_bug_in_a_handler_answers_system_error_and_the_server_lives(port: int) -> None:
    """B5"""
    async with dialled(port) as peer:
        answer = await peer.call(CRASH)
        assert (ResponseCode.SYSTEM_ERROR, "ZeroDivisionError: a bug") == (answer.code, answer.remark)
        assert b"ok" == bytes((await peer.call(ECHO, body=b"ok")).body)


async def test_an_unknown_request_is_answered_as_rocketmq_does(port: int) -> None:
    """B5"""
    async with dialled(port) as peer:
        answer = await peer.call(4711)

    assert ResponseCode.REQUEST_CODE_NOT_SUPPORTED == answer.code
    assert " request type 4711 not supported" == answer.remark


async def test_missing_fields_are_refused_by_name_and_the_connection_stays(servant: Servant) -> None:
    """B5: PULL_MESSAGE without its fields."""
    routes = servant.routes | {RequestCode.QUERY_CONSUMER_OFFSET: Route(echo, "work", ANY_CALLER)}
    async with Server.running(routes, LANES) as server:
        port = await server.listen("127.0.0.1", 0)
        async with dialled(port) as peer:
            answer = await peer.call(RequestCode.QUERY_CONSUMER_OFFSET)
            assert ResponseCode.SYSTEM_ERROR == answer.code
            assert "consumerGroup" in (answer.remark or "")
            assert b"ok" == bytes((await peer.call(ECHO, body=b"ok")).body)


async def _closed_by_server(port: int, data: bytes) -> bool:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 5)
        return True
    except ConnectionError:
        return True
    finally:
        writer.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">II", 0x7FFFFFFF, 10),
        struct.pack(">II", 16 * 1024 * 1024, 10) + b"{}",
        struct.pack(">II", 8, 100) + b"{}{}",
        struct.pack(">II", 6, 2 << 24 | 2) + b"{}",
        struct.pack(">II", 12, 8) + b"not json",
        struct.pack(">II", 8, 1 << 24 | 4) + b"1234",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
    ids=["2 GiB", "just too long", "header too long", "unknown form", "not JSON", "binary cut short", "HTTP"],
)
async def test_a_frame_that_breaks_the_protocol_closes_that_connection_only(port: int, data: bytes) -> None:
    """B5"""
    assert await _closed_by_server(port, data)
    async with dialled(port) as peer:
        assert b"alive" == bytes((await peer.call(ECHO, body=b"alive")).body)


async def test_random_bytes_on_a_real_socket_never_stop_the_server(port: int) -> None:
    """B5: garbage, also behind a plausible length field."""
    chance = random.Random(20261115)
    async with dialled(port) as peer:
        for _ in range(200):
            garbage = chance.randbytes(chance.randrange(1, 300))
            if chance.random() < 0.5:
                garbage = struct.pack(">II", len(garbage) + 4, chance.choice([0, 1 << 24]) | len(garbage)) + garbage
            assert await _closed_by_server(port, garbage)
        assert b"alive" == bytes((await peer.call(ECHO, body=b"alive")).body)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_request_chopped_anywhere_is_answered_once(data: st.DataObject) -> None:
    """B1, B5: TCP may cut the stream at any byte."""
    frames = b"".join(
        b"".join(encode_request(ECHO, body=bytes([number]) * number, opaque=number, form=number % 2))
        for number in range(1, 6)
    )
    cuts = sorted(data.draw(st.sets(st.integers(1, len(frames) - 1), max_size=12)))

    async def run() -> list[bytes]:
        async with Server.running(Servant().routes, LANES) as server:
            port = await server.listen("127.0.0.1", 0)
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            for start, end in zip([0, *cuts], [*cuts, len(frames)], strict=True):
                writer.write(frames[start:end])
                await writer.drain()
                await asyncio.sleep(0)
            bodies = []
            for _ in range(5):
                length, header_field = struct.unpack(">II", await reader.readexactly(8))
                bodies.append((await reader.readexactly(length - 4))[header_field & 0xFFFFFF :])
            writer.close()
            await writer.wait_closed()
            return bodies

    assert [bytes([number]) * number for number in range(1, 6)] == asyncio.run(run())


async def test_an_idle_connection_is_closed(servant: Servant) -> None:
    """B2: after 120 s; here after 50 ms."""
    closed = asyncio.Event()
    async with Tasks() as tasks:
        loop = asyncio.get_running_loop()

        def accept() -> Peer:
            return Peer(servant.routes, Lanes(LANES), tasks, idle_s=0.05, on_close=lambda _: closed.set())

        listener = await loop.create_server(accept, "127.0.0.1", 0)
        async with dialled(listener.sockets[0].getsockname()[1]) as peer:
            await peer.call(ECHO)
            await asyncio.wait_for(peer.closed.wait(), 5)
        await asyncio.wait_for(closed.wait(), 5)
        listener.close()


async def test_a_client_that_does_not_read_is_not_read_either(port: int) -> None:
    """B5: replies must not pile up without bound in the server."""
    _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
    request = b"".join(encode_request(ECHO, body=bytes(1024 * 1024), opaque=1))
    sent = 0
    try:
        # Kernel buffers hold a few MiB; when the server stops reading, draining stops too.
        async with asyncio.timeout(1.0):
            while sent < 200:
                writer.write(request)
                await writer.drain()
                sent += 1
    except TimeoutError:
        pass
    writer.transport.abort()

    assert sent < 100


async def test_a_port_in_use_is_named_with_the_cure(port: int, servant: Servant) -> None:
    """«Bad input»"""
    async with Server.running(servant.routes, LANES) as second:
        with pytest.raises(NetworkError, match=f"port {port} on 127.0.0.1 is in use; stop the program"):
            await second.listen("127.0.0.1", port)


async def test_codes_can_be_left_out_on_a_second_port(servant: Servant) -> None:
    """The VIP port serves all codes but those that may wait."""
    async with Server.running(servant.routes, LANES) as server:
        vip = await server.listen("127.0.0.1", 0, without={SLOW})
        async with dialled(vip) as peer:
            assert ResponseCode.REQUEST_CODE_NOT_SUPPORTED == (await peer.call(SLOW)).code
            assert b"ok" == bytes((await peer.call(ECHO, body=b"ok")).body)


async def test_stopping_a_server_ends_its_connections_and_waiting_handlers(servant: Servant) -> None:
    """Structured: leaving the block means that nothing of it runs on."""
    async with Server.running(servant.routes, LANES) as server:
        port = await server.listen("127.0.0.1", 0)
        async with Tasks() as tasks:
            peer = await connect(f"127.0.0.1:{port}", routes={}, lanes=Lanes(LANES), tasks=tasks)
            call = peer.start_call(SLOW)
            await peer.call(ECHO)
    await peer.closed.wait()
    with pytest.raises(NetworkError):
        await call


async def test_connecting_to_an_unused_port_names_the_address(unused_tcp_port_factory: Callable[[], int]) -> None:
    port = unused_tcp_port_factory()
    async with Tasks() as tasks:
        with pytest.raises(NetworkError, match=f"cannot connect to 127.0.0.1:{port}"):
            await connect(f"127.0.0.1:{port}", routes={}, lanes=Lanes(LANES), tasks=tasks)


async def test_a_bound_port_keeps_who_connects_until_it_is_served(servant: Servant) -> None:
    """B2: a broker binds its port before it recovers its store, and serves when that is open."""
    bound = bind("127.0.0.1", 0)
    port = bound.getsockname()[1]
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"".join(encode_request(ECHO, None, b"early", opaque=1)))
    async with Server.running(servant.routes, LANES) as server:
        assert port == await server.serve(bound)

        frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))

        assert frame.endswith(b"early")
        writer.close()
        await writer.wait_closed()


async def test_what_needs_its_connection_is_not_begun_without_it() -> None:
    """B2, issue 13, 6: a request on a lane may outlive its connection. A send counts then; a pull was held for ever."""
    ran: list[int] = []

    def note(_peer: Peer, request: Request[Any]) -> None:
        ran.append(request.code)

    routes = {1: Route(note, "lane", ANY_CALLER, needs_connection=True), 2: Route(note, "lane", ANY_CALLER)}
    async with Tasks() as tasks:
        closed = Peer(routes, Lanes([LaneConfig("lane")]), tasks)
        for code in routes:
            closed.run(Request(code=code))

    assert [2] == ran
