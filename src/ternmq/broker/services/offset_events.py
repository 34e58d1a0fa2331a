"""OFFSET_MOVED_EVENT (D4): a message for each pull whose offset was corrected, as RocketMQ's brokers publish them.

A position outside its queue means that messages were deleted before the group got them, or that the queue began anew.
Tools consume the topic to tell of it: tag and key are the group, the body says what was asked for, and where the client
continues. No more than ``RATE`` events a second are written: a client that asks for a wrong offset again and again must
not fill the log.
"""

from __future__ import annotations

from typing import Final

from ternmq import names
from ternmq.broker.quota import Bucket
from ternmq.broker.services.intake import Intake
from ternmq.env import Clock
from ternmq.errors import TernError
from ternmq.message import Property
from ternmq.store.log.draft import Draft
from ternmq.wire import properties as props
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.offsets import MovedQueue, OffsetMoved

#: Events a second.
RATE: Final = 10


class OffsetEvents:
    """All methods belong to the broker's loop."""

    def __init__(self, intake: Intake, *, broker_name: str, clock: Clock, host: bytes) -> None:
        self._store = intake.store
        self._broker_name = broker_name
        self._clock = clock
        self._host = host
        self._bucket = Bucket(RATE, clock.monotonic())

    def corrected(self, group: str, topic: str, queue_id: int, asked: int, told: int) -> None:
        """A pull asked for a queue offset and was told another one. Never raises: the pull is answered in any case."""
        now = self._clock.monotonic()
        if self._bucket.wait_s(now):
            return
        self._bucket.take(1, now)
        event = OffsetMoved(
            consumer_group=group,
            message_queue=MovedQueue(topic=topic, broker_name=self._broker_name, queue_id=queue_id),
            offset_request=asked,
            offset_new=told,
        )
        properties = props.join({Property.TAGS: group, Property.KEYS: group})
        draft = Draft(names.OFFSET_MOVED_TOPIC, 0, encode(event), properties, self._clock.now_ms(), self._host)
        try:
            self._store(draft)
        except TernError:
            # A full disk, or the term has just ended: then the event is not what matters.
            return
