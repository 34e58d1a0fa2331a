"""A group with an orderly member in Java and one of ours, on any servers (F2, G1, V1, V2)."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ternmq.client.config import ClientConfig
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.listener import ConsumeResult
from ternmq.client.consume.offsets import StartPosition
from ternmq.client.consume.push import PushConsumer
from ternmq.client.send.producer import Producer
from ternmq.message import Message, MessageQueue, ReceivedMessage
from tests.client.listening import eventually
from tests.interop.java import Event, Java, Peer

QUEUES = 4
#: A member of 4.9 rebalances every 20 s, begins to read a queue that it got when it renews its locks (every 20 s), and
#: gives back one in which messages wait after 20 s.
INTERVALS_OF_4_9 = (
    "rocketmq.client.rebalance.waitInterval",
    "rocketmq.client.rebalance.lockInterval",
    "rocketmq.client.unlockDelayTimeMills",
)
BALANCE_S = 75.0


class Ours:
    """Our member's listener: offsets in the order of their calls, by queue."""

    def __init__(self) -> None:
        self.offsets: dict[int, list[int]] = defaultdict(list)
        self._running: set[int] = set()

    async def __call__(self, message: ReceivedMessage) -> ConsumeResult:
        assert message.queue_id not in self._running, "two calls for one queue"
        self._running.add(message.queue_id)
        self.offsets[message.queue_id].append(message.queue_offset)
        await asyncio.sleep(0.005)
        self._running.discard(message.queue_id)
        # Each tenth is tried again in place; then it has another number of attempts.
        is_refused = message.queue_offset % 10 == 9 and message.reconsume_times == 0
        return ConsumeResult.RETRY if is_refused else ConsumeResult.SUCCESS


async def members_keep_the_order(name_servers: str, version: str, topic: str, directory: Path) -> None:
    """Ours is there, Java's joins and leaves, messages come all the time: no queue loses its order."""
    # Else a member of 4.9 asks for a lock that it was refused only every 20 s.
    java = Java(version, directory, properties={"rocketmq.client.rebalance.waitInterval": "1000"})
    client, group = ClientConfig(name_servers), f"in-order-{topic}"
    ours, theirs = Ours(), defaultdict[int, list[int]](list)
    config = PushConfig(start=StartPosition.FIRST, orderly=True, orderly_retry_ms=10)
    consumer = PushConsumer(group, ours, client=client, config=config)
    consumer.subscribe(topic)
    async with Producer("shop", client=client) as producer:
        queues = sorted(await producer.queues(topic))
        assert QUEUES == len(queues)
        sending = asyncio.create_task(_send_until_cancelled(producer, queues))
        async with consumer:
            await eventually(lambda: len(ours.offsets) == QUEUES)
            async with java.consumer(name_servers, group=group, topic=topic, mode="orderly", failFirst=1) as peer:
                await _read(peer, theirs, enough=lambda: sum(len(one) > 10 for one in theirs.values()) == QUEUES // 2)
                assert QUEUES // 2 == sum(queue.topic == topic for queue in consumer.queues)
                # What it says before it ends, and while it ends, belongs to its story.
                for event in await peer.finish():
                    _note(event, theirs)
            await eventually(lambda: QUEUES == sum(queue.topic == topic for queue in consumer.queues))
            before = {queue_id: len(offsets) for queue_id, offsets in ours.offsets.items()}
            await eventually(lambda: all(len(ours.offsets[queue_id]) > before[queue_id] + 5 for queue_id in before))
            sending.cancel()
            with suppress(asyncio.CancelledError):
                await sending
    for queue in queues:
        assert is_in_order(ours.offsets[queue.queue_id], theirs[queue.queue_id])


async def members_share_what_one_leaves(name_servers: str, version: str, topic: str, directory: Path) -> None:
    """Three members in Java, one of which leaves: no queue loses its order, and the others share all of them."""
    java = Java(version, directory, properties=dict.fromkeys(INTERVALS_OF_4_9, "1000"))
    stories = [Story() for _ in range(3)]
    options: dict[str, Any] = {"group": f"in-order-{topic}", "topic": topic, "mode": "orderly"}
    async with (
        Producer("shop", client=ClientConfig(name_servers)) as producer,
        java.consumer(name_servers, instance="first", **options) as first,
        java.consumer(name_servers, instance="second", **options) as second,
    ):
        queues = sorted(await producer.queues(topic))
        sent = 0

        async def send_and_wait(*members: Peer) -> list[int]:
            """Ten messages to each queue; returns how many queues each member has got the last one of."""
            nonlocal sent
            sent += 10
            for _ in range(10):
                for queue in queues:
                    await producer.send(Message(topic, b"it"), queue=queue)
            listening = [
                asyncio.create_task(story.listen(member)) for story, member in zip(stories, members, strict=False)
            ]
            async with asyncio.timeout(BALANCE_S):
                while sum(story.count(sent - 1) for story in stories) < len(queues):
                    await asyncio.sleep(0.01)
            for task in listening:
                task.cancel()
            await asyncio.gather(*listening, return_exceptions=True)
            return [story.count(sent - 1) for story in stories]

        async with java.consumer(name_servers, instance="third", **options) as third:
            await send_and_wait(first, second, third)
            for event in await third.finish():
                stories[2].note(event)
        # The first round may come while the members still share.
        while await send_and_wait(first, second) != [len(queues) // 2, len(queues) // 2, 0]:
            assert sent < 500
    for queue in queues:
        assert is_in_order(*(story.offsets[queue.broker_name, queue.queue_id] for story in stories))


class Story:
    """Offsets in the order in which a member in Java told of them, by broker and queue id."""

    def __init__(self) -> None:
        self.offsets: dict[tuple[str, int], list[int]] = defaultdict(list)

    async def listen(self, peer: Peer) -> None:
        while True:
            self.note(await peer.event("message"))

    def note(self, event: Event) -> None:
        if event["event"] == "message" and not event["topic"].startswith("%RETRY%"):
            self.offsets[event["brokerName"], event["queueId"]].append(event["queueOffset"])

    def count(self, queue_offset: int) -> int:
        """Queues of which it has seen this offset."""
        return sum(queue_offset in offsets for offsets in self.offsets.values())


def is_in_order(*stories: Sequence[int]) -> bool:
    """Whether there is a way to put the stories of several members together in which nothing was begun too early."""
    places, done = [0] * len(stories), 0
    while any(place < len(story) for place, story in zip(places, stories, strict=True)):
        for index, story in enumerate(stories):
            if places[index] < len(story) and story[places[index]] <= done:
                done = max(done, story[places[index]] + 1)
                places[index] += 1
                break
        else:
            return False
    return True


async def _send_until_cancelled(producer: Producer, queues: Sequence[MessageQueue]) -> None:
    number = 0
    while True:
        for queue in queues:
            await producer.send(Message(queue.topic, b"it", keys=f"{queue.queue_id}-{number}"), queue=queue)
        number += 1
        await asyncio.sleep(0.02)


async def _read(peer: Peer, offsets: dict[int, list[int]], *, enough: Callable[[], bool]) -> None:
    while not enough():
        _note(await peer.event("message"), offsets)


def _note(event: Event, offsets: dict[int, list[int]]) -> None:
    if event["event"] == "message" and not event["topic"].startswith("%RETRY%"):
        offsets[event["queueId"]].append(event["queueOffset"])
