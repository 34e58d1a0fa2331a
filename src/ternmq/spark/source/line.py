"""A line to one broker: pulls go out, answers come into one buffer, and records are looked at where they fell (U1).

The client of ``ternmq.client`` serves many callers on a loop of its own, so what it receives is copied from the loop's
buffer, joined to frames, and handed from one thread to another. For a task that reads megabytes in order, that is more
work than all the rest of it. A line is a socket of the task's own thread: the kernel writes into ``data``, and
nothing moves from there. While the task works on what came, the broker fills the socket's buffer.

Answers may come in another order than they were asked for, as brokers read cold records beside warm ones. They stay
where they fell until they are asked for; those that nobody asks for any more are passed over. ``turn`` begins a new
round in the same buffer: what was handed out before may be written over from then on.

A line is never mended. Whatever goes wrong is a ``NetworkError``; then it is closed, and the next one is a new one.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable
from typing import Final, NamedTuple

from ternmq.errors import CallTimeout, NetworkError, RemoteProtocolError
from ternmq.net.endpoint import dial_blocking
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials
from ternmq.wire.frame import encode_request, response_at
from ternmq.wire.header import Header, Response

#: What is received beyond the frame that is waited for: enough for small ones to come together, little to move on.
_BEYOND_BYTES: Final = 64 * 1024


class Answer(NamedTuple):
    """A response; its body is what ``Line.data`` has from ``begin`` to before ``end``."""

    response: Response
    begin: int
    end: int


class Line:
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
        #: Where the next frame begins, and where that ends which was received.
        self._at = self._end = 0
        self._opaque = 0
        self._early: dict[int, Answer] = {}

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

    def answer(self, number: int) -> Answer:
        """The answer to a request; those to earlier ones are not wanted any more."""
        for early in [early for early in self._early if early < number]:
            del self._early[early]
        while number not in self._early:
            answer = self._receive()
            if answer.response.opaque >= number:
                self._early[answer.response.opaque] = answer
        return self._early.pop(number)

    def turn(self) -> None:
        """Begin at the front of the buffer again. Answers that came before their turn move there."""
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

    def _receive(self) -> Answer:
        while True:
            try:
                response, frame_end = response_at(self.data, self._at, self._end)
            except RemoteProtocolError as error:
                raise NetworkError(f"{self.address} broke the protocol: {error}", address=self.address) from error
            if response is not None:
                self._at = frame_end
                return Answer(response, frame_end - len(response.body), frame_end)
            self._receive_until(frame_end)

    def _receive_until(self, end: int) -> None:
        if end > len(self.data):
            # Positions stay what they are, so what was handed out in this round is found in the larger buffer too.
            self.data = self.data[: self._end] + bytearray(2 * end - self._end)
        view = memoryview(self.data)[: end + _BEYOND_BYTES]
        while self._end < end:
            try:
                received = self._socket.recv_into(view[self._end :])
            except OSError as error:
                raise self._broken(error) from None
            if not received:
                raise NetworkError(f"the connection to {self.address} was lost", address=self.address)
            self._end += received

    def _broken(self, error: OSError) -> NetworkError:
        if isinstance(error, TimeoutError):
            time_ms = int((self._socket.gettimeout() or 0) * 1000)
            return CallTimeout(f"{self.address} was silent for {time_ms} ms", address=self.address)
        return NetworkError(f"the connection to {self.address} was lost: {error.strerror}", address=self.address)
