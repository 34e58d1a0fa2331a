"""What tests of consumers share: a listener that remembers, bodies to send, a wait for others."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ternmq.client.consume.consumer import Consumer
from ternmq.client.consume.lite_pull import LitePullConsumer
from ternmq.client.consume.pop import PopConsumer
from ternmq.client.consume.pull_source import PullSource
from ternmq.client.consume.push import PushConsumer
from ternmq.message import ReceivedMessage


class Collector:
    """A listener that keeps what it gets; ``bodies`` waits for a number of messages."""

    def __init__(self) -> None:
        self.messages: list[ReceivedMessage] = []
        self._more = asyncio.Condition()

    async def __call__(self, message: ReceivedMessage) -> None:
        async with self._more:
            self.messages.append(message)
            self._more.notify_all()

    async def wait(self, count: int) -> list[ReceivedMessage]:
        async with asyncio.timeout(20), self._more:
            await self._more.wait_for(lambda: len(self.messages) >= count)
        return self.messages

    @property
    def seen(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    async def bodies(self, count: int) -> list[str]:
        await self.wait(count)
        return self.seen


def core_of(consumer: PushConsumer | PopConsumer | LitePullConsumer) -> Consumer:
    """The core of a running consumer."""
    if isinstance(consumer, LitePullConsumer):
        assert consumer._live is not None
        return consumer._live.consumer
    assert consumer._consumer is not None
    return consumer._consumer


def pull_sources(consumer: PushConsumer | PopConsumer | LitePullConsumer) -> list[PullSource]:
    """The queues that a running consumer pulls."""
    return [source for source in core_of(consumer).sources.all() if isinstance(source, PullSource)]


async def eventually(condition: Callable[[], bool]) -> None:
    """Wait for what other members and brokers bring about."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.001)


def numbered(count: int, start: int = 0) -> list[str]:
    return [f"order-{number}" for number in range(start, start + count)]
