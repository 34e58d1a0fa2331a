"""Messages for tests of the consumer's cores."""

from __future__ import annotations

from ternmq.client.consume.claimed import Claimed
from ternmq.message import MessageQueue

QUEUE = MessageQueue("orders", "broker-a", 0)


def received(queue_offset: int, body: bytes = b"x", *, tags: str = "", reconsume_times: int = 0) -> Claimed:
    """A message as a pull from ``QUEUE`` would bring it."""
    return Claimed(
        topic=QUEUE.topic,
        body=body,
        properties={"TAGS": tags} if tags else {},
        broker_name=QUEUE.broker_name,
        queue_id=QUEUE.queue_id,
        queue_offset=queue_offset,
        log_offset=queue_offset * 100,
        message_id=f"id-{queue_offset}",
        offset_id=f"offset-{queue_offset}",
        born_time_ms=1,
        born_host="127.0.0.1:1",
        store_time_ms=2,
        store_host="127.0.0.1:10911",
        reconsume_times=reconsume_times,
        flag=0,
        sysflag=0,
        store_bytes=100,
    )


def messages(*queue_offsets: int) -> list[Claimed]:
    return [received(offset) for offset in queue_offsets]
