"""What makes calls on a connection, and gets their ends (B2)."""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable
from typing import Generic, Protocol, TypeAlias, TypeVar

from ternmq.errors import NetworkError
from ternmq.wire.header import Response

#: What a broker says of a message that it has stored, as ``native.read_sent`` reads it: the opaque, the offset id,
#: queue id, queue offset, transaction id, region, and whether the broker wants traces.
SentAnswer: TypeAlias = tuple[int, str, int, int, str, str, bool]

T = TypeVar("T")


class Caller(Protocol):
    """What made a call and gets its end: one of the two, once. Neither may raise."""

    def answered(self, response: Response) -> None: ...

    def failed(self, error: NetworkError) -> None: ...


class SendCaller:
    """The base of callers that send a message: its answer, if it is the usual one, is read by a kernel."""

    __slots__ = ()

    def stored(self, sent: SentAnswer) -> None:
        """Instead of ``answered`` with a response of the same content."""
        raise NotImplementedError

    def answered(self, response: Response) -> None:
        raise NotImplementedError

    def failed(self, error: NetworkError) -> None:
        raise NotImplementedError


class Awaited(Generic[T]):
    """A caller that awaits a future."""

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[T]) -> None:
        self._future = future

    def failed(self, error: NetworkError) -> None:
        if not self._future.done():
            self._future.set_exception(error)


class AwaitedResponse(Awaited[Response]):
    """A caller that awaits its answer."""

    __slots__ = ()

    def answered(self, response: Response) -> None:
        if not self._future.done():
            self._future.set_result(response)


class AwaitedResult(Awaited[T]):
    """A caller that awaits what its function ``read`` makes of the answer.

    It is called as soon as the answer is read, while its caller goes on in the next turn of the loop, and sees the
    context variables of the caller. What it raises is raised to the caller. It is not called if the caller waits no
    longer.
    """

    __slots__ = ("_context", "_read")

    def __init__(self, future: asyncio.Future[T], read: Callable[[Response], T]) -> None:
        super().__init__(future)
        self._read = read
        self._context = contextvars.copy_context()

    def answered(self, response: Response) -> None:
        future = self._future
        if future.done():
            return
        try:
            result = self._context.run(self._read, response)
        except Exception as error:
            if not future.done():
                future.set_exception(error)
        else:
            # What ``read`` has called may have ended the caller.
            if not future.done():
                future.set_result(result)
