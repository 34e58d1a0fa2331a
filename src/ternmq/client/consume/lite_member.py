"""What runs of a lite pull consumer: its readers, its part in the group, its commits (F4, D3, D4, G1).

A consumer with assigned queues is no member of its group: it sends no heartbeat (in which RocketMQ's differs), so
members that divide queues among themselves do not leave any to it. The first subscription makes it one.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Set
from typing import Final, NamedTuple

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.consume.config import LitePullConfig
from ternmq.client.consume.offsets import BrokerOffsets, Progress
from ternmq.client.consume.readers import Readers
from ternmq.client.consume.rebalance import Rebalancer, difference
from ternmq.client.consume.running_info import running_info
from ternmq.client.consume.shelf import Shelf
from ternmq.client.consume.stats import ConsumeStats
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import SystemFailure
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import (
    ConsumedDirectly,
    ConsumeFromWhere,
    ConsumerData,
    ConsumeType,
    MessageModel,
    RunningInfo,
)

log = logging.getLogger(__name__)

_KIND: Final = ConsumeType.ACTIVELY

#: Told a topic and all queues of it that can be read.
QueueListener = Callable[[str, list[MessageQueue]], Awaitable[None] | None]


class _Watch(NamedTuple):
    topic: str
    listener: QueueListener


class LiteMember:
    """One running consumer, until ``stop``. All methods belong to the loop's thread; queues are named as on the wire.
    ``tasks`` owns its loops."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: LitePullConfig,
        *,
        subscriptions: Mapping[str, Subscription],
        tasks: Tasks,
    ) -> None:
        self._instance = instance
        self._group = group
        self._config = config
        self._fetching = config.of_fetching()
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._stats = ConsumeStats(instance.env.clock)
        self._started_ms = instance.env.clock.now_ms()
        self.shelf = Shelf(lambda queue: queue in self.readers.paused, clock=instance.env.clock)
        is_timed = config.start.where is ConsumeFromWhere.TIMESTAMP
        self.brokers = BrokerOffsets(instance, group, zero_if_young=not is_timed)
        progress: Progress = self.brokers if config.auto_commit else _ByHand(self.brokers)
        active = asyncio.Event()
        active.set()
        self.readers = Readers(
            instance,
            group,
            self._fetching,
            subscriptions=subscriptions,
            progress=progress,
            brokers=BrokerOffsets(instance, group),
            locks=None,
            stats=self._stats,
            deliver=self.shelf.put,
            active=active,
            tasks=tasks,
            lite=True,
        )
        self.rebalancer = Rebalancer(
            instance, group, self.readers, model=MessageModel.CLUSTERING, allocation=config.allocation
        )
        self._watches: dict[str, list[_Watch]] = {}
        #: The queues of each watched topic, as its listeners know them.
        self._watched: dict[str, tuple[MessageQueue, ...]] = {}
        self._is_member = False
        self._loops: list[asyncio.Task[None]] = []
        if config.auto_commit:
            self._loops.append(tasks.create_task(self._save_forever(), name="save progress"))
        instance.routes.on_change.append(self._route_changed)

    async def start(self) -> None:
        """Join the group, if anything is subscribed to; returns after the first attempt to take up queues."""
        if self._subscriptions:
            self._join()
            await self.rebalancer.round()
            self._rebalance()

    async def stop(self, *, polled_is_done: bool) -> None:
        """Read no more and store the progress, if it is stored by itself."""
        self._instance.routes.on_change.remove(self._route_changed)
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops)
        await self.readers.stop_fetching()
        if polled_is_done:
            self.shelf.finish()
        self.shelf.close()
        await self.readers.save(wait=True)

    # --- Which queues ----------------------------------------------------------------------------------------

    def subscription_changed(self) -> None:
        """What is subscribed to has changed; with the first subscription, the group gets a member."""
        if not self._is_member:
            self._join()
            self._rebalance()
        self.rebalancer.subscription_changed()

    def _join(self) -> None:
        self._is_member = True
        self._instance.register_consumer(self._group, self)

    def _rebalance(self) -> None:
        self._loops.append(self._tasks.create_task(self.rebalancer.run(), name="rebalance"))

    async def settled(self) -> None:
        """Wait until all queues that are ours after the last change are being read."""
        if self._is_member:
            await self.rebalancer.settled()

    async def assign(self, queues: Set[MessageQueue]) -> None:
        """Read these queues and no others; raises the first error of those that cannot be read."""
        change = difference(self.readers.owned(), queues)
        await self.readers.let_go(change.lost)
        results = await asyncio.gather(*map(self.readers.take_up, change.gained), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def resume(self, queues: Set[MessageQueue]) -> None:
        self.readers.resume(queues)
        self.shelf.look_again()

    def watch(self, wire_topic: str, topic: str, listener: QueueListener) -> None:
        """Call ``listener`` when the queues of a topic, whose route is known, have changed."""
        route = self._instance.routes.known(wire_topic)
        assert route is not None
        self._watched.setdefault(wire_topic, route.to_read)
        self._watches.setdefault(wire_topic, []).append(_Watch(topic, listener))

    # --- Progress --------------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Store the progress of all queues; what was handed out is done."""
        self.shelf.finish()
        await self.commit_offsets({reader.queue: reader.held.progress for reader in self.readers.all()})

    async def commit_offsets(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Store these; raises the first error, after all were tried."""
        for error in (await self.brokers.commit_all(offsets)).values():
            raise error

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(self._config.auto_commit_interval_ms / 1000)
            await self.readers.save(wait=False)

    # --- What the instance asks (``ConsumerMember``) ---------------------------------------------------------

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self._group,
            consume_type=_KIND,
            message_model=MessageModel.CLUSTERING,
            consume_from_where=self._config.start.where,
            subscription_data_set=[subscription.data for subscription in self._subscriptions.values()],
            unit_mode=bool(self._instance.config.unit_name),
        )

    def rebalance_soon(self) -> None:
        self.rebalancer.soon()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        log.warning("an administrator has reset the offsets of group %s in %d queues", self._group, len(offsets))
        self.readers.reset(offsets)
        self._tasks.create_task(self.brokers.save(offsets, wait=True), name="save reset offsets")

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        return {reader.queue: reader.held.progress for reader in self.readers.all() if reader.queue.topic == topic}

    def running_info(self) -> RunningInfo:
        return running_info(
            self._instance,
            self._group,
            self._fetching,
            subscriptions=self._subscriptions,
            readers=self.readers.all(),
            locks=None,
            stats=self._stats,
            started_ms=self._started_ms,
            kind=_KIND,
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumedDirectly:  # noqa: ARG002 - nobody to call
        raise SystemFailure(f"this consumer of group {self._group} polls for messages and has no listener")

    def _route_changed(self, route: TopicRoute) -> None:
        if self._is_member and route.topic in self._subscriptions:
            self.rebalancer.soon()
        before = self._watched.get(route.topic)
        if before is None or before == route.to_read:
            return
        self._watched[route.topic] = route.to_read
        for topic, listener in self._watches[route.topic]:
            queues = [queue._replace(topic=topic) for queue in route.to_read]
            self._tasks.create_task(_tell(listener, topic, queues), name="queues changed")


async def _tell(listener: QueueListener, topic: str, queues: list[MessageQueue]) -> None:
    try:
        result = listener(topic, queues)
        if inspect.isawaitable(result):
            await result
    except Exception:
        log.exception("the queue listener of topic %s failed", topic)


class _ByHand:
    """Progress that is stored only when the application says so."""

    def __init__(self, brokers: BrokerOffsets) -> None:
        self._brokers = brokers

    async def load(self, queue: MessageQueue) -> int | None:
        return await self._brokers.load(queue)

    async def save(self, offsets: Mapping[MessageQueue, int], *, wait: bool) -> None:
        """Nothing: letting go of a queue is no word of the application."""
