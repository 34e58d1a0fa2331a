"""Topics, as tools create, change, list and delete them (D1, D6)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ternmq.broker.broker import Broker
from ternmq.broker.services.catalog import changed_attributes
from ternmq.errors import InvalidParameter
from ternmq.message import MessageQueue
from ternmq.namesrv.config import NamesrvConfig
from ternmq.namesrv.server import NameServer
from ternmq.wire.bodies.codec import by_queue, decode, encode
from ternmq.wire.bodies.groups import GroupList
from ternmq.wire.bodies.stats import TopicStats
from ternmq.wire.bodies.topics import TopicConfig, TopicConfigs, TopicList, TopicTable
from ternmq.wire.codes import RequestCode, ResponseCode
from ternmq.wire.requests import QueueBounds, UpdateOffset
from ternmq.wire.requests_admin import AllTopics, Topic
from tests.broker.handlers.conftest import Client, broker_config, connecting, store_config


async def config_of(client: Client, topic: str) -> TopicConfig:
    return decode((await client.ok(RequestCode.GET_TOPIC_CONFIG, Topic(topic=topic))).body, TopicConfig)


async def test_a_topic_is_created_and_changed(client: Client) -> None:
    """D1."""
    assert (await client.create_topic("orders", queues=3, order=True)).code == ResponseCode.SUCCESS
    assert (await client.create_topic("orders", queues=5, attributes="+message.type=FIFO")).code == 0

    config = await config_of(client, "orders")
    assert (config.read_queue_nums, config.order, config.attributes) == (5, False, {"message.type": "FIFO"})


async def test_a_created_topic_is_known_to_the_name_servers_when_its_creator_is_answered(tmp_path: Path) -> None:
    """A2, D1: tools ask for its route at once."""
    async with NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1")) as name_server:
        config = broker_config(namesrv_addr=f"127.0.0.1:{name_server.port}")
        async with Broker(config, store_config(tmp_path)) as broker, connecting(broker) as connect:
            await (await connect()).create_topic("orders")

            assert name_server.registry.route("orders") is not None


async def test_many_topics_are_created_at_once(client: Client) -> None:
    configs = TopicConfigs(topic_config_list=[TopicConfig(topic_name=f"t{number}") for number in range(3)])

    await client.ok(RequestCode.UPDATE_AND_CREATE_TOPIC_LIST, None, encode(configs))

    table = decode((await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG)).body, TopicTable)
    assert {"t0", "t1", "t2", "TBW102"} <= table.topic_config_table.keys()
    paged = await client.ok(RequestCode.GET_ALL_TOPIC_CONFIG, AllTopics(topic_seq=0, count_max=1))
    assert decode(paged.body, TopicTable) == table
    assert "totalTopicNum" not in paged.fields  # «all sent»


@pytest.mark.parametrize("topic", ["bad name", "TBW102", "broker-a", "SCHEDULE_TOPIC_XXXX", ""])
async def test_a_name_that_is_not_allowed_is_refused(client: Client, topic: str) -> None:
    """D1: bad ones, and the system's own."""
    response = await client.create_topic(topic)

    assert response.code in (ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR)
    assert response.remark


async def test_an_unknown_topic_is_told_so(client: Client) -> None:
    """remoting.md: 17, which tools tolerate, never 3."""
    for code in (RequestCode.GET_TOPIC_CONFIG, RequestCode.GET_TOPIC_STATS_INFO):
        assert (await client.call(code, Topic(topic="nowhere"))).code == ResponseCode.TOPIC_NOT_EXIST


async def test_the_state_of_each_queue_is_told(client: Client) -> None:
    """D5."""
    await client.create_topic("orders", queues=2)
    await client.send("orders", b"1", b"2", queue_id=1)

    response = await client.ok(RequestCode.GET_TOPIC_STATS_INFO, Topic(topic="orders"))

    table = by_queue(decode(response.body, TopicStats).offset_table)
    assert {queue.queue_id: (stats.min_offset, stats.max_offset) for queue, stats in table.items()} == {
        0: (0, 0),
        1: (0, 2),
    }
    assert table[MessageQueue("orders", "broker-a", 0)].last_update_timestamp == 0
    assert table[MessageQueue("orders", "broker-a", 1)].last_update_timestamp > 0


async def test_a_deleted_topic_is_gone_with_its_queues_and_offsets(client: Client) -> None:
    """D1: one made anew begins at 0."""
    await client.create_topic("orders")
    await client.send("orders", b"1")
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateOffset(consumer_group="g", topic="orders", queue_id=0, commit_offset=1),
    )

    await client.ok(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic="orders"))

    assert (await client.call(RequestCode.GET_TOPIC_CONFIG, Topic(topic="orders"))).code == ResponseCode.TOPIC_NOT_EXIST
    consumed_by = await client.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, Topic(topic="orders"))
    assert decode(consumed_by.body, GroupList).group_list == []
    await client.create_topic("orders")
    end = await client.ok(RequestCode.GET_MAX_OFFSET, QueueBounds(topic="orders", queue_id=0))
    assert end.fields["offset"] == "0"


async def test_the_systems_topics_cannot_be_deleted(client: Client) -> None:
    """D1."""
    response = await client.ok(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER)
    topics = decode(response.body, TopicList).topic_list
    assert {"TBW102", "DefaultCluster", "broker-a", "SELF_TEST_TOPIC"} <= set(topics)

    for topic in topics:
        refused = await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, Topic(topic=topic))
        assert refused.code == ResponseCode.INVALID_PARAMETER


async def test_who_consumes_a_topic_is_told(client: Client) -> None:
    """D6: those connected, and those that have been."""
    await client.create_topic("orders")
    await client.consume("a", "online", "orders")
    await client.ok(
        RequestCode.UPDATE_CONSUMER_OFFSET,
        UpdateOffset(consumer_group="gone", topic="orders", queue_id=0, commit_offset=1),
    )

    response = await client.ok(RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, Topic(topic="orders"))

    assert decode(response.body, GroupList).group_list == ["gone", "online"]


def test_attributes_are_added_changed_and_removed() -> None:
    """D1: +key=value,-key."""
    assert changed_attributes(None, "") == {}
    assert changed_attributes(None, "+message.type=FIFO, +reserve.time=5") == {
        "message.type": "FIFO",
        "reserve.time": "5",
    }
    assert changed_attributes({"message.type": "FIFO"}, "+message.type=DELAY") == {"message.type": "DELAY"}
    assert changed_attributes({"message.type": "FIFO"}, "-message.type") == {}


@pytest.mark.parametrize(
    "text",
    [
        *("+queue.type=BatchCQ", "message.type=FIFO", "+message.type", "+message.type=ODD", "+colour=red", "x"),
        *("+reserve.time=soon", "+reserve.time=٣", "+reserve.time=" + 60_000 * "9", "+colour=" + 60_000 * "x"),
    ],
)
def test_an_attribute_that_cannot_be_is_refused(text: str) -> None:
    """D1: each registration carries attributes to each name server, so none is as long as a request may be."""
    with pytest.raises(InvalidParameter, match="invalid attribute") as raised:
        changed_attributes(None, text)
    assert len(str(raised.value)) < 300
