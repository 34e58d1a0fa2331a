"""Clusters and their brokers, as the name server knows them (A1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ternmq.client.connect.instance import ClientInstance
from ternmq.errors import ConfigError, TernError, refused
from ternmq.wire.bodies.codec import decode
from ternmq.wire.bodies.routes import ClusterInfo
from ternmq.wire.codes import RequestCode, ResponseCode

MASTER_ID: Final = 0


@dataclass(slots=True, frozen=True, order=True)
class BrokerInfo:
    """One broker process; id 0 is the master of its name."""

    cluster: str
    name: str
    broker_id: int
    address: str


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
            raise ConfigError(f"there is no cluster {cluster!r}; the clusters are {', '.join(clusters)}")
        return [broker for broker in masters if cluster in (None, broker.cluster)]
