"""How long requests take, for each request code and response code (D5, T4).

RocketMQ 5 calls it ``rocketmq_rpc_latency_milliseconds``, with the same labels and names of codes in small letters.

Counted from the read that brought a request until its reply is handed to the connection; a request that is not
answered, until its handler has returned. So the time in a lane, on the disk and with other brokers is part of it, and
so is that of a long poll: those have rows of their own.

Requests of one read have come at the same time, and sends that are handled together (``net.runs``) are answered
together: they count with one call. The table has at most ``ROWS_MAX`` rows, whatever clients send: codes that have no
name here share a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import IntEnum
from operator import itemgetter
from typing import Any, Final, NamedTuple

from ternmq.env import work_clock
from ternmq.net.latency import Latency
from ternmq.wire.codes import FLAG_ONEWAY, RequestCode, ResponseCode
from ternmq.wire.header import Request

#: Some 150 request codes have a handful of response codes each.
ROWS_MAX: Final = 2_000
#: Stands for all codes that have no row of their own.
_OTHER: Final = -1
#: As RocketMQ 5.2.0 writes them.
_REQUEST_NAMES: Final = {**{code.value: code.name.lower() for code in RequestCode}, _OTHER: "other"}
_RESPONSE_NAMES: Final = {**{code.value: code.name.lower() for code in ResponseCode}, _OTHER: "other"}


class RpcEnd(IntEnum):
    """What became of a request."""

    ANSWERED = 0
    #: It waited for messages.
    HELD = 1
    #: It is never answered.
    ONEWAY = 2


class RpcRow(NamedTuple):
    """A row of the table, for people."""

    request: str
    response: str
    end: RpcEnd
    latency: Latency


class RpcLatencies:
    """The requests of one server. All methods belong to the loop's thread."""

    __slots__ = ("_rows", "time")

    def __init__(self) -> None:
        #: By request code, response code and end.
        self._rows: dict[tuple[int, int, int], Latency] = {}
        #: That of ``Request.arrived`` (``Lanes.time``): exact, unlike that of uvloop, which counts whole milliseconds.
        self.time = work_clock().now

    def note(self, code: int, answer: int, end: int, arrived: float, count: int = 1) -> None:
        """So many requests of one code that came together are answered now, with the same response code. Hot."""
        row = self._rows.get((code, answer, end)) or self.row(code, answer, end)
        row.add(self.time() - arrived, count)

    def rows(self) -> Iterator[RpcRow]:
        """All, in the order of their codes."""
        for (code, answer, end), latency in sorted(self._rows.items(), key=itemgetter(0)):
            yield RpcRow(_REQUEST_NAMES[code], _RESPONSE_NAMES[answer], RpcEnd(end), latency)

    def row(self, code: int, answer: int, end: int) -> Latency:
        """Where requests with these codes are counted."""
        rows = self._rows
        key = code if code in _REQUEST_NAMES else _OTHER, answer if answer in _RESPONSE_NAMES else _OTHER, end
        if key not in rows and len(rows) >= ROWS_MAX:
            key = _OTHER, _OTHER, end
        return rows.setdefault(key, Latency())


def end_of(request: Request[Any]) -> RpcEnd:
    """What becomes of a request that is answered now."""
    return RpcEnd.ONEWAY if request.flag & FLAG_ONEWAY else RpcEnd.HELD if request.is_held else RpcEnd.ANSWERED
