"""What a follower does with each request that a broker knows: a change that all members must have is never answered
with "ok" by one that cannot make it (P4, D6)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import pytest

from ternmq.broker.handlers.not_offered import NOT_OFFERED
from ternmq.broker.handlers.raft import CHANGES
from ternmq.broker.raft_deletions import SAME_S, TOPICS_MAX, AskedDeletions
from ternmq.broker.raft_reads import _READS
from ternmq.client.connect.instance import ClientInstance
from ternmq.client.send.producer import Producer
from ternmq.errors import InvalidParameter, ServiceNotAvailable, TernError
from ternmq.message import Message
from ternmq.net.server import Server
from ternmq.testing.cluster import Cluster, Node
from ternmq.wire.bodies.clients import GroupRequestMode
from ternmq.wire.bodies.codec import encode
from ternmq.wire.bodies.groups import GroupConfigs, SubscriptionGroupConfig
from ternmq.wire.bodies.offsets import OwnOffsets
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.requests import RecallMessage, ResetOffset
from ternmq.wire.requests_admin import (
    CloneGroupOffset,
    DeleteGroup,
    DeleteTopicInGroup,
    GroupForbidden,
    ResumeCheck,
    Topic,
    UpdateTopic,
)
from tests.raft.test_deleted_topics import tables_of
from tests.raft.test_group_simulation import leader_of, run, until

_ORDERS: Final = TopicConfig(topic_name="orders", read_queue_nums=1, write_queue_nums=1, perm=6)
_BILLING: Final = SubscriptionGroupConfig(group_name="billing")

#: Changes of tables, which belong to the leader: a request of each kind.
CHANGE_REQUESTS: Final[dict[Code, tuple[Any, bytes]]] = {
    Code.UPDATE_AND_CREATE_TOPIC: (UpdateTopic(topic="orders", read_queue_nums=1, write_queue_nums=1, perm=6), b""),
    Code.UPDATE_AND_CREATE_TOPIC_LIST: (None, encode(TopicConfigs(topic_config_list=[_ORDERS]))),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: (None, encode(_BILLING)),
    Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (None, encode(GroupConfigs(group_config_list=[_BILLING]))),
    Code.DELETE_SUBSCRIPTIONGROUP: (DeleteGroup(group_name="readers"), b""),
    Code.UPDATE_AND_GET_GROUP_FORBIDDEN: (GroupForbidden(group="readers", topic="known", readable=False), b""),
    Code.SET_MESSAGE_REQUEST_MODE: (None, encode(GroupRequestMode(topic="known", consumer_group="readers"))),
    Code.INVOKE_BROKER_TO_RESET_OFFSET: (ResetOffset(topic="known", group="readers", time_ms=-1, force=True), b""),
    Code.CLONE_GROUP_OFFSET: (CloneGroupOffset(source_group="readers", target_group="billing"), b""),
    Code.RESUME_CHECK_HALF_MESSAGE: (ResumeCheck(message_id="0A000001000010000000000000000000"), b""),
    Code.RECALL_MESSAGE: (RecallMessage(topic="known", recall_handle="x"), b""),
    Code.RETURN_OFFSETS: (None, encode(OwnOffsets(offsets=[]))),
    Code.DELETE_TOPIC_IN_GROUP: (DeleteTopicInGroup(topic="known", member="n9"), b""),
}

#: Passed on to the leader, and answered when it has answered.
PASSED_ON: Final = {Code.DELETE_TOPIC_IN_BROKER}

#: Messages, acknowledgements, locks and leases: what only a term of a leader has (``Roles``, ``Switch``).
WRITES: Final = {
    Code.SEND_MESSAGE,
    Code.SEND_MESSAGE_V2,
    Code.SEND_BATCH_MESSAGE,
    Code.SEND_REPLY_MESSAGE,
    Code.SEND_REPLY_MESSAGE_V2,
    Code.CONSUMER_SEND_MSG_BACK,
    Code.END_TRANSACTION,
    Code.UPDATE_CONSUMER_OFFSET,
    Code.ACK_MESSAGE,
    Code.BATCH_ACK_MESSAGE,
    Code.CHANGE_MESSAGE_INVISIBLETIME,
    Code.SHARE_PULL,
    Code.SHARE_ACK,
    Code.SHARE_HOLD,
    Code.SHARE_LEAVE,
    Code.LOCK_BATCH_MQ,
    Code.UNLOCK_BATCH_MQ,
    Code.TRANSFER_LEADERSHIP,
    Code.CHANGE_MEMBERS,
    Code.PROMOTE_BROKER,
    Code.HAND_OVER,
}

#: Reads, which the leader serves; followers with ``slaveReadEnable``. A message by its id comes from each.
READS: Final = {*_READS, Code.VIEW_MESSAGE_BY_ID}

#: Of each member alone: its clients, its settings, its files. CLEAN_UNUSED_TOPIC does nothing on a follower, which
#: copies what its leader deletes.
OWN: Final = {
    Code.HEART_BEAT,
    Code.UNREGISTER_CLIENT,
    Code.CHECK_CLIENT_CONFIG,
    Code.GET_CONSUMER_RUNNING_INFO,
    Code.CONSUME_MESSAGE_DIRECTLY,
    Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
    Code.UPDATE_BROKER_CONFIG,
    Code.CLEAN_UNUSED_TOPIC,
    Code.CLEAN_EXPIRED_CONSUMEQUEUE,
    Code.DELETE_EXPIRED_COMMITLOG,
}

#: Questions of tools and of other brokers, answered by each member with what it has.
QUESTIONS: Final = {
    Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.QUERY_CONSUME_QUEUE,
    Code.VIEW_BROKER_STATS_DATA,
    Code.POLLING_INFO,
    Code.GET_SHARE_MEMBERS,
    Code.QUERY_ASSIGNMENT,
    Code.GET_ALL_MESSAGE_REQUEST_MODE,
    Code.GET_ALL_TOPIC_CONFIG,
    Code.GET_TOPIC_CONFIG,
    Code.GET_TOPIC_STATS_INFO,
    Code.QUERY_TOPIC_CONSUME_BY_WHO,
    Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_SUBSCRIPTIONGROUP_CONFIG,
    Code.GET_CONSUME_STATS,
    Code.GET_BROKER_CONSUME_STATS,
    Code.QUERY_TOPICS_BY_CONSUMER,
    Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
    Code.QUERY_CONSUME_TIME_SPAN,
    Code.QUERY_CORRECTION_OFFSET,
    Code.GET_CONSUMER_CONNECTION_LIST,
    Code.GET_PRODUCER_CONNECTION_LIST,
    Code.GET_ALL_PRODUCER_INFO,
    Code.GET_BROKER_RUNTIME_INFO,
    Code.GET_BROKER_CONFIG,
    Code.GET_TIMER_CHECK_POINT,
    Code.GET_TIMER_METRICS,
    Code.GET_DELAYED_STATS,
    Code.PEEK_DELAYED_MESSAGES,
    Code.LIST_TRANSACTIONS,
    Code.GET_ALL_CONSUMER_OFFSET,
    Code.GET_ALL_DELAY_OFFSET,
    Code.GET_ALL_CONSUMER_FILTER,
    Code.GET_BROKER_HA_STATUS,
    Code.GET_RAFT_STATUS,
    Code.GET_DELETED_TOPICS,
    Code.GET_QUEUE_NUMBERS,
    Code.GET_BROKER_STATUS,
}

Story = Callable[[list[Node], ClientInstance, Producer], Coroutine[Any, Any, None]]


def told(story: Story, seed: int = 1) -> None:
    """Run a story of a client, with a group whose topic ``known`` has a message and whose group ``readers`` is known to
    all members."""

    async def whole(cluster: Cluster) -> None:
        members = cluster.raft_group("broker-a", 3)
        await cluster.start(cluster.name_server(), *members)
        await until(lambda: leader_of(members))
        done: list[BaseException | None] = []

        async def work(node: Node) -> None:
            node.is_ready()
            async with (
                ClientInstance(node.client_config(), env=node.env) as instance,
                Producer("shop", client=node.client_config(), env=node.env) as producer,
            ):
                try:
                    await producer.send(Message("known", b"1"))
                    tables_of(leading(members)).groups.find("readers")
                    await until(lambda: all(tables_of(each).groups.get("readers") for each in members))
                    await story(members, instance, producer)
                    done.append(None)
                except BaseException as error:
                    done.append(error)
                    raise
                await node.stopping.wait()

        client = cluster.node("client", work)
        await cluster.start(client)
        await until(lambda: done)
        await client.stop()
        if done[0] is not None:
            raise done[0]

    run(seed, whole)


def leading(members: list[Node]) -> Node:
    leader = leader_of(members)
    assert leader is not None
    return leader


def following(members: list[Node]) -> Node:
    return next(each for each in members if each is not leading(members))


def address_of(member: Node) -> str:
    assert member.broker is not None
    return member.broker.address


def test_each_request_has_its_place_in_this_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new request code must be decided on: is a follower to answer it?"""
    tables: list[set[int]] = []

    def made(server: Server, routes: Any, *args: Any, **parts: Any) -> None:
        tables.append(set(routes))
        make(server, routes, *args, **parts)

    make = Server.__init__
    monkeypatch.setattr(Server, "__init__", made)

    async def nothing(_members: list[Node], _instance: ClientInstance, _producer: Producer) -> None:
        return

    told(nothing)
    [known] = [set(table) for table in {frozenset(table) for table in tables if Code.HEART_BEAT in table}]
    kinds = (set(CHANGE_REQUESTS), PASSED_ON, WRITES, READS, OWN, QUESTIONS, set(NOT_OFFERED))
    assert known == set().union(*kinds)
    assert sum(len(kind) for kind in kinds) == len(known), "each is in one kind only"
    assert {*CHANGES, Code.DELETE_TOPIC_IN_GROUP} == set(CHANGE_REQUESTS)


def test_a_follower_refuses_each_change_and_names_the_leader() -> None:
    """P4: what it changed would be gone with its next copy of the leader's tables."""

    async def story(members: list[Node], instance: ClientInstance, _producer: Producer) -> None:
        follower, leader = following(members), leading(members)
        for code, (header, body) in CHANGE_REQUESTS.items():
            with pytest.raises(ServiceNotAvailable) as refusal:
                await instance.ask(address_of(follower), code, header, body=body)
            assert "does not lead its group" in str(refusal.value), code.name
            assert address_of(leader) in str(refusal.value), code.name
        tables = tables_of(follower)
        assert tables.groups.get("readers") is not None
        assert tables.groups.get("billing") is None
        assert tables.groups.may_read("readers", "known")
        assert -1 == tables.offsets.get("readers", "known", 0)

    told(story)


def test_a_follower_passes_a_deletion_on_and_answers_when_it_is_made() -> None:
    """D6: ``mqadmin deleteTopic`` of 4.9.4 asks all members, in any order, and gives up at the first error."""

    async def story(members: list[Node], instance: ClientInstance, _producer: Producer) -> None:
        await instance.ask(address_of(following(members)), Code.DELETE_TOPIC_IN_BROKER, Topic(topic="known"))
        assert tables_of(leading(members)).topics.get("known") is None

    told(story)


def test_one_command_that_asks_all_members_is_one_deletion() -> None:
    """P4: a producer makes the topic again between two requests of the command; its message was acknowledged."""

    async def story(members: list[Node], instance: ClientInstance, producer: Producer) -> None:
        followers = [each for each in members if each is not leading(members)]
        for member in (followers[0], leading(members), followers[1]):
            await instance.ask(address_of(member), Code.DELETE_TOPIC_IN_BROKER, Topic(topic="known"))
            await producer.send(Message("known", b"new"))
        leader = leading(members).broker
        assert leader is not None
        assert leader.group is not None
        store = leader.group.node.store
        assert 3 == sum(store.max_offset(*queue) for queue in store.queues() if queue[0] == "known")
        # The next command is a deletion of its own.
        await instance.ask(address_of(followers[0]), Code.DELETE_TOPIC_IN_BROKER, Topic(topic="known"))
        assert tables_of(leading(members)).topics.get("known") is None

    told(story)


def test_a_deletion_without_a_majority_is_acknowledged_to_none_of_those_that_ask_for_it() -> None:
    """P4: also not to the second member by which a command comes."""

    async def story(members: list[Node], instance: ClientInstance, _producer: Producer) -> None:
        leader = leading(members)
        for member in members:
            if member is not leader:
                member.kill()
        [other, _] = [each for each in members if each is not leader]
        asked = DeleteTopicInGroup(topic="known", member=other.name[-2:])
        answers = await asyncio.gather(
            instance.ask(address_of(leader), Code.DELETE_TOPIC_IN_GROUP, asked, timeout_ms=10_000),
            instance.ask(address_of(leader), Code.DELETE_TOPIC_IN_BROKER, Topic(topic="known"), timeout_ms=10_000),
            return_exceptions=True,
        )
        assert all(isinstance(answer, TernError) for answer in answers), answers

    told(story)


def test_a_deletion_is_passed_on_by_members_only() -> None:
    """P4: the leader remembers which members were asked, so any text would stay in its memory."""

    async def story(members: list[Node], instance: ClientInstance, _producer: Producer) -> None:
        for member in ("n9", "", "x" * 30_000):
            asked = DeleteTopicInGroup(topic="known", member=member)
            with pytest.raises(InvalidParameter, match="is not a member of the group") as refusal:
                await instance.ask(address_of(leading(members)), Code.DELETE_TOPIC_IN_GROUP, asked)
            assert len(str(refusal.value)) < 300

    told(story)


def test_a_deletion_is_refused_where_there_is_no_leader() -> None:
    async def story(members: list[Node], instance: ClientInstance, _producer: Producer) -> None:
        last = following(members)
        for member in members:
            if member is not last:
                member.kill()
        with pytest.raises(TernError):
            await instance.ask(address_of(last), Code.DELETE_TOPIC_IN_BROKER, Topic(topic="known"), timeout_ms=10_000)
        await asyncio.sleep(5)
        with pytest.raises(ServiceNotAvailable, match="there is no leader yet"):
            await instance.ask(address_of(last), Code.DELETE_TOPIC_IN_BROKER, Topic(topic="known"))

    told(story)


async def test_a_request_by_a_member_that_was_asked_before_is_a_new_command() -> None:
    asked = AskedDeletions()
    assert asked.same("orders", "n1", 1, 0.0) is None
    deletion = asked.begin("orders", "n1", 1, 0.0)
    assert deletion is asked.same("orders", "n0", 1, 1.0)
    assert deletion is asked.same("orders", "n2", 1, 2.0)
    assert asked.same("orders", "n0", 1, 3.0) is None
    assert asked.same("other", "n0", 1, 3.0) is None


async def test_a_command_is_over_after_a_while_and_with_the_term() -> None:
    """P4: what an earlier term deleted may have been taken back."""
    asked = AskedDeletions()
    asked.begin("orders", "n1", 1, 0.0)
    assert asked.same("orders", "n0", 1, SAME_S) is None
    assert asked.same("orders", "n0", 2, 1.0) is None


async def test_a_deletion_that_failed_is_asked_for_again() -> None:
    """P4: and those that asked for it meanwhile are told why."""
    asked = AskedDeletions()
    deletion = asked.begin("orders", "n1", 1, 0.0)
    assert deletion is asked.same("orders", "n0", 1, 1.0)
    error = ServiceNotAvailable("no majority")
    asked.ended("orders", deletion, error)
    assert error is await deletion.outcome
    assert asked.same("orders", "n2", 1, 1.0) is None


async def test_the_oldest_deletion_is_forgotten_first() -> None:
    asked = AskedDeletions()
    for number in range(TOPICS_MAX + 1):
        asked.begin(f"topic-{number}", "n1", 1, 0.0)
    assert asked.same("topic-0", "n0", 1, 1.0) is None
    assert asked.same("topic-1", "n0", 1, 1.0) is not None
