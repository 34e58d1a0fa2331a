"""The blocking twins of ``PullConsumer`` and ``LitePullConsumer``, for programs without asyncio (F3, F4).

::

    with SyncLitePullConsumer("audit", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders")
        while messages := consumer.poll(1_000):
            save(messages)

All blocking clients of a process share one loop in one thread (``loop_thread``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Self

from ternmq.client.blocking_twin import BlockingTwin
from ternmq.client.config import ClientConfig
from ternmq.client.consumer_config import LitePullConfig
from ternmq.client.lite_pull import LitePullConsumer
from ternmq.client.offsets import StartPosition
from ternmq.client.pull import COUNT_MAX, SUSPEND_MS, PullConsumer, PullResult
from ternmq.message import MessageQueue, ReceivedMessage


class _SyncByOffset(BlockingTwin):
    """What both have in common, as their twins have it from ``ByOffset``."""

    def __init__(self, twin: PullConsumer | LitePullConsumer) -> None:
        super().__init__(twin)
        self._by_offset = twin

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be read."""
        return self._run(self._by_offset.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        """The first queue offset that is still there."""
        return self._run(self._by_offset.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The queue offset that the next message will get."""
        return self._run(self._by_offset.max_offset(queue))

    def offset_at(self, queue: MessageQueue, time_ms: int) -> int:
        """The queue offset of the first message stored at ``time_ms`` or later."""
        return self._run(self._by_offset.offset_at(queue, time_ms))

    def committed(self, queue: MessageQueue) -> int | None:
        """The group's progress; None when there is none."""
        return self._run(self._by_offset.committed(queue))


class SyncPullConsumer(_SyncByOffset):
    """``PullConsumer`` with calls that wait; arguments and errors are the same. May be used from many threads."""

    def __init__(
        self, group: str, *, name_servers: str | Sequence[str] = "", client: ClientConfig | None = None
    ) -> None:
        self._consumer = PullConsumer(group, name_servers=name_servers, client=client)
        super().__init__(self._consumer)

    def pull(
        self,
        queue: MessageQueue,
        queue_offset: int,
        *,
        tags: str = "*",
        sql: str | None = None,
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
                sql=sql,
                count_max=count_max,
                wait=wait,
                suspend_ms=suspend_ms,
                commit_offset=commit_offset,
            )
        )

    def commit(self, queue: MessageQueue, queue_offset: int) -> None:
        """Store the group's progress."""
        self._run(self._consumer.commit(queue, queue_offset))


class SyncLitePullConsumer(_SyncByOffset):
    """``LitePullConsumer`` with calls that wait; arguments and errors are the same. One thread polls at a time."""

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        config: LitePullConfig | None = None,
        start: StartPosition | None = None,
        auto_commit: bool | None = None,
    ) -> None:
        self._consumer = LitePullConsumer(
            group, name_servers=name_servers, client=client, config=config, start=start, auto_commit=auto_commit
        )
        super().__init__(self._consumer)

    def subscribe(self, topic: str, tags: str = "*", *, sql: str | None = None) -> None:
        """Read ``topic`` as a member of the group; see ``LitePullConsumer.subscribe``."""
        self._do(lambda: self._consumer.subscribe(topic, tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        """Read ``topic`` no more."""
        self._do(lambda: self._consumer.unsubscribe(topic))

    def assign(self, queues: Collection[MessageQueue], tags: str = "*", *, sql: str | None = None) -> None:
        """Read these queues and no others; see ``LitePullConsumer.assign``."""
        self._run(self._consumer.assign(queues, tags, sql=sql))

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are read now."""
        return self._do(lambda: self._consumer.assignment)

    def ready(self) -> None:
        """Wait until all queues that are ours after the last ``subscribe`` are being read."""
        self._run(self._consumer.ready())

    def watch_queues(self, topic: str, listener: Callable[[str, list[MessageQueue]], None]) -> None:
        """Have ``listener(topic, queues)`` called, in a thread, when the queues of a topic have changed."""

        async def listen(topic: str, queues: list[MessageQueue]) -> None:
            await asyncio.to_thread(listener, topic, queues)

        self._run(self._consumer.watch_queues(topic, listen))

    def poll(self, timeout_ms: int | None = None) -> list[ReceivedMessage]:
        """The next messages; see ``LitePullConsumer.poll``."""
        return self._run(self._consumer.poll(timeout_ms))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> list[ReceivedMessage]:
        """The next messages, however long that takes; ends when the consumer does."""
        try:
            return self._run(self._consumer.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Leave these queues out until ``resume``."""
        self._do(lambda: self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with queues that were paused."""
        self._do(lambda: self._consumer.resume(queues))

    def seek(self, queue: MessageQueue, queue_offset: int) -> None:
        """Go on at ``queue_offset`` in one of the queues that are read."""
        self._run(self._consumer.seek(queue, queue_offset))

    def seek_to_begin(self, queue: MessageQueue) -> None:
        """Go on with the first message that is still there."""
        self._run(self._consumer.seek_to_begin(queue))

    def seek_to_end(self, queue: MessageQueue) -> None:
        """Go on with what comes from now on."""
        self._run(self._consumer.seek_to_end(queue))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Store the group's progress; see ``LitePullConsumer.commit``."""
        self._run(self._consumer.commit(offsets))
