"""Held pops: those that found nothing and wait for a message (F8, F9).

They differ from held pulls (``holds``) in whom a message wakes. Every pull has its own queue and offset, and wants each
message of it; pops of a group compete, and one of them takes the message away from all others. So an arrival wakes one
pop of each group, the one that waits longest; and when that leaves something over, the next (``wake``). While one is
on its way nobody else is woken for the same.

A hold listens to several topics: messages that nobody acked come back in its retry topics.

Bounds: so many holds of a group, topic and queue (``popPollingSize``), so many in all (``maxPopPollingSize``), and so
many bytes of their requests (``maxQueuedRequestBytes``); one more is told POLLING_FULL, and its client waits before it
asks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from ternmq.broker.services.wakes import Wakes
from ternmq.broker.tables.filters import ARRIVAL_TERMS_MAX, Wanted
from ternmq.net.peer import Peer
from ternmq.wire.handles import ALL_QUEUES
from ternmq.wire.header import Request

#: Group, topic, and queue id or ``ALL_QUEUES``.
PlaceKey = tuple[str, str, int]


class PopHold:
    """One request that waits until ``deadline``, for a record that passes ``wanted``."""

    __slots__ = ("deadline", "peer", "place", "request", "timer", "wanted")

    def __init__(self, peer: Peer, request: Request[Any], place: _Place, deadline: float, wanted: Wanted) -> None:
        self.peer = peer
        self.request = request
        self.place = place
        self.deadline = deadline
        self.wanted = wanted
        self.timer: asyncio.TimerHandle | None = None


class _Place:
    """Who waits for the same messages, longest first."""

    __slots__ = ("holds", "key", "topics", "woken")

    def __init__(self, key: PlaceKey, topics: Sequence[str]) -> None:
        self.key = key
        self.topics = topics
        self.holds: dict[PopHold, None] = {}
        #: Whether one of them is about to be answered.
        self.woken = False


class PopHolds:
    """All methods belong to the broker's loop.

    ``resume`` carries a request out again: it answers it, or adds it once more with the deadline that it is given.
    """

    def __init__(
        self,
        *,
        resume: Callable[[Peer, Request[Any], float], None],
        capacity: int,
        place_capacity: int,
        bytes_max: int,
    ) -> None:
        self._resume = resume
        self._capacity = capacity
        self._place_capacity = place_capacity
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        self._places: dict[PlaceKey, _Place] = {}
        self._by_topic: dict[str, dict[_Place, None]] = {}
        self._by_peer: dict[Peer, dict[PopHold, None]] = {}
        self._woken = Wakes(self._carry_out)
        self._count = 0
        #: Of their requests, which are kept as they came.
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def count(self, group: str, topic: str, queue_id: int) -> int:
        """How many wait at one place."""
        place = self._places.get((group, topic, queue_id))
        return len(place.holds) if place is not None else 0

    def deadline(self, timeout_ms: int) -> float:
        return self._loop.time() + timeout_ms / 1000

    def add(
        self,
        peer: Peer,
        request: Request[Any],
        key: PlaceKey,
        *,
        topics: Sequence[str],
        wanted: Wanted,
        deadline: float,
    ) -> bool:
        """Hold a request until something arrives in one of ``topics``; False if too many wait.

        The first of ``topics`` is the one that the key's queue id belongs to.
        """
        place = self._places.get(key)
        if self._count >= self._capacity or (place is not None and len(place.holds) >= self._place_capacity):
            return False
        if self._bytes + request.frame_bytes > self._bytes_max:
            return False
        if place is None:
            place = self._places[key] = _Place(key, topics)
            for topic in topics:
                self._by_topic.setdefault(topic, {})[place] = None
        hold = PopHold(peer, request, place, deadline, wanted)
        hold.timer = self._loop.call_at(deadline, self._expire, hold)
        place.holds[hold] = None
        self._by_peer.setdefault(peer, {})[hold] = None
        self._count += 1
        self._bytes += request.frame_bytes
        return True

    def arrived(self, topic: str, queue_id: int, tags_code: int, properties: str | None) -> None:
        """A record has become visible, or several without ``properties``. Hot: called for each record."""
        places = self._by_topic.get(topic)
        if places is None:
            return
        terms = 0
        for place in list(places):
            if place.woken or (place.key[2] not in (ALL_QUEUES, queue_id) and topic == place.key[1]):
                continue
            for hold in place.holds:
                terms += hold.wanted.terms
                if hold.wanted.lets_pass(tags_code, properties if terms <= ARRIVAL_TERMS_MAX else None):
                    self._wake_soon(hold)
                    break

    def wake(self, group: str, topic: str, queue_id: int) -> None:
        """There is something for a group in a queue, or in ``ALL_QUEUES``: let the one who waits longest look."""
        for place_queue_id in {queue_id, ALL_QUEUES}:
            place = self._places.get((group, topic, place_queue_id))
            if place is not None and not place.woken:
                self._wake_soon(next(iter(place.holds)))

    def drop(self, peer: Peer) -> None:
        """A connection closed: its requests need no answer."""
        for hold in list(self._by_peer.get(peer, ())):
            self._remove(hold)

    def close(self) -> None:
        """Forget all; their clients ask again elsewhere."""
        for peer in list(self._by_peer):
            self.drop(peer)
        self._woken.clear()

    def _expire(self, hold: PopHold) -> None:
        self._remove(hold)
        self._resume(hold.peer, hold.request, hold.deadline)

    def _wake_soon(self, hold: PopHold) -> None:
        hold.place.woken = True
        self._remove(hold)
        self._woken.add(hold)

    def _carry_out(self, hold: PopHold) -> None:
        hold.place.woken = False
        if hold.peer.closed.is_set():
            # It would take messages that no client gets; let the next one look.
            self.wake(*hold.place.key)
        else:
            self._resume(hold.peer, hold.request, hold.deadline)

    def _remove(self, hold: PopHold) -> None:
        if hold.timer is not None:
            hold.timer.cancel()
        self._count -= 1
        self._bytes -= hold.request.frame_bytes
        place = hold.place
        del place.holds[hold]
        if not place.holds:
            del self._places[place.key]
            for topic in place.topics:
                places = self._by_topic[topic]
                del places[place]
                if not places:
                    del self._by_topic[topic]
        holds = self._by_peer[hold.peer]
        del holds[hold]
        if not holds:
            del self._by_peer[hold.peer]
