"""Whole brokers as a Raft group, on a simulated network and disk, with real clients (P1–P4)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from random import Random
from typing import Any, Final
from unittest.mock import patch

import pytest

from ternmq.client.send.producer import Producer
from ternmq.errors import StoreError, TernError
from ternmq.message import Message, SendStatus
from ternmq.raft.messages import Append
from ternmq.raft.wire import pack_message
from ternmq.testing.cluster import Cluster, Node
from ternmq.testing.disk import SimulatedDisk
from ternmq.testing.loop import simulated_loop
from ternmq.testing.net import Weather
from ternmq.wire.layouts.raft_state import Vote
from tests.store.small import bodies as all_bodies

#: Far beyond elections, back-off and registration, in virtual seconds.
LONG_S: Final = 60.0


def run(seed: int, story: Callable[[Cluster], Coroutine[Any, Any, None]]) -> list[tuple[object, ...]]:
    with simulated_loop() as loop:
        cluster = Cluster(loop, seed)
        loop.run_until_complete(story(cluster))
        loop.check()
        return cluster.trace


class Shop:
    """A producer that notes what was acknowledged."""

    def __init__(self, cluster: Cluster, *, per_second: float = 20.0) -> None:
        self.acknowledged: list[bytes] = []
        #: When the last message was acknowledged, the longest time that one took, and how many sends have failed.
        self.at = 0.0
        self.longest_s = 0.0
        self.errors = 0
        self._per_second = per_second
        self.node = cluster.node("shop", self._sell)

    async def _sell(self, node: Node) -> None:
        async with Producer("shop", client=node.client_config(), env=node.env) as producer:
            node.is_ready()
            number = 0
            while not node.stopping.is_set():
                number += 1
                body = b"<%d>" % number
                await asyncio.sleep(node.env.random.expovariate(self._per_second))
                began = asyncio.get_running_loop().time()
                try:
                    receipt = await producer.send(Message("orders", body))
                except TernError:
                    self.errors += 1
                    continue
                if receipt.status is SendStatus.OK:
                    self.acknowledged.append(body)
                    self.at = asyncio.get_running_loop().time()
                    self.longest_s = max(self.longest_s, self.at - began)

    async def sells(self, count: int = 20, *, limit_s: float = LONG_S) -> None:
        """Wait until so many more messages, and one, are acknowledged."""
        sent = len(self.acknowledged)
        await until(lambda: len(self.acknowledged) > sent + count, limit_s)

    async def ends(self, members: list[Node]) -> None:
        """Stop. Each member has all that was acknowledged, and all have the same."""
        await self.node.stop()
        await agree(members)
        for member in members:
            assert set(self.acknowledged) <= set(bodies(member)), member.name


def leader_of(members: list[Node]) -> Node | None:
    return next((each for each in members if each.broker is not None and each.broker.roles.is_master), None)


async def until(is_true: Callable[[], object], limit_s: float = LONG_S) -> None:
    async with asyncio.timeout(limit_s):
        while not is_true():
            await asyncio.sleep(0.01)


def bodies(node: Node) -> list[bytes]:
    """All messages of the topic that can be read on a member, by queue."""
    assert node.broker is not None
    assert node.broker.group is not None
    store = node.broker.group.node.store
    return [
        body
        for topic, queue_id in sorted(store.queues())
        if topic == "orders"
        for body in all_bodies(store, topic, queue_id)
    ]


def votes_of(node: Node | None) -> tuple[str, ...]:
    """Term and vote as they are on the disk of a member, after a power cut, too."""
    assert node is not None
    disk = node.disk.copy()
    disk.power_cut(Random(0))
    [path] = [path for path in disk.files() if path.name == "currterm"]
    lines = (disk.read(path) or b"").decode().splitlines()
    return tuple(sorted(line for line in lines if line.startswith(("currTerm", "voteLeader"))))


async def a_selling_group(
    cluster: Cluster, *, per_second: float = 20.0, **settings: object
) -> tuple[list[Node], Shop, Node]:
    """Three members, a producer whose first messages are acknowledged, and the leader."""
    members = cluster.raft_group("broker-a", 3, **settings)
    shop = Shop(cluster, per_second=per_second)
    await cluster.start(cluster.name_server(), *members)
    await cluster.start(shop.node)
    await until(lambda: len(shop.acknowledged) > 20)
    leader = leader_of(members)
    assert leader is not None
    return members, shop, leader


async def agree(members: list[Node]) -> None:
    """Wait until all members have the same log, and all of it is dispatched."""

    def is_equal() -> bool:
        groups = [each.broker.group for each in members if each.broker is not None]
        if len(groups) < len(members) or leader_of(members) is None:
            return False
        ends = {group.log.end for group in groups if group is not None}
        dispatched = {group.node.store.dispatched for group in groups if group is not None}
        return len(ends) == 1 and ends == dispatched

    await until(is_equal)


async def agree_on_votes(members: list[Node]) -> None:
    """Wait until each member could give its vote: one that was empty at its start must have everything first."""

    def may_vote(member: Node) -> bool:
        group = member.broker.group if member.broker is not None else None
        return group is not None and group.node.core.leader is not None and not group.node.core.is_filling

    await until(lambda: all(map(may_vote, members)))


def data_files(node: Node) -> dict[str, bytes]:
    """The data files of a member's log."""
    return {path.name: data for path, data in node.disk.files().items() if path.parent.name == "data"}


def test_a_leader_is_elected_and_takes_messages() -> None:
    """P1, P4: within 2 s of the start, and what it takes is on all members, byte for byte."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop = Shop(cluster)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members), 2.0)
        votes = [votes_of(member) for member in members]
        assert 2 <= sum(vote == votes_of(leader_of(members)) for vote in votes), "the votes of a majority are on disks"
        await cluster.start(shop.node)
        await until(lambda: len(shop.acknowledged) >= 100)
        await shop.node.stop()
        await agree(members)
        for member in members:
            assert sorted(shop.acknowledged) == sorted(bodies(member))
        one, two, three = (data_files(member) for member in members)
        assert one
        assert one == two == three

    run(1, story)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_killed_leader_is_replaced_and_nothing_acknowledged_is_lost(flush: str) -> None:
    """P4: a new master within 2 s; clients continue; the old leader comes back as a follower."""

    async def story(cluster: Cluster) -> None:
        members, shop, _ = await a_selling_group(cluster, flushDiskType=flush)
        for _ in range(3):
            await until(lambda: leader_of(members))
            await shop.sells()
            old = leader_of(members)
            assert old is not None
            old.kill()
            await until(lambda: leader_of(members), 2.0)
            await cluster.start(old)
        await shop.sells()
        await shop.ends(members)

    run(2, story)


def test_a_minority_acknowledges_nothing() -> None:
    """P4: a leader that is cut off steps down, and answers no send with OK; the others elect a leader and go on."""

    async def story(cluster: Cluster) -> None:
        members, shop, old = await a_selling_group(cluster)
        others = [each for each in members if each is not old]
        # Clients and name server still reach the old leader.
        cluster.network.partition([old.ip], [each.ip for each in others])
        await until(lambda: not _is_master(old), 3.0)
        await until(lambda: leader_of(others), 3.0)
        end = old.broker.group.log.committed  # type: ignore[union-attr]
        await asyncio.sleep(10.0)
        assert end == old.broker.group.log.committed  # type: ignore[union-attr]
        await shop.sells()
        cluster.network.heal()
        await shop.ends(members)

    run(3, story)


def test_a_leader_that_was_suspended_comes_back_as_a_follower() -> None:
    """P4: as with SIGSTOP; it answers nothing with OK that the new leader does not have."""

    async def story(cluster: Cluster) -> None:
        members, shop, old = await a_selling_group(cluster)
        old.pause()
        await until(lambda: leader_of([each for each in members if each is not old]), 3.0)
        await asyncio.sleep(5.0)
        old.resume()
        assert old.broker is not None
        assert old.broker.group is not None
        assert "leader" != old.broker.group.status().role, "asked before its timer, it does not claim to lead"
        await until(lambda: not _is_master(old), 1.0)
        await shop.sells()
        await shop.ends(members)

    run(4, story)


def test_a_clean_stop_hands_over_first() -> None:
    """P4: within 300 ms there is another master."""

    async def story(cluster: Cluster) -> None:
        members, shop, old = await a_selling_group(cluster, per_second=100)
        others = [each for each in members if each is not old]
        stopping = cluster.watch(old.stop())
        await until(lambda: leader_of(others), 0.3)
        await stopping
        await cluster.start(old)
        await shop.ends(members)

    run(5, story)


def test_a_transfer_that_fails_is_over_when_messages_are_taken_again() -> None:
    """P4: a broker that is stopped waits for 0.75 s, as the guide says, for a member that does not take over."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster)
        heir = next(each for each in members if each is not leader)
        heir.pause()
        assert leader.broker is not None
        assert leader.broker.group is not None
        began = cluster.loop.time()
        assert not await leader.broker.group.node.transfer(f"n{members.index(heir)}")
        assert 0.7 < cluster.loop.time() - began < 0.8
        heir.resume()
        await shop.sells()
        await shop.ends(members)

    run(7, story)


@pytest.mark.parametrize(("way", "limit_s"), [("transfer", 0.3), ("stop", 0.3), ("kill", 3.0)])
def test_callers_of_a_producer_see_no_error_when_the_leader_changes(way: str, limit_s: float) -> None:
    """P4, E4: a message takes a little longer then; 300 ms if the leader hands over."""

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        shop = Shop(cluster, per_second=200)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        await cluster.start(shop.node)
        for _ in range(3):
            await shop.sells(200)
            await agree_on_votes(members)
            old = leader_of(members)
            assert old is not None
            assert old.broker is not None
            assert old.broker.group is not None
            match way:
                case "transfer":
                    await old.broker.group.transfer("")
                case "stop":
                    await old.stop()
                case _:
                    old.kill()
            await until(lambda old=old: leader_of(members) not in (None, old))  # type: ignore[misc]
            if not old.is_up:
                await cluster.start(old)
        await shop.sells()
        await shop.node.stop()
        assert 0 == shop.errors
        assert shop.longest_s <= limit_s

    run(6, story)


def test_a_member_with_a_full_disk_does_not_stop_the_others() -> None:
    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster, per_second=100)
        full = next(each for each in members if each is not leader)
        full.disk.capacity_bytes = full.disk.usage(Path("/")).used_bytes
        await shop.sells(600)
        assert full.broker is not None
        assert full.broker.group is not None
        assert leader.broker is not None
        assert leader.broker.group is not None
        links, lacking = leader.broker.group.node.links, leader.broker.group.log.end - full.broker.group.log.end
        with patch.object(links, "send", wraps=links.send) as send:
            await shop.sells(500)
        sent = sum(
            len(part)
            for call in send.call_args_list
            for part in call.args[1]
            if call.args[0] == full.broker.group.node.id
        )
        # About 5 s.
        assert sent < 8 * 2 * lacking, "what it has no room for is not sent with each heartbeat"
        full.disk.capacity_bytes = None
        await shop.ends(members)

    run(6, story)


@pytest.mark.parametrize("seed", range(3, 11))
def test_whatever_fails_what_was_acknowledged_is_kept(seed: int) -> None:
    """P3, P4: kills, power cuts, suspensions, partitions and resets at random; at the end all logs are equal."""
    run(seed, _storm)


def test_the_same_seed_gives_the_same_trace() -> None:
    assert run(99, _storm) == run(99, _storm)


async def _storm(cluster: Cluster) -> None:
    chance = cluster.random
    flush = chance.choice(("ASYNC_FLUSH", "SYNC_FLUSH"))
    members = cluster.raft_group("broker-a", 3, flushDiskType=flush)
    shop = Shop(cluster)
    await cluster.start(cluster.name_server(), *members)
    await cluster.start(shop.node)
    masters: dict[int, Node] = {}
    cluster.network.weather = Weather(0.000_1, chance.choice((0.001, 0.02)), chance.choice((0.0, 0.5)))
    for _ in range(10):
        victim = leader_of(members) if chance.random() < 0.6 else None
        victim = victim or chance.choice(members)
        await _hurt(cluster, members, victim, is_sync=flush == "SYNC_FLUSH")
        end = cluster.loop.time() + chance.choice((0.2, 1.0, 4.0))
        while cluster.loop.time() < end:
            _check_masters(members, masters)
            await asyncio.sleep(0.02)
    cluster.network.heal()
    cluster.network.weather = Weather()
    for member in members:
        if member.is_paused:
            member.resume()
        if not member.is_up:
            await cluster.start(member)
    await shop.sells(10)
    await shop.node.stop()
    await agree(members)
    for member in members:
        found = bodies(member)
        lost = set(shop.acknowledged) - set(found)
        assert not lost, f"{member.name} has lost {sorted(lost)}"
    one, two, three = (data_files(member) for member in members)
    assert one == two == three


async def _hurt(cluster: Cluster, members: list[Node], victim: Node, *, is_sync: bool) -> None:
    chance, network = cluster.random, cluster.network
    down = [each for each in members if not each.is_up]
    if down:
        await cluster.start(down[0])
        return
    paused = [each for each in members if each.is_paused]
    if paused:
        paused[0].resume()
        return
    fault = chance.choice(("kill", "power", "pause", "cut", "one way", "reset", "heal"))
    cluster.note(fault, victim.name)
    other = chance.choice([each for each in members if each is not victim])
    match fault:
        case "kill":
            victim.kill()
        case "power":
            # A page cache that is lost on one member is more than that member's share of a majority in page caches.
            (victim.cut_power if is_sync else victim.kill)()
        case "pause":
            victim.pause()
        case "cut":
            network.partition([victim.ip], [each.ip for each in members if each is not victim])
        case "one way":
            network.block(victim.ip, other.ip)
        case "reset":
            network.reset(victim.ip, other.ip)
        case _:
            network.heal()


def _check_masters(members: list[Node], masters: dict[int, Node]) -> None:
    """One master a term."""
    for member in members:
        if _is_master(member) and not member.is_paused:
            assert member.broker is not None
            term = member.broker.roles.term.number
            assert masters.setdefault(term, member) is member, f"two masters in term {term}"


def _is_master(member: Node) -> bool:
    return member.broker is not None and member.broker.roles.is_master


def test_a_leader_with_a_full_disk_hands_over() -> None:
    """P4: producers need not wait until a person has made room."""

    async def story(cluster: Cluster) -> None:
        members, shop, full = await a_selling_group(cluster, per_second=100)
        full.disk.capacity_bytes = full.disk.usage(Path("/")).used_bytes
        await until(lambda: leader_of(members) not in (None, full), 120.0)
        await shop.sells(100)
        full.disk.capacity_bytes = None
        await shop.ends(members)

    run(7, story)


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_a_leader_whose_disk_fails_is_replaced(flush: str) -> None:
    """P4: a sync that fails ends its part in the group; it must not go on as a leader that takes nothing."""

    async def story(cluster: Cluster) -> None:
        members, shop, broken = await a_selling_group(cluster, per_second=100, flushDiskType=flush)

        def fail(kind: str, path: Path) -> None:
            if kind == "sync" and path.parent.name == "data":
                raise StoreError(f"cannot sync {path}: input/output error")

        broken.disk.before = fail
        await until(lambda: leader_of(members) not in (None, broken))
        assert "input/output error" in _trouble(broken)
        assert broken.broker is not None
        assert broken.broker.group is not None
        assert broken.broker.group.status().role == "follower"
        await until(lambda: broken.broker is not None and broken.broker.roles.broker_id != 0)
        await shop.sells(100)
        broken.kill()
        broken.disk.before = None
        await cluster.start(broken)
        await shop.ends(members)

    run(10, story)


def test_a_member_whose_disk_fails_while_it_votes_for_itself_asks_nobody() -> None:
    """P4: it would not lead, and the others would wait for the next election."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster)
        broken = next(each for each in members if each is not leader)
        assert broken.broker is not None
        assert broken.broker.group is not None
        node = broken.broker.group.node
        term = node.core.term
        save = node._term_file.save

        def fail_after(vote: Vote) -> None:
            save(vote)
            node.fail(StoreError("input/output error"))

        with (
            patch.object(node._term_file, "save", fail_after),
            patch.object(node.links, "send", wraps=node.links.send) as send,
        ):
            leader.pause()
            await until(lambda: node.trouble)
            await asyncio.sleep(1.0)
        assert term + 1 == node.core.term, "it has voted for itself, or for the other one"
        assert not [call for call in send.call_args_list if call.args[1][0][4] in (1, 2) and not call.args[1][0][-1]]
        leader.resume()
        await shop.sells()

    run(12, story)


def test_a_damaged_entry_of_the_leader_is_not_sent_all_the_time() -> None:
    """P3: a member that needs it says why it does not follow, and gets it from another leader. Without a pause the same
    entries went over the network 2,000 times a second."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster)
        away, other = (each for each in members if each is not leader)
        away.kill()
        assert leader.broker is not None
        assert leader.broker.group is not None
        log = leader.broker.group.log
        damaged = log.last_index + 20
        await shop.sells(60)
        position = log.position_of(damaged)
        assert position is not None
        start = position - position % log.segment_bytes
        [path] = [path for path in leader.disk.files() if path.name == f"{start:020d}" and path.parent.name == "data"]
        leader.disk.flip_bit(path, 8 * (position - start + 48 + 90))
        await cluster.start(away)
        assert away.broker is not None
        assert away.broker.group is not None
        node, links = away.broker.group.node, leader.broker.group.node.links
        await until(lambda: "does not hold a whole record" in node.status().trouble)
        with patch.object(links, "send", wraps=links.send) as send:
            await asyncio.sleep(5.0)
        frames = [call.args[1] for call in send.call_args_list if call.args[0] == node.id]
        assert 5 * 60 > len(frames)
        await shop.node.stop()
        assert await leader.broker.group.transfer(f"n{members.index(other)}")
        await until(lambda: node.log.last_index >= damaged)
        assert not node.status().trouble

    run(7, story)


def test_entries_that_are_not_what_their_message_says_are_dropped() -> None:
    """P3: also behind entries that the member has already; it stays a member."""

    async def story(cluster: Cluster) -> None:
        members, shop, first = await a_selling_group(cluster)
        victim = next(each for each in members if each is not first)
        assert victim.broker is not None
        assert victim.broker.group is not None
        node = victim.broker.group.node
        for overlap in (0, 1, 2):
            await until(lambda: node.core.leader is not None and node.log.last_index > 5)
            term, last, leader = node.log.last_term, node.log.last_index, node.core.leader
            assert leader is not None
            prev = last - overlap
            message = Append(
                sender=leader,
                receiver=node.id,
                term=node.core.term,
                prev_index=prev,
                prev_term=node.log.term_of(prev) or 0,
                last_index=last + 1,
                runs=((prev + 1, term),),
                commit=last + 1,
                sent_ms=0,
            )
            node.deliver(leader, 3, b"".join(pack_message(message, [b"x" * 500]))[5:])
            await asyncio.sleep(1.0)
            assert not node.trouble
        await shop.sells()
        await shop.node.stop()
        await agree(members)
        one, two, three = (data_files(member) for member in members)
        assert one == two == three

    run(11, story)


def test_a_member_that_lost_its_disk_gets_everything_again() -> None:
    """P4: while the leader still has all of its log."""

    async def story(cluster: Cluster) -> None:
        members, shop, leader = await a_selling_group(cluster, per_second=100)
        await shop.sells(280)
        lost = next(each for each in members if each is not leader)
        lost.kill()
        lost.disk = SimulatedDisk(now_ms=lost.clock.now_ms)
        await cluster.start(lost)
        await shop.ends(members)
        one, two, three = (data_files(member) for member in members)
        assert one == two == three

    run(8, story)


def _trouble(member: Node) -> str:
    assert member.broker is not None
    assert member.broker.group is not None
    return member.broker.group.status().trouble
