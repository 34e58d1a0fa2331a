"""The pull consumer: the application chooses queue and offset, and keeps its own account (F3).

::

    async with PullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        for queue in await consumer.queues("orders"):
            offset = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, offset)).messages:
                offset = result.next_offset

Nobody rebalances here and nothing is committed unless asked for. A pull brings its own subscription along, so anyone
can read any queue, with any filter, as often as they like: the building block of tools, exports and Spark's source.

A pull consumer is no member of its group. It sends no heartbeat (in which RocketMQ's differs), so push consumers of the
same group do not leave queues to it that it would not read; the group only names whose progress is meant.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self

from ternmq.client.by_offset import ByOffset
from ternmq.client.config import ClientConfig
from ternmq.client.instance import ClientInstance
from ternmq.client.namespace import unwrap
from ternmq.client.offsets import BrokerOffsets
from ternmq.client.routes import MASTER_ID
from ternmq.client.subscription import Subscription
from ternmq.env import Env
from ternmq.errors import refused
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.received import to_message
from ternmq.wire.record import unpack_records
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag

#: F8: how long a broker holds a pull of this consumer (RocketMQ's ``brokerSuspendMaxTimeMillis``).
SUSPEND_MS: Final = 20_000
#: For the answer, beyond the time that the broker was asked to wait.
ANSWER_MS: Final = 10_000
#: Messages with one pull.
COUNT_MAX: Final = 32


class PullStatus(enum.Enum):
    """What a pull found."""

    FOUND = "FOUND"
    #: The end of the queue.
    NO_NEW = "NO_NEW_MSG"
    #: Messages, but none that was asked for; go on at ``next_offset``.
    NO_MATCH = "NO_MATCHED_MSG"
    #: No such offset (any more); ``next_offset`` is the nearest.
    OFFSET_MOVED = "OFFSET_ILLEGAL"


_STATUSES: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCH,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_MOVED,
}


@dataclass(slots=True, frozen=True)
class PullResult:
    """The answer to a pull. ``min_offset`` and ``max_offset`` are the queue's bounds at that moment."""

    status: PullStatus
    messages: Sequence[ReceivedMessage]
    #: Where to go on; behind the last message by more than one where the broker skipped what was not asked for.
    next_offset: int
    min_offset: int
    max_offset: int


class PullConsumer(ByOffset):
    """Reads queues by offset. All methods belong to the loop's thread; for threads there is ``SyncPullConsumer``."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        env: Env | None = None,
    ) -> None:
        super().__init__(group, name_servers=name_servers, client=client, env=env)
        self._stack = AsyncExitStack()
        #: Which copy of its broker to ask for a queue (O3); the master where nothing else was suggested.
        self._broker_ids: dict[MessageQueue, int] = {}

    async def __aenter__(self) -> Self:
        instance = await self._stack.enter_async_context(ClientInstance.shared(self._client_config, env=self._env))
        self._open = instance, BrokerOffsets(instance, self._wire_group)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = None
        await self._stack.aclose()

    async def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        tags: str = "*",
        sql: str | None = None,
        count_max: int = COUNT_MAX,
        wait: bool = True,
        suspend_ms: int = SUSPEND_MS,
        commit_offset: int | None = None,
    ) -> PullResult:
        """Messages of ``queue`` from ``queue_offset`` on, with one of ``tags`` or where ``sql`` is true; 32 at most.

        With ``wait``, a broker that has none holds the pull for up to ``suspend_ms``. ``commit_offset`` stores the
        group's progress on the way. Raises ``BrokerRefused``, ``NetworkError``, ``CallTimeout``.
        """
        instance, _ = self._running()
        wired = await self._wired(queue)
        subscription = Subscription.of(wired.topic, tags, sql, version=0)
        broker_id = self._broker_ids.get(wired, MASTER_ID)
        address = instance.routes.address(queue.broker_name, broker_id) or instance.broker_address(queue.broker_name)
        commits = commit_offset is not None and broker_id == MASTER_ID
        sysflag = PullSysflag.SUBSCRIPTION
        if wait:
            sysflag |= PullSysflag.SUSPEND
        if commits:
            sysflag |= PullSysflag.COMMIT_OFFSET
        header = PullMessage(
            consumer_group=self._wire_group,
            topic=wired.topic,
            queue_id=queue.queue_id,
            queue_offset=queue_offset,
            count_max=count_max,
            sysflag=sysflag,
            commit_offset=commit_offset or 0,
            suspend_timeout_ms=suspend_ms if wait else 0,
            subscription=subscription.data.sub_string,
            expression_type=subscription.data.expression_type,
        )
        timeout_ms = ANSWER_MS + (suspend_ms if wait else 0)
        response = await instance.call(address, RequestCode.PULL_MESSAGE, header, timeout_ms=timeout_ms)
        status = _STATUSES.get(response.code)
        if status is None:
            raise refused(
                response.code,
                f"{queue.broker_name} refused a pull of {queue} at {queue_offset}: {response.remark}",
                broker=queue.broker_name,
            )
        reply = response.read(PullReply)
        self._broker_ids[wired] = reply.suggested_broker_id
        messages = []
        if status is PullStatus.FOUND:
            received = (to_message(record, queue.broker_name) for record in unpack_records(response.body))
            messages = [message for message in received if subscription.filter.matches(message.tags)]
            for message in messages:
                message.topic = unwrap(self._namespace, message.topic)
        return PullResult(status, messages, reply.next_offset, reply.min_offset, reply.max_offset)

    async def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store the group's progress: the queue offset of the first message that is not done."""
        await self._running()[1].commit(await self._wired(queue), queue_offset)
