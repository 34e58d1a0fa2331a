"""Pops: 200050, and what belongs to them: peek 200052, notification 200054, polling info 200055 (F8, F9).

What they mean is in ``services.popping``. The codes:

    0    found                     the header tells of which queues, for the handles
    209  POLLING_FULL              too many wait already, or too much is in flight: the client waits 3 s
    210  POLLING_TIMEOUT           nothing came while it waited: the client pops again at once

A pop that finds nothing waits (``services.polls``) for as long as it says. The time counts from the arrival of its
request: ``bornTime`` is of the client's clock, which may be wrong.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from ternmq.broker.flow import PULL
from ternmq.broker.handlers.held import Again, HeldRequest, wait_for_quota
from ternmq.broker.services.polls import PollKind, Polls
from ternmq.broker.services.popping import PopOutcome, Popped, Popping
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.tables.filters import ALL, Wanted
from ternmq.net.gate import Action, Rule
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Handler, Peer, Route
from ternmq.wire.codes import JSON, RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import (
    Notification,
    NotificationReply,
    PeekMessage,
    PollingInfo,
    PollingInfoReply,
    PopMessage,
    PopReply,
)
from ternmq.wire.template import ReplyTemplate

_FOUND: Final = "FOUND"
_NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
#: The header of a reply with messages.
_POPPED: Final = ReplyTemplate(
    {},
    {
        "popTime": "%d",
        "invisibleTime": "%d",
        "reviveQid": "%d",
        "restNum": "%d",
        "startOffsetInfo": "%b",
        "msgOffsetInfo": "%b",
    },
    remark=_FOUND,
)
_CODES: Final = {
    PopOutcome.FOUND: ResponseCode.SUCCESS,
    PopOutcome.NOTHING: ResponseCode.POLLING_TIMEOUT,
    PopOutcome.AGAIN: ResponseCode.POLLING_TIMEOUT,
    PopOutcome.FULL: ResponseCode.POLLING_FULL,
}


class PopHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, popping: Popping, quotas: Quotas, polls: Polls, lanes: Lanes) -> None:
        self._quotas = quotas
        self._popping = popping
        self._polls = polls
        self._lanes = lanes
        self._lane = lanes[PULL]

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.POP_MESSAGE: _route(self.pop),
            RequestCode.PEEK_MESSAGE: _route(self.peek),
            RequestCode.NOTIFICATION: _route(self.notification),
            RequestCode.POLLING_INFO: Route(
                self.polling_info,
                PULL,
                Rule(Action.ANY, topic="topic", group="consumerGroup"),
                takes_body=False,
                key="consumer_group",
                topic="topic",
            ),
        }

    # --- Pop ----------------------------------------------------------------------------------------------------

    def pop(self, peer: Peer, request: Request[PopMessage]) -> Reply | Awaitable[Reply | None] | None:
        """Answer a pop, now or when the disk has it, or let it wait (None)."""
        if self._quotas.groups and self._quotas.is_exceeded(request.fields.consumer_group):
            return self._when_allowed(peer, request)
        return self._pop(peer, request)

    def _pop(self, peer: Peer, request: Request[PopMessage]) -> Reply | Awaitable[Reply | None] | None:
        popped = self._popping.take(request.fields, is_first=True)
        if popped.outcome is PopOutcome.OLD:
            return self._when_read(request, popped)
        return self._answer(peer, request, popped, None)

    async def _when_allowed(self, peer: Peer, request: Request[PopMessage]) -> Reply | None:
        """Pop when the quota of the group allows it; as from an empty topic if that takes too long."""
        header = request.fields
        if await wait_for_quota(peer, header.consumer_group, header.poll_ms, quotas=self._quotas, polls=self._polls):
            result = self._pop(peer, request)
            return await result if isinstance(result, Awaitable) else result
        return _nothing(header)

    def _pop_again(self, peer: Peer, request: Request[Any], deadline: float) -> Reply | None:
        if self._quotas.groups and self._quotas.is_exceeded(request.fields.consumer_group):
            # It pops again, and waits for its quota then.
            return _nothing(request.fields)
        popped = self._popping.take(request.fields, is_first=False)
        assert popped.outcome is not PopOutcome.OLD, "only a pop seen for the first time waits for the disk"
        return self._answer(peer, request, popped, deadline)

    async def _when_read(self, request: Request[PopMessage], popped: Popped) -> Reply:
        return _reply(request, await self._popping.read_old(request.fields, popped))

    def _answer(self, peer: Peer, request: Request[PopMessage], popped: Popped, deadline: float | None) -> Reply | None:
        header = request.fields
        if popped.outcome is PopOutcome.NOTHING:
            deadline = self._deadline(deadline, header.poll_ms)
            if deadline is not None:
                if self._park(PollKind.POP, peer, request, self._pop_again, popped.wanted, deadline):
                    if popped.taken.unfinished:
                        self._polls.wake(PollKind.POP, header.consumer_group, header.topic, header.queue_id)
                    return None
                popped.outcome = PopOutcome.FULL
        return _reply(request, popped)

    # --- Beside it ----------------------------------------------------------------------------------------------

    def peek(self, _peer: Peer, request: Request[PeekMessage]) -> Reply:
        """What a pop would get; nothing is hidden, no offset moves."""
        header = request.fields
        taken = self._popping.peek(header, count_max=max(header.count_max, 1))
        found = taken.count > 0
        return Reply(
            ResponseCode.SUCCESS if found else ResponseCode.PULL_NOT_FOUND,
            remark=_FOUND if found else _NOTHING,
            header=PopReply(pop_time_ms=0, invisible_ms=0, revive_queue_id=0, rest_count=taken.rest),
            body=taken.buffers,
        )

    def notification(self, peer: Peer, request: Request[Notification]) -> Reply | None:
        """Whether there is anything to pop; waits until there is (None)."""
        return self._notification(peer, request, None)

    def _notification(self, peer: Peer, request: Request[Any], deadline: float | None) -> Reply | None:
        header: Notification = request.fields
        has_message = self._popping.has_message(header, ordered=bool(header.order), attempt_id=header.attempt_id)
        is_full = False
        if not has_message:
            deadline = self._deadline(deadline, header.poll_ms)
            if deadline is not None:
                if self._park(PollKind.NOTICE, peer, request, self._notification, ALL, deadline):
                    return None
                is_full = True
        return Reply(header=NotificationReply(has_message=has_message, polling_full=is_full))

    def polling_info(self, _peer: Peer, request: Request[PollingInfo]) -> Reply:
        """How many pops wait."""
        return Reply(header=PollingInfoReply(polling_count=self._popping.waiting(request.fields)))

    # ------------------------------------------------------------------------------------------------------------

    def _deadline(self, deadline: float | None, poll_ms: int) -> float | None:
        """Until when a request may wait: as it says, or as it said when it came; None if its time is over."""
        if deadline is None and poll_ms > 0:
            return self._polls.deadline(poll_ms)
        return deadline if deadline is not None and deadline > self._polls.deadline(0) else None

    def _park(
        self,
        kind: PollKind,
        peer: Peer,
        request: Request[Any],
        again: Again,
        wanted: Wanted,
        deadline: float,
    ) -> bool:
        header: PopMessage | Notification = request.fields
        held = HeldRequest(peer, request, again, polls=self._polls, lanes=self._lanes, lane=self._lane)
        poll = self._polls.park(
            kind,
            held,
            peer,
            group=header.consumer_group,
            topics=self._popping.listened(header.consumer_group, header.topic),
            queue_id=header.queue_id,
            wanted=wanted,
            deadline=deadline,
            size=request.frame_bytes,
        )
        held.poll = poll
        return poll is not None


def _route(handler: Handler) -> Route:
    return Route(
        handler,
        PULL,
        Rule(Action.SUB, topic="topic", group="consumerGroup"),
        takes_body=False,
        needs_connection=True,
        key="consumer_group",
        topic="topic",
    )


def _nothing(header: PopMessage) -> Reply:
    return Reply(
        ResponseCode.POLLING_TIMEOUT,
        remark=_NOTHING,
        header=PopReply(pop_time_ms=0, invisible_ms=header.invisible_ms, revive_queue_id=0, rest_count=0),
    )


def _reply(request: Request[Any], popped: Popped) -> Reply:
    wish, taken = popped.wish, popped.taken
    if popped.outcome is PopOutcome.FOUND and not wish.ordered and request.serial == JSON:
        infos = taken.infos
        values = wish.pop_time_ms, wish.invisible_ms, wish.revive_queue_id, taken.rest
        # Numbers and what stands between them: nothing to escape.
        texts = infos.starts.encode(), infos.messages.encode()
        return Reply(head=_POPPED.head((*values, *texts, request.opaque)), body=taken.buffers)
    return Reply(
        _CODES[popped.outcome],
        remark=_FOUND if taken.count else _NOTHING,
        header=PopReply(
            pop_time_ms=wish.pop_time_ms,
            invisible_ms=wish.invisible_ms,
            revive_queue_id=wish.revive_queue_id,
            rest_count=taken.rest,
            start_offset_info=taken.infos.starts,
            msg_offset_info=taken.infos.messages,
            order_count_info=taken.infos.counts if wish.ordered else None,
        ),
        body=taken.buffers,
    )
