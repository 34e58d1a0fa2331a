"""A group that gives messages up, so that there are dead letters."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from ternmq import Message, PushConfig, ReceivedMessage, StartPosition, SyncProducer, SyncPushConsumer


def give_up(name_servers: str, group: str, topic: str, messages: Sequence[Message]) -> None:
    """Send messages to an unused topic, and have a group fail with each of them once."""
    enough = threading.Event()
    seen: list[str] = []

    def listener(message: ReceivedMessage) -> None:
        seen.append(message.message_id)
        if len(seen) == len(messages):
            enough.set()
        raise ValueError("no")

    with SyncProducer("givers", name_servers=name_servers) as producer:
        for message in messages:
            producer.send(message)
    config = PushConfig(start=StartPosition.FIRST, max_reconsume_times=0)
    consumer = SyncPushConsumer(group, listener, name_servers=name_servers, config=config)
    consumer.subscribe(topic)
    with consumer:
        assert enough.wait(60)
