"""The pop consumer: brokers hand messages out one by one, and nobody owns a queue (F9).

::

    consumer = PopConsumer("billing", on_order, name_servers="127.0.0.1:9876")
    consumer.subscribe("orders")
    async with consumer:
        await stopped.wait()

For the application it is a push consumer: the same listeners, the same loop over ``messages()``, the same ``ack`` and
``retry``. Underneath, each member asks each broker for whatever comes next, in any queue. So a group may have more
members than a topic has queues, and a slow member holds up nothing but the messages that it has in hand. The price:
there is no order, and each message must be settled within its invisible time.

What is promised: each message is delivered at least once to the group. One that is not settled in time, because its
listener hangs or its process died, comes again, to whoever asks next. Leaving the block lets running listeners end,
sends the last acks, and gives back what nobody has seen.

A group pops a topic or it pulls it, all members alike; brokers know which. A pop consumer switches its group to pop
when it starts. What members that pulled had sent back before waits in the group's retry topic, which nobody pops: it is
pulled, as ever, beside the pops.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from ternmq.client.config import ClientConfig
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.consume.config import PopConfig
from ternmq.client.consume.listener import ConsumeHook, Listener
from ternmq.client.consume.member import Member
from ternmq.client.consume.offsets import Progress, StartPosition
from ternmq.client.consume.pop_member import PopMember
from ternmq.client.consume.push import PushConsumer
from ternmq.env import Env
from ternmq.tasks import Tasks


class PopConsumer(PushConsumer):
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
            later by ``listener()``, or loop over ``messages()``.
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or given as a
            sequence. Empty: the environment variable ``NAMESRV_ADDR``.
        client: Settings of the connection, of which ``name_servers`` is one. If given, ``name_servers`` is ignored.
        config: All settings of the consumer. Those that programs set most often are also parameters here, which take
            precedence. Default: ``PopConfig()``.
        start: Where to begin in a queue of which the group has popped nothing yet: ``FIRST`` or ``LAST``.
        batch_max: How many messages one call of the listener gets at most.
        threads: How many calls of the listener may run at the same time.
        invisible_ms: How long a message is hidden from other members after it was popped, in ms.
        hooks: Objects that are called before and after each call of the listener, in this order.
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
        env: Env | None = None,
    ) -> None:
        config = config or PopConfig()
        self.pop_config = replace(
            config,
            start=start or config.start,
            batch_max=config.batch_max if batch_max is None else batch_max,
            threads=config.threads if threads is None else threads,
            invisible_ms=config.invisible_ms if invisible_ms is None else invisible_ms,
        )
        super().__init__(
            group,
            listener,
            name_servers=name_servers,
            client=client,
            config=self.pop_config.of_listening(),
            hooks=hooks,
            env=env,
        )

    def _instance(self, group: str) -> AbstractAsyncContextManager[ClientInstance]:  # noqa: ARG002 - of its own
        # With connections of its own, which end with it: a broker hands nothing out to a pop on a closed connection,
        # but would do so for one that nobody waits for any more on an open one.
        return ClientInstance(self._client_config, env=self._env)

    def _member_of(self, instance: ClientInstance, group: str, progress: Progress, tasks: Tasks) -> Member:
        self._subscribe_to_retries(group)
        return PopMember(
            instance,
            group,
            self.pop_config,
            subscriptions=self._subscriptions,
            progress=progress,
            active=self._active,
            tasks=tasks,
        )
