"""Sockets: the only place where connections are accepted and dialled (B2, B4).

``bind`` holds a port, ``listen`` accepts its connections, ``dial`` and ``dial_blocking`` make connections. Each
takes an ``ssl.SSLContext``; without one, connections are plain. Simulated loops (``testing.loop``) have ports of their
own, and plain connections only.

A port with TLS may also accept plain connections (RocketMQ's ``tls.server.mode=permissive``). The first byte of a
connection shows its kind: 22 begins a TLS handshake, and no valid frame. This byte must be read before there is a
transport, because bytes that a protocol has read cannot be passed to a handshake any more. So such a port has four
steps: accept, peek, handshake, protocol. The first three are limited in number and in time, because
``net.limits`` counts a connection only when it has a protocol. On a plain port the loop does all of this.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
import sys
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol, TypeVar, cast, runtime_checkable

from ternmq.errors import ConfigError, MachineSilent, NetworkError
from ternmq.net.newcomers import Newcomers
from ternmq.net.tls import LiveTls
from ternmq.rare_log import RareLog
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

ProtocolT = TypeVar("ProtocolT", bound=asyncio.Protocol)

#: Connections that may wait in the kernel to be accepted (RocketMQ's ``serverSocketBacklog``).
BACKLOG: Final = 1024
#: Connections of a TLS port that have no protocol yet. Above the limit one is closed (``net.newcomers``): a handshake
#: takes milliseconds, so the oldest one of an address is the most likely to never finish.
OPENING_MAX: Final = 1024
#: How long such a connection may take for its first byte and its handshake.
OPENING_S: Final = 30.0
#: How long to wait if the kernel has no file descriptor for a connection; asyncio's own servers wait as long.
_ACCEPT_RETRY_S: Final = 1.0
#: The other machine must acknowledge what it gets within this time: less than a send may take, so that it can still go
#: to the next master.
UNACKNOWLEDGED_MS_MAX: Final = 2_000
#: A connection on which nothing arrives is asked for a sign of life so often (an empty packet, and one back): all that
#: was sent may have been acknowledged, and the answers lost.
KEEP_ALIVE_S: Final = 1
#: How often it is looked whether the machines that owe an answer acknowledge anything (``is_unheard``).
LOOK_S: Final = 0.25
#: Of Linux' ``struct tcp_info``: how often something was sent again, and asked, without an answer; ms since the last
#: answer.
_TCP_INFO_BYTES: Final = 60
_TCP_INFO_ASKED: Final = slice(2, 4)
_TCP_INFO_LAST_ACK: Final = slice(56, 60)
#: Why a connection was lost whose other end ``is_unheard``, for an error.
UNHEARD: Final = ": its machine does not acknowledge what is sent to it; it is down, or the network between is"
_SILENCE: Final = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN})
#: The first byte of a TLS handshake (record type 22).
_TLS_HANDSHAKE: Final = b"\x16"


class Bound(Protocol):
    """A port that is bound: a socket, or its counterpart in a simulation."""

    def getsockname(self) -> tuple[str, int]: ...

    def close(self) -> None: ...


class Acceptor(Protocol):
    """Accepts the connections of a port until it is closed. Connections that have a protocol stay open."""

    def close(self) -> None: ...


@runtime_checkable
class HasPorts(Protocol):
    """A loop with its own network (``testing.loop``), which binds the ports, too."""

    def bind(self, host: str, port: int) -> Bound:
        """Bind a port; ``create_server`` takes the result as its ``sock``. Raises ``OSError`` as a socket does."""
        ...


# --- Accepting ------------------------------------------------------------------------------------------------


def bind(host: str, port: int) -> Bound:
    """A socket that is bound to a port (0: a free one) but accepts no connections yet, for ``listen``.

    A server that must know its port before it builds its parts binds first, and listens when all parts are ready.
    Raises ``NetworkError`` if the port is in use, ``ConfigError`` if the address is not one of this machine.
    """
    loop = asyncio.get_running_loop()
    try:
        return loop.bind(host, port) if isinstance(loop, HasPorts) else _socket(host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NetworkError(
                f"port {port} on {host} is in use; stop the program that uses it, or choose another port",
                address=f"{host}:{port}",
            ) from None
        if error.errno == errno.EACCES:
            raise ConfigError(
                f"no permission to listen on port {port}; choose a port above 1023, or run as a user that may use it"
            ) from None
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}; check the address") from None


def _socket(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # Allows a port whose last connections are still in TIME_WAIT; on Windows the option has another meaning.
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        # With the option, two sockets may bind one port; only the second ``listen`` fails. So listen here already:
        # clients that connect now wait in the kernel until ``listen`` of this module.
        bound.listen(BACKLOG)
        bound.setblocking(False)
    except OSError:
        bound.close()
        raise
    return bound


async def listen(
    bound: Bound,
    factory: Callable[[], asyncio.Protocol],
    tls: ssl.SSLContext | LiveTls | None = None,
    *,
    tasks: Tasks,
    plain_too: bool = False,
) -> Acceptor:
    """Accept connections on a port of ``bind``, which the acceptor owns from now on; each one gets a protocol.

    ``plain_too`` lets a port with ``tls`` accept plain connections as well; otherwise it closes them. A ``LiveTls``
    says so itself. ``tasks`` owns the tasks that a port with ``tls`` needs; close the acceptor before it ends.
    """
    loop = asyncio.get_running_loop()
    listening = cast("socket.socket", bound)
    if tls is None:
        return await loop.create_server(factory, sock=listening, backlog=BACKLOG)
    return _TlsAcceptor(listening, factory, tls, tasks, plain_too=plain_too)


class _TlsAcceptor:
    """Accepts, reads the first byte without consuming it, and creates the transport for it."""

    def __init__(
        self,
        listening: socket.socket,
        factory: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | LiveTls,
        tasks: Tasks,
        *,
        plain_too: bool,
    ) -> None:
        self._listening = listening
        self._factory = factory
        self._tls = tls
        self._plain_too = tls.plain_too if isinstance(tls, LiveTls) else plain_too
        self._loop = asyncio.get_running_loop()
        self._tasks = tasks
        #: Scanners and load balancers open connections and close them again all the time.
        self._logs = RareLog(log, self._loop.time)
        self._opening = Newcomers[asyncio.Task[bool]](OPENING_MAX)
        self._accepting = self._tasks.create_task(self._accept(), name="accept connections")
        # Not before the loop has removed the socket: its number may be reused at once.
        self._accepting.add_done_callback(lambda _: listening.close())

    def close(self) -> None:
        self._accepting.cancel()
        for opening in self._opening:
            opening.cancel()

    async def _accept(self) -> None:
        while True:
            try:
                connection, address = await self._loop.sock_accept(self._listening)
            except ConnectionError:
                continue  # The client has already closed it.
            except OSError as error:
                reason = f"{error.strerror}; retrying in {_ACCEPT_RETRY_S} s"
                self._logs.warning("accept", f"cannot accept connections: {reason}")
                await asyncio.sleep(_ACCEPT_RETRY_S)
                continue
            opening = self._tasks.create_task(self._open(connection, address))
            loser = self._opening.add(opening, address[0])
            if loser is not None:
                loser.cancel()
            opening.add_done_callback(partial(self._opened, connection))

    def _opened(self, connection: socket.socket, opening: asyncio.Task[bool]) -> None:
        """Close a connection without a protocol. The task cannot do this: if it is cancelled early, it never runs."""
        self._opening.discard(opening)
        if opening.cancelled() or opening.exception() is not None or not opening.result():
            connection.close()

    async def _open(self, connection: socket.socket, address: tuple[str, int]) -> bool:
        """Give a connection its protocol; False if it must be closed."""
        try:
            async with asyncio.timeout(OPENING_S):
                first = await self._first_byte(connection)
                is_tls = first == _TLS_HANDSHAKE
                if is_tls or (first and self._plain_too):
                    tls = self._tls.context if isinstance(self._tls, LiveTls) else self._tls
                    await self._loop.connect_accepted_socket(self._factory, connection, ssl=tls if is_tls else None)
                    return True
        except OSError as error:  # This includes errors of TLS and time-outs.
            reason = str(error) or f"the handshake did not finish within {OPENING_S} s"
        else:
            reason = "this port needs TLS; turn it on in the client (useTLS, tls.enable)" if first else "it has ended"
        self._logs.warning("opening", f"closing a connection from {address[0]}: {reason}")
        return False

    async def _first_byte(self, connection: socket.socket) -> bytes:
        """The first byte, which stays in the kernel; empty if the connection has ended."""
        readable = asyncio.Event()
        self._loop.add_reader(connection, readable.set)
        try:
            await readable.wait()
        finally:
            self._loop.remove_reader(connection)
        return connection.recv(1, socket.MSG_PEEK)


class HasOptions(Protocol):
    """A socket, or its counterpart in a simulation."""

    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...


# --- Dialling -------------------------------------------------------------------------------------------------


async def dial(
    address: str, factory: Callable[[], ProtocolT], tls: ssl.SSLContext | None = None, *, timeout_ms: int = 3000
) -> ProtocolT:
    """Connect a protocol to ``host:port``; raises ``NetworkError`` that names the address and the reason."""
    loop = asyncio.get_running_loop()
    try:
        host, port = split_address(address)
        async with asyncio.timeout(timeout_ms / 1000):
            transport, protocol = await loop.create_connection(factory, host, port, ssl=tls)
    except (OSError, ValueError) as error:
        raise _not_connected(address, error, timeout_ms, with_tls=tls is not None) from None
    connection = transport.get_extra_info("socket")
    if connection is not None:
        _keep_alive(connection)
    return protocol


def dial_blocking(
    address: str, tls: ssl.SSLContext | None = None, *, timeout_ms: int = 3000, is_watched: bool = False
) -> socket.socket:
    """A connected socket for a thread without a loop; ``timeout_ms`` is also the limit of each later call.

    The kernel ends it when the other machine acknowledges nothing, unless its thread looks for that itself
    (``is_watched``, by ``is_unheard``): then a machine that reads late is not taken for dead. Raises as ``dial``.
    """
    try:
        host, port = split_address(address)
        connection = socket.create_connection((host, port), timeout_ms / 1000)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _keep_alive(connection)
            if not is_watched and hasattr(socket, "TCP_USER_TIMEOUT"):
                # Its thread can only wait. What it sends is too little to fill the buffers of the other side.
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS_MAX)
            return connection if tls is None else tls.wrap_socket(connection, server_hostname=host)
        except BaseException:
            connection.close()
            raise
    except (OSError, ValueError) as error:
        raise _not_connected(address, error, timeout_ms, with_tls=tls is not None) from None


def _keep_alive(connection: socket.socket) -> None:
    """Let the kernel ask the other machine for a sign of life while nothing arrives, and end the connection without.

    A process that dies closes its connections. A machine that dies does not. It is the kernel of the other machine that
    answers, whatever its programs do.
    """
    # Linux has all of them, Windows too. macOS names the first one otherwise.
    if hasattr(socket, "TCP_KEEPIDLE"):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEP_ALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEP_ALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


def is_unheard(sock: HasOptions | None) -> bool:
    """Whether the other machine has acknowledged nothing for ``UNACKNOWLEDGED_MS_MAX``, although it was asked twice or
    more: by packets that were sent again, by questions for a sign of life, or by questions whether it has room.

    So a broker that is busy is not meant, nor one whose buffers are full, nor a pull that is held: their kernels
    answer. (``TCP_USER_TIMEOUT`` does not tell full buffers from death: a broker with more than it could take lost
    most of its connections by it.)
    """
    if sock is None or sys.platform != "linux":
        return False
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except (OSError, ValueError):
        # It is closed, and not told yet.
        return False
    unheard_ms = int.from_bytes(info[_TCP_INFO_LAST_ACK], sys.byteorder)
    return sum(info[_TCP_INFO_ASKED]) >= 2 and unheard_ms >= UNACKNOWLEDGED_MS_MAX


def is_silence(error: Exception | None) -> bool:
    """Whether a connection has ended, or was not made, because the other machine acknowledges nothing. Its network may
    tell so."""
    return isinstance(error, OSError) and error.errno in _SILENCE


def lost(address: str, error: Exception | None = None) -> NetworkError:
    """The error for a connection that its other end has closed, or that was lost by an ``error``."""
    kind = MachineSilent if is_silence(error) else NetworkError
    reason = f": {getattr(error, 'strerror', None) or error}" if error is not None else ""
    return kind(f"the connection to {address} was lost{reason}", address=address)


def lost_in_silence(address: str) -> MachineSilent:
    """The error for a connection that was given up because its other end ``is_unheard``."""
    return MachineSilent(f"the connection to {address} was lost{UNHEARD}", address=address)


def _not_connected(address: str, error: OSError | ValueError, timeout_ms: int, *, with_tls: bool) -> NetworkError:
    """The error for a failed connection. An invalid address (``ConfigError``) or name (``ValueError`` of the resolver)
    may come from a route: then only this broker cannot be reached."""
    if isinstance(error, TimeoutError):
        return MachineSilent(f"{address} did not accept a connection within {timeout_ms} ms", address=address)
    reason = getattr(error, "strerror", None) or str(error)
    if is_silence(error):
        return MachineSilent(f"cannot connect to {address}: {reason}", address=address)
    if isinstance(error, ssl.SSLCertVerificationError):
        reason = f"{error.verify_message}; check that the certificate is trusted here, and is for this address"
    elif isinstance(error, ssl.SSLError) or (with_tls and isinstance(error, ConnectionError | EOFError)):
        # A plain port takes a handshake for a broken frame, and closes.
        reason = (
            f"{reason or 'the connection was closed'}; check that this port speaks TLS, and that its certificate is "
            "trusted here"
        )
    return NetworkError(f"cannot connect to {address}: {reason}", address=address)


def split_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``; raises ``ConfigError`` with the expected form."""
    host, separator, port = address.strip().rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not separator or not host or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:
        raise ConfigError(f"invalid address {address!r}: expected host:port, as in 127.0.0.1:9876")
    return host, int(port)


def outward_ip(host: str, port: int) -> str:
    """The address of this machine for packets to another one; raises ``OSError`` if there is no route.

    Blocks while a name is resolved. No packet is sent: connecting a datagram socket only makes the kernel choose a
    route.
    """
    family, kind, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(target)
        return str(probe.getsockname()[0])
