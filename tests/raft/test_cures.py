"""What the guide tells an operator to do where a group cannot help itself (P1). ``test_killed`` has the copy of a
directory, with real processes."""

from __future__ import annotations

import asyncio

import pytest

from ternmq.raft.group import Members
from ternmq.testing.cluster import Cluster
from tests.raft.test_filling import node_of, wiped
from tests.raft.test_group_simulation import a_selling_group, agree, leader_of, run, until
from tests.raft.test_members import asked, named


def test_an_empty_member_of_two_votes_when_its_settings_name_the_two(caplog: pytest.LogCaptureFixture) -> None:
    """A disk is lost while a third member is removed, and the leader dies before the empty one has anything."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster)
        await agree(members)
        removed, empty = (each for each in members if each is not leader)
        await asked(cluster, f"-{removed.name[-2:]}")
        assert 2 == len(node_of(leader).core.members.voters)
        removed.kill()
        # What is committed is on the disk now and then. In its first seconds a group may not know of anything.
        await asyncio.sleep(10)
        leader.kill()
        await wiped(empty)
        await cluster.start(empty, leader)
        await until(lambda: f"{empty.name[-2:]} gives no vote to {leader.name[-2:]}" in caplog.text)
        await asyncio.sleep(30)
        assert leader_of(members) is None

        empty.kill()
        named(cluster, empty, [leader, empty])
        await cluster.start(empty)
        await until(lambda: leader_of([leader]))
        await shop.sells()
        await shop.node.stop()
        await agree([leader, empty])
        ids = tuple(sorted(each.name[-2:] for each in (leader, empty)))
        assert Members(ids) == node_of(empty).core.members

    run(31, story)
