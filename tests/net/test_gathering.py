"""How much is waited for before a connection is read, and that nothing waits for long (B2)."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ternmq.net import gathering
from ternmq.net.gathering import (
    BYTES_LEAST,
    BYTES_MOST,
    REST_S,
    REST_S_MAX,
    SHARE,
    SPAN_S,
    SPAN_S_MAX,
    WAIT_S,
    Flow,
    Gathering,
    Gatherings,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


def span(flow: Flow, now: float, *, size: int, reads: int, took_s: float = SPAN_S) -> float:
    """Reads of so many bytes within a span; its end."""
    for _ in range(reads):
        flow.add(size)
    flow.look(now + took_s)
    return now + took_s


def busy(flow: Flow, now: float = 100.0) -> float:
    """Let much come, until something is waited for; when that is."""
    flow.look(now)
    now = span(flow, now, size=20_000, reads=50)
    assert flow.awaited_bytes == 20_000 // SHARE
    return now


def test_what_comes_within_the_wait_is_read_together() -> None:
    """B2."""
    flow = Flow()
    flow.look(100.0)
    # 200 KB in 10 ms are 20 bytes a µs.
    span(flow, 100.0, size=20_000, reads=10)
    assert int(20e6 * WAIT_S) == pytest.approx(flow.awaited_bytes, abs=1)


def test_no_more_than_a_part_of_what_a_client_sends_at_once_is_waited_for() -> None:
    """B2: it would stop while we wait."""
    flow = Flow()
    flow.look(100.0)
    span(flow, 100.0, size=9_000, reads=1_000)
    assert 9_000 // SHARE == flow.awaited_bytes


def test_there_is_a_bound() -> None:
    flow = Flow()
    flow.look(100.0)
    span(flow, 100.0, size=256 * 1024, reads=100)
    assert BYTES_MOST == flow.awaited_bytes


@pytest.mark.parametrize("in_flight", [1, 2, 4, 5])
def test_a_client_with_few_requests_under_way_is_read_at_once(in_flight: int) -> None:
    """B2: however fast it is."""
    flow = Flow()
    flow.look(100.0)
    for number in range(10):
        span(flow, 100 + number * SPAN_S, size=in_flight * 600, reads=10_000)
        assert 0 == flow.awaited_bytes


def test_after_a_pause_nothing_is_waited_for() -> None:
    flow = Flow()
    now = busy(flow)
    now = span(flow, now, size=20_000, reads=500, took_s=2 * SPAN_S_MAX)
    assert 0 == flow.awaited_bytes
    span(flow, now, size=20_000, reads=50)
    assert 0 < flow.awaited_bytes


def test_a_client_that_pauses_is_waited_for_again_as_soon_as_much_comes() -> None:
    """A collection of its garbage takes some ms."""
    flow = Flow()
    now = busy(flow)
    flow.pause()
    assert 0 == flow.awaited_bytes
    span(flow, now, size=20_000, reads=50)
    assert 0 < flow.awaited_bytes


def test_a_burst_of_some_time_ago_does_not_count() -> None:
    flow = Flow()
    now = busy(flow)
    for _ in range(100):
        now = span(flow, now, size=600, reads=200)
    assert 0 == flow.awaited_bytes


def rested(flow: Flow, now: float) -> float:
    """How long a connection is read as usual after a wait in vain, though much comes."""
    flow.rest(now)
    assert 0 == flow.awaited_bytes
    began = now
    while not flow.awaited_bytes:
        now = span(flow, now, size=20_000, reads=50)
    return now - began


def test_a_connection_that_was_waited_for_in_vain_rests_longer_each_time() -> None:
    flow = Flow()
    now, rests = busy(flow), []
    for _ in range(10):
        rests.append(rested(flow, now))
        now += rests[-1]
    assert [REST_S * 2**number for number in range(5)] == pytest.approx(rests[:5], abs=1.5 * SPAN_S)
    assert rests[-1] == pytest.approx(REST_S_MAX, abs=1.5 * SPAN_S)
    for _ in range(100):
        now = span(flow, now, size=20_000, reads=50)
    assert REST_S == pytest.approx(rested(flow, now), abs=1.5 * SPAN_S), "it was forgotten"


@given(st.lists(st.tuples(st.integers(0, 1 << 20), st.floats(0, 0.1)), max_size=50))
def test_whatever_comes_the_bounds_hold(reads: list[tuple[int, float]]) -> None:
    """Also with a clock that stands still."""
    flow, now, largest = Flow(), 100.0, 0
    for size, took_s in reads:
        now += took_s
        largest = max(largest, size)
        flow.add(size)
        if now >= flow.due:
            flow.look(now)
        assert 0 == flow.awaited_bytes or BYTES_LEAST <= flow.awaited_bytes <= min(BYTES_MOST, largest / SHARE)


class Collected(asyncio.Protocol):
    """Tells each read."""

    def __init__(self) -> None:
        self.reads: asyncio.Queue[bytes] = asyncio.Queue()
        self.transport: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport.set_result(transport)  # type: ignore[arg-type]  # of a socket

    def data_received(self, data: bytes) -> None:
        self.reads.put_nowait(data)


@asynccontextmanager
async def connected() -> AsyncIterator[tuple[Collected, asyncio.Transport, asyncio.StreamWriter]]:
    """The server's end of a connection, and the client's."""
    protocols = []

    def accept() -> Collected:
        protocols.append(Collected())
        return protocols[-1]

    async with await asyncio.get_running_loop().create_server(accept, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        while not protocols:
            await asyncio.sleep(0)
        transport = await protocols[0].transport
        try:
            yield protocols[0], transport, writer
        finally:
            writer.close()
            transport.close()


def low_mark(transport: asyncio.Transport) -> int:
    sock = transport.get_extra_info("socket")
    mark: int = sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT)
    return mark


def make_busy(one: Gathering) -> None:
    for number in range(100):
        one.read(20_000, 100 + number * SPAN_S / 50)


linux = pytest.mark.skipif(not gathering._HAS_LOW_MARK, reason="only Linux can wait for bytes")


@linux
async def test_the_kernel_waits_for_the_bytes_and_a_lone_request_is_read_all_the_same() -> None:
    """B2: by a real socket; the client stops in the midst of it."""
    async with connected() as (protocol, transport, writer):
        one = Gatherings().of(transport)
        assert one is not None
        make_busy(one)
        assert 20_000 // SHARE == low_mark(transport)
        writer.write(b"alone")
        assert b"alone" == await protocol.reads.get()
        assert 1 == low_mark(transport)
        one.close()


@linux
async def test_a_connection_that_brings_nothing_more_is_not_looked_at_any_more() -> None:
    """B2: the timer ends."""
    async with connected() as (_, transport, _):
        gatherings = Gatherings()
        one = gatherings.of(transport)
        assert one is not None
        make_busy(one)
        while gatherings._timer is not None:
            await asyncio.sleep(0)
        assert 1 == low_mark(transport)


@linux
async def test_enough_bytes_are_read_together() -> None:
    """B2: pieces that are less are not."""
    async with connected() as (protocol, transport, writer):
        # Nobody looks whether it is read.
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 5_000)
        for _ in range(5):
            writer.write(bytes(1_000))
            await writer.drain()
        assert 5_000 == len(await protocol.reads.get())


@linux
async def test_the_end_of_a_connection_is_noticed_while_more_is_awaited() -> None:
    """B2: and its timer with it."""
    async with connected() as (_, transport, writer):
        gatherings = Gatherings()
        one = gatherings.of(transport)
        assert one is not None
        make_busy(one)
        writer.close()
        while not transport.is_closing():
            await asyncio.sleep(0)
        one.close()
        while gatherings._timer is not None:
            await asyncio.sleep(0)


async def test_without_a_socket_all_is_read_at_once() -> None:
    """As in simulations."""
    assert Gatherings().of(asyncio.Transport()) is None
