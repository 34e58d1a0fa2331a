"""The lite pull consumer: the application asks for messages when it wants some (F4).

::

    async with LitePullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders")
        async for message in consumer:
            save(message)

It reads ahead like a push consumer, by the same sources, so a poll rarely waits; but nothing runs unless the
application asks. Its queues come either from the group (``subscribe``: members divide them) or from the application
(``assign``: any queues, not shared with other consumers). It may go back and forth in them (``seek``), and leave some
out for a time (``pause``).

What is promised: messages of a queue come in order. What a poll returned is done when the next one is made, when it is
committed, or when the block is left without an error; progress never passes what is not done. Nothing is retried by
itself: an application that fails seeks back, starts again where the group's progress is, or sends a message back. With
``auto_commit`` progress is stored every 5 s and at the end, without it by ``commit`` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import NamedTuple, Self

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap, wrap
from ternmq.client.consume.assignment import ByMembers
from ternmq.client.consume.by_offset import ByOffset
from ternmq.client.consume.config import LitePullConfig
from ternmq.client.consume.consumer import Consumer, ConsumerParts
from ternmq.client.consume.given_store import GivenStore
from ternmq.client.consume.listener import ConsumeHook
from ternmq.client.consume.message_filter import MessageFilter
from ternmq.client.consume.offsets import BrokerOffsets, OffsetStore, StartPosition
from ternmq.client.consume.outlet import Messages
from ternmq.client.consume.polled import Polled
from ternmq.client.consume.pull_source import pulls
from ternmq.client.consume.subscription import Subscription, Subscriptions
from ternmq.client.consume.taken import taken
from ternmq.client.consume.watches import Watches
from ternmq.client.trace.hooks import TraceConsumption
from ternmq.client.trace.outbox import TraceCounts, TraceOutbox, outbox, trace_topic
from ternmq.env import Env, SystemClock
from ternmq.errors import ConfigError, ServiceNotAvailable
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeFromWhere, ConsumeType


class LitePullConsumer(ByOffset):
    """Gives messages when the application asks for them.

    ::

        async with LitePullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")
            async for message in consumer:
                save(message)

    A loop gets single messages; ``poll`` returns lists.

    It fetches ahead, so that a poll rarely waits. Queues are shared out in the group (``subscribe``) or chosen by the
    application (``assign``). The messages of a poll are done when the next poll is made, when they are committed, or
    when the block ends without an error. Nothing is retried by itself: an application that fails seeks back, or sends
    a message back (``send_back``). Only one task or thread may poll at a time.

    Call its methods on the event loop's thread; programs without asyncio use ``SyncLitePullConsumer``.

    Args:
        group: Name of the consumer group.
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        client: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
        config: All settings of the consumer. ``start`` and ``auto_commit`` take precedence over it. Default:
            ``LitePullConfig()``.
        start: Where to begin in a queue for which the group has no stored offset.
        auto_commit: Whether offsets are stored automatically, every 5 s and at the end. If False, only ``commit``
            stores them.
        message_filter: Function that is called with each fetched message, on the event loop; messages for which it
            returns False are skipped. For what ``tags`` and ``sql`` cannot express.
        offsets: Where the offsets of the group are kept, if not on the brokers: an ``OffsetStore`` of the application.
        hooks: Objects that are called when a poll returns a message, and when it is done, in this order.
        trace: Whether consumed messages are traced, so that ``tern trace`` shows the path of a message: True, or the
            name of the trace topic if it is not ``RMQ_SYS_TRACE_TOPIC``.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        config: LitePullConfig | None = None,
        start: StartPosition | None = None,
        auto_commit: bool | None = None,
        message_filter: MessageFilter | None = None,
        offsets: OffsetStore | None = None,
        hooks: Sequence[ConsumeHook] = (),
        trace: bool | str = False,
        env: Env | None = None,
    ) -> None:
        super().__init__(group, name_servers=name_servers, client=client, env=env)
        config = config or LitePullConfig()
        self.config = replace(
            config,
            start=start or config.start,
            auto_commit=config.auto_commit if auto_commit is None else auto_commit,
        )
        #: What was subscribed to, or the filters of assigned queues.
        self._subscriptions = Subscriptions(self._namespace, env.clock if env is not None else SystemClock())
        self._is_assigned = False
        self._message_filter = message_filter
        self._given_store = GivenStore(offsets, self._namespace) if offsets is not None else None
        self._hooks = tuple(hooks)
        self._trace_topic = trace_topic(trace)
        self._traces: TraceOutbox | None = None
        self._stack = AsyncExitStack()
        self._live: _RunningConsumer | None = None

    # --- What to read ----------------------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Read ``topic`` as a member of the group.

        ``tags`` chooses messages by their tag: ``"new || paid"``; ``"*"`` means all. ``sql`` chooses them by an SQL
        expression on their properties: ``"amount > 5 AND region = 'eu'"``.

        May be called at any time. While the consumer runs, it takes up the queues within a second; ``ready`` waits for
        that. Raises ``InvalidName``, ``ConfigError`` for an expression without a tag or after ``assign``, and
        ``InvalidExpression``.
        """
        if self._is_assigned:
            raise ConfigError(
                f"this consumer of group {self.group!r} has assigned queues; use either subscribe() or assign()"
            )
        if self.config.retries and not self._subscriptions.by_topic:
            self._subscriptions.add_retries(self._wire_group)
        if self._subscriptions.add(topic, tags, sql) and self._live is not None:
            self._live.consumer.subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading ``topic``; its queues are released within a second."""
        if not self._is_assigned and self._subscriptions.remove(topic) and self._live is not None:
            self._live.consumer.subscription_changed()

    async def assign(self, queues: Collection[MessageQueue], tags: str = "*", *, sql: str | None = None) -> None:
        """Read these ``queues`` and no others, whether or not other consumers read them; offsets are stored for the
        group.

        ``tags`` and ``sql`` choose messages as in ``subscribe``. Replaces an earlier assignment. Raises ``ConfigError``
        after ``subscribe``, and what brokers answer if a queue cannot be read; the other queues are read nevertheless.

        ::

            await consumer.assign(await consumer.queues("orders"))
        """
        consumer = self._started().consumer
        by_topic = self._subscriptions.by_topic
        if by_topic and not self._is_assigned:
            raise ConfigError(
                f"this consumer of group {self.group!r} has subscriptions; use either subscribe() or assign()"
            )
        wanted = {await self._wired(queue) for queue in queues}
        filters = {queue.topic: Subscription.of(queue.topic, tags, sql, version=0) for queue in wanted}
        self._is_assigned = bool(wanted)
        by_topic.clear()
        by_topic.update(filters)
        await consumer.assign(wanted)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now: those assigned, or this member's part of those subscribed to."""
        owned = self._live.consumer.sources.owned() if self._live is not None else ()
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in owned)

    @property
    def traces(self) -> TraceCounts:
        """How many trace records were sent, and how many dropped; zeros without ``trace``."""
        return TraceCounts() if self._traces is None else self._traces.counts

    async def ready(self) -> None:
        """Wait until the consumer reads all queues that it got after the last ``subscribe``."""
        await self._started().consumer.settled()

    # --- Messages --------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, at most ``batch_max``; waits for the first one up to ``timeout_ms`` (default: 5 s).

        Returns an empty list if there is none in that time. The messages of the last poll are done.

        ::

            while messages := await consumer.poll(1_000):
                save(messages)
        """
        wait_ms = self.config.poll_timeout_ms if timeout_ms is None else timeout_ms
        return [*await self._started().polled.poll(self.config.batch_max, wait_ms)]

    def __aiter__(self) -> Messages:
        """All messages, one by one, for ``async for``; each is done when the next is asked for.

        The last one is done when the block ends without an error, as for ``poll``. Only one loop may run at a time.
        """
        return Messages(self._started().polled)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these ``queues`` out until ``resume``: nothing of them is fetched or returned by polls."""
        self._started().consumer.sources.pause(self._owned(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Read ``queues`` again that were paused."""
        live = self._started()
        live.consumer.sources.resume(self._owned(queues))
        live.polled.look_again()

    # --- Places ----------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue at ``queue_offset`` in ``queue``, one of those that are read.

        Fetched messages that were not polled are dropped. Those of the last poll do not become done by this. Raises
        ``ConfigError`` for a queue that is not read here, or an offset outside the queue.
        """
        (wired,) = self._owned([queue])
        first, end = await asyncio.gather(self.min_offset(queue), self.max_offset(queue))
        if not first <= queue_offset <= end:
            raise ConfigError(f"invalid offset {queue_offset} of {queue}: expected {first} to {end}")
        self._started().consumer.sources.reset({wired: queue_offset})

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue in ``queue`` with its first message that is still stored."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue in ``queue`` with new messages."""
        await self.seek(queue, await self.max_offset(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets: those of all messages polled so far, or those of ``offsets``.

        Returns when they are stored, on the brokers or in the application's own store; raises what went wrong. While a
        Raft group changes its leader, it waits for the new one, for some seconds.
        """
        live = self._started()
        if offsets is None:
            live.polled.finish()
            # Asked anew for each attempt: another member may have got a queue in the meantime, and be further.
            await self._commit(live.consumer.sources.progress)
        else:
            wired = {await self._wired(queue): offset for queue, offset in offsets.items()}
            await self._commit(lambda: wired)

    async def committed(self, queue: MessageQueue) -> int | None:
        """The offset that the group has stored for ``queue``; None if there is none."""
        if self._given_store is not None:
            return await self._given_store.load(await self._wired(queue))
        return await super().committed(queue)

    async def _commit(self, progress: Callable[[], Mapping[MessageQueue, int]]) -> None:
        if self._given_store is not None:
            await self._given_store.store(progress())
            return

        async def store() -> None:
            failures = (await self._running()[1].commit_all(progress())).values()
            # A new leader does not help against other errors.
            for error in sorted(failures, key=lambda error: isinstance(error, ServiceNotAvailable)):
                raise error

        await self._ask_leaders(lambda: {queue.topic for queue in progress()}, store)

    # --- Start and end ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take up the queues of what is subscribed already. Raises ``NameServersUnreachable``."""
        async with AsyncExitStack() as stack:
            shared = ClientInstance.shared(self._client_config, env=self._env, consumer_group=self._wire_group)
            instance = await stack.enter_async_context(shared)
            await self._subscriptions.check(instance, self._wire_group)
            hooks = self._hooks
            if self._trace_topic:
                self._traces = await stack.enter_async_context(
                    outbox(self._trace_topic, self._client_config, self.group, kind="CONSUME", env=self._env)
                )
                hooks = (*hooks, TraceConsumption(self._traces))
            stack.push_async_callback(instance.unregister_consumer, self._wire_group)
            tasks = await stack.enter_async_context(Tasks())
            brokers = self._brokers_of(instance)
            consumer = Consumer(
                instance,
                self._wire_group,
                self.config.of_fetching(),
                self._parts(instance, brokers),
                subscriptions=self._subscriptions.by_topic,
                active=_always(),
                tasks=tasks,
            )
            sources = consumer.sources
            consumer.settling.taken = taken(self.group, hooks)
            polled = Polled(consumer.settling, lambda queue: queue in sources.paused, clock=consumer.clock)
            consumer.open(polled)
            self._watches = Watches(instance, tasks)
            stack.callback(self._watches.close)
            await consumer.start()
            self._live, self._open = _RunningConsumer(consumer, polled), (instance, brokers)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the progress, if it is stored automatically, and leave the group."""
        live, self._live, self._open = self._started(), None, None
        if self._is_assigned:
            self._is_assigned = False
            self._subscriptions.by_topic.clear()
        async with self._stack:
            if kind is None:
                live.polled.finish()
            await live.consumer.stop()

    def _brokers_of(self, instance: ClientInstance) -> BrokerOffsets:
        is_timed = self.config.start.where is ConsumeFromWhere.TIMESTAMP
        return BrokerOffsets(instance, self._wire_group, zero_if_young=not is_timed)

    def _parts(self, instance: ClientInstance, brokers: BrokerOffsets) -> ConsumerParts:
        config = self.config
        stored: OffsetStore = self._given_store or brokers
        progress = stored if config.auto_commit else _ByHand(stored)
        return ConsumerParts(
            ConsumeType.ACTIVELY,
            ByMembers(instance, self._wire_group, config.allocation),
            pulls(progress, BrokerOffsets(instance, self._wire_group), chooses=self._message_filter, lite=True),
            progress=progress,
            resets=stored,
            save_interval_ms=config.auto_commit_interval_ms if config.auto_commit else None,
            returns=None,
            no_returns="a lite pull consumer has no retries; seek back, or it is done when you ask for more",
            leaves_failed=True,
            joins_at_once=False,
            passes_unreadable=True,
        )

    def _owned(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        owned = self._started().consumer.sources.owned()
        wired = {queue._replace(topic=wrap(self._namespace, queue.topic)) for queue in queues}
        for queue in wired.difference(owned):
            raise ConfigError(f"{queue} is not assigned to this consumer; see consumer.assignment")
        return wired

    def _started(self) -> _RunningConsumer:
        self._running()
        assert self._live is not None
        return self._live


class _RunningConsumer(NamedTuple):
    """What is there while the consumer runs."""

    consumer: Consumer
    polled: Polled


class _ByHand:
    """Progress that is stored only by ``commit``."""

    def __init__(self, store: OffsetStore) -> None:
        self._store = store

    async def load(self, queue: MessageQueue) -> int | None:
        return await self._store.load(queue)

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        """Nothing: the application did not commit."""


def _always() -> asyncio.Event:
    """A lite pull consumer is not suspended; it pauses queues."""
    active = asyncio.Event()
    active.set()
    return active
