"""Messages with a delivery time: taken back 370, counted 61 and 15001, looked at 15002, how far 60 (I2)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import ADMIN, QUERY, SEND
from ternmq.broker.services.intake import Intake
from ternmq.delay.overview import Overview
from ternmq.delay.recalls import Recalls
from ternmq.env import Clock
from ternmq.errors import NoPermission
from ternmq.net.gate import ANY_CALLER, Action, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.stats import DelayedCounts, TimerMetric, TimerMetrics
from ternmq.wire.bodies.topics import DataVersion
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import MessageIdReply, RecallMessage
from ternmq.wire.requests_admin import DelayedStats, PeekDelayed

#: What a caller is told when disk or slaves are late.
_LATE: Final = (
    "the message is recalled, but disk or slaves do not have that yet: if this machine fails, it may be delivered"
)


class DelayHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        recalls: Recalls,
        overview: Overview,
        intake: Intake,
        config: BrokerConfig,
        clock: Clock,
        timer_end: Callable[[], int],
    ) -> None:
        """``timer_end`` tells the end of the timer topic."""
        self._recalls = recalls
        self._overview = overview
        self._intake = intake
        self._clock = clock
        self._timer_end = timer_end
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._may_recall = config.recall_message_enable

    def routes(self) -> dict[int, Route]:
        of_topic = Rule(Action.SUB, topic="topic")
        return {
            RequestCode.RECALL_MESSAGE: Route(self.recall, SEND, Rule(Action.PUB, topic="topic")),
            RequestCode.GET_TIMER_CHECK_POINT: Route(self.check_point, ADMIN, ANY_CALLER),
            RequestCode.GET_TIMER_METRICS: Route(self.metrics, ADMIN, ANY_CALLER),
            RequestCode.GET_DELAYED_STATS: Route(self.stats, ADMIN, Rule(Action.ANY, topic="topic")),
            RequestCode.PEEK_DELAYED_MESSAGES: Route(self.peek, QUERY, of_topic),
        }

    async def recall(self, peer: Peer, request: Request[RecallMessage]) -> Reply | None:
        """Take a message back that waits; answered when disk and slaves have it, if a send would wait for them.

        Raises ``IllegalOperation`` if it does not wait.
        """
        if not self._may_recall:
            raise NoPermission("recall failed, operation is forbidden: set recallMessageEnable=true on the broker")
        header = request.fields
        draft, unique_key = await self._recalls.draft(header.topic, header.recall_handle, born_host=peer.host)
        # Nothing was awaited since the message was found waiting.
        with self._recalls.taking_back(draft):
            end_offset = self._intake.store(draft).end_offset
        answer = MessageIdReply(message_id=unique_key)
        if not self._intake.safety.is_awaited:
            return Reply(header=answer)

        def reply(code: int) -> None:
            peer.reply(request, Reply(code, header=answer, remark=None if code == ResponseCode.SUCCESS else _LATE))

        self._intake.when_safe(end_offset, reply)
        return None

    def metrics(self, _peer: Peer, _request: Request[object]) -> Reply:
        now_ms = self._clock.now_ms()
        counts = {
            topic: TimerMetric(count=count, time_stamp=now_ms) for topic, count in self._overview.topics().items()
        }
        # A slave of RocketMQ asks once a minute, and copies it if the version is another one.
        version = DataVersion(counter=now_ms, timestamp=now_ms, state_version=0)
        return Reply(body=encode(TimerMetrics(timing_count=counts, data_version=version)))

    def check_point(self, _peer: Peer, _request: Request[object]) -> Reply:
        """How far messages are delivered: a slave of RocketMQ asks every 3 s."""
        return Reply(body=self._overview.timer_check(self._timer_end()))

    def stats(self, _peer: Peer, request: Request[DelayedStats]) -> Reply | Awaitable[Reply]:
        topic = request.fields.topic
        if topic is not None:
            return self._stats_of(topic)
        hours = self._overview.hours()
        return Reply(
            body=encode(DelayedCounts(waiting=sum(hours.values()), topics=self._overview.topics(), hours=hours))
        )

    async def _stats_of(self, topic: str) -> Reply:
        hours = await self._overview.hours_of(topic)
        waiting = sum(hours.values())
        return Reply(
            body=encode(DelayedCounts(waiting=waiting, topics={topic: waiting} if waiting else {}, hours=hours))
        )

    async def peek(self, _peer: Peer, request: Request[PeekDelayed]) -> Reply:
        header = request.fields
        records = await self._overview.peek(header.topic, begin_ms=header.begin_ms, count_max=header.count_max)
        return Reply(body=b"".join(records))
