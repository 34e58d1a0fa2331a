"""Settings of clients (``ClientConfig``) and of producers (``ProducerConfig``); consumers' stand with them.

One ``ClientConfig`` makes one ``ClientInstance`` per event loop, shared by the producers and consumers that were given
an equal one: they share connections, routes and heartbeats. Defaults are those of RocketMQ's ``ClientConfig`` and
``DefaultMQProducer``. Spec: A4, A6, B1, D3, E1, E3, E4, E6.
"""

from __future__ import annotations

import ipaddress
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Final

from ternmq.errors import ConfigError
from ternmq.net.address_server import host_of, is_url
from ternmq.net.endpoint import split_address
from ternmq.net.tls import TlsConfig
from ternmq.wire.auth import Credentials, credentials
from ternmq.wire.codes import BINARY, JSON, ResponseCode
from ternmq.wire.compress import BODY_BYTES_MAX
from ternmq.wire.record import Sysflag

#: RocketMQ's name for "generate one": such a client is named by its process id and a number.
DEFAULT_INSTANCE: Final = "DEFAULT"
NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"
#: Where credentials come from if none are given.
_CREDENTIALS: Final = {
    "access_key": "TERNMQ_ACCESS_KEY",
    "secret_key": "TERNMQ_SECRET_KEY",
    "security_token": "TERNMQ_SECURITY_TOKEN",
}

#: RocketMQ's ``CompressionType``.
COMPRESSIONS: Final = {"ZLIB": Sysflag.ZLIB, "LZ4": Sysflag.LZ4, "ZSTD": Sysflag.ZSTD}

_FORMS: Final = {"JSON": JSON, "ROCKETMQ": BINARY}


@dataclass(slots=True, frozen=True)
class ClientConfig:
    """Settings of the connection. Clients with equal settings on one event loop share connections, routes and
    heartbeats.

    >>> ClientConfig("10.0.0.1:9876;10.0.0.2:9876").name_servers
    ('10.0.0.1:9876', '10.0.0.2:9876')

    Args:
        name_servers: Addresses of the name servers, ``"host:9876"``; several are separated by ``;`` or ``,``, or given
            as a sequence. Or the URL of an HTTP address server that lists them, ``"http://host:8080/rocketmq/nsaddr"``.
            Empty: the environment variable ``NAMESRV_ADDR``, which may have both forms.
        instance_name: The part of the client id after ``@``; each client id must be unique in a group. Default: made up
            from the process id and a number.
        client_ip: The IP address in the client id and in message ids. Empty: the address of the interface that leads
            outside.
        unit_name: RocketMQ's unit ("set") of a deployment over several sites; it becomes part of the client id.
        namespace: Put before topic and group names as ``namespace%name``, so that tenants can share brokers.
        poll_name_server_interval_ms: How often the routes are fetched again, in ms.
        heartbeat_interval_ms: How often heartbeats are sent, in ms. Brokers drop a client without heartbeats after 120
            s.
        persist_offset_interval_ms: How often consumers store their offsets on the brokers, in ms.
        call_timeout_ms: Time limit of calls that have none of their own (routes, heartbeats, offsets), in ms.
        connect_timeout_ms: Time limit for a new connection, in ms. Less than a send may take, so that it can still
            go to another broker.
        decompressed_bytes_max: How large the body of a received message may become by decompression. A larger one
            counts as unreadable. The default is 16 times what brokers and producers accept by default; raise it if they
            accept more.
        serialization: The form of the headers that are sent: ``"JSON"``, or ``"ROCKETMQ"`` for the compact binary form.
        vip_channel: Whether to send to the broker's second port (its listen port minus 2), which serves no pulls.
        access_key: The account that requests are signed for, if the servers have access control. Empty: the environment
            variables ``TERNMQ_ACCESS_KEY``, ``TERNMQ_SECRET_KEY`` and ``TERNMQ_SECURITY_TOKEN``, if set.
        secret_key: The secret of that account.
        security_token: Token of temporary credentials.
        tls: Whether connections use TLS: True, or a ``TlsConfig`` with the certificates to trust and to show. None: as
            the environment variable ``TERNMQ_TLS`` says (``true``), with the files that ``TERNMQ_TLS_CA``,
            ``TERNMQ_TLS_CERT`` and ``TERNMQ_TLS_KEY`` name.
    """

    #: Kept as a tuple.
    name_servers: str | Sequence[str] = ""
    instance_name: str = DEFAULT_INSTANCE
    client_ip: str = ""
    unit_name: str = ""
    namespace: str = ""
    #: A4.
    poll_name_server_interval_ms: int = 30_000
    #: D3.
    heartbeat_interval_ms: int = 30_000
    #: D4.
    persist_offset_interval_ms: int = 5_000
    call_timeout_ms: int = 3_000
    connect_timeout_ms: int = 2_000
    decompressed_bytes_max: int = BODY_BYTES_MAX
    #: B1.
    serialization: str = "JSON"
    #: Off by default since RocketMQ 4.9.
    vip_channel: bool = False
    #: N1.
    access_key: str = ""
    secret_key: str = field(default="", repr=False)
    security_token: str = field(default="", repr=False)
    #: B4.
    tls: TlsConfig | bool | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "name_servers", _addresses(self.name_servers))
        if self.serialization not in _FORMS:
            raise ConfigError(f"invalid serialization {self.serialization!r}: expected 'JSON' or 'ROCKETMQ'")
        if self.client_ip:
            try:
                ipaddress.ip_address(self.client_ip)
            except ValueError:
                raise ConfigError(f"invalid client_ip {self.client_ip!r}: expected an IP address, or None") from None
        if not self.access_key and not self.secret_key:
            for name, variable in _CREDENTIALS.items():
                object.__setattr__(self, name, os.environ.get(variable, ""))
        self.credentials()
        if self.tls is None:
            object.__setattr__(self, "tls", _tls_of_environment())
        elif isinstance(self.tls, bool):
            object.__setattr__(self, "tls", TlsConfig() if self.tls else False)
        _check_positive(self)

    def tls_context(self) -> ssl.SSLContext | None:
        """What connections are made with; None if they are plain. Raises ``ConfigError`` for files that cannot be used.

        Made anew each time: files may have changed.
        """
        return self.tls.context() if isinstance(self.tls, TlsConfig) else None

    def credentials(self) -> Credentials | None:
        """What requests are signed with; None if they are not. Raises ``ConfigError`` if half of it is missing."""
        return credentials(self.access_key, self.secret_key, self.security_token)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The name servers as they were given: one ``host:port`` each, or the URL of an address server."""
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

    Args:
        send_timeout_ms: Time limit of a send, for all of its attempts together, in ms.
        retries: Attempts after the first of an awaited send, each on another broker if there is one.
        async_retries: Attempts after the first of ``send_nowait``; on the same broker, and only after network failures.
        retry_another_broker_when_not_store_ok: Whether the status FLUSH_DISK_TIMEOUT and those like it count as
            failures, so that the message is sent again to another broker. Consumers may then see both copies.
        retry_codes: Response codes after which the message is sent to another broker.
        send_latency_fault_enable: Whether to avoid brokers that were slow or failed.
        body_bytes_max: Largest body of a message or a batch. Brokers have a limit of their own.
        compress_from_bytes: Bodies of this size and more are compressed. Batches never are.
        compression: ``"ZLIB"``, ``"LZ4"`` or ``"ZSTD"``; the last two need ``pip install ternmq[compress]``. Consumers
            of RocketMQ 4.9.4 and 5.2.0 read all three.
        compress_level: Level of the compression; a higher one is slower and gives smaller bodies.
        default_topic_queue_nums: Queues per broker of a topic that is created by its first message.
        auto_batch: Whether messages of one topic that are sent while others are on their way go together, in batches.
        auto_batch_bytes: Largest size of an automatic batch.
        auto_batch_wait_ms: How long an automatic batch that is not full waits for more messages, in ms. 0: only while
            earlier requests are on their way.
        auto_batch_total_bytes: Largest size of all messages that wait in automatic batches. Beyond it they are sent,
            however many requests are on their way.
        async_bytes_max: Largest size of all bodies of ``send_nowait`` that have no answer yet. Further calls raise
            ``TooManyCalls``.
        check_timeout_ms: How long the checker of transactions may take for one, in ms. After that the outcome counts as
            unknown, and the broker asks again.
    """

    #: E1.
    send_timeout_ms: int = 3_000
    #: E4.
    retries: int = 2
    async_retries: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    retry_codes: frozenset[int] = RETRY_CODES
    #: E3.
    send_latency_fault_enable: bool = False
    #: E1.
    body_bytes_max: int = 4 * 1024 * 1024
    compress_from_bytes: int = 4_096
    compression: str = "ZLIB"
    compress_level: int = 5
    #: D1.
    default_topic_queue_nums: int = 4
    #: E6.
    auto_batch: bool = False
    auto_batch_bytes: int = 32 * 1024
    auto_batch_wait_ms: int = 0
    auto_batch_total_bytes: int = 32 * 1024 * 1024
    async_bytes_max: int = 100 * 1024 * 1024
    #: J2.
    check_timeout_ms: int = 15_000

    def __post_init__(self) -> None:
        _check_positive(self)
        if self.compression not in COMPRESSIONS:
            raise ConfigError(f"invalid compression {self.compression!r}: expected one of {', '.join(COMPRESSIONS)}")
        for name in ("retries", "async_retries"):
            if getattr(self, name) < 0:
                raise ConfigError(f"invalid {name} {getattr(self, name)}: expected 0 (a single attempt) or more")


def _tls_of_environment() -> TlsConfig | bool:
    switch = os.environ.get("TERNMQ_TLS", "").strip().lower()
    if switch in ("", "false", "no", "off", "0"):
        return False
    if switch not in ("true", "yes", "on", "1"):
        raise ConfigError(f"invalid TERNMQ_TLS {switch!r}: expected true or false")
    return TlsConfig(
        ca_file=os.environ.get("TERNMQ_TLS_CA", ""),
        cert_file=os.environ.get("TERNMQ_TLS_CERT", ""),
        key_file=os.environ.get("TERNMQ_TLS_KEY", ""),
        key_password=os.environ.get("TERNMQ_TLS_KEY_PASSWORD", ""),
    )


def _check_positive(config: ClientConfig | ProducerConfig) -> None:
    for name in (one.name for one in fields(config)):
        value = getattr(config, name)
        if name == "auto_batch_wait_ms" and value == 0:
            continue  # the default: no waiting
        if name.endswith(("_ms", "_bytes", "_bytes_max", "_nums")) and value <= 0:
            raise ConfigError(f"invalid {name} {value}: expected a number above 0")


def _addresses(name_servers: str | Sequence[str]) -> tuple[str, ...]:
    texts = [name_servers] if isinstance(name_servers, str) else name_servers
    addresses = _split(texts) or _split([os.environ.get(NAME_SERVERS_VARIABLE, "")])
    if not addresses:
        raise ConfigError(
            f"no name server is configured; give name_servers='host:9876', or set the variable {NAME_SERVERS_VARIABLE}"
        )
    if any(map(is_url, addresses)):
        if len(addresses) > 1:
            raise ConfigError(
                f"invalid name_servers {';'.join(addresses)!r}: the URL of an address server must stand alone"
            )
        host_of(addresses[0])
        return tuple(addresses)
    for address in addresses:
        split_address(address)
    # Each once, in the order given.
    return tuple(dict.fromkeys(addresses))


def _split(texts: Sequence[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.replace(",", ";").split(";") if part.strip()]
