"""Changes of topics and groups that were acknowledged survive the death of the leader (P4, D1, D2)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from ternmq.admin import Admin
from ternmq.broker.handlers.slaves import SlaveHandlers
from ternmq.broker.services.catalog import Catalog
from ternmq.broker.services.table_journal import TableJournal
from ternmq.broker.tables.groups import Groups
from ternmq.broker.tables.included import Included
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.producer import Producer
from ternmq.errors import MessageIllegal, ServiceNotAvailable, TernError
from ternmq.message import Message
from ternmq.testing.cluster import BROKER_PORT, Cluster, Node
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.groups import SimpleSubscription, SubscriptionGroupConfig
from ternmq.wire.codes import RequestCode
from ternmq.wire.header import Reply
from ternmq.wire.requests_admin import DeleteGroup
from tests.raft.processes import filled, leader, running
from tests.raft.test_deleted_topics import tables_of
from tests.raft.test_group_simulation import LONG_S, leader_of, run, until

ROUNDS: Final = 4


class Clerk:
    """Creates, changes and deletes topics and groups, and notes what the tables must have.

    After a change that failed, its name is not used any more: it may have been made or not.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.node = cluster.node("clerk", self._run)
        #: Name → queues; 0: deleted.
        self.topics: dict[str, int] = {}
        #: Name → retries; -1: deleted.
        self.groups: dict[str, int] = {}
        self.random = Random(cluster.seed)
        self._order: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

    async def work(self, changes: int) -> None:
        """Make some changes, and return with the answer to the last one."""
        for _ in range(changes):
            done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._order.put_nowait(done)
            async with asyncio.timeout(LONG_S):
                await done

    async def _run(self, node: Node) -> None:
        async with (
            Admin(config=node.client_config(), env=node.env) as admin,
            Producer("clerk", client=node.client_config(), env=node.env) as producer,
            ClientInstance(node.client_config(), env=node.env) as instance,
        ):
            node.is_ready()
            number = 0
            while True:
                done = await self._order.get()
                while not done.done():
                    number += 1
                    try:
                        await self.change(admin, producer, instance, number)
                        done.set_result(None)
                    except TernError:
                        await asyncio.sleep(0.1)

    async def change(self, admin: Admin, producer: Producer, instance: ClientInstance, number: int) -> None:
        choice, queues = self.random.random(), self.random.randrange(1, 9)
        if choice < 0.3:
            await self.note(
                self.topics, f"topic-{number}", queues, lambda name: admin.topics.create(name, queues=queues)
            )
        elif choice < 0.5:
            # With as many queues as the producer wants, whatever queue the message is in.
            name = f"sent-{number}"
            await self.note(self.topics, name, 4, lambda name: producer.send(Message(name, b"1")))
        elif choice < 0.7 and (living := sorted(name for name, queues in self.topics.items() if queues)):
            await self.note(self.topics, self.random.choice(living), 0, admin.topics.delete)
        elif choice < 0.9 or not (living := sorted(name for name, retries in self.groups.items() if retries >= 0)):
            name = f"group-{number}"
            await self.note(self.groups, name, queues, lambda name: admin.groups.create(name, retry_max=queues))
        else:
            [master] = await admin.brokers.masters()

            def delete(group: str) -> Awaitable[object]:
                header = DeleteGroup(group_name=group, clean_offset=True)
                return instance.ask(master.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, header)

            await self.note(self.groups, self.random.choice(living), -1, delete)

    async def note(
        self, table: dict[str, int], name: str, value: int, change: Callable[[str], Awaitable[object]]
    ) -> None:
        table.pop(name, None)
        await change(name)
        table[name] = value

    def lost(self, leader: Node) -> list[str]:
        """What a leader has otherwise than it was acknowledged."""
        tables = tables_of(leader)
        topics = {name: config.write_queue_nums for name, config in tables.topics.all.items()}
        groups = {name: config.retry_max_times for name, config in tables.groups.all.items()}
        wrong = [
            f"{name}: {topics.get(name, 0)} queues, not {queues}"
            for name, queues in self.topics.items()
            if topics.get(name, 0) != queues
        ]
        return wrong + [
            f"{name}: {groups.get(name, -1)} retries, not {retries}"
            for name, retries in self.groups.items()
            if groups.get(name, -1) != retries
        ]


class Trouble:
    """What happens to leaders right after a change."""

    def __init__(self, cluster: Cluster, members: list[Node], clerk: Clerk, chance: Random) -> None:
        self._cluster = cluster
        self._members = members
        self._clerk = clerk
        self._chance = chance
        self._ways = (self._stop, self._cut_off, self._kill_all, self._hand_over, self._kill)

    def leader(self) -> Node:
        leader = leader_of(self._members)
        assert leader is not None
        return leader

    async def round(self) -> Node:
        """Lose a leader; returns the next one."""
        await self._chance.choice(self._ways)(self.leader())
        await until(lambda: leader_of(self._members))
        return self.leader()

    async def repair(self) -> None:
        self._cluster.network.heal()
        await self._cluster.start(*(member for member in self._members if not member.is_up))

    async def _stop(self, leader: Node) -> None:
        await leader.stop()

    async def _kill(self, leader: Node) -> None:
        leader.kill()

    async def _cut_off(self, leader: Node) -> None:
        """The clerk still reaches it, and must get no answer that does not hold."""
        self._cluster.network.partition([leader.ip], [each.ip for each in self._members if each is not leader])
        await self._clerk.work(2)
        leader.kill()

    async def _kill_all(self, leader: Node) -> None:
        """The others come back with the tables that they had copied."""
        for member in self._members:
            member.kill()
        await self._cluster.start(*(member for member in self._members if member is not leader))

    async def _hand_over(self, leader: Node) -> None:
        """The next leader is killed: this one may lead again, before it has copied a table."""
        assert leader.broker is not None
        assert leader.broker.group is not None
        await leader.broker.group.hand_over()
        await until(lambda: leader_of(self._members) not in (None, leader))
        await self._clerk.work(2)
        self.leader().kill()


def simulate(seed: int, rounds: int = ROUNDS, clerks: type[Clerk] = Clerk) -> list[str]:
    """Kill leaders right after changes of such a clerk; returns what a new one does not have."""
    lost: list[str] = []

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        clerk, chance = clerks(cluster), Random(seed)
        trouble = Trouble(cluster, members, clerk, chance)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        await cluster.start(clerk.node)
        for _ in range(rounds):
            await clerk.work(chance.randrange(1, 12))
            if chance.random() < 0.3:
                # Long enough for the others to copy the tables.
                await asyncio.sleep(chance.random() * 10)
            lost.extend(clerk.lost(await trouble.round()))
            await trouble.repair()
        clerk.node.kill()

    run(seed, story)
    return lost


@pytest.mark.parametrize("seed", range(4))
def test_changes_that_were_acknowledged_survive_the_death_of_leaders(seed: int) -> None:
    assert [] == simulate(seed)


# --- Each rule, broken on purpose -----------------------------------------------------------------------------------


async def _nothing(*_: object) -> None:
    """Instead of waiting, or of folding."""


def _take_all(table: Included, dispatched: Callable[[], int] | None) -> None:
    table._dispatched = dispatched
    table._count = dispatched() if dispatched is not None else None


#: What is broken, how, and a seed that finds it.
BREAKAGES: Final = {
    "a new leader makes no changes of the log": (TableJournal, "fold", _nothing, 0),
    "an answer does not wait for a majority": (TableJournal, "safe", _nothing, 2),
    "a deposed leader takes its table for the next leader's": (Included, "follow", lambda _table: None, 0),
    "a table that was loaded is taken for complete": (Included, "begin", _take_all, 5),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_a_seed_finds_a_broken_rule(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, seed = BREAKAGES[what]
    monkeypatch.setattr(owner, name, broken)
    assert simulate(seed)


# --- Numbers of changes ---------------------------------------------------------------------------------------------


def folded(table: Included, count: int) -> list[int]:
    """Which of so many changes a table lacks."""
    return [number for number in range(count) if table.fold(number)]


def test_a_table_makes_the_changes_behind_its_number_once() -> None:
    table = Included()
    table.take(2)
    table.begin(lambda: 5)
    assert [2, 3, 4] == folded(table, 5)
    assert [] == folded(table, 5)


def test_a_number_beyond_the_log_counts_for_what_the_log_has() -> None:
    """A power cut took the end of the log; other changes will stand there."""
    table = Included()
    table.take(9)
    table.begin(lambda: 4)
    assert 4 == table.count


def test_a_table_without_a_number_is_taken_as_it_is() -> None:
    """It was written by a broker without a journal: old changes must not undo newer ones."""
    table = Included()
    table.take(None)
    table.begin(lambda: 3)
    assert [3] == folded(table, 4)


def test_without_a_journal_there_is_no_number() -> None:
    table = Included()
    table.take(7)
    table.begin(None)
    assert table.count is None


def test_a_leader_that_steps_down_has_what_was_committed_then() -> None:
    table, committed = Included(), [0]
    table.begin(lambda: committed[0])
    table.lead()
    committed[0] = 5
    assert 5 == table.count
    table.follow()
    committed[0] = 8
    assert 5 == table.count


def test_a_copied_table_counts_for_no_more_than_the_deletions_copied_before_it() -> None:
    """Seed 34: a topic was deleted between the two; its messages would have brought it back."""
    table = Included()
    table.begin(lambda: 0)
    table.limit(4)
    table.take(6)
    assert 4 == table.count
    table.limit(7)
    table.take(7)
    assert 7 == table.count


def test_a_copy_without_a_number_is_taken_as_it_is() -> None:
    """Of a leader of an earlier version, which wrote nothing to the log: old changes must not undo its table."""
    table = Included()
    table.take(1)
    table.begin(lambda: 3)
    table.limit(None)
    table.take(None)
    assert [] == folded(table, 3)


@pytest.fixture
def catalogs(monkeypatch: pytest.MonkeyPatch) -> dict[Groups, Catalog]:
    """The catalogs that brokers make, by their tables of groups."""
    found: dict[Groups, Catalog] = {}

    def made(catalog: Catalog, **parts: Any) -> None:
        make(catalog, **parts)
        found[parts["groups"]] = catalog

    make = Catalog.__init__
    monkeypatch.setattr(Catalog, "__init__", made)
    return found


def test_a_deletion_is_not_made_once_more_after_a_restart(catalogs: dict[Groups, Catalog]) -> None:
    """P4: a group is deleted with its offsets, and a consumer uses it again before the deletion is committed."""

    async def story(cluster: Cluster) -> None:
        # The same member leads again, with its own files.
        (member,) = cluster.raft_group("broker-a", 1)
        await cluster.start(cluster.name_server(), member)
        await until(lambda: leader_of([member]))
        tables = tables_of(member)
        catalog = catalogs[tables.groups]
        tables.groups.find("billing")
        catalog.delete_group("billing", offsets_too=True)
        tables.groups.find("billing")
        await catalog.saved()
        tables.offsets.commit("billing", "orders", 0, 7)
        await member.stop()
        await cluster.start(member)
        await until(lambda: leader_of([member]))
        assert 7 == tables_of(member).offsets.get("billing", "orders", 0)

    run(1, story)


def test_offsets_of_a_deleted_group_do_not_come_back_with_the_next_leader(
    catalogs: dict[Groups, Catalog], monkeypatch: pytest.MonkeyPatch
) -> None:
    """P4: it was deleted between two tables that followers copied, and the leader died before they copied again."""
    between: list[Callable[[], object]] = []

    def told(handlers: SlaveHandlers, peer: Any, request: Any) -> Reply:
        reply = tell(handlers, peer, request)
        if between:
            asyncio.get_running_loop().call_soon(between.pop())
        return reply

    tell = SlaveHandlers.consumer_offsets
    monkeypatch.setattr(SlaveHandlers, "consumer_offsets", told)

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        leader = leader_of(members)
        assert leader is not None
        tables = tables_of(leader)
        catalog = catalogs[tables.groups]
        tables.groups.find("billing")
        tables.offsets.commit("billing", "orders", 0, 100)
        # Until all have copied it.
        await asyncio.sleep(12)
        saved: list[asyncio.Future[None]] = []

        def delete() -> None:
            catalog.delete_group("billing", offsets_too=True)
            saved.append(asyncio.ensure_future(catalog.saved()))

        between.append(delete)
        await until(lambda: saved and saved[0].done())
        saved[0].result()
        leader.kill()
        await until(lambda: leader_of(members))
        following = leader_of(members)
        assert following is not None
        assert -1 == tables_of(following).offsets.get("billing", "orders", 0)

    for seed in range(4):
        run(seed, story)


# --- Bounds, refusals and real processes ----------------------------------------------------------------------------


def test_only_the_leader_takes_changes_and_none_that_the_log_cannot_hold() -> None:
    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        refusals: list[TernError] = []
        master = leader_of(members)
        follower = next(member for member in members if member is not master)
        assert master is not None
        wanted = SimpleSubscription(topic="orders", expression="y" * 5_000_000)
        huge = SubscriptionGroupConfig(group_name="huge", subscription_data_set=[wanted])

        async def work(node: Node) -> None:
            async with ClientInstance(node.client_config(), env=node.env) as instance:
                node.is_ready()
                for target, config in ((follower, SubscriptionGroupConfig(group_name="billing")), (master, huge)):
                    try:
                        await instance.ask(
                            f"{target.ip}:{BROKER_PORT}",
                            RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
                            body=encode(config),
                        )
                    except TernError as error:
                        refusals.append(error)
                await node.stopping.wait()

        clerk = cluster.node("clerk", work)
        await cluster.start(clerk)
        await until(lambda: len(refusals) == 2)
        await clerk.stop()
        assert isinstance(refusals[0], ServiceNotAvailable)
        assert isinstance(refusals[1], MessageIllegal)
        for member in (master, follower):
            assert not {"billing", "huge"} & set(tables_of(member).groups.all)

    run(1, story)


async def test_a_topic_and_its_quota_are_known_after_kill_9_of_the_leader_that_acknowledged_them(
    tmp_path: Path,
) -> None:
    """P4, M1."""
    async with running(tmp_path) as processes, Admin(processes.name_servers) as admin:
        old = await filled(admin)
        await admin.topics.create("orders", queues=3)
        await admin.quotas.set_topic("orders", messages=5)
        await asyncio.to_thread(processes.kill, old)
        await leader(admin, but=old)
        assert 3 == (await _topics(admin)).get("orders")
        assert [("orders", 5)] == [(quota.name, quota.messages) for quota in await admin.quotas.all()]


async def _topics(admin: Admin) -> dict[str, int]:
    """The table of the master, as soon as there is one."""
    async with asyncio.timeout(LONG_S):
        while True:
            try:
                [master] = await admin.brokers.masters()
                table = await admin.topics.table(master)
            except (TernError, ValueError):
                await asyncio.sleep(0.05)
                continue
            return {name: config.write_queue_nums for name, config in table.items()}
