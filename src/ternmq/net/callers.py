"""What makes calls on a connection, and gets their ends (B2)."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeAlias

from ternmq.errors import NetworkError
from ternmq.wire.header import Response

#: What a broker says of a message that it has stored, as ``native.read_sent`` reads it: the opaque, the offset id,
#: queue id, queue offset, transaction id, region, and whether the broker wants traces.
SentAnswer: TypeAlias = tuple[int, str, int, int, str, str, bool]


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


class Awaited:
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
