"""Which member of a group reads which queues: the six strategies of RocketMQ (G2).

Each member computes its own share from the same two lists: the queues of a topic and the ids of the group's members.
There is no coordinator. The shares fit together only because all members sort both lists in the same way and run the
same strategy (G1). While members disagree about the membership for a moment, a queue may have two owners or none; the
next rebalance corrects it, and delivery stays "at least once".

Invariants, for each strategy but ``FixedQueues``: given equal lists, the shares of all members are disjoint, and
together they are all queues (``MachineRoom``: all queues of the wanted rooms). The result does not depend on the order
of the lists. A member that is not in the list (its heartbeat has not arrived yet) gets no queues.

This module is pure. A custom strategy is an object with ``name`` and ``allocate``.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from ternmq.errors import ConfigError
from ternmq.message import MessageQueue

#: RocketMQ's ``AllocateMessageQueueConsistentHash``: nodes on the ring for each member.
VIRTUAL_NODES: Final = 10

T = TypeVar("T")


class Allocation(Protocol):
    """A strategy. ``name`` is RocketMQ's name for it, the same for all members of a group."""

    @property
    def name(self) -> str: ...

    def allocate(
        self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
    ) -> list[MessageQueue]:
        """The queues of one topic that the member ``own_id`` reads, in order."""
        ...


@dataclass(slots=True, frozen=True)
class Averagely:
    """Adjacent queues go to one member; if the numbers do not divide, the first members get one more each.

    The default. Queues of one broker stay together, so that a member is connected to few brokers.
    """

    name: str = field(default="AVG", init=False)

    def allocate(
        self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
    ) -> list[MessageQueue]:
        members = _members(member_ids)
        if own_id not in members:
            return []
        ordered = sorted(set(queues))
        index = members.index(own_id)
        share, rest = divmod(len(ordered), len(members))
        start = index * share + min(index, rest)
        return ordered[start : start + share + (1 if index < rest else 0)]


@dataclass(slots=True, frozen=True)
class AveragelyByCircle:
    """Round-robin: the first queue goes to the first member, the second to the second, and so on.

    Distributes the queues of each broker over all members, so that no member depends on one broker.
    """

    name: str = field(default="AVG_BY_CIRCLE", init=False)

    def allocate(
        self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
    ) -> list[MessageQueue]:
        members = _members(member_ids)
        if own_id not in members:
            return []
        return sorted(set(queues))[members.index(own_id) :: len(members)]


@dataclass(slots=True, frozen=True)
class ConsistentHash:
    """Each member has several positions on a ring of hashes; a queue belongs to the next member on the ring.

    When a member joins or leaves, only the queues next to its positions move. Shares are less even than by average.
    """

    virtual_nodes: int = VIRTUAL_NODES
    name: str = field(default="CONSISTENT_HASH", init=False)

    def __post_init__(self) -> None:
        if self.virtual_nodes < 1:
            raise ConfigError(f"invalid virtual_nodes {self.virtual_nodes}: expected 1 or more")

    def allocate(
        self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
    ) -> list[MessageQueue]:
        members = _members(member_ids)
        if own_id not in members:
            return []
        ring: dict[int, str] = {}
        for member in members:
            for number in range(self.virtual_nodes):
                ring[ring_hash(f"{member}-{number}")] = member
        places = sorted(ring)

        def owner(queue: MessageQueue) -> str:
            at = bisect_left(places, ring_hash(java_text(queue)))
            return ring[places[at % len(places)]]

        return [queue for queue in sorted(set(queues)) if owner(queue) == own_id]


@dataclass(slots=True, frozen=True)
class FixedQueues:
    """The configured queues, independent of the other members (RocketMQ's "by config").

    The only strategy that may leave queues unread or read twice: the author of the lists is responsible for them.
    """

    queues: tuple[MessageQueue, ...]
    name: str = field(default="CONFIG", init=False)

    def allocate(
        self,
        own_id: str,  # noqa: ARG002 - the contract of all strategies
        queues: Collection[MessageQueue],
        member_ids: Collection[str],  # noqa: ARG002 - as above
    ) -> list[MessageQueue]:
        # Ignores configured queues of other topics, and those that do not exist (yet).
        return sorted(set(self.queues) & set(queues))


@dataclass(slots=True, frozen=True)
class MachineRoom:
    """Only queues of brokers in the given rooms, whose names are written ``room@broker``."""

    rooms: frozenset[str]
    name: str = field(default="MACHINE_ROOM", init=False)

    def allocate(
        self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
    ) -> list[MessageQueue]:
        members = _members(member_ids)
        if own_id not in members:
            return []
        near = [queue for queue in sorted(set(queues)) if self._room(queue) in self.rooms]
        index = members.index(own_id)
        share, rest = divmod(len(near), len(members))
        mine = near[index * share : (index + 1) * share]
        # Unlike AVG, the remainder is at the end of the list and goes one each to the first members.
        if index < rest:
            mine.append(near[share * len(members) + index])
        return mine

    @staticmethod
    def _room(queue: MessageQueue) -> str | None:
        room, at, broker = queue.broker_name.partition("@")
        # RocketMQ accepts names of exactly two parts.
        return room if at and broker and "@" not in broker else None


@dataclass(slots=True, frozen=True)
class MachineRoomNearby:
    """Queues are read in their own machine room; those of rooms without members are shared among all.

    ``room_of_broker`` and ``room_of_member`` return the room of a broker name and of a client id; ``inner`` divides
    within a room.
    """

    room_of_broker: Callable[[str], str]
    room_of_member: Callable[[str], str]
    inner: Allocation = field(default_factory=Averagely)

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self.inner.name}"

    def allocate(
        self, own_id: str, queues: Collection[MessageQueue], member_ids: Collection[str]
    ) -> list[MessageQueue]:
        members = _members(member_ids)
        if own_id not in members:
            return []
        own_room = self._room(own_id, self.room_of_member)
        members_by_room = _by_room(members, lambda member: self._room(member, self.room_of_member))
        queues_by_room = _by_room(set(queues), lambda queue: self._room(queue.broker_name, self.room_of_broker))
        mine: list[MessageQueue] = []
        for room, in_room in queues_by_room.items():
            if room == own_room:
                mine += self.inner.allocate(own_id, in_room, members_by_room[own_room])
            elif room not in members_by_room:
                mine += self.inner.allocate(own_id, in_room, members)
        return sorted(mine)

    @staticmethod
    def _room(who: str, resolve: Callable[[str], str]) -> str:
        room = resolve(who)
        if not room:
            raise ConfigError(
                f"the resolver returned no machine room for {who!r}; it must return a room for every name"
            )
        return room


def ring_hash(text: str) -> int:
    """The position of a text on the ring of ``ConsistentHash``: the first four bytes of its MD5."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def java_text(queue: MessageQueue) -> str:
    """A queue as Java prints it. The ring hashes this text, so it must be the same for all members."""
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _members(member_ids: Iterable[str]) -> Sequence[str]:
    # Java sorts strings by UTF-16 units; client ids are an address, a process id and ASCII, where code points agree.
    return sorted(set(member_ids))


def _by_room(items: Iterable[T], room_of: Callable[[T], str]) -> dict[str, list[T]]:
    rooms: dict[str, list[T]] = {}
    for item in items:
        rooms.setdefault(room_of(item), []).append(item)
    return rooms
