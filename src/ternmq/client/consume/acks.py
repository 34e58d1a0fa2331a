"""Acks of popped messages, on their way to the brokers (F9).

Listeners end one by one; their acks gather here, and what is due for one broker goes in one call (BATCH_ACK_MESSAGE
200151), while the next ones gather. So a consumer that is slow acks each message at once, and a fast one some hundred
with a call. A broker without that call (RocketMQ 5.0) gets them one by one.

An ack that fails is logged and forgotten: the message is delivered again ("at least once").
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import NetworkError, RequestNotSupported, TernError
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import BatchAck, BatchAcks
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.handles import Handle
from ternmq.wire.requests import AckMessage

log = logging.getLogger(__name__)

#: Acks in one call.
COUNT_MAX: Final = 1_000
#: Bits of one batched ack: a filter may have let little through of what lies between two messages of one pop.
SPAN_MAX: Final = 8_000


class PopAck(NamedTuple):
    """What is done: the topic that was popped, by its name on the wire, and the handle."""

    topic: str
    handle: Handle


class Acks:
    """Sends the acks of one consumer. All methods belong to the loop's thread; ``group`` is its name on the wire."""

    def __init__(self, instance: ClientInstance, group: str, tasks: Tasks) -> None:
        self._instance = instance
        self._group = group
        self._tasks = tasks
        self._waiting: dict[str, list[PopAck]] = {}
        #: One for each broker that was ever acked to.
        self._wake: dict[str, asyncio.Event] = {}
        self._without_batch: set[str] = set()
        self._sending = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def add(self, ack: PopAck) -> None:
        broker_name = ack.handle.broker_name
        self._waiting.setdefault(broker_name, []).append(ack)
        self._idle.clear()
        wake = self._wake.get(broker_name)
        if wake is None:
            wake = self._wake[broker_name] = asyncio.Event()
            self._tasks.create_task(self._send_forever(broker_name, wake), name=f"acks to {broker_name}")
        wake.set()

    async def idle(self, timeout_ms: int) -> None:
        """Wait, at most this long, until no ack is on its way."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_ms / 1000):
                await self._idle.wait()

    async def _send_forever(self, broker_name: str, wake: asyncio.Event) -> None:
        while True:
            await wake.wait()
            wake.clear()
            acks = self._waiting.pop(broker_name, [])
            self._sending += 1
            try:
                for at in range(0, len(acks), COUNT_MAX):
                    await self._send(broker_name, acks[at : at + COUNT_MAX])
            finally:
                self._sending -= 1
            if not self._waiting and not self._sending:
                self._idle.set()

    async def _send(self, broker_name: str, acks: Sequence[PopAck]) -> None:
        alone, failed, reason = acks, 0, ""
        if len(acks) > 1 and broker_name not in self._without_batch:
            batch, rest = batched(self._group, acks)
            body = encode(BatchAcks(broker_name=broker_name, acks=batch))
            try:
                await self._ask(broker_name, RequestCode.BATCH_ACK_MESSAGE, None, body)
                alone = rest
            except RequestNotSupported:
                self._without_batch.add(broker_name)
            except NetworkError as error:
                alone, failed, reason = (), len(acks), str(error)
            except TernError as error:
                # The broker has done what it could of it.
                alone, failed, reason = rest, len(acks) - len(rest), str(error)
        for number, ack in enumerate(alone):
            try:
                await self._ask(broker_name, RequestCode.ACK_MESSAGE, single(self._group, ack))
            except NetworkError as error:
                failed, reason = failed + len(alone) - number, str(error)
                break
            except TernError as error:
                # It may be that of a queue that is gone; the others are none the worse for it.
                failed, reason = failed + 1, str(error)
        if failed:
            log.warning(
                "cannot acknowledge %d messages of group %s on %s: %s; they will be delivered again",
                failed,
                self._group,
                broker_name,
                reason,
            )

    async def _ask(self, broker_name: str, code: RequestCode, header: AckMessage | None, body: bytes = b"") -> None:
        await self._instance.ask(self._instance.broker_address(broker_name), code, header, body)


def single(group: str, ack: PopAck) -> AckMessage:
    """ACK_MESSAGE 200051 of one message."""
    topic, handle = ack
    return AckMessage(
        consumer_group=group,
        topic=handle.real_topic(group, topic),
        queue_id=handle.queue_id,
        extra_info=handle.text,
        queue_offset=handle.queue_offset,
    )


def batched(group: str, acks: Iterable[PopAck]) -> tuple[list[BatchAck], Sequence[PopAck]]:
    """Acks by check point, and those that must go alone."""
    bits: dict[object, int] = {}
    #: One ack of each check point.
    ones: dict[object, PopAck] = {}
    alone: list[PopAck] = []
    for ack in acks:
        bit = ack.handle.queue_offset - ack.handle.start_offset
        if 0 <= bit < SPAN_MAX:
            # All but the queue offset is the same for the messages of one check point.
            key = ack.topic, ack.handle[:-1]
            ones[key] = ack
            bits[key] = bits.get(key, 0) | 1 << bit
        else:
            alone.append(ack)
    return [_batch_ack(group, *ones[key], mask) for key, mask in bits.items()], alone


def _batch_ack(group: str, topic: str, handle: Handle, mask: int) -> BatchAck:
    data = mask.to_bytes((mask.bit_length() + 7) // 8, "little")
    return BatchAck(
        consumer_group=group,
        topic=topic,
        retry=str(handle.retry),
        start_offset=handle.start_offset,
        queue_id=handle.queue_id,
        revive_queue_id=handle.revive_queue_id,
        pop_time_ms=handle.pop_time_ms,
        invisible_ms=handle.invisible_ms,
        bits=base64.b64encode(data).decode(),
    )
