"""The share consumer: any number of consumers take messages of a topic, and none waits for a queue (R1–R3).

::

    consumer = ShareConsumer("billing", on_order, name_servers="127.0.0.1:9876")
    consumer.subscribe("orders")
    async with consumer:
        await stopped.wait()

For the application it is like a push consumer: the same listeners, the same loops, the same ``ack`` and ``retry``.
Underneath, each member asks each broker for the next messages of any queue (``share_source``), and confirms them by
number. There is no rebalance: a member that comes gets messages with its first pull, and one that dies leaves behind
only what it held.

What is promised: each message is delivered at least once to the group. What a member did not confirm comes first when
it asks again. What a member held that died or hangs is written to the group's retry topic, for any other one. Leaving
the block lets running listeners end, confirms what is done, and gives back the rest.

On brokers of RocketMQ 5, which do not know shared consumption, messages are popped (``pop_source``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.acks import Acks
from ternmq.client.consume.assignment import ByShare
from ternmq.client.consume.config import ShareConfig
from ternmq.client.consume.consumer import ConsumerParts
from ternmq.client.consume.listener import ConsumeHook, Listener
from ternmq.client.consume.listening import ListeningConsumer
from ternmq.client.consume.offsets import BrokerOffsets, StartPosition
from ternmq.client.consume.pop_source import PopSource
from ternmq.client.consume.push import broadcasting_parts
from ternmq.client.consume.send_back import Returns
from ternmq.client.consume.share_source import ShareSource
from ternmq.client.consume.source import Fetching, Source
from ternmq.env import Env
from ternmq.message import MessageQueue
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeType, MessageModel


class ShareConsumer(ListeningConsumer):
    """Consumes the messages of a group together with any number of other consumers, without rebalance.

    ::

        consumer = ShareConsumer("billing", on_order, name_servers="127.0.0.1:9876")
        consumer.subscribe("orders")
        async with consumer:
            await stopped.wait()

    It is used as a ``PushConsumer`` is. A group may have more members than the topic has queues, and a slow member
    delays only the messages that it holds. What a member does not confirm comes first when it asks again; what a dead
    member held is delivered to others. Entering the block raises ``RequestNotSupported`` if a broker supports neither
    shared consumption nor pop (RocketMQ before 5).

    Call its methods on the event loop's thread; programs without asyncio use ``SyncShareConsumer``.

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
            precedence. Default: ``ShareConfig()``.
        model: Whether the members share the messages (``CLUSTERING``) or each gets all of them (``BROADCASTING``).
        start: Where to begin in a queue of which the group has consumed nothing yet: ``FIRST`` or ``LAST``.
        consumer: The name of this consumer, unique in its group; with a fixed name, a consumer that is started again
            gets first what it did not confirm.
        ordered: Whether the messages of one key are consumed one after the other, by one consumer at a time.
        batch_max: How many messages one call of the listener gets at most.
        threads: How many calls of the listener may run at the same time.
        hold_ms: How long the consumer may take for a message before another one gets it, in ms; 0: no limit.
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
        config: ShareConfig | None = None,
        model: MessageModel | None = None,
        start: StartPosition | None = None,
        consumer: str | None = None,
        ordered: bool | None = None,
        batch_max: int | None = None,
        threads: int | None = None,
        hold_ms: int | None = None,
        hooks: Sequence[ConsumeHook] = (),
        trace: bool | str = False,
        env: Env | None = None,
    ) -> None:
        config = config or ShareConfig()
        self._config = replace(
            config,
            model=model or config.model,
            start=start or config.start,
            consumer=config.consumer if consumer is None else consumer,
            ordered=config.ordered if ordered is None else ordered,
            batch_max=config.batch_max if batch_max is None else batch_max,
            threads=config.threads if threads is None else threads,
            hold_ms=config.hold_ms if hold_ms is None else hold_ms,
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
    def config(self) -> ShareConfig:
        """The settings in use."""
        return replace(self._config, threads=self._listening.threads)

    def _instance(self, group: str) -> AbstractAsyncContextManager[ClientInstance]:  # noqa: ARG002 - of its own
        # With a client id of its own, by which brokers know the consumer, and connections that end with it.
        return ClientInstance(self._client_config, env=self._env)

    async def _parts(self, instance: ClientInstance, group: str, tasks: Tasks, stack: AsyncExitStack) -> ConsumerParts:
        config = self.config
        if config.model is MessageModel.BROADCASTING:
            return await broadcasting_parts(instance, group, self._listening, stack)
        name = config.consumer or instance.client_id
        assignment = ByShare(instance, group, consumer=name, ordered=config.ordered)
        popping = config.of_popping()

        def sources_of(fetching: Fetching) -> Callable[[MessageQueue], Source]:
            def make(queue: MessageQueue) -> Source:
                if assignment.is_popped(queue.broker_name):
                    return PopSource(fetching, queue, popping)
                return ShareSource(fetching, queue, config, name)

            return make

        stored = BrokerOffsets(instance, group)
        return ConsumerParts(
            ConsumeType.POP,
            assignment,
            sources_of,
            progress=stored,
            resets=stored,
            save_interval_ms=None,
            returns=Returns(instance, group, max_reconsume_times=config.max_reconsume_times),
            acks=Acks(instance, group, tasks),
            # An ordered consumer deals with unreadable messages in their turn.
            passes_unreadable=config.ordered,
        )
