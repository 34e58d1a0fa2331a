"""A peer: one connection, on which both ends may call (B2, B5).

``data_received`` takes what the kernel had ready, decodes all frames in it, settles the responses and hands the
requests to the lanes; replies gather in ``_out`` and leave in one write per turn of the loop. A handler is a plain
function that returns a ``Reply``; one that must wait returns an awaitable, and only then a task is made. It may also
return None and call ``reply`` itself later (a held pull, a send that waits for the disk).

A handler can fail, and its reply can be too large for a frame: both become an error reply. ``reply`` never raises, as
it is called from timers and callbacks of others, too.

Backpressure: when the other side does not read our replies, we stop reading its requests, but never while a call of
ours waits for its answer. Otherwise two programs that both call would wait for each other: neither can write, as
neither reads. So of two ends that both stopped reading, neither waits for an answer, and what they could not write are
answers that came too late; ``net.limits`` ends such a connection, as any other whose peer takes nothing for a while.
One on which nothing moves for two minutes is closed, as RocketMQ does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, cast

from ternmq.errors import (
    BrokerRefused,
    CallTimeout,
    LocalProtocolError,
    NetworkError,
    RemoteProtocolError,
    TernError,
    TooManyCalls,
)
from ternmq.net.gate import Access, Gate, Rule
from ternmq.net.lanes import Lanes
from ternmq.net.limits import OUTGOING, Usage
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import FLAG_ONEWAY, JSON, RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_reply, encode_request, frame
from ternmq.wire.header import Fields, Header, Reply, Request, Response
from ternmq.wire.record import pack_host

log = logging.getLogger(__name__)

IDLE_S: Final = 120.0
#: RocketMQ's ``clientAsyncSemaphoreValue``.
CALLS_MAX: Final = 65_535
#: Small buffers are cheaper to join than to hand over one by one; views of the log larger than this are not copied.
JOIN_BYTES_MAX: Final = 64 * 1024
#: Replies of one turn that have more bytes than this are written before the turn ends.
FLUSH_BYTES: Final = 1024 * 1024
#: Replies up to this size are written whatever else waits: they are few bytes, and say what became of a request.
SMALL_REPLY_BYTES: Final = 4 * 1024
#: An error that quotes what it was given may be as long as that.
REMARK_CHARS_MAX: Final = 4 * 1024
#: How long a connection that is closed may take to write what is left.
CLOSE_S: Final = 5.0
_OPAQUE_MASK: Final = 0x7FFFFFFF

Handler = Callable[["Peer", Request[Any]], "Reply | bytes | Awaitable[Reply | None] | None"]


@dataclass(slots=True, frozen=True)
class Route:
    """Who handles a request code, on which lane, and what its callers need."""

    handler: Handler
    lane: str
    rule: Rule
    #: Whether requests of this code have a body; if not, one that comes along is dropped at once, so that a request
    #: that has to wait does not keep it.
    takes_body: bool = True
    #: Whether a request of this code is for nothing once its connection is closed, as a pull that waits or a heartbeat.
    #: One that is queued by then is not carried out: ``on_close`` has been called, and would not undo it.
    needs_connection: bool = False


Routes = Mapping[int, Route]


class TaskOwner(Protocol):
    """What starts tasks and ends them all when it ends; an ``asyncio.TaskGroup``."""

    def create_task(self, coro: Any, /) -> Any: ...


class Caller(Protocol):
    """What made a call and gets its end: one of the two, once. Neither may raise."""

    def answered(self, response: Response) -> None: ...

    def failed(self, error: NetworkError) -> None: ...


class Peer(asyncio.Protocol):
    """The connection to one other program. All methods belong to the loop's thread."""

    def __init__(
        self,
        routes: Routes,
        lanes: Lanes,
        tasks: TaskOwner,
        *,
        on_open: Callable[[Peer], None] | None = None,
        on_close: Callable[[Peer], None] | None = None,
        gate: Gate | None = None,
        credentials: Credentials | None = None,
        usage: Usage | None = None,
        calls_max: int = CALLS_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        """``usage`` is what the connections of one server share; a connection of ours has one of its own.

        Without a ``gate``, every request is admitted. Calls of ours are signed with ``credentials``.
        """
        self._routes = routes
        self._lanes = lanes
        self._tasks = tasks
        self._on_open = on_open
        self._on_close = on_close
        self._gate = gate
        self._credentials = credentials
        #: What the gate knows of the other side (``gate.Caller``).
        self.access: Access | None = None
        self.proved = ""
        self._calls_max = calls_max
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._usage = usage if usage is not None else Usage(OUTGOING)
        self._frame_bytes_max = self._usage.limits.frame_max_length
        self._decoder = FrameDecoder(bytes_max=self._frame_bytes_max, typed=gate is None)
        #: The last read ended within a frame.
        self._is_cut = False
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        #: Of replies with a body, roughly.
        self._out_bytes = 0
        self._calls: dict[int, Caller] = {}
        self._opaque = 0
        self._active_at = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        #: The other side does not read: the opposite of ``_writable``, for the hot path.
        self._is_full = False
        self._is_paused = False
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
        return f"<Peer {self.address}{' closed' if self.closed.is_set() else ''}>"

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

    # --- Calls of ours ---------------------------------------------------------------------------------------

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        timeout_ms: int = 3000,
        form: int = JSON,
        more_fields: Fields | None = None,
    ) -> Response:
        """Send a request and wait for its response, whatever its code.

        The time includes waiting for the other side to read what was written before. Raises ``CallTimeout``,
        ``NetworkError`` when the connection breaks, ``TooManyCalls`` at the limit.
        """
        if self._is_full:
            began = self._loop.time()
            await self.writable(timeout_ms=timeout_ms)
            timeout_ms = max(1, timeout_ms - int((self._loop.time() - began) * 1000))
        response = self.start_call(code, header, body, form=form, more_fields=more_fields)
        timer = self._loop.call_later(timeout_ms / 1000, self._time_out, response, code, timeout_ms)
        try:
            return await response
        finally:
            timer.cancel()

    def start_call(
        self,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        form: int = JSON,
        more_fields: Fields | None = None,
    ) -> asyncio.Future[Response]:
        """Send a request; the future gets its response or the error that ended the connection."""
        opaque = self.next_opaque()
        buffers = encode_request(
            code,
            header,
            body,
            opaque=opaque,
            form=form,
            more_fields=more_fields,
            credentials=self._credentials,
            bytes_max=self._frame_bytes_max,
        )
        future: asyncio.Future[Response] = self._loop.create_future()
        self._begin(opaque, buffers, _Awaited(future))
        future.add_done_callback(lambda _: self._calls.pop(opaque, None))
        return future

    def next_opaque(self) -> int:
        """The number of the next call. Raises ``NetworkError`` when the connection is closed."""
        self._check_open()
        self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        return self._opaque

    def begin_call(self, opaque: int, head: bytes, body: Buffer, caller: Caller | None, *, form: int) -> None:
        """Send a request whose header is encoded already, with the number that ``next_opaque`` gave; without a caller,
        one that is not answered. No future is made, for those who make many calls."""
        self._begin(opaque, frame(head, form, body, self._frame_bytes_max), caller)

    def forget_call(self, opaque: int) -> None:
        """Its caller waits no longer."""
        self._calls.pop(opaque, None)

    def _begin(self, opaque: int, buffers: list[Buffer], caller: Caller | None) -> None:
        if caller is not None:
            if len(self._calls) >= self._calls_max:
                raise TooManyCalls(
                    f"{self._calls_max} calls to {self.address} are waiting for an answer; send more slowly"
                )
            self._calls[opaque] = caller
        self._write(buffers)
        if self._is_paused and caller is not None:
            # What we read next may be the answer.
            self._resume_reading()

    def call_oneway(
        self,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        form: int = JSON,
        more_fields: Fields | None = None,
    ) -> None:
        """Send a request that is not answered. Raises ``NetworkError`` when the connection is closed."""
        opaque = self.next_opaque()
        buffers = encode_request(
            code,
            header,
            body,
            opaque=opaque,
            oneway=True,
            form=form,
            more_fields=more_fields,
            credentials=self._credentials,
            bytes_max=self._frame_bytes_max,
        )
        self._write(buffers)

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

    def _time_out(self, response: asyncio.Future[Response], code: int, timeout_ms: int) -> None:
        if not response.done():
            response.set_exception(
                CallTimeout(
                    f"{self.address} did not answer {_code_name(code)} within {timeout_ms} ms", address=self.address
                )
            )

    def _check_open(self) -> None:
        if self._transport is None or self._transport.is_closing():
            raise NetworkError(f"the connection to {self.address or 'the peer'} is closed", address=self.address)
        if self._is_full and not self._has_room(0):
            raise TooManyCalls(
                f"{self._waiting_bytes} bytes are waiting to be read by {self.address}; send more slowly, or "
                "check why it does not read"
            )

    # --- Calls of theirs -------------------------------------------------------------------------------------

    def reply(self, request: Request[Any], reply: Reply | bytes) -> None:
        """Answer a request, now or later; nothing is sent for one-way requests or on a closed connection.

        Bytes are a whole frame, as ``wire.template`` prepares them for the hottest replies. Never raises: a reply that
        cannot be sent becomes one that says why.
        """
        if request.flag & FLAG_ONEWAY or self._transport is None:
            return
        if self._is_full:
            self._reply_while_full(request, reply)
            return
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        if isinstance(reply, bytes):
            out.append(reply)
            return
        buffers = self._encoded(request, reply)
        out += buffers
        if len(buffers) > 1:
            self._out_bytes += sum(map(len, buffers))
            if self._out_bytes > FLUSH_BYTES:
                # Not at the end of the turn: whether the other side reads must be known before much more is gathered.
                self._flush()

    def _encoded(self, request: Request[Any], reply: Reply) -> list[Buffer]:
        try:
            return encode_reply(request, reply, bytes_max=self._frame_bytes_max)
        except Exception as error:
            failure = self._failure(request, error)
        try:
            return encode_reply(request, failure)
        except Exception:
            # What is left of the request cannot be encoded, as an opaque of five thousand digits.
            log.exception("closing the connection to %s: cannot encode an error reply", self.address)
            self.abort()
            return []

    def _reply_while_full(self, request: Request[Any], reply: Reply | bytes) -> None:
        """Add a reply to others that the other side does not read, within the limits, and read no more requests."""
        buffers: list[Buffer] = [reply] if isinstance(reply, bytes) else self._encoded(request, reply)
        size = sum(map(len, buffers))
        if size > SMALL_REPLY_BYTES and not self._has_room(size):
            usage = self._usage
            remark = (
                f"[OVERLOAD]system busy: {self._waiting_bytes} bytes of replies are not read by this client, and "
                f"{usage.waiting_bytes} by all such clients; read replies before you send more requests"
            )
            buffers = self._encoded(request, Reply(ResponseCode.SYSTEM_BUSY, remark=remark))
            size = sum(map(len, buffers))
        self._count_waiting(self._waiting_bytes + size)
        self._write(buffers)
        if not self._calls and not self._is_paused and self._transport is not None:
            self._is_paused = True
            self._transport.pause_reading()
            self._usage.paused(self)

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

    def fail(self, request: Request[Any], error: Exception) -> None:
        """Answer a request with the error that ended it, as if its handler had raised it."""
        self.reply(request, self._failure(request, error))

    def run(self, request: Request[Any]) -> None:
        """Let the handler of its code answer a request (``lanes.Worker``)."""
        try:
            route = self._routes[request.code]
            if self._gate is not None:
                self._gate.admit(self, request, route.rule)
                if not route.takes_body:
                    request.drop_body()
            if request.fault is not None:
                raise RemoteProtocolError(request.fault)
            if self._transport is None and route.needs_connection:
                return
            result = route.handler(self, request)
            kind = type(result)
            if kind is bytes or kind is Reply:
                self.reply(request, result)  # type: ignore[arg-type]  # as just tested
            elif result is not None:
                self._start(request, result)  # type: ignore[arg-type]  # Reply was ruled out
        except Exception as error:
            self.fail(request, error)

    def _start(self, request: Request[Any], result: Awaitable[Reply | None]) -> None:
        """Answer a request when ``result`` is there, unless too many wait like this."""
        if not self._usage.begins(request.frame_bytes):
            if isinstance(result, Coroutine):
                result.close()
            self.refuse(
                request, "[OVERLOAD]system busy, too many requests are waiting for the disk or for other clients"
            )
            return
        self._tasks.create_task(self._finish(request, result))

    async def _finish(self, request: Request[Any], result: Awaitable[Reply | None]) -> None:
        try:
            reply = await result
        except Exception as error:
            reply = self._failure(request, error)
        finally:
            self._usage.ends(request.frame_bytes)
        if reply is not None:
            self.reply(request, reply)

    def _failure(self, request: Request[Any], error: Exception) -> Reply:
        remark = str(error)
        if len(remark) > REMARK_CHARS_MAX:
            remark = f"{remark[:REMARK_CHARS_MAX]}…"
        if isinstance(error, BrokerRefused):
            return Reply(error.code, remark=remark)
        if not isinstance(error, TernError):
            log.error("the handler of %s from %s failed", _code_name(request.code), self.address, exc_info=error)
        elif isinstance(error, LocalProtocolError):
            log.warning("cannot answer %s of %s: %s", _code_name(request.code), self.address, error)
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {remark}")

    def refuse(self, request: Request[Any], reason: str) -> None:
        """Answer that there is too much to do (``lanes.Worker``)."""
        self.reply(request, Reply(ResponseCode.SYSTEM_BUSY, remark=reason))

    # --- The transport's side --------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports do not inherit from asyncio's, they only behave like them.
        self._transport = transport = cast("asyncio.Transport", transport)
        self._remote = _host_and_port(transport.get_extra_info("peername"))
        self.address = format_address(*self._remote)
        self.local_address = format_address(*_host_and_port(transport.get_extra_info("sockname")))
        self._idle_timer = self._loop.call_later(self._idle_s, self._check_idle)
        if self._on_open is not None:
            self._on_open(self)

    def data_received(self, data: bytes) -> None:
        now = self._active_at = self._loop.time()
        decoder = self._decoder
        try:
            commands = decoder.feed(data)
        except RemoteProtocolError as error:
            self._usage.logs.warning("broken", f"closing the connection to {self.address}: {error}")
            self.abort()
            return
        if decoder.kept_bytes or self._is_cut:
            self._is_cut = decoder.kept_bytes > 0
            self._usage.keeps(self, decoder.kept_bytes, is_new=bool(commands))
        lanes, routes = self._lanes, self._routes
        by_name = lanes.by_name
        for command in commands:
            if type(command) is Response:
                caller = self._calls.pop(command.opaque, None)
                if caller is not None:
                    caller.answered(command)
                continue
            assert isinstance(command, Request)
            route = routes.get(command.code)
            if route is None:
                remark = f" request type {command.code} not supported"
                self.reply(command, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
                continue
            if not route.takes_body and self._gate is None:  # a signature covers it
                command.drop_body()
            lanes.submit(by_name[route.lane], self, command, now, command.frame_bytes)
        lanes.run()

    def connection_lost(self, exc: Exception | None) -> None:
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
        if self._on_close is not None:
            self._on_close(self)
        # Last, as a caller may try again at once, and must not find this connection.
        calls, self._calls = self._calls, {}
        reason = f": {exc}" if exc else ""
        if len(calls) >= self._opaque and calls:
            reason += " before it answered any request; check that the port is right, and whether it needs TLS"
        for caller in calls.values():
            caller.failed(NetworkError(f"the connection to {self.address} was lost{reason}", address=self.address))

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

    def left_bytes(self) -> int:
        """How much of what was ever written has left (``limits.Connection``)."""
        return self._written_bytes - (self._transport.get_write_buffer_size() if self._transport is not None else 0)

    def recount(self) -> None:
        """Look how much still waits (``limits.Connection``)."""
        if self._is_full and self._transport is not None:
            self._count_waiting(self._transport.get_write_buffer_size() + sum(map(len, self._out)))

    def _count_waiting(self, waiting_bytes: int) -> None:
        self._usage.waiting_bytes += waiting_bytes - self._waiting_bytes
        self._waiting_bytes = waiting_bytes

    def _write(self, buffers: list[Buffer]) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += buffers

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        self._out_bytes = 0
        self._active_at = self._loop.time()
        size = sum(map(len, out))
        self._written_bytes += size
        if len(out) == 1:
            self._transport.write(out[0])
        elif size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)
        self.recount()

    def _check_idle(self) -> None:
        if self._is_full and self.left_bytes() > self._left_bytes:
            # It reads, if slowly.
            self._left_bytes = self.left_bytes()
            self._active_at = self._loop.time()
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


class _Awaited:
    """A caller that awaits a future."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[Response]) -> None:
        self._future = future

    def answered(self, response: Response) -> None:
        if not self._future.done():
            self._future.set_result(response)

    def failed(self, error: NetworkError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


def format_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _host_and_port(name: object) -> tuple[str, int]:
    """An address as asyncio gives it; IPv4 clients of a dual-stack socket lose their ``::ffff:`` prefix."""
    if isinstance(name, tuple) and len(name) >= 2:
        host, port = str(name[0]), int(name[1])
        return host.removeprefix("::ffff:").split("%")[0], port
    return "0.0.0.0", 0  # noqa: S104 - a socket that is gone already


def _code_name(code: int) -> str:
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
