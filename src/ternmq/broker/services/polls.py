"""Polls: requests that found nothing and wait for a message instead of being answered (F8, F9).

One table for four kinds. A *pull* waits for the next message of one queue; each pull has its own offset and wants
every message from there on, so an arrival wakes all that it concerns. *Pops* of a group compete: one of them takes the
message away from the others. So an arrival wakes one pop of each group, the one that waits longest, and no other until
that one has looked; if it leaves something over, the next is woken. *Notices* (notifications) wait as pops do, and have
bounds of their own. So do *shared pulls*; one of them may also be woken by the name of its consumer, if there is
something for this consumer alone.

Polls that compete share a *place*: the same kind, group, topic, and queue or all queues. A pop listens to several
topics, as unacknowledged messages come back in its retry topics. The table is keyed by topic and then by queue::

    topic ─▶ queue id ─▶ places that wait for this queue
         └─▶ all      ─▶ places that wait for any queue

A record whose topic has no poll costs one lookup (``arrived``); one whose topic has, two more.

A poll is woken by an arrival, by a tool that moves its group (D4), by the end of its time, or by the end of the term
(``answer_all``). Arrivals come in the midst of a send, so a woken poll is only noted. At the end of the turn of the
loop, when all that was read is stored, its ``Waiter`` is told to resume, which puts it back on its lane by its group
and topic: a consumer gets the burst in one reply, and the lanes' fairness covers polls as well. SQL filters are asked
about an arrival up to ``filters.ARRIVAL_TERMS_MAX``; the polls beyond that are woken unasked, and look again.

Every 5 s all pulls are compared with their queues, whatever their filters: messages that a filter refuses move the
consumer's position only this way, and a lost wake-up would cost 5 s instead of a message.

Bounds: so many pulls (``maxSuspendedPulls``), so many pops and as many notices (``maxPopPollingSize``), of one place
(``popPollingSize``), and so many bytes of the requests of each kind (``maxQueuedRequestBytes``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final, Protocol

from ternmq.broker.config import BrokerConfig
from ternmq.broker.tables.filters import ARRIVAL_TERMS_MAX, Wanted
from ternmq.errors import SystemBusy, TernError
from ternmq.wire.handles import ALL_QUEUES

#: Pulls are compared with their queues this often (RocketMQ's ``PullRequestHoldService``).
SCAN_S: Final = 5.0
#: Polls that are put back on their lanes in one turn of the loop; each takes about 1 µs.
RESUME_MAX: Final = 1_000
#: So few are put back at once where work has piled up.
RESUME_FEW: Final = 32


class PollKind(Enum):
    #: That of ``Enum`` is Python, and half a dozen are needed for each poll.
    __hash__ = object.__hash__

    PULL = "pull"
    POP = "pop"
    NOTICE = "notice"
    SHARE = "share"


#: What ends with the term of a master. A slave may serve pulls.
OF_MASTER: Final = (PollKind.POP, PollKind.NOTICE, PollKind.SHARE)


class Waiter(Protocol):
    """What waits. One of the first two is called, once; none may raise."""

    def resume(self, *, is_alone: bool = False) -> None:
        """Look again, soon: go back to the lane; or at once if no other is woken (``is_alone``) and nothing waits."""
        ...

    def give_up(self, error: TernError) -> None:
        """Answer with an error, soon: go back to the lane."""
        ...

    def flush(self) -> None:
        """Write the answer now, if there is one, not when the turn of the loop ends."""
        ...


class Poll:
    """One request that waits for a record that passes ``wanted``."""

    __slots__ = ("deadline", "group", "member", "owner", "place", "queue_offset", "size", "timer", "waiter", "wanted")

    def __init__(
        self,
        waiter: Waiter,
        owner: object,
        place: _Place,
        *,
        group: str,
        wanted: Wanted,
        deadline: float,
        size: int,
        queue_offset: int = -1,
        member: str = "",
    ) -> None:
        self.waiter = waiter
        #: The connection, or another object whose end ends the poll (``Polls.drop``).
        self.owner = owner
        self.place = place
        self.group = group
        self.wanted = wanted
        self.deadline = deadline
        #: Of the request, which is kept as it came.
        self.size = size
        #: Of a pull: the message that it wants.
        self.queue_offset = queue_offset
        #: Of a shared pull: the name of its consumer.
        self.member = member
        self.timer: asyncio.TimerHandle | None = None

    @property
    def topic(self) -> str:
        """The topic that the request named."""
        return self.place.key[2]


#: Kind, group (empty for pulls, which do not compete), topic, and queue id or ``ALL_QUEUES``.
_PlaceKey = tuple[PollKind, str, str, int]


class _Place:
    """Polls that wait for the same messages, longest first."""

    __slots__ = ("by_member", "key", "number", "polls", "topics", "woken")

    def __init__(self, key: _PlaceKey, topics: Sequence[str], number: int) -> None:
        self.key = key
        self.topics = topics
        #: In the order of their making: all are woken in this order, the same in each run.
        self.number = number
        self.polls: dict[Poll, None] = {}
        #: The newest one of each consumer that has a name.
        self.by_member: dict[str, Poll] = {}
        #: The poll that was woken and has not looked yet. Pulls do not compete and need none.
        self.woken: Poll | None = None


class _Topic:
    """Places that listen to a topic: to one of its queues, or to all."""

    __slots__ = ("all", "queues")

    def __init__(self) -> None:
        self.all: dict[_Place, None] = {}
        self.queues: dict[int, dict[_Place, None]] = {}


@dataclass(slots=True)
class _Bounds:
    """How many polls of one kind may wait, and how many do."""

    capacity: int = 0
    place_capacity: int = 0
    bytes_max: int = 0
    count: int = 0
    bytes: int = 0


class Polls:
    """All methods belong to the broker's loop.

    ``max_offset`` tells where a queue ends. ``run_lanes`` is called when polls have gone back to their lanes.
    """

    def __init__(
        self, config: BrokerConfig, *, max_offset: Callable[[str, int], int], run_lanes: Callable[[], None]
    ) -> None:
        self._max_offset = max_offset
        self._run_lanes = run_lanes
        self._loop = asyncio.get_running_loop()
        self._topics: dict[str, _Topic] = {}
        self._places: dict[_PlaceKey, _Place] = {}
        # Insertion-ordered tables, not sets: the poll that waits longest is first, and in the same order every time.
        self._by_owner: dict[object, dict[Poll, None]] = {}
        self._woken: list[tuple[Poll, TernError | None]] = []
        self._place_number = 0
        self._bounds = {kind: _Bounds() for kind in PollKind}
        #: Why what is here may not be told now: this broker may not be the master any more, and not know (P4).
        self.refusal: Callable[[], TernError | None] = _none
        self.apply(config)

    def apply(self, config: BrokerConfig) -> None:
        """Set the bounds; polls that wait stay."""
        for kind, bounds in self._bounds.items():
            is_pull = kind is PollKind.PULL
            bounds.capacity = config.max_suspended_pulls if is_pull else config.max_pop_polling_size
            bounds.place_capacity = bounds.capacity if is_pull else config.pop_polling_size
            bounds.bytes_max = config.max_queued_request_bytes

    # --- Parking --------------------------------------------------------------------------------------------------

    def waiting(self, kind: PollKind) -> int:
        """How many polls of a kind wait."""
        return self._bounds[kind].count

    def waiting_at(self, kind: PollKind, group: str, topic: str, queue_id: int) -> int:
        """How many pops or notices wait for the same messages."""
        place = self._places.get((kind, group, topic, queue_id))
        return len(place.polls) if place is not None else 0

    def deadline(self, timeout_ms: int) -> float:
        """The moment in so many milliseconds, on the clock of the deadlines."""
        return self._loop.time() + timeout_ms / 1000

    def park_pull(
        self,
        waiter: Waiter,
        owner: object,
        *,
        group: str,
        topic: str,
        queue_id: int,
        queue_offset: int,
        wanted: Wanted,
        timeout_ms: int,
        size: int,
    ) -> Poll:
        """Let a pull wait for the message at ``queue_offset``. Raises ``SystemBusy`` when too many wait."""
        bounds = self._bounds[PollKind.PULL]
        if bounds.count >= bounds.capacity:
            raise SystemBusy(
                f"[OVERLOAD]system busy: {bounds.count} pulls are already waiting on this broker; retry later, or "
                "raise maxSuspendedPulls"
            )
        if bounds.bytes + size > bounds.bytes_max:
            raise SystemBusy(
                f"[OVERLOAD]system busy: pulls of {bounds.bytes} bytes are already waiting on this broker; retry "
                "later, or raise maxQueuedRequestBytes"
            )
        place = self._place((PollKind.PULL, "", topic, queue_id), (topic,))
        deadline = self.deadline(timeout_ms)
        poll = Poll(
            waiter,
            owner,
            place,
            group=group,
            wanted=wanted,
            deadline=deadline,
            size=size,
            queue_offset=queue_offset,
        )
        self._park(poll, bounds)
        return poll

    def park(
        self,
        kind: PollKind,
        waiter: Waiter,
        owner: object,
        *,
        group: str,
        topics: Sequence[str],
        queue_id: int,
        wanted: Wanted,
        deadline: float,
        size: int,
        member: str = "",
    ) -> Poll | None:
        """Let a pop or a notice wait until something arrives in one of ``topics``; None if too many wait.

        ``queue_id`` belongs to the first of the topics; of the others, all queues count. ``member``: the name of the
        consumer, for ``wake_member``.
        """
        bounds = self._bounds[kind]
        key = kind, group, topics[0], queue_id
        place = self._places.get(key)
        if (
            bounds.count >= bounds.capacity
            or (place is not None and len(place.polls) >= bounds.place_capacity)
            or bounds.bytes + size > bounds.bytes_max
        ):
            return None
        poll = Poll(
            waiter,
            owner,
            self._place(key, topics),
            group=group,
            wanted=wanted,
            deadline=deadline,
            size=size,
            member=member,
        )
        self._park(poll, bounds)
        return poll

    def _place(self, key: _PlaceKey, topics: Sequence[str]) -> _Place:
        place = self._places.get(key)
        if place is None:
            self._place_number += 1
            place = self._places[key] = _Place(key, topics, self._place_number)
            for name in topics:
                topic = self._topics.get(name)
                if topic is None:
                    topic = self._topics[name] = _Topic()
                queue_id = _listened_queue(place, name)
                if queue_id == ALL_QUEUES:
                    topic.all[place] = None
                else:
                    topic.queues.setdefault(queue_id, {})[place] = None
        return place

    def _park(self, poll: Poll, bounds: _Bounds) -> None:
        poll.timer = self._loop.call_at(poll.deadline, self._expire, poll)
        poll.place.polls[poll] = None
        if poll.member:
            poll.place.by_member[poll.member] = poll
        self._by_owner.setdefault(poll.owner, {})[poll] = None
        bounds.count += 1
        bounds.bytes += poll.size

    # --- Waking ---------------------------------------------------------------------------------------------------

    @property
    def topics(self) -> Container[str]:
        """Those for which polls wait, at any time: ``arrived`` need not be called for others."""
        return self._topics

    def arrived(self, topic: str, queue_id: int, end_offset: int, tags_code: int, properties: str | None) -> None:
        """A record has become visible: its queue now ends at ``end_offset``. Hot: called for each record.

        Without ``properties`` there are several, and polls with an SQL filter are woken to look for themselves.
        """
        listening = self._topics.get(topic)
        if listening is None:
            return
        terms = 0
        for place in _places(listening, queue_id):
            if place.woken is not None:
                continue
            competes = place.key[0] is not PollKind.PULL
            for poll in list(place.polls):
                if end_offset <= poll.queue_offset:
                    continue
                wanted = poll.wanted
                terms += wanted.terms
                if wanted.lets_pass(tags_code, properties if terms <= ARRIVAL_TERMS_MAX else None):
                    self._wake(poll)
                    if competes:
                        break

    def moved(self, group: str, topic: str, queue_id: int) -> None:
        """A group was moved in a queue: its members shall know now, not when the next message comes."""
        place = self._places.get((PollKind.PULL, "", topic, queue_id))
        for poll in list(place.polls) if place is not None else ():
            if poll.group == group:
                self._wake(poll)
        for kind in OF_MASTER:
            self.wake(kind, group, topic, queue_id)

    def wake(self, kind: PollKind, group: str, topic: str, queue_id: int) -> None:
        """There is something for a group in a queue, or in ``ALL_QUEUES``: let the one that waits longest look."""
        for place_queue_id in {queue_id, ALL_QUEUES}:
            place = self._places.get((kind, group, topic, place_queue_id))
            if place is not None and place.woken is None:
                self._wake(next(iter(place.polls)))

    def wake_member(self, group: str, topic: str, member: str) -> None:
        """There is something for one consumer of a group that shares a topic. Others are woken or not as before."""
        place = self._places.get((PollKind.SHARE, group, topic, ALL_QUEUES))
        poll = place.by_member.get(member) if place is not None else None
        if poll is not None:
            self._remove(poll)
            self._note(poll, None)

    def topic_deleted(self, topic: str) -> None:
        """Have all that wait for a topic look again, which tells them that it is gone."""
        for key, place in list(self._places.items()):
            if key[2] == topic:
                place.woken = None
                for poll in list(place.polls):
                    self._remove(poll)
                    self._note(poll, None)

    def scan(self) -> None:
        """Wake every pull whose queue has grown past it."""
        for (kind, _, topic, queue_id), place in list(self._places.items()):
            if kind is PollKind.PULL:
                end_offset = self._max_offset(topic, queue_id)
                for poll in list(place.polls):
                    if end_offset > poll.queue_offset:
                        self._wake(poll)

    def looked(self, poll: Poll) -> None:
        """A poll that was woken looks now: from here on an arrival wakes the next one."""
        if poll.place.woken is poll:
            poll.place.woken = None

    def pass_on(self, poll: Poll) -> None:
        """A poll that was woken cannot look: its connection is closed, or its lane full. Let the next one look."""
        if poll.place.woken is poll:
            poll.place.woken = None
            kind, group, topic, queue_id = poll.place.key
            self.wake(kind, group, topic, queue_id)

    # --- Ends -----------------------------------------------------------------------------------------------------

    def drop(self, owner: object) -> None:
        """A connection closed: its requests need no answer."""
        for poll in list(self._by_owner.get(owner, ())):
            self._remove(poll)

    def answer_all(self, reason: TernError, kinds: Collection[PollKind] = OF_MASTER) -> None:
        """Give up all polls of these kinds. They leave the table now, and are answered by their lanes, in slices."""
        for place in list(self._places.values()):
            if place.key[0] in kinds:
                place.woken = None
                for poll in list(place.polls):
                    self._remove(poll)
                    self._note(poll, reason)

    def close(self) -> None:
        """Forget all; their clients ask again elsewhere."""
        for owner in list(self._by_owner):
            self.drop(owner)
        self._woken.clear()

    def _expire(self, poll: Poll) -> None:
        self._remove(poll)
        self._note(poll, None)

    def _wake(self, poll: Poll) -> None:
        place = poll.place
        if place.key[0] is not PollKind.PULL:
            place.woken = poll
        self._remove(poll)
        self._note(poll, None)

    def _note(self, poll: Poll, error: TernError | None) -> None:
        if not self._woken:
            self._loop.call_soon(self._resume)
        self._woken.append((poll, error))

    def resume_few(self) -> None:
        """Do now what the next turn of the loop would, if it is little: other requests are piled up, or all are done
        (``net.lanes``)."""
        if 0 < len(self._woken) <= RESUME_FEW:
            self._resume()

    def _resume(self) -> None:
        woken = self._woken
        if not woken:
            return
        now, self._woken = (woken, []) if len(woken) <= RESUME_MAX else (woken[:RESUME_MAX], woken[RESUME_MAX:])
        if self._woken:
            self._loop.call_soon(self._resume)
        is_alone = len(now) == 1
        for poll, error in now:
            if error is None:
                poll.waiter.resume(is_alone=is_alone)
            else:
                poll.waiter.give_up(error)
        self._run_lanes()
        if len(now) <= RESUME_FEW:
            # They have waited for this message. The replies to those who have sent it would be written first, as they
            # were there first, and each write takes as long as all that a woken poll does.
            for poll, _ in now:
                poll.waiter.flush()

    def _remove(self, poll: Poll) -> None:
        if poll.timer is not None:
            poll.timer.cancel()
        place = poll.place
        bounds = self._bounds[place.key[0]]
        bounds.count -= 1
        bounds.bytes -= poll.size
        del place.polls[poll]
        if place.by_member.get(poll.member) is poll:
            del place.by_member[poll.member]
        if not place.polls:
            self._forget(place)
        polls = self._by_owner[poll.owner]
        del polls[poll]
        if not polls:
            del self._by_owner[poll.owner]

    def _forget(self, place: _Place) -> None:
        del self._places[place.key]
        for name in place.topics:
            topic = self._topics[name]
            queue_id = _listened_queue(place, name)
            if queue_id == ALL_QUEUES:
                del topic.all[place]
            else:
                places = topic.queues[queue_id]
                del places[place]
                if not places:
                    del topic.queues[queue_id]
            if not topic.all and not topic.queues:
                del self._topics[name]


def _listened_queue(place: _Place, topic: str) -> int:
    """The queue of a topic that a place waits for: of the retry topics that belong to it, all."""
    return place.key[3] if topic == place.key[2] else ALL_QUEUES


def _places(topic: _Topic, queue_id: int) -> Iterator[_Place] | list[_Place]:
    """Places that wait for a queue, in the order of their making; a copy, as waking changes the table."""
    of_queue = topic.queues.get(queue_id)
    if of_queue is None:
        return list(topic.all)
    if not topic.all:
        return list(of_queue)
    return sorted((*of_queue, *topic.all), key=lambda place: place.number)


def _none() -> None:
    """Whatever a broker without a group has may be told at all times."""
