"""Shared consumption: pull 15060, ack 15061, hold 15062, leave 15063, members 15064 (R1–R3).

What they mean is in ``services.sharing``. The codes of a pull are those of a pop:

    0    found
    209  POLLING_FULL              the consumer holds too much, or too many wait: the client waits 3 s
    210  POLLING_TIMEOUT           nothing came while it waited: the client pulls again at once

In a Raft group messages go out when the members have the record that says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final
from weakref import WeakKeyDictionary

from ternmq.broker.flow import ADMIN, CLIENT, PULL
from ternmq.broker.handlers.held import HeldRequest, wait_for_quota
from ternmq.broker.services.polls import PollKind, Polls
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.sharing import Shared, SharePullOutcome, Sharing
from ternmq.errors import refused
from ternmq.net.gate import Action, Rule
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, Route
from ternmq.store.durable.safety import Answer
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.share import ShareMembers
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests_share import GetShareMembers, ShareAck, ShareHold, ShareLeave, SharePull, SharePullReply

#: Consumers that left on one connection and are remembered; each has connections of its own.
LEFT_MAX: Final = 8

_CODES: Final = {
    SharePullOutcome.FOUND: ResponseCode.SUCCESS,
    SharePullOutcome.NOTHING: ResponseCode.POLLING_TIMEOUT,
    SharePullOutcome.AGAIN: ResponseCode.POLLING_TIMEOUT,
    SharePullOutcome.FULL: ResponseCode.POLLING_FULL,
}


class ShareHandlers:
    """All methods belong to the broker's loop. ``when_safe`` calls back when a record is."""

    def __init__(
        self,
        *,
        sharing: Sharing,
        quotas: Quotas,
        polls: Polls,
        lanes: Lanes,
        when_safe: Callable[[int, Answer], None],
    ) -> None:
        self._quotas = quotas
        self._sharing = sharing
        self._polls = polls
        self._lanes = lanes
        self._lane = lanes[PULL]
        self._when_safe = when_safe
        #: By connection, group and name of consumers that have left on it: a pull that comes later is not for them.
        self._left: WeakKeyDictionary[Peer, deque[tuple[str, str]]] = WeakKeyDictionary()

    def routes(self) -> dict[int, Route]:
        rule = Rule(Action.SUB, topic="topic", group="consumerGroup")
        return {
            RequestCode.SHARE_PULL: Route(
                self.pull, PULL, rule, takes_body=False, needs_connection=True, key="consumer_group", topic="topic"
            ),
            RequestCode.SHARE_ACK: Route(self.ack, CLIENT, rule, takes_body=False, key="consumer_group", topic="topic"),
            RequestCode.SHARE_HOLD: Route(
                self.hold, CLIENT, rule, takes_body=False, key="consumer_group", topic="topic"
            ),
            # In the lane of pulls: it must not overtake the last pull of its consumer, whose messages would wait.
            RequestCode.SHARE_LEAVE: Route(
                self.leave, PULL, rule, takes_body=False, key="consumer_group", topic="topic"
            ),
            RequestCode.GET_SHARE_MEMBERS: Route(
                self.members, ADMIN, Rule(Action.ANY, group="consumerGroup"), takes_body=False
            ),
        }

    # --- Pull ---------------------------------------------------------------------------------------------------

    def pull(self, peer: Peer, request: Request[SharePull]) -> Reply | Awaitable[Reply | None] | None:
        """Answer a pull, now or when the disk has it, or let it wait (None)."""
        header = request.fields
        if (header.consumer_group, header.consumer) in self._left.get(peer, ()):
            return _nothing()
        if self._quotas.groups and self._quotas.is_exceeded(header.consumer_group):
            return self._when_allowed(peer, request)
        return self._pull(peer, request)

    def _pull(self, peer: Peer, request: Request[SharePull]) -> Reply | Awaitable[Reply | None] | None:
        shared = self._sharing.take(request.fields, is_first=True)
        if shared.outcome is SharePullOutcome.OLD:
            return self._when_read(peer, request, shared)
        return self._answer(peer, request, shared, None)

    async def _when_allowed(self, peer: Peer, request: Request[SharePull]) -> Reply | None:
        """Pull when the quota of the group allows it; as from an empty topic if that takes too long."""
        header = request.fields
        if await wait_for_quota(
            peer, header.consumer_group, header.poll_ms or 0, quotas=self._quotas, polls=self._polls
        ) and (header.consumer_group, header.consumer) not in self._left.get(peer, ()):
            result = self._pull(peer, request)
            return await result if isinstance(result, Awaitable) else result
        return _nothing()

    def _pull_again(self, peer: Peer, request: Request[Any], deadline: float) -> Reply | None:
        if self._quotas.groups and self._quotas.is_exceeded(request.fields.consumer_group):
            # It pulls again, and waits for its quota then.
            return _nothing()
        if self._sharing.has_left(request.fields):
            # Nothing for a consumer that is about to end; the next one shall look.
            header = request.fields
            self._polls.wake(PollKind.SHARE, header.consumer_group, header.topic, ALL_QUEUES)
            return _nothing()
        shared = self._sharing.take(request.fields, is_first=False)
        assert shared.outcome is not SharePullOutcome.OLD, "only a pull seen for the first time waits for the disk"
        return self._answer(peer, request, shared, deadline)

    async def _when_read(self, peer: Peer, request: Request[SharePull], shared: Shared) -> Reply | None:
        return self._reply(peer, request, await self._sharing.read_old(shared))

    def _answer(self, peer: Peer, request: Request[SharePull], shared: Shared, deadline: float | None) -> Reply | None:
        header = request.fields
        if shared.outcome is SharePullOutcome.NOTHING:
            if deadline is None and header.poll_ms:
                deadline = self._polls.deadline(header.poll_ms)
            if deadline is not None and deadline > self._polls.deadline(0):
                if self._park(peer, request, shared, deadline):
                    if shared.taken.is_more_to_look_at:
                        self._polls.wake(PollKind.SHARE, header.consumer_group, header.topic, ALL_QUEUES)
                    return None
                shared.outcome = SharePullOutcome.FULL
        return self._reply(peer, request, shared)

    def _reply(self, peer: Peer, request: Request[SharePull], shared: Shared) -> Reply | None:
        taken = shared.taken
        reply = Reply(
            _CODES[shared.outcome],
            header=SharePullReply(first=taken.first, life=taken.life, rest_count=taken.rest, again=taken.is_again),
            body=taken.buffers,
        )
        end_offset = self._sharing.waits_for(shared)
        if not end_offset:
            return reply

        def answer(code: int) -> None:
            if code == ResponseCode.SUCCESS:
                peer.reply(request, reply)
            else:
                peer.fail(request, refused(code, "the messages could not be given out; pull again"))

        self._when_safe(end_offset, answer)
        return None

    def _park(self, peer: Peer, request: Request[SharePull], shared: Shared, deadline: float) -> bool:
        header = request.fields
        held = HeldRequest(peer, request, self._pull_again, polls=self._polls, lanes=self._lanes, lane=self._lane)
        poll = self._polls.park(
            PollKind.SHARE,
            held,
            peer,
            group=header.consumer_group,
            topics=(header.topic,),
            queue_id=ALL_QUEUES,
            wanted=shared.wanted,
            deadline=deadline,
            size=request.frame_bytes,
            member=header.consumer,
        )
        held.poll = poll
        if poll is None:
            return False
        self._sharing.waits(header, deadline - self._polls.deadline(0))
        return True

    # --- Beside it ----------------------------------------------------------------------------------------------

    def ack(self, _peer: Peer, request: Request[ShareAck]) -> Reply:
        """Numbers of a consumer are done; without numbers it only lives."""
        header = request.fields
        if header.last is None:
            self._sharing.beat(header)
        else:
            self._sharing.ack(header, life=header.life, first=header.first, last=header.last)
        return Reply()

    def hold(self, _peer: Peer, request: Request[ShareHold]) -> Reply:
        """A consumer needs more time for some messages."""
        header = request.fields
        self._sharing.hold(header, life=header.life, first=header.first, last=header.last, hold_ms=header.hold_ms)
        return Reply()

    def leave(self, peer: Peer, request: Request[ShareLeave]) -> Reply:
        """A consumer ends."""
        header = request.fields
        self._sharing.leave(header)
        self._left.setdefault(peer, deque(maxlen=LEFT_MAX)).append((header.consumer_group, header.consumer))
        return Reply()

    def members(self, _peer: Peer, request: Request[GetShareMembers]) -> Reply:
        """The consumers of a group, as many as one answer has room for."""
        header = request.fields
        found, more = self._sharing.members(header.consumer_group, after=(header.after_topic, header.after_consumer))
        return Reply(body=encode(ShareMembers(members=found, more=more)))


def _nothing() -> Reply:
    return Reply(ResponseCode.POLLING_TIMEOUT, header=SharePullReply(first=-1, life=0))
