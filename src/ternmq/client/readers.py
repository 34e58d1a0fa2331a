"""The queues that one member reads: what a ``Rebalancer`` hands out and takes away, and how far each is (F6, F7, G1).

Letting go of a queue means: stop fetching, store the progress, forget. Messages of it that listeners still work on may
reach the queue's next owner too; what their results say here counts no more (``ProcessQueue.dropped``).
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection, Iterable, Mapping

from ternmq.client.consumer_config import PushConfig
from ternmq.client.fetch import Deliver, Fetching, QueueReader
from ternmq.client.instance import ClientInstance
from ternmq.client.offsets import BrokerOffsets, Progress, start_offset
from ternmq.client.subscription import Subscription
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks


class Readers:
    """The readers of one consumer; a ``Holder`` for its rebalancer. All methods belong to the loop's thread."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConfig,
        *,
        subscriptions: Mapping[str, Subscription],
        progress: Progress,
        brokers: BrokerOffsets,
        deliver: Deliver,
        active: asyncio.Event,
        tasks: Tasks,
    ) -> None:
        self._config = config
        self._subscriptions = subscriptions
        self._progress = progress
        self._brokers = brokers
        self._tasks = tasks
        self._running: dict[MessageQueue, tuple[QueueReader, asyncio.Task[None]]] = {}
        self._counts: Counter[str] = Counter()
        self._fetching = Fetching(
            instance, group, config, subscriptions, progress, deliver=deliver, queue_counts=self._counts, active=active
        )

    def topics(self) -> Collection[str]:
        return self._subscriptions.keys()

    def owned(self) -> Collection[MessageQueue]:
        return list(self._running)

    def all(self) -> Iterable[QueueReader]:
        return [reader for reader, _ in self._running.values()]

    async def take_up(self, queue: MessageQueue) -> None:
        queue_offset = await self._progress.load(queue)
        if queue_offset is None or queue_offset < 0:
            queue_offset = await start_offset(queue, self._config.start, self._brokers)
        self._read(queue, queue_offset)
        self._counts[queue.topic] += 1

    async def let_go(self, queues: Collection[MessageQueue]) -> None:
        await self._stop(queues)
        offsets = {}
        for queue in queues:
            reader, task = self._running.pop(queue)
            task.cancel()  # a reset while we waited has started another
            self._counts[queue.topic] -= 1
            offsets[queue] = reader.held.progress
            reader.drop()
        await self._progress.save(offsets, wait=True)

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in those of these queues that are ours; what is in flight of them counts no more."""
        for queue in offsets.keys() & self._running.keys():
            reader, task = self._running[queue]
            task.cancel()
            reader.drop()
            self._read(queue, offsets[queue])

    async def stop_fetching(self) -> None:
        """Fetch no more; what is in flight still counts."""
        await self._stop(self._running)

    async def save(self, *, wait: bool) -> None:
        """Store the progress of all queues."""
        await self._progress.save({reader.queue: reader.held.progress for reader in self.all()}, wait=wait)

    def _read(self, queue: MessageQueue, queue_offset: int) -> None:
        reader = QueueReader(self._fetching, queue, queue_offset)
        self._running[queue] = (reader, self._tasks.create_task(reader.run(), name=f"fetch {queue}"))

    async def _stop(self, queues: Iterable[MessageQueue]) -> None:
        tasks = [self._running[queue][1] for queue in queues]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
