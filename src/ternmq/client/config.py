"""Settings of clients (``ClientConfig``) and of producers (``ProducerConfig``); consumers' stand with them.

One ``ClientConfig`` makes one ``ClientInstance`` per event loop, shared by the producers and consumers that were given
an equal one: they share connections, routes and heartbeats. Defaults are those of RocketMQ's ``ClientConfig`` and
``DefaultMQProducer``. Spec: A4, A6, B1, D3, E1, E3, E4, E6.
"""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from ternmq.errors import ConfigError
from ternmq.net.dial import split_address
from ternmq.wire.codes import BINARY, JSON, ResponseCode
from ternmq.wire.record import Sysflag

#: RocketMQ's name for «make one up»: such a client is called by its process id and a number of its own.
DEFAULT_INSTANCE: Final = "DEFAULT"
NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"

#: RocketMQ's ``CompressionType``.
COMPRESSIONS: Final = {"ZLIB": Sysflag.ZLIB, "LZ4": Sysflag.LZ4, "ZSTD": Sysflag.ZSTD}

_FORMS: Final = {"JSON": JSON, "ROCKETMQ": BINARY}


@dataclass(slots=True, frozen=True)
class ClientConfig:
    """Settings of a client; equal ones share connections.

    >>> ClientConfig("10.0.0.1:9876;10.0.0.2:9876").name_servers
    ('10.0.0.1:9876', '10.0.0.2:9876')
    """

    #: ``a:9876;b:9876`` (or with commas, or a sequence); kept as a tuple. Empty: the variable NAMESRV_ADDR.
    name_servers: str | Sequence[str] = ""
    #: The part of the client id after ``@``. Two clients with one id would disturb each other's rebalancing.
    instance_name: str = DEFAULT_INSTANCE
    #: The address in the client id and in message ids; empty: that of the interface which leads outside.
    client_ip: str = ""
    #: RocketMQ's unit («set») of a deployment over several sites; becomes part of the client id.
    unit_name: str = ""
    #: Put before topic and group names as ``namespace%name``, so that tenants can share brokers.
    namespace: str = ""
    #: A4: how often routes are asked for again.
    poll_name_server_interval_ms: int = 30_000
    #: D3: brokers drop a client that was silent for 120 s.
    heartbeat_interval_ms: int = 30_000
    #: D4: how often consumers report their progress.
    persist_offset_interval_ms: int = 5_000
    #: For calls that have no time-out of their own (routes, heartbeats, offsets).
    call_timeout_ms: int = 3_000
    connect_timeout_ms: int = 3_000
    #: Form of the headers we send: ``JSON``, or ``ROCKETMQ`` for the compact binary one (B1).
    serialization: str = "JSON"
    #: Send to the broker's second port (listen port − 2), which serves no pulls. Off since RocketMQ 4.9.
    vip_channel: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "name_servers", _addresses(self.name_servers))
        if self.serialization not in _FORMS:
            raise ConfigError(f"serialization={self.serialization!r} is unknown; use 'JSON' or 'ROCKETMQ'")
        if self.client_ip:
            try:
                ipaddress.ip_address(self.client_ip)
            except ValueError:
                raise ConfigError(f"client_ip={self.client_ip!r} is no IP address; give one, or none") from None
        _check_positive(self)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The name servers, one ``host:port`` each."""
        return tuple(self.name_servers)

    @property
    def form(self) -> int:
        """The header form as a number on the wire."""
        return _FORMS[self.serialization]


#: Answers after which a send is tried on another broker (E4). SYSTEM_BUSY is not one of them: more sends are what a
#: busy broker needs least.
RETRY_CODES: Final = frozenset(
    {
        ResponseCode.TOPIC_NOT_EXIST,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.SYSTEM_ERROR,
        ResponseCode.NO_PERMISSION,
        ResponseCode.NO_BUYER_ID,
        ResponseCode.NOT_IN_CURRENT_UNIT,
        ResponseCode.GO_AWAY,
    }
)


@dataclass(slots=True, frozen=True)
class ProducerConfig:
    """Settings of a producer.

    >>> ProducerConfig(send_timeout_ms=10_000, auto_batch=True).auto_batch_bytes
    32768
    """

    #: E1: for all attempts of one send together.
    send_timeout_ms: int = 3_000
    #: E4: attempts after the first of an awaited send, each on another broker if there is one.
    retries: int = 2
    #: E4: attempts after the first of ``send_nowait``, on the same broker, after network failures only.
    async_retries: int = 2
    #: Take FLUSH_DISK_TIMEOUT and its like for failures and send again elsewhere; consumers may see both copies.
    retry_another_broker_when_not_store_ok: bool = False
    retry_codes: frozenset[int] = RETRY_CODES
    #: E3: avoid brokers that were slow or failed.
    send_latency_fault_enable: bool = False
    #: E1: larger bodies are refused here; brokers refuse them too.
    body_bytes_max: int = 4 * 1024 * 1024
    #: E1: bodies of this size and more are compressed, batches never.
    compress_from_bytes: int = 4_096
    #: ``ZLIB``, ``LZ4`` or ``ZSTD`` (the last two: ``pip install ternmq[compress]``). Consumers of RocketMQ 4.9.4 and
    #: 5.2.0 read all three.
    compression: str = "ZLIB"
    compress_level: int = 5
    #: D1: queues per broker of a topic that the first send creates.
    default_topic_queue_nums: int = 4
    #: E6: gather messages of one topic into batches by itself.
    auto_batch: bool = False
    #: A batch goes out when it has this size, or is this old.
    auto_batch_bytes: int = 32 * 1024
    auto_batch_wait_ms: int = 10
    #: All waiting messages together; what comes on top goes out at once, alone.
    auto_batch_total_bytes: int = 32 * 1024 * 1024
    #: Bodies of ``send_nowait`` without an answer yet; more are refused with ``TooManyCalls``.
    async_bytes_max: int = 100 * 1024 * 1024

    def __post_init__(self) -> None:
        _check_positive(self)
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"compression={self.compression!r} is unknown; use one of {', '.join(COMPRESSIONS)}")
        for name in ("retries", "async_retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}={getattr(self, name)} is below 0; use 0 for a single attempt")


def _check_positive(config: ClientConfig | ProducerConfig) -> None:
    for field in fields(config):
        value = getattr(config, field.name)
        if field.name.endswith(("_ms", "_bytes", "_bytes_max", "_nums")) and value <= 0:
            raise ConfigError(f"{field.name}={value} makes no sense; give a number above 0")


def _addresses(name_servers: str | Sequence[str]) -> tuple[str, ...]:
    texts = [name_servers] if isinstance(name_servers, str) else name_servers
    addresses = _split(texts) or _split([os.environ.get(NAME_SERVERS_VARIABLE, "")])
    if not addresses:
        raise ConfigError(
            f"no name server is known; give name_servers='host:9876', or set the variable {NAME_SERVERS_VARIABLE}"
        )
    for address in addresses:
        split_address(address)
    # Each once, in the order given.
    return tuple(dict.fromkeys(addresses))


def _split(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.replace(",", ";").split(";") if part.strip()]
