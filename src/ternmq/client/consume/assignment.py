"""Which queues of a topic are this consumer's: the rule that a ``Rebalancer`` applies in each round (F5, F9, G1, G2).

- ``ByMembers``: each member works it out from the list of all members, by the same strategy.
- ``Everywhere``: all of them, in broadcasting.
- ``ByBroker``: a broker says so, for a group that pops.
- ``ByShare``: each member asks each broker, for a group that shares messages.

A lite pull consumer whose application names the queues has no rule, and no rebalancer.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from ternmq.allocation import Allocation, Averagely
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.routes import MASTER_ID
from ternmq.errors import NetworkError, RequestNotSupported, RouteMissing, ServiceNotAvailable, TernError
from ternmq.message import MessageQueue
from ternmq.names import is_retry_topic
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    Assignments,
    GroupRequestMode,
    MemberList,
    QueueAssignment,
    RequestMode,
    RequestModes,
)
from ternmq.wire.bodies.codec import decode, encode
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.requests import ConsumerGroup
from ternmq.wire.requests_share import ShareAck

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
        #: Topics that the group was seen to pop, each with the name of a broker: the address of its master then.
        self._switched: dict[tuple[str, str], str] = {}
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
            if mode is RequestMode.POP and _differs(assigned, mode):
                # Not only an administrator takes it back: a broker that led its group, followed another one and leads
                # again has the table of that one, which may not have heard of it.
                self._doubt(topic)
                await self._switch(topic)
                assigned = await self._ask(topic)
        except TernError as error:
            log.warning("cannot get the assignment of topic %s: %s; it stays as it is", topic, error)
            return None
        if assigned is None:
            return None
        if _differs(assigned, mode):
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

        A new master of the same name may not have heard of it: it is told if it knows nothing of the group; what an
        administrator has decided, it knows. A broker that cannot be reached, or comes later, is told in a later round:
        it does not hold up the others.
        """
        route = await self._instance.routes.of(topic)
        for name in route.brokers:
            try:
                address = self._instance.broker_address(name)
                before = self._switched.get((topic, name))
                if before != address:
                    await self._switch_on(name, address, topic, is_first=before is None)
            except (NetworkError, ServiceNotAvailable) as error:
                log.warning("cannot switch group %s to pop on broker %s yet: %s", self._group, name, error)
            else:
                self._switched[topic, name] = address

    def _doubt(self, topic: str) -> None:
        """Ask all brokers of a topic again whether they know that the group pops it."""
        for key in self._switched:
            if key[0] == topic:
                self._switched[key] = ""

    async def _switch_on(self, broker_name: str, address: str, topic: str, *, is_first: bool) -> None:
        response = await self._instance.ask(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        known = decode(response.body, RequestModes).message_request_mode_map.get(topic, {}).get(self._group)
        if known is not None and (known.mode is RequestMode.POP or not is_first):
            return
        log.info("switching group %s to pop for topic %s on broker %s", self._group, topic, broker_name)
        mode = GroupRequestMode(
            topic=topic,
            consumer_group=self._group,
            mode=RequestMode.POP,
            pop_share_queue_num=self._share_queues,
        )
        await self._instance.ask(address, RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode(mode))

    async def _ask(self, topic: str) -> Sequence[QueueAssignment] | None:
        """What a broker of the topic, any one, says; None: no change. A slave may not know yet what its master was
        told."""
        query = AssignmentQuery(
            client_id=self._instance.client_id,
            consumer_group=self._group,
            topic=topic,
            strategy_name=self._STRATEGY,
        )
        address = await _any_broker(self._instance, topic, masters_first=True)
        response = await self._instance.ask(address, RequestCode.QUERY_ASSIGNMENT, None, encode(query))
        return decode(response.body, Assignments).message_queue_assignments


class ByShare:
    """Every member takes messages of every broker (R1): its assignment names brokers, with queue id -1.

    A broker that does not know shared consumption (RocketMQ) is popped instead, if it can. Which of both it is is asked
    once. The group's retry topic exists for shared consumption only: pops look into retry topics of their own.
    """

    def __init__(self, instance: ClientInstance, group: str, *, consumer: str, ordered: bool) -> None:
        self._instance = instance
        self._group = group
        self._consumer = consumer
        self._ordered = ordered
        #: By the name of a broker, whether it is popped.
        self._popped: dict[str, bool] = {}

    def is_popped(self, broker_name: str) -> bool:
        """Whether messages of a broker are popped; ``of`` has named it before."""
        return self._popped[broker_name]

    async def start(self, topics: Collection[str]) -> None:
        """Raises ``RequestNotSupported`` for a broker that has neither."""
        for topic in topics:
            if is_retry_topic(topic):
                continue
            try:
                route = await self._instance.routes.of(topic)
                for name in route.brokers:
                    await self._ask(name, topic)
            except (RouteMissing, NetworkError) as error:
                log.warning("cannot take messages of topic %s yet: %s", topic, error)

    async def of(self, topic: str, queues: Collection[MessageQueue]) -> Collection[MessageQueue]:
        found = []
        for name in sorted({queue.broker_name for queue in queues}):
            try:
                await self._ask(name, topic)
            except TernError as error:
                # The others are not held up; it is asked again with the next round.
                log.warning("cannot take messages of topic %s from broker %s: %s", topic, name, error)
                continue
            if not (self._popped[name] and is_retry_topic(topic)):
                found.append(MessageQueue(topic, name, ALL_QUEUES))
        return found

    async def _ask(self, name: str, topic: str) -> None:
        """Find out whether a broker shares messages, or has them popped."""
        if name in self._popped:
            return
        address = self._instance.broker_address(name)
        header = ShareAck(consumer_group=self._group, topic=topic, consumer=self._consumer)
        response = await self._instance.call(address, RequestCode.SHARE_ACK, header)
        # Whatever else it says, it knows the request.
        if response.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            self._popped[name] = False
            return
        if self._ordered:
            raise RequestNotSupported(
                f"{name} does not support shared consumption, without which the order of keys cannot be kept; use an "
                "orderly PushConsumer",
                broker=name,
            )
        response = await self._instance.call(address, RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
        if response.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestNotSupported(
                f"{name} supports neither shared consumption nor pop, which needs RocketMQ 5; use a PushConsumer",
                broker=name,
            )
        log.info("%s does not support shared consumption; its messages are popped", name)
        self._popped[name] = True


def _differs(assigned: Sequence[QueueAssignment] | None, mode: RequestMode) -> bool:
    return any(each.mode is not mode for each in assigned or ())


async def _any_broker(instance: ClientInstance, topic: str, *, masters_first: bool = False) -> str:
    route = await instance.routes.of(topic)
    addresses = [address for by_id in route.brokers.values() for address in by_id.values()]
    if masters_first:
        addresses = [by_id[MASTER_ID] for by_id in route.brokers.values() if MASTER_ID in by_id] or addresses
    if not addresses:
        raise NetworkError(f"no broker of topic {topic!r} has an address now", address=topic)
    return instance.env.random.choice(addresses)
