"""A running member of a group that pops (F9, G1).

Who pops what is the broker's decision: each topic's assignment is asked for (QUERY_ASSIGNMENT 400), and names brokers
(queue id -1: all of its queues) or single queues. It also says whether the group pops the topic at all. The member
switches it to that (SET_MESSAGE_REQUEST_MODE 401) when it first takes up the topic; should an administrator switch it
back later, it obeys, and pops nothing of that topic until told otherwise.

Nothing is owned here: letting go of a queue means to ask it no more, and what was popped of it is settled as ever.

The exception is the group's own retry topic. Pops never bring a message there, but members that pulled, before the
group was switched, may have. Brokers share out its queues as those of any topic that is pulled, and so they are read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import msgspec

from ternmq.allocation import Averagely
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.config import PopConfig, PushConfig
from ternmq.client.consume.fetch import Deliver, QueueReader
from ternmq.client.consume.member import Member
from ternmq.client.consume.offsets import BrokerOffsets, Progress
from ternmq.client.consume.pop_reader import GiveUp, PopReader
from ternmq.client.consume.pop_settle import PopSettling
from ternmq.client.consume.readers import Readers
from ternmq.client.consume.rebalance import Holder, Rebalancer
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.settle import Settling
from ternmq.client.consume.stats import ConsumeStats
from ternmq.client.consume.subscription import Subscription
from ternmq.errors import NetworkError, RequestNotSupported, RouteMissing, TernError
from ternmq.message import MessageQueue
from ternmq.names import is_retry_topic
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import (
    Assignment,
    AssignmentQuery,
    Assignments,
    ConsumeType,
    GroupRequestMode,
    MessageModel,
    PopQueueInfo,
    RequestMode,
    RequestModes,
    RunningInfo,
)
from ternmq.wire.bodies.codec import by_key, decode, encode
from ternmq.wire.codes import RequestCode

log = logging.getLogger(__name__)


class PopMember(Member):
    """As ``Member``, with pops in place of pulls. All methods belong to the loop's thread."""

    kind: ClassVar = ConsumeType.POP

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PopConfig,
        *,
        subscriptions: Mapping[str, Subscription],
        progress: Progress,
        active: asyncio.Event,
        tasks: Tasks,
    ) -> None:
        self._pop = config
        super().__init__(
            instance,
            group,
            config.of_listening(),
            subscriptions=subscriptions,
            progress=progress,
            active=active,
            tasks=tasks,
        )

    def _settling(self, returns: Returns | None) -> Settling:
        assert returns is not None
        self.pop_settling = PopSettling(
            returns,
            self._stats,
            self._tasks,
            instance=self.instance,
            group=self.group,
            max_reconsume_times=self._pop.max_reconsume_times,
        )
        return self.pop_settling

    def _readers(self, progress: Progress, active: asyncio.Event) -> Readers:
        self.pop_readers = PopReaders(
            self.instance,
            self.group,
            self._config,
            subscriptions=self._subscriptions,
            progress=progress,
            stats=self._stats,
            deliver=self._deliver,
            active=active,
            tasks=self._tasks,
            pop=self._pop,
            give_up=self.pop_settling.give_up,
        )
        return self.pop_readers

    def _rebalancer(self) -> Rebalancer:
        self._assigner = Assigner(self.instance, self.group, self.readers, share_queues=self._pop.share_queues)
        return self._assigner

    async def start(self) -> None:
        """As ``Member.start``. Raises ``RequestNotSupported`` for a broker without pop."""
        for topic in list(self._subscriptions):
            if is_retry_topic(topic):
                continue
            try:
                await self._assigner.switch(topic)
            except RequestNotSupported as error:
                raise RequestNotSupported(
                    f"{error.broker} does not support pop, which needs RocketMQ 5; use a PushConsumer",
                    broker=error.broker,
                ) from None
            except (RouteMissing, NetworkError) as error:
                log.warning("cannot pop topic %s yet: %s", topic, error)
        await super().start()

    async def stop(self) -> None:
        """Let running listeners end, send the last acks, and let others have what nobody has seen."""
        await super().stop()
        await self.pop_settling.give_back(self.pop_readers.ever(), self._pop.stop_timeout_ms)

    def running_info(self) -> RunningInfo:
        info = super().running_info()
        queues = {
            reader.queue: PopQueueInfo(
                wait_ack_count=sum(map(len, reader.in_hand())), last_pop_timestamp=reader.held.last_fetched_ms
            )
            for reader in self.pop_readers.ever()
        }
        return msgspec.structs.replace(info, mq_pop_table=by_key(queues))


class PopReaders(Readers):
    """What this member pops from, and what it pulls. All methods belong to the loop's thread."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        config: PushConfig,
        *,
        subscriptions: Mapping[str, Subscription],
        progress: Progress,
        stats: ConsumeStats,
        deliver: Deliver,
        active: asyncio.Event,
        tasks: Tasks,
        pop: PopConfig,
        give_up: GiveUp,
    ) -> None:
        super().__init__(
            instance,
            group,
            config,
            subscriptions=subscriptions,
            progress=progress,
            brokers=BrokerOffsets(instance, group),
            locks=None,
            stats=stats,
            deliver=deliver,
            active=active,
            tasks=tasks,
        )
        self._pop = pop
        self._give_up = give_up
        #: Readers that were told to leave: one may wait for its last answer, and have messages in hand.
        self._left: list[tuple[PopReader, asyncio.Task[None]]] = []

    def pulling(self) -> list[QueueReader]:
        return [reader for reader in self.all() if not isinstance(reader, PopReader)]

    async def take_up(self, queue: MessageQueue) -> None:
        if is_retry_topic(queue.topic):
            await super().take_up(queue)
            return
        reader = PopReader(self._fetching, queue, self._pop, self._give_up)
        self._running[queue] = reader, self._tasks.create_task(reader.run(), name=f"pop {queue}")
        self._counts[queue.topic] += 1

    async def let_go(self, queues: Collection[MessageQueue]) -> None:
        await super().let_go([queue for queue in queues if is_retry_topic(queue.topic)])
        self._left = [(reader, task) for reader, task in self._left if not task.done() or reader.in_hand()]
        for queue in queues:
            if is_retry_topic(queue.topic):
                continue
            reader, task = self._running.pop(queue)
            assert isinstance(reader, PopReader)
            self._counts[queue.topic] -= 1
            reader.leave()
            self._left.append((reader, task))

    def reset(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Go on elsewhere in what is pulled. Of the rest brokers know where the group is, and are asked each time."""
        super().reset({queue: offset for queue, offset in offsets.items() if is_retry_topic(queue.topic)})

    async def stop_fetching(self) -> None:
        await super().stop_fetching()
        left = [task for _, task in self._left]
        for task in left:
            task.cancel()
        if left:
            await asyncio.wait(left)

    def ever(self) -> list[PopReader]:
        """All that may have messages in hand."""
        running = [reader for reader in self.all() if isinstance(reader, PopReader)]
        return [*running, *(reader for reader, _ in self._left)]


class Assigner(Rebalancer):
    """A ``Rebalancer`` that asks brokers who pops what, instead of working it out."""

    def __init__(self, instance: ClientInstance, group: str, holder: Holder, *, share_queues: int) -> None:
        # The name of the strategy, by which brokers choose their own, is all that matters of it here.
        super().__init__(instance, group, holder, model=MessageModel.CLUSTERING, allocation=Averagely())
        self._share_queues = share_queues
        #: Topics that the group was seen to pop, each with the name of a broker.
        self._switched: set[tuple[str, str]] = set()
        self._switched_back: set[str] = set()

    async def switch(self, topic: str) -> None:
        """Have the group pop a topic on each of its brokers, once; later changes are an administrator's.

        A broker that cannot be reached, or comes later, is told in a later round: it does not hold up the others.
        """
        route = await self._instance.routes.of(topic)
        for name in route.brokers:
            if (topic, name) in self._switched:
                continue
            try:
                await self._switch_on(name, topic)
            except NetworkError as error:
                log.warning("cannot switch group %s to pop on broker %s yet: %s", self._group, name, error)
            else:
                self._switched.add((topic, name))

    async def _switch_on(self, broker_name: str, topic: str) -> None:
        address = self._instance.broker_address(broker_name)
        response = await self._instance.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        known = decode(response.body, RequestModes).message_request_mode_map.get(topic, {}).get(self._group)
        if known is not None and known.mode is RequestMode.POP:
            return
        log.info("switching group %s to pop for topic %s on broker %s", self._group, topic, broker_name)
        mode = GroupRequestMode(
            topic=topic,
            consumer_group=self._group,
            mode=RequestMode.POP,
            pop_share_queue_num=self._share_queues,
        )
        await self._instance.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode(mode))

    async def _allocated(self, topic: str, queues: Collection[MessageQueue] | None) -> Collection[MessageQueue] | None:
        if queues is None:
            return None
        # Brokers refuse to have a retry topic popped.
        mode = RequestMode.PULL if is_retry_topic(topic) else RequestMode.POP
        try:
            if mode is RequestMode.POP:
                await self.switch(topic)
            assignments = await self._assignments(topic)
        except TernError as error:
            log.warning("cannot get the assignment of topic %s: %s; it stays as it is", topic, error)
            return None
        if assignments is None:
            return None
        if any(assignment.mode is not mode for assignment in assignments):
            if topic not in self._switched_back:
                self._switched_back.add(topic)
                log.warning(
                    "an administrator has switched group %s to pull for topic %s; this consumer pops no messages of it",
                    self._group,
                    topic,
                )
            return []
        self._switched_back.discard(topic)
        return [assignment.message_queue.message_queue for assignment in assignments]

    async def _assignments(self, topic: str) -> Sequence[Assignment] | None:
        """What a broker of the topic, any one, says; None: keep what you have."""
        query = AssignmentQuery(
            client_id=self._instance.client_id,
            consumer_group=self._group,
            topic=topic,
            strategy_name=self._allocation.name,
        )
        address = await self._any_broker(topic)
        response = await self._instance.ask(address, RequestCode.QUERY_ASSIGNMENT, None, encode(query))
        return decode(response.body, Assignments).message_queue_assignments
