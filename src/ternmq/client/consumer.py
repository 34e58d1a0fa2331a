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
from ternmq.client.concurrent import InTasks, InThreads
from ternmq.client.config import ClientConfig
from ternmq.client.consumer_config import PushConfig
from ternmq.client.inbox import Inbox, Messages
from ternmq.client.instance import ClientInstance
from ternmq.client.listener import BoundListener, ConsumeHook, Listener
from ternmq.client.member import Member
from ternmq.client.namespace import unwrap, wrap
from ternmq.client.offsets import BrokerOffsets, LocalOffsets, Progress, StartPosition
from ternmq.client.orderly import Orderly
from ternmq.client.settle import Outlet
from ternmq.client.subscription import Subscription
from ternmq.env import Env, SystemClock
from ternmq.errors import ConfigError, NotRunning, RouteMissing
from ternmq.message import MessageQueue
from ternmq.names import check_group, check_topic, retry_topic
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeFromWhere, MessageModel

ListenerT = TypeVar("ListenerT", bound=Listener)


class PushConsumer:
    """Consumes the messages of a group. All methods belong to the loop's thread; for threads there is
    ``SyncPushConsumer``.

    Members of one group must subscribe to the same topics with the same tags. ``listener`` is called with messages;
    leave it out to set one later (``@consumer.listener``) or to iterate (``messages``). The settings that most programs
    want stand here, all of them in ``config``; ``client`` is what all clients of a process share.
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
        """Consume ``topic``: all of it, messages with one of the tags in ``A || B`` (K1), or those for whose properties
        an SQL expression is true (K2): ``sql="amount > 5 AND region = 'eu'"``.

        May be called at any time; while the consumer runs, queues are taken up within a second (``ready`` waits for
        that). Raises ``InvalidName``, ``ConfigError`` for an expression that names no tag, and ``InvalidExpression``
        with the place of what is wrong in an SQL expression.
        """
        name = wrap(self._namespace, check_topic(topic))
        known = self._subscriptions.get(name)
        version = max(self._clock.now_ms(), known.data.sub_version + 1 if known is not None else 0)
        subscription = Subscription.of(name, tags, sql, version=version)
        if known is None or not known.wants_same_as(subscription):
            self._subscriptions[name] = subscription
            self._subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Consume ``topic`` no more; its queues are let go within a second and their progress stored."""
        if self._subscriptions.pop(wrap(self._namespace, topic), None) is not None:
            self._subscription_changed()

    def listener(self, listener: ListenerT) -> ListenerT:
        """Set the listener, as a decorator::

        @consumer.listener
        async def on_message(message): ...
        """
        member = self._member
        if self._listener is not None or (member is not None and member.outlet is not None):
            raise ConfigError(f"group {self.group!r} has a listener or a loop over its messages here; one is enough")
        self._listener = listener
        if member is not None:
            member.open(self._calls_of(listener, member))
        return listener

    def messages(self) -> Messages:
        """All messages, one by one, for ``async for``; each is done when the next is asked for.

        Before you leave such a loop by ``break``, say ``message.ack()`` if its last message is done. Several loops may
        share the messages.
        """
        if self._listener is not None:
            raise ConfigError(f"group {self.group!r} has a listener here; make a consumer without it to iterate")
        if self.config.orderly:
            # Several loops may share the messages, and what is taken is out of our hands.
            raise ConfigError(f"group {self.group!r} is consumed in order here, and only a listener can do that")
        member = self._running()
        if member.outlet is None:
            member.open(Inbox(member.settling, clock=member.instance.env.clock))
        assert isinstance(member.outlet, Inbox)
        return Messages(member.outlet)

    def suspend(self) -> None:
        """Fetch nothing more until ``resume``; what was fetched is still consumed, and queues stay ours."""
        self._active.clear()

    def resume(self) -> None:
        self._active.set()

    def resize(self, threads: int) -> None:
        """Have this many calls of the listener at a time from now on, threads or tasks; those that run go on.

        Raises ``ConfigError`` below 1, and where the messages are taken in loops instead.
        """
        self.config = replace(self.config, threads=threads)
        if self._member is not None:
            self._member.resize(threads)

    async def ready(self) -> None:
        """Wait until all queues that are ours after the last change are being read."""
        await self._running().rebalancer.settled()

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now, those of the group's retry topic included."""
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
            progress = self._progress(instance, group, stack)
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

    def _progress(self, instance: ClientInstance, group: str, stack: AsyncExitStack) -> Progress:
        if self.config.model is MessageModel.CLUSTERING:
            # Whoever names a time means it.
            is_timed = self.config.start.where is ConsumeFromWhere.TIMESTAMP
            return BrokerOffsets(instance, group, zero_if_young=not is_timed)
        # By the configured name, not by the client id: that one has a number which is new with each start.
        config = instance.config
        owner = "@".join(filter(None, (instance.client_ip, config.instance_name, config.unit_name)))
        path = LocalOffsets.path_of(self.config.offsets_directory, owner, group)
        return stack.enter_context(LocalOffsets(path, group))

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
            raise NotRunning(f"the consumer of group {self.group!r} does not run; use it inside its `async with` block")
        return self._member
