"""A connection in memory: two ends, and two pipes between them (``testing.net``).

A pipe carries pieces in order, each with the earliest time of its arrival; a blocked way, or a target that does not
read, delays it. Flow control: bytes that were written and not yet read by the other side are counted; above the size
of the kernels' buffers, the writer is paused.
"""

from __future__ import annotations

import asyncio
import errno
import os
import sys
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from ternmq.testing.loop import NOWHERE, Process
from ternmq.types import Buffer

if TYPE_CHECKING:
    from ternmq.testing.net import Network

#: Written and not read: what the buffers of the two kernels hold, and what a writer may have in addition.
KERNEL_BYTES: Final = 64 * 1024
HIGH_BYTES: Final = 64 * 1024
LOW_BYTES: Final = 16 * 1024
#: What a pipe carries besides bytes.
END: Final = None


class Pipe:
    """One way from end to end: pieces in order, each with the earliest time of its arrival."""

    __slots__ = ("_network", "_pieces", "_source", "_target", "_waits", "in_flight", "is_silent")

    def __init__(self, network: Network, source: SimulatedTransport, target: SimulatedTransport) -> None:
        self._network = network
        self._source = source
        self._target = target
        self._pieces: deque[tuple[float, bytes | None]] = deque()
        #: A timer runs, or ``go_on`` is called when the way is not blocked any more.
        self._waits = False
        self.in_flight = 0
        #: Nothing arrives any more. What is sent stays in the buffers of the sender.
        self.is_silent = False

    def send(self, data: bytes | None) -> None:
        network = self._network
        self.in_flight += len(data) if data else 0
        if self.is_silent:
            return
        for piece in self._chopped(data):
            at = network.loop.time() + network.delay_s()
            self._pieces.append((max(at, self._pieces[-1][0]) if self._pieces else at, piece))
        self.go_on()

    def clear(self) -> None:
        """Bytes in transit are lost."""
        self._pieces.clear()
        self.in_flight = 0

    def go_on(self) -> None:
        """Wait for the arrival of the next piece, if its target reads."""
        if not self._waits and self._pieces and self._target.takes:
            self._waits = True
            self._network.loop.call_at(self._pieces[0][0], self._arrive, context=NOWHERE)

    def _chopped(self, data: bytes | None) -> Iterable[bytes | None]:
        network = self._network
        if data is None or len(data) < 2 or network.random.random() >= network.weather.chop:
            return (data,)
        cut = network.random.randrange(1, len(data))
        return (data[:cut], data[cut:])

    def _arrive(self) -> None:
        network, source, target = self._network, self._source.process.ip, self._target.process.ip
        self._waits = False
        if not self._pieces or not self._target.takes:
            return
        if network.is_blocked(source, target):
            self._waits = True
            network.when_free(source, target, self._free)
            return
        _, piece = self._pieces.popleft()
        if self._target.is_gone:
            self.clear()
            if not network.is_off(target):
                # A machine that does not know this connection, or whose process has closed it, sends a reset.
                self._source.broken()
            return
        if network.on_arrival is not None:
            names = self._source.name, self._target.name
            network.on_arrival(*names, -1 if piece is None else len(piece))
        self._target.receive(piece)
        if piece is not None:
            self.in_flight -= len(piece)
            self._source.taken()
        self.go_on()

    def _free(self) -> None:
        self._waits = False
        self.go_on()


class _Options:
    """What can be set of a socket."""

    def __init__(self, end: SimulatedTransport) -> None:
        self._end = end

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """None makes a difference here."""

    def getsockopt(self, level: int, option: int, size: int) -> bytes:  # noqa: ARG002
        """As Linux has ``TCP_INFO``: questions without an answer, and ms since the last one (``net.endpoint``)."""
        info = bytearray(size)
        if self._end.unheard_since is not None:
            unheard_s = self._end.now() - self._end.unheard_since
            info[3] = min(255, int(unheard_s))
            info[56:60] = int(unheard_s * 1000).to_bytes(4, sys.byteorder)
        return bytes(info)


class SimulatedTransport(asyncio.Transport):
    """One end of a connection, of a process on one machine."""

    def __init__(self, network: Network, process: Process, port: int) -> None:
        super().__init__()
        self._network = network
        self.process = process
        self.name = f"{process.ip}:{port}"
        self.port = port
        self._protocol: asyncio.BaseProtocol | None = None
        self._is_paused = False
        self._writer_is_paused = False
        self._is_closing = False
        #: It is closed, or its process has ended: it accepts nothing any more.
        self.is_gone = False
        #: Since when the other machine acknowledges nothing, if it has lost power.
        self.unheard_since: float | None = None

    def now(self) -> float:
        """The time of the loop."""
        return self._network.loop.time()

    def join(self, other: SimulatedTransport) -> None:
        """Connect two ends."""
        self.other, other.other = other, self
        self.pipe, other.pipe = Pipe(self._network, self, other), Pipe(self._network, other, self)

    def begin(self, protocol: asyncio.BaseProtocol) -> None:
        """The process accepts the connection."""
        self._protocol = protocol
        if self.is_gone:
            self._is_closing = True
        protocol.connection_made(self)
        if self.is_gone:
            self._lose(None)
        self.other.pipe.go_on()

    @property
    def takes(self) -> bool:
        """Whether arriving bytes are delivered to a process."""
        return self.is_gone or (self._protocol is not None and not self._is_paused)

    # --- From the network -------------------------------------------------------------------------------------------

    def receive(self, piece: bytes | None) -> None:
        self._network.loop.call_soon(self._read, piece, context=self.process.context)

    def taken(self) -> None:
        """The other side has read some of the written bytes."""
        if self._writer_is_paused and self.pipe.in_flight - KERNEL_BYTES <= LOW_BYTES:
            self._writer_is_paused = False
            if not self.is_gone and self._protocol is not None:
                self._network.loop.call_soon(self._protocol.resume_writing, context=self.process.context)
        if self._is_closing and not self.is_gone and self.pipe.in_flight <= KERNEL_BYTES:
            self._finish()

    def broken(self) -> None:
        """The connection was reset."""
        if not self.is_gone:
            self.pipe.clear()
            self._gone()
            self._network.loop.call_later(
                self._network.delay_s(),
                self._lose,
                ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)),
                context=self.process.context,
            )

    def vanish(self) -> None:
        """Its process has ended: call it no more."""
        self._gone()

    # --- The transport's side ---------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        if name == "peername":
            return self.other.process.ip, self.other.port
        if name == "socket":
            return _Options(self)
        return (self.process.ip, self.port) if name == "sockname" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        assert self._protocol is not None
        return self._protocol

    def write(self, data: Buffer) -> None:
        if self._is_closing or self.is_gone or not len(data):
            return
        self.pipe.send(bytes(data))
        if not self._writer_is_paused and self.get_write_buffer_size() > HIGH_BYTES and self._protocol is not None:
            self._writer_is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Buffer]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        return max(0, self.pipe.in_flight - KERNEL_BYTES)

    def pause_reading(self) -> None:
        self._is_paused = True

    def resume_reading(self) -> None:
        self._is_paused = False
        self.other.pipe.go_on()

    def is_reading(self) -> bool:
        return not self._is_paused and not self._is_closing

    def can_write_eof(self) -> bool:
        return False

    def is_closing(self) -> bool:
        return self._is_closing

    def close(self) -> None:
        """Accept no more bytes; end when the written ones have been sent to the other machine."""
        if not self._is_closing:
            self._is_closing = True
            if self.is_gone:
                self._network.loop.call_soon(self._lose, None)
            else:
                self.pipe.send(END)
                if self.pipe.in_flight <= KERNEL_BYTES:
                    self._finish()

    def abort(self) -> None:
        """End at once."""
        if not self._is_closing and not self.is_gone:
            self.pipe.send(END)
        self._is_closing = True
        if not self.is_gone:
            self._finish()
        else:
            self._network.loop.call_soon(self._lose, None)

    def _finish(self) -> None:
        self._gone()
        self._network.loop.call_soon(self._lose, None, context=self.process.context)

    def _gone(self) -> None:
        self.is_gone = True
        # The machine answers what still arrives.
        self.other.pipe.go_on()
        if self.other.is_gone:
            self._network.forget(self)

    def _read(self, piece: bytes | None) -> None:
        protocol = self._protocol
        if self.is_gone or self._is_closing or protocol is None:
            return
        if piece is None:
            if not (isinstance(protocol, asyncio.Protocol | asyncio.BufferedProtocol) and protocol.eof_received()):
                self.close()
        elif isinstance(protocol, asyncio.BufferedProtocol):
            _fill(protocol, piece)
        else:
            assert isinstance(protocol, asyncio.Protocol)
            protocol.data_received(piece)

    def _lose(self, error: Exception | None) -> None:
        protocol, self._protocol = self._protocol, None
        self._is_closing = True
        if protocol is not None:
            protocol.connection_lost(error)


def _fill(protocol: asyncio.BufferedProtocol, data: bytes) -> None:
    """Give bytes to a protocol in its own buffers."""
    while data:
        buffer = memoryview(protocol.get_buffer(len(data)))
        part = data[: len(buffer)]
        buffer[: len(part)] = part
        protocol.buffer_updated(len(part))
        data = data[len(part) :]
