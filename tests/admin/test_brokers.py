"""Clusters and brokers through the admin (A1, D6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.admin import Admin
from ternmq.broker.broker import Broker
from ternmq.broker.config import BrokerConfig
from ternmq.embedded import EmbeddedCluster
from ternmq.env import Env
from ternmq.errors import ConfigError, NameServersUnreachable, TernError
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.store.config import StoreConfig


async def test_brokers_are_listed_with_their_addresses(cluster: EmbeddedCluster, admin: Admin) -> None:
    expected = [(broker.config.broker_name, 0, broker.address) for broker in cluster.brokers]

    assert expected == [(broker.name, broker.broker_id, broker.address) for broker in await admin.brokers.all()]


async def test_the_only_cluster_needs_no_name(admin: Admin) -> None:
    assert await admin.brokers.masters_of("DefaultCluster") == await admin.brokers.masters_of(None)


async def test_an_unknown_cluster_is_answered_with_the_known_ones(admin: Admin) -> None:
    with pytest.raises(ConfigError, match="no cluster 'Other'; the clusters are DefaultCluster"):
        await admin.brokers.masters_of("Other")


async def test_two_clusters_ask_for_a_choice(tmp_path: Path) -> None:
    """A1: one name server may serve several clusters."""
    async with EmbeddedCluster() as cluster, Admin(cluster.name_servers) as admin:
        config = BrokerConfig(
            broker_name="other-a",
            broker_cluster_name="Other",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=0,
            namesrv_addr=cluster.name_servers,
        )
        async with Broker(config, StoreConfig(store_path_root_dir=tmp_path, max_index_num=100, max_hash_slot_num=10)):
            with pytest.raises(ConfigError, match=r"2 clusters \(DefaultCluster, Other\); choose one"):
                await admin.topics.create("orders")
            assert ["other-a"] == [broker.name for broker in await admin.topics.create("orders", cluster="Other")]


async def test_a_name_server_without_brokers_says_so() -> None:
    config = NamesrvConfig(listen_port=0, bind_address="127.0.0.1")
    async with NameServer(config, Env()) as server, Admin(f"127.0.0.1:{server.port}") as admin:
        assert [] == await admin.brokers.all()
        with pytest.raises(TernError, match=r"no broker is registered at 127\.0\.0\.1:.* start one with `tern up`"):
            await admin.brokers.masters()


async def test_no_name_server_is_an_error_with_the_address() -> None:
    """A6."""
    async with Admin("127.0.0.1:1") as admin:
        with pytest.raises(NameServersUnreachable, match=r"127\.0\.0\.1:1"):
            await admin.brokers.all()
