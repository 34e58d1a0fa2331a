"""Loops over the messages of ``SyncPushConsumer`` and ``SyncPopConsumer``, which are not derived: the messages that
``PushConsumer.messages`` gives must be settled on the loop's thread."""

from __future__ import annotations

import asyncio
from typing import Self, TypeVar

from ternmq.client.blocking.base import SyncClient
from ternmq.client.blocking.loop_thread import LoopThread
from ternmq.client.consume.inbox import Delivery, Inbox
from ternmq.client.consume.push import PushConsumer
from ternmq.errors import NotRunning

P = TypeVar("P", bound=PushConsumer)


class SyncListening(SyncClient[P]):
    """The base of synchronous consumers with listeners."""

    def messages(self) -> SyncMessages:
        """All messages, one by one; each is done when the next is asked for. ``for message in consumer`` is the same.

        Before you leave such a loop by ``break``, call ``message.ack()`` if its last message is done. Several threads
        may iterate, each with an iterator of its own; each message goes to one of them.
        """
        thread = self._open_thread()
        return SyncMessages(thread, self._do(self._async.messages).inbox)

    def __iter__(self) -> SyncMessages:
        return self.messages()


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
            # Calls arrive there in order: a message is settled before the next one is taken.
            loop.call_soon_threadsafe(settle, delivery, is_done, delay_level)

        delivery.on_settled = settle_on_loop
        return delivery
