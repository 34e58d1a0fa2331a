"""A peer: one connection, on which both ends may call (B2, B5).

``data_received`` takes what the kernel had ready, decodes all frames in it, settles the responses and hands the
requests to the lanes; replies gather in ``_out`` and leave in one write per turn of the loop. A handler is a plain
function that returns a ``Reply``; one that must wait returns an awaitable, and only then a task is made. It may also
return None and call ``reply`` itself later (a held pull, a send that waits for the disk).

Backpressure: when the other side does not read our replies, we stop reading its requests. A connection on which nothing
moves for two minutes is closed, as RocketMQ does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Protocol, cast

from ternmq.errors import BrokerRefused, CallTimeout, NetworkError, RemoteProtocolError, TernError, TooManyCalls
from ternmq.net.lanes import Lanes
from ternmq.types import Buffer
from ternmq.wire.codes import FLAG_ONEWAY, JSON, RequestCode, ResponseCode
from ternmq.wire.frame import FrameDecoder, encode_reply, encode_request
from ternmq.wire.header import Fields, Header, Reply, Request, Response
from ternmq.wire.record import pack_host

log = logging.getLogger(__name__)

IDLE_S: Final = 120.0
#: RocketMQ's ``clientAsyncSemaphoreValue``.
CALLS_MAX: Final = 65_535
#: Small buffers are cheaper to join than to hand over one by one; views of the log larger than this are not copied.
JOIN_BYTES_MAX: Final = 64 * 1024
_OPAQUE_MASK: Final = 0x7FFFFFFF

Handler = Callable[["Peer", Request[Any]], "Reply | bytes | Awaitable[Reply | None] | None"]


@dataclass(slots=True, frozen=True)
class Route:
    """Who handles a request code, and on which lane."""

    handler: Handler
    lane: str


Routes = Mapping[int, Route]


class TaskOwner(Protocol):
    """What starts tasks and ends them all when it ends; an ``asyncio.TaskGroup``."""

    def create_task(self, coro: Any, /) -> Any: ...


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
        calls_max: int = CALLS_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        self._routes = routes
        self._lanes = lanes
        self._tasks = tasks
        self._on_open = on_open
        self._on_close = on_close
        self._calls_max = calls_max
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder()
        self._transport: asyncio.Transport | None = None
        self._out: list[Buffer] = []
        self._calls: dict[int, asyncio.Future[Response]] = {}
        self._opaque = 0
        self._active_at = self._loop.time()
        self._idle_timer: asyncio.TimerHandle | None = None
        self._writable = asyncio.Event()
        self._writable.set()
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

        Raises ``CallTimeout``, ``NetworkError`` when the connection breaks, ``TooManyCalls`` at the limit.
        """
        await self._writable.wait()
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
        self._check_open()
        if len(self._calls) >= self._calls_max:
            raise TooManyCalls(f"{self._calls_max} calls to {self.address} wait for an answer; send more slowly")
        opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        future: asyncio.Future[Response] = self._loop.create_future()
        self._calls[opaque] = future
        future.add_done_callback(lambda _: self._calls.pop(opaque, None))
        self._write(encode_request(code, header, body, opaque=opaque, form=form, more_fields=more_fields))
        return future

    def call_oneway(
        self,
        code: int,
        header: Header | None = None,
        body: Buffer = b"",
        *,
        form: int = JSON,
        more_fields: Fields | None = None,
    ) -> None:
        """Send a request that nobody answers."""
        self._check_open()
        opaque = self._opaque = (self._opaque + 1) & _OPAQUE_MASK
        self._write(encode_request(code, header, body, opaque=opaque, oneway=True, form=form, more_fields=more_fields))

    async def writable(self) -> None:
        """Wait while the other side does not read what was written; before one-way calls, which nothing else slows."""
        await self._writable.wait()

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

    # --- Calls of theirs -------------------------------------------------------------------------------------

    def reply(self, request: Request[Any], reply: Reply | bytes) -> None:
        """Answer a request, now or later; nothing is sent for one-way requests or on a closed connection.

        Bytes are a whole frame, as ``wire.template`` prepares them for the hottest replies.
        """
        if request.flag & FLAG_ONEWAY or self._transport is None:
            return
        out = self._out
        if not out:
            self._loop.call_soon(self._flush)
        if isinstance(reply, bytes):
            out.append(reply)
        else:
            out += encode_reply(request, reply)

    def fail(self, request: Request[Any], error: Exception) -> None:
        """Answer a request with the error that ended it, as if its handler had raised it."""
        self.reply(request, self._failure(request, error))

    def run(self, request: Request[Any]) -> None:
        """Let the handler of its code answer a request (``lanes.Worker``)."""
        try:
            if request.fault is not None:
                raise RemoteProtocolError(request.fault)
            result = self._routes[request.code].handler(self, request)
        except Exception as error:
            self.fail(request, error)
            return
        kind = type(result)
        if kind is bytes or kind is Reply:
            self.reply(request, result)  # type: ignore[arg-type]  # as just tested
        elif result is not None:
            self._tasks.create_task(self._finish(request, result))  # type: ignore[arg-type]  # Reply was ruled out

    async def _finish(self, request: Request[Any], result: Awaitable[Reply | None]) -> None:
        try:
            reply = await result
        except Exception as error:
            reply = self._failure(request, error)
        if reply is not None:
            self.reply(request, reply)

    def _failure(self, request: Request[Any], error: Exception) -> Reply:
        if isinstance(error, BrokerRefused):
            return Reply(error.code, remark=str(error))
        if not isinstance(error, TernError):
            log.error("handler failed", exc_info=error, extra={"code": request.code, "peer": self.address})
        return Reply(ResponseCode.SYSTEM_ERROR, remark=f"{type(error).__name__}: {error}")

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
        try:
            commands = self._decoder.feed(data)
        except RemoteProtocolError as error:
            log.warning("closing a connection that broke the protocol", extra={"peer": self.address, "why": str(error)})
            self.abort()
            return
        lanes, routes = self._lanes, self._routes
        by_name = lanes.by_name
        for command in commands:
            if type(command) is Response:
                future = self._calls.get(command.opaque)
                if future is not None and not future.done():
                    future.set_result(command)
                continue
            assert isinstance(command, Request)
            route = routes.get(command.code)
            if route is None:
                remark = f" request type {command.code} not supported"
                self.reply(command, Reply(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
            else:
                lanes.submit(by_name[route.lane], self, command, now)
        lanes.run()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._out.clear()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
        for future in list(self._calls.values()):
            if not future.done():
                reason = f": {exc}" if exc else ""
                error = NetworkError(f"the connection to {self.address} was lost{reason}", address=self.address)
                future.set_exception(error)
        self._calls.clear()
        self._writable.set()
        self.closed.set()
        if self._on_close is not None:
            self._on_close(self)

    def pause_writing(self) -> None:
        self._writable.clear()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close once what was written has left."""
        if self._transport is not None:
            self._flush()
            self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._out.clear()
            self._transport.abort()

    def _write(self, buffers: list[Buffer]) -> None:
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out += buffers

    def _flush(self) -> None:
        out = self._out
        if not out or self._transport is None:
            return
        self._out = []
        self._active_at = self._loop.time()
        if len(out) == 1:
            self._transport.write(out[0])
        elif sum(map(len, out)) <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(out))
        else:
            self._transport.writelines(out)

    def _check_idle(self) -> None:
        # A moment, not a rest of seconds: the rest may be so small that adding it to the time changes nothing.
        end = self._active_at + self._idle_s
        if self._loop.time() >= end:
            log.info("closing an idle connection", extra={"peer": self.address})
            self.close()
        else:
            self._idle_timer = self._loop.call_at(end, self._check_idle)


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
