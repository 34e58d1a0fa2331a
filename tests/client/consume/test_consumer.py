"""The consumer core, with parts of a kind that it has never seen (F1)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.assignment import Everywhere
from ternmq.client.consume.claimed import NOT_STARTED, After, Claimed
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.consumer import Consumer, ConsumerParts
from ternmq.client.consume.looped import Looped
from ternmq.client.consume.offsets import BrokerOffsets
from ternmq.client.consume.outlet import Messages
from ternmq.client.consume.source import Deliver, Fetching
from ternmq.client.consume.subscription import Subscription
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeType, PopQueueInfo
from tests.client.consumer_script import ConsumerScript
from tests.client.listening import eventually
from tests.client.samples import received


class RangeLot:
    """Acknowledges ranges of offsets, as shared consumption will."""

    def __init__(self, source: RangeSource) -> None:
        self._source = source
        self.queue = source.queue
        self.calls = self.last_consumed_ms = 0
        self.took_s = 0.0
        self.is_ours = True

    def done(self, messages: Sequence[Claimed]) -> None:
        self._source.acked.append((messages[0].queue_offset, messages[-1].queue_offset))

    def failed(self, messages: Sequence[Claimed], after: After) -> None:
        self._source.failed += [(message.queue_offset, after) for message in messages]

    def holds(self, message: Claimed) -> bool:
        return True

    def keep(self, message: Claimed) -> None: ...

    async def bury(self, message: Claimed) -> bool:
        return False

    def limit_reached(self) -> str | None:
        return None

    def told(self, message: Claimed, after: After | None) -> None:
        self._source.fetching.settling.told(self, message, after)

    def extend(self, message: Claimed, by_ms: int) -> None:
        message.started += by_ms


class RangeSource:
    """Delivers six messages, and waits."""

    progress = None
    is_stuck = False
    is_ours = True

    def __init__(self, fetching: Fetching, queue: MessageQueue) -> None:
        self.fetching = fetching
        self.queue = queue
        self.acked: list[tuple[int, int]] = []
        self.failed: list[tuple[int, After]] = []
        self._gone = asyncio.Event()
        self.was_given_back = False

    async def open(self) -> None: ...

    async def run(self, deliver: Deliver) -> None:
        messages = [received(offset) for offset in range(6)]
        lot = RangeLot(self)
        for message in messages:
            message.lot, message.is_settled, message.started = lot, False, NOT_STARTED
        deliver(messages)
        await self._gone.wait()

    def in_hand(self) -> Sequence[Claimed]:
        return ()

    def move(self, queue_offset: int) -> None: ...

    def drop(self) -> None: ...

    def leave(self) -> None:
        self._gone.set()

    async def give_back(self) -> None:
        self.was_given_back = True

    def info(self) -> PopQueueInfo:
        return PopQueueInfo()


async def test_a_new_kind_of_source_and_lot_needs_no_change_of_the_core() -> None:
    """Issue 14: shared consumption settles ranges; the core, the outlets and the settling stay as they are."""
    made: list[RangeSource] = []

    def sources_of(fetching: Fetching) -> Callable[[MessageQueue], RangeSource]:
        def make(queue: MessageQueue) -> RangeSource:
            made.append(RangeSource(fetching, queue))
            return made[-1]

        return make

    async with (
        ConsumerScript().running() as script,
        ClientInstance(ClientConfig(script.address)) as instance,
        Tasks() as tasks,
    ):
        offsets = BrokerOffsets(instance, "billing")
        active = asyncio.Event()
        active.set()
        parts = ConsumerParts(ConsumeType.POP, Everywhere(), sources_of, offsets, None, offsets, None)
        subscriptions = {"orders": Subscription.by_tags("orders", "*", version=1)}
        consumer = Consumer(
            instance, "billing", PushConfig(), parts, subscriptions=subscriptions, active=active, tasks=tasks
        )
        looped = Looped(consumer.clock, None)
        consumer.open(looped)
        await consumer.start()
        (source,) = made
        loop = Messages(looped)
        for _ in range(3):
            await anext(loop)
        (await anext(loop)).retry(after_ms=5)
        await anext(loop)
        await eventually(lambda: bool(source.acked))
        assert ([(0, 2)], [(3, After(0, 5))]) == (source.acked, source.failed)
        await consumer.stop()
        assert source.was_given_back
