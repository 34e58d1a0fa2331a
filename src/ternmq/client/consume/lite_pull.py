"""The lite pull consumer: the application asks for messages when it wants some (F4).

::

    async with LitePullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders")
        async for messages in consumer:
            save(messages)

It reads ahead like a push consumer, by the same readers, so a poll rarely waits; but nothing runs unless the
application asks. Its queues come either from the group (``subscribe``: members divide them) or from the application
(``assign``: any queues, shared with nobody). It may go back and forth in them (``seek``), and leave some out for a time
(``pause``).

What is promised: messages of a queue come in order. What a poll gave is done when the next one is made, when it is
committed, or when the block is left without an error; progress never passes what is not done. There are no retries: an
application that fails seeks back, or starts again where the group's progress is. With ``auto_commit`` progress is
stored every 5 s and at the end, without it by ``commit`` alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap, wrap
from ternmq.client.consume.by_offset import ByOffset
from ternmq.client.consume.config import LitePullConfig
from ternmq.client.consume.lite_member import LiteMember, QueueListener
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.subscription import Subscription
from ternmq.env import Env, SystemClock
from ternmq.errors import ConfigError, NotRunning, RouteMissing
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import check_topic
from ternmq.tasks import Tasks


class LitePullConsumer(ByOffset):
    """Gives messages when the application asks for them.

    ::

        async with LitePullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders")
            async for messages in consumer:
                save(messages)

    It fetches ahead, so that a poll rarely waits. Queues are shared out in the group (``subscribe``) or chosen by the
    application (``assign``). The messages of a poll are done when the next poll is made, when they are committed, or
    when the block ends without an error. There are no retries: an application that fails seeks back. Only one task or
    thread may poll at a time.

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
        env: Env | None = None,
    ) -> None:
        super().__init__(group, name_servers=name_servers, client=client, env=env)
        config = config or LitePullConfig()
        self.config = replace(
            config,
            start=start or config.start,
            auto_commit=config.auto_commit if auto_commit is None else auto_commit,
        )
        self._clock = env.clock if env is not None else SystemClock()
        #: By topic on the wire: what was subscribed to, or the filters of assigned queues.
        self._subscriptions: dict[str, Subscription] = {}
        self._is_assigned = False
        self._stack = AsyncExitStack()
        self._member: LiteMember | None = None

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
        name = wrap(self._namespace, check_topic(topic))
        known = self._subscriptions.get(name)
        version = max(self._clock.now_ms(), known.data.sub_version + 1 if known is not None else 0)
        subscription = Subscription.of(name, tags, sql, version=version)
        if known is None or not known.wants_same_as(subscription):
            self._subscriptions[name] = subscription
            if self._member is not None:
                self._member.subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Stop reading ``topic``; its queues are released within a second."""
        name = wrap(self._namespace, topic)
        if not self._is_assigned and self._subscriptions.pop(name, None) is not None and self._member is not None:
            self._member.subscription_changed()

    async def assign(self, queues: Collection[MessageQueue], tags: str = "*", *, sql: str | None = None) -> None:
        """Read these ``queues`` and no others, whether or not other consumers read them; offsets are stored for the
        group.

        ``tags`` and ``sql`` choose messages as in ``subscribe``. Replaces an earlier assignment. Raises ``ConfigError``
        after ``subscribe``, and what brokers answer if a queue cannot be read; the other queues are read nevertheless.

        ::

            await consumer.assign(await consumer.queues("orders"))
        """
        member = self._running_member()
        if self._subscriptions and not self._is_assigned:
            raise ConfigError(
                f"this consumer of group {self.group!r} has subscriptions; use either subscribe() or assign()"
            )
        wanted = {await self._wired(queue) for queue in queues}
        filters = {queue.topic: Subscription.of(queue.topic, tags, sql, version=0) for queue in wanted}
        self._is_assigned = bool(wanted)
        self._subscriptions.clear()
        self._subscriptions.update(filters)
        await member.assign(wanted)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now: those assigned, or this member's part of those subscribed to."""
        owned = self._member.readers.owned() if self._member is not None else ()
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in owned)

    async def ready(self) -> None:
        """Wait until the consumer reads all queues that it got after the last ``subscribe``."""
        await self._running_member().settled()

    async def watch_queues(self, topic: str, listener: QueueListener) -> None:
        """Call ``listener(topic, queues)`` when the queues of ``topic`` have changed, within 30 s of the change.

        For consumers that use ``assign``, to learn of new queues. The listener is a plain or an ``async`` function;
        what it raises is logged. Raises ``RouteMissing`` for a topic that does not exist.
        """
        await self.queues(topic)
        self._running_member().watch(wrap(self._namespace, topic), topic, listener)

    # --- Messages --------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, at most ``batch_max``; waits for the first one up to ``timeout_ms`` (default: 5 s).

        Returns an empty list if there is none in that time. The messages of the last poll are done.

        ::

            while messages := await consumer.poll(1_000):
                save(messages)
        """
        member = self._running_member()
        return await member.shelf.poll(
            self.config.batch_max, self.config.poll_timeout_ms if timeout_ms is None else timeout_ms
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[ReceivedMessage]:
        """The next messages, waiting for them without a limit; ends when the consumer does."""
        try:
            return await self._running_member().shelf.poll(self.config.batch_max, None)
        except NotRunning:
            raise StopAsyncIteration from None

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these ``queues`` out until ``resume``: nothing of them is fetched or returned by polls."""
        self._running_member().readers.pause(self._owned(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Read ``queues`` again that were paused."""
        self._running_member().resume(self._owned(queues))

    # --- Places ----------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Continue at ``queue_offset`` in ``queue``, one of those that are read.

        Fetched messages that were not polled are dropped. Those of the last poll do not become done by this. Raises
        ``ConfigError`` for a queue that is not read here, or an offset outside the queue.
        """
        (wired,) = self._owned([queue])
        _, brokers = self._running()
        first, end = await asyncio.gather(brokers.min(wired), brokers.max(wired))
        if not first <= queue_offset <= end:
            raise ConfigError(f"invalid offset {queue_offset} of {queue}: expected {first} to {end}")
        self._running_member().readers.reset({wired: queue_offset})

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Continue in ``queue`` with its first message that is still stored."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Continue in ``queue`` with new messages."""
        await self.seek(queue, await self.max_offset(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's offsets: those of all messages polled so far, or those of ``offsets``.

        Returns when the brokers have stored them; raises what went wrong.
        """
        member = self._running_member()
        if offsets is None:
            await member.commit()
        else:
            await member.commit_offsets({await self._wired(queue): offset for queue, offset in offsets.items()})

    # --- Start and end ---------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        """Take up the queues of what is subscribed already. Raises ``NameServersUnreachable``."""
        async with AsyncExitStack() as stack:
            shared = ClientInstance.shared(self._client_config, env=self._env, consumer_group=self._wire_group)
            instance = await stack.enter_async_context(shared)
            # For a name server that does not answer, an error here is worth more than warnings for ever.
            for topic, subscription in list(self._subscriptions.items()):
                with suppress(RouteMissing):
                    await instance.routes.of(topic)
                await subscription.check(instance, self._wire_group)
            stack.push_async_callback(instance.unregister_consumer, self._wire_group)
            tasks = await stack.enter_async_context(Tasks())
            member = LiteMember(instance, self._wire_group, self.config, subscriptions=self._subscriptions, tasks=tasks)
            await member.start()
            self._member, self._open = member, (instance, member.brokers)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Store the progress, if it is stored by itself, and leave the group."""
        member, self._member, self._open = self._running_member(), None, None
        if self._is_assigned:
            self._is_assigned = False
            self._subscriptions.clear()
        async with self._stack:
            await member.stop(polled_is_done=kind is None)

    def _owned(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        owned = self._running_member().readers.owned()
        wired = {queue._replace(topic=wrap(self._namespace, queue.topic)) for queue in queues}
        for queue in wired.difference(owned):
            raise ConfigError(f"{queue} is not assigned to this consumer; see consumer.assignment")
        return wired

    def _running_member(self) -> LiteMember:
        self._running()
        assert self._member is not None
        return self._member
