"""Settings of a name server, by RocketMQ's names in snake_case (T2)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ternmq.auth.config import AccessConfig
from ternmq.errors import ConfigError
from ternmq.namesrv.kv import BYTES_MAX
from ternmq.namesrv.registry import BROKERS_MAX
from ternmq.namesrv.registry import BYTES_MAX as TOPIC_BYTES_MAX

#: Settings that UPDATE_NAMESRV_CONFIG may change at run time; the others need a restart.
CHANGEABLE: Final = frozenset({"delete_topic_with_broker_registration", "order_message_enable"})
#: Beside ``kvConfig.json``, what was changed at run time is in ``kvConfig.settings.properties``: two name servers whose
#: files are in one directory have a file each.
CHANGES_SUFFIX: Final = ".settings.properties"
#: Default file of a stand-alone name server: the same as RocketMQ's.
KV_CONFIG_PATH: Final = Path("~/namesrv/kvConfig.json")


@dataclass(slots=True, frozen=True)
class NamesrvConfig(AccessConfig):
    """One name server. Raises ``ConfigError`` that names the setting and the allowed values.

    Access control and the limits of its connections are in ``AccessConfig``.
    """

    #: 0: any free port.
    listen_port: int = 9876
    bind_address: str = "0.0.0.0"  # noqa: S104 - name servers serve the network; bind_address narrows it
    #: Port of ``/healthz``, ``/readyz`` and ``/metrics`` (T4); 0: none. Needs the extra ``http``.
    http_port: int = 0
    #: Where the settings of PUT_KV_CONFIG are kept (A5), and beside it what was changed at run time (T2). None: in
    #: memory only, as in an embedded cluster.
    kv_config_path: Path | None = None
    #: Bytes of all these settings; at most half a frame, because the settings of ordered topics are sent in the reply
    #: to each broker that registers.
    max_kv_config_bytes: int = BYTES_MAX
    #: Brokers that may be registered, and bytes that their topics may take: an estimate of 400 bytes plus the name
    #: for each topic on each broker.
    max_brokers: int = BROKERS_MAX
    max_topic_bytes: int = TOPIC_BYTES_MAX
    #: Whether a registration without a topic removes the broker's queues of that topic (A5). If off, a topic is removed
    #: only with its last broker or by DELETE_TOPIC_IN_NAMESRV.
    delete_topic_with_broker_registration: bool = False
    #: Whether routes contain the queues of ordered topics from the namespace ORDER_TOPIC_CONFIG.
    order_message_enable: bool = False
    #: How often the name server checks for silent brokers, in ms (A3).
    scan_not_active_broker_interval: int = 10_000
    #: Requests that may wait; further ones are refused with SYSTEM_BUSY.
    default_thread_pool_queue_capacity: int = 10_000

    def __post_init__(self) -> None:
        AccessConfig.__post_init__(self)
        for key, value, least, most in (
            ("listenPort", self.listen_port, 0, 65_535),
            ("httpPort", self.http_port, 0, 65_535),
            ("scanNotActiveBrokerInterval", self.scan_not_active_broker_interval, 100, 120_000),
            ("maxBrokers", self.max_brokers, 1, 1_000_000),
            ("maxTopicBytes", self.max_topic_bytes, 1 << 20, 1 << 40),
            ("maxKvConfigBytes", self.max_kv_config_bytes, 1, 1 << 30),
            ("defaultThreadPoolQueueCapacity", self.default_thread_pool_queue_capacity, 1, 1_000_000),
        ):
            if not least <= value <= most:
                raise ConfigError(f"invalid {key} {value}: expected {least} to {most}")
