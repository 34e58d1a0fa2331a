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
from ternmq.client.consumer import PushConsumer
from ternmq.client.consumer_config import PopConfig
from ternmq.client.instance import ClientInstance
from ternmq.client.listener import ConsumeHook, Listener
from ternmq.client.member import Member
from ternmq.client.offsets import Progress, StartPosition
from ternmq.client.pop_member import PopMember
from ternmq.env import Env
from ternmq.tasks import Tasks


class PopConsumer(PushConsumer):
    """Pops the messages of a group. All methods belong to the loop's thread; for threads there is ``SyncPopConsumer``.

    ``start``, ``batch_max``, ``threads`` and ``invisible_ms`` are what most programs want to set; ``pop_config`` has
    all. Entering its block raises ``RequestNotSupported`` where a broker does not know pop (RocketMQ before 5).
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
