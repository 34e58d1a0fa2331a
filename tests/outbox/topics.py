"""What is in the topics of a cluster, and waiting for it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from ternmq import PullConsumer
from ternmq.errors import RouteMissing
from ternmq.message import ReceivedMessage

LIMIT_S = 60.0


async def messages_of(name_servers: str, topic: str) -> list[ReceivedMessage]:
    """All messages of a topic, queue by queue, in their order."""
    async with PullConsumer("readers", name_servers=name_servers) as consumer:
        found: list[ReceivedMessage] = []
        try:
            queues = await consumer.queues(topic)
        except RouteMissing:
            return []
        for queue in queues:
            offset = 0
            while pulled := (await consumer.pull(queue, offset, wait=False)).messages:
                found += pulled
                offset = pulled[-1].queue_offset + 1
        return found


async def bodies_of(name_servers: str, topic: str) -> list[bytes]:
    return [message.body for message in await messages_of(name_servers, topic)]


def bodies(name_servers: str, topic: str) -> list[bytes]:
    """The bodies in a topic, sorted; for tests without a loop."""
    return sorted(asyncio.run(bodies_of(name_servers, topic)))


def wait_for(true: Callable[[], bool]) -> None:
    limit = time.monotonic() + LIMIT_S
    while not true():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.01)


async def wait_until(true: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not await true():
            await asyncio.sleep(0.01)
