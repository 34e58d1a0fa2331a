"""Queue locks as a member of a group sees them: only the member with the lock reads the queue in order (F2).

A broker gives a lock for 60 s, and again with every request (LOCK_BATCH_MQ 41). We ask every 20 s and trust a lock for
30 s, counted from when it was *asked for*: so we have begun nothing new for half a minute when a broker that cannot
hear us gives it to another. Three things end a lock:

- we give it back (UNLOCK_BATCH_MQ 42), after the progress is stored;
- the broker refuses to renew it: it is another's by now;
- the broker renews it after more than 60 s: another may have had it in between.

The last two are a loss (``on_lost``): whatever is known of the queue's progress here may be old, so the queue must be
taken up anew. A broker that does not answer is no loss yet. It is asked again every 3 s, and without an answer the lock
is just not trusted any more. A broken connection may mean that the broker was started anew, and has forgotten all
locks: until it has renewed them, they are not trusted either (``doubt``).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections import defaultdict
from collections.abc import Callable, Collection
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import TernError
from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import LockedQueues, QueueLocks
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.codes import RequestCode

log = logging.getLogger(__name__)

#: RocketMQ's ``rocketmq.client.rebalance.lockInterval``, ``…lockMaxLiveTime``, and the broker's ``lockMaxLiveTime``.
RENEW_S: Final = 20.0
TRUST_S: Final = 30.0
BROKER_S: Final = 60.0
#: After a broker did not answer.
AGAIN_S: Final = 3.0
TIMEOUT_MS: Final = 1_000


class HeldLocks:
    """The locks of one member. All methods belong to the loop's thread; ``group`` is its name on the wire."""

    def __init__(self, instance: ClientInstance, group: str, *, on_lost: Callable[[MessageQueue], None]) -> None:
        self._instance = instance
        self._group = group
        self._on_lost = on_lost
        self._clock = instance.env.clock
        #: When the lock that we have was asked for last, by the clock's ``monotonic``.
        self._asked_at: dict[MessageQueue, float] = {}
        #: Those of them that their broker may have forgotten.
        self._doubted: set[MessageQueue] = set()
        self._hurry = asyncio.Event()
        # Brokers of RocketMQ handle calls in any order: a renewal that overtakes us would undo the giving back.
        self._one_call = asyncio.Lock()

    def is_held(self, queue: MessageQueue) -> bool:
        """Whether messages of the queue may be given to a listener now."""
        if queue in self._doubted:
            return False
        return self._clock.monotonic() - self._asked_at.get(queue, -math.inf) < TRUST_S

    @property
    def queues(self) -> set[MessageQueue]:
        """The queues whose locks we have, trusted or not."""
        return set(self._asked_at)

    def asked_at(self, queue: MessageQueue) -> float | None:
        """When the lock was last asked for and given, by the clock's ``monotonic``; None: it is not ours."""
        return self._asked_at.get(queue)

    def doubt(self, broker_name: str) -> None:
        """The connection to a broker broke: trust none of its locks until it has renewed them, which is asked now."""
        doubted = [queue for queue in self._asked_at if queue.broker_name == broker_name]
        if doubted:
            self._doubted.update(doubted)
            self._hurry.set()

    async def lock(self, queue: MessageQueue) -> bool:
        """Take the lock of a queue; returns False when another member has it. Raises ``TernError`` when the broker does
        not answer."""
        asked_at = self._clock.monotonic()
        is_ours = queue in await self._ask(queue.broker_name, [queue])
        if is_ours:
            self._asked_at[queue] = asked_at
            self._doubted.discard(queue)
        return is_ours

    async def unlock(self, queues: Collection[MessageQueue]) -> None:
        """Give locks back, so that others need not wait until they run out. Failures are logged."""
        async with self._one_call:
            ours = [queue for queue in queues if self._asked_at.pop(queue, None) is not None]
            by_broker = _by_broker(ours).items()
            await asyncio.gather(*(self._give_back(broker_name, some) for broker_name, some in by_broker))

    async def run(self) -> None:
        """Renew for ever."""
        pause_s = RENEW_S
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._hurry.wait()
            self._hurry.clear()
            pause_s = RENEW_S if await self.renew() else AGAIN_S

    async def renew(self) -> bool:
        """Ask again for all that we have; whether all brokers answered."""
        async with self._one_call:
            by_broker = _by_broker(self._asked_at).items()
            return all(await asyncio.gather(*(self._renew(broker_name, queues) for broker_name, queues in by_broker)))

    async def _renew(self, broker_name: str, queues: Collection[MessageQueue]) -> bool:
        now = self._clock.monotonic()
        try:
            granted = await self._ask(broker_name, queues)
        except TernError as error:
            log.warning("cannot renew the queue locks of group %s on %s: %s", self._group, broker_name, error)
            return False
        self._doubted.difference_update(queues)
        for queue in queues:
            if queue in granted and now - self._asked_at[queue] < BROKER_S:
                self._asked_at[queue] = now
            else:
                log.warning("group %s has lost the lock of %s", self._group, queue)
                del self._asked_at[queue]
                self._on_lost(queue)
        return True

    async def _ask(self, broker_name: str, queues: Collection[MessageQueue]) -> set[MessageQueue]:
        response = await self._instance.ask(
            self._instance.broker_address(broker_name),
            RequestCode.LOCK_BATCH_MQ,
            None,
            self._body(queues),
            timeout_ms=TIMEOUT_MS,
        )
        return {queue.message_queue for queue in decode(response.body, LockedQueues).queues}

    async def _give_back(self, broker_name: str, queues: Collection[MessageQueue]) -> None:
        try:
            await self._instance.ask(
                self._instance.broker_address(broker_name),
                RequestCode.UNLOCK_BATCH_MQ,
                None,
                self._body(queues),
                timeout_ms=TIMEOUT_MS,
            )
        except TernError as error:
            log.info("cannot release the queue locks of group %s on %s: %s", self._group, broker_name, error)

    def _body(self, queues: Collection[MessageQueue]) -> bytes:
        return encode(
            QueueLocks(
                client_id=self._instance.client_id,
                consumer_group=self._group,
                queues=[Queue.of(queue) for queue in queues],
            )
        )


def _by_broker(queues: Collection[MessageQueue]) -> dict[str, list[MessageQueue]]:
    found: dict[str, list[MessageQueue]] = defaultdict(list)
    for queue in queues:
        found[queue.broker_name].append(queue)
    return found
