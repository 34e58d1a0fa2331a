"""Answers that tell when messages were stored: 32, 202, 208, 303 and 317 (D4, D6).

A store time stands in the record. Where it lies far back, the disk has to be asked, and the loop must not wait for it
(``store.read.cold``). So an answer that needs such times is made twice: first to learn which they are, then with them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from ternmq.store.store import MessageStore
from ternmq.wire.header import Reply

#: When the message of a topic, queue id and queue offset was stored; -1 if it is not there.
StoreTime: TypeAlias = Callable[[str, int, int], int]


def with_store_times(store: MessageStore, make: Callable[[StoreTime], Reply]) -> Reply | Awaitable[Reply]:
    """The reply that ``make`` makes with the store times that it asks for: now, or when they are read.

    ``make`` may be called again, and must change nothing.
    """
    cold: list[int] = []

    def store_time(topic: str, queue_id: int, queue_offset: int) -> int:
        log_offset = store.cold.place(topic, queue_id, queue_offset)
        if log_offset is None:
            return store.store_time(topic, queue_id, queue_offset)
        cold.append(log_offset)
        return -1

    reply = make(store_time)
    return _made_again(store, make, cold) if cold else reply


async def _made_again(store: MessageStore, make: Callable[[StoreTime], Reply], cold: list[int]) -> Reply:
    times = await asyncio.wrap_future(store.cold.store_times(cold))

    def store_time(topic: str, queue_id: int, queue_offset: int) -> int:
        log_offset = store.cold.place(topic, queue_id, queue_offset)
        known = None if log_offset is None else times.get(log_offset)
        # A group that has moved on meanwhile stands where the disk was not asked; that is one read.
        return store.store_time(topic, queue_id, queue_offset) if known is None else known

    return make(store_time)
