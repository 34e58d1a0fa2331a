"""Automatic batches: the shell around ``batch.Accumulator`` (E6).

Each message that comes in gets a future; a timer or a full batch sends what has gathered, and the answer to the batch
becomes a receipt for each message, with its own id and queue offset.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from ternmq.client.config import ProducerConfig
from ternmq.client.send.batch import Accumulator, BatchKey, OpenBatch
from ternmq.client.send.outgoing import split_receipt
from ternmq.errors import TernError
from ternmq.message import Message, MessageQueue, SendReceipt

Receipt = asyncio.Future[SendReceipt]
#: Sends messages to one queue, or to one that it chooses, without waiting.
SendTogether = Callable[[Sequence[Message], MessageQueue | None], Receipt]


class Gatherer:
    """Holds messages back for a moment and sends them together. All methods belong to the loop's thread."""

    def __init__(self, config: ProducerConfig, send: SendTogether) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._held: Accumulator[Receipt] = Accumulator(
            batch_bytes=config.auto_batch_bytes,
            wait_ms=config.auto_batch_wait_ms,
            total_bytes=config.auto_batch_total_bytes,
        )

    def add(self, message: Message, queue: MessageQueue | None) -> Receipt:
        """Hold a message; the future gets the receipt of this message alone."""
        waiter: Receipt = self._loop.create_future()
        key = BatchKey(message.topic, queue, message.wait_store_ok)
        for batch in self._held.add(key, message, waiter, now_ms=self._now_ms()):
            self._send_batch(batch)
        self._set_timer()
        return waiter

    def flush(self) -> None:
        """Send everything now."""
        for batch in self._held.all():
            self._send_batch(batch)
        if self._timer is not None:
            self._timer.cancel()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _set_timer(self) -> None:
        due_ms = self._held.next_due_ms
        if self._timer is None and due_ms is not None:
            self._timer = self._loop.call_at(due_ms / 1000, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        # Timers fire up to one tick of the loop's clock early.
        for batch in self._held.due(now_ms=self._now_ms() + 1):
            self._send_batch(batch)
        self._set_timer()

    def _send_batch(self, batch: OpenBatch[Receipt]) -> None:
        waiters = batch.waiters
        try:
            answer = self._send(batch.messages, batch.key.queue)
        except TernError as error:
            _fail(waiters, error)
        else:
            answer.add_done_callback(lambda answer: _settle(waiters, answer))


def _settle(waiters: Sequence[Receipt], answer: Receipt) -> None:
    if answer.cancelled():
        for waiter in waiters:
            waiter.cancel()
        return
    error = answer.exception()
    if error is not None:
        _fail(waiters, error)
        return
    for waiter, receipt in zip(waiters, split_receipt(answer.result()), strict=True):
        if not waiter.done():
            waiter.set_result(receipt)


def _fail(waiters: Sequence[Receipt], error: BaseException) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
