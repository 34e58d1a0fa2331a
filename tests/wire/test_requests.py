"""Typed headers against what RocketMQ's own programs sent."""

from __future__ import annotations

from typing import Final

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ternmq.wire import header as wire_header
from ternmq.wire import requests, requests_admin, requests_share
from ternmq.wire.codes import BINARY, JSON, RequestCode
from ternmq.wire.frame import FrameDecoder, encode_request
from ternmq.wire.header import Header, Request, typed
from tests.wire import recorded
from tests.wire.values import texts, values

#: Fields that no handler reads: hints of RocketMQ 5 for static topics (bname: the broker's name, lo: logical queue
#: only), and ReqT of its lite pull consumers (0: stream).
IGNORED: Final = {"bname", "lo", "ReqT"}

#: Codes whose parameters, if any, are a body.
WITHOUT_FIELDS: Final = {
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
    RequestCode.UPDATE_BROKER_CONFIG,
    RequestCode.GET_BROKER_CONFIG,
    RequestCode.GET_BROKER_RUNTIME_INFO,
    RequestCode.HEART_BEAT,
    RequestCode.LOCK_BATCH_MQ,
    RequestCode.UNLOCK_BATCH_MQ,
    RequestCode.GET_ALL_CONSUMER_FILTER,
    RequestCode.GET_ALL_CONSUMER_OFFSET,
    RequestCode.FOLLOW_LOG,
    RequestCode.GET_ALL_DELAY_OFFSET,
    RequestCode.CHECK_CLIENT_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
    RequestCode.GET_TIMER_CHECK_POINT,
    RequestCode.GET_TIMER_METRICS,
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
    RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE,
    RequestCode.GET_UNIT_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
    RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
    RequestCode.CLEAN_UNUSED_TOPIC,
    RequestCode.UPDATE_NAMESRV_CONFIG,
    RequestCode.GET_NAMESRV_CONFIG,
    RequestCode.GET_ALL_PRODUCER_INFO,
    RequestCode.DELETE_EXPIRED_COMMITLOG,
    RequestCode.QUERY_ASSIGNMENT,
    RequestCode.SET_MESSAGE_REQUEST_MODE,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE,
    RequestCode.GET_BROKER_HA_STATUS,
    RequestCode.GET_BROKER_EPOCH_CACHE,
    RequestCode.GET_BROKER_STATUS,
    RequestCode.GET_RAFT_STATUS,
    RequestCode.GET_DELETED_TOPICS,
    RequestCode.GET_QUEUE_NUMBERS,
    RequestCode.RETURN_OFFSETS,
    RequestCode.BATCH_ACK_MESSAGE,
}

#: Codes that no client sends today, or that belong to parts of RocketMQ that TernMQ does not have: its containers,
#: RocksDB files, static topics, limits for cold reads, controllers.
NOT_SPOKEN: Final = {
    RequestCode.CONTROLLER_ELECT_MASTER,
    RequestCode.CONTROLLER_GET_METADATA_INFO,
    RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
    RequestCode.UPDATE_CONTROLLER_CONFIG,
    RequestCode.GET_CONTROLLER_CONFIG,
    RequestCode.CLEAN_BROKER_DATA,
    RequestCode.QUERY_BROKER_OFFSET,
    RequestCode.GET_TOPIC_CONFIG_LIST,
    RequestCode.GET_TOPIC_NAME_LIST,
    RequestCode.TRIGGER_DELETE_FILES,
    RequestCode.GET_CLIENT_CONFIG,
    RequestCode.SUSPEND_CONSUMER,
    RequestCode.RESUME_CONSUMER,
    RequestCode.RESET_CONSUMER_OFFSET_IN_CONSUMER,
    RequestCode.RESET_CONSUMER_OFFSET_IN_BROKER,
    RequestCode.ADJUST_CONSUMER_THREAD_POOL,
    RequestCode.WHO_CONSUME_THE_MESSAGE,
    RequestCode.REGISTER_FILTER_SERVER,
    RequestCode.REGISTER_MESSAGE_FILTER_CLASS,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
    RequestCode.ADD_BROKER,
    RequestCode.REMOVE_BROKER,
    RequestCode.SET_COMMITLOG_READ_MODE,
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO,
    RequestCode.POP_ROLLBACK,
}

REPLIES: Final[dict[int, type[Header]]] = {
    RequestCode.PULL_MESSAGE: requests.PullReply,
    RequestCode.LITE_PULL_MESSAGE: requests.PullReply,
    RequestCode.QUERY_MESSAGE: requests.QueryReply,
    RequestCode.QUERY_CONSUMER_OFFSET: requests.OffsetReply,
    RequestCode.GET_MAX_OFFSET: requests.OffsetReply,
    RequestCode.HEART_BEAT: requests.HeartbeatReply,
    RequestCode.SEND_MESSAGE_V2: requests.SendReply,
    RequestCode.SEND_BATCH_MESSAGE: requests.SendReply,
    RequestCode.SEND_REPLY_MESSAGE_V2: requests.SendReply,
    RequestCode.POP_MESSAGE: requests.PopReply,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: requests.ChangeInvisibleTimeReply,
}

TYPED: Final = sorted(wire_header._headers.items())
#: A code for each kind.
KINDS: Final = {kind: code for code, kind in TYPED}
REPLY_KINDS: Final = sorted(
    {
        kind
        for module in (requests, requests_admin, requests_share)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, requests.Call) and kind is not requests.Call
    }
    - KINDS.keys(),
    key=lambda kind: kind.__name__,
)


def test_every_code_is_typed_or_known_to_have_no_fields() -> None:
    """B1: a new code must be put into one of the three groups."""
    typed_codes = {RequestCode(code) for code, _ in TYPED}
    assert set(RequestCode) == typed_codes | WITHOUT_FIELDS | NOT_SPOKEN
    assert len(RequestCode) == len(typed_codes) + len(WITHOUT_FIELDS) + len(NOT_SPOKEN)


def test_recorded_requests_come_typed_and_go_out_again_as_they_came() -> None:
    """V1, V2: field by field, both forms, both versions."""
    for frame in recorded.requests():
        (request,) = FrameDecoder().feed(frame.data)
        assert isinstance(request, Request)
        assert request.fault is None
        header = request.header
        fields = header.to_fields() if isinstance(header, Header) else {}
        # The binary form cannot hold empty texts.
        expected = {name: value for name, value in frame.fields.items() if value or frame.form == JSON}
        not_modelled = expected.keys() - fields.keys()
        assert not_modelled <= IGNORED, (frame.code, not_modelled)
        assert {name: value for name, value in expected.items() if name in fields} == fields


def test_recorded_codes_without_a_typed_header_have_no_fields() -> None:
    """V1"""
    codes = {code for code, _ in TYPED}
    for frame in recorded.requests():
        if frame.code not in codes:
            assert frame.code in WITHOUT_FIELDS
            assert frame.fields.keys() <= IGNORED


def test_recorded_replies_are_read_and_written_as_they_came() -> None:
    """V2"""
    seen = set()
    for frame in recorded.responses():
        kind = REPLIES.get(frame.asked)
        if kind is None:
            assert not frame.fields, (frame.asked, frame.fields)
        elif frame.fields:
            seen.add(frame.asked)
            assert frame.fields == typed(frame.fields, kind).to_fields()
    assert REPLIES.keys() == seen


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_any_request_header_round_trips(kind: type[Header], data: st.DataObject) -> None:
    """B1"""
    code = KINDS[kind]
    header = data.draw(values(kind))
    (request,) = FrameDecoder().feed(b"".join(encode_request(code, header, opaque=1)))
    assert isinstance(request, Request)
    assert header == request.header
    if code < 0x8000:
        header = data.draw(values(kind, text=texts.filter(bool)))
        (request,) = FrameDecoder().feed(b"".join(encode_request(code, header, opaque=1, form=BINARY)))
        assert isinstance(request, Request)
        assert header == request.header


@pytest.mark.parametrize("kind", REPLY_KINDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=15)
def test_any_reply_header_round_trips(kind: type[Header], data: st.DataObject) -> None:
    """B1"""
    header = data.draw(values(kind).filter(lambda header: None not in vars_of(header)))
    assert header == typed(header.to_fields(), kind)


def vars_of(header: Header) -> tuple[object, ...]:
    """Values of the fields whose default is not None: None there is not told apart from the default."""
    return tuple(
        getattr(header, field.name) for field in msgspec.structs.fields(type(header)) if field.default is not None
    )


def test_both_send_headers_have_the_same_fields() -> None:
    """E1: one handler serves 10, 310, 320, 324 and 325."""
    long = msgspec.structs.fields(requests.SendMessage)
    short = msgspec.structs.fields(requests.SendMessageV2)
    assert [(field.name, field.type, field.default) for field in long] == [
        (field.name, field.type, field.default) for field in short
    ]
    letters = {field.name: field.encode_name for field in short}
    assert {
        "producer_group": "a",
        "topic": "b",
        "default_topic": "c",
        "default_topic_queue_nums": "d",
        "queue_id": "e",
        "sysflag": "f",
        "born_time_ms": "g",
        "flag": "h",
        "properties": "i",
        "reconsume_times": "j",
        "unit_mode": "k",
        "max_reconsume_times": "l",
        "batch": "m",
        "broker_name": "n",
    } == letters


def test_a_send_of_go_has_names_in_full() -> None:
    """V1"""
    fields = {
        "producerGroup": "p",
        "topic": "t",
        "defaultTopic": "TBW102",
        "defaultTopicQueueNums": "4",
        "queueId": "3",
        "sysFlag": "0",
        "bornTimestamp": "1700000000000",
        "flag": "0",
        "properties": "",
        "reconsumeTimes": "0",
        "unitMode": "false",
        "maxReconsumeTimes": "0",
        "batch": "false",
        "bname": "broker-a",
    }
    header = typed(fields, requests.SendMessage)
    assert fields == header.to_fields()
    assert ("t", 3, 1700000000000, "broker-a") == (
        header.topic,
        header.queue_id,
        header.born_time_ms,
        header.broker_name,
    )


def test_the_spelling_of_rocketmq_is_kept() -> None:
    """V1"""
    pull = requests.PullMessage(
        consumer_group="g", topic="t", queue_id=0, queue_offset=0, count_max=1, proxy_client_id="c"
    )
    assert "c" == pull.to_fields()["proxyFrowardClientId"]
    heartbeat = requests_admin.BrokerHeartbeat(
        broker_name="b", broker_address="a", cluster_name="c", heartbeat_timeout_ms=1
    )
    assert "1" == heartbeat.to_fields()["heartbeatTimeoutMills"]


@pytest.mark.parametrize(
    ("fields", "offsets_too"),
    [({}, False), ({"removeOffset": "true"}, True), ({"cleanOffset": "true"}, True), ({"cleanOffset": "false"}, False)],
)
def test_a_group_is_deleted_with_its_offsets_whatever_the_flag_is_called(
    fields: dict[str, str], offsets_too: bool
) -> None:
    """D2: removeOffset in 4.9, cleanOffset in 5.x."""
    assert offsets_too == typed({"groupName": "g", **fields}, requests_admin.DeleteGroup).offsets_too
