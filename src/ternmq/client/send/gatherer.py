"""Automatic batches: the shell around ``batch.Accumulator`` (E6).

Each message that comes in gets a future. What has gathered goes out at the end of a turn of the loop, or with the
answer to an earlier batch; ``auto_batch_wait_ms`` can make it wait for longer. The answer to a batch becomes a receipt
for each message, with its own id and queue offset.

A batch fails as a whole. Where that would change what happens to a message, each is sent alone, one after the other:
one message may be invalid, or a broker may find it illegal, which refuses all that came with it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from ternmq.client.config import ProducerConfig
from ternmq.client.send.batch import Accumulator, BatchKey, OpenBatch
from ternmq.client.send.outgoing import split_receipt
from ternmq.errors import CallTimeout, InvalidMessage, MessageIllegal
from ternmq.message import Message, MessageQueue, SendReceipt

Receipt = asyncio.Future[SendReceipt]
#: Sends messages, with what their batch has in common, in so many ms, without waiting.
SendTogether = Callable[[Sequence[Message], BatchKey, int], Receipt]

_is_done: Final = asyncio.Future.done
#: Time that a batch has waited is taken from its time limit in steps, as limits of one length share a timer.
_STEP_MS: Final = 100


class Gatherer:
    """Holds messages back while others are on their way, and sends them together. All methods belong to the loop's
    thread."""

    def __init__(self, config: ProducerConfig, send: SendTogether) -> None:
        self._send = send
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._is_woken = False
        self._held: Accumulator[Receipt] = Accumulator(
            batch_bytes=config.auto_batch_bytes,
            wait_ms=config.auto_batch_wait_ms,
            total_bytes=config.auto_batch_total_bytes,
            # In a batch it would not be compressed.
            alone_bytes=min(config.auto_batch_bytes, config.compress_from_bytes),
        )

    def add(self, message: Message, queue: MessageQueue | None, timeout_ms: int) -> Receipt:
        """Hold a message; the future gets the receipt of this message alone."""
        waiter: Receipt = self._loop.create_future()
        key = message.topic, queue, message.wait_store_ok, timeout_ms
        self._held.add(key, message, waiter, now_ms=self._now_ms())
        if not self._is_woken:
            # At the end of this turn: all that is sent in it goes together.
            self._is_woken = True
            self._loop.call_soon(self._send_ready)
        return waiter

    @property
    def held_bytes(self) -> int:
        """What the messages that are held take, at most."""
        return self._held.held_bytes

    def flush(self) -> None:
        """Send everything now; of a fixed queue, one batch after the other."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for batch in self._held.all():
            self._send_batch(batch)
        self._send_ready()

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1000)

    def _send_ready(self) -> None:
        self._is_woken = False
        # Again, as one that could not be sent makes room for the next one.
        while ready := self._held.ready(now_ms=self._now_ms()):
            for batch in ready:
                self._send_batch(batch)
        due_ms = self._held.next_due_ms
        if due_ms is not None and self._timer is None:
            self._timer = self._loop.call_at(due_ms / 1000, self._send_due)

    def _send_due(self) -> None:
        self._timer = None
        self._send_ready()

    def _send_batch(self, batch: OpenBatch[Receipt]) -> None:
        messages, waiters, key = batch.messages, batch.waiters, batch.key
        if any(map(_is_done, waiters)):
            # Cancelled by their holders, before anything was sent.
            left = [number for number, waiter in enumerate(waiters) if not waiter.done()]
            messages, waiters = [messages[number] for number in left], [waiters[number] for number in left]
        if not messages:
            self._held.ended(key)
            return
        opened_ms = batch.opened_ms
        try:
            answer = self._send(messages, key, self._left_ms(key, opened_ms))
        except InvalidMessage as error:
            if len(messages) == 1:
                self._held.ended(key)
                _fail(waiters, error)
            else:
                self._send_each(deque(zip(messages, waiters, strict=True)), key, opened_ms)
        except Exception as error:
            # Any error: the callers that wait would not hear of it otherwise.
            self._held.ended(key)
            _fail(waiters, error)
        else:
            answer.add_done_callback(lambda answer: self._answered(messages, waiters, key, opened_ms, answer))

    def _left_ms(self, key: BatchKey, opened_ms: int) -> int:
        """What is left of the time of messages that came at a moment. Raises ``CallTimeout``."""
        waited_ms = self._now_ms() - opened_ms
        if waited_ms >= key.timeout_ms:
            raise CallTimeout(
                f"{waited_ms} ms passed before the message could be sent; it was not sent. Send more slowly"
            )
        return max(1, key.timeout_ms - waited_ms // _STEP_MS * _STEP_MS)

    def _answered(
        self,
        messages: Sequence[Message],
        waiters: Sequence[Receipt],
        key: BatchKey,
        opened_ms: int,
        answer: Receipt,
    ) -> None:
        if answer.cancelled():
            for waiter in waiters:
                waiter.cancel()
        elif (error := answer.exception()) is None:
            receipts = split_receipt(answer.result()) if len(waiters) > 1 else [answer.result()]
            for waiter, receipt in zip(waiters, receipts, strict=True):
                if not waiter.done():
                    waiter.set_result(receipt)
        elif isinstance(error, MessageIllegal) and len(messages) > 1:
            self._send_each(deque(zip(messages, waiters, strict=True)), key, opened_ms)
            return
        else:
            _fail(waiters, error)
        self._held.ended(key)
        self._send_ready()

    def _send_each(self, left: deque[tuple[Message, Receipt]], key: BatchKey, opened_ms: int) -> None:
        """Send messages one after the other, which keeps their order; then the batch has ended. All of them have what
        is left of their time."""
        while left:
            message, waiter = left.popleft()
            if waiter.done():
                continue
            try:
                answer = self._send([message], key, self._left_ms(key, opened_ms))
            except Exception as error:
                _fail([waiter], error)
                continue
            answer.add_done_callback(partial(self._sent_alone, waiter, left, key, opened_ms))
            return
        self._held.ended(key)
        self._send_ready()

    def _sent_alone(
        self, waiter: Receipt, left: deque[tuple[Message, Receipt]], key: BatchKey, opened_ms: int, answer: Receipt
    ) -> None:
        _pass_on(answer, waiter)
        self._send_each(left, key, opened_ms)


def _pass_on(answer: Receipt, waiter: Receipt) -> None:
    if waiter.done():
        return
    if answer.cancelled():
        waiter.cancel()
    elif (error := answer.exception()) is not None:
        waiter.set_exception(error)
    else:
        waiter.set_result(answer.result())


def _fail(waiters: Sequence[Receipt], error: BaseException) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_exception(error)
