"""Settings of a name server, by RocketMQ's names in snake_case (T2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.errors import ConfigError

#: What UPDATE_NAMESRV_CONFIG may change in a server that runs; the rest needs a restart.
CHANGEABLE: Final = frozenset({"order_message_enable"})


@dataclass(slots=True, frozen=True)
class NamesrvConfig:
    """One name server. Raises ``ConfigError`` that names the setting and what it may be."""

    #: 0 takes any free port.
    listen_port: int = 9876
    bind_address: str = "0.0.0.0"  # noqa: S104 - name servers serve the network; bind_address narrows it
    #: Where the settings of PUT_KV_CONFIG are kept (A5). None: in memory only.
    kv_config_path: Path | None = None
    #: Whether routes carry the queues of ordered topics from the namespace ORDER_TOPIC_CONFIG.
    order_message_enable: bool = False
    #: How often silent brokers are looked for, in ms (A3).
    scan_not_active_broker_interval: int = 10_000
    #: Requests that may wait before others are told SYSTEM_BUSY.
    default_thread_pool_queue_capacity: int = 10_000

    def __post_init__(self) -> None:
        for key, value, least, most in (
            ("listenPort", self.listen_port, 0, 65_535),
            ("scanNotActiveBrokerInterval", self.scan_not_active_broker_interval, 100, 120_000),
            ("defaultThreadPoolQueueCapacity", self.default_thread_pool_queue_capacity, 1, 1_000_000),
        ):
            if not least <= value <= most:
                raise ConfigError(f"{key} = {value} is out of range; set it to {least} … {most}")
