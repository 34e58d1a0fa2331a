"""A line: a connection on which a thread makes one call at a time, and waits for the answer itself (B2, P4).

A call over the connection of a loop takes its thread three switches: to the loop's thread, from there to the socket and
back, and to the caller again. A thread that sends and receives by itself has one. It gets none of what the loop does
for others: calls do not gather, and nothing is read between two calls. So before each call it is looked whether
anything has come (``is_quiet``): the end of the connection, most of all. What comes during a call and is not its answer
is dropped: late answers, and requests of the other side, which makes none to a connection that has sent no heartbeat.

A machine that dies without a word is noticed as on other connections (``net.endpoint``): a thread whose answer is late
looks four times a second whether the other machine acknowledges anything.

A line is never repaired. After an error, or when a call was left by an exception, its owner closes it.
"""

from __future__ import annotations

import contextlib
import math
import select
import socket
import ssl
import threading
from collections.abc import Callable
from typing import Final

from ternmq.errors import CallTimeout, NetworkError, RemoteProtocolError
from ternmq.kernels import HAS_NATIVE, native
from ternmq.net.callers import SentAnswer
from ternmq.net.endpoint import LOOK_S, is_unheard, lost, lost_in_silence
from ternmq.types import Buffer
from ternmq.wire.codes import OPAQUE_MASK
from ternmq.wire.frame import FrameDecoder
from ternmq.wire.header import Response

#: Whether there are lines on this system: Windows has no ``poll``.
HAS_LINES: Final = hasattr(select, "poll")
#: The largest frame that is read. An answer to a send has a few hundred bytes, that to a batch an id for each message;
#: the longest header has 1 MiB.
FRAME_BYTES_MAX: Final = 4 * 1024 * 1024
_READ_BYTES: Final = 16 * 1024
_LOOK_MS: Final = int(LOOK_S * 1000)
_NOT_YET: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class CallLine:
    """Calls to one address. The methods belong to the thread that has the line, but ``shut``, which any may call."""

    def __init__(self, address: str, connection: socket.socket, now: Callable[[], float]) -> None:
        """``connection`` is one of ``dial_blocking``, watched; the line owns it. ``now`` is a monotonic clock."""
        connection.setblocking(False)
        self.address = address
        #: Whether it has ever brought an answer.
        self.has_answered = False
        self._socket = connection
        self._now = now
        #: TLS reads whole records: how many bytes of one it keeps.
        self._kept = connection.pending if isinstance(connection, ssl.SSLSocket) else None
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(connection, select.POLLIN)
        self._writable.register(connection, select.POLLOUT)
        self._decoder = FrameDecoder(bytes_max=FRAME_BYTES_MAX)
        self._opaque = 0
        # Not to shut down what the number of a closed socket stands for by then.
        self._closing = threading.Lock()

    def next_opaque(self) -> int:
        """The number of the next call."""
        self._opaque = opaque = (self._opaque + 1) & OPAQUE_MASK
        return opaque

    def is_quiet(self) -> bool:
        """Whether nothing has come since the last call. If something has, the line is of no more use."""
        if self._decoder.kept_bytes or (self._kept is not None and self._kept()):
            return False
        if self._readable.poll(0):
            try:
                self._socket.recv(1)
            except _NOT_YET:
                # Something of TLS' own, such as a ticket.
                return True
            except OSError:
                pass
            return False
        return True

    def call(self, opaque: int, buffers: list[Buffer], until: float) -> Response | SentAnswer:
        """Send a request, and wait for its answer until a moment of the clock; the usual answer to a send is read by a
        kernel.

        Raises ``CallTimeout`` when the time is over, and ``NetworkError`` when the connection is lost, by silence
        ``MachineSilent``. The request may have been carried out then.
        """
        try:
            self._send(b"".join(buffers) if len(buffers) > 1 else buffers[0], until)
            while True:
                answer = self._read(opaque, self._receive(until))
                if answer is not None:
                    self.has_answered = True
                    return answer
        except NetworkError:
            raise
        except (RemoteProtocolError, OSError) as error:
            raise lost(self.address, error) from None

    def _read(self, opaque: int, data: bytes) -> Response | SentAnswer | None:
        """The answer to a call in what has come, if it is there."""
        decoder = self._decoder
        found: Response | SentAnswer | None = None
        if HAS_NATIVE:
            data = decoder.whole(data)
            answers, behind = native.read_sent(data, FRAME_BYTES_MAX, {opaque: self}, CallLine)
            if answers:
                found = answers[0]
                if behind == len(data):
                    return found
            data = data[behind:]
        if not data:
            return found
        for command in decoder.feed(data):
            if found is None and isinstance(command, Response) and command.opaque == opaque:
                found = command
        return found

    def _send(self, data: Buffer, until: float) -> None:
        while True:
            try:
                sent = self._socket.send(data)
            except ssl.SSLWantReadError:
                self._wait(self._readable, until)
                continue
            except (BlockingIOError, ssl.SSLWantWriteError):
                self._wait(self._writable, until)
                continue
            if sent == len(data):
                return
            data = memoryview(data)[sent:]

    def _receive(self, until: float) -> bytes:
        while True:
            if self._kept is None or not self._kept():
                self._wait(self._readable, until)
            elif self._now() >= until:
                raise CallTimeout(f"{self.address} did not answer in time", address=self.address)
            try:
                data = self._socket.recv(_READ_BYTES)
            except ssl.SSLWantWriteError:
                self._wait(self._writable, until)
                continue
            except _NOT_YET:
                continue
            if not data:
                raise lost(self.address)
            return data

    def _wait(self, ready: select.poll, until: float) -> None:
        """Wait until the socket can be read, or written."""
        while True:
            # Each time, also if something has come: a stream of what was not asked for has an end, too.
            left_s = until - self._now()
            if left_s <= 0:
                raise CallTimeout(f"{self.address} did not answer in time", address=self.address)
            if ready.poll(_LOOK_MS if left_s > LOOK_S else math.ceil(left_s * 1000)):
                return
            if is_unheard(self._socket):
                raise lost_in_silence(self.address)

    def shut(self) -> None:
        """End the connection: a thread that waits for an answer gets an error. May be called in any thread."""
        with self._closing, contextlib.suppress(OSError):
            # The base's: that of TLS would make the other thread read on without TLS.
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """End the connection, also for a process that was forked meanwhile and has the socket, too."""
        self.shut()
        with self._closing:
            self._socket.close()
