"""A running member of a consumer group: reads its queues, has listeners called, reports its progress (D3, D4, F2, G1).

The parts know little of one another; this is where they are tied together, whatever kind of consumer they serve. Their
end has an order: no more queues, no more fetching, no more calls of listeners, then the progress, and then the locks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.fetch import QueueReader, restore_topic
from ternmq.client.consume.listener import ConsumeContext, ConsumeResult
from ternmq.client.consume.locks import Locks
from ternmq.client.consume.offsets import BrokerOffsets, Progress
from ternmq.client.consume.orderly import Orderly
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.readers import Readers
from ternmq.client.consume.rebalance import Rebalancer
from ternmq.client.consume.running_info import running_info
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.settle import Outlet, Settling
from ternmq.client.consume.stats import ConsumeStats
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import SystemFailure
from ternmq.message import MessageQueue, ReceivedMessage
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumedDirectly, ConsumerData, ConsumeType, MessageModel, RunningInfo
from ternmq.wire.bodies.clients import DirectResult as ToldResult

log = logging.getLogger(__name__)

#: How often listeners and pulls are looked through for those that take too long.
EXPIRY_CHECK_S: Final = 30.0


class Member:
    """One member, from ``start`` to ``stop``. All methods belong to the loop's thread; ``tasks`` owns its loops.

    It is registered with the instance before its start, so that brokers know it, and unregistered after its end.
    """

    kind: ClassVar = ConsumeType.PASSIVELY

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConfig,
        *,
        subscriptions: Mapping[str, Subscription],
        progress: Progress,
        active: asyncio.Event,
        tasks: Tasks,
    ) -> None:
        self.instance = instance
        self.group = group
        self._config = config
        self._subscriptions = subscriptions
        self._tasks = tasks
        self._loops: list[asyncio.Task[None]] = []
        self._outlet: Outlet | None = None
        #: What arrived before there was an outlet; no more than the limits of the process queues let through.
        self._early: list[tuple[QueueReader, ProcessQueue, Sequence[ReceivedMessage]]] = []
        is_clustering = config.model is MessageModel.CLUSTERING
        returns = Returns(instance, group, max_reconsume_times=config.max_reconsume_times) if is_clustering else None
        self._stats = ConsumeStats(instance.env.clock)
        self._started_ms = instance.env.clock.now_ms()
        self.locks = Locks(instance, group, on_lost=self._lost) if config.orderly and is_clustering else None
        self.settling = self._settling(returns)
        self.readers = self._readers(progress, active)
        self.rebalancer = self._rebalancer()

    # --- Parts, which another kind of member may have others of -----------------------------------------------

    def _settling(self, returns: Returns | None) -> Settling:
        return Settling(returns, self._stats, self._tasks)

    def _readers(self, progress: Progress, active: asyncio.Event) -> Readers:
        return Readers(
            self.instance,
            self.group,
            self._config,
            subscriptions=self._subscriptions,
            progress=progress,
            brokers=BrokerOffsets(self.instance, self.group),
            locks=self.locks,
            stats=self._stats,
            deliver=self._deliver,
            active=active,
            tasks=self._tasks,
        )

    def _rebalancer(self) -> Rebalancer:
        config = self._config
        return Rebalancer(self.instance, self.group, self.readers, model=config.model, allocation=config.allocation)

    # --- What the instance asks (``ConsumerMember``) ---------------------------------------------------------

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.kind,
            message_model=self._config.model,
            consume_from_where=self._config.start.where,
            subscription_data_set=[subscription.data for subscription in self._subscriptions.values()],
            unit_mode=bool(self.instance.config.unit_name),
        )

    def rebalance_soon(self) -> None:
        self.rebalancer.soon()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        # Before the start there is nothing to move, and after the end nobody who would go on.
        if any(not loop.done() for loop in self._loops):
            log.warning("an administrator has reset the offsets of group %s in %d queues", self.group, len(offsets))
            self.readers.reset(offsets)
            self._tasks.create_task(self.readers.save(wait=True), name="save reset offsets")

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        return {reader.queue: reader.held.progress for reader in self.readers.pulling() if reader.queue.topic == topic}

    def running_info(self) -> RunningInfo:
        return running_info(
            self.instance,
            self.group,
            self._config,
            subscriptions=self._subscriptions,
            readers=self.readers.pulling(),
            locks=self.locks,
            stats=self._stats,
            started_ms=self._started_ms,
        )

    async def consume_directly(self, message: ReceivedMessage) -> ConsumedDirectly:
        if self._outlet is None:
            raise SystemFailure(f"this consumer of group {self.group} has no listener yet")
        if message.body_error:
            raise SystemFailure(
                f"message {message.message_id} cannot be decoded by this consumer: {message.body_error}"
            )
        clock, namespace = self.instance.env.clock, self.instance.config.namespace
        context = ConsumeContext(unwrap(namespace, self.group), message.queue, [message])
        restore_topic(message, namespace)
        began = clock.monotonic()
        await self._outlet.call(context)
        return ConsumedDirectly(
            consume_result=_told(context),
            order=self._config.orderly,
            auto_commit=context.auto_commit,
            remark=None if context.error is None else repr(context.error),
            spent_ms=int((clock.monotonic() - began) * 1000),
        )

    def resize(self, threads: int) -> None:
        """Have this many calls of the listener at a time from now on."""
        if self._outlet is not None:
            self._outlet.resize(threads)
        self._config = replace(self._config, threads=threads)

    # --- Start and end ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Take up the queues that are ours; returns after the first attempt at that."""
        await self.rebalancer.round()
        self.instance.routes.on_change.append(self._route_changed)
        self._loops += [
            self._tasks.create_task(self.rebalancer.run(), name="rebalance"),
            self._tasks.create_task(self._save_forever(), name="save progress"),
            self._tasks.create_task(self._expire_forever(), name="expire"),
        ]
        if self.locks is not None:
            # Until the very end: a listener may still run after the loops above have ended.
            self._tasks.create_task(self.locks.run(), name="renew locks")

    async def stop(self) -> None:
        """Let running listeners end, then store the progress."""
        timeout_ms = self._config.stop_timeout_ms
        self.instance.routes.on_change.remove(self._route_changed)
        for loop in self._loops:
            loop.cancel()
        await asyncio.wait(self._loops)
        await self.readers.stop_fetching()
        if self._outlet is not None:
            await self._outlet.stop(timeout_ms)
        await self.settling.idle(timeout_ms)
        self.settling.close()
        await self.readers.save(wait=True)
        await self.readers.unlock()

    # --- Messages --------------------------------------------------------------------------------------------

    @property
    def outlet(self) -> Outlet | None:
        return self._outlet

    def open(self, outlet: Outlet) -> None:
        """Let messages out there from now on, beginning with those that came early."""
        assert self._outlet is None
        self._outlet = outlet
        if isinstance(outlet, Orderly):
            self.readers.order = outlet
        for reader, held, messages in self._early:
            outlet.put(reader, held, messages)
        self._early.clear()

    def _deliver(self, reader: QueueReader, held: ProcessQueue, messages: Sequence[ReceivedMessage]) -> None:
        # An orderly consumer deals with unreadable messages in their turn.
        if not self._config.orderly and (bad := [message for message in messages if message.body_error]):
            self.settling.settle_unreadable(reader, held, bad, again=self._deliver)
            messages = [message for message in messages if not message.body_error]
        if not messages:
            return
        if self._outlet is not None:
            self._outlet.put(reader, held, messages)
        else:
            self._early.append((reader, held, messages))

    def _lost(self, queue: MessageQueue) -> None:
        self.readers.lose(queue)
        self.rebalancer.soon()

    # --- Loops -----------------------------------------------------------------------------------------------

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic in self._subscriptions:
            self.rebalancer.soon()

    async def _save_forever(self) -> None:
        while True:
            await asyncio.sleep(self.instance.config.persist_offset_interval_ms / 1000)
            await self.readers.save(wait=False)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(min(EXPIRY_CHECK_S, self._config.consume_timeout_ms / 1000))
            self.expire()

    def expire(self) -> None:
        """Deal with listeners that take too long, and with pulls that never end."""
        if self._outlet is not None:
            self._outlet.expire(self.instance.env.clock.monotonic() - self._config.consume_timeout_ms / 1000)
        self.readers.restart_stuck()


def _told(context: ConsumeContext) -> ToldResult:
    if context.error is not None:
        return ToldResult.THROW_EXCEPTION
    return _TOLD[context.result or ConsumeResult.RETRY]


_TOLD: Final = {
    ConsumeResult.SUCCESS: ToldResult.SUCCESS,
    ConsumeResult.RETRY: ToldResult.LATER,
    ConsumeResult.COMMIT: ToldResult.COMMIT,
    ConsumeResult.ROLLBACK: ToldResult.ROLLBACK,
}
