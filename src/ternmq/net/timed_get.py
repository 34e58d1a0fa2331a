"""One GET over HTTP whose whole time has a limit (A6): for a thread that must come back, whatever the server does.

The time limit of a socket counts from each byte on: a server that sends one byte now and then would hold the thread for
ever. So each read here has what is left of the time. That holds for redirects, proxies and TLS, too; looking up a name
takes as long as the system's resolver allows.
"""

from __future__ import annotations

import http.client
import socket
import ssl
import urllib.error
import urllib.request
from typing import Any, Final

from ternmq.env import Clock, SystemClock
from ternmq.errors import NetworkError
from ternmq.rare_log import one_line

_TIME_OVER: Final = "the time is over"


def get(url: str, *, timeout_ms: int, bytes_max: int, clock: Clock | None = None) -> bytes:
    """The body of the answer to a GET. The URL must be one of HTTP or HTTPS: others are not tried.

    Raises ``NetworkError``: no answer, or not a complete one within the time, or a status that is not of success, or a
    body that is longer than ``bytes_max``.
    """
    time = _Time(clock or SystemClock(), timeout_ms / 1000)
    opener = urllib.request.OpenerDirector()
    for handler in (
        urllib.request.ProxyHandler(),
        _Plain(time),
        _Tls(time),
        urllib.request.HTTPDefaultErrorHandler(),
        urllib.request.HTTPErrorProcessor(),
        urllib.request.HTTPRedirectHandler(),
        urllib.request.UnknownHandler(),
    ):
        opener.add_handler(handler)
    body = b""
    try:
        with opener.open(url, timeout=timeout_ms / 1000) as response:
            while len(body) <= bytes_max:
                part = response.read1(bytes_max + 1 - len(body))
                if not part:
                    if response.length:
                        raise NetworkError(f"the answer ends {response.length} bytes too early", address=url)
                    return body
                body += part
    except urllib.error.HTTPError as error:
        error.close()
        raise NetworkError(f"the answer has the HTTP status {error.code}", address=url) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        if time.is_over():
            raise NetworkError(f"no complete answer within {timeout_ms} ms", address=url) from None
        reason = getattr(error, "reason", None) or error
        text = getattr(reason, "strerror", None) or str(reason) or type(reason).__name__
        raise NetworkError(one_line(text.lower() if text.isascii() else text), address=url) from None
    raise NetworkError(f"the answer has more than {bytes_max} bytes", address=url)


class _Time:
    """What is left of the time of one request."""

    def __init__(self, clock: Clock, limit_s: float) -> None:
        self._clock = clock
        self._end = clock.monotonic() + limit_s

    def is_over(self) -> bool:
        return self._clock.monotonic() >= self._end

    def left_s(self) -> float:
        """More than 0, which would mean not to wait. Raises ``TimeoutError``."""
        left = self._end - self._clock.monotonic()
        if left <= 0:
            raise TimeoutError(_TIME_OVER)
        return left

    def connect(self, address: tuple[str, int], *_: object) -> socket.socket:
        """``socket.create_connection`` with one limit for all addresses of a name."""
        host, port = address
        error: OSError = OSError(f"{host} has no address")
        for family, kind, protocol, _name, target in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            connection = _Socket(family, kind, protocol)
            connection.time = self
            try:
                connection.settimeout(self.left_s())
                connection.connect(target)
                return connection
            except OSError as refused:
                connection.close()
                error = refused
        raise error


class _Socket(socket.socket):
    """Each read has what is left of the time."""

    time: _Time | None = None

    def recv_into(self, *args: Any, **options: Any) -> int:
        if self.time is not None:
            self.settimeout(self.time.left_s())
        return super().recv_into(*args, **options)


class _TlsSocket(ssl.SSLSocket):
    """The same with TLS; a handshake has a limit for all of it as it is."""

    time: _Time | None = None

    def recv_into(self, *args: Any, **options: Any) -> int:
        if self.time is not None:
            self.settimeout(self.time.left_s())
        return super().recv_into(*args, **options)


class _Plain(urllib.request.HTTPHandler):
    def __init__(self, time: _Time) -> None:
        super().__init__()
        self._time = time

    def http_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection(host, **options)
        connection._create_connection = self._time.connect  # type: ignore[attr-defined]  # noqa: SLF001 - the seam that http.client has
        return connection


class _Tls(urllib.request.HTTPSHandler):
    def __init__(self, time: _Time) -> None:
        context = ssl.create_default_context()
        context.sslsocket_class = _TlsSocket
        super().__init__(context=context)
        self._time = time
        self._tls = context

    def https_open(self, request: urllib.request.Request) -> Any:
        return self.do_open(self._connection, request)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPSConnection:
        return _TlsConnection(host, self._time, context=self._tls, **options)


class _TlsConnection(http.client.HTTPSConnection):
    def __init__(self, host: str, time: _Time, **options: Any) -> None:
        super().__init__(host, **options)
        self._time = time
        self._create_connection = time.connect

    def connect(self) -> None:
        super().connect()
        assert isinstance(self.sock, _TlsSocket), "as its context says"
        self.sock.time = self._time
