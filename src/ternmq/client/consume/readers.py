"""The queues that one member reads: what a ``Rebalancer`` hands out and takes away, and how far each is (F2, F6, G1).

Letting go of a queue means: stop fetching, store the progress, forget. Messages of it that listeners still work on may
reach the queue's next owner too; what their results say here counts no more (``ProcessQueue.dropped``).

An orderly member takes up a queue only with its lock, before it asks where to start. It lets go in another order: stop
fetching, wait for the running call, store the progress, give back the lock. That may take as long as the listener
likes, so it goes on beside the rebalancing, and until it is over the queue is taken up by nobody, also not by us. Whose
lock is lost has lost the queue at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from typing import Final, Protocol

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.fetch import Deliver, Fetching, QueueReader
from ternmq.client.consume.locks import Locks
from ternmq.client.consume.offsets import BrokerOffsets, Progress, start_offset
from ternmq.client.consume.stats import ConsumeStats
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import QueueLocked, TernError
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: What a listener that is just at the end of its work has before the rebalancing goes on without it.
RELEASE_S: Final = 0.5


class Order(Protocol):
    """Who calls the listener of an orderly member."""

    def is_calling(self, queue: MessageQueue) -> bool:
        """Whether a call with messages of the queue runs."""
        ...

    async def release(self, queue: MessageQueue) -> None:
        """Begin no more calls with messages of the queue; returns when the running one has ended and counts."""
        ...


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
        locks: Locks | None,
        stats: ConsumeStats,
        deliver: Deliver,
        active: asyncio.Event,
        tasks: Tasks,
        lite: bool = False,
    ) -> None:
        self._config = config
        self._subscriptions = subscriptions
        self._progress = progress
        self._brokers = brokers
        #: None unless the queues are read in order and shared.
        self._locks = locks
        #: None as long as there is no listener, and in members that keep no order.
        self.order: Order | None = None
        self._tasks = tasks
        self._running: dict[MessageQueue, tuple[QueueReader, asyncio.Task[None]]] = {}
        #: Queues with a lock that are being let go.
        self._releasing: dict[MessageQueue, tuple[QueueReader, asyncio.Task[None]]] = {}
        #: Queues of ours that are not fetched from for the time being.
        self.paused: set[MessageQueue] = set()
        self._counts: Counter[str] = Counter()
        self._fetching = Fetching(
            instance,
            group,
            config,
            subscriptions,
            progress,
            stats,
            deliver=deliver,
            queue_counts=self._counts,
            active=active,
            lite=lite,
            on_unreachable=self._unreachable,
        )

    def topics(self) -> Collection[str]:
        return self._subscriptions.keys()

    def owned(self) -> Collection[MessageQueue]:
        return list(self._running)

    def all(self) -> Iterable[QueueReader]:
        return [reader for reader, _ in self._running.values()]

    def pulling(self) -> Iterable[QueueReader]:
        """Those whose progress this member keeps."""
        return self.all()

    async def take_up(self, queue: MessageQueue) -> None:
        if queue in self._releasing:
            raise QueueLocked(f"a listener of this consumer is still running for {queue}")
        if self._locks is not None and not await self._locks.lock(queue):
            raise QueueLocked(f"another member has the lock of {queue}")
        try:
            queue_offset = await self._progress.load(queue)
            if queue_offset is None or queue_offset < 0:
                queue_offset = await start_offset(queue, self._config.start, self._brokers)
            if self._locks is not None and not self._locks.is_held(queue):
                raise QueueLocked(f"the lock of {queue} was lost again")
        except TernError:
            if self._locks is not None:
                # The next round may say that it is another's; who would give the lock back then?
                await self._locks.unlock([queue])
            raise
        self._read(queue, queue_offset)
        self._counts[queue.topic] += 1

    async def let_go(self, queues: Collection[MessageQueue]) -> None:
        await self._stop(queues)
        # A queue may have been lost while we waited.
        readers = [self._forget(queue) for queue in queues if queue in self._running]
        if self._locks is None:
            offsets = {reader.queue: reader.held.progress for reader in readers}
            for reader in readers:
                reader.drop()
            await self._progress.save(offsets, wait=True)
            return
        for reader in readers:
            release = self._tasks.create_task(self._release(reader), name=f"release {reader.queue}")
            self._releasing[reader.queue] = reader, release
        if readers:
            await asyncio.wait([self._releasing[reader.queue][1] for reader in readers], timeout=RELEASE_S)

    def lose(self, queue: MessageQueue) -> None:
        """The lock of the queue may have been another's: what is in flight counts no more, nothing is stored."""
        if queue in self._running:
            self._forget(queue).drop()
        elif queue in self._releasing:
            self._releasing[queue][0].drop()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in those of these queues that are ours; what is in flight of them counts no more."""
        for queue in offsets.keys() & self._running.keys():
            reader, task = self._running[queue]
            task.cancel()
            reader.drop()
            self._read(queue, offsets[queue])
            if queue in self.paused:
                self.pause([queue])
        for queue in offsets.keys() & self._releasing.keys():
            self._releasing[queue][0].move(offsets[queue])

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more from these queues of ours until ``resume``; they stay ours, and what was fetched counts."""
        for queue in queues:
            self.paused.add(queue)
            # An answer that is on its way is not looked at; it will be asked for again.
            self._running[queue][1].cancel()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with those of these queues that were paused."""
        for queue in self.paused.intersection(queues):
            self.paused.discard(queue)
            reader, _ = self._running[queue]
            self._running[queue] = (reader, self._tasks.create_task(reader.run(), name=f"fetch {queue}"))

    def restart_stuck(self) -> None:
        """Have queues fetched again whose pull will never end; what is in flight of them still counts."""
        for queue, (reader, task) in list(self._running.items()):
            if reader.is_stuck:
                log.warning("the pull from %s got no answer; pulling again", queue)
                task.cancel()
                self._running[queue] = reader, self._tasks.create_task(reader.run(), name=f"fetch {queue}")

    async def stop_fetching(self) -> None:
        """Fetch no more; what is in flight still counts."""
        await self._stop(self._running)

    async def save(self, *, wait: bool) -> None:
        """Store the progress of all queues."""
        await self._progress.save({reader.queue: reader.held.progress for reader in self.pulling()}, wait=wait)

    async def unlock(self) -> None:
        """At the end, after the progress is stored: give back the locks, but for those of calls that still run."""
        if self._locks is not None:
            releases = [release for _, release in self._releasing.values()]
            if releases:
                await asyncio.wait(releases, timeout=RELEASE_S)
            busy = {queue for queue in self._locks.queues if self.order is not None and self.order.is_calling(queue)}
            await self._locks.unlock(self._locks.queues - busy - self._releasing.keys())

    def _unreachable(self, broker_name: str) -> None:
        if self._locks is not None:
            self._locks.doubt(broker_name)

    def _read(self, queue: MessageQueue, queue_offset: int) -> None:
        reader = QueueReader(self._fetching, queue, queue_offset)
        self._running[queue] = (reader, self._tasks.create_task(reader.run(), name=f"fetch {queue}"))

    def _forget(self, queue: MessageQueue) -> QueueReader:
        reader, task = self._running.pop(queue)
        task.cancel()
        self.paused.discard(queue)
        self._counts[queue.topic] -= 1
        return reader

    async def _release(self, reader: QueueReader) -> None:
        assert self._locks is not None
        queue = reader.queue
        try:
            if self.order is not None:
                await self.order.release(queue)
            if not reader.held.dropped:
                await self._progress.save({queue: reader.held.progress}, wait=True)
                reader.drop()
                await self._locks.unlock([queue])
        finally:
            del self._releasing[queue]

    async def _stop(self, queues: Iterable[MessageQueue]) -> None:
        tasks = [self._running[queue][1] for queue in queues if queue in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
