"""Settings of a broker: wrong ones are named, with what they may be (T2)."""

from __future__ import annotations

from typing import Any

import pytest

from ternmq.broker import flow
from ternmq.broker.config import BrokerConfig
from ternmq.errors import ConfigError


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"broker_name": ""}, "invalid brokerName ''"),
        ({"broker_name": "a:b"}, "invalid brokerName 'a:b': expected 1 to 127 letters"),
        ({"broker_cluster_name": "my cluster"}, "invalid brokerClusterName 'my cluster'"),
        ({"listen_port": 70_000}, "invalid listenPort 70000: expected 0 to 65535"),
        ({"broker_id": -1}, "invalid brokerId -1"),
        ({"broker_permission": 9}, "invalid brokerPermission 9: expected 0 to 7"),
        ({"default_topic_queue_nums": 0}, "invalid defaultTopicQueueNums 0"),
        ({"register_name_server_period": 5}, "invalid registerNameServerPeriod 5: expected 10000 to 60000"),
        ({"flush_consumer_offset_interval": 0}, "invalid flushConsumerOffsetInterval 0"),
        ({"region_id": "a\x02b"}, "regionId"),
    ],
)
def test_a_wrong_setting_is_named_with_what_it_may_be(changes: dict[str, Any], sentence: str) -> None:
    """T2"""
    with pytest.raises(ConfigError, match=sentence.replace("…", ".")):
        BrokerConfig(**({"broker_name": "broker-a"} | changes))


def test_a_host_s_name_is_a_broker_s_name() -> None:
    """T2: the default, whatever the machine is called."""
    assert BrokerConfig(broker_name="node-1.example.com").broker_name == "node-1.example.com"
    assert BrokerConfig().broker_name


def test_a_broker_s_name_may_say_its_machine_room() -> None:
    """Issue 13, 14; G1: allocation by machine room takes the room from ``room@broker``. Clusters have none."""
    assert BrokerConfig(broker_name="room1@broker-a").broker_name == "room1@broker-a"
    with pytest.raises(ConfigError, match="brokerClusterName"):
        BrokerConfig(broker_name="a", broker_cluster_name="room1@cluster")


@pytest.mark.parametrize("text", ["a:1;b:2", "a:1 ; b:2;", "a:1,b:2"])
def test_name_servers_are_separated_by_semicolons(text: str) -> None:
    """A2"""
    assert BrokerConfig(broker_name="b", namesrv_addr=text).name_servers == ("a:1", "b:2")


def test_the_lanes_have_the_bounds_of_the_settings() -> None:
    """B3, M1"""
    config = BrokerConfig(broker_name="b", send_thread_pool_queue_capacity=7, wait_time_mills_in_send_queue=8)

    lanes = {lane.name: (lane.capacity, lane.wait_max_ms) for lane in flow.lanes(config)}

    assert lanes == {
        "send": (7, 8),
        "pull": (100_000, 5_000),
        "query": (20_000, 0),
        "client": (50_000, 31_000),
        "admin": (10_000, 5_000),
    }
