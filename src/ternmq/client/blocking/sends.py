"""The methods of ``SyncProducer`` that are not derived from ``Producer``."""

from __future__ import annotations

from concurrent.futures import Future

from ternmq.client.blocking.base import SyncClient
from ternmq.client.blocking.loop_thread import ThreadsResult
from ternmq.client.blocking.transaction import SyncTransaction
from ternmq.client.send.ongoing import OngoingSend
from ternmq.client.send.producer import Producer
from ternmq.client.send.queue_choice import Selector
from ternmq.client.send.validate import check_message
from ternmq.message import Message, MessageQueue, SendReceipt


class SyncSending(SyncClient[Producer]):
    """The base of ``SyncProducer``."""

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
        begin = producer._begin  # noqa: SLF001 - what `send` awaits, and not for applications

        def start(receipt: ThreadsResult[SendReceipt]) -> OngoingSend:
            return begin(message, receipt, queue, selector, timeout_ms)

        return thread.wait_for(start)

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
        return thread.start(
            lambda: self._async.send_nowait(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )

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

    def _not_running(self) -> str:
        return f"the producer {self.group!r} is not running; send inside `with SyncProducer(…)`"
