"""Rebalance: each member finds out, again and again, which queues are its own (G1).

``difference`` is the pure part: what to let go and what to take up. ``Rebalancer`` is the shell: it asks its
``Assignment`` which queues of each topic are this member's, and its ``Holder`` to let go and take up. Queues are let go
first, so that their next owner finds a fresh offset.

It runs at the start, every 20 s, and soon after anything that may change the answer: a member came or left
(NOTIFY_CONSUMER_IDS_CHANGED 40), a route changed, the subscription changed. Rounds are a fifth of a second apart at
least: when a hundred members start together, each is told a hundred times. A round that could not do all (a broker did
not answer, a topic has no route yet) is followed by another after 1 s, 2 s, 4 s, … 20 s; while another member still has
the lock of a queue of ours (F2), after 1 s each time: it will give it back in a moment.

When the assignment is not known, the queues of that topic stay as they are: a guess would take queues away from others
or give up our own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.assignment import Assignment
from ternmq.errors import QueueLocked, ServiceNotAvailable, TernError
from ternmq.message import MessageQueue
from ternmq.names import is_retry_topic

log = logging.getLogger(__name__)

#: RocketMQ's ``rocketmq.client.rebalance.waitInterval``.
INTERVAL_S: Final = 20.0
#: Rounds are this far apart at least.
GAP_S: Final = 0.2
#: After a round that could not do all; doubled each time, up to the interval.
RETRY_S: Final = 1.0


@dataclass(slots=True, frozen=True)
class QueueChanges:
    """What a member must do: first let go, then take up. Both in the order of queues."""

    lost: tuple[MessageQueue, ...]
    gained: tuple[MessageQueue, ...]


def difference(owned: Iterable[MessageQueue], allocated: Iterable[MessageQueue]) -> QueueChanges:
    """From the queues a member has to those it should have."""
    before, after = set(owned), set(allocated)
    return QueueChanges(tuple(sorted(before - after)), tuple(sorted(after - before)))


class Holder(Protocol):
    """What reads the queues: the sources of a consumer."""

    def topics(self) -> Collection[str]:
        """The topics subscribed to now, with the group's retry topic where there is one."""
        ...

    def owned(self) -> Collection[MessageQueue]:
        """The queues that are being read."""
        ...

    async def let_go(self, queues: Collection[MessageQueue]) -> None:
        """Stop reading these queues and store how far they are done. Does not raise ``TernError``."""
        ...

    async def take_up(self, queue: MessageQueue) -> None:
        """Find out where to start and read this queue from now on.

        Raises ``TernError`` when that is not known, ``QueueLocked`` while another member has not let go of it.
        """
        ...


class Rebalancer:
    """The loop that keeps a ``Holder``'s queues right. All methods belong to the loop's thread."""

    def __init__(self, instance: ClientInstance, group: str, holder: Holder, assignment: Assignment) -> None:
        self._instance = instance
        self._group = group
        self._holder = holder
        self._assignment = assignment
        self._wanted = asyncio.Event()
        self._subscription_changed = True
        #: Until the next round without a request for one.
        self._pause_s = INTERVAL_S
        #: Counts changes asked for, and those that a complete round has dealt with.
        self._asked = 0
        self._settled = -1
        #: Whether another member has the lock of a queue that is ours.
        self._is_locked_out = False
        #: Topics without a route, which is logged once.
        self._missing: set[str] = set()
        self._round_over = asyncio.Condition()

    def soon(self) -> None:
        """Something may have changed: a round within a second."""
        self._asked += 1
        self._wanted.set()

    def subscription_changed(self) -> None:
        """As ``soon``; brokers hear of the new subscription first."""
        self._subscription_changed = True
        self.soon()

    async def settled(self) -> None:
        """Wait until a round that began after the last change has done all there was to do."""
        asked = self._asked
        async with self._round_over:
            await self._round_over.wait_for(lambda: self._settled >= asked)

    async def run(self) -> None:
        """Rebalance for ever."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._pause_s):
                    await self._wanted.wait()
            try:
                await self.round()
            except Exception:
                # Whatever it is, as a strategy that returns what are no queues: without rounds, the queues of members
                # that leave would not be read any more, without notice.
                log.exception("group %s: this consumer cannot divide the queues; retrying", self._group)
                self._pause_s = RETRY_S
            await asyncio.sleep(GAP_S)

    async def round(self) -> None:
        """One round over all topics."""
        self._wanted.clear()
        asked = self._asked
        topics = sorted(self._holder.topics())
        queues = {topic: await self._queues(topic) for topic in topics if not is_retry_topic(topic)}
        if self._subscription_changed:
            # Brokers refuse pulls of topics that no heartbeat named to them; heartbeats go to those of known routes.
            self._subscription_changed = None in queues.values()
            await self._instance.heartbeat()
        owned = self._holder.owned()
        lost = [queue for queue in owned if queue.topic not in topics]
        gained: list[MessageQueue] = []
        unknown: list[str] = []
        for topic in topics:
            known = queues[topic] if topic in queues else await self._queues(topic)
            allocated = None if known is None else await self._assignment.of(topic, known)
            if allocated is None:
                unknown.append(topic)
                continue
            change = difference((queue for queue in owned if queue.topic == topic), allocated)
            lost += change.lost
            gained += change.gained
        if lost:
            log.info("group %s: this consumer stops reading %s", self._group, ", ".join(map(str, lost)))
            await self._holder.let_go(lost)
        self._is_locked_out = False
        taken = await asyncio.gather(*map(self._take_up, gained))
        # No caller waits for a retry topic: it comes into being with the group, a moment after its first heartbeat.
        if all(taken) and all(map(is_retry_topic, unknown)):
            async with self._round_over:
                self._settled = asked
                self._round_over.notify_all()
        if all(taken) and not unknown:
            self._pause_s = INTERVAL_S
        elif self._is_locked_out:
            self._pause_s = RETRY_S
        else:
            self._pause_s = RETRY_S if self._pause_s >= INTERVAL_S else min(INTERVAL_S, 2 * self._pause_s)

    async def _queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        try:
            route = await self._instance.routes.of(topic)
        except TernError as error:
            # Once, not with each attempt; and a retry topic is not missed, it comes with the group's first heartbeat.
            if topic not in self._missing and not is_retry_topic(topic):
                log.warning("topic %s has no route: %s", topic, error)
            self._missing.add(topic)
            return None
        self._missing.discard(topic)
        return route.to_read

    async def _take_up(self, queue: MessageQueue) -> bool:
        try:
            await self._holder.take_up(queue)
        except QueueLocked as error:
            log.info("%s is still locked by another consumer: %s", queue, error)
            self._is_locked_out = True
            return False
        except TernError as error:
            log.warning("cannot start reading %s: %s; retrying with the next rebalance", queue, error)
            if isinstance(error, ServiceNotAvailable):
                # Another broker may be the master by now.
                self._instance.refresh_routes_soon()
            return False
        log.info("group %s: this consumer starts reading %s", self._group, queue)
        return True
