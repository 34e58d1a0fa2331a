"""Loops over the messages of synchronous consumers, which are not derived: ``for`` instead of ``async for``."""

from __future__ import annotations

from typing import Protocol, Self, TypeVar

from ternmq.client.blocking.base import AsyncClient, SyncClient
from ternmq.client.blocking.loop_thread import LoopThread
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.outlet import Messages


class Looping(AsyncClient, Protocol):
    """A consumer for ``async for``."""

    def __aiter__(self) -> Messages: ...


L = TypeVar("L", bound=Looping)


class SyncLooping(SyncClient[L]):
    """The base of synchronous consumers that can be iterated over."""

    def __iter__(self) -> SyncMessages:
        """All messages, one by one, for ``for``; each is done when the next is asked for.

        Before you leave such a loop by ``break``, call ``message.ack()`` if its last message is done. Several threads
        may iterate over a ``SyncPushConsumer`` or a ``SyncPopConsumer``; each message goes to one of them.
        """
        thread = self._open_thread()
        return SyncMessages(thread, self._do(self._async.__aiter__))


class SyncMessages:
    """The iterator of ``for message in consumer``. Each thread takes one of its own."""

    def __init__(self, thread: LoopThread, messages: Messages) -> None:
        self._thread = thread
        self._messages = messages

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Claimed:
        # A turn of the other thread for each message would cost ten times as much as the message.
        message = self._messages.next_now()
        if message is not None:
            return message
        try:
            self._messages.last = message = self._thread.run(self._messages.wait())
        except StopAsyncIteration:
            raise StopIteration from None
        return message
