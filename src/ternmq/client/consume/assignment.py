"""Which queues of a topic are this consumer's: the rule that a ``Rebalancer`` applies in each round (F5, F9, G1, G2).

- ``ByMembers``: each member works it out from the list of all members, by the same strategy.
- ``Everywhere``: all of them, in broadcasting.
- ``ByBroker``: a broker says so, for a group that pops.

A lite pull consumer whose application names the queues has no rule, and no rebalancer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from ternmq.allocation import Allocation, Averagely
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import NetworkError, RequestNotSupported, RouteMissing, TernError
from ternmq.message import MessageQueue
from ternmq.names import is_retry_topic
from ternmq.wire.bodies.clients import (
    Assignment as AssignedQueue,
)
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MemberList,
    RequestMode,
    RequestModes,
)
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import ConsumerGroup

log = logging.getLogger(__name__)


class Assignment(Protocol):
    """The rule. All methods belong to the loop's thread."""

    async def start(self, topics: Collection[str]) -> None:
        """Before the first round, with the topics that are subscribed to. May raise what makes the rule useless."""
        ...

    async def of(self, topic: str, queues: Collection[MessageQueue]) -> Collection[MessageQueue] | None:
        """Those of the topic's ``queues`` that are this consumer's; None if that cannot be found out now: then its
        queues of the topic stay as they are."""
        ...


class Everywhere:
    """All queues are this consumer's, whatever other consumers read (F5)."""

    async def start(self, topics: Collection[str]) -> None: ...

    async def of(self, topic: str, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:  # noqa: ARG002
        return queues


class ByMembers:
    """The members divide the queues by a strategy (G1, G2)."""

    def __init__(self, instance: ClientInstance, group: str, allocation: Allocation) -> None:
        self._instance = instance
        self._group = group
        self._allocation = allocation

    async def start(self, topics: Collection[str]) -> None: ...

    async def of(self, topic: str, queues: Collection[MessageQueue]) -> Collection[MessageQueue] | None:
        try:
            members = await self._members(topic)
        except TernError as error:
            log.warning(
                "cannot get the members of group %s: %s; the queues of topic %s stay as they are",
                self._group,
                error,
                topic,
            )
            return None
        try:
            return self._allocation.allocate(self._instance.client_id, queues, members)
        except Exception:
            log.exception("the allocation strategy failed; the queues of topic %s stay as they are", topic)
            return None

    async def _members(self, topic: str) -> list[str]:
        """Client ids of the group, from any broker of the topic: all members send heartbeats to all of them."""
        header = ConsumerGroup(consumer_group=self._group)
        address = await _any_broker(self._instance, topic)
        response = await self._instance.ask(address, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        return decode(response.body, MemberList).consumer_id_list


class ByBroker:
    """A broker of the topic decides which member pops what (QUERY_ASSIGNMENT 400).

    Its answer names brokers (queue id -1: all queues of it) or single queues. It also says whether the group pops the
    topic at all. A member switches the group to pop (SET_MESSAGE_REQUEST_MODE 401) when it first takes up the topic;
    if an administrator switches it back later, the member obeys, and pops nothing of that topic until told otherwise.

    The exception is the group's own retry topic. Pops never bring a message there, but members that pulled, before the
    group was switched, may have. Brokers share out its queues as those of any topic that is pulled.
    """

    #: The name of a strategy, by which brokers choose their own.
    _STRATEGY: Final = Averagely().name

    def __init__(self, instance: ClientInstance, group: str, *, share_queues: int) -> None:
        self._instance = instance
        self._group = group
        self._share_queues = share_queues
        #: Topics that the group was seen to pop, each with the name of a broker.
        self._switched: set[tuple[str, str]] = set()
        self._switched_back: set[str] = set()

    async def start(self, topics: Collection[str]) -> None:
        """Raises ``RequestNotSupported`` for a broker without pop."""
        for topic in topics:
            if is_retry_topic(topic):
                continue
            try:
                await self._switch(topic)
            except RequestNotSupported as error:
                raise RequestNotSupported(
                    f"{error.broker} does not support pop, which needs RocketMQ 5; use a PushConsumer",
                    broker=error.broker,
                ) from None
            except (RouteMissing, NetworkError) as error:
                log.warning("cannot pop topic %s yet: %s", topic, error)

    async def of(self, topic: str, queues: Collection[MessageQueue]) -> Collection[MessageQueue] | None:  # noqa: ARG002
        # Brokers refuse to have a retry topic popped.
        mode = RequestMode.PULL if is_retry_topic(topic) else RequestMode.POP
        try:
            if mode is RequestMode.POP:
                await self._switch(topic)
            assigned = await self._ask(topic)
        except TernError as error:
            log.warning("cannot get the assignment of topic %s: %s; it stays as it is", topic, error)
            return None
        if assigned is None:
            return None
        if any(each.mode is not mode for each in assigned):
            if topic not in self._switched_back:
                self._switched_back.add(topic)
                log.warning(
                    "an administrator has switched group %s to pull for topic %s; this consumer pops no messages of it",
                    self._group,
                    topic,
                )
            return []
        self._switched_back.discard(topic)
        return [each.message_queue.message_queue for each in assigned]

    async def _switch(self, topic: str) -> None:
        """Let the group pop a topic on each of its brokers, once; later changes are an administrator's.

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

    async def _ask(self, topic: str) -> Sequence[AssignedQueue] | None:
        """What a broker of the topic, any one, says; None: no change."""
        query = AssignmentQuery(
            client_id=self._instance.client_id,
            consumer_group=self._group,
            topic=topic,
            strategy_name=self._STRATEGY,
        )
        address = await _any_broker(self._instance, topic)
        response = await self._instance.ask(address, RequestCode.QUERY_ASSIGNMENT, None, encode(query))
        return decode(response.body, Assignments).message_queue_assignments


async def _any_broker(instance: ClientInstance, topic: str) -> str:
    route = await instance.routes.of(topic)
    addresses = [address for by_id in route.brokers.values() for address in by_id.values()]
    if not addresses:
        raise NetworkError(f"no broker of topic {topic!r} has an address now", address=topic)
    return instance.env.random.choice(addresses)
