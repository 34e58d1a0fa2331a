"""The registry of a name server: five tables of brokers and topics, in memory only (A1–A5). Pure.

::

    topic          → broker name → queues        for routes
    broker name    → cluster, {id: address}      id 0 is the master, others are its slaves
    cluster        → broker names
    broker address → liveness                    last heartbeat, its time-out, data version, connection
    broker address → filter servers

A broker sends its topics when it registers, all of them or only those that changed. They are *merged*: a topic is
removed only with its last broker, by ``delete_topic``, or, if the name server is configured so
(``deleteTopicWithBrokerRegistration``), when a broker registers without it.

Topics are updated only if the broker's data version differs from the known one, so that a permission removed here
(``wipe_write``) is not restored by the next routine registration. Only masters describe queues; a slave does so only
if slaves may act as master and it has the smallest id.

A broker is removed when it unregisters, when the connection that it registered over closes, or when it was silent for
its time-out. The other brokers of its name stay: without the master, the slave is still in the routes, for reading.

Any program that reaches the port can register, so the tables have limits: a registration that exceeds them is refused,
and the others are not affected.

The caller passes the current time, in seconds of a monotonic clock.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Final

import msgspec

from ternmq.errors import InvalidParameter
from ternmq.wire.bodies.routes import BrokerData, ClusterInfo, MemberGroup, QueueData, TopicRouteBody
from ternmq.wire.bodies.topics import DataVersion, QueueMapping, TopicConfig, TopicTable

MASTER: Final = 0
WRITE: Final = 2
#: Flags of a topic (RocketMQ's ``TopicSysFlag``): it belongs to a unit; groups of a unit read it.
UNIT: Final = 1
READ_BY_UNIT: Final = 2
#: RocketMQ's ``DEFAULT_BROKER_CHANNEL_EXPIRED_TIME``.
SILENCE_MAX_S: Final = 120.0
#: Default limits for brokers and for the bytes of their topics: any program that reaches the port can register.
BROKERS_MAX: Final = 10_000
BYTES_MAX: Final = 512 * 1024 * 1024
#: Characters of a name or an address; filter servers of a broker.
NAME_LENGTH_MAX: Final = 255
FILTER_SERVERS_MAX: Final = 64
#: Bytes that the queues of a topic on one broker take, without the topic's name and a pair of numbers; measured.
_ENTRY_BYTES: Final = 400
_NUMBERS_BYTES: Final = 100


@dataclass(slots=True, frozen=True)
class Registrant:
    """A broker that registers."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    ha_address: str = ""
    #: How long this broker may be silent; None: 120 s.
    silence_max_s: float | None = None
    #: None for brokers older than RocketMQ 5, which do not know of acting masters.
    enable_acting_master: bool | None = None


@dataclass(slots=True, frozen=True)
class MasterAddresses:
    """The addresses of a master, for its slave."""

    address: str
    ha_address: str


@dataclass(slots=True)
class _LiveBroker:
    who: Registrant
    seen: float
    silence_max_s: float
    version: DataVersion
    connection: Hashable


@dataclass(slots=True)
class _Brokers:
    """The brokers of one name."""

    cluster: str
    addresses: dict[int, str] = field(default_factory=dict)
    enable_acting_master: bool | None = None


class Registry:
    """The tables. Not thread-safe."""

    def __init__(self, *, brokers_max: int = BROKERS_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._brokers_max = brokers_max
        self._bytes_max = bytes_max
        #: Estimated bytes of ``_topics`` and ``_mappings``.
        self._bytes = 0
        self._topics: dict[str, dict[str, QueueData]] = {}
        self._mappings: dict[str, dict[str, QueueMapping]] = {}
        self._brokers: dict[str, _Brokers] = {}
        self._clusters: dict[str, dict[str, None]] = {}
        self._live: dict[str, _LiveBroker] = {}
        self._filter_servers: dict[str, list[str]] = {}

    # --- Registration ------------------------------------------------------------------------------------------

    def register(
        self,
        who: Registrant,
        table: TopicTable | None,
        filter_servers: list[str] | None,
        connection: Hashable,
        now: float,
        *,
        takes_back: bool = False,
    ) -> MasterAddresses | None:
        """Apply a registration; returns the master if a slave registers and its master is known.

        With ``takes_back`` the table has all topics of the broker, and its queues of other topics are removed; except
        with static topics, whose queues are not in the table.

        If two brokers have the same name and id, the one with the higher state version wins; if they are equal, the
        later one. The other registration is ignored.

        Raises ``InvalidParameter`` if the tables would exceed their limits; then nothing has changed.
        """
        self._check_room(who, table, filter_servers or [])
        version = table.data_version if table is not None else DataVersion()
        known = self._live.get(who.address)
        if known is not None and known.who.broker_name != who.broker_name:
            # Another broker was started at this address before the connection of the old one was closed.
            self._drop([known.who])
            known = None
        brokers = self._brokers.setdefault(who.broker_name, _Brokers(who.cluster))
        if self._is_outranked(brokers, who, version):
            return self._master_of(who, brokers)
        first = brokers.addresses.get(who.broker_id) is None
        self._clusters.setdefault(who.cluster, {})[who.broker_name] = None
        brokers.cluster = who.cluster
        brokers.enable_acting_master = who.enable_acting_master
        # A slave that became master has one address under two ids for a moment; only the new one is valid.
        for broker_id, address in list(brokers.addresses.items()):
            if address == who.address and broker_id != who.broker_id:
                del brokers.addresses[broker_id]
        replaced = brokers.addresses.get(who.broker_id)
        if replaced is not None and replaced != who.address:
            self._live.pop(replaced, None)
            self._filter_servers.pop(replaced, None)
        brokers.addresses[who.broker_id] = who.address

        changed = first or known is None or not same_version(known.version, version)
        if table is not None and changed and self._describes_queues(who, brokers):
            if takes_back and not table.topic_queue_mapping_info_map:
                for topic in [topic for topic, queues in self._topics.items() if who.broker_name in queues]:
                    if topic not in table.topic_config_table:
                        self._remove_queues(topic, who.broker_name)
            self._merge_topics(who, table, may_write=who.broker_id == MASTER)
        seen_whole = known is not None and known.version.counter > 0
        if table is not None and len(table.topic_config_table) == 1 and not seen_whole:
            # A single topic is an addition to a table that is not known here: its version must not make that table look
            # known. (RocketMQ 5 refuses such a registration.)
            version = DataVersion()
        self._live[who.address] = _LiveBroker(
            who,
            seen=now,
            silence_max_s=who.silence_max_s if who.silence_max_s is not None else SILENCE_MAX_S,
            version=version,
            connection=connection,
        )
        if filter_servers:
            self._filter_servers[who.address] = list(filter_servers)
        elif filter_servers is not None:
            self._filter_servers.pop(who.address, None)
        return self._master_of(who, brokers)

    def unregister(self, broker_name: str, broker_id: int, address: str) -> None:
        """Remove one broker; with the last one of a name, the name and its queues are removed, too."""
        if self._remove_broker(broker_name, broker_id, address):
            self._remove_queues_of({broker_name})

    def connection_closed(self, connection: Hashable) -> list[Registrant]:
        """Remove all brokers that registered over this connection; returns them."""
        return self._drop(live.who for live in list(self._live.values()) if live.connection == connection)

    def expire(self, now: float) -> list[tuple[Registrant, Hashable]]:
        """Remove the brokers that were silent for too long; returns them with their connections, to be closed."""
        silent = [live for live in self._live.values() if now - live.seen > live.silence_max_s]
        self._drop(live.who for live in silent)
        return [(live.who, live.connection) for live in silent]

    def is_outdated(self, address: str, version: DataVersion, now: float) -> bool:
        """Whether the known topics of a broker have another version than its own; if not, counts as a heartbeat."""
        live = self._live.get(address)
        if live is None or not same_version(live.version, version):
            return True
        live.seen = now
        return False

    def heard_of(self, address: str, now: float) -> None:
        """A heartbeat of a broker; ignored if the broker is not registered."""
        live = self._live.get(address)
        if live is not None:
            live.seen = now

    def version_of(self, address: str) -> DataVersion | None:
        live = self._live.get(address)
        return live.version if live is not None else None

    # --- Queries -----------------------------------------------------------------------------------------------

    def route(self, topic: str) -> TopicRouteBody | None:
        """The queues of a topic and their brokers; None if no broker has the topic."""
        queues = self._topics.get(topic)
        if not queues:
            return None
        brokers = [self._broker_data(name) for name in queues if name in self._brokers]
        if not brokers:
            return None
        filters = {
            address: self._filter_servers[address]
            for broker in brokers
            for address in broker.broker_addrs.values()
            if address in self._filter_servers
        }
        return TopicRouteBody(
            broker_datas=brokers,
            queue_datas=list(queues.values()),
            filter_server_table=filters,
            topic_queue_mapping_by_broker=self._mappings.get(topic),
        )

    def cluster_info(self) -> ClusterInfo:
        return ClusterInfo(
            broker_addr_table={name: self._broker_data(name) for name in self._brokers},
            cluster_addr_table={cluster: list(names) for cluster, names in self._clusters.items()},
        )

    def member_group(self, cluster: str, broker_name: str) -> MemberGroup | None:
        brokers = self._brokers.get(broker_name)
        if brokers is None or brokers.cluster != cluster:
            return None
        return MemberGroup(cluster=cluster, broker_name=broker_name, broker_addrs=dict(brokers.addresses))

    def topics(self, cluster: str | None = None) -> list[str]:
        """Names of all topics, or of those with queues in a cluster."""
        if cluster is None:
            return list(self._topics)
        names = self._clusters.get(cluster, {})
        return [topic for topic, queues in self._topics.items() if not names.keys().isdisjoint(queues)]

    def topics_with(self, are_wanted: Callable[[int], bool]) -> list[str]:
        """Names of the topics whose system flags, on any broker, are wanted."""
        return [
            topic
            for topic, queues in self._topics.items()
            if any(are_wanted(of_broker.topic_sys_flag) for of_broker in queues.values())
        ]

    def system_topics(self) -> tuple[list[str], str | None]:
        """Topics named after clusters and brokers, and the address of one broker, which knows the other ones."""
        topics = [*self._clusters, *(name for names in self._clusters.values() for name in names)]
        some = next((address for brokers in self._brokers.values() for address in brokers.addresses.values()), None)
        return topics, some

    # --- Changes by an administrator ---------------------------------------------------------------------------

    def wipe_write(self, broker_name: str) -> int:
        """Remove the write permission from all topics of a broker; returns how many topics it has."""
        return self._change_permission(broker_name, lambda perm: perm & ~WRITE)

    def add_write(self, broker_name: str) -> int:
        """Restore the write permission."""
        return self._change_permission(broker_name, lambda perm: perm | WRITE)

    def delete_topic(self, topic: str, cluster: str | None = None) -> None:
        """Remove a topic, everywhere or in one cluster."""
        names = list(self._topics.get(topic, {})) if cluster is None else list(self._clusters.get(cluster, {}))
        for broker_name in names:
            self._remove_queues(topic, broker_name)

    def put_queues(self, topic: str, queues: Iterable[QueueData]) -> None:
        """Add queues of a topic on registered brokers. Raises ``InvalidParameter`` as ``register``."""
        known = [data for data in queues if data.broker_name in self._brokers]
        new = {data.broker_name for data in known}.difference(self._topics.get(topic, {}))
        self._check_bytes(len(new) * (len(topic) + _ENTRY_BYTES), ", ".join(sorted(new)[:3]))
        for data in known:
            self._put_queue_data(topic, data)

    # ------------------------------------------------------------------------------------------------------------

    def _is_outranked(self, brokers: _Brokers, who: Registrant, version: DataVersion) -> bool:
        holder = brokers.addresses.get(who.broker_id)
        if holder is None or holder == who.address:
            return False
        live = self._live.get(holder)
        return live is not None and (live.version.state_version or 0) > (version.state_version or 0)

    def _master_of(self, who: Registrant, brokers: _Brokers) -> MasterAddresses | None:
        address = brokers.addresses.get(MASTER)
        if who.broker_id == MASTER or address is None:
            return None
        live = self._live.get(address)
        return MasterAddresses(address, live.who.ha_address) if live is not None else None

    @staticmethod
    def _describes_queues(who: Registrant, brokers: _Brokers) -> bool:
        if who.broker_id == MASTER:
            return True
        return bool(who.enable_acting_master) and who.broker_id == min(brokers.addresses)

    def _merge_topics(self, who: Registrant, table: TopicTable, *, may_write: bool) -> None:
        for topic, config in table.topic_config_table.items():
            self._put_queue_data(topic, _queue_data(who.broker_name, config, may_write))
        for topic, mapping in (table.topic_queue_mapping_info_map or {}).items():
            by_broker = self._mappings.setdefault(topic, {})
            if who.broker_name in by_broker:
                self._bytes -= _mapping_bytes(topic, by_broker[who.broker_name])
            by_broker[who.broker_name] = mapping
            self._bytes += _mapping_bytes(topic, mapping)

    def _put_queue_data(self, topic: str, data: QueueData) -> None:
        queues = self._topics.setdefault(topic, {})
        if data.broker_name not in queues:
            self._bytes += len(topic) + _ENTRY_BYTES
        queues[data.broker_name] = data

    def _check_room(self, who: Registrant, table: TopicTable | None, filter_servers: list[str]) -> None:
        for name in (who.cluster, who.broker_name, who.address, who.ha_address, *filter_servers):
            if len(name) > NAME_LENGTH_MAX:
                raise InvalidParameter(
                    f"the name or address {name[:40]!r}… has {len(name)} characters: expected at most {NAME_LENGTH_MAX}"
                )
        if len(filter_servers) > FILTER_SERVERS_MAX:
            raise InvalidParameter(
                f"{len(filter_servers)} filter servers of one broker cannot be registered: expected at most "
                f"{FILTER_SERVERS_MAX}"
            )
        if who.address not in self._live and len(self._live) >= self._brokers_max:
            raise InvalidParameter(
                f"{len(self._live)} brokers are registered, and maxBrokers allows {self._brokers_max}; check "
                "with `mqadmin clusterList` that all of them are yours, or raise the limit on the name server"
            )
        if table is not None:
            more_bytes = sum(
                len(topic) + _ENTRY_BYTES
                for topic in table.topic_config_table
                if who.broker_name not in self._topics.get(topic, {})
            )
            for topic, mapping in (table.topic_queue_mapping_info_map or {}).items():
                known = self._mappings.get(topic, {}).get(who.broker_name)
                more_bytes += _mapping_bytes(topic, mapping) - (_mapping_bytes(topic, known) if known else 0)
            self._check_bytes(more_bytes, who.broker_name)

    def _check_bytes(self, more_bytes: int, broker_name: str) -> None:
        if more_bytes > 0 and self._bytes + more_bytes > self._bytes_max:
            raise InvalidParameter(
                f"the topics of all brokers would need {self._bytes + more_bytes} bytes with those of "
                f"{broker_name}, and maxTopicBytes allows {self._bytes_max}; delete topics that are not needed, "
                "or raise the limit on the name server"
            )

    def _remove_queues(self, topic: str, broker_name: str) -> None:
        queues = self._topics.get(topic)
        if queues is not None and queues.pop(broker_name, None) is not None:
            self._bytes -= len(topic) + _ENTRY_BYTES
            if not queues:
                del self._topics[topic]
        mappings = self._mappings.get(topic)
        if mappings is not None and (mapping := mappings.pop(broker_name, None)) is not None:
            self._bytes -= _mapping_bytes(topic, mapping)
            if not mappings:
                del self._mappings[topic]

    def _change_permission(self, broker_name: str, change: Callable[[int], int]) -> int:
        count = 0
        for queues in self._topics.values():
            data = queues.get(broker_name)
            if data is not None:
                queues[broker_name] = msgspec.structs.replace(data, perm=change(data.perm))
                count += 1
        return count

    def _broker_data(self, broker_name: str) -> BrokerData:
        brokers = self._brokers[broker_name]
        return BrokerData(
            cluster=brokers.cluster,
            broker_name=broker_name,
            broker_addrs=dict(sorted(brokers.addresses.items())),
            enable_acting_master=bool(brokers.enable_acting_master),
        )

    def _drop(self, registrants: Iterable[Registrant]) -> list[Registrant]:
        dropped = list(registrants)
        gone = {who.broker_name for who in dropped if self._remove_broker(who.broker_name, who.broker_id, who.address)}
        # All at once: a connection may have registered thousands of brokers, and there are thousands of topics.
        self._remove_queues_of(gone)
        return dropped

    def _remove_broker(self, broker_name: str, broker_id: int, address: str) -> bool:
        """Remove one broker, but not its queues; True if it was the last one of its name."""
        self._live.pop(address, None)
        self._filter_servers.pop(address, None)
        brokers = self._brokers.get(broker_name)
        if brokers is None:
            return False
        # Another broker may have the id by now, with another address.
        if brokers.addresses.get(broker_id) == address:
            del brokers.addresses[broker_id]
        if brokers.addresses:
            return False
        del self._brokers[broker_name]
        names = self._clusters.get(brokers.cluster, {})
        names.pop(broker_name, None)
        if not names:
            self._clusters.pop(brokers.cluster, None)
        return True

    def _remove_queues_of(self, broker_names: set[str]) -> None:
        if not broker_names:
            return
        for topic, queues in list(self._topics.items()):
            for broker_name in broker_names.intersection(queues):
                self._remove_queues(topic, broker_name)
        # For static topics that have no queues there.
        for topic, mappings in list(self._mappings.items()):
            for broker_name in broker_names.intersection(mappings):
                self._remove_queues(topic, broker_name)


def same_version(one: DataVersion, other: DataVersion) -> bool:
    """4.9 has no state version; this equals 0."""
    return (one.counter, one.timestamp, one.state_version or 0) == (
        other.counter,
        other.timestamp,
        other.state_version or 0,
    )


def _queue_data(broker_name: str, config: TopicConfig, may_write: bool) -> QueueData:
    return QueueData(
        broker_name=broker_name,
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm if may_write else config.perm & ~WRITE,
        topic_sys_flag=config.topic_sys_flag,
    )


def _mapping_bytes(topic: str, mapping: QueueMapping) -> int:
    texts = len(topic) + len(mapping.topic) + len(mapping.scope or "") + len(mapping.bname)
    return texts + _ENTRY_BYTES + len(mapping.curr_id_map or {}) * _NUMBERS_BYTES
