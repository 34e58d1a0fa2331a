"""What clients say of themselves and ask about each other: 34, 35, 38, 41, 42, 46; and 40, which the broker sends when
a group's members change (D3, F2).

A heartbeat names all groups of a client at once. A group that this broker does not have and does not create is skipped,
not refused: the others in the same heartbeat must not suffer. Nor do they when a group subscribes to more than a broker
keeps: it is left out, and the reply says why. The reply also tells of members that subscribe differently. A consumer's
first heartbeat brings its retry topic into being, whose route it asks for right afterwards.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterable, Iterator
from typing import Final

from ternmq import names
from ternmq.broker.config import BrokerConfig
from ternmq.broker.flow import CLIENT
from ternmq.broker.tables.clients import Clients
from ternmq.broker.tables.filters import Filters
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.locks import Locks
from ternmq.broker.tables.topics import Topics
from ternmq.errors import BrokerRefused, InvalidParameter, SystemFailure, TernError
from ternmq.net.gate import Action, Resource, ResourceKind, Rule
from ternmq.net.peer import Peer, Route
from ternmq.wire.bodies.clients import (
    ClientCheck,
    ConsumerData,
    Heartbeat,
    LockedQueues,
    MemberList,
    QueueLocks,
    SubscriptionData,
)
from ternmq.wire.bodies.codec import Queue, decode, encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply, Request
from ternmq.wire.requests import ConsumerGroup, UnregisterClient

log = logging.getLogger(__name__)

#: Queues in one request for locks; a consumer locks all queues that it has on a broker at once.
LOCKS_MAX: Final = 65_536
#: Characters of a client's id, which is kept with each of its groups and locks. RocketMQ's have about fifty.
CLIENT_ID_LENGTH_MAX: Final = 1_024
#: Characters of all topics, tags and expressions that a group subscribes to: each heartbeat brings all of them.
SUBSCRIPTIONS_LENGTH_MAX: Final = 1 << 20
_SHOWN_MAX: Final = 127
#: Groups whose refusal is remembered, so that each is logged once and not with each heartbeat.
_REFUSED_MAX: Final = 1_000


class ClientHandlers:
    """All methods belong to the broker's loop."""

    def __init__(
        self,
        *,
        clients: Clients,
        groups: Groups,
        topics: Topics,
        locks: Locks,
        filters: Filters,
        config: BrokerConfig,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._locks = locks
        self._filters = filters
        self._refused: dict[str, None] = {}
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        self._notify_members = config.notify_consumer_ids_changed_enable
        self._subscriptions_max = config.max_subscriptions_per_group
        self._expression_length_max = config.max_filter_expression_length

    def routes(self) -> dict[int, Route]:
        return {
            RequestCode.HEART_BEAT: Route(
                self.heartbeat, CLIENT, Rule(Action.SUB, in_body=_subscribed), needs_connection=True
            ),
            RequestCode.UNREGISTER_CLIENT: Route(self.unregister, CLIENT, Rule(Action.SUB, group="consumerGroup")),
            RequestCode.CHECK_CLIENT_CONFIG: Route(self.check_config, CLIENT, Rule(Action.SUB, in_body=_checked)),
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: Route(
                self.members, CLIENT, Rule(Action.SUB, group="consumerGroup")
            ),
            RequestCode.LOCK_BATCH_MQ: Route(self.lock, CLIENT, Rule(Action.SUB, in_body=_locked)),
            RequestCode.UNLOCK_BATCH_MQ: Route(self.unlock, CLIENT, Rule(Action.SUB, in_body=_locked)),
        }

    # --- Members of groups (D3) --------------------------------------------------------------------------------

    def heartbeat(self, peer: Peer, request: Request[object]) -> Reply:
        """Note which clients are there. RocketMQ 5's short heartbeats are not offered, so clients send whole ones."""
        said = decode(request.body, Heartbeat)
        _check_client_id(said.client_id)
        language = request.language_name
        # Of each group that is served, what all its members say together.
        served: dict[str, Iterable[SubscriptionData]] = {}
        differences: list[str] = []
        refused: BrokerRefused | None = None
        for consumer in said.consumer_data_set:
            name = consumer.group_name
            try:
                group = self._groups.find(name)
                if group.retry_queue_nums > 0:
                    self._topics.ensure(names.retry_topic(name), queues=group.retry_queue_nums)
            except BrokerRefused as error:
                self._log_refusal(name, said.client_id, error)
                continue
            try:
                self._check_subscriptions(consumer)
                self._clients.add_consumer(consumer, peer, said.client_id, language=language, version=request.version)
            except InvalidParameter as error:
                refused = error
                continue
            if (known := self._clients.group_info(name)) is not None:
                served[name] = known.subscriptions.values()
                if known.difference:
                    differences.append(known.difference)
        self._filters.register(served)
        for producer in said.producer_data_set:
            self._clients.add_producer(
                producer.group_name, peer, said.client_id, language=language, version=request.version
            )
        if refused is not None:
            raise refused
        # RocketMQ's clients do not look at the remark of a success; ours log it.
        return Reply(remark="; ".join(differences) or None)

    def _check_subscriptions(self, consumer: ConsumerData) -> None:
        """Raise ``InvalidParameter`` for more than a group may subscribe to: it is kept while the group has members."""
        group, subscriptions = consumer.group_name, consumer.subscription_data_set
        known = self._clients.group_info(group)
        topics = known.subscriptions if known is not None else {}
        more = sum(said.topic not in topics for said in subscriptions)
        if more and len(topics) + more > self._subscriptions_max:
            raise InvalidParameter(
                f"the group {group} subscribes to {len(topics) + more} topics, more than the "
                f"{self._subscriptions_max} that maxSubscriptionsPerGroup allows; subscribe to fewer topics, or "
                "raise the limit on the broker"
            )
        total = 0
        for said in subscriptions:
            # Tags are parts of the expression, and codes are their hashes: there cannot be more of them.
            length = max(len(said.sub_string), sum(map(len, said.tags_set)), len(said.tags_set), len(said.code_set))
            total += length + len(said.topic)
            if length > self._expression_length_max:
                raise InvalidParameter(
                    f"the subscription of the group {group} to {said.topic[:_SHOWN_MAX]} has {length} "
                    f"characters, more than the {self._expression_length_max} that maxFilterExpressionLength "
                    "allows; shorten it, or raise the limit on the broker"
                )
        if total > SUBSCRIPTIONS_LENGTH_MAX:
            raise InvalidParameter(
                f"the subscriptions of the group {group} have {total} characters, more than the "
                f"{SUBSCRIPTIONS_LENGTH_MAX} that a broker keeps for a group; subscribe to fewer topics or tags"
            )

    def _log_refusal(self, group: str, client_id: str, error: BrokerRefused) -> None:
        if group not in self._refused:
            if len(self._refused) >= _REFUSED_MAX:
                del self._refused[next(iter(self._refused))]
            self._refused[group] = None
            log.warning(f"group {group[: names.SERVED_GROUP_LENGTH_MAX]!r} of {client_id} is not served: {error}")

    def unregister(self, peer: Peer, request: Request[UnregisterClient]) -> Reply:
        header = request.fields
        if header.producer_group:
            self._clients.remove_producer(header.producer_group, peer)
        if header.consumer_group:
            self._clients.remove_consumer(header.consumer_group, peer)
        return Reply()

    def members(self, _peer: Peer, request: Request[ConsumerGroup]) -> Reply:
        """Client ids of a group; the caller itself is among them, as its heartbeat came first."""
        group = request.fields.consumer_group
        client_ids = self._clients.consumer_ids(group)
        if not client_ids:
            raise SystemFailure(f"no consumer for this group, {group}")
        return Reply(body=encode(MemberList(consumer_id_list=client_ids)))

    def tell_members(self, group: str) -> None:
        """Let all members of a group rebalance now (``Clients.on_members``)."""
        config = self._groups.get(group)
        if not self._notify_members or (config is not None and not config.notify_consumer_ids_changed_enable):
            return
        header = ConsumerGroup(consumer_group=group)
        for peer in self._clients.peers_of(group):
            # A connection that is closing needs no telling; its end is the next change. One that does not read must not
            # keep the others from hearing of it.
            with contextlib.suppress(TernError):
                peer.call_oneway(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, header)

    def check_config(self, _peer: Peer, request: Request[object]) -> Reply:
        """Before a consumer with a filter starts: would this broker understand it (K2)?"""
        said = decode(request.body, ClientCheck).subscription_data
        self._filters.check(said.expression_type, said.sub_string)
        return Reply()

    # --- Locks of queues (F2) -----------------------------------------------------------------

    def lock(self, _peer: Peer, request: Request[object]) -> Reply:
        asked = _queue_locks(request)
        # Queues and groups that do not exist would fill the table.
        known = self._groups.get(asked.consumer_group) is not None
        queues = [queue.message_queue for queue in asked.queues if known and self._has(queue)]
        granted = self._locks.lock(asked.consumer_group, asked.client_id, queues)
        return Reply(body=encode(LockedQueues(queues=[Queue.of(queue) for queue in granted])))

    def _has(self, queue: Queue) -> bool:
        config = self._topics.get(queue.topic)
        return config is not None and 0 <= queue.queue_id < max(config.read_queue_nums, config.write_queue_nums)

    def unlock(self, _peer: Peer, request: Request[object]) -> Reply:
        asked = _queue_locks(request)
        queues = [queue.message_queue for queue in asked.queues]
        self._locks.unlock(asked.consumer_group, asked.client_id, queues)
        return Reply()


def _check_client_id(client_id: str) -> None:
    if len(client_id) > CLIENT_ID_LENGTH_MAX:
        raise InvalidParameter(
            f"the client id {client_id[:40]!r}… has {len(client_id)} characters; use at most {CLIENT_ID_LENGTH_MAX}"
        )


def _queue_locks(request: Request[object]) -> QueueLocks:
    asked = decode(request.body, QueueLocks)
    _check_client_id(asked.client_id)
    if len(asked.queues) > LOCKS_MAX:
        raise InvalidParameter(
            f"the group {asked.consumer_group} names {len(asked.queues)} queues in one request, more than the "
            f"{LOCKS_MAX} allowed; send several requests"
        )
    return asked


# --- What the bodies name (``net.gate``) ----------------------------------------------------------------------


def _subscribed(body: memoryview) -> Iterator[Resource]:
    """Of its consumers. Producers are checked with each send."""
    for consumer in decode(body, Heartbeat).consumer_data_set:
        yield Resource(ResourceKind.GROUP, consumer.group_name)
        for subscription in consumer.subscription_data_set:
            yield Resource(ResourceKind.TOPIC, subscription.topic)


def _checked(body: memoryview) -> list[Resource]:
    said = decode(body, ClientCheck)
    return [Resource(ResourceKind.GROUP, said.group), Resource(ResourceKind.TOPIC, said.subscription_data.topic)]


def _locked(body: memoryview) -> Iterator[Resource]:
    asked = decode(body, QueueLocks)
    yield Resource(ResourceKind.GROUP, asked.consumer_group)
    for queue in asked.queues:
        yield Resource(ResourceKind.TOPIC, queue.topic)
