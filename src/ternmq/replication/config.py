"""Settings of replication, under RocketMQ's names in snake case (O1, O2, T2). Times are in ms, sizes in bytes."""

from __future__ import annotations

import enum
import ipaddress
from dataclasses import dataclass
from typing import Final, TypeAlias

from ternmq.errors import ConfigError
from ternmq.replication.stream import BATCH_BYTES, BODY_BYTES_MAX

IpNetwork: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network

_MIB: Final = 1 << 20


class BrokerRole(enum.Enum):
    """What a broker is to the others of its name."""

    #: Answers a send without waiting for slaves.
    ASYNC_MASTER = "ASYNC_MASTER"
    #: Answers a send when slaves have the message.
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass(slots=True, frozen=True, kw_only=True)
class ReplicationConfig:
    """What a master or a slave needs to know. Raises ``ConfigError``."""

    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    #: Where slaves fetch the log; 0: the port after ``listenPort``.
    ha_listen_port: int = 0
    #: A slave's ``host:port`` of its master's log; empty: the one that name servers tell.
    ha_master_address: str = ""
    #: The address under which slaves reach this broker, if it is another one than clients use.
    broker_ip2: str = ""
    #: Addresses and networks that may fetch the log, as in ``10.0.0.7,192.168.1.0/24``; none: all may, as in RocketMQ,
    #: and with access control slaves that sign.
    ha_allowed_addresses: tuple[str, ...] = ()
    #: A slave that uses TLS for its calls (``tls.enable``) uses it for the log as well. ``false`` for a master of
    #: RocketMQ, which has no TLS on this port.
    ha_tls_enable: bool = True
    #: How long either side may be silent before it sends a sign of life.
    ha_send_heartbeat_interval: int = 5_000
    #: How long the other side may be silent before the connection is closed.
    ha_housekeeping_interval: int = 20_000
    #: Bytes of the log in one transfer.
    ha_transfer_batch_size: int = BATCH_BYTES
    #: How long a send waits for slaves.
    slave_timeout: int = 3_000
    #: A slave that lacks this much does not count (RocketMQ 5's name).
    ha_max_gap_not_in_sync: int = 256 * _MIB
    #: How many copies a send of a SYNC_MASTER waits for, the master's included (RocketMQ 5). None: for one slave, and
    #: none if none keeps up (RocketMQ 4.9).
    in_sync_replicas: int | None = None
    #: Messages are refused while fewer copies than this keep up, the master's included.
    min_in_sync_replicas: int = 1
    #: Messages are refused at once while so many senders wait for slaves, so that producers use another broker (QMQ's
    #: rule, with 50,000); 0: never. ``sendThreadPoolQueueCapacity`` bounds them in any case.
    slave_waiting_max: int = 0
    #: An empty slave fetches the last file of the log only, also from a TernMQ master. RocketMQ masters send no more.
    sync_from_last_file: bool = False
    #: Whether sends of the master may wait for this slave, and count it as a copy. ``false`` for one that leaves again,
    #: or is far away. Masters of RocketMQ count every slave.
    counts_as_copy: bool = True

    def __post_init__(self) -> None:
        for key, value, least, most in (
            ("haListenPort", self.ha_listen_port, 0, 65_535),
            ("haSendHeartbeatInterval", self.ha_send_heartbeat_interval, 10, 3_600_000),
            ("haHousekeepingInterval", self.ha_housekeeping_interval, 10, 3_600_000),
            ("haTransferBatchSize", self.ha_transfer_batch_size, 1, BODY_BYTES_MAX),
            ("slaveTimeout", self.slave_timeout, 1, 3_600_000),
            ("haMaxGapNotInSync", self.ha_max_gap_not_in_sync, 1, 1 << 50),
            ("inSyncReplicas", 1 if self.in_sync_replicas is None else self.in_sync_replicas, 1, 32),
            ("minInSyncReplicas", self.min_in_sync_replicas, 1, 32),
            ("slaveWaitingMax", self.slave_waiting_max, 0, 10_000_000),
        ):
            if not least <= value <= most:
                raise ConfigError(f"invalid {key} {value}: expected {least} to {most}")
        if self.ha_housekeeping_interval <= self.ha_send_heartbeat_interval:
            raise ConfigError(
                f"invalid haHousekeepingInterval {self.ha_housekeeping_interval}: expected more than "
                f"haSendHeartbeatInterval ({self.ha_send_heartbeat_interval}), or idle connections are closed"
            )
        self.allowed_networks()

    @property
    def waited_slaves(self) -> int:
        """How many slaves a send of a SYNC_MASTER waits for."""
        return 1 if self.in_sync_replicas is None else self.in_sync_replicas - 1

    def allowed_networks(self) -> tuple[IpNetwork, ...]:
        """What ``ha_allowed_addresses`` says."""
        networks = []
        for text in self.ha_allowed_addresses:
            try:
                networks.append(ipaddress.ip_network(text.strip(), strict=False))
            except ValueError:
                raise ConfigError(
                    f"invalid haAllowedAddresses {text!r}: expected IP addresses or networks, as in "
                    "10.0.0.7,192.168.1.0/24"
                ) from None
        return tuple(networks)
