"""The pop consumer: brokers hand messages out one by one, and no member owns a queue (F9).

::

    consumer = PopConsumer("billing", on_order, name_servers="127.0.0.1:9876")
    consumer.subscribe("orders")
    async with consumer:
        await stopped.wait()

For the application it is like a push consumer: the same listeners, the same loops, the same ``ack`` and ``retry``.
Underneath, each member asks each broker for the next messages of any queue (``pop_source``). So a group may have more
members than a topic has queues, and a slow member holds up nothing but the messages that it has in hand. The price:
there is no order, and each message must be settled within its invisible time.

What is promised: each message is delivered at least once to the group. One that is not settled in time, because its
listener hangs or its process died, is delivered again, to the next member that asks. Leaving the block lets running
listeners end, sends the last acks, and gives back what is not settled.

A group pops a topic or it pulls it, all members alike; brokers know which. A pop consumer switches its group to pop
when it starts. What members that pulled had sent back before waits in the group's retry topic, which cannot be popped:
it is pulled, beside the pops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.acks import Acks
from ternmq.client.consume.assignment import ByBroker
from ternmq.client.consume.config import PopConfig
from ternmq.client.consume.consumer import ConsumerParts
from ternmq.client.consume.listener import ConsumeHook, Listener
from ternmq.client.consume.listening import ListeningConsumer
from ternmq.client.consume.offsets import BrokerOffsets, StartPosition
from ternmq.client.consume.pop_source import PopSource
from ternmq.client.consume.pull_source import pulls
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.source import Fetching, Source
from ternmq.env import Env
from ternmq.message import MessageQueue
from ternmq.names import is_retry_topic
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeType


class PopConsumer(ListeningConsumer):
    """Consumes the messages of a group without owning queues: brokers give the next messages to any member that asks.

    ::

        consumer = PopConsumer("billing", on_order, name_servers="127.0.0.1:9876")
        consumer.subscribe("orders")
        async with consumer:
            await stopped.wait()

    It is used as a ``PushConsumer`` is. A group may have more members than the topic has queues, and a slow member
    delays only the messages that it holds. There is no order. Each message must be acknowledged within its invisible
    time, or it is delivered again. Entering the block raises ``RequestNotSupported`` if a broker does not support pop
    (RocketMQ before 5).

    Call its methods on the event loop's thread; programs without asyncio use ``SyncPopConsumer``.

    Args:
        group: Name of the consumer group.
        listener: Function that is called with each message (with a list of messages if ``batch_max`` is above 1), and
            with a ``ConsumeContext`` if it has a second parameter. A plain function runs in threads, an ``async`` one
            in tasks. None or ``ConsumeResult.SUCCESS`` as its result means that the messages are done,
            ``ConsumeResult.RETRY`` or an exception that they must be delivered again. Default: no listener; set one
            later by ``listener()``, or loop over the consumer.
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        client: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
        config: All settings of the consumer. Those that programs set most often are also parameters here, which take
            precedence. Default: ``PopConfig()``.
        start: Where to begin in a queue of which the group has popped nothing yet: ``FIRST`` or ``LAST``.
        batch_max: How many messages one call of the listener gets at most.
        threads: How many calls of the listener may run at the same time.
        invisible_ms: How long a message is hidden from other members after it was popped, in ms.
        hooks: Objects that are called before and after each call of the listener, or around each message of a loop, in
            this order.
        trace: Whether consumed messages are traced, so that ``tern trace`` shows the path of a message: True, or
            the name of the trace topic if it is not ``RMQ_SYS_TRACE_TOPIC``.
        env: Clock, random numbers and network, for simulations in tests. Default: those of the system.
    """

    def __init__(
        self,
        group: str,
        listener: Listener | None = None,
        *,
        name_servers: str | Sequence[str] = "",
        client: ClientConfig | None = None,
        config: PopConfig | None = None,
        start: StartPosition | None = None,
        batch_max: int | None = None,
        threads: int | None = None,
        invisible_ms: int | None = None,
        hooks: Sequence[ConsumeHook] = (),
        trace: bool | str = False,
        env: Env | None = None,
    ) -> None:
        config = config or PopConfig()
        self._config = replace(
            config,
            start=start or config.start,
            batch_max=config.batch_max if batch_max is None else batch_max,
            threads=config.threads if threads is None else threads,
            invisible_ms=config.invisible_ms if invisible_ms is None else invisible_ms,
        )
        super().__init__(
            group,
            listener,
            self._config.of_listening(),
            name_servers=name_servers,
            client=client,
            hooks=hooks,
            trace=trace,
            env=env,
        )

    @property
    def config(self) -> PopConfig:
        """The settings in use."""
        return replace(self._config, threads=self._listening.threads)

    def _instance(self, group: str) -> AbstractAsyncContextManager[ClientInstance]:  # noqa: ARG002 - of its own
        # With connections of its own, which end with it: a broker gives nothing to a pop on a closed connection, but
        # it would do so for an abandoned one on an open connection.
        return ClientInstance(self._client_config, env=self._env)

    async def _parts(self, instance: ClientInstance, group: str, tasks: Tasks, stack: AsyncExitStack) -> ConsumerParts:  # noqa: ARG002
        config = self.config
        stored = BrokerOffsets(instance, group, zero_if_young=True)
        pulled = pulls(stored, BrokerOffsets(instance, group))

        def sources_of(fetching: Fetching) -> Callable[[MessageQueue], Source]:
            pull = pulled(fetching)
            return lambda queue: pull(queue) if is_retry_topic(queue.topic) else PopSource(fetching, queue, config)

        return ConsumerParts(
            ConsumeType.POP,
            ByBroker(instance, group, share_queues=config.share_queues),
            sources_of,
            progress=stored,
            resets=stored,
            save_interval_ms=instance.config.persist_offset_interval_ms,
            returns=Returns(instance, group, max_reconsume_times=config.max_reconsume_times),
            acks=Acks(instance, group, tasks),
        )
