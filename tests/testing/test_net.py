"""The simulated network behaves as TCP does, in good weather and in bad (B2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from random import Random

import pytest

from ternmq.testing.loop import BEGIN_S, Process, SimulatedLoop, simulated_loop
from ternmq.testing.net import Network, Weather
from ternmq.testing.stream import HIGH_BYTES, KERNEL_BYTES, SimulatedTransport

PORT = 7


class Recorder(asyncio.Protocol):
    """Keeps what happens to a connection."""

    def __init__(self) -> None:
        self.transport: SimulatedTransport
        self.data = bytearray()
        self.pieces = 0
        self.events: list[str] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimulatedTransport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.pieces += 1

    def eof_received(self) -> None:
        self.events.append("end")

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(f"lost: {type(exc).__name__}" if exc else "closed")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Buffered(asyncio.BufferedProtocol):
    """Takes what comes in a buffer of four bytes."""

    def __init__(self) -> None:
        self.data = bytearray()
        self._buffer = bytearray(4)

    def get_buffer(self, sizehint: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.data += self._buffer[:nbytes]


class Pair:
    """A server on one machine, and a client of it on another."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self.net = Network(loop, Random(1))
        self.server = Process("server", "10.0.0.1")
        self.client = Process("client", "10.0.0.2")
        self.accepted: list[Recorder] = []

    async def listen(self) -> asyncio.AbstractServer:
        return await self.server.start(self._listen())

    async def _listen(self) -> asyncio.AbstractServer:
        return await self.loop.create_server(self._accept, "10.0.0.1", PORT)

    def _accept(self) -> Recorder:
        self.accepted.append(Recorder())
        return self.accepted[-1]

    async def connect(self) -> Recorder:
        return await self.client.start(self._connect())

    async def _connect(self) -> Recorder:
        _, protocol = await self.loop.create_connection(Recorder, "10.0.0.1", PORT)
        assert isinstance(protocol, Recorder)
        return protocol

    async def connected(self) -> tuple[Recorder, Recorder]:
        await self.listen()
        here = await self.connect()
        await asyncio.sleep(0.1)
        return here, self.accepted[0]


Story = Callable[[Callable[[Pair], Awaitable[None]]], None]


@pytest.fixture
def tell() -> Iterator[Story]:
    with simulated_loop() as loop:

        async def run(story: Callable[[Pair], Awaitable[None]]) -> None:
            await story(Pair(loop))

        yield lambda story: loop.run_until_complete(run(story))
        loop.check()


def test_bytes_arrive_in_order_and_after_a_while(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        pair.net.weather = Weather(delay_min_s=0.1, delay_max_s=2.0, chop=1.0)
        for number in range(100):
            here.transport.write(b"%d," % number)
        assert b"" == there.data
        await asyncio.sleep(5)
        assert b"".join(b"%d," % number for number in range(100)) == there.data
        assert there.pieces > 150
        assert ("10.0.0.1", PORT) == here.transport.get_extra_info("peername")
        assert here.transport.get_extra_info("sockname") == there.transport.get_extra_info("peername")

    tell(story)


def test_who_connects_before_a_port_is_served_waits(tell: Story) -> None:
    """A broker holds its port while it recovers its store."""

    async def story(pair: Pair) -> None:
        bound = pair.server.run(pair.loop.bind, "0.0.0.0", PORT)
        with pytest.raises(OSError, match="in use"):
            pair.server.run(pair.loop.bind, "0.0.0.0", PORT)
        here = await pair.connect()
        here.transport.write(b"hello")
        await asyncio.sleep(60)
        assert [] == pair.accepted
        pair.server.run(pair.net.listen, bound, pair._accept)
        await asyncio.sleep(1)
        assert b"hello" == pair.accepted[0].data

    tell(story)


def test_nobody_at_home(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()
        server = await pair.listen()
        pair.net.switch_off(pair.server)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(600):
                await pair.connect()
        assert not server.is_serving()

    tell(story)


def test_closing_lets_the_other_side_read_the_rest(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        here.transport.write(b"farewell")
        here.transport.close()
        here.transport.write(b"too late")
        await asyncio.sleep(1)
        assert b"farewell" == there.data
        assert ["end", "closed"] == there.events
        assert ["closed"] == here.events

    tell(story)


def test_a_blocked_way_holds_up_what_is_on_it_and_new_connections(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        pair.net.block("10.0.0.2", "10.0.0.1")
        here.transport.write(b"a question")
        there.transport.write(b"news")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await pair.connect()
        assert (b"", b"news") == (bytes(there.data), bytes(here.data))
        waiting = asyncio.ensure_future(pair.connect())
        await asyncio.sleep(1)
        pair.net.heal()
        await asyncio.sleep(1)
        assert b"a question" == there.data
        assert waiting.done()

    tell(story)


def test_a_reset_loses_what_was_on_its_way(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        here.transport.write(b"lost")
        assert 1 == pair.net.reset("10.0.0.2", "10.0.0.1")
        await asyncio.sleep(1)
        assert ["lost: ConnectionResetError"] == here.events == there.events
        assert b"" == there.data
        assert 0 == pair.net.reset("10.0.0.2", "10.0.0.1")

    tell(story)


def test_a_killed_process_has_its_connections_closed(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        there.transport.write(b"last words")
        pair.server.kill()
        pair.net.closed_with(pair.server)
        await asyncio.sleep(1)
        assert b"last words" == here.data
        assert ["end", "closed"] == here.events
        assert [] == there.events
        with pytest.raises(ConnectionRefusedError):
            await pair.connect()

    tell(story)


def test_a_machine_without_power_is_silent_and_a_new_one_knows_nothing(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, _ = await pair.connected()
        pair.server.kill()
        pair.net.switch_off(pair.server)
        here.transport.write(b"are you there?")
        await asyncio.sleep(600)
        assert [] == here.events
        pair.net.switch_on("10.0.0.1")
        await asyncio.sleep(600)
        assert [] == here.events
        here.transport.write(b"hello?")
        await asyncio.sleep(1)
        assert ["lost: ConnectionResetError"] == here.events

    tell(story)


def test_a_writer_is_told_to_pause_while_the_other_side_does_not_read(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        there.transport.pause_reading()
        data = bytes(1024)
        for _ in range((KERNEL_BYTES + HIGH_BYTES) // len(data)):
            here.transport.write(data)
        assert [] == here.events
        here.transport.writelines([data, data])
        assert ["pause"] == here.events
        here.transport.close()
        await asyncio.sleep(600)
        assert ["pause"] == here.events
        there.transport.resume_reading()
        await asyncio.sleep(1)
        assert KERNEL_BYTES + HIGH_BYTES + 2 * len(data) == len(there.data)
        assert ["pause", "resume", "closed"] == here.events

    tell(story)


def test_an_aborted_connection_is_gone_at_once(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        here, there = await pair.connected()
        there.transport.pause_reading()
        here.transport.write(bytes(KERNEL_BYTES + HIGH_BYTES + 1))
        here.transport.abort()
        await asyncio.sleep(0)
        assert ["pause", "closed"] == here.events
        assert here.transport.is_closing()

    tell(story)


def test_protocols_with_buffers_of_their_own_are_served(tell: Story) -> None:
    async def story(pair: Pair) -> None:
        _, there = await pair.connected()
        here = Buffered()

        async def connect() -> None:
            await pair.loop.create_connection(lambda: here, "10.0.0.1", PORT)

        await pair.client.start(connect())
        await asyncio.sleep(0.1)
        pair.accepted[1].transport.write(b"more than four bytes")
        await asyncio.sleep(0.1)
        assert b"more than four bytes" == here.data
        assert b"" == there.data

    tell(story)


def test_the_same_seed_gives_the_same_times() -> None:
    def arrivals() -> list[tuple[float, str, str, int]]:
        seen: list[tuple[float, str, str, int]] = []
        with simulated_loop() as loop:

            async def story() -> None:
                pair = Pair(loop)
                pair.net.weather = Weather(0.1, 1.0, 0.5)
                pair.net.on_arrival = lambda *what: seen.append((loop.time() - BEGIN_S, *what))
                here, _ = await pair.connected()
                for _ in range(20):
                    here.transport.write(b"0123456789")
                await asyncio.sleep(10)

            loop.run_until_complete(story())
        return seen

    assert arrivals() == arrivals()
    assert len(arrivals()) > 20
