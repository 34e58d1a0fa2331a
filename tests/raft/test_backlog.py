"""Messages that wait for a majority are bounded, in number and in bytes (P3, P4)."""

from __future__ import annotations

import pytest

from ternmq.errors import SystemBusy
from ternmq.raft import backlog
from ternmq.testing.cluster import Cluster
from tests.raft.test_group_simulation import a_selling_group, run


@pytest.mark.parametrize("bound", ["PENDING_MAX", "PENDING_BYTES_MAX"])
def test_a_leader_without_a_majority_takes_only_so_much(bound: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """P3: a new leader has to send all that its predecessor left before it can begin its term."""

    async def story(cluster: Cluster) -> None:
        _, shop, leader = await a_selling_group(cluster)
        assert leader.broker is not None
        assert leader.broker.group is not None
        level = leader.broker.group.node.backlog.level
        assert level.room is not None
        assert level.check_write is not None
        level.check_write()
        assert level.room() > 0

        monkeypatch.setattr(backlog, bound, -1)
        assert level.room() <= 0
        with pytest.raises(SystemBusy, match="bytes wait for a majority"):
            level.check_write()
        monkeypatch.undo()
        await shop.sells()

    run(5, story)
