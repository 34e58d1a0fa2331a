"""The blocking twins of ``PushConsumer`` and ``PullConsumer``, for programs without asyncio (F1, F3).

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
from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import Any, Self, TypeVar

from ternmq.allocation import Allocation
from ternmq.client.config import ClientConfig
from ternmq.client.consumer import PushConsumer
from ternmq.client.consumer_config import PushConfig
from ternmq.client.inbox import Delivery, Inbox
from ternmq.client.listener import ConsumeHook, Listener
from ternmq.client.loop_thread import LoopThread, loop_thread
from ternmq.client.offsets import StartPosition
from ternmq.client.pull import COUNT_MAX, SUSPEND_MS, PullConsumer, PullResult
from ternmq.errors import NotRunning
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import MessageModel

T = TypeVar("T")
ListenerT = TypeVar("ListenerT", bound=Listener)


class SyncPushConsumer:
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
        self._consumer = PushConsumer(
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
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        return f"<Sync{repr(self._consumer)[1:]}"

    @property
    def group(self) -> str:
        return self._consumer.group

    def __enter__(self) -> Self:
        thread = loop_thread()
        thread.run(self._consumer.__aenter__())
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = _open(self._thread, self.group), None
        thread.run(self._consumer.__aexit__(kind, error, trace))

    def subscribe(self, topic: str, tags: str = "*") -> None:
        """Consume ``topic``; see ``PushConsumer.subscribe``."""
        self._do(lambda: self._consumer.subscribe(topic, tags))

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
        _open(self._thread, self.group).run(self._consumer.ready())

    @property
    def queues(self) -> list[MessageQueue]:
        """The queues that this member reads now."""
        return self._do(lambda: self._consumer.queues)

    def __iter__(self) -> SyncMessages:
        """All messages, one by one; each is done when the next is asked for. Several threads may iterate."""
        thread = _open(self._thread, self.group)
        return SyncMessages(thread, self._do(self._consumer.messages).inbox)

    def _do(self, call: Callable[[], T]) -> T:
        """Make a plain call of the consumer: on its loop once it runs, before that right here."""
        if self._thread is None:
            return call()
        return self._thread.run(_called(call))


class SyncMessages:
    """The iterator over a ``SyncPushConsumer``. Each thread takes one of its own."""

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


class SyncPullConsumer:
    """``PullConsumer`` with calls that wait; arguments and errors are the same. May be used from many threads."""

    def __init__(
        self, group: str, *, name_servers: str | Sequence[str] = "", client: ClientConfig | None = None
    ) -> None:
        self._consumer = PullConsumer(group, name_servers=name_servers, client=client)
        self._thread: LoopThread | None = None

    def __repr__(self) -> str:
        return f"<Sync{repr(self._consumer)[1:]}"

    @property
    def group(self) -> str:
        return self._consumer.group

    def __enter__(self) -> Self:
        thread = loop_thread()
        thread.run(self._consumer.__aenter__())
        self._thread = thread
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        thread, self._thread = _open(self._thread, self.group), None
        thread.run(self._consumer.__aexit__(kind, error, trace))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return self._run(self._consumer.queues(topic))

    def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        tags: str = "*",
        count_max: int = COUNT_MAX,
        wait: bool = True,
        suspend_ms: int = SUSPEND_MS,
        commit_offset: int | None = None,
    ) -> PullResult:
        """Messages of a queue from an offset on; see ``PullConsumer.pull``."""
        return self._run(
            self._consumer.pull(
                queue,
                queue_offset,
                tags=tags,
                count_max=count_max,
                wait=wait,
                suspend_ms=suspend_ms,
                commit_offset=commit_offset,
            )
        )

    def min_offset(self, queue: MessageQueue) -> int:
        """The first queue offset that is still there."""
        return self._run(self._consumer.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will get."""
        return self._run(self._consumer.max_offset(queue))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The queue offset of the first message stored at ``time_ms`` or later."""
        return self._run(self._consumer.offset_at(queue, time_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress; None when there is none."""
        return self._run(self._consumer.committed(queue))

    def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store the group's progress."""
        self._run(self._consumer.commit(queue, queue_offset))

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            thread = _open(self._thread, self.group)
        except NotRunning:
            call.close()
            raise
        return thread.run(call)


def _open(thread: LoopThread | None, group: str) -> LoopThread:
    if thread is None:
        raise NotRunning(f"the consumer of group {group!r} does not run; use it inside its `with` block")
    return thread


async def _called(call: Callable[[], T]) -> T:
    return call()
