"""Clusters and their brokers: as the name server knows them (A1), how they stand to their slaves, which of them is the
master (O1), and their settings (T2)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ternmq.admin.loads import BrokerLoad, broker_load
from ternmq.admin.name_servers import change_settings_at, origins_at, settings_at
from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import BrokerMissing, ConfigError, RequestNotSupported, TernError, refused
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.replication import BrokerStatus
from ternmq.wire.bodies.routes import ClusterInfo, KvTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests_admin import PromoteBroker

MASTER_ID: Final = 0
#: A master that hands over waits for its slave, and the slave for its own start as master.
_PROMOTE_TIMEOUT_MS: Final = 60_000
_STATUS_TIMEOUT_MS: Final = 5_000


@dataclass(slots=True, frozen=True, order=True)
class BrokerInfo:
    """One broker process; id 0 is the master of its name."""

    cluster: str
    name: str
    broker_id: int
    address: str


@dataclass(slots=True, frozen=True)
class BrokerState:
    """A registered broker, and what it says of itself.

    Attributes:
        info: The broker, as the name server knows it.
        status: Its role, its log and its slaves; None if it did not answer.
        trouble: Why it did not.
    """

    info: BrokerInfo
    status: BrokerStatus | None
    trouble: str = ""


class BrokerAdmin:
    """Clusters and their brokers: ``admin.brokers``."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance

    async def all(self) -> list[BrokerInfo]:
        """All registered brokers, by cluster, name and id."""
        response = await self._instance.call_name_server(RequestCode.GET_BROKER_CLUSTER_INFO)
        if response.code != ResponseCode.SUCCESS:
            raise refused(response.code, f"the name server did not return its clusters: {response.remark}")
        info = decode(response.body, ClusterInfo)
        return sorted(
            BrokerInfo(broker.cluster, name, broker_id, address)
            for name, broker in info.broker_addr_table.items()
            for broker_id, address in broker.broker_addrs.items()
        )

    async def masters(self) -> list[BrokerInfo]:
        """The masters of all clusters. Raises ``TernError`` when there is none."""
        masters = [broker for broker in await self.all() if broker.broker_id == MASTER_ID]
        if not masters:
            names = ", ".join(self._instance.config.addresses)
            raise TernError(f"no broker is registered at {names}; start one with `tern up` or `tern broker -n {names}`")
        return masters

    async def masters_of(self, cluster: str | None) -> list[BrokerInfo]:
        """The masters of ``cluster``. None means the only cluster; raises ``ConfigError`` if there are several."""
        masters = await self.masters()
        clusters = sorted({broker.cluster for broker in masters})
        if cluster is None and len(clusters) > 1:
            raise ConfigError(f"there are {len(clusters)} clusters ({', '.join(clusters)}); choose one with --cluster")
        if cluster is not None and cluster not in clusters:
            raise BrokerMissing(f"there is no cluster {cluster!r}; the clusters are {', '.join(clusters)}")
        return [broker for broker in masters if cluster in (None, broker.cluster)]

    async def status(self, name: str | None = None) -> list[BrokerState]:
        """Role, log and slaves of all registered brokers, or of those of one ``name``.

        A broker that does not answer is in the list, with the reason; so is one of RocketMQ, which does not tell.
        Raises ``BrokerMissing`` for an unknown ``name``.
        """
        registered = await self.all()
        brokers = [broker for broker in registered if name in (None, broker.name)]
        if name is not None and not brokers:
            known = ", ".join(sorted({broker.name for broker in registered})) or "none"
            raise BrokerMissing(f"there is no broker {name!r}; the registered brokers are {known}")
        return list(await asyncio.gather(*map(self._state, brokers)))

    async def _state(self, broker: BrokerInfo) -> BrokerState:
        try:
            return BrokerState(broker, await self.status_of(broker.address))
        except RequestNotSupported:
            return BrokerState(broker, None, "it is a broker of RocketMQ, or an older TernMQ")
        except TernError as error:
            return BrokerState(broker, None, str(error))

    async def status_of(self, address: str) -> BrokerStatus:
        """Role, log and slaves of the broker at ``address``, registered or not."""
        response = await self._instance.ask(address, RequestCode.GET_BROKER_STATUS, timeout_ms=_STATUS_TIMEOUT_MS)
        return decode(response.body, BrokerStatus)

    async def runtime(self, address: str) -> dict[str, str]:
        """Counters, rates and sizes of the broker at ``address``, under RocketMQ's names (``mqadmin brokerStatus``)."""
        response = await self._instance.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_ms=_STATUS_TIMEOUT_MS)
        return decode(response.body, KvTable).table

    async def loads(self) -> list[BrokerLoad]:
        """How busy all registered brokers are. One that does not answer is in the list, with the reason."""
        return list(await asyncio.gather(*map(self._load, await self.all())))

    async def _load(self, broker: BrokerInfo) -> BrokerLoad:
        try:
            table = await self.runtime(broker.address)
        except TernError as error:
            return BrokerLoad(broker.cluster, broker.name, broker.broker_id, broker.address, trouble=str(error))
        return broker_load(
            table, cluster=broker.cluster, broker=broker.name, broker_id=broker.broker_id, address=broker.address
        )

    async def settings(self, address: str) -> dict[str, str]:
        """All settings of the broker at ``address``, under RocketMQ's names; secrets are left out."""
        return await settings_at(self._instance, address, RequestCode.GET_BROKER_CONFIG)

    async def origins(self, address: str) -> dict[str, str]:
        """Where settings of the broker at ``address`` were given: a line of a file, the environment, a flag, or at run
        time. Those with their default are left out; brokers of RocketMQ do not tell.
        """
        return await origins_at(self._instance, address, RequestCode.GET_BROKER_CONFIG)

    async def change_settings(self, address: str, changes: Mapping[str, object]) -> None:
        """Change settings of the broker at ``address`` while it runs: all of ``changes``, or none.

        They are kept over restarts. Raises ``NoPermission`` for a setting that needs a restart, and
        ``InvalidParameter`` for an unknown setting or an invalid value.
        """
        await change_settings_at(self._instance, address, RequestCode.UPDATE_BROKER_CONFIG, changes)

    async def promote(self, address: str, *, force: bool = False, role: str = "") -> BrokerStatus:
        """Make the slave at ``address`` the master of its name, and return what it is then.

        A master that is alive hands over: it takes no more messages, waits until the slave has everything, and becomes
        a slave. If it is gone, the slave becomes master with what it has. It refuses if the master cannot be reached
        but name servers still list it, and if another slave has more messages; with ``force`` it does not.

        ``role`` is ``SYNC_MASTER`` or ``ASYNC_MASTER``; empty: as the old master was. Raises ``BrokerRefused`` with the
        reason.
        """
        header = PromoteBroker(force=force, role=role)
        response = await self._instance.ask(address, RequestCode.PROMOTE_BROKER, header, timeout_ms=_PROMOTE_TIMEOUT_MS)
        return decode(response.body, BrokerStatus)
