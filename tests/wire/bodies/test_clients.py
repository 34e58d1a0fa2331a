"""What clients say."""

from __future__ import annotations

import json

import pytest

from ternmq.message import MessageQueue
from ternmq.wire.bodies.clients import (
    Assignments,
    BatchAcks,
    ConsumedDirectly,
    ConsumeFromWhere,
    ConsumeType,
    DirectResult,
    Heartbeat,
    MessageModel,
    ProcessQueueInfo,
    QueueOffsets,
    RunningInfo,
    encode_reset,
)
from ternmq.wire.bodies.codec import by_queue, decode, encode


def test_a_heartbeat_of_node_is_read() -> None:
    """V1: no expression type, no versions, no fingerprint."""
    data = b"""{"clientID":"10.0.0.1@7","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_PASSIVELY",
        "messageModel":"CLUSTERING","consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","unitMode":false,
        "subscriptionDataSet":[{"topic":"t","subString":"*","tagsSet":[],"codeSet":[],"subVersion":1}]}],
        "producerDataSet":[]}"""
    (consumer,) = decode(data, Heartbeat).consumer_data_set
    (subscription,) = consumer.subscription_data_set
    assert ("t", "TAG", 1) == (subscription.topic, subscription.expression_type, subscription.sub_version)


def test_an_unknown_choice_does_not_cost_the_heartbeat() -> None:
    """V1: Java takes an unknown name for null."""
    data = b"""{"clientID":"c","consumerDataSet":[{"groupName":"g","consumeType":"CONSUME_BY_MIND",
        "messageModel":"GOSSIP","consumeFromWhere":"CONSUME_FROM_THE_MIDDLE"}]}"""
    (consumer,) = decode(data, Heartbeat).consumer_data_set
    assert (ConsumeType.PASSIVELY, MessageModel.CLUSTERING, ConsumeFromWhere.LAST_OFFSET) == (
        consumer.consume_type,
        consumer.message_model,
        consumer.consume_from_where,
    )


def test_the_body_of_a_reset_is_raw_and_compact() -> None:
    """V1: Go splits it at «,{» and «}:», and crashes on valid JSON."""
    offsets = {MessageQueue("t", "b", 0): 7, MessageQueue("t", "b", 1): 9}
    data = encode_reset(offsets)
    assert (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:7,{"brokerName":"b","queueId":1,"topic":"t"}:9}}'
        == data
    )
    assert offsets == by_queue(decode(data, QueueOffsets).offset_table)
    assert b'{"offsetTable":{}}' == encode_reset({})


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ('"CR_ROLLBACK"', DirectResult.ROLLBACK),
        ("0", DirectResult.SUCCESS),
        ("4", DirectResult.THROW_EXCEPTION),
        ("17", DirectResult.LATER),
        ('"CR_NEW"', DirectResult.LATER),
    ],
)
def test_a_result_may_be_a_name_or_a_place(value: str, result: DirectResult) -> None:
    """V1: Go sends the place."""
    assert result == decode(f'{{"consumeResult":{value}}}'.encode(), ConsumedDirectly).result


def test_the_spelling_of_rocketmq_is_kept() -> None:
    """V1"""
    assert '"droped":true' in encode(ProcessQueueInfo(dropped=True)).decode()
    assert '"spentTimeMills":3' in encode(ConsumedDirectly(spent_ms=3)).decode()


def test_no_assignments_and_none_at_all_are_told_apart() -> None:
    """F9: «keep what you have» against «you have none»."""
    assert (b"{}", b'{"messageQueueAssignments":[]}') == (
        encode(Assignments()),
        encode(Assignments(message_queue_assignments=[])),
    )
    assert decode(b"{}", Assignments).message_queue_assignments is None


def test_acknowledgements_in_a_batch_have_short_names() -> None:
    """F9"""
    data = b'{"brokerName":"b","acks":[{"c":"g","t":"t","r":"0","so":5,"q":1,"rq":2,"pt":3,"it":4,"b":"AQI="}]}'
    (ack,) = decode(data, BatchAcks).acks
    assert ("g", 5, 1, 2, 3, 4, "AQI=") == (
        ack.consumer_group,
        ack.start_offset,
        ack.queue_id,
        ack.revive_queue_id,
        ack.pop_time_ms,
        ack.invisible_ms,
        ack.bits,
    )
    assert json.loads(data) == json.loads(encode(decode(data, BatchAcks)))


def test_running_info_of_java_is_read() -> None:
    """F10"""
    data = b"""{"mqPopTable":{},"mqTable":{{"brokerName":"b","queueId":0,"topic":"t"}:{"cachedMsgCount":0,
        "cachedMsgMaxOffset":0,"cachedMsgMinOffset":0,"cachedMsgSizeInMiB":1,"commitOffset":7,"droped":false,
        "lastConsumeTimestamp":1,"lastLockTimestamp":1,"lastPullTimestamp":1,"locked":false,"transactionMsgCount":0,
        "transactionMsgMaxOffset":0,"transactionMsgMinOffset":0,"tryUnlockTimes":0}},
        "properties":{"PROP_CONSUME_TYPE":"CONSUME_PASSIVELY"},
        "statusTable":{"t":{"consumeFailedMsgs":0,"consumeFailedTPS":0.0,"consumeOKTPS":1.5,"consumeRT":0.0,
        "pullRT":0.0,"pullTPS":0.0}},"subscriptionSet":[],"userConsumerInfo":{}}"""
    info = decode(data, RunningInfo)
    queue = by_queue(info.mq_table)[MessageQueue("t", "b", 0)]
    assert (7, 1, 1.5) == (queue.commit_offset, queue.cached_msg_size_in_mib, info.status_table["t"].consume_ok_tps)
