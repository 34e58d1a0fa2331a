"""Messages that wait for a majority are bounded, in number and in bytes (P3, P4)."""

from __future__ import annotations

import pytest

from ternmq.errors import SystemBusy
from ternmq.raft import node as raft_node
from ternmq.testing.cluster import Cluster
from tests.raft.test_group_simulation import Shop, leader_of, run, until


@pytest.mark.parametrize("bound", ["PENDING_MAX", "PENDING_BYTES_MAX"])
def test_a_leader_without_a_majority_takes_only_so_much(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: a new leader has to send all that its predecessor left before it can begin its term."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop = Shop(cluster)
        await cluster.start(cluster.name_server(), *members)
        await cluster.start(shop.node)
        await until(lambda: len(shop.acknowledged) > 20)
        leader = leader_of(members)
        assert leader is not None
        assert leader.broker is not None
        assert leader.broker.group is not None
        node = leader.broker.group.node
        assert node.level.room is not None
        assert node.level.check_write is not None
        node.level.check_write()
        assert node.level.room() > 0

        monkeypatch.setattr(raft_node, bound, -1)
        assert node.level.room() <= 0
        with pytest.raises(SystemBusy, match="bytes wait for a majority"):
            node.level.check_write()
        monkeypatch.undo()
        sent = len(shop.acknowledged)
        await until(lambda: len(shop.acknowledged) > sent + 20)

    run(5, story)
