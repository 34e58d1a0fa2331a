"""The bytes of one connection: what is written and when it leaves, flow control, idleness and the end (B2, B5).

What is written in one turn of the loop gathers in ``_out`` and leaves in one write.

Backpressure: when the other side does not read, ``_is_full`` is set, and what waits for it is counted (``net.limits``),
which ends a connection whose peer takes nothing for a while. Whether to continue reading meanwhile is decided in
``net.peer``, which builds on this. A connection on which nothing moves for two minutes is closed, as RocketMQ does.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Final, cast

from ternmq.errors import CallTimeout
from ternmq.net.limits import Usage
from ternmq.types import Buffer
from ternmq.wire.record import pack_host

log = logging.getLogger(__name__)

IDLE_S: Final = 120.0
#: Small buffers are cheaper to join than to hand over one by one; views of the log larger than this are not copied.
JOIN_BYTES_MAX: Final = 64 * 1024
#: How long a connection that is closed may take to write what is left.
CLOSE_S: Final = 5.0
#: What the kernel keeps of a connection that brings more than can be served; megabytes of it would wait for seconds.
NARROW_BYTES: Final = 256 * 1024


class Stream(asyncio.Protocol):
    """One connection, as bytes to write. All methods belong to the loop's thread."""

    def __init__(self, usage: Usage, time: Callable[[], float], *, idle_s: float = IDLE_S) -> None:
        """``usage`` is what the connections of one server share; ``time`` the loop's exact time (``Lanes.time``)."""
        self._usage = usage
        self._time = time
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        #: Of replies with a body, roughly.
        self._out_bytes = 0
        self._active_at = self._time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        #: The other side does not read: the opposite of ``_writable``, for the hot path.
        self._is_full = False
        #: Nothing is read from the other side either.
        self._is_paused = False
        #: It brought more than there is room for, and is not read for a while (``lanes.read_later``).
        self._is_held = False
        #: Written so far, and what of it waits while we are full, as far as ``usage`` knows.
        self._written_bytes = 0
        self._waiting_bytes = 0
        #: What had left when idleness was last looked at.
        self._left_bytes = 0
        self.closed = asyncio.Event()
        #: ``ip:port`` of the other side and of ours.
        self.address = ""
        self.local_address = ""
        self._remote: tuple[str, int] = ("0.0.0.0", 0)  # noqa: S104 - no address yet, nothing is bound

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.address}{' closed' if self.closed.is_set() else ''}>"

    @cached_property
    def host(self) -> bytes:
        """The other side's address as it stands in records (born host)."""
        return pack_host(*self._remote)

    @property
    def is_full(self) -> bool:
        """Whether the other side does not read what was written."""
        return self._is_full

    @property
    def remote_ip(self) -> str:
        return self._remote[0]

    @property
    def certificate(self) -> Mapping[str, object]:
        """What the other side has shown (``gate.CallingPeer``)."""
        return (self._transport.get_extra_info("peercert") if self._transport is not None else None) or {}

    # --- The transport's side --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, they only behave like them.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._remote = host_and_port(transport.get_extra_info("peername"))
        self.address = format_address(*self._remote)
        self.local_address = format_address(*host_and_port(transport.get_extra_info("sockname")))
        self._idle_timer = self._loop.call_later(self._idle_s, self._check_idle)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._transport = None
        self._out.clear()
        for timer in (self._idle_timer, self._close_timer):
            if timer is not None:
                timer.cancel()
        self._count_waiting(0)
        self._usage.forget(self)
        self._is_full = False
        self._writable.set()
        self.closed.set()

    def pause_writing(self) -> None:
        self._is_full = True
        self._writable.clear()
        self.recount()
        self._usage.unread(self)

    def resume_writing(self) -> None:
        self._is_full = False
        self._writable.set()
        self._count_waiting(0)
        self._usage.read_again(self)
        if self._is_paused:
            self._resume_reading()

    def _resume_reading(self) -> None:
        self._is_paused = False
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._usage.resumed(self)

    def _read_on(self) -> None:
        """It was held for long enough."""
        self._is_held = False
        if not self._is_paused and self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()
            self._usage.resumed(self)

    def _narrow(self) -> None:
        """Let the kernel keep little of what is not read yet, from now on: the other side notices sooner."""
        sock = self._transport.get_extra_info("socket") if self._transport is not None else None
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, NARROW_BYTES)

    # --- Writing ---------------------------------------------------------------------------------------------

    async def writable(self, *, timeout_ms: int) -> None:
        """Wait while the other side does not read what was written; before one-way calls, which nothing else slows.

        Raises ``CallTimeout``.
        """
        if not self._is_full:
            return
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                await self._writable.wait()
        except TimeoutError:
            raise CallTimeout(
                f"{self.address} did not read earlier data within {timeout_ms} ms", address=self.address
            ) from None

    def _write(self, buffers: list[Buffer]) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += buffers

    def flush(self) -> None:
        """Write what has gathered now, not when the turn of the loop ends."""
        self._flush()

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        self._out_bytes = 0
        self._active_at = self._time()
        size = sum(map(len, out))
        self._written_bytes += size
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        if self._is_full:
            self.recount()

    def left_bytes(self) -> int:
        """How much of what was ever written has left (``limits.CountedConnection``)."""
        return self._written_bytes - (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def recount(self) -> None:
        """Look how much still waits (``limits.CountedConnection``)."""
        if self._is_full and self._transport is not None:
            self._count_waiting(self._transport.get_write_buffer_size() + sum(map(len, self._out)))

    def _count_waiting(self, waiting_bytes: int) -> None:
        self._usage.waiting_bytes += waiting_bytes - self._waiting_bytes
        self._waiting_bytes = waiting_bytes

    def _has_room(self, size: int) -> bool:
        """Whether so many bytes more may wait for the other side."""
        usage, limits = self._usage, self._usage.limits
        for _ in range(2):
            if (
                self._waiting_bytes + size <= limits.max_waiting_reply_bytes
                and usage.waiting_bytes + size <= limits.max_waiting_reply_bytes_total
            ):
                return True
            # Some may have left since they were counted.
            self.recount()
        return False

    # --- The end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Close once what was written has left, or after some seconds: the other side may not read it."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
            if self._close_timer is None:
                self._close_timer = self._loop.call_later(CLOSE_S, self.abort)

    def abort(self) -> None:
        """Close at once."""
        self._out.clear()
        self._count_waiting(0)
        self._usage.forget(self)
        if self._transport is not None:
            self._transport.abort()

    def _check_idle(self) -> None:
        if self._is_full and self.left_bytes() > self._left_bytes:
            # It reads, if slowly.
            self._left_bytes = self.left_bytes()
            self._active_at = self._time()
        # A moment, not a rest of seconds: the rest may be so small that adding it to the time changes nothing.
        end = self._active_at + self._idle_s
        if self._loop.time() >= end:
            log.info("closing the idle connection to %s", self.address)
            if self._is_full:
                self.abort()
            else:
                self.close()
        else:
            self._idle_timer = self._loop.call_at(end, self._check_idle)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_and_port(name: object) -> tuple[str, int]:
    """An address as asyncio gives it; IPv4 clients of a dual-stack socket lose their ``::ffff:`` prefix."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = str(name[0]), int(name[1])
        return host.removeprefix("::ffff:").split("%")[0], port
    return "0.0.0.0", 0  # noqa: S104 - a socket that is gone already
