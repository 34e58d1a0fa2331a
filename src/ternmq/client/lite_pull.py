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

from ternmq.client.by_offset import ByOffset
from ternmq.client.config import ClientConfig
from ternmq.client.consumer_config import LitePullConfig
from ternmq.client.instance import ClientInstance
from ternmq.client.lite_member import LiteMember, QueueListener
from ternmq.client.namespace import unwrap, wrap
from ternmq.client.offsets import StartPosition
from ternmq.client.subscription import Subscription
from ternmq.env import Env, SystemClock
from ternmq.errors import ConfigError, NotRunning, RouteMissing
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.names import check_topic
from ternmq.tasks import Tasks


class LitePullConsumer(ByOffset):
    """Gives messages when asked. All methods belong to the loop's thread; for threads there is
    ``SyncLitePullConsumer``.

    ``start`` and ``auto_commit`` are what most programs want to set; ``config`` has all, ``client`` what all clients of
    a process share.
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
        """Read ``topic`` as a member of the group: all of it, messages with one of the tags in ``A || B`` (K1), or
        those for whose properties an SQL expression is true (K2).

        May be called at any time; while the consumer runs, queues are taken up within a second (``ready`` waits for
        that). Raises ``InvalidName``, ``ConfigError`` for an expression that names no tag or after ``assign``, and
        ``InvalidExpression``.
        """
        if self._is_assigned:
            raise ConfigError(f"group {self.group!r} has queues assigned here; subscribe or assign, not both")
        name = wrap(self._namespace, check_topic(topic))
        known = self._subscriptions.get(name)
        version = max(self._clock.now_ms(), known.data.sub_version + 1 if known is not None else 0)
        subscription = Subscription.of(name, tags, sql, version=version)
        if known is None or not known.wants_same_as(subscription):
            self._subscriptions[name] = subscription
            if self._member is not None:
                self._member.subscription_changed()

    def unsubscribe(self, topic: str) -> None:
        """Read ``topic`` no more; its queues are let go within a second."""
        name = wrap(self._namespace, topic)
        if not self._is_assigned and self._subscriptions.pop(name, None) is not None and self._member is not None:
            self._member.subscription_changed()

    async def assign(self, queues: Collection[MessageQueue], tags: str = "*", *, sql: str | None = None) -> None:
        """Read these queues and no others, whoever else does; the group only names whose progress is meant.

        Takes the place of what was assigned before. Raises ``ConfigError`` after ``subscribe``, and when a queue cannot
        be read what brokers say; then the others are read all the same.

        ::

            await consumer.assign(await consumer.queues("orders"))
        """
        member = self._running_member()
        if self._subscriptions and not self._is_assigned:
            raise ConfigError(f"group {self.group!r} subscribes here; subscribe or assign, not both")
        wanted = {await self._wired(queue) for queue in queues}
        filters = {queue.topic: Subscription.of(queue.topic, tags, sql, version=0) for queue in wanted}
        self._is_assigned = bool(wanted)
        self._subscriptions.clear()
        self._subscriptions.update(filters)
        await member.assign(wanted)

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now: those assigned, or this member's part of what is subscribed to."""
        owned = self._member.readers.owned() if self._member is not None else ()
        return sorted(queue._replace(topic=unwrap(self._namespace, queue.topic)) for queue in owned)

    async def ready(self) -> None:
        """Wait until all queues that are ours after the last ``subscribe`` are being read."""
        await self._running_member().settled()

    async def watch_queues(self, topic: str, listener: QueueListener) -> None:
        """Have ``listener(topic, queues)`` called when the queues of a topic have changed (within 30 s of that).

        For those who assign: they hear here of queues that they should read. The listener is a plain or an ``async``
        function; what it raises is logged. Raises ``RouteMissing`` for a topic that does not exist.
        """
        await self.queues(topic)
        self._running_member().watch(wrap(self._namespace, topic), topic, listener)

    # --- Messages --------------------------------------------------------------------------------------------

    async def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages, ``batch_max`` at most; waits for the first up to ``timeout_ms`` (default: 5 s).

        None within that time: an empty list. The messages of the last poll are done.

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
        """The next messages, however long that takes; ends when the consumer does."""
        try:
            return await self._running_member().shelf.poll(self.config.batch_max, None)
        except NotRunning:
            raise StopAsyncIteration from None

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these queues out until ``resume``: nothing of them is fetched, and polls give nothing of them."""
        self._running_member().readers.pause(self._owned(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with queues that were paused."""
        self._running_member().resume(self._owned(queues))

    # --- Places ----------------------------------------------------------------------------------------------

    async def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on at ``queue_offset`` in one of the queues that are read.

        Messages that were fetched and not polled are forgotten, and those of the last poll are not done by this. Raises
        ``ConfigError`` for a queue that is not ours, or an offset that it does not have.
        """
        (wired,) = self._owned([queue])
        _, brokers = self._running()
        first, end = await asyncio.gather(brokers.min(wired), brokers.max(wired))
        if not first <= queue_offset <= end:
            raise ConfigError(f"{queue} has no offset {queue_offset}; it goes from {first} to {end}")
        self._running_member().readers.reset({wired: queue_offset})

    async def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the first message that is still there."""
        await self.seek(queue, await self.min_offset(queue))

    async def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what comes from now on."""
        await self.seek(queue, await self.max_offset(queue))

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's progress: all that was polled so far is done, or what ``offsets`` say.

        Returns when brokers have it; raises what went wrong.
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
            raise ConfigError(f"{queue} is not read here; see consumer.assignment for the queues that are")
        return wired

    def _running_member(self) -> LiteMember:
        self._running()
        assert self._member is not None
        return self._member
