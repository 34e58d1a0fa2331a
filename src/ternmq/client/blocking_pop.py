"""The blocking twin of ``PopConsumer``, for programs without asyncio (F9).

::

    with SyncPopConsumer("billing", on_order, name_servers="127.0.0.1:9876") as consumer:
        consumer.subscribe("orders")
        stopped.wait()

It is used as ``SyncPushConsumer`` is, also one message after the other (``for message in consumer``).
"""

from __future__ import annotations

from collections.abc import Sequence

from ternmq.client.blocking_consumer import SyncListening
from ternmq.client.config import ClientConfig
from ternmq.client.consumer_config import PopConfig
from ternmq.client.listener import ConsumeHook, Listener
from ternmq.client.offsets import StartPosition
from ternmq.client.pop import PopConsumer


class SyncPopConsumer(SyncListening):
    """``PopConsumer`` with calls that wait; arguments and errors are the same. May be used from many threads."""

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
    ) -> None:
        super().__init__(
            PopConsumer(
                group,
                listener,
                name_servers=name_servers,
                client=client,
                config=config,
                start=start,
                batch_max=batch_max,
                threads=threads,
                invisible_ms=invisible_ms,
                hooks=hooks,
            )
        )
