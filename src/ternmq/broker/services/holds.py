"""Holds: pulls that found nothing and wait for a message instead of being answered (F8).

A pull that reached the end of its queue is held here until

- a message arrives in its queue that its filter may let through,
- a tool moves its group to another offset (D4),
- its time is over (15 s for push consumers, 20 s for pull): it is answered PULL_NOT_FOUND, or
- its connection closes.

Arrivals come from the store, once per record, in the midst of a send. So ``arrived`` only moves the holds that it
concerns to a list; they are answered in the next turn of the loop, once all sends of the same read are stored: a
consumer gets the burst in one reply, not one reply for its first message. SQL filters are asked about an arrival up to
``filters.ARRIVAL_TERMS_MAX``; the pulls beyond that are woken unasked, and look for themselves.

Every 5 s all holds are compared with their queues, whatever their filters: messages that a filter refuses move the
consumer's position only this way, and a lost wake-up would cost 5 s instead of a message.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from ternmq.broker.services.wakes import Wakes
from ternmq.broker.tables.filters import ARRIVAL_TERMS_MAX, Wanted
from ternmq.errors import SystemBusy
from ternmq.net.peer import Peer
from ternmq.wire.header import Request

#: A long poll is checked this often (RocketMQ's ``PullRequestHoldService``).
SCAN_S: Final = 5.0

Key = TypeVar("Key")


class Hold:
    """One pull that waits, for a record that passes ``wanted``."""

    __slots__ = ("key", "peer", "queue_offset", "request", "timer", "wanted")

    def __init__(
        self,
        peer: Peer,
        request: Request[Any],
        key: tuple[str, int],
        queue_offset: int,
        wanted: Wanted,
    ) -> None:
        self.peer = peer
        self.request = request
        self.key = key
        self.queue_offset = queue_offset
        self.wanted = wanted
        self.timer: asyncio.TimerHandle | None = None


class Holds:
    """All methods belong to the broker's loop. ``resume`` carries out a pull again and answers it, come what may."""

    def __init__(
        self,
        *,
        resume: Callable[[Peer, Request[Any]], None],
        max_offset: Callable[[str, int], int],
        capacity: int,
        bytes_max: int,
    ) -> None:
        self._resume = resume
        self._max_offset = max_offset
        self._capacity = capacity
        self._bytes_max = bytes_max
        self._loop = asyncio.get_running_loop()
        # Insertion-ordered tables, not sets: who waits longest is answered first, and in the same order every time.
        self._by_queue: dict[tuple[str, int], dict[Hold, None]] = {}
        self._by_peer: dict[Peer, dict[Hold, None]] = {}
        self._woken = Wakes(self._carry_out)
        self._count = 0
        #: Of their requests, which are kept as they came.
        self._bytes = 0

    def __len__(self) -> int:
        return self._count

    def add(
        self,
        peer: Peer,
        request: Request[Any],
        *,
        topic: str,
        queue_id: int,
        queue_offset: int,
        wanted: Wanted,
        timeout_ms: int,
    ) -> None:
        """Hold a pull that wants the message at ``queue_offset``. Raises ``SystemBusy`` when too many wait."""
        if self._count >= self._capacity:
            raise SystemBusy(
                f"[OVERLOAD]system busy: {self._count} pulls are already waiting on this broker; retry later, or "
                "raise maxSuspendedPulls"
            )
        if self._bytes + request.frame_bytes > self._bytes_max:
            raise SystemBusy(
                f"[OVERLOAD]system busy: pulls of {self._bytes} bytes are already waiting on this broker; retry "
                "later, or raise maxQueuedRequestBytes"
            )
        key = (topic, queue_id)
        hold = Hold(peer, request, key, queue_offset, wanted)
        hold.timer = self._loop.call_later(timeout_ms / 1000, self._expire, hold)
        self._by_queue.setdefault(key, {})[hold] = None
        self._by_peer.setdefault(peer, {})[hold] = None
        self._count += 1
        self._bytes += request.frame_bytes

    def arrived(self, topic: str, queue_id: int, end_offset: int, tags_code: int, properties: str | None) -> None:
        """A record has become visible: its queue now ends at ``end_offset``. Hot: called for each record.

        Without ``properties`` there are several, and pulls with an SQL filter are woken to look for themselves.
        """
        waiting = self._by_queue.get((topic, queue_id))
        if waiting is None:
            return
        terms = 0
        for hold in list(waiting):
            if end_offset > hold.queue_offset:
                wanted = hold.wanted
                terms += wanted.terms
                if wanted.lets_pass(tags_code, properties if terms <= ARRIVAL_TERMS_MAX else None):
                    self._wake_soon(hold)

    def wake(self, group: str, topic: str, queue_id: int) -> None:
        """A group was moved in this queue: its members shall know now, not when the next message comes."""
        for hold in list(self._by_queue.get((topic, queue_id), ())):
            if hold.request.fields.consumer_group == group:
                self._wake_soon(hold)

    def scan(self) -> None:
        """Wake every hold whose queue has grown past it."""
        for (topic, queue_id), waiting in list(self._by_queue.items()):
            end_offset = self._max_offset(topic, queue_id)
            for hold in list(waiting):
                if end_offset > hold.queue_offset:
                    self._wake_soon(hold)

    def drop(self, peer: Peer) -> None:
        """A connection closed: its requests need no answer."""
        for hold in list(self._by_peer.get(peer, ())):
            self._remove(hold)

    def close(self) -> None:
        """Forget all holds; their clients ask again elsewhere."""
        for peer in list(self._by_peer):
            self.drop(peer)
        self._woken.clear()

    def _expire(self, hold: Hold) -> None:
        self._remove(hold)
        self._carry_out(hold)

    def _wake_soon(self, hold: Hold) -> None:
        self._remove(hold)
        self._woken.add(hold)

    def _carry_out(self, hold: Hold) -> None:
        self._resume(hold.peer, hold.request)

    def _remove(self, hold: Hold) -> None:
        if hold.timer is not None:
            hold.timer.cancel()
        self._count -= 1
        self._bytes -= hold.request.frame_bytes
        _take(self._by_queue, hold.key, hold)
        _take(self._by_peer, hold.peer, hold)


def _take(table: dict[Key, dict[Hold, None]], key: Key, hold: Hold) -> None:
    waiting = table[key]
    del waiting[hold]
    if not waiting:
        del table[key]
