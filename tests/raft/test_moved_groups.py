"""What a tool did to a group survives the death of the leader that acknowledged it: its mode, a reset, a copy of
offsets (P4, D4, D6, F9). And a topic that a message needs is in the log, or the message is refused."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any, Final

import pytest

from ternmq import names
from ternmq.admin import Admin
from ternmq.broker.services.catalog import Catalog
from ternmq.broker.services.intake import Intake
from ternmq.broker.services.popping import Popping
from ternmq.broker.services.positions import Positions
from ternmq.broker.tables.included import Lacking
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.producer import Producer
from ternmq.errors import SystemBusy
from ternmq.message import Message
from ternmq.pop.assign import RequestModeTable
from ternmq.store.log.draft import Draft
from ternmq.testing.cluster import Cluster, Node
from ternmq.wire.bodies.clients import GroupRequestMode, RequestMode
from ternmq.wire.bodies.codec import encode
from ternmq.wire.codes import RequestCode
from ternmq.wire.requests import ResetOffset
from ternmq.wire.requests_admin import CloneGroupOffset, DeleteGroup
from tests.raft.test_deleted_topics import tables_of
from tests.raft.test_group_simulation import leader_of, run, until
from tests.raft.test_tables import Clerk, simulate

MESSAGES: Final = 20
TOPIC: Final = "orders"


def modes_of(node: Node) -> RequestModeTable:
    assert node.broker is not None
    return next(part for part in node.broker._live._parts if isinstance(part, Popping)).modes


class MovingClerk(Clerk):
    """Sets modes, resets and copies offsets, and deletes groups."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        #: Group → share of its mode; 0: none. Group → offset; -1: none.
        self.shares: dict[str, int] = {}
        self.offsets: dict[str, int] = {}
        self._sent = 0

    async def change(self, admin: Admin, producer: Producer, instance: ClientInstance, number: int) -> None:
        if not self._sent:
            await admin.topics.create(TOPIC, queues=1)
        for _ in range(self._sent, MESSAGES):
            await producer.send(Message(TOPIC, b"1"))
            self._sent += 1
        [master] = await admin.brokers.masters()
        ask = instance.ask
        choice, value = self.random.random(), self.random.randrange(1, MESSAGES)
        living = sorted(name for name, offset in self.offsets.items() if offset >= 0)
        if choice < 0.3:
            await self._set_mode(
                lambda body: ask(master.address, RequestCode.SET_MESSAGE_REQUEST_MODE, body=body), value
            )
        elif choice < 0.6 or not living:
            group = f"group-{number}"
            await admin.groups.create(group)
            to = ResetOffset(topic=TOPIC, group=group, time_ms=0, force=True, queue_id=0, queue_offset=value)
            await self.note(
                self.offsets,
                group,
                value,
                lambda _: ask(master.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, to),
            )
        elif choice < 0.8:
            group, source = f"copy-{number}", self.random.choice(living)
            await admin.groups.create(group)
            copied = CloneGroupOffset(source_group=source, target_group=group, topic=TOPIC, offline=True)
            await self.note(
                self.offsets,
                group,
                self.offsets[source],
                lambda _: ask(master.address, RequestCode.CLONE_GROUP_OFFSET, copied),
            )
        else:
            group = self.random.choice(living)
            self.shares.pop(group, None)
            gone = DeleteGroup(group_name=group, clean_offset=True)
            await self.note(
                self.offsets, group, -1, lambda _: ask(master.address, RequestCode.DELETE_SUBSCRIPTIONGROUP, gone)
            )
            self.shares[group] = 0

    async def _set_mode(self, ask: Callable[[bytes], Any], share: int) -> None:
        known = sorted({*self.shares, *self.offsets, "first"})
        group = self.random.choice(known)
        mode = GroupRequestMode(topic=TOPIC, consumer_group=group, mode=RequestMode.POP, pop_share_queue_num=share)
        await self.note(self.shares, group, share, lambda _: ask(encode(mode)))

    def lost(self, leader: Node) -> list[str]:
        """What a leader has otherwise than it was acknowledged."""
        modes, offsets = modes_of(leader), tables_of(leader).offsets
        wrong = []
        for group, share in self.shares.items():
            found = modes.find(group, TOPIC).pop_share_queue_num
            if found != share:
                wrong.append(f"{group}: a share of {found}, not {share}")
        for group, offset in self.offsets.items():
            found = offsets.get(group, TOPIC, 0)
            if found != offset:
                wrong.append(f"{group}: offset {found}, not {offset}")
        return wrong


@pytest.mark.parametrize("seed", range(4))
def test_what_tools_did_to_groups_survives_the_death_of_leaders(seed: int) -> None:
    assert [] == simulate(seed, clerks=MovingClerk)


# --- Each rule, broken on purpose -----------------------------------------------------------------------------------


def _nothing(*_: object, **__: object) -> None:
    """Instead of writing to the log."""


def _without_modes(catalog: Catalog, change: Any, end_offset: int, lacking: Lacking) -> None:
    _follow(catalog, change, end_offset, lacking._replace(modes=False))


def _without_offsets(catalog: Catalog, change: Any, end_offset: int, lacking: Lacking) -> None:
    _follow(catalog, change, end_offset, lacking._replace(offsets=False))


_follow = Catalog.follow

#: What is broken, how, and a seed that finds it.
BREAKAGES: Final = {
    "a reset or a copy of offsets is not written to the log": (Positions, "_note_move", _nothing, 0),
    "a new leader sets no modes of the log": (Catalog, "follow", _without_modes, 0),
    "a new leader moves no groups of the log": (Catalog, "follow", _without_offsets, 0),
}


@pytest.mark.parametrize("what", BREAKAGES)
def test_a_seed_finds_a_broken_rule(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    owner, name, broken, seed = BREAKAGES[what]
    monkeypatch.setattr(owner, name, broken)
    assert simulate(seed, clerks=MovingClerk)


# --- Topics that messages need --------------------------------------------------------------------------------------


def test_a_message_is_refused_if_its_new_topic_cannot_be_written_to_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """P4: under overload the log takes no more records. A topic without a record would come back with the next leader
    with as many queues as have messages."""
    refused: list[str] = []

    def stored(intake: Intake, draft: Draft) -> Any:
        if not refused and b'"orders"' in draft.body:
            refused.append(draft.topic)
            raise SystemBusy("the log is full, for one record")
        return store(intake, draft)

    store = Intake.store
    monkeypatch.setattr(Intake, "store", stored)

    async def story(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        sent = asyncio.Event()

        async def work(node: Node) -> None:
            async with Producer("shop", client=node.client_config(), env=node.env) as producer:
                node.is_ready()
                while not sent.is_set():
                    with contextlib.suppress(SystemBusy):
                        await producer.send(Message("orders", b"1"))
                        sent.set()
                await node.stopping.wait()

        client = cluster.node("client", work)
        await cluster.start(client)
        await until(sent.is_set)
        await client.stop()
        assert [names.TABLES_TOPIC] == refused
        old = leader_of(members)
        assert old is not None
        old.kill()
        await until(lambda: leader_of(members))
        leader = leader_of(members)
        assert leader is not None
        topic = tables_of(leader).topics.get("orders")
        assert topic is not None
        assert 4 == topic.write_queue_nums

    run(3, story)
