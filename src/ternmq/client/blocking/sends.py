"""The methods of ``SyncProducer`` that are not derived from ``Producer``."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from threading import get_ident
from typing import Any, Final, TypeVar

from ternmq.client.blocking.base import SyncClient
from ternmq.client.blocking.loop_thread import LoopThread, ThreadsResult
from ternmq.client.blocking.transaction import SyncTransaction
from ternmq.client.send.ongoing import OngoingSend
from ternmq.client.send.outgoing import split_receipt
from ternmq.client.send.producer import Producer
from ternmq.client.send.queue_choice import Selector
from ternmq.client.send.thread_send import ThreadSend
from ternmq.client.send.validate import check_message
from ternmq.message import Message, MessageQueue, SendReceipt

T = TypeVar("T")

#: Sends of a single thread after several have sent at once, until it sends by itself again: to change between both ways
#: with each send takes more than either.
_CROWD: Final = 64


# What sends here is private to applications, not to the synchronous producer.
# ruff: noqa: SLF001


class SyncSending(SyncClient[Producer]):
    """The base of ``SyncProducer``.

    ``send`` and ``send_batch`` make their first attempt in the calling thread, if that can be (``send.thread_send``).
    Other calls go over the loop. A message must not overtake another one of its thread that was sent without waiting:
    so after each such call, the next send goes over the loop, too, until no send is on its way there.
    """

    def __init__(self, client: Producer) -> None:
        super().__init__(client)
        #: The threads that send now. Each change is one call of the set, which is safe in any thread.
        self._sending: set[int] = set()
        #: Sends that go over the loop because several threads have sent at once; threads that count at the same moment
        #: may lose a count.
        self._crowd = 0
        #: Another object after each call that went over the loop without its answer, or may have; and the one before
        #: the last send that found that none of them is on its way.
        self._others = self._settled = object()

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a ``message`` and wait until the broker has it.

        A ``queue``, a ``selector`` (a function of the topic's queues and the message) or the message's ``sharding_key``
        fixes where it goes, for messages that must keep their order; such a send is not retried. ``timeout_ms`` is the
        limit for all attempts together. Raises ``InvalidMessage`` and ``InvalidName`` before anything is sent,
        ``RouteMissing``, ``NameServersUnreachable``, ``BrokerRefused``, ``NetworkError``, ``CallTimeout``, and
        ``SendFailed`` after several failed attempts.

        ::

            receipt = producer.send(Message("orders", b"paid", sharding_key="order-1"))
            print(receipt.message_id, receipt.queue, receipt.queue_offset)
        """
        thread, producer = self._open_thread(), self._async
        if producer.config.auto_batch:
            return thread.run(producer.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms))
        thread.check_usable()
        is_alone = self._is_alone()
        self._sending.add(get_ident())
        try:
            if is_alone and selector is None:
                own = producer._thread_send(message, queue, timeout_ms)
                if own is not None:
                    return self._deliver(thread, own)
            begin = producer._begin

            def start(receipt: ThreadsResult[SendReceipt]) -> OngoingSend:
                return begin(message, receipt, queue, selector, timeout_ms)

            return self._wait_for(thread, start)
        finally:
            self._sending.discard(get_ident())

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendReceipt]:
        """Send ``messages`` of one topic in one request and return a receipt for each, in the same order.

        They get consecutive queue offsets in one queue. ``queue`` chooses it, ``timeout_ms`` is the limit for all
        attempts together. All messages must have the same ``wait_store_ok``, none a delay, and together they must fit
        ``body_bytes_max`` (``split_batch`` cuts longer lists).

        ::

            for part in split_batch(messages):
                receipts = producer.send_batch(part)
                print(receipts[0].queue, receipts[0].queue_offset)
        """
        thread, producer = self._open_thread(), self._async
        thread.check_usable()
        is_alone = self._is_alone()
        self._sending.add(get_ident())
        try:
            if is_alone and not producer.config.auto_batch:
                own = producer._thread_batch(messages, queue, timeout_ms)
                if own is not None:
                    return split_receipt(self._deliver(thread, own))
            return thread.run(producer.send_batch(messages, queue=queue, timeout_ms=timeout_ms))
        finally:
            self._sending.discard(get_ident())

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendReceipt]:
        """Send a message and return at once. The future gets the receipt or the error.

        ``queue``, ``selector`` and ``timeout_ms`` are those of ``send``. Callbacks of the future run on the loop's
        thread: they must be short, and cannot make synchronous calls. At most ``async_bytes_max`` of bodies may wait
        for an answer; the future of a message beyond that gets ``TooManyCalls``. Leaving the producer's block waits for
        all of them. Raises ``InvalidMessage`` and ``InvalidName`` at once.

        ::

            sent = [producer.send_nowait(message) for message in messages]
            receipts = [future.result() for future in sent]
        """
        thread = self._open_thread()
        # Here and not on the loop: an invalid message is an error of this call, not of the future.
        check_message(message, body_bytes_max=self._async.config.body_bytes_max)
        future = thread.start(
            lambda: self._async.send_nowait(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )
        self._others = object()
        return future

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> SyncTransaction:
        """A ``message`` that is delivered if and only if the local work of the block is committed.

        Entering the block sends the message, which no consumer sees yet. The end of the block commits it, an exception
        rolls it back. When the program dies in between, brokers ask the ``checker`` of any producer of this group,
        first after 6 s or ``check_after_s``. The local work must be noted with ``tx.id`` where the checker finds it. A
        checker that is a plain function is called in a thread, and may make synchronous calls.

        ``queue`` and ``selector`` are those of ``send``; ``timeout_ms`` is the limit for the begin, and again for the
        end. Raises ``ConfigError`` without a ``checker`` and ``InvalidMessage`` for a message with a delay at once.
        Entering raises what ``send`` raises; the end raises ``TransactionUncertain`` when the broker cannot be told,
        and then the checker decides.

        ::

            with producer.transaction(Message("orders", b"paid")) as tx:
                database.pay(order, transaction_id=tx.id)
        """
        thread = self._open_thread()
        transaction = self._do(
            lambda: self._async.transaction(
                message, queue=queue, selector=selector, timeout_ms=timeout_ms, check_after_s=check_after_s
            )
        )
        return SyncTransaction(transaction, thread)

    def _is_alone(self) -> bool:
        """Whether this thread is the only one that sends, and was of late. What many send, the loop makes ready and
        gathers: that takes less than if each of them did, and interrupted the others."""
        if self._sending:
            self._crowd = _CROWD
        elif self._crowd:
            self._crowd -= 1
        else:
            return True
        return False

    def _deliver(self, thread: LoopThread, own: ThreadSend) -> SendReceipt:
        if self._settled is self._others:
            receipt = own.attempt()
            if receipt is not None:
                return receipt
        return self._wait_for(thread, own.go_on)

    def _wait_for(self, thread: LoopThread, start: Callable[[ThreadsResult[SendReceipt]], OngoingSend]) -> SendReceipt:
        others = self._others
        receipt = thread.wait_for(start)
        # The loop has begun all that was given to it before, and if none of that is on its way now, all is stored.
        if self._settled is not others and not self._async._is_flying:
            self._settled = others
        return receipt

    def _run(self, call: Coroutine[Any, Any, T]) -> T:
        try:
            return super()._run(call)
        finally:
            self._others = object()

    def _not_running(self) -> str:
        return f"the producer {self.group!r} is not running; send inside `with SyncProducer(…)`"
