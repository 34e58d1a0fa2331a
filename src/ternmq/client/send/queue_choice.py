"""Which queue a message goes to (E3, E5). Pure: routes, names and the time in, queues out.

Messages without an order take turns over all queues of all brokers (``RoundRobin``); a second attempt avoids the broker
that just failed. ``LatencyFaults`` remembers how long each broker took, and tells which to leave alone for a time that
grows with their slowness (RocketMQ's ``sendLatencyFaultEnable``)::

    took at least   50   100   550   1000   2000   3000   15000 ms
    avoided for      0     0    30     60    120    180     600 s

A failed send counts as one of 30 s. When all brokers are to be avoided, the better half of them take turns.

Messages with an order go where a *selector* says: a function from the queues and the message to one queue. Queues come
in the same order in every client, so a key finds the same queue from Python, Java and Go.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Sequence
from typing import Final

from ternmq.client.connect.routes import TopicRoute
from ternmq.message import Message, MessageQueue
from ternmq.wire.ids import java_hash

#: From the slowest down: a send that took this long (ms) keeps its broker out of turn for so long (ms).
AVOIDANCE_MS: Final = (
    (15_000, 600_000),
    (3_000, 180_000),
    (2_000, 120_000),
    (1_000, 60_000),
    (550, 30_000),
    (100, 0),
    (50, 0),
)
#: What a send that failed is taken to have lasted (RocketMQ 4.9's "isolation").
FAILED_SEND_MS: Final = 30_000


class RoundRobin:
    """Takes turns over the queues of each topic. The start is random, so clients do not march in step."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._turns: dict[str, int] = {}

    def choose(self, route: TopicRoute, *, avoid: Collection[str] = ()) -> MessageQueue:
        """The next queue of ``route.to_write`` (not empty) whose broker is not one to avoid; if all are, the next."""
        queues, turns = route.to_write, self._turns
        turn = turns.get(route.topic)
        if turn is None:
            turn = self._chance.randrange(len(queues))
        queue = queues[turn % len(queues)]
        if avoid:
            for _ in queues:
                if queue.broker_name not in avoid:
                    break
                turn += 1
                queue = queues[turn % len(queues)]
        turns[route.topic] = turn + 1
        return queue


class LatencyFaults:
    """Remembers which brokers were slow or failed, and until when to avoid them (E3)."""

    def __init__(self) -> None:
        #: Broker name → until when it is avoided, and how long its last send took.
        self._faults: dict[str, tuple[int, int]] = {}

    def report(self, broker_name: str, *, took_ms: int, failed: bool = False, now_ms: int) -> None:
        """How a send to a broker went."""
        if failed:
            took_ms = FAILED_SEND_MS
        self._faults[broker_name] = (now_ms + avoidance_ms(took_ms), took_ms)

    def avoided(self, route: TopicRoute, *, now_ms: int) -> list[str]:
        """The brokers of a route to leave alone now, never all of them: the better half is always allowed."""
        names = dict.fromkeys(queue.broker_name for queue in route.to_write)
        faults = self._faults
        bad = [name for name in names if name in faults and faults[name][0] > now_ms]
        if len(bad) < len(names):
            return bad
        bad.sort(key=faults.__getitem__)
        return bad[max(1, len(bad) // 2) :]


def avoidance_ms(took_ms: int) -> int:
    """How long a broker is avoided after a send that took ``took_ms``.

    >>> [avoidance_ms(took) for took in (10, 549, 550, 3_000, 60_000)]
    [0, 0, 30000, 180000, 600000]
    """
    for at_least_ms, avoided_ms in AVOIDANCE_MS:
        if took_ms >= at_least_ms:
            return avoided_ms
    return 0


# --- Selectors: ordered sends (E5) ----------------------------------------------------------------------------

#: Chooses the queue of one message. All messages that must keep their order must get the same queue.
Selector = Callable[[Sequence[MessageQueue], Message], MessageQueue]


def by_hash(key: str | int) -> Selector:
    """All messages sent with one key go to one queue: RocketMQ's ``SelectMessageQueueByHash``.

    A text is hashed like Java's ``String``, a number like ``Integer`` or, beyond 32 bits, ``Long``::

        await producer.send(message, selector=by_hash(order_id))
    """
    value = abs(java_hash(key) if isinstance(key, str) else _number_hash(key))

    def select(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        return queues[value % len(queues)]

    return select


def by_sharding_key(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
    """``by_hash`` of the message's own ``sharding_key``; used for every message that has one."""
    return queues[abs(java_hash(message.sharding_key)) % len(queues)]


def at_random(chance: random.Random) -> Selector:
    """Any queue: RocketMQ's ``SelectMessageQueueByRandom``. For tests of consumers; it keeps no order."""

    def select(queues: Sequence[MessageQueue], _: Message) -> MessageQueue:
        return chance.choice(queues)

    return select


def in_machine_rooms(*rooms: str, otherwise: Selector = by_sharding_key) -> Selector:
    """Only queues of brokers named ``room@name`` with one of these rooms; all queues when there are none such.

    Among them ``otherwise`` chooses. Messages of one key keep their order as long as the rooms' brokers stay the same.
    """
    prefixes = tuple(f"{room}@" for room in rooms)

    def select(queues: Sequence[MessageQueue], message: Message) -> MessageQueue:
        near = [queue for queue in queues if queue.broker_name.startswith(prefixes)]
        return otherwise(near or queues, message)

    return select


def _number_hash(number: int) -> int:
    if -(1 << 31) <= number < 1 << 31:
        return number
    folded = (number ^ (number >> 32)) & 0xFFFFFFFF
    return folded - (1 << 32) if folded >= 1 << 31 else folded
