"""The sources that one consumer runs: what its assignment gives it and takes away, and how far each is (F2, F6, G1).

Letting go of a queue that is pulled means: stop fetching, store the progress, forget. Messages of it that listeners
still work on may reach the queue's next consumer too; what becomes of them here has no effect (``Lot.is_ours``). A
source whose progress the broker keeps is told to leave: it takes the answer that is under way, as those messages are
hidden from other members already, and what it has in hand is settled as usual.

An orderly consumer lets go of a queue in another order: stop fetching, wait for the running call, store the progress,
give back the lock. That may take as long as the listener takes, so it goes on beside the rebalancing, and until it is
over no consumer takes up the queue, not even this one. A queue whose lock is lost is lost at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final, NamedTuple, Protocol

from ternmq.client.consume.locks import HeldLocks
from ternmq.client.consume.offsets import OffsetStore
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.source import Deliver, Source
from ternmq.errors import QueueLocked
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks

log = logging.getLogger(__name__)

#: What a listener that is just at the end of its work has before the rebalancing goes on without it.
RELEASE_S: Final = 0.5


class Order(Protocol):
    """The outlet of an orderly consumer."""

    def is_calling(self, queue: MessageQueue) -> bool:
        """Whether a call with messages of the queue runs."""
        ...

    async def release(self, queue: MessageQueue) -> None:
        """Begin no more calls with messages of the queue; returns when the running one has ended and counts."""
        ...


class _RunningSource(NamedTuple):
    source: Source
    task: asyncio.Task[None]


class Sources:
    """The sources of one consumer; a ``Holder`` for its rebalancer. All methods belong to the loop's thread.

    ``make`` makes the source of a queue, ``topics`` gives those subscribed to, ``counts`` is kept up to date with the
    number of queues of each topic.
    """

    def __init__(
        self,
        make: Callable[[MessageQueue], Source],
        topics: Callable[[], Collection[str]],
        *,
        counts: Counter[str],
        progress: OffsetStore,
        locks: HeldLocks | None,
        settling: Settling,
        deliver: Deliver,
        tasks: Tasks,
    ) -> None:
        self._make = make
        self._topics = topics
        self._counts = counts
        self._progress = progress
        #: None unless the queues are read in order and shared.
        self._locks = locks
        #: None as long as there is no listener, and in consumers that keep no order.
        self.order: Order | None = None
        self._settling = settling
        self._deliver = deliver
        self._tasks = tasks
        self._running: dict[MessageQueue, _RunningSource] = {}
        #: Queues with a lock that are being released.
        self._releasing: dict[MessageQueue, _RunningSource] = {}
        #: Sources that were told to leave: one may wait for its last answer, and have messages in hand.
        self._left: list[_RunningSource] = []
        #: Queues of ours that are not fetched from at present.
        self.paused: set[MessageQueue] = set()

    def topics(self) -> Collection[str]:
        return self._topics()

    def owned(self) -> Collection[MessageQueue]:
        return list(self._running)

    def all(self) -> list[Source]:
        """Those that run."""
        return [source for source, _ in self._running.values()]

    def with_left(self) -> list[Source]:
        """All that may have messages in hand."""
        return [*self.all(), *(source for source, _ in self._left)]

    def progress(self) -> dict[MessageQueue, int]:
        """How far the queues are whose progress this consumer keeps."""
        self._settling.flush()
        return {source.queue: at for source in self.all() if (at := source.progress) is not None}

    # --- Taking up and letting go ----------------------------------------------------------------------------

    async def take_up(self, queue: MessageQueue) -> None:
        if queue in self._releasing:
            raise QueueLocked(f"a listener of this consumer is still running for {queue}")
        source = self._make(queue)
        await source.open()
        self._start(source)
        self._counts[queue.topic] += 1

    async def let_go(self, queues: Collection[MessageQueue]) -> None:
        self._left = [left for left in self._left if not left.task.done() or any(left.source.in_hand())]
        for queue in queues:
            running = self._running.get(queue)
            if running is not None and running.source.progress is None:
                running.source.leave()
                self._forget(queue)
                self._left.append(running)
        await self._stop(queues)
        # A queue may have been lost while we waited.
        sources = [self._forget(queue) for queue in queues if queue in self._running]
        if self._locks is None:
            self._settling.flush()
            offsets = {source.queue: at for source in sources if (at := source.progress) is not None}
            for source in sources:
                source.drop()
            if offsets:
                await self._progress.save(offsets, wait=True)
            return
        for source in sources:
            release = self._tasks.create_task(self._release(source), name=f"release {source.queue}")
            self._releasing[source.queue] = _RunningSource(source, release)
        if sources:
            await asyncio.wait([self._releasing[source.queue].task for source in sources], timeout=RELEASE_S)

    def lose(self, queue: MessageQueue) -> None:
        """The lock of the queue may have been another's: what was fetched has no effect, and nothing is stored."""
        if queue in self._running:
            task = self._running[queue].task
            self._forget(queue).drop()
            task.cancel()
        elif queue in self._releasing:
            self._releasing[queue].source.drop()

    async def _release(self, source: Source) -> None:
        assert self._locks is not None
        queue = source.queue
        try:
            if self.order is not None:
                await self.order.release(queue)
            self._settling.flush()
            if source.is_ours and source.progress is not None:
                await self._progress.save({queue: source.progress}, wait=True)
                source.drop()
                await self._locks.unlock([queue])
        finally:
            del self._releasing[queue]

    # --- Moving, pausing -------------------------------------------------------------------------------------

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Continue elsewhere in those of these queues that are ours; what was fetched has no effect any more."""
        for queue in offsets.keys() & self._running.keys():
            source, task = self._running[queue]
            if source.progress is None:
                continue
            task.cancel()
            source.move(offsets[queue])
            if queue not in self.paused:
                self._start(source)
        for queue in offsets.keys() & self._releasing.keys():
            self._releasing[queue].source.move(offsets[queue])

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Fetch no more from these queues of ours until ``resume``; they stay ours, and what was fetched counts."""
        for queue in queues:
            self.paused.add(queue)
            # An answer that is on its way is not looked at; it will be asked for again.
            self._running[queue].task.cancel()

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Go on with those of these queues that were paused."""
        for queue in self.paused.intersection(queues):
            self.paused.discard(queue)
            self._start(self._running[queue].source)

    def restart_stuck(self) -> None:
        """Fetch again from queues whose request will never end; what was fetched still counts."""
        for queue, (source, task) in list(self._running.items()):
            if source.is_stuck:
                log.warning("the pull from %s got no answer; pulling again", queue)
                task.cancel()
                self._start(source)

    # --- The end ---------------------------------------------------------------------------------------------

    async def stop_fetching(self) -> None:
        """Fetch no more; what was fetched still counts."""
        await self._stop(self._running)
        left = [task for _, task in self._left]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    async def save(self, *, wait: bool) -> None:
        """Store the progress of all queues."""
        await self._progress.save(self.progress(), wait=wait)

    async def unlock(self) -> None:
        """At the end, after the progress is stored: give back the locks, but for those of calls that still run."""
        if self._locks is not None:
            releases = [release for _, release in self._releasing.values()]
            if releases:
                await asyncio.wait(releases, timeout=RELEASE_S)
            busy = {queue for queue in self._locks.queues if self.order is not None and self.order.is_calling(queue)}
            await self._locks.unlock(self._locks.queues - busy - self._releasing.keys())

    async def give_back(self, timeout_ms: int) -> None:
        """Let other members have soon what is not settled here; waits at most this long."""
        giving = [self._tasks.create_task(source.give_back()) for source in self.with_left()]
        if giving:
            await asyncio.wait(giving, timeout=timeout_ms / 1000)

    # --- Tasks -----------------------------------------------------------------------------------------------

    def _start(self, source: Source) -> None:
        task = self._tasks.create_task(source.run(self._deliver), name=f"fetch {source.queue}")
        self._running[source.queue] = _RunningSource(source, task)

    def _forget(self, queue: MessageQueue) -> Source:
        source, _ = self._running.pop(queue)
        self.paused.discard(queue)
        self._counts[queue.topic] -= 1
        return source

    async def _stop(self, queues: Iterable[MessageQueue]) -> None:
        tasks = [self._running[queue].task for queue in queues if queue in self._running]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
