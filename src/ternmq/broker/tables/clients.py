"""Which programs are connected, and as what (D3): producers and consumers by heartbeat.

A client is known by its connection. It stays known while it sends heartbeats (every 30 s) and is forgotten when it
unregisters, when its connection closes, or after 120 s of silence.

The members of a consumer group are expected to subscribe alike. What each of them says is kept for itself, so a
heartbeat that repeats what its member said before changes nothing, whatever other members say. The group as a whole has

- the topics of all its members together;
- for each topic the subscription with the highest version, which is that of the member that subscribed last; pulls that
  bring no filter of their own are filtered by it, and tools show it;
- type and model of the member that joined, or changed what it says, last.

Members that differ are named in a warning, once until they agree again: each would miss messages that are filtered, or
whose queues are allocated, by what another says.

When the members of a group or the topics of one of them change, all members are told (NOTIFY_CONSUMER_IDS_CHANGED) and
rebalance at once instead of within 20 s. Telling is the caller's part: ``on_members`` gets the group.
"""

from __future__ import annotations

import logging
from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

from ternmq import names
from ternmq.env import Clock
from ternmq.errors import InvalidParameter
from ternmq.net.gate import Rights, may_send
from ternmq.types import Buffer
from ternmq.wire.bodies.clients import ConsumeFromWhere, ConsumerData, ConsumeType, MessageModel, SubscriptionData
from ternmq.wire.header import Header, Response

log = logging.getLogger(__name__)

#: RocketMQ's ``CHANNEL_EXPIRED_TIMEOUT``.
SILENCE_MAX_MS: Final = 120_000
#: Producer groups that one connection may name, against clients that invent names. Consumer groups have a table of
#: their own with a bound.
PRODUCER_GROUPS_MAX: Final = 10_000
#: Memory that the subscriptions of all consumers may take, and the part of it that those of one connection may.
SAID_BYTES_MAX: Final = 256 << 20
_CONNECTION_PART: Final = 16
#: About what a subscription and a tag take beside their texts.
_SUBSCRIPTION_BYTES: Final = 512
_TAG_BYTES: Final = 128
#: Topics, and characters of an expression, that a warning about differing members shows.
_TOPICS_SHOWN: Final = 3
_EXPRESSION_SHOWN: Final = 80


class HasAccess(Protocol):
    @property
    def access(self) -> Rights | None: ...


class Connection(Protocol):
    """What is asked of a client's connection; a ``net.peer.Peer``."""

    address: str

    @property
    def access(self) -> Rights | None: ...

    @property
    def proved(self) -> str:
        """The access key of its account; empty without one."""
        ...

    @property
    def is_full(self) -> bool: ...

    def call_oneway(self, code: int, header: Header | None = None, body: Buffer = b"") -> None: ...

    async def call(
        self, code: int, header: Header | None = None, body: Buffer = b"", *, timeout_ms: int = ...
    ) -> Response: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class GroupMember:
    """One client in one group."""

    peer: Connection
    client_id: str
    language: str
    version: int
    seen: float


#: Model, and of each topic the kind of expression with its tags or text.
Agreement = tuple[MessageModel, frozenset[tuple[str, tuple[str, frozenset[str] | str]]]]


@dataclass(slots=True)
class ConsumerMember(GroupMember):
    """One client in one consumer group, and what its last heartbeat said of that group."""

    said: ConsumerData
    subscriptions: dict[str, SubscriptionData] = field(init=False)
    #: Equal for members that get along with each other.
    agreement: Agreement = field(init=False)
    #: Counts the members of a group in the order in which they joined.
    number: int = field(init=False, default=0)
    #: About what it takes of the memory.
    said_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.subscriptions = {one.topic: one for one in self.said.subscription_data_set}
        wanted = {
            topic: (one.expression_type, frozenset(one.tags_set) if one.tags_set else one.sub_string)
            for topic, one in self.subscriptions.items()
            # Not every client names its retry topic.
            if not topic.startswith(names.RETRY_PREFIX)
        }
        self.agreement = (self.said.message_model, frozenset(wanted.items()))
        self.said_bytes = sum(
            len(one.topic) + len(one.sub_string) + sum(map(len, one.tags_set)) + _TAG_BYTES * len(one.code_set)
            for one in self.said.subscription_data_set
        ) + _SUBSCRIPTION_BYTES * (1 + len(self.said.subscription_data_set))


@dataclass(slots=True)
class ActiveGroup:
    """A group with at least one member, and what its members said of themselves.

    A member that comes, leaves or says something else costs what it says itself, however many others there are.
    """

    consume_type: ConsumeType
    message_model: MessageModel
    consume_from_where: ConsumeFromWhere
    #: Topic → the newest subscription of all members.
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    members: dict[Connection, ConsumerMember] = field(default_factory=dict)
    #: Which members subscribe differently, as a sentence; empty while all agree.
    difference: str = ""
    #: Topic → the members that subscribe to it, the newest subscription last.
    _by_topic: dict[str, list[ConsumerMember]] = field(default_factory=dict)
    #: What members agree on, and how many of them do. Members that agree share one object.
    _agreements: dict[Agreement, tuple[Agreement, int]] = field(default_factory=dict)
    _joined: int = 0

    def add(self, member: ConsumerMember) -> None:
        """A member came, or says something else."""
        before = self.members.get(member.peer)
        if before is None:
            self._joined += 1
            member.number = self._joined
        else:
            self._take_out(before)
            member.number = before.number
        self.members[member.peer] = member
        shared, count = self._agreements.get(member.agreement, (member.agreement, 0))
        member.agreement = shared
        self._agreements[shared] = shared, count + 1
        for topic in member.subscriptions:
            order = self._by_topic.setdefault(topic, [])
            insort(order, member, key=_age(topic))
            self.subscriptions[topic] = order[-1].subscriptions[topic]

    def remove(self, peer: Connection) -> ConsumerMember | None:
        """A member left; returns it, if it was one."""
        member = self.members.pop(peer, None)
        if member is not None:
            self._take_out(member)
        return member

    def _take_out(self, member: ConsumerMember) -> None:
        shared, count = self._agreements.pop(member.agreement)
        if count > 1:
            self._agreements[shared] = shared, count - 1
        for topic in member.subscriptions:
            order, age = self._by_topic[topic], _age(topic)
            del order[bisect_left(order, age(member), key=age)]
            if order:
                self.subscriptions[topic] = order[-1].subscriptions[topic]
            else:
                del self._by_topic[topic], self.subscriptions[topic]

    def differing(self) -> tuple[ConsumerMember, ConsumerMember] | None:
        """Two members that differ, if there are some."""
        if len(self._agreements) < 2:
            return None
        first, *others = self.members.values()
        return next((first, other) for other in others if other.agreement is not first.agreement)


def _age(topic: str) -> Callable[[ConsumerMember], tuple[int, int]]:
    """What the members that subscribe to a topic are sorted by. Of equal versions the first one counts."""
    return lambda member: (member.subscriptions[topic].sub_version, -member.number)


class Clients:
    """All methods belong to the broker's loop."""

    def __init__(
        self, clock: Clock, *, silence_max_ms: int = SILENCE_MAX_MS, said_bytes_max: int = SAID_BYTES_MAX
    ) -> None:
        self._clock = clock
        self.apply(silence_max_ms=silence_max_ms, said_bytes_max=said_bytes_max)
        #: About what the subscriptions of all consumers take of the memory, and of each connection.
        self._said_bytes = 0
        self._said_bytes_of: dict[Connection, int] = {}
        self._producers: dict[str, dict[Connection, GroupMember]] = {}
        #: The connection of each client that is a producer of any group: the one of its last heartbeat.
        self._producing: dict[str, Connection] = {}
        #: In how many groups it is by that name: a connection may give another one for each of its groups.
        self._producing_groups: dict[tuple[Connection, str], int] = {}
        self._consumers: dict[str, ActiveGroup] = {}
        #: The groups of each connection.
        self._producer_groups: dict[Connection, dict[str, None]] = {}
        self._consumer_groups: dict[Connection, dict[str, None]] = {}
        #: Called with a group whose members or topics changed; set by the assembly.
        self.on_members: Callable[[str], None] = _ignore
        #: Called with a consumer group whose last member has left.
        self.on_empty: Callable[[str], None] = _ignore

    # --- What clients say --------------------------------------------------------------------------------------

    def apply(self, *, silence_max_ms: int, said_bytes_max: int) -> None:
        """Set after which silence a client is forgotten, and the memory for subscriptions."""
        self._silence_max_s = silence_max_ms / 1000
        self._said_bytes_max = said_bytes_max

    def add_producer(self, group: str, peer: Connection, client_id: str, *, language: str, version: int) -> None:
        """A heartbeat of a producer. Raises ``InvalidParameter`` when its connection names too many groups."""
        if len(group) > names.DERIVED_TOPIC_LENGTH_MAX:
            raise InvalidParameter(
                f"the producer group {group[:40]!r}… has {len(group)} characters; use at most "
                f"{names.DERIVED_TOPIC_LENGTH_MAX}"
            )
        groups = self._producer_groups.get(peer, {})
        if len(groups) >= PRODUCER_GROUPS_MAX and group not in groups:
            raise InvalidParameter(
                f"the connection of {peer.address} already has {PRODUCER_GROUPS_MAX} producer groups, the "
                f"maximum, and cannot add {group}; use the same group for all producers of a program"
            )
        members = self._producers.setdefault(group, {})
        before = members.get(peer)
        if before is None or before.client_id != client_id:
            if before is not None:
                self._forget_producing(peer, before.client_id)
            self._producing_groups[peer, client_id] = self._producing_groups.get((peer, client_id), 0) + 1
        members[peer] = GroupMember(peer, client_id, language, version, self._clock.monotonic())
        self._producer_groups.setdefault(peer, {})[group] = None
        known = self._producing.get(client_id)
        if known is None or known.proved == peer.proved:
            # A client id is no secret: another account must not get the replies to this client.
            self._producing[client_id] = peer

    def add_consumer(
        self, data: ConsumerData, peer: Connection, client_id: str, *, language: str, version: int
    ) -> None:
        """A heartbeat of a consumer. Raises ``InvalidParameter`` when its connection, or all, say too much."""
        name, now = data.group_name, self._clock.monotonic()
        group = self._consumers.get(name)
        before = group.members.get(peer) if group is not None else None
        if before is not None and before.client_id == client_id and before.said == data:
            before.seen = now
            return
        member = ConsumerMember(peer, client_id, language, version, now, data)
        self._count_said(peer, member.said_bytes - (before.said_bytes if before is not None else 0), name)
        if group is None:
            group = ActiveGroup(data.consume_type, data.message_model, data.consume_from_where)
            self._consumers[name] = group
        group.add(member)
        self._consumer_groups.setdefault(peer, {})[name] = None
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        self._update(name, group)
        joined = before is None or before.client_id != client_id
        if joined or (before is not None and before.subscriptions.keys() != member.subscriptions.keys()):
            self.on_members(name)

    def remove_producer(self, group: str, peer: Connection) -> None:
        """An UNREGISTER_CLIENT of a producer."""
        members = self._producers.get(group, {})
        member = members.pop(peer, None)
        if member is None:
            return
        if not members:
            del self._producers[group]
        _discard(self._producer_groups, peer, group)
        self._forget_producing(peer, member.client_id)

    def remove_consumer(self, group: str, peer: Connection) -> None:
        """An UNREGISTER_CLIENT of a consumer."""
        known = self._consumers.get(group)
        member = known.remove(peer) if known is not None else None
        if known is None or member is None:
            return
        self._count_said(peer, -member.said_bytes, group)
        _discard(self._consumer_groups, peer, group)
        if not known.members:
            del self._consumers[group]
            self.on_empty(group)
        else:
            self._update(group, known)
            self.on_members(group)

    def on_close(self, peer: Connection) -> None:
        """A connection closed: its client left all groups."""
        for group in list(self._producer_groups.get(peer, ())):
            self.remove_producer(group, peer)
        for group in list(self._consumer_groups.get(peer, ())):
            self.remove_consumer(group, peer)

    def scan(self) -> list[Connection]:
        """Forget clients that were silent too long; returns their connections, which the caller closes.

        A client that speaks for one of its groups only is alive, but has left the others.
        """
        late = self._clock.monotonic() - self._silence_max_s
        silent: dict[Connection, None] = {}
        for group, members in list(self._producers.items()):
            for peer in [peer for peer, member in members.items() if member.seen < late]:
                silent[peer] = None
                self.remove_producer(group, peer)
        for group, known in list(self._consumers.items()):
            for peer in [peer for peer, member in known.members.items() if member.seen < late]:
                silent[peer] = None
                self.remove_consumer(group, peer)
        return [peer for peer in silent if peer not in self._producer_groups and peer not in self._consumer_groups]

    # --- What the broker asks ----------------------------------------------------------------------------------

    def consumer_ids(self, group: str) -> list[str]:
        """Client ids of a group's members, sorted, each once."""
        known = self._consumers.get(group)
        return sorted({member.client_id for member in known.members.values()}) if known else []

    def subscription(self, group: str, topic: str) -> SubscriptionData | None:
        """What the group's heartbeats say about a topic: the newest subscription of all members."""
        known = self._consumers.get(group)
        return known.subscriptions.get(topic) if known else None

    def group_info(self, group: str) -> ActiveGroup | None:
        """A consumer group with its members and subscriptions; None when none of them is connected."""
        return self._consumers.get(group)

    def find_consumer(self, group: str, client_id: str) -> GroupMember | None:
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

    def may_have(self, peer: HasAccess, topic: str) -> bool:
        """Whether a producer may see messages that go to a topic: its account may send them."""
        return may_send(peer.access, topic)

    def producer_members(self, group: str) -> list[GroupMember]:
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

    def _count_said(self, peer: Connection, more_bytes: int, group: str) -> None:
        of_peer = self._said_bytes_of.get(peer, 0) + more_bytes
        if more_bytes > 0 and of_peer > self._said_bytes_max // _CONNECTION_PART:
            raise InvalidParameter(
                f"the subscriptions of the groups of {peer.address} need {of_peer} bytes with those of {group}, "
                f"more than the {self._said_bytes_max // _CONNECTION_PART} allowed for a connection; subscribe "
                "to fewer topics or tags, or raise maxSubscriptionBytes on the broker"
            )
        if more_bytes > 0 and self._said_bytes + more_bytes > self._said_bytes_max:
            raise InvalidParameter(
                f"the subscriptions of all consumers need {self._said_bytes} bytes, and with those of {group} "
                f"more than the {self._said_bytes_max} that maxSubscriptionBytes allows; raise it on the broker, "
                "or subscribe to fewer topics or tags"
            )
        self._said_bytes += more_bytes
        if of_peer:
            self._said_bytes_of[peer] = of_peer
        else:
            self._said_bytes_of.pop(peer, None)

    def _forget_producing(self, peer: Connection, client_id: str) -> None:
        """A client has left a producer group."""
        groups = self._producing_groups.pop((peer, client_id)) - 1
        if groups:
            self._producing_groups[peer, client_id] = groups
        elif self._producing.get(client_id) is peer:
            del self._producing[client_id]

    def _update(self, name: str, group: ActiveGroup) -> None:
        """A member came, left or said something else."""
        differing = group.differing()
        if differing is None:
            group.difference = ""
        elif not group.difference:
            one, other = differing
            group.difference = (
                f"the members of group {name} have different subscriptions: {_named(one, other)}, but "
                f"{_named(other, one)}; each can miss messages. Give all members of a group the same "
                "subscriptions, or use different groups"
            )
            log.warning(group.difference)


def _named(member: ConsumerMember, other: ConsumerMember) -> str:
    """A member, and what it says that another does not."""
    model, pairs = member.agreement
    other_model, other_pairs = other.agreement
    wanted, other_wanted = dict(pairs), dict(other_pairs)
    differing = [topic for topic in sorted({*wanted, *other_wanted}) if wanted.get(topic) != other_wanted.get(topic)]
    said = [f"consumes by {model.value}"] if model is not other_model else []
    said += [
        f"subscribes to {topic} with {one.expression_type} {one.sub_string[:_EXPRESSION_SHOWN]!r}"
        if (one := member.subscriptions.get(topic)) is not None
        else f"does not subscribe to {topic}"
        for topic in differing[:_TOPICS_SHOWN]
    ]
    return f"{member.client_id} ({member.peer.address}) {', '.join(said)}"


def _discard(groups: dict[Connection, dict[str, None]], peer: Connection, group: str) -> None:
    of_peer = groups.get(peer)
    if of_peer is not None:
        of_peer.pop(group, None)
        if not of_peer:
            del groups[peer]


def _ignore(group: str) -> None:
    """Before the assembly sets ``on_members`` and ``on_empty``."""
