"""A small HTTP/1.1 server: GET and HEAD, one request of a connection at a time, everything bounded (R5).

h11 knows the bytes of HTTP, ``net.endpoint`` the sockets; here are the bounds and the order of things::

    reading ── head complete ──▶ answering ── written, and taken by the kernel ──▶ reading, or ending
       └── nothing whole within ``HEAD_S`` ──▶ closed          └── not taken within ``TAKE_S`` ──▶ closed

While a request is answered nothing is read, so that requests that were sent at once wait in the kernel. A request with
a body, with another method or with a target that is not valid gets an answer, and the connection ends: what else comes
is dropped for ``LINGER_S``, because closing at once would take the answer from a client that is still sending.

Needs ``pip install ternmq[http]``.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, cast
from urllib.parse import parse_qsl, unquote_to_bytes

import h11

from ternmq.net.endpoint import Acceptor, Bound, listen
from ternmq.net.stream import format_address, host_and_port
from ternmq.net.tls import LiveTls
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: Connections at once. One more closes the oldest that is not being answered.
CONNECTIONS_MAX: Final = 64
#: The request line and all headers.
HEAD_BYTES_MAX: Final = 16 << 10
#: Bytes of all answers that clients have not taken yet; above that, requests are refused.
UNTAKEN_BYTES_MAX: Final = 32 << 20
#: What is asked to see whether the process lives: answered in any case, in a few bytes.
PROBES: Final = (("healthz",), ("readyz",))
#: Seconds for a whole head, also between two requests; and for a client to take an answer.
HEAD_S: Final = 20.0
TAKE_S: Final = 30.0
LINGER_S: Final = 2.0
_PARAMETERS_MAX: Final = 16
_BAD_ESCAPE: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")
_METHODS: Final = (b"GET", b"HEAD")
_VERSIONS: Final = (b"1.0", b"1.1")


class BadTarget(ValueError):
    """What a client asks for cannot be read; the text says why."""


@dataclass(slots=True, frozen=True)
class HttpRequest:
    """What a client asks for."""

    #: The parts of the path, decoded.
    path: tuple[str, ...]
    parameters: Mapping[str, str]
    #: Empty: there is no such header.
    authorization: str
    ip: str
    address: str
    is_tls: bool
    #: Of the client (``net.gate.CallingPeer``); empty if it has shown none.
    certificate: Mapping[str, object] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class HttpAnswer:
    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


def plain(status: HTTPStatus, text: str, **headers: str) -> HttpAnswer:
    return HttpAnswer(status, f"{text}\n".encode(), headers=headers)


_LATER: Final = plain(HTTPStatus.SERVICE_UNAVAILABLE, "clients do not take their answers; ask again later")


def parse_target(target: bytes) -> tuple[tuple[str, ...], dict[str, str]]:
    """Path and parameters of a request. Raises ``BadTarget``."""
    try:
        path, _, query = target.decode("ascii").partition("?")
        if not path.startswith("/"):
            raise BadTarget("the target must begin with /")
        if _BAD_ESCAPE.search(path) or _BAD_ESCAPE.search(query):
            raise BadTarget("a % in the target is not followed by two hexadecimal digits")
        parts = tuple(unquote_to_bytes(part).decode() for part in path[1:].split("/"))
        pairs = (
            parse_qsl(
                query, keep_blank_values=True, strict_parsing=True, errors="strict", max_num_fields=_PARAMETERS_MAX
            )
            if query
            else []
        )
    except BadTarget:
        raise
    except ValueError as error:
        raise BadTarget(f"the target cannot be read: {error}") from None
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        raise BadTarget("a parameter is given twice")
    return parts, parameters


class HttpServer:
    """Answers requests by ``answer``, on this loop, from ``listen`` to ``close``."""

    def __init__(self, answer: Callable[[HttpRequest], Awaitable[HttpAnswer]], tasks: Tasks) -> None:
        self.answer = answer
        self.tasks = tasks
        self._acceptor: Acceptor | None = None
        #: The oldest first.
        self._connections: dict[_Connection, None] = {}

    async def listen(self, bound: Bound, tls: LiveTls | None) -> None:
        """Serve a port of ``net.endpoint.bind``, which is the server's from now on."""
        self._acceptor = await listen(bound, lambda: _Connection(self), tls, tasks=self.tasks)

    def close(self) -> None:
        if self._acceptor is not None:
            self._acceptor.close()
        for each in list(self._connections):
            each.abort()

    @property
    def is_full(self) -> bool:
        """Whether clients leave so much untaken that nothing more is answered."""
        return sum(each.untaken_bytes for each in self._connections) > UNTAKEN_BYTES_MAX

    def opened(self, connection: _Connection) -> None:
        self._connections[connection] = None
        if len(self._connections) > CONNECTIONS_MAX:
            oldest = next(each for each in self._connections if not each.is_answering)
            # Now: it is closed in a later turn, and more may connect in this one.
            del self._connections[oldest]
            oldest.abort()

    def closed(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        #: The kernel has not taken all that was written.
        self._is_full = False
        self._is_head = False
        #: The last answer was written: what still comes does not count.
        self._is_over = False
        self.is_answering = False

    @property
    def untaken_bytes(self) -> int:
        return self._transport.get_write_buffer_size() if self._transport is not None else 0

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # --- Protocol -----------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not checked: uvloop's transports are no subclass of asyncio's.
        self._transport = cast("asyncio.Transport", transport)
        # So that ``resume_writing`` means that all is taken. Not 0 for ``high``: TLS would pause with nothing to write.
        self._transport.set_write_buffer_limits(high=1, low=0)
        self._server.opened(self)
        self._limit(HEAD_S)

    def connection_lost(self, _error: Exception | None) -> None:
        self._transport = None
        self._limit(None)
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self.is_answering and self._http.our_state is not h11.SEND_RESPONSE:
            self._answered()

    def data_received(self, data: bytes) -> None:
        if self._is_over:
            return
        try:
            self._http.receive_data(data)
        except h11.RemoteProtocolError as error:
            self._wrong(error)
            return
        self._go_on()

    # ------------------------------------------------------------------------------------------------------------------

    def _limit(self, seconds: float | None) -> None:
        """Close the connection then, unless a later call says otherwise."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, self.abort) if seconds is not None else None

    def _go_on(self) -> None:
        if self.is_answering or self._transport is None or self._transport.is_closing():
            return
        try:
            event = self._http.next_event()
        except h11.RemoteProtocolError as error:
            self._wrong(error)
            return
        if isinstance(event, h11.Request):
            self._begin(event)
        elif isinstance(event, h11.ConnectionClosed):
            self._transport.close()

    def _begin(self, request: h11.Request) -> None:
        assert self._transport is not None
        self.is_answering, self._is_head = True, request.method == b"HEAD"
        self._transport.pause_reading()
        # What answers has its own limit.
        self._limit(None)
        try:
            has_body = not isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            self._wrong(error)
            return
        # h11 bounds a head only until it is complete.
        head_bytes = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
        if request.http_version not in _VERSIONS:
            self._write(plain(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "this port speaks HTTP/1.1"), closes=True)
        elif head_bytes > HEAD_BYTES_MAX:
            reason = f"the head of the request has more than {HEAD_BYTES_MAX} bytes"
            self._write(plain(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, reason), closes=True)
        elif request.method not in _METHODS:
            answer = plain(HTTPStatus.METHOD_NOT_ALLOWED, "only GET and HEAD are served here", Allow="GET, HEAD")
            self._write(answer, closes=True)
        elif has_body:
            self._write(plain(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "requests have no body here"), closes=True)
        else:
            try:
                path, parameters = parse_target(request.target)
            except BadTarget as error:
                self._write(plain(HTTPStatus.BAD_REQUEST, str(error)), closes=True)
                return
            if self._server.is_full and path not in PROBES:
                self._write(_LATER)
                return
            headers = dict(request.headers)
            ip, port = host_and_port(self._transport.get_extra_info("peername"))
            asked = HttpRequest(
                path,
                parameters,
                headers.get(b"authorization", b"").decode("latin-1"),
                ip,
                format_address(ip, port),
                self._transport.get_extra_info("sslcontext") is not None,
                self._transport.get_extra_info("peercert") or {},
            )
            self._server.tasks.create_task(self._answer(asked), name="http: answer")

    async def _answer(self, asked: HttpRequest) -> None:
        try:
            answer = await self._server.answer(asked)
        except Exception:
            # The top of a request: one that fails must not end the server.
            log.exception("a request over HTTP for /%s failed", "/".join(asked.path)[:200])
            answer = plain(HTTPStatus.INTERNAL_SERVER_ERROR, "the request failed; the log of the broker says why")
        # Again: others may have been answered since this request came, and have left their answers untaken.
        self._write(_LATER if self._server.is_full and asked.path not in PROBES else answer)

    def _wrong(self, error: h11.RemoteProtocolError) -> None:
        """What came is not HTTP, or too much of it: nothing more is taken in."""
        self.is_answering = self._is_over = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._write(plain(HTTPStatus(error.error_status_hint), str(error)), closes=True)
        else:
            self.abort()

    def _write(self, answer: HttpAnswer, *, closes: bool = False) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        headers = {
            "Content-Type": answer.content_type,
            "Content-Length": str(len(answer.body)),
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            **answer.headers,
            **({"Connection": "close"} if closes else {}),
        }
        self._limit(TAKE_S)
        parts = [
            self._http.send(
                h11.Response(status_code=answer.status, headers=list(headers.items()), reason=answer.status.phrase)
            ),
            b"" if self._is_head else self._http.send(h11.Data(data=answer.body)),
            self._http.send(h11.EndOfMessage()),
        ]
        self._transport.writelines([part for part in parts if part])
        if not self._is_full:
            self._answered()

    def _answered(self) -> None:
        """The client has taken the answer: wait for its next request, or close."""
        if self._transport is None:
            return
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            self._finish(self._transport)
            return
        self._http.start_next_cycle()
        self.is_answering = False
        self._limit(HEAD_S)
        self._transport.resume_reading()
        # Another request may have come with the last one.
        self._loop.call_soon(self._go_on)

    def _finish(self, transport: asyncio.Transport) -> None:
        """Close, when the client has closed its side or has had time to read the answer."""
        self._is_over, self.is_answering = True, False
        if not transport.can_write_eof():
            # TLS: it has no half-closed connections.
            transport.close()
            return
        self._limit(LINGER_S)
        try:
            transport.write_eof()
        except OSError:
            # The client has gone.
            transport.abort()
        else:
            transport.resume_reading()
