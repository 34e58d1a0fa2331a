"""A process that consumes: it books money, cancels, has orders shipped, and writes the history.

    python -m shop.worker DATABASE NAME_SERVERS

Run as many as you like, and kill them as you like.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from random import Random
from typing import Any

from sqlalchemy.exc import OperationalError

from shop import history, orders, partner, payments
from shop.schema import CAPTURES, DEADLINES, LEASE_MS, PARCELS, STEPS, Shop
from ternmq import PushConsumer, StartPosition, breaker
from ternmq.once.sqlalchemy import once_in_transaction

Listener = Callable[..., Any]


def listeners(shop: Shop) -> dict[str, Listener]:
    """What is done with the messages of each topic."""
    exactly_once = once_in_transaction(shop.keys, lease_ms=LEASE_MS)
    return {
        CAPTURES: exactly_once(partial(payments.on_captured, shop)),
        PARCELS: exactly_once(partial(partner.on_parcel, shop, Random())),
        STEPS: exactly_once(history.on_step),
        # Twice is the same as once.
        DEADLINES: partial(orders.on_deadline, shop),
    }


def consumer(shop: Shop, topic: str, listener: Listener) -> PushConsumer:
    """A member of the group that has the name of its topic."""
    # The database is down: pause, and lose no retries.
    guarded = breaker(1, on=OperationalError)(listener)
    made = PushConsumer(
        topic,
        guarded,
        name_servers=shop.name_servers,
        start=StartPosition.FIRST,
        orderly=topic == STEPS,
        threads=4,
    )
    made.subscribe(topic)
    return made


async def main(shop: Shop) -> None:
    async with AsyncExitStack() as stack:
        # Listeners are plain functions with plain sessions, and so is their outbox.
        stack.enter_context(shop.outbox)
        for topic, listener in listeners(shop).items():
            await stack.enter_async_context(consumer(shop, topic, listener))
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Shop.at(*sys.argv[1:])))
