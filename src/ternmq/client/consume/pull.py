"""The pull consumer: the application chooses queue and offset, and keeps its own account (F3).

::

    async with PullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        for queue in await consumer.queues("orders"):
            offset = await consumer.min_offset(queue)
            while (result := await consumer.pull(queue, offset)).messages:
                offset = result.next_offset

There is no rebalancing, and nothing is committed unless asked for. A pull brings its own subscription along, so a
program can read any queue, with any filter, as often as it likes: the building block of tools, exports and Spark's
source.

A pull consumer is no member of its group. It sends no heartbeat (in which RocketMQ's differs), so push consumers of the
same group do not leave queues to it that it would not read; the group only names whose progress is meant.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self, cast

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap
from ternmq.client.connect.routes import MASTER_ID
from ternmq.client.consume.by_offset import ByOffset
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.listener import ConsumeContext, ConsumeHook, ConsumeResult, tell
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.client.consume.slaves import check_slave
from ternmq.client.consume.subscription import Subscription
from ternmq.client.consume.watches import Watches
from ternmq.client.trace.hooks import TraceConsumption
from ternmq.client.trace.outbox import TraceCounts, TraceOutbox, outbox, trace_topic
from ternmq.env import Env
from ternmq.errors import NetworkError, refused
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import PullMessage, PullReply, PullSysflag
from ternmq.wire.stored import StoredMessage, read_answer

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
    """Reads queues by offset; the application chooses the queue and the offset.

    ::

        async with PullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
            for queue in await consumer.queues("orders"):
                offset = await consumer.min_offset(queue)
                while (result := await consumer.pull(queue, offset)).messages:
                    offset = result.next_offset

    It does not join the group, so it takes no queues from its members, and it stores no offset unless ``commit`` is
    called.

    Call its methods on the event loop's thread; programs without asyncio use ``SyncPullConsumer``.

    Args:
        group: Name of the consumer group whose stored offsets ``committed`` and ``commit`` use.
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        client: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
        hooks: Objects that are called with the messages of each pull, before and after each other: what the
            application does with them is not known here.
        trace: Whether pulled messages are traced, so that ``tern trace`` shows the path of a message: True, or the name
            of the trace topic if it is not ``RMQ_SYS_TRACE_TOPIC``. A pulled message counts as consumed.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        hooks: Sequence[ConsumeHook] = (),
        trace: bool | str = False,
        env: Env | None = None,
    ) -> None:
        super().__init__(group, name_servers=name_servers, client=client, env=env)
        self._hooks = tuple(hooks)
        self._trace_topic = trace_topic(trace)
        self._traces: TraceOutbox | None = None
        self._told: tuple[ConsumeHook, ...] = self._hooks
        self._stack = AsyncExitStack()
        #: Which copy of its broker to ask for a queue (O3); the master where nothing else was suggested.
        self._broker_ids: dict[MessageQueue, int] = {}

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            instance = await stack.enter_async_context(ClientInstance.shared(self._client_config, env=self._env))
            if self._trace_topic:
                self._traces = await stack.enter_async_context(
                    outbox(self._trace_topic, self._client_config, self.group, kind="CONSUME", env=self._env)
                )
                self._told = (*self._hooks, TraceConsumption(self._traces))
            self._watches = Watches(instance, await stack.enter_async_context(Tasks()))
            stack.callback(self._watches.close)
            self._open = instance, BrokerOffsets(instance, self._wire_group)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = None
        await self._stack.aclose()

    @property
    def traces(self) -> TraceCounts:
        """How many trace records were sent, and how many dropped; zeros without ``trace``."""
        return TraceCounts() if self._traces is None else self._traces.counts

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
        """Messages of ``queue`` from ``queue_offset`` on, at most ``count_max`` (brokers return 32 at most by default).

        ``tags`` chooses messages by their tag: ``"new || paid"``; ``"*"`` means all. ``sql`` chooses them by an SQL
        expression on their properties. With ``wait``, a broker that has no message holds the pull for up to
        ``suspend_ms``. ``commit_offset`` also stores this offset for the group. A message that cannot be read has a
        ``body_error``, and its body is as stored.

        While a Raft group changes its leader, the pull waits for the new one, for some seconds.

        Raises ``BrokerRefused``, ``NetworkError``, ``CallTimeout``, and ``CorruptRecord`` for a response that cannot be
        decoded.
        """
        subscription = Subscription.of((await self._wired(queue)).topic, tags, sql, version=0)
        return await self._ask_leader(
            queue,
            lambda wired: self._pull(
                wired,
                queue_offset,
                subscription,
                count_max=count_max,
                suspend_ms=suspend_ms if wait else None,
                commit_offset=commit_offset,
            ),
        )

    async def _pull(
        self,
        wired: MessageQueue,
        queue_offset: int,
        subscription: Subscription,
        *,
        count_max: int,
        suspend_ms: int | None,
        commit_offset: int | None,
    ) -> PullResult:
        """Ask once. ``suspend_ms``: how long the broker may hold the pull; None: it answers at once."""
        instance, offsets = self._running()
        copy = instance.copy_of(wired.broker_name, broker_id=self._broker_ids.get(wired, MASTER_ID))
        commits = commit_offset is not None and copy.is_master
        if commit_offset is not None and not commits:
            # Slaves of RocketMQ take no offsets from pulls.
            await offsets.commit(wired, commit_offset)
        sysflag = PullSysflag.SUBSCRIPTION
        if suspend_ms is not None:
            sysflag |= PullSysflag.SUSPEND
        if commits:
            sysflag |= PullSysflag.COMMIT_OFFSET
        header = PullMessage(
            consumer_group=self._wire_group,
            topic=wired.topic,
            queue_id=wired.queue_id,
            queue_offset=queue_offset,
            count_max=count_max,
            sysflag=sysflag,
            commit_offset=commit_offset or 0,
            suspend_timeout_ms=suspend_ms or 0,
            subscription=subscription.data.sub_string,
            expression_type=subscription.data.expression_type,
        )
        timeout_ms = ANSWER_MS + (suspend_ms or 0)
        try:
            response = await instance.call(copy.address, RequestCode.PULL_MESSAGE, header, timeout_ms=timeout_ms)
        except NetworkError:
            # The next pull may ask another copy.
            self._broker_ids.pop(wired, None)
            instance.refresh_routes_soon()
            raise
        if not copy.is_master:
            check_slave(wired, queue_offset, response)
        status = _STATUSES.get(response.code)
        if status is None:
            self._broker_ids.pop(wired, None)
            raise refused(
                response.code,
                f"{wired.broker_name} refused a pull of {wired} at {queue_offset}: {response.remark}",
                broker=wired.broker_name,
            )
        reply = response.read(PullReply)
        self._broker_ids[wired] = reply.suggested_broker_id
        messages = []
        if status is PullStatus.FOUND:
            received, _ = read_answer(
                response.body, StoredMessage, wired.broker_name, reply.min_offset, reply.max_offset
            )
            await instance.inflater.messages(received)
            matches = subscription.filter.matches
            messages = [one for one in received if matches(one.tags) or (one.body_error and not one.tags)]
            start_ms = instance.env.clock.now_ms()
            for message in messages:
                message.topic = unwrap(self._namespace, message.topic or wired.topic)
                message.consume_start_time_ms = start_ms
            if self._told and messages:
                self._tell(wired, messages)
        return PullResult(status, messages, reply.next_offset, reply.min_offset, reply.max_offset)

    def _tell(self, wired: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        """Hooks see a pulled message begin and end at once, as with RocketMQ's pull consumer."""
        queue = wired._replace(topic=unwrap(self._namespace, wired.topic))
        # Hooks read them only; they cannot be settled, as nothing waits for that.
        context = ConsumeContext(self.group, queue, cast("Sequence[Claimed]", messages), is_call=False)
        tell(self._told, "before_consume", context)
        context.result = ConsumeResult.SUCCESS
        tell(self._told, "after_consume", context)

    async def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store ``queue_offset`` as the group's offset in ``queue``: that of the first message that is not done."""
        await self._ask_leader(queue, lambda wired: self._running()[1].commit(wired, queue_offset))
