"""A blocking connection to one broker: replies are received into one buffer, and records are read in place (U1).

The client of ``ternmq.client`` serves many callers on its own loop, so received bytes are copied from the loop's
buffer, joined to frames, and passed from one thread to another. For a task that reads megabytes in order, that would be
most of the work. A line is a socket of the task's own thread: the kernel writes into ``data``, and the bytes stay
there. While the task works on them, the broker fills the socket's buffer.

Replies may arrive in another order than requested, because brokers read cold records beside warm ones. They stay
where they are until they are requested; replies that are no longer needed are skipped. ``turn`` begins a new
round in the same buffer: earlier replies may be overwritten from then on.

A line is never repaired. Any failure is a ``NetworkError``; then the line is closed, and a new one is opened.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final, NamedTuple

from ternmq.errors import CallTimeout, NetworkError, RemoteProtocolError
from ternmq.net.endpoint import dial_blocking, is_silence, lost
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials
from ternmq.wire.frame import encode_request, response_at
from ternmq.wire.header import Header, Response

#: Bytes to receive beyond the expected frame: enough to receive small frames together, few enough to move cheaply.
_BEYOND_BYTES: Final = 64 * 1024


class LineResponse(NamedTuple):
    """A response; its body is in ``BrokerLine.data`` from ``begin`` to before ``end``."""

    response: Response
    begin: int
    end: int


class BrokerLine:
    """Calls to one broker, answered in any order. All methods block, and belong to one thread."""

    def __init__(
        self,
        address: str,
        *,
        form: int,
        room_bytes: int,
        timeout_ms: int,
        credentials: Credentials | None = None,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self.address = address
        self._form = form
        self._credentials = credentials
        self._socket = dial_blocking(address, tls, timeout_ms=timeout_ms)
        self.data = bytearray(room_bytes)
        #: Start of the next frame, and end of the received bytes.
        self._at = self._end = 0
        self._opaque = 0
        self._early: dict[int, LineResponse] = {}

    def close(self) -> None:
        self._socket.close()

    def ask(self, code: int, headers: Iterable[Header]) -> int:
        """Send requests, all at once; returns the number of the last one so far. Numbers grow by one."""
        frames: list[Buffer] = []
        for header in headers:
            self._opaque += 1
            frames += encode_request(code, header, opaque=self._opaque, form=self._form, credentials=self._credentials)
        if frames:
            try:
                self._socket.sendall(b"".join(frames))
            except OSError as error:
                raise self._broken(error) from None
        return self._opaque

    def answer(self, number: int) -> LineResponse:
        """The reply to a request; replies to earlier ones are dropped."""
        for early in [early for early in self._early if early < number]:
            del self._early[early]
        while number not in self._early:
            answer = self._receive()
            if answer.response.opaque >= number:
                self._early[answer.response.opaque] = answer
        return self._early.pop(number)

    def turn(self) -> None:
        """Begin at the front of the buffer again. Replies that arrived early are moved there."""
        at = 0
        view = memoryview(self.data)
        for number, answer in sorted(self._early.items(), key=lambda item: item[1].begin):
            size = answer.end - answer.begin
            view[at : at + size] = view[answer.begin : answer.end]
            self._early[number] = answer._replace(begin=at, end=at + size)
            at += size
        rest = self._end - self._at
        view[at : at + rest] = view[self._at : self._end]
        self._at, self._end = at, at + rest

    def _receive(self) -> LineResponse:
        while True:
            try:
                response, frame_end = response_at(self.data, self._at, self._end)
            except RemoteProtocolError as error:
                raise NetworkError(f"{self.address} broke the protocol: {error}", address=self.address) from error
            if response is not None:
                self._at = frame_end
                return LineResponse(response, frame_end - len(response.body), frame_end)
            self._receive_until(frame_end)

    def _receive_until(self, end: int) -> None:
        if end > len(self.data):
            # Positions do not change, so earlier replies of this round are found in the larger buffer, too.
            self.data = self.data[: self._end] + bytearray(2 * end - self._end)
        view = memoryview(self.data)[: end + _BEYOND_BYTES]
        while self._end < end:
            try:
                received = self._socket.recv_into(view[self._end :])
            except OSError as error:
                raise self._broken(error) from None
            if not received:
                raise lost(self.address)
            self._end += received

    def _broken(self, error: OSError) -> NetworkError:
        if isinstance(error, TimeoutError) and not is_silence(error):
            time_ms = int((self._socket.gettimeout() or 0) * 1000)
            return CallTimeout(f"{self.address} was silent for {time_ms} ms", address=self.address)
        return lost(self.address, error)
