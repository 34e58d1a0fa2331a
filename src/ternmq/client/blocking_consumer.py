"""The blocking twin of ``PushConsumer``, for programs without asyncio (F1, F2).

::

    with SyncPushConsumer("billing", on_order, name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", "new || paid")
        stopped.wait()

or one message after the other::

    with SyncPushConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders")
        for message in consumer:
            bill(message.body)

All blocking clients of a process share one loop in one thread (``loop_thread``). Listeners are plain functions and run
in threads of their own pool; they may use blocking clients. An ``async`` listener is allowed and runs on the loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Self, TypeVar

from ternmq.allocation import Allocation
from ternmq.client.blocking_twin import BlockingTwin
from ternmq.client.config import ClientConfig
from ternmq.client.consumer import PushConsumer
from ternmq.client.consumer_config import PushConfig
from ternmq.client.inbox import Delivery, Inbox
from ternmq.client.listener import ConsumeHook, Listener
from ternmq.client.loop_thread import LoopThread
from ternmq.client.offsets import StartPosition
from ternmq.errors import NotRunning
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import MessageModel

ListenerT = TypeVar("ListenerT", bound=Listener)


class SyncListening(BlockingTwin):
    """What the blocking twins of consumers with listeners have in common."""

    def __init__(self, consumer: PushConsumer) -> None:
        super().__init__(consumer)
        self._consumer = consumer

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Consume ``topic``; see ``PushConsumer.subscribe``."""
        self._do(lambda: self._consumer.subscribe(topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Consume ``topic`` no more."""
        self._do(lambda: self._consumer.unsubscribe(topic))

    def listener(self, listener: ListenerT) -> ListenerT:
        """Set the listener, as a decorator."""
        return self._do(lambda: self._consumer.listener(listener))

    def suspend(self) -> None:
        """Fetch nothing more until ``resume``."""
        self._do(self._consumer.suspend)

    def resume(self) -> None:
        self._do(self._consumer.resume)

    def resize(self, threads: int) -> None:
        """Have this many calls of the listener at a time from now on."""
        self._do(lambda: self._consumer.resize(threads))

    def ready(self) -> None:
        """Wait until all queues that are ours after the last change are being read."""
        self._run(self._consumer.ready())

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return self._do(lambda: self._consumer.queues)

    def __iter__(self) -> SyncMessages:
        """All messages, one by one; each is done when the next is asked for. Several threads may iterate."""
        thread = self._open_thread()
        return SyncMessages(thread, self._do(self._consumer.messages).inbox)


class SyncPushConsumer(SyncListening):
    """``PushConsumer`` with calls that wait; arguments and errors are the same. May be used from many threads."""

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
    ) -> None:
        consumer = PushConsumer(
            group,
            listener,
            name_servers=name_servers,
            client=client,
            config=config,
            model=model,
            start=start,
            allocation=allocation,
            orderly=orderly,
            batch_max=batch_max,
            threads=threads,
            hooks=hooks,
        )
        super().__init__(consumer)


class SyncMessages:
    """The iterator over a ``SyncPushConsumer`` or ``SyncPopConsumer``. Each thread takes one of its own."""

    def __init__(self, thread: LoopThread, inbox: Inbox) -> None:
        self._thread = thread
        self._inbox = inbox
        self._last: Delivery | None = None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        if self._last is not None:
            self._last.ack()
            self._last = None
        try:
            self._last = self._thread.run(self._take())
        except NotRunning:
            raise StopIteration from None
        return self._last

    async def _take(self) -> Delivery:
        delivery = await self._inbox.take()
        settle = delivery.on_settled
        assert settle is not None
        loop = asyncio.get_running_loop()

        def settle_on_loop(delivery: Delivery, is_done: bool, delay_level: int) -> None:
            # Calls arrive there in order, so what is said before the next message is asked for is heard first.
            loop.call_soon_threadsafe(settle, delivery, is_done, delay_level)

        delivery.on_settled = settle_on_loop
        return delivery
