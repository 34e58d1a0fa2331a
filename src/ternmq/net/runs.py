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

from typing import TYPE_CHECKING, Protocol

from ternmq.net.gate import Gate
from ternmq.net.lanes import SLOW_REQUESTS, Lane, Lanes
from ternmq.wire.frame import RUN_MISSES_MAX, request_in
from ternmq.wire.record import HOST_V4_BYTES
from ternmq.wire.refusal import Refusal

if TYPE_CHECKING:
    from ternmq._native import Sends
    from ternmq.net.peer import Peer


class RunHandler(Protocol):
    """What handles runs of one server."""

    def takes_runs(self) -> bool:
        """Whether it is worth to make runs now: nothing that concerns all sends makes each of them special."""
        ...

    def run(self, peer: Peer, sends: Sends, first: int, /) -> tuple[int, bytes]:
        """Handle requests from number ``first`` on, one part of them: the number of the first that was not, and the
        replies as frames that do not follow later. It is called again until it handles none."""
        ...


class RunWorker:
    """The runs of one connection (``lanes.Worker``)."""

    __slots__ = ("_gate", "_handler", "_lanes", "_peer", "lane")

    def __init__(self, peer: Peer, handler: RunHandler, lanes: Lanes, lane: Lane, gate: Gate | None) -> None:
        self._peer = peer
        self._lanes = lanes
        self._gate = gate
        self._handler = handler
        self.lane = lane

    def can_start(self) -> bool:
        """Whether runs can be made of what was read.

        Records of clients of IPv6 have another form, which no kernel writes: their sends would be parsed twice.
        """
        lane = self.lane
        return not lane.keyed and len(self._peer.host) == HOST_V4_BYTES and self._handler.takes_runs()

    def run(self, sends: Sends) -> None:
        """Handle the requests of a run, in order; those that a turn has no time for go back to the lane."""
        peer, number, count, tries = self._peer, 0, sends.count, RUN_MISSES_MAX
        alone = 0
        while number < count:
            # What is added to replies that are not read is counted one by one.
            if tries and not peer.is_full:
                first = number
                if self._is_admitted(sends):
                    number = self._run_parts(sends, first)
                    if number == count:
                        return
                tries -= number == first
            peer.run(request_in(sends, number))
            number += 1
            alone += 1
            if not alone % SLOW_REQUESTS and self._lanes.is_over():
                self._lanes.give_back(self.lane, peer, [request_in(sends, left) for left in range(number, count)])
                return

    def _run_parts(self, sends: Sends, number: int) -> int:
        """Handle requests together, from number ``number`` on; the number of the first that was not.

        What is done is answered before the next part begins: an error concerns those that are left.
        """
        peer, handler, count = self._peer, self._handler, sends.count
        while number < count and not peer.is_full:
            first = number
            try:
                number, replies = handler.run(peer, sends, first)
            except Exception as error:
                # Which of them are stored is not known.
                for left in range(first, count):
                    peer.fail(request_in(sends, left), error)
                return count
            if replies:
                peer.reply_all(replies)
            if number == first:
                break
        return number

    def _is_admitted(self, sends: Sends) -> bool:
        """Whether the caller may send all of a run, by the rules of now."""
        if self._gate is None:
            return True
        account = sends.account
        # Each topic once, whatever its queues.
        return account is not None and self._gate.trusts_run(
            self._peer, account.secret, {topic for topic, _ in sends.places}
        )

    def refuse(self, sends: Sends, reason: str) -> None:
        """Answer each request that there is too much to do."""
        peer = self._peer
        if not peer.is_full:
            frames = sends.data[sends.frame(0)[0] : sends.end]
            _, replies, count = Refusal(reason).split(frames, 0, len(frames))
            if count == sends.count:
                peer.reply_all(replies)
                return
        for number in range(sends.count):
            peer.refuse(request_in(sends, number), reason)

    def flush(self) -> None:
        """Write what was answered now."""
        self._peer.flush()
