"""Producers: send messages and wait for the broker's word, or not (E1–E8).

::

    async with Producer("shop", name_servers="127.0.0.1:9876") as producer:
        receipt = await producer.send(Message("orders", b"one book", tags="new", keys="order-1"))

What is promised: when ``send`` returns a receipt with status OK, the broker has the message as safely as its flush and
replication modes say. When it raises, the message may be stored all the same (the answer may have been lost), and a
send that was tried twice may be stored twice; consumers tell copies by ``message_id``. Messages that go to one queue
are stored in the order of their sends, if each is awaited before the next.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Final, Self

from ternmq.client.config import COMPRESSIONS, ClientConfig, ProducerConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.connect.namespace import wrap
from ternmq.client.connect.routes import TopicRoute
from ternmq.client.send.batch import BatchKey
from ternmq.client.send.checks import Checker, Checks, check_checker
from ternmq.client.send.gatherer import Gatherer
from ternmq.client.send.hooks import SendHook, added, adders
from ternmq.client.send.ongoing import OngoingSend, Pick, Promise, Retry
from ternmq.client.send.outgoing import Outgoing, pack_batch, prepare, prepare_plain, shrink, split_receipt
from ternmq.client.send.queue_choice import Selector, by_sharding_key
from ternmq.client.send.recall import recall
from ternmq.client.send.request import Requester, reply_properties, to_reply
from ternmq.client.send.sender import Sender
from ternmq.client.send.thread_send import ThreadSend
from ternmq.client.send.transaction import Transaction, transaction_properties
from ternmq.client.send.validate import check_message, check_queue, check_transaction
from ternmq.client.trace.hooks import TraceSends
from ternmq.client.trace.outbox import TraceCounts, TraceOutbox, outbox, trace_topic
from ternmq.env import Env
from ternmq.errors import ConfigError, NotRunning, TernError
from ternmq.message import Message, MessageQueue, Property, ReceivedMessage, SendReceipt
from ternmq.names import AUTO_CREATE_TOPIC, RETRY_PREFIX, check_group, check_topic
from ternmq.tasks import Tasks
from ternmq.wire.compress import compress
from ternmq.wire.ids import UniqueIds
from ternmq.wire.record import Sysflag

log = logging.getLogger(__name__)

#: How long a request waits for its reply.
REQUEST_TIMEOUT_MS: Final = 3_000


class Producer:
    """Sends messages.

    ::

        async with Producer("shop", name_servers="127.0.0.1:9876") as producer:
            receipt = await producer.send(Message("orders", b"one book", tags="new", keys="order-1"))

    When ``send`` returns a receipt with status OK, the broker has stored the message, as safely as its flush and
    replication modes say. When it raises, the message may have been stored nevertheless.

    Call its methods on the event loop's thread; programs without asyncio use ``SyncProducer``.

    Args:
        group: Name of the producer group, usually the name of the application. Brokers list producers by it.
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        client: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
            Clients with equal settings share connections.
        config: Settings of the producer: time-outs, retries, compression, batches. Default: ``ProducerConfig()``.
        hooks: Objects that are called before and after each attempt to send, in this order.
        trace: Whether sends and ends of transactions are traced, so that ``tern trace`` shows the path of a message:
            True, or the name of the trace topic if it is not ``RMQ_SYS_TRACE_TOPIC``.
        checker: For transactions: a function, plain or ``async``, that is given the message of a transaction that was
            not ended, and returns an ``Outcome``. Plain functions run in threads. Needed for ``transaction``.
        topics: Topics of its transactions. Their brokers learn of this producer when it starts, so that it is asked
            about transactions that an earlier process has left, also before it sends to these topics itself.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self,
        group: str,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        config: ProducerConfig | None = None,
        hooks: Sequence[SendHook] = (),
        trace: bool | str = False,
        checker: Checker | None = None,
        topics: Sequence[str] = (),
        env: Env | None = None,
    ) -> None:
        self.group = check_group(group)
        self.config = config or ProducerConfig()
        self._client = client or ClientConfig(name_servers)
        self._namespace = self._client.namespace
        self._hooks = tuple(hooks)
        self._adders = adders(self._hooks)
        self._trace_topic = trace_topic(trace)
        self._traces: TraceOutbox | None = None
        if checker is not None:
            check_checker(checker)
        self._checker = checker
        # A text is a sequence, too, of topics of one letter.
        self._topics = (check_topic(topics),) if isinstance(topics, str) else tuple(map(check_topic, topics))
        self._env = env
        self._compression = COMPRESSIONS[self.config.compression]
        # A missing package shows now, not with the first large message.
        compress(b"", self._compression)
        self._running: _RunningProducer | None = None

    def __repr__(self) -> str:
        return f"<Producer {self.group}>"

    async def __aenter__(self) -> Self:
        stack = AsyncExitStack()
        instance = await stack.enter_async_context(ClientInstance.shared(self._client, env=self._env))
        tasks = await stack.enter_async_context(Tasks())
        group = wrap(self._namespace, self.group)
        hooks = self._hooks
        if self._trace_topic:
            self._traces = traces = await stack.enter_async_context(
                outbox(self._trace_topic, self._client, self.group, kind="PRODUCE", env=self._env)
            )
            hooks = (*hooks, TraceSends(traces, namespace=self._namespace))
        self._running = running = _RunningProducer(Sender(instance, group, self.config, hooks), tasks, stack)
        if self.config.auto_batch:
            running.gatherer = Gatherer(self.config, self._send_together)
        instance.register_producer(group)
        if self._checker is not None:
            running.checks = Checks(
                self._checker,
                tasks,
                group=self.group,
                namespace=self._namespace,
                timeout_ms=self.config.check_timeout_ms,
                hooks=hooks,
            )
            instance.checks.add(group, running.checks)
            tasks.create_task(self._be_known(instance))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for what is on its way, at most for its time-out; then tell the brokers and leave."""
        running = self._now_running()
        try:
            if running.gatherer is not None:
                running.gatherer.flush()
            # What a broker refused as a batch goes again, message by message.
            while pending := [receipt for receipt in running.sender.flying.values() if not receipt.done()]:
                await asyncio.wait(pending)
        finally:
            self._running = None
            if running.checks is not None:
                running.sender.instance.checks.remove(wrap(self._namespace, self.group), running.checks)
                running.checks.close()
            for send in list(running.sender.flying):
                send.abandon()
            running.sender.close()
            await running.sender.instance.unregister_producer(wrap(self._namespace, self.group))
            await running.stack.aclose()

    # --- Sending ---------------------------------------------------------------------------------------------

    async def send(
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

            receipt = await producer.send(Message("orders", b"paid", sharding_key="order-1"))
            print(receipt.message_id, receipt.queue, receipt.queue_offset)
        """
        running = self._running or self._now_running()
        if running.gatherer is not None:
            timeout_ms = timeout_ms or self.config.send_timeout_ms
            check_message(message, body_bytes_max=self.config.body_bytes_max)
            if _can_gather(message):
                pick = self._pick(message, queue, selector)
                if pick is not None:
                    queue = pick(await self._route(message.topic, timeout_ms))
                return await running.gatherer.add(message, queue, timeout_ms)
        # As ``Sender.deliver``, without a coroutine of its own for each message.
        receipt: asyncio.Future[SendReceipt] = asyncio.get_running_loop().create_future()
        sending = self._begin(message, receipt, queue, selector, timeout_ms)
        try:
            return await receipt
        except asyncio.CancelledError:
            sending.abandon()
            raise

    def send_nowait(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
    ) -> asyncio.Future[SendReceipt]:
        """Send a ``message`` and return at once; the future gets the receipt or the error.

        ``queue``, ``selector`` and ``timeout_ms`` are those of ``send``. Many such sends share a connection without
        waiting for each other. At most ``async_bytes_max`` may be on their way; beyond that ``TooManyCalls`` is raised,
        and awaiting some of the futures makes room. Leaving the producer's block waits for all of them. Raises
        ``InvalidMessage`` and ``InvalidName`` at once.

        ::

            receipts = await asyncio.gather(*map(producer.send_nowait, messages))

            producer.send_nowait(message).add_done_callback(lambda sent: print(sent.result().message_id))
        """
        running = self._now_running()
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        if running.gatherer is not None:
            check_message(message, body_bytes_max=self.config.body_bytes_max)
            if _can_gather(message):
                pick = self._pick(message, queue, selector)
                route = running.sender.instance.routes.known(wrap(self._namespace, message.topic))
                if pick is None or (route is not None and route.to_write):
                    chosen = pick(route) if pick is not None and route is not None else None
                    running.sender.check_room(len(message.body), held_bytes=running.gatherer.held_bytes)
                    return running.gatherer.add(message, chosen, timeout_ms)
        outgoing = self._checked(running.sender, message)
        pick = None
        if queue is not None or selector is not None or message.sharding_key:
            pick = self._pick(message, queue, selector)
        running.sender.check_room(len(outgoing.body))
        return running.sender.start(outgoing, pick=pick, timeout_ms=timeout_ms)

    async def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None
    ) -> None:
        """Send a ``message`` without asking for an answer: fast, but a message that gets lost causes no error.

        ``queue`` and ``selector`` are those of ``send``. Waits only for a route and a connection, and while the broker
        does not read. Raises ``InvalidMessage`` and, when no broker can be reached, what ``send`` raises.

        ::

            await producer.send_oneway(Message("clicks", b"…"))
        """
        sender = self._now_running().sender
        check_message(message, body_bytes_max=self.config.body_bytes_max)
        pick = self._pick(message, queue, selector)
        outgoing = self._prepare(sender, message)
        await sender.deliver_oneway(outgoing, pick=pick, timeout_ms=self.config.send_timeout_ms)

    async def send_batch(
        self, messages: Sequence[Message], *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> list[SendReceipt]:
        """Send ``messages`` of one topic in one request and return a receipt for each, in the same order.

        They get consecutive queue offsets in one queue. ``queue`` chooses it, ``timeout_ms`` is the limit for all
        attempts together. All messages must have the same ``wait_store_ok``, none a delay, and together they must fit
        ``body_bytes_max`` (``split_batch`` cuts longer lists).

        ::

            for part in split_batch(messages):
                receipts = await producer.send_batch(part)
                print(receipts[0].queue, receipts[0].queue_offset)
        """
        sender = self._now_running().sender
        outgoing = self._pack_batch(sender, messages)
        pick = self._pick(messages[0], queue, None) if queue is not None else None
        receipt = await sender.deliver(outgoing, pick=pick, timeout_ms=timeout_ms or self.config.send_timeout_ms)
        return split_receipt(receipt)

    async def recall(self, handle: str, *, timeout_ms: int | None = None) -> str:
        """Take a message back before its delivery time; returns its message id. Consumers will never get it.

        ``handle`` is the ``recall_handle`` of its receipt. ``timeout_ms`` is the limit for the call. Raises
        ``IllegalOperation`` if the message does not wait any more (it was delivered, or recalled before),
        ``InvalidHandle`` for a text that is no handle, and ``RouteMissing``, ``BrokerRefused`` or ``NetworkError``.

        ::

            receipt = await producer.send(Message("reminders", b"pay", delay=timedelta(hours=2)))
            await producer.recall(receipt.recall_handle)
        """
        sender = self._now_running().sender
        return await recall(sender, handle, group=self.group, timeout_ms=timeout_ms or self.config.send_timeout_ms)

    # --- Request–reply (E7) ----------------------------------------------------------------------------------

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int = REQUEST_TIMEOUT_MS,
    ) -> ReceivedMessage:
        """Send a ``message`` and wait until its consumer has replied; ``timeout_ms`` is the limit for both.

        ``queue`` and ``selector`` are those of ``send``. Raises ``RequestTimeout`` when no reply comes in time,
        ``CorruptRecord`` for a reply whose body cannot be decompressed, and what ``send`` raises.

        ::

            reply = await producer.request(Message("sums", b"2 + 2"))
            print(reply.body)
        """
        running = self._now_running()
        check_message(message, body_bytes_max=self.config.body_bytes_max)
        pick = self._pick(message, queue, selector)
        system = running.requester.properties(timeout_ms)
        outgoing = self._prepare(running.sender, message, system)
        correlation_id = system[Property.CORRELATION_ID]
        return await running.requester.request(outgoing, correlation_id, pick=pick, timeout_ms=timeout_ms)

    async def reply(
        self,
        request: ReceivedMessage,
        body: bytes,
        *,
        properties: dict[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> SendReceipt:
        """Answer a consumed ``request`` with a ``body`` and ``properties``. Returns when the requester has the reply.

        Any producer can reply. ``timeout_ms`` is the limit for all attempts. Raises ``InvalidMessage`` for a message
        that is no request (``message.is_request``), ``SystemFailure`` when the requester has left, and what ``send``
        raises.

        ::

            async for message in consumer:
                await producer.reply(message, b"4")
        """
        running = self._now_running()
        message = to_reply(request, body, properties or {})
        check_message(message, body_bytes_max=self.config.body_bytes_max)
        # The reply topic belongs to a cluster, not to a namespace.
        outgoing = self._prepare(running.sender, message, reply_properties(request), namespace="")
        outgoing.is_reply = True
        timeout_ms = timeout_ms or self.config.send_timeout_ms
        return await running.requester.reply(outgoing, request.broker_name, timeout_ms=timeout_ms)

    # --- Transactions (J1, J2) -------------------------------------------------------------------------------

    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: Selector | None = None,
        timeout_ms: int | None = None,
        check_after_s: int | None = None,
    ) -> Transaction:
        """A ``message`` that is delivered if and only if the local work of the block is committed.

        Entering the block sends the message, which no consumer sees yet. The end of the block commits it, an exception
        rolls it back. When the program dies in between, brokers ask the ``checker`` of any producer of this group,
        first after 6 s or ``check_after_s``. The local work must be noted with ``tx.id`` where the checker finds it.

        ``queue`` and ``selector`` are those of ``send``; ``timeout_ms`` is the limit for the begin, and again for the
        end. Raises ``ConfigError`` without a ``checker`` and ``InvalidMessage`` for a message with a delay at once.
        Entering raises what ``send`` raises; the end raises ``TransactionUncertain`` when the broker cannot be told,
        and then the checker decides.

        ::

            async with producer.transaction(Message("orders", b"paid")) as tx:
                await database.pay(order, transaction_id=tx.id)
        """
        running = self._now_running()
        if running.checks is None:
            raise ConfigError(
                f"the producer {self.group!r} has no checker, which transactions need; give it one: "
                "Producer(…, checker=…)"
            )
        check_message(message, body_bytes_max=self.config.body_bytes_max)
        check_transaction(message, check_after_s)
        group = wrap(self._namespace, self.group)
        system = transaction_properties(group, check_after_s)
        return Transaction(
            message,
            sender=running.sender,
            group=group,
            checks=running.checks,
            prepare=lambda: self._prepare(running.sender, message, system, sysflag=Sysflag.PREPARED),
            pick=self._pick(message, queue, selector),
            timeout_ms=timeout_ms or self.config.send_timeout_ms,
        )

    async def _be_known(self, instance: ClientInstance) -> None:
        """Ask for the routes of the topics of transactions, until they are known: heartbeats go to their brokers."""
        topics = [wrap(self._namespace, topic) for topic in self._topics] or [AUTO_CREATE_TOPIC]
        while topics:
            for topic in list(topics):
                # A topic without a route may get one when its broker is back, with open transactions.
                try:
                    await instance.routes.of(topic)
                    topics.remove(topic)
                except TernError as error:
                    log.info("cannot find the brokers of topic %s yet: %s", topic, error)
            if topics:
                await asyncio.sleep(self._client.poll_name_server_interval_ms / 1000)
        await instance.heartbeat()

    async def send_prepared(
        self, outgoing: Outgoing, *, queue: MessageQueue | None = None, timeout_ms: int | None = None
    ) -> SendReceipt:
        """Send an ``outgoing`` message that ``outgoing.prepare`` made, for features whose messages carry system
        properties or an id of their own. ``queue`` chooses where it goes, ``timeout_ms`` is the limit for all attempts.
        """
        sender = self._now_running().sender
        pick = self._pick(outgoing.messages[0], queue, None) if queue is not None else None
        return await sender.deliver(outgoing, pick=pick, timeout_ms=timeout_ms or self.config.send_timeout_ms)

    async def queues(self, topic: str) -> list[MessageQueue]:
        """The queues of ``topic`` that can be written to, in the order that selectors see.

        ::

            first, *_ = await producer.queues("orders")
            await producer.send(Message("orders", b"…"), queue=first)
        """
        route = await self._route(topic, self.config.send_timeout_ms)
        return _as_seen(route, topic)

    @property
    def traces(self) -> TraceCounts:
        """How many trace records were sent, and how many dropped; zeros without ``trace``."""
        return TraceCounts() if self._traces is None else self._traces.counts

    # --- Parts -----------------------------------------------------------------------------------------------

    def _begin(
        self,
        message: Message,
        receipt: Promise,
        queue: MessageQueue | None,
        selector: Selector | None,
        timeout_ms: int | None,
    ) -> OngoingSend:
        """Send a message as it is, without automatic batches; who waits for the ``receipt`` may abandon it."""
        sender = (self._running or self._now_running()).sender
        outgoing = self._checked(sender, message)
        pick = None
        if queue is not None or selector is not None or message.sharding_key:
            pick = self._pick(message, queue, selector)
        return sender.begin(outgoing, receipt, pick, timeout_ms or self.config.send_timeout_ms)

    def _thread_send(self, message: Message, queue: MessageQueue | None, timeout_ms: int | None) -> ThreadSend | None:
        """A send that its thread, any one, may begin by itself; None if it is for the loop. Raises ``InvalidMessage``
        and ``InvalidName``."""
        sender = (self._running or self._now_running()).sender
        if sender.is_loops_only:
            return None
        outgoing = self._checked(sender, message, sender.instance.threads_ids)
        pick = None
        if queue is not None or message.sharding_key:
            pick = self._pick(message, queue, None)
        return ThreadSend(sender, outgoing, pick=pick, timeout_ms=timeout_ms or self.config.send_timeout_ms)

    def _thread_batch(
        self, messages: Sequence[Message], queue: MessageQueue | None, timeout_ms: int | None
    ) -> ThreadSend | None:
        """The same of a batch."""
        sender = self._now_running().sender
        if sender.is_loops_only:
            return None
        outgoing = self._pack_batch(sender, messages, sender.instance.threads_ids)
        pick = self._pick(messages[0], queue, None) if queue is not None else None
        return ThreadSend(sender, outgoing, pick=pick, timeout_ms=timeout_ms or self.config.send_timeout_ms)

    @property
    def _is_flying(self) -> bool:
        """Whether sends without waiting have no answer yet; for any thread."""
        running = self._running
        return running is not None and bool(running.sender.flying)

    def _now_running(self) -> _RunningProducer:
        if self._running is None:
            raise NotRunning(f"the producer {self.group!r} is not running; send inside `async with Producer(…)`")
        return self._running

    async def _route(self, topic: str, timeout_ms: int) -> TopicRoute:
        sender = self._now_running().sender
        name = wrap(self._namespace, topic)
        route = sender.instance.routes.known(name)
        if route is None or not route.to_write:
            route = await sender.route(name, timeout_ms=timeout_ms)
        return route

    def _pick(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> Pick | None:
        """What fixes the queue of a message: the caller's queue, the caller's selector, or the message's key."""
        if queue is not None:
            check_queue(message, queue)
            return lambda _: queue
        if selector is None:
            if not message.sharding_key:
                return None
            selector = by_sharding_key

        def pick(route: TopicRoute) -> MessageQueue:
            chosen = selector(_as_seen(route, message.topic), message)
            if not isinstance(chosen, MessageQueue):
                # Without a return, it gives None, which would mean any queue.
                raise TypeError(f"the selector returned {chosen!r}: expected one of the queues that it was given")
            return chosen

        return pick

    def _checked(self, sender: Sender, message: Message, ids: UniqueIds | None = None) -> Outgoing:
        """Check a message and make it ready. ``ids`` gives its id, if this is not the loop's thread."""
        bytes_max = self.config.body_bytes_max
        if ids is None:
            ids = sender.instance.unique_ids
        if not self._adders:
            outgoing = prepare_plain(message, ids, namespace=self._namespace, body_bytes_max=bytes_max)
            if outgoing is not None:
                if len(message.body) >= self.config.compress_from_bytes:
                    shrink(outgoing, kind=self._compression, level=self.config.compress_level)
                return outgoing
        check_message(message, body_bytes_max=bytes_max)
        return self._prepare(sender, message, ids=ids)

    def _prepare(
        self,
        sender: Sender,
        message: Message,
        system: Mapping[str, str] | None = None,
        *,
        namespace: str | None = None,
        sysflag: int = 0,
        ids: UniqueIds | None = None,
    ) -> Outgoing:
        if self._adders:
            system = {**added(self._adders, message), **(system or {})}
        outgoing = prepare(
            message,
            message_id=(ids or sender.instance.unique_ids).next(),
            namespace=self._namespace if namespace is None else namespace,
            system=system,
            sysflag=sysflag,
        )
        if len(message.body) >= self.config.compress_from_bytes:
            shrink(outgoing, kind=self._compression, level=self.config.compress_level)
        return outgoing

    def _pack_batch(self, sender: Sender, messages: Sequence[Message], ids: UniqueIds | None = None) -> Outgoing:
        return pack_batch(
            messages,
            ids or sender.instance.unique_ids,
            namespace=self._namespace,
            body_bytes_max=self.config.body_bytes_max,
            more=[added(self._adders, message) for message in messages] if self._adders else None,
        )

    def _send_together(
        self, messages: Sequence[Message], key: BatchKey, timeout_ms: int
    ) -> asyncio.Future[SendReceipt]:
        """Send what the gatherer has gathered. There is room: who awaits a send is not refused, and for others
        ``send_nowait`` has looked."""
        sender = self._now_running().sender
        pick = None if key.queue is None else self._pick(messages[0], key.queue, None)
        outgoing = self._prepare(sender, messages[0]) if len(messages) == 1 else self._pack_batch(sender, messages)
        # Most were sent by callers that wait, and what has no order may go to another broker.
        return sender.start(outgoing, pick=pick, timeout_ms=timeout_ms, retry=Retry.OTHER_BROKER)


class _RunningProducer:
    """What a producer has between its start and its end."""

    __slots__ = ("checks", "gatherer", "requester", "sender", "stack")

    def __init__(self, sender: Sender, tasks: Tasks, stack: AsyncExitStack) -> None:
        self.sender = sender
        self.stack = stack
        self.requester = Requester(sender, tasks)
        self.gatherer: Gatherer | None = None
        #: Without a checker, None.
        self.checks: Checks | None = None


def _as_seen(route: TopicRoute, topic: str) -> list[MessageQueue]:
    """The queues to write to, with the topic's name as the application knows it."""
    return [queue._replace(topic=topic) for queue in route.to_write] if route.topic != topic else list(route.to_write)


def _can_gather(message: Message) -> bool:
    return not message.is_delayed and not message.topic.startswith(RETRY_PREFIX)
