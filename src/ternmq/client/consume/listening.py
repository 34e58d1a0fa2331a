"""What push and pop consumers have in common for the application: subscriptions, a listener or a loop (F1, F9).

A front chooses the parts of a ``Consumer`` (``consumer``) and opens it; this is all that applications see of it.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap, wrap
from ternmq.client.consume.concurrent import Concurrent
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.consumer import Consumer, ConsumerParts
from ternmq.client.consume.listener import BoundListener, ConsumeHook, Listener
from ternmq.client.consume.looped import Looped
from ternmq.client.consume.orderly import Orderly
from ternmq.client.consume.outlet import Messages, Outlet
from ternmq.client.consume.subscription import Subscriptions
from ternmq.client.consume.taken import taken
from ternmq.client.trace.hooks import TraceConsumption
from ternmq.client.trace.outbox import TraceCounts, TraceOutbox, outbox, trace_topic
from ternmq.env import Env, SystemClock
from ternmq.errors import ConfigError, NotRunning
from ternmq.message import MessageQueue
from ternmq.names import check_group
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import MessageModel

ListenerT = TypeVar("ListenerT", bound=Listener)


class ListeningConsumer(ABC):
    """A consumer with a listener or a loop. Its ``_listening`` settings are those of calls and fetching, whatever kind
    of consumer it is."""

    def __init__(
        self,
        group: str,
        listener: Listener | None,
        config: PushConfig,
        *,
        name_servers: str | Sequence[str],
        client: ClientConfig | None,
        hooks: Sequence[ConsumeHook],
        trace: bool | str,
        env: Env | None,
    ) -> None:
        self.group = check_group(group)
        self._listening = config
        self._client_config = client or ClientConfig(name_servers)
        self._namespace = self._client_config.namespace
        self._hooks = tuple(hooks)
        self._trace_topic = trace_topic(trace)
        self._traces: TraceOutbox | None = None
        self._env = env
        self._listener = listener
        self._subscriptions = Subscriptions(self._namespace, env.clock if env is not None else SystemClock())
        self._active = asyncio.Event()
        self._active.set()
        self._stack = AsyncExitStack()
        self._consumer: Consumer | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group}: {', '.join(self._subscriptions.by_topic) or 'no topic yet'}>"

    @abstractmethod
    def _instance(self, group: str) -> AbstractAsyncContextManager[ClientInstance]:
        """The connections of the consumer; ``group`` is its name on the wire."""

    @abstractmethod
    async def _parts(self, instance: ClientInstance, group: str, tasks: Tasks, stack: AsyncExitStack) -> ConsumerParts:
        """What the consumer is made of; ``stack`` ends what must end after it."""

    # --- What to consume, and how ----------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume ``topic``.

        ``tags`` chooses messages by their tag: ``"new || paid"``; ``"*"`` means all. ``sql`` chooses them by an SQL
        expression on their properties: ``"amount > 5 AND region = 'eu'"``.

        May be called at any time. While the consumer runs, it takes up the queues within a second; ``ready`` waits for
        that. Raises ``InvalidName``, ``ConfigError`` for an expression without a tag, and ``InvalidExpression`` with
        the position of the error in an SQL expression.
        """
        if self._subscriptions.add(topic, tags, sql) and self._consumer is not None:
            self._consumer.subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``: within a second its queues are released and their offsets stored."""
        if self._subscriptions.remove(topic) and self._consumer is not None:
            self._consumer.subscription_changed()

    def listener(self, listener: ListenerT) -> ListenerT:
        """Set the ``listener``, as a decorator.

        ::

            @consumer.listener
            async def on_message(message): ...

        Raises ``ConfigError`` if the consumer has a listener already, or a loop over its messages.
        """
        consumer = self._consumer
        if self._listener is not None or (consumer is not None and consumer.outlet is not None):
            raise ConfigError(
                f"this consumer of group {self.group!r} already has a listener or a loop over its messages; it can "
                "have only one"
            )
        self._listener = listener
        if consumer is not None:
            consumer.open(self._calls_of(listener, consumer))
        return listener

    def __aiter__(self) -> Messages:
        """All messages, one by one, for ``async for``; each is done when the next is asked for.

        Before you leave such a loop by ``break``, call ``message.ack()`` if its last message is done. Several loops may
        share the messages; each message goes to one of them. Raises ``ConfigError`` if the consumer has a listener or
        is orderly.
        """
        if self._listener is not None:
            raise ConfigError(
                f"this consumer of group {self.group!r} has a listener and cannot be iterated; create a consumer "
                "without a listener"
            )
        if self._listening.orderly:
            # Several loops may share the messages, and a loop may keep several messages.
            raise ConfigError(
                f"this consumer of group {self.group!r} is orderly and cannot be iterated; use a listener"
            )
        consumer = self._running()
        if consumer.outlet is None:
            consumer.settling.taken = taken(self.group, self._all_hooks())
            consumer.open(Looped(consumer.clock, consumer.settling.taken))
        assert isinstance(consumer.outlet, Looped)
        return Messages(consumer.outlet)

    def suspend(self) -> None:
        """Stop fetching until ``resume``. Fetched messages are still consumed, and the consumer keeps its queues."""
        self._active.clear()

    def resume(self) -> None:
        """Fetch again after ``suspend``."""
        self._active.set()

    def resize(self, threads: int) -> None:
        """Change how many calls of the listener run at the same time: ``threads`` of a plain function, tasks of an
        ``async`` one.

        Running calls are not affected. Raises ``ConfigError`` below 1, and if the messages are taken in loops instead.
        """
        self._listening = replace(self._listening, threads=threads)
        if self._consumer is not None:
            self._consumer.resize(threads)

    async def ready(self) -> None:
        """Wait until the consumer reads all queues that it got after the last change."""
        await self._running().settled()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now, including those of the group's retry topic."""
        owned = self._consumer.sources.owned() if self._consumer is not None else ()
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in owned)

    @property
    def traces(self) -> TraceCounts:
        """How many trace records were sent, and how many dropped; zeros without ``trace``."""
        return TraceCounts() if self._traces is None else self._traces.counts

    # --- Start and end ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Join the group and take up the queues of what is subscribed already.

        Raises ``NameServersUnreachable`` and, for an SQL filter that a broker does not take, ``SubscriptionInvalid`` or
        ``SystemFailure``. A topic that does not exist yet is waited for, with a warning.
        """
        group = wrap(self._namespace, self.group)
        async with AsyncExitStack() as stack:
            instance = await stack.enter_async_context(self._instance(group))
            await self._subscriptions.check(instance, group)
            if self._trace_topic:
                self._traces = await stack.enter_async_context(
                    outbox(self._trace_topic, self._client_config, self.group, kind="CONSUME", env=self._env)
                )
            # Brokers hear last that we leave: the other members ask for the progress as soon as they are told.
            stack.push_async_callback(instance.unregister_consumer, group)
            ending = await stack.enter_async_context(AsyncExitStack())
            tasks = await stack.enter_async_context(Tasks())
            if self._listening.model is MessageModel.CLUSTERING:
                self._subscriptions.add_retries(group)
            consumer = Consumer(
                instance,
                group,
                self._listening,
                await self._parts(instance, group, tasks, ending),
                subscriptions=self._subscriptions.by_topic,
                active=self._active,
                tasks=tasks,
            )
            if self._listener is not None:
                consumer.open(self._calls_of(self._listener, consumer))
            await consumer.start()
            self._consumer = consumer
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let running listeners end (at most ``stop_timeout_ms``), store the progress, leave the group."""
        consumer, self._consumer = self._running(), None
        async with self._stack:
            await consumer.stop()

    def _calls_of(self, listener: Listener, consumer: Consumer) -> Outlet:
        config = self._listening
        bound = BoundListener(listener, single=config.batch_max == 1, hooks=self._all_hooks(), orderly=config.orderly)
        if config.orderly:
            return Orderly(
                bound,
                consumer.settling,
                config,
                group=self.group,
                locks=consumer.locks,
                outages=consumer.outages,
                clock=consumer.clock,
                tasks=consumer.tasks,
            )
        return Concurrent(
            bound,
            consumer.settling,
            group=self.group,
            batch_max=config.batch_max,
            threads=config.threads,
            outages=consumer.outages,
            clock=consumer.clock,
            tasks=consumer.tasks,
        )

    def _all_hooks(self) -> tuple[ConsumeHook, ...]:
        return self._hooks if self._traces is None else (*self._hooks, TraceConsumption(self._traces))

    def _running(self) -> Consumer:
        if self._consumer is None:
            raise NotRunning(
                f"the consumer of group {self.group!r} is not running; use it inside its `async with` block"
            )
        return self._consumer
