"""Runs: sends of one read that are handled together (B3, E1), where compiled kernels are used.

``wire.frame`` keeps plain sends that follow each other together. A run is one job of its lane, and its requests are
handled in their order: by the run's handler as far as it goes, and where it stops, one request takes the usual way, as
if it had come alone. So a handler may stop anywhere, for any reason.

Where access control is on, a run has only sends that are signed by one account. The gate is asked about them in their
turn, once for each topic; if it does not admit them all at once, each takes the usual way, where it is asked for alone.

A handler may keep the replies of what it has handled, and give them to the connection later: senders that wait for the
disk or for other brokers are answered together, too.

A run is bounded in requests and bytes (``native/src/sends.rs``), so that one job stays short. But a short request may
ask for much, as the commit of a large message does: when some have taken the usual way and the turn is over, the rest
become jobs of their own. The bounds of a lane count the requests of its runs (``Lane.in_runs``), and a run is only
queued if there is room for all of it. Runs are made while requests wait, too: a broker that has more to do than it can
must not need more time for each.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Protocol

from ternmq.net.gate import Gate
from ternmq.net.lanes import SLOW_REQUESTS, Lane, Lanes
from ternmq.net.latency import Latency
from ternmq.net.rpc_latency import RpcEnd, RpcLatencies
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.frame import RUN_CODES, RUN_MISSES_MAX, request_in
from ternmq.wire.header import Request
from ternmq.wire.record import HOST_V4_BYTES
from ternmq.wire.refusal import SendRefusal

if TYPE_CHECKING:
    from ternmq._native import Sends
    from ternmq.net.peer import Peer

#: How the headers of nearly all requests in a run begin, behind two lengths: as many bytes as tell the codes apart.
_START_AT: Final = 8
_START_BYTES: Final = len('{"code":31')
_CODES: Final = {(b'{"code":%d' % code)[:_START_BYTES]: code.value for code in RUN_CODES}


class RunHandler(Protocol):
    """What handles runs of one server."""

    def takes_runs(self) -> bool:
        """Whether it is worth to make runs now: nothing that concerns all sends makes each of them special."""
        ...

    def run(self, peer: Peer, sends: Sends, first: int, /, *, arrived: float) -> tuple[int, bytes, int]:
        """Handle requests from number ``first`` on, one part of them: the number of the first that was not, the replies
        as frames that do not follow later, and how many of them are to ends of transactions. It is called again until
        it handles none.

        ``arrived`` is when they were read, for replies that follow later."""
        ...


class ReadRuns:
    """The runs of one read (``lanes.Worker``). Those of several reads of a connection may wait at once."""

    __slots__ = ("arrived", "runs")

    def __init__(self, runs: RunWorker, arrived: float) -> None:
        self.runs = runs
        #: When they were read.
        self.arrived = arrived

    def run(self, sends: Sends) -> None:
        self.runs.run(sends, self.arrived)

    def refuse(self, sends: Sends, reason: str) -> None:
        self.runs.refuse(sends, reason, self.arrived)

    def flush(self) -> None:
        """Write what was answered now."""
        self.runs.flush()


class RunWorker:
    """The runs of one connection."""

    __slots__ = ("_gate", "_handler", "_lanes", "_peer", "_row", "lane")

    def __init__(self, peer: Peer, handler: RunHandler, lanes: Lanes, lane: Lane, gate: Gate | None) -> None:
        self._peer = peer
        self._lanes = lanes
        self._gate = gate
        self._handler = handler
        self.lane = lane
        #: Where sends of this connection are counted.
        self._row: Latency | None = None

    def can_start(self) -> bool:
        """Whether runs can be made of what was read.

        Records of clients of IPv6 have another form, which no kernel writes: their sends would be parsed twice.
        """
        lane = self.lane
        return not lane.keyed and len(self._peer.host) == HOST_V4_BYTES and self._handler.takes_runs()

    def run(self, sends: Sends, arrived: float) -> None:
        """Handle the requests of a run, in order; those that a turn has no time for go back to the lane."""
        peer, number, count, tries = self._peer, 0, sends.count, RUN_MISSES_MAX
        alone = 0
        while number < count:
            # What is added to replies that are not read is counted one by one.
            if tries and not peer.is_full:
                first = number
                if self._gate is None or self._is_admitted(sends, self._gate):
                    number = self._run_parts(sends, first, arrived)
                    if number == count:
                        return
                tries -= number == first
            peer.run(_request(sends, number, arrived))
            number += 1
            alone += 1
            if not alone % SLOW_REQUESTS and self._lanes.is_over():
                self._lanes.give_back(
                    self.lane, peer, [_request(sends, left, arrived) for left in range(number, count)]
                )
                return

    def _run_parts(self, sends: Sends, number: int, arrived: float) -> int:
        """Handle requests together, from number ``number`` on; the number of the first that was not.

        What is done is answered before the next part begins: an error concerns those that are left.
        """
        peer, handler, count = self._peer, self._handler, sends.count
        while number < count and not peer.is_full:
            first = number
            try:
                number, replies, ends = handler.run(peer, sends, first, arrived=arrived)
            except Exception as error:
                # Which of them are stored is not known.
                for left in range(first, count):
                    peer.fail(_request(sends, left, arrived), error)
                return count
            if replies:
                peer.reply_all(replies)
                if peer.latencies is not None:
                    self._note(peer.latencies, sends, arrived, first, number - first - ends, ends)
            if number == first:
                break
        return number

    def _is_admitted(self, sends: Sends, gate: Gate) -> bool:
        """Whether the caller may send all of a run, by the rules of now."""
        account = sends.account
        # Each topic once, whatever its queues.
        return account is not None and gate.trusts_run(self._peer, account.secret, {topic for topic, _ in sends.places})

    def refuse(self, sends: Sends, reason: str, arrived: float) -> None:
        """Answer each request that there is too much to do."""
        peer = self._peer
        if not peer.is_full:
            frames = sends.data[sends.frame(0)[0] : sends.end]
            _, replies, count = SendRefusal(reason).split(frames, 0, len(frames))
            if count == sends.count:
                peer.reply_all(replies)
                return
        for number in range(sends.count):
            peer.refuse(_request(sends, number, arrived), reason)

    def flush(self) -> None:
        """Write what was answered now."""
        self._peer.flush()

    def _note(self, latencies: RpcLatencies, sends: Sends, arrived: float, first: int, plain: int, ends: int) -> None:
        """So many requests of a run are answered, with success. A client sends all its messages with one code, so that
        is looked up once; should it have two, they count as one."""
        if ends:
            latencies.note(RequestCode.END_TRANSACTION, ResponseCode.SUCCESS, RpcEnd.ANSWERED, arrived, ends)
        if not plain:
            return
        row = self._row
        if row is None:
            # Behind ends of transactions, perhaps.
            codes = (code_of(sends, number) for number in range(first, first + plain + ends))
            code = next(code for code in codes if code != RequestCode.END_TRANSACTION)
            row = self._row = latencies.row(code, ResponseCode.SUCCESS, RpcEnd.ANSWERED)
        row.add(latencies.time() - arrived, plain)


def _request(sends: Sends, number: int, arrived: float) -> Request[Any]:
    request = request_in(sends, number)
    request.arrived, request.is_held = arrived, False
    return request


def code_of(sends: Sends, number: int) -> int:
    """The code of one request of a run."""
    at = sends.frame(number)[0] + _START_AT
    code = _CODES.get(sends.data[at : at + _START_BYTES])
    return code if code is not None else request_in(sends, number).code
