"""Pulls: 11 and 361 (D4, F3, F8). What a pull means is in ``services.reading``.

What was found decides the response code:

    0   FOUND
    19  the end of the queue was reached         held until a message comes, if the client can wait (F8)
    19  the group has a quota, and got that much held until it may get more, in the same way (M1)
    20  nothing in this stretch matched          the client continues at the next offset at once
    21  the offset lies outside the queue, or a  the client corrects its position
        tool has moved the group (D4)

Each of these carries the queue's bounds and the offset to continue at; the remark is the store's status. The body of a
reply consists of views of the log, and is not copied, but for a message or a few for which a pull has waited.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Final

from ternmq.broker.flow import PULL
from ternmq.broker.handlers.held import HeldRequest, wait_for_quota
from ternmq.broker.services.polls import Polls
from ternmq.broker.services.quotas import Quotas
from ternmq.broker.services.reading import Pulled, Reading
from ternmq.net.gate import Action, Rule
from ternmq.net.lanes import Lanes
from ternmq.net.peer import Peer, Route
from ternmq.store.read.query import GetStatus
from ternmq.wire.codes import JSON, RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag
from ternmq.wire.template import ReplyTemplate

_CODES: Final = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    # These two mean "not found" to a pull from offset 0, which is where a new queue begins.
    GetStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
#: The usual answer.
_FOUND: Final = ReplyTemplate(
    {},
    {"suggestWhichBrokerId": "%d", "nextBeginOffset": "%d", "minOffset": "%d", "maxOffset": "%d"},
    remark=GetStatus.FOUND.name,
)
#: Records of this size are copied into a prepared answer; those of a larger one are not copied.
_COPIED_BYTES_MAX: Final = 4096
#: RocketMQ's remark when a tool has moved the group.
_RESET: Final = "OFFSET_RESET"


class PullHandlers:
    """All methods belong to the broker's loop."""

    def __init__(self, *, reading: Reading, quotas: Quotas, polls: Polls, lanes: Lanes) -> None:
        self._quotas = quotas
        self._reading = reading
        self._polls = polls
        self._lanes = lanes
        self._lane = lanes[PULL]

    def routes(self) -> dict[int, Route]:
        route = Route(
            self.pull,
            PULL,
            Rule(Action.SUB, topic="topic", group="consumerGroup"),
            takes_body=False,
            needs_connection=True,
            key="consumer_group",
            topic="topic",
        )
        return {RequestCode.PULL_MESSAGE: route, RequestCode.LITE_PULL_MESSAGE: route}

    def pull(self, peer: Peer, request: Request[PullMessage]) -> Reply | Awaitable[Reply] | None:
        """Answer a pull, now or when the disk has it, or let it wait (None)."""
        header = request.fields
        pulled = self._reading.pull(header, is_first=True)
        if pulled.found.cold is not None:
            return self._when_read(header, pulled)
        if pulled.is_over_quota and header.sysflag & PullSysflag.SUSPEND:
            return self._when_allowed(peer, header, pulled)
        if pulled.is_at_end and header.sysflag & PullSysflag.SUSPEND:
            held = HeldRequest(peer, request, self._again, polls=self._polls, lanes=self._lanes, lane=self._lane)
            held.poll = self._polls.park_pull(
                held,
                peer,
                group=header.consumer_group,
                topic=header.topic,
                queue_id=header.queue_id,
                queue_offset=header.queue_offset,
                wanted=pulled.wanted,
                timeout_ms=self._reading.wait_ms(header.suspend_timeout_ms),
                size=request.frame_bytes,
            )
            return None
        return self._reply(pulled)

    def _again(self, _peer: Peer, request: Request[Any], _deadline: float) -> Reply:
        """Look again, and answer whatever is found now: what a pull waited for has just come, and is in memory."""
        pulled = self._reading.pull(request.fields, is_first=False)
        found = pulled.found
        if found.status is GetStatus.FOUND and found.body_bytes <= _COPIED_BYTES_MAX and request.serial == JSON:
            values = pulled.next_broker, found.next_offset, found.min_offset, found.max_offset, request.opaque
            return Reply(frame=_FOUND.fill_with(values, found.buffers))
        return self._reply(pulled)

    async def _when_allowed(self, peer: Peer, header: PullMessage, pulled: Pulled) -> Reply:
        """Look when the quota of the group allows it; as at the end of the queue if that takes too long."""
        deadline = self._polls.deadline(self._reading.wait_ms(header.suspend_timeout_ms))
        while pulled.is_over_quota:
            left_ms = int((deadline - self._polls.deadline(0)) * 1000)
            if not await wait_for_quota(peer, header.consumer_group, left_ms, quotas=self._quotas, polls=self._polls):
                break
            pulled = self._reading.pull(header, is_first=False, may_be_old=True)
        if pulled.found.cold is not None:
            return await self._when_read(header, pulled)
        return self._reply(pulled)

    async def _when_read(self, header: PullMessage, pulled: Pulled) -> Reply:
        return self._reply(await self._reading.read_old(header, pulled))

    def _reply(self, pulled: Pulled) -> Reply:
        found = pulled.found
        return Reply(
            ResponseCode.PULL_NOT_FOUND if pulled.is_at_end else _CODES[found.status],
            remark=_RESET if pulled.is_moved else found.status.name,
            header=PullReply(
                suggested_broker_id=pulled.next_broker,
                next_offset=found.next_offset,
                min_offset=found.min_offset,
                max_offset=found.max_offset,
            ),
            body=pulled.body,
        )
