"""Members join and leave while the group works (P1, P3, P4)."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest

from ternmq import names
from ternmq.admin import Admin
from ternmq.errors import (
    BrokerRefused,
    CallTimeout,
    CorruptFile,
    InvalidParameter,
    NetworkError,
    NotMaster,
    ServiceNotAvailable,
    TernError,
)
from ternmq.raft.group import Members
from ternmq.raft.log import RaftLog
from ternmq.raft.membership import MEMBERS_FLAG, Change, ListedMember, Membership, pack_body, peers_in
from ternmq.store.disk.file_disk import FileDisk
from ternmq.store.log.draft import Draft
from ternmq.store.store import MessageStore
from ternmq.testing.cluster import RAFT_PORT, Cluster, Node
from ternmq.testing.disk import SimulatedDisk
from ternmq.wire.codes import RequestCode
from ternmq.wire.layouts.raft_entry import ENTRY_HEADER_BYTES
from ternmq.wire.record import pack_record, record_bytes
from ternmq.wire.requests_admin import ChangeMembers
from tests.raft.group import Group
from tests.raft.member_simulation import MemberSimulation
from tests.raft.memory_log import Entry
from tests.raft.seeds import live, live_twice
from tests.raft.test_filling import copy_log, delete_old, is_there, node_of, put, wiped
from tests.raft.test_group_simulation import Shop, a_selling_group, agree, bodies, data_files, leader_of, run, until
from tests.raft.test_log import commit, raft_store
from tests.raft.test_log import put as put_all
from tests.store.small import HOST, crash
from tests.store.small import bodies as all_bodies
from tests.store.spoiled import edit

# --- Cores ------------------------------------------------------------------------------------------------------------

#: Seeds of one test.
PORTION = 20


@pytest.mark.parametrize("first", range(0, 60, PORTION))
def test_members_change_while_everything_breaks(first: int) -> None:
    """P1, P3: joins, leaves, lost disks, entries that were deleted meanwhile. One leader a term, log matching, leader
    completeness, committed entries never change, acknowledged ones are on a majority of the present members, and soon
    after all is well the group works again."""
    lives = [live_twice(first, MemberSimulation)]
    lives += [live(seed, kind=MemberSimulation) for seed in range(first + 1, first + PORTION)]
    assert PORTION < sum(life.changes for life in lives if isinstance(life, MemberSimulation))


def test_a_member_that_began_anew_votes_beside_one_that_lost_its_disk() -> None:
    """Both were filling, and there was no leader any more."""
    live(1101221, kind=MemberSimulation)


def test_a_leader_with_a_slow_disk_is_filled_and_votes_after_a_restart() -> None:
    """Without its vote the members that an unfinished change has left had no leader."""
    live(2100702, kind=MemberSimulation)


def test_a_leader_with_a_slow_disk_is_not_left_with_one_other_that_needs_its_vote() -> None:
    """It was filling, and does not vote without a leader: there was none any more."""
    live(88112204582, kind=MemberSimulation)


def test_a_new_group_whose_leader_dies_in_its_first_moments_elects_another() -> None:
    """Members that were empty when it began had nothing to lose."""
    live(2200137, kind=MemberSimulation)


def test_a_second_change_waits_for_the_first() -> None:
    group = Group(members=Members(("n0", "n1", "n2")))
    leader = group.elect("n0")
    group.run(100)
    core = leader.core
    group.isolate("n0")
    core.check_change(Members(("n0", "n1", "n2"), ("n3",)), group.now_ms, since_ms=0)
    leader.put("members", Members(("n0", "n1", "n2"), ("n3",)))
    assert core.members.learners == ("n3",), "it counts when it is appended"
    with pytest.raises(ServiceNotAvailable, match="in progress"):
        core.check_change(Members(("n0", "n1", "n2"), ("n3", "n4")), group.now_ms, since_ms=0)


def test_a_leader_that_has_committed_nothing_in_its_term_changes_no_members() -> None:
    """Ongaro's correction of single-server changes (2015)."""
    group = Group((1,), (1,), (1,))
    group.cut |= {("n1", "n0"), ("n2", "n0")}
    follower = group["n0"].core
    with pytest.raises(BrokerRefused, match="does not lead"):
        follower.check_change(Members(("n0", "n1")), 0, since_ms=0)
    group.cut.clear()
    leader = group.elect("n0")
    leader.core._commit = 0
    with pytest.raises(ServiceNotAvailable, match="has committed nothing yet"):
        leader.core.check_change(Members(("n0", "n1")), group.now_ms, since_ms=0)


@pytest.mark.parametrize(
    ("members", "sentence"),
    [
        (Members(("n0", "n1", "n2")), "one member at a time: none would change"),
        (Members(("n0", "n1", "n2", "n3", "n4")), "one member at a time: n3, n4 would change"),
        (Members(("n0",)), "one member at a time: n1, n2 would change"),
        (Members(("n0", "n1", "n3")), "one member at a time: n2, n3 would change"),
        (Members(("n1", "n2")), "n0 leads the group; hand over first"),
        (Members(("n0", "n1", "n2"), ("n3",)), ""),
        (Members(("n0", "n1")), ""),
    ],
)
def test_one_member_changes_at_a_time(members: Members, sentence: str) -> None:
    group = Group(members=Members(("n0", "n1", "n2")))
    leader = group.elect("n0")
    group.run(1000)
    if not sentence:
        leader.core.check_change(members, group.now_ms, since_ms=0)
        return
    with pytest.raises(InvalidParameter, match=sentence):
        leader.core.check_change(members, group.now_ms, since_ms=0)


def test_a_change_that_is_taken_back_counts_no_more() -> None:
    """It was in the log of a minority only."""
    group = Group(members=Members(("n0", "n1", "n2")))
    old = group.elect("n0")
    group.run(100)
    group.isolate("n0")
    old.put("members", Members(("n0", "n1", "n2"), ("n3",)))
    assert ("n3",) == old.core.members.learners
    group.run_until(lambda: any(name != "n0" for name in group.leaders))
    group.cut.clear()
    group.run(3000)
    assert old.log.members is None
    assert Members(("n0", "n1", "n2")) == old.core.members


def test_several_members_do_not_change_at_once() -> None:
    """Majorities before and after would have no member in common."""
    group = Group(members=Members(("n0", "n1", "n2")))
    leader = group.elect("n0")
    group.run(1000)
    with pytest.raises(InvalidParameter, match="one member at a time"):
        leader.core.check_change(Members(("n0",)), group.now_ms, since_ms=0)


def test_a_change_that_would_stop_the_group_is_refused() -> None:
    """The members that are left could not elect a leader."""
    group = Group(members=Members(("n0", "n1", "n2")))
    leader = group.elect("n0")
    group.run(1000)
    group.isolate("n1")
    group.run(1000)
    with pytest.raises(ServiceNotAvailable, match="n1 cannot be reached or lacks a part of the log"):
        leader.core.check_change(Members(("n0", "n1")), group.now_ms, since_ms=0)
    leader.core.check_change(Members(("n0", "n2")), group.now_ms, since_ms=0)


def test_one_that_is_to_leave_leads_until_that_is_committed() -> None:
    """Of two members, the one that stays loses the change in a power cut, and the one that leaves has it: only that one
    can lead. It brings the change to its end, and hands over."""
    group = Group(members=Members(("n0", "n1")))
    leader = group.elect("n0")
    group.run(1000)
    index = leader.log.last_index + 1
    # It is sent before it is on the own disk.
    leader.log.append(index, [Entry(leader.core.term, "members", Members(("n0",)))])
    leader.do(leader.core.appended(group.now_ms))
    group.deliver()
    assert Members(("n0",)) == group["n1"].log.members
    leader.log.truncate(index)
    leader.restart()
    group.under_way.clear()
    group.run_until(lambda: group.leaders == ["n0"])
    assert Members(("n0",)) == leader.core.members
    assert [1, 1, 2, 3] == [entry.term for entry in leader.log.entries], "n1 led term 2"


# --- Files ------------------------------------------------------------------------------------------------------------


def test_the_file_counts_only_for_what_the_log_has() -> None:
    """P1: it is written before the entry, so it may know more than the log; never less."""
    disk, path = SimulatedDisk(), Path("/members")
    one = (ListedMember("n0", "a:1"),)
    two = (*one, ListedMember("n1", "b:1", votes=False))
    membership = Membership(disk, path)
    membership.load(first_index=0, has=lambda _change: False)
    assert (None, -1) == (membership.members, membership.index)
    membership.add(Change(5, 1, one), committed=-1)
    membership.add(Change(9, 2, two), committed=5)
    assert (Members(("n0",), ("n1",)), 9) == (membership.members, membership.index)
    membership.cut(9)
    assert (Members(("n0",)), 5) == (membership.members, membership.index)
    for terms, expected in (({5: 1, 9: 2}, 9), ({5: 1, 9: 3}, 5), ({5: 1}, 5), ({}, -1)):
        again = Membership(disk, path)
        again.load(first_index=0, has=lambda change, terms=terms: terms.get(change.index) == change.term)  # type: ignore[misc]
        assert expected == again.index
    again = Membership(disk, path)
    again.load(first_index=7, has=lambda _change: False)
    assert 5 == again.index, "an entry that was deleted was committed"


GROUP = (ListedMember("n0", "a:1"), ListedMember("n1", "b:1"), ListedMember("n2", "c:1"))


def put_change(store: MessageStore, log: RaftLog, peers: tuple[ListedMember, ...]) -> None:
    """As a leader does it."""
    log.membership.add(Change(log.last_index + 1, log.term, peers), committed=log.committed)
    store.put(Draft(names.RAFT_MEMBERS_TOPIC, 0, pack_body(peers), "", 1, HOST, flag=MEMBERS_FLAG))


def members_after_a_start(root: Path) -> tuple[Members | None, int]:
    store, log = raft_store(root)
    with store:
        return log.members, log.members_index


def test_a_change_that_did_not_come_to_the_log_is_no_other_entry(tmp_path: Path) -> None:
    """P1: the disk of a leader was full for a moment. The next message got index and term of the change, which counted
    from the next start on: that member knew another group than all others."""
    store, log = raft_store(tmp_path)
    with store:
        put_change(store, log, GROUP)
        commit(store, log)
        log.membership.add(Change(1, log.term, GROUP[:2]), committed=0)
        log.membership.cut(1)
        put_all(store, "message")
        commit(store, log)
        crash(store, tmp_path / "killed")
    for root in (tmp_path, tmp_path / "killed"):
        assert (Members(("n0", "n1", "n2")), 0) == members_after_a_start(root)


@pytest.mark.parametrize("has_come", [False, True])
def test_a_change_that_was_taken_back_does_not_return_when_retention_passes_it(tmp_path: Path, has_come: bool) -> None:
    """P1: of an entry that is deleted the file alone tells whether it was in the log."""
    store, log = raft_store(tmp_path)
    with store:
        put_change(store, log, GROUP)
        commit(store, log)
        if has_come:
            put_change(store, log, GROUP[:2])
            store.truncate(log.cut_before(1), NotMaster("another leader was elected"))
        else:
            log.membership.add(Change(1, log.term, GROUP[:2]), committed=0)
            # It is killed before the entry comes.
    store, log = raft_store(tmp_path, term=2)
    with store:
        put_all(store, *map(str, range(30)), size=300)
        commit(store, log)
        log.save_committed()
        while len(log.starts) > 1:
            log.drop_first().unlink()
        assert log.first_index > 1
    assert (Members(("n0", "n1", "n2")), 0) == members_after_a_start(tmp_path)


def test_a_change_whose_entry_cannot_be_read_counts(tmp_path: Path) -> None:
    """P1: a damaged entry in the middle of the log says nothing; the file does."""
    store, log = raft_store(tmp_path)
    with store:
        put_all(store, "message")
        put_change(store, log, GROUP)
        position = log.position_of(1)
        put_all(store, *map(str, range(30)), size=300)
        commit(store, log)
    assert position is not None
    edit(tmp_path / "dledger-n0" / "data" / f"{0:020d}", position + ENTRY_HEADER_BYTES + 100, b"\xff\xff")
    assert (Members(("n0", "n1", "n2")), 1) == members_after_a_start(tmp_path)


def members_record(body: bytes, *, topic: str = names.RAFT_MEMBERS_TOPIC) -> bytearray:
    """A record as it is in the log."""
    size = record_bytes(body=len(body), topic=len(topic), properties=0, born_host=len(HOST), store_host=len(HOST))
    page = bytearray(size)
    pack_record(
        page,
        0,
        size=size,
        queue_id=0,
        flag=MEMBERS_FLAG,
        queue_offset=0,
        log_offset=0,
        sysflag=0,
        born_time_ms=1,
        born_host=HOST,
        store_time_ms=1,
        store_host=HOST,
        reconsume_times=0,
        prepared_transaction_offset=0,
        body=body,
        topic=topic.encode(),
        properties=b"",
    )
    return page


@pytest.mark.parametrize(
    "peers",
    [
        (),
        (ListedMember("n0", "a:1", votes=False),),
        (ListedMember("n0", "a:1"), ListedMember("n0", "b:1")),
        (ListedMember("n0", "a:1"), ListedMember("n1", "a:1")),
        (ListedMember("x", "a:1"),),
        (ListedMember("n0", "nowhere"),),
        tuple(ListedMember(f"n{number}", f"a:{number + 1}") for number in range(10)),
    ],
)
def test_a_record_that_names_no_group_names_no_members(peers: tuple[ListedMember, ...]) -> None:
    assert None is peers_in(members_record(pack_body(peers)))
    good = (ListedMember("n0", "a:1"), ListedMember("n1", "b:1", votes=False))
    assert good == peers_in(members_record(pack_body(good)))
    assert None is peers_in(members_record(b"\xff"))
    assert None is peers_in(members_record(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
    assert None is peers_in(members_record(pack_body(good), topic="orders"))


# --- Brokers ----------------------------------------------------------------------------------------------------------


def joining(cluster: Cluster, members: list[Node], number: int, **settings: object) -> Node:
    """A broker that is to join a group."""
    ip = f"10.0.0.{len(cluster.nodes) + 1}"
    peers = [f"n{at}-{member.ip}:{RAFT_PORT}" for at, member in enumerate(members)] + [f"n{number}-{ip}:{RAFT_PORT}"]
    node = cluster.broker(
        f"broker-a-n{number}",
        brokerName="broker-a",
        enableDLegerCommitLog=True,
        dLegerPeers=";".join(peers),
        dLegerSelfId=f"n{number}",
        raftJoin=True,
        **settings,
    )
    assert ip == node.ip
    return node


def named(cluster: Cluster, member: Node, peers: list[Node], **settings: object) -> None:
    """Let ``dLegerPeers`` of a member name these at its next start."""
    own = member.name.rpartition("-")[2]
    other = cluster.broker(
        f"settings of {own}",
        brokerName="broker-a",
        enableDLegerCommitLog=True,
        dLegerSelfId=own,
        dLegerPeers=";".join(f"{each.name.rpartition('-')[2]}-{each.ip}:{RAFT_PORT}" for each in peers),
        **settings,
    )
    member._program = other._program


async def asked(cluster: Cluster, *texts: str) -> None:
    """Add (``+n3-…``) and remove (``-n1``) members, as a tool does; each must be done."""
    done: list[str] = []

    async def ask(node: Node) -> None:
        async with Admin(config=node.client_config(), env=node.env) as admin:
            node.is_ready()
            for text in texts:
                if text.startswith("+"):
                    await admin.raft.add(text[1:], wait_s=200)
                else:
                    await admin.raft.remove(text[1:])
                done.append(text)
            await node.stopping.wait()

    tool = cluster.node(f"tool-{len(cluster.nodes)}", ask)
    await cluster.start(tool)
    await until(lambda: len(done) == len(texts) or cluster.loop.failures, 100.0)
    cluster.loop.check()
    await tool.stop()


def test_a_member_that_the_settings_do_not_name_ends_no_group_that_may_have_rocketmq_brokers() -> None:
    """P3: the group has grown, and then gets ``raftPeerProtocol=dledger`` with the settings of before. The first
    message for the new member ended the part of the one that sent it."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop = Shop(cluster)
        new = joining(cluster, members, 3)
        await cluster.start(cluster.name_server(), *members, new)
        await asked(cluster, f"+n3-{new.ip}:{RAFT_PORT}")
        await until(lambda: "n3" in node_of(new).core.members.voters)
        for each in (*members, new):
            await each.stop()
        for each in members:
            named(cluster, each, members, raftPeerProtocol="dledger")
        await cluster.start(*members, shop.node)
        await until(lambda: len(shop.acknowledged) > 20)
        assert [""] * 3 == [node_of(each).trouble for each in members]

    run(31, story)


@pytest.mark.parametrize(("protocol", "counts"), [("dledger", False), ("ternmq", True)])
def test_a_message_that_names_members_is_an_ordinary_one_where_rocketmq_brokers_may_lead(
    protocol: str, counts: bool
) -> None:
    """P3: they take messages of any topic and flag from any client, who could make a group of its own of the others."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3, raftPeerProtocol=protocol)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        leader = leader_of(members)
        assert leader is not None
        store, log = node_of(leader).store, node_of(leader).log
        await until(lambda: node_of(leader).leads())
        body = pack_body([ListedMember(each.name[-2:], f"{each.ip}:{RAFT_PORT}") for each in members])
        store.put(Draft(names.RAFT_MEMBERS_TOPIC, 0, body, "", 0, HOST, flag=MEMBERS_FLAG))
        await until(lambda: all(node_of(each).log.last_index == log.last_index for each in members))
        followers = [each for each in members if each is not leader]
        assert [counts] * 2 == [node_of(each).log.membership.newest is not None for each in followers]

    run(32, story)


def test_a_member_that_joins_is_not_told_that_it_was_removed(caplog: pytest.LogCaptureFixture) -> None:
    """P1: the changes of before come to it with the log, and do not name it. An operator would stop it."""
    caplog.set_level("INFO", "ternmq.raft")

    async def story(cluster: Cluster) -> None:
        members, shop, _ = await a_selling_group(cluster, per_second=200, raftAppendBytes=4096)
        for number in (3, 4):
            new = joining(cluster, members, number)
            await cluster.start(new)
            await asked(cluster, f"+n{number}-{new.ip}:{RAFT_PORT}")
            members.append(new)
            # More than one append.
            await shop.sells(100)
        await shop.ends(members)
        assert [""] * 5 == [node_of(each).status().trouble for each in members]

    run(33, story)
    assert "n4 keeps up, and votes from now on" in caplog.text
    assert "was removed from the group" not in caplog.text


def test_a_member_is_replaced_while_messages_come() -> None:
    """P1, P4: n3 joins, also what was deleted meanwhile, and votes; n0 leaves, whether it leads or not; all that was
    acknowledged is on all members; restarts know the members; the one that left says so."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3, fileReservedTime=0)
        shop = Shop(cluster, per_second=200)
        await cluster.start(cluster.name_server(), *members)
        new = joining(cluster, members, 3, fileReservedTime=0)
        await cluster.start(shop.node, new)
        await until(lambda: len(shop.acknowledged) > 700)
        await shop.node.stop()
        await agree(members)
        await delete_old(members)
        await cluster.start(shop.node)
        old = leader_of(members)
        assert old is not None
        old_id = node_of(old).id
        await asked(cluster, f"+n3-{new.ip}:{RAFT_PORT}", f"-{old_id}")
        left = [each for each in (*members, new) if each is not old]
        await until(lambda: leader_of(left))
        assert {"n0", "n1", "n2", "n3"} - {old_id} == set(node_of(new).core.members.voters)
        await until(lambda: "was removed from the group" in node_of(old).status().trouble)
        for member in left:
            member.kill()
            await cluster.start(member)
        await until(lambda: leader_of(left))
        await shop.sells()
        await shop.node.stop()
        await agree(left)
        assert all({"n0", "n1", "n2", "n3"} - {old_id} == set(node_of(each).core.members.voters) for each in left)
        one, two, three = (data_files(member) for member in left)
        last = max(one)
        assert one[last] == two[last] == three[last]
        assert all(set(shop.acknowledged[-20:]) <= set(bodies(each)) for each in left)
        # The one that left comes back with what it knew, and is not listened to.
        await old.stop()
        await cluster.start(old)
        leader = leader_of(left)
        await until(lambda: is_there(old))
        # Some election time-outs.
        await asyncio.sleep(10.0)
        assert leader_of(left) is leader is not None

    run(21, story)


def test_what_cannot_be_changed_is_refused_with_a_sentence() -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 2)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        leader = leader_of(members)
        assert leader is not None
        assert leader.broker is not None
        group = leader.broker.group
        assert group is not None
        other = "n1" if node_of(leader).id == "n0" else "n0"
        await until(lambda: node_of(leader).core.keeps_up(other, node_of(leader).now_ms()))
        for change, sentence in (
            (group.add("n1-10.0.0.9:40911"), "is a member already"),
            (group.add(f"n7-{members[1].ip}:{RAFT_PORT}"), "needs its own id and address"),
            (group.add("x7"), "expected members such as n0"),
            (group.remove("n9"), "'n9' is not a member of the group: n0"),
            (group.remove(node_of(leader).id), "hand over first"),
        ):
            with pytest.raises(TernError, match=sentence):
                await change
        await group.add("n5-10.0.0.99:40911")
        with pytest.raises(TernError, match="joins already"):
            await group.add("n5-10.0.0.99:40911")
        await group.remove("n5")
        await group.remove(other)
        with pytest.raises(TernError, match="last member that votes"):
            await group.remove(node_of(leader).id)

    run(22, story)


def test_a_learner_that_keeps_up_is_not_asked_to_take_over() -> None:
    """P4: it has as much as the others, and cannot lead; a leader that stops would hand over to nobody."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster)
        learner = joining(cluster, members, 3)
        await cluster.start(learner)
        assert leader.broker is not None
        assert leader.broker.group is not None
        group = leader.broker.group
        with patch.object(group.node.members, "_promote", AsyncMock()):
            await group.add(f"n3-{learner.ip}:{RAFT_PORT}")
            await shop.node.stop()
            await until(lambda: {group.log.last_index} == {each.match for each in group.node.core.followers()})
            assert await group.transfer("") in ("n0", "n1", "n2")

    run(23, story)


def test_a_learner_that_cannot_be_reached_does_not_vote_and_stops_nothing() -> None:
    """P1: nothing depends on it; the caller is told, and may take it back."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop = Shop(cluster)
        await cluster.start(cluster.name_server(), *members)
        await cluster.start(shop.node)
        await until(lambda: len(shop.acknowledged) > 5)
        told: list[str] = []

        async def ask(node: Node) -> None:
            async with Admin(config=node.client_config(), env=node.env) as admin:
                node.is_ready()
                with pytest.raises(CallTimeout) as refused:
                    await admin.raft.add("n3-10.0.0.99:40911", wait_s=5)
                told.append(str(refused.value))
                await admin.raft.remove("n3")
                told.append("removed")
                await node.stopping.wait()

        tool = cluster.node("tool", ask)
        await cluster.start(tool)
        await until(lambda: len(told) == 2 or cluster.loop.failures)
        cluster.loop.check()
        assert "n3 does not keep up yet" in told[0]
        await shop.sells()
        assert all(is_there(each) and node_of(each).core.members == Members(("n0", "n1", "n2")) for each in members)

    run(23, story)


def test_a_change_whose_answer_was_lost_is_made_once_and_told_as_made() -> None:
    """P4: the tool asks again, and hears that n3 is a member already."""

    async def story(cluster: Cluster) -> None:
        members, _, _ = await a_selling_group(cluster)
        learner = joining(cluster, members, 3)
        await cluster.start(learner)
        lost: list[ChangeMembers] = []
        made: list[str] = []

        async def change(node: Node) -> None:
            async with Admin(config=node.client_config(), env=node.env) as admin:
                node.is_ready()
                ask = admin.raft._instance.ask

                async def ask_and_lose(address: str, code: int, header: Any = None, *args: Any, **options: Any) -> Any:
                    answer = await ask(address, code, header, *args, **options)
                    if code == RequestCode.CHANGE_MEMBERS and header not in lost:
                        lost.append(header)
                        raise NetworkError("the connection was lost")
                    return answer

                with patch.object(admin.raft._instance, "ask", ask_and_lose):
                    await admin.raft.add(f"n3-{learner.ip}:{RAFT_PORT}", wait_s=200)
                    made.append("added")
                    await admin.raft.remove("n3")
                    made.append("removed")
                    with pytest.raises(InvalidParameter, match="not a member"):
                        await admin.raft.remove("n3")
                    made.append("refused")
                await node.stopping.wait()

        await cluster.start(cluster.node("tool", change))
        await until(lambda: len(made) == 3 or cluster.loop.failures)
        cluster.loop.check()
        assert 2 == len(lost)

    run(23, story)


def test_a_member_that_lost_its_disk_learns_of_the_members_again() -> None:
    """P1: its settings are older than the group."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop = Shop(cluster)
        await cluster.start(cluster.name_server(), *members)
        new = joining(cluster, members, 3)
        await cluster.start(shop.node, new)
        await until(lambda: len(shop.acknowledged) > 20)
        await asked(cluster, f"+n3-{new.ip}:{RAFT_PORT}", "-n0")
        left = [*members[1:], new]
        await until(lambda: leader_of(left))
        await wiped(members[2])
        await cluster.start(members[2])
        await shop.node.stop()
        await agree(left)
        assert Members(("n1", "n2", "n3")) == node_of(members[2]).core.members

    run(24, story)


def test_a_single_broker_grows_to_a_group() -> None:
    """P2: a group of one, with the log that the broker had before; the others begin with empty directories."""

    async def story(cluster: Cluster) -> None:
        [first] = cluster.raft_group("broker-a", 1)
        single = cluster.broker("single")
        await cluster.start(cluster.name_server(), single)
        await put(single, 200)
        await single.stop()
        copy_log(single.disk.files(), first)
        others = [joining(cluster, [first], number) for number in (1, 2)]
        await cluster.start(first, *others)
        await until(lambda: leader_of([first]))
        await asked(cluster, *(f"+n{at}-{each.ip}:{RAFT_PORT}" for at, each in enumerate(others, 1)))
        members = [first, *others]
        await agree(members)
        assert Members(("n0", "n1", "n2")) == node_of(others[1]).core.members
        for member in others:
            assert data_files(first) == data_files(member)
            assert list(range(200)) == [int(body) for body in all_bodies(node_of(member).store, "orders", 0)]

    run(25, story)


@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(2, 6))])
def test_whole_brokers_join_and_leave_while_everything_breaks(seed: int) -> None:
    """P1, P3, P4: kills, power cuts, partitions, lost disks, deleted entries, while members join and leave; at the end
    the present members are equal byte for byte, and have all that was acknowledged and not deleted."""
    run(300 + seed, _Storm().story)


WHAT = ("kill", "power", "cut", "join", "join", "leave", "wipe", "delete", "transfer")


class _Storm:
    async def story(self, cluster: Cluster) -> None:
        chance = self.chance = cluster.random
        self.deletes = chance.random() < 0.4
        settings = {"flushDiskType": "SYNC_FLUSH", **({"fileReservedTime": 0} if self.deletes else {})}
        members = cluster.raft_group("broker-a", 3, **settings)
        self.cluster, self.shop = cluster, Shop(cluster, per_second=50)
        await cluster.start(cluster.name_server(), *members)
        self.nodes = {f"n{number}": member for number, member in enumerate(members)}
        for number in (3, 4):
            self.nodes[f"n{number}"] = joining(cluster, members, number, **settings)
        await cluster.start(self.shop.node, self.nodes["n3"], self.nodes["n4"])
        await until(lambda: len(self.shop.acknowledged) > 200)
        for _ in range(8):
            await self._hurt(
                chance.choice(("kill", "power", "cut", "join", "join", "leave", "wipe", "delete", "transfer"))
            )
            await asyncio.sleep(chance.choice((0.3, 1.0, 4.0)))
        cluster.network.heal()
        for node in self.nodes.values():
            if not node.is_up:
                await cluster.start(node)
        await self.shop.sells(limit_s=120.0)
        await self.shop.node.stop()
        await until(lambda: all(each.is_up and is_there(each) for each in self._present()) and len(self._present()) > 0)
        await agree(self._present())
        present = self._present()
        files = [data_files(member) for member in present]
        for name in files[0]:
            assert all(name not in other or other[name] == files[0][name] for other in files)
        wanted = set(self.shop.acknowledged[-20:] if self.deletes else self.shop.acknowledged)
        assert all(wanted <= set(bodies(each)) for each in present)

    def _leader(self) -> Node | None:
        return leader_of([each for each in self.nodes.values() if each.is_up])

    def _present(self) -> list[Node]:
        leader = self._leader()
        members = node_of(leader).core.members if leader is not None and is_there(leader) else Members(("n0",))
        return [self.nodes[name] for name in (*members.voters, *members.learners)]

    async def _hurt(self, what: str) -> None:
        chance, nodes, leader = self.chance, self.nodes, self._leader()
        for node in nodes.values():
            if not node.is_up:
                await self.cluster.start(node)
        if leader is None or leader.broker is None or leader.broker.group is None or not is_there(leader):
            self.cluster.network.heal()
            return
        group, members = leader.broker.group, node_of(leader).core.members
        victim = nodes[chance.choice(members.voters)]
        self.cluster.note(what, victim.name)
        others = [each for name in members.voters if (each := nodes[name]) is not victim]
        is_whole = (
            len(members.voters) > 2
            and node_of(leader).log.members_index <= group.log.committed
            and all(is_there(each) and not node_of(each).core.is_filling for each in others)
        )
        with contextlib.suppress(TernError, TimeoutError):
            match what:
                case "kill":
                    victim.kill()
                case "power":
                    victim.cut_power()
                case "cut":
                    self.cluster.network.partition(
                        [victim.ip], [each.ip for each in nodes.values() if each is not victim]
                    )
                case "wipe" if (
                    is_whole and len(members.voters) > 2 and node_of(leader).log.members_index <= group.log.committed
                ):
                    await wiped(victim)
                    # Changes wait until it is noticed.
                    await asyncio.sleep(3.0)
                case "delete" if self.deletes:
                    for each in others:
                        node_of(each).store.retention.ask()
                case "join":
                    spare = chance.choice([*nodes])
                    await group.add(f"{spare}-{nodes[spare].ip}:{RAFT_PORT}")
                case "leave" if len(members.voters) > 3:
                    await group.remove(chance.choice([name for name in members.voters if nodes[name] is not leader]))
                case "transfer":
                    await node_of(leader).transfer(chance.choice(members.voters))


@pytest.mark.parametrize("data", [b"\xff", b"{", b'[{"unknown":' + b"[" * 100_000])
def test_a_file_of_members_that_cannot_be_read_is_told_with_the_cure(tmp_path: Path, data: bytes) -> None:
    """P1: also one that is nested too deep."""
    path = tmp_path / "members"
    path.write_bytes(data)
    with pytest.raises(CorruptFile, match="it gets the log from the group"):
        Membership(FileDisk(), path).load(first_index=0, has=lambda _: True)
