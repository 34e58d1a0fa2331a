"""The push consumer: messages come to the application, which says what became of them (F1, F2, F5–F8, G1).

::

    async with PushConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", "new || paid")
        async for message in consumer.messages():
            await bill(message.body)

or with a listener, plain or ``async``, which runs in many threads or tasks at once::

    consumer = PushConsumer("billing", on_order, name_servers="127.0.0.1:9876")
    consumer.subscribe("orders")
    async with consumer:
        await stopped.wait()

With ``orderly=True`` the listener gets the messages of each queue one after the other (F2).

«Push» is what the application sees. Underneath, a ``Rebalancer`` decides which queues are ours, a ``QueueReader`` per
queue pulls (``fetch``), an ``Outlet`` runs the listener (``concurrent``, ``orderly``) or keeps messages for whoever
iterates (``inbox``), and ``Settling`` moves progress on or sends back. ``Member`` ties them together; this module is
what applications see of it.

What is promised: each message is delivered at least once to the group (in broadcasting: to each member). Progress never
passes a message that is not done, so a crash repeats some and loses none. Leaving the block lets running listeners
end, stores the progress and tells brokers, which tell the other members at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self, TypeVar

from ternmq.allocation import Allocation
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap, wrap
from ternmq.client.consume.concurrent import InTasks, InThreads
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.inbox import Inbox, Messages
from ternmq.client.consume.listener import BoundListener, ConsumeHook, Listener
from ternmq.client.consume.member import Member
from ternmq.client.consume.offsets import BrokerOffsets, LocalOffsets, Progress, StartPosition
from ternmq.client.consume.orderly import Orderly
from ternmq.client.consume.settle import Outlet
from ternmq.client.consume.subscription import Subscription
from ternmq.env import Env, SystemClock
from ternmq.errors import ConfigError, NotRunning, RouteMissing
from ternmq.message import MessageQueue
from ternmq.names import check_group, check_topic, retry_topic
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeFromWhere, MessageModel

ListenerT = TypeVar("ListenerT", bound=Listener)


class PushConsumer:
    """Consumes the messages of a group: calls a listener with them, or gives them to a loop.

    ::

        async with PushConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders", "new || paid")
            async for message in consumer.messages():
                await bill(message.body)

    The members of a group share the queues of its topics; all of them must subscribe to the same topics with the same
    filters. Each message is delivered at least once to the group. A message that fails comes again later.

    Call its methods on the event loop's thread; programs without asyncio use ``SyncPushConsumer``.

    Args:
        group: Name of the consumer group.
        listener: Function that is called with each message (with a list of messages if ``batch_max`` is above 1), and
            with a ``ConsumeContext`` if it has a second parameter. A plain function runs in threads, an ``async`` one
            in tasks. None or ``ConsumeResult.SUCCESS`` as its result means that the messages are done,
            ``ConsumeResult.RETRY`` or an exception that they must be delivered again. Default: no listener; set one
            later by ``listener()``, or loop over ``messages()``.
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        client: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
        config: All settings of the consumer. Those that programs set most often are also parameters here, which take
            precedence. Default: ``PushConfig()``.
        model: Whether the members share the messages (``CLUSTERING``) or each gets all of them (``BROADCASTING``).
        start: Where to begin in a queue for which the group has no stored offset.
        allocation: How the members divide the queues; it must be the same for all members of the group.
        orderly: Whether the messages of a queue are consumed one after the other, in their order.
        batch_max: How many messages one call of the listener gets at most.
        threads: How many calls of the listener may run at the same time.
        hooks: Objects that are called before and after each call of the listener, in this order.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        config: PushConfig | None = None,
        model: MessageModel | None = None,
        start: StartPosition | None = None,
        allocation: Allocation | None = None,
        orderly: bool | None = None,
        batch_max: int | None = None,
        threads: int | None = None,
        hooks: Sequence[ConsumeHook] = (),
        env: Env | None = None,
    ) -> None:
        self.group = check_group(group)
        config = config or PushConfig()
        self.config = replace(
            config,
            model=model or config.model,
            start=start or config.start,
            allocation=allocation or config.allocation,
            orderly=config.orderly if orderly is None else orderly,
            batch_max=config.batch_max if batch_max is None else batch_max,
            threads=config.threads if threads is None else threads,
        )
        self._client_config = client or ClientConfig(name_servers)
        self._namespace = self._client_config.namespace
        self._hooks = tuple(hooks)
        self._env = env
        self._clock = env.clock if env is not None else SystemClock()
        self._listener = listener
        #: By topic on the wire. Readers and heartbeats look into it at any time.
        self._subscriptions: dict[str, Subscription] = {}
        self._active = asyncio.Event()
        self._active.set()
        self._stack = AsyncExitStack()
        self._tasks: Tasks | None = None
        self._member: Member | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.group}: {', '.join(self._subscriptions) or 'no topic yet'}>"

    # --- What to consume, and how ----------------------------------------------------------------------------

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume ``topic``.

        ``tags`` chooses messages by their tag: ``"new || paid"``; ``"*"`` means all. ``sql`` chooses them by an SQL
        expression on their properties: ``"amount > 5 AND region = 'eu'"``.

        May be called at any time. While the consumer runs, it takes up the queues within a second; ``ready`` waits for
        that. Raises ``InvalidName``, ``ConfigError`` for an expression without a tag, and ``InvalidExpression`` with
        the position of the error in an SQL expression.
        """
        name = wrap(self._namespace, check_topic(topic))
        known = self._subscriptions.get(name)
        version = max(self._clock.now_ms(), known.data.sub_version + 1 if known is not None else 0)
        subscription = Subscription.of(name, tags, sql, version=version)
        if known is None or not known.wants_same_as(subscription):
            self._subscriptions[name] = subscription
            self._subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Stop consuming ``topic``: within a second its queues are released and their offsets stored."""
        if self._subscriptions.pop(wrap(self._namespace, topic), None) is not None:
            self._subscription_changed()

    def listener(self, listener: ListenerT) -> ListenerT:
        """Set the ``listener``, as a decorator.

        ::

            @consumer.listener
            async def on_message(message): ...

        Raises ``ConfigError`` if the consumer has a listener already, or a loop over its messages.
        """
        member = self._member
        if self._listener is not None or (member is not None and member.outlet is not None):
            raise ConfigError(
                f"this consumer of group {self.group!r} already has a listener or a loop over its messages; it can "
                "have only one"
            )
        self._listener = listener
        if member is not None:
            member.open(self._calls_of(listener, member))
        return listener

    def messages(self) -> Messages:
        """All messages, one by one, for ``async for``; each is done when the next is asked for.

        Before you leave such a loop by ``break``, call ``message.ack()`` if its last message is done. Several loops may
        share the messages.
        """
        if self._listener is not None:
            raise ConfigError(
                f"this consumer of group {self.group!r} has a listener and cannot be iterated; create a consumer "
                "without a listener"
            )
        if self.config.orderly:
            # Several loops may share the messages, and what is taken is out of our hands.
            raise ConfigError(
                f"this consumer of group {self.group!r} is orderly and cannot be iterated; use a listener"
            )
        member = self._running()
        if member.outlet is None:
            member.open(Inbox(member.settling, clock=member.instance.env.clock))
        assert isinstance(member.outlet, Inbox)
        return Messages(member.outlet)

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
        self.config = replace(self.config, threads=threads)
        if self._member is not None:
            self._member.resize(threads)

    async def ready(self) -> None:
        """Wait until the consumer reads all queues that it got after the last change."""
        await self._running().rebalancer.settled()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now, including those of the group's retry topic."""
        owned = self._member.readers.owned() if self._member is not None else ()
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in owned)

    # --- Start and end ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Join the group and take up the queues of what is subscribed already.

        Raises ``NameServersUnreachable`` and, for an SQL filter that a broker does not take, ``SubscriptionInvalid`` or
        ``SystemFailure``. A topic that does not exist yet is waited for, with a warning.
        """
        group = wrap(self._namespace, self.group)
        async with AsyncExitStack() as stack:
            instance = await stack.enter_async_context(self._instance(group))
            # For a name server that does not answer, an error here is worth more than warnings for ever.
            for topic, subscription in list(self._subscriptions.items()):
                with suppress(RouteMissing):
                    await instance.routes.of(topic)
                await subscription.check(instance, group)
            progress = await self._progress(instance, group, stack)
            # Brokers hear last that we leave: the other members ask for the progress as soon as they are told.
            stack.push_async_callback(instance.unregister_consumer, group)
            self._tasks = await stack.enter_async_context(Tasks())
            member = self._member_of(instance, group, progress, self._tasks)
            if self._listener is not None:
                member.open(self._calls_of(self._listener, member))
            instance.register_consumer(group, member)
            await member.start()
            self._member = member
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let running listeners end (at most ``stop_timeout_ms``), store the progress, leave the group."""
        member, self._member = self._running(), None
        async with self._stack:
            await member.stop()

    def _instance(self, group: str) -> AbstractAsyncContextManager[ClientInstance]:
        return ClientInstance.shared(self._client_config, env=self._env, consumer_group=group)

    def _member_of(self, instance: ClientInstance, group: str, progress: Progress, tasks: Tasks) -> Member:
        if self.config.model is MessageModel.CLUSTERING:
            self._subscribe_to_retries(group)
        return Member(
            instance,
            group,
            self.config,
            subscriptions=self._subscriptions,
            progress=progress,
            active=self._active,
            tasks=tasks,
        )

    def _subscribe_to_retries(self, group: str) -> None:
        retries = retry_topic(group)
        self._subscriptions[retries] = Subscription.by_tags(retries, "*", version=self._clock.now_ms())

    async def _progress(self, instance: ClientInstance, group: str, stack: AsyncExitStack) -> Progress:
        if self.config.model is MessageModel.CLUSTERING:
            # Whoever names a time means it.
            is_timed = self.config.start.where is ConsumeFromWhere.TIMESTAMP
            return BrokerOffsets(instance, group, zero_if_young=not is_timed)
        # By the configured name, not by the client id: that one has a number which is new with each start.
        config = instance.config
        owner = "@".join(filter(None, (instance.client_ip, config.instance_name, config.unit_name)))
        path = LocalOffsets.path_of(self.config.offsets_directory, owner, group)
        return await stack.enter_async_context(LocalOffsets(path, group))

    def _calls_of(self, listener: Listener, member: Member) -> Outlet:
        config, clock = self.config, member.instance.env.clock
        bound = BoundListener(listener, single=config.batch_max == 1, hooks=self._hooks, orderly=config.orderly)
        assert self._tasks is not None
        if config.orderly:
            return Orderly(
                bound,
                member.settling,
                config,
                group=self.group,
                locks=member.locks,
                clock=clock,
                tasks=self._tasks,
            )
        if not bound.is_async:
            return InThreads(
                bound,
                member.settling,
                group=self.group,
                batch_max=config.batch_max,
                threads=config.threads,
                clock=clock,
            )
        return InTasks(
            bound,
            member.settling,
            group=self.group,
            batch_max=config.batch_max,
            threads=config.threads,
            clock=clock,
            tasks=self._tasks,
        )

    def _subscription_changed(self) -> None:
        if self._member is not None:
            self._member.rebalancer.subscription_changed()

    def _running(self) -> Member:
        if self._member is None:
            raise NotRunning(
                f"the consumer of group {self.group!r} is not running; use it inside its `async with` block"
            )
        return self._member
