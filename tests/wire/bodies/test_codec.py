"""Bodies of all kinds: recorded, made up and broken."""

from __future__ import annotations

import json
from contextlib import suppress
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.errors import RemoteProtocolError
from ternmq.message import MessageQueue
from ternmq.wire.bodies import clients, groups, routes, stats, topics
from ternmq.wire.bodies.codec import (
    Body,
    Queue,
    QueueKey,
    by_key,
    by_queue,
    decode,
    encode,
    queue_key,
    read_queue_key,
)
from ternmq.wire.codes import RequestCode
from ternmq.wire.fastjson import to_json
from tests.wire.recorded import frames
from tests.wire.values import values

#: What each request carries, and what comes back with success.
REQUESTS: Final[dict[int, type[Body]]] = {
    RequestCode.HEART_BEAT: clients.Heartbeat,
    RequestCode.LOCK_BATCH_MQ: clients.QueueLocks,
    RequestCode.UNLOCK_BATCH_MQ: clients.QueueLocks,
    RequestCode.CHECK_CLIENT_CONFIG: clients.ClientCheck,
    RequestCode.REGISTER_BROKER: routes.RegistrationBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: groups.SubscriptionGroupConfig,
    RequestCode.QUERY_ASSIGNMENT: clients.AssignmentQuery,
    RequestCode.SET_MESSAGE_REQUEST_MODE: clients.GroupRequestMode,
}
REPLIES: Final[dict[int, type[Body]]] = {
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: clients.MemberList,
    RequestCode.LOCK_BATCH_MQ: clients.LockedQueues,
    RequestCode.REGISTER_BROKER: routes.KvTable,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: routes.TopicRouteBody,
    RequestCode.GET_BROKER_CLUSTER_INFO: routes.ClusterInfo,
    RequestCode.GET_TOPIC_STATS_INFO: stats.TopicStats,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: topics.TopicList,
    RequestCode.GET_CONSUME_STATS: stats.ConsumeStats,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: clients.QueueOffsets,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: groups.GroupList,
    RequestCode.VIEW_BROKER_STATS_DATA: stats.BrokerStats,
    RequestCode.GET_BROKER_CONSUME_STATS: stats.BrokerConsumeStats,
    RequestCode.GET_TOPIC_CONFIG: topics.TopicConfig,
    RequestCode.QUERY_ASSIGNMENT: clients.Assignments,
}


def recorded_bodies() -> list[tuple[bytes, type[Body]]]:
    found = []
    for frame in frames():
        if frame.body.startswith(b"{"):
            kind = REPLIES[frame.asked] if frame.is_response else REQUESTS[frame.code]
            found.append((frame.body, kind))
    return found


RECORDED: Final = recorded_bodies()


def kinds(*modules: ModuleType) -> list[type[Body]]:
    return [
        kind
        for module in modules
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Body) and kind.__module__ == module.__name__
    ]


ALL: Final = kinds(clients, groups, routes, stats, topics)


def test_every_recorded_body_is_read_and_goes_out_as_the_same_value() -> None:
    """V1, V2, V3: nothing is lost but the details of static topics."""
    assert len(RECORDED) > 700
    assert {*REQUESTS.values(), *REPLIES.values()} == {kind for _, kind in RECORDED}
    for data, kind in RECORDED:
        expected = json.loads(to_json(data))
        if kind is routes.RegistrationBody:
            assert {} == expected["topicConfigSerializeWrapper"].pop("topicQueueMappingDetailMap", {})
        assert expected == json.loads(encode(decode(data, kind)))


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_any_body_round_trips(kind: type[Body], data: st.DataObject) -> None:
    """B1"""
    body = data.draw(values(kind))
    assert body == decode(encode(body), kind)


@given(st.sampled_from(RECORDED), st.data())
def test_a_cut_or_changed_body_is_read_or_refused(recorded: tuple[bytes, type[Body]], data: st.DataObject) -> None:
    """B5"""
    body, kind = recorded
    with pytest.raises(RemoteProtocolError):
        decode(body[: data.draw(st.integers(0, len(body) - 1))], kind)
    changed = bytearray(body)
    changed[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    with suppress(RemoteProtocolError):
        decode(changed, kind)


def test_bytes_after_a_body_are_refused() -> None:
    """B5"""
    for body, kind in RECORDED[:50]:
        with pytest.raises(RemoteProtocolError):
            decode(body + b"x", kind)


def test_a_body_may_be_any_buffer() -> None:
    """B1"""
    data = b'{"groupList":["g"]}'
    for buffer in (data, bytearray(data), memoryview(data)):
        assert groups.GroupList(group_list=["g"]) == decode(buffer, groups.GroupList)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"", "the body is not JSON"),
        (b"[]", "the body is not a valid GroupList: Expected `object`, got `array`"),
        (b'{"groupList":[1]}', "the body is not a valid GroupList: Expected `str`, got `int`"),
        (b"[" * 100_000, "nested more than"),
        (b'{"groupList":["\xff"]}', "utf-8"),
    ],
)
def test_a_body_that_does_not_fit_is_refused_with_the_reason(data: bytes, complaint: str) -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match=complaint):
        decode(data, groups.GroupList)


def test_a_body_that_is_larger_than_its_kind_is_refused_before_it_is_read() -> None:
    """B5: 16 MiB of a heartbeat that is refused in the end kept a server busy for a second."""
    body = encode(clients.Heartbeat(client_id="c"))
    largest = body + b" " * (clients.Heartbeat.bytes_max - len(body))

    assert "c" == decode(largest, clients.Heartbeat).client_id
    with pytest.raises(
        RemoteProtocolError, match="the body has 2097153 bytes, more than the 2097152 that a Heartbeat may"
    ):
        decode(largest + b" ", clients.Heartbeat)


def test_none_is_left_out_and_defaults_are_written() -> None:
    """V1: Java's 5.x name server breaks at null, its readers have other defaults than ours."""
    assert {"table": {}} == json.loads(encode(routes.KvTable()))
    assert {"counter": 0, "timestamp": 0} == json.loads(encode(topics.DataVersion()))
    assert {"counter": 0, "timestamp": 0, "stateVersion": 0} == json.loads(encode(topics.DataVersion(state_version=0)))


def test_null_members_have_their_defaults() -> None:
    """V1: a nil slice of Go is null."""
    assert clients.MemberList() == decode(b'{"consumerIdList":null}', clients.MemberList)


def test_numbers_may_be_texts() -> None:
    """V1"""
    assert topics.DataVersion(counter=3) == decode(b'{"counter":"3"}', topics.DataVersion)


# --- Queues as keys -------------------------------------------------------------------------------------------

QUEUE = MessageQueue("t", "broker-a", 3)
KEY = QueueKey('{"brokerName":"broker-a","queueId":3,"topic":"t"}')


def test_a_queue_is_a_key_as_java_writes_it() -> None:
    """V2"""
    assert KEY == queue_key(QUEUE)
    assert QUEUE == read_queue_key(KEY)
    assert QUEUE == read_queue_key(QueueKey('{ "topic":"t", "queueId":"3", "brokerName":"broker-a" }'))


def test_tables_by_queue_turn_both_ways() -> None:
    """V2"""
    table = {QUEUE: 1, QUEUE._replace(queue_id=4): 2}
    assert table == by_queue(by_key(table))


def test_bare_and_quoted_queue_keys_are_the_same() -> None:
    """V2"""
    bare = b'{"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"t"}:9}}'
    quoted = json.dumps({"offsetTable": {KEY: 9}}).encode()
    for data in (bare, quoted):
        assert {QUEUE: 9} == by_queue(decode(data, clients.QueueOffsets).offset_table)


def test_a_key_that_is_no_queue_is_refused() -> None:
    """B5"""
    with pytest.raises(RemoteProtocolError, match="the body is not a valid Queue"):
        by_queue({QueueKey("{}"): 1})


def test_a_queue_in_a_body_is_a_message_queue() -> None:
    """F2"""
    assert QUEUE == Queue.of(QUEUE).message_queue


def test_an_object_that_occurs_twice_is_read_in_both_places() -> None:
    """V2: fastjson writes it once."""
    data = b"""{"brokerAddrTable":{"a":{"brokerAddrs":{0:"1:1"},"brokerName":"a","cluster":"c"},
        "b":{"$ref":"$.brokerAddrTable.a"}},"clusterAddrTable":{"c":["a"]}}"""
    table: dict[str, Any] = decode(data, routes.ClusterInfo).broker_addr_table
    assert table["a"] == table["b"]
