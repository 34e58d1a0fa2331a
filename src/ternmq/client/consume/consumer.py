"""The consumer core: a running consumer, whatever kind the application chose (D3, D4, F1–F5, F9, G1).

::

    Assignment ─► Rebalancer ─► Sources ─► Source ─ messages of a lot ─► Consumer ─► Outlet ─► application
                                             ▲                                                      │
                                             └────── Lot ◄── Settling ◄──── ack, retry, extend ─────┘

The parts know little of one another; this is where they are tied together. Which parts there are, the fronts decide
(``push``, ``pop``, ``lite_pull``). They end in a fixed order: no more queues, no more fetching, no more calls of the
application, then the progress, then the locks, and last what is given back to other members.

A consumer joins its group when it subscribes to something: from then on it is in heartbeats, and rebalances. One whose
application assigns the queues is no member: it sends no heartbeat (in which RocketMQ's differs), so members that divide
queues among themselves do not leave any to it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import unwrap
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.consume.acks import Acks
from ternmq.client.consume.assignment import Assignment
from ternmq.client.consume.claimed import Claimed
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeContext, ConsumeResult
from ternmq.client.consume.locks import HeldLocks
from ternmq.client.consume.offsets import OffsetStore
from ternmq.client.consume.orderly import Orderly
from ternmq.client.consume.outage import Outages
from ternmq.client.consume.outlet import Outlet
from ternmq.client.consume.rebalance import Rebalancer, difference
from ternmq.client.consume.running_info import running_info
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.source import Fetching, Source, restore_topic
from ternmq.client.consume.sources import Sources
from ternmq.client.consume.stats import ConsumerCounts
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import SystemFailure
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumedDirectly, ConsumerData, ConsumeType, DirectResult, RunningInfo

log = logging.getLogger(__name__)

#: How often messages and pulls are looked through for those that take too long.
EXPIRY_CHECK_S: Final = 30.0

#: With what all sources of a consumer share: what makes the source of a queue.
SourcesOf = Callable[[Fetching], Callable[[MessageQueue], Source]]


@dataclass(slots=True, frozen=True)
class ConsumerParts:
    """What makes a consumer one kind or another."""

    #: What heartbeats and tools call it.
    kind: ConsumeType
    assignment: Assignment
    sources_of: SourcesOf
    #: Where the progress of pulled queues is kept, and how often it is stored; None: only by ``commit``.
    progress: OffsetStore
    save_interval_ms: int | None
    #: Where offsets are stored that an administrator has reset.
    resets: OffsetStore
    #: How messages are sent back; without it, failed messages are skipped, with the reason ``no_returns``.
    returns: Returns | None
    no_returns: str = ""
    #: Whether messages that failed, where there are no returns, stay undone instead.
    leaves_failed: bool = False
    #: How popped messages are acknowledged.
    acks: Acks | None = None
    #: Whether a queue is read only with its lock: when queues are consumed in order, and shared.
    locks_queues: bool = False
    #: Whether it joins the group at its start, also without a subscription.
    joins_at_once: bool = True
    #: Whether messages that cannot be read go to the outlet, too.
    passes_unreadable: bool = False


class Consumer:
    """One running consumer, from ``start`` to ``stop``. All methods belong to the loop's thread; ``tasks`` owns its
    loops. It is a ``LocalMember`` for its instance."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConfig,
        parts: ConsumerParts,
        *,
        subscriptions: Mapping[str, Subscription],
        active: asyncio.Event,
        tasks: Tasks,
    ) -> None:
        """``group`` and the topics of ``subscriptions`` are named as on the wire. While ``active`` is not set, nothing
        is fetched."""
        self.instance = instance
        self.group = group
        self.tasks = tasks
        self.clock = instance.env.clock
        self.stats = ConsumerCounts(self.clock)
        self._config = config
        self._subscriptions = subscriptions
        self._started_ms = self.clock.now_ms()
        self._loops: list[asyncio.Task[None]] = []
        self._is_member = False
        self._outlet: Outlet | None = None
        #: What arrived before there was an outlet; no more than the limits of the lots let through.
        self._early: list[Sequence[Claimed]] = []
        self.parts = parts
        self.locks = HeldLocks(instance, group, on_lost=self._lost) if parts.locks_queues else None
        self.settling = Settling(
            self.stats,
            tasks,
            self.clock,
            returns=parts.returns,
            acks=parts.acks,
            timeout_s=config.consume_timeout_ms / 1000,
            deliver=self._deliver,
            no_returns=parts.no_returns,
            leaves_failed=parts.leaves_failed,
        )
        self.outages = Outages(group, first_ms=config.outage_retry_ms, max_ms=config.outage_retry_max_ms)
        counts: Counter[str] = Counter()
        fetching = Fetching(
            instance,
            group,
            config,
            subscriptions,
            self.settling,
            counts,
            active,
            self.locks,
            flowing=self.outages.flowing,
        )
        self.sources = Sources(
            parts.sources_of(fetching),
            subscriptions.keys,
            counts=counts,
            progress=parts.progress,
            locks=self.locks,
            settling=self.settling,
            deliver=self._deliver,
            tasks=tasks,
        )
        self.rebalancer = Rebalancer(instance, group, self.sources, parts.assignment)

    # --- Start and end ---------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Join the group, if anything is subscribed to; returns after the first attempt to take up queues."""
        if self._subscriptions or self.parts.joins_at_once:
            self._join()
            await self.parts.assignment.start(list(self._subscriptions))
            await self.rebalancer.round()
            self._rebalance()
        self.instance.routes.on_change.append(self._route_changed)
        self._loops.append(self.tasks.create_task(self._expire_forever(), name="expire"))
        if self.parts.save_interval_ms is not None:
            self._loops.append(self.tasks.create_task(self._save_forever(), name="save progress"))
        if self.locks is not None:
            # Until the very end: a listener may still run after the loops above have ended.
            self.tasks.create_task(self.locks.run(), name="renew locks")

    async def stop(self) -> None:
        """Let running listeners end, store the progress, and let other members have what is not settled."""
        timeout_ms = self._config.stop_timeout_ms
        self.instance.routes.on_change.remove(self._route_changed)
        for loop in self._loops:
            loop.cancel()
        await asyncio.wait(self._loops)
        await self.sources.stop_fetching()
        if self._outlet is not None:
            await self._outlet.stop(timeout_ms)
        await self.settling.idle(timeout_ms)
        self.settling.close()
        await self.sources.save(wait=True)
        await self.sources.unlock()
        await self.sources.give_back(timeout_ms)

    def _join(self) -> None:
        self._is_member = True
        self.instance.register_consumer(self.group, self)

    def _rebalance(self) -> None:
        self._loops.append(self.tasks.create_task(self.rebalancer.run(), name="rebalance"))

    # --- Which queues ----------------------------------------------------------------------------------------

    def subscription_changed(self) -> None:
        """The subscriptions have changed; with the first one, the consumer joins the group."""
        if not self._is_member:
            self._join()
            self._rebalance()
        self.rebalancer.subscription_changed()

    async def settled(self) -> None:
        """Wait until all queues that are ours after the last change are being read."""
        if self._is_member:
            await self.rebalancer.settled()

    async def assign(self, queues: Set[MessageQueue]) -> None:
        """Read these queues and no others; raises the first error of those that cannot be read."""
        change = difference(self.sources.owned(), queues)
        await self.sources.let_go(change.lost)
        results = await asyncio.gather(*map(self.sources.take_up, change.gained), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    def _lost(self, queue: MessageQueue) -> None:
        self.sources.lose(queue)
        self.rebalancer.soon()

    def _route_changed(self, route: TopicRoute) -> None:
        if self._is_member and route.topic in self._subscriptions:
            self.rebalancer.soon()

    # --- Messages --------------------------------------------------------------------------------------------

    @property
    def outlet(self) -> Outlet | None:
        return self._outlet

    def open(self, outlet: Outlet) -> None:
        """Let messages out there from now on, beginning with those that came early."""
        assert self._outlet is None
        self._outlet = outlet
        if isinstance(outlet, Orderly):
            self.sources.order = outlet
        for messages in self._early:
            outlet.put(messages)
        self._early.clear()

    def resize(self, threads: int) -> None:
        """Make this many calls of the listener at a time from now on."""
        if self._outlet is not None:
            self._outlet.resize(threads)
        self._config = replace(self._config, threads=threads)

    def _deliver(self, messages: Sequence[Claimed]) -> None:
        if not self.parts.passes_unreadable:
            for message in messages:
                if message.body_error:
                    self.settling.unreadable([message for message in messages if message.body_error])
                    messages = [message for message in messages if not message.body_error]
                    break
            if not messages:
                return
        if self._outlet is not None:
            self._outlet.put(messages)
        else:
            self._early.append(messages)

    # --- Loops -----------------------------------------------------------------------------------------------

    async def _save_forever(self) -> None:
        assert self.parts.save_interval_ms is not None
        while True:
            await asyncio.sleep(self.parts.save_interval_ms / 1000)
            await self.sources.save(wait=False)

    async def _expire_forever(self) -> None:
        while True:
            await asyncio.sleep(min(EXPIRY_CHECK_S, self._config.consume_timeout_ms / 1000))
            self.expire()

    def expire(self) -> None:
        """Deal with messages that the application has for too long, and with pulls that never end."""
        if self._outlet is not None:
            before = self.clock.monotonic() - self._config.consume_timeout_ms / 1000
            late = [
                message
                for source in self.sources.with_left()
                for message in source.in_hand()
                if message.started < before and not message.is_settled
            ]
            if late:
                self._outlet.expire(late)
        self.sources.restart_stuck()

    # --- What the instance asks (``LocalMember``) ---------------------------------------------------------

    def heartbeat_data(self) -> ConsumerData:
        return ConsumerData(
            group_name=self.group,
            consume_type=self.parts.kind,
            message_model=self._config.model,
            consume_from_where=self._config.start.where,
            subscription_data_set=[subscription.data for subscription in self._subscriptions.values()],
            unit_mode=bool(self.instance.config.unit_name),
        )

    def rebalance_soon(self) -> None:
        self.rebalancer.soon()

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        # Before the start there is nothing to move, and after the end nothing that would go on.
        if any(not loop.done() for loop in self._loops):
            log.warning("an administrator has reset the offsets of group %s in %d queues", self.group, len(offsets))
            self.sources.reset(offsets)
            self.tasks.create_task(self._save_reset(offsets), name="save reset offsets")

    async def _save_reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        ours = self.sources.progress()
        await self.parts.resets.save({queue: ours[queue] for queue in offsets if queue in ours}, wait=True)

    def offsets(self, topic: str) -> Mapping[MessageQueue, int]:
        return {queue: offset for queue, offset in self.sources.progress().items() if queue.topic == topic}

    def running_info(self) -> RunningInfo:
        return running_info(
            self.instance,
            self.group,
            self._config,
            subscriptions=self._subscriptions,
            sources=self.sources.with_left(),
            stats=self.stats,
            started_ms=self._started_ms,
            kind=self.parts.kind,
        )

    async def consume_directly(self, message: Claimed) -> ConsumedDirectly:
        if self._outlet is None:
            raise SystemFailure(f"this consumer of group {self.group} has no listener yet")
        if message.body_error:
            raise SystemFailure(
                f"message {message.message_id} cannot be decoded by this consumer: {message.body_error}"
            )
        namespace = self.instance.config.namespace
        context = ConsumeContext(unwrap(namespace, self.group), message.queue, [message])
        restore_topic(message, namespace)
        began = self.clock.monotonic()
        await self._outlet.call(context)
        return ConsumedDirectly(
            consume_result=_told(context),
            order=self._config.orderly,
            auto_commit=context.auto_commit,
            remark=None if context.error is None else repr(context.error),
            spent_ms=int((self.clock.monotonic() - began) * 1000),
        )


def _told(context: ConsumeContext) -> DirectResult:
    if context.error is not None:
        return DirectResult.THROW_EXCEPTION
    return _TOLD[context.result or ConsumeResult.RETRY]


_TOLD: Final = {
    ConsumeResult.SUCCESS: DirectResult.SUCCESS,
    ConsumeResult.RETRY: DirectResult.LATER,
    ConsumeResult.COMMIT: DirectResult.COMMIT,
    ConsumeResult.ROLLBACK: DirectResult.ROLLBACK,
}
