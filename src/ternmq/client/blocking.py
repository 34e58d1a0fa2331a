"""The blocking twin of ``Producer``, for programs without asyncio (E1–E7).

::

    with SyncProducer("shop", name_servers="127.0.0.1:9876") as producer:
        receipt = producer.send(Message("orders", b"one book"))

All blocking clients of a process share one loop in one thread (``loop_thread``) and, with equal settings, connections
too. A producer may be used from many threads at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from ternmq.client.blocking_twin import BlockingTwin
from ternmq.client.config import ClientConfig, ProducerConfig
from ternmq.client.hooks import SendHook
from ternmq.client.producer import REQUEST_TIMEOUT_MS, Producer
from ternmq.client.queue_choice import Selector
from ternmq.client.validate import check_message
from ternmq.message import Message, MessageQueue, ReceivedMessage, SendReceipt


class SyncProducer(BlockingTwin):
    """Sends messages from threads: ``Producer`` with calls that wait. Arguments and errors are the same.

    Hooks and selectors run on the loop's thread and must not block.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        config: ProducerConfig | None = None,
        hooks: Sequence[SendHook] = (),
    ) -> None:
        self._producer = Producer(group, name_servers=name_servers, client=client, config=config, hooks=hooks)
        super().__init__(self._producer)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Send a message and wait until the broker has it; see ``Producer.send``.

        ::

            receipt = producer.send(Message("orders", b"paid", sharding_key="order-1"))
        """
        return self._run(self._producer.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms))

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> Future[SendReceipt]:
        """Send a message and return at once; the future gets the receipt or the error; see ``Producer.send_nowait``.

        Its callbacks run on the loop's thread: they must be short, and cannot make blocking calls.

        ::

            sent = [producer.send_nowait(message) for message in messages]
            receipts = [future.result() for future in sent]
        """
        thread = self._open_thread()
        check_message(message, body_bytes_max=self._producer.config.body_bytes_max)
        return thread.start(
            lambda: self._producer.send_nowait(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a message without asking for an answer; see ``Producer.send_oneway``.

        ::

            producer.send_oneway(Message("clicks", b"…"))
        """
        self._run(self._producer.send_oneway(message, queue=queue, selector=selector))

    def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send messages of one topic in one request; see ``Producer.send_batch``.

        ::

            for part in split_batch(messages):
                producer.send_batch(part)
        """
        return self._run(self._producer.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> ReceivedMessage:
        """Send a message and wait until whoever consumes it has replied; see ``Producer.request``.

        ::

            reply = producer.request(Message("sums", b"2 + 2"))
        """
        return self._run(self._producer.request(message, queue=queue, selector=selector, timeout_ms=timeout_ms))

    def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: dict[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Answer a request that was consumed; see ``Producer.reply``.

        ::

            for message in consumer:
                producer.reply(message, b"4")
        """
        return self._run(self._producer.reply(request, body, properties=properties, timeout_ms=timeout_ms))

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of a topic that can be written to; see ``Producer.queues``."""
        return self._run(self._producer.queues(topic))

    def _not_running(self) -> str:
        return f"the producer {self.group!r} is not running; send inside `with SyncProducer(…)`"
