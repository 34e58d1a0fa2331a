"""The push consumer: messages come to the application, which says what became of them (F1, F2, F5–F8, G1).

::

    async with PushConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders", "new || paid")
        async for message in consumer:
            await bill(message.body)

or with a listener, plain or ``async``, which runs in many threads or tasks at once::

    consumer = PushConsumer("billing", on_order, name_servers="127.0.0.1:9876")
    consumer.subscribe("orders")
    async with consumer:
        await stopped.wait()

With ``orderly=True`` the listener gets the messages of each queue one after the other (F2).

"Push" is what the application sees. Underneath, each queue of this member is pulled (``pull_source``), and its lot
keeps the progress (``pull_lot``); ``consumer`` ties them to the listener or the loop.

What is promised: each message is delivered at least once to the group (in broadcasting: to each member). Progress never
passes a message that is not done, so a crash repeats some and loses none. Leaving the block lets running listeners
end, stores the progress and tells brokers, which tell the other members at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import replace

from ternmq.allocation import Allocation
from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.assignment import ByMembers, Everywhere
from ternmq.client.consume.config import PushConfig
from ternmq.client.consume.consumer import ConsumerParts
from ternmq.client.consume.given_store import GivenStore
from ternmq.client.consume.listener import ConsumeHook, Listener
from ternmq.client.consume.listening import ListeningConsumer
from ternmq.client.consume.message_filter import MessageFilter
from ternmq.client.consume.offsets import BrokerOffsets, LocalOffsets, OffsetStore, StartPosition
from ternmq.client.consume.pull_source import pulls
from ternmq.client.consume.send_back import Returns
from ternmq.env import Env
from ternmq.tasks import Tasks
from ternmq.wire.bodies.clients import ConsumeFromWhere, ConsumeType, MessageModel


class PushConsumer(ListeningConsumer):
    """Consumes the messages of a group: calls a listener with them, or gives them to a loop.

    ::

        async with PushConsumer("billing", name_servers="127.0.0.1:9876") as consumer:
            consumer.subscribe("orders", "new || paid")
            async for message in consumer:
                await bill(message.body)

    The members of a group share the queues of its topics; all of them must subscribe to the same topics with the same
    filters. Each message is delivered at least once to the group. A message that fails comes again later.

    Call its methods on the event loop's thread; programs without asyncio use ``SyncPushConsumer``.

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
            precedence. Default: ``PushConfig()``.
        model: Whether the members share the messages (``CLUSTERING``) or each gets all of them (``BROADCASTING``).
        start: Where to begin in a queue for which the group has no stored offset.
        allocation: How the members divide the queues; it must be the same for all members of the group.
        orderly: Whether the messages of a queue are consumed one after the other, in their order.
        batch_max: How many messages one call of the listener gets at most.
        threads: How many calls of the listener may run at the same time.
        message_filter: Function that is called with each fetched message, on the event loop; messages for which it
            returns False are skipped. For what ``tags`` and ``sql`` cannot express.
        offsets: Where the offsets of the group are kept, if not on the brokers: an ``OffsetStore`` of the application.
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
        config: PushConfig | None = None,
        model: MessageModel | None = None,
        start: StartPosition | None = None,
        allocation: Allocation | None = None,
        orderly: bool | None = None,
        batch_max: int | None = None,
        threads: int | None = None,
        message_filter: MessageFilter | None = None,
        offsets: OffsetStore | None = None,
        hooks: Sequence[ConsumeHook] = (),
        trace: bool | str = False,
        env: Env | None = None,
    ) -> None:
        config = config or PushConfig()
        super().__init__(
            group,
            listener,
            replace(
                config,
                model=model or config.model,
                start=start or config.start,
                allocation=allocation or config.allocation,
                orderly=config.orderly if orderly is None else orderly,
                batch_max=config.batch_max if batch_max is None else batch_max,
                threads=config.threads if threads is None else threads,
            ),
            name_servers=name_servers,
            client=client,
            hooks=hooks,
            trace=trace,
            env=env,
        )
        self._message_filter = message_filter
        self._given_store = GivenStore(offsets, self._namespace) if offsets is not None else None

    @property
    def config(self) -> PushConfig:
        """The settings in use."""
        return self._listening

    def _instance(self, group: str) -> AbstractAsyncContextManager[ClientInstance]:
        return ClientInstance.shared(self._client_config, env=self._env, consumer_group=group)

    async def _parts(self, instance: ClientInstance, group: str, tasks: Tasks, stack: AsyncExitStack) -> ConsumerParts:  # noqa: ARG002 - tasks
        config, interval_ms = self._listening, instance.config.persist_offset_interval_ms
        if config.model is MessageModel.BROADCASTING:
            own = self._given_store
            return await broadcasting_parts(instance, group, config, stack, own=own, chooses=self._message_filter)
        # A time that the application gives is taken as it is.
        is_timed = config.start.where is ConsumeFromWhere.TIMESTAMP
        stored: OffsetStore = self._given_store or BrokerOffsets(instance, group, zero_if_young=not is_timed)
        return ConsumerParts(
            ConsumeType.PASSIVELY,
            ByMembers(instance, group, config.allocation),
            pulls(stored, BrokerOffsets(instance, group), chooses=self._message_filter),
            progress=stored,
            resets=stored,
            save_interval_ms=interval_ms,
            returns=Returns(instance, group, max_reconsume_times=config.max_reconsume_times),
            locks_queues=config.orderly,
            # An orderly consumer deals with unreadable messages in their turn.
            passes_unreadable=config.orderly,
        )


async def broadcasting_parts(
    instance: ClientInstance,
    group: str,
    config: PushConfig,
    stack: AsyncExitStack,
    *,
    own: OffsetStore | None = None,
    chooses: MessageFilter | None = None,
) -> ConsumerParts:
    """The parts of a consumer that gets all messages, whatever others get, and keeps its progress in a file, or in a
    store of its ``own``."""
    # By the configured name, not by the client id: that one has a number which is new with each start.
    settings = instance.config
    owner = "@".join(filter(None, (instance.client_ip, settings.instance_name, settings.unit_name)))
    path = LocalOffsets.path_of(config.offsets_directory, owner, group)
    local: OffsetStore = own if own is not None else await stack.enter_async_context(LocalOffsets(path, group))
    return ConsumerParts(
        ConsumeType.PASSIVELY,
        Everywhere(),
        pulls(local, BrokerOffsets(instance, group), chooses=chooses),
        progress=local,
        resets=local,
        save_interval_ms=settings.persist_offset_interval_ms,
        returns=None,
        no_returns="broadcasting has no retries and no dead letters",
        passes_unreadable=config.orderly,
    )
