"""Which programs are connected, and as what (D3): producers and consumers by heartbeat.

A client is known by its connection. It stays known while it sends heartbeats (every 30 s) and is forgotten when it
unregisters, when its connection closes, or after 120 s of silence. A consumer group takes its type, model and
subscriptions from the latest heartbeat of any member: members are expected to agree, and a member that differs wins
until the next heartbeat of another.

When the members of a group or their topics change, all members are told (NOTIFY_CONSUMER_IDS_CHANGED) and rebalance at
once instead of within 20 s. Telling is the caller's part: ``on_members`` gets the group.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ternmq.env import Clock
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel, SubscriptionData
from ternmq.wire.header import Header, Response

#: RocketMQ's ``CHANNEL_EXPIRED_TIMEOUT``.
SILENCE_MAX_MS: Final = 120_000


class Connection(Protocol):
    """What is asked of a client's connection; a ``net.peer.Peer``."""

    address: str

    def call_oneway(self, code: int, header: Header | None = None, body: Buffer = b"") -> None: ...

    async def call(
        self, code: int, header: Header | None = None, body: Buffer = b"", *, timeout_ms: int = ...
    ) -> Response: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Member:
    """One client in one group."""

    peer: Connection
    client_id: str
    language: str
    version: int
    seen: float


@dataclass(slots=True)
class ConsumerGroup:
    """A group with at least one member, and what its members said of themselves."""

    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Connection, Member] = field(default_factory=dict)


class Clients:
    """All methods belong to the broker's loop."""

    def __init__(self, clock: Clock, *, silence_max_ms: int = SILENCE_MAX_MS) -> None:
        self._clock = clock
        self._silence_max_s = silence_max_ms / 1000
        self._producers: dict[str, dict[Connection, Member]] = {}
        #: The connection of each client that is a producer of any group: the one of its last heartbeat.
        self._producing: dict[str, Connection] = {}
        self._consumers: dict[str, ConsumerGroup] = {}
        #: Called with a group whose members or topics changed; set by the assembly.
        self.on_members: Callable[[str], None] = _tell_nobody
        #: Called with a consumer group whose last member has left.
        self.on_empty: Callable[[str], None] = _tell_nobody

    # --- What clients say --------------------------------------------------------------------------------------

    def add_producer(self, group: str, peer: Connection, client_id: str, *, language: str, version: int) -> None:
        """A heartbeat of a producer."""
        members = self._producers.setdefault(group, {})
        before = members.get(peer)
        if before is not None and before.client_id != client_id:
            self._producing.pop(before.client_id, None)
        self._see(members, peer, client_id, language, version)
        self._producing[client_id] = peer

    def add_consumer(
        self, data: ConsumerData, peer: Connection, client_id: str, *, language: str, version: int
    ) -> None:
        """A heartbeat of a consumer."""
        group = self._consumers.get(data.group_name)
        if group is None:
            group = ConsumerGroup(data.consume_type, data.message_model, data.consume_from_where)
            self._consumers[data.group_name] = group
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        joined = self._see(group.members, peer, client_id, language, version)
        topics_changed = _update_subscriptions(group.subscriptions, data.subscription_data_set)
        if joined or topics_changed:
            self.on_members(data.group_name)

    def remove_producer(self, group: str, peer: Connection) -> None:
        """An UNREGISTER_CLIENT of a producer."""
        members = self._producers.get(group, {})
        member = members.pop(peer, None)
        if member is None:
            return
        if not members:
            del self._producers[group]
        is_current = self._producing.get(member.client_id) is peer
        if is_current and not any(peer in others for others in self._producers.values()):
            del self._producing[member.client_id]

    def remove_consumer(self, group: str, peer: Connection) -> None:
        """An UNREGISTER_CLIENT of a consumer."""
        known = self._consumers.get(group)
        if known is None or known.members.pop(peer, None) is None:
            return
        if not known.members:
            del self._consumers[group]
            self.on_empty(group)
        else:
            self.on_members(group)

    def on_close(self, peer: Connection) -> None:
        """A connection closed: its client left all groups."""
        for group in [group for group, members in self._producers.items() if peer in members]:
            self.remove_producer(group, peer)
        for group in [group for group, known in self._consumers.items() if peer in known.members]:
            self.remove_consumer(group, peer)

    def scan(self) -> list[Connection]:
        """Forget clients that were silent too long; returns their connections, which the caller closes.

        A client that speaks for one of its groups only is alive, but has left the others.
        """
        late = self._clock.monotonic() - self._silence_max_s
        tables = [*self._producers.values(), *(group.members for group in self._consumers.values())]
        silent = {member.peer: None for members in tables for member in members.values() if member.seen < late}
        for peer in silent:
            for group, members in list(self._producers.items()):
                if peer in members and members[peer].seen < late:
                    self.remove_producer(group, peer)
            for group, known in list(self._consumers.items()):
                if peer in known.members and known.members[peer].seen < late:
                    self.remove_consumer(group, peer)
        return [peer for peer in silent if not self._is_known(peer)]

    # --- What the broker asks ----------------------------------------------------------------------------------

    def consumer_ids(self, group: str) -> list[str]:
        """Client ids of a group's members, sorted, each once."""
        known = self._consumers.get(group)
        return sorted({member.client_id for member in known.members.values()}) if known else []

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the group's heartbeats say about a topic."""
        known = self._consumers.get(group)
        return known.subscriptions.get(topic) if known else None

    def group_info(self, group: str) -> ConsumerGroup | None:
        """A consumer group with its members and subscriptions; None when nobody of it is connected."""
        return self._consumers.get(group)

    def find_consumer(self, group: str, client_id: str) -> Member | None:
        """A member of a consumer group by its client id."""
        known = self._consumers.get(group)
        members = known.members.values() if known else ()
        return next((member for member in members if member.client_id == client_id), None)

    def peers_of(self, group: str) -> list[Connection]:
        """Connections of a consumer group's members."""
        known = self._consumers.get(group)
        return list(known.members) if known else []

    def producer_peers(self, group: str) -> list[Connection]:
        """Connections of a producer group's members (check-backs of transactions, J2)."""
        return list(self._producers.get(group, {}))

    def producer_members(self, group: str) -> list[Member]:
        return list(self._producers.get(group, {}).values())

    def consumer_groups(self, topic: str | None = None) -> list[str]:
        """Groups with members, or those of them that subscribe to a topic."""
        return sorted(
            group for group, known in self._consumers.items() if topic is None or topic in known.subscriptions
        )

    def producer_groups(self) -> list[str]:
        return sorted(self._producers)

    def find_producer(self, client_id: str) -> Connection | None:
        """The connection of a producer by its client id (replies of request–reply, E7)."""
        return self._producing.get(client_id)

    # ------------------------------------------------------------------------------------------------------------

    def _see(
        self, members: dict[Connection, Member], peer: Connection, client_id: str, language: str, version: int
    ) -> bool:
        """Note a sign of life; True when the connection is new in the group."""
        known = members.get(peer)
        joined = known is None or known.client_id != client_id
        members[peer] = Member(peer, client_id, language, version, self._clock.monotonic())
        return joined

    def _is_known(self, peer: Connection) -> bool:
        return any(peer in members for members in self._producers.values()) or any(
            peer in known.members for known in self._consumers.values()
        )


def _update_subscriptions(known: dict[str, SubscriptionData], said: Iterable[SubscriptionData]) -> bool:
    """Take over a heartbeat's subscriptions; True when topics were added or dropped."""
    changed = False
    topics = set()
    for subscription in said:
        topics.add(subscription.topic)
        old = known.get(subscription.topic)
        if old is None:
            changed = True
        if old is None or subscription.sub_version >= old.sub_version:
            known[subscription.topic] = subscription
    for topic in known.keys() - topics:
        del known[topic]
        changed = True
    return changed


def _tell_nobody(group: str) -> None:
    """Before the assembly sets ``on_members`` and ``on_empty``."""
