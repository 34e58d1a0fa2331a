"""A request that waits in ``services.polls``: its way back to the lane that it came from (F8, F9, R4)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from ternmq.broker.services.polls import Poll, Polls
from ternmq.broker.services.quotas import Quotas
from ternmq.errors import SystemBusy, TernError
from ternmq.net.lanes import Lane, Lanes
from ternmq.net.peer import Peer
from ternmq.wire.header import Reply, Request

#: A client that asks to wait for longer is answered after this time, and asks again.
QUOTA_WAIT_MAX_S: Final = 60.0

#: Carries a request out again; None if it waits once more, or has been answered.
Again = Callable[[Peer, Request[Any], float], Reply | None]


class HeldRequest:
    """Of ``Polls`` the waiter, of ``Lanes`` the worker: woken, it queues by its group and topic, then looks again.

    Set ``poll`` when it is parked.
    """

    __slots__ = ("_again", "_error", "_is_done", "_lane", "_lanes", "_polls", "peer", "poll", "request")

    def __init__(
        self, peer: Peer, request: Request[Any], again: Again, *, polls: Polls, lanes: Lanes, lane: Lane
    ) -> None:
        request.is_held = True
        self.peer = peer
        self.request = request
        self.poll: Poll | None = None
        self._again = again
        self._polls = polls
        self._lanes = lanes
        self._lane = lane
        self._error: TernError | None = None
        #: It has had its turn, and was answered if there was anything to say.
        self._is_done = False

    def resume(self, *, is_alone: bool = False) -> None:
        """Go back to the lane (``polls.Waiter``)."""
        request, poll, lanes = self.request, self.poll, self._lanes
        assert poll is not None, "only a parked poll is resumed"
        now, size, group, topic = lanes.time(), request.frame_bytes, poll.group, poll.topic
        if is_alone and lanes.run_alone(self._lane, self, (request,), now, group, topic):
            return
        lanes.submit(self._lane, self, request, now, size, group, topic)

    def give_up(self, error: TernError) -> None:
        """Go back to the lane, to be answered with an error (``polls.Waiter``)."""
        self._error = error
        self.resume()

    def run(self, request: Request[Any]) -> None:
        """Look again (``lanes.Worker``)."""
        poll = self.poll
        assert poll is not None, "only a parked poll is run"
        self._is_done = True
        if self.peer.closed.is_set():
            # It would take messages that no client gets.
            self._polls.pass_on(poll)
            return
        if poll.place.woken is not None:
            self._polls.looked(poll)
        try:
            refusal = self._error or self._polls.refusal()
            if refusal is not None:
                raise refusal.with_traceback(None)
            reply = self._again(self.peer, request, poll.deadline)
        except Exception as error:
            self.peer.fail(request, error)
        else:
            if reply is not None:
                self.peer.reply(request, reply)

    def refuse(self, request: Request[Any], reason: str) -> None:
        """Answer that there is too much to do (``lanes.Worker``)."""
        self._is_done = True
        if self.poll is not None:
            self._polls.pass_on(self.poll)
        self.peer.fail(request, SystemBusy(reason))

    def flush(self) -> None:
        """Write what was answered now (``lanes.Worker``, ``polls.Waiter``)."""
        if self._is_done:
            self.peer.flush()


async def wait_for_quota(peer: Peer, group: str, wait_ms: int, *, quotas: Quotas, polls: Polls) -> bool:
    """Let the request of a group that has got what its quota allows wait: whether it may look now.

    Raises why this broker gives nothing out any more, and ``SystemBusy``.
    """
    may_look = await quotas.wait(group, min(wait_ms / 1000, QUOTA_WAIT_MAX_S))
    refusal = polls.refusal()
    if refusal is not None:
        raise refusal.with_traceback(None)
    return may_look and not peer.closed.is_set()
