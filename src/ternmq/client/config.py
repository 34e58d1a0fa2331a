"""What all clients of one process have in common: where the name servers are, who we are, how often to ask.

One ``ClientConfig`` makes one ``ClientInstance`` per event loop, shared by the producers and consumers that were given
an equal one (they share connections, routes and heartbeats). Settings of producers and consumers stand with them.
Defaults are RocketMQ's ``ClientConfig``. Spec: A4, A6, B1, D3.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Final

from ternmq.errors import ConfigError
from ternmq.net.dial import split_address
from ternmq.wire.codes import BINARY, JSON

#: RocketMQ's name for «make one up»: such a client is called by its process id and a number of its own.
DEFAULT_INSTANCE: Final = "DEFAULT"
NAME_SERVERS_VARIABLE: Final = "NAMESRV_ADDR"

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
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name.endswith("_ms") and value <= 0:
                raise ConfigError(f"{field.name}={value} is no length of time; give milliseconds above 0")

    @property
    def addresses(self) -> tuple[str, ...]:
        """The name servers, one ``host:port`` each."""
        return tuple(self.name_servers)

    @property
    def form(self) -> int:
        """The header form as a number on the wire."""
        return _FORMS[self.serialization]


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
