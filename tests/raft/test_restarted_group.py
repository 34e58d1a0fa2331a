"""All members of a group at once lose power, and come back (P1, P4)."""

from __future__ import annotations

import pytest

from ternmq.store.log import pending
from ternmq.testing.cluster import Cluster
from tests.raft.test_group_simulation import a_selling_group, leader_of, run, until


def test_a_leader_begins_its_term_behind_any_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut no member knows what of the last seconds is committed. The first record of a term must find
    room behind all of that, also where senders would be refused, or no leader ever gets further."""
    monkeypatch.setattr(pending, "PENDING_MAX", 20)

    async def story(cluster: Cluster) -> None:
        members, shop, _ = await a_selling_group(cluster, per_second=200, flushDiskType="SYNC_FLUSH")
        await shop.sells(1_000)
        for member in members:
            member.cut_power()
        await cluster.start(*members)
        await until(lambda: leader_of(members))
        await shop.sells()
        await shop.ends(members)

    run(13, story)
