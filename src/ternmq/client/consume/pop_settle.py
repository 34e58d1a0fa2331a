"""What becomes of popped messages after the application has seen them (F9, H1).

Done: acked, with others that are done at the same time (``acks``). Failed: hidden for longer
(CHANGE_MESSAGE_INVISIBLETIME 200053), the longer the more often it failed, and then popped again, by whoever asks next.
Failed too often: a dead letter. (RocketMQ's client goes on for some hours and then acks it; ours keeps the promise of
H1.) Not settled within its invisible time: nothing; it is visible again by itself, and somebody else's.

What came from the group's own retry topic was pulled, and is settled as a member that pulls does it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.acks import Ack, Acks
from ternmq.client.consume.fetch import QueueReader
from ternmq.client.consume.pop_reader import Popped, PopReader
from ternmq.client.consume.process_queue import ProcessQueue
from ternmq.client.consume.send_back import DEAD_LETTER, Returns
from ternmq.client.consume.settle import Put, Settling
from ternmq.client.consume.stats import ConsumeStats
from ternmq.errors import TernError
from ternmq.message import Property, ReceivedMessage
from ternmq.tasks import Tasks
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import Handle
from ternmq.wire.requests import ChangeInvisibleTime

log = logging.getLogger(__name__)

#: RocketMQ's ``popDelayLevel``: by the listener's delay level, or by how often the message came before.
DELAYS_MS: Final = tuple(
    1000 * seconds for seconds in (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
)
#: For what is given back at the end. Not at once: brokers still hold pops of ours, which would get it again; they drop
#: these with our connections, in a moment.
SOON_MS: Final = 1_000


def delay_ms(message: ReceivedMessage, delay_level: int) -> int:
    """How long a message that failed stays hidden."""
    return DELAYS_MS[min(delay_level or message.reconsume_times, len(DELAYS_MS) - 1)]


class PopSettling(Settling):
    """Settles the messages of one ``PopConsumer``. All methods belong to the loop's thread."""

    def __init__(
        self,
        returns: Returns,
        stats: ConsumeStats,
        tasks: Tasks,
        *,
        instance: ClientInstance,
        group: str,
        max_reconsume_times: int,
    ) -> None:
        super().__init__(returns, stats, tasks)
        self._instance = instance
        self._group = group
        self._times_max = max_reconsume_times
        self._acks = Acks(instance, group, tasks)

    def settle(
        self,
        reader: QueueReader,
        held: ProcessQueue,
        *,
        done: Sequence[ReceivedMessage] = (),
        failed: Sequence[ReceivedMessage] = (),
        delay_level: int = 0,
        again: Put,
    ) -> None:
        if not isinstance(held, Popped):
            super().settle(reader, held, done=done, failed=failed, delay_level=delay_level, again=again)
            return
        assert isinstance(reader, PopReader)
        self._settle(reader, held, done, failed, delay_level)

    def _settle(
        self,
        reader: PopReader,
        held: Popped,
        done: Sequence[ReceivedMessage],
        failed: Sequence[ReceivedMessage],
        delay_level: int,
    ) -> None:
        is_ours = not held.dropped and not self._closed
        done, failed = held.settled(done), held.settled(failed)
        reader.has_room()
        if not is_ours:
            return
        for message in done:
            self._acks.add(_ack(reader, message))
        if failed:
            self._return(self._put_off(reader, failed, delay_level))

    def give_up(self, reader: PopReader, popped: Popped, messages: Sequence[ReceivedMessage]) -> None:
        """Messages that the application does not see: of another tag, or come too often."""
        too_often = [message for message in messages if message.reconsume_times > self._times_max]
        others = [message for message in messages if message.reconsume_times <= self._times_max]
        self._settle(reader, popped, others, too_often, DEAD_LETTER)

    async def idle(self, timeout_ms: int) -> None:
        await super().idle(timeout_ms)
        await self._acks.idle(timeout_ms)

    async def give_back(self, readers: Iterable[PopReader], timeout_ms: int) -> None:
        """At the end: let others have soon what was popped here and not settled."""
        left = [
            self._tasks.create_task(self._hide(reader, message, SOON_MS))
            for reader in readers
            for popped in reader.in_hand()
            for message in popped.unsettled
        ]
        if left:
            await asyncio.wait(left, timeout=timeout_ms / 1000)

    async def _put_off(self, reader: PopReader, messages: Sequence[ReceivedMessage], delay_level: int) -> None:
        for message in messages:
            is_hopeless = delay_level < 0 or message.reconsume_times >= self._times_max
            if is_hopeless and await self.bury(message):
                self._acks.add(_ack(reader, message))
            else:
                await self._hide(reader, message, delay_ms(message, max(0, delay_level)))

    async def _hide(self, reader: PopReader, message: ReceivedMessage, invisible_ms: int) -> None:
        topic, handle = _ack(reader, message)
        header = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=handle.real_topic(self._group, topic),
            queue_id=handle.queue_id,
            extra_info=handle.text,
            queue_offset=handle.queue_offset,
            invisible_ms=invisible_ms,
        )
        try:
            address = self._instance.broker_address(handle.broker_name)
            await self._instance.ask(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)
        except TernError as error:
            log.warning(
                "cannot change the invisible time of message %s for group %s: %s; it is delivered again when its "
                "present invisible time is over",
                message.message_id,
                self._group,
                error,
            )


def _ack(reader: PopReader, message: ReceivedMessage) -> Ack:
    return Ack(reader.queue.topic, Handle.parse(message.properties[Property.POP_CHECKPOINT]))
