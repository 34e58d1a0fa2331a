"""The calls that a connection makes (B2): each has a number, and its caller gets the answer or the error.

A call that is the only one in progress, as the one before it was, leaves at once; others gather, and leave in one write
per turn of the loop (``net.stream``). Calls that the other side holds until it has something to say, as a pull, do not
count: a program that consumes has some in progress at all times. The other direction, requests that come in, is
``net.peer``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from ternmq.errors import CallTimeout, MachineSilent, NetworkError, TooManyCalls
from ternmq.net.callers import AwaitedResponse, AwaitedResult, Caller
from ternmq.net.endpoint import UNHEARD, is_unheard
from ternmq.net.limits import Usage
from ternmq.net.stream import IDLE_S, Stream
from ternmq.types import Buffer
from ternmq.wire.auth import Credentials
from ternmq.wire.codes import JSON, OPAQUE_MASK, RequestCode
from ternmq.wire.frame import encode_request
from ternmq.wire.header import Fields, Header, Response

#: RocketMQ's ``clientAsyncSemaphoreValue``.
CALLS_MAX: Final = 65_535

T = TypeVar("T")


class CallingStream(Stream):
    """A connection on which requests are made. All methods belong to the loop's thread."""

    def __init__(
        self,
        usage: Usage,
        time: Callable[[], float],
        *,
        credentials: Credentials | None = None,
        calls_max: int = CALLS_MAX,
        idle_s: float = IDLE_S,
    ) -> None:
        """Calls are signed with ``credentials``."""
        super().__init__(usage, time, idle_s=idle_s)
        self._credentials = credentials
        self._calls_max = calls_max
        #: The largest frame that is written or read.
        self.frame_bytes_max: Final = usage.limits.frame_max_length
        #: The connection has ended because the other machine acknowledged nothing.
        self.is_silent = False
        self._calls: dict[int, Caller] = {}
        self._opaque = 0
        #: Of ``_calls``, those whose answers are not expected soon.
        self._held_calls: set[int] = set()
        #: The last call was the only one in progress when it was written, but for those that are held.
        self._is_alone = False

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
        timeout_ms = await self._when_writable(timeout_ms)
        response = self.start_call(code, header, body, form=form, more_fields=more_fields)
        return await self._within(timeout_ms, response, code)

    async def call_held(
        self,
        read: Callable[[Response], T],
        code: int,
        header: Header | None = None,
        *,
        timeout_ms: int,
        form: int = JSON,
    ) -> T:
        """Send a request that the other side may hold for long, and return what ``read`` makes of the response
        (``callers.AwaitedResult``). Raises what ``call`` raises, and what ``read`` does."""
        timeout_ms = await self._when_writable(timeout_ms)
        opaque = self.next_opaque()
        buffers = encode_request(
            code, header, opaque=opaque, form=form, credentials=self._credentials, bytes_max=self.frame_bytes_max
        )
        result: asyncio.Future[T] = self._loop.create_future()
        self._held_calls.add(opaque)
        try:
            self.begin_call(opaque, buffers, AwaitedResult(result, read))
            return await self._within(timeout_ms, result, code)
        finally:
            self._held_calls.discard(opaque)
            self._calls.pop(opaque, None)

    async def _when_writable(self, timeout_ms: int) -> int:
        """Wait while the other side does not read; what is left of the time. Raises ``CallTimeout``."""
        if not self._is_full:
            return timeout_ms
        began = self._loop.time()
        await self.writable(timeout_ms=timeout_ms)
        return max(1, timeout_ms - int((self._loop.time() - began) * 1000))

    async def _within(self, timeout_ms: int, answer: asyncio.Future[T], code: int) -> T:
        timer = self._loop.call_later(timeout_ms / 1000, self._time_out, answer, code, timeout_ms)
        try:
            return await answer
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
            bytes_max=self.frame_bytes_max,
        )
        future: asyncio.Future[Response] = self._loop.create_future()
        self.begin_call(opaque, buffers, AwaitedResponse(future))
        future.add_done_callback(lambda _: self._calls.pop(opaque, None))
        return future

    def next_opaque(self) -> int:
        """The number of the next call. Raises ``NetworkError`` when the connection is closed."""
        if self._transport is None or self._is_full or self._transport.is_closing():
            self._check_open()
        self._opaque = opaque = (self._opaque + 1) & OPAQUE_MASK
        return opaque

    @property
    def calls_open(self) -> int:
        """Calls of ours that wait for their answers."""
        return len(self._calls)

    def forget_call(self, opaque: int) -> None:
        """Its caller waits no longer."""
        self._calls.pop(opaque, None)

    def begin_call(self, opaque: int, buffers: list[Buffer], caller: Caller | None) -> None:
        """Send a request that is encoded already, with the number that ``next_opaque`` gave; without a caller, one that
        is not answered. No future is made, for callers that make many calls."""
        out, calls = self._out, self._calls
        if caller is not None:
            if len(calls) >= self._calls_max:
                raise TooManyCalls(
                    f"{self._calls_max} calls to {self.address} are waiting for an answer; send more slowly"
                )
            calls[opaque] = caller
            if self._is_paused:
                # What we read next may be the answer.
                self._resume_reading()
            if self._is_held:
                self._read_on()
            if opaque in self._held_calls:
                # Several are asked for in a turn, as a rule, and none is in a hurry.
                self._write(buffers)
                return
            if self._is_alone and not out and len(calls) - len(self._held_calls) == 1:
                # So was the one before: this caller makes one call after the other. Waiting for others that could share
                # the write would cost a turn of the loop, and bring none.
                out += buffers
                self._flush()
                return
        self._is_alone = False
        if not out:
            self._loop.call_soon(self._flush_calls)
        out += buffers

    def _flush_calls(self) -> None:
        self._is_alone = len(self._calls) - len(self._held_calls) == 1
        self._flush()

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
            bytes_max=self.frame_bytes_max,
        )
        self._write(buffers)

    def _time_out(self, response: asyncio.Future[T], code: int, timeout_ms: int) -> None:
        if not response.done():
            response.set_exception(
                CallTimeout(
                    f"{self.address} did not answer {code_name(code)} within {timeout_ms} ms", address=self.address
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

    def end_if_unheard(self, *, is_suspect: bool = False) -> None:
        """Lose the connection if its machine acknowledges nothing, and calls of ours wait for it or it is suspect."""
        if not (self._calls or is_suspect) or self._transport is None:
            return
        if is_unheard(self._transport.get_extra_info("socket")):
            self.is_silent = True
            self._transport.abort()

    def _answered(self, response: Response) -> None:
        """A response was read; it may belong to a call whose caller waits no longer."""
        caller = self._calls.pop(response.opaque, None)
        if caller is not None:
            if self._held_calls:
                self._held_calls.discard(response.opaque)
            caller.answered(response)

    def _fail_calls(self, exc: Exception | None) -> None:
        """The connection is lost. Call this last: a caller may try again at once, and must not find it."""
        calls, self._calls = self._calls, {}
        reason = f": {exc}" if exc else ""
        kind: type[NetworkError] = NetworkError
        if self.is_silent:
            kind = MachineSilent
            reason = UNHEARD
        elif len(calls) >= self._opaque and calls:
            reason += " before it answered any request; check that the port is right, and whether it needs TLS"
        for caller in calls.values():
            caller.failed(kind(f"the connection to {self.address} was lost{reason}", address=self.address))


def code_name(code: int) -> str:
    """What people call a request code."""
    try:
        return RequestCode(code).name
    except ValueError:
        return f"request {code}"
