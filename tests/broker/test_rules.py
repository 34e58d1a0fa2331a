"""What each request to a broker needs (issue 14, N1; protocol/features.md, section 1)."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.handlers.not_offered import NOT_OFFERED
from ternmq.errors import NoPermission
from ternmq.net.gate import Action, CallingPeer, Gate, Need, Resource, ResourceKind, Rule
from ternmq.wire.bodies.clients import (
    AssignmentQuery,
    BatchAck,
    BatchAcks,
    ClientCheck,
    ConsumerData,
    GroupRequestMode,
    Heartbeat,
    ProducerData,
    QueueLocks,
    RequestMode,
    SubscriptionData,
)
from ternmq.wire.bodies.codec import Body, Queue, encode
from ternmq.wire.bodies.groups import GroupConfigs, SubscriptionGroupConfig
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs
from ternmq.wire.codes import RequestCode as Code
from ternmq.wire.codes import ResponseCode
from ternmq.wire.header import Fields, Request
from tests.broker.calls import dialled, settings, small_store
from tests.rules import Noting, rules_by_code, unknown_fields

#: By action, each code that a broker serves. A code that is not here fails the test: think of its rule first.
CODES: Final = {
    Action.PUB: {
        Code.END_TRANSACTION,
        Code.RECALL_MESSAGE,
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
    },
    Action.SUB: {
        Code.ACK_MESSAGE,
        Code.BATCH_ACK_MESSAGE,
        Code.CHANGE_MESSAGE_INVISIBLETIME,
        Code.CHECK_CLIENT_CONFIG,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.GET_CONSUMER_LIST_BY_GROUP,
        Code.HEART_BEAT,
        Code.LITE_PULL_MESSAGE,
        Code.LOCK_BATCH_MQ,
        Code.NOTIFICATION,
        Code.PEEK_DELAYED_MESSAGES,
        Code.PEEK_MESSAGE,
        Code.POP_MESSAGE,
        Code.PULL_MESSAGE,
        Code.QUERY_ASSIGNMENT,
        Code.QUERY_CONSUME_QUEUE,
        Code.QUERY_MESSAGE,
        Code.SHARE_ACK,
        Code.SHARE_HOLD,
        Code.SHARE_LEAVE,
        Code.SHARE_PULL,
        Code.UNLOCK_BATCH_MQ,
        Code.UNREGISTER_CLIENT,
        Code.UPDATE_CONSUMER_OFFSET,
        Code.VIEW_MESSAGE_BY_ID,
    },
    Action.ADMIN: {
        Code.CLEAN_EXPIRED_CONSUMEQUEUE,
        Code.CLEAN_UNUSED_TOPIC,
        Code.CLONE_GROUP_OFFSET,
        Code.CONSUME_MESSAGE_DIRECTLY,
        Code.DELETE_EXPIRED_COMMITLOG,
        Code.DELETE_SUBSCRIPTIONGROUP,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.RETURN_OFFSETS,
        Code.INVOKE_BROKER_TO_RESET_OFFSET,
        Code.HAND_OVER,
        Code.LIST_TRANSACTIONS,
        Code.PROMOTE_BROKER,
        Code.RESUME_CHECK_HALF_MESSAGE,
        Code.SET_MESSAGE_REQUEST_MODE,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_BROKER_CONFIG,
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
    },
    Action.ANY: {
        *NOT_OFFERED,
        Code.GET_ALL_CONSUMER_FILTER,
        Code.GET_ALL_CONSUMER_OFFSET,
        Code.GET_ALL_DELAY_OFFSET,
        Code.GET_BROKER_EPOCH_CACHE,
        Code.GET_BROKER_HA_STATUS,
        Code.GET_BROKER_STATUS,
        Code.GET_ALL_MESSAGE_REQUEST_MODE,
        Code.GET_ALL_PRODUCER_INFO,
        Code.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_ALL_TOPIC_CONFIG,
        Code.GET_BROKER_CONFIG,
        Code.GET_BROKER_CONSUME_STATS,
        Code.GET_BROKER_RUNTIME_INFO,
        Code.GET_CONSUMER_CONNECTION_LIST,
        Code.GET_CONSUMER_RUNNING_INFO,
        Code.GET_CONSUME_STATS,
        Code.GET_DELAYED_STATS,
        Code.GET_TIMER_CHECK_POINT,
        Code.GET_TIMER_METRICS,
        Code.GET_EARLIEST_MSG_STORETIME,
        Code.GET_MAX_OFFSET,
        Code.GET_MIN_OFFSET,
        Code.GET_PRODUCER_CONNECTION_LIST,
        Code.GET_SHARE_MEMBERS,
        Code.GET_SUBSCRIPTIONGROUP_CONFIG,
        Code.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        Code.GET_TOPIC_CONFIG,
        Code.GET_TOPIC_STATS_INFO,
        Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        Code.POLLING_INFO,
        Code.QUERY_CONSUMER_OFFSET,
        Code.QUERY_CONSUME_TIME_SPAN,
        Code.QUERY_CORRECTION_OFFSET,
        Code.QUERY_SUBSCRIPTION_BY_CONSUMER,
        Code.QUERY_TOPICS_BY_CONSUMER,
        Code.QUERY_TOPIC_CONSUME_BY_WHO,
        Code.SEARCH_OFFSET_BY_TIMESTAMP,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
        Code.VIEW_BROKER_STATS_DATA,
    },
}
SUBSCRIPTION: Final = SubscriptionData(topic="orders")
QUEUE: Final = Queue(topic="orders", broker_name="broker-a", queue_id=0)
BOTH: Final = {Resource(ResourceKind.GROUP, "billing"), Resource(ResourceKind.TOPIC, "orders")}
#: Requests that name their resources in the body.
BODIES: Final[list[tuple[Code, Body, set[Resource]]]] = [
    (
        Code.HEART_BEAT,
        Heartbeat(
            client_id="c",
            producer_data_set=[ProducerData(group_name="makers")],
            consumer_data_set=[ConsumerData(group_name="billing", subscription_data_set=[SUBSCRIPTION])],
        ),
        BOTH,
    ),
    (Code.CHECK_CLIENT_CONFIG, ClientCheck(client_id="c", group="billing", subscription_data=SUBSCRIPTION), BOTH),
    (Code.LOCK_BATCH_MQ, QueueLocks(client_id="c", consumer_group="billing", queues=[QUEUE]), BOTH),
    (Code.UNLOCK_BATCH_MQ, QueueLocks(client_id="c", consumer_group="billing", queues=[QUEUE]), BOTH),
    (
        Code.BATCH_ACK_MESSAGE,
        BatchAcks(
            broker_name="broker-a",
            acks=[
                BatchAck(
                    consumer_group="billing",
                    topic="orders",
                    retry="0",
                    start_offset=0,
                    queue_id=0,
                    revive_queue_id=0,
                    pop_time_ms=0,
                    invisible_ms=0,
                    bits="",
                )
            ],
        ),
        BOTH,
    ),
    (
        Code.QUERY_ASSIGNMENT,
        AssignmentQuery(client_id="c", consumer_group="billing", topic="orders", strategy_name="AVG"),
        BOTH,
    ),
    (
        Code.SET_MESSAGE_REQUEST_MODE,
        GroupRequestMode(consumer_group="billing", topic="orders", mode=RequestMode.POP),
        BOTH,
    ),
    (
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        TopicConfigs(topic_config_list=[TopicConfig(topic_name="orders")]),
        {Resource(ResourceKind.TOPIC, "orders")},
    ),
    (
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        SubscriptionGroupConfig(group_name="billing"),
        {Resource(ResourceKind.GROUP, "billing")},
    ),
    (
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        GroupConfigs(group_config_list=[SubscriptionGroupConfig(group_name="billing")]),
        {Resource(ResourceKind.GROUP, "billing")},
    ),
]


@pytest.fixture
async def rules(tmp_path: Path) -> dict[Code, Rule]:
    noting = Noting()
    async with (
        Broker(settings(), small_store(tmp_path), gate=Gate([noting])) as broker,
        dialled(broker.address) as caller,
    ):
        return await rules_by_code(caller.peer, noting)


async def test_every_code_of_a_broker_has_the_rule_of_the_table(rules: dict[Code, Rule]) -> None:
    actions = {code: action for action, codes in CODES.items() for code in codes}

    assert actions == {code: rule.action for code, rule in rules.items()}
    assert [] == unknown_fields(rules)


async def test_bodies_name_their_resources(rules: dict[Code, Rule]) -> None:
    found = {}
    for code, body, _ in BODIES:
        rule = rules[code]
        found[code] = {need.resource for need in rule.needs({}, memoryview(encode(body)))}

    assert {code: resources for code, _, resources in BODIES} == found
    assert {code for code, rule in rules.items() if rule.in_body is not None} == found.keys()


async def test_a_broker_with_a_gate_serves_what_is_allowed(tmp_path: Path) -> None:
    def orders_only(_caller: CallingPeer, request: Request[Any], fields: Fields, rule: Rule) -> None:
        for need in rule.needs(fields, request.body):
            if need != Need(Action.PUB, Resource(ResourceKind.TOPIC, "orders")):
                raise NoPermission(f"no permission for {need.resource.kind.value}:{need.resource.name}")

    async with (
        Broker(settings(), small_store(tmp_path), gate=Gate([orders_only])) as broker,
        dialled(broker.address) as caller,
    ):
        await caller.sent("orders", b"1")
        refused = [await caller.send("payments", b"2"), await caller.pull("orders")]

    assert [
        (ResponseCode.NO_PERMISSION, "no permission for topic:payments"),
        (ResponseCode.NO_PERMISSION, "no permission for group:readers"),
    ] == [(answer.code, answer.remark) for answer in refused]
